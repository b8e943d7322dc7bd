//! Maintenance on demand, tables, status: for the partitions that this server leads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::{Generation, TableId};
use sextant_common::limits;
use sextant_common::manifest::TableOptions;
use sextant_environment::config::ClusterConfig;
use sextant_environment::env::status_of;
use sextant_proto::v1;
use sextant_proto::v1::admin_server::Admin;
use sextant_raft_log::Member;
use tokio::sync::oneshot;
use tonic::{Request, Response, Status};

use super::{Context, status};
use crate::command::configuration;
use crate::leadership::not_leading;
use crate::replica::{Event, Handle, Leader};

/// A freeze, and the creation of a table, are Raft entries.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(10);
/// A flush or a compaction moves data.
const DATA_TIMEOUT: Duration = Duration::from_secs(600);
/// How often a server that has let go looks for its successor.
const ELECTED_POLL: Duration = Duration::from_millis(5);
/// Ids are never reused; this leaves room for ever.
const TABLE_ID_MAX: u32 = u32::MAX / 2;

#[derive(Clone)]
pub struct AdminShell {
    pub context: Arc<Context>,
}

async fn within<T>(limit: Duration, what: &str, answer: oneshot::Receiver<Result<T>>) -> Result<T> {
    match tokio::time::timeout(limit, answer).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(Error::retry("leadership changed")),
        Err(_) => Err(Error::unavailable(format!("{what}: not done within {limit:?}"))),
    }
}

/// What is to be done in each led partition.
#[derive(Clone, Copy)]
enum Work {
    Freeze,
    Flush,
    Compact,
}

impl AdminShell {
    async fn everywhere(
        &self,
        request: v1::MaintenanceRequest,
        work: Work,
    ) -> Response<v1::MaintenanceReply> {
        let table = &request.table;
        let partitions = self.led(&request).into_iter().map(|handle| async move {
            let done = match work {
                Work::Freeze => Self::freeze_one(handle, table).await.map(|_| ()),
                Work::Flush => Self::flush_one(handle, table).await,
                Work::Compact => Self::compact_one(handle, table).await,
            };
            (handle.shared.id.0, done)
        });
        reply(futures::future::join_all(partitions).await)
    }

    /// The led partitions that a request names.
    fn led(&self, request: &v1::MaintenanceRequest) -> Vec<&Handle> {
        let mut handles: Vec<_> = self
            .context
            .partitions
            .values()
            .filter(|h| request.partitions.is_empty() || request.partitions.contains(&h.shared.id.0))
            .filter(|h| h.shared.serving().is_some())
            .collect();
        handles.sort_by_key(|h| h.shared.id);
        handles
    }

    /// None: all tables.
    fn table(handle: &Handle, name: &str) -> Result<Option<TableId>> {
        if name.is_empty() {
            return Ok(None);
        }
        let manifest = handle.shared.manifest();
        let table = manifest.table_by_name(name);
        table
            .map(|t| Some(t.table))
            .ok_or_else(|| Error::new(ErrorKind::UnknownTable, format!("no table {name:?}")))
    }

    async fn freeze_one(handle: &Handle, table: &str) -> Result<Vec<(TableId, Generation)>> {
        let table = Self::table(handle, table)?;
        let (done, answer) = oneshot::channel();
        let _ = handle.events.send(Event::Freeze { table, done });
        within(ENTRY_TIMEOUT, "freeze", answer).await
    }

    async fn flush_one(handle: &Handle, table: &str) -> Result<()> {
        let targets = Self::freeze_one(handle, table).await?;
        let mut version = handle.shared.manifest_version.subscribe();
        let flushed = async {
            loop {
                let manifest = handle.shared.manifest();
                let done = |(table, generation): &(TableId, Generation)| {
                    manifest.table(*table).is_some_and(|t| t.flushed_generation >= *generation)
                };
                if targets.iter().all(done) {
                    return Ok(());
                }
                if version.changed().await.is_err() {
                    return Err(Error::retry("the server is stopping"));
                }
            }
        };
        tokio::time::timeout(DATA_TIMEOUT, flushed)
            .await
            .unwrap_or_else(|_| Err(Error::unavailable("flush: not done in time")))
    }

    async fn compact_one(handle: &Handle, table: &str) -> Result<()> {
        let tables = match Self::table(handle, table)? {
            Some(id) => vec![id],
            None => handle.shared.manifest().tables.iter().map(|t| t.table).collect(),
        };
        for table in tables {
            let (done, answer) = oneshot::channel();
            let _ = handle.events.send(Event::Compact { table, done: Some(done) });
            within(DATA_TIMEOUT, "compact", answer).await?;
        }
        Ok(())
    }
}

/// Voters that a request names, with their addresses; their incarnations are theirs to say.
fn voters_of(ids: &[u64], cluster: &ClusterConfig) -> Result<BTreeMap<u64, Member>> {
    if ids.is_empty() {
        return Err(Error::invalid("a partition needs at least one voter"));
    }
    let mut voters = BTreeMap::new();
    for id in ids {
        let server = cluster.memtable.iter().find(|s| s.id.0 == *id);
        let server = server.ok_or_else(|| Error::invalid(format!("there is no memtable server {id}")))?;
        if voters.insert(*id, Member::new(server.addr.clone(), 0)).is_some() {
            return Err(Error::invalid(format!("memtable server {id} is named twice")));
        }
    }
    Ok(voters)
}

fn reply(results: Vec<(u32, Result<()>)>) -> Response<v1::MaintenanceReply> {
    let mut reply = v1::MaintenanceReply::default();
    for (partition, result) in results {
        match result {
            Ok(()) => reply.done.push(partition),
            Err(e) => reply.errors.push(format!("partition {partition}: {e}")),
        }
    }
    Response::new(reply)
}

#[tonic::async_trait]
impl Admin for AdminShell {
    async fn freeze(
        &self,
        request: Request<v1::MaintenanceRequest>,
    ) -> Result<Response<v1::MaintenanceReply>, Status> {
        Ok(self.everywhere(request.into_inner(), Work::Freeze).await)
    }

    async fn flush(
        &self,
        request: Request<v1::MaintenanceRequest>,
    ) -> Result<Response<v1::MaintenanceReply>, Status> {
        Ok(self.everywhere(request.into_inner(), Work::Flush).await)
    }

    async fn compact(
        &self,
        request: Request<v1::MaintenanceRequest>,
    ) -> Result<Response<v1::MaintenanceReply>, Status> {
        Ok(self.everywhere(request.into_inner(), Work::Compact).await)
    }

    async fn configure(
        &self,
        request: Request<v1::ConfigureRequest>,
    ) -> Result<Response<v1::MaintenanceReply>, Status> {
        let request = request.into_inner();
        let partitions =
            v1::MaintenanceRequest { partitions: request.partitions.clone(), ..Default::default() };
        let change = configuration::Change::try_from(request).map_err(status_of)?;
        let done = self.led(&partitions).into_iter().map(|handle| async move {
            let (done, answer) = oneshot::channel();
            // A shorter lease is lived first, for as long as the longer one lasts.
            let lives_on = Duration::from_nanos(handle.shared.guard.abstention_ns());
            let _ = handle.events.send(Event::Configure { change, done });
            (handle.shared.id.0, within(ENTRY_TIMEOUT + lives_on, "configure", answer).await)
        });
        Ok(reply(futures::future::join_all(done).await))
    }

    async fn ensure_table(
        &self,
        request: Request<v1::EnsureTableRequest>,
    ) -> Result<Response<v1::EnsureTableReply>, Status> {
        let request = request.into_inner();
        limits::check_table_name(&request.name).map_err(status_of)?;
        let handle = self.context.partition(request.partition).map_err(status_of)?;
        let options: TableOptions = request.options.unwrap_or_default().try_into().map_err(status_of)?;
        if request.partition != 0 && request.id == 0 {
            return Err(status_of(Error::invalid("table ids are allocated in partition 0")));
        }
        if request.id > TABLE_ID_MAX {
            return Err(status_of(Error::invalid(format!("table ids go up to {TABLE_ID_MAX}"))));
        }
        let manifest = handle.shared.manifest();
        if manifest.tables.len() >= limits::TABLES_MAX && manifest.table_by_name(&request.name).is_none() {
            return Err(status_of(Error::invalid(format!(
                "there are {} tables already",
                limits::TABLES_MAX
            ))));
        }
        let existed = manifest.table_by_name(&request.name).is_some();
        let id = (request.id != 0).then_some(TableId(request.id));
        let (done, answer) = oneshot::channel();
        let _ = handle.events.send(Event::EnsureTable { name: request.name.clone(), options, id, done });
        let mut out =
            v1::EnsureTableReply { leader: Some(handle.shared.leader().into()), ..Default::default() };
        let status = match within(ENTRY_TIMEOUT, "create table", answer).await {
            Ok(()) => match handle.shared.manifest().table_by_name(&request.name) {
                Some(table) => {
                    out.id = table.table.0;
                    out.created = !existed;
                    out.options = Some((&table.options).into());
                    v1::WriteStatus::WriteOk
                }
                None => {
                    out.message = format!("the id of table {:?} is another table's", request.name);
                    v1::WriteStatus::WriteInvalid
                }
            },
            Err(e) if e.kind == ErrorKind::NotLeader => v1::WriteStatus::WriteNotLeader,
            Err(e) => {
                out.message = e.to_string();
                v1::WriteStatus::WriteRetry
            }
        };
        out.status = status.into();
        Ok(Response::new(out))
    }

    async fn transfer(
        &self,
        request: Request<v1::TransferRequest>,
    ) -> Result<Response<v1::TransferReply>, Status> {
        let request = request.into_inner();
        let handle = self.context.partition(request.partition).map_err(status_of)?;
        if !self.context.cluster.memtable.iter().any(|s| s.id.0 == request.to) {
            return Err(status_of(Error::invalid(format!("there is no memtable server {}", request.to))));
        }
        if handle.shared.serving().is_none() {
            return Err(status_of(not_leading()));
        }
        if request.to == self.context.node.0 {
            let Leader { term, node: leader, .. } = handle.shared.leader();
            return Ok(Response::new(v1::TransferReply { leader, term }));
        }
        let (done, answer) = oneshot::channel();
        let _ = handle.events.send(Event::HandOver { to: request.to, done });
        let ended = within(ENTRY_TIMEOUT, "transfer", answer).await.map_err(status_of)?;
        let elected = async {
            loop {
                let Leader { term, node: leader, .. } = handle.shared.leader();
                if term > ended && leader != 0 {
                    return v1::TransferReply { leader, term };
                }
                tokio::time::sleep(ELECTED_POLL).await;
            }
        };
        match tokio::time::timeout(ENTRY_TIMEOUT, elected).await {
            Ok(reply) => Ok(Response::new(reply)),
            Err(_) => {
                Err(status_of(Error::unavailable("this server has let go, but nobody was elected yet")))
            }
        }
    }

    async fn change_voters(
        &self,
        request: Request<v1::ChangeVotersRequest>,
    ) -> Result<Response<v1::ChangeVotersReply>, Status> {
        let request = request.into_inner();
        let handle = self.context.partition(request.partition).map_err(status_of)?;
        if handle.shared.serving().is_none() {
            return Err(status_of(not_leading()));
        }
        let mut voters = voters_of(&request.voters, &self.context.cluster).map_err(status_of)?;
        if let Some(network) = self.context.networks.get(&handle.shared.id) {
            let others = voters.keys().copied().filter(|id| *id != self.context.node.0);
            for (id, said) in network.introductions(others.collect::<Vec<u64>>(), 0).await {
                voters.entry(id).and_modify(|member| member.incarnation = said.incarnation);
            }
        }
        let (done, answer) = oneshot::channel();
        let reply = v1::ChangeVotersReply { voters: voters.keys().copied().collect() };
        let _ = handle.events.send(Event::ChangeVoters { voters, done });
        within(DATA_TIMEOUT, "change of the voters (it goes on)", answer).await.map_err(status_of)?;
        Ok(Response::new(reply))
    }

    async fn recover(
        &self,
        request: Request<v1::RecoverRequest>,
    ) -> Result<Response<v1::RecoverReply>, Status> {
        // In a task of its own: whoever asks may give up half-way through a partition.
        let context = self.context.clone();
        let run = tokio::spawn(async move { crate::recover::run(&context, request.into_inner()).await });
        let reply = run.await.map_err(|e| Error::internal(format!("recover: {e}"))).map_err(status_of)?;
        Ok(Response::new(reply.map_err(status_of)?))
    }

    async fn status(
        &self,
        _request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusReply>, Status> {
        Ok(Response::new(v1::StatusReply { json: status::json(&self.context) }))
    }
}
