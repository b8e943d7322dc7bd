//! The thread that Raft itself runs on.
//!
//! Owns: a runtime of its own for what keeps a leader a leader: openraft's cores, its heartbeats, and the connections that
//! these and votes travel on. The bytes of entries are moved elsewhere (the connections for data belong to the server's own
//! runtime), so nothing that runs here takes long, and however much data there is to be moved, the kernel finds this thread
//! rested when a heartbeat is due.

use std::future::Future;

use futures::future::BoxFuture;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_environment::Env;
use tokio::sync::{mpsc, oneshot};

/// Ends, with everything that runs there, when it is dropped.
pub struct CoreThread(mpsc::UnboundedSender<BoxFuture<'static, ()>>);

impl CoreThread {
    pub fn start(env: &Env) -> Self {
        // Unbounded: a few tasks a partition, all of them when the server starts.
        let (tasks, mut started) = mpsc::unbounded_channel::<BoxFuture<'static, ()>>();
        env.dedicated("raft", async move {
            while let Some(task) = started.recv().await {
                tokio::spawn(task);
            }
        });
        Self(tasks)
    }

    /// Runs work there and waits for it; what it spawns stays there.
    pub async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T> {
        let (done, result) = oneshot::channel();
        let task = async move {
            let _ = done.send(work.await);
        };
        let ended = || Error::new(ErrorKind::Stopping, "Raft's thread has ended");
        self.0.send(Box::pin(task)).map_err(|_| ended())?;
        result.await.map_err(|_| ended())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_and_what_it_spawns_run_on_the_thread_and_end_with_it() {
        let core = CoreThread::start(&Env::real());
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
        assert_eq!((first.as_deref(), second.as_deref()), (Some("raft"), Some("raft")));
        drop(core);
        assert_eq!(ended.recv().await, None);
    }
}
