//! A memtable server without Raft: partitions ([`Partition`]) that are as real as they can be on one server, leases of any length,
//! and answers that a test may put into its mouth.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use parking_lot::Mutex;
use sextant_common::cut::{Cut, CutTable};
use sextant_common::expiry::is_expired;
use sextant_common::ids::{Epoch, NodeId, Seq, TableId};
use sextant_common::manifest::{TableManifest, TableOptions};
use sextant_environment::env::status_of;
use sextant_environment::{Clock, Env};
use sextant_memtable_server::memtable::Version;
use sextant_memtable_server::partition::view::ReadAnswer;
use sextant_proto::v1;
use sextant_proto::v1::admin_server::{Admin, AdminServer};
use sextant_proto::v1::lease_server::LeaseServer;
use sextant_proto::v1::rows_server::{Rows, RowsServer};
use tokio::sync::{Notify, watch};
use tonic::{Request, Response, Status, Streaming};

use super::fake_sstable::{Contents, page, too_large};
use super::{Partition, Process, table_manifest};

#[derive(Default)]
pub struct State {
    pub partitions: BTreeMap<u32, Partition>,
    /// Where the leaders of other partitions are: node, term.
    pub hints: BTreeMap<u32, (u64, u64)>,
    /// 0: none.
    pub lease: Duration,
    /// What its leases say: it does not wait for acknowledgements.
    pub timed: bool,
    pub boot: u64,
    /// Streams of reads and writes that were opened before the last change of this answer as a stopped server does.
    pub incarnation: u64,
    /// Answers to the next writes instead of their execution.
    pub write_script: VecDeque<v1::WriteStatus>,
    /// The next so many writes are executed, and their answers lost with the stream.
    pub lose_answers: usize,
    pub read_script: VecDeque<v1::ReadStatus>,
    pub reads: Vec<v1::ReadRequest>,
    pub writes: Vec<v1::WriteRequest>,
    /// Positions that were stated with filters: (partition, epoch, serial, version).
    pub positions: Vec<(u32, Epoch, u64, u64)>,
    pub whole_fetches: usize,
    pub releases: Vec<Bytes>,
    pub maintenance: Vec<(&'static str, v1::MaintenanceRequest)>,
    /// Most records of a page, whatever is asked.
    pub page_records: Option<usize>,
}

#[derive(Clone)]
pub struct FakeMemtable {
    pub state: Arc<Mutex<State>>,
    pub news: Arc<Notify>,
    /// While true, writes are received and not answered.
    pub gate: Arc<watch::Sender<bool>>,
    pub addr: SocketAddr,
    process: Arc<Process>,
}

#[derive(Clone)]
pub(super) struct Service {
    pub node: NodeId,
    pub clock: Arc<dyn Clock>,
    pub state: Arc<Mutex<State>>,
    pub news: Arc<Notify>,
    gate: Arc<watch::Sender<bool>>,
}

impl FakeMemtable {
    pub async fn start(env: &Env, node: u64) -> Self {
        let state = State { lease: Duration::from_secs(60), boot: node * 100, ..State::default() };
        let service = Service {
            node: NodeId(node),
            clock: env.clock.clone(),
            state: Arc::new(Mutex::new(state)),
            news: Arc::new(Notify::new()),
            gate: Arc::new(watch::Sender::new(false)),
        };
        let routes = tonic::transport::Server::builder()
            .add_service(RowsServer::new(service.clone()))
            .add_service(LeaseServer::new(service.clone()))
            .add_service(AdminServer::new(service.clone()));
        let (process, addr) = Process::start(env, routes).await;
        let Service { state, news, gate, .. } = service;
        Self { state, news, gate, addr, process }
    }

    /// The process dies.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Changes a partition, and wakes the pulls.
    pub fn with<R>(&self, partition: u32, change: impl FnOnce(&mut Partition) -> R) -> R {
        let result = change(self.state.lock().partitions.get_mut(&partition).expect("the fake leads it"));
        self.news.notify_waiters();
        result
    }

    /// Looks at a partition.
    pub fn with_quietly<R>(&self, partition: u32, look: impl FnOnce(&Partition) -> R) -> R {
        look(self.state.lock().partitions.get(&partition).expect("the fake leads it"))
    }

    pub fn reads(&self) -> usize {
        self.state.lock().reads.len()
    }
}

impl Service {
    pub fn hint(&self, state: &State, partition: u32) -> Option<v1::LeaderHint> {
        state.hints.get(&partition).map(|(node, term)| v1::LeaderHint { partition, node: *node, term: *term })
    }

    /// `of`: the incarnation that the stream leads to; None: whichever is there.
    fn read(&self, batch: v1::ReadBatch, of: Option<u64>) -> v1::ReadBatchReply {
        let mut state = self.state.lock();
        if of.is_some_and(|of| of != state.incarnation) {
            let status = v1::ReadStatus::ReadNotReady as i32;
            let replies = vec![v1::ReadReply { status, ..Default::default() }; batch.reads.len()];
            return v1::ReadBatchReply { batch: batch.batch, replies, ..Default::default() };
        }
        let mut reply = v1::ReadBatchReply { batch: batch.batch, ..Default::default() };
        for read in batch.reads {
            state.reads.push(read.clone());
            let mut says = v1::ReadReply::default();
            let leads = state.partitions.get(&read.partition).filter(|_| read.register);
            let registration = leads.and_then(|p| p.register(TableId(read.table), &read.key));
            says.status = match (state.read_script.pop_front(), state.partitions.get(&read.partition)) {
                (Some(status), _) => status,
                (None, None) => {
                    reply.leaders.extend(self.hint(&state, read.partition));
                    v1::ReadStatus::ReadNotLeader
                }
                (None, Some(p)) => match p.read(TableId(read.table), &read.key, read.manifest_version) {
                    ReadAnswer::UnknownTable => v1::ReadStatus::ReadUnknownTable,
                    ReadAnswer::StaleManifest => {
                        reply.manifests.push((&p.manifest).into());
                        v1::ReadStatus::ReadStaleManifest
                    }
                    ReadAnswer::NoEntry => {
                        says.tick = p.published.0;
                        v1::ReadStatus::ReadNoEntry
                    }
                    ReadAnswer::Found(Version { value: None, .. }) => v1::ReadStatus::ReadTombstone,
                    ReadAnswer::Found(Version { marks, .. })
                        if is_expired(marks.expires_at(), p.published) =>
                    {
                        v1::ReadStatus::ReadTombstone
                    }
                    ReadAnswer::Found(Version { value: Some(value), .. })
                        if batch.value_bytes_max > 0 && value.len() > batch.value_bytes_max as usize =>
                    {
                        says.bytes = value.len() as u32;
                        v1::ReadStatus::ReadTooLarge
                    }
                    ReadAnswer::Found(Version { value: Some(value), seq, marks }) => {
                        (says.value, says.seq) = (value, seq);
                        says.expires_at = marks.word();
                        v1::ReadStatus::ReadValue
                    }
                },
            } as i32;
            if let Some(registration) = registration {
                reply.registrations.push(registration);
                says.registration = reply.registrations.len() as u32;
            }
            reply.replies.push(says);
        }
        reply
    }

    async fn write_one(&self, write: v1::WriteRequest, of: Option<u64>) -> Result<v1::WriteReply, Status> {
        if of.is_some_and(|of| of != self.state.lock().incarnation) {
            let status = v1::WriteStatus::WriteRetry as i32;
            return Ok(v1::WriteReply { id: write.id, status, ..Default::default() });
        }
        self.state.lock().writes.push(write.clone());
        let _ = self.gate.subscribe().wait_for(|closed| !closed).await;
        let mut state = self.state.lock();
        let state = &mut *state;
        let id = write.id;
        let answer =
            |status: v1::WriteStatus| v1::WriteReply { id, status: status as i32, ..Default::default() };
        if let Some(status) = state.write_script.pop_front() {
            return Ok(answer(status));
        }
        let leader = self.hint(state, write.partition);
        let Some(p) = state.partitions.get_mut(&write.partition) else {
            return Ok(v1::WriteReply { leader, ..answer(v1::WriteStatus::WriteNotLeader) });
        };
        let reply = p.execute(&write);
        self.news.notify_waiters();
        if state.lose_answers > 0 {
            state.lose_answers -= 1;
            return Err(Status::unavailable("lost"));
        }
        Ok(v1::WriteReply { id, ..reply })
    }
}

#[tonic::async_trait]
impl Rows for Service {
    type ReadStreamStream = BoxStream<'static, Result<v1::ReadBatchReply, Status>>;
    type WriteStreamStream = BoxStream<'static, Result<v1::WriteBatchReply, Status>>;

    async fn read_stream(
        &self,
        request: Request<Streaming<v1::ReadBatch>>,
    ) -> Result<Response<Self::ReadStreamStream>, Status> {
        let service = self.clone();
        let of = Some(self.state.lock().incarnation);
        Ok(Response::new(request.into_inner().map(move |batch| Ok(service.read(batch?, of))).boxed()))
    }

    async fn read(&self, request: Request<v1::ReadBatch>) -> Result<Response<v1::ReadBatchReply>, Status> {
        Ok(Response::new(Service::read(self, request.into_inner(), None)))
    }

    async fn write_stream(
        &self,
        request: Request<Streaming<v1::WriteBatch>>,
    ) -> Result<Response<Self::WriteStreamStream>, Status> {
        let service = self.clone();
        let of = Some(self.state.lock().incarnation);
        // Each write is answered on its own, as by the real server.
        let writes = request.into_inner().flat_map(|batch| match batch {
            Ok(batch) => futures::stream::iter(batch.writes.into_iter().map(Ok).collect::<Vec<_>>()),
            Err(e) => futures::stream::iter(vec![Err(e)]),
        });
        let replies = writes.then(move |write| {
            let service = service.clone();
            async move { Ok(v1::WriteBatchReply { replies: vec![service.write_one(write?, of).await?] }) }
        });
        Ok(Response::new(replies.boxed()))
    }

    async fn write(&self, request: Request<v1::WriteBatch>) -> Result<Response<v1::WriteBatchReply>, Status> {
        let mut replies = Vec::new();
        for write in request.into_inner().writes {
            replies.push(self.write_one(write, None).await?);
        }
        Ok(Response::new(v1::WriteBatchReply { replies }))
    }

    async fn scan_page(
        &self,
        request: Request<v1::ScanPageRequest>,
    ) -> Result<Response<v1::ScanPageReply>, Status> {
        let r = request.into_inner();
        let state = self.state.lock();
        let status =
            |status: v1::ReadStatus| v1::ScanPageReply { status: status as i32, ..Default::default() };
        let Some(p) = state.partitions.get(&r.partition) else {
            let leader = self.hint(&state, r.partition);
            return Ok(Response::new(v1::ScanPageReply { leader, ..status(v1::ReadStatus::ReadNotLeader) }));
        };
        let table = TableId(r.table);
        if p.manifest.table(table).is_none() {
            return Ok(Response::new(status(v1::ReadStatus::ReadUnknownTable)));
        }
        let Some(memtables) = p.memtables(table, r.manifest_version) else {
            let manifest = Some((&p.manifest).into());
            return Ok(Response::new(v1::ScanPageReply {
                manifest,
                ..status(v1::ReadStatus::ReadStaleManifest)
            }));
        };
        let maps: Vec<&Contents> = memtables.iter().collect();
        let limit = state.page_records.unwrap_or(usize::MAX).min(r.limit_records as usize);
        let (records, complete) = page(&maps, &r.start, &r.end, r.reverse, limit);
        if let Some(bytes) = too_large(&records, r.first_bytes_max) {
            return Ok(Response::new(v1::ScanPageReply { bytes, ..status(v1::ReadStatus::ReadTooLarge) }));
        }
        Ok(Response::new(v1::ScanPageReply {
            snapshot_seq: p.last_seq(),
            tick: p.published.0,
            records,
            complete,
            ..Default::default()
        }))
    }

    async fn open_session(
        &self,
        request: Request<v1::OpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionReply>, Status> {
        let r = request.into_inner();
        let mut state = self.state.lock();
        let leader = self.hint(&state, r.partition);
        let status = match state.partitions.get_mut(&r.partition) {
            Some(p) => {
                p.open_session(r.session);
                v1::WriteStatus::WriteOk
            }
            None => v1::WriteStatus::WriteNotLeader,
        };
        Ok(Response::new(v1::OpenSessionReply { status: status as i32, leader, message: String::new() }))
    }
}

impl Service {
    fn maintain(
        &self,
        what: &'static str,
        request: v1::MaintenanceRequest,
    ) -> Response<v1::MaintenanceReply> {
        let mut state = self.state.lock();
        let done = request.partitions.iter().copied().filter(|p| state.partitions.contains_key(p)).collect();
        state.maintenance.push((what, request));
        Response::new(v1::MaintenanceReply { done, errors: Vec::new() })
    }
}

#[tonic::async_trait]
impl Admin for Service {
    /// What is in SSTables now; nothing is kept for it.
    async fn cut(&self, request: Request<v1::CutRequest>) -> Result<Response<v1::CutReply>, Status> {
        let v1::CutRequest { partition, id, lease_ms, .. } = request.into_inner();
        let state = self.state.lock();
        let p = state.partitions.get(&partition).ok_or_else(|| Status::unimplemented("led elsewhere"))?;
        let table = |table: &TableManifest| CutTable {
            table: table.table,
            name: table.name.clone(),
            options: table.options.clone(),
            generation: table.flushed_generation,
            ssts: Some(table.ssts.clone()),
        };
        let cut = Cut {
            id,
            at: 1,
            seq: Seq(p.last_seq()),
            tick: p.published,
            opened_ms: 0,
            lease_ms,
            tables: p.manifest.tables.iter().map(table).collect(),
            term: 0,
            lineage: 0,
        };
        Ok(Response::new(v1::CutReply { cut: Some((&cut).into()) }))
    }
    type ReadLogStream = tokio_stream::Empty<Result<v1::LogPage, Status>>;
    async fn read_log(
        &self,
        _: Request<v1::ReadLogRequest>,
    ) -> Result<Response<Self::ReadLogStream>, Status> {
        Err(Status::unimplemented("a fake"))
    }
    type FetchTableStream = tokio_stream::Empty<Result<v1::FileChunk, Status>>;
    async fn fetch_table(
        &self,
        _: Request<v1::FetchTableRequest>,
    ) -> Result<Response<Self::FetchTableStream>, Status> {
        Err(Status::unimplemented("a fake"))
    }
    async fn import(&self, _: Request<v1::ImportRequest>) -> Result<Response<v1::ImportReply>, Status> {
        Err(Status::unimplemented("a fake"))
    }
    async fn verify_tables(
        &self,
        _: Request<v1::VerifyTablesRequest>,
    ) -> Result<Response<v1::VerifyTablesReply>, Status> {
        Err(Status::unimplemented("a fake"))
    }
    async fn freeze(
        &self,
        r: Request<v1::MaintenanceRequest>,
    ) -> Result<Response<v1::MaintenanceReply>, Status> {
        Ok(self.maintain("freeze", r.into_inner()))
    }
    async fn flush(
        &self,
        r: Request<v1::MaintenanceRequest>,
    ) -> Result<Response<v1::MaintenanceReply>, Status> {
        Ok(self.maintain("flush", r.into_inner()))
    }
    async fn compact(
        &self,
        r: Request<v1::MaintenanceRequest>,
    ) -> Result<Response<v1::MaintenanceReply>, Status> {
        Ok(self.maintain("compact", r.into_inner()))
    }
    async fn configure(
        &self,
        r: Request<v1::ConfigureRequest>,
    ) -> Result<Response<v1::MaintenanceReply>, Status> {
        let partitions = r.into_inner().partitions;
        Ok(self.maintain("configure", v1::MaintenanceRequest { partitions, ..Default::default() }))
    }

    async fn ensure_table(
        &self,
        request: Request<v1::EnsureTableRequest>,
    ) -> Result<Response<v1::EnsureTableReply>, Status> {
        let r = request.into_inner();
        let mut state = self.state.lock();
        let leader = self.hint(&state, r.partition);
        let Some(p) = state.partitions.get_mut(&r.partition) else {
            let status = v1::WriteStatus::WriteNotLeader as i32;
            return Ok(Response::new(v1::EnsureTableReply { status, leader, ..Default::default() }));
        };
        if let Some(known) = p.manifest.table_by_name(&r.name) {
            let options = Some((&known.options).into());
            return Ok(Response::new(v1::EnsureTableReply {
                id: known.table.0,
                options,
                ..Default::default()
            }));
        }
        let next = p.manifest.tables.iter().map(|t| t.table.0).max().unwrap_or(0).max(p.highest_table) + 1;
        let id = if r.id == 0 { next } else { r.id };
        let options: TableOptions = r.options.unwrap_or_default().try_into().map_err(status_of)?;
        let table = TableManifest { name: r.name, options: options.clone(), ..table_manifest(id, vec![]) };
        p.create_table(table);
        Ok(Response::new(v1::EnsureTableReply {
            id,
            created: true,
            options: Some((&options).into()),
            ..Default::default()
        }))
    }

    async fn change_table(
        &self,
        request: Request<v1::ChangeTableRequest>,
    ) -> Result<Response<v1::ChangeTableReply>, Status> {
        let v1::ChangeTableRequest { partition, id, change } = request.into_inner();
        let Some(v1::change_table_request::Change::Drop(_)) = change else {
            return Err(Status::unimplemented("tables of a fake cluster keep their options"));
        };
        let mut state = self.state.lock();
        let leader = self.hint(&state, partition);
        let Some(p) = state.partitions.get_mut(&partition) else {
            let status = v1::WriteStatus::WriteNotLeader as i32;
            return Ok(Response::new(v1::ChangeTableReply { status, leader, ..Default::default() }));
        };
        let changed = p.drop_table(TableId(id));
        Ok(Response::new(v1::ChangeTableReply { changed, leader, ..Default::default() }))
    }

    async fn raise_format(
        &self,
        _: Request<v1::RaiseFormatRequest>,
    ) -> Result<Response<v1::RaiseFormatReply>, Status> {
        Err(Status::unimplemented("a fake cluster has no formats"))
    }

    async fn transfer(&self, _: Request<v1::TransferRequest>) -> Result<Response<v1::TransferReply>, Status> {
        Err(Status::unimplemented("leaders of a fake cluster are set by its test"))
    }

    async fn recover(&self, _: Request<v1::RecoverRequest>) -> Result<Response<v1::RecoverReply>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn change_voters(
        &self,
        _: Request<v1::ChangeVotersRequest>,
    ) -> Result<Response<v1::ChangeVotersReply>, Status> {
        Err(Status::unimplemented("a fake partition has no voters"))
    }

    async fn load(
        &self,
        _: Request<tonic::Streaming<v1::LoadRequest>>,
    ) -> Result<Response<v1::LoadReply>, Status> {
        Err(Status::unimplemented("no loads here"))
    }
    async fn end_load(&self, _: Request<v1::EndLoadRequest>) -> Result<Response<v1::LoadReply>, Status> {
        Err(Status::unimplemented("no loads here"))
    }
    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
        Ok(Response::new(v1::StatusReply { json: format!("{{\"node\":{}}}", self.node) }))
    }
}
