//! Conditions, bits, batches, retries.

use super::*;

#[test]
fn updates_leave_a_bit_once_per_memtable_and_inserts_none() {
    let mut n = Node::new();
    assert!(n.leaves_bit(put("a", "1")));
    assert!(!n.leaves_bit(insert("a", "1", n.version(), false)));
    n.write(insert("a", "1", n.version(), false));
    assert!(!n.leaves_bit(put("a", "2")), "the key is in the active memtable");
    assert!(!n.partition.table(T).unwrap().filter.contains(filter_hash(b"a")));
    assert!(n.leaves_bit(op("b", None, Condition::None)), "a blind delete is an update");
}

#[test]
fn a_put_leaves_a_bit_while_only_a_frozen_memtable_holds_the_key() {
    // Rule `a-put-over-a-frozen-key-leaves-a-bit`.
    let mut n = Node::new();
    n.write(insert("a", "1", n.version(), false));
    n.freeze(T);
    assert!(n.leaves_bit(put("a", "2")));
}

#[test]
fn filter_inserts_makes_every_new_key_leave_a_bit() {
    let mut n = Node::new();
    let options = TableOptions { filter_inserts: true, ..TableOptions::default() };
    n.command(&Command::EnsureTable(EnsureTable {
        term: 1,
        name: "u".into(),
        options,
        id: Some(TableId(2)),
    }));
    n.commit();
    let insert = WriteOp { table: TableId(2), ..insert("a", "1", n.version(), false) };
    assert!(n.leaves_bit(insert));
}

/// Rule `a-prefix-leaves-a-bit-in-each-memtable`.
#[test]
fn the_first_write_of_a_prefix_leaves_a_bit_in_each_memtable() {
    let u = TableId(2);
    let mut n = Node::new();
    let options = TableOptions { filter_prefix: 2, ..TableOptions::default() };
    n.table_with("u", 2, options);
    let bits = |n: &Node, ops: &[WriteOp]| {
        let ops = ops.iter().map(|op| WriteOp { table: u, ..op.clone() }).collect();
        let (group, _) = n.evaluate(ops);
        let writes = group.unwrap().tables.remove(0).writes;
        writes.iter().map(|w| (w.leaves_bit, w.prefix)).collect::<Vec<_>>()
    };
    let write = |n: &mut Node, op: WriteOp| n.write(WriteOp { table: u, ..op });
    let hash = |prefix: &str| Some(prefix_hash(prefix.as_bytes()));
    let new = |n: &Node, key: &str| insert(key, "1", n.version(), false);
    assert_eq!(bits(&n, &[new(&n, "ab1")]), [(false, hash("ab"))], "an INSERT too");
    assert_eq!(bits(&n, &[new(&n, "a")]), [(false, None)], "it is too short to have a prefix");
    let three = [put("ab1", "1"), put("ab2", "1"), put("cd1", "1")];
    assert_eq!(bits(&n, &three), [(true, hash("ab")), (true, None), (true, hash("cd"))], "once in a group");
    let at = n.partition.next_index();
    let first = new(&n, "ab1");
    write(&mut n, first);
    assert!(n.partition.table(u).unwrap().filter.contains(prefix_hash(b"ab")));
    assert_eq!(bits(&n, &[put("ab1", "2")]), [(false, None)]);
    assert_eq!(bits(&n, &[put("ab2", "2"), new(&n, "ab3")]), [(true, None), (false, None)]);
    assert_eq!(bits(&n, &[op("aa1", None, Condition::None)]), [(true, hash("aa"))], "a delete too");
    // What was truncated is not there, whatever is left of it.
    n.truncate_from(at);
    assert!(n.partition.table(u).unwrap().filter.contains(prefix_hash(b"ab")), "bits cannot be taken back");
    assert_eq!(bits(&n, &[put("ab2", "2")]), [(true, hash("ab"))]);
    write(&mut n, put("ab2", "2"));
    n.freeze(u);
    assert_eq!(bits(&n, &[put("ab2", "3")]), [(true, hash("ab"))], "a frozen memtable is another one");
    assert!(n.partition.table(u).unwrap().frozen[0].filter.contains(prefix_hash(b"ab")));
    // Of other tables nobody asks.
    let (group, _) = n.evaluate(vec![put("ab1", "1")]);
    assert_eq!(group.unwrap().tables[0].writes[0].prefix, None);
}

#[test]
fn a_truncated_update_leaves_its_bit_and_the_next_update_leaves_one_again() {
    // Rule `the-memtable-says-what-it-holds`.
    let mut n = Node::new();
    let first = n.partition.next_index();
    n.write(put("a", "1"));
    n.truncate_from(first);
    assert!(n.partition.table(T).unwrap().filter.contains(filter_hash(b"a")), "bits cannot be taken back");
    assert!(n.leaves_bit(put("a", "2")));
}

#[test]
fn a_flush_voids_an_insert_in_both_directions() {
    // Rule `a-flush-voids-a-check`.
    let mut n = Node::new();
    let searched = n.version();
    n.write(put("a", "1"));
    n.freeze(T);
    n.flag(T, 1, Some(sst(1)));
    for present in [false, true] {
        let (group, verdict) = n.evaluate(vec![insert("a", "2", searched, present)]);
        assert_eq!(verdict, Verdict::Refused(Refusal::StaleManifest));
        assert!(group.is_none());
    }
    let (_, verdict) = n.evaluate(vec![insert("a", "2", n.version(), true)]);
    assert!(matches!(verdict, Verdict::Unchanged { ok: false, .. }));
}

#[test]
fn a_compaction_does_not_void_a_check() {
    let mut n = Node::new();
    n.write(put("a", "1"));
    n.freeze(T);
    n.flag(T, 1, Some(sst(1)));
    let searched = n.version();
    n.command(&Command::Compaction(Compaction {
        term: 1,
        table: T,
        inputs: vec![sst(1).id],
        range: KeyRange::all(),
        outputs: vec![sst(2)],
        tombstones_dropped: true,
    }));
    assert!(matches!(n.commit()[..], [CommitEffect::Compacted { .. }]));
    let (_, verdict) = n.evaluate(vec![insert("b", "2", searched, false)]);
    assert!(matches!(verdict, Verdict::Applied(_)));
}

#[test]
fn memtables_decide_conditions_before_the_base_does() {
    let mut n = Node::new();
    n.write(put("a", "1"));
    let (_, verdict) = n.evaluate(vec![op("a", Some("2"), Condition::ValueEquals(key("1")))]);
    assert!(matches!(verdict, Verdict::Applied(_)));
    n.write(op("a", None, Condition::None));
    let (_, verdict) = n.evaluate(vec![insert("a", "3", 0, true)]);
    assert!(matches!(verdict, Verdict::Applied(_)), "a tombstone is absence, whatever the SSTables hold");
    let (_, verdict) = n.evaluate(vec![op("b", Some("3"), Condition::Present)]);
    assert_eq!(verdict, Verdict::Refused(Refusal::NeedsBase));
}

#[test]
fn a_batch_is_all_or_nothing_and_sees_its_own_writes() {
    let n = Node::new();
    let v = n.version();
    let (group, verdict) =
        n.evaluate(vec![put("a", "1"), op("a", Some("2"), Condition::ValueEquals(key("1")))]);
    assert!(matches!(verdict, Verdict::Applied(r) if r.len() == 2));
    assert_eq!(group.unwrap().seqs(), 2);
    let (group, verdict) = n.evaluate(vec![put("b", "1"), insert("c", "1", v, true)]);
    assert!(group.is_none());
    assert!(
        matches!(verdict, Verdict::Unchanged { ok: false, results } if results.iter().all(|r| !r.applied))
    );
    let skipped = WriteOp { skip_on_failure: true, ..insert("c", "1", v, true) };
    let (group, _) = n.evaluate(vec![put("b", "1"), skipped]);
    assert_eq!(group.unwrap().seqs(), 1);
}

#[test]
fn a_failed_batch_tells_no_version_of_its_own() {
    let mut n = Node::new();
    n.write(put("a", "1"));
    let was = n.partition.next_seq - 1;
    let v = n.version();
    let skipped = |op| WriteOp { skip_on_failure: true, ..op };
    let get = |op| WriteOp { returns: Returns::Before, ..op };
    let base = Some(Base::absent(ManifestVersion(v)));
    let check = |k, condition| WriteOp { effect: Effect::Check, base, ..op(k, None, condition) };
    let batch = |last| {
        vec![
            put("a", "2"),
            skipped(get(op("a", Some("3"), Condition::Absent))),
            put("a", "4"),
            check("a", Condition::None),
            op("b", Some("5"), Condition::None),
            skipped(insert("b", "6", v, true)),
            op("a", None, Condition::None),
            skipped(get(op("a", Some("7"), Condition::Present))),
            last,
        ]
    };
    let (_, Verdict::Applied(results)) = n.evaluate(batch(check("c", Condition::Absent))) else { panic!() };
    assert!(
        results[1].seq.0 > was && results[1].told.is_some(),
        "of one that takes effect: what it has written"
    );
    let (group, verdict) = n.evaluate(batch(check("c", Condition::Present)));
    let Verdict::Unchanged { ok: false, results } = verdict else { panic!("{verdict:?}") };
    assert!(group.is_none());
    let met: Vec<_> = results.iter().map(|r| (r.existed, r.seq.0)).collect();
    let (a, none) = ((true, was), (false, 0));
    assert_eq!(met, [a, a, a, a, none, none, a, a, none]);
    assert!(results.iter().all(|r| r.told.is_none() && !r.applied));
}

#[test]
fn two_inserts_of_one_key_in_one_group_do_not_both_pass() {
    let n = Node::new();
    let request =
        || WriteRequest { id: RequestId::default(), ops: vec![insert("a", "1", n.version(), false)] };
    let evaluated = n.partition.evaluate(1, &[request(), request()], 0);
    assert!(matches!(evaluated.verdicts[0], Verdict::Applied(_)));
    assert!(matches!(evaluated.verdicts[1], Verdict::Unchanged { ok: false, .. }));
}

#[test]
fn a_retry_takes_effect_once_also_within_a_group_and_after_a_failover() {
    let mut n = Node::new();
    n.command(&Command::OpenSession(OpenSession { term: 1, session: 9, time_ms: 5 }));
    let request =
        WriteRequest { id: RequestId { session: 9, number: 1, acked_below: 0 }, ops: vec![put("a", "1")] };
    let evaluated = n.partition.evaluate(1, &[request.clone(), request.clone()], 5);
    let Verdict::Applied(first) = &evaluated.verdicts[0] else { panic!("{:?}", evaluated.verdicts) };
    assert_eq!(evaluated.verdicts[1], Verdict::Unchanged { ok: true, results: first.clone() });
    n.command(&Command::Group(evaluated.group.unwrap()));
    // Another replica that has the log answers the same.
    let mut other = Partition::new(PartitionId(0));
    for (at, body) in &n.log {
        other.ingest(*at, body, false).unwrap();
    }
    let index = other.last().index;
    other.commit(index, 0);
    let evaluated = other.evaluate(2, &[request], 6);
    assert_eq!(evaluated.verdicts[0], Verdict::Unchanged { ok: true, results: first.clone() });
    let stranger =
        WriteRequest { id: RequestId { session: 8, number: 1, acked_below: 0 }, ops: vec![put("a", "1")] };
    assert_eq!(other.evaluate(2, &[stranger], 6).verdicts[0], Verdict::Refused(Refusal::UnknownSession));
}

#[test]
fn a_failed_condition_is_remembered_by_every_replica() {
    let mut n = Node::new();
    n.command(&Command::OpenSession(OpenSession { term: 1, session: 9, time_ms: 5 }));
    n.write(put("a", "1"));
    let id = |number| RequestId { session: 9, number, acked_below: 0 };
    let request = |number, op| WriteRequest { id: id(number), ops: vec![op] };
    let failing = request(1, op("a", Some("3"), Condition::ValueEquals(key("2"))));
    let skipped = request(2, WriteOp { skip_on_failure: true, ..op("a", None, Condition::Absent) });
    let evaluated = n.partition.evaluate(1, &[failing.clone(), skipped.clone(), failing.clone()], 5);
    let Verdict::Unchanged { ok: false, .. } = &evaluated.verdicts[0] else { panic!("{evaluated:?}") };
    let Verdict::Unchanged { ok: true, .. } = &evaluated.verdicts[1] else { panic!("{evaluated:?}") };
    assert_eq!(evaluated.verdicts[2], evaluated.verdicts[0], "a copy in the same group");
    let group = evaluated.group.expect("it records the answers");
    assert_eq!((group.seqs(), evaluated.runs.len()), (0, 0), "and writes nothing");
    let first_seq = n.partition.last_seq() + 1;
    assert_eq!(n.command(&Command::Group(group)), Ingested::Group { first_seq });
    // The condition would hold by the time that a delayed copy arrives, at another leader, also one that restarted.
    n.write(put("a", "2"));
    n.freeze(T);
    n.commit();
    n.flag(T, 1, Some(sst(1)));
    let snapshot = n.partition.snapshot().unwrap();
    let decoded = decode(&encode(&snapshot, PartitionId(0)), PartitionId(0)).unwrap();
    for other in [restore(&n, &snapshot), restore(&n, &decoded)] {
        let again = other.evaluate(2, &[failing.clone(), skipped.clone()], 6);
        assert_eq!(again.verdicts, evaluated.verdicts[..2]);
        assert!(again.group.is_none());
    }
    // Without a session nothing is to be remembered.
    let unnamed = WriteRequest { id: RequestId::default(), ..failing };
    let evaluated = n.partition.evaluate(1, &[unnamed], 7);
    assert!(evaluated.group.is_none() || matches!(evaluated.verdicts[0], Verdict::Refused(_)));
}
