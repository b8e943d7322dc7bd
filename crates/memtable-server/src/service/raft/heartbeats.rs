//! Heartbeats of many partitions from the wire.

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use sextant_proto::v1;
use tonic::Status;

use super::appends::sent;
use super::{Answers, RaftShell, status_of_refusal};
use crate::raft::wire;

impl RaftShell {
    /// What is answered at once goes in the first message.
    pub(super) fn hear_all(&self, request: v1::HeartbeatsRequest) -> Answers<v1::HeartbeatsReply> {
        let v1::HeartbeatsRequest { to, cluster, heartbeats } = request;
        let heard: FuturesUnordered<_> = heartbeats
            .into_iter()
            .enumerate()
            .map(|(at, heartbeat)| {
                let acceptor = self.acceptor(heartbeat.partition, to, &cluster).cloned();
                async move {
                    let answer = match acceptor {
                        Ok(acceptor) => acceptor.append(sent(heartbeat)).await.map_err(status_of_refusal),
                        Err(status) => Err(status),
                    };
                    wire::answer_to_wire(at, answer.map(wire::append_reply_to_wire))
                }
            })
            .collect();
        let all = heard.len().max(1);
        Box::pin(heard.ready_chunks(all).map(|answers| Ok::<_, Status>(v1::HeartbeatsReply { answers })))
    }
}
