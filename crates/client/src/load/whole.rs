//! A load from its first record to its last commit: what each partition gets is sent, a few partitions at a time; when all is written it
//! is committed, one partition after the other. Whatever a leader has forgotten is sent again.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::{LoadId, PartitionId};

use super::{EndLoad, LoadPart, LoadRecord, LoadState};
use crate::client::Client;

/// How often a partition is tried in a row without anything that went well.
const ATTEMPTS: u32 = 30;
const PAUSE: Duration = Duration::from_millis(500);
/// What one that died has left is forgotten after a minute, and there is no place for another one before.
const PAUSE_OVERLOADED: Duration = Duration::from_secs(3);
/// Pauses before commits grow to this: for each, writes are held a moment.
const COMMIT_PAUSE_MAX: Duration = Duration::from_secs(10);
/// How often what waits for its commit is spoken of: leaders forget it after a minute.
const KEEP: Duration = Duration::from_secs(15);

/// Where the records of a load come from.
pub trait LoadSource: Send + Sync {
    /// Those of a partition, in strictly rising order of keys, in messages of up to a few MiB. Asked again for each attempt, and
    /// always with the same answer. The stream must not be silent for more than ten seconds.
    ///
    /// # Errors
    /// Whatever the source says; the load ends with it.
    fn records(&self, partition: PartitionId) -> Result<BoxStream<'static, Result<Vec<LoadRecord>>>>;

    /// The partition has all of them, and was not sent them by this call.
    fn is_there(&self, partition: PartitionId) {
        let _ = partition;
    }
}

/// A whole load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Not empty.
    pub table: String,
    /// Random, and not 0. With the number of a load that was broken off it goes on with that one.
    pub id: LoadId,
    /// Those that get anything.
    pub partitions: Vec<PartitionId>,
    /// How many of them are sent to at a time.
    pub parallel: usize,
}

/// What did not work, and how far the load came.
#[derive(Debug)]
pub struct LoadFailed {
    /// Where.
    pub partition: PartitionId,
    /// Where it is seen, as far as it was asked.
    pub committed: Vec<PartitionId>,
    /// Whether it is seen in `partition`, too, is not known: nobody has answered the last wish that it be.
    pub unsure: bool,
    /// Why.
    pub error: Error,
}

impl fmt::Display for LoadFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {}: {}", self.partition, self.error)?;
        let all: Vec<String> = self.committed.iter().map(ToString::to_string).collect();
        match (all.is_empty(), self.unsure) {
            (true, false) => write!(f, "; nothing of it is seen"),
            (true, true) => write!(f, "; whether it is seen there is not known, nothing of it is elsewhere"),
            (false, false) => write!(f, "; it is seen in partitions {} only", all.join(" ")),
            (false, true) => write!(f, "; it is seen in partitions {}, perhaps there too", all.join(" ")),
        }
    }
}

impl std::error::Error for LoadFailed {}

impl Client {
    /// Loads all records of a source. In each partition they are seen at once, and take the place of what is older. Needs the right
    /// of administration.
    ///
    /// Dropped, or ended with an error, it may be begun again with the same [`Load`] and the same records: what is committed stays.
    pub fn load<'a>(
        &'a self,
        load: &'a Load,
        source: &'a dyn LoadSource,
    ) -> BoxFuture<'a, Result<(), LoadFailed>> {
        let loading = Loading { client: self, load, source, committed: Default::default() };
        Box::pin(async move {
            tokio::select! {
                done = loading.send_and_commit() => done,
                never = loading.keep() => match never {},
            }
        })
    }
}

struct Loading<'a> {
    client: &'a Client,
    load: &'a Load,
    source: &'a dyn LoadSource,
    /// Where it is seen, also from before.
    committed: parking_lot::Mutex<BTreeSet<PartitionId>>,
}

/// Why a partition was not committed, or may not have been.
struct NotCommitted {
    error: Error,
    unsure: bool,
}

fn is_worth_another_attempt(error: &Error) -> bool {
    error.is_retryable() || matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Stopping)
}

impl Loading<'_> {
    fn part(&self, partition: PartitionId) -> LoadPart {
        LoadPart { partition, table: self.load.table.clone(), id: self.load.id }
    }

    async fn keep(&self) -> std::convert::Infallible {
        loop {
            tokio::time::sleep(KEEP).await;
            for partition in &self.load.partitions {
                // (What is forgotten shows when it is committed.)
                let _ = self.client.end_load(&self.part(*partition), EndLoad::Keep).await;
            }
        }
    }

    async fn send_and_commit(&self) -> Result<(), LoadFailed> {
        let failed = |partition, NotCommitted { error, unsure }| {
            let committed = self.committed.lock().iter().copied().collect();
            LoadFailed { partition, committed, unsure, error }
        };
        let not_written = |error| NotCommitted { error, unsure: false };
        stream::iter(self.load.partitions.clone())
            .map(|partition| async move {
                self.write(partition).await.map_err(|e| failed(partition, not_written(e)))
            })
            .buffer_unordered(self.load.parallel.max(1))
            .try_collect::<()>()
            .await?;
        for partition in &self.load.partitions {
            self.commit(*partition).await.map_err(|e| failed(*partition, e))?;
            self.committed.lock().insert(*partition);
        }
        Ok(())
    }

    /// Until it is written, or seen.
    async fn write(&self, partition: PartitionId) -> Result<()> {
        let part = self.part(partition);
        let mut failures = 0;
        loop {
            let state = match self.client.end_load(&part, EndLoad::Keep).await {
                Ok(LoadState::Unknown) => self.client.send_load(&part, self.source.records(partition)?).await,
                Ok(known) => {
                    self.source.is_there(partition);
                    Ok(known)
                }
                Err(e) => Err(e),
            };
            match state {
                Ok(LoadState::Written { .. }) => return Ok(()),
                Ok(LoadState::Committed) => {
                    self.committed.lock().insert(partition);
                    return Ok(());
                }
                Ok(LoadState::Unknown) if failures >= ATTEMPTS => return Err(changes_all_the_time()),
                Err(e) if failures >= ATTEMPTS || !is_worth_another_attempt(&e) => return Err(e),
                Err(e) if e.kind == ErrorKind::Overloaded => {
                    failures += 1;
                    tokio::time::sleep(PAUSE_OVERLOADED).await;
                }
                Ok(LoadState::Unknown) | Err(_) => failures += 1,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn commit(&self, partition: PartitionId) -> Result<(), NotCommitted> {
        let part = self.part(partition);
        let (mut failures, mut unsure) = (0, false);
        let failed = |unsure| move |error| NotCommitted { error, unsure };
        loop {
            match self.client.end_load(&part, EndLoad::Commit).await {
                Ok(LoadState::Committed) => return Ok(()),
                // It is not, and what was asked before is over.
                Ok(LoadState::Unknown | LoadState::Written { .. }) => {
                    unsure = false;
                    if failures >= ATTEMPTS {
                        return Err(failed(unsure)(changes_all_the_time()));
                    }
                    failures += 1;
                    self.write(partition).await.map_err(failed(unsure))?;
                }
                Err(e) if failures >= ATTEMPTS || !is_worth_another_attempt(&e) => {
                    let certain = matches!(e.kind, ErrorKind::Invalid | ErrorKind::Denied);
                    return Err(failed(unsure || !certain)(e));
                }
                Err(_) => {
                    (failures, unsure) = (failures + 1, true);
                    tokio::time::sleep((PAUSE * failures).min(COMMIT_PAUSE_MAX)).await;
                }
            }
        }
    }
}

fn changes_all_the_time() -> Error {
    Error::unavailable("its leader changes all the time")
}
