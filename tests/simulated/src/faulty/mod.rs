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

mod faults;
mod image;
mod names;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use self::faults::{Faults, Verdict, no_power};
use self::image::Image;
use self::names::{FileId, Names};
use sextant_environment::vfs::{IoKind, OpenMode, Vfs, VfsFile};

pub use self::faults::Fault;
use sextant_rules::mutant::{self, Mutant};

/// What becomes of unsynced changes when power fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CrashMode {
    /// None survives.
    LoseAll,
    /// Each write survives, is lost, or is torn between two 512-byte sectors, as the seed decides. New names, renames and
    /// removals are undone.
    #[default]
    TearWrites,
    /// As `TearWrites`; and of the changes of names, some first ones survive, as on a journaling file system.
    TearAll,
}

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

type DelayHook = Arc<dyn Fn(IoKind) -> Option<Duration> + Send + Sync>;

/// See the module's head. Cloning gives another view of the same disk.
#[derive(Clone)]
pub struct FaultyVfs {
    disk: Arc<Mutex<Disk>>,
}

struct Disk {
    names: Names,
    images: BTreeMap<FileId, Image>,
    /// How many handles each file has. A file without a name lives as long as one of them.
    open: BTreeMap<FileId, usize>,
    next_file: u64,
    /// Who holds which lock file.
    locks: BTreeMap<PathBuf, u64>,
    next_lock: u64,
    /// Rises when the processes that use the disk die; their handles know an older one.
    generation: u64,
    mode: CrashMode,
    rng: fastrand::Rng,
    faults: Faults,
    capacity: Option<u64>,
    counts: IoCounts,
    delay: Option<DelayHook>,
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
        let disk = Disk {
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
        };
        Self { disk: Arc::new(Mutex::new(disk)) }
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

impl Disk {
    fn end_processes(&mut self) {
        self.generation += 1;
        self.open.clear();
        self.locks.clear();
    }

    fn powered(&self) -> io::Result<()> {
        if self.faults.has_power() { Ok(()) } else { Err(no_power()) }
    }

    fn file(&self, path: &Path) -> io::Result<FileId> {
        self.names.get(path).ok_or_else(|| named(path, io::ErrorKind::NotFound.into()))
    }

    fn image(&mut self, file: FileId) -> io::Result<&mut Image> {
        self.images.get_mut(&file).ok_or_else(|| io::Error::other("file has no contents"))
    }

    fn used_bytes(&self) -> u64 {
        self.names.files().iter().filter_map(|file| self.images.get(file)).map(Image::len).sum()
    }

    /// Forgets the contents of files that have neither a name nor a handle.
    fn forget_unreachable(&mut self) {
        let reachable = self.names.reachable();
        self.images.retain(|file, _| reachable.contains(file) || self.open.contains_key(file));
    }

    fn parent_exists(&self, path: &Path) -> io::Result<()> {
        match path.parent() {
            Some(dir) if self.names.is_dir(dir) => Ok(()),
            _ => Err(named(path, io::ErrorKind::NotFound.into())),
        }
    }

    /// A change of names: done, or failed and perhaps done all the same.
    fn change_names(&mut self, path: &Path, change: impl FnOnce(&mut Self)) -> io::Result<()> {
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
    fn room_for(&self, growth: u64) -> u64 {
        match self.capacity {
            Some(capacity) if growth > 0 => growth.min(capacity.saturating_sub(self.used_bytes())),
            _ => growth,
        }
    }
}

/// Names the file in an error, and keeps its kind and number.
fn named(path: &Path, e: io::Error) -> io::Error {
    match e.raw_os_error() {
        Some(_) => e,
        None => io::Error::new(e.kind(), format!("{}: {e}", path.display())),
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
        let generation = disk.generation;
        *disk.open.entry(file).or_default() += 1;
        drop(disk);
        Ok(Arc::new(FaultyFile { disk: self.disk.clone(), path: path.to_owned(), file, generation }))
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
        let mut disk = self.disk.lock();
        if disk.locks.contains_key(path) {
            return Err(named(path, io::ErrorKind::WouldBlock.into()));
        }
        let token = disk.next_lock;
        disk.next_lock += 1;
        disk.locks.insert(path.to_owned(), token);
        drop(disk);
        Ok(Box::new(LockGuard { disk: self.disk.clone(), path: path.to_owned(), token }))
    }

    fn delay(&self, kind: IoKind) -> Option<Duration> {
        // Called without the lock: the hook may use this file system.
        let hook = self.disk.lock().delay.clone();
        hook.and_then(|hook| hook(kind))
    }
}

struct LockGuard {
    disk: Arc<Mutex<Disk>>,
    path: PathBuf,
    token: u64,
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        let mut disk = self.disk.lock();
        // After a crash the lock may be somebody else's.
        if disk.locks.get(&self.path) == Some(&self.token) {
            disk.locks.remove(&self.path);
        }
    }
}

struct FaultyFile {
    disk: Arc<Mutex<Disk>>,
    path: PathBuf,
    file: FileId,
    generation: u64,
}

impl FaultyFile {
    fn disk(&self) -> io::Result<MutexGuard<'_, Disk>> {
        let disk = self.disk.lock();
        if disk.generation != self.generation {
            return Err(named(&self.path, io::Error::other("opened before a crash")));
        }
        disk.powered()?;
        Ok(disk)
    }

    /// Changes a file by `bytes` bytes that make it grow by `growth`; `change` does the first so many.
    fn change(
        &self,
        disk: &mut Disk,
        bytes: u64,
        growth: u64,
        change: impl FnOnce(&mut Image, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        disk.counts.writes += 1;
        let missing = growth - disk.room_for(growth);
        let (part, failure) = match disk.faults.judge(IoKind::Write, &self.path) {
            Verdict::Succeed if missing > 0 => (bytes.saturating_sub(missing), Some(Fault::NoSpace.error())),
            Verdict::Succeed => (bytes, None),
            Verdict::FailPartly(e) => (disk.rng.u64(0..=bytes.saturating_sub(missing)), Some(e)),
            Verdict::Fail(e) => (0, Some(e)),
        };
        disk.counts.bytes_written += part;
        change(disk.image(self.file)?, part)?;
        failure.map_or(Ok(()), |e| Err(named(&self.path, e)))
    }
}

impl Drop for FaultyFile {
    fn drop(&mut self) {
        let mut disk = self.disk.lock();
        if disk.generation == self.generation
            && let Some(handles) = disk.open.get_mut(&self.file)
        {
            *handles -= 1;
            if *handles == 0 {
                disk.open.remove(&self.file);
            }
        }
    }
}

impl VfsFile for FaultyFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut disk = self.disk()?;
        disk.counts.reads += 1;
        match disk.faults.judge(IoKind::Read, &self.path) {
            Verdict::Succeed => Ok(disk.image(self.file)?.read(buf, offset)),
            Verdict::FailPartly(e) | Verdict::Fail(e) => Err(named(&self.path, e)),
        }
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut disk = self.disk()?;
        let bytes = buf.len() as u64;
        let growth = disk.image(self.file)?.growth(offset, bytes).min(bytes);
        self.change(&mut disk, bytes, growth, |image, part| image.write(&buf[..part as usize], offset))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.disk()?;
        disk.counts.syncs += 1;
        let verdict = disk.faults.judge(IoKind::Sync, &self.path);
        let Disk { images, rng, mode, .. } = &mut *disk;
        let image = images.get_mut(&self.file).ok_or_else(|| io::Error::other("file has no contents"))?;
        match verdict {
            Verdict::Succeed => {
                image.sync();
                Ok(())
            }
            Verdict::FailPartly(e) => {
                image.fail_sync(*mode, rng);
                Err(named(&self.path, e))
            }
            Verdict::Fail(e) => Err(named(&self.path, e)),
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk()?.image(self.file)?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut disk = self.disk()?;
        let growth = len.saturating_sub(disk.image(self.file)?.len());
        // All or nothing.
        self.change(&mut disk, 0, growth, |_, _| Ok(()))?;
        disk.image(self.file)?.set_len(len)
    }
}
