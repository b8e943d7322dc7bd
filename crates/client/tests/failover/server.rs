//! A server in the place of a p-node: answers from a map, or does what the test ordered instead.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use parking_lot::Mutex;
use sextant_common::expiry::Tick;
use sextant_common::ids::Seq;
use sextant_common::marks::Marks;
use sextant_common::operation::{Change, OpOutcome, Operation, Record, Tally};
use sextant_common::{Error, ErrorKind};
use sextant_environment::env::status_of;
use sextant_proto::v1;
use sextant_proto::v1::kv_server::Kv;
use tonic::{Request, Response, Status};

/// What a server does with the next request instead of answering it.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// Answers an error without executing.
    Refuse(ErrorKind),
    /// Executes, and never answers.
    LoseReply,
    /// Does nothing, for ever.
    Hang,
    /// Ends a scan with an error after this many pages.
    BreakScan(usize),
    /// Says that a scan has come so far and found nothing, and then nothing more, for ever.
    PassOver(&'static str),
}

/// The cluster behind all servers.
#[derive(Default)]
pub struct Store {
    pub records: BTreeMap<Bytes, (Bytes, u64)>,
    seq: u64,
    pub sessions_opened: u64,
    /// (session, number) -> reply.
    seen: BTreeMap<(u64, u64), v1::KvWriteReply>,
    pub known_sessions: Vec<u64>,
    pub requests: Vec<v1::RequestId>,
    pub executed: u64,
}

#[derive(Clone, Default)]
pub struct FakeServer {
    pub store: Arc<Mutex<Store>>,
    pub faults: Arc<Mutex<VecDeque<Fault>>>,
}

impl FakeServer {
    pub fn fail_next(&self, faults: impl IntoIterator<Item = Fault>) {
        self.faults.lock().extend(faults);
    }

    fn fault(&self) -> Option<Fault> {
        self.faults.lock().pop_front()
    }

    async fn write(
        &self,
        id: Option<v1::RequestId>,
        apply: impl FnOnce(&mut Store) -> v1::KvWriteReply + Send,
    ) -> Result<Response<v1::KvWriteReply>, Status> {
        let fault = self.fault();
        match fault {
            Some(Fault::Refuse(kind)) => return Err(status_of(Error::new(kind, "refused"))),
            Some(Fault::Hang) => return std::future::pending().await,
            _ => {}
        }
        let reply = self.execute(id, apply)?;
        if let Some(Fault::LoseReply) = fault {
            return std::future::pending().await;
        }
        Ok(Response::new(reply))
    }

    fn execute(
        &self,
        id: Option<v1::RequestId>,
        apply: impl FnOnce(&mut Store) -> v1::KvWriteReply,
    ) -> Result<v1::KvWriteReply, Status> {
        let mut store = self.store.lock();
        let Some(id) = id else {
            store.executed += 1;
            return Ok(apply(&mut store));
        };
        store.requests.push(id);
        if !store.known_sessions.contains(&id.session) {
            return Err(status_of(Error::new(ErrorKind::UnknownSession, "no such session")));
        }
        if let Some(reply) = store.seen.get(&(id.session, id.number)) {
            return Ok(reply.clone());
        }
        store.executed += 1;
        let reply = apply(&mut store);
        store.seen.insert((id.session, id.number), reply.clone());
        Ok(reply)
    }
}

impl Store {
    fn put(&mut self, key: Bytes, value: Option<Bytes>, only_if_absent: bool) -> v1::KvWriteReply {
        let existed = self.records.get(&key).map(|(_, seq)| *seq);
        let applied = !(only_if_absent && existed.is_some());
        let mut seq = existed.unwrap_or(0);
        if applied {
            self.seq += 1;
            seq = self.seq;
            match value {
                Some(value) => self.records.insert(key, (value, seq)),
                None => self.records.remove(&key),
            };
        }
        let result = v1::OpResult { applied, existed: existed.is_some(), seq, ..Default::default() };
        v1::KvWriteReply { applied, results: vec![result] }
    }
}

impl Store {
    /// Each operation by itself, which is all that these tests need.
    fn execute(&mut self, op: v1::KvBatchOp) -> v1::OpResult {
        let op = Operation::try_from(op).expect("the client sends what makes sense");
        let before = self.records.get(&op.key).cloned();
        let record = |(value, seq): &(Bytes, u64)| Record::marked(value.clone(), Seq(*seq), Marks::NONE);
        let (change, _, outcome) =
            op.execute(before.as_ref().map(record).as_ref(), Tally::default(), Tick(0));
        self.seq += 1;
        let seq = if outcome.applied { self.seq } else { before.map_or(0, |(_, seq)| seq) };
        match change {
            Change::To(value, _) => {
                self.records.insert(op.key, (value, seq));
            }
            Change::Removed => {
                self.records.remove(&op.key);
            }
            Change::None => {}
        }
        OpOutcome { seq: Seq(seq), ..outcome }.into()
    }
}

#[tonic::async_trait]
impl Kv for FakeServer {
    type ScanStream = futures::stream::BoxStream<'static, Result<v1::KvScanPage, Status>>;
    type ScanSnapshotStream = Self::ScanStream;

    async fn open_snapshot(
        &self,
        _: Request<v1::KvOpenSnapshotRequest>,
    ) -> Result<Response<v1::KvSnapshot>, Status> {
        Err(Status::unimplemented("a fake"))
    }

    async fn renew_snapshot(
        &self,
        _: Request<v1::KvSnapshotRequest>,
    ) -> Result<Response<v1::KvSnapshot>, Status> {
        Err(Status::unimplemented("a fake"))
    }

    async fn close_snapshot(
        &self,
        _: Request<v1::KvSnapshotRequest>,
    ) -> Result<Response<v1::KvCloseSnapshotReply>, Status> {
        Err(Status::unimplemented("a fake"))
    }

    async fn scan_snapshot(
        &self,
        _: Request<v1::KvScanSnapshotRequest>,
    ) -> Result<Response<Self::ScanStream>, Status> {
        Err(Status::unimplemented("a fake"))
    }

    async fn get(&self, request: Request<v1::KvGetRequest>) -> Result<Response<v1::KvGetReply>, Status> {
        match self.fault() {
            Some(Fault::Refuse(kind)) => return Err(status_of(Error::new(kind, "refused"))),
            Some(_) => return std::future::pending().await,
            None => {}
        }
        let store = self.store.lock();
        Ok(Response::new(match store.records.get(&request.get_ref().key) {
            Some((value, seq)) => {
                v1::KvGetReply { found: true, value: value.clone(), seq: *seq, ..Default::default() }
            }
            None => v1::KvGetReply::default(),
        }))
    }

    async fn multi_get(
        &self,
        request: Request<v1::KvMultiGetRequest>,
    ) -> Result<Response<v1::KvMultiGetReply>, Status> {
        let mut replies = Vec::new();
        for key in request.into_inner().keys {
            let get = v1::KvGetRequest { key, ..Default::default() };
            replies.push(self.get(Request::new(get)).await?.into_inner());
        }
        Ok(Response::new(v1::KvMultiGetReply { replies }))
    }

    async fn put(&self, request: Request<v1::KvPutRequest>) -> Result<Response<v1::KvWriteReply>, Status> {
        let r = request.into_inner();
        self.write(r.request, |store| store.put(r.key, Some(r.value), false)).await
    }

    async fn insert(&self, request: Request<v1::KvPutRequest>) -> Result<Response<v1::KvWriteReply>, Status> {
        let r = request.into_inner();
        self.write(r.request, |store| store.put(r.key, Some(r.value), true)).await
    }

    async fn delete(
        &self,
        request: Request<v1::KvDeleteRequest>,
    ) -> Result<Response<v1::KvWriteReply>, Status> {
        let r = request.into_inner();
        self.write(r.request, |store| store.put(r.key, None, false)).await
    }

    async fn compare_and_set(
        &self,
        request: Request<v1::KvCompareAndSetRequest>,
    ) -> Result<Response<v1::KvWriteReply>, Status> {
        use v1::kv_compare_and_set_request as wire;
        let r = request.into_inner();
        self.write(r.request, |store| {
            let found = store.records.get(&r.key).cloned();
            let holds = match r.expected {
                Some(wire::Expected::Value(value)) => found.as_ref().is_some_and(|(v, _)| *v == value),
                Some(wire::Expected::Seq(seq)) => found.as_ref().map_or(0, |(_, s)| *s) == seq,
                None => false,
            };
            if !holds {
                let seq = found.map_or(0, |(_, s)| s);
                let result = v1::OpResult { applied: false, existed: seq > 0, seq, ..Default::default() };
                return v1::KvWriteReply { applied: false, results: vec![result] };
            }
            match r.effect {
                Some(wire::Effect::NewValue(value)) => store.put(r.key, Some(value), false),
                _ => store.put(r.key, None, false),
            }
        })
        .await
    }

    async fn batch(
        &self,
        request: Request<v1::KvBatchRequest>,
    ) -> Result<Response<v1::KvWriteReply>, Status> {
        let r = request.into_inner();
        self.write(r.request, |store| {
            let results: Vec<_> = r.ops.into_iter().map(|op| store.execute(op)).collect();
            let fails = |result: &v1::OpResult| result.misfit != v1::Misfit::None as i32;
            v1::KvWriteReply { applied: !results.iter().any(fails), results }
        })
        .await
    }

    async fn scan(&self, request: Request<v1::KvScanRequest>) -> Result<Response<Self::ScanStream>, Status> {
        let r = request.into_inner();
        let break_after = match self.fault() {
            Some(Fault::BreakScan(pages)) => Some(pages),
            Some(Fault::Refuse(kind)) => return Err(status_of(Error::new(kind, "refused"))),
            Some(Fault::PassOver(to)) => {
                let page =
                    v1::KvScanPage { partition: u32::MAX, goes_on_at: to.into(), ..Default::default() };
                let pages = futures::stream::iter([Ok(page)]).chain(futures::stream::pending());
                return Ok(Response::new(pages.boxed()));
            }
            _ => None,
        };
        let end = if r.end.is_empty() { Bound::Unbounded } else { Bound::Excluded(r.end.clone()) };
        let empty = !r.end.is_empty() && r.start >= r.end;
        let mut records: Vec<v1::KvRecord> = if empty {
            Vec::new()
        } else {
            let store = self.store.lock();
            let range = store.records.range((Bound::Included(r.start), end));
            range
                .map(|(k, (v, s))| v1::KvRecord {
                    key: k.clone(),
                    value: v.clone(),
                    seq: *s,
                    expires_at: 0,
                    kind: 0,
                })
                .collect()
        };
        if r.reverse {
            records.reverse();
        }
        if r.limit > 0 {
            records.truncate(r.limit as usize);
        }
        let page = |records: &[v1::KvRecord]| v1::KvScanPage {
            partition: u32::MAX,
            snapshot_seq: 0,
            records: records.to_vec(),
            goes_on_at: Bytes::new(),
        };
        let mut pages: Vec<Result<_, Status>> =
            records.chunks(r.page_records.max(1) as usize).map(|chunk| Ok(page(chunk))).collect();
        if let Some(at) = break_after {
            pages.truncate(at);
            pages.push(Err(status_of(Error::new(ErrorKind::Stopping, "going away"))));
        }
        Ok(Response::new(futures::stream::iter(pages).boxed()))
    }

    async fn create_table(
        &self,
        _: Request<v1::KvCreateTableRequest>,
    ) -> Result<Response<v1::KvCreateTableReply>, Status> {
        Ok(Response::new(v1::KvCreateTableReply { id: 2, created: true }))
    }

    async fn drop_table(
        &self,
        _: Request<v1::KvDropTableRequest>,
    ) -> Result<Response<v1::KvDropTableReply>, Status> {
        Ok(Response::new(v1::KvDropTableReply { dropped: true }))
    }

    async fn alter_table(
        &self,
        _: Request<v1::KvAlterTableRequest>,
    ) -> Result<Response<v1::KvAlterTableReply>, Status> {
        Ok(Response::new(v1::KvAlterTableReply { options: None }))
    }

    async fn list_tables(
        &self,
        _: Request<v1::KvListTablesRequest>,
    ) -> Result<Response<v1::KvListTablesReply>, Status> {
        Ok(Response::new(v1::KvListTablesReply::default()))
    }

    async fn open_session(
        &self,
        _: Request<v1::KvOpenSessionRequest>,
    ) -> Result<Response<v1::KvOpenSessionReply>, Status> {
        let mut store = self.store.lock();
        store.sessions_opened += 1;
        let session = store.sessions_opened;
        store.known_sessions.push(session);
        Ok(Response::new(v1::KvOpenSessionReply { session }))
    }
}
