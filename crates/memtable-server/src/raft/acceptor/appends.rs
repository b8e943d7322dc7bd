//! Appends, one by one and as a stream.
//!
//! In this order, for each: is it for this server as it is; is it one that an honest leader can send; does this server still have what
//! it acknowledged; is there room. Then the guard is bound, *before* Raft takes the append (it may be accepted long before it is
//! durable and answered), and once more when it was accepted.

use std::sync::Arc;

use futures::Stream;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendError, StreamAppendResult};
use parking_lot::Mutex;
use sextant_common::error::Result;
use sextant_raft_log::{Reservation, TypeConfig};
use tokio_stream::StreamExt;

use super::room::room_for;
use super::underway::Underway;
use super::{Acceptor, Refusal, heartbeat};

/// What a leader sends.
#[derive(Debug)]
pub struct Sent {
    /// Of this server, as the leader means it.
    pub incarnation: u64,
    /// How long this node is asked to abstain.
    pub asked_ns: u64,
    /// How many entries of the log this server has acknowledged to the leader.
    pub acknowledged: u64,
    /// An error: it cannot be read.
    pub request: Result<AppendEntriesRequest<TypeConfig>>,
}

type Replied = Result<StreamAppendResult<TypeConfig>, Refusal>;

impl Acceptor {
    pub async fn append(&self, sent: Sent) -> Result<AppendEntriesResponse<TypeConfig>, Refusal> {
        self.admit_append(&sent)?;
        let asked_ns = sent.asked_ns;
        let request = self.honest(sent)?;
        let underway = Underway::at(&self.raft);
        if let Some(room) = room_for(&self.log, &request)? {
            underway.keep(room);
        }
        self.bind_guard(asked_ns);
        if self.knows_answer(&request) {
            underway.answered();
            return Ok(AppendEntriesResponse::Success);
        }
        let reply = self.raft.append_entries(request).await.map_err(Refusal::of_raft)?;
        underway.answered();
        if !matches!(reply, AppendEntriesResponse::HigherVote(_)) {
            self.bind_guard(asked_ns);
        }
        Ok(reply)
    }

    /// A stream of appends, and that of their answers, which ends with a refusal if a message is not taken. What comes after the
    /// first message is for the same incarnation.
    pub fn append_all(
        &self,
        first: Sent,
        rest: impl Stream<Item = Sent> + Send + 'static,
    ) -> Result<impl Stream<Item = Replied> + Send + 'static, Refusal> {
        self.admit_append(&first)?;
        let at_once = self.heard(&first)?;
        let first = if at_once.is_some() { None } else { Some(first) };
        let refused: Arc<Mutex<Option<Refusal>>> = Arc::default();
        // For each message that is not answered yet, in order: its room, and the abstention that it asks for.
        let pending: Arc<Underway<(Option<Reservation>, u64)>> = Arc::new(Underway::at(&self.raft));
        let (this, refusal, taken) = (self.clone(), refused.clone(), pending.clone());
        let appends = tokio_stream::iter(first).chain(rest).map_while(move |sent| {
            let asked_ns = sent.asked_ns;
            let admitted =
                this.honest(sent).and_then(|request| Ok((room_for(&this.log, &request)?, request)));
            match admitted {
                Ok((room, request)) => {
                    taken.keep((room, asked_ns));
                    this.bind_guard(asked_ns);
                    Some(request)
                }
                Err(refused) => {
                    *refusal.lock() = Some(refused);
                    None
                }
            }
        });
        let this = self.clone();
        let replies = self.raft.stream_append(appends).map(move |result| {
            // Appended, or never to be: the room is given back.
            let asked_ns = pending.answered().map_or(0, |(_, asked_ns)| asked_ns);
            let result = result.map_err(Refusal::of_raft)?;
            if !matches!(result, Err(StreamAppendError::HigherVote(_))) {
                this.bind_guard(asked_ns);
            }
            Ok(result)
        });
        // As an error it makes the leader wait before it tries again.
        let refusal = futures::stream::once(async move { refused.lock().take() }).filter_map(|r| r.map(Err));
        Ok(tokio_stream::iter(at_once).chain(replies.chain(refusal)))
    }

    /// What was sent, if an honest leader can send it, and this server still has what it acknowledged.
    fn honest(&self, sent: Sent) -> Result<AppendEntriesRequest<TypeConfig>, Refusal> {
        let request = sent.request?;
        self.reach().check_append(&request)?;
        self.check_memory(request.vote.leader_id.term, sent.acknowledged)?;
        self.note_commit(&request);
        Ok(request)
    }

    /// What a leader says to be committed, for this server's readiness: not what one says that was. (Before Raft knows of the leader:
    /// otherwise there would be one, and nobody would have said anything.)
    fn note_commit(&self, request: &AppendEntriesRequest<TypeConfig>) {
        let catch_up = &self.shared.catch_up;
        if !catch_up.is_reached() && self.log.partition(self.shared.id).vote() <= Some(request.vote) {
            catch_up.heard(request.leader_commit.as_ref().map(|id| id.index));
        }
    }

    /// The answer to the first message of a stream, if it is a heartbeat whose answer is known.
    fn heard(&self, first: &Sent) -> Result<Option<Replied>, Refusal> {
        let Ok(request) = &first.request else { return Ok(None) };
        if !request.entries.is_empty() {
            return Ok(None);
        }
        self.reach().check_append(request)?;
        self.check_memory(request.vote.leader_id.term, first.acknowledged)?;
        self.note_commit(request);
        self.bind_guard(first.asked_ns);
        Ok(self.knows_answer(request).then_some(Ok(Ok(request.prev_log_id))))
    }

    /// To be asked after the guard was bound.
    fn knows_answer(&self, request: &AppendEntriesRequest<TypeConfig>) -> bool {
        heartbeat::answered(&self.shared, &self.raft, &self.log, self.disk_stall_ms, request)
    }
}
