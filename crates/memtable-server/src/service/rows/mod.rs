//! Rows: memtable reads, writes, pages of scans, sessions. What may be answered is decided in [`crate::reading`] and by the
//! partition's worker; here requests are validated and taken apart, answers put together, and both bounded in bytes.

mod answers;
mod pages;
mod reads;
mod requests;
mod writes;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use sextant_common::error::{Error, ErrorKind};
use sextant_common::limits;
use sextant_environment::env::status_of;
use sextant_environment::freight::Freight;
use sextant_environment::room::Share;
use sextant_proto::v1;
use sextant_proto::v1::rows_server::Rows;
use tokio::sync::oneshot;
use tonic::{Request, Response, Status, Streaming};

use super::Context;
use crate::replica::Event;

pub(crate) use requests::write_from_wire;

/// Bytes of large answers (values, pages of scans) that may be in memory at a time, until their p-nodes have taken them: eight of
/// the largest values.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Changes of manifests that one answer carries: more than minutes of them. Whoever lacks more asks for what it needs.
const CHANGES_BYTES_MAX: usize = 256 * 1024;
/// How long an answer waits for that room: shorter than anybody waits for an answer.
const ANSWER_PATIENCE: Duration = Duration::from_millis(500);
/// A session is opened within this time, or the client asks again.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[derive(Clone)]
pub struct RowsShell {
    pub context: Arc<Context>,
}

impl RowsShell {
    /// Whoever finds none in time asks again.
    async fn room_for_answer(&self, bytes: usize) -> Result<Option<Share>, Error> {
        if bytes <= limits::LARGE_BYTES {
            return Ok(None);
        }
        let share = tokio::time::timeout(ANSWER_PATIENCE, self.context.answers.take(bytes)).await;
        let why = "too many bytes of answers wait to be taken: ask again later";
        share.map(Some).map_err(|_| Error::new(ErrorKind::Overloaded, why))
    }
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
        Ok(Response::new(self.clone().write_all(request.into_inner())))
    }

    async fn write(&self, request: Request<v1::WriteBatch>) -> Result<Response<v1::WriteBatchReply>, Status> {
        self.write_one(request.into_inner()).await.map(Response::new)
    }

    async fn scan_page(
        &self,
        request: Request<v1::ScanPageRequest>,
    ) -> Result<Response<v1::ScanPageReply>, Status> {
        let (page, bytes) = self.page(request.into_inner());
        let room = self.room_for_answer(bytes).await.map_err(status_of)?;
        Ok(laden((page, room)))
    }

    async fn open_session(
        &self,
        request: Request<v1::OpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionReply>, Status> {
        let request = request.into_inner();
        let handle = self.context.partition(request.partition).map_err(status_of)?;
        if request.session == 0 {
            return Err(status_of(Error::invalid("session 0 is no session")));
        }
        let (done, opened) = oneshot::channel();
        let _ = handle.events.send(Event::OpenSession { session: request.session, done });
        let answer = tokio::time::timeout(SESSION_TIMEOUT, opened).await;
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
