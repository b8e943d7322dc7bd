//! What an archive is told of entries is what they did here: also of those that did nothing, and after a restart.

use std::collections::BTreeMap;

use super::*;
use crate::command::Load;
use crate::partition::effects::{Effect as Done, effect};
use sextant_common::ids::LoadId;

/// The records that the log's entries have left, by what is told of each.
fn told(partition: &Partition, log: &[(LogPosition, Body)]) -> BTreeMap<Bytes, (u64, Option<Bytes>)> {
    let since = partition.verdicts().known_after();
    let mut records = BTreeMap::new();
    for (at, body) in log.iter().filter(|(at, _)| at.index > since.index || since == LogPosition::default()) {
        if let Done::Wrote(group) = effect(*at, body, partition.verdicts()).unwrap() {
            assert_eq!(group.index, at.index);
            for (table, record) in group.records() {
                assert_eq!(table, T);
                let before = records.insert(record.key.clone(), (record.seq.0, record.value.clone()));
                assert!(before.is_none_or(|(seq, _)| seq < record.seq.0), "seqs rise");
            }
        }
    }
    records
}

fn here(partition: &Partition, k: &str) -> Option<(u64, Option<Bytes>)> {
    match partition.view().read(T, &key(k), ManifestVersion(u64::MAX), u64::MAX) {
        ReadAnswer::Found(Version { seq, value, .. }) => Some((seq, value)),
        _ => None,
    }
}

#[test]
fn a_load_is_told_and_one_that_did_not_fit_is_nothing() {
    let mut n = Node::new();
    let load = |next_seq| {
        Command::Load(Load {
            term: 1,
            table: T,
            id: LoadId(7),
            generation: Generation(1),
            next_seq,
            seq: 1 << 20,
            flushed: Generation(100),
            ssts: vec![sst(3)],
        })
    };
    for (next_seq, expected) in [(5, Done::Nothing), (1, Done::Unwritten)] {
        n.command(&load(next_seq));
        let (at, body) = n.log.last().unwrap();
        assert_eq!(effect(*at, body, n.partition.verdicts()).unwrap(), expected);
    }
}

proptest! {
    #[test]
    fn what_is_told_of_entries_is_what_the_memtables_have(steps in prop::collection::vec((0u8..8, 0u8..4, any::<u8>()), 1..60), flushed in any::<bool>()) {
        let mut n = Node::new();
        let mut late = None;
        for (step, k, value) in steps {
            let (k, value) = (k.to_string(), value.to_string());
            let write = |n: &Node, value: Option<&str>| n.evaluate(vec![op(&k, value, Condition::None)]).0.unwrap();
            match step {
                0..=2 => drop(n.command(&Command::Group(write(&n, Some(&value))))),
                3 => drop(n.command(&Command::Group(write(&n, None)))),
                // One that will come when the log is another one.
                4 => late = Some(write(&n, Some(&value))),
                5 => {
                    if let Some(group) = late.take() {
                        n.command(&Command::Group(group));
                    }
                }
                6 => drop(n.freeze(T)),
                _ => {
                    let first = n.partition.next_index().saturating_sub(2).max(n.partition.committed_index() + 1);
                    n.truncate_from(first);
                    n.term += u64::from(value.len() == 1);
                }
            }
        }
        n.commit();
        let told_here = told(&n.partition, &n.log);
        for k in ["0", "1", "2", "3"] {
            prop_assert_eq!(told_here.get(&key(k)).cloned(), here(&n.partition, k));
        }
        if flushed {
            // A restart knows of what comes after its snapshot, and says the same of it.
            n.write(put("0", "before"));
            n.freeze(T);
            n.commit();
            while let Some(generation) = n.partition.table(T).unwrap().frozen.front().map(|f| f.memtable.generation) {
                n.flag(T, generation.0, Some(sst(generation.0 as u32)));
            }
            n.write(put("1", "after"));
            n.commit();
            let snapshot = n.partition.snapshot().unwrap();
            let restarted = restore(&n, &snapshot);
            prop_assert_eq!(restarted.verdicts().known_after(), snapshot.checkpoint.at);
            let after = told(&restarted, &n.log);
            prop_assert_eq!(after.keys().collect::<Vec<_>>(), [&key("1")]);
        }
    }
}
