//! When a memtable is frozen. Pure: tells which; the worker proposes.
//!
//! A memtable is frozen when it is large, old, or far back in the log (replay has to begin before it), and the largest one when all
//! of them crowd the memory or the log is full. One that nobody has written to for a while is frozen so that its table can rest
//! ([`super::leading`]'s compactions): what is in memory may supersede what is in SSTables. So that the log can be purged where nothing
//! is written, an empty one is frozen too, now and then: its freeze is a point from which replay can start.

use std::collections::{HashMap, HashSet};

use sextant_common::ids::{Generation, TableId};

use crate::config::Tuning;
use crate::partition::Partition;
use crate::worker::rest::table_rests_ns;

/// A full log is worth the freeze of an empty memtable if it has grown by so much since the last one.
pub(super) const FULL_LOG_FREEZE_BYTES: u64 = 256 * 1024;

/// What this node has seen of its memtables while it led. It outlives a leadership: a memtable is no younger, and the log no
/// emptier, for a change of leaders.
#[derive(Default)]
pub(super) struct Freezes {
    /// Of active memtables that hold something.
    ages: HashMap<TableId, Age>,
    /// Bytes that the server's log had taken when this partition last had something to flush, or was frozen at rest.
    /// None: not looked at yet.
    rest_log_bytes: Option<u64>,
}

/// How long a memtable has held something, as far as this node has seen.
#[derive(Clone, Copy, Debug)]
struct Age {
    generation: Generation,
    since_ns: u64,
    /// They become more with each write.
    held_bytes: usize,
    written_ns: u64,
}

/// What decides, beside the partition itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pressure {
    /// On the grantor's clock.
    pub now_ns: u64,
    /// The partition's limit of memory.
    pub memory_bytes: usize,
    /// Bytes that the server's log has taken since it began.
    pub log_bytes: u64,
    /// The log takes no more groups. Only a flush lets it be purged.
    pub log_is_full: bool,
}

impl Freezes {
    /// The tables whose active memtable is to be frozen.
    ///
    /// `under_way`: freezes that are proposed, or about to be.
    pub fn due(
        &mut self,
        partition: &Partition,
        tuning: &Tuning,
        pressure: &Pressure,
        under_way: &HashSet<TableId>,
    ) -> Vec<TableId> {
        let now_ns = pressure.now_ns;
        self.look_at_ages(partition, now_ns);
        let lasts = |since_ns: u64, ns: u64| now_ns.saturating_sub(since_ns) >= ns;
        let compacts = tuning.compaction_trigger > 0 && tuning.rest_after_ms > 0;
        // (It is compacted that long after its flush: together they take as long as they would take alone.)
        let half_ns = (tuning.rest_after_ms / 2).saturating_mul(1_000_000);
        let manifest = partition.manifest();
        let rests = |id: &TableId, age: &Age| {
            let has_ssts = || manifest.table(*id).is_some_and(|entry| !entry.ssts.is_empty());
            compacts && lasts(age.written_ns, table_rests_ns(half_ns, manifest.partition, *id)) && has_ssts()
        };
        let freeze_age_ns = tuning.freeze_age_ms.saturating_mul(1_000_000);
        let too_old = |id: &TableId| {
            let age = self.ages.get(id);
            age.is_some_and(|age| lasts(age.since_ns, freeze_age_ns) || rests(id, age))
        };
        let log_bytes = partition.log_bytes();
        let crowded = partition.unflushed_bytes() > pressure.memory_bytes / 2;
        // Many small memtables can fill the memory together: then the largest one goes.
        let largest = partition.tables().max_by_key(|(_, t)| t.active.held_bytes()).map(|(id, _)| id);
        let nothing_frozen = partition.tables().all(|(_, t)| t.frozen.is_empty());
        let due = partition.tables().filter(|(id, t)| {
            !t.active.is_empty()
                && !under_way.contains(id)
                && (too_old(id)
                    || t.active.held_bytes() as u64 >= tuning.memtable_bytes
                    || log_bytes - t.active.first_log_bytes() >= tuning.freeze_log_bytes
                    || ((crowded || pressure.log_is_full) && nothing_frozen && largest == Some(*id)))
        });
        due.map(|(id, _)| id).collect()
    }

    fn look_at_ages(&mut self, partition: &Partition, now_ns: u64) {
        self.ages.retain(|id, _| partition.table(*id).is_some());
        for (id, table) in partition.tables() {
            if table.active.is_empty() {
                self.ages.remove(&id);
                continue;
            }
            let (generation, held_bytes) = (table.generation(), table.active.held_bytes());
            let age = Age { generation, since_ns: now_ns, held_bytes, written_ns: now_ns };
            match self.ages.get_mut(&id).filter(|known| known.generation == generation) {
                Some(known) if known.held_bytes != held_bytes => {
                    *known = Age { since_ns: known.since_ns, ..age };
                }
                Some(_) => {}
                None => drop(self.ages.insert(id, age)),
            }
        }
    }

    /// Entries without writes (answers of sessions, configurations) take room in the log too, and a partition that rests holds
    /// up the segments that it shares with others: the table whose empty memtable is to be frozen for that.
    ///
    /// `is_busy`: a freeze or a flush is under way.
    pub fn due_for_the_log(
        &mut self,
        partition: &Partition,
        tuning: &Tuning,
        pressure: &Pressure,
        is_busy: bool,
    ) -> Option<TableId> {
        let at_rest = partition.tables().all(|(_, t)| t.active.is_empty() && t.frozen.is_empty());
        if !at_rest || is_busy {
            // A memtable that holds something is frozen at its own time, and its flush is as good.
            self.rest_log_bytes = Some(pressure.log_bytes);
            return None;
        }
        let distance = pressure.log_bytes.saturating_sub(self.rest_log_bytes.unwrap_or(0));
        let grown = self.rest_log_bytes.is_none() || distance >= FULL_LOG_FREEZE_BYTES;
        if distance < tuning.freeze_log_bytes && !(grown && pressure.log_is_full) {
            return None;
        }
        self.rest_log_bytes = Some(pressure.log_bytes);
        partition.tables().next().map(|(id, _)| id)
    }
}

#[cfg(test)]
mod tests {
    use sextant_common::ids::PartitionId;

    use super::*;
    use crate::partition::testing::{flush, partition_with, put};

    const T: TableId = TableId(1);

    fn tuning() -> Tuning {
        let (memtable_bytes, freeze_log_bytes) = (10_000, 1 << 20);
        Tuning {
            freeze_age_ms: 1000,
            rest_after_ms: 300,
            memtable_bytes,
            freeze_log_bytes,
            ..Tuning::default()
        }
    }

    fn calm(now_ms: u64) -> Pressure {
        Pressure { now_ns: now_ms * 1_000_000, memory_bytes: 1 << 20, log_bytes: 0, log_is_full: false }
    }

    #[test]
    fn an_old_memtable_is_frozen_and_an_empty_one_is_not() {
        let mut partition = partition_with(&[T]);
        let mut freezes = Freezes::default();
        let mut due = |partition: &Partition, now_ms, under_way: &[TableId]| {
            let under_way = under_way.iter().copied().collect();
            freezes.due(partition, &tuning(), &calm(now_ms), &under_way)
        };
        assert!(due(&partition, 5000, &[]).is_empty());
        put(&mut partition, T, "k", 10);
        assert!(due(&partition, 6000, &[]).is_empty(), "its age counts from here");
        assert!(due(&partition, 6999, &[]).is_empty());
        assert_eq!(due(&partition, 7000, &[]), [T]);
        assert!(due(&partition, 9000, &[T]).is_empty(), "once");
    }

    #[test]
    fn a_memtable_that_nobody_writes_to_is_frozen_so_that_its_table_can_rest() {
        let (rests, only_in_memory) = (T, TableId(2));
        let mut partition = partition_with(&[rests, only_in_memory]);
        put(&mut partition, rests, "k", 10);
        flush(&mut partition, rests);
        put(&mut partition, rests, "k", 10);
        put(&mut partition, only_in_memory, "k", 10);
        let mut freezes = Freezes::default();
        let mut due = |partition: &Partition, tuning: &Tuning, now_ms| {
            freezes.due(partition, tuning, &calm(now_ms), &HashSet::new())
        };
        let rest_ms = table_rests_ns(150_000_000, PartitionId(0), rests).div_ceil(1_000_000);
        assert!(due(&partition, &tuning(), 100).is_empty());
        put(&mut partition, rests, "k", 10);
        let (written_ms, rests_ms) = (100 + rest_ms - 1, 100 + 2 * rest_ms - 1);
        assert!(due(&partition, &tuning(), written_ms).is_empty(), "written since");
        assert!(due(&partition, &tuning(), rests_ms - 1).is_empty());
        assert!(due(&partition, &Tuning { rest_after_ms: 0, ..tuning() }, rests_ms).is_empty(), "never");
        assert!(
            due(&partition, &Tuning { compaction_trigger: 0, ..tuning() }, rests_ms).is_empty(),
            "for what?"
        );
        assert_eq!(due(&partition, &tuning(), rests_ms), [rests], "of the other there is nothing to be had");
        assert_eq!(due(&partition, &tuning(), 1100), [rests, only_in_memory]);
    }

    #[test]
    fn a_large_memtable_is_frozen_and_so_is_the_largest_when_memory_or_log_run_short() {
        let (small, large) = (T, TableId(2));
        let mut partition = partition_with(&[small, large]);
        put(&mut partition, small, "k", 100);
        put(&mut partition, large, "k", 4000);
        let mut freezes = Freezes::default();
        let mut due =
            |partition: &Partition, pressure| freezes.due(partition, &tuning(), &pressure, &HashSet::new());
        assert!(due(&partition, calm(1)).is_empty());
        assert_eq!(due(&partition, Pressure { memory_bytes: 5000, ..calm(1) }), [large]);
        assert_eq!(due(&partition, Pressure { log_is_full: true, ..calm(1) }), [large]);
        put(&mut partition, large, "l", 8000);
        assert_eq!(due(&partition, calm(1)), [large], "beyond memtable_bytes");
    }

    #[test]
    fn a_partition_at_rest_freezes_an_empty_memtable_when_the_log_has_grown_or_is_full() {
        let mut partition = partition_with(&[T]);
        let mut freezes = Freezes::default();
        let at = |log_bytes, log_is_full| Pressure { log_bytes, log_is_full, ..calm(1) };
        let due =
            |f: &mut Freezes, p: &Partition, pressure| f.due_for_the_log(p, &tuning(), &pressure, false);
        assert_eq!(due(&mut freezes, &partition, at(1 << 20, false)), Some(T));
        assert_eq!(due(&mut freezes, &partition, at((1 << 20) + 5, true)), None, "nothing new");
        assert_eq!(due(&mut freezes, &partition, at((1 << 20) + FULL_LOG_FREEZE_BYTES, true)), Some(T));
        put(&mut partition, T, "k", 10);
        assert_eq!(due(&mut freezes, &partition, at(9 << 20, true)), None, "its own freeze is as good");
    }
}
