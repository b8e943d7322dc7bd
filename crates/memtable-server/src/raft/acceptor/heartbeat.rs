//! Heartbeats, answered without waiting for the disk.
//!
//! Raft answers an append when everything that it has accepted is durable, an append without entries too: so behind a large entry
//! and a slow disk a leader would hear of nobody. But an answer to a heartbeat says less: that this node follows the leader, and
//! has the log up to the entry that the heartbeat names. As far as that is durable already, it is said at once; otherwise Raft
//! answers.
//!
//! Why nothing is promised twice: the guard is bound *before* the vote is looked at, and a vote for somebody else is in the log's
//! state *before* the guard is looked at a last time. Whichever is first, the other one sees it. Raft gets the heartbeat all the
//! same, if it says something new: what is committed, or, now and then, that the leader lives.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use openraft::raft::AppendEntriesRequest;
use sextant_raft_log::{LogId, RaftLog, TypeConfig, Vote};

use crate::raft::Raft;
use crate::replica::ReplicaState;

/// What Raft knows to be durable: everything up to the entry that this leader sent.
type Flushed = openraft::raft::FlushPoint<TypeConfig>;

/// Whether the answer to an append is known: it has no entries, its leader is the one that this node follows (`current`: its newest
/// vote, durable or not), and what it names is durable, as is that vote.
fn is_known(
    request: &AppendEntriesRequest<TypeConfig>,
    current: Option<Vote>,
    flushed: Option<&Flushed>,
) -> bool {
    let index = |id: Option<&LogId>| id.map(|id| id.index);
    request.entries.is_empty()
        && request.vote.committed
        && current == Some(request.vote)
        && flushed.is_some_and(|flushed| {
            flushed.vote == request.vote
                && index(request.prev_log_id.as_ref()) <= index(flushed.last_log_id.as_ref())
        })
}

/// `disk_stall_ms`: as in the tuning. A server whose log's device hangs is not to be taken for one that can follow: Raft answers
/// when the device does. To be asked after the guard was bound. If it is true, the request matches up to what it names, and Raft is handed it, or the next one.
pub fn answered(
    shared: &Arc<ReplicaState>,
    raft: &Raft,
    log: &RaftLog,
    disk_stall_ms: u64,
    request: &AppendEntriesRequest<TypeConfig>,
) -> bool {
    let hangs = disk_stall_ms > 0 && log.stalled_ns() > disk_stall_ms * 500_000;
    if !request.entries.is_empty() || hangs || shared.raft_refuses.load(Ordering::Acquire) {
        return false;
    }
    let flushed = raft.watch_log_progress().get();
    if !is_known(request, log.partition(shared.id).vote(), flushed.as_ref()) {
        return false;
    }
    let commit = request.leader_commit.as_ref().map_or(0, |id| id.index + 1);
    let now_ns = shared.env.clock.grantor_ns();
    if !shared.told.is_news(commit, now_ns) {
        return true;
    }
    // One at a time is enough to tell Raft that the leader lives, and what is committed: the newest, for there may be no other.
    if let Some(mut request) = shared.hearing.lock().begin(request.clone()) {
        let (shared, raft) = (shared.clone(), raft.clone());
        tokio::spawn(async move {
            loop {
                let commit = request.leader_commit.as_ref().map_or(0, |id| id.index + 1);
                shared.told.note(commit, shared.env.clock.grantor_ns());
                if raft.append_entries(request).await.is_err() {
                    // It has stopped: nobody is to believe that this node follows.
                    shared.raft_refuses.store(true, Ordering::Release);
                }
                let Some(next) = shared.hearing.lock().ended() else { return };
                request = next;
            }
        });
    }
    true
}

#[cfg(test)]
mod tests {
    use sextant_raft_log::log_id;

    use super::*;

    const LEADER: u64 = 1;

    fn heartbeat(term: u64, prev: Option<LogId>) -> AppendEntriesRequest<TypeConfig> {
        let vote = Vote::new_committed(term, LEADER);
        AppendEntriesRequest { vote, prev_log_id: prev, entries: Vec::new(), leader_commit: None }
    }

    #[test]
    fn only_what_is_durable_under_the_leader_that_is_followed_is_answered_at_once() {
        let vote = Vote::new_committed(3, LEADER);
        let flushed = |vote, at: Option<LogId>| Flushed { vote, last_log_id: at };
        let durable = flushed(vote, Some(log_id(3, 7)));
        let known =
            |prev, current, flushed: &Flushed| is_known(&heartbeat(3, prev), Some(current), Some(flushed));
        assert!(known(Some(log_id(3, 7)), vote, &durable));
        assert!(known(Some(log_id(2, 5)), vote, &durable), "an earlier entry of the leader's log");
        assert!(known(None, vote, &durable));
        assert!(!known(Some(log_id(3, 8)), vote, &durable), "accepted, and not durable yet");
        assert!(!known(Some(log_id(3, 7)), Vote::new(4, 2), &durable), "it has voted for another since");
        assert!(!known(Some(log_id(3, 7)), Vote::new(3, LEADER), &durable), "a candidate is no leader");
        let before = flushed(Vote::new_committed(2, 2), Some(log_id(2, 9)));
        assert!(!known(Some(log_id(2, 5)), vote, &before), "durable under another leader");
        assert!(!known(Some(log_id(2, 5)), vote, &flushed(vote, None)), "only the vote is durable");
        assert!(!is_known(&heartbeat(3, None), None, Some(&durable)));
        assert!(!is_known(&heartbeat(3, None), Some(vote), None));
    }
}
