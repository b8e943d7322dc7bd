//! What the worker starts by itself: freezes, flushes, compactions, the end of graces.

use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::{Generation, SstId, TableId};
use sextant_common::manifest::{Generations, Origin, SstMeta};
use sextant_common::mutant::{self, Mutant};
use tokio::sync::oneshot;

use super::Worker;
use super::sequence::LATE;
use crate::command::Command;
use crate::flush::{CompactionJob, FlushJob};
use crate::replica::WriteOutcome;

/// After a failed flush or compaction, how long until the next attempt.
const RETRY_NS: u64 = 500_000_000;
/// A full log is worth the freeze of an empty memtable if it has grown by so much since the last one.
const FULL_LOG_FREEZE_BYTES: u64 = 256 * 1024;

impl Worker {
    pub(super) fn upkeep(&mut self) {
        let now = self.shared.env.clock.grantor_ns();
        let before = now.saturating_sub(self.tuning.grace_ms * 1_000_000);
        if self.partition.end_grace(before, self.tuning.grace_bytes as usize) {
            self.refresh_view();
        }
        self.refuse_what_is_late();
        self.purge_when_full();
        if self.lead.is_none() {
            return;
        }
        self.shorten_when_due(now);
        self.freeze_what_is_due(now);
        self.freeze_for_the_log();
        self.flush_what_is_frozen(now);
        self.compact_what_is_due(now);
    }

    fn refuse_what_is_late(&mut self) {
        let now = self.shared.env.clock.holder_ns();
        let late = self.backlog.take_late(|w| w.deadline_ns <= now);
        late.into_iter().for_each(|w| w.reply.send(WriteOutcome::Overloaded(LATE.into())));
    }

    fn freeze_what_is_due(&mut self, now: u64) {
        // Since when the active memtable of a table has held something (as far as this leader has seen).
        for (id, table) in self.partition.tables() {
            let since = if table.active.is_empty() { None } else { Some((table.generation(), now)) };
            match (self.active_since.get(&id), since) {
                (Some((generation, _)), Some((current, _))) if *generation == current => {}
                (_, Some(since)) => {
                    self.active_since.insert(id, since);
                }
                (_, None) => {
                    self.active_since.remove(&id);
                }
            }
        }
        let too_old = |id: &TableId| {
            let since = self.active_since.get(id).map_or(now, |(_, since)| *since);
            now.saturating_sub(since) >= self.tuning.freeze_age_ms * 1_000_000
        };
        let log_bytes = self.partition.log_bytes();
        let crowded = self.partition.unflushed_bytes() > self.memory_bytes / 2;
        // Only a flush lets the log be purged.
        let log_is_full = self.log_takes_groups().is_err();
        // Many small memtables can fill the memory together: then the largest one goes.
        let largest = self.partition.tables().max_by_key(|(_, t)| t.active.bytes()).map(|(id, _)| id);
        let nothing_frozen = self.partition.tables().all(|(_, t)| t.frozen.is_empty());
        let due: Vec<TableId> = self
            .partition
            .tables()
            .filter(|(id, t)| {
                !t.active.is_empty()
                    && !self.freezing.contains(id)
                    && (too_old(id)
                        || t.active.bytes() as u64 >= self.tuning.memtable_bytes
                        || log_bytes - t.active.first_log_bytes() >= self.tuning.freeze_log_bytes
                        || ((crowded || log_is_full) && nothing_frozen && largest == Some(*id)))
            })
            .map(|(id, _)| id)
            .collect();
        for table in due {
            self.freeze(table, None);
        }
    }

    /// Entries without writes (answers of sessions, configurations) take room in the log too, and a partition that rests holds
    /// up the segments that it shares with others. The freeze of an empty memtable is a point from which replay can start.
    fn freeze_for_the_log(&mut self) {
        let at_rest = self.partition.tables().all(|(_, t)| t.active.is_empty() && t.frozen.is_empty());
        let log_bytes = self.server_log.stats().bytes;
        if !at_rest || !self.freezing.is_empty() || !self.flushing.is_empty() {
            // A memtable that holds something is frozen at its own time, and its flush is as good.
            self.rest_log_bytes = Some(log_bytes);
            return;
        }
        let distance = log_bytes.saturating_sub(self.rest_log_bytes.unwrap_or(0));
        let grown = self.rest_log_bytes.is_none() || distance >= FULL_LOG_FREEZE_BYTES;
        let full = grown && self.log_takes_groups().is_err();
        if distance < self.tuning.freeze_log_bytes && !full {
            return;
        }
        self.rest_log_bytes = Some(log_bytes);
        let first = self.partition.tables().next().map(|(id, _)| id);
        if let Some(table) = first {
            self.freeze(table, None);
        }
    }

    /// Entries that are kept for followers that lag a little give way when the log is full: such a follower takes a snapshot.
    fn purge_when_full(&mut self) {
        let persisted = self.partition.persisted().index;
        if persisted <= self.purge_asked || self.log_takes_groups().is_ok() {
            return;
        }
        self.purge_asked = persisted;
        let raft = self.raft.clone();
        self.background.spawn(async move {
            let _ = raft.trigger().purge_log(persisted).await;
        });
    }

    fn freeze(&mut self, table: TableId, done: Option<oneshot::Sender<Result<()>>>) {
        let Some(generation) = self.partition.table(table).map(|t| t.generation()) else { return };
        let term = self.lead.as_ref().map_or(0, |l| l.term);
        self.freezing.insert(table);
        self.command(Command::Freeze { term, table, generation }, done);
    }

    /// Freezes a table (or all) and tells which generations have to be flushed for what was written so far to be durable as
    /// SSTables.
    pub(super) fn freeze_on_demand(
        &mut self,
        table: Option<TableId>,
        done: oneshot::Sender<Result<Vec<(TableId, Generation)>>>,
    ) {
        if self.lead.is_none() {
            let _ =
                done.send(Err(Error::new(ErrorKind::NotLeader, "this server does not lead the partition")));
            return;
        }
        let wanted: Vec<TableId> =
            self.partition.tables().map(|(id, _)| id).filter(|id| table.is_none_or(|t| t == *id)).collect();
        let (mut targets, mut waits) = (Vec::new(), Vec::new());
        for id in wanted {
            let Some(state) = self.partition.table(id) else { continue };
            let generation = state.generation();
            if state.active.is_empty() {
                if !state.frozen.is_empty() {
                    targets.push((id, Generation(generation.0 - 1)));
                }
                continue;
            }
            targets.push((id, generation));
            if !self.freezing.contains(&id) {
                let (tx, rx) = oneshot::channel();
                self.freeze(id, Some(tx));
                waits.push(rx);
            }
        }
        self.background.spawn(async move {
            for wait in waits {
                match wait.await {
                    Ok(Ok(())) => {}
                    Ok(Err(e)) => {
                        let _ = done.send(Err(e));
                        return;
                    }
                    Err(_) => {
                        let _ = done.send(Err(Error::retry("leadership changed")));
                        return;
                    }
                }
            }
            let _ = done.send(Ok(targets));
        });
    }

    /// Flushes the oldest frozen memtable of each table, once its freeze and everything before it is published.
    fn flush_what_is_frozen(&mut self, now: u64) {
        let Some(lead) = &self.lead else { return };
        if !self.queue.has_published(lead.first_index) {
            return;
        }
        let mut jobs = Vec::new();
        for (id, frozen) in self.partition.flushable(self.queue.published_index()) {
            let ready = !self.flushing.contains_key(&id)
                && self.flush_retry_at_ns.get(&id).is_none_or(|at| *at <= now);
            let Some(manifest) = self.partition.manifest().table(id) else { continue };
            if ready {
                // Its table holds everything after what the newest table holds: memtables in between were empty.
                let last = frozen.memtable.generation;
                let first = match manifest.ssts.first() {
                    None => Generation(1),
                    Some(newest) if newest.generations.are_known() => {
                        Generation(newest.generations.last.0 + 1)
                    }
                    Some(_) => last,
                };
                jobs.push(FlushJob {
                    term: lead.term,
                    epoch: lead.epoch,
                    table: id,
                    options: manifest.options.clone(),
                    memtable: frozen.memtable.clone(),
                    freeze: frozen.freeze,
                    origin: Origin {
                        lineage: self.configuration().lineage,
                        name: manifest.name.clone(),
                        generations: Generations { first, last },
                    },
                });
            }
        }
        for job in jobs {
            self.flushing.insert(job.table, job.memtable.generation);
            self.background.flush(job);
        }
    }

    pub(super) fn flush_done(
        &mut self,
        term: u64,
        table: TableId,
        generation: Generation,
        result: Result<Option<SstMeta>>,
    ) {
        if self.lead.as_ref().is_none_or(|l| l.term != term) || self.flushing.get(&table) != Some(&generation)
        {
            self.drop_result(result);
            return;
        }
        let freeze = self.partition.table(table).and_then(|t| t.frozen.front()).map(|f| f.freeze);
        match (result, freeze) {
            (Ok(sst), Some(freeze)) => {
                self.command(Command::Flush { term, table, generation, freeze, sst }, None);
            }
            (Err(e), _) => {
                tracing::warn!(partition = %self.shared.id, %table, "flush failed, to be tried again: {e}");
                self.flush_failed(table, &e.message);
                self.metrics.flush_failures.inc();
                self.flushing.remove(&table);
                self.flush_retry_at_ns.insert(table, self.shared.env.clock.grantor_ns() + RETRY_NS);
            }
            (Ok(sst), None) => {
                self.flushing.remove(&table);
                self.drop_result(Ok(sst));
            }
        }
    }

    /// A table that came too late for its job: nobody will name it.
    fn drop_result(&self, result: Result<Option<SstMeta>>) {
        if let Ok(Some(sst)) = result {
            self.background.give_up(sst.id);
        }
    }

    fn compact_what_is_due(&mut self, now: u64) {
        if self.tuning.compaction_trigger == 0 {
            return;
        }
        let due: Vec<TableId> = self
            .partition
            .manifest()
            .tables
            .iter()
            .filter(|t| t.ssts.len() >= self.tuning.compaction_trigger.max(2))
            .map(|t| t.table)
            .filter(|t| !self.compacting.contains(t))
            .filter(|t| self.compact_retry_at_ns.get(t).is_none_or(|at| *at <= now))
            .collect();
        for table in due {
            self.compact(table, None);
        }
    }

    /// Merges all SSTables of a table into one. On demand this is done even for a single one (it drops tombstones).
    pub(super) fn compact(&mut self, table: TableId, done: Option<oneshot::Sender<Result<()>>>) {
        let answer = |done: Option<oneshot::Sender<_>>, result| {
            if let Some(done) = done {
                let _ = done.send(result);
            }
        };
        let Some(lead) = &self.lead else {
            return answer(
                done,
                Err(Error::new(ErrorKind::NotLeader, "this server does not lead the partition")),
            );
        };
        let Some(entry) = self.partition.manifest().table(table) else {
            return answer(
                done,
                Err(Error::new(ErrorKind::UnknownTable, "the partition does not know the table")),
            );
        };
        if entry.ssts.is_empty() {
            return answer(done, Ok(()));
        }
        if self.compacting.contains(&table) {
            // Whoever asks during a compaction waits for that one.
            self.compact_waiters.entry(table).or_default().extend(done);
            return;
        }
        // It reaches the oldest table: so it stands for everything up to its newest input.
        let newest = entry.ssts.first().map(|sst| sst.generations).unwrap_or_default();
        let last = if newest.are_known() { newest.last } else { entry.flushed_generation.max(Generation(1)) };
        let job = CompactionJob {
            term: lead.term,
            epoch: lead.epoch,
            table,
            options: entry.options.clone(),
            inputs: match mutant::active(Mutant::TombstoneDroppedEarly) {
                // All but the oldest.
                true => entry.ssts[..entry.ssts.len().div_ceil(2)].to_vec(),
                false => entry.ssts.clone(),
            },
            plan: self.partition.last(),
            origin: Origin {
                lineage: self.configuration().lineage,
                name: entry.name.clone(),
                generations: Generations { first: Generation(1), last },
            },
        };
        self.compacting.insert(table);
        self.compact_waiters.entry(table).or_default().extend(done);
        self.background.compact(job);
    }

    pub(super) fn compaction_done(
        &mut self,
        term: u64,
        table: TableId,
        inputs: Vec<SstId>,
        result: Result<Option<SstMeta>>,
    ) {
        if self.lead.as_ref().is_none_or(|l| l.term != term) || !self.compacting.contains(&table) {
            self.drop_result(result);
            return;
        }
        match result {
            Ok(output) => self.command(Command::Compaction { term, table, inputs, output }, None),
            Err(e) => {
                tracing::warn!(partition = %self.shared.id, %table, "compaction failed: {e}");
                self.metrics.compaction_failures.inc();
                self.compacting.remove(&table);
                let now = self.shared.env.clock.grantor_ns();
                self.compact_retry_at_ns.insert(table, now + RETRY_NS);
                for waiter in self.compact_waiters.remove(&table).unwrap_or_default() {
                    let _ = waiter.send(Err(e.clone()));
                }
            }
        }
    }
}
