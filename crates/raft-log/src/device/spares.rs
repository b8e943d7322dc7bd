//! Files for the segments to come: made in the background, ahead of need, or left over from segments that are no longer
//! needed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sextant_environment::vfs::{OpenMode, Vfs, VfsFile};
use tokio::sync::oneshot;

use crate::format::segment::{SEGMENT_HEADER_BYTES, file_name};
use crate::recovery::scan::SpareFile;
use crate::shared::{Segment, Shared};

/// Zeros are written in pieces of this size: larger ones hold up the fsyncs of others on the disk.
const FILL_BYTES: u64 = 1 << 20;
/// Size of the first segment of a new log, to start quickly; each new file is four times as large as the segment before it,
/// up to the configured size.
const FIRST_BYTES: u64 = 4 << 20;
const GROWTH: u64 = 4;
/// Files kept beside the one in use; more would be disk space that nobody else can use.
const SPARES_MAX: usize = 2;
/// Pause after the disk was found full: whoever tries takes what is left of it for a moment.
const RETRY_NS: u64 = 1_000_000_000;
/// The same while there is a file for the next segment.
const RETRY_READY_NS: u64 = 10_000_000_000;
/// Checkpoints for which the smallest file has room: it can begin some runs.
const LEAST_CHECKPOINTS: u64 = 4;

/// A file that holds nothing needed.
pub(crate) struct Spare {
    pub path: PathBuf,
    pub file: Arc<dyn VfsFile>,
    /// Bytes that were written once, so that writing them again needs no new space.
    pub capacity: u64,
}

/// Why there is no file.
#[derive(Debug)]
pub(crate) enum Unmade {
    /// There may be one later: the disk is full, or no file can be created (a process may have too many open).
    NotNow(io::Error),
    /// The log is being closed.
    GivenUp,
    /// A write or an fsync failed.
    Failed(io::Error),
}

impl From<Unmade> for io::Error {
    fn from(unmade: Unmade) -> Self {
        match unmade {
            Unmade::NotNow(e) | Unmade::Failed(e) => e,
            Unmade::GivenUp => Self::new(io::ErrorKind::Interrupted, "the log is being closed"),
        }
    }
}

type Made = Result<Spare, Unmade>;

/// Which files are worth keeping.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    least: u64,
    segment: u64,
}

impl Sizes {
    /// `checkpoint`: bytes of a checkpoint's batch.
    pub fn new(segment: u64, checkpoint: u64) -> Self {
        let least = SEGMENT_HEADER_BYTES + LEAST_CHECKPOINTS * checkpoint;
        Self { least, segment }
    }

    /// The first segment's: no whole file is smaller.
    fn first(&self) -> u64 {
        FIRST_BYTES.min(self.segment)
    }

    /// Neither torn while it was made nor blown up by an entry larger than a segment.
    fn are_kept(&self, capacity: u64) -> bool {
        (self.least.min(self.segment)..=2 * self.segment).contains(&capacity)
    }
}

pub(crate) struct Spares {
    shared: Arc<Shared>,
    dir: PathBuf,
    sizes: Sizes,
    next_number: u64,
    /// The largest, which is taken next, is the last.
    ready: Vec<Spare>,
    /// Of segments that nobody needs but that somebody may still be reading.
    retired: Vec<(Arc<Segment>, u64)>,
    making: Option<oneshot::Receiver<Made>>,
    /// When the disk was found full.
    full_since_ns: Option<u64>,
    /// Files were removed since one was last begun: there may be space again.
    freed: bool,
    /// What was last told of a disk that is full.
    told_full: Option<io::ErrorKind>,
}

impl Spares {
    pub fn new(shared: Arc<Shared>, dir: PathBuf, sizes: Sizes, next_number: u64, ready: Vec<Spare>) -> Self {
        Self {
            shared,
            dir,
            sizes,
            next_number,
            ready,
            retired: Vec::new(),
            making: None,
            full_since_ns: None,
            freed: false,
            told_full: None,
        }
    }

    /// The disk was full when a spare was last to be made: what there is may be all there will be.
    pub fn is_exhausted(&self) -> bool {
        self.full_since_ns.is_some()
    }

    /// Bytes in the file that would be taken; 0: none is ready.
    pub fn ready_bytes(&self) -> u64 {
        self.ready.last().map_or(0, |spare| spare.capacity)
    }

    /// What is made after a segment of so many bytes.
    pub fn next_bytes(&self, capacity: u64) -> u64 {
        capacity.saturating_mul(GROWTH).max(FIRST_BYTES).min(self.sizes.segment)
    }

    /// A file for the segment that a start needs. If the disk is full, as small a one as will do.
    pub fn take_first(&mut self) -> io::Result<Spare> {
        if self.ready.is_empty() {
            let made = self.make_now(self.sizes.first());
            self.made(made)?;
        }
        match self.ready.pop() {
            Some(spare) => Ok(spare),
            None => Ok(self.make_now(self.sizes.least)?),
        }
    }

    /// Makes the file for the next segment before anything is accepted, if a start has found none though there should be one:
    /// the disk may be full.
    pub fn prepare_first(&mut self, used: u64, capacity: u64) -> io::Result<()> {
        if self.has_ready() || self.is_exhausted() || is_early(used, capacity) {
            return Ok(());
        }
        let made = self.make_now(self.sizes.first());
        self.made(made)
    }

    fn make_now(&mut self, bytes: u64) -> Made {
        let path = self.next_path();
        make(&*self.shared.env.vfs, path, bytes, &AtomicBool::new(false))
    }

    /// Whether another file is to be made. One at hand is enough; but the disk counts as full until one could be made, whatever
    /// segments were given back meanwhile.
    fn are_few(&mut self) -> bool {
        !self.has_ready() || self.is_exhausted() && self.ready.len() <= SPARES_MAX
    }

    /// Whether a whole file could be had at once. A part of one, which a kill may leave, is for a disk that is full.
    pub fn has_ready(&mut self) -> bool {
        self.reclaim();
        self.ready_bytes() >= self.sizes.first()
    }

    /// Makes a file in the background if there is none: at once, or in a new log that may stay small, once a quarter of the
    /// current segment is used.
    pub fn prepare(&mut self, used: u64, capacity: u64) -> io::Result<()> {
        self.poll()?;
        let now = self.shared.env.clock.holder_ns();
        let pause_ns = if self.has_ready() { RETRY_READY_NS } else { RETRY_NS };
        let is_recent = self.full_since_ns.is_some_and(|since| now.saturating_sub(since) < pause_ns);
        let pausing = is_recent && !self.freed;
        // (Of a full disk it has to be known that there is room again, however little is written meanwhile.)
        let may_wait = is_early(used, capacity) && !self.is_exhausted();
        if self.making.is_some() || pausing || may_wait || !self.are_few() {
            return Ok(());
        }
        self.freed = false;
        let (done, making) = oneshot::channel();
        let bytes = self.next_bytes(capacity);
        let (shared, path) = (self.shared.clone(), self.next_path());
        self.shared.env.workers.blocking(Box::new(move || {
            let _ = done.send(make(&*shared.env.vfs, path, bytes, &shared.closing));
        }));
        self.making = Some(making);
        Ok(())
    }

    /// A file for the next segment: one that is ready, or the one that is being made, or a new one that is not filled.
    pub async fn take(&mut self) -> io::Result<Spare> {
        if !self.has_ready()
            && let Some(making) = self.making.take()
        {
            let nobody = Unmade::Failed(io::Error::other("nobody made the file"));
            self.made(making.await.unwrap_or(Err(nobody)))?;
        }
        match self.ready.pop() {
            Some(spare) => Ok(spare),
            None => Ok(self.make_now(0)?),
        }
    }

    /// A segment is no longer needed. It left the table of segments before, so nobody starts to read it.
    pub fn retire(&mut self, segment: Arc<Segment>, capacity: u64) {
        self.retired.push((segment, capacity));
        self.reclaim();
    }

    /// Waits until nothing is done in the background.
    pub async fn finish(&mut self) {
        if let Some(making) = self.making.take() {
            let _ = making.await;
        }
    }

    fn next_path(&mut self) -> PathBuf {
        let number = self.next_number;
        self.next_number += 1;
        self.dir.join(file_name(number))
    }

    /// Takes over the files of retired segments that nobody reads any more.
    fn reclaim(&mut self) {
        let mut at = 0;
        while at < self.retired.len() {
            if Arc::strong_count(&self.retired[at].0) > 1 {
                at += 1;
                continue;
            }
            let (segment, capacity) = self.retired.swap_remove(at);
            let spare = Spare { path: segment.path.clone(), file: segment.file.clone(), capacity };
            let are_enough = self.ready.len() >= SPARES_MAX;
            let surplus = if self.sizes.are_kept(capacity) {
                self.add(spare);
                are_enough.then(|| self.ready.remove(0))
            } else {
                Some(spare)
            };
            if let Some(surplus) = surplus {
                self.remove(&surplus);
            }
        }
    }

    fn add(&mut self, spare: Spare) {
        self.ready.push(spare);
        self.ready.sort_by_key(|spare| spare.capacity);
    }

    fn remove(&mut self, spare: &Spare) {
        match self.shared.env.vfs.remove_file(&spare.path) {
            Ok(()) => self.freed = true,
            // It is found and used again at the next start.
            Err(e) => tracing::warn!("cannot remove a log segment that is not needed: {e}"),
        }
    }

    fn poll(&mut self) -> io::Result<()> {
        let Some(making) = &mut self.making else { return Ok(()) };
        match making.try_recv() {
            Ok(made) => {
                self.making = None;
                self.made(made)
            }
            Err(oneshot::error::TryRecvError::Empty) => Ok(()),
            Err(oneshot::error::TryRecvError::Closed) => {
                self.making = None;
                Ok(())
            }
        }
    }

    fn made(&mut self, made: Made) -> io::Result<()> {
        match made {
            Ok(spare) => {
                self.add(spare);
                self.full_since_ns = None;
                if self.told_full.take().is_some() {
                    tracing::info!("log segments can be made again");
                }
                Ok(())
            }
            Err(Unmade::NotNow(e)) => {
                // Paths and sizes differ from time to time.
                if self.told_full.replace(e.kind()) != Some(e.kind()) {
                    tracing::warn!("no further log segment can be made now: {e}");
                }
                self.full_since_ns = Some(self.shared.env.clock.holder_ns());
                Ok(())
            }
            Err(Unmade::GivenUp) => Ok(()),
            Err(Unmade::Failed(e)) => Err(e),
        }
    }
}

/// Whether the log is new, and may stay so small that it needs no other file.
fn is_early(used: u64, capacity: u64) -> bool {
    capacity <= FIRST_BYTES && used < capacity / GROWTH
}

/// The files that a start finds beside the segments: keeps the largest, in the order of their sizes, and removes the others.
pub(crate) fn adopt(vfs: &dyn Vfs, mut files: Vec<SpareFile>, sizes: Sizes) -> io::Result<Vec<Spare>> {
    files.sort_by_key(|file| std::cmp::Reverse(file.capacity));
    let mut spares = Vec::new();
    for SpareFile { path, capacity } in files {
        if spares.len() < SPARES_MAX && sizes.are_kept(capacity) {
            spares.push(Spare { file: vfs.open(&path, OpenMode::Existing)?, path, capacity });
        } else {
            vfs.remove_file(&path)?;
        }
    }
    spares.reverse();
    Ok(spares)
}

fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Makes a zero-filled file, durable with its name. On an error nothing is left behind; of a full disk it says how many bytes
/// there was space for, to within a piece.
fn make(vfs: &dyn Vfs, path: PathBuf, bytes: u64, give_up: &AtomicBool) -> Made {
    let file = vfs.open(&path, OpenMode::CreateNew).map_err(Unmade::NotNow)?;
    let mut at = 0;
    let filled = fill(&*file, bytes, &mut at, give_up)
        .and_then(|()| vfs.sync_dir(path.parent().unwrap_or(Path::new("."))).map_err(Unmade::Failed));
    match filled {
        Ok(()) => Ok(Spare { path, file, capacity: bytes }),
        Err(e) => {
            let _ = vfs.remove_file(&path);
            Err(match e {
                Unmade::Failed(e) if is_full(&e) => {
                    let text = format!("{bytes} bytes are needed, {at} could be written: {e}");
                    Unmade::NotNow(io::Error::new(e.kind(), text))
                }
                e => e,
            })
        }
    }
}

/// `at`: how far it has come.
fn fill(file: &dyn VfsFile, bytes: u64, at: &mut u64, give_up: &AtomicBool) -> Result<(), Unmade> {
    let zeros = vec![0; FILL_BYTES.min(bytes) as usize];
    while *at < bytes {
        if give_up.load(Ordering::SeqCst) {
            return Err(Unmade::GivenUp);
        }
        let piece = FILL_BYTES.min(bytes - *at);
        let written = file.write_all_at(&zeros[..piece as usize], *at);
        written.and_then(|()| file.sync_data()).map_err(Unmade::Failed)?;
        *at += piece;
    }
    Ok(())
}
