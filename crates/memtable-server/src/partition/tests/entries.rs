//! Configurations, freezes, flags, truncation, replay.

use super::*;

#[test]
fn a_configuration_takes_effect_when_it_is_committed_and_only_in_the_order_of_revisions() {
    let mut n = Node::new();
    let founding = Configuration::founding(&sextant_environment::config::LeaseConfig::default(), 1 << 20);
    let revision = |revision, lease_ms| Configuration { revision, lease_ms, ..founding.clone() };
    let configure = |configuration| Command::Configure(Configure { term: 1, configuration });
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
    let decoded = decode(&encode(&snapshot, PartitionId(0)), PartitionId(0)).unwrap();
    let mut restored = restore(&n, &decoded);
    restored.commit(n.partition.committed_index(), 0);
    assert_eq!(restored.configuration(), n.partition.configuration());
}

#[test]
fn a_configuration_of_a_newer_format_is_not_taken_in() {
    let mut n = Node::new();
    n.partition.format_max = 0;
    let founding = Configuration::founding(&sextant_environment::config::LeaseConfig::default(), 1 << 20);
    let configure = |format| {
        let configuration = Configuration { format, ..founding.clone() };
        Body::Payload(Command::Configure(Configure { term: 1, configuration }).encode())
    };
    let at = LogPosition { term: 1, index: n.partition.next_index() };
    let refused = n.partition.ingest(at, &configure(1), false).unwrap_err();
    assert_eq!(refused.kind, sextant_common::ErrorKind::Outdated);
    assert!(refused.message.contains("has format 1, this server reads up to 0"), "{refused}");
    assert_eq!(n.partition.next_index(), at.index);
    assert_eq!(n.partition.ingest(at, &configure(0), false).unwrap(), Ingested::Configured);
}

#[test]
fn a_freeze_between_evaluation_and_append_voids_the_group() {
    // Rule `generations-are-compared`.
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
    // Rule `a-flush-follows-publication`.
    let mut n = Node::new();
    n.write(put("a", "1"));
    let freeze = n.freeze(T);
    assert_eq!(n.partition.flushable(freeze.index - 1).count(), 0);
    assert_eq!(n.partition.flushable(freeze.index).count(), 1);
}

#[test]
fn flush_flags_apply_strictly_in_freeze_order() {
    // Rule `flags-are-in-freeze-order`.
    let mut n = Node::new();
    n.write(put("a", "1"));
    n.freeze(T);
    n.write(put("a", "2"));
    n.freeze(T);
    assert!(matches!(n.flag(T, 2, Some(sst(2)))[..], [CommitEffect::Ignored { orphan: Some(_), .. }]));
    assert!(matches!(n.flag(T, 1, Some(sst(1)))[..], [CommitEffect::Flushed { .. }]));
    assert!(matches!(n.flag(T, 1, Some(sst(3)))[..], [CommitEffect::Ignored { .. }]), "flushed already");
    assert!(matches!(n.flag(T, 2, Some(sst(2)))[..], [CommitEffect::Flushed { .. }]));
    let ssts: Vec<u32> = n.partition.manifest().table(T).unwrap().ssts.iter().map(|s| s.id.counter).collect();
    assert_eq!(ssts, [2, 1], "newest first");
}

#[test]
fn tables_are_elsewhere_only_on_the_manifest_that_was_meant_and_keep_a_server() {
    let mut n = Node::new();
    n.write(put("a", "1"));
    n.freeze(T);
    n.flag(T, 1, Some(SstMeta { replicas: vec![NodeId(1), NodeId(2)], ..sst(1) }));
    let place = |n: &mut Node, version: u64, add: u64, remove: u64| {
        let node = |node: u64| (node > 0).then_some(NodeId(node));
        let relocations = vec![Relocation { id: sst(1).id, add: node(add), remove: node(remove) }];
        let version = ManifestVersion(version);
        n.command(&Command::Placement(Placement { term: 1, version, relocations }));
        assert_eq!(n.commit(), [CommitEffect::Placed]);
        let manifest = n.partition.manifest();
        let replicas = manifest.table(T).unwrap().ssts[0].replicas.iter().map(|id| id.0).collect::<Vec<_>>();
        (manifest.version.0, replicas)
    };
    let version = n.version();
    assert_eq!(place(&mut n, version, 3, 1), (version + 1, vec![2, 3]));
    assert_eq!(place(&mut n, version, 4, 2), (version + 1, vec![2, 3]), "the manifest is another one");
    assert_eq!(place(&mut n, version + 2, 4, 2), (version + 1, vec![2, 3]));
    assert_eq!(place(&mut n, version + 1, 3, 2), (version + 2, vec![3]));
    assert_eq!(place(&mut n, version + 2, 0, 3), (version + 3, vec![3]), "the last one stays");
}

#[test]
fn a_compaction_applies_only_while_its_inputs_are_there_and_hide_all_that_they_hid() {
    // Rule `a-tombstone-stays-above-older-tables`.
    let mut n = Node::new();
    for generation in 1..=3 {
        n.write(put("a", "1"));
        n.freeze(T);
        n.flag(T, generation, Some(sst(generation as u32)));
    }
    let compact_so = |n: &mut Node, inputs: &[u32], output: u32, tombstones_dropped| {
        let (inputs, outputs) = (inputs.iter().map(|c| sst(*c).id).collect(), vec![sst(output)]);
        let range = KeyRange::all();
        let compaction = Compaction { term: 1, table: T, inputs, range, outputs, tombstones_dropped };
        n.command(&Command::Compaction(compaction));
        n.commit().remove(0)
    };
    let compact = |n: &mut Node, inputs: &[u32], output| compact_so(n, inputs, output, true);
    assert!(
        matches!(compact(&mut n, &[3, 2], 10), CommitEffect::NotCompacted(_)),
        "table 1 is older and outside"
    );
    assert!(
        matches!(compact(&mut n, &[2, 1], 11), CommitEffect::Compacted { removed, .. } if removed.len() == 2)
    );
    assert!(matches!(compact(&mut n, &[3, 2, 1], 12), CommitEffect::NotCompacted(_)), "inputs are gone");
    let ssts: Vec<u32> = n.partition.manifest().table(T).unwrap().ssts.iter().map(|s| s.id.counter).collect();
    assert_eq!(ssts, [3, 11]);
    n.write(put("a", "1"));
    n.freeze(T);
    n.flag(T, 4, Some(sst(4)));
    assert!(matches!(compact(&mut n, &[4, 3], 13), CommitEffect::NotCompacted(_)));
    assert!(
        matches!(compact_so(&mut n, &[4, 11], 13, false), CommitEffect::NotCompacted(_)),
        "no neighbours"
    );
    assert!(matches!(compact_so(&mut n, &[4, 3], 13, false), CommitEffect::Compacted { .. }));
    let ssts: Vec<u32> = n.partition.manifest().table(T).unwrap().ssts.iter().map(|s| s.id.counter).collect();
    assert_eq!(ssts, [13, 11]);
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
    let both = |v: &str| vec![put("a", v), WriteOp { table: TableId(2), ..put("a", v) }];
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
