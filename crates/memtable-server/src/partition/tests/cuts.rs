//! Cuts: what they have, whatever comes after them; and how they end.

use super::*;
use crate::command::{EndCut, OpenCut};
use sextant_common::cut::{CUTS_KEPT, CUTS_MAX, Cut, WantedCut};
use sextant_common::expiry::Tick;

const U: TableId = TableId(2);

fn wanted(id: u64) -> WantedCut {
    WantedCut { id, lease_ms: 60_000, privileged: false }
}

impl Node {
    fn plan(&self, id: u64) -> OpenCut {
        self.partition.cut_now(self.term, wanted(id), 1000)
    }

    fn cut(&mut self, id: u64) -> Ingested {
        let cut = self.plan(id);
        let ingested = self.command(&Command::OpenCut(cut));
        self.commit();
        ingested
    }

    fn end_cut(&mut self, id: u64) {
        self.command(&Command::EndCut(EndCut { term: self.term, id }));
        self.commit();
    }

    fn write_to(&mut self, table: TableId, k: &str) {
        self.write(WriteOp { table, ..put(k, "1") });
    }

    fn compact(&mut self, inputs: &[u32], output: u32) {
        let (inputs, outputs) = (inputs.iter().map(|c| sst(*c).id).collect(), vec![sst(output)]);
        let (range, term) = (KeyRange::all(), self.term);
        let compaction = Compaction { term, table: T, inputs, range, outputs, tombstones_dropped: true };
        self.command(&Command::Compaction(compaction));
        assert!(matches!(self.commit()[..], [CommitEffect::Compacted { .. }]));
    }
}

/// What a cut has of a table; None: it is not captured yet.
fn captured(partition: &Partition, id: u64, table: TableId) -> Option<Vec<u32>> {
    let cut = partition.cuts().iter().find(|cut| cut.id == id).unwrap();
    let table = cut.tables.iter().find(|t| t.table == table).unwrap();
    Some(table.ssts.as_ref()?.iter().map(|sst| sst.id.counter).collect())
}

#[test]
fn a_cut_has_what_was_written_before_it_and_nothing_that_came_after() {
    let mut n = Node::new();
    n.table("u", 2);
    n.write(put("a", "1"));
    n.freeze(T);
    n.flag(T, 1, Some(sst(1)));
    n.write(put("a", "2"));
    n.write_to(U, "a");
    let last_seq = n.partition.last_seq();
    assert_eq!(n.cut(7), Ingested::Cut(vec![(T, Generation(3)), (U, Generation(2))]));
    // What is written now is beyond it.
    n.write(put("a", "3"));
    n.freeze(T);
    assert_eq!((captured(&n.partition, 7, T), captured(&n.partition, 7, U)), (None, None));
    n.flag(T, 2, Some(sst(2)));
    n.flag(T, 3, Some(sst(3)));
    assert_eq!(captured(&n.partition, 7, T), Some(vec![2, 1]));
    assert!(!n.partition.cuts()[0].is_complete());
    n.flag(U, 1, Some(SstMeta { table: U, ..sst(4) }));
    let cut = &n.partition.cuts()[0];
    assert!(cut.is_complete() && cut.seq == Seq(last_seq));
}

#[test]
fn a_memtable_that_is_empty_is_not_frozen_for_a_cut() {
    let mut n = Node::new();
    assert_eq!(n.cut(1), Ingested::Cut(vec![]));
    assert_eq!(captured(&n.partition, 1, T), Some(vec![]));
    n.write(put("a", "1"));
    n.freeze(T);
    // All that there is was frozen before: the cut waits for its flag.
    assert_eq!(n.cut(2), Ingested::Cut(vec![]));
    assert_eq!(captured(&n.partition, 2, T), None);
    n.flag(T, 1, Some(sst(1)));
    assert_eq!(captured(&n.partition, 2, T), Some(vec![1]));
    assert_eq!(captured(&n.partition, 1, T), Some(vec![]), "of before");
}

#[test]
fn compactions_leave_what_a_cut_names() {
    // Rule `cuts-hold-their-tables`.
    let mut n = Node::new();
    for generation in 1..=2 {
        n.write(put("a", "1"));
        n.freeze(T);
        n.flag(T, generation, Some(sst(generation as u32)));
    }
    n.cut(1);
    n.compact(&[2, 1], 9);
    assert_eq!(captured(&n.partition, 1, T), Some(vec![2, 1]));
    assert!([1, 2].iter().all(|counter| n.partition.is_held(sst(*counter).id)));
    assert!(!n.partition.is_held(sst(9).id));
    assert_eq!(n.partition.view().cuts.len(), 1);
    n.end_cut(1);
    assert!(!n.partition.is_held(sst(1).id) && n.partition.view().cuts.is_empty());
}

#[test]
fn a_compaction_before_the_flag_is_in_the_cut() {
    let mut n = Node::new();
    for generation in 1..=2 {
        n.write(put("a", "1"));
        n.freeze(T);
        n.flag(T, generation, Some(sst(generation as u32)));
    }
    n.write(put("a", "2"));
    n.cut(1);
    n.compact(&[2, 1], 9);
    n.flag(T, 3, Some(sst(3)));
    assert_eq!(captured(&n.partition, 1, T), Some(vec![3, 9]));
    assert!(!n.partition.is_held(sst(1).id), "no cut needs it");
}

#[test]
fn a_cut_ends_by_an_entry_and_not_before() {
    // Rule `cuts-end-in-the-log`.
    let mut n = Node::new();
    n.cut(1);
    n.command(&Command::EndCut(EndCut { term: 1, id: 1 }));
    assert_eq!(n.partition.cuts().len(), 1, "appended only");
    n.commit();
    assert!(n.partition.cuts().is_empty());
}

#[test]
fn a_cut_that_was_planned_on_another_log_does_nothing() {
    let mut n = Node::new();
    n.write(put("a", "1"));
    let cut = n.plan(1);
    n.write(put("b", "1"));
    assert_eq!(n.command(&Command::OpenCut(cut.clone())), Ingested::Ignored, "a write came between");
    let late = OpenCut { tick: Tick(9), ..n.plan(1) };
    assert_eq!(n.command(&Command::OpenCut(late)), Ingested::Ignored);
    let cut = n.plan(1);
    n.freeze(T);
    assert_eq!(n.command(&Command::OpenCut(cut)), Ingested::Ignored, "its memtable has ended");
    assert!(n.commit().is_empty() && n.partition.cuts().is_empty());
}

#[test]
fn a_truncated_cut_unites_the_memtables_that_it_froze() {
    let mut n = Node::new();
    n.table("u", 2);
    n.write(put("a", "1"));
    n.write_to(U, "a");
    n.commit();
    let cut = n.plan(1);
    assert!(matches!(n.command(&Command::OpenCut(cut)), Ingested::Cut(frozen) if frozen.len() == 2));
    n.write(put("a", "2"));
    let index = n.partition.last().index;
    n.truncate_from(index - 1);
    assert_eq!(n.partition.table(T).unwrap().generation(), Generation(1));
    assert_eq!(n.partition.table(U).unwrap().generation(), Generation(1));
    assert!(n.partition.table(T).unwrap().frozen.is_empty());
    assert!(matches!(n.read("a", 1), ReadAnswer::Found(Version { seq: 1, .. })));
    assert!(n.partition.plan_cut(1, wanted(1), 0).unwrap().is_some(), "as if it had never been");
    assert!(n.commit().is_empty());
}

#[test]
fn a_cut_is_begun_once_and_there_are_not_too_many() {
    let mut n = Node::new();
    let (kept, all) = ((CUTS_MAX - CUTS_KEPT) as u64, CUTS_MAX as u64);
    let plan = |n: &Node, id, privileged| n.partition.plan_cut(1, WantedCut { privileged, ..wanted(id) }, 0);
    for id in 0..all {
        let cut = plan(&n, id, id >= kept).unwrap().unwrap();
        n.command(&Command::OpenCut(cut));
        assert_eq!(plan(&n, id, false).unwrap(), None, "appended only");
        n.commit();
        assert_eq!(plan(&n, id, false).unwrap(), None);
        if id + 1 >= kept {
            let error = plan(&n, 99, false).unwrap_err();
            assert_eq!(error.kind, sextant_common::ErrorKind::Overloaded, "{error}");
            assert!(error.message.contains("kept for administrators"), "{error}");
        }
    }
    assert_eq!(plan(&n, 99, true).unwrap_err().kind, sextant_common::ErrorKind::Overloaded);
    n.end_cut(3);
    assert!(plan(&n, 99, true).unwrap().is_some());
}

#[test]
fn while_a_cut_is_being_written_no_other_one_freezes_anything() {
    let mut n = Node::new();
    n.write(put("a", "1"));
    let plan = |n: &Node, id| n.partition.plan_cut(1, WantedCut { privileged: true, ..wanted(id) }, 0);
    let refused = |n: &Node| {
        let error = plan(n, 2).unwrap_err();
        assert!(error.is_retryable() && error.message.contains("being opened"), "{error}");
    };
    let cut = plan(&n, 1).unwrap().unwrap();
    n.command(&Command::OpenCut(cut));
    refused(&n);
    n.commit();
    n.write(put("a", "2"));
    refused(&n);
    n.flag(T, 1, Some(sst(1)));
    assert!(plan(&n, 2).unwrap().is_some());
}

#[test]
fn records_are_not_taken_for_expired_beyond_a_cut_that_is_being_written() {
    let mut n = Node::new();
    n.write(put("a", "1"));
    let tick = |at| Command::Tick(crate::command::Tick { term: 1, at: Tick(at) });
    n.command(&tick(50));
    let cut = n.plan(1);
    n.command(&Command::OpenCut(cut));
    n.command(&tick(70));
    assert_eq!(n.partition.may_expire_by(Tick(70)), Tick(50), "appended only");
    n.commit();
    assert_eq!(n.partition.may_expire_by(Tick(70)), Tick(50));
    assert_eq!(n.partition.may_expire_by(Tick(40)), Tick(40));
    n.flag(T, 1, Some(sst(1)));
    assert_eq!(n.partition.may_expire_by(Tick(70)), Tick(70), "it is complete");
}

/// At whatever moment the snapshot is taken: what it has is not done again, and what it has not is.
#[test]
fn cuts_are_the_same_after_a_restart() {
    let mut n = Node::new();
    n.table("u", 2);
    n.write(put("a", "1"));
    n.freeze(T);
    n.flag(T, 1, Some(sst(1)));
    let mut snapshots = vec![n.partition.snapshot().unwrap()];
    n.write(put("a", "2"));
    n.write_to(U, "a");
    n.cut(7);
    snapshots.push(n.partition.snapshot().unwrap());
    n.flag(T, 2, Some(sst(2)));
    n.cut(8);
    snapshots.push(n.partition.snapshot().unwrap());
    n.flag(U, 1, Some(SstMeta { table: U, ..sst(4) }));
    n.compact(&[2, 1], 9);
    snapshots.push(n.partition.snapshot().unwrap());
    n.cut(9);
    n.end_cut(8);
    snapshots.push(n.partition.snapshot().unwrap());
    assert_eq!(captured(&n.partition, 7, T), Some(vec![2, 1]));
    assert_eq!(captured(&n.partition, 9, T), Some(vec![9]));
    for snapshot in &snapshots {
        let restored = restore(&n, snapshot);
        assert_eq!(restored.cuts(), n.partition.cuts());
        assert_eq!(restored.manifest(), n.partition.manifest());
    }
    assert!(n.partition.cuts().iter().all(|cut| Cut::is_complete(cut)));
}
