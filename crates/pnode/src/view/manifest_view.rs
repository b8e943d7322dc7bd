//! A manifest as routing wants it: SSTables with their filters, and where to look for a key. The views of two versions share what
//! has not changed.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use sextant_common::filter::SealedFilter;
use sextant_common::ids::{Generation, ManifestVersion, PartitionId, SstId, TableId};
use sextant_common::manifest::{
    FlushRecord, ListEdit, Manifest, ManifestChange, ManifestDigest, Mismatch, SstMeta, TableChange,
    TableInfo, TableManifest,
};
use sextant_common::shared_list::SharedList;

use super::layers::{Layers, Placed};

/// An SSTable that a manifest, or a record of a recent flush, names.
pub(crate) struct Sst {
    pub meta: Arc<SstMeta>,
    /// The id as it travels.
    pub wire_id: Bytes,
    /// Set once, when it has been fetched. Its contents never change, so it may appear under readers. Shared by all views of
    /// the same table.
    filter: Arc<OnceLock<SealedFilter>>,
}

impl fmt::Debug for Sst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.meta.fmt(f)
    }
}

impl Sst {
    pub fn new(meta: impl Into<Arc<SstMeta>>) -> Self {
        let meta = meta.into();
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

    /// Whether a scan of keys that all begin with `start` has to search the table.
    pub fn may_contain_prefix(&self, start: &[u8]) -> bool {
        self.filter.get().is_none_or(|filter| filter.may_contain_prefix(start))
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

#[derive(Clone)]
pub(crate) struct TableView {
    pub table: TableId,
    /// Memtables up to this generation are in the SSTables of this version.
    pub flushed_generation: Generation,
    /// The version that the last flush made.
    pub last_flush_version: ManifestVersion,
    /// Its option in this partition.
    pub filter_inserts: bool,
    pub filter_prefix: u32,
    ssts: Layers,
    /// Recent flushes of this table, oldest first.
    pub flushes: Vec<(ManifestVersion, Flushed)>,
}

/// SSTables that one may know already, by id.
type Known = HashMap<SstId, Arc<Sst>>;

impl TableView {
    fn new(table: &TableManifest, ssts: Layers, flushes: Vec<(ManifestVersion, Flushed)>) -> Self {
        Self {
            table: table.table,
            flushed_generation: table.flushed_generation,
            last_flush_version: table.last_flush_version,
            filter_inserts: table.options.filter_inserts,
            filter_prefix: table.options.filter_prefix,
            ssts,
            flushes,
        }
    }

    /// The SSTables that may have a key, newest first.
    #[inline]
    pub fn answering(&self, key: &[u8]) -> impl Iterator<Item = &Arc<Sst>> {
        self.ssts.of(key)
    }

    /// All of them, newest first for every key.
    pub fn ssts(&self) -> &SharedList<Placed> {
        self.ssts.list()
    }

    pub fn layers(&self) -> &Layers {
        &self.ssts
    }

    /// What is known of what it had.
    fn add_to(&self, known: &mut Known) {
        for (_, flushed) in &self.flushes {
            if let Flushed::Table(sst) = flushed {
                known.insert(sst.meta.id, sst.clone());
            }
        }
        for placed in self.ssts() {
            known.insert(placed.meta.id, placed.sst.clone());
        }
    }

    /// After a change. `table`: as the manifest has it then.
    fn changed(&self, table: &TableManifest, change: &TableChange) -> Self {
        let mut known = Known::new();
        for ListEdit { place, removed, .. } in &change.edits {
            let gone = self.ssts().iter_from(*place).take(*removed);
            known.extend(gone.map(|placed| (placed.meta.id, placed.sst.clone())));
        }
        for (_, flushed) in &self.flushes {
            if let Flushed::Table(sst) = flushed {
                known.insert(sst.meta.id, sst.clone());
            }
        }
        let mut ssts = self.ssts.clone();
        for ListEdit { place, removed, added } in change.edits.iter().rev() {
            let added = added.iter().map(|meta| known_or_new(meta, &known)).collect();
            ssts.splice(*place, *removed, added);
        }
        Self::new(table, ssts, self.flushes.clone())
    }
}

/// Only the replicas of a sealed table can change, and for which keys it answers.
fn known_or_new(meta: &Arc<SstMeta>, known: &Known) -> Arc<Sst> {
    match known.get(&meta.id) {
        Some(sst) if sst.meta == *meta => sst.clone(),
        Some(sst) => Arc::new(Sst { filter: Arc::clone(&sst.filter), ..Sst::new(meta.clone()) }),
        None => Arc::new(Sst::new(meta.clone())),
    }
}

/// One version of a partition's manifest. Immutable but for filters that arrive.
pub(crate) struct ManifestView {
    manifest: Manifest,
    /// What the leader calls it, if it does.
    pub digest: ManifestDigest,
    pub version: ManifestVersion,
    /// By rising id.
    pub tables: Vec<Arc<TableView>>,
    /// Every flush after this version is in the tables' `flushes`.
    pub flushes_known_after: ManifestVersion,
}

impl ManifestView {
    pub fn empty() -> Self {
        Self::of(Manifest::empty(PartitionId(u32::MAX)), None, Vec::new())
    }

    /// `told`: the digest that came with the manifest. It is what the leader compares, even if ours is another: a newer server may
    /// say more of a table than we understand.
    fn of(manifest: Manifest, told: Option<ManifestDigest>, tables: Vec<Arc<TableView>>) -> Self {
        Self {
            digest: told.unwrap_or_else(|| manifest.digest()),
            version: manifest.version,
            tables,
            flushes_known_after: manifest.flushes_known_after,
            manifest,
        }
    }

    #[cfg(test)]
    pub fn build(manifest: Manifest, previous: &ManifestView) -> Self {
        Self::of_whole(manifest, None, previous)
    }

    /// The view of `manifest`. SSTables that `previous` knows keep their filters, also those that only a record of a flush
    /// still names.
    pub fn of_whole(manifest: Manifest, told: Option<ManifestDigest>, previous: &ManifestView) -> Self {
        let mut known = Known::new();
        previous.tables.iter().for_each(|table| table.add_to(&mut known));
        let table = |table: &TableManifest| {
            let ssts: Vec<Arc<Sst>> =
                table.ssts.shared().iter().map(|meta| known_or_new(meta, &known)).collect();
            let of_table = manifest.recent_flushes.iter().filter(|f| f.table == table.table);
            let find = |id| ssts.iter().find(|sst| sst.meta.id == id).or_else(|| known.get(&id));
            let flushes = of_table.map(|f| (f.version, Flushed::of(f.id, find))).collect();
            Arc::new(TableView::new(table, Layers::new(ssts.iter().cloned()), flushes))
        };
        let tables = manifest.tables.iter().map(table).collect();
        Self::of(manifest, told, tables)
    }

    /// The next version. Copies little of what stays.
    pub fn changed(&self, change: &ManifestChange) -> Result<Self, Mismatch> {
        let manifest = self.manifest.changed(change)?;
        let mut tables: Vec<Arc<TableView>> = Vec::with_capacity(manifest.tables.len());
        for table in &manifest.tables {
            let change = change.tables.iter().find(|change| change.table == table.table);
            let view = match (self.shared(table.table), change) {
                (Some(view), None) => view.clone(),
                (Some(view), Some(change)) => Arc::new(view.changed(table, change)),
                (None, _) => {
                    let ssts = table.ssts.shared().iter().map(|meta| Arc::new(Sst::new(meta.clone())));
                    Arc::new(TableView::new(table, Layers::new(ssts), Vec::new()))
                }
            };
            tables.push(view);
        }
        for FlushRecord { version, table, id } in &change.flushes {
            let at = tables.iter().position(|view| view.table == *table);
            let Some(view) = at.map(|at| Arc::make_mut(&mut tables[at])) else { continue };
            // It comes with its flush, if it comes at all.
            let added = change.added().any(|sst| Some(sst.id) == *id);
            let find =
                |id| view.ssts().iter().find(|sst| added && sst.meta.id == id).map(|placed| &placed.sst);
            let flushed = Flushed::of(*id, find);
            view.flushes.push((*version, flushed));
        }
        let oldest = manifest.recent_flushes.first().map(|record| record.version);
        for view in &mut tables {
            let is_forgotten = |version: ManifestVersion| oldest.is_none_or(|oldest| version < oldest);
            if view.flushes.first().is_some_and(|(version, _)| is_forgotten(*version)) {
                Arc::make_mut(view).flushes.retain(|(version, _)| !is_forgotten(*version));
            }
        }
        Ok(Self::of(manifest, None, tables))
    }

    /// Whether `manifest` tells more: a newer version, or something else at the same one.
    pub fn is_superseded_by(&self, manifest: &Manifest, told: Option<ManifestDigest>) -> bool {
        let digest = || told.unwrap_or_else(|| manifest.digest());
        manifest.version > self.version || manifest.version == self.version && digest() != self.digest
    }

    fn shared(&self, table: TableId) -> Option<&Arc<TableView>> {
        self.tables.binary_search_by_key(&table, |t| t.table).ok().map(|at| &self.tables[at])
    }

    pub fn table(&self, table: TableId) -> Option<&TableView> {
        self.shared(table).map(|table| &**table)
    }

    /// Names of tables, and their options.
    pub fn infos(&self) -> impl Iterator<Item = TableInfo> {
        self.manifest.tables.iter().map(|table| TableInfo {
            id: table.table,
            name: table.name.clone(),
            options: table.options.clone(),
        })
    }

    pub fn ssts(&self) -> impl Iterator<Item = &Arc<Sst>> {
        self.tables.iter().flat_map(|table| table.ssts()).map(|placed| &placed.sst)
    }

    /// SSTables without a filter that `before` did not have. (Looks only at what the two do not share.)
    pub fn lack_filters_since(&self, before: &ManifestView) -> Vec<Arc<Sst>> {
        let (none, mut lacking) = (SharedList::default(), Vec::new());
        for table in &self.tables {
            let parts = match before.shared(table.table) {
                Some(old) if Arc::ptr_eq(old, table) => continue,
                Some(old) => table.ssts().differing(old.ssts()),
                None => table.ssts().differing(&none),
            };
            let new = parts.into_iter().flat_map(|part| part.mine).map(|placed| &placed.sst);
            lacking.extend(new.filter(|sst| !sst.has_filter()).cloned());
        }
        lacking
    }
}

impl Flushed {
    fn of<'s>(id: Option<SstId>, find: impl FnOnce(SstId) -> Option<&'s Arc<Sst>>) -> Self {
        match id {
            None => Flushed::Nothing,
            Some(id) => find(id).map_or(Flushed::Unknown, |sst| Flushed::Table(sst.clone())),
        }
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
        first.tables[0].ssts()[0].set_filter(filter_of(&[b"k"]));
        let mut moved = sst_meta(1, b"a", b"z");
        moved.replicas = vec![sextant_common::ids::NodeId(9)];
        let second = ManifestView::build(manifest(2, vec![table_manifest(1, vec![moved])]), &first);
        assert!(second.tables[0].ssts()[0].has_filter());
        assert_eq!(second.tables[0].ssts()[0].meta.replicas[0].0, 9);
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
        assert!(matches!(&flushes[0].1, Flushed::Table(s) if Arc::ptr_eq(s, &seen.tables[0].ssts()[0].sst)));
        assert!(matches!(flushes[1].1, Flushed::Unknown));
        assert!(matches!(flushes[2].1, Flushed::Nothing));
    }

    #[test]
    fn a_manifest_supersedes_by_version_or_if_it_is_another_at_the_same_one() {
        let one = || manifest(2, vec![table_manifest(1, vec![])]);
        let two = |version| manifest(version, vec![table_manifest(1, vec![]), table_manifest(2, vec![])]);
        let view = ManifestView::build(one(), &ManifestView::empty());
        assert!(view.is_superseded_by(&manifest(3, vec![]), None));
        assert!(view.is_superseded_by(&two(2), None));
        assert!(!view.is_superseded_by(&one(), None));
        assert!(!view.is_superseded_by(&two(1), None));
        assert!(view.is_superseded_by(&one(), Some(ManifestDigest(1))), "whoever leads means something else");
    }

    /// What a view says, and of each table what is known of its flushes.
    fn said(view: &ManifestView) -> impl PartialEq + std::fmt::Debug {
        let flushes = |table: &Arc<TableView>| -> Vec<_> {
            let id = |flushed: &Flushed| match flushed {
                Flushed::Nothing => None,
                Flushed::Table(sst) => Some(sst.meta.id.counter),
                Flushed::Unknown => Some(0),
            };
            table.flushes.iter().map(|(version, flushed)| (*version, id(flushed))).collect()
        };
        let header =
            |t: &Arc<TableView>| (t.table, t.flushed_generation, t.last_flush_version, t.filter_inserts);
        let tables: Vec<_> = view.tables.iter().map(|t| (header(t), flushes(t))).collect();
        let ssts: Vec<SstMeta> = view.ssts().map(|sst| (*sst.meta).clone()).collect();
        (view.version, view.digest, view.flushes_known_after, tables, ssts)
    }

    #[test]
    fn a_view_that_follows_changes_is_like_one_of_the_whole() {
        let mut leader = manifest(1, vec![table_manifest(1, vec![])]);
        let mut view = ManifestView::build(leader.clone(), &ManifestView::empty());
        for step in 1..200u32 {
            let mut next = leader.clone();
            next.version.0 += 1;
            let version = next.version;
            match step % 5 {
                0 => {
                    let table = next.table_mut(TableId(1)).unwrap();
                    let oldest = table.ssts.len().saturating_sub(3);
                    table.ssts.splice(oldest, 3, [Arc::new(sst_meta(1000 + step, b"a", b"m"))]);
                }
                1 if step % 3 == 0 => next.tables.push(table_manifest(step, vec![])),
                2 => next.remember_flush(flush_record(version.0, 1, None)),
                _ => {
                    let table = next.table_mut(TableId(1)).unwrap();
                    table.ssts.insert(0, sst_meta(step, b"a", b"z"));
                    table.flushed_generation.0 += 1;
                    table.last_flush_version = version;
                    next.remember_flush(flush_record(version.0, 1, Some(step)));
                }
            }
            let change = ManifestChange::between(&leader, &next).unwrap();
            let whole = ManifestView::build(next.clone(), &view);
            let before = view;
            view = before.changed(&change).unwrap();
            assert_eq!(format!("{:?}", said(&view)), format!("{:?}", said(&whole)));
            let lacking: Vec<SstId> =
                view.lack_filters_since(&before).into_iter().map(|sst| sst.meta.id).collect();
            assert!(change.added().all(|sst| lacking.contains(&sst.id)));
            view.ssts()
                .filter(|sst| sst.meta.id.counter % 2 == 0)
                .for_each(|sst| sst.set_filter(SealedFilter::Empty));
            leader = next;
        }
        assert!(
            view.ssts().all(|sst| sst.has_filter() == (sst.meta.id.counter % 2 == 0)),
            "filters are kept"
        );
    }
}
