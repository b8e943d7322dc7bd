//! What the worker knows about running out of room: memory for memtables that flushing does not empty, and the log's disk.
//!
//! Owns the limits' arithmetic and the words in which clients and operators are told. Does not own the decision to refuse (the
//! sequencer's) nor what makes room (flushes, in `upkeep`).
//!
//! Invariant: writes stop while there is still room for the entries that make room: freezes, flush flags and elections.

use sextant_common::error::Result;
use sextant_common::ids::TableId;

use super::Worker;
use crate::replica::Writes;

/// What must fit for a freeze or a flag to be proposed. Writes were refused long before.
const COMMAND_ROOM_BYTES: u64 = 128 * 1024;
/// A flush's error names every server that failed; a client needs no more than its beginning.
const ERROR_SHOWN_CHARS: usize = 400;

impl Worker {
    /// Whether the log takes another group, even if all partitions append one between this look and Raft's append: Raft cannot
    /// go on after a refused one. So leaders stop well before their followers have to refuse.
    pub(super) fn log_takes_groups(&self) -> Result<()> {
        self.log_takes(self.tuning.group_bytes)
    }

    /// The same for a group of so many bytes: a batch that is larger than a group makes a group of its own.
    pub(super) fn log_takes(&self, bytes: usize) -> Result<()> {
        let next = bytes.max(self.tuning.group_bytes);
        self.server_log.check_room((next * (1 + self.server_log.partitions())) as u64)
    }

    /// Whether the log takes a command of the worker's own.
    pub(super) fn log_takes_commands(&self) -> Result<()> {
        self.server_log.check_room(COMMAND_ROOM_BYTES)
    }

    /// Why writes are slowed or refused when memtables hold `bytes`.
    pub(super) fn why_full(&self, bytes: usize) -> String {
        let (partition, limit) = (self.shared.id, self.memory_bytes);
        let mut why = format!(
            "flushing does not keep up: the memtables of partition {partition} hold {bytes} bytes, the limit is {limit} \
             (memory_bytes of this partition)"
        );
        for (table, error) in &self.flush_errors {
            let name = self.partition.manifest().table(*table).map_or("?", |t| t.name.as_str());
            why.push_str(&format!("; table {name}: the last flush failed: {error}"));
        }
        why
    }

    /// What becomes of writes now, and why.
    pub(super) fn admission(&self) -> (Writes, Option<String>) {
        if self.lead.is_none() {
            return (Writes::NotHere, None);
        }
        if let Err(e) = self.log_takes_groups() {
            return (Writes::Refused, Some(format!("the log takes no more writes: {e}")));
        }
        let bytes = self.partition.unflushed_bytes();
        if bytes >= self.memory_bytes {
            (Writes::Refused, Some(self.why_full(bytes)))
        } else if self.slowdown_ns(bytes) > 0 {
            (Writes::Slowed, Some(self.why_full(bytes)))
        } else {
            (Writes::Taken, None)
        }
    }

    pub(super) fn flush_failed(&mut self, table: TableId, error: &str) {
        self.flush_errors.insert(table, error.chars().take(ERROR_SHOWN_CHARS).collect());
    }
}
