//! Handing leadership over: on request, or because the log's device hangs.
//!
//! A leader that *resigns* ends everything that leadership gave it, for this term and for good: grants, reads, writes. Then
//! its own Raft is told of a vote for another node in the next term. Raising one's own term is always safe; it ends the
//! leader's heartbeats, and so, a leader lease later, everybody's vote guard opens and somebody is elected.
//!
//! Invariant: no guard is waived. A transfer takes about one leader lease, in which every lease that this leader granted runs
//! out; so the next leader finds none alive, exactly as after a crash.

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::VoteRequest;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_raft_log::{TypeConfig, Vote};
use tokio::sync::oneshot;

use super::Worker;
use super::voters::Memberships;

/// How long what is in flight may take to be published, and the successor to have the whole log. After that the leader stays.
const CATCH_UP_NS: u64 = 3_000_000_000;
/// A leader does not give up because of its device sooner than so many times the limit after its election: if all devices are
/// slow, leadership would go round and nobody would be served.
const TENURE_LIMITS: u64 = 5;
/// How soon Raft is asked again to let go, if it did not.
const ASK_AGAIN_NS: u64 = 100_000_000;

/// A transfer that was asked for: no new groups are formed until it is done or given up.
pub(super) struct Handover {
    to: u64,
    until_ns: u64,
    /// Told the term that ended here.
    done: oneshot::Sender<Result<u64>>,
}

/// The last term in which this node has resigned.
pub(super) struct Resigned {
    pub term: u64,
    heir: u64,
    ask_again_ns: u64,
    /// Raft's answer; a hung device holds it up.
    asked: Option<oneshot::Receiver<()>>,
}

/// A log device that hangs.
pub(super) struct Stall {
    /// What was committed when it was noticed.
    committed: u64,
}

impl Worker {
    pub(super) fn hand_over_to(&mut self, to: u64, done: oneshot::Sender<Result<u64>>) {
        let votes = Memberships::of(&self.raft).voters().contains(&to);
        let refused = if self.lead.is_none() {
            Some(Error::new(ErrorKind::NotLeader, "this server does not lead the partition"))
        } else if self.handover.is_some() {
            Some(Error::retry("a transfer of leadership is under way"))
        } else if !votes {
            Some(Error::invalid(format!("server {to} is no voter of the partition")))
        } else if self.voters.are_changing() {
            Some(Error::retry("a change of the voters is under way"))
        } else {
            None
        };
        if let Some(e) = refused {
            let _ = done.send(Err(e));
            return;
        }
        self.hand_over(to, done);
    }

    /// To a voter, when it has the whole log.
    pub(super) fn hand_over(&mut self, to: u64, done: oneshot::Sender<Result<u64>>) {
        let until_ns = self.shared.env.clock.grantor_ns() + CATCH_UP_NS;
        self.handover = Some(Handover { to, until_ns, done });
    }

    /// Whether no new entries are to be proposed.
    pub(super) fn is_handing_over(&self) -> bool {
        self.handover.is_some()
    }

    pub(super) fn has_resigned(&self, term: u64) -> bool {
        self.resigned.as_ref().is_some_and(|r| r.term == term)
    }

    /// Called every turn of the worker.
    pub(super) fn see_to_handover(&mut self) {
        self.leave_raft();
        if let Some(handover) = self.handover.take() {
            let now = self.shared.env.clock.grantor_ns();
            match self.lead.as_ref().map(|l| l.term) {
                None => {
                    let _ = handover.done.send(Err(Error::retry("leadership changed")));
                }
                Some(term)
                    if self.proposal.is_none() && self.queue.is_empty() && self.has_all(handover.to) =>
                {
                    self.resign(term, handover.to, "leadership is transferred");
                    let _ = handover.done.send(Ok(term));
                }
                Some(_) if now >= handover.until_ns => {
                    let why =
                        format!("node {} does not catch up with the log: leadership stays here", handover.to);
                    let _ = handover.done.send(Err(Error::unavailable(why)));
                }
                Some(_) => self.handover = Some(handover),
            }
        }
        self.watch_log_device();
    }

    /// Whether a follower is known to have the whole log.
    fn has_all(&self, node: u64) -> bool {
        self.matched(node).is_some_and(|index| index >= self.partition.last().index)
    }

    /// Up to where a follower is known to have the log.
    pub(super) fn matched(&self, node: u64) -> Option<u64> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let replication = metrics.replication.as_ref()?;
        replication.get(&node).and_then(|at| at.as_ref()).map(|id| id.index)
    }

    /// A leader whose log device hangs can go on for a while, because its followers commit without it; but it no longer counts
    /// as a copy, its queue grows, and it cannot help to elect anybody. So it lets go, if the others are fine: where nothing
    /// is committed meanwhile, they would not be able to elect anybody either.
    fn watch_log_device(&mut self) {
        let limit_ns = self.tuning.disk_stall_ms * 1_000_000;
        let Some(lead) = self.lead.as_ref().filter(|_| limit_ns > 0) else {
            self.stall = None;
            return;
        };
        let (term, tenure_ns) = (lead.term, self.shared.env.clock.grantor_ns().saturating_sub(lead.since_ns));
        let stalled_ns = self.server_log.stalled_ns();
        if stalled_ns < limit_ns / 2 || tenure_ns < TENURE_LIMITS * limit_ns {
            self.stall = None;
            return;
        }
        let committed = self.partition.committed_index();
        let stall = self.stall.get_or_insert(Stall { committed });
        let others_are_fine = committed > stall.committed || self.queue.in_flight(committed) == 0;
        if stalled_ns < limit_ns || !others_are_fine {
            return;
        }
        self.stall = None;
        let Some(heir) = self.best_follower() else { return };
        tracing::warn!(partition = %self.shared.id, stalled_ms = stalled_ns / 1_000_000, "the log's device hangs");
        self.resign(term, heir, "the log's device hangs");
    }

    /// The voter that has most of the log; none if this node is alone.
    pub(super) fn best_follower(&self) -> Option<u64> {
        self.followers().first().copied()
    }

    /// The other voters, those that have most of the log first.
    fn followers(&self) -> Vec<u64> {
        let me = self.shared.node;
        let voters = Memberships::of(&self.raft).voters();
        let mut followers: Vec<u64> = voters.into_iter().filter(|node| *node != me).collect();
        followers.sort_by_key(|node| std::cmp::Reverse(self.matched(*node)));
        followers
    }

    /// The term that this node leads, and who could lead next, best first.
    pub(super) fn successors(&self) -> Option<(u64, Vec<u64>)> {
        Some((self.lead.as_ref()?.term, self.followers()))
    }

    /// Ends this node's leadership of a term, for good.
    fn resign(&mut self, term: u64, heir: u64, why: &'static str) {
        self.shared.set_leader(term, 0);
        self.resigned = Some(Resigned { term, heir, ask_again_ns: 0, asked: None });
        self.step_down(why);
        self.metrics.handovers.inc();
        let network = self.network.clone();
        self.background.spawn(async move {
            network.name_heir(heir, term).await;
        });
        self.leave_raft();
    }

    /// As long as Raft still leads a term in which this node has resigned, it is asked to let go.
    fn leave_raft(&mut self) {
        let Some(resigned) = &mut self.resigned else { return };
        let leads = {
            let metrics = self.raft.server_metrics();
            let m = metrics.borrow_watched();
            m.state == ServerState::Leader && m.vote.leader_id.term == resigned.term
        };
        let now = self.shared.env.clock.grantor_ns();
        let unanswered = resigned
            .asked
            .as_mut()
            .is_some_and(|answer| matches!(answer.try_recv(), Err(oneshot::error::TryRecvError::Empty)));
        if !leads || unanswered || now < resigned.ask_again_ns {
            return;
        }
        let (answered, asked) = oneshot::channel();
        resigned.asked = Some(asked);
        resigned.ask_again_ns = now + ASK_AGAIN_NS;
        let request = VoteRequest::<TypeConfig> {
            vote: Vote::new(resigned.term + 1, resigned.heir),
            last_log_id: self.log.last_log_id(),
            // Past openraft's lease, which is this very leader's own.
            leadership_transfer: true,
        };
        let raft = self.raft.clone();
        self.background.spawn(async move {
            let _ = raft.vote(request).await;
            let _ = answered.send(());
        });
    }
}
