//! `sextant backup follow`: the log of every partition is archived as it grows, until the command is stopped.
//!
//! Each partition is followed for itself: pages in, segments out, each written before more is read. What is in memory when it ends is
//! written; what dies with the process is read again, as the next one goes on where the repository ends.
//!
//! Invariant: a mark is written after the segments that it counts on.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use sextant_client::{Client, FollowedLog, LogReader};
use sextant_common::archive::{LogAnswer, LogPage};
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::PartitionId;
use sextant_environment::shutdown::{self, Shutdown, ShutdownTrigger};
use tokio::sync::Semaphore;

use super::clocks::{Clocks, Now, Time};
use super::gather::Gatherer;
use super::reached::{Mark, Own};
use super::segment::{History, Name, Segment, encode};
use super::start::{Begun, Known, begin, open};
use super::time_text_if_any;
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
/// After many.
const PAUSE_MAX: Duration = Duration::from_secs(30);

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
    mut stop: Shutdown,
    progress: Progress<'_>,
) -> Result<()> {
    let every = options.every.max(EVERY_MIN);
    let partitions = client.partitions().await?;
    let readers = (0..=partitions / PARTITIONS_PER_CONNECTION).map(|_| Mutex::default()).collect();
    let (own, known, turns) = (Mutex::default(), Default::default(), Semaphore::new(BEGIN_AT_ONCE));
    let clocks = Clocks::of(partitions, every);
    let (end, ending) = shutdown::channel();
    let following = Following {
        client,
        repository,
        every,
        stop: ending,
        end,
        progress,
        readers,
        own,
        known,
        clocks,
        turns,
    };
    let all = join_all((0..partitions).map(|p| following.partition(PartitionId(p))));
    let all_begun = partitions as usize;
    let stopped = async {
        stop.wait().await;
        following.end.trigger();
        std::future::pending::<Infallible>().await
    };
    let ended = tokio::select! {
        ended = all => ended,
        never = following.write_marks(all_begun) => match never {},
        never = stopped => match never {},
    };
    // (What was written counts in any case.)
    let marked = following.write_marks_once(all_begun, &mut None).await;
    ended.into_iter().collect::<Result<()>>().and(marked)
}

type Newest = BTreeMap<History, Mark>;

struct Following<'a> {
    client: &'a Client,
    repository: &'a Repository,
    every: Duration,
    stop: Shutdown,
    /// Of all partitions, if one of them ends it.
    end: ShutdownTrigger,
    progress: Progress<'a>,
    /// One for so many partitions each; None: to be found.
    readers: Vec<Mutex<Option<LogReader>>>,
    own: Mutex<Own>,
    /// And when it was read.
    known: tokio::sync::Mutex<Option<(u64, Arc<Known>)>>,
    clocks: Arc<Mutex<Clocks>>,
    turns: Semaphore,
}

/// A partition's log, and what came of it.
struct Log {
    gathered: Gathered,
    pages: FollowedLog,
    first: Option<LogPage>,
}

/// What came of a log and is not in the repository yet.
struct Gathered {
    gatherer: Gatherer,
    /// Cut off, in order.
    unwritten: VecDeque<Segment>,
}

/// Of one partition, as long as it is followed.
struct Followed {
    gathered: Option<Gathered>,
    /// After the next failure.
    pause: Duration,
    /// The last failure that was told.
    told: String,
}

/// Why it does not go on.
enum Trouble {
    /// Trying again does not help, in no partition.
    Final(Error),
    Passing(Error),
}

impl From<Error> for Trouble {
    fn from(e: Error) -> Self {
        Self::Passing(e)
    }
}

impl Gathered {
    /// What fails stays, and comes first the next time.
    async fn write(&mut self, repository: &Repository, progress: Progress<'_>) -> Result<()> {
        while let Some(segment) = self.unwritten.front() {
            let (name, groups) = (segment.name, segment.groups.len());
            let bytes = encode(segment.clone());
            let length = bytes.len();
            repository.write_segment(&name, bytes.into()).await?;
            self.unwritten.pop_front();
            progress(written(&name, groups, length));
        }
        Ok(())
    }
}

impl Following<'_> {
    /// Tries for ever, unless it is of no use in any partition. When it is stopped, what it has is written.
    async fn partition(&self, partition: PartitionId) -> Result<()> {
        let mut followed = Followed { gathered: None, pause: PAUSE, told: String::new() };
        let ended = loop {
            let e = match self.run(partition, &mut followed).await {
                Ok(()) => break Ok(()),
                Err(Trouble::Final(e)) => {
                    self.end.trigger();
                    break Err(e);
                }
                Err(Trouble::Passing(e)) => e,
            };
            *self.readers[place(partition)].lock() = None;
            self.tell(partition, &e, &mut followed.told);
            // What there is of a cluster that may be lost.
            if let Err(e) = self.write_rest(&mut followed).await {
                self.tell(partition, &e, &mut followed.told);
            }
            let pause = followed.pause;
            followed.pause = (pause * 2).min(PAUSE_MAX);
            if self.is_stopped_within(pause).await {
                break Ok(());
            }
        };
        ended.and(self.write_rest(&mut followed).await)
    }

    fn tell(&self, partition: PartitionId, e: &Error, told: &mut String) {
        let trouble = format!("partition {partition}: {e}");
        if trouble != *told {
            (self.progress)(trouble.clone());
            *told = trouble;
        }
    }

    /// All that was read.
    async fn write_rest(&self, followed: &mut Followed) -> Result<()> {
        let Some(gathered) = &mut followed.gathered else { return Ok(()) };
        gathered.unwritten.extend(gathered.gatherer.rest());
        self.write(gathered).await
    }

    async fn write(&self, gathered: &mut Gathered) -> Result<()> {
        gathered.write(self.repository, self.progress).await?;
        let gatherer = &mut gathered.gatherer;
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

    /// When a page has come, which may say what time it is there.
    fn now(&self, partition: PartitionId, page: &LogPage) -> Now {
        let here = Time::of(self.repository);
        self.clocks.lock().hear(partition, page, here);
        Now::new(here, &self.clocks)
    }

    async fn is_stopped_within(&self, pause: Duration) -> bool {
        let mut stop = self.stop.clone();
        tokio::select! {
            () = stop.wait() => true,
            () = tokio::time::sleep(pause) => false,
        }
    }

    /// Until it is stopped. What came of it before a failure is there before anything more is read.
    async fn run(&self, partition: PartitionId, followed: &mut Followed) -> Result<(), Trouble> {
        let mut stop = self.stop.clone();
        self.write_rest(followed).await?;
        let begun = tokio::select! {
            begun = self.begin(partition, &mut followed.gathered) => begun.map_err(at_open)?,
            () = stop.wait() => return Ok(()),
        };
        let Log { gathered, mut pages, mut first } = begun;
        let gathered = followed.gathered.insert(gathered);
        loop {
            let answer = match first.take() {
                Some(page) => LogAnswer::Page(page),
                None => tokio::select! {
                    answer = pages.next() => answer?,
                    () = stop.wait() => return Ok(()),
                },
            };
            let LogAnswer::Page(page) = answer else {
                return Err(Error::retry("its log goes on faster than it is read").into());
            };
            let now_ns = self.repository.env.clock.holder_ns();
            gathered.gatherer.set_now(self.now(partition, &page));
            let cut = gathered.gatherer.take(page, now_ns)?;
            gathered.unwritten.extend(cut);
            if let Some(odd) = gathered.gatherer.take_odd() {
                (self.progress)(format!("partition {partition}: {odd}"));
            }
            self.write(gathered).await?;
            followed.pause = PAUSE;
            followed.told.clear();
        }
    }

    /// Goes on with what there is, or begins.
    async fn begin(&self, partition: PartitionId, gathered: &mut Option<Gathered>) -> Result<Log> {
        let reader = self.reader(partition).await?;
        if let Some(before) = gathered {
            if let Some((first, pages)) = open(&reader, partition, before.gatherer.position()).await?
                && first.lineage == before.gatherer.history.lineage
                && let Some(gathered) = gathered.take()
            {
                return Ok(Log { gathered, pages, first: Some(first) });
            }
            // (It is written.)
            *gathered = None;
        }
        let known = self.known().await?;
        let Begun { history, after, mut said, stretch, oldest, first, pages, told } =
            begin(&reader, self.repository, &known, &self.clocks, partition, &self.turns).await?;
        told.into_iter().for_each(self.progress);
        // (What was said last may not be written yet.)
        said.extend(self.own.lock().mark(&history).map(|mark| (mark.archived, mark.until_ms)));
        let mut gatherer = Gatherer::new(history, after, said, self.every);
        self.own.lock().begin(history, gatherer.mark(), stretch, oldest);
        let gathered = Gathered { gatherer, unwritten: VecDeque::new() };
        Ok(Log { gathered, pages, first: Some(first) })
    }

    /// Again and again, when all partitions are followed: a backup needs all of them.
    async fn write_marks(&self, partitions: usize) -> Infallible {
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
        let name = format!("{:016x}", first.1);
        let now = || Now::new(Time::of(self.repository), &self.clocks);
        let written = self.repository.add_marks(&name, &own, now).await?;
        self.own.lock().remember(written);
        *last = Some(newest);
        Ok(())
    }
}

/// For who watches.
fn written(name: &Name, groups: usize, bytes: usize) -> String {
    let until = time_text_if_any(name.until_ms).map(|until| format!(", {until}")).unwrap_or_default();
    format!(
        "partition {}: {groups} groups, {bytes} bytes, up to entry {}{until}",
        name.history.partition, name.to
    )
}

fn place(partition: PartitionId) -> usize {
    (partition.0 / PARTITIONS_PER_CONNECTION) as usize
}

/// Of a log that could not be opened. What one partition's log or files have is no reason to end the others.
fn at_open(e: Error) -> Trouble {
    match e.kind {
        ErrorKind::Invalid | ErrorKind::Denied | ErrorKind::Unauthenticated | ErrorKind::Outdated => {
            Trouble::Final(e)
        }
        _ => Trouble::Passing(e),
    }
}

#[cfg(test)]
mod tests {
    use sextant_environment::Env;

    use super::*;
    use crate::testing::segment;

    const HISTORY: History = History { partition: PartitionId(3), lineage: 7 };

    #[tokio::test]
    async fn what_could_not_be_written_stays_and_is_written_later_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::open(&Env::real(), dir.path().to_str().unwrap()).unwrap();
        let gatherer = Gatherer::new(HISTORY, Default::default(), Vec::new(), EVERY_DEFAULT);
        let segments = [segment(HISTORY, 1, 5), segment(HISTORY, 5, 9)];
        let mut gathered = Gathered { gatherer, unwritten: segments.clone().into() };
        // A file where the folder is to be.
        let folder = dir.path().join("archive");
        std::fs::write(&folder, "").unwrap();
        gathered.write(&repository, &|_| ()).await.unwrap_err();
        assert_eq!(gathered.unwritten, segments);
        std::fs::remove_file(&folder).unwrap();
        gathered.write(&repository, &|_| ()).await.unwrap();
        assert!(gathered.unwritten.is_empty());
        assert_eq!(repository.segments_of(HISTORY).await.unwrap(), segments.map(|segment| segment.name));
    }

    #[test]
    fn of_a_log_in_which_nobody_has_written_no_time_is_told() {
        let name = segment(HISTORY, 1, 5).name;
        let with_time = "partition 3: 1 groups, 9 bytes, up to entry 1-5, 1970-01-01T00:00:00.055Z";
        assert_eq!(written(&name, 1, 9), with_time);
        let without = Name { from_ms: 0, until_ms: 0, ..name };
        assert_eq!(written(&without, 0, 9), "partition 3: 0 groups, 9 bytes, up to entry 1-5");
    }

    #[test]
    fn only_what_is_of_no_use_in_any_partition_is_final() {
        let is_final = |kind| matches!(at_open(Error::new(kind, "")), Trouble::Final(_));
        assert!(is_final(ErrorKind::Denied) && is_final(ErrorKind::Unauthenticated));
        assert!(
            !is_final(ErrorKind::Corrupt) && !is_final(ErrorKind::Internal) && !is_final(ErrorKind::Retry)
        );
    }
}
