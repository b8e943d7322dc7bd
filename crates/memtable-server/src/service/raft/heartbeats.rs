//! Heartbeats of many partitions from the wire.

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use sextant_common::error::Error;
use sextant_environment::env::status_of;
use sextant_proto::v1;
use tonic::Status;

use super::appends::sent;
use super::{Answers, RaftShell, status_of_refusal};
use crate::raft::acceptor::check_server;
use crate::raft::wire;

/// Those of one partition that may come together: a leader sends one after the other.
const HEARTBEATS_A_PARTITION: usize = 4;

impl RaftShell {
    /// What is answered at once goes in the first message.
    pub(super) fn hear_all(
        &self,
        request: v1::HeartbeatsRequest,
    ) -> Result<Answers<v1::HeartbeatsReply>, Status> {
        let v1::HeartbeatsRequest { to, cluster, heartbeats } = request;
        check_server((self.context.node, &self.cluster), to, &cluster).map_err(status_of)?;
        if heartbeats.len() > HEARTBEATS_A_PARTITION * self.context.acceptors.len() {
            return Err(status_of(Error::invalid("more heartbeats than so few partitions can have")));
        }
        if heartbeats.iter().any(|heartbeat| !heartbeat.entries.is_empty()) {
            return Err(status_of(Error::invalid("a heartbeat with entries")));
        }
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
        Ok(Box::pin(heard.ready_chunks(all).map(|answers| Ok(v1::HeartbeatsReply { answers }))))
    }
}
