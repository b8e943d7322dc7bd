//! The operating system's file system.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{OpenMode, Vfs, VfsFile};

#[derive(Debug, Default)]
pub struct RealVfs;

struct RealFile(File);

impl VfsFile for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.0.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    #[cfg(target_os = "linux")]
    fn forget_from(&self, offset: u64) {
        // Parts of pages stay: from where a page of any size starts.
        let Ok(offset) = (offset & !0xffff).try_into() else { return };
        // SAFETY: the descriptor is open for as long as `self` lives; 0 bytes are all that come.
        unsafe { libc::posix_fadvise(self.0.as_raw_fd(), offset, 0, libc::POSIX_FADV_DONTNEED) };
    }
}

/// Names the file in an error: a bare "No such file or directory" helps nobody.
fn named(path: &Path) -> impl Fn(io::Error) -> io::Error + '_ {
    move |e| io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

impl Vfs for RealVfs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn VfsFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        match mode {
            OpenMode::Existing => {}
            OpenMode::CreateNew => {
                options.create_new(true);
            }
            OpenMode::Create => {
                options.create(true);
            }
        }
        Ok(Arc::new(RealFile(options.open(path).map_err(named(path))?)))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let missing = path.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists()).count();
        std::fs::create_dir_all(path).map_err(named(path))?;
        // The parent of each directory that is new.
        for parent in path.ancestors().skip(1).take(missing) {
            self.sync_dir(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })?;
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(named(dir))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                paths.push(entry.path());
            }
        }
        paths.sort();
        Ok(paths)
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to).map_err(named(from))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path).map_err(named(path))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir).and_then(|d| d.sync_all()).map_err(named(dir))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(named(path))?;
        // SAFETY: the descriptor is open for as long as `file` lives.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            return Err(named(path)(io::Error::last_os_error()));
        }
        Ok(Box::new(file))
    }
}
