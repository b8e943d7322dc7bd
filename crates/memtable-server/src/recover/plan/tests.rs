//! Histories of flushes and compactions, and what is left of them on the servers.

use proptest::prelude::*;
use sextant_common::command::Compaction;
use sextant_common::ids::{Epoch, LogPosition};

use super::*;
use crate::partition::columns::{Replaced, has_older, replaced};

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
        range: Default::default(),
        expiring: Default::default(),
        replicas: vec![],
    };
    let origin = Some(Origin { lineage: 7, name: "t".into(), generations, range: KeyRange::all() });
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

/// The same, for a part of the keys.
fn of_keys(start: &'static str, end: &'static str, mut found: Found) -> Found {
    let range = KeyRange::new(start, end);
    let Contents { meta, origin, .. } = contents(&mut found);
    meta.range = range.clone();
    origin.as_mut().unwrap().range = range;
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
fn a_load_jumps_over_generations_and_what_is_lost_of_it_or_after_it_is_missed() {
    let first = load::first_generation(3, 1, Generation(2)).unwrap().0;
    let loaded = |counter, generation| {
        let mut found = at(counter, generation, generation);
        (contents(&mut found).meta.min_seq, contents(&mut found).meta.max_seq) = (1 << 40, 1 << 40);
        found
    };
    let later = |counter, generation| {
        let mut found = at(counter, generation, generation);
        (contents(&mut found).meta.min_seq, contents(&mut found).meta.max_seq) = (2 << 40, 2 << 40);
        found
    };
    let below = at(1, 1, 2);
    assert_eq!(chosen(&[below.clone(), loaded(5, first), loaded(6, first + 1)]), [6, 5, 1]);
    assert_eq!(
        chosen(&[loaded(5, first), loaded(6, first + 1), later(7, first + 2)]),
        [7, 6, 5],
        "nothing below"
    );
    let gap = format!("memtables {0} to {0}", first + 1);
    loss(&[below.clone(), loaded(5, first), later(7, first + 2)], &[&gap]);
    loss(&[below, later(7, first + 2)], &["memtables 3 to"]);
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

/// What is chosen, with the keys for which it answers.
fn entries_of(found: &[Found]) -> Vec<(u32, String)> {
    let plan = plan(P, found).unwrap();
    assert_eq!(plan.losses, Vec::<String>::new());
    let text = |b: &Bytes| String::from_utf8(b.to_vec()).unwrap();
    let entry = |c: &Chosen| {
        (c.meta.id.counter, format!("{}-{}", text(&c.meta.range.start), text(&c.meta.range.end)))
    };
    plan.tables[0].ssts.iter().map(entry).collect()
}

fn named(entries: &[(u32, &str)]) -> Vec<(u32, String)> {
    entries.iter().map(|(counter, range)| (*counter, (*range).to_owned())).collect()
}

#[test]
fn columns_are_rebuilt_as_they_were_and_what_lies_above_is_not_cut() {
    let columns = [of_keys("", "m", at(9, 1, 2)), of_keys("m", "", at(10, 1, 2))];
    let found =
        [&columns[..], &[of_keys("", "m", at(11, 3, 3)), at(4, 4, 4), of_keys("m", "", at(12, 3, 3))]]
            .concat();
    assert_eq!(entries_of(&found), named(&[(4, "-"), (11, "-m"), (12, "m-"), (9, "-m"), (10, "m-")]));
}

#[test]
fn a_table_that_was_compacted_for_some_keys_only_answers_for_the_others() {
    // Of the outputs of a compaction of 1 and 2, one was lost with its server, or never written.
    let inputs = [at(1, 1, 1), at(2, 2, 2)];
    let of_a = of_keys("", "m", at(9, 1, 2));
    let found = [&inputs[..], &[of_a.clone(), at(3, 3, 3)]].concat();
    assert_eq!(entries_of(&found), named(&[(3, "-"), (2, "m-"), (9, "-m"), (1, "m-")]));
    // In the middle: the inputs answer on both sides, each with an entry for it.
    let of_m = of_keys("h", "m", at(9, 1, 2));
    let found = [&inputs[..], &[of_m]].concat();
    assert_eq!(entries_of(&found), named(&[(2, "-h"), (2, "m-"), (9, "h-m"), (1, "-h"), (1, "m-")]));
    // What lies below a narrower one is cut, so that columns stay a tree.
    let narrow = [at(1, 1, 1), of_keys("", "h", at(9, 2, 2)), of_keys("h", "", at(10, 2, 2))];
    assert_eq!(entries_of(&narrow), named(&[(9, "-h"), (10, "h-"), (1, "-h"), (1, "h-")]));
    // Without the inputs the keys of the lost output are missed.
    loss(&[of_a, at(3, 3, 3)], &["memtables 1 to 2, for a part of the keys,"]);
}

#[test]
fn of_a_memtable_that_is_known_of_by_a_part_of_its_keys_nobody_can_tell() {
    let plan = plan(P, &[of_keys("", "m", at(8, 1, 2)), of_keys("m", "", at(9, 1, 1))]).unwrap();
    assert!(plan.losses.is_empty() && plan.doubts.len() == 1, "{plan:?}");
    assert!(plan.doubts[0].contains("memtables 2 to 2, for a part of the keys"), "{plan:?}");
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

/// Keys are letters from here on.
const FIRST_KEY: u8 = b'a';
const KEYS: u8 = 6;

#[derive(Clone, Debug)]
enum Step {
    Put(u8),
    Delete(u8),
    /// The memtable is flushed, at the first attempt or after others that were not flagged.
    Flush {
        attempts: u8,
    },
    /// A compaction of so many tables of a column is planned and done, but not committed yet. `cuts`: a bit for each key.
    Compact {
        column: u8,
        after: u8,
        many: u8,
        cuts: u8,
    },
    /// A compaction that was planned is committed, if it still can be.
    Commit(u8),
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
    /// The manifest is lost, and rebuilt.
    Rebuild,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..KEYS).prop_map(Step::Put),
        3 => (0..KEYS).prop_map(Step::Delete),
        4 => (1u8..4).prop_map(|attempts| Step::Flush { attempts }),
        4 => (any::<u8>(), prop_oneof![3 => Just(0u8), 1 => 0u8..3], 1u8..8, any::<u8>())
            .prop_map(|(column, after, many, cuts)| Step::Compact { column, after, many, cuts }),
        3 => any::<u8>().prop_map(Step::Commit),
        4 => (0u8..3, any::<u8>()).prop_map(|(server, table)| Step::Forget { server, table }),
        2 => (0u8..3, any::<u8>()).prop_map(|(server, table)| Step::Lose { server, table }),
        1 => Just(Step::Rebuild),
    ]
}

#[derive(Clone)]
struct Sealed {
    meta: SstMeta,
    records: Records,
    servers: BTreeSet<u8>,
}

#[derive(Default)]
struct History {
    seq: u64,
    flushed: u64,
    active: Records,
    tables: BTreeMap<u32, Sealed>,
    /// Newest first for every key.
    manifest: Vec<SstMeta>,
    compacting: Vec<Compaction>,
}

impl History {
    fn seal(&mut self, generations: Generations, range: KeyRange, records: Records) -> SstMeta {
        let counter = self.tables.len() as u32 + 1;
        let seqs = records.values().map(|(seq, _)| *seq);
        let key = |key: Option<&u8>| vec![*key.unwrap()].into();
        let meta = SstMeta {
            generations,
            range,
            min_key: key(records.keys().next()),
            max_key: key(records.keys().next_back()),
            min_seq: seqs.clone().min().unwrap(),
            max_seq: seqs.max().unwrap(),
            ..contents(&mut at(counter, 1, 1)).meta.clone()
        };
        let servers = BTreeSet::from([0, 1, 2]);
        self.tables.insert(counter, Sealed { meta: meta.clone(), records, servers });
        meta
    }

    /// What a manifest says of a key.
    fn read(&self, manifest: &[SstMeta], key: u8) -> Option<u64> {
        let answering = manifest.iter().filter(|sst| sst.range.contains(&[key]));
        let mut found = answering.filter_map(|sst| self.tables[&sst.id.counter].records.get(&key));
        found.next().and_then(|(_, value)| *value)
    }

    fn names(&self, counter: u32) -> bool {
        self.manifest.iter().any(|sst| sst.id.counter == counter)
    }

    /// Outputs as an sstable server makes them, and the entries for them.
    fn outputs(&mut self, inputs: &[SstMeta], drops: bool, cuts: u8) -> Vec<SstMeta> {
        let (newest, oldest) = (&inputs[0], &inputs[inputs.len() - 1]);
        let range = newest.range.clone();
        let first = if drops { 1 } else { oldest.generations.first.0 };
        let generations = Generations::new(first, newest.generations.last.0);
        let mut kept = Records::new();
        for table in inputs.iter().rev() {
            let records = self.tables[&table.id.counter].records.clone();
            kept.extend(records.into_iter().filter(|(key, _)| range.contains(&[*key])));
        }
        let proof = kept.iter().max_by_key(|(_, (seq, _))| *seq).map(|(k, v)| (*k, *v));
        if drops {
            kept.retain(|_, (_, value)| value.is_some());
        }
        if kept.is_empty() {
            kept.extend(proof);
        }
        let (mut outputs, mut part, mut start) = (Vec::new(), Records::new(), range.start.clone());
        let (mut all_cuts, mut cut) = (Vec::new(), None);
        for key in FIRST_KEY..FIRST_KEY + KEYS {
            if cuts & (1 << (key - FIRST_KEY)) != 0 && range.is_cut_by(&[key]) {
                cut = Some(Bytes::from(vec![key]));
                all_cuts.extend(cut.clone());
            }
            let Some(record) = kept.get(&key) else { continue };
            if let Some(end) = cut.take()
                && !part.is_empty()
            {
                let range = KeyRange { start: std::mem::replace(&mut start, end.clone()), end };
                outputs.push(self.seal(generations, range, std::mem::take(&mut part)));
            }
            part.insert(key, *record);
        }
        if !part.is_empty() {
            outputs.push(self.seal(generations, KeyRange { start, end: range.end }, part));
        }
        // (What reaches the oldest is cut by size only.)
        for SstMeta { range, min_key, max_key, .. } in outputs.iter_mut().filter(|_| !drops) {
            *range = range.between(&all_cuts, min_key, max_key);
        }
        outputs
    }

    fn compact(&mut self, column: u8, after: u8, many: u8, cuts: u8) {
        let Some(of_column) = self.manifest.get(column as usize % self.manifest.len().max(1)) else { return };
        let range = of_column.range.clone();
        let of_range = self.manifest.iter().filter(|sst| sst.range == range);
        let inputs: Vec<SstMeta> = of_range.skip(after.into()).take(many.into()).cloned().collect();
        let Some(oldest) = inputs.last() else { return };
        let place = self.manifest.iter().position(|sst| sst == oldest).unwrap();
        let tombstones_dropped = !has_older(&self.manifest.clone().into(), place, &range);
        let ids: Vec<SstId> = inputs.iter().map(|sst| sst.id).collect();
        let mut compaction =
            Compaction { term: 1, table: T, inputs: ids, range, outputs: Vec::new(), tombstones_dropped };
        // (What is no compaction is not done.)
        if replaced(&self.manifest.clone().into(), &compaction).is_some() {
            compaction.outputs = self.outputs(&inputs, tombstones_dropped, cuts);
            self.compacting.push(compaction);
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Put(key) => {
                self.seq += 1;
                self.active.insert(FIRST_KEY + key, (self.seq, Some(self.seq)));
            }
            Step::Delete(key) => {
                self.seq += 1;
                self.active.insert(FIRST_KEY + key, (self.seq, None));
            }
            Step::Flush { attempts } => {
                self.flushed += 1;
                let records = std::mem::take(&mut self.active);
                if records.is_empty() {
                    return;
                }
                let newest = self.manifest.iter().map(|sst| sst.generations.last.0).max().unwrap_or(0);
                let generations = Generations::new(newest + 1, self.flushed);
                for _ in 1..attempts {
                    self.seal(generations, KeyRange::all(), records.clone());
                }
                let flagged = self.seal(generations, KeyRange::all(), records);
                self.manifest.insert(0, flagged);
            }
            Step::Compact { column, after, many, cuts } => self.compact(column, after, many, cuts),
            Step::Commit(which) => {
                if self.compacting.is_empty() {
                    return;
                }
                let compaction = self.compacting.swap_remove(which as usize % self.compacting.len());
                if let Some(Replaced { ssts, .. }) = replaced(&self.manifest.clone().into(), &compaction) {
                    self.manifest = ssts.to_vec();
                }
            }
            Step::Forget { server, table } => {
                // An output that is not committed may be deleted too, and then never is.
                let free: Vec<u32> = self.tables.keys().copied().filter(|t| !self.names(*t)).collect();
                let Some(table) = free.get(table as usize % free.len().max(1)) else { return };
                self.compacting.retain(|c| !c.outputs.iter().any(|output| output.id.counter == *table));
                if let Some(sealed) = self.tables.get_mut(table) {
                    sealed.servers.remove(&server);
                }
            }
            Step::Lose { server, table } => {
                let Some(sst) = self.manifest.get(table as usize % self.manifest.len().max(1)) else {
                    return;
                };
                if let Some(sealed) = self.tables.get_mut(&sst.id.counter)
                    && sealed.servers.len() > 1
                {
                    sealed.servers.remove(&server);
                }
            }
            Step::Rebuild => {
                self.manifest = self.rebuilt();
                // Who planned those is gone, and memtables with it.
                self.compacting.clear();
                self.active.clear();
                self.flushed += 10;
            }
        }
    }

    fn rebuilt(&self) -> Vec<SstMeta> {
        let plan = plan(P, &self.inventories()).unwrap();
        assert!(plan.losses.is_empty(), "{:?}", plan.losses);
        let ssts = plan.tables.into_iter().next().map_or(Vec::new(), |t| t.ssts);
        assert!(ssts.iter().all(|chosen| !chosen.holders.is_empty()));
        ssts.into_iter().map(|chosen| chosen.meta).collect()
    }

    fn inventories(&self) -> Vec<Found> {
        let of = |sealed: &Sealed| {
            let SstMeta { id, generations, range, .. } = sealed.meta.clone();
            let mut found = at(id.counter, generations.first.0, generations.last.0);
            contents(&mut found).meta = sealed.meta.clone();
            contents(&mut found).origin.as_mut().unwrap().range = range;
            let copies =
                sealed.servers.iter().map(|s| Found { server: NodeId(u64::from(*s) + 1), ..found.clone() });
            copies.collect::<Vec<_>>()
        };
        self.tables.values().flat_map(of).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// No flushed record is lost, and none comes back that a newer one had ended: whatever was compacted and cut, tried twice, deleted
    /// on some servers and not on others, and rebuilt before.
    #[test]
    fn a_rebuilt_manifest_reads_like_the_one_that_was_lost(steps in prop::collection::vec(step(), 0..80)) {
        let mut history = History::default();
        for step in &steps {
            let before = history.manifest.clone();
            history.step(step);
            if matches!(step, Step::Commit(_) | Step::Rebuild) {
                for key in FIRST_KEY..FIRST_KEY + KEYS {
                    let (now, before) = (history.read(&history.manifest, key), history.read(&before, key));
                    prop_assert_eq!(now, before, "key {}", key);
                }
            }
        }
        let rebuilt = history.rebuilt();
        for key in FIRST_KEY..FIRST_KEY + KEYS {
            let lost = history.read(&history.manifest, key);
            prop_assert_eq!(history.read(&rebuilt, key), lost, "key {}", key);
        }
        for (at, newer) in rebuilt.iter().enumerate() {
            for older in &rebuilt[at + 1..] {
                prop_assert!(!newer.range.overlaps(&older.range) || newer.range.covers(&older.range));
                prop_assert!(newer.id != older.id || !newer.range.overlaps(&older.range));
            }
        }
    }
}
