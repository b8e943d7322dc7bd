//! Heartbeats that travel together.

use bytes::Bytes;
use sextant_proto::v1;
use tonic::Status;

use super::{INCARNATION_HEADER, incarnation_of_refusal};

/// To node `to`; all of these say the same of the cluster.
pub fn heartbeats_to_wire(to: u64, mut heartbeats: Vec<v1::AppendEntriesRequest>) -> v1::HeartbeatsRequest {
    let cluster = heartbeats.first_mut().map(|first| std::mem::take(&mut first.cluster)).unwrap_or_default();
    for heartbeat in &mut heartbeats {
        (heartbeat.to, heartbeat.cluster) = (0, Bytes::new());
    }
    v1::HeartbeatsRequest { to, cluster, heartbeats }
}

pub fn answer_to_wire(at: usize, answer: Result<v1::AppendEntriesResponse, Status>) -> v1::HeartbeatAnswer {
    let at = at as u32;
    match answer {
        Ok(reply) => v1::HeartbeatAnswer { at, reply: Some(reply), ..Default::default() },
        Err(status) => v1::HeartbeatAnswer {
            at,
            refusal: status.message().to_owned(),
            incarnation: incarnation_of_refusal(&status).unwrap_or_default(),
            ..Default::default()
        },
    }
}

pub fn answer_from_wire(answer: v1::HeartbeatAnswer) -> (usize, Result<v1::AppendEntriesResponse, Status>) {
    let v1::HeartbeatAnswer { at, reply, refusal, incarnation } = answer;
    let refused = || {
        let mut status = Status::unavailable(refusal);
        if incarnation != 0
            && let Ok(value) = format!("{incarnation:016x}").parse()
        {
            status.metadata_mut().insert(INCARNATION_HEADER, value);
        }
        status
    };
    (at as usize, reply.ok_or_else(refused))
}

#[cfg(test)]
mod tests {
    use super::super::other_incarnation;
    use super::*;

    #[test]
    fn what_all_say_alike_is_said_once() {
        let heartbeat = |partition| v1::AppendEntriesRequest {
            partition,
            from: 1,
            to: 2,
            cluster: Bytes::from_static(b"c/1"),
            to_incarnation: 9,
            ..Default::default()
        };
        let request = heartbeats_to_wire(2, vec![heartbeat(4), heartbeat(7)]);
        assert_eq!((request.to, &request.cluster[..]), (2, &b"c/1"[..]));
        let said = request.heartbeats.iter().map(|h| (h.partition, h.from, h.to, h.cluster.len()));
        assert_eq!(said.collect::<Vec<_>>(), [(4, 1, 0, 0), (7, 1, 0, 0)]);
        assert!(request.heartbeats.iter().all(|h| h.to_incarnation == 9));
    }

    #[test]
    fn an_answer_says_what_a_call_of_its_own_would_have() {
        let reply = v1::AppendEntriesResponse { outcome: 2, ..Default::default() };
        let (at, answer) = answer_from_wire(answer_to_wire(5, Ok(reply.clone())));
        assert_eq!((at, answer.unwrap()), (5, reply));
        let (_, answer) = answer_from_wire(answer_to_wire(0, Err(other_incarnation(3, 0xabc))));
        assert_eq!(incarnation_of_refusal(&answer.unwrap_err()), Some(0xabc));
        let (_, answer) = answer_from_wire(answer_to_wire(0, Err(Status::unavailable("starting"))));
        let refused = answer.unwrap_err();
        assert_eq!((refused.message(), incarnation_of_refusal(&refused)), ("starting", None));
    }
}
