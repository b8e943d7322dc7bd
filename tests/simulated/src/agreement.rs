//! What both file systems promise.

use std::io;
use std::path::Path;

use sextant_environment::vfs::{OpenMode, RealVfs, Vfs, read_file, write_file_atomically};

use crate::FaultyVfs;

/// Runs a check on both, in a fresh directory.
fn on_both(check: fn(&dyn Vfs, &Path)) {
    let dir = tempfile::tempdir().unwrap();
    check(&RealVfs, dir.path());
    let vfs = FaultyVfs::new(1);
    vfs.create_dir_all(Path::new("/data")).unwrap();
    check(&vfs, Path::new("/data"));
}

fn kind<T>(result: io::Result<T>) -> io::ErrorKind {
    result.err().expect("an error").kind()
}

#[test]
fn files_are_read_and_written_by_position() {
    on_both(|vfs, dir| {
        let file = vfs.open(&dir.join("a"), OpenMode::CreateNew).unwrap();
        assert!(file.is_empty().unwrap());
        file.write_all_at(b"world", 6).unwrap();
        file.write_all_at(b"hello", 0).unwrap();
        file.write_all_at(b"", 100).unwrap();
        assert_eq!(read_file(vfs, &dir.join("a")).unwrap(), b"hello\0world");
        let mut buf = [0; 8];
        assert_eq!(file.read_at(&mut buf, 8).unwrap(), 3);
        assert_eq!(&buf[..3], b"rld");
        assert_eq!(file.read_at(&mut buf, 11).unwrap(), 0);
        assert_eq!(kind(file.read_exact_at(&mut buf, 8)), io::ErrorKind::UnexpectedEof);
        file.set_len(5).unwrap();
        file.sync_data().unwrap();
        assert_eq!(read_file(vfs, &dir.join("a")).unwrap(), b"hello");
        file.set_len(6).unwrap();
        assert_eq!(read_file(vfs, &dir.join("a")).unwrap(), b"hello\0");
        assert_eq!(file.len().unwrap(), 6);
    });
}

#[test]
fn opening_says_what_is_missing_or_there() {
    on_both(|vfs, dir| {
        let path = dir.join("a");
        let missing = vfs.open(&path, OpenMode::Existing).err().unwrap();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert!(missing.to_string().contains(path.to_str().unwrap()), "{missing}");
        vfs.open(&path, OpenMode::Create).unwrap().write_all_at(b"kept", 0).unwrap();
        assert_eq!(kind(vfs.open(&path, OpenMode::CreateNew)), io::ErrorKind::AlreadyExists);
        vfs.open(&path, OpenMode::Create).unwrap();
        vfs.open(&path, OpenMode::Existing).unwrap();
        assert_eq!(read_file(vfs, &path).unwrap(), b"kept");
        assert_eq!(kind(vfs.open(&dir.join("no/b"), OpenMode::Create)), io::ErrorKind::NotFound);
    });
}

#[test]
fn names_can_be_listed_changed_and_removed() {
    on_both(|vfs, dir| {
        vfs.create_dir_all(&dir.join("sub/deep")).unwrap();
        vfs.create_dir_all(&dir.join("sub/deep")).unwrap();
        for name in ["b", "a", "sub/c"] {
            vfs.open(&dir.join(name), OpenMode::CreateNew).unwrap();
        }
        assert_eq!(vfs.list(dir).unwrap(), [dir.join("a"), dir.join("b")], "sorted, files only, not deep");
        assert_eq!(kind(vfs.list(&dir.join("no"))), io::ErrorKind::NotFound);
        assert!(vfs.exists(&dir.join("sub")) && vfs.exists(&dir.join("a")) && !vfs.exists(&dir.join("c")));
        let open = vfs.open(&dir.join("a"), OpenMode::Existing).unwrap();
        open.write_all_at(b"a", 0).unwrap();
        vfs.rename(&dir.join("a"), &dir.join("b")).unwrap();
        vfs.rename(&dir.join("b"), &dir.join("sub/d")).unwrap();
        vfs.sync_dir(dir).unwrap();
        assert_eq!(read_file(vfs, &dir.join("sub/d")).unwrap(), b"a");
        assert_eq!(kind(vfs.rename(&dir.join("a"), &dir.join("b"))), io::ErrorKind::NotFound);
        vfs.remove_file(&dir.join("sub/d")).unwrap();
        assert_eq!(kind(vfs.remove_file(&dir.join("sub/d"))), io::ErrorKind::NotFound);
        // The name is gone, the open file is not.
        assert_eq!(open.len().unwrap(), 1);
        assert!(vfs.list(dir).unwrap().is_empty());
    });
}

#[test]
fn a_lock_has_one_holder() {
    on_both(|vfs, dir| {
        let path = dir.join("lock");
        let held = vfs.lock(&path).unwrap();
        assert_eq!(kind(vfs.lock(&path)), io::ErrorKind::WouldBlock);
        vfs.lock(&dir.join("another")).unwrap();
        drop(held);
        vfs.lock(&path).unwrap();
    });
}

#[test]
fn an_atomic_write_replaces_and_leaves_nothing_else() {
    on_both(|vfs, dir| {
        let path = dir.join("a.json");
        write_file_atomically(vfs, &path, b"one").unwrap();
        // Left by a crash.
        vfs.open(&dir.join("a.json.tmp"), OpenMode::CreateNew)
            .unwrap()
            .write_all_at(b"longer rubbish", 0)
            .unwrap();
        write_file_atomically(vfs, &path, b"two").unwrap();
        assert_eq!(read_file(vfs, &path).unwrap(), b"two");
        assert_eq!(vfs.list(dir).unwrap(), [path]);
        assert!(write_file_atomically(vfs, Path::new("/"), b"").is_err());
    });
}
