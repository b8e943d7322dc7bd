//! The directories: which name stands for which file, as seen by processes and as it stands on the disk.
//!
//! Invariant: `current` is `durable` with all of `unsynced` applied in order. The two entries that a rename changes belong to
//! one operation and survive a crash together, as on a journaling file system; operations survive in order. A rename between
//! two directories of which only one was synced is durable in that one alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::crash::CrashMode;

/// An inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId(pub(super) u64);

/// A name that was given to a file, or taken away.
#[derive(Debug)]
struct Edit {
    operation: u64,
    path: PathBuf,
    file: Option<FileId>,
}

#[derive(Debug, Default)]
pub(super) struct Names {
    current: BTreeMap<PathBuf, FileId>,
    durable: BTreeMap<PathBuf, FileId>,
    unsynced: Vec<Edit>,
    /// Durable as soon as they are made; see `Vfs::create_dir_all`.
    dirs: BTreeSet<PathBuf>,
    operations: u64,
}

impl Names {
    pub(super) fn get(&self, path: &Path) -> Option<FileId> {
        self.current.get(path).copied()
    }

    /// The file that has the name after a loss of power now.
    pub(super) fn durable(&self, path: &Path) -> Option<FileId> {
        self.durable.get(path).copied()
    }

    pub(super) fn is_dir(&self, path: &Path) -> bool {
        // The root, and the directory that relative paths start from.
        matches!(path.to_str(), Some("" | "." | "/")) || self.dirs.contains(path)
    }

    pub(super) fn files_in(&self, dir: &Path) -> Vec<PathBuf> {
        self.current.keys().filter(|path| path.parent() == Some(dir)).cloned().collect()
    }

    pub(super) fn make_dirs(&mut self, path: &Path) {
        self.dirs.extend(path.ancestors().map(Path::to_owned));
    }

    pub(super) fn create(&mut self, path: &Path, file: FileId) {
        self.operations += 1;
        self.edit(path, Some(file));
    }

    pub(super) fn remove(&mut self, path: &Path) {
        self.operations += 1;
        self.edit(path, None);
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path, file: FileId) {
        self.operations += 1;
        self.edit(from, None);
        self.edit(to, Some(file));
    }

    fn edit(&mut self, path: &Path, file: Option<FileId>) {
        apply(&mut self.current, path, file);
        self.unsynced.push(Edit { operation: self.operations, path: path.to_owned(), file });
    }

    pub(super) fn sync_dir(&mut self, dir: &Path) {
        for edit in self.unsynced.extract_if(.., |edit| edit.path.parent() == Some(dir)) {
            apply(&mut self.durable, &edit.path, edit.file);
        }
    }

    pub(super) fn crash(&mut self, mode: CrashMode, rng: &mut fastrand::Rng) {
        let mut operations: Vec<u64> = self.unsynced.iter().map(|edit| edit.operation).collect();
        operations.dedup();
        let kept = match mode {
            CrashMode::LoseAll | CrashMode::TearWrites => 0,
            CrashMode::TearAll => rng.usize(0..=operations.len()),
        };
        let lost_from = operations.get(kept).copied().unwrap_or(u64::MAX);
        for edit in self.unsynced.drain(..).filter(|edit| edit.operation < lost_from) {
            apply(&mut self.durable, &edit.path, edit.file);
        }
        self.current = self.durable.clone();
    }

    /// Files that have a name, or will have one again if power fails now.
    pub(super) fn reachable(&self) -> BTreeSet<FileId> {
        let pending = self.unsynced.iter().filter_map(|edit| edit.file);
        self.current.values().chain(self.durable.values()).copied().chain(pending).collect()
    }

    /// Files that have a name now.
    pub(super) fn files(&self) -> BTreeSet<FileId> {
        self.current.values().copied().collect()
    }
}

fn apply(names: &mut BTreeMap<PathBuf, FileId>, path: &Path, file: Option<FileId>) {
    match file {
        Some(file) => names.insert(path.to_owned(), file),
        None => names.remove(path),
    };
}
