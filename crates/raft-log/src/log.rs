//! The whole log of a server.

use std::sync::Arc;

use futures::future::BoxFuture;
use prometheus_client::registry::Registry;
use sextant_common::ids::PartitionId;
use sextant_common::{Error, Result};
use sextant_environment::Env;
use tokio::sync::watch;

use crate::config::RaftLogConfig;
use crate::format::batch::BATCH_HEADER_BYTES;
use crate::format::record::RECORD_HEADER_BYTES;
use crate::metrics::LogStats;
use crate::open::{Opened, open};
use crate::partition::PartitionLog;
use crate::queue::Completion;
use crate::recovery::RecoveryReport;
use crate::shared::{Handle, Shared};

/// The one log of a memtable server: the logs of all its partitions, over one or more devices.
///
/// It closes when this and all [`PartitionLog`]s are dropped; [`RaftLog::shutdown`] also waits until everything is written.
pub struct RaftLog {
    handle: Arc<Handle>,
    report: RecoveryReport,
    /// True when the log has ended.
    ended: watch::Receiver<bool>,
}

impl RaftLog {
    /// Opens the log and recovers what was acknowledged, or makes a new one. Must be called on the runtime that Raft runs on:
    /// a task there answers whoever waits for durability, one wake a batch.
    ///
    /// Errors: [`sextant_common::ErrorKind::Corrupt`] names file and offset of damage;
    /// [`sextant_common::ErrorKind::Invalid`] if the directory is another server's or of another format;
    /// [`sextant_common::ErrorKind::Unavailable`] while another process has it.
    pub fn open<'a>(
        env: Env,
        config: RaftLogConfig,
        partitions: &'a [PartitionId],
        registry: &'a mut Registry,
    ) -> BoxFuture<'a, Result<RaftLog>> {
        Box::pin(async move {
            let Opened { shared, workers, report } = open(env, config, partitions, registry).await?;
            let handle = Arc::new(Handle(shared.clone()));
            for worker in workers {
                let name = format!("raft-log-{}", worker.device.number);
                shared.env.dedicated(&name, worker.run());
            }
            let (end, ended) = watch::channel(false);
            tokio::spawn(async move {
                complete(&shared).await;
                end.send_replace(true);
            });
            Ok(Self { handle, report, ended })
        })
    }

    /// The log of a partition. One that the log was not opened with starts empty.
    pub fn partition(&self, id: PartitionId) -> PartitionLog {
        PartitionLog::new(self.handle.clone(), self.shared().partition(id))
    }

    /// What was found when the log was opened.
    pub fn report(&self) -> RecoveryReport {
        self.report.clone()
    }

    pub fn stats(&self) -> LogStats {
        self.shared().metrics.stats(self.shared().queue.is_failed())
    }

    /// How long the slowest device has been at the batch that it is writing, in nanoseconds, beyond what a sound one may need for
    /// its bytes; 0: nothing is being written, or not for long. A device that hangs shows here long before anybody gets an error.
    pub fn stalled_ns(&self) -> u64 {
        self.shared().metrics.busy_for_ns(self.shared().env.clock.holder_ns())
    }

    /// Whether an append of so many bytes would be taken now. [`sextant_common::ErrorKind::Disk`] if the log has no space
    /// left, has failed or is closed. Raft cannot go on after a refused append: ask before proposing.
    pub fn check_room(&self, bytes: u64) -> Result<()> {
        self.shared()
            .queue
            .check(bytes)
            .map_err(|e| Error::new(sextant_common::ErrorKind::Disk, e.to_string()))
    }

    /// Keeps room for an append of so many bytes of payload in `entries` entries, until the reservation is dropped. As Raft
    /// cannot go on after a refused append, whoever hands it entries of others reserves first. Errors: as for
    /// [`RaftLog::check_room`]; `spare` bytes more must be there, but are not kept.
    pub fn reserve(&self, entries: usize, payload: u64, spare: u64) -> Result<Reservation> {
        // Each may become a batch of its own; a committed position may travel with them.
        let bytes = payload + (entries as u64 + 1) * (RECORD_HEADER_BYTES + 2 * BATCH_HEADER_BYTES) as u64;
        let disk = |e: std::io::Error| Error::new(sextant_common::ErrorKind::Disk, e.to_string());
        self.shared().queue.reserve(bytes, spare).map_err(disk)?;
        Ok(Reservation { shared: self.shared().clone(), bytes })
    }

    /// How many partitions share the log.
    pub fn partitions(&self) -> usize {
        self.shared().partition_count()
    }

    /// Takes nothing more, writes what is queued, answers who waits, and releases the directories.
    pub fn shutdown(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            for partition in self.shared().partitions() {
                // Refused only if the log has failed or is closed: then there is nothing to be done for it.
                let _ = partition.queue_committed(&self.shared().queue);
            }
            self.shared().close();
            let mut ended = self.ended.clone();
            let _ = ended.wait_for(|ended| *ended).await;
        })
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.handle.0
    }
}

impl std::fmt::Debug for RaftLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RaftLog {{ {:?} }}", self.stats())
    }
}

/// Room in the log for an append that is on its way. Given back when dropped, which is to be after the append.
pub struct Reservation {
    shared: Arc<Shared>,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shared.queue.unreserve(self.bytes);
    }
}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reservation({})", self.bytes)
    }
}

/// Answers those who wait, in log order.
async fn complete(shared: &Shared) {
    let mut ready: Vec<Completion> = Vec::new();
    while let Some(result) = shared.queue.completed(&mut ready).await {
        for completion in ready.drain(..) {
            let result = match &result {
                Ok(()) => Ok(()),
                Err(e) => Err(std::io::Error::new(e.kind(), e.to_string())),
            };
            completion.complete(result);
        }
    }
}
