//! The gRPC service `Admin` for the whole cluster: each memtable server does its part.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use futures::stream::{BoxStream, FuturesUnordered};
use sextant_access::Class;
use sextant_common::ids::PartitionId;
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::env::{KIND_HEADER, error_of, status_of};
use sextant_environment::shutdown::Shutdown;
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;
use sextant_proto::v1::admin_server::Admin;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use super::gate::{Gate, Who};
use super::kv::deadline;
use super::status::cluster_status;
use super::{archive, backup};
use crate::pnode::PNode;
use crate::upstream::Deadline;

/// How long maintenance may take if the caller does not say: a large flush on a slow disk.
const MAINTENANCE_DEADLINE: Duration = Duration::from_secs(300);
/// All that there is, is read, at the pace at which it is verified in the background.
const VERIFY_DEADLINE: Duration = Duration::from_secs(24 * 3600);
/// A transfer is a lease and an election.
const TRANSFER_DEADLINE: Duration = Duration::from_secs(10);
/// Rounds over the servers: leaderships move.
const ROUNDS_MAX: usize = 5;
/// More of them while nobody leads a partition: an election under load takes a while.
const LEADERLESS_MAX: Duration = Duration::from_secs(10);
const ROUND_PAUSE: Duration = Duration::from_millis(200);

/// Whether a server's handler said so. (Otherwise it was not reached, or is of another version.)
fn is_of_server(status: &Status) -> bool {
    status.metadata().contains_key(KIND_HEADER) || status.code() == Code::Unimplemented
}

#[derive(Clone)]
pub(crate) struct AdminService {
    pnode: PNode,
    gate: Gate,
    stopping: Shutdown,
}

impl AdminService {
    pub fn new(pnode: PNode, gate: Gate, stopping: Shutdown) -> Self {
        Self { pnode, gate, stopping }
    }

    /// All memtable servers.
    pub(super) fn memtables(&self) -> impl Iterator<Item = AdminClient<Channel>> + '_ {
        self.pnode.core().memtables.values().map(|peer| peer.admin.clone())
    }

    /// Only for who may; who did is in the log.
    async fn admit<T>(&self, request: &Request<T>, what: &str) -> Result<Who, Status> {
        let who = self.gate.operator(request).await.map_err(status_of)?;
        who.may(Class::Admin, &format!("to {what}")).map_err(status_of)?;
        // Looking is no act.
        if what != "ask for the status" {
            tracing::info!(target: "audit", "{} asks to {what}", who.name());
        }
        Ok(who)
    }

    /// Until when somebody is waited for who leads, so that the caller is still told if nobody does.
    fn leaderless_until(&self, limit: Duration) -> Deadline {
        self.pnode.core().deadline(Some(LEADERLESS_MAX.min(limit / 4 * 3)))
    }

    /// Asks all memtable servers to do it for what they lead, again for partitions that nobody did. `call` is given the
    /// partitions that are missing.
    async fn fan_out<F>(
        &self,
        limit: Option<Duration>,
        partitions: &[u32],
        call: impl Fn(AdminClient<Channel>, Vec<u32>) -> F,
    ) -> Result<Response<v1::MaintenanceReply>, Status>
    where
        F: Future<Output = Result<Response<v1::MaintenanceReply>, Status>>,
    {
        let limit = limit.unwrap_or(MAINTENANCE_DEADLINE);
        let core = self.pnode.core();
        let mut missing: BTreeSet<u32> = if partitions.is_empty() {
            core.views.partitions().map(|p| p.0).collect()
        } else {
            partitions.iter().copied().collect()
        };
        let (patience, exists) =
            (self.leaderless_until(limit), |p: &u32| core.views.contains(PartitionId(*p)));
        let mut done = BTreeSet::new();
        let mut errors = Vec::new();
        for round in 1.. {
            errors.clear();
            // (Of one who did not answer nobody knows what it did.)
            let (mut is_refused, mut senseless, mut all_said_so) = (false, None, true);
            let part: Vec<u32> = missing.iter().copied().collect();
            let calls = core.memtables.iter().map(|(node, peer)| {
                let asked = call(peer.admin.clone(), part.clone());
                async move { (*node, tokio::time::timeout(limit, asked).await) }
            });
            for (node, answer) in join_all(calls).await {
                match answer {
                    Ok(Ok(reply)) => {
                        let reply = reply.into_inner();
                        done.extend(reply.done);
                        is_refused |= !reply.errors.is_empty();
                        all_said_so &= reply.errors.is_empty();
                        errors
                            .extend(reply.errors.into_iter().map(|e| format!("memtable server {node}: {e}")));
                    }
                    Ok(Err(status)) => {
                        let is_its_own = is_of_server(&status);
                        let error = error_of(status);
                        is_refused |=
                            is_its_own && !matches!(error.kind, ErrorKind::NotLeader | ErrorKind::Stopping);
                        errors.push(format!("memtable server {node}: {}", error.message));
                        all_said_so &= is_its_own;
                        if is_its_own && matches!(error.kind, ErrorKind::Invalid | ErrorKind::UnknownTable) {
                            senseless = Some(error);
                        }
                    }
                    Err(_) => {
                        all_said_so = false;
                        errors.push(format!("memtable server {node}: no answer in time"));
                    }
                }
            }
            if let Some(error) = senseless.filter(|_| done.is_empty() && all_said_so) {
                return Err(status_of(error));
            }
            missing.retain(|p| !done.contains(p));
            if missing.is_empty() {
                errors.clear();
                break;
            }
            let somebody_leads = is_refused || !missing.iter().all(exists);
            if round >= ROUNDS_MAX && (somebody_leads || patience.is_over(&*core.env.clock)) {
                break;
            }
            tokio::time::sleep(ROUND_PAUSE).await;
        }
        errors.extend(missing.iter().map(|p| format!("partition {p}: not done by any leader")));
        Ok(Response::new(v1::MaintenanceReply { done: done.into_iter().collect(), errors }))
    }

    /// Asks all memtable servers for what only a leader does, until one does it: who leads may have changed a moment ago, and may
    /// change again. Whoever does not answer (it may be at work, or dead) keeps nobody from being asked again.
    pub(super) async fn ask_leader<T, F>(
        &self,
        limit: Duration,
        call: impl Fn(AdminClient<Channel>) -> F,
    ) -> Result<Response<T>, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let (core, patience) = (self.pnode.core(), self.leaderless_until(limit));
        let mut silence = Error::unavailable("no leader of the partition was found");
        // What a server has said itself that is not just that another one leads: in this round, or before.
        let (mut refused, mut refused_before) = (None, None);
        let mut asked = FuturesUnordered::new();
        let mut to_ask: Vec<_> = core.memtables.values().collect();
        let (mut answered, mut rounds) = (Vec::new(), 0);
        let ask = async {
            loop {
                for peer in to_ask.drain(..) {
                    let reply = call(peer.admin.clone());
                    asked.push(async move { (peer, reply.await) });
                }
                match tokio::time::timeout(ROUND_PAUSE, asked.next()).await {
                    Ok(Some((_, Ok(reply)))) => return Ok(reply),
                    Ok(Some((peer, Err(status)))) => {
                        answered.push(peer);
                        let is_its_own = is_of_server(&status);
                        let error = error_of(status);
                        match error.kind {
                            ErrorKind::NotLeader => {}
                            ErrorKind::Invalid => return Err(error),
                            ErrorKind::Stopping => silence = error,
                            _ if is_its_own => refused = Some(error),
                            _ => silence = error,
                        }
                        continue;
                    }
                    Ok(None) => tokio::time::sleep(ROUND_PAUSE).await,
                    Err(_) => {}
                }
                rounds += 1;
                let is_over = refused.is_some() || patience.is_over(&*core.env.clock);
                refused_before = refused.take().or(refused_before.take());
                if rounds >= ROUNDS_MAX && is_over && asked.is_empty() {
                    return Err(refused_before.take().unwrap_or(silence));
                }
                to_ask.append(&mut answered);
            }
        };
        let answer = tokio::time::timeout(limit, ask).await;
        let late = || refused.or(refused_before).unwrap_or_else(|| Error::unavailable("no answer in time"));
        answer.unwrap_or_else(|_| Err(late())).map_err(status_of)
    }

    async fn maintain<F>(
        &self,
        request: Request<v1::MaintenanceRequest>,
        call: impl Fn(AdminClient<Channel>, v1::MaintenanceRequest) -> F,
    ) -> Result<Response<v1::MaintenanceReply>, Status>
    where
        F: Future<Output = Result<Response<v1::MaintenanceReply>, Status>>,
    {
        let limit = deadline(request.metadata());
        let v1::MaintenanceRequest { table, partitions } = request.into_inner();
        let part = |partitions| v1::MaintenanceRequest { table: table.clone(), partitions };
        self.fan_out(limit, &partitions, |admin, missing| call(admin, part(missing))).await
    }
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn freeze(
        &self,
        request: Request<v1::MaintenanceRequest>,
    ) -> Result<Response<v1::MaintenanceReply>, Status> {
        self.admit(&request, "freeze memtables").await?;
        self.maintain(request, |mut admin, part| async move { admin.freeze(part).await }).await
    }

    async fn flush(
        &self,
        request: Request<v1::MaintenanceRequest>,
    ) -> Result<Response<v1::MaintenanceReply>, Status> {
        self.admit(&request, "flush").await?;
        self.maintain(request, |mut admin, part| async move { admin.flush(part).await }).await
    }

    async fn compact(
        &self,
        request: Request<v1::MaintenanceRequest>,
    ) -> Result<Response<v1::MaintenanceReply>, Status> {
        self.admit(&request, "compact").await?;
        self.maintain(request, |mut admin, part| async move { admin.compact(part).await }).await
    }

    async fn configure(
        &self,
        request: Request<v1::ConfigureRequest>,
    ) -> Result<Response<v1::MaintenanceReply>, Status> {
        self.admit(&request, "configure partitions").await?;
        let limit = deadline(request.metadata());
        let request = request.into_inner();
        let call = |mut admin: AdminClient<Channel>, partitions| {
            let part = v1::ConfigureRequest { partitions, ..request.clone() };
            async move { admin.configure(part).await }
        };
        self.fan_out(limit, &request.partitions, call).await
    }

    /// Creates a table in the whole cluster: partition and id of the request do not matter here.
    async fn ensure_table(
        &self,
        request: Request<v1::EnsureTableRequest>,
    ) -> Result<Response<v1::EnsureTableReply>, Status> {
        self.admit(&request, "create a table").await?;
        let r = request.into_inner();
        if r.id != 0 {
            return Err(status_of(Error::invalid("a p-node allocates the id of a table: ask for id 0")));
        }
        let options: sextant_common::manifest::TableOptions =
            r.options.unwrap_or_default().try_into().map_err(status_of)?;
        let (id, created) = self.pnode.create_table(&r.name, options).await.map_err(status_of)?;
        let known = self.pnode.core().views.tables.get(&r.name);
        Ok(Response::new(v1::EnsureTableReply {
            status: v1::WriteStatus::WriteOk as i32,
            id: id.0,
            created,
            options: known.map(|t| (&t.options).into()),
            leader: None,
            message: String::new(),
        }))
    }

    async fn change_table(
        &self,
        request: Request<v1::ChangeTableRequest>,
    ) -> Result<Response<v1::ChangeTableReply>, Status> {
        self.admit(&request, "change a table").await?;
        Err(Status::unimplemented("a p-node changes tables everywhere: ask its service Kv"))
    }

    async fn transfer(
        &self,
        request: Request<v1::TransferRequest>,
    ) -> Result<Response<v1::TransferReply>, Status> {
        self.admit(&request, "transfer a leadership").await?;
        let limit = deadline(request.metadata()).unwrap_or(TRANSFER_DEADLINE);
        let request = request.into_inner();
        self.ask_leader(limit, |mut admin| async move { admin.transfer(request).await }).await
    }

    /// Asks the leader, as for a transfer.
    async fn change_voters(
        &self,
        request: Request<v1::ChangeVotersRequest>,
    ) -> Result<Response<v1::ChangeVotersReply>, Status> {
        self.admit(&request, "change voters").await?;
        let limit = deadline(request.metadata()).unwrap_or(MAINTENANCE_DEADLINE);
        let request = request.into_inner();
        let call = |mut admin: AdminClient<Channel>| {
            let request = request.clone();
            async move { admin.change_voters(request).await }
        };
        self.ask_leader(limit, call).await
    }

    /// Asks the memtable server that founds groups, the one with the lowest id: there are no leaders then.
    async fn recover(
        &self,
        request: Request<v1::RecoverRequest>,
    ) -> Result<Response<v1::RecoverReply>, Status> {
        self.admit(&request, "recover partitions").await?;
        let limit = deadline(request.metadata()).unwrap_or(MAINTENANCE_DEADLINE);
        let founder = self.pnode.core().memtables.iter().next();
        let (node, peer) =
            founder.ok_or_else(|| Error::internal("no memtable servers")).map_err(status_of)?;
        let mut admin = peer.admin.clone();
        match tokio::time::timeout(limit, admin.recover(request.into_inner())).await {
            Ok(answer) => answer,
            Err(_) => {
                Err(status_of(Error::unavailable(format!("memtable server {node}: no answer in time"))))
            }
        }
    }

    /// Asks all memtable servers, each for what it leads, again for partitions that nobody answers for.
    async fn raise_format(
        &self,
        request: Request<v1::RaiseFormatRequest>,
    ) -> Result<Response<v1::RaiseFormatReply>, Status> {
        self.admit(&request, "raise the format").await?;
        let limit = deadline(request.metadata()).unwrap_or(MAINTENANCE_DEADLINE);
        let request = request.into_inner();
        let core = self.pnode.core();
        let patience = self.leaderless_until(limit);
        let wanted = |p: &u32| request.partitions.is_empty() || request.partitions.contains(p);
        let mut missing: BTreeSet<u32> = core.views.partitions().map(|p| p.0).filter(wanted).collect();
        if missing.is_empty() {
            // (To a memtable server, none named are all.)
            return Err(status_of(Error::invalid("there are no such partitions")));
        }
        let mut told: BTreeMap<u32, v1::PartitionFormat> = BTreeMap::new();
        for round in 1.. {
            let part = v1::RaiseFormatRequest { partitions: missing.iter().copied().collect(), ..request };
            let calls = core.memtables.values().map(|peer| {
                let (mut admin, part) = (peer.admin.clone(), part.clone());
                async move { tokio::time::timeout(limit, admin.raise_format(part)).await }
            });
            let mut is_older = false;
            for reply in join_all(calls).await.into_iter().flatten() {
                match reply {
                    Ok(reply) => {
                        told.extend(reply.into_inner().partitions.into_iter().map(|p| (p.partition, p)))
                    }
                    Err(status) => is_older |= status.code() == Code::Unimplemented,
                }
            }
            missing.retain(|p| !told.contains_key(p));
            let is_over = patience.is_over(&*core.env.clock) || is_older && round >= ROUNDS_MAX;
            if missing.is_empty() || is_over {
                break;
            }
            tokio::time::sleep(ROUND_PAUSE).await;
        }
        let silent = |partition| v1::PartitionFormat {
            partition,
            refused: "no leader answers, or one of a version without formats".into(),
            ..Default::default()
        };
        told.extend(missing.into_iter().map(|p| (p, silent(p))));
        Ok(Response::new(v1::RaiseFormatReply { partitions: told.into_values().collect() }))
    }

    async fn cut(&self, request: Request<v1::CutRequest>) -> Result<Response<v1::CutReply>, Status> {
        self.admit(&request, "see to a snapshot").await?;
        let limit = deadline(request.metadata());
        let cut = backup::cut(&self.pnode, request.into_inner(), limit).await.map_err(status_of)?;
        Ok(Response::new(v1::CutReply { cut: cut.as_ref().map(Into::into) }))
    }

    type FetchTableStream = BoxStream<'static, Result<v1::FileChunk, Status>>;

    async fn fetch_table(
        &self,
        request: Request<v1::FetchTableRequest>,
    ) -> Result<Response<Self::FetchTableStream>, Status> {
        let who = self.admit(&request, "read an SSTable").await?;
        let chunks = backup::fetch_table(&self.pnode, request.into_inner()).await.map_err(status_of)?;
        let chunks = chunks.map(move |chunk| who.may_still(Class::Admin).map_err(status_of).and(chunk));
        Ok(Response::new(chunks.boxed()))
    }

    type ReadLogStream = BoxStream<'static, Result<v1::LogPage, Status>>;

    async fn read_log(
        &self,
        request: Request<v1::ReadLogRequest>,
    ) -> Result<Response<Self::ReadLogStream>, Status> {
        let who = self.admit(&request, "read the log").await?;
        let request = request.into_inner();
        if !self.pnode.core().views.partitions().any(|p| p.0 == request.partition) {
            return Err(status_of(Error::invalid(format!("no partition {}", request.partition))));
        }
        Ok(Response::new(archive::follow(self.clone(), who, request, self.stopping.clone())))
    }

    async fn import(&self, request: Request<v1::ImportRequest>) -> Result<Response<v1::ImportReply>, Status> {
        self.admit(&request, "import records").await?;
        let written = backup::import(&self.pnode, request.into_inner()).await.map_err(status_of)?;
        Ok(Response::new(v1::ImportReply { written }))
    }

    async fn verify_tables(
        &self,
        request: Request<v1::VerifyTablesRequest>,
    ) -> Result<Response<v1::VerifyTablesReply>, Status> {
        self.admit(&request, "verify all SSTables").await?;
        let limit = deadline(request.metadata()).unwrap_or(VERIFY_DEADLINE);
        Ok(Response::new(backup::verify(&self.pnode, &request.into_inner().nodes, limit).await))
    }

    /// To whom this p-node takes for the leader: what arrives cannot be sent twice.
    async fn load(
        &self,
        request: Request<tonic::Streaming<v1::LoadRequest>>,
    ) -> Result<Response<v1::LoadReply>, Status> {
        let (metadata, extensions, mut stream) = request.into_parts();
        self.admit(&Request::from_parts(metadata, extensions, ()), "load a table").await?;
        let first = stream.message().await?.unwrap_or_default();
        let header =
            first.header.as_ref().ok_or_else(|| Error::invalid("the first message of a load has the header"));
        let partition = PartitionId(header.map_err(status_of)?.partition);
        let core = self.pnode.core();
        if !core.views.partitions().any(|p| p == partition) {
            return Err(status_of(Error::invalid(format!("no partition {partition}"))));
        }
        let again =
            || status_of(Error::retry("the leader of the partition is not known: send the records again"));
        let node = core.leaders.get(partition).node.ok_or_else(again)?;
        let mut admin = core.memtable(node).map_err(status_of)?.admin.clone();
        // Where it breaks off the leader sees that it has no end.
        let rest = stream
            .take_while(|message| std::future::ready(message.is_ok()))
            .filter_map(|m| std::future::ready(m.ok()));
        let sent = admin.load(futures::stream::iter([first]).chain(rest)).await;
        sent.map_err(|status| {
            let error = error_of(status);
            if matches!(error.kind, ErrorKind::NotLeader | ErrorKind::Unavailable) {
                core.leaders.suspect(partition, node);
            }
            if error.kind == ErrorKind::NotLeader { again() } else { status_of(error) }
        })
    }

    async fn end_load(
        &self,
        request: Request<v1::EndLoadRequest>,
    ) -> Result<Response<v1::LoadReply>, Status> {
        self.admit(&request, "end a load").await?;
        let limit = deadline(request.metadata()).unwrap_or(MAINTENANCE_DEADLINE);
        let request = request.into_inner();
        self.ask_leader(limit, |mut admin| async move { admin.end_load(request).await }).await
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
        self.admit(&request, "ask for the status").await?;
        let json = cluster_status(&self.pnode).await.to_string();
        Ok(Response::new(v1::StatusReply { json }))
    }
}
