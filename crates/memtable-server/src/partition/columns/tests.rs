//! Lists of tables, what may become of them, and what each key sees of it.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use sextant_common::ids::TableId;

use super::*;
use crate::partition::testing::sst;

fn of(counter: u32, start: &'static str, end: &'static str) -> SstMeta {
    SstMeta { range: KeyRange::new(start, end), ..sst(counter) }
}

fn compaction(inputs: &[&SstMeta], outputs: &[SstMeta], tombstones_dropped: bool) -> Compaction {
    Compaction {
        term: 1,
        table: TableId(1),
        inputs: inputs.iter().map(|input| input.id).collect(),
        range: inputs[0].range.clone(),
        outputs: outputs.to_vec(),
        tombstones_dropped,
    }
}

fn counters(ssts: &[SstMeta]) -> Vec<u32> {
    ssts.iter().map(|sst| sst.id.counter).collect()
}

/// The list afterwards.
fn after(ssts: &[SstMeta], compaction: &Compaction) -> Option<Vec<u32>> {
    let ssts = SstList::from(ssts.to_vec());
    replaced(&ssts, compaction).map(|replaced| counters(&replaced.ssts.to_vec()))
}

#[test]
fn outputs_go_to_the_place_of_the_oldest_input() {
    let list = [of(5, "", ""), of(4, "m", ""), of(3, "", "m"), of(2, "m", ""), of(1, "", "m")];
    let [_, four, three, two, one] = &list;
    let new = |start, end| [of(9, start, end)];
    assert_eq!(after(&list, &compaction(&[four, two], &new("m", ""), true)), Some(vec![5, 3, 9, 1]));
    assert_eq!(after(&list, &compaction(&[three, one], &new("", "m"), true)), Some(vec![5, 4, 2, 9]));
    let cut = [of(9, "", "c"), of(10, "c", "m")];
    assert_eq!(after(&list, &compaction(&[three, one], &cut, true)), Some(vec![5, 4, 2, 9, 10]));
    assert_eq!(after(&list, &compaction(&[three, one], &[], true)), Some(vec![5, 4, 2]));
    assert_eq!(after(&list, &compaction(&[one], &new("", "m"), true)), Some(vec![5, 4, 3, 2, 9]));
}

#[test]
fn what_lies_between_the_inputs_forbids_a_compaction() {
    let list = [of(3, "", ""), of(2, "c", "f"), of(1, "", "")];
    let new = [of(9, "", "")];
    assert_eq!(after(&list, &compaction(&[&list[0], &list[2]], &new, false)), None);
    // The same table may lie between them as an input of its own range, and be named by it.
    let list = [of(2, "", "c"), of(2, "c", ""), of(1, "", "c")];
    let new = [of(9, "", "c")];
    assert_eq!(after(&list, &compaction(&[&list[0], &list[2]], &new, true)), Some(vec![2, 9]));
}

#[test]
fn tombstones_are_dropped_if_nothing_older_has_keys_of_the_range() {
    let list = [of(4, "", "m"), of(3, "m", ""), of(2, "m", ""), of(1, "", "c")];
    let lower = |dropped| after(&list, &compaction(&[&list[0]], &[of(9, "", "m")], dropped));
    assert_eq!((lower(true), lower(false)), (None, Some(vec![9, 3, 2, 1])));
    let upper = compaction(&[&list[1], &list[2]], &[of(9, "m", "")], true);
    assert_eq!(after(&list, &upper), Some(vec![4, 9, 1]));
}

#[test]
fn what_is_not_there_or_does_not_share_the_range_is_refused() {
    let list = [of(3, "", ""), of(2, "", ""), of(1, "", "")];
    let [three, two, one] = &list;
    let whole = [of(9, "", "")];
    assert_eq!(after(&list, &compaction(&[two, three], &whole, false)), None, "not newest first");
    assert_eq!(after(&list, &compaction(&[three, three], &whole, false)), None, "twice");
    assert_eq!(after(&list, &compaction(&[&of(7, "", "")], &whole, false)), None);
    assert_eq!(
        after(&list, &compaction(&[&of(1, "", "m")], &[of(9, "", "m")], false)),
        None,
        "another entry"
    );
    for outputs in [
        &[of(9, "", "n"), of(10, "m", "")][..],
        &[of(10, "m", ""), of(9, "", "m")],
        &[of(9, "", ""), of(10, "m", "")],
        &[of(9, "m", "m")],
    ] {
        assert_eq!(after(&list, &compaction(&[three, two, one], outputs, true)), None, "{outputs:?}");
    }
    let list = [of(2, "c", "m"), of(1, "c", "m")];
    for (start, end, fits) in [("c", "m", true), ("d", "e", true), ("b", "m", false), ("c", "", false)] {
        let compaction = compaction(&[&list[0], &list[1]], &[of(9, start, end)], true);
        assert_eq!(after(&list, &compaction).is_some(), fits, "{start} {end}");
    }
}

/// A table's contents by key: a seq, and whether it is a value.
type Records = BTreeMap<u8, (u64, bool)>;

#[derive(Clone, Debug)]
enum Step {
    /// Of these keys (a bit each), deletes of those.
    Flush { puts: u8, deletes: u8 },
    /// Of the entries of the range of one of them those with a bit, cut before keys with a bit.
    Compact { of: u8, inputs: u8, cuts: u8, drop: bool },
    /// An entry is taken apart, as when a manifest is rebuilt.
    Split { of: u8, before: u8 },
}

const KEYS: u8 = 6;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (any::<u8>(), any::<u8>()).prop_map(|(puts, deletes)| Step::Flush { puts, deletes }),
        5 => (any::<u8>(), any::<u8>(), any::<u8>(), any::<bool>())
            .prop_map(|(of, inputs, cuts, drop)| Step::Compact { of, inputs, cuts, drop }),
        1 => (any::<u8>(), 1..KEYS).prop_map(|(of, before)| Step::Split { of, before }),
    ]
}

#[derive(Default)]
struct Table {
    list: Vec<SstMeta>,
    records: BTreeMap<u32, Records>,
    seq: u64,
    /// How many compactions took effect, and how many were refused.
    told: (u32, u32),
}

impl Table {
    fn seal(&mut self, range: KeyRange, records: Records) -> SstMeta {
        let counter = self.records.len() as u32 + 1;
        self.records.insert(counter, records);
        SstMeta { range, ..sst(counter) }
    }

    fn read(&self, key: u8) -> Option<u64> {
        let answering = self.list.iter().filter(|sst| sst.range.contains(&[key]));
        let mut found = answering.filter_map(|sst| self.records[&sst.id.counter].get(&key));
        found.next().and_then(|(seq, is_value)| is_value.then_some(*seq))
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Flush { puts, deletes } => {
                let written = (1..=KEYS).filter(|key| (puts | deletes) & (1 << key) != 0);
                let mut record = |key: u8| {
                    self.seq += 1;
                    (key, (self.seq, deletes & (1 << key) == 0))
                };
                let records: Records = written.map(&mut record).collect();
                let sst = self.seal(KeyRange::all(), records);
                self.list.insert(0, sst);
            }
            Step::Compact { of, inputs, cuts, drop } => {
                let Some(one) = self.list.get(of as usize % self.list.len().max(1)) else { return };
                let range = one.range.clone();
                let of_range = self.list.iter().filter(|sst| sst.range == range).enumerate();
                let chosen = of_range.filter(|(at, _)| inputs & (1 << (at % 8)) != 0);
                let inputs: Vec<SstId> = chosen.map(|(_, sst)| sst.id).collect();
                let mut merged = Records::new();
                for input in inputs.iter().rev() {
                    merged.extend(self.records[&input.counter].clone());
                }
                merged.retain(|key, (_, is_value)| range.contains(&[*key]) && (*is_value || !drop));
                let mut outputs = Vec::new();
                let mut start = range.start.clone();
                for key in 1..=KEYS {
                    if cuts & (1 << key) != 0 && range.is_cut_by(&[key]) {
                        let end = Bytes::from(vec![key]);
                        let part = KeyRange { start: std::mem::replace(&mut start, end.clone()), end };
                        outputs.push(self.seal(part, merged.clone()));
                    }
                }
                outputs.push(self.seal(KeyRange { start, end: range.end.clone() }, merged));
                let (term, table) = (1, TableId(1));
                let compaction = Compaction { term, table, inputs, range, outputs, tombstones_dropped: drop };
                match replaced(&self.list.clone().into(), &compaction) {
                    Some(replaced) => {
                        self.list = replaced.ssts.to_vec();
                        self.told.0 += 1;
                    }
                    None => self.told.1 += 1,
                }
            }
            Step::Split { of, before } => {
                if self.list.is_empty() {
                    return;
                }
                let at = of as usize % self.list.len();
                let range = self.list[at].range.clone();
                if range.is_cut_by(&[before]) {
                    let cut = Bytes::from(vec![before]);
                    let upper = KeyRange { start: cut.clone(), end: range.end };
                    let upper = SstMeta { range: upper, ..self.list[at].clone() };
                    self.list[at].range.end = cut;
                    self.list.insert(at + 1, upper);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Rule `outputs-take-the-place-of-the-oldest-input`: what is not refused changes nothing that a key sees, whatever the inputs, the
    /// cuts and the tombstones.
    #[test]
    fn each_key_sees_what_it_saw_whatever_is_compacted(steps in prop::collection::vec(step(), 1..40)) {
        let mut table = Table::default();
        for step in &steps {
            let before: Vec<_> = (1..=KEYS).map(|key| table.read(key)).collect();
            table.step(step);
            if !matches!(step, Step::Flush { .. }) {
                let now: Vec<_> = (1..=KEYS).map(|key| table.read(key)).collect();
                prop_assert_eq!(now, before, "{:?} made {:?}", step, table.list);
            }
        }
    }
}

#[test]
fn compactions_are_refused_and_take_effect() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut done, mut refused) = (0, 0);
    for _ in 0..200 {
        let steps = prop::collection::vec(step(), 1..40);
        let mut table = Table::default();
        use proptest::strategy::ValueTree;
        steps.new_tree(&mut runner).unwrap().current().iter().for_each(|step| table.step(step));
        done += table.told.0;
        refused += table.told.1;
    }
    assert!(done > 300 && refused > 300, "{done} {refused}");
}
