//! Tables that are dropped, or get other options: what a partition makes of that, on every replica and after every restart.

use super::*;
use crate::command::{Alteration, ChangeTable};
use crate::partition::cuts::unknown_cut;
use crate::partition::effects::{Effect as LogEffect, effect as log_effect};

const U: TableId = TableId(2);

fn change(n: &Node, table: TableId, alteration: Alteration) -> ChangeTable {
    let generation = n.partition.table(table).unwrap().generation();
    ChangeTable { term: n.term, table, next_seq: n.partition.last_seq() + 1, generation, alteration }
}

fn append(n: &mut Node, change: &ChangeTable) -> Ingested {
    n.command(&Command::ChangeTable(change.clone()))
}

fn drop_table(n: &mut Node, table: TableId) -> Vec<CommitEffect> {
    let change = change(n, table, Alteration::Drop);
    assert_eq!(append(n, &change), Ingested::Other);
    n.commit()
}

fn filtered() -> Alteration {
    Alteration::Options(TableOptions { filter_inserts: true, ..TableOptions::default() })
}

/// Table 1 with SSTable 1, and something in memory; table 2 with something in memory.
fn two_tables() -> Node {
    let mut n = Node::new();
    n.table("u", 2);
    n.write(put("a", "1"));
    n.freeze(T);
    n.flag(T, 1, Some(sst(1)));
    n.write(put("a", "2"));
    n.write(WriteOp { table: U, ..put("x", "1") });
    n.commit();
    n
}

fn names(partition: &Partition) -> Vec<&str> {
    partition.manifest().tables.iter().map(|t| t.name.as_str()).collect()
}

#[test]
fn a_dropped_table_is_gone_with_its_memtables_when_that_is_committed() {
    let mut n = two_tables();
    let version = n.version();
    let dropping = change(&n, T, Alteration::Drop);
    append(&mut n, &dropping);
    assert!(n.partition.is_adopting() && n.partition.has_ended(T));
    assert!(matches!(n.read("a", version), ReadAnswer::Found(_)), "nothing is seen yet");
    assert_eq!(n.commit(), [CommitEffect::TableChanged { table: T, removed: vec![sst(1).id] }]);
    assert_eq!((n.version(), names(&n.partition)), (version + 1, vec!["u"]));
    assert!(!n.partition.is_adopting() && n.partition.table(T).is_none());
    assert_eq!(n.read("a", version), ReadAnswer::UnknownTable);
    let (_, verdict) = n.evaluate(vec![put("a", "3")]);
    assert!(matches!(verdict, Verdict::Refused(Refusal::UnknownTable)));
    assert!(n.partition.dropped().has(T) && n.partition.dropped().described(T).unwrap().name == "t");
}

#[test]
fn nothing_that_comes_after_it_in_the_log_writes_to_a_dropped_table_committed_or_not() {
    let mut n = two_tables();
    let (late, _) = n.evaluate(vec![put("a", "3")]);
    let late = Command::Group(late.unwrap());
    let freeze = Command::Freeze(Freeze { term: n.term, table: T, generation: Generation(2) });
    let dropping = change(&n, T, Alteration::Drop);
    append(&mut n, &dropping);
    for committed in [false, true] {
        if committed {
            n.commit();
        }
        assert_eq!(n.command(&late), Ingested::Ignored);
        assert_eq!(n.command(&freeze), Ingested::Ignored);
        assert_eq!(append(&mut n, &dropping), Ingested::Ignored);
    }
    // Others go on.
    n.write(WriteOp { table: U, ..put("x", "2") });
}

#[test]
fn a_change_that_was_made_for_another_log_does_nothing() {
    let mut n = two_tables();
    let late = [change(&n, T, Alteration::Drop), change(&n, T, filtered())];
    n.write(put("b", "1"));
    late.iter().for_each(|late| assert_eq!(append(&mut n, late), Ingested::Ignored));
    assert!(n.commit().is_empty());
    assert_eq!(names(&n.partition), ["t", "u"]);
}

#[test]
fn a_truncated_drop_leaves_the_table_as_it_was() {
    let mut n = two_tables();
    let first = n.partition.next_index();
    let dropping = change(&n, T, Alteration::Drop);
    append(&mut n, &dropping);
    n.truncate_from(first);
    assert!(!n.partition.is_adopting() && !n.partition.has_ended(T));
    assert!(matches!(n.read("a", n.version()), ReadAnswer::Found(_)));
    n.write(put("a", "3"));
    assert!(matches!(append(&mut n, &dropping), Ingested::Ignored), "it is of the log before");
}

#[test]
fn what_was_to_be_flushed_or_compacted_of_a_dropped_table_comes_to_nothing() {
    let mut n = two_tables();
    n.freeze(T);
    drop_table(&mut n, T);
    let orphan = Some(sst(9).id);
    assert_eq!(n.flag(T, 2, Some(sst(9))), [CommitEffect::Ignored { table: T, orphan }]);
    assert!(n.partition.flushable(u64::MAX).next().is_none());
}

#[test]
fn a_dropped_table_is_not_made_again_by_who_comes_late_and_its_name_is_free() {
    let mut n = two_tables();
    drop_table(&mut n, T);
    n.table("t", 1);
    assert_eq!(names(&n.partition), ["u"], "of this id there was one");
    let table = EnsureTable { term: n.term, name: "t".into(), options: TableOptions::default(), id: None };
    n.command(&Command::EnsureTable(table));
    assert_eq!(n.commit(), [CommitEffect::TableCreated(TableId(3))]);
    assert_eq!(names(&n.partition), ["u", "t"]);
}

#[test]
fn a_table_that_was_dropped_elsewhere_before_it_came_here_does_not_come() {
    let (mut n, version) = (two_tables(), two_tables().version());
    let (term, next_seq) = (n.term, n.partition.last_seq() + 1);
    let (table, generation, alteration) = (TableId(9), Generation(1), Alteration::Drop);
    append(&mut n, &ChangeTable { term, table, next_seq, generation, alteration });
    assert_eq!(n.commit(), [CommitEffect::TableChanged { table, removed: vec![] }]);
    n.table("late", 9);
    assert_eq!((n.version(), names(&n.partition)), (version, vec!["t", "u"]));
    assert!(n.partition.dropped().has(table) && n.partition.dropped().described(table).is_none());
}

#[test]
fn of_a_table_that_came_and_went_after_the_checkpoint_a_replay_keeps_nothing_in_memory() {
    let mut n = two_tables();
    n.table("v", 5);
    n.write(WriteOp { table: TableId(5), ..put("y", "1") });
    n.freeze(TableId(5));
    n.write(WriteOp { table: TableId(5), ..put("y", "2") });
    drop_table(&mut n, TableId(5));
    let snapshot = n.partition.snapshot().unwrap();
    let mut partition = Partition::restore(PartitionId(0), &snapshot);
    for (at, body) in &n.log {
        partition.ingest(*at, body, false).unwrap();
        if let Some(state) = partition.table(TableId(5)) {
            assert!(state.active.is_empty() && state.frozen.is_empty());
        }
    }
    partition.commit(n.partition.committed_index(), 0);
    assert!(partition.table(TableId(5)).is_none() && partition.manifest() == n.partition.manifest());
}

#[test]
fn a_dropped_table_holds_no_log_and_a_replay_from_before_makes_the_same_of_the_rest() {
    let mut n = two_tables();
    n.write(WriteOp { table: U, ..put("x", "2") });
    n.table("v", 5);
    n.write(WriteOp { table: TableId(5), ..put("y", "1") });
    drop_table(&mut n, T);
    drop_table(&mut n, TableId(5));
    n.table("v", 6);
    n.write(WriteOp { table: U, ..put("x", "3") });
    n.commit();
    let snapshot = n.partition.snapshot().unwrap();
    assert!(snapshot.checkpoint.generations.contains_key(&T), "it is from before");
    let restored = restore(&n, &snapshot);
    assert_eq!(restored.manifest(), n.partition.manifest());
    assert_eq!(restored.last_seq(), n.partition.last_seq(), "no group was ignored");
    assert!(restored.table(T).is_none() && restored.table(TableId(5)).is_none());
    assert_eq!(restored.dropped(), n.partition.dropped());
    let of = |p: &Partition| p.table(U).unwrap().newest(&key("x")).unwrap().seq;
    assert_eq!(of(&restored), of(&n.partition));
    // What is left of the log is the other table's: once that is flushed, nothing is needed of it.
    n.freeze(U);
    let persisted = n.partition.persisted();
    n.flag(U, 1, Some(SstMeta { table: U, ..sst(2) }));
    assert!(n.partition.persisted() > persisted);
}

#[test]
fn a_cut_keeps_what_it_has_captured_of_a_dropped_table_and_ends_if_it_lacks_some() {
    let cut = |n: &mut Node, id: u64| {
        let wanted = sextant_common::cut::WantedCut { id, lease_ms: 1000, privileged: false };
        let cut = n.partition.cut_now(n.term, wanted, 1);
        assert!(!cut.tables.iter().any(|point| n.partition.has_ended(point.table)));
        n.command(&Command::OpenCut(cut));
        n.commit();
    };
    let mut n = two_tables();
    cut(&mut n, 1);
    n.flag(T, 2, Some(sst(2)));
    n.flag(U, 1, None);
    n.write(put("a", "3"));
    cut(&mut n, 2);
    let removed = Vec::new();
    assert_eq!(drop_table(&mut n, T), [CommitEffect::TableChanged { table: T, removed }], "they are held");
    let [held] = n.partition.cuts() else { panic!("{}", unknown_cut(2)) };
    assert!(held.id == 1 && held.names(sst(1).id) && held.names(sst(2).id));
    cut(&mut n, 3);
    assert_eq!(n.partition.cuts().len(), 2);
}

#[test]
fn options_change_when_all_that_was_written_before_is_flushed() {
    let mut n = two_tables();
    n.freeze(T);
    let early = change(&n, T, filtered());
    append(&mut n, &early);
    assert_eq!(n.commit(), [CommitEffect::TableNotChanged(T)], "a memtable is not flushed yet");
    n.flag(T, 2, Some(sst(2)));
    let version = n.version();
    assert!(!n.leaves_bit(insert("b", "1", version, false)));
    let changed = change(&n, T, filtered());
    append(&mut n, &changed);
    n.commit();
    assert_eq!(n.version(), version + 1);
    assert!(n.leaves_bit(insert("b", "1", version + 1, false)));
    let snapshot = n.partition.snapshot().unwrap();
    assert_eq!(restore(&n, &snapshot).manifest(), n.partition.manifest());
}

#[test]
fn what_a_drop_did_is_nothing_that_was_written() {
    for (alteration, effect) in [(Alteration::Drop, LogEffect::Unwritten), (filtered(), LogEffect::Nothing)] {
        let mut n = two_tables();
        let change = change(&n, T, alteration);
        append(&mut n, &change);
        n.commit();
        let (at, body) = n.log.last().unwrap();
        assert_eq!(log_effect(*at, body, n.partition.verdicts()).unwrap(), effect);
    }
}
