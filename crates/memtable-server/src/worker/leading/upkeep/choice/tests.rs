//! What is chosen, and what that comes to over time.

use proptest::prelude::*;
use sextant_common::ids::{ManifestVersion, TableId};
use sextant_common::manifest::{Expiring, HASH_WEIGHT_BYTES, TableOptions};

use super::*;
use crate::partition::testing::sst;

const T: TableId = TableId(1);

/// Sizes are in these: so the bytes of an SSTable weigh more than its records do.
const UNIT: u64 = 1 << 20;

/// A table whose SSTables, newest first, hold these memtables; their counters are their places.
pub(super) fn entry(flushed: u64, ssts: &[Generations]) -> TableManifest {
    let sst = |(at, generations): (usize, &Generations)| SstMeta {
        table: T,
        generations: *generations,
        file_bytes: 100,
        records: 100,
        tombstones: 0,
        ..sst(at as u32)
    };
    TableManifest {
        table: T,
        name: "t".into(),
        options: TableOptions::default(),
        flushed_generation: Generation(flushed),
        last_flush_version: ManifestVersion(flushed),
        persisted: Default::default(),
        ssts: ssts.iter().enumerate().map(sst).collect(),
    }
}

/// One SSTable a memtable.
fn flushed(times: u64) -> TableManifest {
    let ssts: Vec<Generations> = (1..=times).rev().map(|g| Generations::new(g, g)).collect();
    entry(times, &ssts)
}

/// The same, with these sizes, newest first.
fn sized(bytes: &[u64]) -> TableManifest {
    let mut entry = flushed(bytes.len() as u64);
    entry.ssts.edit(|all| all.iter_mut().zip(bytes).for_each(|(sst, bytes)| sst.file_bytes = *bytes * UNIT));
    entry
}

/// Nothing is cut.
fn limits(trigger: usize, by: u64) -> Limits {
    Limits { trigger, target_bytes: 1 << 40, rests_after_ns: 0, expired_by: Tick(by) }
}

fn choose(entry: &TableManifest, trigger: usize, by: u64) -> Option<Choice<'_>> {
    Tree::new(entry).due(&limits(trigger, by), |_| false).into_iter().next()
}

/// All of them.
fn all(entry: &TableManifest) -> Choice<'_> {
    Tree::new(entry).demanded(&limits(2, 0), |_| true, |_| false).remove(0)
}

fn generations(entry: &TableManifest, choice: &Choice<'_>) -> Generations {
    Tree::new(entry).generations(choice)
}

/// How many of the newest, and why.
fn chosen(entry: &TableManifest, trigger: usize) -> Option<(usize, Reason)> {
    choose(entry, trigger, 0).map(|choice| {
        assert!(
            choice.inputs.iter().copied().eq(entry.ssts.iter().take(choice.inputs.len())),
            "from the newest on"
        );
        assert_eq!(choice.reaches_the_oldest, choice.inputs.len() == entry.ssts.len());
        assert!(choice.cuts.is_empty() && choice.output_bytes == 0);
        (choice.inputs.len(), choice.reason)
    })
}

#[test]
fn tables_of_a_tier_become_one_when_there_are_as_many_as_the_trigger_says() {
    for (bytes, trigger, choice) in [
        (&[][..], 2, None),
        (&[1], 2, None),
        (&[1, 100], 2, None),
        (&[1, 1, 100], 2, Some((2, Reason::Tier))),
        (&[1, 1, 100], 3, None),
        (&[1, 1, 1, 100], 3, Some((3, Reason::Tier))),
        (&[2, 3, 7, 18, 100], 4, Some((4, Reason::Tier))),
        (&[2, 4, 7, 18, 100], 4, None),
        (&[1, 2, 1, 1, 100], 3, None),
        // With the oldest, when there is as much that is newer.
        (&[1, 1, 1], 3, Some((3, Reason::Space))),
        (&[3, 60, 37, 100], 4, Some((4, Reason::Space))),
        (&[60, 40, 100], 4, None),
    ] {
        assert_eq!(chosen(&sized(bytes), trigger), choice, "{bytes:?} {trigger}");
    }
    assert_eq!(chosen(&sized(&[1, 1, 100]), 1), Some((2, Reason::Tier)), "1 counts as 2");
}

#[test]
fn at_rest_what_is_hidden_counts_as_well_as_what_hides_it_and_what_is_above_goes_first() {
    let at_rest = |entry: &TableManifest, busy: Option<usize>, waiting: Option<usize>| {
        let is = |place: Option<usize>| {
            let id = place.map(|place| entry.ssts[place].id);
            move |sst: &SstMeta| Some(sst.id) == id
        };
        let due = Tree::new(entry).due_at_rest(&limits(6, 0), is(busy), is(waiting));
        due.iter()
            .map(|choice| choice.inputs.iter().map(|sst| sst.id.counter).collect::<Vec<u32>>())
            .collect::<Vec<_>>()
    };
    let none: Vec<Vec<u32>> = vec![];
    assert_eq!(at_rest(&sized(&[9, 1, 1000]), None, None), vec![vec![0, 1, 2]], "as many records");
    // Few records, and short ones.
    let mut entry = sized(&[9, 1, 1000]);
    entry.ssts.edit(|all| (all[0].records, all[1].records, all[2].records) = (4, 6, 100));
    assert_eq!(at_rest(&entry, None, None), none);
    entry.ssts.edit(|all| all[0].records = 5);
    assert_eq!(at_rest(&entry, None, None), vec![vec![0, 1, 2]]);
    // Two columns, and what lies above both.
    let mut entry = sized(&[50, 50, 50, 100, 100]);
    entry.ssts.edit(|all| {
        for (at, bounds) in [(1, ("", "m")), (2, ("m", "")), (3, ("", "m")), (4, ("m", ""))] {
            all[at].range = KeyRange::new(bounds.0, bounds.1);
        }
    });
    assert_eq!(at_rest(&entry, None, None), vec![vec![0]]);
    assert_eq!(at_rest(&entry, Some(0), None), none, "they would be written twice");
    assert_eq!(at_rest(&entry, None, Some(0)), vec![vec![1, 3], vec![2, 4]], "it fails");
    assert_eq!(at_rest(&entry, Some(3), Some(0)), vec![vec![2, 4]]);
}

#[test]
fn a_table_of_which_much_has_expired_or_is_tombstones_is_compacted_whole() {
    let expiring = |records: u64, expiring: u64, last: u64| {
        let mut entry = flushed(2);
        entry.ssts.edit(|all| {
            all[0].records = records;
            all[1].records = 0;
            all[0].expiring = Expiring { records: expiring, first: Tick(1), last: Tick(last) };
        });
        entry
    };
    let is_due = |entry: TableManifest, by| choose(&entry, 4, by).is_some();
    assert!(is_due(expiring(100, 25, 9), 9));
    assert!(!is_due(expiring(100, 25, 9), 8), "one may still be there");
    assert!(!is_due(expiring(100, 24, 9), 9), "a few");
    assert!(!is_due(expiring(100, 0, 0), 9), "none ever does");
    let buried = |tombstones: [u64; 3]| {
        let mut entry = sized(&[1, 1, 100]);
        entry.ssts.edit(|all| {
            all.iter_mut().zip(tombstones).for_each(|(sst, tombstones)| sst.tombstones = tombstones);
        });
        chosen(&entry, 4)
    };
    assert_eq!(buried([50, 100, 0]), Some((3, Reason::Tombstones)));
    assert_eq!(buried([49, 100, 0]), None);
    assert_eq!(buried([0, 0, 100]), None, "those that are left hide nothing");
}

#[test]
fn tables_that_do_not_say_what_they_hold_are_compacted_with_all_others() {
    let mut entry = sized(&[1, 1, 100]);
    entry.ssts.edit(|all| all[2].generations = Generations::default());
    assert_eq!(chosen(&entry, 2), Some((3, Reason::Space)));
}

#[test]
fn of_more_than_a_compaction_takes_the_oldest_are_inputs() {
    let times = COMPACTION_INPUTS_MAX as u64 + 3;
    let entry = flushed(times);
    let choice = choose(&entry, 2, 0).unwrap();
    assert_eq!(choice.inputs.len(), COMPACTION_INPUTS_MAX);
    assert_eq!(choice.inputs.last().copied(), entry.ssts.last());
    assert_eq!(generations(&entry, &choice), Generations::new(1, times - 3));
}

#[test]
fn the_result_stands_for_everything_that_its_inputs_did() {
    for times in 1..5 {
        let entry = flushed(times);
        let whole = all(&entry);
        assert_eq!(generations(&entry, &whole), Generations::new(1, times));
        for newest in 1..times as usize {
            let inputs = entry.ssts.iter().take(newest).collect();
            let some = Choice { inputs, reaches_the_oldest: false, ..whole.clone() };
            assert_eq!(generations(&entry, &some), Generations::new(times + 1 - newest as u64, times));
        }
    }
    let of_all = |entry: TableManifest| generations(&entry, &all(&entry));
    let compacted_before = entry(7, &[Generations::new(6, 6), Generations::new(1, 5)]);
    assert_eq!(of_all(compacted_before), Generations::new(1, 6), "memtable 7 was empty: it left no table");
    // Of older versions.
    let unknown = Generations::default();
    assert_eq!(of_all(entry(4, &[unknown, unknown])), Generations::new(1, 4));
    assert_eq!(of_all(entry(6, &[Generations::new(5, 6), unknown])), Generations::new(1, 6));
    assert_eq!(of_all(entry(0, &[unknown])), Generations::new(1, 1), "a known range all the same");
    let newer = entry(6, &[Generations::new(5, 6), unknown]);
    let older = Choice { inputs: newer.ssts.iter().skip(1).collect(), ..all(&newer) };
    assert_eq!(generations(&newer, &older), unknown, "not what the newer one holds");
}

/// Flushes of one size each, after each of them what is due is done at once. A key is overwritten as often as another one, out of
/// `keys` (in units of a flush). (What is cut is in `simulator`.)
struct Uncut {
    entry: TableManifest,
    keys: f64,
    written: f64,
    flushes: u64,
    tables_max: usize,
    /// What is stored, by what would be if it were one table.
    space_max: f64,
}

impl Uncut {
    const UNIT: f64 = 1e6;

    fn new(keys: f64) -> Self {
        Self { entry: flushed(0), keys, written: 0.0, flushes: 0, tables_max: 0, space_max: 0.0 }
    }

    fn merged<'s>(&self, inputs: impl IntoIterator<Item = &'s SstMeta>) -> f64 {
        let sizes = inputs.into_iter().map(|sst| sst.file_bytes as f64 / Self::UNIT);
        sizes.fold(0.0, |all, one| all + one - all * one / self.keys)
    }

    fn add(&mut self, place: usize, units: f64, generations: Generations) {
        self.written += units;
        let file_bytes = (units * Self::UNIT) as u64;
        let sst = SstMeta { file_bytes, generations, ..sst(self.written as u32) };
        self.entry.ssts.insert(place, SstMeta { table: T, ..sst });
    }

    fn flush(&mut self, trigger: usize) {
        self.flushes += 1;
        self.add(0, 1.0, Generations::new(self.flushes, self.flushes));
        while let Some(choice) = choose(&self.entry, trigger, 0) {
            let (taken, units) = (choice.inputs.len(), self.merged(choice.inputs.iter().copied()));
            let stands_for = generations(&self.entry, &choice);
            assert!(choice.inputs.iter().all(|input| stands_for.contains(&input.generations)));
            self.entry.ssts.splice(0, taken, []);
            self.add(0, units, stands_for);
        }
        let stored: f64 = self.entry.ssts.iter().map(|sst| sst.file_bytes as f64 / Self::UNIT).sum();
        self.tables_max = self.tables_max.max(self.entry.ssts.len());
        self.space_max = self.space_max.max(stored / self.merged(&self.entry.ssts));
    }
}

#[test]
fn a_record_is_written_again_as_often_as_the_data_doubles_and_not_with_every_compaction() {
    for (keys, flushes, rewrites, tables) in [
        (1e9, 100, 4.0, 8),
        (1e9, 1000, 5.5, 11),
        (1e9, 10_000, 7.0, 14),
        (100.0, 1000, 4.5, 9),
        (100.0, 10_000, 4.5, 9),
    ] {
        let mut tree = Uncut::new(keys);
        (0..flushes).for_each(|_| tree.flush(6));
        let amplification = tree.written / flushes as f64;
        let seen = format!("{keys} {flushes}: {amplification} {} {}", tree.tables_max, tree.space_max);
        assert!(amplification < rewrites, "{seen}");
        assert!(tree.tables_max <= tables, "{seen}");
        assert!(tree.space_max < 2.1, "{seen}");
    }
}

proptest! {
    /// Whatever the sizes: what was planned once and never took effect never lies across what is planned later, unless it was
    /// all there is.
    #[test]
    fn plans_lie_within_each_other_or_apart(bytes in prop::collection::vec(1u64..1000, 1..60), trigger in 2usize..7) {
        let mut entry = flushed(0);
        let mut planned: Vec<Generations> = Vec::new();
        for (at, bytes) in bytes.iter().enumerate() {
            let generation = at as u64 + 1;
            let generations_of_it = Generations::new(generation, generation);
            let new = SstMeta { file_bytes: *bytes * UNIT, generations: generations_of_it, ..sst(generation as u32) };
            entry.ssts.insert(0, new);
            if let Some(choice) = choose(&entry, trigger, 0) {
                let range = generations(&entry, &choice);
                for earlier in &planned {
                    let apart = earlier.last < range.first || range.last < earlier.first;
                    prop_assert!(apart || range.contains(earlier), "{:?} and {:?}", earlier, range);
                }
                planned.push(range);
                // Every other one takes effect.
                if at % 2 == 0 {
                    let bytes = choice.inputs.iter().map(|sst| sst.file_bytes).sum();
                    let taken = choice.inputs.len();
                    entry.ssts.splice(0, taken, []);
                    entry.ssts.insert(0, SstMeta { file_bytes: bytes, generations: range, ..sst(1000 + at as u32) });
                }
            }
        }
    }
}

/// With these ranges, newest first, each of that size.
fn cut(ssts: &[(&'static str, &'static str, u64)]) -> TableManifest {
    let mut entry = flushed(ssts.len() as u64);
    entry.ssts.edit(|all| {
        for (sst, (start, end, bytes)) in all.iter_mut().zip(ssts) {
            (sst.range, sst.file_bytes) = (KeyRange::new(*start, *end), *bytes * UNIT);
        }
    });
    entry
}

/// With a target of 100: inputs, why, cuts, and whether outputs are cut by size.
fn due(entry: &TableManifest) -> Vec<(Vec<u32>, Reason, Vec<&str>, bool)> {
    let limits = Limits { target_bytes: 100 * UNIT, ..limits(3, 0) };
    let plain = |choice: Choice<'_>| {
        let inputs = choice.inputs.iter().map(|sst| sst.id.counter).collect();
        let at = |cut: &Bytes| {
            entry.ssts.iter().map(|sst| &sst.range.start).position(|start| start == cut).unwrap()
        };
        let cuts =
            choice.cuts.iter().map(|cut| std::str::from_utf8(&entry.ssts[at(cut)].range.start).unwrap());
        (inputs, choice.reason, cuts.collect(), choice.output_bytes > 0)
    };
    Tree::new(entry).due(&limits, |_| false).into_iter().map(plain).collect()
}

#[test]
fn a_column_above_others_is_merged_by_tiers_and_goes_down_where_they_end_when_it_is_large() {
    let below = [("", "h", 100), ("h", "m", 100), ("m", "", 100)];
    let above = |bytes: &[u64]| {
        let flushed = bytes.iter().map(|bytes| ("", "", *bytes));
        cut(&flushed.chain(below).collect::<Vec<_>>())
    };
    assert_eq!(due(&above(&[20, 20])), []);
    assert_eq!(due(&above(&[20, 20, 20])), [(vec![0, 1, 2], Reason::Tier, vec![], false)]);
    assert_eq!(due(&above(&[20, 20, 360])), [(vec![0, 1, 2], Reason::Push, vec!["h", "m"], false)]);
    assert_eq!(due(&above(&[400])), [(vec![0], Reason::Push, vec!["h", "m"], false)]);
}

#[test]
fn a_column_with_nothing_below_is_cut_when_it_is_large() {
    let lowest = |bytes: &[u64]| {
        let of_column = bytes.iter().map(|bytes| ("h", "m", *bytes));
        cut(&of_column.chain([("", "h", 100), ("m", "", 100)]).collect::<Vec<_>>())
    };
    assert_eq!(due(&lowest(&[10, 10, 100])), []);
    assert_eq!(due(&lowest(&[30, 30, 95])), []);
    assert_eq!(due(&lowest(&[30, 30, 60])), [(vec![0, 1, 2], Reason::Space, vec![], false)]);
    assert_eq!(due(&lowest(&[300, 100])), [(vec![0, 1], Reason::Space, vec![], true)], "two are enough");
    assert_eq!(due(&lowest(&[400])), [], "there is nothing to merge it with");
}

/// The same weights, of records of a byte each.
fn tiny(mut entry: TableManifest) -> TableManifest {
    entry.ssts.edit(|all| {
        for sst in all.iter_mut() {
            sst.file_bytes /= HASH_WEIGHT_BYTES;
            sst.records = sst.file_bytes;
        }
    });
    entry
}

#[test]
fn tiny_records_weigh_as_much_as_their_hashes_and_no_output_that_is_not_cut_has_too_many() {
    let lowest = |bytes: &[u64]| cut(&bytes.iter().map(|bytes| ("", "", *bytes)).collect::<Vec<_>>());
    // Cut as if they had so many bytes.
    let large = tiny(lowest(&[300, 100]));
    assert_eq!(due(&large), [(vec![0, 1], Reason::Space, vec![], true)]);
    let limits = Limits { target_bytes: 100 * UNIT, ..limits(3, 0) };
    let choice = Tree::new(&large).due(&limits, |_| false).remove(0);
    assert_eq!((choice.output_bytes, choice.bytes), (100 * UNIT, 400 * UNIT / HASH_WEIGHT_BYTES));
    // With a prefix each they are two hashes.
    let mut prefixed = tiny(lowest(&[40, 20, 20]));
    assert_eq!(due(&prefixed), [(vec![0, 1, 2], Reason::Space, vec![], false)]);
    prefixed.options.filter_prefix = 4;
    assert_eq!(due(&prefixed), [(vec![0, 1, 2], Reason::Space, vec![], true)]);
    // What a tier becomes is one table, however many hashes it has.
    let newer = lowest(&[40, 40, 40, 40, 400]);
    assert_eq!(due(&newer), [(vec![0, 1, 2, 3], Reason::Tier, vec![], false)]);
    assert_eq!(due(&tiny(newer)), [(vec![0, 1, 2], Reason::Tier, vec![], false)]);
    // And what is pushed down may go into one piece.
    let bounds = ["", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", ""];
    let below = bounds.windows(2).map(|pair| (pair[0], pair[1], 100));
    let above = |bytes| cut(&[("", "", bytes)].into_iter().chain(below.clone()).collect::<Vec<_>>());
    assert_eq!(due(&above(399)), []);
    assert_eq!(due(&tiny(above(199))), []);
    assert_eq!(due(&tiny(above(200))), [(vec![0], Reason::Push, bounds[1..16].to_vec(), false)]);
    // Of what has been waiting, the oldest go first.
    let waiting = [("", "", 150); 4].into_iter().chain(below.clone()).collect::<Vec<_>>();
    assert_eq!(due(&tiny(cut(&waiting))), [(vec![2, 3], Reason::Push, bounds[1..16].to_vec(), false)]);
    assert_eq!(due(&cut(&waiting)), [(vec![0, 1, 2, 3], Reason::Push, bounds[1..16].to_vec(), false)]);
}

#[test]
fn the_column_with_the_most_bytes_goes_first_and_none_twice() {
    let entry = cut(&[("", "", 400), ("", "h", 90), ("h", "", 150), ("", "h", 90), ("h", "", 100)]);
    let all: Vec<Vec<u32>> = due(&entry).into_iter().map(|(inputs, ..)| inputs).collect();
    assert_eq!(all, [vec![0], vec![2, 4], vec![1, 3]]);
    let limits = Limits { target_bytes: 100 * UNIT, ..limits(3, 0) };
    let busy = |sst: &SstMeta| sst.id.counter == 4;
    let tree = Tree::new(&entry);
    assert_eq!(tree.due(&limits, busy).iter().map(|c| c.inputs[0].id.counter).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn many_columns_are_cut_into_groups_unless_they_are_cut_already() {
    let name = |at: usize| Bytes::from(format!("k{at:03}"));
    let range = |from: usize, to: usize| KeyRange {
        start: if from == 0 { Bytes::new() } else { name(from) },
        end: if to == 64 { Bytes::new() } else { name(to) },
    };
    let columns = |upper: &[(usize, usize)]| {
        let lowest = (0..64).map(|at| (at, at + 1));
        let ranges: Vec<KeyRange> = [(0, 64)]
            .into_iter()
            .chain(upper.iter().copied())
            .chain(lowest)
            .map(|(f, t)| range(f, t))
            .collect();
        let mut entry = flushed(ranges.len() as u64);
        entry.ssts.edit(|all| {
            all.iter_mut().zip(ranges).for_each(|(sst, range)| sst.range = range);
            all[0].file_bytes = 1 << 50;
        });
        let choice = choose(&entry, 2, 0).unwrap();
        assert_eq!((choice.reason, choice.inputs.len()), (Reason::Push, 1));
        choice.cuts
    };
    let by_four: Vec<Bytes> = (4..64).step_by(4).map(name).collect();
    assert_eq!(columns(&[]), by_four);
    // What is cut is not cut again, and what lies beside it is grouped from there on.
    let beside = columns(&[(2, 8), (10, 14)]);
    let expected: Vec<Bytes> = [2, 8, 10].into_iter().chain((14..64).step_by(4)).map(name).collect();
    assert_eq!(beside, expected);
}

#[test]
fn on_demand_everything_goes_down_and_is_compacted_there_but_from_above() {
    let entry = cut(&[("", "", 1), ("", "h", 1), ("", "h", 1), ("h", "", 1)]);
    let limits = limits(6, 0);
    let demanded = |wanted: &[u32]| -> Vec<Vec<u32>> {
        let is_wanted = |sst: &SstMeta| wanted.contains(&sst.id.counter);
        let all = Tree::new(&entry).demanded(&limits, is_wanted, |_| false);
        all.iter().map(|choice| choice.inputs.iter().map(|sst| sst.id.counter).collect()).collect()
    };
    assert_eq!(demanded(&[0, 1, 2, 3]), [[0]]);
    assert_eq!(demanded(&[1, 2, 3]), [vec![1, 2], vec![3]]);
    assert_eq!(demanded(&[2]), [[1, 2]]);
    assert_eq!(demanded(&[]), Vec::<Vec<u32>>::new());
}

#[test]
fn an_sst_that_answers_for_several_ranges_weighs_its_part_in_each() {
    let mut entry = cut(&[("", "h", 120), ("h", "", 100), ("", "h", 100), ("h", "", 100)]);
    entry.ssts.edit(|all| {
        all[1].id = all[0].id;
        all[1].file_bytes = 120 * UNIT;
    });
    let due = Tree::new(&entry).due(&Limits { target_bytes: 100 * UNIT, ..limits(2, 0) }, |_| false);
    assert!(due.is_empty(), "60 of 120 are not as much as 100: {due:?}");
}
