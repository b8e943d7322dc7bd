//! The gRPC service `Kv`.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use sextant_access::Class;
use sextant_common::expiry::Tick;
use sextant_common::ids::{PartitionId, TableId};
use sextant_common::key::prefix_end;
use sextant_common::limits::{KEY_BYTES_MAX, LARGE_BYTES};
use sextant_common::manifest::OptionsChange;
use sextant_common::marks::Kind;
use sextant_common::operation::{Condition, Operation, Record};
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::env::status_of;
use sextant_environment::room::{Room, Share};
use sextant_environment::slow_log;
use sextant_proto::convert::operation::read_mode_from_wire;
use sextant_proto::v1::kv_server::Kv;
use sextant_proto::{MESSAGE_BYTES_MAX, v1};
use tonic::codegen::http::Extensions;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::gate::{Gate, Who, is_for_clients};
use super::incoming::{Luggage, Rooms, no_room};
use crate::api::{ReadOptions, ScanPage, ScanRange, WriteOptions};
use crate::pnode::PNode;
use crate::snapshots::{OfPartition, Snapshot};
use crate::upstream::Deadline;

/// How long before its caller gives up a call is answered at the latest (a quarter of its time, if that is shorter).
const ANSWER_MARGIN: Duration = Duration::from_millis(50);
/// Longest deadline that a call may state: beyond it nobody waits.
const DEADLINE_MAX: Duration = Duration::from_secs(3600);
/// How long a scan that finds nothing says nothing (a quarter of its caller's time, if that is shorter): a fifth of what our clients wait
/// for a p-node that does not answer.
const SILENCE_MAX: Duration = Duration::from_millis(200);
/// Framing of a record in an answer, and what it takes until it is encoded.
const RECORD_OVERHEAD_BYTES: usize = 32;
/// How long an answer waits for room at most: it is in memory already.
const ANSWER_PATIENCE_MAX: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct KvService {
    pnode: PNode,
    rooms: Rooms,
    /// For answers of many small values, until they have left. (Large ones have their room from when they are read.)
    answers: Room,
    /// Those that wait for it are in memory; what finds no room here either is refused at once.
    answers_waiting: Room,
    gate: Gate,
}

impl KvService {
    /// `answer_bytes_max`: of long answers of short values that have not left, and of as many that wait for that.
    pub fn new(pnode: PNode, rooms: Rooms, answer_bytes_max: usize, gate: Gate) -> Self {
        let (answers, answers_waiting) = (Room::new(answer_bytes_max), Room::new(answer_bytes_max));
        Self { pnode, rooms, answers, answers_waiting, gate }
    }

    async fn who<T>(&self, request: &Request<T>) -> Result<Who, Status> {
        self.gate.who(request).await.map_err(status_of)
    }

    /// Room for a large write that has only a place to wait for it, until it is answered. (Its bytes are here already: so only some may
    /// wait.)
    async fn room_for(&self, ops: &[Operation], call: &Call) -> Result<Option<Share>> {
        let bytes: usize = ops.iter().map(Operation::carried_bytes).sum();
        if bytes <= LARGE_BYTES || call.luggage.has_room() {
            return Ok(None);
        }
        let mut places = call.luggage.places();
        if let Some(share) = self.rooms.large.try_take(bytes) {
            return Ok(Some(share));
        }
        if places.is_empty() {
            places.push(self.rooms.waiting.try_take(bytes).ok_or_else(no_room)?);
        }
        let patience = self.pnode.core().write_deadlines(call.deadline).taken;
        let patience = patience.left(&*self.pnode.core().env.clock);
        let share = tokio::time::timeout(patience, self.rooms.large.take(bytes)).await;
        share.map(Some).map_err(|_| no_room())
    }

    /// Room for a long answer, until whoever asked has taken it: so those who take nothing fill no memory.
    async fn room_to_answer(&self, bytes: usize, deadline: Deadline) -> Result<Option<Share>> {
        if bytes <= LARGE_BYTES {
            return Ok(None);
        }
        if let Some(share) = self.answers.try_take(bytes) {
            return Ok(Some(share));
        }
        let refused =
            || Error::new(ErrorKind::Overloaded, "the p-node has no room for so long an answer now");
        let _waits = self.answers_waiting.try_take(bytes).ok_or_else(refused)?;
        let patience = deadline.left(&*self.pnode.core().env.clock).min(ANSWER_PATIENCE_MAX);
        let share = tokio::time::timeout(patience, self.answers.take(bytes)).await;
        share.map(Some).map_err(|_| refused())
    }

    async fn write(
        &self,
        who: &Who,
        op: Operation,
        request: Option<v1::RequestId>,
        call: Call,
    ) -> Result<Response<v1::KvWriteReply>, Status> {
        self.write_batch(who, vec![op], request, call).await
    }

    async fn write_batch(
        &self,
        who: &Who,
        ops: Vec<Operation>,
        request: Option<v1::RequestId>,
        call: Call,
    ) -> Result<Response<v1::KvWriteReply>, Status> {
        ops.iter().try_for_each(|op| who.may_write(op)).map_err(status_of)?;
        // (Long ones are counted while they come in.)
        let carried =
            if call.luggage.is_carried() { 0 } else { ops.iter().map(Operation::carried_bytes).sum() };
        let _carried = who.carry(carried).map_err(status_of)?;
        ops.first().into_iter().for_each(|op| slow_log::about(&op.key));
        let began_ns = self.pnode.core().env.clock.holder_ns();
        let _room = self.room_for(&ops, &call).await.map_err(status_of)?;
        let waited_ns = self.pnode.core().env.clock.holder_ns().saturating_sub(began_ns);
        let deadline = call.deadline.map(|d| d.saturating_sub(Duration::from_nanos(waited_ns)));
        let options = WriteOptions { request: request.map(Into::into), deadline, ..WriteOptions::default() };
        let outcome = self.pnode.write(ops, options).await.map_err(status_of)?;
        Ok(Response::new(outcome.into()))
    }

    /// `snapshot`: of what it has. `limit`: when its caller gives up.
    fn scanned(
        &self,
        who: Who,
        r: v1::KvScanRequest,
        snapshot: Option<u64>,
        limit: Option<Duration>,
    ) -> Result<Response<BoxStream<'static, Result<v1::KvScanPage, Status>>>, Status> {
        let (start, end) = match r.prefix.is_empty() {
            true => (r.start, r.end),
            false => (r.prefix.clone(), prefix_end(&r.prefix)),
        };
        check_bounds(&start, &end).map_err(status_of)?;
        who.may_scan(&r.table, &start, &end).map_err(status_of)?;
        let of = (r.table.clone(), start.clone(), end.clone());
        let range = ScanRange {
            start,
            end,
            reverse: r.reverse,
            limit: r.limit,
            page_records: r.page_records,
            partition: r.only_partition.map(PartitionId),
            silence_max: Some(limit.map_or(SILENCE_MAX, |limit| SILENCE_MAX.min(limit / 4))),
            ..ScanRange::default()
        };
        let pages = match snapshot {
            None => self.pnode.scan(&r.table, range),
            Some(snapshot) => self.pnode.scan_snapshot(&r.table, range, snapshot),
        };
        let pnode = self.pnode.clone();
        // Who takes its time may, as long as others get on.
        let freight = who.freight(move || pnode.scans_are_crowded());
        let leaving = freight.clone();
        let pages = pages.map(move |page| {
            let (table, start, end) = &of;
            let page = who.may_still_scan(table, start, end).and(page);
            let values = page.iter().flat_map(|page| &page.records).map(|(_, record)| &record.value);
            values.filter(|value| value.len() > LARGE_BYTES).for_each(|value| leaving.add(value.clone()));
            page.map(scan_page).map_err(status_of)
        });
        let mut response = Response::new(pages.boxed());
        response.extensions_mut().insert(freight);
        Ok(response)
    }
}

#[tonic::async_trait]
impl Kv for KvService {
    type ScanStream = BoxStream<'static, Result<v1::KvScanPage, Status>>;

    async fn get(&self, request: Request<v1::KvGetRequest>) -> Result<Response<v1::KvGetReply>, Status> {
        let who = self.who(&request).await?;
        let options = read_options(request.get_ref().mode, request.metadata()).map_err(status_of)?;
        let request = request.into_inner();
        who.may_key(Class::Read, &request.table, &request.key).map_err(status_of)?;
        slow_log::about(&request.key);
        let record = self.pnode.get_bytes(&request.table, request.key, options).await.map_err(status_of)?;
        let record = record.map(Record::plain).transpose().map_err(status_of)?;
        let value = record.iter().map(|r| &r.value).filter(|value| value.len() > LARGE_BYTES).cloned();
        Ok(laden(&who, value.collect(), None, record.into()))
    }

    async fn multi_get(
        &self,
        request: Request<v1::KvMultiGetRequest>,
    ) -> Result<Response<v1::KvMultiGetReply>, Status> {
        let who = self.who(&request).await?;
        let options = read_options(request.get_ref().mode, request.metadata()).map_err(status_of)?;
        let request = request.into_inner();
        let may_read = |key| who.may_key(Class::Read, &request.table, key);
        request.keys.iter().try_for_each(|key| may_read(key)).map_err(status_of)?;
        request.keys.first().into_iter().for_each(slow_log::about);
        let until = self.pnode.core().deadline(options.deadline);
        let records =
            self.pnode.multi_get(&request.table, &request.keys, options).await.map_err(status_of)?;
        let plain = |record: Option<Record>| record.map(Record::plain).transpose();
        let records = records.into_iter().map(plain).collect::<Result<Vec<_>>>().map_err(status_of)?;
        let size = |r: &Option<Record>| r.as_ref().map_or(0, |r| r.value.len()) + RECORD_OVERHEAD_BYTES;
        let bytes: usize = records.iter().map(size).sum();
        if bytes > MESSAGE_BYTES_MAX {
            return Err(status_of(Error::invalid(format!(
                "the answer has {bytes} bytes: the limit is {MESSAGE_BYTES_MAX} bytes; ask for fewer keys at once"
            ))));
        }
        let values: Vec<Bytes> = records.iter().flatten().map(|record| record.value.clone()).collect();
        let large: usize = values.iter().map(Bytes::len).filter(|bytes| *bytes > LARGE_BYTES).sum();
        let room = self.room_to_answer(bytes - large, until).await.map_err(status_of)?;
        let replies = records.into_iter().map(Into::into).collect();
        Ok(laden(&who, values, room, v1::KvMultiGetReply { replies }))
    }

    async fn put(&self, request: Request<v1::KvPutRequest>) -> Result<Response<v1::KvWriteReply>, Status> {
        let who = self.who(&request).await?;
        let (metadata, extensions, r) = request.into_parts();
        let call = Call::new(&metadata, &extensions);
        let id = r.request;
        let put = Operation::try_from(r).map_err(status_of)?;
        self.write(&who, put, id, call).await
    }

    async fn insert(&self, request: Request<v1::KvPutRequest>) -> Result<Response<v1::KvWriteReply>, Status> {
        let who = self.who(&request).await?;
        let (metadata, extensions, r) = request.into_parts();
        let call = Call::new(&metadata, &extensions);
        let id = r.request;
        let insert = Operation::try_from(r).map_err(status_of)?.only_if(Condition::Absent);
        self.write(&who, insert, id, call).await
    }

    async fn delete(
        &self,
        request: Request<v1::KvDeleteRequest>,
    ) -> Result<Response<v1::KvWriteReply>, Status> {
        let who = self.who(&request).await?;
        let (metadata, extensions, r) = request.into_parts();
        let call = Call::new(&metadata, &extensions);
        let delete = if r.check_exists { Operation::delete_checked } else { Operation::delete };
        self.write(&who, delete(&r.table, r.key), r.request, call).await
    }

    async fn compare_and_set(
        &self,
        request: Request<v1::KvCompareAndSetRequest>,
    ) -> Result<Response<v1::KvWriteReply>, Status> {
        let who = self.who(&request).await?;
        let (metadata, extensions, r) = request.into_parts();
        let call = Call::new(&metadata, &extensions);
        let id = r.request;
        let op = Operation::try_from(r).map_err(status_of)?;
        self.write(&who, op, id, call).await
    }

    async fn batch(
        &self,
        request: Request<v1::KvBatchRequest>,
    ) -> Result<Response<v1::KvWriteReply>, Status> {
        let who = self.who(&request).await?;
        let (metadata, extensions, r) = request.into_parts();
        let call = Call::new(&metadata, &extensions);
        let ops =
            r.ops.into_iter().map(Operation::try_from).collect::<Result<Vec<_>>>().map_err(status_of)?;
        self.write_batch(&who, ops, r.request, call).await
    }

    async fn scan(&self, request: Request<v1::KvScanRequest>) -> Result<Response<Self::ScanStream>, Status> {
        let who = self.who(&request).await?;
        let limit = deadline(request.metadata());
        self.scanned(who, request.into_inner(), None, limit)
    }

    async fn open_snapshot(
        &self,
        request: Request<v1::KvOpenSnapshotRequest>,
    ) -> Result<Response<v1::KvSnapshot>, Status> {
        let who = self.who(&request).await?;
        who.may(Class::Read, "a snapshot").map_err(status_of)?;
        let limit = deadline(request.metadata());
        let lease_ms = request.get_ref().lease_ms;
        let snapshot = self.pnode.snapshots().open(lease_ms, who.administers(), limit).await;
        Ok(Response::new(described(&*snapshot.map_err(status_of)?)))
    }

    async fn renew_snapshot(
        &self,
        request: Request<v1::KvSnapshotRequest>,
    ) -> Result<Response<v1::KvSnapshot>, Status> {
        let who = self.who(&request).await?;
        who.may(Class::Read, "a snapshot").map_err(status_of)?;
        let snapshot = self.pnode.snapshots().renew(request.get_ref().snapshot).await;
        Ok(Response::new(described(&*snapshot.map_err(status_of)?)))
    }

    async fn close_snapshot(
        &self,
        request: Request<v1::KvSnapshotRequest>,
    ) -> Result<Response<v1::KvCloseSnapshotReply>, Status> {
        let who = self.who(&request).await?;
        who.may(Class::Read, "a snapshot").map_err(status_of)?;
        self.pnode.snapshots().close(request.get_ref().snapshot).await.map_err(status_of)?;
        Ok(Response::new(v1::KvCloseSnapshotReply {}))
    }

    type ScanSnapshotStream = Self::ScanStream;

    async fn scan_snapshot(
        &self,
        request: Request<v1::KvScanSnapshotRequest>,
    ) -> Result<Response<Self::ScanStream>, Status> {
        let who = self.who(&request).await?;
        let limit = deadline(request.metadata());
        let v1::KvScanSnapshotRequest { snapshot, scan } = request.into_inner();
        self.scanned(who, scan.unwrap_or_default(), Some(snapshot), limit)
    }

    async fn create_table(
        &self,
        request: Request<v1::KvCreateTableRequest>,
    ) -> Result<Response<v1::KvCreateTableReply>, Status> {
        let who = self.who(&request).await?;
        let r = request.into_inner();
        who.may(Class::Admin, "to make a table").and_then(|()| is_for_clients(&r.name)).map_err(status_of)?;
        tracing::info!(target: "audit", "{} asks to make table {:?}", who.name(), r.name);
        let options = r.options.unwrap_or_default().try_into().map_err(status_of)?;
        let (id, created) = self.pnode.create_table(&r.name, options).await.map_err(status_of)?;
        Ok(Response::new(v1::KvCreateTableReply { id: id.0, created }))
    }

    async fn drop_table(
        &self,
        request: Request<v1::KvDropTableRequest>,
    ) -> Result<Response<v1::KvDropTableReply>, Status> {
        let who = self.who(&request).await?;
        let limit = deadline(request.metadata());
        let v1::KvDropTableRequest { name, id } = request.into_inner();
        who.may(Class::Admin, "to drop a table")
            .and_then(|()| who.may(Class::Dangerous, "to drop a table"))
            .and_then(|()| is_for_clients(&name))
            .map_err(status_of)?;
        tracing::info!(target: "audit", "{} asks to drop table {name:?}", who.name());
        let dropped = self.pnode.drop_table(&name, id.map(TableId), limit).await.map_err(status_of)?;
        Ok(Response::new(v1::KvDropTableReply { dropped }))
    }

    async fn alter_table(
        &self,
        request: Request<v1::KvAlterTableRequest>,
    ) -> Result<Response<v1::KvAlterTableReply>, Status> {
        let who = self.who(&request).await?;
        let limit = deadline(request.metadata());
        let request = request.into_inner();
        let name = request.name.clone();
        who.may(Class::Admin, "to alter a table").and_then(|()| is_for_clients(&name)).map_err(status_of)?;
        tracing::info!(target: "audit", "{} asks to alter table {name:?}", who.name());
        let change = OptionsChange::try_from(request).map_err(status_of)?;
        let options = self.pnode.alter_table(&name, change, limit).await.map_err(status_of)?;
        Ok(Response::new(v1::KvAlterTableReply { options: Some((&options).into()) }))
    }

    async fn list_tables(
        &self,
        request: Request<v1::KvListTablesRequest>,
    ) -> Result<Response<v1::KvListTablesReply>, Status> {
        let _who = self.who(&request).await?;
        let mut tables = self.pnode.tables().await.map_err(status_of)?;
        tables.retain(|table| is_for_clients(&table.name).is_ok());
        Ok(Response::new(v1::KvListTablesReply { tables: tables.into_iter().map(Into::into).collect() }))
    }

    async fn open_session(
        &self,
        request: Request<v1::KvOpenSessionRequest>,
    ) -> Result<Response<v1::KvOpenSessionReply>, Status> {
        let who = self.who(&request).await?;
        who.may(Class::Write, "a session").map_err(status_of)?;
        let limit = deadline(request.metadata());
        Ok(Response::new(v1::KvOpenSessionReply {
            session: self.pnode.open_session(limit).await.map_err(status_of)?,
        }))
    }
}

/// What a write's head says, and what it holds.
struct Call {
    deadline: Option<Duration>,
    luggage: Luggage,
}

impl Call {
    fn new(metadata: &MetadataMap, extensions: &Extensions) -> Self {
        let luggage = extensions.get::<Luggage>().cloned().unwrap_or_default();
        Self { deadline: deadline(metadata), luggage }
    }
}

/// Large values, and a long answer, hold their room until the answer has left; which has to be taken.
fn laden<T>(who: &Who, mut values: Vec<Bytes>, room: Option<Share>, message: T) -> Response<T> {
    values.retain(|value| value.len() > LARGE_BYTES);
    let mut response = Response::new(message);
    if !values.is_empty() || room.is_some() {
        let freight = who.freight(|| true);
        freight.add((values, room));
        response.extensions_mut().insert(freight);
    }
    response
}

/// The successor of the longest key is the longest bound that makes sense.
fn check_bounds(start: &[u8], end: &[u8]) -> Result<()> {
    let longest = start.len().max(end.len());
    if longest > KEY_BYTES_MAX + 1 {
        return Err(Error::invalid(format!(
            "a range's bound has {longest} bytes: keys have {KEY_BYTES_MAX} at most"
        )));
    }
    Ok(())
}

fn read_options(mode: i32, metadata: &MetadataMap) -> Result<ReadOptions> {
    let mode = read_mode_from_wire(mode)?;
    Ok(ReadOptions { mode, deadline: deadline(metadata) })
}

/// The deadline that the call states (`grpc-timeout`), a little shorter so that our answer is there before the caller gives
/// up: whether a write may have taken effect is worth hearing.
pub(super) fn deadline(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let unit = text.chars().last()?;
    let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
    let time = match unit {
        'H' => Duration::from_secs(number.saturating_mul(3600)),
        'M' => Duration::from_secs(number.saturating_mul(60)),
        'S' => Duration::from_secs(number),
        'm' => Duration::from_millis(number),
        'u' => Duration::from_micros(number),
        'n' => Duration::from_nanos(number),
        _ => return None,
    };
    let time = time.min(DEADLINE_MAX);
    Some(time - (time / 20).max(ANSWER_MARGIN.min(time / 4)))
}

fn described(snapshot: &Snapshot) -> v1::KvSnapshot {
    let partition = |(partition, of): (usize, &OfPartition)| v1::KvSnapshotPartition {
        partition: partition as u32,
        seq: of.cut.seq.0,
        tick: of.cut.tick.0,
    };
    let partitions = snapshot.cuts.iter().enumerate().map(partition).collect();
    v1::KvSnapshot { snapshot: snapshot.id, partitions }
}

fn scan_page(page: ScanPage) -> v1::KvScanPage {
    let records = page.records.into_iter();
    let record = |(key, Record { value, seq, expires_at, kind })| {
        let expires_at = Tick::to_wire(expires_at);
        // (The header of an object is nobody's business.)
        let value = if kind == Kind::Plain { value } else { Bytes::new() };
        v1::KvRecord { key, value, seq: seq.0, expires_at, kind: kind.number().into() }
    };
    let records = records.map(record);
    v1::KvScanPage {
        partition: page.partition.0,
        snapshot_seq: page.snapshot_seq.0,
        records: records.collect(),
        goes_on_at: page.goes_on_at.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_read_from_the_calls_headers() {
        let read = |text: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", text.parse().unwrap());
            deadline(&metadata)
        };
        assert_eq!(read("100m"), Some(Duration::from_millis(75)));
        assert_eq!(read("300m"), Some(Duration::from_millis(250)));
        assert_eq!(read("1S"), Some(Duration::from_millis(950)));
        assert_eq!(read("99999999H"), Some(DEADLINE_MAX - DEADLINE_MAX / 20));
        assert_eq!(read("12"), None);
        assert_eq!(read("xS"), None);
        assert_eq!(deadline(&MetadataMap::new()), None);
    }
}
