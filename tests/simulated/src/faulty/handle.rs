//! What a process holds of the disk: open files and locks. Both end with the process.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use sextant_environment::vfs::{IoKind, VfsFile};

use super::disk::{Disk, named};
use super::faults::{Fault, Verdict};
use super::image::Image;
use super::names::FileId;

pub(super) struct FaultyFile {
    disk: Arc<Mutex<Disk>>,
    path: PathBuf,
    file: FileId,
    generation: u64,
}

/// A lock file that is held. Dropping it frees it.
pub(super) struct LockGuard {
    disk: Arc<Mutex<Disk>>,
    path: PathBuf,
    token: u64,
}

impl FaultyFile {
    /// One more handle of a file, by the processes of now.
    pub(super) fn open(disk: &Arc<Mutex<Disk>>, held: &mut Disk, path: &Path, file: FileId) -> Self {
        *held.open.entry(file).or_default() += 1;
        Self { disk: disk.clone(), path: path.to_owned(), file, generation: held.generation }
    }

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

impl LockGuard {
    pub(super) fn take(disk: &Arc<Mutex<Disk>>, path: &Path) -> io::Result<Self> {
        let mut held = disk.lock();
        if held.locks.contains_key(path) {
            return Err(named(path, io::ErrorKind::WouldBlock.into()));
        }
        let token = held.next_lock;
        held.next_lock += 1;
        held.locks.insert(path.to_owned(), token);
        Ok(Self { disk: disk.clone(), path: path.to_owned(), token })
    }
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
