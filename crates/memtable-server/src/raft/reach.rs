//! Which terms and indexes of others a node believes.
//!
//! What Raft takes over of a message it writes down, and counts on from there: a single vote of term 2^64 - 1 would leave no
//! term for any later election. So a message or an answer that is farther ahead than any honest node can be is refused before
//! openraft sees it. The bounds are far beyond what a cluster reaches in its life, so that no partition, however long, and no
//! empty server that joins an old cluster ever meets them.

use openraft::async_runtime::WatchReceiver;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};
use sextant_common::error::{Error, Result};
use sextant_raft_log::{LogId, TypeConfig, Vote};

/// A term is an attempt at an election, which waits for a round of votes and their fsyncs, and 30 ms at the least: this many
/// take four years in which nothing else is done.
const TERMS_AHEAD_MAX: u64 = 1 << 32;
/// Entries of one partition: a million in each second for 142 years.
const ENTRIES_AHEAD_MAX: u64 = 1 << 52;
/// Wherever a node stands itself: from here on there is room to count for ever.
const NUMBER_MAX: u64 = 1 << 62;

/// Where a node stands: what is too far from there is not believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    pub term: u64,
    /// Of its last entry.
    pub index: u64,
    /// Which one it is; 0: the sender of a question, who judges its answer.
    pub node: u64,
}

impl Reach {
    pub fn of(raft: &super::Raft) -> Self {
        let metrics = raft.metrics();
        let metrics = metrics.borrow_watched();
        Self { term: metrics.current_term, index: metrics.last_log_index.unwrap_or(0), node: metrics.id }
    }

    /// The vote under which somebody else asks: in its own, openraft would take this node for a leader that it never was.
    pub fn check_asker(&self, vote: &Vote) -> Result<()> {
        if vote.leader_id.voted_for == self.node {
            return Err(Error::invalid("another node asks under this node's own vote"));
        }
        self.check_vote(vote)
    }

    pub fn check_vote(&self, vote: &Vote) -> Result<()> {
        within(vote.leader_id.term, self.term, TERMS_AHEAD_MAX, "term")
    }

    /// A position that somebody names whose vote is of `term`: nobody has entries of a later term than his own.
    pub fn check_log_id(&self, id: Option<&LogId>, term: u64) -> Result<()> {
        let Some(id) = id else { return Ok(()) };
        if id.leader_id.term > term {
            return Err(Error::invalid(format!(
                "an entry of term {} named by a node of term {term}",
                id.leader_id.term
            )));
        }
        within(id.index, self.index, ENTRIES_AHEAD_MAX, "index")
    }

    pub fn check_vote_request(&self, request: &VoteRequest<TypeConfig>) -> Result<()> {
        self.check_asker(&request.vote)?;
        self.check_log_id(request.last_log_id.as_ref(), request.vote.leader_id.term)
    }

    pub fn check_vote_reply(&self, reply: &VoteResponse<TypeConfig>) -> Result<()> {
        self.check_vote(&reply.vote)?;
        self.check_log_id(reply.last_log_id.as_ref(), reply.vote.leader_id.term)
    }

    pub fn check_append(&self, request: &AppendEntriesRequest<TypeConfig>) -> Result<()> {
        self.check_asker(&request.vote)?;
        let term = request.vote.leader_id.term;
        // Entries follow each other without a hole, and their terms never fall.
        let last = request.entries.last().map(|entry| &entry.log_id);
        for id in [request.prev_log_id.as_ref(), last, request.leader_commit.as_ref()] {
            self.check_log_id(id, term)?;
        }
        // Openraft takes the smaller of the two for committed, by term first: it could be one that nobody has.
        let last = last.or(request.prev_log_id.as_ref());
        if let (Some(last), Some(commit)) = (last, request.leader_commit.as_ref())
            && !can_be_of_one_log(last, commit)
        {
            return Err(Error::invalid(format!("{commit} is committed in a log that has {last}")));
        }
        Ok(())
    }

    pub fn check_append_reply(&self, reply: &AppendEntriesResponse<TypeConfig>) -> Result<()> {
        match reply {
            AppendEntriesResponse::HigherVote(vote) => self.check_vote(vote),
            AppendEntriesResponse::PartialSuccess(matching) => {
                self.check_log_id(matching.as_ref(), self.term)
            }
            AppendEntriesResponse::Success | AppendEntriesResponse::Conflict => Ok(()),
        }
    }
}

/// How many entries a leader says that a node has acknowledged, whose log has `own`.
pub fn check_acknowledged(acknowledged: u64, own: u64) -> Result<()> {
    within(acknowledged, own, ENTRIES_AHEAD_MAX, "acknowledged")
}

/// In a log, terms never fall.
fn can_be_of_one_log(one: &LogId, other: &LogId) -> bool {
    let terms = one.leader_id.term.cmp(&other.leader_id.term);
    terms.is_eq() || terms == one.index.cmp(&other.index)
}

fn within(number: u64, own: u64, ahead_max: u64, what: &str) -> Result<()> {
    let most = own.saturating_add(ahead_max).min(NUMBER_MAX);
    if number <= most {
        return Ok(());
    }
    Err(Error::invalid(format!("a Raft message of {what} {number}, which no cluster reaches from {own}")))
}

#[cfg(test)]
mod tests {
    use sextant_raft_log::log_id;

    use super::*;

    fn append(
        term: u64,
        prev_log_id: Option<LogId>,
        leader_commit: Option<LogId>,
    ) -> AppendEntriesRequest<TypeConfig> {
        AppendEntriesRequest {
            vote: Vote::new_committed(term, 2),
            prev_log_id,
            entries: Vec::new(),
            leader_commit,
        }
    }

    const HERE: Reach = Reach { term: 7, index: 1000, node: 1 };

    #[test]
    fn what_an_honest_cluster_can_reach_is_believed_wherever_one_stands_oneself() {
        let empty = Reach::default();
        // An empty server hears of an old cluster; a server comes back that was cut off for years.
        empty.check_vote(&Vote::new(1 << 31, 2)).unwrap();
        empty.check_log_id(Some(&log_id(9, 1 << 50)), 9).unwrap();
        HERE.check_vote(&Vote::new(HERE.term + TERMS_AHEAD_MAX, 2)).unwrap();
        HERE.check_log_id(Some(&log_id(7, HERE.index + ENTRIES_AHEAD_MAX)), 7).unwrap();
        HERE.check_log_id(None, 7).unwrap();
        // Whoever is ahead hears of those that are behind.
        HERE.check_vote(&Vote::new(0, 2)).unwrap();
        HERE.check_log_id(Some(&log_id(1, 0)), 7).unwrap();
    }

    #[test]
    fn numbers_that_leave_no_room_are_refused_whatever_they_come_in() {
        let near_end = Reach { term: NUMBER_MAX - 1, index: NUMBER_MAX - 1, node: 1 };
        for at in [HERE, near_end, Reach { term: u64::MAX, index: u64::MAX, node: 1 }] {
            for number in [u64::MAX, u64::MAX - 1, NUMBER_MAX + 1] {
                let vote = Vote::new(number, 2);
                let far = Some(log_id(7, number));
                assert!(at.check_vote_request(&VoteRequest::new(vote, None)).is_err());
                assert!(at.check_vote_request(&VoteRequest::new(Vote::new(8, 2), far)).is_err());
                assert!(at.check_vote_reply(&VoteResponse::new(vote, None, false)).is_err());
                assert!(at.check_vote_reply(&VoteResponse::new(Vote::new(8, 2), far, false)).is_err());
                assert!(at.check_append_reply(&AppendEntriesResponse::HigherVote(vote)).is_err());
                assert!(at.check_append_reply(&AppendEntriesResponse::PartialSuccess(far)).is_err());
                assert!(at.check_append(&append(number, None, None)).is_err());
                assert!(at.check_append(&append(8, far, None)).is_err());
                assert!(at.check_append(&append(8, None, far)).is_err());
            }
        }
        let jump = Vote::new(HERE.term + TERMS_AHEAD_MAX + 1, 2);
        assert!(HERE.check_vote(&jump).unwrap_err().message.contains("no cluster reaches"));
    }

    #[test]
    fn nobody_asks_under_this_nodes_own_vote() {
        let mut own = append(8, None, None);
        own.vote = Vote::new_committed(8, 1);
        let error = HERE.check_append(&own).unwrap_err();
        assert!(error.message.contains("own vote"), "{error}");
        assert!(HERE.check_vote_request(&VoteRequest::new(Vote::new(8, 1), None)).is_err());
        HERE.check_vote_reply(&VoteResponse::new(Vote::new(8, 1), None, true)).unwrap();
    }

    #[test]
    fn what_is_committed_can_be_of_the_log_that_is_sent() {
        let at = |term, index| Some(log_id(term, index));
        for commit in [None, at(3, 5), at(3, 9), at(2, 4), at(4, 6), at(7, 1000)] {
            HERE.check_append(&append(7, at(3, 5), commit)).unwrap();
        }
        // Openraft would have taken entry 50 for committed, which the follower does not have.
        for commit in [at(2, 50), at(2, 5), at(4, 5), at(4, 1)] {
            let error = HERE.check_append(&append(7, at(3, 5), commit)).unwrap_err();
            assert!(error.message.contains("committed"), "{error}");
        }
    }

    #[test]
    fn nobody_has_entries_of_a_later_term_than_his_own() {
        let error = HERE.check_log_id(Some(&log_id(9, 5)), 8).unwrap_err();
        assert!(error.message.contains("term 9"), "{error}");
        HERE.check_log_id(Some(&log_id(8, 5)), 8).unwrap();
    }
}
