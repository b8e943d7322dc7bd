//! What all requests share: tables, environment, limits, counters.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::SstId;
use sextant_environment::Env;
use sextant_environment::room::{Room, Share};
use sextant_environment::shutdown::Shutdown;
use sextant_environment::vfs::IoKind;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::catalog::Catalog;
use crate::config::SstServerConfig;
use crate::memory::{JOB_WAIT_MAX, Jobs, SCANS_BYTES};
use crate::metrics::Metrics;
use crate::settling::Settling;
use crate::table::Table;
use crate::transfer::BrokenOff;

/// How long an answer waits for that room: shorter than anybody waits for an answer. Whoever finds none asks again.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);
/// Pages of scans that are read at a time: each has a block of every table of its scan in memory, and how long a block is cannot
/// be known before.
pub const SCANS_MAX: usize = 4;

/// The server without its listeners.
pub struct Store {
    pub env: Env,
    pub config: SstServerConfig,
    // (Dropped before the catalog, which lets go of the directory.)
    pub broken_off: BrokenOff,
    pub catalog: Arc<Catalog>,
    pub metrics: Metrics,
    pub shutdown: Shutdown,
    pub answers: Answers,
    /// For the pieces that scans read ahead.
    pub pieces: Room,
    pub jobs: Jobs,
    pub disk_reads: Turns,
    pub scans: Turns,
    pub ingests: Turns,
    pub copies: Turns,
    pub fetches: Turns,
    pub compactions: Turns,
    pub started_ns: u64,
    pub settling: Settling,
}

impl Store {
    pub fn new(
        env: Env,
        config: SstServerConfig,
        catalog: Arc<Catalog>,
        metrics: Metrics,
        shutdown: Shutdown,
    ) -> Self {
        let memory = config.memory();
        let room = |bytes: u64| Room::new(usize::try_from(bytes).unwrap_or(usize::MAX));
        Self {
            answers: Answers(room(memory.answers)),
            pieces: room(SCANS_BYTES),
            jobs: Jobs::new(memory.jobs),
            disk_reads: Turns::new("read", config.disk_reads_max),
            scans: Turns::new("scan", config.disk_reads_max.min(SCANS_MAX)),
            ingests: Turns::new("ingest", config.ingests_max),
            copies: Turns::new("copy", config.copies_max),
            broken_off: BrokenOff::default(),
            fetches: Turns::new("fetch", config.copies_max),
            compactions: Turns::new("compaction", config.compactions_max),
            started_ns: env.clock.holder_ns(),
            settling: Settling::new(config.cluster.partitions, catalog.is_filling()),
            env,
            config,
            catalog,
            metrics,
            shutdown,
        }
    }

    /// Runs work that blocks on the disk elsewhere; `kind` is what it mostly does.
    pub async fn disk<T: Send + 'static>(
        &self,
        kind: IoKind,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.disk_delay(kind).await;
        let done = self.env.blocking(work).await;
        done.unwrap_or_else(|| Err(Error::new(ErrorKind::Stopping, "the server is stopping")))
    }

    /// Simulations only: the time that the disk takes.
    pub async fn disk_delay(&self, kind: IoKind) {
        if let Some(delay) = self.env.vfs.delay(kind) {
            tokio::time::sleep(delay).await;
        }
    }

    /// A table that a request named; a missing one may be on another server.
    pub fn table(&self, id: SstId) -> Result<Arc<Table>> {
        match self.catalog.get(id) {
            Some(entry) => entry.table().cloned(),
            None => Err(gone(id)),
        }
    }

    /// Nothing changes on the disk from now on.
    pub fn close(&self) {
        self.broken_off.close();
        self.catalog.close();
    }

    pub fn elapsed_ns(&self, since_ns: u64) -> u64 {
        self.env.clock.holder_ns().saturating_sub(since_ns)
    }
}

pub fn gone(id: SstId) -> Error {
    Error::unavailable(format!("SSTable {id} is not on this server"))
}

/// Counts and times work that writes a table.
pub async fn recorded<T>(
    store: &Store,
    metrics: &crate::metrics::JobMetrics,
    bytes: impl FnOnce(&T) -> u64,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let started_ns = store.env.clock.holder_ns();
    let result = work.await;
    if matches!(&result, Err(e) if e.kind == ErrorKind::Disk) {
        // It may be full.
        store.broken_off.forget_all();
    }
    let outcome = result.as_ref().map(bytes).map_err(|e| e.kind.name());
    metrics.record(outcome, store.elapsed_ns(started_ns));
    result
}

/// Room for large answers.
#[derive(Debug)]
pub struct Answers(Room);

impl Answers {
    /// Waits for a limited time. To be held until the answer has left.
    pub async fn take(&self, bytes: usize) -> Result<Share> {
        let share = tokio::time::timeout(ANSWER_PATIENCE, self.0.take(bytes)).await;
        share.map_err(|_| {
            Error::new(ErrorKind::Overloaded, "too many bytes of answers wait to be taken: ask again later")
        })
    }

    pub fn held_bytes(&self) -> usize {
        self.0.held_bytes()
    }
}

/// Bounded concurrency for one kind of work.
#[derive(Debug)]
pub struct Turns {
    what: &'static str,
    permits: Arc<Semaphore>,
    most: usize,
}

impl Turns {
    fn new(what: &'static str, most: usize) -> Self {
        Self { what, permits: Arc::new(Semaphore::new(most)), most }
    }

    /// Waits for a turn, for a limited time.
    pub async fn take(&self) -> Result<OwnedSemaphorePermit> {
        match tokio::time::timeout(JOB_WAIT_MAX, self.permits.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Error::new(
                ErrorKind::Overloaded,
                format!("no {} could start within {JOB_WAIT_MAX:?}: {} are running", self.what, self.most),
            )),
        }
    }

    /// How many are running.
    pub fn running(&self) -> usize {
        self.most.saturating_sub(self.permits.available_permits())
    }
}
