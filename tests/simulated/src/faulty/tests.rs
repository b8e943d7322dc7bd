use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;
use sextant_environment::vfs::{read_file, write_file_atomically};

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
fn an_unsynced_write_survives_is_lost_or_is_torn_between_sectors() {
    let mut seen = BTreeMap::<&str, u32>::new();
    for seed in 0..400 {
        let vfs = FaultyVfs::new(seed);
        vfs.create_dir_all(Path::new(DIR)).unwrap();
        let file = durable(&vfs, "a", &[1; 2048]);
        // From the middle of the first sector into the middle of the fourth.
        file.write_all_at(&[2; 1400], 300).unwrap();
        vfs.crash();
        let after = contents(&vfs, "a");
        assert_eq!(after.len(), 2048);
        assert!(after[..300].iter().chain(&after[1700..]).all(|b| *b == 1));
        let written = &after[300..1700];
        let changes: Vec<usize> =
            (1..written.len()).filter(|at| written[*at] != written[*at - 1]).map(|at| at + 300).collect();
        let outcome = match (changes[..].first(), written[0]) {
            (None, 1) => "lost",
            (None, _) => "survived",
            (Some(at), first) => {
                assert_eq!((changes.len(), at % 512), (1, 0), "torn once, between sectors: {changes:?}");
                if first == 2 { "torn, start kept" } else { "torn, end kept" }
            }
        };
        *seen.entry(outcome).or_default() += 1;
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
    assert!(seen.values().all(|n| *n >= 20), "{seen:?}");
}

#[test]
fn a_seed_decides_everything() {
    let run = |seed| {
        let vfs = FaultyVfs::new(seed);
        vfs.create_dir_all(Path::new(DIR)).unwrap();
        vfs.set_crash_mode(CrashMode::TearAll);
        for i in 0..20u8 {
            let file = create(&vfs, &format!("{i}"));
            file.write_all_at(&[i; 3000], 0).unwrap();
            if i % 3 == 0 {
                file.sync_data().unwrap();
            }
        }
        vfs.crash();
        let names = vfs.list(Path::new(DIR)).unwrap();
        names.iter().map(|name| read_file(&vfs, name).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert!((2..10).any(|seed| run(seed) != run(1)));
}

#[test]
fn names_survive_in_order_when_all_may_tear() {
    let mut survivors = BTreeMap::<usize, u32>::new();
    for seed in 0..200 {
        let vfs = FaultyVfs::new(seed);
        vfs.set_crash_mode(CrashMode::TearAll);
        vfs.create_dir_all(Path::new(DIR)).unwrap();
        for name in ["a", "b", "c"] {
            create(&vfs, name);
        }
        vfs.rename(&path("c"), &path("d")).unwrap();
        vfs.crash();
        let names = vfs.list(Path::new(DIR)).unwrap();
        let expected: [&[&str]; 5] = [&[], &["a"], &["a", "b"], &["a", "b", "c"], &["a", "b", "d"]];
        let found = expected.iter().position(|e| e.iter().map(|name| path(name)).eq(names.iter().cloned()));
        *survivors.entry(found.unwrap_or_else(|| panic!("{names:?} is no prefix"))).or_default() += 1;
    }
    assert_eq!(survivors.len(), 5, "{survivors:?}");
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

#[derive(Clone, Debug)]
enum Step {
    Write { file: usize, offset: u64, len: usize },
    SetLen { file: usize, len: u64 },
    Sync { file: usize },
    SyncDir,
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let file = 0..3usize;
    let step = prop_oneof![
        5 => (file.clone(), 0..3000u64, 1..2500usize)
            .prop_map(|(file, offset, len)| Step::Write { file, offset, len }),
        1 => (file.clone(), 0..4000u64).prop_map(|(file, len)| Step::SetLen { file, len }),
        2 => file.prop_map(|file| Step::Sync { file }),
        1 => Just(Step::SyncDir),
        1 => Just(Step::Crash),
    ];
    prop::collection::vec(step, 1..60)
}

fn modes() -> impl Strategy<Value = CrashMode> {
    prop_oneof![Just(CrashMode::LoseAll), Just(CrashMode::TearWrites), Just(CrashMode::TearAll)]
}

/// What a file may look like after a crash.
#[derive(Clone, Default)]
struct Expected {
    named: bool,
    synced: Vec<u8>,
    current: Vec<u8>,
    /// Whether each byte was written since the last sync.
    touched: Vec<bool>,
    resized: bool,
}

impl Expected {
    fn touch(&mut self, range: std::ops::Range<usize>) {
        if self.touched.len() < range.end {
            self.touched.resize(range.end, false);
        }
        self.touched[range].fill(true);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// What was synced and not written since is there after each crash, byte for byte.
    #[test]
    fn what_was_synced_survives(seed in any::<u64>(), mode in modes(), steps in steps()) {
        let vfs = FaultyVfs::new(seed);
        vfs.set_crash_mode(mode);
        vfs.create_dir_all(Path::new(DIR)).unwrap();
        let open = |file: usize| vfs.open(&path(&file.to_string()), OpenMode::Create).unwrap();
        let mut files: Vec<_> = (0..3).map(open).collect();
        let mut expected = vec![Expected::default(); 3];
        for (n, step) in steps.into_iter().chain([Step::Crash]).enumerate() {
            match step {
                Step::Write { file, offset, len } => {
                    let (start, end) = (offset as usize, offset as usize + len);
                    files[file].write_all_at(&vec![n as u8; len], offset).unwrap();
                    let e = &mut expected[file];
                    // A hole that this write makes counts as written.
                    e.touch(e.current.len().min(start)..end);
                    let longer = e.current.len().max(end);
                    e.current.resize(longer, 0);
                    e.current[start..end].fill(n as u8);
                }
                Step::SetLen { file, len } => {
                    files[file].set_len(len).unwrap();
                    let e = &mut expected[file];
                    let len = len as usize;
                    let (shorter, longer) = (e.current.len().min(len), e.current.len().max(len));
                    e.touch(shorter..longer);
                    e.current.resize(len, 0);
                    e.resized = true;
                }
                Step::Sync { file } => {
                    files[file].sync_data().unwrap();
                    let e = &mut expected[file];
                    e.synced = e.current.clone();
                    e.touched.clear();
                    e.resized = false;
                }
                Step::SyncDir => {
                    vfs.sync_dir(Path::new(DIR)).unwrap();
                    expected.iter_mut().for_each(|e| e.named = true);
                }
                Step::Crash => {
                    vfs.crash();
                    for (file, e) in expected.iter_mut().enumerate() {
                        if !vfs.exists(&path(&file.to_string())) {
                            prop_assert!(!e.named, "file {} lost its name", file);
                            *e = Expected::default();
                            continue;
                        }
                        let found = contents(&vfs, &file.to_string());
                        if !e.resized {
                            prop_assert!(found.len() >= e.synced.len());
                        }
                        if e.touched.is_empty() {
                            prop_assert_eq!(&found, &e.synced);
                        }
                        for (at, (found, synced)) in found.iter().zip(&e.synced).enumerate() {
                            let touched = e.touched.get(at).copied().unwrap_or(false);
                            prop_assert!(touched || found == synced, "file {} byte {}", file, at);
                        }
                        // A surviving name stays; what the crash left is the new base.
                        *e = Expected { named: true, synced: found.clone(), current: found, ..Expected::default() };
                    }
                    files = (0..3).map(open).collect();
                    for (file, e) in expected.iter().enumerate() {
                        prop_assert_eq!(&contents(&vfs, &file.to_string()), &e.current);
                    }
                }
            }
        }
    }
}
