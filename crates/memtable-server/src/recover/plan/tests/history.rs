//! Histories of flushes, compactions and loads, and what is left of them on the servers.

use proptest::prelude::*;
use sextant_common::command::Compaction;
use sextant_common::load::{first_generation, flushed_when_rebuilt, seq_ahead};

use super::*;
use crate::partition::columns::{Replaced, has_older, replaced};

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
    /// SSTables of a load are written, of so many keys each.
    Load {
        keys: u8,
        each: u8,
    },
    /// A load that was written is committed, if it still can be.
    Adopt(u8),
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
        2 => (any::<u8>(), 1u8..4).prop_map(|(keys, each)| Step::Load { keys, each }),
        2 => any::<u8>().prop_map(Step::Adopt),
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
    term: u64,
    /// Of this term.
    loads_begun: u64,
    loading: Vec<Loading>,
    committed: BTreeSet<LoadNumber>,
}

/// A load that is not committed.
struct Loading {
    number: LoadNumber,
    seq: u64,
    /// By rising keys.
    ssts: Vec<SstMeta>,
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
            Step::Flush { attempts } => self.flush(attempts),
            Step::Load { keys, each } => self.load(keys, each),
            Step::Adopt(which) => self.adopt(which),
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
                self.loading.retain(|load| !load.ssts.iter().any(|sst| sst.id.counter == *table));
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
                self.loading.clear();
                self.active.clear();
                self.term += 1 << 22;
                self.loads_begun = 0;
                let newest = self.tables.values().map(|sealed| sealed.meta.generations.last.0).max();
                let beyond = Generation(newest.unwrap_or(0) + 10);
                self.flushed = beyond.max(flushed_when_rebuilt(self.term).unwrap()).0;
                let newest = self.tables.values().map(|sealed| sealed.meta.max_seq).max();
                self.seq = newest.unwrap_or(0).max(self.seq) + 10;
            }
        }
    }

    fn flush(&mut self, attempts: u8) {
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

    fn load(&mut self, keys: u8, each: u8) {
        let keys: Vec<u8> = (0..KEYS).filter(|key| keys & 1 << key != 0).map(|key| FIRST_KEY + key).collect();
        self.loads_begun += 1;
        let number = LoadNumber { term: self.term, count: self.loads_begun };
        let first = first_generation(number.term, number.count, Generation(self.flushed + 1)).unwrap();
        let seq = seq_ahead(self.seq + 1).unwrap();
        let part = |(ordinal, keys): (usize, &[u8])| {
            let generation = first.0 + ordinal as u64;
            // (What is loaded is told by its number.)
            let records = keys.iter().map(|key| (*key, (seq, Some(generation)))).collect();
            self.seal(Generations::new(generation, generation), KeyRange::all(), records)
        };
        let ssts: Vec<SstMeta> = keys.chunks(each.into()).enumerate().map(part).collect();
        if !ssts.is_empty() {
            self.loading.push(Loading { number, seq, ssts });
        }
    }

    fn adopt(&mut self, which: u8) {
        if self.loading.is_empty() {
            return;
        }
        let Loading { number, seq, mut ssts } = self.loading.swap_remove(which as usize % self.loading.len());
        if !self.active.is_empty() {
            self.flush(1);
        }
        let (first, last) = (ssts[0].generations.first, ssts[ssts.len() - 1].generations.last);
        if self.flushed >= first.0 || self.seq >= seq {
            return;
        }
        if self.manifest.is_empty() {
            let starts: Vec<Bytes> = ssts.iter().skip(1).map(|sst| sst.min_key.clone()).collect();
            let mut start = Bytes::new();
            for (at, sst) in ssts.iter_mut().enumerate() {
                let end = starts.get(at).cloned().unwrap_or_default();
                sst.range = KeyRange { start: std::mem::replace(&mut start, end.clone()), end };
                sst.generations = Generations { first: Generation(1), last };
            }
        }
        (self.flushed, self.seq) = (last.0, seq);
        self.manifest.splice(0..0, ssts.into_iter().rev());
        self.committed.insert(number);
    }

    /// The operator knows of all that is asked.
    fn rebuilt(&self) -> Vec<SstMeta> {
        let found = self.inventories();
        let asked = plan(P, &found).unwrap().undecided.into_iter().map(|load| load.name.number);
        let (with, without) = asked.partition(|number| self.committed.contains(number));
        let plan = super::super::plan(P, &found, &Word { with, without }).unwrap();
        assert!(plan.losses.is_empty() && plan.undecided.is_empty(), "{plan:?}");
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
    fn a_rebuilt_manifest_reads_like_the_one_that_was_lost(steps in prop::collection::vec(step(), 0..100)) {
        let mut history = History { term: 1, ..History::default() };
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
