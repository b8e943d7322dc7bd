//! Pulls over a stream.

use std::time::Duration;

use sextant_common::{Error, Result};
use sextant_environment::env::error_of;
use sextant_proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{Pull, PullReply, reply, request};
use crate::upstream::Leases;

/// A stream with one pull outstanding.
pub(in crate::filter_copies) struct PullStream {
    requests: mpsc::Sender<v1::PullRequest>,
    replies: Streaming<v1::PullReply>,
}

impl PullStream {
    /// Opens a stream with its first pull, which need not wait for the server's headers.
    pub async fn open(leases: &mut Leases, first: Pull) -> Result<Self> {
        let (requests, outbound) = mpsc::channel(1);
        let _ = requests.try_send(request(first));
        let replies = leases.pull(ReceiverStream::new(outbound)).await.map_err(error_of)?.into_inner();
        Ok(Self { requests, replies })
    }

    pub async fn send(&self, pull: Pull) -> Result<()> {
        self.requests.send(request(pull)).await.map_err(|_| Error::unavailable("the stream is closed"))
    }

    pub async fn next(&mut self) -> Result<PullReply> {
        let message = self.replies.message().await.map_err(error_of)?;
        message.map(reply).ok_or_else(|| Error::unavailable("the server closed the stream"))
    }
}

/// One pull on a stream of its own.
pub(in crate::filter_copies) async fn pull_once(
    leases: &mut Leases,
    pull: Pull,
    limit: Duration,
) -> Result<PullReply> {
    let answered = async { PullStream::open(leases, pull).await?.next().await };
    tokio::time::timeout(limit, answered)
        .await
        .unwrap_or_else(|_| Err(Error::unavailable("no reply to a pull in time")))
}
