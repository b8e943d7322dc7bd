//! A partition as a fake server leads it: the real one's state and evaluation ([`sextant_memtable_server::partition`]), each
//! entry committed as soon as it is appended, a bf-log that is never cut, and a manifest that a test may rewrite.
//!
//! Invariant: what is in the memtables, which writes take effect, what retries are told and who is stale is for the real partition to
//! say. It numbers its manifests on its own; `versions` says which of them a version of ours stands for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use bytes::Bytes;
use sextant_common::expiry::Tick;
use sextant_common::ids::{Epoch, Generation, LogPosition, ManifestVersion, PartitionId, TableId};
use sextant_common::key::{filter_hash, filter_prefix, prefix_hash, registration_slot};
use sextant_common::manifest::{FlushRecord, Manifest, SstMeta, TableManifest};
use sextant_common::marks::{Kind, Marks};
use sextant_common::operation::OpOutcome;
use sextant_memtable_server::command::{
    Alteration, ChangeTable, Command, EnsureTable, Flush, Freeze, Group, OpenSession, TableWrites, Write,
};
use sextant_memtable_server::lease::ring::Run;
use sextant_memtable_server::lease::slots::Slots;
use sextant_memtable_server::memtable::Memtable;
use sextant_memtable_server::partition::evaluate::{Refusal, Verdict};
use sextant_memtable_server::partition::ingest::{Body, Ingested};
use sextant_memtable_server::partition::snapshot::Snapshot;
use sextant_memtable_server::partition::view::ReadAnswer;
use sextant_memtable_server::partition::{Checkpoint, Partition as Real};
use sextant_proto::convert::operation::write_from_wire;
use sextant_proto::v1;

use super::fake_sstable::Contents;
use super::table_manifest;

/// What was written before the test began: seqs of SSTables are below.
const SEQS_BEFORE: u64 = 1000;

/// A partition that a fake server leads.
pub struct Partition {
    pub epoch: Epoch,
    /// As it is sent.
    pub manifest: Manifest,
    /// The serial of the first entry is `log_start` + 1.
    pub log: Vec<Run>,
    pub log_start: u64,
    /// None: no answer may be kept. (Whoever sets them waits until what he writes is acknowledged, as a leader would.)
    pub slots: Option<Slots>,
    pub sessions: BTreeSet<u64>,
    /// The highest id that a table has had.
    pub highest_table: u32,
    /// The newest tick that is out in the log of bits, and the newest that is published.
    pub announced: Tick,
    pub published: Tick,
    real: Real,
    /// By our version: the version of the real manifest since then.
    versions: BTreeMap<ManifestVersion, ManifestVersion>,
}

impl Partition {
    pub fn new(partition: u32, term: u64) -> Self {
        let id = PartitionId(partition);
        let version = ManifestVersion(1);
        let manifest = Manifest { version, tables: vec![table_manifest(1, vec![])], ..Manifest::empty(id) };
        let founded = Snapshot {
            checkpoint: Checkpoint {
                at: LogPosition { term, index: 1 },
                next_seq: SEQS_BEFORE + 1,
                time_ms: 0,
                tick: Tick(0),
                generations: BTreeMap::new(),
                sessions: Default::default(),
                membership: Bytes::new(),
            },
            manifest: manifest.clone(),
            next_table: 2,
            configuration: None,
            cuts: Default::default(),
            dropped: Default::default(),
            loads: Vec::new(),
        };
        Self {
            epoch: Epoch { term, incarnation: 1 },
            manifest,
            log: Vec::new(),
            log_start: 0,
            slots: None,
            sessions: BTreeSet::new(),
            highest_table: 1,
            announced: Tick(0),
            published: Tick(0),
            real: Real::restore(id, &founded),
            versions: BTreeMap::from([(version, version)]),
        }
    }

    /// Puts a tick into the log of bits.
    pub fn announce(&mut self, at: u64) {
        self.announced = Tick(at);
        self.log.push(Run::Ticks { newest: Tick(at), entries: 1 });
    }

    /// Publishes the tick that was announced last.
    pub fn publish(&mut self) {
        self.published = self.announced;
    }

    pub fn serial(&self) -> u64 {
        self.log_start + self.log.len() as u64
    }

    /// Writes that took effect.
    pub fn writes(&self) -> u64 {
        self.real.last_seq() - SEQS_BEFORE
    }

    pub fn last_seq(&self) -> u64 {
        self.real.last_seq()
    }

    fn generation(&self, table: TableId) -> Generation {
        self.real.table(table).map_or(Generation(1), |t| t.generation())
    }

    /// Appends a command and commits it.
    fn append(&mut self, command: &Command) {
        let at = LogPosition { term: self.epoch.term, index: self.real.next_index() };
        let ingested =
            self.real.ingest(at, &Body::Payload(command.encode()), false).expect("an entry that fits");
        assert_ne!(ingested, Ingested::Ignored, "{command:?}");
        self.real.commit(at.index, 0);
        self.versions.insert(self.manifest.version, self.real.manifest().version);
    }

    fn append_group(&mut self, group: Group) {
        for writes in &group.tables {
            let hashes = writes.writes.iter().flat_map(|w| w.bits());
            let (table, generation) = (writes.table, writes.generation);
            self.log.extend(hashes.map(|hash| Run::Bits { table, generation, hashes: vec![hash] }));
            let Some(slots) = &self.slots else { continue };
            for write in &writes.writes {
                let slot = registration_slot(table, filter_hash(&write.key), slots.count());
                if slots.write(slot, group.first_seq + u64::from(write.ordinal)) {
                    self.log.push(Run::Invalidated { slots: vec![slot as u32] });
                }
            }
        }
        self.append(&Command::Group(group));
    }

    /// The version of the real manifest that one of ours stands for.
    fn real_version(&self, searched: u64) -> ManifestVersion {
        let before = self.versions.range(..=ManifestVersion(searched)).next_back();
        before.map_or(ManifestVersion(0), |(_, real)| *real)
    }

    /// Writes past the p-node, whatever the rules say; `bit`: leaves a bf-log entry.
    pub fn put(&mut self, key: &str, value: Option<&str>, bit: bool) -> u64 {
        self.put_until(key, value, None, bit)
    }

    /// The same of a record that expires.
    pub fn put_until(&mut self, key: &str, value: Option<&str>, expires_at: Option<u64>, bit: bool) -> u64 {
        let table = TableId(1);
        let option = self.manifest.table(table).map_or(0, |known| known.options.filter_prefix);
        let write = Write {
            ordinal: 0,
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: value.map(|v| Bytes::copy_from_slice(v.as_bytes())),
            marks: Marks::new(Kind::Plain, expires_at.map(Tick)),
            leaves_bit: bit,
            prefix: filter_prefix(key.as_bytes(), option).map(prefix_hash),
        };
        let writes = TableWrites { table, generation: self.generation(table), writes: vec![write] };
        self.append_group(Group {
            term: self.epoch.term,
            first_seq: self.real.last_seq() + 1,
            time_ms: self.real.time_ms(),
            tables: vec![writes],
            requests: Vec::new(),
        });
        self.real.last_seq()
    }

    pub fn freeze(&mut self, table: TableId) {
        let generation = self.generation(table);
        self.append(&Command::Freeze(Freeze { term: self.epoch.term, table, generation }));
        self.log.push(Run::Freeze { table, generation: Generation(generation.0 + 1) });
    }

    /// What the oldest frozen memtable of a table holds.
    pub fn oldest_frozen(&self, table: TableId) -> Option<Contents> {
        let view = self.real.view();
        let memtables = &view.tables.get(&table)?.memtables;
        memtables[1..].last().map(|oldest| contents(oldest))
    }

    /// The oldest frozen memtable of a table has become an SSTable, and is gone at once.
    pub fn flush(&mut self, table: TableId, sst: &SstMeta) {
        let frozen = self.real.flushable(u64::MAX).find(|(t, _)| *t == table);
        let (generation, freeze) =
            frozen.map(|(_, f)| (f.memtable.generation, f.freeze)).expect("a frozen memtable");
        self.manifest.version.0 += 1;
        let (term, version) = (self.epoch.term, self.manifest.version);
        self.append(&Command::Flush(Flush { term, table, generation, freeze, sst: Some(sst.clone()) }));
        self.real.end_grace(u64::MAX, 0);
        self.manifest.remember_flush(FlushRecord { version, table, id: Some(sst.id) });
        if let Some(table) = self.manifest.table_mut(table) {
            table.ssts.insert(0, sst.clone());
            table.flushed_generation = generation;
            table.last_flush_version = version;
        }
    }

    pub fn open_session(&mut self, session: u64) {
        self.append(&Command::OpenSession(OpenSession { term: self.epoch.term, session, time_ms: 0 }));
        self.sessions.insert(session);
    }

    /// As in the real server, creating a table changes no SSTable. (It leaves our version as it is, which is allowed.)
    pub fn create_table(&mut self, table: TableManifest) {
        let (term, name) = (self.epoch.term, table.name.clone());
        self.append(&Command::EnsureTable(EnsureTable {
            term,
            name,
            options: table.options.clone(),
            id: Some(table.table),
        }));
        self.highest_table = self.highest_table.max(table.table.0);
        self.manifest.tables.push(table);
        self.manifest.tables.sort_by_key(|t| t.table);
    }

    /// Whether it was there.
    pub fn drop_table(&mut self, table: TableId) -> bool {
        if self.real.dropped().has(table) {
            return false;
        }
        let before = self.manifest.tables.len();
        self.manifest.tables.retain(|t| t.table != table);
        self.manifest.version.0 += 1;
        let (term, next_seq, alteration) = (self.epoch.term, self.real.last_seq() + 1, Alteration::Drop);
        let generation = self.generation(table);
        self.append(&Command::ChangeTable(ChangeTable { term, table, next_seq, generation, alteration }));
        self.manifest.tables.len() < before
    }

    pub fn read(&self, table: TableId, key: &Bytes, searched: u64) -> ReadAnswer {
        if self.manifest.table(table).is_none() {
            return ReadAnswer::UnknownTable;
        }
        self.real.view().read(table, key, self.real_version(searched), u64::MAX)
    }

    /// Registers a read; what its answer may be kept with.
    pub fn register(&self, table: TableId, key: &Bytes) -> Option<v1::Registration> {
        let slots = self.slots.as_ref()?;
        slots.register(registration_slot(table, filter_hash(key), slots.count()));
        Some(v1::Registration { partition: 0, epoch: Some(self.epoch.into()), serial: self.serial() })
    }

    /// What the memtables hold that the SSTables of a version do not, the newest first; None: one of them is gone.
    pub fn memtables(&self, table: TableId, searched: u64) -> Option<Vec<Contents>> {
        let view = self.real.view();
        let Some(of_table) = view.tables.get(&table) else { return Some(Vec::new()) };
        Some(of_table.memtables_for(self.real_version(searched))?.map(|m| contents(m)).collect())
    }

    pub fn filters(&self) -> Vec<(TableId, Generation, Vec<u8>)> {
        self.real.filters()
    }

    /// Executes a write as the sequencer does.
    pub fn execute(&mut self, write: &v1::WriteRequest) -> v1::WriteReply {
        let answer = |status: v1::WriteStatus| v1::WriteReply { status: status as i32, ..Default::default() };
        if write.session != 0 && !self.sessions.contains(&write.session) {
            return answer(v1::WriteStatus::WriteUnknownSession);
        }
        if write.ops.iter().any(|op| self.manifest.table(TableId(op.table)).is_none()) {
            return answer(v1::WriteStatus::WriteUnknownTable);
        }
        let (mut request, _) = write_from_wire(write.clone()).expect("a write that makes sense");
        for base in request.ops.iter_mut().filter_map(|op| op.base.as_mut()) {
            base.manifest = self.real_version(base.manifest.0);
        }
        let evaluated = self.real.evaluate(self.epoch.term, &[request], 0);
        if let Some(group) = evaluated.group {
            self.append_group(group);
        }
        let (status, results) = match evaluated.verdicts.into_iter().next().expect("a verdict") {
            Verdict::Applied(results) | Verdict::Unchanged { ok: true, results } => {
                (v1::WriteStatus::WriteOk, results)
            }
            Verdict::Unchanged { ok: false, results } => (v1::WriteStatus::WriteConditionFailed, results),
            Verdict::Refused(Refusal::UnknownTable) => return answer(v1::WriteStatus::WriteUnknownTable),
            Verdict::Refused(Refusal::UnknownSession) => return answer(v1::WriteStatus::WriteUnknownSession),
            Verdict::Refused(Refusal::TooOld) => return answer(v1::WriteStatus::WriteRequestTooOld),
            Verdict::Refused(Refusal::NeedsBase) => panic!("a condition needs a base"),
            Verdict::NotYet { .. } => panic!("a group of one request is never full"),
            Verdict::Refused(Refusal::StaleManifest) => {
                let manifest = Some((&self.manifest).into());
                return v1::WriteReply { manifest, ..answer(v1::WriteStatus::WriteStaleManifest) };
            }
        };
        let results = results.into_iter().map(|r| OpOutcome::from(r).into());
        v1::WriteReply { results: results.collect(), ..answer(status) }
    }
}

fn contents(memtable: &Memtable) -> Contents {
    let all = memtable.range(Bound::Unbounded, Bound::Unbounded, u64::MAX);
    all.map(|(key, version)| (key, (version.value, version.seq))).collect()
}
