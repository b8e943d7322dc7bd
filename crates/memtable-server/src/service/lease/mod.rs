//! Leases: pulls (a long poll that serves all partitions), whole filters, releases. What is granted is decided in [`crate::lease`].

mod filters;
mod news;
mod pull;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use sextant_common::error::Error;
use sextant_environment::env::status_of;
use sextant_proto::v1;
use sextant_proto::v1::lease_server::Lease;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::Context;
use crate::lease::grantor::HolderId;
use crate::replica::{Event, FilterSet};
use filters::chunks;

/// Changes of a manifest that one message carries: all that a history keeps.
const CHANGES_BYTES_MAX: usize = 1 << 20;
/// A worker that does not hand out filters for so long is not serving.
const FILTERS_TIMEOUT: Duration = Duration::from_secs(2);

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[derive(Clone)]
pub struct LeaseShell {
    pub context: Arc<Context>,
}

fn holder_id(bytes: &[u8]) -> Result<HolderId, Status> {
    bytes.try_into().map_err(|_| status_of(Error::invalid("a holder's id has 16 bytes")))
}

#[tonic::async_trait]
impl Lease for LeaseShell {
    type PullStream = Replies<v1::PullReply>;
    type FetchFiltersStream = Replies<v1::FilterChunk>;

    async fn pull(
        &self,
        request: Request<Streaming<v1::PullRequest>>,
    ) -> Result<Response<Self::PullStream>, Status> {
        let this = self.clone();
        let mut shutdown = self.context.shutdown.clone();
        let mut requests = request.into_inner();
        let (out, replies) = mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let message = tokio::select! {
                    message = requests.next() => message,
                    () = shutdown.wait() => return,
                    () = out.closed() => return,
                };
                let Some(Ok(message)) = message else { return };
                // A holder that is gone is granted nothing more.
                let answer = tokio::select! {
                    answer = this.answer(message) => answer,
                    () = out.closed() => return,
                };
                let failed = answer.is_err();
                if out.send(answer).await.is_err() || failed {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(replies))))
    }

    async fn fetch_filters(
        &self,
        request: Request<v1::FetchFiltersRequest>,
    ) -> Result<Response<Self::FetchFiltersStream>, Status> {
        let request = request.into_inner();
        holder_id(&request.holder)?;
        let handle = self.context.partition(request.partition).map_err(status_of)?;
        let set = match request.only_manifest {
            true => handle
                .shared
                .desk
                .manifest()
                // (Asked after it was read: a leader that was cut off does not say what tables there are.)
                .filter(|(epoch, _)| handle.shared.serving() == Some(epoch.term))
                .map(|(epoch, manifest)| FilterSet::without_filters(epoch, manifest)),
            false => {
                let (done, filters) = oneshot::channel();
                let _ = handle.events.send(Event::Filters(done));
                tokio::time::timeout(FILTERS_TIMEOUT, filters).await.ok().and_then(Result::ok).flatten()
            }
        };
        let Some(set) = set else {
            let header = v1::FilterHeader {
                status: v1::PartitionStatus::PartitionNotReady.into(),
                leader: Some(handle.shared.leader().into()),
                ..Default::default()
            };
            let chunk = v1::FilterChunk { header: Some(header), data: Bytes::new() };
            return Ok(Response::new(Box::pin(tokio_stream::once(Ok(chunk)))));
        };
        if !request.only_manifest {
            self.context.metrics.whole_filters.inc();
        }
        let (chunks, is_whole) = chunks(set, &request);
        self.context.metrics.whole_manifests.inc_by(u64::from(is_whole));
        Ok(Response::new(Box::pin(tokio_stream::iter(chunks))))
    }

    async fn release(
        &self,
        request: Request<v1::ReleaseRequest>,
    ) -> Result<Response<v1::ReleaseReply>, Status> {
        let holder = holder_id(&request.into_inner().holder)?;
        for handle in self.context.partitions.values() {
            handle.shared.desk.release(holder);
            let _ = handle.events.send(Event::Acknowledged);
        }
        Ok(Response::new(v1::ReleaseReply {}))
    }
}
