//! Votes: dropped while a lease may live.
//!
//! The guard is asked before Raft is, and again before a vote leaves: this node's own leadership may have been confirmed meanwhile, or
//! another leader accepted. Between the two the lease is forsworn. In this order: whatever was counted for the lease before that
//! has closed the guard. Dropping a vote is always safe; giving one while a lease may live is not.
//!
//! Invariant: a vote that left this node was given under an open guard, and no lease of its own of an earlier term is alive then.

use sextant_raft_log::TypeConfig;
use sextant_rules::probe::PausePoint;

use super::{Acceptor, Refusal};
use crate::replica::ReplicaState;

type VoteRequest = openraft::raft::VoteRequest<TypeConfig>;
type VoteResponse = openraft::raft::VoteResponse<TypeConfig>;

/// Why a vote did not leave.
#[derive(Debug)]
enum Dropped {
    /// A leader's lease may live.
    Bound,
    /// This node's own lease does.
    OwnLease,
    Refused(Refusal),
}

/// This node's part in an election.
struct Ballot<'s> {
    state: &'s ReplicaState,
}

impl Ballot<'_> {
    fn guard(&self) -> Result<(), Dropped> {
        match self.state.guard.is_open(self.state.env.clock.grantor_ns()) {
            true => Ok(()),
            false => Err(Dropped::Bound),
        }
    }

    /// What leaves this node when it is asked for its vote in `term`. `ask` is Raft's answer: a vote that it grants is written down.
    async fn vote<Asked>(&self, term: u64, ask: impl FnOnce() -> Asked) -> Result<VoteResponse, Dropped>
    where
        Asked: Future<Output = Result<VoteResponse, Refusal>>,
    {
        let reply = self.pre_vote(ask).await?;
        if reply.vote_granted && !self.state.lease.forswear(term, self.state.env.clock.holder_ns()) {
            return Err(Dropped::OwnLease);
        }
        self.guard()?;
        Ok(reply)
    }

    /// The same for a vote that would be given: nothing is promised, so nothing is asked afterwards.
    async fn pre_vote<Asked>(&self, ask: impl FnOnce() -> Asked) -> Result<VoteResponse, Dropped>
    where
        Asked: Future<Output = Result<VoteResponse, Refusal>>,
    {
        self.guard()?;
        self.state.env.pause_point(PausePoint::VoteGuardAsked).await;
        ask().await.map_err(Dropped::Refused)
    }
}

impl Acceptor {
    /// `named`: the incarnation of this server that is asked.
    pub async fn vote(&self, named: u64, request: VoteRequest) -> Result<VoteResponse, Refusal> {
        self.admit_voter(named)?;
        let term = request.vote.leader_id.term;
        let ask = || async {
            self.reach().check_vote_request(&request)?;
            self.raft.vote(request).await.map_err(Refusal::of_raft)
        };
        Ballot { state: &self.shared }.vote(term, ask).await.map_err(|why| self.dropped(why))
    }

    pub async fn pre_vote(&self, named: u64, request: VoteRequest) -> Result<VoteResponse, Refusal> {
        self.admit_voter(named)?;
        let ask = || async {
            self.reach().check_vote_request(&request)?;
            self.raft.pre_vote(request).await.map_err(Refusal::of_raft)
        };
        Ballot { state: &self.shared }.pre_vote(ask).await.map_err(|why| self.dropped(why))
    }

    fn dropped(&self, why: Dropped) -> Refusal {
        let why = match why {
            Dropped::Refused(refusal) => return refusal,
            Dropped::Bound => "bound by a leader's lease",
            Dropped::OwnLease => "bound by its own lease as a leader",
        };
        self.metrics.votes_dropped.inc();
        Refusal::NotNow(why.into())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sextant_environment::Env;
    use sextant_raft_log::Vote;

    use super::*;
    use crate::leadership::Terms;

    const HOUR_NS: u64 = 3_600_000_000_000;

    fn granted(term: u64) -> Result<VoteResponse, Refusal> {
        Ok(VoteResponse::new(Vote::new(term, 2), None, true))
    }

    /// One that has promised nothing, or abstains for an hour.
    fn node(is_bound: bool) -> Arc<ReplicaState> {
        let state = ReplicaState::for_tests(&Env::real());
        if is_bound {
            bind(&state);
        }
        state
    }

    fn bind(state: &ReplicaState) {
        state.guard.set_abstention_ns(HOUR_NS);
        state.guard.bind(state.env.clock.grantor_ns(), 0);
    }

    /// This node leads `term`, alone, and has just heard of it.
    fn lead(state: &ReplicaState, term: u64) {
        state.lease.begin(term, state.node, vec![vec![state.node]]);
        state.lease.set_terms(Terms { lease_ns: HOUR_NS, abstention_ns: HOUR_NS, configured_at: 0 });
        state.lease.renew_if_alone(state.env.clock.holder_ns());
    }

    #[tokio::test]
    async fn the_guard_is_asked_before_raft_writes_a_vote_down() {
        let state = node(true);
        let ballot = Ballot { state: &state };
        let unasked = || async { unreachable!("the vote would be written down") };
        assert!(matches!(ballot.vote(4, unasked).await, Err(Dropped::Bound)));
        assert!(matches!(ballot.pre_vote(unasked).await, Err(Dropped::Bound)));
        let state = node(false);
        let ballot = Ballot { state: &state };
        assert!(ballot.vote(4, || async { granted(4) }).await.unwrap().vote_granted);
        assert!(ballot.pre_vote(|| async { granted(4) }).await.unwrap().vote_granted);
    }

    #[tokio::test]
    async fn the_guard_is_asked_again_before_a_vote_leaves() {
        let state = node(false);
        let ballot = Ballot { state: &state };
        let meanwhile = || async {
            bind(&state);
            granted(4)
        };
        assert!(matches!(ballot.vote(4, meanwhile).await, Err(Dropped::Bound)), "a leader was accepted");
    }

    #[tokio::test]
    async fn a_vote_does_not_leave_while_the_nodes_own_lease_is_alive() {
        let state = node(false);
        lead(&state, 3);
        let ballot = Ballot { state: &state };
        assert!(matches!(ballot.vote(4, || async { granted(4) }).await, Err(Dropped::OwnLease)));
        let denied = || async { Ok(VoteResponse::new(Vote::new(3, 1), None, false)) };
        assert!(!ballot.vote(4, denied).await.unwrap().vote_granted, "who gives no vote forswears nothing");
        assert!(state.lease.is_valid(3, state.env.clock.holder_ns()));
    }

    #[tokio::test]
    async fn no_lease_of_an_earlier_term_comes_alive_after_a_vote_has_left() {
        let state = node(false);
        let ballot = Ballot { state: &state };
        ballot.vote(4, || async { granted(4) }).await.unwrap();
        lead(&state, 3);
        assert!(!state.lease.is_valid(3, state.env.clock.holder_ns()));
        lead(&state, 5);
        assert!(state.lease.is_valid(5, state.env.clock.holder_ns()));
    }
}
