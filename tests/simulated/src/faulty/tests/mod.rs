//! The disk is what everything else is tested on: what it promises is tested here.

mod crashes;
mod faults;
mod random;
mod tears;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sextant_environment::vfs::{OpenMode, Vfs, VfsFile, read_file};

use super::{CrashMode, FaultyVfs};

const DIR: &str = "/data";

fn disk(mode: CrashMode) -> FaultyVfs {
    let vfs = FaultyVfs::new(7);
    vfs.set_crash_mode(mode);
    vfs.create_dir_all(Path::new(DIR)).unwrap();
    vfs
}

fn path(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

fn create(vfs: &FaultyVfs, name: &str) -> Arc<dyn VfsFile> {
    vfs.open(&path(name), OpenMode::CreateNew).unwrap()
}

/// A file whose name and contents are durable.
fn durable(vfs: &FaultyVfs, name: &str, contents: &[u8]) -> Arc<dyn VfsFile> {
    let file = create(vfs, name);
    file.write_all_at(contents, 0).unwrap();
    file.sync_data().unwrap();
    vfs.sync_dir(Path::new(DIR)).unwrap();
    file
}

fn contents(vfs: &FaultyVfs, name: &str) -> Vec<u8> {
    read_file(vfs, &path(name)).unwrap()
}

fn kind<T>(result: io::Result<T>) -> io::ErrorKind {
    result.err().expect("an error").kind()
}
