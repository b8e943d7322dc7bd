//! Which frozen memtables are flushed, and what their tables stand for. Pure.

use std::collections::{BTreeMap, HashMap};

use sextant_common::ids::{Generation, TableId};
use sextant_common::manifest::{Generations, SstList};

use crate::partition::Partition;
use crate::partition::table::Frozen;

/// A flush's error names every server that failed; a client needs no more than its beginning.
const ERROR_SHOWN_CHARS: usize = 400;

#[derive(Default)]
pub(in crate::worker) struct Flushes {
    /// One a table, until its flag is committed.
    pub under_way: HashMap<TableId, Generation>,
    retry_at_ns: HashMap<TableId, u64>,
    /// Of the last flush of each table, if it failed.
    pub errors: BTreeMap<TableId, String>,
}

impl Flushes {
    /// The oldest frozen memtable of each table that has none under way, if everything up to its freeze is published.
    pub fn due<'p>(
        &self,
        partition: &'p Partition,
        published: u64,
        now_ns: u64,
    ) -> Vec<(TableId, &'p Frozen)> {
        let flushable = partition.flushable(published);
        let is_due = |id: &TableId| {
            !self.under_way.contains_key(id) && self.retry_at_ns.get(id).is_none_or(|at| *at <= now_ns)
        };
        flushable.filter(|(id, _)| is_due(id)).collect()
    }

    pub fn failed(&mut self, table: TableId, error: &str, retry_at_ns: u64) {
        self.under_way.remove(&table);
        self.errors.insert(table, error.chars().take(ERROR_SHOWN_CHARS).collect());
        self.retry_at_ns.insert(table, retry_at_ns);
    }

    /// The table is gone: what its flush has written is given up when it comes.
    pub fn forget(&mut self, table: TableId) {
        self.under_way.remove(&table);
        self.errors.remove(&table);
        self.retry_at_ns.remove(&table);
    }

    /// The flag of a flush is committed.
    pub fn done(&mut self, table: TableId, generation: Generation) {
        if self.under_way.get(&table) == Some(&generation) {
            self.under_way.remove(&table);
        }
        self.errors.remove(&table);
    }
}

/// What the table of a flush stands for, after these: everything after the newest of them, because memtables in between were empty.
/// (The first of the list need not be the newest: it is that for its range.)
pub(in crate::worker) fn generations(ssts: &SstList, flushed: Generation) -> Generations {
    let first = match ssts.iter().map(|sst| sst.generations).max_by_key(|generations| generations.last) {
        None => Generation(1),
        Some(newest) if newest.are_known() && ssts[0].generations.are_known() => {
            Generation(newest.last.0 + 1)
        }
        Some(_) => flushed,
    };
    Generations { first, last: flushed }
}

#[cfg(test)]
mod tests {
    use sextant_common::manifest::SstMeta;

    use super::*;
    use crate::partition::testing::{freeze, partition_with, put, sst};

    const T: TableId = TableId(1);

    #[test]
    fn the_oldest_frozen_memtable_goes_first_once_its_freeze_is_published() {
        let mut partition = partition_with(&[T]);
        put(&mut partition, T, "a", 10);
        let first = freeze(&mut partition, T);
        put(&mut partition, T, "b", 10);
        let second = freeze(&mut partition, T);
        let mut flushes = Flushes::default();
        let due = |f: &Flushes, published, now_ns| -> Vec<(TableId, u64)> {
            f.due(&partition, published, now_ns).iter().map(|(id, f)| (*id, f.freeze.index)).collect()
        };
        assert!(due(&flushes, first - 1, 0).is_empty());
        assert_eq!(due(&flushes, second, 0), [(T, first)]);
        flushes.under_way.insert(T, Generation(1));
        assert!(due(&flushes, second, 0).is_empty(), "one at a time");
        flushes.failed(T, &"x".repeat(1000), 500);
        assert_eq!(flushes.errors[&T].len(), ERROR_SHOWN_CHARS);
        assert!(due(&flushes, second, 499).is_empty());
        assert_eq!(due(&flushes, second, 500), [(T, first)]);
        flushes.done(T, Generation(1));
        assert!(flushes.errors.is_empty());
    }

    #[test]
    fn a_table_stands_for_everything_after_the_one_before_it() {
        let of = |first, last| Generations { first: Generation(first), last: Generation(last) };
        let after = |ssts: Vec<SstMeta>, flushed| generations(&ssts.into(), Generation(flushed));
        let before = |generations| SstMeta { generations, ..sst(1) };
        assert_eq!(after(vec![], 4), of(1, 4));
        assert_eq!(after(vec![before(of(2, 5))], 8), of(6, 8));
        assert_eq!(after(vec![before(of(1, 4)), before(of(2, 5))], 8), of(6, 8), "of other keys");
        assert_eq!(after(vec![before(Generations::default())], 8), of(8, 8), "unknown");
    }
}
