//! Rows: memtable reads, writes, pages of scans.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use sextant_common::env::PausePoint;
use sextant_common::error::{Error, ErrorKind};
use sextant_common::freight::Freight;
use sextant_common::ids::{ManifestVersion, TableId};
use sextant_common::limits;
use sextant_common::mutant::{self, Mutant};
use sextant_common::room::Share;
use sextant_proto::v1;
use sextant_proto::v1::rows_server::Rows;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::Context;
use super::answers::{self, Packed, Packer, Room};
use crate::partition::evaluate::{Base, Condition, Op, Request as WriteRequest};
use crate::partition::view::ReadAnswer;
use crate::replica::{Answer, Event, Handle, ReplySink, WriteOutcome};

/// Messages with answers that wait to be sent on a stream; in bytes they are bounded by the stream's room.
const REPLIES_QUEUED: usize = 16;
/// A write without a deadline of its own waits this long.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);
/// Page limits of a scan when the request has none.
const PAGE_RECORDS: usize = 1000;
const PAGE_BYTES: usize = 1024 * 1024;
const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
const PAGE_RECORDS_MAX: usize = 20_000;
/// Values that one answer carries: the last one may be as large as a value can be.
const REPLY_BYTES_MAX: usize = 12 * 1024 * 1024;
/// Bytes of large answers (values, pages of scans) that may be in memory at a time, until their p-nodes have taken them: eight of
/// the largest values.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How long an answer waits for that room: shorter than anybody waits for an answer.
const ANSWER_PATIENCE: Duration = Duration::from_millis(500);
/// What a record costs on the wire beyond its key and value.
const RECORD_OVERHEAD_BYTES: usize = 24;
/// What an operation costs in a log entry beyond its key and value: its header, its result, its table's share.
const OP_OVERHEAD_BYTES: usize = 48;

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[derive(Clone)]
pub struct RowsShell {
    pub context: Arc<Context>,
}

impl RowsShell {
    /// Answers a batch of reads. All state is read first; the leader lease is checked last, so that it held when the state was
    /// read.
    async fn read_batch(&self, batch: v1::ReadBatch) -> v1::ReadBatchReply {
        self.context.metrics.read_messages.inc();
        self.context.metrics.reads.inc_by(batch.reads.len() as u64);
        let mut reply = v1::ReadBatchReply { batch: batch.batch, ..Default::default() };
        let asked_first = match mutant::active(Mutant::LeaderLeaseAskedFirst) {
            true => Some(self.ask_leases_first().await),
            false => None,
        };
        let value_bytes_max = match batch.value_bytes_max {
            0 => usize::MAX,
            max => max as usize,
        };
        // The term that each partition served when it was read.
        let mut terms: HashMap<u32, u64> = HashMap::new();
        let mut partitions = Vec::with_capacity(batch.reads.len());
        let mut bytes = 0;
        for read in batch.reads {
            partitions.push(read.partition);
            let mut answer = self.read_one(read, &mut terms);
            if answer.value.len() > value_bytes_max {
                answer = too_large(answer.value.len());
            } else if bytes > REPLY_BYTES_MAX {
                // To be asked again: one message carries only so much. (Who names no limit knows of none.)
                answer = match value_bytes_max {
                    usize::MAX => {
                        let status = v1::ReadStatus::ReadNotReady.into();
                        v1::ReadReply { status, ..Default::default() }
                    }
                    _ => too_large(answer.value.len()),
                };
            }
            bytes += answer.value.len();
            reply.replies.push(answer);
        }
        self.context.env.pause_point(PausePoint::MemtablesRead).await;
        let lapsed: HashMap<u32, v1::ReadStatus> = terms
            .into_iter()
            .filter_map(|(id, term)| {
                let handle = self.context.partition(id).ok()?;
                let serves = match &asked_first {
                    Some(asked) => asked.contains(&id),
                    None => term != 0 && handle.shared.serving() == Some(term),
                };
                if serves {
                    return None;
                }
                let leads = handle.shared.leader().node == self.context.node.0;
                if !leads {
                    reply.leaders.push(handle.shared.leader().into());
                }
                let status = if leads { v1::ReadStatus::ReadNotReady } else { v1::ReadStatus::ReadNotLeader };
                Some((id, status))
            })
            .collect();
        let mut stale = Vec::new();
        for (partition, answer) in partitions.iter().zip(&mut reply.replies) {
            if let Some(status) = lapsed.get(partition) {
                *answer = v1::ReadReply { status: (*status).into(), ..Default::default() };
            } else if answer.status() == v1::ReadStatus::ReadStaleManifest && !stale.contains(partition) {
                stale.push(*partition);
            }
        }
        for partition in stale {
            if let Ok(handle) = self.context.partition(partition) {
                self.context.metrics.stale_reads.inc();
                reply.manifests.push(handle.shared.manifest().as_ref().into());
            }
        }
        reply
    }

    /// The same with the room that its large values take until it has left. (Until then its values are those of the
    /// memtables; it is encoded when the connection asks for it.)
    async fn answer(&self, batch: v1::ReadBatch) -> (v1::ReadBatchReply, Option<Share>) {
        let mut reply = self.read_batch(batch).await;
        let is_large = |r: &v1::ReadReply| r.value.len() > limits::LARGE_BYTES;
        let bytes: usize = reply.replies.iter().filter(|r| is_large(r)).map(|r| r.value.len()).sum();
        let room = match self.room_for_answer(bytes).await {
            Ok(room) => room,
            Err(_) => {
                for reply in reply.replies.iter_mut().filter(|r| is_large(r)) {
                    *reply = too_large(reply.value.len());
                }
                None
            }
        };
        (reply, room)
    }

    /// Whoever finds none in time asks again.
    async fn room_for_answer(&self, bytes: usize) -> Result<Option<Share>, Error> {
        if bytes <= limits::LARGE_BYTES {
            return Ok(None);
        }
        let share = tokio::time::timeout(ANSWER_PATIENCE, self.context.answers.take(bytes)).await;
        let why = "too many bytes of answers wait to be taken: ask again later";
        share.map(Some).map_err(|_| Error::new(ErrorKind::Overloaded, why))
    }

    /// What a mutant does: whatever happens after this, it does not ask again. The partitions that are served now.
    #[cold]
    async fn ask_leases_first(&self) -> HashSet<u32> {
        let partitions = self.context.partitions.iter();
        let asked =
            partitions.filter(|(_, handle)| handle.shared.serving().is_some()).map(|(id, _)| id.0).collect();
        self.context.env.pause_point(PausePoint::MemtablesRead).await;
        asked
    }

    fn read_one(&self, read: v1::ReadRequest, terms: &mut HashMap<u32, u64>) -> v1::ReadReply {
        let status = |s: v1::ReadStatus| v1::ReadReply { status: s.into(), ..Default::default() };
        let Ok(handle) = self.context.partition(read.partition) else {
            return status(v1::ReadStatus::ReadUnknownPartition);
        };
        let shared = &handle.shared;
        terms.entry(read.partition).or_insert_with(|| shared.serving_term.load(Ordering::Acquire));
        // The published seq first, then the memtables: everything published by then is in them, or was flushed, and then the
        // version tells.
        let at = shared.published_seq.load(Ordering::Acquire);
        let view = shared.view.load();
        match view.read(TableId(read.table), &read.key, ManifestVersion(read.manifest_version), at) {
            ReadAnswer::Found(version)
                if version.value.is_none() && mutant::active(Mutant::MemtableTombstoneIsNoEntry) =>
            {
                status(v1::ReadStatus::ReadNoEntry)
            }
            ReadAnswer::Found(version) => v1::ReadReply {
                bytes: 0,
                status: if version.value.is_some() {
                    v1::ReadStatus::ReadValue
                } else {
                    v1::ReadStatus::ReadTombstone
                }
                .into(),
                value: version.value.unwrap_or_default(),
                seq: version.seq,
            },
            ReadAnswer::NoEntry => status(v1::ReadStatus::ReadNoEntry),
            ReadAnswer::StaleManifest => status(v1::ReadStatus::ReadStaleManifest),
            ReadAnswer::UnknownTable => status(v1::ReadStatus::ReadUnknownTable),
        }
    }

    /// Hands a write to its partition's worker, or refuses it.
    fn submit(
        &self,
        request: v1::WriteRequest,
        to: &mpsc::UnboundedSender<Answer>,
        room: Option<OwnedSemaphorePermit>,
    ) {
        self.context.metrics.write_requests.inc();
        let reply = ReplySink::new(request.id, to.clone(), room);
        let handle = match self.context.partition(request.partition) {
            Ok(handle) => handle,
            Err(e) => return reply.send(WriteOutcome::UnknownPartition(e.message)),
        };
        let wait = match request.deadline_ms {
            0 => WRITE_DEADLINE,
            ms => Duration::from_millis(u64::from(ms)),
        };
        let deadline_ns = self.context.env.clock.holder_ns() + wait.as_nanos() as u64;
        let (request, bytes) = match write_from_wire(request) {
            Ok(converted) => converted,
            Err(e) => return reply.send(WriteOutcome::Invalid(e.message)),
        };
        if handle.submit(request, bytes, deadline_ns, reply).is_err() {
            self.context.metrics.overloaded.inc();
        }
    }

    fn page(&self, handle: &Handle, request: v1::ScanPageRequest) -> v1::ScanPageReply {
        let shared = &handle.shared;
        let term = shared.serving_term.load(Ordering::Acquire);
        let at = shared.published_seq.load(Ordering::Acquire);
        let view = shared.view.load();
        let mut reply = v1::ScanPageReply { snapshot_seq: at, ..Default::default() };
        let table = view.tables.get(&TableId(request.table));
        let memtables = table.map(|t| t.memtables_for(ManifestVersion(request.manifest_version)));
        let status = match memtables {
            None => v1::ReadStatus::ReadUnknownTable,
            Some(None) => {
                reply.manifest = Some(view.manifest.as_ref().into());
                v1::ReadStatus::ReadStaleManifest
            }
            Some(Some(memtables)) => {
                let memtables: Vec<_> = memtables.cloned().collect();
                match scan(&memtables, &request, at, &mut reply.records) {
                    Ok(complete) => {
                        reply.complete = complete;
                        v1::ReadStatus::ReadValue
                    }
                    Err(TooLarge(bytes)) => {
                        reply.bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                        v1::ReadStatus::ReadTooLarge
                    }
                }
            }
        };
        reply.status = status.into();
        if term == 0 || shared.serving() != Some(term) {
            let leads = shared.leader().node == self.context.node.0;
            let status = if leads { v1::ReadStatus::ReadNotReady } else { v1::ReadStatus::ReadNotLeader };
            return v1::ScanPageReply {
                status: status.into(),
                leader: Some(shared.leader().into()),
                ..Default::default()
            };
        }
        reply
    }
}

fn too_large(bytes: usize) -> v1::ReadReply {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    v1::ReadReply { status: v1::ReadStatus::ReadTooLarge.into(), bytes, ..Default::default() }
}

fn page_bytes(reply: &v1::ScanPageReply) -> usize {
    reply.records.iter().map(|r| r.key.len() + r.value.len() + RECORD_OVERHEAD_BYTES).sum()
}

/// The first record of a page is longer than the request allows.
struct TooLarge(usize);

/// Merges memtables (newest first) over the range. Whether the page covers all of it. It has more bytes than asked for only if it
/// is a single record.
fn scan(
    memtables: &[Arc<crate::memtable::Memtable>],
    request: &v1::ScanPageRequest,
    at: u64,
    out: &mut Vec<v1::ScanRecord>,
) -> Result<bool, TooLarge> {
    use std::ops::Bound;
    let bound = |key: &Bytes| if key.is_empty() { None } else { Some(key.clone()) };
    let start = bound(&request.start).map_or(Bound::Unbounded, Bound::Included);
    let end = bound(&request.end).map_or(Bound::Unbounded, Bound::Excluded);
    if let (Bound::Included(low), Bound::Excluded(high)) = (&start, &end)
        && low >= high
    {
        return Ok(true);
    }
    let records_max = match request.limit_records {
        0 => PAGE_RECORDS,
        n => (n as usize).min(PAGE_RECORDS_MAX),
    };
    let bytes_max = match request.limit_bytes {
        0 => PAGE_BYTES,
        n => (n as usize).min(PAGE_BYTES_MAX),
    };
    type Versions<'m> = Box<dyn Iterator<Item = (Bytes, crate::memtable::Version)> + 'm>;
    let mut sources: Vec<std::iter::Peekable<Versions<'_>>> = memtables
        .iter()
        .map(|m| {
            let versions: Versions<'_> = if request.reverse {
                Box::new(m.range_rev(start.clone(), end.clone(), at))
            } else {
                Box::new(m.range(start.clone(), end.clone(), at))
            };
            versions.peekable()
        })
        .collect();
    let mut bytes = 0;
    loop {
        let heads = sources.iter_mut().filter_map(|s| s.peek().map(|(key, _)| key.clone()));
        let next = if request.reverse { heads.max() } else { heads.min() };
        let Some(key) = next else { return Ok(true) };
        if out.len() >= records_max {
            return Ok(false);
        }
        let mut newest: Option<crate::memtable::Version> = None;
        for source in &mut sources {
            if source.peek().is_some_and(|(k, _)| *k == key)
                && let Some((_, version)) = source.next()
                && newest.as_ref().is_none_or(|n| n.seq < version.seq)
            {
                newest = Some(version);
            }
        }
        if let Some(version) = newest {
            let more = key.len() + version.value.as_ref().map_or(0, Bytes::len) + RECORD_OVERHEAD_BYTES;
            if out.is_empty() && request.first_bytes_max > 0 && more > request.first_bytes_max as usize {
                return Err(TooLarge(more));
            }
            if bytes + more > bytes_max && !out.is_empty() {
                return Ok(false);
            }
            bytes += more;
            out.push(v1::ScanRecord {
                key,
                tombstone: version.value.is_none(),
                value: version.value.unwrap_or_default(),
                seq: version.seq,
            });
        }
    }
}

/// Validates a write and converts it; also what it costs, in bytes.
pub(crate) fn write_from_wire(request: v1::WriteRequest) -> Result<(WriteRequest, usize), Error> {
    if request.ops.is_empty() {
        return Err(Error::invalid("a write without operations"));
    }
    let (mut bytes, mut expected_bytes) = (0, 0);
    let mut ops = Vec::with_capacity(request.ops.len());
    for op in request.ops {
        limits::check_key(&op.key)?;
        limits::check_value(&op.value)?;
        limits::check_value(&op.expected_value)?;
        bytes += op.key.len() + op.value.len();
        expected_bytes += op.expected_value.len();
        // Not prost's accessors: they take what they do not know for the default, here a write without a condition.
        let condition = match v1::Condition::try_from(op.condition) {
            Ok(v1::Condition::None) => Condition::None,
            Ok(v1::Condition::Absent) => Condition::Absent,
            Ok(v1::Condition::Present) => Condition::Present,
            Ok(v1::Condition::ValueEquals) => Condition::ValueEquals(op.expected_value.clone()),
            Ok(v1::Condition::SeqEquals) => Condition::SeqEquals(op.expected_seq),
            Err(_) => return Err(Error::invalid(format!("unknown condition {}", op.condition))),
        };
        let base = op.base.map(|b| Base {
            manifest: ManifestVersion(b.manifest_version),
            present: b.present,
            seq: b.seq,
            value_matches: b.value_matches,
        });
        let value = match v1::WriteKind::try_from(op.kind) {
            Ok(v1::WriteKind::WritePut) => Some(op.value),
            Ok(v1::WriteKind::WriteDelete) => None,
            Err(_) => return Err(Error::invalid(format!("unknown kind of write {}", op.kind))),
        };
        ops.push(Op {
            table: TableId(op.table),
            key: op.key,
            value,
            condition,
            base,
            skip_on_failure: op.skip_on_failure,
        });
    }
    limits::check_batch(ops.len(), bytes.max(expected_bytes))?;
    let bytes = bytes + expected_bytes + ops.len() * OP_OVERHEAD_BYTES;
    let converted = WriteRequest {
        session: request.session,
        number: request.request_no,
        acked_below: request.acked_below,
        ops,
    };
    Ok((converted, bytes))
}

/// The room is given back when the answer has left.
fn laden<T>((message, room): (T, Option<Share>)) -> Response<T> {
    let mut response = Response::new(message);
    if let Some(room) = room {
        response.extensions_mut().insert(Freight::of(room));
    }
    response
}

#[tonic::async_trait]
impl Rows for RowsShell {
    type ReadStreamStream = Replies<v1::ReadBatchReply>;
    type WriteStreamStream = Replies<v1::WriteBatchReply>;

    async fn read_stream(
        &self,
        request: Request<Streaming<v1::ReadBatch>>,
    ) -> Result<Response<Self::ReadStreamStream>, Status> {
        let this = self.clone();
        let freight = Freight::default();
        let leaving = freight.clone();
        // Reads do not wait but for room, so a stream's batches are answered as they come.
        let mut shutdown = self.context.shutdown.clone();
        let replies = request.into_inner().then(move |batch| {
            let this = this.clone();
            let leaving = leaving.clone();
            async move {
                let (reply, room) = this.answer(batch?).await;
                room.into_iter().for_each(|room| leaving.add(room));
                Ok(reply)
            }
        });
        let until_shutdown = replies.take_until(async move { shutdown.wait().await });
        let mut response: Response<Self::ReadStreamStream> = Response::new(Box::pin(until_shutdown));
        response.extensions_mut().insert(freight);
        Ok(response)
    }

    async fn read(&self, request: Request<v1::ReadBatch>) -> Result<Response<v1::ReadBatchReply>, Status> {
        Ok(laden(self.answer(request.into_inner()).await))
    }

    async fn write_stream(
        &self,
        request: Request<Streaming<v1::WriteBatch>>,
    ) -> Result<Response<Self::WriteStreamStream>, Status> {
        let mut batches = request.into_inner();
        // Unbounded, but never more than the stream has room for.
        let (to, mut answered) = mpsc::unbounded_channel();
        let room = Room::of_a_stream();
        let (out, replies) = mpsc::channel::<Packed>(REPLIES_QUEUED);
        let this = self.clone();
        let admitted = room.clone();
        tokio::spawn(async move {
            let mut shutdown = this.context.shutdown.clone();
            loop {
                let message = tokio::select! {
                    message = batches.next() => message,
                    () = shutdown.wait() => return,
                };
                let Some(Ok(batch)) = message else { return };
                this.context.metrics.write_messages.inc();
                for write in batch.writes {
                    let Some(share) = admitted.take(&write).await else { return };
                    this.submit(write, &to, Some(share));
                }
            }
        });
        tokio::spawn(async move {
            let mut packer = Packer::default();
            while let Some(packed) = packer.next(&mut answered).await {
                if out.send(packed).await.is_err() {
                    room.close();
                    return;
                }
            }
        });
        // Room is given back when a message is taken: as much as the connection takes is sent.
        Ok(Response::new(Box::pin(ReceiverStream::new(replies).map(|packed| Ok(packed.message)))))
    }

    async fn write(&self, request: Request<v1::WriteBatch>) -> Result<Response<v1::WriteBatchReply>, Status> {
        let batch = request.into_inner();
        self.context.metrics.write_messages.inc();
        if !answers::fit_one_message(&batch.writes) {
            let what =
                "the answers to so many writes do not fit into one message: send fewer, or use the stream";
            return Err(Error::invalid(what).into());
        }
        let (to, mut answered) = mpsc::unbounded_channel();
        let mut replies = Vec::with_capacity(batch.writes.len());
        for write in batch.writes {
            self.submit(write, &to, None);
        }
        drop(to);
        let mut packer = Packer::default();
        while let Some(packed) = packer.next(&mut answered).await {
            replies.extend(packed.message.replies);
        }
        Ok(Response::new(v1::WriteBatchReply { replies }))
    }

    async fn scan_page(
        &self,
        request: Request<v1::ScanPageRequest>,
    ) -> Result<Response<v1::ScanPageReply>, Status> {
        let request = request.into_inner();
        self.context.metrics.scan_pages.inc();
        let handle = match self.context.partition(request.partition) {
            Ok(handle) => handle,
            Err(_) => {
                let status = v1::ReadStatus::ReadUnknownPartition.into();
                return Ok(Response::new(v1::ScanPageReply { status, ..Default::default() }));
            }
        };
        let page = self.page(handle, request);
        let room = self.room_for_answer(page_bytes(&page)).await?;
        Ok(laden((page, room)))
    }

    async fn open_session(
        &self,
        request: Request<v1::OpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionReply>, Status> {
        let request = request.into_inner();
        let handle = self.context.partition(request.partition)?;
        if request.session == 0 {
            return Err(Error::invalid("session 0 is no session").into());
        }
        let (done, opened) = oneshot::channel();
        let _ = handle.events.send(Event::OpenSession { session: request.session, done });
        let answer = tokio::time::timeout(WRITE_DEADLINE, opened).await;
        let message = match &answer {
            Ok(Ok(Err(e))) => e.to_string(),
            _ => String::new(),
        };
        let status = match answer {
            Ok(Ok(Ok(()))) => v1::WriteStatus::WriteOk,
            Ok(Ok(Err(e))) if e.kind == ErrorKind::NotLeader => v1::WriteStatus::WriteNotLeader,
            Ok(Ok(Err(e))) if e.kind == ErrorKind::Overloaded => v1::WriteStatus::WriteOverloaded,
            // Opening a session twice does no harm.
            _ => v1::WriteStatus::WriteRetry,
        };
        let leader = Some(handle.shared.leader().into());
        Ok(Response::new(v1::OpenSessionReply { status: status.into(), leader, message }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_of_an_unknown_kind_or_condition_is_refused() {
        let request = |kind: i32, condition: i32| v1::WriteRequest {
            ops: vec![v1::WriteOp { key: Bytes::from_static(b"k"), kind, condition, ..Default::default() }],
            ..Default::default()
        };
        write_from_wire(request(1, 4)).unwrap();
        assert!(write_from_wire(request(2, 0)).unwrap_err().message.contains("kind of write 2"));
        assert!(write_from_wire(request(0, 5)).unwrap_err().message.contains("condition 5"));
        assert!(write_from_wire(request(0, -1)).unwrap_err().message.contains("condition -1"));
    }
}
