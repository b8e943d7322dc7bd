//! The partition's rules, the scenarios of the protocol model among them: what becomes of writes ([`writes`], [`updates`]), of entries
//! ([`entries`]), of tables ([`changes`]), and replicas compared with each other ([`agreement`]). Here is the node that they play with.

mod agreement;
mod changes;
mod cuts;
mod effects;
mod entries;
mod expiry;
mod loads;
mod objects;
mod updates;
mod writes;

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use sextant_common::ids::{Generation, LogPosition, ManifestVersion, NodeId, PartitionId, Seq, TableId};
use sextant_common::key::{filter_hash, prefix_hash};
use sextant_common::key_range::KeyRange;
use sextant_common::manifest::{SstMeta, TableOptions};
use sextant_common::operation::{
    Base, Condition, Effect, Lifetime, RequestId, Returns, Told, Update, WriteOp, WriteRequest,
};

use super::Partition;
use super::commit::CommitEffect;
use super::evaluate::{Refusal, Verdict};
use super::ingest::{Body, Ingested};
use super::snapshot::{Snapshot, decode, encode};
use super::testing::sst;
use super::view::ReadAnswer;
use crate::command::{
    Command, Compaction, Configuration, ConfigurationRules, Configure, EnsureTable, Flush, Freeze,
    OpenSession, Placement, Relocation,
};
use crate::memtable::Version;

const T: TableId = TableId(1);

fn key(s: &str) -> Bytes {
    Bytes::copy_from_slice(s.as_bytes())
}

/// A leader's partition and its log, all of it committed unless a test says otherwise.
struct Node {
    partition: Partition,
    term: u64,
    log: Vec<(LogPosition, Body)>,
}

impl Node {
    fn new() -> Self {
        let mut node = Self { partition: Partition::new(PartitionId(0)), term: 1, log: Vec::new() };
        node.append(Body::Blank);
        node.table("t", 1);
        node
    }

    fn table(&mut self, name: &str, id: u32) {
        self.table_with(name, id, TableOptions::default());
    }

    fn table_with(&mut self, name: &str, id: u32, options: TableOptions) {
        let (term, name) = (self.term, name.into());
        let id = Some(TableId(id));
        self.command(&Command::EnsureTable(EnsureTable { term, name, options, id }));
        self.commit();
    }

    fn append(&mut self, body: Body) -> Ingested {
        let at = LogPosition { term: self.term, index: self.partition.next_index() };
        self.log.push((at, body.clone()));
        self.partition.ingest(at, &body, false).unwrap()
    }

    fn command(&mut self, command: &Command) -> Ingested {
        self.append(Body::Payload(command.encode()))
    }

    fn commit(&mut self) -> Vec<CommitEffect> {
        self.partition.commit(self.partition.last().index, 0)
    }

    fn evaluate(&self, ops: Vec<WriteOp>) -> (Option<crate::command::Group>, Verdict) {
        let request = WriteRequest { id: RequestId::default(), ops };
        let mut evaluated = self.partition.evaluate(self.term, &[request], 0);
        (evaluated.group, evaluated.verdicts.remove(0))
    }

    /// Evaluates and appends; panics if nothing took effect.
    fn write(&mut self, op: WriteOp) {
        let (group, _) = self.evaluate(vec![op]);
        assert!(matches!(self.command(&Command::Group(group.unwrap())), Ingested::Group { .. }));
    }

    fn freeze(&mut self, table: TableId) -> LogPosition {
        let generation = self.partition.table(table).unwrap().generation();
        let frozen = self.command(&Command::Freeze(Freeze { term: self.term, table, generation }));
        assert!(matches!(frozen, Ingested::Frozen { .. }));
        self.partition.last()
    }

    fn flag(&mut self, table: TableId, generation: u64, sst: Option<SstMeta>) -> Vec<CommitEffect> {
        let freeze = LogPosition::default();
        let term = self.term;
        self.command(&Command::Flush(Flush { term, table, generation: Generation(generation), freeze, sst }));
        self.commit()
    }

    fn read(&self, k: &str, searched: u64) -> ReadAnswer {
        self.partition.view().read(T, &key(k), ManifestVersion(searched), u64::MAX)
    }

    fn truncate_from(&mut self, first: u64) {
        self.log.retain(|(at, _)| at.index < first);
        self.partition.truncate_from(first).unwrap();
    }

    fn version(&self) -> u64 {
        self.partition.manifest().version.0
    }

    /// Whether the next group's write of the key leaves a bf-log entry.
    fn leaves_bit(&self, op: WriteOp) -> bool {
        let (group, _) = self.evaluate(vec![op]);
        group.unwrap().tables[0].writes[0].leaves_bit
    }
}

fn effect(value: Option<&str>) -> Effect {
    value.map_or(Effect::Delete, |value| Effect::Put(key(value)))
}

fn op(k: &str, value: Option<&str>, condition: Condition) -> WriteOp {
    let effect = effect(value);
    WriteOp {
        table: T,
        key: key(k),
        lifetime: Lifetime::usual(&effect),
        effect,
        condition,
        base: None,
        base_value: None,
        skip_on_failure: false,
        returns: Returns::Nothing,
    }
}

fn put(k: &str, value: &str) -> WriteOp {
    op(k, Some(value), Condition::None)
}

fn insert(k: &str, value: &str, version: u64, present: bool) -> WriteOp {
    let base = Base { present, seq: Seq(1), ..Base::absent(ManifestVersion(version)) };
    WriteOp { base: Some(base), ..op(k, Some(value), Condition::Absent) }
}

/// What a restart makes of a snapshot and the log after it.
fn restore(n: &Node, snapshot: &Snapshot) -> Partition {
    let bytes = encode(snapshot, PartitionId(0));
    let snapshot = decode(&bytes, PartitionId(0)).unwrap();
    let mut partition = Partition::restore(PartitionId(0), &snapshot);
    for (at, body) in &n.log {
        partition.ingest(*at, body, false).unwrap();
    }
    let committed = n.partition.committed_index();
    partition.commit(committed, 0);
    partition
}
