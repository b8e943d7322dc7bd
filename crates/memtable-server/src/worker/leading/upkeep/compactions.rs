//! When the SSTables of a table are compacted, and which; and who waits for that.

use std::collections::{HashMap, HashSet};

use sextant_common::error::Result;
use sextant_common::expiry::Tick;
use sextant_common::ids::{Generation, TableId};
use sextant_common::limits::COMPACTION_INPUTS_MAX;
use sextant_common::manifest::{Generations, Manifest, SstMeta, TableManifest};
use tokio::sync::oneshot;

type Done = oneshot::Sender<Result<()>>;

#[derive(Default)]
pub(in crate::worker) struct Compactions {
    /// One a table, until its command is committed.
    pub under_way: HashSet<TableId>,
    waiters: HashMap<TableId, Vec<Done>>,
    retry_at_ns: HashMap<TableId, u64>,
}

impl Compactions {
    /// The tables that have as many SSTables as `trigger` says (0: never), or many records that have expired by a published tick, and no
    /// compaction under way.
    pub fn due(&self, manifest: &Manifest, trigger: usize, expired_by: Tick, now_ns: u64) -> Vec<TableId> {
        if trigger == 0 {
            return Vec::new();
        }
        let is_crowded = |t: &&TableManifest| t.ssts.len() >= trigger.max(2) || is_expired(t, expired_by);
        let crowded = manifest.tables.iter().filter(is_crowded).map(|t| t.table);
        let is_due = |t: &TableId| {
            !self.under_way.contains(t) && self.retry_at_ns.get(t).is_none_or(|at| *at <= now_ns)
        };
        crowded.filter(is_due).collect()
    }

    /// Whoever asks during a compaction waits for that one.
    pub fn wait(&mut self, table: TableId, done: Option<Done>) {
        self.waiters.entry(table).or_default().extend(done);
    }

    /// The table's compaction is over.
    pub fn end(&mut self, table: TableId, result: &Result<()>) {
        self.under_way.remove(&table);
        for waiter in self.waiters.remove(&table).unwrap_or_default() {
            let _ = waiter.send(result.clone());
        }
    }

    pub fn retry_at(&mut self, table: TableId, at_ns: u64) {
        self.retry_at_ns.insert(table, at_ns);
    }

    /// Leadership ends.
    pub fn end_all(&mut self, result: &Result<()>) {
        for waiter in self.waiters.drain().flat_map(|(_, waiters)| waiters) {
            let _ = waiter.send(result.clone());
        }
    }
}

/// Of the records of a table so many (one in this) have expired when that is a reason to compact it.
const EXPIRED_SHARE: u64 = 4;

/// Whether much of a table has expired: SSTables all of whose records that can have.
fn is_expired(entry: &TableManifest, by: Tick) -> bool {
    let records: u64 = inputs(entry).iter().map(|sst| sst.records).sum();
    let over = inputs(entry).iter().map(|sst| sst.expiring).filter(|e| e.records > 0 && e.last <= by);
    let expired: u64 = over.map(|expiring| expiring.records).sum();
    expired > 0 && expired.saturating_mul(EXPIRED_SHARE) >= records
}

/// What becomes one, newest first: all SSTables of the table, or as many of the oldest as a compaction takes. So the result reaches
/// back to the table's beginning, and needs no tombstones (`flush/compaction.rs` drops them). A partition refuses others than the oldest.
pub(in crate::worker) fn inputs(entry: &TableManifest) -> &[SstMeta] {
    &entry.ssts[entry.ssts.len().saturating_sub(COMPACTION_INPUTS_MAX)..]
}

/// What the result of these inputs stands for: everything up to the newest of them.
pub(in crate::worker) fn generations(entry: &TableManifest, inputs: &[SstMeta]) -> Generations {
    let newest = inputs.first().map(|sst| sst.generations).unwrap_or_default();
    let newer = entry.ssts.len() - inputs.len();
    let last = if newest.are_known() {
        newest.last
    } else if newer == 0 {
        entry.flushed_generation.max(Generation(1))
    } else {
        // Old tables, between newer ones: nobody knows.
        return Generations::default();
    };
    Generations { first: Generation(1), last }
}

#[cfg(test)]
mod tests {
    use sextant_common::error::Error;
    use sextant_common::ids::{ManifestVersion, PartitionId};
    use sextant_common::manifest::Expiring;
    use sextant_common::manifest::TableOptions;

    use super::*;
    use crate::partition::testing::sst;

    const T: TableId = TableId(1);
    const U: TableId = TableId(2);

    /// A table whose SSTables, newest first, hold these memtables; their counters are their places.
    fn entry(table: TableId, flushed: u64, ssts: &[Generations]) -> TableManifest {
        let sst = |(at, generations): (usize, &Generations)| SstMeta {
            table,
            generations: *generations,
            ..sst(at as u32)
        };
        TableManifest {
            table,
            name: table.to_string(),
            options: TableOptions::default(),
            flushed_generation: Generation(flushed),
            last_flush_version: ManifestVersion(flushed),
            persisted: Default::default(),
            ssts: ssts.iter().enumerate().map(sst).collect(),
        }
    }

    /// A table with so many SSTables, one a memtable.
    fn flushed(table: TableId, times: u64) -> TableManifest {
        let ssts: Vec<Generations> = (1..=times).rev().map(|g| Generations::new(g, g)).collect();
        entry(table, times, &ssts)
    }

    fn manifest(tables: Vec<TableManifest>) -> Manifest {
        Manifest { tables, ..Manifest::empty(PartitionId(0)) }
    }

    #[test]
    fn a_table_is_due_when_it_has_as_many_ssts_as_the_trigger_says() {
        let compactions = Compactions::default();
        let manifest = manifest(vec![flushed(T, 3), flushed(U, 6)]);
        assert_eq!(compactions.due(&manifest, 3, Tick(0), 0), [T, U]);
        assert_eq!(compactions.due(&manifest, 4, Tick(0), 0), [U], "each table for itself");
        assert_eq!(compactions.due(&manifest, 6, Tick(0), 0), [U]);
        assert!(compactions.due(&manifest, 7, Tick(0), 0).is_empty());
        assert!(compactions.due(&manifest, 0, Tick(0), 0).is_empty(), "0: never by itself");
    }

    #[test]
    fn one_sst_alone_is_never_due() {
        let compactions = Compactions::default();
        for trigger in 0..3 {
            let manifest = manifest(vec![flushed(T, 0), flushed(U, 1)]);
            assert!(compactions.due(&manifest, trigger, Tick(0), 0).is_empty(), "trigger {trigger}");
        }
        assert_eq!(compactions.due(&manifest(vec![flushed(T, 2)]), 1, Tick(0), 0), [T], "as if it were 2");
    }

    #[test]
    fn a_table_is_compacted_once_at_a_time_and_not_soon_again_after_a_failure() {
        let mut compactions = Compactions::default();
        let manifest = manifest(vec![flushed(T, 4), flushed(U, 4)]);
        compactions.under_way.insert(T);
        assert_eq!(compactions.due(&manifest, 4, Tick(0), 0), [U]);
        compactions.end(T, &Err(Error::retry("no server has room")));
        compactions.retry_at(T, 500);
        assert_eq!(compactions.due(&manifest, 4, Tick(0), 499), [U]);
        assert_eq!(compactions.due(&manifest, 4, Tick(0), 500), [T, U]);
    }

    #[test]
    fn a_table_is_due_when_much_of_it_has_expired() {
        let compactions = Compactions::default();
        let with = |records: u64, expiring: u64, last: u64| {
            let mut entry = flushed(T, 2);
            entry.ssts[0].records = records;
            entry.ssts[1].records = 0;
            entry.ssts[0].expiring = Expiring { records: expiring, first: Tick(1), last: Tick(last) };
            manifest(vec![entry])
        };
        let is_due = |manifest, by| !compactions.due(&manifest, 4, Tick(by), 0).is_empty();
        assert!(is_due(with(100, 25, 9), 9));
        assert!(!is_due(with(100, 25, 9), 8), "one may still be there");
        assert!(!is_due(with(100, 24, 9), 9), "a few");
        assert!(!is_due(with(100, 0, 0), 9), "none ever does");
    }

    #[test]
    fn all_ssts_of_the_table_are_inputs_newest_first() {
        let entry = entry(T, 9, &[Generations::new(8, 9), Generations::new(4, 7), Generations::new(1, 3)]);
        let inputs = inputs(&entry);
        assert_eq!(inputs.iter().map(|i| i.id.counter).collect::<Vec<_>>(), [0, 1, 2]);
        let of = |at: usize| (inputs[at].generations.first.0, inputs[at].generations.last.0);
        assert_eq!([of(0), of(1), of(2)], [(8, 9), (4, 7), (1, 3)]);
        assert_eq!(inputs, entry.ssts, "nothing of it is left out: tombstones are dropped");
    }

    #[test]
    fn the_result_stands_for_everything_that_its_inputs_did() {
        for times in 1..5 {
            let entry = flushed(T, times);
            let result = generations(&entry, inputs(&entry));
            assert_eq!(result, Generations::new(1, times));
            assert!(inputs(&entry).iter().all(|input| result.contains(&input.generations)));
            // Of some of the oldest: no more than they.
            for oldest in 0..times as usize {
                let some = &entry.ssts[oldest..];
                assert_eq!(generations(&entry, some), Generations::new(1, some[0].generations.last.0));
            }
        }
        let compacted_before = entry(T, 7, &[Generations::new(6, 6), Generations::new(1, 5)]);
        assert_eq!(
            generations(&compacted_before, inputs(&compacted_before)),
            Generations::new(1, 6),
            "memtable 7 was empty: it left no table"
        );
    }

    #[test]
    fn tables_that_do_not_say_what_they_hold_stand_for_all_that_was_flushed() {
        let unknown = Generations::default();
        let of_all = |entry: TableManifest| generations(&entry, inputs(&entry));
        assert_eq!(of_all(entry(T, 4, &[unknown, unknown])), Generations::new(1, 4));
        assert_eq!(of_all(entry(T, 6, &[Generations::new(5, 6), unknown])), Generations::new(1, 6));
        assert_eq!(of_all(entry(T, 0, &[unknown])), Generations::new(1, 1), "a known range all the same");
        let newer = entry(T, 6, &[Generations::new(5, 6), unknown]);
        assert_eq!(generations(&newer, &newer.ssts[1..]), unknown, "not what the newer one holds");
    }

    #[test]
    fn of_more_than_a_compaction_takes_the_oldest_are_inputs() {
        let times = COMPACTION_INPUTS_MAX as u64 + 3;
        let entry = flushed(T, times);
        let inputs = inputs(&entry);
        assert_eq!(inputs.len(), COMPACTION_INPUTS_MAX);
        assert_eq!(inputs.last(), entry.ssts.last());
        assert_eq!(generations(&entry, inputs), Generations::new(1, times - 3));
    }

    #[test]
    fn whoever_asks_during_a_compaction_is_told_what_came_of_it() {
        let mut compactions = Compactions::default();
        let ask = |compactions: &mut Compactions, table| {
            let (done, told) = oneshot::channel();
            compactions.wait(table, Some(done));
            told
        };
        let (mut first, mut second) = (ask(&mut compactions, T), ask(&mut compactions, T));
        let mut other = ask(&mut compactions, U);
        compactions.wait(T, None);
        compactions.under_way.insert(T);
        compactions.end(T, &Ok(()));
        assert!(first.try_recv().unwrap().is_ok());
        assert!(second.try_recv().unwrap().is_ok());
        assert!(other.try_recv().is_err(), "its own goes on");
        assert!(!compactions.under_way.contains(&T));
        compactions.end_all(&Err(Error::retry("leadership changed")));
        assert!(other.try_recv().unwrap().is_err());
    }
}
