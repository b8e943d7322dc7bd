//! What the disk holds, and what processes see of it.
//!
//! Owns names, contents, handles and locks, and counts what is asked. Whoever has the lock of a [`Disk`] has all of it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sextant_environment::vfs::IoKind;

use super::crash::CrashMode;
use super::faults::{Faults, Verdict, no_power};
use super::image::Image;
use super::names::{FileId, Names};

/// How much was asked of the disk. Failed operations count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounts {
    pub reads: u64,
    /// Writes to files, changes of their length, and changes of names.
    pub writes: u64,
    /// Of files and of directories.
    pub syncs: u64,
    pub bytes_written: u64,
}

pub(super) type DelayHook = Arc<dyn Fn(IoKind) -> Option<Duration> + Send + Sync>;

pub(super) struct Disk {
    pub(super) names: Names,
    pub(super) images: BTreeMap<FileId, Image>,
    /// How many handles each file has. A file without a name lives as long as one of them.
    pub(super) open: BTreeMap<FileId, usize>,
    pub(super) next_file: u64,
    /// Who holds which lock file.
    pub(super) locks: BTreeMap<PathBuf, u64>,
    pub(super) next_lock: u64,
    /// Rises when the processes that use the disk die; their handles know an older one.
    pub(super) generation: u64,
    pub(super) mode: CrashMode,
    pub(super) rng: fastrand::Rng,
    pub(super) faults: Faults,
    pub(super) capacity: Option<u64>,
    pub(super) counts: IoCounts,
    pub(super) delay: Option<DelayHook>,
}

impl Disk {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            names: Names::default(),
            images: BTreeMap::new(),
            open: BTreeMap::new(),
            next_file: 0,
            locks: BTreeMap::new(),
            next_lock: 0,
            generation: 0,
            mode: CrashMode::default(),
            rng: fastrand::Rng::with_seed(seed),
            faults: Faults::default(),
            capacity: None,
            counts: IoCounts::default(),
            delay: None,
        }
    }

    pub(super) fn end_processes(&mut self) {
        self.generation += 1;
        self.open.clear();
        self.locks.clear();
    }

    pub(super) fn powered(&self) -> io::Result<()> {
        if self.faults.has_power() { Ok(()) } else { Err(no_power()) }
    }

    pub(super) fn file(&self, path: &Path) -> io::Result<FileId> {
        self.names.get(path).ok_or_else(|| named(path, io::ErrorKind::NotFound.into()))
    }

    pub(super) fn image(&mut self, file: FileId) -> io::Result<&mut Image> {
        self.images.get_mut(&file).ok_or_else(|| io::Error::other("file has no contents"))
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.names.files().iter().filter_map(|file| self.images.get(file)).map(Image::len).sum()
    }

    /// Forgets the contents of files that have neither a name nor a handle.
    pub(super) fn forget_unreachable(&mut self) {
        let reachable = self.names.reachable();
        self.images.retain(|file, _| reachable.contains(file) || self.open.contains_key(file));
    }

    pub(super) fn parent_exists(&self, path: &Path) -> io::Result<()> {
        match path.parent() {
            Some(dir) if self.names.is_dir(dir) => Ok(()),
            _ => Err(named(path, io::ErrorKind::NotFound.into())),
        }
    }

    /// A change of names: done, or failed and perhaps done all the same.
    pub(super) fn change_names(&mut self, path: &Path, change: impl FnOnce(&mut Self)) -> io::Result<()> {
        self.counts.writes += 1;
        match self.faults.judge(IoKind::Write, path) {
            Verdict::Succeed => {
                change(self);
                Ok(())
            }
            Verdict::FailPartly(e) => {
                if self.rng.bool() {
                    change(self);
                }
                Err(named(path, e))
            }
            Verdict::Fail(e) => Err(named(path, e)),
        }
    }

    /// How many of `growth` bytes there is room for.
    pub(super) fn room_for(&self, growth: u64) -> u64 {
        match self.capacity {
            Some(capacity) if growth > 0 => growth.min(capacity.saturating_sub(self.used_bytes())),
            _ => growth,
        }
    }
}

/// Names the file in an error, and keeps its kind and number.
pub(super) fn named(path: &Path, e: io::Error) -> io::Error {
    match e.raw_os_error() {
        Some(_) => e,
        None => io::Error::new(e.kind(), format!("{}: {e}", path.display())),
    }
}
