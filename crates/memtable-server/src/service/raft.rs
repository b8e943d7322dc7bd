//! Raft between memtable servers. The vote guard stands here: votes are dropped while a lease may live.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::Stream;
use openraft::EntryPayload;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendError};
use parking_lot::Mutex;
use sextant_common::error::Error;
use sextant_common::ids::PartitionId;
use sextant_environment::config::Server;
use sextant_environment::env::status_of;
use sextant_proto::v1;
use sextant_proto::v1::raft_server::Raft as RaftService;
use sextant_raft_log::{RaftLog, Reservation, TypeConfig, decode_membership};
use sextant_rules::mutant::{self, Mutant};
use sextant_rules::probe::PausePoint;
use tokio_stream::StreamExt;
use tonic::{Request, Response, Status, Streaming};

use super::underway::Underway;
use super::{Context, heartbeat};
use crate::command::Command;
use crate::partition::snapshot::Snapshot;
use crate::raft::convert;
use crate::raft::reach::Reach;
use crate::raft::snapshot_store::{Meta, SnapshotData};
use crate::recover::Memory;
use crate::replica::Handle;

/// What groups of writes leave in a follower's log for elections, freezes and flush flags: entries that make room, or that a
/// new leader cannot do without.
const COMMANDS_ROOM_BYTES: u64 = 1024 * 1024;

/// A sender that is gone without a word is not waited for.
const PIECE_TIMEOUT: Duration = Duration::from_secs(20);
/// Largest snapshot that is taken: it is put together in memory.
const SNAPSHOT_BYTES_MAX: u64 = 4 << 30;

#[derive(Clone)]
pub struct RaftShell {
    pub context: Arc<Context>,
    /// Cluster id and fingerprint, as peers send it.
    pub cluster: Bytes,
}

impl RaftShell {
    /// The partition that a message is for, if the message is for this node of this cluster.
    fn admit(
        &self,
        partition: u32,
        to: u64,
        cluster: &Bytes,
    ) -> Result<(&Handle, &crate::raft::Raft), Status> {
        if *cluster != self.cluster {
            return Err(status_of(Error::invalid(
                "another cluster, or another number of partitions: check [cluster] in the configuration",
            )));
        }
        if to != self.context.node.0 {
            return Err(status_of(Error::invalid(format!("this is node {}, not {to}", self.context.node))));
        }
        let handle = self.context.partition(partition).map_err(status_of)?;
        let raft =
            self.context.rafts.get(&handle.shared.id).ok_or_else(|| Status::unavailable("starting"))?;
        Ok((handle, raft))
    }

    /// The same for messages that mean a member of the group: a certain incarnation of this server.
    fn admit_member(
        &self,
        partition: u32,
        to: u64,
        cluster: &Bytes,
        named: u64,
    ) -> Result<(&Handle, &crate::raft::Raft), Status> {
        let (handle, raft) = self.admit(partition, to, cluster)?;
        let own = handle.shared.incarnation.id();
        if named == own || mutant::active(Mutant::IncarnationNotNamed) {
            return Ok((handle, raft));
        }
        if named != 0 && !self.is_member(handle, raft) {
            self.context.lost_in(handle, named);
        }
        Err(convert::other_incarnation(named, own))
    }

    /// The same for an append, which shows more: the sender leads, and says what it has committed.
    fn admit_append(
        &self,
        message: &v1::AppendEntriesRequest,
    ) -> Result<(&Handle, &crate::raft::Raft), Status> {
        let v1::AppendEntriesRequest { partition, to, cluster, to_incarnation: named, .. } = message;
        self.admit_member(*partition, *to, cluster, *named).or_else(|refusal| {
            let (handle, raft) = self.admit(*partition, *to, cluster)?;
            if *named != 0
                && let Ok(request) = Reach::append_of(raft, message.clone())
            {
                self.context.check_life(handle, raft, *named, request.leader_commit)?;
            }
            Err(refusal)
        })
    }

    /// Whether this server's log says that it belongs to the group as what it is.
    fn is_member(&self, handle: &Handle, raft: &crate::raft::Raft) -> bool {
        let metrics = raft.server_metrics();
        let m = metrics.borrow_watched();
        let named = m.membership_config.membership().get_node(&handle.shared.node).map(|n| n.incarnation);
        named == Some(handle.shared.incarnation.id())
    }

    async fn append(&self, request: v1::AppendEntriesRequest) -> Result<v1::AppendEntriesResponse, Status> {
        let (handle, raft) = self.admit_append(&request)?;
        let asked_ns = request.abstention_ns;
        let acknowledged = request.acknowledged;
        let request = Reach::append_of(raft, request).map_err(status_of)?;
        self.context.check_memory(handle, request.vote.leader_id.term, acknowledged)?;
        let underway = Underway::at(raft);
        if let Some(room) = room_for(&self.context.log, &request)? {
            underway.keep(room);
        }
        // Before it is taken: it may be accepted long before it is durable and answered.
        handle.shared.guard.bind(self.context.env.clock.grantor_ns(), asked_ns);
        if heartbeat::answered(handle, raft, &self.context.log, self.context.disk_stall_ms, &request) {
            underway.answered();
            return Ok(convert::append_reply_to_wire(AppendEntriesResponse::Success));
        }
        let reply = raft.append_entries(request).await.map_err(|e| Status::unavailable(e.to_string()))?;
        underway.answered();
        if !matches!(reply, AppendEntriesResponse::HigherVote(_)) {
            handle.shared.guard.bind(self.context.env.clock.grantor_ns(), asked_ns);
        }
        Ok(convert::append_reply_to_wire(reply))
    }

    /// The answer to the first message of a stream, if it is a heartbeat whose answer is known.
    fn heard(
        &self,
        handle: &Handle,
        raft: &crate::raft::Raft,
        first: &v1::AppendEntriesRequest,
    ) -> Result<Option<Result<v1::AppendEntriesResponse, Status>>, Status> {
        if !first.entries.is_empty() {
            return Ok(None);
        }
        let (asked_ns, acknowledged) = (first.abstention_ns, first.acknowledged);
        let request = Reach::append_of(raft, first.clone()).map_err(status_of)?;
        self.context.check_memory(handle, request.vote.leader_id.term, acknowledged)?;
        handle.shared.guard.bind(self.context.env.clock.grantor_ns(), asked_ns);
        let known =
            heartbeat::answered(handle, raft, &self.context.log, self.context.disk_stall_ms, &request);
        Ok(known.then(|| Ok(convert::stream_result_to_wire(Ok(request.prev_log_id)))))
    }

    /// For a request for this server's vote.
    fn admit_voter(&self, request: &v1::VoteRequest) -> Result<(&Handle, &crate::raft::Raft), Status> {
        self.admit_member(request.partition, request.to, &request.cluster, request.to_incarnation)
    }

    /// Stores a snapshot that a leader sent, before Raft is told: Raft cannot go on after an error of the disk. Refused, the leader
    /// sends it again; until then this server is like one that lags, and votes.
    async fn store(&self, partition: PartitionId, data: &Bytes) -> Result<(), Status> {
        let store = self.context.snapshots.get(&partition).ok_or_else(|| Status::unavailable("starting"))?;
        let stored = store.receive(&Snapshot::decode(data, partition).map_err(status_of)?).await;
        stored.map_err(|e| {
            self.context.metrics.snapshots_refused.inc();
            tracing::error!(%partition, "cannot store the snapshot that the leader sent: {e}");
            status_of(Error::new(e.kind, format!("cannot store the snapshot of partition {partition}: {e}")))
        })
    }

    /// Dropping a vote request is always safe; answering one while a lease may live is not.
    fn guard(&self, handle: &Handle) -> Result<(), Status> {
        if handle.shared.guard.is_open(self.context.env.clock.grantor_ns()) {
            return Ok(());
        }
        self.context.metrics.votes_dropped.inc();
        Err(Status::unavailable("bound by a leader's lease"))
    }
}

/// Room in the log for a message's entries; none if it has none. Raft cannot go on after its log has refused an append, so that
/// entries for which there is no room are refused here. A follower without room is like one that is not heard for a while: it
/// goes on voting, and catches up later.
fn room_for(
    log: &RaftLog,
    request: &AppendEntriesRequest<TypeConfig>,
) -> Result<Option<Reservation>, Status> {
    let (mut bytes, mut spare) = (0, 0);
    for entry in &request.entries {
        if let EntryPayload::Normal(payload) = &entry.payload {
            bytes += payload.0.len() as u64;
            if Command::is_group(&payload.0) {
                spare = COMMANDS_ROOM_BYTES;
            }
        }
    }
    let entries = request.entries.len();
    if entries == 0 { Ok(None) } else { Ok(Some(log.reserve(entries, bytes, spare).map_err(status_of)?)) }
}

async fn in_time<T>(piece: impl Future<Output = T>) -> Result<T, Status> {
    let late = |_| Status::deadline_exceeded("the next piece of a snapshot did not come");
    tokio::time::timeout(PIECE_TIMEOUT, piece).await.map_err(late)
}

/// Puts a snapshot of `bytes` bytes together; no byte more is kept than were announced.
async fn whole_snapshot(
    first: Bytes,
    bytes: u64,
    messages: &mut (impl Stream<Item = Result<v1::InstallSnapshotRequest, Status>> + Unpin),
) -> Result<Bytes, Status> {
    if bytes > SNAPSHOT_BYTES_MAX {
        let text = format!("a snapshot of {bytes} bytes: at most {SNAPSHOT_BYTES_MAX}");
        return Err(Status::resource_exhausted(text));
    }
    if first.len() as u64 == bytes {
        return Ok(first);
    }
    // It grows with what has come: an announcement costs nothing.
    let mut data = BytesMut::from(first);
    while (data.len() as u64) < bytes {
        let piece = in_time(messages.next()).await?;
        let piece = piece.ok_or_else(|| Status::invalid_argument("a snapshot ends early"))??;
        if piece.data.is_empty() {
            return Err(Status::invalid_argument("a snapshot in pieces of nothing"));
        }
        data.extend_from_slice(&piece.data);
    }
    if data.len() as u64 > bytes {
        return Err(Status::invalid_argument("a snapshot that is longer than announced"));
    }
    Ok(data.freeze())
}

#[tonic::async_trait]
impl RaftService for RaftShell {
    type StreamAppendStream = Pin<Box<dyn Stream<Item = Result<v1::AppendEntriesResponse, Status>> + Send>>;

    async fn stream_append(
        &self,
        request: Request<Streaming<v1::AppendEntriesRequest>>,
    ) -> Result<Response<Self::StreamAppendStream>, Status> {
        let mut messages = request.into_inner();
        let Some(first) = messages.next().await else {
            return Ok(Response::new(Box::pin(tokio_stream::empty())));
        };
        let first = first?;
        let (handle, raft) = self.admit_append(&first)?;
        let (handle, raft) = (handle.clone(), raft.clone());
        let (partition, to, cluster) = (first.partition, first.to, first.cluster.clone());
        let incarnation = first.to_incarnation;
        let (context, replica) = (self.context.clone(), handle.clone());
        let at_once = self.heard(&handle, &raft, &first)?;
        let first = if at_once.is_some() { None } else { Some(Ok(first)) };
        // A stream speaks for one partition; a message that does not fit ends it.
        let refused: Arc<Mutex<Option<Status>>> = Arc::default();
        // For each message that is not answered yet, in order: its room, and the abstention that it asks for.
        let pending: Arc<Underway<(Option<Reservation>, u64)>> = Arc::new(Underway::at(&raft));
        let (log, refusal, taken) = (self.context.log.clone(), refused.clone(), pending.clone());
        let (guard, clock) = (handle.shared.guard.clone(), self.context.env.clock.clone());
        let taker = raft.clone();
        let appends = tokio_stream::iter(first).chain(messages).map_while(move |message| {
            let message = message.ok()?;
            let asked_ns = message.abstention_ns;
            let fits = message.partition == partition
                && message.to == to
                && message.cluster == cluster
                && message.to_incarnation == incarnation;
            if !fits {
                return None;
            }
            let acknowledged = message.acknowledged;
            let admitted = Reach::append_of(&taker, message).map_err(status_of).and_then(|request| {
                context.check_memory(&replica, request.vote.leader_id.term, acknowledged)?;
                Ok((room_for(&log, &request)?, request))
            });
            let request = match admitted {
                Ok((room, request)) => {
                    taken.keep((room, asked_ns));
                    request
                }
                Err(status) => {
                    *refusal.lock() = Some(status);
                    return None;
                }
            };
            // Before it is taken: it may be accepted long before it is durable and answered.
            guard.bind(clock.grantor_ns(), asked_ns);
            Some(request)
        });
        let clock = self.context.env.clock.clone();
        let replies = raft.stream_append(appends).map(move |result| {
            // Appended, or never to be: the room is given back.
            let asked_ns = pending.answered().map_or(0, |(_, asked_ns)| asked_ns);
            let result = result.map_err(|e| Status::unavailable(e.to_string()))?;
            if !matches!(result, Err(StreamAppendError::HigherVote(_))) {
                handle.shared.guard.bind(clock.grantor_ns(), asked_ns);
            }
            Ok(convert::stream_result_to_wire(result))
        });
        // As an error it makes the leader wait before it tries again.
        let refusal = futures::stream::once(async move { refused.lock().take() }).filter_map(|r| r.map(Err));
        Ok(Response::new(Box::pin(tokio_stream::iter(at_once).chain(replies.chain(refusal)))))
    }

    async fn append_entries(
        &self,
        request: Request<v1::AppendEntriesRequest>,
    ) -> Result<Response<v1::AppendEntriesResponse>, Status> {
        self.append(request.into_inner()).await.map(Response::new)
    }

    async fn vote(&self, request: Request<v1::VoteRequest>) -> Result<Response<v1::VoteResponse>, Status> {
        let request = request.into_inner();
        let (handle, raft) = self.admit_voter(&request)?;
        self.guard(handle)?;
        self.context.env.pause_point(PausePoint::VoteGuardAsked).await;
        let request = Reach::vote_of(raft, request).map_err(status_of)?;
        let term = request.vote.leader_id.term;
        let reply = raft.vote(request).await.map_err(|e| Status::unavailable(e.to_string()))?;
        // This node's own leadership may have been confirmed meanwhile, or another leader accepted. In this order: whatever was
        // counted for the lease before it was forsworn has closed the guard.
        if reply.vote_granted && !handle.shared.lease.forswear(term, self.context.env.clock.holder_ns()) {
            self.context.metrics.votes_dropped.inc();
            return Err(Status::unavailable("bound by its own lease as a leader"));
        }
        self.guard(handle)?;
        Ok(Response::new(convert::vote_reply_to_wire(&reply)))
    }

    async fn pre_vote(
        &self,
        request: Request<v1::VoteRequest>,
    ) -> Result<Response<v1::VoteResponse>, Status> {
        let request = request.into_inner();
        let (handle, raft) = self.admit_voter(&request)?;
        self.guard(handle)?;
        self.context.env.pause_point(PausePoint::VoteGuardAsked).await;
        let request = Reach::vote_of(raft, request).map_err(status_of)?;
        let reply = raft.pre_vote(request).await.map_err(|e| Status::unavailable(e.to_string()))?;
        Ok(Response::new(convert::vote_reply_to_wire(&reply)))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<v1::InstallSnapshotRequest>>,
    ) -> Result<Response<v1::InstallSnapshotResponse>, Status> {
        let mut messages = request.into_inner();
        let first = in_time(messages.next()).await?.transpose()?;
        let request = first.ok_or_else(|| Status::invalid_argument("a snapshot without a first message"))?;
        let (handle, raft) =
            self.admit_member(request.partition, request.to, &request.cluster, request.to_incarnation)?;
        let asked_ns = request.abstention_ns;
        let vote = convert::leaders_vote_from_wire(request.vote).map_err(status_of)?;
        let meta = Meta {
            last_log_id: request.last_log.map(convert::log_id_from_wire),
            last_membership: decode_membership(&request.membership).map_err(status_of)?,
        };
        let (reach, term) = (Reach::of(raft), vote.leader_id.term);
        reach.check_asker(&vote).map_err(status_of)?;
        for id in [meta.last_log_id.as_ref(), meta.last_membership.log_id().as_ref()] {
            reach.check_log_id(id, term).map_err(status_of)?;
        }
        let data = whole_snapshot(request.data, request.data_bytes, &mut messages).await?;
        convert::check_snapshot(PartitionId(request.partition), &meta, &data).map_err(status_of)?;
        // Before it is taken, as with appends.
        handle.shared.guard.bind(self.context.env.clock.grantor_ns(), asked_ns);
        // An append of nothing: the leader's vote is accepted, and durable, before anything of its term is stored.
        let greeting =
            AppendEntriesRequest { vote, prev_log_id: None, entries: Vec::new(), leader_commit: None };
        let greeted = raft.append_entries(greeting).await.map_err(|e| Status::unavailable(e.to_string()))?;
        if let AppendEntriesResponse::HigherVote(vote) = greeted {
            let vote = Some(convert::vote_to_wire(&vote));
            return Ok(Response::new(v1::InstallSnapshotResponse { vote }));
        }
        self.store(handle.shared.id, &data).await?;
        let snapshot = openraft::Snapshot { meta, snapshot: SnapshotData(data) };
        let reply = raft
            .install_full_snapshot(vote, snapshot)
            .await
            .map_err(|e| Status::unavailable(e.to_string()))?;
        if reply.vote == vote {
            handle.shared.guard.bind(self.context.env.clock.grantor_ns(), asked_ns);
        }
        Ok(Response::new(v1::InstallSnapshotResponse { vote: Some(convert::vote_to_wire(&reply.vote)) }))
    }

    async fn is_founded(
        &self,
        request: Request<v1::IsFoundedRequest>,
    ) -> Result<Response<v1::IsFoundedResponse>, Status> {
        let request = request.into_inner();
        let (handle, raft) = self.admit(request.partition, request.to, &request.cluster)?;
        let founded = raft.is_initialized().await.map_err(|e| Status::unavailable(e.to_string()))?;
        // Whoever is no other server of the configuration cannot be let in, and would stand in the way of those that can.
        let other = |s: &Server| s.id.0 == request.from && s.id != self.context.node;
        if request.let_in != 0 && self.context.cluster.memtable.iter().any(other) {
            let now_ns = self.context.env.clock.holder_ns();
            handle.shared.strangers.asks(request.from, request.let_in, now_ns);
        }
        let incarnation = handle.shared.incarnation.id();
        Ok(Response::new(v1::IsFoundedResponse { founded, incarnation }))
    }

    async fn remembers(
        &self,
        request: Request<v1::RemembersRequest>,
    ) -> Result<Response<v1::RemembersResponse>, Status> {
        let request = request.into_inner();
        let (handle, _) = self.admit(request.partition, request.to, &request.cluster)?;
        let memory = self.context.memories.of(handle.shared.id);
        let Memory { partition, any, term, lost } = memory;
        Ok(Response::new(v1::RemembersResponse { partition, any, term, lost }))
    }

    async fn transfer_leader(
        &self,
        request: Request<v1::TransferLeaderRequest>,
    ) -> Result<Response<v1::TransferLeaderResponse>, Status> {
        let request = request.into_inner();
        let (handle, raft) = self.admit(request.partition, request.to, &request.cluster)?;
        let vote = convert::vote_from_wire(request.from_leader).map_err(status_of)?;
        Reach::of(raft).check_vote(&vote).map_err(status_of)?;
        if self.context.draining.is_triggered() {
            return Ok(Response::new(v1::TransferLeaderResponse { accepted: false }));
        }
        // Only a wish: this node campaigns without jitter, but not before its vote guard is open. So no lease is passed by.
        handle.shared.heir_of.store(vote.leader_id.term, Ordering::Release);
        Ok(Response::new(v1::TransferLeaderResponse { accepted: true }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn put_together(announced: u64, pieces: &[&'static [u8]]) -> Result<Bytes, Status> {
        let first = Bytes::from_static(pieces[0]);
        let rest = pieces[1..].iter().map(|piece| {
            Ok(v1::InstallSnapshotRequest { data: Bytes::from_static(piece), ..Default::default() })
        });
        whole_snapshot(first, announced, &mut tokio_stream::iter(rest)).await
    }

    #[tokio::test]
    async fn a_snapshot_comes_in_any_number_of_pieces_and_not_a_byte_more() {
        assert_eq!(put_together(6, &[b"abc", b"de", b"f"]).await.unwrap(), "abcdef");
        assert_eq!(put_together(6, &[b"", b"abcdef"]).await.unwrap(), "abcdef");
        assert_eq!(put_together(3, &[b"abc"]).await.unwrap(), "abc");
        assert_eq!(put_together(0, &[b""]).await.unwrap(), "");
        for (announced, pieces, why) in [
            (6, &[&b"abc"[..], b"de"][..], "ends early"),
            (6, &[b"abc", b"", b"def"], "pieces of nothing"),
            (4, &[b"abc", b"de"], "longer than announced"),
            (2, &[b"abc"], "longer than announced"),
            (u64::MAX, &[b"abc"], "at most"),
        ] {
            let status = put_together(announced, pieces).await.unwrap_err();
            assert!(status.message().contains(why), "{status:?}");
        }
    }
}
