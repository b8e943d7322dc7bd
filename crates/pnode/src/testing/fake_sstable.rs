//! An sstable server that keeps its tables in maps.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use parking_lot::Mutex;
use sextant_common::filter::SealedFilter;
use sextant_common::key::{filter_hash, filter_prefix, prefix_hash};
use sextant_environment::Env;
use sextant_proto::v1;
use sextant_proto::v1::sst_server::{Sst, SstServer};
use tokio::sync::watch;
use tonic::{Request, Response, Status, Streaming};

use super::{Process, Stored};

pub type Contents = BTreeMap<Bytes, Stored>;

#[derive(Default)]
pub struct State {
    pub tables: BTreeMap<Bytes, Contents>,
    pub damaged: BTreeSet<Bytes>,
    /// When the records of keys expire, in all tables.
    pub expiries: BTreeMap<Bytes, u64>,
    /// Gets received, by key.
    pub gets: Vec<v1::GetRequest>,
    pub scans: Vec<v1::SstScanRequest>,
    pub filter_fetches: usize,
    /// The option `filter_prefix` of all tables.
    pub filter_prefix: u32,
    /// Filters are not handed out.
    pub no_filters: bool,
    /// Most records of a page, whatever is asked.
    pub page_records: Option<usize>,
}

#[derive(Clone)]
pub struct FakeSst {
    pub state: Arc<Mutex<State>>,
    /// While true, gets are received and not answered.
    pub gate: Arc<watch::Sender<bool>>,
    pub addr: SocketAddr,
    process: Arc<Process>,
}

impl FakeSst {
    pub async fn start(env: &Env) -> Self {
        let service = Service { state: Arc::default(), gate: Arc::new(watch::Sender::new(false)) };
        let (state, gate) = (service.state.clone(), service.gate.clone());
        let routes = tonic::transport::Server::builder().add_service(SstServer::new(service));
        let (process, addr) = Process::start(env, routes).await;
        Self { state, gate, addr, process }
    }

    /// The process dies.
    pub fn kill(&self) {
        self.process.kill();
    }

    pub fn gets(&self) -> usize {
        self.state.lock().gets.len()
    }
}

#[derive(Clone)]
struct Service {
    state: Arc<Mutex<State>>,
    gate: Arc<watch::Sender<bool>>,
}

impl Service {
    async fn answer(&self, batch: v1::GetBatch) -> v1::GetBatchReply {
        self.state.lock().gets.extend(batch.gets.iter().cloned());
        let _ = self.gate.subscribe().wait_for(|closed| !closed).await;
        let state = self.state.lock();
        let max = if batch.value_bytes_max == 0 { usize::MAX } else { batch.value_bytes_max as usize };
        let sent = |reply: v1::GetReply| match reply.value.len() {
            bytes if bytes > max => v1::GetReply {
                status: v1::GetStatus::GetTooLarge as i32,
                bytes: bytes as u32,
                ..Default::default()
            },
            _ => reply,
        };
        let replies = batch.gets.iter().map(|get| sent(lookup(&state, get))).collect();
        v1::GetBatchReply { batch: batch.batch, replies }
    }
}

fn lookup(state: &State, get: &v1::GetRequest) -> v1::GetReply {
    let reply = |status: v1::GetStatus, candidate: usize| v1::GetReply {
        status: status as i32,
        candidate: candidate as u32,
        ..Default::default()
    };
    for (at, id) in get.candidates.iter().enumerate() {
        if state.damaged.contains(id) {
            return reply(v1::GetStatus::GetCorrupt, at);
        }
        let Some(table) = state.tables.get(id) else { return reply(v1::GetStatus::GetTableGone, at) };
        match table.get(&get.key) {
            Some((Some(value), seq)) => {
                return v1::GetReply {
                    value: value.clone(),
                    seq: *seq,
                    expires_at: state.expiries.get(&get.key).copied().unwrap_or(0),
                    ..reply(v1::GetStatus::GetValue, at)
                };
            }
            Some((None, seq)) => return v1::GetReply { seq: *seq, ..reply(v1::GetStatus::GetTombstone, at) },
            None => {}
        }
    }
    reply(v1::GetStatus::GetNoEntry, 0)
}

/// How long the first record of a page is, if it is too long.
pub fn too_large(records: &[v1::ScanRecord], first_bytes_max: u32) -> Option<u32> {
    let bytes = records.first()?.value.len() as u32;
    (first_bytes_max > 0 && bytes > first_bytes_max).then_some(bytes)
}

/// A page of records out of several maps, of which the first has the newest.
pub fn page(
    maps: &[&Contents],
    start: &[u8],
    end: &[u8],
    reverse: bool,
    limit: usize,
) -> (Vec<v1::ScanRecord>, bool) {
    let mut merged: BTreeMap<Bytes, Stored> = BTreeMap::new();
    for map in maps.iter().rev() {
        merged.extend(map.iter().map(|(k, r)| (k.clone(), r.clone())));
    }
    let in_range = |k: &Bytes| k.as_ref() >= start && (end.is_empty() || k.as_ref() < end);
    let mut records: Vec<_> = merged.into_iter().filter(|(k, _)| in_range(k)).collect();
    if reverse {
        records.reverse();
    }
    let complete = records.len() <= limit;
    records.truncate(limit);
    let to_wire = |(key, (value, seq)): (Bytes, Stored)| v1::ScanRecord {
        key,
        tombstone: value.is_none(),
        value: value.unwrap_or_default(),
        seq,
        expires_at: 0,
    };
    (records.into_iter().map(to_wire).collect(), complete)
}

#[tonic::async_trait]
impl Sst for Service {
    type GetStreamStream = BoxStream<'static, Result<v1::GetBatchReply, Status>>;
    type FetchFilterStream = BoxStream<'static, Result<v1::FilterBytes, Status>>;
    type CompactWatchedStream = BoxStream<'static, Result<v1::CompactProgress, Status>>;
    type CopyWatchedStream = BoxStream<'static, Result<v1::CopyProgress, Status>>;
    type HoldingsStream = BoxStream<'static, Result<v1::Holding, Status>>;
    type FetchStream = BoxStream<'static, Result<v1::FileChunk, Status>>;

    async fn get_stream(
        &self,
        request: Request<Streaming<v1::GetBatch>>,
    ) -> Result<Response<Self::GetStreamStream>, Status> {
        let service = self.clone();
        let replies = request.into_inner().then(move |batch| {
            let service = service.clone();
            async move { Ok(service.answer(batch?).await) }
        });
        Ok(Response::new(replies.boxed()))
    }

    async fn get(&self, request: Request<v1::GetBatch>) -> Result<Response<v1::GetBatchReply>, Status> {
        Ok(Response::new(self.answer(request.into_inner()).await))
    }

    async fn scan(&self, request: Request<v1::SstScanRequest>) -> Result<Response<v1::SstScanReply>, Status> {
        let r = request.into_inner();
        let mut state = self.state.lock();
        state.scans.push(r.clone());
        let tables: Option<Vec<&Contents>> = r.tables.iter().map(|id| state.tables.get(id)).collect();
        let Some(tables) = tables else {
            let status = v1::GetStatus::GetTableGone as i32;
            return Ok(Response::new(v1::SstScanReply { status, ..Default::default() }));
        };
        let limit = state.page_records.unwrap_or(usize::MAX).min(r.limit_records as usize);
        let (mut records, complete) = page(&tables, &r.start, &r.end, r.reverse, limit);
        for record in &mut records {
            record.expires_at = state.expiries.get(&record.key).copied().unwrap_or(0);
        }
        if let Some(bytes) = too_large(&records, r.first_bytes_max) {
            let status = v1::GetStatus::GetTooLarge as i32;
            return Ok(Response::new(v1::SstScanReply { status, bytes, ..Default::default() }));
        }
        Ok(Response::new(v1::SstScanReply { records, complete, ..Default::default() }))
    }

    async fn fetch_filter(
        &self,
        request: Request<v1::FetchFilterRequest>,
    ) -> Result<Response<Self::FetchFilterStream>, Status> {
        let mut state = self.state.lock();
        state.filter_fetches += 1;
        let id = request.into_inner().id;
        let table =
            state.tables.get(&id).filter(|_| !state.no_filters).ok_or_else(|| Status::not_found("gone"))?;
        let option = state.filter_prefix;
        let prefixes = table.keys().filter_map(|key| Some(prefix_hash(filter_prefix(key, option)?)));
        let mut hashes: Vec<u64> = table.keys().map(|key| filter_hash(key)).chain(prefixes).collect();
        let bytes = SealedFilter::build_prefixed(&mut hashes, option).to_bytes();
        let chunks: Vec<_> =
            bytes.chunks(7).map(|c| Ok(v1::FilterBytes { data: Bytes::copy_from_slice(c) })).collect();
        Ok(Response::new(futures::stream::iter(chunks).boxed()))
    }

    async fn ingest(
        &self,
        _: Request<Streaming<v1::IngestRequest>>,
    ) -> Result<Response<v1::IngestReply>, Status> {
        Err(Status::unimplemented("fake"))
    }
    async fn compact(&self, _: Request<v1::CompactRequest>) -> Result<Response<v1::CompactReply>, Status> {
        Err(Status::unimplemented("fake"))
    }
    async fn compact_watched(
        &self,
        _: Request<v1::CompactRequest>,
    ) -> Result<Response<Self::CompactWatchedStream>, Status> {
        Err(Status::unimplemented("fake"))
    }
    async fn copy(&self, _: Request<v1::CopyRequest>) -> Result<Response<v1::CopyReply>, Status> {
        Err(Status::unimplemented("fake"))
    }
    async fn copy_watched(
        &self,
        _: Request<v1::CopyRequest>,
    ) -> Result<Response<Self::CopyWatchedStream>, Status> {
        Err(Status::unimplemented("fake"))
    }
    async fn fetch(&self, _: Request<v1::FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        Err(Status::unimplemented("fake"))
    }
    async fn inventory(
        &self,
        _: Request<v1::InventoryRequest>,
    ) -> Result<Response<v1::InventoryReply>, Status> {
        Err(Status::unimplemented("fake"))
    }
    async fn count(&self, _: Request<v1::CountRequest>) -> Result<Response<v1::CountReply>, Status> {
        Err(Status::unimplemented("fake"))
    }
    async fn holdings(
        &self,
        _: Request<v1::HoldingsRequest>,
    ) -> Result<Response<Self::HoldingsStream>, Status> {
        Err(Status::unimplemented("fake"))
    }
    async fn delete(&self, _: Request<v1::DeleteRequest>) -> Result<Response<v1::DeleteReply>, Status> {
        Err(Status::unimplemented("fake"))
    }
    async fn release_tables(
        &self,
        _: Request<v1::ReleaseTablesRequest>,
    ) -> Result<Response<v1::ReleaseTablesReply>, Status> {
        Err(Status::unimplemented("fake"))
    }
}
