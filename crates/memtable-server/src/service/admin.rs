//! Maintenance on demand, tables, status: for the partitions that this server leads. What each means is decided in
//! [`crate::maintenance`].

use std::sync::Arc;

use futures::StreamExt;
use sextant_common::cut::WantedCut;
use sextant_common::error::{Error, ErrorKind};
use sextant_common::ids::{LoadId, PartitionId, TableId};
use sextant_common::key::SlotMap;
use sextant_common::limits;
use sextant_environment::env::{error_of, status_of};
use sextant_proto::v1;
use sextant_proto::v1::admin_server::Admin;
use tonic::{Request, Response, Status};

use super::{Context, status};
use crate::command::configuration::ConfigurationChange;
use crate::flush::LoadPiece;
use crate::maintenance::{self, Created, NewTable, Work, loads};
use crate::replica::TableWish;

#[derive(Clone)]
pub struct AdminShell {
    pub context: Arc<Context>,
}

type MaintenanceReply = Result<Response<v1::MaintenanceReply>, Status>;

impl AdminShell {
    async fn everywhere(&self, named: &[u32], work: Work<'_>) -> MaintenanceReply {
        let mut reply = v1::MaintenanceReply::default();
        let results = maintenance::everywhere(self.context.partitions.values(), named, work).await;
        if let Some(e) = refused_by_all(&results) {
            return Err(status_of(e));
        }
        for (partition, result) in results {
            match result {
                Ok(()) => reply.done.push(partition.0),
                Err(e) => reply.errors.push(format!("partition {partition}: {e}")),
            }
        }
        Ok(Response::new(reply))
    }
}

/// What was asked makes no sense, wherever it was to be done.
fn refused_by_all(results: &[(PartitionId, Result<(), Error>)]) -> Option<Error> {
    let (_, first) = results.first()?;
    let refusal = first.as_ref().err()?;
    let is_senseless = matches!(refusal.kind, ErrorKind::Invalid | ErrorKind::UnknownTable);
    let all_alike = || {
        let is_it = |e: &Error| (e.kind, &e.message) == (refusal.kind, &refusal.message);
        results.iter().all(|(_, result)| result.as_ref().err().is_some_and(is_it))
    };
    (is_senseless && all_alike()).then(|| refusal.clone())
}

fn piece(message: v1::LoadRequest, had_header: bool) -> Result<LoadPiece, Error> {
    if had_header && message.header.is_some() {
        return Err(Error::invalid("a load has one header"));
    }
    let records = message.records.into_iter().map(Into::into).collect();
    Ok(LoadPiece { records, finish: message.finish.then_some(message.record_count) })
}

impl AdminShell {
    fn load_reply(&self, load: &loads::Load) -> Response<v1::LoadReply> {
        use v1::load_reply::State;
        let partitions = self.context.cluster.partitions;
        let of = |state: State| v1::LoadReply { state: state.into(), partitions, ..Default::default() };
        Response::new(match load {
            loads::Load::Unknown => of(State::Unknown),
            loads::Load::Committed => of(State::Committed),
            loads::Load::Written(written) => v1::LoadReply {
                records: written.records(),
                bytes: written.bytes(),
                tables: written.ssts.len() as u32,
                ..of(State::Written)
            },
        })
    }
}

#[tonic::async_trait]
impl Admin for AdminShell {
    async fn freeze(&self, request: Request<v1::MaintenanceRequest>) -> MaintenanceReply {
        let v1::MaintenanceRequest { partitions, table } = request.into_inner();
        self.everywhere(&partitions, Work::Freeze(&table)).await
    }

    async fn flush(&self, request: Request<v1::MaintenanceRequest>) -> MaintenanceReply {
        let v1::MaintenanceRequest { partitions, table } = request.into_inner();
        self.everywhere(&partitions, Work::Flush(&table)).await
    }

    async fn compact(&self, request: Request<v1::MaintenanceRequest>) -> MaintenanceReply {
        let v1::MaintenanceRequest { partitions, table } = request.into_inner();
        self.everywhere(&partitions, Work::Compact(&table)).await
    }

    async fn configure(&self, request: Request<v1::ConfigureRequest>) -> MaintenanceReply {
        let request = request.into_inner();
        let partitions = request.partitions.clone();
        let change = ConfigurationChange::try_from(request).map_err(status_of)?;
        let known = |id: &u64| self.context.cluster.sstable.iter().any(|server| server.id.0 == *id);
        if let Some(unknown) = change.draining.iter().flatten().find(|id| !known(id)) {
            return Err(status_of(Error::invalid(format!("there is no sstable server {unknown}"))));
        }
        self.everywhere(&partitions, Work::Configure(&change)).await
    }

    async fn ensure_table(
        &self,
        request: Request<v1::EnsureTableRequest>,
    ) -> Result<Response<v1::EnsureTableReply>, Status> {
        let v1::EnsureTableRequest { partition, name, options, id } = request.into_inner();
        limits::check_table_name(&name).map_err(status_of)?;
        let handle = self.context.partition(partition).map_err(status_of)?;
        let options = options.unwrap_or_default().try_into().map_err(status_of)?;
        let table = NewTable { name: name.clone(), options, id: (id != 0).then_some(TableId(id)) };
        let leader = Some(handle.shared.leader().into());
        let mut out = v1::EnsureTableReply { leader, ..Default::default() };
        let status = match maintenance::create(handle, table).await.map_err(status_of)? {
            Created::Table { id, options, new } => {
                (out.id, out.created, out.options) = (id.0, new, Some((&options).into()));
                v1::WriteStatus::WriteOk
            }
            Created::Taken => {
                out.message = format!("the id of table {name:?} is another table's");
                v1::WriteStatus::WriteInvalid
            }
            Created::Gone => {
                out.message = format!("table {name:?} was dropped");
                v1::WriteStatus::WriteUnknownTable
            }
            Created::NotLeader => v1::WriteStatus::WriteNotLeader,
            Created::Retry(why) => {
                out.message = why;
                v1::WriteStatus::WriteRetry
            }
        };
        out.status = status.into();
        Ok(Response::new(out))
    }

    async fn change_table(
        &self,
        request: Request<v1::ChangeTableRequest>,
    ) -> Result<Response<v1::ChangeTableReply>, Status> {
        let v1::ChangeTableRequest { partition, id, change } = request.into_inner();
        let handle = self.context.partition(partition).map_err(status_of)?.clone();
        let wanted = match change {
            Some(v1::change_table_request::Change::Drop(_)) => TableWish::Gone,
            Some(v1::change_table_request::Change::Alter(change)) => {
                TableWish::Altered(change.try_into().map_err(status_of)?)
            }
            None => return Err(status_of(Error::invalid("a change of a table says what is changed"))),
        };
        let leader = Some(handle.shared.leader().into());
        let changed = maintenance::change(&handle, TableId(id), wanted).await;
        let status = match &changed {
            Ok(_) => v1::WriteStatus::WriteOk,
            Err(e) => match e.kind {
                ErrorKind::NotLeader => v1::WriteStatus::WriteNotLeader,
                ErrorKind::UnknownTable => v1::WriteStatus::WriteUnknownTable,
                ErrorKind::Invalid => v1::WriteStatus::WriteInvalid,
                _ => v1::WriteStatus::WriteRetry,
            },
        };
        let message = changed.as_ref().err().map_or_else(String::new, |e| e.message.to_string());
        let changed = changed.unwrap_or_default();
        Ok(Response::new(v1::ChangeTableReply { status: status.into(), changed, leader, message }))
    }

    async fn transfer(
        &self,
        request: Request<v1::TransferRequest>,
    ) -> Result<Response<v1::TransferReply>, Status> {
        let v1::TransferRequest { partition, to } = request.into_inner();
        let handle = self.context.partition(partition).map_err(status_of)?;
        let network = self.context.networks.get(&handle.shared.id);
        let transferred = maintenance::transfer(handle, to, &self.context.cluster, network).await;
        let leader = transferred.map_err(status_of)?;
        Ok(Response::new(v1::TransferReply { leader: leader.node, term: leader.term }))
    }

    async fn change_voters(
        &self,
        request: Request<v1::ChangeVotersRequest>,
    ) -> Result<Response<v1::ChangeVotersReply>, Status> {
        let request = request.into_inner();
        let handle = self.context.partition(request.partition).map_err(status_of)?;
        maintenance::check_leads(handle).map_err(status_of)?;
        let voters = maintenance::voters_of(&request.voters, &self.context.cluster).map_err(status_of)?;
        let reply = v1::ChangeVotersReply { voters: voters.keys().copied().collect() };
        let network = self.context.networks.get(&handle.shared.id);
        maintenance::choose_voters(handle, voters, network).await.map_err(status_of)?;
        Ok(Response::new(reply))
    }

    async fn recover(
        &self,
        request: Request<v1::RecoverRequest>,
    ) -> Result<Response<v1::RecoverReply>, Status> {
        let order = request.into_inner().try_into().map_err(status_of)?;
        // In a task of its own: whoever asks may give up half-way through a partition.
        let here = self.context.rebuilding.clone();
        let run = tokio::spawn(async move { here.run(&order).await });
        let all = run.await.unwrap_or_else(|e| Err(Error::internal(format!("recover: {e}"))));
        let partitions = all.map_err(status_of)?.into_iter().map(Into::into).collect();
        Ok(Response::new(v1::RecoverReply { partitions }))
    }

    async fn raise_format(
        &self,
        request: Request<v1::RaiseFormatRequest>,
    ) -> Result<Response<v1::RaiseFormatReply>, Status> {
        let v1::RaiseFormatRequest { partitions, to, dry_run } = request.into_inner();
        let formats = maintenance::raise_formats(&self.context, &partitions, to, dry_run).await;
        let partitions = formats.into_iter().map(Into::into).collect();
        Ok(Response::new(v1::RaiseFormatReply { partitions }))
    }

    async fn cut(&self, request: Request<v1::CutRequest>) -> Result<Response<v1::CutReply>, Status> {
        let request = request.into_inner();
        let handle = self.context.partition(request.partition).map_err(status_of)?;
        let (action, id) = (request.action(), request.id);
        let cut = match action {
            v1::cut_request::Action::Open => {
                let lease = sextant_common::cut::check_lease(request.lease_ms).map_err(status_of)?;
                let (lease_ms, privileged) = (lease.as_millis() as u64, request.privileged);
                maintenance::open_cut(handle, WantedCut { id, lease_ms, privileged }).await.map(Some)
            }
            v1::cut_request::Action::Renew => maintenance::renew_cut(handle, id).await.map(Some),
            v1::cut_request::Action::Look => maintenance::look_at_cut(handle, id).map(Some),
            v1::cut_request::Action::End => maintenance::end_cut(handle, id).await.map(|()| None),
        };
        let cut = cut.map_err(status_of)?;
        Ok(Response::new(v1::CutReply { cut: cut.map(|cut| (&*cut).into()) }))
    }

    type ReadLogStream = tokio_stream::Once<Result<v1::LogPage, Status>>;

    async fn read_log(
        &self,
        request: Request<v1::ReadLogRequest>,
    ) -> Result<Response<Self::ReadLogStream>, Status> {
        let v1::ReadLogRequest { partition, after, having } = request.into_inner();
        let handle = self.context.partition(partition).map_err(status_of)?;
        let log = self.context.log.partition(handle.shared.id);
        let stopping = |_| Error::retry("the server is stopping");
        let _place = self.context.log_pages.acquire().await.map_err(stopping).map_err(status_of)?;
        let (after, having) = (after.map(Into::into), having.map(Into::into));
        let answer = maintenance::read_log(handle, &log, after, having).await;
        let page = answer.map_err(status_of)?.into();
        Ok(Response::new(tokio_stream::once(Ok(page))))
    }

    type FetchTableStream = tokio_stream::Empty<Result<v1::FileChunk, Status>>;

    async fn fetch_table(
        &self,
        _request: Request<v1::FetchTableRequest>,
    ) -> Result<Response<Self::FetchTableStream>, Status> {
        Err(Status::unimplemented("a p-node does that"))
    }

    async fn import(
        &self,
        _request: Request<v1::ImportRequest>,
    ) -> Result<Response<v1::ImportReply>, Status> {
        Err(Status::unimplemented("a p-node does that"))
    }

    async fn verify_tables(
        &self,
        _request: Request<v1::VerifyTablesRequest>,
    ) -> Result<Response<v1::VerifyTablesReply>, Status> {
        Err(Status::unimplemented("an sstable server does that"))
    }

    async fn load(
        &self,
        request: Request<tonic::Streaming<v1::LoadRequest>>,
    ) -> Result<Response<v1::LoadReply>, Status> {
        let mut stream = request.into_inner();
        let first = stream.message().await?.unwrap_or_default();
        let header =
            first.header.clone().ok_or_else(|| Error::invalid("the first message of a load has the header"));
        let v1::LoadHeader { partition, table, id } = header.map_err(status_of)?;
        let handle = self.context.partition(partition).map_err(status_of)?;
        let background = self.context.background(handle.shared.id).map_err(status_of)?;
        let slots = SlotMap::even(self.context.cluster.partitions);
        let rest = stream.map(|message| piece(message.map_err(error_of)?, true));
        let pieces = futures::stream::iter([piece(first, false)]).chain(rest);
        let load = (LoadId(id), table);
        let state = loads::receive(handle, background, slots, load, pieces).await.map_err(status_of)?;
        Ok(self.load_reply(&state))
    }

    async fn end_load(
        &self,
        request: Request<v1::EndLoadRequest>,
    ) -> Result<Response<v1::LoadReply>, Status> {
        let request = request.into_inner();
        let handle = self.context.partition(request.partition).map_err(status_of)?;
        let background = self.context.background(handle.shared.id).map_err(status_of)?;
        let end = match request.end() {
            v1::end_load_request::End::Keep => loads::End::Keep,
            v1::end_load_request::End::Commit => loads::End::Commit,
            v1::end_load_request::End::Abort => loads::End::Abort,
        };
        let state = loads::end(handle, background, LoadId(request.id), end).await.map_err(status_of)?;
        Ok(self.load_reply(&state))
    }

    async fn status(
        &self,
        _request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusReply>, Status> {
        Ok(Response::new(v1::StatusReply { json: status::json(&self.context) }))
    }
}
