//! What is due is proposed or handed out, and what comes of it becomes commands.

use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::{Generation, TableId};
use sextant_common::manifest::{Origin, SstMeta, TableManifest};
use tokio::sync::oneshot;

use super::choice::{self, Choice, Reason, choose};
use super::{RETRY_NS, Upkeep, flushes};
use crate::command::{Command, Compaction, Flush, Freeze};
use crate::flush::{CompactionJob, FlushJob, Inputs};
use crate::leadership::leadership_changed;
use crate::partition::commit::CommitEffect;
use crate::worker::freezes::Pressure;
use crate::worker::leading::Leading;
use crate::worker::replica::Replica;

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
        let is_busy =
            !(due.is_empty() && self.upkeep.freezing.is_empty() && self.upkeep.flushes.under_way.is_empty());
        let at_rest = freezes.due_for_the_log(partition, tuning, &pressure, is_busy);
        for table in due.into_iter().chain(at_rest) {
            self.freeze(replica, table, None);
        }
        self.tick_when_due(replica, now_ns);
        self.flush_what_is_frozen(replica, now_ns);
        let trigger = replica.tuning.compaction_trigger;
        let expired_by = replica.shared.published.tick();
        let manifest = replica.partition.manifest();
        for table in self.upkeep.compactions.due(manifest, trigger, expired_by, now_ns) {
            let Some(entry) = manifest.table(table) else { continue };
            let choice = match self.upkeep.compactions.is_wanted(table) {
                true => choice::all(entry, Reason::Demand),
                false => choose(entry, trigger, expired_by),
            };
            if let Some(choice) = choice {
                self.compact(replica, entry, choice);
            }
        }
    }

    fn freeze(&mut self, replica: &Replica, table: TableId, done: Option<oneshot::Sender<Result<()>>>) {
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
                expired_by: replica.shared.published.tick(),
                origin: Origin {
                    lineage: replica.configuration().lineage,
                    name: entry.name.clone(),
                    generations: flushes::generations(entry.ssts.first(), flushed),
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
            return replica.drop_table(result);
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
                replica.drop_table(Ok(sst));
            }
        }
    }

    /// On demand all SSTables of a table become one, even a single one (that drops tombstones).
    pub fn compact_on_demand(
        &mut self,
        replica: &Replica,
        table: TableId,
        done: Option<oneshot::Sender<Result<()>>>,
    ) {
        let answer = |done: Option<oneshot::Sender<_>>, result| drop(done.map(|done| done.send(result)));
        let Some(entry) = replica.partition.manifest().table(table) else {
            let e = Error::new(ErrorKind::UnknownTable, "the partition does not know the table");
            return answer(done, Err(e));
        };
        let Some(choice) = choice::all(entry, Reason::Demand) else { return answer(done, Ok(())) };
        self.upkeep.compactions.wait(table, done);
        self.compact(replica, entry, choice);
    }

    fn compact(&mut self, replica: &Replica, entry: &TableManifest, choice: Choice<'_>) {
        if !self.upkeep.compactions.begin(entry.table, choice.reaches_the_oldest) {
            return;
        }
        let (inputs, reason) = (choice.inputs.len(), choice.reason.name());
        tracing::debug!(partition = %replica.shared.id, table = %entry.table, inputs, reason, "compaction");
        replica.background.compact(CompactionJob {
            term: self.tenure.term,
            epoch: self.tenure.epoch,
            table: entry.table,
            options: entry.options.clone(),
            plan: replica.partition.last(),
            expired_by: replica.shared.published.tick(),
            origin: Origin {
                lineage: replica.configuration().lineage,
                name: entry.name.clone(),
                generations: choice::generations(entry, &choice),
            },
            inputs: choice.inputs.to_vec(),
            drops_tombstones: choice.reaches_the_oldest,
        });
    }

    pub fn compaction_done(
        &mut self,
        replica: &Replica,
        term: u64,
        table: TableId,
        Inputs { ids: inputs, tombstones_dropped }: Inputs,
        result: Result<Option<SstMeta>>,
    ) {
        let compactions = &mut self.upkeep.compactions;
        if self.tenure.term != term || !compactions.is_under_way(table) {
            return replica.drop_table(result);
        }
        match result {
            Ok(output) => {
                let compaction = Compaction { term, table, inputs, output, tombstones_dropped };
                self.command(Command::Compaction(compaction), None);
            }
            Err(e) => {
                tracing::warn!(partition = %replica.shared.id, %table, "compaction failed: {e}");
                replica.metrics.compaction_failures.inc();
                compactions.end(table, &Err(e));
                compactions.retry_at(table, replica.shared.env.clock.grantor_ns() + RETRY_NS);
            }
        }
    }

    /// A change of the manifest or the configuration is committed.
    pub fn has_committed(&mut self, replica: &mut Replica, effect: &CommitEffect) {
        let Upkeep { flushes, compactions, .. } = &mut self.upkeep;
        match effect {
            CommitEffect::TableCreated(_) | CommitEffect::Placed => {}
            CommitEffect::Configured => self.configured(replica),
            CommitEffect::Flushed { table, generation } => flushes.done(*table, *generation),
            CommitEffect::Compacted { table, removed } => {
                compactions.end(*table, &Ok(()));
                replica.background.delete_later(removed.clone());
            }
            CommitEffect::Ignored { table, orphan } => {
                // A command that is applied again after a restart is ignored too, but its table is in the manifest.
                if let Some(orphan) = orphan
                    && !replica.partition.manifest().all_ssts().any(|s| s.id == *orphan)
                {
                    replica.background.give_up(*orphan);
                }
                flushes.under_way.remove(table);
                compactions.end(*table, &Err(Error::retry("the set of tables changed meanwhile")));
            }
        }
    }
}

impl Replica {
    /// A table that came too late for its job: nobody will name it.
    pub fn drop_table(&self, result: Result<Option<SstMeta>>) {
        if let Ok(Some(sst)) = result {
            self.background.give_up(sst.id);
        }
    }
}
