//! Faults on order, limits, and what is counted.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sextant_environment::vfs::{IoKind, OpenMode, Vfs};

use super::super::Fault;
use super::{CrashMode, DIR, contents, create, disk, durable, kind, path};

#[test]
fn wild_positions_and_paths_are_refused() {
    let vfs = disk(CrashMode::LoseAll);
    let file = create(&vfs, "a");
    assert_eq!(file.read_at(&mut [0], u64::MAX).unwrap(), 0);
    assert!(file.write_all_at(b"x", u64::MAX).is_err() && file.write_all_at(b"x", 1 << 40).is_err());
    assert!(file.set_len(u64::MAX).is_err());
    assert_eq!(kind(vfs.create_dir_all(&path("a/b"))), io::ErrorKind::NotADirectory);
    assert_eq!(kind(vfs.open(Path::new(DIR), OpenMode::Create)), io::ErrorKind::IsADirectory);
    assert_eq!(kind(vfs.rename(&path("a"), Path::new(DIR))), io::ErrorKind::IsADirectory);
}

#[test]
fn faults_hit_the_kind_and_the_path_that_were_ordered() {
    let vfs = disk(CrashMode::LoseAll);
    let (a, b) = (durable(&vfs, "a", b"a"), durable(&vfs, "b", b"b"));
    vfs.fail_next(IoKind::Sync, 2, Fault::Io, |path| path.ends_with("a"));
    vfs.fail_next(IoKind::Read, 1, Fault::Io, |path| path.ends_with("b"));
    vfs.fail_next(IoKind::Write, 1, Fault::NoSpace, |path| path.ends_with("new"));
    assert_eq!(a.sync_data().unwrap_err().raw_os_error(), Some(libc::EIO));
    b.sync_data().unwrap();
    assert!(a.sync_data().is_err());
    a.sync_data().unwrap();
    assert!(b.read_at(&mut [0], 0).is_err());
    assert_eq!(b.read_at(&mut [0], 0).unwrap(), 1);
    assert_eq!(kind(vfs.open(&path("new"), OpenMode::Create)), io::ErrorKind::StorageFull);
    vfs.fail_next(IoKind::Sync, 1, Fault::Io, |path| path == Path::new(DIR));
    assert!(vfs.sync_dir(Path::new(DIR)).is_err());
    vfs.fail_next(IoKind::Write, u64::MAX, Fault::Io, |_| true);
    assert!(
        a.write_all_at(b"x", 0).is_err() && a.set_len(0).is_err() && vfs.remove_file(&path("a")).is_err()
    );
    vfs.clear_faults();
    a.write_all_at(b"x", 0).unwrap();
}

#[test]
fn what_a_failed_sync_dropped_is_never_written() {
    let vfs = disk(CrashMode::LoseAll);
    let file = durable(&vfs, "a", b"old");
    file.write_all_at(b"new", 0).unwrap();
    vfs.fail_next(IoKind::Sync, 1, Fault::Io, |_| true);
    file.sync_data().unwrap_err();
    // As on Linux: the page cache shows it, the next sync succeeds, and nothing reaches the disk.
    assert_eq!(contents(&vfs, "a"), b"new");
    file.sync_data().unwrap();
    vfs.crash();
    assert_eq!(contents(&vfs, "a"), b"old");
}

#[test]
fn a_full_disk_takes_what_fits() {
    let vfs = disk(CrashMode::LoseAll);
    vfs.set_capacity(Some(10));
    let a = durable(&vfs, "a", b"012345");
    let b = create(&vfs, "b");
    assert_eq!(b.write_all_at(b"abcdef", 0).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    assert_eq!((contents(&vfs, "b"), vfs.used_bytes()), (b"abcd".to_vec(), 10));
    // What is there may still be written over.
    a.write_all_at(b"543210", 0).unwrap();
    assert_eq!(a.set_len(7).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    vfs.remove_file(&path("b")).unwrap();
    a.set_len(7).unwrap();
    assert_eq!(vfs.used_bytes(), 7);
}

#[test]
fn rot_lasts() {
    let vfs = disk(CrashMode::LoseAll);
    let file = durable(&vfs, "a", b"AAAA");
    file.write_all_at(b"B", 3).unwrap();
    vfs.flip_bit(&path("a"), 1, 5).unwrap();
    vfs.flip_bit(&path("a"), 3, 5).unwrap();
    assert_eq!(contents(&vfs, "a"), b"AaAb");
    file.sync_data().unwrap();
    vfs.crash();
    assert_eq!(contents(&vfs, "a"), b"AaAb");
    assert!(vfs.flip_bit(&path("a"), 4, 0).is_err() && vfs.flip_bit(&path("b"), 0, 0).is_err());
}

#[test]
fn operations_are_counted_and_may_take_time() {
    let vfs = disk(CrashMode::LoseAll);
    let before = vfs.counts();
    let file = durable(&vfs, "a", b"abc");
    file.read_at(&mut [0], 0).unwrap();
    let after = vfs.counts();
    assert_eq!(after.writes - before.writes, 2, "the creation and the write");
    assert_eq!((after.syncs - before.syncs, after.reads - before.reads), (2, 1));
    assert_eq!(after.bytes_written - before.bytes_written, 3);

    assert_eq!(vfs.delay(IoKind::Sync), None);
    let asked = Arc::new(AtomicU64::new(0));
    let asked_by_hook = asked.clone();
    vfs.set_delay(move |kind| {
        asked_by_hook.fetch_add(1, Ordering::SeqCst);
        (kind == IoKind::Sync).then_some(Duration::from_millis(5))
    });
    assert_eq!(vfs.delay(IoKind::Sync), Some(Duration::from_millis(5)));
    assert_eq!((vfs.delay(IoKind::Write), asked.load(Ordering::SeqCst)), (None, 2));
}

#[test]
fn without_power_nothing_works_until_the_crash_is_over() {
    let vfs = disk(CrashMode::LoseAll);
    let file = durable(&vfs, "a", b"a");
    vfs.cut_power_at(2);
    file.write_all_at(b"b", 0).unwrap();
    assert!(vfs.has_power());
    file.sync_data().unwrap_err();
    assert!(!vfs.has_power());
    assert!(file.write_all_at(b"c", 0).is_err() && file.read_at(&mut [0], 0).is_err());
    assert!(vfs.open(&path("a"), OpenMode::Existing).is_err() && vfs.list(Path::new(DIR)).is_err());
    assert!(vfs.rename(&path("a"), &path("b")).is_err() && vfs.lock(&path("l")).is_err());
    vfs.crash();
    assert_eq!(contents(&vfs, "a"), b"a");
}
