//! Bulk loads: what a partition makes of them, on every replica and after every restart.

use sextant_common::ids::LoadId;

use super::*;
use crate::command::Load;
use crate::partition::evaluate::Verdict;

const SEQ: u64 = 1 << 40;
const FLUSHED: u64 = 5 << 24;

fn load(n: &Node, id: u64, counters: &[u32]) -> Load {
    Load {
        term: n.term,
        table: T,
        id: LoadId(id),
        generation: n.partition.table(T).unwrap().generation(),
        next_seq: n.partition.last_seq() + 1,
        seq: SEQ,
        flushed: Generation(FLUSHED),
        ssts: counters.iter().map(|counter| sst(*counter)).collect(),
    }
}

fn append(n: &mut Node, load: &Load) -> Ingested {
    n.command(&Command::Load(load.clone()))
}

fn ssts(partition: &Partition) -> Vec<u32> {
    partition.manifest().all_ssts().map(|sst| sst.id.counter).collect()
}

/// A table with SSTable 1, and nothing in memory.
fn flushed() -> Node {
    let mut n = Node::new();
    n.write(put("a", "1"));
    n.freeze(T);
    n.flag(T, 1, Some(sst(1)));
    n
}

#[test]
fn a_load_comes_on_top_as_one_change_and_numbers_go_on_behind_it() {
    let mut n = flushed();
    let version = n.version();
    let load = load(&n, 7, &[12, 11]);
    assert!(
        matches!(append(&mut n, &load), Ingested::Frozen { next, .. } if next == Generation(FLUSHED + 1))
    );
    assert!(n.partition.is_adopting());
    assert_eq!((n.version(), ssts(&n.partition)), (version, vec![1]), "nothing is seen yet");
    let added = vec![sst(12).id, sst(11).id];
    assert_eq!(n.commit(), [CommitEffect::Loaded { table: T, id: LoadId(7), added }]);
    assert_eq!((n.version(), ssts(&n.partition)), (version + 1, vec![12, 11, 1]));
    assert!(n.partition.has_loaded(LoadId(7)) && !n.partition.is_adopting());
    assert_eq!(n.partition.last_seq(), SEQ);
    n.write(put("a", "2"));
    assert_eq!(n.partition.last_seq(), SEQ + 1);
    n.freeze(T);
    assert!(matches!(n.flag(T, FLUSHED + 1, Some(sst(20)))[..], [CommitEffect::Flushed { .. }]));
    assert_eq!(ssts(&n.partition), [20, 12, 11, 1]);
}

#[test]
fn readers_and_conditions_of_before_a_load_are_stale_at_once() {
    let mut n = flushed();
    let before = n.version();
    assert_eq!(n.read("a", before), ReadAnswer::NoEntry);
    let load = load(&n, 7, &[11]);
    append(&mut n, &load);
    n.commit();
    assert_eq!(n.read("a", before), ReadAnswer::StaleManifest);
    assert_eq!(n.read("a", before + 1), ReadAnswer::NoEntry);
    let (_, verdict) = n.evaluate(vec![insert("b", "1", before, false)]);
    assert!(matches!(verdict, Verdict::Refused(Refusal::StaleManifest)));
}

#[test]
fn a_load_that_was_made_for_another_log_does_nothing() {
    let mut n = flushed();
    let late = load(&n, 7, &[11]);
    n.write(put("b", "1"));
    assert_eq!(append(&mut n, &late), Ingested::Ignored, "a write is newer than it should be");
    n.freeze(T);
    n.flag(T, 2, Some(sst(2)));
    assert_eq!(append(&mut n, &late), Ingested::Ignored, "of an older memtable");
    assert!(n.commit().is_empty());
    assert_eq!(ssts(&n.partition), [2, 1]);
}

#[test]
fn a_truncated_load_leaves_nothing() {
    let mut n = flushed();
    let (seq, first) = (n.partition.last_seq(), n.partition.next_index());
    let load = load(&n, 7, &[11]);
    append(&mut n, &load);
    n.truncate_from(first);
    assert!(!n.partition.is_adopting() && n.partition.last_seq() == seq);
    assert_eq!(n.partition.table(T).unwrap().generation(), Generation(2));
    n.write(put("b", "1"));
    assert_eq!(n.partition.last_seq(), seq + 1);
}

#[test]
fn a_restart_and_a_replay_from_before_it_apply_a_load_once() {
    let mut n = flushed();
    n.table("other", 2);
    // Holds the persistence point back to before the load.
    let op = WriteOp { table: TableId(2), ..put("x", "1") };
    n.write(op);
    let one = load(&n, 7, &[11]);
    append(&mut n, &one);
    n.commit();
    n.write(put("a", "2"));
    n.freeze(T);
    n.flag(T, FLUSHED + 1, Some(sst(20)));
    n.write(put("a", "3"));
    n.commit();
    let snapshot = n.partition.snapshot().unwrap();
    assert!(snapshot.checkpoint.at.index < n.partition.last().index);
    let restored = restore(&n, &snapshot);
    assert_eq!(ssts(&restored), [20, 11, 1]);
    assert!(restored.has_loaded(LoadId(7)));
    assert_eq!(restored.last_seq(), n.partition.last_seq());
    let of = |p: &Partition| p.table(T).unwrap().generation();
    assert_eq!(of(&restored), of(&n.partition));
}

#[test]
fn a_replay_of_what_a_flag_covers_can_be_truncated_over_a_load() {
    let mut n = flushed();
    n.table("other", 2);
    n.write(WriteOp { table: TableId(2), ..put("x", "1") });
    let snapshot = n.partition.snapshot().unwrap();
    let (first, one) = (n.partition.next_index(), load(&n, 7, &[11]));
    append(&mut n, &one);
    n.commit();
    let later = n.partition.snapshot().unwrap();
    // The manifest has the load, and its entry comes again, and is cut off.
    let mut partition =
        Partition::restore(PartitionId(0), &Snapshot { checkpoint: snapshot.checkpoint, ..later });
    for (at, body) in &n.log {
        partition.ingest(*at, body, false).unwrap();
    }
    assert_eq!(partition.table(T).unwrap().generation(), Generation(FLUSHED + 1));
    partition.truncate_from(first).unwrap();
    assert_eq!(partition.table(T).unwrap().generation(), Generation(2));
}
