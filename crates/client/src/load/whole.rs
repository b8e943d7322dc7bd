//! A load from its first record to its last commit: what each partition gets is sent, a few partitions at a time; when all is written it
//! is committed, one partition after the other. Whatever a leader has forgotten is sent again.

use std::collections::BTreeMap;
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
/// After a failure the other partitions are asked once whether it is seen there.
const LAST_LOOK: Duration = Duration::from_secs(10);
/// How often what waits for its commit is spoken of: leaders forget it after a minute.
const KEEP: Duration = Duration::from_secs(15);

/// Where the records of a load come from.
pub trait LoadSource: Send + Sync {
    /// Those of a partition, in strictly rising order of keys, in messages of up to a few MiB. Asked again for each attempt, and
    /// always with the same answer. The stream must not be silent for more than ten seconds: a message without records says that it
    /// goes on.
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
    /// Where it is seen.
    pub committed: Vec<PartitionId>,
    /// Where it is not known whether it is: nobody has answered, or not the last wish that it be.
    pub unsure: Vec<PartitionId>,
    /// Why.
    pub error: Error,
}

impl fmt::Display for LoadFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {}: {}", self.partition, self.error)?;
        let named = |all: &[PartitionId]| match all {
            [one] => format!("partition {one}"),
            all => {
                format!("partitions {}", all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
            }
        };
        match &self.committed[..] {
            [] if self.unsure.is_empty() => return write!(f, "; nothing of it is seen"),
            [] => {}
            seen => write!(f, "; it is seen in {}", named(seen))?,
        }
        match &self.unsure[..] {
            [] => write!(f, " only"),
            unsure => write!(
                f,
                "; whether it is seen in {} is not known, and it is seen nowhere else",
                named(unsure)
            ),
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
        let loading = Loading { client: self, load, source, known: Default::default() };
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
    /// What partitions have said, also of what was done before.
    known: parking_lot::Mutex<BTreeMap<PartitionId, Seen>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Not,
    Committed,
    /// Somebody was asked to commit it, and has not answered.
    Perhaps,
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
        let written = stream::iter(self.load.partitions.clone())
            .map(|partition| async move { self.write(partition).await.map_err(|e| (partition, e)) })
            .buffer_unordered(self.load.parallel.max(1))
            .try_collect::<()>()
            .await;
        if let Err((partition, e)) = written {
            return Err(self.failed(partition, e).await);
        }
        for partition in &self.load.partitions {
            if let Err(e) = self.commit(*partition).await {
                return Err(self.failed(*partition, e).await);
            }
        }
        Ok(())
    }

    fn is(&self, partition: PartitionId, seen: Seen) {
        self.known.lock().insert(partition, seen);
    }

    fn learn(&self, partition: PartitionId, state: LoadState) {
        self.is(partition, if state == LoadState::Committed { Seen::Committed } else { Seen::Not });
    }

    /// How far it came. (With the number of one that was broken off, partitions may have it that were not asked yet.)
    async fn failed(&self, partition: PartitionId, error: Error) -> LoadFailed {
        let known = self.known.lock().clone();
        let others =
            self.load.partitions.iter().copied().filter(|p| known.get(p).is_none_or(|s| *s == Seen::Perhaps));
        let asks = others.map(|other| async move {
            if let Ok(state) = self.client.end_load(&self.part(other), EndLoad::Keep).await {
                self.learn(other, state);
            }
        });
        let _ = tokio::time::timeout(LAST_LOOK, futures::future::join_all(asks)).await;
        let known = self.known.lock();
        let with = |seen: &[Option<Seen>]| {
            let all = self.load.partitions.iter().copied();
            all.filter(|partition| seen.contains(&known.get(partition).copied())).collect()
        };
        let (committed, unsure) = (with(&[Some(Seen::Committed)]), with(&[None, Some(Seen::Perhaps)]));
        LoadFailed { partition, committed, unsure, error }
    }

    /// Until it is written, or seen.
    async fn write(&self, partition: PartitionId) -> Result<()> {
        let part = self.part(partition);
        let mut failures = 0;
        loop {
            let known = self.client.end_load(&part, EndLoad::Keep).await;
            if let Ok(state) = known {
                self.learn(partition, state);
            }
            let state = match known {
                Ok(LoadState::Unknown) => self.client.send_load(&part, self.source.records(partition)?).await,
                Ok(known) => {
                    self.source.is_there(partition);
                    Ok(known)
                }
                Err(e) => Err(e),
            };
            match state {
                Ok(LoadState::Written { .. } | LoadState::Committed) => return Ok(()),
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

    async fn commit(&self, partition: PartitionId) -> Result<()> {
        let part = self.part(partition);
        let mut failures = 0;
        loop {
            // (Also after an error that refuses it: it may be the answer to a second attempt, elsewhere.)
            self.is(partition, Seen::Perhaps);
            match self.client.end_load(&part, EndLoad::Commit).await {
                Ok(LoadState::Committed) => {
                    self.is(partition, Seen::Committed);
                    return Ok(());
                }
                // It is not, and what was asked before is over.
                Ok(LoadState::Unknown | LoadState::Written { .. }) => {
                    self.is(partition, Seen::Not);
                    if failures >= ATTEMPTS {
                        return Err(changes_all_the_time());
                    }
                    failures += 1;
                    self.write(partition).await?;
                }
                Err(e) if failures >= ATTEMPTS || !is_worth_another_attempt(&e) => {
                    return Err(e);
                }
                Err(_) => {
                    failures += 1;
                    tokio::time::sleep((PAUSE * failures).min(COMMIT_PAUSE_MAX)).await;
                }
            }
        }
    }
}

fn changes_all_the_time() -> Error {
    Error::unavailable("its leader changes all the time")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_where_it_is_seen_and_where_that_is_not_known() {
        let said = |committed: &[u32], unsure: &[u32]| {
            let of = |all: &[u32]| all.iter().copied().map(PartitionId).collect();
            let error = Error::unavailable("gone");
            let failed =
                LoadFailed { partition: PartitionId(2), committed: of(committed), unsure: of(unsure), error };
            failed.to_string().split_once("; ").unwrap().1.to_owned()
        };
        assert_eq!(said(&[], &[]), "nothing of it is seen");
        assert_eq!(said(&[0, 1], &[]), "it is seen in partitions 0 1 only");
        assert_eq!(
            said(&[], &[2]),
            "whether it is seen in partition 2 is not known, and it is seen nowhere else"
        );
        assert_eq!(
            said(&[0], &[2, 3]),
            "it is seen in partition 0; whether it is seen in partitions 2 3 is not known, and it is seen nowhere else"
        );
    }
}
