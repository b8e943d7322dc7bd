//! The threads that partitions live on.
//!
//! A few threads, each with a single-threaded runtime and with every so many'th partition: its Raft core, its worker, whoever answers
//! for its log, the connections to its peers, and as many of the server's own connections as the other threads have. So on its way
//! from a socket to the log and back a write is handed to no other thread but the log device's, which is what its latency was made
//! of (LogStore gives each partition a thread for the same reason).
//!
//! What takes long belongs elsewhere: flushes, compactions, repairs and large drops run in the server's own runtime
//! ([`Background`](crate::flush::Background)) or on the pool for blocking work, so that a heartbeat waits for some groups of writes at
//! most. Heartbeats have connections of their own.

use std::future::Future;

use futures::future::BoxFuture;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::PartitionId;
use sextant_environment::Env;
use tokio::sync::{mpsc, oneshot};

/// All of a server. They end, with everything that runs there, when this is dropped.
pub struct PartitionThreads(Vec<PartitionThread>);

impl PartitionThreads {
    /// `asked`: as in the tuning. No more than partitions.
    pub fn start(env: &Env, asked: usize, partitions: usize) -> Self {
        let count = env.serving_threads(asked).clamp(1, partitions.max(1));
        Self((0..count).map(|n| PartitionThread::start(env, n)).collect())
    }

    pub fn of(&self, partition: PartitionId) -> &PartitionThread {
        &self.0[self.index_of(partition)]
    }

    pub fn index_of(&self, partition: PartitionId) -> usize {
        partition.0 as usize % self.0.len()
    }

    /// Those who serve all partitions live here.
    pub fn first(&self) -> &PartitionThread {
        &self.0[0]
    }

    pub fn all(&self) -> impl Iterator<Item = &PartitionThread> {
        self.0.iter()
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// One of them.
pub struct PartitionThread(mpsc::UnboundedSender<BoxFuture<'static, ()>>);

impl PartitionThread {
    fn start(env: &Env, number: usize) -> Self {
        // Unbounded: a few tasks a partition, all of them when the server starts.
        let (tasks, mut started) = mpsc::unbounded_channel::<BoxFuture<'static, ()>>();
        env.dedicated(&format!("partitions-{number}"), async move {
            while let Some(task) = started.recv().await {
                tokio::spawn(task);
            }
        });
        Self(tasks)
    }

    /// Starts a task there.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        self.0.send(Box::pin(task)).map_err(|_| ended())
    }

    /// Runs work there and waits for it; what it spawns stays there.
    pub async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T> {
        let (done, result) = oneshot::channel();
        self.spawn(async move {
            let _ = done.send(work.await);
        })?;
        result.await.map_err(|_| ended())
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Stopping, "the thread of the partition has ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_and_what_it_spawns_run_on_the_thread_and_end_with_it() {
        let core = PartitionThread::start(&Env::real(), 3);
        let name = || std::thread::current().name().map(str::to_owned);
        let (spawned, mut ended) = mpsc::channel::<()>(1);
        let (first, second) = core
            .run(async move {
                let forever = tokio::spawn(async move {
                    let _spawned = spawned;
                    std::future::pending::<()>().await;
                });
                drop(forever);
                (name(), tokio::spawn(async move { name() }).await.unwrap())
            })
            .await
            .unwrap();
        assert_eq!((first.as_deref(), second.as_deref()), (Some("partitions-3"), Some("partitions-3")));
        drop(core);
        assert_eq!(ended.recv().await, None);
    }
}
