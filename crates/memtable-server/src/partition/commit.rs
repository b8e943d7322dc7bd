//! Committed entries change the manifest: flush flags, compactions, tables.

use std::sync::Arc;

use sextant_common::ids::{Generation, LoadId, LogPosition, ManifestVersion, SstId, TableId};
use sextant_common::manifest::{FlushRecord, Manifest, SstList, SstMeta, TableInfo, TableManifest};

use super::Partition;
use super::columns::{Replaced, replaced};
use crate::command::{
    Alteration, ChangeTable, Command, Compaction, Configure, EnsureTable, Flush, Load, Placement,
};

/// So many adopted loads are remembered, so that a commit that comes again is known.
const LOADS_MAX: usize = 1024;

/// What a command did when it was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitEffect {
    TableCreated(TableId),
    Flushed {
        table: TableId,
        generation: Generation,
    },
    /// Entries of the manifest were replaced by others: the tables that it no longer names may be deleted after a grace.
    Compacted {
        table: TableId,
        /// Newest first, all of one range.
        removed: Vec<SstMeta>,
        /// In the order of their ranges.
        added: Vec<SstId>,
    },
    /// What was loaded is seen.
    Loaded {
        table: TableId,
        id: LoadId,
        added: Vec<SstId>,
    },
    /// A load that is in the manifest already.
    NotLoaded(Load),
    /// A table has other options, or is gone.
    TableChanged {
        table: TableId,
        /// Of a table that is gone: SSTables that nothing names any more.
        removed: Vec<SstId>,
    },
    /// It was changed by an entry that a replay has met again, or is not there.
    TableNotChanged(TableId),
    Configured,
    /// A cut began or ended.
    Cut,
    /// Tables are elsewhere; or not, if the manifest has changed meanwhile.
    Placed,
    /// A flush flag that no longer fits; its table is an orphan.
    Ignored {
        table: TableId,
        orphan: Option<SstId>,
    },
    /// A compaction that no longer fits; its outputs are orphans.
    NotCompacted(Compaction),
}

impl Partition {
    /// Entries up to `index` are committed. `now_ns`: the grantor's clock, for the grace of flushed memtables.
    pub fn commit(&mut self, index: u64, now_ns: u64) -> Vec<CommitEffect> {
        let mut effects = Vec::new();
        if index <= self.committed_index {
            return effects;
        }
        self.committed_index = index;
        self.forget_undo(index);
        while self.uncommitted.front().is_some_and(|(at, _)| at.index <= index) {
            let Some((at, command)) = self.uncommitted.pop_front() else { break };
            match command {
                Command::Flush(flush) => effects.push(self.apply_flush(flush, now_ns)),
                Command::Compaction(compaction) => effects.push(self.apply_compaction(compaction)),
                Command::Load(load) => effects.push(self.apply_load(at, load, now_ns)),
                Command::Placement(placement) => effects.push(self.apply_placement(placement)),
                Command::EnsureTable(table) => effects.extend(self.apply_table(at, table)),
                Command::ChangeTable(change) => effects.push(self.apply_change(at, change)),
                Command::Configure(Configure { configuration, .. }) => {
                    let revision = self.configuration.as_ref().map_or(0, |(c, _)| c.revision);
                    if configuration.revision == revision + 1 {
                        self.configuration = Some((configuration, at.index));
                    }
                    effects.push(CommitEffect::Configured);
                }
                Command::OpenCut(cut) => effects.extend(self.open_cut(at, cut)),
                Command::EndCut(cut) => effects.extend(self.end_cut(at, &cut)),
                Command::Group(_) | Command::Freeze(_) | Command::OpenSession(_) | Command::Tick(_) => {}
            }
        }
        self.record_change();
        effects
    }

    /// The next version. What becomes of it is found by comparing it with the one before, whoever changes what.
    fn change_manifest(&mut self) -> (&mut Manifest, ManifestVersion) {
        self.record_change();
        let manifest = Arc::make_mut(&mut self.manifest);
        manifest.version = ManifestVersion(manifest.version.0 + 1);
        let version = manifest.version;
        (manifest, version)
    }

    /// Replicas make the same changes of the same commands, so each can tell holders that another has told before.
    fn record_change(&mut self) {
        if self.manifest.version > self.versions.newest.version {
            self.versions.follow(self.manifest.clone());
        }
    }

    /// Flags of one table go strictly in freeze order; one for a memtable that was flushed already is ignored.
    fn apply_flush(&mut self, flush: Flush, now_ns: u64) -> CommitEffect {
        let Flush { table, generation, freeze, sst, .. } = flush;
        let orphan = sst.as_ref().map(|s| s.id);
        let expected = self.manifest.table(table).map(|t| Generation(t.flushed_generation.0 + 1));
        if expected != Some(generation) {
            return CommitEffect::Ignored { table, orphan };
        }
        let (manifest, version) = self.change_manifest();
        if let Some(entry) = manifest.table_mut(table) {
            entry.flushed_generation = generation;
            entry.last_flush_version = version;
            entry.persisted = freeze;
            if let Some(sst) = sst {
                entry.ssts.insert(0, sst);
            }
        }
        manifest.remember_flush(FlushRecord { version, table, id: orphan });
        self.table_mut(table).end_frozen(generation, version, now_ns);
        self.capture(table);
        CommitEffect::Flushed { table, generation }
    }

    /// As the flush flag of its memtable, which has nothing: but readers of the versions before lack what it brings, so none of them is
    /// answered any more.
    fn apply_load(&mut self, at: LogPosition, load: Load, now_ns: u64) -> CommitEffect {
        let known = self.manifest.table(load.table);
        if known.is_none_or(|t| t.flushed_generation.0 + 1 != load.generation.0) {
            return CommitEffect::NotLoaded(load);
        }
        let Load { table, id, flushed, ssts, .. } = load;
        let added: Vec<SstId> = ssts.iter().map(|sst| sst.id).collect();
        let (manifest, version) = self.change_manifest();
        if let Some(entry) = manifest.table_mut(table) {
            entry.flushed_generation = flushed;
            entry.last_flush_version = version;
            entry.persisted = at;
            entry.ssts.splice(0, 0, ssts.into_iter().map(Arc::new));
        }
        // The newest last.
        for id in added.iter().rev().copied() {
            manifest.remember_flush(FlushRecord { version, table, id: Some(id) });
        }
        let state = self.table_mut(table);
        state.end_frozen(flushed, version, now_ns);
        state.end_grace(version);
        self.loads.push_back(id);
        if self.loads.len() > LOADS_MAX {
            self.loads.pop_front();
        }
        CommitEffect::Loaded { table, id, added }
    }

    /// What may take effect, and where, says [`replaced`].
    fn apply_compaction(&mut self, compaction: Compaction) -> CommitEffect {
        let table = compaction.table;
        let replaced = self.manifest.table(table).and_then(|t| replaced(&t.ssts, &compaction));
        let Some(Replaced { ssts, removed }) = replaced else {
            return CommitEffect::NotCompacted(compaction);
        };
        let (manifest, _) = self.change_manifest();
        if let Some(entry) = manifest.table_mut(table) {
            entry.ssts = ssts;
        }
        let added = compaction.outputs.iter().map(|sst| sst.id).collect();
        CommitEffect::Compacted { table, removed, added }
    }

    /// Applies only to the manifest that it was made for: a replay meets a newer one. A table keeps a server in any case.
    fn apply_placement(&mut self, placement: Placement) -> CommitEffect {
        if placement.version != self.manifest.version {
            return CommitEffect::Placed;
        }
        let (manifest, _) = self.change_manifest();
        for table in &mut manifest.tables {
            let is_meant = |sst: &SstMeta| placement.relocations.iter().any(|r| r.id == sst.id);
            let meant = table.ssts.iter().enumerate().filter(|(_, sst)| is_meant(sst));
            let relocated: Vec<_> = meant.map(|(place, sst)| (place, relocated(sst, &placement))).collect();
            for (place, sst) in relocated {
                table.ssts.splice(place, 1, [Arc::new(sst)]);
            }
        }
        CommitEffect::Placed
    }

    /// Idempotent: a name or an id that exists, or has existed, is left as it is.
    fn apply_table(&mut self, at: LogPosition, table: EnsureTable) -> Option<CommitEffect> {
        let EnsureTable { name, options, id, .. } = table;
        let known = |t: &TableManifest| t.name == name || Some(t.table) == id;
        let is_gone = id.is_some_and(|id| self.dropped.has(id));
        // (What a replay meets again may have been dropped since.)
        if is_gone || at.index <= self.cuts.applied || self.manifest.tables.iter().any(known) {
            return None;
        }
        let id = id.unwrap_or(TableId(self.next_table));
        self.next_table = self.next_table.max(id.0.saturating_add(1));
        let (manifest, _) = self.change_manifest();
        manifest.tables.push(TableManifest {
            table: id,
            name,
            options,
            flushed_generation: Generation(0),
            last_flush_version: ManifestVersion(0),
            persisted: at,
            ssts: SstList::default(),
        });
        manifest.tables.sort_by_key(|t| t.table);
        self.table_mut(id);
        Some(CommitEffect::TableCreated(id))
    }

    /// Its memtables go with a table, whatever they have; what cuts have captured of it stays. A table that is not there yet is not made
    /// any more.
    fn apply_change(&mut self, at: LogPosition, change: ChangeTable) -> CommitEffect {
        let ChangeTable { table, generation, alteration, .. } = change;
        if alteration == Alteration::Drop {
            self.tables.remove(&table);
        }
        if at.index <= self.cuts.applied {
            return CommitEffect::TableNotChanged(table);
        }
        match alteration {
            Alteration::Drop if self.manifest.table(table).is_none() => {
                Arc::make_mut(&mut self.dropped).add(table, None);
                CommitEffect::TableChanged { table, removed: Vec::new() }
            }
            Alteration::Drop => self.drop_table(table),
            Alteration::Options(options) => {
                let is_flushed = |t: &TableManifest| t.flushed_generation.0 + 1 == generation.0;
                if !self.manifest.table(table).is_some_and(is_flushed) {
                    return CommitEffect::TableNotChanged(table);
                }
                let (manifest, _) = self.change_manifest();
                if let Some(entry) = manifest.table_mut(table) {
                    entry.options = options;
                }
                CommitEffect::TableChanged { table, removed: Vec::new() }
            }
        }
    }

    fn drop_table(&mut self, table: TableId) -> CommitEffect {
        let (manifest, _) = self.change_manifest();
        let (gone, stay) = std::mem::take(&mut manifest.tables).into_iter().partition(|t| t.table == table);
        manifest.tables = stay;
        let mut removed = Vec::new();
        for TableManifest { name, options, ssts, .. } in gone {
            removed.extend(ssts.iter().map(|sst| sst.id));
            Arc::make_mut(&mut self.dropped).add(table, Some(TableInfo { id: table, name, options }));
        }
        self.end_cuts_without(table);
        removed.sort();
        removed.dedup();
        removed.retain(|id| !self.is_held(*id));
        CommitEffect::TableChanged { table, removed }
    }
}

/// An SSTable with the servers that a placement gives it.
fn relocated(sst: &SstMeta, placement: &Placement) -> SstMeta {
    let mut sst = sst.clone();
    for relocation in placement.relocations.iter().filter(|r| r.id == sst.id) {
        if let Some(add) = relocation.add.filter(|add| !sst.replicas.contains(add)) {
            sst.replicas.push(add);
        }
        if sst.replicas.len() > 1 {
            sst.replicas.retain(|replica| Some(*replica) != relocation.remove);
        }
    }
    sst
}
