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
pub(crate) const FIRST_BYTES: u64 = 4 << 20;
const GROWTH: u64 = 4;
/// Files kept beside the one in use; more would be disk space that nobody else can use.
const SPARES_MAX: usize = 2;
/// Pause after the disk was found full: whoever tries takes what is left of it for a moment.
const RETRY_NS: u64 = 1_000_000_000;
/// The same while there is a file for the next segment.
const RETRY_READY_NS: u64 = 10_000_000_000;

/// A file that holds nothing needed.
pub(crate) struct Spare {
    pub path: PathBuf,
    pub file: Arc<dyn VfsFile>,
    /// Bytes that were written once, so that writing them again needs no new space.
    pub capacity: u64,
}

pub(crate) struct Spares {
    shared: Arc<Shared>,
    dir: PathBuf,
    segment_bytes: u64,
    next_number: u64,
    ready: Vec<Spare>,
    /// Of segments that nobody needs but that somebody may still be reading.
    retired: Vec<(Arc<Segment>, u64)>,
    making: Option<oneshot::Receiver<io::Result<Spare>>>,
    /// When the disk was found full.
    full_since_ns: Option<u64>,
    /// How it was last told that it is.
    told_full: Option<String>,
}

impl Spares {
    pub fn new(
        shared: Arc<Shared>,
        dir: PathBuf,
        segment_bytes: u64,
        next_number: u64,
        ready: Vec<Spare>,
    ) -> Self {
        Self {
            shared,
            dir,
            segment_bytes,
            next_number,
            ready,
            retired: Vec::new(),
            making: None,
            full_since_ns: None,
            told_full: None,
        }
    }

    /// The disk was full when a spare was last to be made: what there is may be all there will be.
    pub fn is_exhausted(&self) -> bool {
        self.full_since_ns.is_some()
    }

    /// Bytes in the largest file that is ready.
    pub fn ready_bytes(&self) -> u64 {
        self.ready.iter().map(|spare| spare.capacity).max().unwrap_or(0)
    }

    /// What is made after a segment of so many bytes.
    pub fn next_bytes(&self, capacity: u64) -> u64 {
        capacity.saturating_mul(GROWTH).max(FIRST_BYTES).min(self.segment_bytes)
    }

    /// Whether another file is to be made. One at hand is enough; but the disk counts as full until one could be made, whatever
    /// segments were given back meanwhile.
    fn are_few(&mut self) -> bool {
        !self.has_ready() || self.is_exhausted() && self.ready.len() <= SPARES_MAX
    }

    /// Whether a file could be had at once.
    pub fn has_ready(&mut self) -> bool {
        self.reclaim();
        !self.ready.is_empty()
    }

    /// Makes a file in the background if there is none: at once, or in a new log that may stay small, once a quarter of the
    /// current segment is used.
    pub fn prepare(&mut self, used: u64, capacity: u64) -> io::Result<()> {
        self.poll()?;
        let now = self.shared.env.clock.holder_ns();
        let pause_ns = if self.has_ready() { RETRY_READY_NS } else { RETRY_NS };
        let pausing = self.full_since_ns.is_some_and(|since| now.saturating_sub(since) < pause_ns);
        let is_early = capacity <= FIRST_BYTES && used < capacity / GROWTH;
        if self.making.is_some() || pausing || is_early || !self.are_few() {
            return Ok(());
        }
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
            let made = making.await.unwrap_or_else(|_| Err(io::Error::other("nobody made the file")));
            self.made(made)?;
        }
        match self.ready.pop() {
            Some(spare) => Ok(spare),
            None => {
                let path = self.next_path();
                make(&*self.shared.env.vfs, path, 0, &AtomicBool::new(false))
            }
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
            if self.ready.len() < SPARES_MAX && is_worth_keeping(spare.capacity, self.segment_bytes) {
                self.ready.push(spare);
            } else if let Err(e) = self.shared.env.vfs.remove_file(&spare.path) {
                // It is found and used again at the next start.
                tracing::warn!("cannot remove a log segment that is not needed: {e}");
            }
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

    fn made(&mut self, made: io::Result<Spare>) -> io::Result<()> {
        match made {
            Ok(spare) => {
                self.ready.push(spare);
                self.full_since_ns = None;
                if self.told_full.take().is_some() {
                    tracing::info!("there is space for log segments again");
                }
                Ok(())
            }
            Err(e) if is_full(&e) => {
                let why = e.to_string();
                if self.told_full.as_ref() != Some(&why) {
                    tracing::warn!("no space for another log segment: {why}");
                }
                self.told_full = Some(why);
                self.full_since_ns = Some(self.shared.env.clock.holder_ns());
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(e) => Err(e),
        }
    }
}

/// Neither torn while it was made nor blown up by an entry larger than a segment.
fn is_worth_keeping(capacity: u64, segment_bytes: u64) -> bool {
    capacity >= SEGMENT_HEADER_BYTES && capacity <= 2 * segment_bytes
}

/// The files that a start finds beside the segments: keeps the largest, removes the others.
pub(crate) fn adopt(vfs: &dyn Vfs, mut files: Vec<SpareFile>, segment_bytes: u64) -> io::Result<Vec<Spare>> {
    files.sort_by_key(|file| std::cmp::Reverse(file.capacity));
    let mut spares = Vec::new();
    for SpareFile { path, capacity } in files {
        if spares.len() < SPARES_MAX && is_worth_keeping(capacity, segment_bytes) {
            spares.push(Spare { file: vfs.open(&path, OpenMode::Existing)?, path, capacity });
        } else {
            vfs.remove_file(&path)?;
        }
    }
    Ok(spares)
}

fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Makes a zero-filled file, durable with its name. On an error nothing is left behind; it says how many bytes there was space for,
/// to within a piece.
pub(crate) fn make(vfs: &dyn Vfs, path: PathBuf, bytes: u64, give_up: &AtomicBool) -> io::Result<Spare> {
    let mut at = 0;
    let mut fill = || {
        let file = vfs.open(&path, OpenMode::CreateNew)?;
        let zeros = vec![0; FILL_BYTES.min(bytes) as usize];
        while at < bytes {
            if give_up.load(Ordering::SeqCst) {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "the log is being closed"));
            }
            let piece = FILL_BYTES.min(bytes - at);
            file.write_all_at(&zeros[..piece as usize], at)?;
            file.sync_data()?;
            at += piece;
        }
        vfs.sync_dir(path.parent().unwrap_or(Path::new(".")))?;
        Ok(file)
    };
    match fill() {
        Ok(file) => Ok(Spare { path, file, capacity: bytes }),
        Err(e) => {
            let _ = vfs.remove_file(&path);
            let text = format!("{bytes} bytes are needed, {at} could be written: {e}");
            Err(if is_full(&e) { io::Error::new(e.kind(), text) } else { e })
        }
    }
}
