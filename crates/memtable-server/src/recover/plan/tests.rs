//! Histories of flushes and compactions, and what is left of them on the servers.

use proptest::prelude::*;
use sextant_common::ids::{Epoch, LogPosition};

use super::*;

const P: PartitionId = PartitionId(2);
const T: TableId = TableId(1);

fn id(counter: u32) -> SstId {
    SstId {
        partition: P,
        plan: LogPosition { term: 3, index: u64::from(counter) },
        epoch: Epoch { term: 4, incarnation: 1 },
        counter,
    }
}

/// Of table 1, lineage 7, on server 1, with the seqs from ten times its first generation on.
fn at(counter: u32, first: u64, last: u64) -> Found {
    let generations = Generations::new(first, last);
    let meta = SstMeta {
        id: id(counter),
        table: T,
        records: 1,
        tombstones: 0,
        min_key: "a".into(),
        max_key: "z".into(),
        min_seq: first * 10,
        max_seq: last * 10 + 9,
        file_bytes: 100,
        checksum: u64::from(counter),
        generations,
        expiring: Default::default(),
        replicas: vec![],
    };
    let origin = Some(Origin { lineage: 7, name: "t".into(), generations });
    let contents = Some(Contents { meta, options: TableOptions::default(), origin });
    Found { server: NodeId(1), holding: Holding { id: id(counter), damaged: false, contents } }
}

fn contents(found: &mut Found) -> &mut Contents {
    found.holding.contents.as_mut().unwrap()
}

fn damaged(mut found: Found) -> Found {
    found.holding.damaged = true;
    found
}

fn of_lineage(lineage: u64, mut found: Found) -> Found {
    contents(&mut found).origin.as_mut().unwrap().lineage = lineage;
    found
}

fn chosen(found: &[Found]) -> Vec<u32> {
    let plan = plan(P, found).unwrap();
    assert_eq!(plan.losses, Vec::<String>::new());
    plan.tables[0].ssts.iter().map(|c| c.meta.id.counter).collect()
}

fn loss(found: &[Found], words: &[&str]) {
    let losses = plan(P, found).unwrap().losses;
    assert_eq!(losses.len(), 1, "{losses:?}");
    words.iter().for_each(|word| assert!(losses[0].contains(word), "{losses:?}"));
}

fn refused(found: &[Found], words: &[&str]) {
    let error = plan(P, found).unwrap_err();
    words.iter().for_each(|word| assert!(error.message.contains(word), "{error}"));
}

#[test]
fn no_tables_make_an_empty_plan() {
    assert_eq!(plan(P, &[]).unwrap(), Plan::default());
}

#[test]
fn newest_first_and_what_was_compacted_is_left_out() {
    assert_eq!(chosen(&[at(1, 1, 1), at(3, 3, 4), at(2, 2, 2)]), [3, 2, 1]);
    // A compaction's output and what is left of its inputs; a flush after it.
    assert_eq!(chosen(&[at(1, 1, 1), at(9, 1, 2), at(3, 3, 3)]), [3, 9]);
    // Compactions of compactions, one of them never committed.
    assert_eq!(chosen(&[at(9, 1, 2), at(10, 1, 3), at(3, 3, 3), at(4, 4, 4)]), [4, 10]);
}

#[test]
fn of_two_attempts_at_one_memtable_the_one_that_more_servers_have_is_taken() {
    let elsewhere = Found { server: NodeId(2), ..at(6, 1, 1) };
    assert_eq!(chosen(&[at(5, 1, 1), at(6, 1, 1), elsewhere]), [6]);
}

#[test]
fn a_flushed_memtable_that_no_table_holds_is_missed() {
    loss(&[at(1, 1, 1), at(3, 3, 3)], &["memtables 2 to 2"]);
    loss(&[at(3, 3, 3)], &["memtables 1 to 2"]);
    loss(&[at(5, 5, 5), at(2, 1, 2)], &["memtables 3 to 4"]);
}

#[test]
fn a_table_that_nobody_can_read_is_missed() {
    let mut unreadable = damaged(at(7, 2, 2));
    unreadable.holding.contents = None;
    loss(&[at(1, 1, 1), unreadable.clone()], &["p2-3-7-4.1-7", "cannot be read"]);
    let sound = Found { server: NodeId(2), ..at(7, 2, 2) };
    assert_eq!(chosen(&[at(1, 1, 1), unreadable, sound]), [7, 1]);
}

#[test]
fn a_damaged_table_is_kept_unless_what_it_was_made_of_is_there() {
    let damaged = damaged(at(9, 1, 2));
    let whole = [damaged.clone(), at(1, 1, 1), at(2, 2, 2), at(3, 3, 3)];
    assert_eq!(chosen(&whole), [3, 2, 1]);
    // With a part of it only, older versions could come back: rather an error for what cannot be read.
    assert_eq!(chosen(&[damaged.clone(), at(1, 1, 1), at(3, 3, 3)]), [3, 9]);
    let elsewhere = Found { server: NodeId(2), ..at(9, 1, 2) };
    let plan = plan(P, &[damaged, elsewhere]).unwrap();
    let nine = &plan.tables[0].ssts[0];
    assert_eq!((nine.holders.as_slice(), nine.sound), (&[NodeId(2), NodeId(1)][..], 1));
}

/// On servers 1 to `copies`.
fn on(copies: u64, found: &Found) -> Vec<Found> {
    (1..=copies).map(|server| Found { server: NodeId(server), ..found.clone() }).collect()
}

#[test]
fn of_a_compaction_and_its_inputs_those_are_taken_that_more_servers_have() {
    // The compaction was done on one server, and its inputs are everywhere: with that server the records would be gone, as soon as
    // the inputs are deleted as superseded.
    let inputs = [on(3, &at(1, 1, 1)), on(3, &at(2, 2, 2))].concat();
    let with = |copies| [inputs.clone(), on(copies, &at(9, 1, 2)), vec![at(3, 3, 3)]].concat();
    assert_eq!(chosen(&with(1)), [3, 2, 1]);
    assert_eq!(chosen(&with(2)), [3, 2, 1]);
    assert_eq!(chosen(&with(3)), [3, 9]);
    // The input of which there are fewest counts, and those that are damaged do not.
    let rare = [on(3, &at(1, 1, 1)), on(1, &at(2, 2, 2)), on(2, &at(9, 1, 2))].concat();
    assert_eq!(chosen(&rare), [9]);
    let damaged = on(2, &at(2, 2, 2)).into_iter().map(damaged);
    let damaged: Vec<Found> =
        [on(3, &at(1, 1, 1)), on(1, &at(9, 1, 2))].concat().into_iter().chain(damaged).collect();
    assert_eq!(chosen(&damaged), [9]);
    // Inputs that are not complete are no alternative.
    assert_eq!(chosen(&[on(3, &at(1, 1, 1)), on(1, &at(9, 1, 2))].concat()), [9]);
    // A compaction of a compaction: each part is judged by itself.
    let nested = [inputs.clone(), on(2, &at(9, 1, 2)), on(3, &at(3, 3, 3)), on(1, &at(10, 1, 3))].concat();
    assert_eq!(chosen(&nested), [3, 2, 1]);
    // Nor are tables that lie across each other, as long as there is what was made of them.
    let odd = [on(3, &at(1, 1, 2)), on(3, &at(2, 2, 3))].concat();
    assert_eq!(chosen(&[odd.clone(), on(1, &at(9, 1, 3))].concat()), [9]);
    assert_eq!(chosen(&odd), [2, 1]);
    let notes = plan(P, &with(1)).unwrap().notes;
    assert!(notes.iter().any(|note| note.contains("is sound on 1 servers only")), "{notes:?}");
}

#[test]
fn a_compaction_that_was_never_committed_and_lies_across_others_is_no_damage() {
    // All of 1 to 5 was to be one; then 4 to 7 became one, and 4 and 5 are deleted.
    let (across, newer) = (at(10, 1, 5), at(11, 4, 7));
    let rest = [at(3, 3, 3), at(2, 2, 2), at(1, 1, 1)];
    assert_eq!(chosen(&[&[across.clone(), newer.clone()], &rest[..]].concat()), [11, 3, 2, 1]);
    // If one of the others is lost too, it holds the same.
    assert_eq!(chosen(&[&[across.clone(), newer.clone()], &rest[1..]].concat()), [11, 10]);
    // The one that was to be replaced is still there.
    let (six, seven) = (at(6, 6, 6), at(7, 7, 7));
    assert_eq!(chosen(&[across.clone(), six, seven.clone()]), [7, 6, 10]);
    loss(&[across, seven], &["memtables 6 to 6"]);
}

#[test]
fn what_contradicts_itself_is_refused() {
    refused(&[at(1, 1, 1), of_lineage(8, at(2, 2, 2))], &["several lineages"]);
    let mut old = at(1, 1, 1);
    contents(&mut old).origin = None;
    refused(&[old], &["older version"]);
    let mut renamed = at(2, 2, 2);
    contents(&mut renamed).origin.as_mut().unwrap().name = "u".into();
    refused(&[at(1, 1, 1), renamed], &["\"u\""]);
    let mut swapped = at(2, 2, 2);
    contents(&mut swapped).meta.min_seq = 5;
    refused(&[at(1, 1, 1), swapped], &["another order"]);
}

#[test]
fn the_highest_numbers_are_those_of_any_table_chosen_or_not() {
    let plan = plan(P, &[at(1, 1, 1), at(40, 1, 1), at(9, 1, 2)]).unwrap();
    assert_eq!((plan.newest_seq, plan.newest_term, plan.newest_index), (29, 4, 40));
    assert_eq!(plan.lineage, Some(7));
}

type Records = BTreeMap<u8, (u64, Option<u64>)>;

#[derive(Clone, Debug)]
enum Step {
    Put(u8),
    Delete(u8),
    /// The memtable is flushed, at the first attempt or after others that were not flagged.
    Flush {
        attempts: u8,
    },
    /// A compaction of so many of the newest tables is planned and done, but not committed yet.
    Compact {
        newest: u8,
    },
    /// The compaction that was planned last is committed, if it still can be.
    Commit,
    /// A server deletes, or loses, a table that the manifest does not name.
    Forget {
        server: u8,
        table: u8,
    },
    /// A server loses its copy of a table that others have.
    Lose {
        server: u8,
        table: u8,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..6).prop_map(Step::Put),
        3 => (0u8..6).prop_map(Step::Delete),
        4 => (1u8..4).prop_map(|attempts| Step::Flush { attempts }),
        3 => (1u8..8).prop_map(|newest| Step::Compact { newest }),
        2 => Just(Step::Commit),
        4 => (0u8..3, any::<u8>()).prop_map(|(server, table)| Step::Forget { server, table }),
        2 => (0u8..3, any::<u8>()).prop_map(|(server, table)| Step::Lose { server, table }),
    ]
}

#[derive(Clone)]
struct Sealed {
    generations: Generations,
    records: Records,
    servers: BTreeSet<u8>,
}

#[derive(Default)]
struct History {
    seq: u64,
    flushed: u64,
    active: Records,
    tables: BTreeMap<u32, Sealed>,
    /// Newest first.
    manifest: Vec<u32>,
    compacting: Option<(Vec<u32>, u32)>,
}

/// What the tables (newest first) say of a key.
fn read(tables: &[&Records], key: u8) -> Option<u64> {
    tables.iter().find_map(|records| records.get(&key)).and_then(|(_, value)| *value)
}

impl History {
    fn seal(&mut self, generations: Generations, records: Records) -> u32 {
        let counter = self.tables.len() as u32 + 1;
        self.tables.insert(counter, Sealed { generations, records, servers: BTreeSet::from([0, 1, 2]) });
        counter
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Put(key) => {
                self.seq += 1;
                self.active.insert(key, (self.seq, Some(self.seq)));
            }
            Step::Delete(key) => {
                self.seq += 1;
                self.active.insert(key, (self.seq, None));
            }
            Step::Flush { attempts } => {
                self.flushed += 1;
                let records = std::mem::take(&mut self.active);
                if records.is_empty() {
                    return;
                }
                let newest = self.manifest.first().map_or(0, |t| self.tables[t].generations.last.0);
                let generations = Generations::new(newest + 1, self.flushed);
                for _ in 1..attempts {
                    self.seal(generations, records.clone());
                }
                let flagged = self.seal(generations, records);
                self.manifest.insert(0, flagged);
            }
            Step::Compact { newest } => {
                let many = self.manifest.len().min(newest as usize);
                let Some(oldest) = many.checked_sub(1).map(|at| self.manifest[at]) else { return };
                let drops = many == self.manifest.len();
                let first = if drops { 1 } else { self.tables[&oldest].generations.first.0 };
                let last = self.tables[&self.manifest[0]].generations.last.0;
                let inputs = self.manifest[..many].to_vec();
                let mut kept = Records::new();
                for table in inputs.iter().rev() {
                    kept.extend(self.tables[table].records.clone());
                }
                let proof = kept.iter().max_by_key(|(_, (seq, _))| *seq).map(|(k, v)| (*k, *v));
                if drops {
                    kept.retain(|_, (_, value)| value.is_some());
                }
                if kept.is_empty() {
                    kept.extend(proof);
                }
                let output = self.seal(Generations::new(first, last), kept);
                self.compacting = Some((inputs, output));
            }
            Step::Commit => {
                if let Some((inputs, output)) = self.compacting.take()
                    && let Some(start) = self.manifest.iter().position(|t| *t == inputs[0])
                    && self.manifest[start..].starts_with(&inputs)
                {
                    self.manifest.splice(start..start + inputs.len(), [output]);
                }
            }
            Step::Forget { server, table } => {
                // An output that is not committed may be deleted too, and then never is.
                let free: Vec<u32> =
                    self.tables.keys().copied().filter(|t| !self.manifest.contains(t)).collect();
                let Some(table) = free.get(table as usize % free.len().max(1)) else { return };
                if self.compacting.as_ref().is_some_and(|(_, output)| output == table) {
                    self.compacting = None;
                }
                if let Some(sealed) = self.tables.get_mut(table) {
                    sealed.servers.remove(&server);
                }
            }
            Step::Lose { server, table } => {
                let Some(table) = self.manifest.get(table as usize % self.manifest.len().max(1)) else {
                    return;
                };
                if let Some(sealed) = self.tables.get_mut(table)
                    && sealed.servers.len() > 1
                {
                    sealed.servers.remove(&server);
                }
            }
        }
    }

    fn inventories(&self) -> Vec<Found> {
        let of = |(counter, sealed): (&u32, &Sealed)| {
            let mut found = at(*counter, sealed.generations.first.0, sealed.generations.last.0);
            let meta = &mut contents(&mut found).meta;
            let seqs = sealed.records.values().map(|(seq, _)| *seq);
            meta.min_seq = seqs.clone().min().unwrap();
            meta.max_seq = seqs.max().unwrap();
            let copies =
                sealed.servers.iter().map(|s| Found { server: NodeId(u64::from(*s) + 1), ..found.clone() });
            copies.collect::<Vec<_>>()
        };
        self.tables.iter().flat_map(of).collect()
    }
}

proptest! {
    /// No flushed record is lost, and none comes back that a newer one had ended: whatever was compacted, tried twice, deleted on some
    /// servers and not on others.
    #[test]
    fn a_rebuilt_manifest_reads_like_the_one_that_was_lost(steps in prop::collection::vec(step(), 0..80)) {
        let mut history = History::default();
        steps.iter().for_each(|step| history.step(step));
        let plan = plan(P, &history.inventories()).unwrap();
        prop_assert!(plan.losses.is_empty(), "{:?}", plan.losses);
        let lost: Vec<&Records> = history.manifest.iter().map(|t| &history.tables[t].records).collect();
        let ssts = plan.tables.first().map_or(&[][..], |t| &t.ssts);
        let rebuilt: Vec<&Records> = ssts.iter().map(|c| &history.tables[&c.meta.id.counter].records).collect();
        for key in 0..6 {
            prop_assert_eq!(read(&rebuilt, key), read(&lost, key), "key {}", key);
        }
        for chosen in ssts {
            prop_assert!(!chosen.holders.is_empty());
        }
    }
}
