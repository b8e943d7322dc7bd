//! The partition's rules, the scenarios of the protocol model among them, and replicas compared with each other.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use sextant_common::ids::{Generation, LogPosition, ManifestVersion, PartitionId, TableId};
use sextant_common::key::filter_hash;
use sextant_common::manifest::{SstMeta, TableOptions};

use super::Partition;
use super::commit::Change;
use super::evaluate::{Base, Condition, Op, Refusal, Request, Verdict};
use super::ingest::{Body, Ingested};
use super::snapshot::Snapshot;
use super::testing::sst;
use super::view::ReadAnswer;
use crate::command::{Command, Configuration};
use crate::memtable::Version;

const T: TableId = TableId(1);

fn key(s: &str) -> Bytes {
    Bytes::copy_from_slice(s.as_bytes())
}

/// A leader's partition and its log, all of it committed unless a test says otherwise.
struct Node {
    partition: Partition,
    term: u64,
    log: Vec<(LogPosition, Body)>,
}

impl Node {
    fn new() -> Self {
        let mut node = Self { partition: Partition::new(PartitionId(0)), term: 1, log: Vec::new() };
        node.append(Body::Blank);
        node.table("t", 1);
        node
    }

    fn table(&mut self, name: &str, id: u32) {
        let term = self.term;
        self.command(&Command::EnsureTable {
            term,
            name: name.into(),
            options: TableOptions::default(),
            id: Some(TableId(id)),
        });
        self.commit();
    }

    fn append(&mut self, body: Body) -> Ingested {
        let at = LogPosition { term: self.term, index: self.partition.next_index() };
        self.log.push((at, body.clone()));
        self.partition.ingest(at, &body, false).unwrap()
    }

    fn command(&mut self, command: &Command) -> Ingested {
        self.append(Body::Payload(command.encode()))
    }

    fn commit(&mut self) -> Vec<Change> {
        self.partition.commit(self.partition.last().index, 0)
    }

    fn evaluate(&self, ops: Vec<Op>) -> (Option<crate::command::Group>, Verdict) {
        let request = Request { session: 0, number: 0, acked_below: 0, ops };
        let mut evaluated = self.partition.evaluate(self.term, &[request], 0);
        (evaluated.group, evaluated.verdicts.remove(0))
    }

    /// Evaluates and appends; panics if nothing took effect.
    fn write(&mut self, op: Op) {
        let (group, _) = self.evaluate(vec![op]);
        assert!(matches!(self.command(&Command::Group(group.unwrap())), Ingested::Group { .. }));
    }

    fn freeze(&mut self, table: TableId) -> LogPosition {
        let generation = self.partition.table(table).unwrap().generation();
        let frozen = self.command(&Command::Freeze { term: self.term, table, generation });
        assert!(matches!(frozen, Ingested::Frozen { .. }));
        self.partition.last()
    }

    fn flag(&mut self, table: TableId, generation: u64, sst: Option<SstMeta>) -> Vec<Change> {
        let freeze = LogPosition::default();
        let term = self.term;
        self.command(&Command::Flush { term, table, generation: Generation(generation), freeze, sst });
        self.commit()
    }

    fn read(&self, k: &str, searched: u64) -> ReadAnswer {
        self.partition.view().read(T, &key(k), ManifestVersion(searched), u64::MAX)
    }

    fn truncate_from(&mut self, first: u64) {
        self.log.retain(|(at, _)| at.index < first);
        self.partition.truncate_from(first).unwrap();
    }

    fn version(&self) -> u64 {
        self.partition.manifest().version.0
    }

    /// Whether the next group's write of the key leaves a bf-log entry.
    fn leaves_bit(&self, op: Op) -> bool {
        let (group, _) = self.evaluate(vec![op]);
        group.unwrap().tables[0].writes[0].leaves_bit
    }
}

fn op(k: &str, value: Option<&str>, condition: Condition) -> Op {
    Op { table: T, key: key(k), value: value.map(key), condition, base: None, skip_on_failure: false }
}

fn put(k: &str, value: &str) -> Op {
    op(k, Some(value), Condition::None)
}

fn insert(k: &str, value: &str, version: u64, present: bool) -> Op {
    let base = Base { manifest: ManifestVersion(version), present, seq: 1, value_matches: false };
    Op { base: Some(base), ..op(k, Some(value), Condition::Absent) }
}

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
    // Model row "blind PUT treated as INSERT while a frozen memtable holds the key".
    let mut n = Node::new();
    n.write(insert("a", "1", n.version(), false));
    n.freeze(T);
    assert!(n.leaves_bit(put("a", "2")));
}

#[test]
fn filter_inserts_makes_every_new_key_leave_a_bit() {
    let mut n = Node::new();
    let options = TableOptions { filter_inserts: true, ..TableOptions::default() };
    n.command(&Command::EnsureTable { term: 1, name: "u".into(), options, id: Some(TableId(2)) });
    n.commit();
    let insert = Op { table: TableId(2), ..insert("a", "1", n.version(), false) };
    assert!(n.leaves_bit(insert));
}

#[test]
fn a_truncated_update_leaves_its_bit_and_the_next_update_leaves_one_again() {
    // Model row "is it in the memtable asked of the filter".
    let mut n = Node::new();
    let first = n.partition.next_index();
    n.write(put("a", "1"));
    n.truncate_from(first);
    assert!(n.partition.table(T).unwrap().filter.contains(filter_hash(b"a")), "bits cannot be taken back");
    assert!(n.leaves_bit(put("a", "2")));
}

#[test]
fn a_flush_voids_an_insert_in_both_directions() {
    // Model row "INSERT not voided by a flush (success or exists)".
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
    n.command(&Command::Compaction { term: 1, table: T, inputs: vec![sst(1).id], output: Some(sst(2)) });
    assert!(matches!(n.commit()[..], [Change::Compacted { .. }]));
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
    let skipped = Op { skip_on_failure: true, ..insert("c", "1", v, true) };
    let (group, _) = n.evaluate(vec![put("b", "1"), skipped]);
    assert_eq!(group.unwrap().seqs(), 1);
}

#[test]
fn two_inserts_of_one_key_in_one_group_do_not_both_pass() {
    let n = Node::new();
    let request =
        || Request { session: 0, number: 0, acked_below: 0, ops: vec![insert("a", "1", n.version(), false)] };
    let evaluated = n.partition.evaluate(1, &[request(), request()], 0);
    assert!(matches!(evaluated.verdicts[0], Verdict::Applied(_)));
    assert!(matches!(evaluated.verdicts[1], Verdict::Unchanged { ok: false, .. }));
}

#[test]
fn a_retry_takes_effect_once_also_within_a_group_and_after_a_failover() {
    let mut n = Node::new();
    n.command(&Command::OpenSession { term: 1, session: 9, time_ms: 5 });
    let request = Request { session: 9, number: 1, acked_below: 0, ops: vec![put("a", "1")] };
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
    let stranger = Request { session: 8, number: 1, acked_below: 0, ops: vec![put("a", "1")] };
    assert_eq!(other.evaluate(2, &[stranger], 6).verdicts[0], Verdict::Refused(Refusal::UnknownSession));
}

#[test]
fn a_failed_condition_is_remembered_by_every_replica() {
    let mut n = Node::new();
    n.command(&Command::OpenSession { term: 1, session: 9, time_ms: 5 });
    n.write(put("a", "1"));
    let request = |number, op| Request { session: 9, number, acked_below: 0, ops: vec![op] };
    let failing = request(1, op("a", Some("3"), Condition::ValueEquals(key("2"))));
    let skipped = request(2, Op { skip_on_failure: true, ..op("a", None, Condition::Absent) });
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
    let decoded = Snapshot::decode(&snapshot.encode(PartitionId(0)), PartitionId(0)).unwrap();
    for other in [restore(&n, &snapshot), restore(&n, &decoded)] {
        let again = other.evaluate(2, &[failing.clone(), skipped.clone()], 6);
        assert_eq!(again.verdicts, evaluated.verdicts[..2]);
        assert!(again.group.is_none());
    }
    // Without a session nothing is to be remembered.
    let unnamed = Request { session: 0, ..failing };
    let evaluated = n.partition.evaluate(1, &[unnamed], 7);
    assert!(evaluated.group.is_none() || matches!(evaluated.verdicts[0], Verdict::Refused(_)));
}

#[test]
fn a_configuration_takes_effect_when_it_is_committed_and_only_in_the_order_of_revisions() {
    let mut n = Node::new();
    let founding = Configuration::founding(&sextant_environment::config::LeaseConfig::default(), 1 << 20);
    let revision = |revision, lease_ms| Configuration { revision, lease_ms, ..founding.clone() };
    let configure = |configuration| Command::Configure { term: 1, configuration };
    assert_eq!(n.command(&configure(revision(1, 300))), Ingested::Configured);
    assert!(n.partition.configuration().is_none());
    assert_eq!(n.partition.configurations().count(), 1, "it may take effect");
    n.commit();
    let at = n.partition.last().index;
    assert_eq!(n.partition.configuration(), Some((&revision(1, 300), at)));
    // Two that were planned at once: the second is late.
    n.command(&configure(revision(2, 200)));
    n.command(&configure(revision(2, 100)));
    assert_eq!(n.partition.configurations().count(), 3);
    n.commit();
    assert_eq!(n.partition.configuration(), Some((&revision(2, 200), at + 1)));
    // One that is truncated never was.
    let first = n.partition.next_index();
    n.command(&configure(revision(3, 50)));
    n.truncate_from(first);
    assert_eq!(n.partition.configurations().count(), 1);
    // It is in the snapshot, and replay of older entries changes nothing.
    n.write(put("a", "1"));
    n.freeze(T);
    n.commit();
    n.flag(T, 1, Some(sst(1)));
    let snapshot = n.partition.snapshot().unwrap();
    let decoded = Snapshot::decode(&snapshot.encode(PartitionId(0)), PartitionId(0)).unwrap();
    let mut restored = restore(&n, &decoded);
    restored.commit(n.partition.committed_index(), 0);
    assert_eq!(restored.configuration(), n.partition.configuration());
}

#[test]
fn a_freeze_between_evaluation_and_append_voids_the_group() {
    // Model row "freeze slips between evaluation and append".
    let mut n = Node::new();
    let (group, _) = n.evaluate(vec![put("a", "1")]);
    n.write(put("b", "1"));
    n.freeze(T);
    let group = crate::command::Group { first_seq: n.partition.last_seq() + 1, ..group.unwrap() };
    assert_eq!(n.command(&Command::Group(group)), Ingested::Ignored);
    assert_eq!(n.read("a", n.version()), ReadAnswer::NoEntry);
}

#[test]
fn a_group_evaluated_before_a_lost_predecessor_is_ignored() {
    let mut n = Node::new();
    let (first, _) = n.evaluate(vec![put("a", "1")]);
    let second = crate::command::Group { first_seq: first.unwrap().first_seq + 1, ..Default::default() };
    assert_eq!(n.command(&Command::Group(second)), Ingested::Ignored);
    let stale = n.evaluate(vec![put("a", "1")]).0.unwrap();
    n.term = 2;
    assert_eq!(n.command(&Command::Group(stale)), Ingested::Ignored, "evaluated in another term");
}

#[test]
fn a_truncated_freeze_is_undone_with_its_filter() {
    let mut n = Node::new();
    n.write(put("a", "1"));
    let first = n.partition.next_index();
    n.freeze(T);
    n.write(put("b", "1"));
    n.truncate_from(first);
    let table = n.partition.table(T).unwrap();
    assert_eq!((table.generation(), table.frozen.len()), (Generation(1), 0));
    assert!(matches!(n.read("a", n.version()), ReadAnswer::Found(_)));
    assert_eq!(n.read("b", n.version()), ReadAnswer::NoEntry);
    for k in [b"a", b"b"] {
        assert!(n.partition.table(T).unwrap().filter.contains(filter_hash(k)), "filters are united");
    }
}

#[test]
fn a_memtable_is_flushable_only_when_everything_up_to_its_freeze_is_published() {
    // Model row "flush flag before everything up to the freeze is published".
    let mut n = Node::new();
    n.write(put("a", "1"));
    let freeze = n.freeze(T);
    assert_eq!(n.partition.flushable(freeze.index - 1).count(), 0);
    assert_eq!(n.partition.flushable(freeze.index).count(), 1);
}

#[test]
fn flush_flags_apply_strictly_in_freeze_order() {
    // Model row "flush flags out of freeze order".
    let mut n = Node::new();
    n.write(put("a", "1"));
    n.freeze(T);
    n.write(put("a", "2"));
    n.freeze(T);
    assert!(matches!(n.flag(T, 2, Some(sst(2)))[..], [Change::Ignored { orphan: Some(_), .. }]));
    assert!(matches!(n.flag(T, 1, Some(sst(1)))[..], [Change::Flushed { .. }]));
    assert!(matches!(n.flag(T, 1, Some(sst(3)))[..], [Change::Ignored { .. }]), "flushed already");
    assert!(matches!(n.flag(T, 2, Some(sst(2)))[..], [Change::Flushed { .. }]));
    let ssts: Vec<u32> = n.partition.manifest().table(T).unwrap().ssts.iter().map(|s| s.id.counter).collect();
    assert_eq!(ssts, [2, 1], "newest first");
}

#[test]
fn a_compaction_applies_only_while_its_inputs_are_there_and_reach_the_oldest_table() {
    // Model row "tombstone dropped while an older table outside the inputs holds the key".
    let mut n = Node::new();
    for generation in 1..=3 {
        n.write(put("a", "1"));
        n.freeze(T);
        n.flag(T, generation, Some(sst(generation as u32)));
    }
    let compact = |n: &mut Node, inputs: &[u32], output: u32| {
        let inputs = inputs.iter().map(|c| sst(*c).id).collect();
        n.command(&Command::Compaction { term: 1, table: T, inputs, output: Some(sst(output)) });
        n.commit().remove(0)
    };
    assert!(matches!(compact(&mut n, &[3, 2], 10), Change::Ignored { .. }), "table 1 is older and outside");
    assert!(matches!(compact(&mut n, &[2, 1], 11), Change::Compacted { removed, .. } if removed.len() == 2));
    assert!(matches!(compact(&mut n, &[3, 2, 1], 12), Change::Ignored { .. }), "inputs are gone");
    let ssts: Vec<u32> = n.partition.manifest().table(T).unwrap().ssts.iter().map(|s| s.id.counter).collect();
    assert_eq!(ssts, [3, 11]);
}

#[test]
fn committed_entries_are_never_truncated() {
    let mut n = Node::new();
    n.write(put("a", "1"));
    let index = n.partition.last().index;
    n.commit();
    assert!(n.partition.truncate_from(index).is_err());
}

#[test]
fn a_hole_in_the_log_is_an_error() {
    let mut n = Node::new();
    let at = LogPosition { term: 1, index: n.partition.next_index() + 1 };
    assert!(n.partition.ingest(at, &Body::Blank, false).is_err());
}

#[test]
fn replay_skips_per_table_what_its_flush_flag_covers() {
    // PASV, section 5.4: table 1 was flushed, table 2 was not and holds the log.
    let mut n = Node::new();
    n.table("u", 2);
    let both = |v: &str| vec![put("a", v), Op { table: TableId(2), ..put("a", v) }];
    let (group, _) = n.evaluate(both("1"));
    n.command(&Command::Group(group.unwrap()));
    n.commit();
    n.freeze(TableId(2));
    n.flag(TableId(2), 1, Some(SstMeta { table: TableId(2), ..sst(9) }));
    let (group, _) = n.evaluate(both("2"));
    n.command(&Command::Group(group.unwrap()));
    n.freeze(T);
    n.commit();
    n.flag(T, 1, Some(sst(1)));
    let snapshot = n.partition.snapshot().unwrap();
    // Table 2 has an unflushed write after its own freeze and before table 1's: that is where the log is needed from.
    let restored = restore(&n, &snapshot);
    assert_eq!(restored.counters.skipped, 1, "table 1's second write");
    assert_eq!(restored.counters.writes, 1, "table 2's second write");
    assert_eq!(restored.last_seq(), n.partition.last_seq());
    assert!(restored.table(T).unwrap().active.is_empty());
    let two = restored.table(TableId(2)).unwrap();
    assert_eq!(two.newest(&key("a")).unwrap().value, Some(key("2")));
    assert_eq!(restored.manifest().version, n.partition.manifest().version);
}

/// What a restart makes of a snapshot and the log after it.
fn restore(n: &Node, snapshot: &Snapshot) -> Partition {
    let bytes = snapshot.encode(PartitionId(0));
    let snapshot = Snapshot::decode(&bytes, PartitionId(0)).unwrap();
    let mut partition = Partition::restore(PartitionId(0), &snapshot);
    for (at, body) in &n.log {
        partition.ingest(*at, body, false).unwrap();
    }
    let committed = n.partition.committed_index();
    partition.commit(committed, 0);
    partition
}

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
        n.table("v", 3);
        let mut numbers = 0;
        let mut counter = 0;
        for step in steps {
            match step {
                Step::Write { table, key: k, delete, session } => {
                    numbers += 1;
                    let value = (!delete).then(|| key(&numbers.to_string()));
                    let op = Op { table: TableId(table), value, ..put(&format!("{k}"), "") };
                    let request = Request {
                        session: session.unwrap_or(0), number: numbers, acked_below: numbers.saturating_sub(3), ops: vec![op],
                    };
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
                        n.command(&Command::Flush { term, table: id, generation, freeze, sst: Some(meta) });
                    }
                }
                Step::Session(id) => { let term = n.term; n.command(&Command::OpenSession { term, session: id, time_ms: numbers }); }
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
                for write in writes.writes.iter().filter(|w| w.leaves_bit) {
                    if let Some(filter) = filter {
                        prop_assert!(filter.contains(filter_hash(&write.key)), "{at}");
                    }
                }
            }
        }
        if let Some(snapshot) = n.partition.snapshot() {
            let restored = restore(&n, &snapshot);
            prop_assert_eq!(state(&restored), state(&fresh));
        }
    }
}

#[test]
fn readers_of_an_old_view_are_not_disturbed() {
    let mut n = Node::new();
    n.write(put("a", "1"));
    let view = Arc::new(n.partition.view());
    let version = ManifestVersion(n.version());
    n.freeze(T);
    n.commit();
    n.flag(T, 1, Some(sst(1)));
    n.partition.end_grace(u64::MAX, 0);
    assert!(matches!(view.read(T, &key("a"), version, u64::MAX), ReadAnswer::Found(_)));
    assert_eq!(n.read("a", version.0), ReadAnswer::StaleManifest);
    assert_eq!(n.read("a", version.0 + 1), ReadAnswer::NoEntry);
}
