//! What the seed decides: which unsynced changes survive, and how much of them.

use std::collections::BTreeMap;
use std::path::Path;

use sextant_environment::vfs::{Vfs, read_file};

use super::{CrashMode, DIR, FaultyVfs, contents, create, durable, path};

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
