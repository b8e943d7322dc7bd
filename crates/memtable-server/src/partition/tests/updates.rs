//! Updates: what they meet, what they leave, what is told of them, and what is remembered of that.

use sextant_common::limits::{BATCH_BYTES_MAX, VALUE_BYTES_MAX};
use sextant_common::operation::{Misfit, TOLD_BYTES_MAX};

use super::*;
use crate::command::Group;
use crate::partition::evaluate::GROUP_ENTRY_BYTES_MAX;

fn increment(k: &str) -> WriteOp {
    WriteOp {
        effect: Effect::Update(Update::Increment(1)),
        lifetime: Lifetime::Kept,
        returns: Returns::After,
        ..op(k, None, Condition::None)
    }
}

/// With what the SSTables of a version have.
fn over(op: WriteOp, version: u64, value: Option<&str>) -> WriteOp {
    let base = Base {
        present: value.is_some(),
        seq: Seq(u64::from(value.is_some())),
        ..Base::absent(ManifestVersion(version))
    };
    WriteOp { base: Some(base), base_value: value.map(key), ..op }
}

fn told(verdict: &Verdict) -> Told {
    let (Verdict::Applied(results) | Verdict::Unchanged { results, .. }) = verdict else {
        panic!("{verdict:?}");
    };
    results[0].told.as_deref().cloned().unwrap_or_default()
}

fn value(text: &str) -> Told {
    Told::Value(key(text))
}

fn request(number: u64, op: WriteOp) -> WriteRequest {
    WriteRequest { id: RequestId { session: 9, number, acked_below: 0 }, ops: vec![op] }
}

#[test]
fn an_update_meets_the_newest_state_wherever_it_is() {
    // Rule `an-update-meets-the-newest-state`.
    let mut n = Node::new();
    assert_eq!(told(&n.evaluate(vec![over(increment("a"), n.version(), None)]).1), value("1"));
    assert_eq!(told(&n.evaluate(vec![over(increment("a"), n.version(), Some("41"))]).1), value("42"));
    assert!(n.leaves_bit(over(increment("a"), n.version(), Some("41"))), "readers must hear of it");
    n.write(put("a", "6"));
    assert_eq!(
        told(&n.evaluate(vec![increment("a")]).1),
        value("7"),
        "in the active memtable: no base needed"
    );
    assert_eq!(told(&n.evaluate(vec![over(increment("a"), 0, Some("41"))]).1), value("7"), "nor looked at");
    n.freeze(T);
    assert_eq!(told(&n.evaluate(vec![increment("a")]).1), value("7"), "in a frozen one");
    assert!(n.leaves_bit(increment("a")), "as any put of a key that the active memtable does not have");
    n.write(op("a", None, Condition::None));
    assert_eq!(
        told(&n.evaluate(vec![over(increment("a"), n.version(), Some("41"))]).1),
        value("1"),
        "deleted"
    );
    assert!(!n.leaves_bit(increment("a")));
}

#[test]
fn an_update_rests_on_a_base_as_a_condition_does() {
    // Rule `a-flush-voids-a-check`.
    let mut n = Node::new();
    let refused = |n: &Node, op| n.evaluate(vec![op]).1;
    assert_eq!(refused(&n, increment("a")), Verdict::Refused(Refusal::NeedsBase));
    let searched = n.version();
    n.write(put("a", "1"));
    n.freeze(T);
    n.flag(T, 1, Some(sst(1)));
    assert_eq!(refused(&n, over(increment("a"), searched, None)), Verdict::Refused(Refusal::StaleManifest));
    let without = WriteOp { base_value: None, ..over(increment("a"), n.version(), Some("1")) };
    assert_eq!(refused(&n, without), Verdict::Refused(Refusal::NeedsBase), "it is there, but what is it?");
    let swap = WriteOp { returns: Returns::Before, ..put("a", "2") };
    assert_eq!(refused(&n, swap), Verdict::Refused(Refusal::NeedsBase), "to tell what was there, too");
}

#[test]
fn updates_of_one_group_meet_each_other() {
    // Rule `an-update-meets-the-newest-state`.
    let n = Node::new();
    let one = |_| {
        let ops = vec![over(increment("a"), n.version(), None)];
        WriteRequest { id: RequestId::default(), ops }
    };
    let requests: Vec<_> = (0..3).map(one).collect();
    let evaluated = n.partition.evaluate(1, &requests, 0);
    let all: Vec<_> = evaluated.verdicts.iter().map(told).collect();
    assert_eq!(all, [value("1"), value("2"), value("3")]);
    let writes = &evaluated.group.unwrap().tables[0].writes;
    let values: Vec<_> = writes.iter().map(|w| w.value.clone().unwrap()).collect();
    assert_eq!(values, ["1", "2", "3"], "the log has what they left");
    // And those of one batch.
    let batch = (0..3).map(|_| over(increment("b"), n.version(), Some("7"))).collect();
    let (_, Verdict::Applied(results)) = n.evaluate(batch) else { panic!() };
    let all: Vec<_> = results.iter().map(|r| r.told.as_deref().cloned().unwrap()).collect();
    assert_eq!(all, [value("8"), value("9"), value("10")]);
}

#[test]
fn what_an_operation_met_is_told_whether_it_applies_or_not() {
    let mut n = Node::new();
    n.write(put("a", "old"));
    let before = |op| WriteOp { returns: Returns::Before, skip_on_failure: true, ..op };
    let met = |n: &Node, op| told(&n.evaluate(vec![before(op)]).1);
    assert_eq!(met(&n, put("a", "new")), value("old"));
    assert_eq!(met(&n, op("a", None, Condition::Present)), value("old"));
    assert_eq!(met(&n, op("a", Some("new"), Condition::Absent)), value("old"), "set if absent: it is not");
    assert_eq!(met(&n, over(put("b", "new"), n.version(), None)), Told::Nothing);
    assert_eq!(met(&n, over(put("b", "new"), n.version(), Some("base"))), value("base"));
    let append = |text: &str| WriteOp {
        effect: Effect::Update(Update::Append(key(text))),
        ..op("a", None, Condition::None)
    };
    assert_eq!(told(&n.evaluate(vec![append("er")]).1), Told::Length(5));
    assert_eq!(met(&n, append("er")), value("old"));
}

#[test]
fn what_is_skipped_is_told_what_its_batch_has_written_unless_that_fails() {
    let n = Node::new();
    let get = |op| WriteOp { returns: Returns::Before, ..op };
    let looks = || WriteOp { skip_on_failure: true, ..get(op("a", Some("other"), Condition::Absent)) };
    let (_, verdict) = n.evaluate(vec![put("a", "new"), looks()]);
    let Verdict::Applied(results) = verdict else { panic!("{verdict:?}") };
    assert_eq!((results[1].applied, results[1].told.as_deref()), (false, Some(&value("new"))));
    let fails = op("b", None, Condition::Present);
    let (_, verdict) = n.evaluate(vec![put("a", "new"), looks(), over(fails, n.version(), None)]);
    let Verdict::Unchanged { ok: false, results } = verdict else { panic!("{verdict:?}") };
    assert!(results.iter().all(|result| result.told.is_none()), "it was never there");
}

#[test]
fn what_is_skipped_and_cannot_be_told_what_it_asked_for_fails_its_batch() {
    let mut n = Node::new();
    n.write(put("long", &"x".repeat(VALUE_BYTES_MAX)));
    let looks = WriteOp {
        returns: Returns::Before,
        skip_on_failure: true,
        ..op("long", Some("other"), Condition::Absent)
    };
    let (group, verdict) = n.evaluate(vec![put("a", "1"), looks.clone(), looks]);
    assert!(group.is_none());
    let Verdict::Unchanged { ok: false, results } = verdict else { panic!("{verdict:?}") };
    assert_eq!(results[2].told.as_deref(), Some(&Told::Misfit(Misfit::TooLong)));
}

#[test]
fn a_check_writes_nothing_and_needs_no_value_to_keep_a_batch_from_taking_effect() {
    let mut n = Node::new();
    n.write(put("a", "here"));
    let check = |k, condition| WriteOp { effect: Effect::Check, ..op(k, None, condition) };
    let found = |op, seq: u64| {
        let base = Base { present: seq > 0, seq: Seq(seq), ..Base::absent(ManifestVersion(n.version())) };
        WriteOp { base: Some(base), ..op }
    };
    let (group, verdict) = n.evaluate(vec![
        check("a", Condition::SeqEquals(Seq(1))),
        found(check("b", Condition::SeqEquals(Seq(7))), 7),
        found(check("c", Condition::SeqEquals(Seq(0))), 0),
        put("d", "1"),
    ]);
    assert!(
        matches!(&verdict, Verdict::Applied(results) if results.iter().all(|r| r.applied)),
        "{verdict:?}"
    );
    assert_eq!(group.unwrap().seqs(), 1);
    for fails in [
        check("a", Condition::SeqEquals(Seq(2))),
        found(check("b", Condition::SeqEquals(Seq(7))), 8),
        check("a", Condition::Absent),
    ] {
        let (group, verdict) = n.evaluate(vec![put("d", "1"), fails]);
        assert!(group.is_none() && matches!(verdict, Verdict::Unchanged { ok: false, .. }), "{verdict:?}");
    }
    let looks = WriteOp { returns: Returns::Before, ..check("a", Condition::None) };
    let (group, verdict) = n.evaluate(vec![looks]);
    assert!(group.is_none() && matches!(verdict, Verdict::Unchanged { ok: true, .. }));
    assert_eq!(told(&verdict), value("here"));
}

#[test]
fn an_update_that_does_not_fit_fails_its_batch_and_says_why() {
    let mut n = Node::new();
    n.write(put("a", "word"));
    let (group, verdict) = n.evaluate(vec![put("b", "1"), increment("a")]);
    assert!(group.is_none());
    let Verdict::Unchanged { ok: false, results } = verdict else { panic!("{verdict:?}") };
    assert_eq!(results[1].told.as_deref(), Some(&Told::Misfit(Misfit::NotAnInteger)));
    assert!(!results[0].applied && results[1].failed);
    // Each fits, but not all of them.
    let longest = "x".repeat(VALUE_BYTES_MAX - 100);
    n.write(put("long", &longest));
    let append = WriteOp {
        effect: Effect::Update(Update::SetRange { offset: 0, bytes: key("y") }),
        ..op("long", None, Condition::None)
    };
    let (_, verdict) = n.evaluate(vec![append.clone(), append.clone()]);
    assert!(matches!(verdict, Verdict::Applied(_)));
    let (_, verdict) = n.evaluate(vec![append.clone(), append.clone(), append]);
    let Verdict::Unchanged { ok: false, results } = verdict else { panic!("{verdict:?}") };
    assert_eq!(results[2].told.as_deref(), Some(&Told::Misfit(Misfit::TooLong)));
}

#[test]
fn an_update_without_an_effect_writes_nothing() {
    let n = Node::new();
    let nothing = WriteOp {
        effect: Effect::Update(Update::SetRange { offset: 5, bytes: Bytes::new() }),
        ..op("a", None, Condition::None)
    };
    let (group, verdict) = n.evaluate(vec![over(nothing, n.version(), None)]);
    assert!(group.is_none());
    assert!(matches!(&verdict, Verdict::Unchanged { ok: true, results } if results[0].applied));
    assert_eq!(told(&verdict), Told::Length(0));
}

#[test]
fn a_group_that_updates_have_filled_leaves_the_rest_to_the_next() {
    let mut n = Node::new();
    n.write(put("a", &"x".repeat(1000)));
    let append =
        WriteOp { effect: Effect::Update(Update::Append(key("y"))), ..op("a", None, Condition::None) };
    let one = |op: &WriteOp| WriteRequest { id: RequestId::default(), ops: vec![op.clone()] };
    let requests: Vec<_> = [&append, &append, &append, &put("b", "1")].map(one).into();
    let evaluated = n.partition.evaluate_up_to(2100, 1, &requests, 0);
    let waits = |v: &Verdict| if let Verdict::NotYet { bytes } = v { Some(*bytes) } else { None };
    let waits: Vec<_> = evaluated.verdicts.iter().map(waits).collect();
    assert_eq!(waits, [None, None, Some(1004), Some(0)], "whoever comes later does not overtake");
    assert_eq!(evaluated.group.unwrap().seqs(), 2);
    // What is longer than a group makes one alone.
    let evaluated = n.partition.evaluate_up_to(100, 1, &requests, 0);
    assert!(matches!(evaluated.verdicts[0], Verdict::Applied(_)));
    assert!(evaluated.verdicts[1..].iter().all(|v| matches!(v, Verdict::NotYet { .. })));
}

#[test]
fn a_group_ends_before_what_is_kept_of_its_answers_makes_its_entry_too_long() {
    const SESSIONS: u64 = 400;
    let mut n = Node::new();
    (1..=SESSIONS).for_each(|session| {
        n.command(&Command::OpenSession(OpenSession { term: 1, session, time_ms: 5 }));
    });
    n.write(put("a", &"x".repeat(TOLD_BYTES_MAX)));
    let look = WriteOp {
        effect: Effect::Update(Update::SetRange { offset: 0, bytes: Bytes::new() }),
        returns: Returns::After,
        ..op("a", None, Condition::None)
    };
    // Whether they fail or not, of each is kept what it was told.
    let fails = WriteOp { returns: Returns::Before, ..op("a", Some("y"), Condition::Absent) };
    for (what, told) in [("it succeeds", look), ("it fails", fails)] {
        let request = |session| WriteRequest {
            id: RequestId { session, number: 1, acked_below: 0 },
            ops: vec![told.clone(); 200],
        };
        let (mut left, mut groups): (Vec<WriteRequest>, _) = ((1..=SESSIONS).map(request).collect(), 0);
        while !left.is_empty() {
            let evaluated = n.partition.evaluate(1, &left, 5);
            let entry_bytes = evaluated.group.unwrap().entry_bytes();
            assert!(entry_bytes <= GROUP_ENTRY_BYTES_MAX, "{what}: {entry_bytes}");
            let waits = |verdict: &Verdict| matches!(verdict, Verdict::NotYet { .. });
            let decided = evaluated.verdicts.iter().take_while(|verdict| !waits(verdict)).count();
            assert!(evaluated.verdicts[decided..].iter().all(waits), "{what}: in their order");
            left.drain(..decided);
            groups += 1;
        }
        assert_eq!(groups, 3, "{what}");
    }
}

#[test]
fn what_one_request_writes_tells_and_leaves_in_the_log_is_bounded() {
    let mut n = Node::new();
    n.command(&Command::OpenSession(OpenSession { term: 1, session: 9, time_ms: 5 }));
    let longest = "x".repeat(VALUE_BYTES_MAX);
    n.write(put("long", &longest));
    n.write(put("short", &longest[..TOLD_BYTES_MAX]));
    let look = |k| WriteOp {
        effect: Effect::Update(Update::SetRange { offset: 0, bytes: Bytes::new() }),
        returns: Returns::After,
        ..op(k, None, Condition::None)
    };
    let many = |times, op: WriteOp| {
        let ops = vec![op; times];
        WriteRequest { id: RequestId { session: 9, number: 1, acked_below: 0 }, ops }
    };
    let evaluate = |request: WriteRequest| n.partition.evaluate(1, &[request], 5);
    // Told: not more than one message has room for.
    let Verdict::Unchanged { ok: false, results } = &evaluate(many(2, look("long"))).verdicts[0] else {
        panic!()
    };
    assert_eq!(results[1].told.as_deref(), Some(&Told::Misfit(Misfit::TooLong)));
    // Kept: a little of it, whatever was told.
    let evaluated = evaluate(many(20_000, look("short")));
    let Verdict::Unchanged { ok: true, results } = &evaluated.verdicts[0] else { panic!() };
    let told: usize = results.iter().map(|r| r.told.as_ref().unwrap().bytes()).sum();
    assert_eq!(told, 20_000 * TOLD_BYTES_MAX);
    let group = evaluated.group.unwrap();
    let mut encoded = bytes::BytesMut::new();
    group.encode(&mut encoded);
    assert!(encoded.len() < 1024 * 1024, "{}", encoded.len());
    assert!(encoded.len() < group.written_bytes() + 100, "it is foreseen");
    // Written: what is carried and what is made, together.
    let append = WriteOp {
        effect: Effect::Update(Update::SetRange { offset: 0, bytes: key("y") }),
        ..op("long", None, Condition::None)
    };
    let ops = vec![put("a", &longest[1000..]), append.clone(), append];
    let (group, Verdict::Unchanged { ok: false, results }) = n.evaluate(ops) else { panic!() };
    assert!(group.is_none());
    assert_eq!(results[2].told.as_deref(), Some(&Told::Misfit(Misfit::TooLong)));
}

#[test]
fn values_that_a_batch_touches_are_written_again_and_count() {
    let mut n = Node::new();
    let long = "x".repeat(VALUE_BYTES_MAX);
    let touch = |k| WriteOp { effect: Effect::Update(Update::Touch), ..op(k, None, Condition::None) };
    for k in ["a", "b", "c"] {
        n.write(put(k, &long));
    }
    n.write(put("short", &long[..1000]));
    let (group, Verdict::Applied(_)) = n.evaluate(vec![touch("a")]) else { panic!() };
    assert!(group.is_some(), "the longest value by itself");
    let (group, Verdict::Unchanged { ok: false, results }) =
        n.evaluate(vec![touch("a"), touch("b"), touch("c")])
    else {
        panic!()
    };
    assert!(group.is_none() && results.iter().all(|result| !result.applied));
    assert_eq!(results[2].told.as_deref(), Some(&Told::Misfit(Misfit::TooLong)));
    // One record again and again.
    let (group, Verdict::Unchanged { ok: false, results }) = n.evaluate(vec![touch("short"); 20_000]) else {
        panic!()
    };
    assert!(group.is_none());
    assert_eq!(results[19_999].told.as_deref(), Some(&Told::Misfit(Misfit::TooLong)));
    let (group, Verdict::Applied(_)) = n.evaluate(vec![touch("short"); 16_000]) else { panic!() };
    assert!(group.unwrap().written_bytes() <= BATCH_BYTES_MAX + 16_000 * 64);
}

#[test]
fn a_repeated_update_is_answered_as_before_by_every_replica() {
    let mut n = Node::new();
    n.command(&Command::OpenSession(OpenSession { term: 1, session: 9, time_ms: 5 }));
    let long = "x".repeat(TOLD_BYTES_MAX + 1);
    n.write(put("short", &long[1..]));
    n.write(put("long", &long));
    n.write(put("word", "x"));
    let swap = |k| WriteOp { returns: Returns::Before, ..put(k, "new") };
    let append =
        WriteOp { effect: Effect::Update(Update::Append(key("y"))), ..op("word", None, Condition::None) };
    let requests = [
        request(1, over(increment("a"), n.version(), None)),
        request(2, swap("short")),
        request(3, swap("long")),
        request(4, append),
        request(5, increment("word")),
    ];
    let evaluated = n.partition.evaluate(1, &requests, 5);
    let first: Vec<_> = evaluated.verdicts.iter().map(told).collect();
    let misfit = Told::Misfit(Misfit::NotAnInteger);
    assert_eq!(first, [value("1"), value(&long[1..]), value(&long), Told::Length(2), misfit.clone()]);
    let group: Group = evaluated.group.unwrap();
    n.command(&Command::Group(group));
    n.commit();
    n.freeze(T);
    n.commit();
    n.flag(T, 1, Some(sst(1)));
    let snapshot = n.partition.snapshot().unwrap();
    let decoded = decode(&encode(&snapshot, PartitionId(0)), PartitionId(0)).unwrap();
    for other in [restore(&n, &snapshot), restore(&n, &decoded)] {
        let again = other.evaluate(2, &requests, 6);
        assert!(again.group.is_none());
        let again: Vec<_> = again.verdicts.iter().map(told).collect();
        let forgotten = Told::Forgotten;
        assert_eq!(again, [value("1"), value(&long[1..]), forgotten, Told::Length(2), misfit.clone()]);
    }
}
