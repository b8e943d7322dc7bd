//! Tables under sustained writes, by the real choice and the real rule of what a compaction does, and what that costs over time.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use sextant_common::command::Compaction;
use sextant_common::ids::TableId;
use sextant_common::manifest::HASH_WEIGHT_BYTES;

use super::tests::entry;
use super::*;
use crate::partition::columns::{Replaced, replaced};
use crate::partition::testing::sst;

/// What a record weighs.
const RECORD_BYTES: u64 = 100;
/// A memtable, in records; and the target of a table.
const FLUSHED: usize = 250;
const TARGET: usize = 1000;
const TRIGGER: usize = 6;

const LIMITS: Limits = Limits {
    trigger: TRIGGER,
    target_bytes: TARGET as u64 * RECORD_BYTES,
    rests_after_ns: 0,
    expired_by: Tick(0),
};

/// No compaction reads more, in targets: what goes down at once, and what it meets.
const COMPACTION_MAX: f64 = 8.0;

/// A key, and whether it is deleted.
type Record = (u32, bool);

struct Lsm {
    /// Of the file, for each record.
    record_bytes: u64,
    entry: TableManifest,
    records: BTreeMap<SstId, Vec<Record>>,
    flushes: u64,
    ids: u32,
    written: BTreeMap<&'static str, usize>,
    compaction_max: u64,
    /// Records of the largest table that a compaction has written.
    output_max: usize,
    outputs_max: usize,
    tables_max: usize,
    seen_max: usize,
}

fn key(key: u32) -> Bytes {
    Bytes::copy_from_slice(&key.to_be_bytes())
}

impl Lsm {
    fn of(record_bytes: u64) -> Self {
        Self {
            record_bytes,
            entry: entry(0, &[]),
            records: BTreeMap::new(),
            flushes: 0,
            ids: 0,
            written: BTreeMap::new(),
            compaction_max: 0,
            output_max: 0,
            outputs_max: 0,
            tables_max: 0,
            seen_max: 0,
        }
    }

    fn seal(
        &mut self,
        why: &'static str,
        generations: Generations,
        range: KeyRange,
        records: Vec<Record>,
    ) -> SstMeta {
        self.ids += 1;
        *self.written.entry(why).or_default() += records.len();
        let meta = SstMeta {
            table: TableId(1),
            records: records.len() as u64,
            tombstones: records.iter().filter(|(_, is_deleted)| *is_deleted).count() as u64,
            file_bytes: records.len() as u64 * self.record_bytes,
            generations,
            range,
            ..sst(self.ids)
        };
        self.records.insert(meta.id, records);
        meta
    }

    /// What is due is done at once.
    fn flush(&mut self, mut records: Vec<Record>) {
        records.sort_by_key(|(key, _)| *key);
        records.dedup_by_key(|(key, _)| *key);
        self.flushes += 1;
        let generations = Generations::new(self.flushes, self.flushes);
        let flushed = self.seal("flush", generations, KeyRange::all(), records);
        self.entry.ssts.insert(0, flushed);
        loop {
            let entry = self.entry.clone();
            let tree = Tree::new(&entry);
            let Some(choice) = tree.due(&LIMITS, |_| false).into_iter().next() else { break };
            let generations = tree.generations(&choice);
            self.compact(&choice, generations);
        }
        self.tables_max = self.tables_max.max(self.entry.ssts.len());
        if self.flushes.is_multiple_of(40) {
            self.seen_max = self.seen_max.max(self.seen());
        }
    }

    fn compact(&mut self, choice: &Choice<'_>, generations: Generations) {
        self.compaction_max = self.compaction_max.max(choice.bytes);
        let mut merged: BTreeMap<u32, bool> = BTreeMap::new();
        for input in choice.inputs.iter().rev() {
            merged.extend(self.records[&input.id].iter().copied());
        }
        let proof = merged.iter().next().map(|(key, _)| (*key, true));
        let mut left: Vec<Record> = merged.into_iter().collect();
        left.retain(|(_, is_deleted)| !(*is_deleted && choice.reaches_the_oldest));
        if left.is_empty() {
            left.extend(proof);
        }
        let (mut outputs, mut part, mut start) = (Vec::new(), Vec::new(), choice.range.start.clone());
        let mut cuts = choice.cuts.iter().peekable();
        let (all, record_weight) = (left.len(), weight(self.record_bytes, 1));
        for (at, record) in left.into_iter().enumerate() {
            let of_record = key(record.0);
            let mut cut = None;
            while let Some(at) = cuts.next_if(|at| **at <= of_record) {
                cut = Some(at.clone());
            }
            let is_large = choice.output_bytes > 0
                && part.len() as u64 * record_weight >= choice.output_bytes
                && (all - at) as u64 * record_weight >= choice.output_bytes / 2;
            if let Some(end) = cut.or_else(|| is_large.then_some(of_record))
                && !part.is_empty()
            {
                let range = KeyRange { start: std::mem::replace(&mut start, end.clone()), end };
                outputs.push(self.seal(choice.reason.name(), generations, range, std::mem::take(&mut part)));
            }
            part.push(record);
        }
        let range = KeyRange { start, end: choice.range.end.clone() };
        outputs.push(self.seal(choice.reason.name(), generations, range, part));
        for output in &mut outputs {
            let records = &self.records[&output.id];
            self.output_max = self.output_max.max(records.len());
            let (first, last) = (key(records[0].0), key(records[records.len() - 1].0));
            output.range = output.range.between(&choice.cuts, &first, &last);
        }
        self.outputs_max = self.outputs_max.max(outputs.len());
        let compaction = Compaction {
            term: 1,
            table: TableId(1),
            inputs: choice.inputs.iter().map(|sst| sst.id).collect(),
            range: choice.range.clone(),
            outputs,
            tombstones_dropped: choice.reaches_the_oldest,
        };
        let Replaced { ssts, removed } =
            replaced(&self.entry.ssts, &compaction).expect("what is chosen fits");
        removed.iter().for_each(|sst| drop(self.records.remove(&sst.id)));
        self.entry.ssts = ssts;
    }

    /// Everything that is there now goes down and is compacted there.
    fn demand(&mut self) {
        let mut wanted: BTreeSet<SstId> = self.entry.ssts.iter().map(|sst| sst.id).collect();
        loop {
            let entry = self.entry.clone();
            let tree = Tree::new(&entry);
            let demanded = tree.demanded(&LIMITS, |sst| wanted.contains(&sst.id), |_| false);
            let Some(choice) = demanded.into_iter().next() else { break };
            let generations = tree.generations(&choice);
            let last = self.ids;
            self.compact(&choice, generations);
            if !choice.reaches_the_oldest {
                wanted.extend(self.records.keys().filter(|id| id.counter > last));
            }
        }
        assert!(self.entry.ssts.iter().all(|sst| !wanted.contains(&sst.id)));
    }

    /// Nothing is flushed any more, for long.
    fn rest(&mut self) {
        loop {
            let entry = self.entry.clone();
            let tree = Tree::new(&entry);
            let due = tree.due(&LIMITS, |_| false).into_iter().next();
            let due = due.or_else(|| tree.due_at_rest(&LIMITS, |_| false, |_| false).into_iter().next());
            let Some(choice) = due else { break };
            let generations = tree.generations(&choice);
            self.compact(&choice, generations);
        }
    }

    /// How many keys there are.
    fn live(&self) -> usize {
        let mut newest: BTreeMap<u32, bool> = BTreeMap::new();
        for sst in self.entry.ssts.iter().rev() {
            let of_range = self.records[&sst.id].iter().filter(|(at, _)| sst.range.contains(&key(*at)));
            newest.extend(of_range.copied());
        }
        newest.values().filter(|is_deleted| !**is_deleted).count()
    }

    /// The most tables that answer for a key.
    fn seen(&self) -> usize {
        let starts = self.entry.ssts.iter().map(|sst| &sst.range.start);
        let answering = |key: &Bytes| self.entry.ssts.iter().filter(|sst| sst.range.contains(key)).count();
        starts.map(answering).max().unwrap_or(0)
    }

    fn stored(&self) -> usize {
        self.records.values().map(Vec::len).sum()
    }

    /// Records written to disk, for each one that was flushed.
    fn amplification(&self) -> f64 {
        self.written.values().sum::<usize>() as f64 / self.written["flush"] as f64
    }

    fn told(&self) -> String {
        format!(
            "{} flushes: {:.2} writes a record ({:?}), {} columns, at most {} tables, {} for a key, {:.1} targets and {} outputs in \
             a compaction; {} records stored",
            self.flushes,
            self.amplification(),
            self.written,
            Tree::new(&self.entry).columns(),
            self.tables_max,
            self.seen_max,
            self.compaction_max as f64 / (TARGET as f64 * RECORD_BYTES as f64),
            self.outputs_max,
            self.stored(),
        )
    }

    /// `bounds`: writes a record, tables that a key sees.
    fn assert_bounds(&self, what: &str, bounds: (f64, usize)) {
        let told = format!("{what}: {}", self.told());
        println!("{told}");
        assert!(self.amplification() <= bounds.0, "{told}");
        assert!(self.seen_max <= bounds.1, "{told}");
        assert!(self.compaction_max as f64 <= COMPACTION_MAX * TARGET as f64 * RECORD_BYTES as f64, "{told}");
    }
}

/// Writes so many records, telling what that cost on the way.
fn ingest(what: &str, records: usize, next: impl FnMut(&mut fastrand::Rng, usize) -> Record) -> Lsm {
    ingest_into(Lsm::of(RECORD_BYTES), FLUSHED, what, records, next)
}

fn ingest_into(
    mut lsm: Lsm,
    flushed: usize,
    what: &str,
    records: usize,
    mut next: impl FnMut(&mut fastrand::Rng, usize) -> Record,
) -> Lsm {
    let mut rng = fastrand::Rng::with_seed(7);
    let flushes = records / flushed;
    for flush in 0..flushes {
        lsm.flush((0..flushed).map(|at| next(&mut rng, flush * flushed + at)).collect());
        if (flush + 1) % (flushes / 5) == 0 {
            println!("{what}, {}", lsm.told());
        }
    }
    lsm
}

#[test]
fn overwriting_a_large_table_costs_what_its_height_says_and_no_compaction_is_large() {
    let keys = 40_000;
    let lsm = ingest("overwritten", 300_000, |rng, _| (rng.u32(..keys) * 100_000, false));
    lsm.assert_bounds("overwritten", (6.0, 20));
    assert!(lsm.stored() < keys as usize * 5 / 2, "{}", lsm.told());
}

#[test]
fn a_table_that_rests_takes_little_more_than_what_is_live_and_is_not_written_again_and_again_for_that() {
    let keys = 40_000;
    let overwritten = |rng: &mut fastrand::Rng, _: usize| (rng.u32(..keys) * 100_000, false);
    let growing = |rng: &mut fastrand::Rng, _: usize| (rng.u32(..), false);
    let deleted =
        |rng: &mut fastrand::Rng, at: usize| (rng.u32(..keys) * 100_000, at > 60_000 && rng.u8(..3) == 0);
    for (what, mut lsm) in [
        ("overwritten", ingest("overwritten", 150_000, overwritten)),
        ("growing", ingest("growing", 100_000, growing)),
        ("deleted", ingest("deleted", 120_000, deleted)),
    ] {
        let (before, live) = (lsm.stored(), lsm.live());
        let written: usize = lsm.written.values().sum();
        lsm.rest();
        let written = lsm.written.values().sum::<usize>() - written;
        let told = format!("{what}: {live} live, {before} before, {written} written; {}", lsm.told());
        println!("{told}");
        assert_eq!(lsm.live(), live, "{told}");
        assert!(lsm.stored() * 100 <= live * 115, "{told}");
        assert!(written <= 2 * before, "{told}");
        assert!(lsm.compaction_max as f64 <= COMPACTION_MAX * TARGET as f64 * RECORD_BYTES as f64, "{told}");
        let columns = lsm.entry.ssts.clone();
        lsm.rest();
        assert!(lsm.entry.ssts.iter().eq(columns.iter()), "it is done: {told}");
    }
}

#[test]
fn so_does_a_table_that_grows() {
    let lsm = ingest("growing", 150_000, |rng, _| (rng.u32(..), false));
    lsm.assert_bounds("growing", (7.0, 20));
}

#[test]
fn so_does_one_that_is_written_in_the_order_of_its_keys() {
    let lsm = ingest("in order", 100_000, |_, at| (at as u32 * 40_000, false));
    lsm.assert_bounds("in order", (6.0, 12));
}

#[test]
fn so_does_one_of_which_a_small_part_is_hot() {
    let lsm = ingest("hot", 150_000, |rng, _| {
        let hot = rng.u8(..10) > 0;
        (if hot { 1_000_000_000 + rng.u32(..3000) } else { rng.u32(..) }, false)
    });
    lsm.assert_bounds("hot", (6.0, 20));
}

/// A memtable holds many tiny records: a hash weighs what eight bytes of them do.
#[test]
fn no_compaction_of_tiny_records_writes_a_table_of_more_hashes_than_there_is_memory_for() {
    const TINY_BYTES: u64 = 8;
    const TINY_FLUSHED: usize = 600;
    let hashes_max = 5 * LIMITS.target_bytes / 2 / HASH_WEIGHT_BYTES;
    let tiny = |what, next: fn(&mut fastrand::Rng, usize) -> Record| {
        ingest_into(Lsm::of(TINY_BYTES), TINY_FLUSHED, what, 150_000, next)
    };
    for (what, lsm) in [
        ("tiny", tiny("tiny", |rng, _| (rng.u32(..), false))),
        ("tiny, in order", tiny("tiny, in order", |_, at| (at as u32 * 25_000, false))),
        ("tiny, overwritten", tiny("tiny, overwritten", |rng, _| (rng.u32(..40_000) * 100_000, false))),
    ] {
        lsm.assert_bounds(what, (7.0, 20));
        assert!(lsm.output_max as u64 <= hashes_max, "{what}: {} in a table; {}", lsm.output_max, lsm.told());
    }
}

#[test]
fn what_is_deleted_gives_its_space_back_as_what_is_overwritten_does_or_on_demand() {
    let keys = 30_000u32;
    let mut live = BTreeSet::new();
    let mut lsm = ingest("deleted", 90_000, |rng, at| {
        let at = at as u32;
        let record = if at < keys { (at * 100_000, false) } else { (rng.u32(..keys) * 100_000, true) };
        if record.1 {
            live.remove(&record.0)
        } else {
            live.insert(record.0)
        };
        record
    });
    lsm.assert_bounds("deleted", (6.0, 20));
    assert!(lsm.stored() < keys as usize * 5 / 2, "{}", lsm.told());
    lsm.demand();
    let columns = Tree::new(&lsm.entry).columns();
    assert!(lsm.stored() <= live.len() + columns, "{} are live: {}", live.len(), lsm.told());
    assert_eq!(lsm.entry.ssts.len(), columns);
}
