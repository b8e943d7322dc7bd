//! The model against the code: random walks through the model are replayed on a real partition and a real ring, and after
//! every step both have to agree: verdicts, bits, generations, manifest, filters, and every memtable read.
//!
//! One replica is followed. It leads after a failover too, with what it had appended truncated: so walks choose such failovers.

use std::collections::HashMap;

use bytes::Bytes;
use sextant_common::ids::{
    Epoch, Generation, LogPosition, ManifestVersion, PartitionId, Serial, SstId, TableId,
};
use sextant_common::key::filter_hash;
use sextant_common::key_range::KeyRange;
use sextant_common::manifest::{SstMeta, TableOptions};
use sextant_common::operation::{
    Base, Condition, Effect, Lifetime, RequestId, Returns, WriteOp, WriteRequest,
};
use sextant_memtable_server::command::{Command, Compaction, EnsureTable, Flush, Freeze, Group};
use sextant_memtable_server::lease::ring::{Ring, Run};
use sextant_memtable_server::partition::Partition;
use sextant_memtable_server::partition::evaluate::{Refusal, Verdict};
use sextant_memtable_server::partition::ingest::{Body, Ingested};
use sextant_memtable_server::partition::view::ReadAnswer;
use sextant_model::explore::Model;
use sextant_model::state::log::{EntryKind, NO_SST};
use sextant_model::state::pnode::Reader;
use sextant_model::state::{Cell, FLUSH, FREEZE, MERGE, Outcome, State, WriteKind, keys_of};
use sextant_model::{Action, Bounds, Mutant, Protocol};

const TABLE: TableId = TableId(1);
/// Entries of the real log before the model's first: the membership, and the table.
const BEFORE: u64 = 1;
const WALKS: u64 = 2000;
const STEPS: usize = 60;

struct Real {
    partition: Partition,
    ring: Ring,
    proposal: Option<Group>,
    ssts: HashMap<u8, SstId>,
    counter: u32,
    /// The newest seq up to each position.
    seqs: Vec<u64>,
}

fn key(k: usize) -> Bytes {
    Bytes::from(format!("key {k}"))
}

fn value(write: usize) -> Bytes {
    Bytes::from(vec![write as u8])
}

fn meta(id: SstId) -> SstMeta {
    SstMeta {
        id,
        table: TABLE,
        records: 1,
        tombstones: 0,
        min_key: key(0),
        max_key: key(9),
        min_seq: 1,
        max_seq: 1,
        file_bytes: 1,
        checksum: 1,
        generations: Default::default(),
        range: Default::default(),
        expiring: Default::default(),
        replicas: vec![],
    }
}

fn hashes_of(run: &Run) -> &[u64] {
    if let Run::Bits { hashes, .. } = run { hashes } else { &[] }
}

impl Real {
    fn new() -> Self {
        let mut partition = Partition::new(PartitionId(0));
        let at = |index| LogPosition { term: 1, index };
        partition.ingest(at(0), &Body::Blank, false).unwrap();
        let options = TableOptions::default();
        let table = Command::EnsureTable(EnsureTable { term: 1, name: "t".into(), options, id: Some(TABLE) });
        partition.ingest(at(1), &Body::Payload(table.encode()), false).unwrap();
        partition.commit(1, 0);
        Real {
            partition,
            ring: Ring::default(),
            proposal: None,
            ssts: HashMap::new(),
            counter: 0,
            seqs: vec![0],
        }
    }

    fn append(&mut self, term: u8, body: Body, bits_done: bool) -> Ingested {
        let at = LogPosition { term: u64::from(term), index: self.partition.next_index() };
        let ingested = self.partition.ingest(at, &body, bits_done).unwrap();
        self.seqs.push(self.partition.last_seq());
        ingested
    }

    fn new_sst(&mut self, sst: u8) {
        self.counter += 1;
        let (plan, epoch) = (LogPosition::default(), Epoch::default());
        self.ssts.insert(sst, SstId { partition: PartitionId(0), plan, epoch, counter: self.counter });
    }

    fn sst(&self, sst: u8) -> Option<SstMeta> {
        (sst != NO_SST).then(|| meta(self.ssts[&sst]))
    }

    fn evaluate(&mut self, before: &State, after: &State, (write, copy): (usize, usize)) {
        let w = &before.writes[write];
        let copy = w.copies[copy];
        let effect = || match w.kind {
            WriteKind::Delete => Effect::Delete,
            _ => Effect::Put(value(write)),
        };
        let op = |k| WriteOp {
            table: TABLE,
            key: key(k),
            lifetime: Lifetime::Unlimited,
            effect: effect(),
            base_value: None,
            returns: Returns::Nothing,
            condition: match w.kind {
                WriteKind::Insert => Condition::Absent,
                WriteKind::Replace => Condition::Present,
                _ => Condition::None,
            },
            base: w.kind.needs_base().then(|| Base {
                present: copy.present & (1 << k) != 0,
                ..Base::absent(ManifestVersion(u64::from(copy.searched)))
            }),
            skip_on_failure: false,
        };
        let request = WriteRequest { id: RequestId::default(), ops: keys_of(w.keys).map(op).collect() };
        let evaluated = self.partition.evaluate(u64::from(before.term), &[request], 0);
        match &evaluated.verdicts[0] {
            Verdict::Applied(_) => {
                assert!(after.proposal.on && after.proposal.asked[0].applied);
                let bits = keys_of(after.proposal.asked[0].bits).map(|k| filter_hash(&key(k)));
                let real: Vec<u64> = evaluated.runs.iter().flat_map(hashes_of).copied().collect();
                assert_eq!(real, bits.collect::<Vec<_>>(), "bits");
                self.proposal = evaluated.group;
            }
            Verdict::Unchanged { ok, .. } => {
                let given = after.writes[write].outcome == Outcome::Failed;
                assert!(!ok && !after.proposal.on && (given || after.writes[write].deferred == Some(false)));
            }
            Verdict::NotYet { .. } => unreachable!("a group of one request is never full"),
            Verdict::Refused(refusal) => {
                assert_eq!(*refusal, Refusal::StaleManifest);
                let w = &after.writes[write];
                assert!(!after.proposal.on && w.deferred.is_none(), "the model decided");
            }
        }
        for run in evaluated.runs {
            hashes_of(&run).iter().for_each(|hash| self.partition.add_bit(TABLE, *hash));
            self.ring.push(run);
        }
    }

    fn take(&mut self, before: &State, after: &State, action: Action) {
        match action {
            Action::Evaluate { first, second: None } => self.evaluate(before, after, first),
            Action::Append => {
                let group = self.proposal.take().unwrap();
                let ingested = self.append(before.term, Body::Payload(Command::Group(group).encode()), true);
                if after.len == before.len {
                    assert_eq!(ingested, Ingested::Ignored);
                    // The model's log has no entries without effect.
                    self.partition.truncate_from(self.partition.next_index() - 1).unwrap();
                    self.seqs.pop();
                } else {
                    assert!(matches!(ingested, Ingested::Group { .. }));
                }
            }
            Action::Refuse => {
                self.proposal = None;
                if after.incarnation != before.incarnation {
                    self.ring = Ring::default();
                }
            }
            Action::Commit => {
                self.partition.commit(BEFORE + u64::from(after.known_committed), 0);
                self.partition.end_grace(u64::MAX, 0);
            }
            Action::Freeze => {
                let (term, generation) = (u64::from(before.term), Generation(u64::from(before.generation())));
                let freeze = Command::Freeze(Freeze { term, table: TABLE, generation });
                let ingested = self.append(before.term, Body::Payload(freeze.encode()), false);
                let Ingested::Frozen { next, .. } = ingested else { panic!("{ingested:?}") };
                self.ring.push(Run::Freeze { table: TABLE, generation: next });
            }
            Action::Flush { generation } => {
                let mut flushable = self.partition.flushable(BEFORE + u64::from(before.published));
                assert!(flushable.any(|(_, f)| f.memtable.generation.0 == u64::from(generation)));
                drop(flushable);
                self.new_sst(after.jobs[FLUSH].sst);
            }
            Action::Merge { .. } => self.new_sst(after.jobs[MERGE].sst),
            Action::Flag { job } => {
                let (job, is_flush) = (before.jobs[job], job == FLUSH);
                let term = u64::from(before.term);
                let command = if is_flush {
                    let freeze = before.freeze_of(job.generation).unwrap();
                    Command::Flush(Flush {
                        term,
                        table: TABLE,
                        generation: Generation(u64::from(job.generation)),
                        freeze: LogPosition { term, index: BEFORE + u64::from(freeze) },
                        sst: self.sst(job.sst),
                    })
                } else {
                    let ssts = &self.partition.manifest().table(TABLE).unwrap().ssts;
                    let inputs = ssts.iter().map(|s| s.id).filter(|id| {
                        self.ssts.iter().any(|(sst, known)| known == id && job.inputs & (1 << sst) != 0)
                    });
                    let inputs: Vec<SstId> = inputs.collect();
                    Command::Compaction(Compaction {
                        term,
                        table: TABLE,
                        tombstones_dropped: inputs.last() == ssts.last().map(|sst| &sst.id),
                        inputs,
                        range: KeyRange::all(),
                        outputs: self.sst(job.sst).into_iter().collect(),
                    })
                };
                self.append(before.term, Body::Payload(command.encode()), false);
            }
            Action::Failover { kept, .. } => {
                self.partition.truncate_from(BEFORE + u64::from(kept) + 1).unwrap();
                self.seqs.truncate(usize::from(kept) + 1);
                self.proposal = None;
                self.ring = Ring::default();
                self.append(after.term, Body::Blank, false);
            }
            _ => {}
        }
    }

    fn compare(&self, protocol: &Protocol, s: &State) {
        let table = self.partition.table(TABLE).unwrap();
        assert_eq!(table.generation().0, u64::from(s.generation()), "generation");
        let manifest = protocol.manifest(s);
        let real = self.partition.manifest();
        assert_eq!(real.version.0, u64::from(manifest.version), "manifest version");
        let entry = real.table(TABLE).unwrap();
        assert_eq!(entry.last_flush_version.0, u64::from(manifest.last_flush), "last flush");
        let tables: Vec<SstId> = manifest.tables().iter().map(|sst| self.ssts[sst]).collect();
        assert_eq!(entry.ssts.iter().map(|s| s.id).collect::<Vec<_>>(), tables, "tables");
        for k in 0..protocol.bounds.keys {
            let hash = filter_hash(&key(k));
            let has = |generation: u64| s.filters[generation as usize - 1] & (1 << k) != 0;
            assert_eq!(table.filter.contains(hash), has(table.generation().0), "filter, key {k}");
            for frozen in &table.frozen {
                let generation = frozen.memtable.generation.0;
                assert_eq!(frozen.filter.contains(hash), has(generation), "filter of {generation}, key {k}");
            }
            for searched in 1..=manifest.version {
                self.compare_read(protocol, s, k, searched);
            }
        }
        assert_eq!(self.ring.serial(), Serial(u64::from(s.serial)), "serial");
        for from in 0..=s.serial {
            let runs = self.ring.since(Serial(u64::from(from))).unwrap();
            let of_run = |r: &Run| match r {
                Run::Bits { generation, hashes, .. } => {
                    hashes.iter().map(|h| (generation.0, Some(*h))).collect::<Vec<_>>()
                }
                Run::Freeze { generation, .. } => vec![(generation.0, None)],
                Run::Invalidated { .. } => panic!("nobody has registered"),
                Run::Ticks { .. } => panic!("nothing expires"),
            };
            let real: Vec<_> = runs.iter().flat_map(of_run).collect();
            let hash = |k: u8| (k != FREEZE).then(|| filter_hash(&key(k.into())));
            let bits = &s.ring[usize::from(from)..usize::from(s.serial)];
            let model: Vec<_> = bits.iter().map(|b| (u64::from(b.generation), hash(b.key))).collect();
            assert_eq!(real, model, "ring after {from}");
        }
    }

    fn compare_read(&self, protocol: &Protocol, s: &State, k: usize, searched: u8) {
        let at = self.seqs[usize::from(s.published)];
        let version = ManifestVersion(u64::from(searched));
        let real = self.partition.view().read(TABLE, &key(k), version, at);
        let model = protocol.read_memtables(s, k, searched, s.published);
        let same = match (&real, model) {
            (ReadAnswer::StaleManifest, None) => true,
            (ReadAnswer::NoEntry, Some(Cell::NOTHING)) => true,
            (ReadAnswer::Found(found), Some(cell)) => match &found.value {
                Some(value) => cell == Cell::value(usize::from(value[0])),
                None => cell.is_tombstone(),
            },
            _ => false,
        };
        assert!(same, "read of key {k} at version {searched}: {real:?}, the model says {model:?}");
    }
}

/// What the followed replica can do too.
fn is_followed(s: &State, action: Action) -> bool {
    match action {
        // It loses nothing that it knew, and its filters keep their bits.
        Action::Failover { known, .. } => known == s.committed && s.known_committed == s.committed,
        _ => true,
    }
}

/// What the walks came across.
#[derive(Debug, Default)]
struct Coverage {
    stale_reads: u64,
    stale_requests: u64,
    failed_conditions: u64,
    ignored_groups: u64,
    flushes: u64,
    merges: u64,
    truncated_groups: u64,
    truncated_freezes: u64,
}

impl Coverage {
    fn count(&mut self, protocol: &Protocol, before: &State, after: &State, action: Action) {
        let flushes = |s: &State| protocol.manifest(s).last_flush;
        match action {
            Action::Evaluate { first, .. } if !after.proposal.on => {
                let w = &after.writes[first.0];
                let failed = w.deferred.is_some() || w.outcome == Outcome::Failed;
                *(if failed { &mut self.failed_conditions } else { &mut self.stale_requests }) += 1;
            }
            Action::Append => self.ignored_groups += u64::from(after.len == before.len),
            Action::Commit if flushes(before) != flushes(after) => self.flushes += 1,
            Action::Commit => {
                let changed = protocol.manifest(before).version != protocol.manifest(after).version;
                self.merges += u64::from(changed);
            }
            Action::AskMemtables { pnode } => {
                let again = |r: Reader| protocol.read_memtables(before, 0, r.searched, 0).is_none();
                self.stale_reads += u64::from(before.pnodes[pnode].reader.is_some_and(again));
            }
            Action::Failover { kept, .. } => {
                for entry in &before.log[usize::from(kept)..] {
                    self.truncated_groups += u64::from(entry.kind == EntryKind::Group);
                    self.truncated_freezes += u64::from(entry.kind == EntryKind::Freeze);
                }
            }
            _ => {}
        }
    }

    fn is_complete(&self) -> bool {
        let Coverage {
            stale_reads,
            stale_requests,
            failed_conditions,
            ignored_groups,
            flushes,
            merges,
            truncated_groups,
            truncated_freezes,
        } = *self;
        let log = [ignored_groups, flushes, merges, truncated_groups, truncated_freezes];
        log.into_iter().chain([stale_reads, stale_requests, failed_conditions]).all(|n| n > 0)
    }
}

/// `Err`: the trace after which the two disagree.
fn walk(protocol: &Protocol, seed: u64, coverage: &mut Coverage) -> Result<(), String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut s = protocol.roots().swap_remove(0);
    let mut real = Real::new();
    let mut actions = Vec::new();
    let mut trace = Vec::new();
    for _ in 0..STEPS {
        actions.clear();
        protocol.actions(&s, &mut actions);
        actions.retain(|a| is_followed(&s, *a));
        // Reads and leases change nothing here: mostly the log moves.
        let moves =
            |a: &Action| !matches!(a, Action::Consult { .. } | Action::Pull { .. } | Action::Lose { .. });
        if rng.u8(..) > 40 && actions.iter().any(moves) {
            actions.retain(moves);
        }
        if actions.is_empty() {
            break;
        }
        let mut action = actions[rng.usize(..actions.len())];
        if let Action::Failover { kept, known, .. } = action {
            let keeps = Action::Failover { kept, known, stale_bits: true };
            action = if actions.contains(&keeps) { keeps } else { action };
        }
        trace.push(protocol.describe(&s, action));
        // A weakened model ends where it finds its own violation.
        let Ok(after) = protocol.step(&s, action) else { break };
        coverage.count(protocol, &s, &after, action);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            real.take(&s, &after, action);
            real.compare(protocol, &after);
        }))
        .map_err(|_| format!("seed {seed}:\n{}", trace.join("\n")))?;
        s = after;
    }
    Ok(())
}

fn bounds() -> Bounds {
    Bounds {
        keys: 2,
        writes: 4,
        kinds: vec![WriteKind::Update, WriteKind::Insert, WriteKind::Replace, WriteKind::Delete],
        batches: true,
        freezes: 3,
        compactions: 2,
        failovers: 2,
        refusals: 1,
        slips: true,
        preloaded: vec![Cell::NOTHING],
        ..Bounds::small()
    }
}

#[test]
fn the_model_and_the_partition_agree() {
    let protocol = Protocol::new(bounds()).unwrap();
    let first: u64 = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("seeds from {first} (SEED chooses another)");
    let mut coverage = Coverage::default();
    for seed in first..first + WALKS {
        walk(&protocol, seed, &mut coverage).unwrap_or_else(|trace| panic!("they disagree; {trace}"));
    }
    println!("{coverage:?}");
    assert!(coverage.is_complete(), "{coverage:?}");
}

#[test]
fn a_weakened_model_and_the_partition_disagree() {
    let mutants =
        [Mutant::NoStaleManifest, Mutant::InsertNotVoided, Mutant::FreezeSlipsIn, Mutant::StaleOnlyIfFrozen];
    for mutant in mutants {
        let protocol = Protocol::new(bounds().with(mutant)).unwrap();
        let disagree = (1..=WALKS).any(|seed| walk(&protocol, seed, &mut Coverage::default()).is_err());
        assert!(disagree, "{}: {WALKS} walks show no difference", mutant.name());
    }
}
