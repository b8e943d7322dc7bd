//! Records that expire: by which time, what is seen of them, how long they are to be there.

use sextant_common::expiry::Tick;
use sextant_common::manifest::Expiring;
use sextant_common::marks::{Kind, Marks};
use sextant_common::operation::LifetimeTest;

use super::*;
use crate::command;

impl Node {
    fn tick(&mut self, at: u64) {
        let term = self.term;
        assert_eq!(self.command(&Command::Tick(command::Tick { term, at: Tick(at) })), Ingested::Other);
    }

    /// The outcome of an operation, and the write that it makes.
    fn outcome(&self, op: WriteOp) -> (sextant_common::operation::RecordedOutcome, Option<command::Write>) {
        let (group, verdict) = self.evaluate(vec![op]);
        let (Verdict::Applied(mut results) | Verdict::Unchanged { mut results, .. }) = verdict else {
            panic!("{verdict:?}");
        };
        (results.remove(0), group.map(|mut group| group.tables.remove(0).writes.remove(0)))
    }

    fn applies(&self, op: WriteOp) -> bool {
        self.outcome(op).0.applied
    }
}

fn until(k: &str, value: &str, at: u64) -> WriteOp {
    WriteOp { lifetime: Lifetime::Until(Tick(at)), ..put(k, value) }
}

/// A change of the lifetime only, of a key that is there.
fn touch(k: &str, lifetime: Lifetime, condition: Condition) -> WriteOp {
    let effect = Effect::Update(Update::Touch);
    WriteOp { effect, lifetime, skip_on_failure: true, ..op(k, None, condition) }
}

fn based(op: WriteOp, version: u64, expires_at: Option<u64>) -> WriteOp {
    let base = Base {
        present: true,
        seq: Seq(1),
        marks: Marks::new(Kind::Plain, expires_at.map(Tick)),
        ..Base::absent(ManifestVersion(version))
    };
    WriteOp { base: Some(base), base_value: Some(key("base")), ..op }
}

#[test]
fn a_record_has_expired_once_a_tick_is_appended_that_reaches_its_expiry() {
    // Rule `the-sequencer-judges-by-appended-ticks`.
    let mut n = Node::new();
    n.write(until("a", "1", 100));
    n.tick(99);
    assert!(n.applies(op("a", Some("2"), Condition::Present)));
    assert!(!n.applies(insert("a", "2", n.version(), false)));
    n.tick(100);
    assert!(!n.applies(op("a", Some("2"), Condition::Present)));
    let (outcome, write) = n.outcome(insert("a", "2", n.version(), false));
    assert!(outcome.applied && !outcome.existed);
    assert_eq!(write.unwrap().marks, Marks::NONE, "a put without a lifetime does not expire");
}

#[test]
fn what_a_p_node_found_is_judged_by_the_sequencer() {
    let mut n = Node::new();
    n.tick(100);
    let present =
        |expires_at| n.applies(based(op("a", Some("2"), Condition::Present), n.version(), expires_at));
    assert_eq!([None, Some(101), Some(100)].map(present), [true, true, false]);
    let absent = |expires_at| {
        let seq_0 = op("a", Some("2"), Condition::SeqEquals(Seq(0)));
        n.applies(based(seq_0, n.version(), expires_at))
    };
    assert_eq!([None, Some(101), Some(100)].map(absent), [false, false, true]);
}

#[test]
fn an_insert_over_what_has_expired_leaves_a_bit() {
    let mut n = Node::new();
    n.write(until("a", "1", 50));
    n.freeze(T);
    n.tick(100);
    assert!(n.leaves_bit(insert("a", "2", n.version(), false)));
    let of_sst =
        |expires_at| WriteOp { ..based(insert("b", "2", n.version(), true), n.version(), Some(expires_at)) };
    assert!(n.leaves_bit(of_sst(100)));
    assert!(!n.leaves_bit(insert("c", "2", n.version(), false)));
}

#[test]
fn updates_of_what_has_expired_start_from_nothing_and_others_keep_the_lifetime() {
    let mut n = Node::new();
    n.write(until("a", "5", 100));
    let increment = || WriteOp {
        effect: Effect::Update(Update::Increment(1)),
        lifetime: Lifetime::Kept,
        returns: Returns::Before,
        ..op("a", None, Condition::None)
    };
    let (outcome, write) = n.outcome(increment());
    assert_eq!(outcome.told.as_deref(), Some(&Told::Value(key("5"))));
    let write = write.unwrap();
    assert_eq!((write.value, write.marks), (Some(key("6")), Marks::until(Tick(100))));
    n.tick(100);
    let over = WriteOp { base: Some(Base::absent(ManifestVersion(n.version()))), ..increment() };
    let (outcome, write) = n.outcome(over);
    assert_eq!((outcome.told.as_deref(), outcome.existed), (None, false), "nobody is told what it was");
    let write = write.unwrap();
    assert_eq!((write.value, write.marks), (Some(key("1")), Marks::NONE));
}

#[test]
fn a_lifetime_is_changed_alone_and_only_where_a_record_is() {
    let mut n = Node::new();
    let version = n.version();
    n.write(put("a", "1"));
    let (outcome, write) = n.outcome(touch("a", Lifetime::Until(Tick(90)), Condition::Present));
    let write = write.unwrap();
    assert!(outcome.applied);
    assert_eq!((write.value, write.marks), (Some(key("1")), Marks::until(Tick(90))));
    // Of a record in an SSTable, and one that is nowhere.
    let (_, write) = n.outcome(based(touch("b", Lifetime::Unlimited, Condition::Present), version, Some(9)));
    let write = write.unwrap();
    assert_eq!((write.value, write.marks), (Some(key("base")), Marks::NONE));
    let nowhere = touch("c", Lifetime::Until(Tick(90)), Condition::Present);
    let (outcome, write) =
        n.outcome(WriteOp { base: Some(Base::absent(ManifestVersion(version))), ..nowhere });
    assert!(!outcome.applied && write.is_none());
}

#[test]
fn conditions_on_lifetimes_compare_with_the_one_that_is_given() {
    use LifetimeTest::{Limited, LimitedAndLonger, Longer, Shorter, Unlimited};
    let mut n = Node::new();
    n.write(until("limited", "1", 100));
    n.write(put("unlimited", "1"));
    let holds =
        |k: &str, at: u64, test| n.applies(touch(k, Lifetime::Until(Tick(at)), Condition::Lifetime(test)));
    let all = |k, at| [Unlimited, Limited, Shorter, Longer, LimitedAndLonger].map(|test| holds(k, at, test));
    assert_eq!(all("limited", 99), [false, true, false, true, true]);
    assert_eq!(all("limited", 101), [false, true, true, false, false]);
    assert_eq!(all("unlimited", 101), [true, false, false, true, false]);
    let of_sst = |test| {
        let touch = touch("sst", Lifetime::Until(Tick(101)), Condition::Lifetime(test));
        n.applies(based(touch, n.version(), Some(100)))
    };
    assert_eq!([Unlimited, Limited, Shorter].map(of_sst), [false, true, true]);
}

#[test]
fn a_lifetime_that_is_over_removes_the_record_at_once() {
    let mut n = Node::new();
    n.write(put("a", "1"));
    n.tick(100);
    for lifetime in [Lifetime::Until(Tick(100)), Lifetime::Milliseconds(0)] {
        let (outcome, write) = n.outcome(WriteOp { lifetime, ..put("a", "2") });
        let write = write.unwrap();
        assert!(outcome.applied && write.value.is_none() && write.marks.is_none(), "{lifetime:?}");
    }
}

#[test]
fn a_group_sees_the_lifetimes_that_its_own_writes_have_given() {
    let mut n = Node::new();
    n.tick(100);
    let limited = || Condition::Lifetime(LifetimeTest::Limited);
    let kept = WriteOp { lifetime: Lifetime::Kept, ..put("a", "2") };
    let (group, verdict) =
        n.evaluate(vec![until("a", "1", 500), kept, touch("a", Lifetime::Unlimited, limited())]);
    let Verdict::Applied(results) = verdict else { panic!("{verdict:?}") };
    assert!(results.iter().all(|result| result.applied));
    let expiries: Vec<_> =
        group.unwrap().tables[0].writes.iter().map(|write| write.marks.expires_at()).collect();
    assert_eq!(expiries, [Some(Tick(500)), Some(Tick(500)), None]);
}

#[test]
fn a_truncated_tick_is_taken_back_and_time_never_falls() {
    let mut n = Node::new();
    n.write(until("a", "1", 100));
    n.tick(40);
    let first = n.partition.next_index();
    n.tick(100);
    n.tick(90);
    assert_eq!(n.partition.tick(), Tick(100), "a leader whose clock is behind");
    assert!(!n.applies(op("a", Some("2"), Condition::Present)));
    n.truncate_from(first);
    assert_eq!(n.partition.tick(), Tick(40));
    assert!(n.applies(op("a", Some("2"), Condition::Present)));
}

#[test]
fn a_tick_of_another_term_is_ignored() {
    let mut n = Node::new();
    let ignored = n.command(&Command::Tick(command::Tick { term: n.term + 1, at: Tick(5) }));
    assert_eq!((ignored, n.partition.tick()), (Ingested::Ignored, Tick(0)));
}

#[test]
fn a_restart_knows_the_time() {
    let mut n = Node::new();
    n.write(until("a", "1", 100));
    n.tick(100);
    n.freeze(T);
    n.commit();
    n.flag(T, 1, Some(sst(1)));
    let snapshot = n.partition.snapshot().unwrap();
    n.tick(120);
    n.commit();
    let first = snapshot.checkpoint.at.index + 1;
    n.log.retain(|(at, _)| at.index >= first);
    assert_eq!(restore(&n, &snapshot).tick(), Tick(120));
    n.log.clear();
    let snapshot = decode(&encode(&snapshot, PartitionId(0)), PartitionId(0)).unwrap();
    assert_eq!(Partition::restore(PartitionId(0), &snapshot).tick(), Tick(100));
}

#[test]
fn the_next_expiry_is_the_earliest_that_may_still_come() {
    let mut n = Node::new();
    assert_eq!(n.partition.next_expiry(), None);
    n.write(until("a", "1", 300));
    n.freeze(T);
    n.write(until("b", "1", 500));
    n.commit();
    assert_eq!(n.partition.next_expiry(), Some(Tick(300)));
    n.tick(300);
    assert_eq!(n.partition.next_expiry(), Some(Tick(500)));
    let expiring = Expiring { records: 2, first: Tick(200), last: Tick(400) };
    n.flag(T, 1, Some(SstMeta { expiring, ..sst(1) }));
    assert_eq!(n.partition.next_expiry(), Some(Tick(301)), "some of a table may have expired, and some not");
    n.tick(500);
    assert_eq!(n.partition.next_expiry(), None);
    n.write(until("c", "1", 22_700));
    n.write(until("d", "1", 22_600));
    assert_eq!(
        n.partition.next_expiry(),
        Some(Tick(22_600)),
        "what expired before the rest is not mixed up with it"
    );
}
