//! What servers hold, and what it makes.

mod history;
mod loads;

use sextant_common::ids::{Epoch, LogPosition};

use super::*;

const P: PartitionId = PartitionId(2);
const T: TableId = TableId(1);

/// Nobody has said anything of loads.
fn plan(partition: PartitionId, found: &[Found]) -> Result<Plan> {
    super::plan(partition, found, &Word::default())
}

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
        min_seq: first.wrapping_mul(10),
        max_seq: last.wrapping_mul(10).wrapping_add(9),
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

#[test]
fn the_options_are_those_that_were_planned_last_and_keys_are_where_they_were() {
    let filtered = TableOptions { filter_inserts: true, ..TableOptions::default() };
    let mut newer = at(2, 2, 2);
    contents(&mut newer).options = filtered.clone();
    let planned = plan(P, &[at(1, 1, 1), newer.clone()]).unwrap();
    assert_eq!(planned.tables[0].options, filtered);
    contents(&mut newer).options.partition_prefix = 3;
    refused(&[at(1, 1, 1), newer], &["another partition prefix"]);
}
