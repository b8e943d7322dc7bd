//! Bulk loads that were committed, that were not, and of which nobody knows.

use sextant_common::load::{LOADED_SSTS_MAX, first_generation, flushed_when_rebuilt};

use super::*;

const SEQ: u64 = 1 << 40;

fn number(term: u64, count: u64) -> LoadNumber {
    LoadNumber { term, count }
}

fn first(number: LoadNumber) -> u64 {
    first_generation(number.term, number.count, Generation(0)).unwrap().0
}

fn with_seqs(mut found: Found, seqs: (u64, u64)) -> Found {
    (contents(&mut found).meta.min_seq, contents(&mut found).meta.max_seq) = seqs;
    found
}

/// An SSTable of a load: the first one has ordinal 0.
fn loaded(counter: u32, of: LoadNumber, ordinal: u64) -> Found {
    let (generation, seq) = (first(of) + ordinal, SEQ * of.count);
    with_seqs(at(counter, generation, generation), (seq, seq))
}

/// A flush or compaction up to an ordinal of a load.
fn up_to(counter: u32, from: u64, of: LoadNumber, ordinal: u64) -> Found {
    let seq = SEQ * of.count + ordinal;
    with_seqs(at(counter, from, first(of) + ordinal), (if from < first(of) { from * 10 } else { seq }, seq))
}

fn chosen_by(found: &[Found], word: &Word) -> Vec<u32> {
    let plan = super::super::plan(P, found, word).unwrap();
    assert_eq!((plan.losses, plan.doubts, plan.undecided), Default::default());
    plan.tables[0].ssts.iter().map(|c| c.meta.id.counter).collect()
}

fn with(number: LoadNumber) -> Word {
    Word { with: [number].into(), ..Word::default() }
}

fn without(number: LoadNumber) -> Word {
    Word { without: [number].into(), ..Word::default() }
}

const ONE: LoadNumber = LoadNumber { term: 3, count: 1 };
const TWO: LoadNumber = LoadNumber { term: 3, count: 2 };

#[test]
fn a_load_that_nothing_came_after_counts_only_if_the_operator_says_so() {
    // Files of a load that was given up lie on a server that was away, and would hide what was written since.
    let found = [at(1, 1, 2), loaded(5, ONE, 0), loaded(6, ONE, 1), at(3, 3, 3)];
    let plan = plan(P, &found).unwrap();
    assert_eq!(plan.losses, Vec::<String>::new());
    assert_eq!(plan.tables[0].ssts.iter().map(|c| c.meta.id.counter).collect::<Vec<_>>(), [3, 1]);
    let [undecided] = &plan.undecided[..] else { panic!("{plan:?}") };
    assert_eq!(undecided.name, LoadName { partition: P, number: ONE });
    assert_eq!((undecided.ssts, undecided.records, undecided.bytes, undecided.copies), (2, 2, 200, 1));
    assert_eq!(undecided.table, "t");
    assert_eq!(chosen_by(&found, &with(ONE)), [6, 5, 3, 1]);
    assert_eq!(chosen_by(&found, &without(ONE)), [3, 1]);
    assert!(plan.tables[0].newest.0 > first(ONE), "its numbers are not given again");
    assert!(plan.newest_seq >= SEQ);
}

#[test]
fn what_was_flushed_or_merged_after_a_load_tells_that_it_was_committed() {
    let of_load = [at(1, 1, 2), loaded(5, ONE, 0), loaded(6, ONE, 1)];
    let flush = up_to(7, first(ONE) + 2, ONE, 2);
    assert_eq!(chosen(&[&of_load[..], &[flush]].concat()), [7, 6, 5, 1]);
    // A flush after an empty memtable, behind the load.
    assert_eq!(chosen(&[&of_load[..], &[up_to(7, first(ONE) + 2, ONE, 4)]].concat()), [7, 6, 5, 1]);
    // A compaction of a part of it, or of it and what is below.
    assert_eq!(chosen(&[&of_load[..], &[up_to(7, first(ONE), ONE, 1)]].concat()), [7, 1]);
    assert_eq!(chosen(&[&of_load[1..], &[up_to(7, 1, ONE, 0)]].concat()), [6, 7]);
    let pushed_down = of_keys("", "m", loaded(7, ONE, 0));
    assert!(plan(P, &[&of_load[..], &[pushed_down]].concat()).unwrap().undecided.is_empty());
    // What comes after another load tells nothing of this one.
    let later = up_to(9, first(TWO) + 1, TWO, 1);
    let both = [&of_load[..], &[loaded(8, TWO, 0), later]].concat();
    assert_eq!(plan(P, &both).unwrap().undecided.len(), 1);
    assert_eq!(chosen_by(&both, &with(ONE)), [9, 8, 6, 5, 1]);
    assert_eq!(chosen_by(&both, &without(ONE)), [9, 8, 1]);
}

#[test]
fn a_load_that_newer_tables_span_is_not_asked_about() {
    // Committed, it is in the compaction; or else it never was.
    let found = [at(1, 1, 2), loaded(5, ONE, 0), loaded(8, TWO, 0), up_to(9, 1, TWO, 0)];
    assert_eq!(chosen(&found), [9]);
    let plan = plan(P, &found).unwrap();
    assert!(plan.undecided.is_empty() && plan.notes.iter().any(|note| note.contains("2-3-1")), "{plan:?}");
    assert_eq!(chosen_by(&found, &without(ONE)), [9]);
    // For a part of the keys that tells nothing of the others.
    let of_a = of_keys("", "m", up_to(9, 1, TWO, 0));
    let plan = super::super::plan(P, &[&found[..3], &[of_a]].concat(), &Word::default()).unwrap();
    assert_eq!(plan.undecided.len(), 1, "{plan:?}");
    // A flush of a rebuilt partition from which the load was left out.
    let begins = flushed_when_rebuilt(1 << 31).unwrap().0;
    let rebuilt = with_seqs(at(9, 3, begins + 1), (2 * SEQ + 5, 2 * SEQ + 5));
    assert_eq!(chosen(&[at(1, 1, 2), loaded(5, ONE, 0), rebuilt]), [9, 1]);
}

#[test]
fn words_that_nothing_is_known_of_or_that_contradict_the_tables_are_refused() {
    let refused = |found: &[Found], word: &Word, words: &str| {
        let error = super::super::plan(P, found, word).unwrap_err();
        assert!(error.message.contains(words), "{error}");
    };
    let found = [at(1, 1, 2), loaded(5, ONE, 0)];
    refused(&found, &with(TWO), "nothing of load 2-3-2");
    refused(&found, &without(number(9, 9)), "nothing of load 2-9-9");
    let committed = [&found[..], &[up_to(7, first(ONE) + 1, ONE, 1)]].concat();
    refused(&committed, &without(ONE), "committed");
    assert_eq!(chosen_by(&committed, &with(ONE)), [7, 5, 1]);
}

#[test]
fn a_load_jumps_over_generations_and_what_is_lost_of_it_or_after_it_is_missed() {
    let below = at(1, 1, 2);
    let later = up_to(7, first(ONE) + 2, ONE, 2);
    let nothing_below = [loaded(5, ONE, 0), loaded(6, ONE, 1), later.clone()];
    assert_eq!(chosen(&nothing_below), [7, 6, 5]);
    let gap = format!("memtables {0} to {0}", first(ONE) + 1);
    loss(&[below.clone(), loaded(5, ONE, 0), later.clone()], &[&gap]);
    loss(&[below, later], &["memtables 3 to"]);
}

#[test]
fn of_a_compaction_over_a_load_and_its_inputs_those_are_taken_that_more_servers_have() {
    // The jump is no gap, so that a chain over it is worth as much as one of a single table.
    let inputs = [on(3, &at(1, 1, 2)), on(3, &loaded(5, ONE, 0)), on(3, &loaded(6, ONE, 1))].concat();
    let merged = up_to(9, 1, ONE, 1);
    assert_eq!(chosen(&[inputs.clone(), on(1, &merged)].concat()), [6, 5, 1]);
    assert_eq!(chosen(&[inputs.clone(), on(3, &merged)].concat()), [9]);
    // Below a load nothing is left out because it ends with the load.
    let rare =
        [on(1, &at(1, 1, 2)), on(3, &loaded(5, ONE, 0)), on(3, &up_to(7, first(ONE) + 1, ONE, 1))].concat();
    assert_eq!(chosen(&rare), [7, 5, 1]);
    // Two loads.
    let two = [inputs, on(3, &loaded(8, TWO, 0)), on(1, &up_to(9, 1, TWO, 0))].concat();
    assert_eq!(chosen_by(&two, &with(ONE)), [8, 6, 5, 1]);
}

#[test]
fn loads_that_were_merged_into_one_table_and_are_gone_are_places_all_the_same() {
    // Nothing begins or ends in the first one's numbers, but with the first of them.
    let merged = |counter, from: LoadNumber, to: LoadNumber| up_to(counter, first(from), to, 1);
    let flush = up_to(7, first(TWO) + 2, TWO, 2);
    assert_eq!(chosen(&[at(1, 1, 5), merged(9, ONE, TWO), flush]), [7, 9, 1]);
    // A table without a sound copy is kept as long as no other one has what it holds.
    let [three, four] = [number(3, 3), number(3, 4)];
    let last = up_to(8, first(four) + 2, four, 2);
    let found = [at(1, 1, 5), merged(9, ONE, TWO), damaged(merged(10, three, four)), last];
    let plan = plan(P, &found).unwrap();
    assert_eq!(plan.tables[0].ssts.iter().map(|c| c.meta.id.counter).collect::<Vec<_>>(), [8, 10, 9, 1]);
}

#[test]
fn what_is_lost_before_a_load_is_missed_if_something_tells_of_it() {
    let newer = [loaded(5, ONE, 0), up_to(7, first(ONE) + 1, ONE, 1)];
    loss(&[&[at(1, 1, 1), at(3, 3, 3)], &newer[..]].concat(), &["memtables 2 to 2"]);
    loss(&[&[at(3, 3, 3)], &newer[..]].concat(), &["memtables 1 to 2"]);
    loss(&[up_to(9, 3, ONE, 0), newer[1].clone()], &["memtables 1 to 2"]);
}

#[test]
fn tables_of_a_load_that_a_compaction_of_other_keys_has_replaced_are_not_missed() {
    // Each was a column, and the first two were compacted alone.
    let mut last = loaded(6, ONE, 2);
    contents(&mut last).meta.min_key = "m".into();
    let before = [of_keys("", "d", up_to(9, 1, ONE, 2)), of_keys("d", "m", up_to(10, 1, ONE, 2))];
    assert_eq!(
        entries_of(&[&before[..], &[last.clone()]].concat()),
        named(&[(6, "m-"), (9, "-d"), (10, "d-m")])
    );
    // Behind "k" it may have been.
    let to_k = [of_keys("", "k", up_to(9, 1, ONE, 2)), last];
    loss(&to_k, &["for a part of the keys,"]);
}

#[test]
fn a_load_has_room_for_its_most_tables_before_the_flushes_that_tell_of_it() {
    let last = loaded(5, ONE, LOADED_SSTS_MAX as u64 - 1);
    assert_eq!(LoadNumber::written_for(&contents(&mut last.clone()).meta), Some(ONE));
}
