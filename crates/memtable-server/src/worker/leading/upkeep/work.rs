//! What is due is proposed or handed out, and what comes of it becomes commands.

use std::collections::HashSet;

use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::{Generation, SstId, TableId};
use sextant_common::key_range::KeyRange;
use sextant_common::manifest::{Origin, SstMeta, TableManifest};
use tokio::sync::oneshot;

use super::choice::{Choice, Limits, Reason, Tree};
use super::{RETRY_NS, Upkeep, flushes};
use crate::command::{Command, Compaction, Flush, Freeze};
use crate::flush::{CompactionJob, FlushJob, Inputs};
use crate::leadership::leadership_changed;
use crate::partition::commit::CommitEffect;
use crate::worker::freezes::{FULL_LOG_FREEZE_BYTES, Pressure};
use crate::worker::leading::Leading;
use crate::worker::replica::Replica;

/// What such a freeze leaves in the log itself: its flush flag, and an entry of whoever asked for it.
const OWN_ENTRIES: u64 = 2;

impl Leading {
    pub fn upkeep(&mut self, replica: &mut Replica, now_ns: u64) {
        let pressure = Pressure {
            now_ns,
            memory_bytes: replica.memory_bytes,
            log_bytes: replica.server_log.stats().bytes,
            log_is_full: replica.log_takes_groups().is_err(),
        };
        let Replica { partition, tuning, freezes, .. } = replica;
        let due = freezes.due(partition, tuning, &pressure, &self.upkeep.freezing);
        let is_busy = self.adoption.is_some()
            || !(due.is_empty()
                && self.upkeep.freezing.is_empty()
                && self.upkeep.flushes.under_way.is_empty());
        let at_rest = freezes.due_for_the_log(partition, tuning, &pressure, is_busy);
        for table in due.into_iter().chain(at_rest) {
            self.freeze(replica, table, None);
        }
        self.tick_when_due(replica, now_ns);
        self.end_cuts_when_due(replica, now_ns);
        self.flush_what_is_frozen(replica, now_ns);
        for (entry, choice) in self.compactions_due(replica, now_ns) {
            self.compact(replica, entry, &choice);
        }
    }

    pub(in crate::worker::leading) fn freeze(
        &mut self,
        replica: &Replica,
        table: TableId,
        done: Option<oneshot::Sender<Result<()>>>,
    ) {
        let Some(generation) = replica.partition.table(table).map(|t| t.generation()) else { return };
        let term = self.tenure.term;
        self.upkeep.freezing.insert(table);
        self.command(Command::Freeze(Freeze { term, table, generation }), done);
    }

    /// Freezes a table (or all) and tells which generations have to be flushed for what was written so far to be durable as
    /// SSTables.
    pub fn freeze_on_demand(
        &mut self,
        replica: &Replica,
        table: Option<TableId>,
        done: oneshot::Sender<Result<Vec<(TableId, Generation)>>>,
    ) {
        let (mut targets, mut waits) = (Vec::new(), Vec::new());
        for (id, state) in replica.partition.tables().filter(|(id, _)| table.is_none_or(|t| t == *id)) {
            let generation = state.generation();
            if state.active.is_empty() {
                if !state.frozen.is_empty() {
                    targets.push((id, Generation(generation.0 - 1)));
                }
                continue;
            }
            targets.push((id, generation));
            if !self.upkeep.freezing.contains(&id) {
                let (tx, rx) = oneshot::channel();
                self.freeze(replica, id, Some(tx));
                waits.push(rx);
            }
        }
        if table.is_none() && targets.is_empty() {
            self.freeze_at_rest(replica);
        }
        replica.background.spawn(async move {
            for wait in waits {
                if let Err(e) = wait.await.unwrap_or_else(|_| Err(leadership_changed())) {
                    let _ = done.send(Err(e));
                    return;
                }
            }
            let _ = done.send(Ok(targets));
        });
    }

    /// There is nothing to flush, but something in the log: an empty memtable is frozen, so that replay can start after it. The logs of
    /// all partitions of a server share its segments: the oldest entry holds them up, however small.
    fn freeze_at_rest(&mut self, replica: &Replica) {
        let (last, persisted) = (replica.partition.last().index, replica.partition.persisted().index);
        let log_bytes = replica.server_log.stats().bytes;
        // (What an earlier one has left may lie in a segment that is full by now.)
        let has_grown = log_bytes.saturating_sub(self.upkeep.frozen_at_rest_bytes) >= FULL_LOG_FREEZE_BYTES;
        let left_by_itself = if has_grown { 0 } else { OWN_ENTRIES };
        let is_busy = self.adoption.is_some() || !self.upkeep.freezing.is_empty();
        if is_busy || last <= persisted + left_by_itself {
            return;
        }
        if let Some((table, _)) = replica.partition.tables().next() {
            self.upkeep.frozen_at_rest_bytes = log_bytes;
            self.freeze(replica, table, None);
        }
    }

    /// Flushes the oldest frozen memtable of each table, once its freeze and everything before it is published.
    fn flush_what_is_frozen(&mut self, replica: &Replica, now_ns: u64) {
        if !replica.queue.has_published(self.tenure.first_index) {
            return;
        }
        let due = self.upkeep.flushes.due(&replica.partition, replica.queue.published_index(), now_ns);
        for (table, frozen) in due {
            let Some(entry) = replica.partition.manifest().table(table) else { continue };
            let flushed = frozen.memtable.generation;
            self.upkeep.flushes.under_way.insert(table, flushed);
            replica.background.flush(FlushJob {
                term: self.tenure.term,
                epoch: self.tenure.epoch,
                table,
                options: entry.options.clone(),
                memtable: frozen.memtable.clone(),
                freeze: frozen.freeze,
                expired_by: replica.expired_by(),
                origin: Origin {
                    lineage: replica.configuration().lineage,
                    name: entry.name.clone(),
                    generations: flushes::generations(&entry.ssts, flushed),
                    range: KeyRange::all(),
                },
            });
        }
    }

    pub fn flush_done(
        &mut self,
        replica: &Replica,
        term: u64,
        table: TableId,
        generation: Generation,
        result: Result<Option<SstMeta>>,
    ) {
        let flushes = &mut self.upkeep.flushes;
        if self.tenure.term != term || flushes.under_way.get(&table) != Some(&generation) {
            return replica.drop_tables(result);
        }
        let freeze = replica.partition.table(table).and_then(|t| t.frozen.front()).map(|f| f.freeze);
        match (result, freeze) {
            (Ok(sst), Some(freeze)) => {
                self.command(Command::Flush(Flush { term, table, generation, freeze, sst }), None);
            }
            (Err(e), _) => {
                tracing::warn!(partition = %replica.shared.id, %table, "flush failed, to be tried again: {e}");
                replica.metrics.flush_failures.inc();
                flushes.failed(table, &e.message, replica.shared.env.clock.grantor_ns() + RETRY_NS);
            }
            (Ok(sst), None) => {
                flushes.under_way.remove(&table);
                replica.drop_tables(Ok(sst));
            }
        }
    }

    /// On demand all that a table has is compacted, from above and down to the oldest, even a single SSTable (that drops tombstones).
    pub fn compact_on_demand(
        &mut self,
        replica: &Replica,
        table: TableId,
        done: Option<oneshot::Sender<Result<()>>>,
    ) {
        let Some(entry) = replica.partition.manifest().table(table) else {
            let e = Error::new(ErrorKind::UnknownTable, "the partition does not know the table");
            return drop(done.map(|done| done.send(Err(e))));
        };
        self.upkeep.compactions.demand(entry, done);
        let now_ns = replica.shared.env.clock.grantor_ns();
        for (entry, choice) in self.compactions_due(replica, now_ns) {
            self.compact(replica, entry, &choice);
        }
    }

    fn compactions_due<'m>(
        &mut self,
        replica: &'m Replica,
        now_ns: u64,
    ) -> Vec<(&'m TableManifest, Choice<'m>)> {
        let partition = &replica.partition;
        let has_writes = |table| {
            partition.table(table).is_some_and(|state| !state.active.is_empty() || !state.frozen.is_empty())
        };
        self.upkeep.compactions.due(partition.manifest(), &limits(replica), now_ns, has_writes)
    }

    fn compact(&mut self, replica: &Replica, entry: &TableManifest, choice: &Choice<'_>) {
        self.upkeep.compactions.begin(entry.table, choice);
        let (inputs, reason) = (choice.inputs.len(), choice.reason.name());
        tracing::debug!(partition = %replica.shared.id, table = %entry.table, inputs, reason, bytes = choice.bytes, "compaction");
        replica.background.compact(CompactionJob {
            term: self.tenure.term,
            epoch: self.tenure.epoch,
            table: entry.table,
            options: entry.options.clone(),
            plan: replica.partition.last(),
            expired_by: replica.expired_by(),
            origin: Origin {
                lineage: replica.configuration().lineage,
                name: entry.name.clone(),
                generations: Tree::new(entry).generations(choice),
                range: choice.range.clone(),
            },
            inputs: choice.inputs.iter().copied().cloned().collect(),
            drops_tombstones: choice.reaches_the_oldest,
            cuts: choice.cuts.clone(),
            output_bytes: choice.output_bytes,
        });
    }

    pub fn compaction_done(
        &mut self,
        replica: &Replica,
        term: u64,
        table: TableId,
        Inputs { ids: inputs, range, tombstones_dropped }: Inputs,
        result: Result<Vec<SstMeta>>,
    ) {
        let compactions = &mut self.upkeep.compactions;
        if self.tenure.term != term || !compactions.is_under_way(table, &range, &inputs) {
            return replica.drop_tables(result);
        }
        match result {
            Ok(outputs) => {
                let compaction = Compaction { term, table, inputs, range, outputs, tombstones_dropped };
                self.command(Command::Compaction(compaction), None);
            }
            Err(e) => {
                let reason = compactions.failed(table, &range, &inputs, &e);
                // (Servers that have something better to do are no failure.)
                if reason != Some(Reason::Rest) || e.kind != ErrorKind::Overloaded {
                    tracing::warn!(partition = %replica.shared.id, %table, "compaction failed: {e}");
                    replica.metrics.compaction_failures.inc();
                }
                compactions.wait(table, &range, replica.shared.env.clock.grantor_ns());
            }
        }
    }

    /// What came of a compaction cannot go into the log.
    pub fn compaction_refused(&mut self, replica: &Replica, compaction: &Compaction, why: &Error) {
        let Compaction { table, range, inputs, outputs, .. } = compaction;
        tracing::warn!(partition = %replica.shared.id, %table, "compaction refused: {why}");
        replica.metrics.compaction_failures.inc();
        replica.background.give_up(outputs.iter().map(|sst| sst.id).collect());
        self.upkeep.compactions.failed(*table, range, inputs, why);
        self.upkeep.compactions.wait(*table, range, replica.shared.env.clock.grantor_ns());
    }

    /// A change of the manifest or the configuration is committed.
    pub fn has_committed(&mut self, replica: &mut Replica, effect: &CommitEffect) {
        let Upkeep { flushes, compactions, .. } = &mut self.upkeep;
        match effect {
            CommitEffect::TableCreated(_) | CommitEffect::Placed | CommitEffect::Cut => {}
            CommitEffect::Configured => self.configured(replica),
            CommitEffect::Loaded { id, .. } => self.loaded(replica, *id),
            CommitEffect::TableChanged { table, removed } => {
                // (If it is still there, what is under way for it ends as ever.)
                if replica.partition.manifest().table(*table).is_none() {
                    self.upkeep.forget(*table);
                }
                replica.background.delete_later(removed.clone());
                self.table_changed(replica, *table);
            }
            CommitEffect::TableNotChanged(table) => self.table_changed(replica, *table),
            // (Applied again after a restart: its tables are in the manifest, or were.)
            CommitEffect::NotLoaded(_) => {}
            CommitEffect::Flushed { table, generation } => flushes.done(*table, *generation),
            CommitEffect::Compacted { table, removed, added } => {
                let manifest = replica.partition.manifest();
                let ids: Vec<SstId> = removed.iter().map(|sst| sst.id).collect();
                if manifest.table(*table).is_none() {
                    // Dropped with the same commit.
                    let gone = ids.iter().copied().filter(|id| !replica.partition.is_held(*id));
                    replica.background.delete_later(gone.collect());
                }
                if let (Some(entry), Some(newest)) = (manifest.table(*table), removed.first()) {
                    if let Some(reason) = compactions.done(entry, &newest.range, &ids, added) {
                        let written = entry.ssts.iter().filter(|sst| added.contains(&sst.id));
                        let bytes = (
                            removed.iter().map(|sst| sst.file_bytes).sum(),
                            written.map(|sst| sst.file_bytes).sum(),
                        );
                        replica.metrics.compacted(reason.name(), bytes);
                    }
                    // (Other entries may still name them.)
                    let named: HashSet<&SstId> = entry.ssts.iter().map(|sst| &sst.id).collect();
                    // What a cut names goes as an orphan, when that has ended.
                    let gone =
                        ids.into_iter().filter(|id| !named.contains(id) && !replica.partition.is_held(*id));
                    replica.background.delete_later(gone.collect());
                }
            }
            CommitEffect::Ignored { table, orphan } => {
                replica.give_up_unless_named(orphan.iter().copied());
                flushes.under_way.remove(table);
            }
            CommitEffect::NotCompacted(Compaction { table, inputs, range, outputs, .. }) => {
                replica.give_up_unless_named(outputs.iter().map(|sst| sst.id));
                let e = Error::retry("the set of tables changed meanwhile");
                compactions.failed(*table, range, inputs, &e);
            }
        }
    }
}

fn limits(replica: &Replica) -> Limits {
    Limits {
        trigger: replica.tuning.compaction_trigger,
        target_bytes: replica.tuning.sst_target_bytes,
        rests_after_ns: replica.tuning.rest_after_ms.saturating_mul(1_000_000),
        expired_by: replica.expired_by(),
    }
}

impl Replica {
    /// Tables that came too late for their job: nobody will name them.
    pub fn drop_tables(&self, result: Result<impl IntoIterator<Item = SstMeta>>) {
        let tables = result.into_iter().flatten();
        self.background.give_up(tables.map(|sst| sst.id).collect());
    }

    /// Of a command that was ignored. (One that is applied again after a restart is, too, but its tables are in the manifest.)
    fn give_up_unless_named(&self, tables: impl Iterator<Item = SstId>) {
        let manifest = self.partition.manifest();
        let is_named =
            |id: &SstId| manifest.all_ssts().any(|sst| sst.id == *id) || self.partition.is_held(*id);
        let orphans = tables.filter(|orphan| !is_named(orphan));
        self.background.give_up(orphans.collect());
    }
}
