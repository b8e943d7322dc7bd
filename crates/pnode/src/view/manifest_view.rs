//! A manifest as routing wants it: SSTables with their filters, shared by id between versions.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use sextant_common::filter::SealedFilter;
use sextant_common::ids::{Generation, ManifestVersion, SstId, TableId};
use sextant_common::manifest::{Manifest, SstMeta};

use super::intervals::Intervals;

/// An SSTable that a manifest, or a record of a recent flush, names.
pub(crate) struct Sst {
    pub meta: SstMeta,
    /// The id as it travels.
    pub wire_id: Bytes,
    /// Set once, when it has been fetched. Its contents never change, so it may appear under readers. Shared by all views of
    /// the same table.
    filter: Arc<OnceLock<SealedFilter>>,
}

impl Sst {
    pub fn new(meta: SstMeta) -> Self {
        let wire_id = Bytes::copy_from_slice(&meta.id.to_bytes());
        Self { meta, wire_id, filter: Arc::default() }
    }

    /// The filter's verdict; None: it is not here.
    pub fn filter_says(&self, hash: u64) -> Option<bool> {
        self.filter.get().map(|f| f.contains(hash))
    }

    /// Whether the table has to be searched: a table whose filter is not here matches its whole range.
    pub fn may_contain(&self, key: &[u8], hash: u64) -> bool {
        self.meta.covers(key) && self.filter_says(hash) != Some(false)
    }

    pub fn has_filter(&self) -> bool {
        self.filter.get().is_some()
    }

    pub fn set_filter(&self, filter: SealedFilter) {
        let _ = self.filter.set(filter);
    }

    pub fn filter_bytes(&self) -> usize {
        self.filter.get().map_or(0, SealedFilter::memory_bytes)
    }
}

/// What a recorded flush brought.
#[derive(Clone)]
pub(crate) enum Flushed {
    /// The memtable was empty.
    Nothing,
    Table(Arc<Sst>),
    /// A compaction swallowed the table before we saw it: nothing is known of its keys.
    Unknown,
}

pub(crate) struct TableView {
    pub table: TableId,
    /// Memtables up to this generation are in the SSTables of this version.
    pub flushed_generation: Generation,
    /// The version that the last flush made.
    pub last_flush_version: ManifestVersion,
    /// Its option in this partition.
    pub filter_inserts: bool,
    /// Newest first for every key.
    pub ssts: Vec<Arc<Sst>>,
    pub intervals: Intervals,
    /// Recent flushes of this table, oldest first.
    pub flushes: Vec<(ManifestVersion, Flushed)>,
}

impl TableView {
    /// The SSTables that answer for a key, newest first.
    #[inline]
    pub fn answering(&self, key: &[u8]) -> impl Iterator<Item = &Arc<Sst>> {
        self.intervals.of(key).iter().map(|place| &self.ssts[*place as usize])
    }
}

/// One version of a partition's manifest. Immutable but for filters that arrive.
pub(crate) struct ManifestView {
    pub version: ManifestVersion,
    /// By rising id.
    pub tables: Vec<TableView>,
    /// Every flush after this version is in the tables' `flushes`.
    pub flushes_known_after: ManifestVersion,
}

impl ManifestView {
    pub fn empty() -> Self {
        Self { version: ManifestVersion(0), tables: Vec::new(), flushes_known_after: ManifestVersion(0) }
    }

    /// The view of `manifest`. SSTables that `previous` knows keep their filters, also those that only a record of a flush
    /// still names.
    pub fn build(manifest: Manifest, previous: &ManifestView) -> Self {
        let mut known: HashMap<SstId, &Arc<Sst>> = HashMap::new();
        for table in &previous.tables {
            for (_, flushed) in &table.flushes {
                if let Flushed::Table(sst) = flushed {
                    known.insert(sst.meta.id, sst);
                }
            }
            for sst in &table.ssts {
                known.insert(sst.meta.id, sst);
            }
        }
        let recent = manifest.recent_flushes;
        let tables = manifest.tables.into_iter().map(|table| {
            let ssts: Vec<Arc<Sst>> = table
                .ssts
                .into_iter()
                .map(|meta| match known.get(&meta.id) {
                    Some(sst) if sst.meta == meta => Arc::clone(sst),
                    // Only the replicas of a sealed table can change, and for which keys it answers.
                    Some(sst) => Arc::new(Sst { filter: Arc::clone(&sst.filter), ..Sst::new(meta) }),
                    None => Arc::new(Sst::new(meta)),
                })
                .collect();
            let flushes = recent
                .iter()
                .filter(|f| f.table == table.table)
                .map(|f| {
                    let flushed = match f.id {
                        None => Flushed::Nothing,
                        Some(id) => ssts
                            .iter()
                            .find(|s| s.meta.id == id)
                            .or_else(|| known.get(&id).copied())
                            .map_or(Flushed::Unknown, |sst| Flushed::Table(Arc::clone(sst))),
                    };
                    (f.version, flushed)
                })
                .collect();
            TableView {
                table: table.table,
                flushed_generation: table.flushed_generation,
                last_flush_version: table.last_flush_version,
                filter_inserts: table.options.filter_inserts,
                intervals: Intervals::new(ssts.iter().map(|sst| &sst.meta.range)),
                ssts,
                flushes,
            }
        });
        let mut tables: Vec<TableView> = tables.collect();
        tables.sort_by_key(|t| t.table);
        Self { version: manifest.version, tables, flushes_known_after: manifest.flushes_known_after }
    }

    /// Whether `manifest` tells more: a newer version, or (creating a table changes no SSTable) more tables at the same one.
    pub fn is_superseded_by(&self, manifest: &Manifest) -> bool {
        manifest.version > self.version
            || manifest.version == self.version && manifest.tables.len() > self.tables.len()
    }

    pub fn table(&self, table: TableId) -> Option<&TableView> {
        self.tables.binary_search_by_key(&table, |t| t.table).ok().map(|at| &self.tables[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{flush_record, manifest, sst_meta, table_manifest};

    fn filter_of(keys: &[&[u8]]) -> SealedFilter {
        SealedFilter::build(&mut keys.iter().map(|k| sextant_common::key::filter_hash(k)).collect())
    }

    #[test]
    fn a_table_whose_filter_is_missing_matches_its_whole_range() {
        let sst = Sst::new(sst_meta(1, b"b", b"d"));
        let hash = sextant_common::key::filter_hash(b"c");
        assert!(sst.may_contain(b"c", hash));
        assert!(!sst.may_contain(b"a", sextant_common::key::filter_hash(b"a")));
        sst.set_filter(SealedFilter::Empty);
        assert!(!sst.may_contain(b"c", hash));
    }

    #[test]
    fn filters_survive_a_new_manifest_and_a_move_to_other_replicas() {
        let first = ManifestView::build(
            manifest(1, vec![table_manifest(1, vec![sst_meta(1, b"a", b"z")])]),
            &ManifestView::empty(),
        );
        first.tables[0].ssts[0].set_filter(filter_of(&[b"k"]));
        let mut moved = sst_meta(1, b"a", b"z");
        moved.replicas = vec![sextant_common::ids::NodeId(9)];
        let second = ManifestView::build(manifest(2, vec![table_manifest(1, vec![moved])]), &first);
        assert!(second.tables[0].ssts[0].has_filter());
        assert_eq!(second.tables[0].ssts[0].meta.replicas[0].0, 9);
    }

    #[test]
    fn a_flushed_table_is_known_after_a_compaction_swallowed_it_if_it_was_seen_before() {
        let mut m = manifest(2, vec![table_manifest(1, vec![sst_meta(1, b"a", b"z")])]);
        m.recent_flushes = vec![flush_record(2, 1, Some(1))];
        let seen = ManifestView::build(m, &ManifestView::empty());
        let mut compacted = manifest(3, vec![table_manifest(1, vec![sst_meta(5, b"a", b"z")])]);
        compacted.recent_flushes =
            vec![flush_record(2, 1, Some(1)), flush_record(3, 1, Some(2)), flush_record(3, 1, None)];
        let view = ManifestView::build(compacted, &seen);
        let flushes = &view.tables[0].flushes;
        assert!(matches!(&flushes[0].1, Flushed::Table(s) if Arc::ptr_eq(s, &seen.tables[0].ssts[0])));
        assert!(matches!(flushes[1].1, Flushed::Unknown));
        assert!(matches!(flushes[2].1, Flushed::Nothing));
    }

    #[test]
    fn a_manifest_supersedes_by_version_or_by_a_table_created_at_the_same_version() {
        let view = ManifestView::build(manifest(2, vec![table_manifest(1, vec![])]), &ManifestView::empty());
        assert!(view.is_superseded_by(&manifest(3, vec![])));
        assert!(
            view.is_superseded_by(&manifest(2, vec![table_manifest(1, vec![]), table_manifest(2, vec![])]))
        );
        assert!(!view.is_superseded_by(&manifest(2, vec![table_manifest(1, vec![])])));
        assert!(
            !view.is_superseded_by(&manifest(1, vec![table_manifest(1, vec![]), table_manifest(2, vec![])]))
        );
    }
}
