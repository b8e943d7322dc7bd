//! What the worker knows about running out of room: memory for memtables that flushing does not empty, and the log's disk.
//!
//! Owns the limits' arithmetic and the words in which clients and operators are told. Does not own the decision to refuse (the
//! sequencer's) nor what makes room (flushes, in `leading::upkeep`).
//!
//! Invariant: writes stop while there is still room for the entries that make room: freezes, flush flags and elections.

use sextant_common::error::{Error, ErrorKind, Result};

use super::leading::{Leading, Upkeep};
use super::replica::Replica;
use crate::raft::acceptor::room::room_of_groups;
use crate::raft::wire;
use crate::replica::Writes;

/// What must fit for a freeze or a flag to be proposed: none of them is longer. Writes were refused long before.
const COMMAND_ROOM_BYTES: u64 = 128 * 1024;
/// The longest that a group is held back when memory runs short.
const SLOWDOWN_NS_MAX: u64 = 20_000_000;

/// Above three quarters of the memory limit groups are held back, the longer the fuller.
fn slowdown_ns(bytes: usize, limit_bytes: usize) -> u64 {
    let start = limit_bytes / 4 * 3;
    let over = bytes.saturating_sub(start) as u64;
    SLOWDOWN_NS_MAX * over / (limit_bytes / 4).max(1) as u64
}

/// Whether a command needs no more room than there is when commands are proposed at all.
fn is_short(bytes: usize) -> bool {
    bytes as u64 <= COMMAND_ROOM_BYTES
}

impl Replica {
    /// Whether the log takes another group, even if all partitions append one between this look and Raft's append: Raft cannot
    /// go on after a refused one. So leaders stop well before their followers have to refuse.
    pub fn log_takes_groups(&self) -> Result<()> {
        self.log_takes(self.tuning.group_bytes)
    }

    /// The same for a group of so many bytes: a batch that is larger than a group makes a group of its own.
    pub fn log_takes(&self, bytes: usize) -> Result<()> {
        let next = bytes.max(self.tuning.group_bytes);
        self.server_log.check_room(room_of_groups(&self.server_log, next))
    }

    /// Whether the log takes a command of the worker's own.
    pub fn log_takes_commands(&self) -> Result<()> {
        self.server_log.check_room(COMMAND_ROOM_BYTES)
    }

    /// Whether the log takes a command of so many bytes. What makes room is short, and goes in as long as there is room for commands at
    /// all; what is longer (a load, a compaction with many outputs) needs as much room as a group of its size.
    pub fn log_takes_command(&self, bytes: usize) -> Result<()> {
        wire::check_entry(bytes)?;
        let room = match is_short(bytes) {
            true => self.log_takes_commands(),
            false => self.log_takes(bytes),
        };
        room.map_err(|e| {
            Error::new(ErrorKind::Overloaded, format!("the log takes no command of {bytes} bytes: {e}"))
        })
    }

    /// The same of a command whose turn has come: whether there is room for commands was looked at for that.
    pub fn log_takes_if_long(&self, bytes: usize) -> Result<()> {
        if is_short(bytes) { Ok(()) } else { self.log_takes_command(bytes) }
    }

    /// How long a group is held back when memtables hold `bytes`.
    pub fn slowdown_ns(&self, bytes: usize) -> u64 {
        slowdown_ns(bytes, self.memory_bytes)
    }

    /// Why writes are slowed or refused when memtables hold `bytes`.
    pub fn why_full(&self, bytes: usize, upkeep: &Upkeep) -> String {
        let (partition, limit) = (self.shared.id, self.memory_bytes);
        let mut why = format!(
            "flushing does not keep up: the memtables of partition {partition} hold {bytes} bytes, the limit is {limit} \
             (memory_bytes of this partition)"
        );
        for (table, error) in upkeep.flush_errors() {
            let name = self.partition.manifest().table(table).map_or("?", |t| t.name.as_str());
            why.push_str(&format!("; table {name}: the last flush failed: {error}"));
        }
        why
    }

    /// What becomes of writes now, and why.
    pub fn admission(&self, leading: Option<&Leading>) -> (Writes, Option<String>) {
        let Some(leading) = leading else { return (Writes::NotHere, None) };
        if let Err(e) = self.log_takes_groups() {
            return (Writes::Refused, Some(format!("the log takes no more writes: {e}")));
        }
        let bytes = self.partition.unflushed_bytes();
        if bytes >= self.memory_bytes {
            (Writes::Refused, Some(self.why_full(bytes, &leading.upkeep)))
        } else if self.slowdown_ns(bytes) > 0 {
            (Writes::Slowed, Some(self.why_full(bytes, &leading.upkeep)))
        } else {
            (Writes::Taken, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_held_back_the_longer_the_fuller_the_memory_is() {
        assert_eq!(slowdown_ns(750, 1000), 0);
        assert_eq!(slowdown_ns(875, 1000), SLOWDOWN_NS_MAX / 2);
        assert_eq!(slowdown_ns(1000, 1000), SLOWDOWN_NS_MAX);
        assert_eq!(slowdown_ns(0, 0), 0);
    }
}
