//! The disk, behind traits: [`RealVfs`] is the operating system's. The one that lives in memory and loses what was not
//! fsynced when it crashes is in a crate of its own, for tests.
//!
//! All calls block; run them on a dedicated worker or through [`crate::Env::blocking`].

mod real;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use real::RealVfs;

/// What is about to be done to a disk; see [`Vfs::delay`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoKind {
    Read,
    Write,
    Sync,
}

/// How a file is opened. All files can be read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Must exist.
    Existing,
    /// Created empty; must not exist.
    CreateNew,
    /// Created if missing; contents kept.
    Create,
}

/// A file system. Paths are absolute, or relative to the process' directory.
pub trait Vfs: Send + Sync + 'static {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn VfsFile>>;
    /// Makes a directory and the parents that it lacks, durably: the directories that got a new entry are fsynced.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Paths of the files (not directories) in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;
    fn exists(&self, path: &Path) -> bool;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Makes creations, renames and removals in the directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Takes an exclusive lock on a file (created if missing), held until the returned guard is dropped. Fails with
    /// `WouldBlock` if somebody else holds it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>>;
    /// Simulations only: how long the caller is to wait (on its runtime's clock) before the next operation of this kind.
    /// The real file system takes its time by itself.
    fn delay(&self, kind: IoKind) -> Option<Duration> {
        let _ = kind;
        None
    }
}

/// An open file; positions are explicit, so it can be shared.
pub trait VfsFile: Send + Sync + 'static {
    /// Reads up to `buf.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// fdatasync. A failure is fatal for what the file holds: the caller must not retry and go on.
    fn sync_data(&self) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// The next read of what is behind `offset` is to ask the device, as far as that can be had: not memory.
    fn forget_from(&self, _offset: u64) {}

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads exactly `buf.len()` bytes.
    fn read_exact_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            let n = self.read_at(buf, offset)?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            buf = &mut buf[n..];
            offset += n as u64;
        }
        Ok(())
    }
}

/// Writes a small file so that after a crash either the old or the new contents are there: temporary file (`<name>.tmp`),
/// fsync, rename, fsync of the directory. Two writers of one path at a time are not allowed. After an error either contents
/// may be there; retry or stop.
pub fn write_file_atomically(vfs: &dyn Vfs, path: &Path, contents: &[u8]) -> io::Result<()> {
    let dir = path.parent().ok_or_else(|| io::Error::other("a file needs a directory"))?;
    let mut name = path.file_name().ok_or_else(|| io::Error::other("a file needs a name"))?.to_owned();
    name.push(".tmp");
    let temporary = dir.join(name);
    if vfs.exists(&temporary) {
        vfs.remove_file(&temporary)?;
    }
    let file = vfs.open(&temporary, OpenMode::CreateNew)?;
    if let Err(e) = file.write_all_at(contents, 0).and_then(|()| file.sync_data()) {
        // A disk that is full is not to keep half a file as well.
        let _ = vfs.remove_file(&temporary);
        return Err(e);
    }
    vfs.rename(&temporary, path)?;
    vfs.sync_dir(dir)
}

/// Reads a whole file.
pub fn read_file(vfs: &dyn Vfs, path: &Path) -> io::Result<Vec<u8>> {
    let file = vfs.open(path, OpenMode::Existing)?;
    let mut buf = vec![0; file.len()? as usize];
    file.read_exact_at(&mut buf, 0)?;
    Ok(buf)
}
