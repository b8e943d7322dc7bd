//! What readers see of a partition: an immutable list of memtables, swapped as a whole by the worker.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use sextant_common::cut::Cut;
use sextant_common::ids::{ManifestVersion, TableId};
use sextant_common::manifest::Versions;

use super::rules;
use crate::memtable::{Memtable, Version};

#[derive(Clone, Debug)]
pub struct TableView {
    /// Active first, then frozen ones, the newest first.
    pub memtables: Vec<Arc<Memtable>>,
    /// Flushed ones that are still kept, the newest first, with the version that their flush made.
    pub grace: Vec<(ManifestVersion, Arc<Memtable>)>,
    pub dropped_version: ManifestVersion,
}

#[derive(Clone, Debug)]
pub struct ReadView {
    /// The manifest, and what led to it.
    pub versions: Versions,
    pub tables: HashMap<TableId, TableView>,
    /// Those that are held. What they name is held with the manifest: one load tells both.
    pub cuts: Arc<[Arc<Cut>]>,
}

/// What a memtable read answers (design, section 4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadAnswer {
    Found(Version),
    NoEntry,
    /// A flush of this table was applied after the version that the reader names, and its memtable is gone.
    StaleManifest,
    UnknownTable,
}

impl ReadView {
    pub fn empty(versions: Versions) -> Self {
        Self { versions, tables: HashMap::new(), cuts: Arc::default() }
    }

    /// Looks a key up in everything that the SSTables of version `searched` do not hold, as of seq `at`. Staleness is judged
    /// against the same set of memtables that is searched.
    pub fn read(&self, table: TableId, key: &Bytes, searched: ManifestVersion, at: u64) -> ReadAnswer {
        let Some(view) = self.tables.get(&table) else { return ReadAnswer::UnknownTable };
        match view.memtables_for(searched) {
            None => ReadAnswer::StaleManifest,
            Some(mut memtables) => {
                memtables.find_map(|m| m.get(key, at)).map_or(ReadAnswer::NoEntry, ReadAnswer::Found)
            }
        }
    }
}

impl TableView {
    /// All memtables that were not durable as SSTables at a version, newest first. None: one of them is gone.
    pub fn memtables_for(&self, searched: ManifestVersion) -> Option<impl Iterator<Item = &Arc<Memtable>>> {
        if rules::is_stale(searched, self.dropped_version) {
            return None;
        }
        let needed = move |flushed_at| rules::needs_flushed(searched, flushed_at);
        let kept = self.grace.iter().filter(move |(flushed_at, _)| needed(*flushed_at)).map(|(_, m)| m);
        Some(self.memtables.iter().chain(kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sextant_common::ids::{Generation, PartitionId};
    use sextant_common::manifest::Manifest;
    use sextant_common::marks::Marks;

    fn key() -> Bytes {
        Bytes::from_static(b"k")
    }

    fn memtable(generation: u64, seq: u64, value: Option<&'static [u8]>) -> Arc<Memtable> {
        let m = Memtable::new(Generation(generation));
        m.insert(key(), seq, value.map(Bytes::from_static), 1, 0);
        Arc::new(m)
    }

    fn view(table: TableView) -> ReadView {
        let mut view = ReadView::empty(Arc::new(Manifest::empty(PartitionId(0))).into());
        view.tables.insert(TableId(1), table);
        view
    }

    #[test]
    fn a_reader_behind_a_flush_is_told_so() {
        // Rule `stale-readers-are-told`: record flushed and dropped in between must not read as absent.
        let v = view(TableView {
            memtables: vec![Arc::new(Memtable::new(Generation(2)))],
            grace: vec![],
            dropped_version: ManifestVersion(2),
        });
        assert_eq!(v.read(TableId(1), &key(), ManifestVersion(1), 9), ReadAnswer::StaleManifest);
        assert_eq!(v.read(TableId(1), &key(), ManifestVersion(2), 9), ReadAnswer::NoEntry);
    }

    #[test]
    fn staleness_counts_memtables_that_were_active_at_the_readers_version() {
        // Rule `stale-readers-are-told`: put into active m1 at v1, a compaction makes
        // v2, m1 is frozen and flushed at v3; a reader at v1 must be told.
        let v = view(TableView {
            memtables: vec![Arc::new(Memtable::new(Generation(2)))],
            grace: vec![],
            dropped_version: ManifestVersion(3),
        });
        for searched in [1, 2] {
            assert_eq!(v.read(TableId(1), &key(), ManifestVersion(searched), 9), ReadAnswer::StaleManifest);
        }
    }

    #[test]
    fn flushed_memtables_answer_older_readers_during_their_grace() {
        let v = view(TableView {
            memtables: vec![Arc::new(Memtable::new(Generation(2)))],
            grace: vec![(ManifestVersion(3), memtable(1, 4, Some(b"x")))],
            dropped_version: ManifestVersion(2),
        });
        let found =
            ReadAnswer::Found(Version { seq: 4, value: Some(Bytes::from_static(b"x")), marks: Marks::NONE });
        assert_eq!(v.read(TableId(1), &key(), ManifestVersion(2), 9), found);
        assert_eq!(
            v.read(TableId(1), &key(), ManifestVersion(3), 9),
            ReadAnswer::NoEntry,
            "it searched the SSTable"
        );
        assert_eq!(v.read(TableId(1), &key(), ManifestVersion(1), 9), ReadAnswer::StaleManifest);
    }

    #[test]
    fn a_memtable_tombstone_is_an_answer() {
        // Rule `a-memtable-tombstone-is-final`.
        let v = view(TableView {
            memtables: vec![memtable(1, 4, None)],
            grace: vec![],
            dropped_version: ManifestVersion(0),
        });
        let tombstone = ReadAnswer::Found(Version { seq: 4, value: None, marks: Marks::NONE });
        assert_eq!(v.read(TableId(1), &key(), ManifestVersion(0), 9), tombstone);
        assert_eq!(
            v.read(TableId(1), &key(), ManifestVersion(0), 3),
            ReadAnswer::NoEntry,
            "not published yet"
        );
        assert_eq!(v.read(TableId(2), &key(), ManifestVersion(0), 9), ReadAnswer::UnknownTable);
    }
}
