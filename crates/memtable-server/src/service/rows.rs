//! Rows: memtable reads, writes, pages of scans.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use prost::Message as _;
use sextant_common::env::PausePoint;
use sextant_common::error::{Error, ErrorKind};
use sextant_common::ids::{ManifestVersion, TableId};
use sextant_common::limits;
use sextant_common::mutant::{self, Mutant};
use sextant_proto::v1;
use sextant_proto::v1::rows_server::Rows;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::Context;
use crate::partition::evaluate::{Base, Condition, Op, Request as WriteRequest};
use crate::partition::view::ReadAnswer;
use crate::shared::{Event, Handle, Queued, ReplySink, WriteEvent};

/// Answered batches waiting to be sent on a stream: a slow reader stops its own requests, nobody else's.
const REPLIES_QUEUED: usize = 16;
/// Replies to writes that one message carries at most.
const REPLIES_PER_MESSAGE: usize = 1024;
/// A write without a deadline of its own waits this long.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);
/// Page limits of a scan when the request has none.
const PAGE_RECORDS: usize = 1000;
const PAGE_BYTES: usize = 1024 * 1024;
const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
const PAGE_RECORDS_MAX: usize = 20_000;
/// Values that one answer carries: the last one may be as large as a value can be.
const REPLY_BYTES_MAX: usize = 12 * 1024 * 1024;
/// What a record costs on the wire beyond its key and value.
const RECORD_OVERHEAD_BYTES: usize = 24;
/// What an operation costs in a log entry beyond its key and value: its header, its result, its table's share.
const OP_OVERHEAD_BYTES: usize = 48;
/// Writes of one stream that may be unanswered: a client that does not read its answers stops only itself.
const STREAM_WRITES_MAX: usize = 64 * 1024;
/// Keys and values that may wait for a partition's sequencer, in bytes.
const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;

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
        // The term that each partition served when it was read.
        let mut terms: HashMap<u32, u64> = HashMap::new();
        let mut partitions = Vec::with_capacity(batch.reads.len());
        let mut bytes = 0;
        for read in batch.reads {
            partitions.push(read.partition);
            if bytes > REPLY_BYTES_MAX {
                // To be asked again: one message carries only so much.
                let status = v1::ReadStatus::ReadNotReady.into();
                reply.replies.push(v1::ReadReply { status, ..Default::default() });
                continue;
            }
            let answer = self.read_one(read, &mut terms);
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
                let leads = handle.shared.leader.lock().1 == self.context.node.0;
                if !leads {
                    reply.leaders.push(handle.shared.leader_hint());
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
    fn submit(&self, request: v1::WriteRequest, to: &mpsc::UnboundedSender<v1::WriteReply>) {
        self.context.metrics.write_requests.inc();
        let reply = ReplySink::new(request.id, to.clone());
        let handle = match self.context.partition(request.partition) {
            Ok(handle) => handle,
            Err(e) => return reply.status(v1::WriteStatus::WriteUnknownPartition, &e.message),
        };
        let wait = match request.deadline_ms {
            0 => WRITE_DEADLINE,
            ms => Duration::from_millis(u64::from(ms)),
        };
        let deadline_ns = self.context.env.clock.holder_ns() + wait.as_nanos() as u64;
        let (request, bytes) = match write_from_wire(request) {
            Ok(converted) => converted,
            Err(e) => return reply.status(v1::WriteStatus::WriteInvalid, &e.message),
        };
        let Some(queued) = Queued::admit(&handle.shared.queued_bytes, bytes, QUEUE_BYTES_MAX) else {
            self.context.metrics.overloaded.inc();
            return reply.status(v1::WriteStatus::WriteOverloaded, "the partition's queue of writes is full");
        };
        let event = WriteEvent { request, queued, deadline_ns, reply };
        match handle.writes.try_send(event) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(event)) => {
                self.context.metrics.overloaded.inc();
                event
                    .reply
                    .status(v1::WriteStatus::WriteOverloaded, "the partition's queue of writes is full");
            }
            Err(mpsc::error::TrySendError::Closed(event)) => {
                event.reply.status(v1::WriteStatus::WriteRetry, "the server is stopping");
            }
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
                reply.complete = scan(&memtables, &request, at, &mut reply.records);
                v1::ReadStatus::ReadValue
            }
        };
        reply.status = status.into();
        if term == 0 || shared.serving() != Some(term) {
            let leads = shared.leader.lock().1 == self.context.node.0;
            let status = if leads { v1::ReadStatus::ReadNotReady } else { v1::ReadStatus::ReadNotLeader };
            return v1::ScanPageReply {
                status: status.into(),
                leader: Some(shared.leader_hint()),
                ..Default::default()
            };
        }
        reply
    }
}

/// Merges memtables (newest first) over the range. Whether the page covers all of it.
fn scan(
    memtables: &[Arc<crate::memtable::Memtable>],
    request: &v1::ScanPageRequest,
    at: u64,
    out: &mut Vec<v1::ScanRecord>,
) -> bool {
    use std::ops::Bound;
    let bound = |key: &Bytes| if key.is_empty() { None } else { Some(key.clone()) };
    let start = bound(&request.start).map_or(Bound::Unbounded, Bound::Included);
    let end = bound(&request.end).map_or(Bound::Unbounded, Bound::Excluded);
    if let (Bound::Included(low), Bound::Excluded(high)) = (&start, &end)
        && low >= high
    {
        return true;
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
        let Some(key) = next else { return true };
        if out.len() >= records_max || (bytes >= bytes_max && !out.is_empty()) {
            return false;
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
            bytes += key.len() + version.value.as_ref().map_or(0, Bytes::len) + RECORD_OVERHEAD_BYTES;
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

/// How many of these answers go into one message, at least one: those of batches, and with manifests, can be large.
fn fit_one_message(replies: &[v1::WriteReply]) -> usize {
    let mut bytes = 0;
    let fitting = replies.iter().take_while(|reply| {
        bytes += reply.encoded_len();
        bytes <= REPLY_BYTES_MAX
    });
    fitting.count().max(1)
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
        // Reads never wait, so a stream's batches are answered as they come.
        let mut shutdown = self.context.shutdown.clone();
        let replies = request.into_inner().then(move |batch| {
            let this = this.clone();
            async move { Ok(this.read_batch(batch?).await) }
        });
        let until_shutdown = replies.take_until(async move { shutdown.wait().await });
        Ok(Response::new(Box::pin(until_shutdown)))
    }

    async fn read(&self, request: Request<v1::ReadBatch>) -> Result<Response<v1::ReadBatchReply>, Status> {
        Ok(Response::new(self.read_batch(request.into_inner()).await))
    }

    async fn write_stream(
        &self,
        request: Request<Streaming<v1::WriteBatch>>,
    ) -> Result<Response<Self::WriteStreamStream>, Status> {
        let mut batches = request.into_inner();
        // Unbounded, but never longer than the writes that the stream may have unanswered.
        let (to, mut answered) = mpsc::unbounded_channel();
        let room = Arc::new(Semaphore::new(STREAM_WRITES_MAX));
        let (out, replies) = mpsc::channel(REPLIES_QUEUED);
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
                    match admitted.acquire().await {
                        Ok(permit) => permit.forget(),
                        Err(_) => return,
                    }
                    this.submit(write, &to);
                }
            }
        });
        tokio::spawn(async move {
            let mut batch = Vec::new();
            while answered.recv_many(&mut batch, REPLIES_PER_MESSAGE).await > 0 {
                while !batch.is_empty() {
                    let later = batch.split_off(fit_one_message(&batch));
                    let answers = batch.len();
                    let message = v1::WriteBatchReply { replies: std::mem::replace(&mut batch, later) };
                    if out.send(Ok(message)).await.is_err() {
                        room.close();
                        return;
                    }
                    room.add_permits(answers);
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(replies))))
    }

    async fn write(&self, request: Request<v1::WriteBatch>) -> Result<Response<v1::WriteBatchReply>, Status> {
        let batch = request.into_inner();
        self.context.metrics.write_messages.inc();
        let (to, mut answered) = mpsc::unbounded_channel();
        let expected = batch.writes.len();
        for write in batch.writes {
            self.submit(write, &to);
        }
        drop(to);
        let mut replies = Vec::with_capacity(expected);
        while let Some(reply) = answered.recv().await {
            replies.push(reply);
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
        Ok(Response::new(self.page(handle, request)))
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
        let leader = Some(handle.shared.leader_hint());
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

    #[test]
    fn answers_are_sent_in_messages_that_a_stream_can_carry() {
        let small = v1::WriteReply { id: 1, ..Default::default() };
        let result = v1::OpResult { applied: true, existed: true, seq: u64::MAX };
        let large = v1::WriteReply { results: vec![result; 400_000], ..Default::default() };
        assert!(large.encoded_len() > REPLY_BYTES_MAX / 2);
        assert_eq!(fit_one_message(&vec![small.clone(); 1000]), 1000);
        assert_eq!(fit_one_message(&[small.clone(), large.clone(), large.clone(), small]), 2);
        let huge = v1::WriteReply { results: vec![result; 1_200_000], ..Default::default() };
        assert!(huge.encoded_len() > REPLY_BYTES_MAX);
        assert_eq!(fit_one_message(&[huge.clone(), huge]), 1, "alone, it still has to go");
    }
}
