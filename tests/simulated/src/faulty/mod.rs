//! A file system in memory that loses what was not fsynced when it crashes.
//!
//! Owns: the difference between what processes see and what the disk holds, and faults on order. `sync_data` makes a file's
//! contents durable, `sync_dir` the names in a directory; neither does the other's work. Directories themselves are durable
//! as soon as they are made (see [`Vfs::create_dir_all`]).
//!
//! Does not own time: [`FaultyVfs::set_delay`] says how long callers are to wait, and they wait on their own clock.
//!
//! Invariant: the same seed and the same calls give the same outcome, and what was synced survives every crash byte for byte,
//! except where a test flipped a bit.

mod crash;
mod disk;
mod faults;
mod handle;
mod image;
mod names;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sextant_environment::vfs::{IoKind, OpenMode, Vfs, VfsFile};
use sextant_rules::mutant::{self, Mutant};

pub use self::crash::CrashMode;
pub use self::disk::IoCounts;
use self::disk::{Disk, named};
pub use self::faults::Fault;
use self::faults::Verdict;
use self::handle::{FaultyFile, LockGuard};
use self::image::Image;
use self::names::FileId;

/// See the module's head. Cloning gives another view of the same disk.
#[derive(Clone)]
pub struct FaultyVfs {
    disk: Arc<Mutex<Disk>>,
}

impl Default for FaultyVfs {
    fn default() -> Self {
        Self::new(0)
    }
}

impl std::fmt::Debug for FaultyVfs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let disk = self.disk.lock();
        write!(f, "FaultyVfs {{ files: {}, counts: {:?} }}", disk.names.files().len(), disk.counts)
    }
}

/// What tests do to the disk.
impl FaultyVfs {
    /// An empty disk without faults; the seed decides what crashes and torn operations leave.
    pub fn new(seed: u64) -> Self {
        Self { disk: Arc::new(Mutex::new(Disk::new(seed))) }
    }

    pub fn set_crash_mode(&self, mode: CrashMode) {
        self.disk.lock().mode = mode;
    }

    /// Power fails and comes back: what was not synced is lost as the mode says, every open file fails from now on, locks are
    /// free. Ordered faults, the capacity and the counters stay.
    pub fn crash(&self) {
        let mut disk = self.disk.lock();
        let Disk { names, images, rng, mode, .. } = &mut *disk;
        names.crash(*mode, rng);
        // In the order of file ids, so that a seed always decides the same.
        images.values_mut().for_each(|image| image.crash(*mode, rng));
        disk.end_processes();
        disk.faults.restore_power();
        disk.forget_unreachable();
    }

    /// Only the processes die: what they wrote stays, every open file fails from now on, locks are free.
    pub fn kill(&self) {
        let mut disk = self.disk.lock();
        disk.end_processes();
        disk.forget_unreachable();
    }

    /// Power fails at the `operation`-th write or sync from now (1: the next one; 0: at once). That one fails, perhaps half
    /// done; all later calls fail until [`FaultyVfs::crash`].
    pub fn cut_power_at(&self, operation: u64) {
        self.disk.lock().faults.cut_power_at(operation);
    }

    pub fn has_power(&self) -> bool {
        self.disk.lock().faults.has_power()
    }

    /// The next `count` operations of a kind on files (directories, for their syncs) whose path matches fail. A failed write
    /// may leave a part of it; a failed sync leaves some writes on the disk and **never** writes the others, even if a later
    /// sync succeeds, as Linux does. Creating, renaming and removing count as writes.
    pub fn fail_next(
        &self,
        kind: IoKind,
        count: u64,
        fault: Fault,
        paths: impl Fn(&Path) -> bool + Send + 'static,
    ) {
        self.disk.lock().faults.order(kind, count, fault, Box::new(paths));
    }

    /// Forgets all faults ordered by [`FaultyVfs::fail_next`].
    pub fn clear_faults(&self) {
        self.disk.lock().faults.clear();
    }

    /// Room for so many bytes of contents; beyond it writes fail with ENOSPC. None: no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.disk.lock().capacity = bytes;
    }

    /// Bytes of contents that all files have now.
    pub fn used_bytes(&self) -> u64 {
        self.disk.lock().used_bytes()
    }

    /// Bit rot: flips a bit (0 to 7) of the byte at `offset`, for good.
    pub fn flip_bit(&self, path: &Path, offset: u64, bit: u8) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let file = disk.file(path)?;
        let flipped = disk.image(file)?.flip_bit(offset, bit);
        if flipped { Ok(()) } else { Err(named(path, io::ErrorKind::UnexpectedEof.into())) }
    }

    /// Whether a file would survive a loss of power now, with all of its contents.
    pub fn is_durable(&self, path: &Path) -> bool {
        let disk = self.disk.lock();
        let file = disk.names.durable(path);
        file.and_then(|file| disk.images.get(&file)).is_some_and(Image::is_durable)
    }

    pub fn counts(&self) -> IoCounts {
        self.disk.lock().counts
    }

    /// What [`Vfs::delay`] answers.
    pub fn set_delay(&self, delay: impl Fn(IoKind) -> Option<Duration> + Send + Sync + 'static) {
        self.disk.lock().delay = Some(Arc::new(delay));
    }
}

impl Vfs for FaultyVfs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn VfsFile>> {
        let mut disk = self.disk.lock();
        disk.powered()?;
        let file = match (disk.names.get(path), mode) {
            (Some(_), OpenMode::CreateNew) => return Err(named(path, io::ErrorKind::AlreadyExists.into())),
            (Some(file), _) => file,
            (None, OpenMode::Existing) => return Err(named(path, io::ErrorKind::NotFound.into())),
            (None, _) => {
                disk.parent_exists(path)?;
                if disk.names.is_dir(path) {
                    return Err(named(path, io::ErrorKind::IsADirectory.into()));
                }
                let file = FileId(disk.next_file);
                disk.next_file += 1;
                disk.change_names(path, |disk| {
                    disk.images.insert(file, Image::default());
                    disk.names.create(path, file);
                })?;
                file
            }
        };
        Ok(Arc::new(FaultyFile::open(&self.disk, &mut disk, path, file)))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.powered()?;
        if let Some(file) = path.ancestors().find(|dir| disk.names.get(dir).is_some()) {
            return Err(named(file, io::ErrorKind::NotADirectory.into()));
        }
        if disk.names.is_dir(path) {
            return Ok(());
        }
        disk.change_names(path, |disk| disk.names.make_dirs(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let disk = self.disk.lock();
        disk.powered()?;
        if !disk.names.is_dir(dir) {
            return Err(named(dir, io::ErrorKind::NotFound.into()));
        }
        Ok(disk.names.files_in(dir))
    }

    fn exists(&self, path: &Path) -> bool {
        let disk = self.disk.lock();
        disk.names.get(path).is_some() || disk.names.is_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.powered()?;
        let file = disk.file(from)?;
        disk.parent_exists(to)?;
        if disk.names.is_dir(to) {
            return Err(named(to, io::ErrorKind::IsADirectory.into()));
        }
        if from == to {
            return Ok(());
        }
        disk.change_names(from, |disk| disk.names.rename(from, to, file))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.powered()?;
        disk.file(path)?;
        disk.change_names(path, |disk| disk.names.remove(path))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.powered()?;
        if !disk.names.is_dir(dir) {
            return Err(named(dir, io::ErrorKind::NotFound.into()));
        }
        disk.counts.syncs += 1;
        if mutant::active(Mutant::NoDirectoryFsync) {
            return Ok(());
        }
        match disk.faults.judge(IoKind::Sync, dir) {
            Verdict::Succeed => {
                disk.names.sync_dir(dir);
                disk.forget_unreachable();
                Ok(())
            }
            Verdict::FailPartly(e) | Verdict::Fail(e) => Err(named(dir, e)),
        }
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        self.open(path, OpenMode::Create)?;
        Ok(Box::new(LockGuard::take(&self.disk, path)?))
    }

    fn delay(&self, kind: IoKind) -> Option<Duration> {
        // Called without the lock: the hook may use this file system.
        let hook = self.disk.lock().delay.clone();
        hook.and_then(|hook| hook(kind))
    }
}
