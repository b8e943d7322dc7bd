//! Partitions for tests of those who look at them.

use bytes::Bytes;
use sextant_common::ids::{Epoch, LogPosition, PartitionId, SstId, TableId};
use sextant_common::manifest::{Generations, SstMeta, TableOptions};
use sextant_common::operation::{Condition, Effect, Lifetime, RequestId, Returns, WriteOp, WriteRequest};

use super::Partition;
use super::ingest::{Body, Ingested};
use crate::command::{Command, EnsureTable, Flush, Freeze};

const TERM: u64 = 1;

/// An empty partition with these tables, all of it committed.
pub fn partition_with(tables: &[TableId]) -> Partition {
    let mut partition = Partition::new(PartitionId(0));
    ingest(&mut partition, Body::Blank);
    for table in tables {
        let (name, options) = (format!("t{table}"), TableOptions::default());
        let table = EnsureTable { term: TERM, name, options, id: Some(*table) };
        append(&mut partition, &Command::EnsureTable(table));
    }
    let last = partition.last().index;
    partition.commit(last, 0);
    partition
}

/// Writes a value of so many bytes.
pub fn put(partition: &mut Partition, table: TableId, key: &'static str, value_bytes: usize) {
    let op = WriteOp {
        table,
        key: Bytes::from_static(key.as_bytes()),
        effect: Effect::Put(vec![7; value_bytes].into()),
        lifetime: Lifetime::Unlimited,
        condition: Condition::None,
        base: None,
        base_value: None,
        skip_on_failure: false,
        returns: Returns::Nothing,
    };
    let request = WriteRequest { id: RequestId::default(), ops: vec![op] };
    let group = partition.evaluate(TERM, &[request], 0).group.unwrap();
    assert!(matches!(append(partition, &Command::Group(group)), Ingested::Group { .. }));
}

/// Freezes a table's active memtable. The index of the freeze.
pub fn freeze(partition: &mut Partition, table: TableId) -> u64 {
    let generation = partition.table(table).unwrap().generation();
    let frozen = append(partition, &Command::Freeze(Freeze { term: TERM, table, generation }));
    assert!(matches!(frozen, Ingested::Frozen { .. }));
    partition.last().index
}

/// Freezes a table's active memtable, and an SSTable has what was in it. All of it is committed.
pub fn flush(partition: &mut Partition, table: TableId) {
    let generation = partition.table(table).unwrap().generation();
    freeze(partition, table);
    let freeze = partition.table(table).unwrap().frozen.front().unwrap().freeze;
    let generations = Generations::new(generation.0, generation.0);
    let sst = Some(SstMeta { table, generations, ..sst(generation.0 as u32) });
    append(partition, &Command::Flush(Flush { term: TERM, table, generation, freeze, sst }));
    let last = partition.last().index;
    partition.commit(last, 0);
}

fn append(partition: &mut Partition, command: &Command) -> Ingested {
    ingest(partition, Body::Payload(command.encode()))
}

fn ingest(partition: &mut Partition, body: Body) -> Ingested {
    let at = LogPosition { term: TERM, index: partition.next_index() };
    partition.ingest(at, &body, false).unwrap()
}

/// An SSTable of table 1 that holds everything from "a" to "z".
pub fn sst(counter: u32) -> SstMeta {
    let id = SstId {
        partition: PartitionId(0),
        plan: LogPosition::default(),
        epoch: Epoch { term: 1, incarnation: 1 },
        counter,
    };
    SstMeta {
        id,
        table: TableId(1),
        records: 1,
        tombstones: 0,
        min_key: Bytes::from_static(b"a"),
        max_key: Bytes::from_static(b"z"),
        min_seq: 1,
        max_seq: 1,
        file_bytes: 100,
        checksum: 7,
        generations: Default::default(),
        range: Default::default(),
        expiring: Default::default(),
        replicas: vec![],
    }
}
