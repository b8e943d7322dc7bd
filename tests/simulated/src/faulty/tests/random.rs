//! Any sequence of writes, syncs and crashes against what a file may look like after it.

use std::path::Path;

use proptest::prelude::*;
use sextant_environment::vfs::{OpenMode, Vfs};

use super::{CrashMode, DIR, FaultyVfs, contents, path};

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
