//! What the worker says of itself, for /status and metrics.

use super::Worker;
use super::leading::voters::Memberships;
use crate::replica::{Numbers, TableNumbers};

impl Worker {
    pub(super) fn refresh_numbers(&self) {
        let (replica, leading) = (&self.replica, self.leading.as_ref());
        let partition = &replica.partition;
        let (writes, writes_why) = replica.admission(leading);
        let unflushed_bytes = partition.unflushed_bytes();
        replica.metrics.set_memory(replica.shared.id, unflushed_bytes, replica.memory_bytes);
        replica.metrics.set_cuts(replica.shared.id, partition.cuts().len());
        let standing = leading.map(|l| l.upkeep.standing()).unwrap_or_default();
        replica.metrics.set_columns(replica.shared.id, standing.columns, standing.debt_bytes);
        let tables = partition.tables().map(|(id, t)| TableNumbers {
            table: id.0,
            generation: t.generation().0,
            active_entries: t.active.entries(),
            active_bytes: t.active.bytes(),
            frozen: t.frozen.len(),
            frozen_bytes: t.frozen.iter().map(|f| f.memtable.bytes()).sum(),
            flush_error: leading.and_then(|l| l.upkeep.flush_error(id)).map(str::to_owned),
        });
        let numbers = Numbers {
            leading: leading.is_some(),
            last_index: partition.last().index,
            committed_index: partition.committed_index(),
            published_index: replica.queue.published_index(),
            persisted_index: partition.persisted().index,
            purged_index: replica.log.purged().map(|id| id.index),
            unflushed_bytes,
            memory_bytes: replica.memory_bytes,
            writes,
            writes_why,
            members: Memberships::of(&replica.raft).members(),
            tables: tables.collect(),
            groups: replica.groups,
            group_writes: replica.group_writes,
            waiting_requests: leading.map_or(0, |l| l.sequencer.waiting_writes()),
            sessions: partition.sessions().len(),
            replayed_writes: replica.replayed.writes,
            replay_skipped_writes: replica.replayed.skipped,
        };
        *replica.shared.numbers.lock() = numbers;
    }
}
