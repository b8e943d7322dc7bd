//! Appends from the wire, one by one and as a stream that speaks for one partition.

use sextant_proto::v1;
use tokio_stream::StreamExt;
use tonic::{Status, Streaming};

use super::{Answers, RaftShell, status_of_refusal};
use crate::raft::acceptor::Sent;
use crate::raft::wire;

pub(super) fn sent(message: v1::AppendEntriesRequest) -> Sent {
    Sent {
        incarnation: message.to_incarnation,
        asked_ns: message.abstention_ns,
        acknowledged: message.acknowledged,
        request: wire::append_from_wire(message),
    }
}

impl RaftShell {
    pub(super) async fn append(
        &self,
        message: v1::AppendEntriesRequest,
    ) -> Result<v1::AppendEntriesResponse, Status> {
        let acceptor = self.acceptor(message.partition, message.to, &message.cluster)?;
        let reply = acceptor.append(sent(message)).await.map_err(status_of_refusal)?;
        Ok(wire::append_reply_to_wire(reply))
    }

    pub(super) async fn append_all(
        &self,
        mut messages: Streaming<v1::AppendEntriesRequest>,
    ) -> Result<Answers<v1::AppendEntriesResponse>, Status> {
        let Some(first) = messages.next().await else { return Ok(Box::pin(tokio_stream::empty())) };
        let first = first?;
        let acceptor = self.acceptor(first.partition, first.to, &first.cluster)?;
        let (partition, to, cluster) = (first.partition, first.to, first.cluster.clone());
        let incarnation = first.to_incarnation;
        // A message that does not fit ends the stream.
        let rest = messages.map_while(move |message| {
            let message = message.ok()?;
            let fits = message.partition == partition
                && message.to == to
                && message.cluster == cluster
                && message.to_incarnation == incarnation;
            fits.then(|| sent(message))
        });
        let replies = acceptor.append_all(sent(first), rest).map_err(status_of_refusal)?;
        Ok(Box::pin(replies.map(|reply| match reply {
            Ok(result) => Ok(wire::stream_result_to_wire(result)),
            Err(refusal) => Err(status_of_refusal(refusal)),
        })))
    }
}
