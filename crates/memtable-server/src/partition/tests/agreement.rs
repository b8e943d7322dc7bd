//! Replicas compared with each other.

use super::*;

#[test]
fn an_empty_table_does_not_hold_the_log() {
    let mut n = Node::new();
    n.table("idle", 2);
    n.write(put("a", "1"));
    let freeze = n.freeze(T);
    n.commit();
    assert_eq!(n.partition.persisted(), LogPosition::default());
    n.flag(T, 1, Some(sst(1)));
    assert_eq!(n.partition.persisted(), freeze);
}

/// Everything that must agree between replicas.
fn state(p: &Partition) -> String {
    let mut out = format!("{} {} {} {:?}\n", p.last(), p.last_seq(), p.time_ms(), p.manifest());
    for (id, session) in p.sessions().iter() {
        out += &format!("session {id} {session:?}\n");
    }
    for (id, table) in p.tables() {
        out +=
            &format!("table {id} generation {} flushed {}\n", table.generation(), table.flushed_generation);
        let memtables: Vec<_> =
            table.frozen.iter().map(|f| f.memtable.clone()).chain([table.active.clone()]).collect();
        for m in memtables {
            let versions: Vec<(Bytes, Version)> =
                m.range(std::ops::Bound::Unbounded, std::ops::Bound::Unbounded, u64::MAX).collect();
            out += &format!("  memtable {} {versions:?} {} bytes\n", m.generation, m.bytes());
        }
    }
    out
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        table: u32,
        key: u8,
        delete: bool,
        session: Option<u64>,
    },
    Freeze {
        table: u32,
    },
    Flag {
        table: u32,
    },
    Session(u64),
    Commit,
    /// Truncates so many uncommitted entries, in a new term.
    Truncate(u8),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (1u32..4, 0u8..12, any::<bool>(), prop::option::of(1u64..4))
            .prop_map(|(table, key, delete, session)| Step::Write { table, key, delete, session }),
        2 => (1u32..4).prop_map(|table| Step::Freeze { table }),
        2 => (1u32..4).prop_map(|table| Step::Flag { table }),
        1 => (1u64..4).prop_map(Step::Session),
        3 => Just(Step::Commit),
        2 => (1u8..6).prop_map(Step::Truncate),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A replica that lived through truncations, and one that restarted from its snapshot, end in the state of one that just
    /// ingested the final log.
    #[test]
    fn replicas_agree_after_truncations_and_restarts(steps in steps()) {
        let mut n = Node::new();
        n.table("u", 2);
        n.table_with("v", 3, TableOptions { filter_prefix: 1, ..TableOptions::default() });
        let mut numbers = 0u64;
        let mut counter = 0;
        for step in steps {
            match step {
                Step::Write { table, key: k, delete, session } => {
                    numbers += 1;
                    let effect = if delete { Effect::Delete } else { Effect::Put(key(&numbers.to_string())) };
                    let op = WriteOp { table: TableId(table), effect, ..put(&format!("{k}"), "") };
                    let acked_below = numbers.saturating_sub(3);
                    let id = RequestId { session: session.unwrap_or(0), number: numbers, acked_below };
                    let request = WriteRequest { id, ops: vec![op] };
                    if let Some(group) = n.partition.evaluate(n.term, &[request], numbers * 1000).group {
                        let ingested = n.command(&Command::Group(group));
                        prop_assert!(matches!(ingested, Ingested::Group { .. }), "{ingested:?}");
                    }
                }
                Step::Freeze { table } => { n.freeze(TableId(table)); }
                Step::Flag { table } => {
                    // Only committed freezes are flushed.
                    n.commit();
                    let id = TableId(table);
                    let oldest = n.partition.table(id).unwrap().frozen.front().map(|f| (f.memtable.generation, f.freeze));
                    if let Some((generation, freeze)) = oldest {
                        counter += 1;
                        let meta = SstMeta { table: id, ..sst(counter) };
                        let term = n.term;
                        n.command(&Command::Flush(Flush { term, table: id, generation, freeze, sst: Some(meta) }));
                    }
                }
                Step::Session(id) => { let term = n.term; n.command(&Command::OpenSession(OpenSession { term, session: id, time_ms: numbers })); }
                Step::Commit => { n.commit(); }
                Step::Truncate(count) => {
                    let first = n.partition.next_index().saturating_sub(u64::from(count)).max(n.partition.committed_index() + 1);
                    if first < n.partition.next_index() {
                        n.truncate_from(first);
                    }
                    n.term += 1;
                    n.append(Body::Blank);
                }
                Step::Restart => {
                    if let Some(snapshot) = n.partition.snapshot() {
                        n.partition = restore(&n, &snapshot);
                    }
                }
            }
        }
        n.commit();
        let mut fresh = Partition::new(PartitionId(0));
        for (at, body) in &n.log {
            fresh.ingest(*at, body, false).unwrap();
        }
        fresh.commit(n.partition.committed_index(), 0);
        prop_assert_eq!(state(&n.partition), state(&fresh));
        // Filters contain every key that left a bit.
        for (at, body) in &n.log {
            let Body::Payload(bytes) = body else { continue };
            let Command::Group(group) = Command::decode(bytes).unwrap() else { continue };
            for writes in group.tables {
                let table = n.partition.table(writes.table).unwrap();
                let filter = if writes.generation == table.generation() { Some(&table.filter) } else {
                    table.frozen.iter().find(|f| f.memtable.generation == writes.generation).map(|f| &f.filter)
                };
                for hash in writes.writes.iter().flat_map(|w| w.bits()) {
                    if let Some(filter) = filter {
                        prop_assert!(filter.contains(hash), "{at}");
                    }
                }
            }
        }
        // And the prefix of every key that is there.
        let prefixed = n.partition.table(TableId(3)).unwrap();
        let frozen = prefixed.frozen.iter().map(|f| (&f.memtable, &f.filter));
        for (memtable, filter) in frozen.chain([(&prefixed.active, &prefixed.filter)]) {
            let all = memtable.range(std::ops::Bound::Unbounded, std::ops::Bound::Unbounded, u64::MAX);
            for (key, _) in all {
                prop_assert!(filter.contains(prefix_hash(&key[..1])), "{key:?}");
                prop_assert!(memtable.has_prefix(&key[..1]));
            }
        }
        if let Some(snapshot) = n.partition.snapshot() {
            let restored = restore(&n, &snapshot);
            prop_assert_eq!(state(&restored), state(&fresh));
        }
    }
}
