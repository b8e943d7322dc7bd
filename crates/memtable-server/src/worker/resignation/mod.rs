//! How a leader lets go.
//!
//! A leader that *resigns* ends everything that leadership gave it, for this term and for good: grants, reads, writes. Then
//! its own Raft is told of a vote for another node in the next term. Raising one's own term is always safe; it ends the
//! leader's heartbeats, and so, a leader lease later, everybody's vote guard opens and somebody is elected.
//!
//! Invariant: no guard is waived. A transfer takes about one leader lease, in which every lease that this leader granted runs
//! out; so the next leader finds none alive, exactly as after a crash.

mod leaving;

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::VoteRequest;
use sextant_raft_log::{TypeConfig, Vote};
use tokio::sync::oneshot;

use super::replica::Replica;

/// How soon Raft is asked again to let go, if it did not.
const ASK_AGAIN_NS: u64 = 100_000_000;

/// The last term in which this node has resigned. It outlives the leadership: Raft may lead a little longer.
pub(in crate::worker) struct Resigned {
    pub term: u64,
    heir: u64,
    ask_again_ns: u64,
    /// Raft's answer; a hung device holds it up.
    asked: Option<oneshot::Receiver<()>>,
}

impl Resigned {
    fn now(term: u64, heir: u64) -> Self {
        Self { term, heir, ask_again_ns: 0, asked: None }
    }

    /// Whether Raft has not let go yet.
    pub fn still_leads(&self, replica: &Replica) -> bool {
        let metrics = replica.raft.server_metrics();
        let m = metrics.borrow_watched();
        m.state == ServerState::Leader && m.vote.leader_id.term == self.term
    }

    fn leave_raft(&mut self, replica: &Replica) {
        let leads = self.still_leads(replica);
        let now = replica.shared.env.clock.grantor_ns();
        let unanswered = self
            .asked
            .as_mut()
            .is_some_and(|answer| matches!(answer.try_recv(), Err(oneshot::error::TryRecvError::Empty)));
        if !leads || unanswered || now < self.ask_again_ns {
            return;
        }
        let (answered, asked) = oneshot::channel();
        self.asked = Some(asked);
        self.ask_again_ns = now + ASK_AGAIN_NS;
        let request = VoteRequest::<TypeConfig> {
            vote: Vote::new(self.term + 1, self.heir),
            last_log_id: replica.log.last_log_id(),
            // Past openraft's lease, which is this very leader's own.
            leadership_transfer: true,
        };
        let raft = replica.raft.clone();
        replica.background.spawn(async move {
            let _ = raft.vote(request).await;
            let _ = answered.send(());
        });
    }
}
