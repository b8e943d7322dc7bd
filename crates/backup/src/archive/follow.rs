//! `sextant backup follow`: the log of every partition is archived as it grows, until the command is stopped.
//!
//! Each partition is followed for itself: pages in, segments out, each written before more is read. What is in memory when it ends is
//! written; what dies with the process is read again, as the next one goes on where the repository ends.
//!
//! Invariant: a mark is written after the segments that it counts on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use parking_lot::Mutex;
use sextant_client::{Client, FollowedLog, LogReader};
use sextant_common::archive::{LogAnswer, LogPage};
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::PartitionId;
use sextant_environment::shutdown::Shutdown;
use tokio::sync::Semaphore;

use super::gather::Gatherer;
use super::reached::{Mark, Own};
use super::segment::{History, Segment, encode};
use super::start::{Begun, Known, begin, limit_ms, open};
use super::time_text;
use crate::Progress;
use crate::repository::Repository;

pub const EVERY_DEFAULT: Duration = Duration::from_secs(30);
pub const EVERY_MIN: Duration = Duration::from_millis(100);
/// Whose logs are read over one connection: p-nodes have few for administration, and bound the calls of each.
const PARTITIONS_PER_CONNECTION: u32 = 48;
/// Partitions that look for where to begin.
const BEGIN_AT_ONCE: usize = 8;
/// What was read of the repository is believed for so long.
const KNOWN_NS: u64 = 60_000_000_000;
/// After a failure.
const PAUSE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How often something is written: so far an archive is behind at the most, if nothing fails.
    pub every: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { every: EVERY_DEFAULT }
    }
}

/// Until it is told to stop.
pub async fn follow(
    client: &Client,
    repository: &Repository,
    options: Options,
    stop: Shutdown,
    progress: Progress<'_>,
) -> Result<()> {
    let every = options.every.max(EVERY_MIN);
    let partitions = client.partitions().await?;
    let readers = (0..=partitions / PARTITIONS_PER_CONNECTION).map(|_| Mutex::default()).collect();
    let (own, known, turns) = (Mutex::default(), Default::default(), Semaphore::new(BEGIN_AT_ONCE));
    let following = Following { client, repository, every, stop, progress, readers, own, known, turns };
    let all = try_join_all((0..partitions).map(|p| following.partition(PartitionId(p))));
    let all_begun = partitions as usize;
    tokio::select! {
        ended = all => drop(ended?),
        () = following.write_marks(all_begun) => {}
    }
    following.write_marks_once(all_begun, &mut None).await
}

type Newest = BTreeMap<History, Mark>;

struct Following<'a> {
    client: &'a Client,
    repository: &'a Repository,
    every: Duration,
    stop: Shutdown,
    progress: Progress<'a>,
    /// One for so many partitions each; None: to be found.
    readers: Vec<Mutex<Option<LogReader>>>,
    own: Mutex<Own>,
    /// And when it was read.
    known: tokio::sync::Mutex<Option<(u64, Arc<Known>)>>,
    turns: Semaphore,
}

/// A partition's log, and what came of it.
struct Log {
    gatherer: Gatherer,
    pages: FollowedLog,
    first: Option<LogPage>,
}

impl Following<'_> {
    /// Tries for ever, unless it is of no use. When it is stopped, what it has is written.
    async fn partition(&self, partition: PartitionId) -> Result<()> {
        let (mut gathered, mut told) = (None, String::new());
        loop {
            let Err(e) = self.run(partition, &mut gathered).await else { break };
            if is_final(e.kind) {
                return Err(e);
            }
            *self.readers[place(partition)].lock() = None;
            let trouble = format!("partition {partition}: {e}");
            if trouble != told {
                (self.progress)(trouble.clone());
                told = trouble;
            }
            if self.is_stopped_within(PAUSE).await {
                break;
            }
        }
        let Some(mut gatherer) = gathered else { return Ok(()) };
        self.write_all(gatherer.rest().into_iter().collect()).await?;
        self.own.lock().reach(gatherer.history, gatherer.mark());
        Ok(())
    }

    /// Read for all partitions that begin at about the same time.
    async fn known(&self) -> Result<Arc<Known>> {
        let mut place = self.known.lock().await;
        let now_ns = self.repository.env.clock.holder_ns();
        if let Some((read_ns, known)) = &*place
            && now_ns.saturating_sub(*read_ns) < KNOWN_NS
        {
            return Ok(known.clone());
        }
        let known = Arc::new(Known::read(self.repository, self.progress).await?);
        *place = Some((self.repository.env.clock.holder_ns(), known.clone()));
        Ok(known)
    }

    async fn reader(&self, partition: PartitionId) -> Result<LogReader> {
        let place = &self.readers[place(partition)];
        let known = place.lock().clone();
        match known {
            Some(reader) => Ok(reader),
            None => {
                let found = self.client.log_reader().await?;
                Ok(place.lock().get_or_insert(found).clone())
            }
        }
    }

    async fn is_stopped_within(&self, pause: Duration) -> bool {
        let mut stop = self.stop.clone();
        tokio::select! {
            () = stop.wait() => true,
            () = tokio::time::sleep(pause) => false,
        }
    }

    /// Until it is stopped. `gathered`: what came of it before a failure.
    async fn run(&self, partition: PartitionId, gathered: &mut Option<Gatherer>) -> Result<()> {
        let mut stop = self.stop.clone();
        let begun = tokio::select! {
            begun = self.begin(partition, gathered) => begun?,
            () = stop.wait() => return Ok(()),
        };
        let Log { gatherer, mut pages, mut first } = begun;
        let gatherer = gathered.insert(gatherer);
        loop {
            let answer = match first.take() {
                Some(page) => LogAnswer::Page(page),
                None => tokio::select! {
                    answer = pages.next() => answer?,
                    () = stop.wait() => return Ok(()),
                },
            };
            let LogAnswer::Page(page) = answer else {
                return Err(Error::retry("its log goes on faster than it is read"));
            };
            let now_ns = self.repository.env.clock.holder_ns();
            gatherer.set_limit(limit_ms(self.repository));
            let cut = gatherer.take(page, now_ns)?;
            if let Some(odd) = gatherer.take_odd() {
                (self.progress)(format!("partition {partition}: {odd}"));
            }
            if let Err(e) = self.write_all(cut).await {
                // It is read again, from where the repository ends.
                *gathered = None;
                return Err(e);
            }
            self.own.lock().reach(gatherer.history, gatherer.mark());
        }
    }

    /// Goes on with what there is, or begins.
    async fn begin(&self, partition: PartitionId, gathered: &mut Option<Gatherer>) -> Result<Log> {
        let reader = self.reader(partition).await?;
        if let Some(gatherer) = gathered {
            if let Some((first, pages)) = open(&reader, partition, gatherer.position()).await?
                && first.lineage == gatherer.history.lineage
                && let Some(gatherer) = gathered.take()
            {
                return Ok(Log { gatherer, pages, first: Some(first) });
            }
            let rest = gathered.take().and_then(|mut gatherer| gatherer.rest());
            self.write_all(rest.into_iter().collect()).await?;
        }
        let known = self.known().await?;
        let Begun { history, after, mut said, stretch, oldest, first, pages, told } =
            begin(&reader, self.repository, &known, partition, &self.turns).await?;
        told.into_iter().for_each(self.progress);
        // (What was said last may not be written yet.)
        said.extend(self.own.lock().mark(&history).map(|mark| (mark.archived, mark.until_ms)));
        let mut gatherer = Gatherer::new(history, after, said, self.every);
        self.own.lock().begin(history, gatherer.mark(), stretch, oldest);
        Ok(Log { gatherer, pages, first: Some(first) })
    }

    async fn write_all(&self, segments: Vec<Segment>) -> Result<()> {
        for segment in segments {
            let (name, groups) = (segment.name, segment.groups.len());
            let bytes = encode(segment);
            let length = bytes.len();
            self.repository.write_segment(&name, bytes.into()).await?;
            (self.progress)(format!(
                "partition {}: {groups} groups, {length} bytes, up to entry {}, {}",
                name.history.partition,
                name.to,
                time_text(name.until_ms)
            ));
        }
        Ok(())
    }

    /// Again and again, when all partitions are followed: a backup needs all of them.
    async fn write_marks(&self, partitions: usize) {
        let mut last = None;
        loop {
            tokio::time::sleep(self.every).await;
            if let Err(e) = self.write_marks_once(partitions, &mut last).await {
                (self.progress)(format!("how far it is cannot be written yet: {e}"));
            }
        }
    }

    async fn write_marks_once(&self, partitions: usize, last: &mut Option<Newest>) -> Result<()> {
        let own = self.own.lock().clone();
        let newest = own.newest();
        let begun: BTreeMap<PartitionId, u64> =
            newest.keys().map(|history| (history.partition, history.lineage)).collect();
        let Some(first) = begun.first_key_value().filter(|_| begun.len() == partitions) else {
            return Ok(());
        };
        if last.as_ref() == Some(&newest) {
            return Ok(());
        }
        let written = self.repository.add_marks(&format!("{:016x}", first.1), &own).await?;
        self.own.lock().remember(written);
        *last = Some(newest);
        Ok(())
    }
}

fn place(partition: PartitionId) -> usize {
    (partition.0 / PARTITIONS_PER_CONNECTION) as usize
}

/// Trying again does not help.
fn is_final(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Invalid
            | ErrorKind::Denied
            | ErrorKind::Unauthenticated
            | ErrorKind::Outdated
            | ErrorKind::Corrupt
            | ErrorKind::Internal
    )
}
