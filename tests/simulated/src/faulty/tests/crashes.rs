//! What survives a loss of power if nothing tears.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use sextant_environment::vfs::{OpenMode, Vfs, write_file_atomically};

use super::{CrashMode, DIR, FaultyVfs, contents, create, disk, durable, kind, path};

#[test]
fn contents_need_a_file_sync_and_names_a_directory_sync() {
    let vfs = disk(CrashMode::LoseAll);
    durable(&vfs, "both", b"kept");
    create(&vfs, "name only").write_all_at(b"lost", 0).unwrap();
    vfs.sync_dir(Path::new(DIR)).unwrap();
    let file = create(&vfs, "contents only");
    file.write_all_at(b"lost", 0).unwrap();
    file.sync_data().unwrap();
    vfs.crash();
    assert_eq!(vfs.list(Path::new(DIR)).unwrap(), [path("both"), path("name only")]);
    assert_eq!(contents(&vfs, "both"), b"kept");
    assert_eq!(contents(&vfs, "name only"), b"");
}

#[test]
fn unsynced_renames_and_removals_revert() {
    let vfs = disk(CrashMode::LoseAll);
    durable(&vfs, "old", b"old");
    durable(&vfs, "new", b"new");
    durable(&vfs, "removed", b"back");
    vfs.rename(&path("new"), &path("old")).unwrap();
    vfs.remove_file(&path("removed")).unwrap();
    assert_eq!(contents(&vfs, "old"), b"new");
    vfs.crash();
    assert_eq!(contents(&vfs, "old"), b"old");
    assert_eq!(contents(&vfs, "new"), b"new");
    assert_eq!(contents(&vfs, "removed"), b"back");

    vfs.rename(&path("new"), &path("old")).unwrap();
    vfs.remove_file(&path("removed")).unwrap();
    vfs.sync_dir(Path::new(DIR)).unwrap();
    vfs.crash();
    assert_eq!(contents(&vfs, "old"), b"new");
    assert!(!vfs.exists(&path("new")) && !vfs.exists(&path("removed")));
}

#[test]
fn a_shorter_length_needs_a_sync_too() {
    let vfs = disk(CrashMode::LoseAll);
    durable(&vfs, "a", b"0123456789").set_len(4).unwrap();
    assert_eq!(contents(&vfs, "a"), b"0123");
    vfs.crash();
    assert_eq!(contents(&vfs, "a"), b"0123456789");
    let file = vfs.open(&path("a"), OpenMode::Existing).unwrap();
    file.set_len(4).unwrap();
    file.sync_data().unwrap();
    vfs.crash();
    assert_eq!(contents(&vfs, "a"), b"0123");
}

#[test]
fn a_rename_between_directories_needs_both_synced() {
    let vfs = disk(CrashMode::LoseAll);
    vfs.create_dir_all(&path("to")).unwrap();
    durable(&vfs, "a", b"a");
    vfs.rename(&path("a"), &path("to/a")).unwrap();
    vfs.sync_dir(&path("to")).unwrap();
    vfs.crash();
    assert_eq!(contents(&vfs, "a"), b"a");
    assert_eq!(contents(&vfs, "to/a"), b"a");
}

#[test]
fn handles_and_locks_end_with_their_process() {
    for end in [FaultyVfs::crash, FaultyVfs::kill] {
        let vfs = disk(CrashMode::LoseAll);
        let file = durable(&vfs, "a", b"a");
        let lock = vfs.lock(&path("lock")).unwrap();
        assert_eq!(kind(vfs.lock(&path("lock"))), io::ErrorKind::WouldBlock);
        end(&vfs);
        assert!(file.read_at(&mut [0], 0).is_err() && file.len().is_err());
        assert!(file.write_all_at(b"b", 0).is_err() && file.sync_data().is_err() && file.set_len(0).is_err());
        let second = vfs.lock(&path("lock")).unwrap();
        // The guard of the dead process frees nothing.
        drop(lock);
        assert_eq!(kind(vfs.lock(&path("lock"))), io::ErrorKind::WouldBlock);
        drop(second);
        vfs.lock(&path("lock")).unwrap();
        assert_eq!(contents(&vfs, "a"), b"a");
    }
}

#[test]
fn a_process_that_dies_loses_nothing() {
    let vfs = disk(CrashMode::LoseAll);
    create(&vfs, "a").write_all_at(b"written", 0).unwrap();
    vfs.kill();
    assert_eq!(contents(&vfs, "a"), b"written");
}

#[test]
fn an_atomic_write_leaves_old_or_new_wherever_power_fails() {
    for mode in [CrashMode::LoseAll, CrashMode::TearWrites, CrashMode::TearAll] {
        let mut outcomes = BTreeMap::<bool, u32>::new();
        for seed in 0..60 {
            for operation in 1..8 {
                let vfs = FaultyVfs::new(seed);
                vfs.set_crash_mode(mode);
                vfs.create_dir_all(Path::new(DIR)).unwrap();
                let (old, new) = ([1; 1500], [2; 1700]);
                write_file_atomically(&vfs, &path("a"), &old).unwrap();
                vfs.cut_power_at(operation);
                let result = write_file_atomically(&vfs, &path("a"), &new);
                vfs.crash();
                let found = contents(&vfs, "a");
                assert!(found == old || found == new, "{mode:?}, seed {seed}, operation {operation}");
                assert!(result.is_err() || found == new, "what was acknowledged is there");
                *outcomes.entry(found == new).or_default() += 1;
                // What the crash left behind does not disturb the next one.
                write_file_atomically(&vfs, &path("a"), b"next").unwrap();
                assert_eq!(contents(&vfs, "a"), b"next");
            }
        }
        assert_eq!(outcomes.len(), 2, "{mode:?}: both outcomes occur");
    }
}

#[test]
fn files_without_a_name_are_forgotten() {
    let vfs = disk(CrashMode::LoseAll);
    for _ in 0..10 {
        durable(&vfs, "a", b"a");
        vfs.remove_file(&path("a")).unwrap();
    }
    vfs.sync_dir(Path::new(DIR)).unwrap();
    assert_eq!(vfs.disk.lock().images.len(), 0);
}
