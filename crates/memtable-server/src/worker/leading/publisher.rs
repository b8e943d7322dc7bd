//! Publication, as the worker does it: strictly in log order, when Raft has committed and the rule allows
//! ([`crate::publication`]); and the answers that wait for it.
//!
//! Every replica publishes what is committed; only a leader has leases that forbid it, and clients that wait.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use sextant_common::ids::Serial;
use sextant_rules::mutant::{self, Mutant};
use sextant_rules::probe::ProbeEvent;

use super::sequencer::{Control, Decided, Proposal, Proposed};
use super::{Leading, Tenure};
use crate::publication::{Appended, Next, Permission, permission};
use crate::replica::{ReplicaState, ReplySink, WriteOutcome};
use crate::worker::replica::Replica;

/// Whoever waits for an entry's publication.
#[derive(Default)]
pub(in crate::worker) struct Waiting {
    replies: Vec<Reply>,
    control: Option<Control>,
    /// When the entry was proposed here (holder's clock); 0: it was not.
    proposed_ns: u64,
    /// When it was known to be committed; 0: not yet.
    committed_ns: u64,
}

/// An answer that waits.
pub(in crate::worker) struct Reply {
    pub sink: ReplySink,
    pub outcome: WriteOutcome,
}

impl Reply {
    fn give(self) {
        self.sink.send(self.outcome);
    }
}

/// The entry of a proposal of this leader.
pub(in crate::worker) fn own(index: u64, last_seq: u64, proposal: Proposal) -> Appended<Waiting> {
    let mut waiting = Waiting { proposed_ns: proposal.proposed_ns, ..Waiting::default() };
    let serial = match proposal.what {
        Proposed::Group { serial, writes } => {
            waiting.replies = writes.into_iter().map(Decided::into_reply).collect();
            serial
        }
        Proposed::Control(control) => {
            waiting.control = Some(*control);
            Serial(0)
        }
    };
    Appended { index, last_seq, serial, waiting }
}

/// An entry that nobody here waits for.
pub(in crate::worker) fn bare(index: u64, last_seq: u64) -> Appended<Waiting> {
    Appended { index, last_seq, serial: Serial(0), waiting: Waiting::default() }
}

impl Waiting {
    /// The entry had no effect: its requests may be sent again.
    pub fn refused(self, why: &'static str) {
        for reply in self.replies {
            reply.sink.send(WriteOutcome::Retry(why));
        }
        if let Some(control) = self.control {
            control.failed();
        }
    }

    /// Whether the entry commits will be decided under another leader. (One that was truncated here may be in another server's
    /// log, and that server may lead one day.)
    pub fn unknown(&mut self) {
        for reply in self.replies.drain(..) {
            reply.sink.send(WriteOutcome::Unknown("leadership changed"));
        }
        if let Some(control) = self.control.take() {
            control.failed();
        }
    }

    /// The entry is committed. How long that took, once, if it was proposed here.
    pub fn is_committed(&mut self, now_ns: u64) -> Option<u64> {
        if self.committed_ns != 0 || self.proposed_ns == 0 {
            return None;
        }
        self.committed_ns = now_ns;
        Some(now_ns.saturating_sub(self.proposed_ns))
    }
}

/// What came of a look at the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::worker) struct Published {
    pub any: bool,
    /// The leases forbid the next one until an acknowledgement, or this time (grantor's clock).
    pub look_again_at_ns: Option<u64>,
}

impl Replica {
    /// Publishes what may be published. `tenure`: this node's, if it leads.
    pub fn publish(&mut self, tenure: Option<&Tenure>) -> Published {
        let committed = self.partition.committed_index();
        let mut published = Published::default();
        loop {
            let shared = &self.shared;
            let next = self.queue.next(committed, |serial| match tenure {
                Some(tenure) => permission_of(shared, tenure, serial),
                None => Permission::Granted,
            });
            let entry = match next {
                Next::Publish(entry) => entry,
                Next::WaitUntil(at_ns) => {
                    published.look_again_at_ns = Some(at_ns);
                    return published;
                }
                Next::Idle => return published,
            };
            self.shared.published_seq.store(entry.last_seq, Ordering::Release);
            published.any = true;
            if let Some(tenure) = tenure {
                self.shared.env.tell(|| ProbeEvent::Published {
                    partition: self.shared.id,
                    node: self.shared.node,
                    epoch: tenure.epoch,
                    index: entry.index,
                    serial: entry.serial,
                });
            }
            self.answer(entry.waiting);
        }
    }

    fn answer(&self, waiting: Waiting) {
        if waiting.proposed_ns > 0 {
            let now_ns = self.shared.env.clock.holder_ns();
            let since = |ns: u64| now_ns.saturating_sub(ns) as f64 / 1e9;
            self.metrics.propose_to_publish.observe(since(waiting.proposed_ns));
            let known = waiting.committed_ns > 0;
            self.metrics.commit_wait.observe(if known { since(waiting.committed_ns) } else { 0.0 });
        }
        waiting.replies.into_iter().for_each(Reply::give);
        if let Some(control) = waiting.control {
            control.succeeded();
        }
    }
}

fn permission_of(shared: &ReplicaState, tenure: &Tenure, serial: Serial) -> Permission {
    if mutant::active(Mutant::NoLeaseWait) {
        return Permission::Granted;
    }
    let now = shared.now();
    permission(serial, now.mono_ns, tenure.hold_until_ns, || {
        if shared.env.probe.is_some() {
            tell_of_waiting(shared, serial);
        }
        shared.desk.may_publish(serial, now)
    })
}

/// A simulation is told of an entry that waits for a serial which the ring has not given to anybody.
fn tell_of_waiting(shared: &ReplicaState, serial: Serial) {
    let newest = shared.desk.serial();
    if serial > newest {
        let (partition, node) = (shared.id, shared.node);
        shared.env.tell(|| ProbeEvent::WaitsForNothing { partition, node, serial, newest });
    }
}

/// What a leader's publication adds.
#[derive(Default)]
pub(in crate::worker) struct Publisher {
    /// Answers about appended state, and the entry after whose publication each is given: everything that it saw is published then.
    deferred: VecDeque<(u64, Reply)>,
    pub look_again_at_ns: Option<u64>,
}

impl Publisher {
    /// The log was cut, or leadership ends: what was seen may never have been.
    pub fn refuse_all(&mut self, why: &'static str) {
        for (_, reply) in self.deferred.drain(..) {
            reply.sink.send(WriteOutcome::Retry(why));
        }
    }
}

impl Leading {
    /// Something may have been published.
    pub fn published(&mut self, replica: &Replica, published: Published) {
        self.publisher.look_again_at_ns = published.look_again_at_ns;
        let (shared, queue) = (&replica.shared, &replica.queue);
        if (queue.has_published(self.tenure.first_index) || mutant::active(Mutant::FreshLeaderReads))
            && shared.serving_term.load(Ordering::Relaxed) != self.tenure.term
        {
            shared.serving_term.store(self.tenure.term, Ordering::Release);
            shared.news.notify_waiters();
        }
        if !published.any && !queue.is_empty() {
            return;
        }
        while let Some((after, _)) = self.publisher.deferred.front()
            && (*after <= queue.published_index() || queue.is_empty())
        {
            if let Some((_, reply)) = self.publisher.deferred.pop_front() {
                self.answer_if_leased(replica, reply);
            }
        }
    }

    /// Answers when everything appended so far is published; at once if it is.
    pub fn answer_when_published(&mut self, replica: &Replica, reply: Reply) {
        let serves = replica.queue.has_published(self.tenure.first_index);
        if replica.queue.is_empty() && serves {
            self.answer_if_leased(replica, reply);
        } else {
            self.publisher.deferred.push_back((replica.partition.last().index, reply));
        }
    }

    /// An answer that changes nothing is a read: it needs the leader lease, asked after everything that it saw.
    fn answer_if_leased(&self, replica: &Replica, reply: Reply) {
        if replica.shared.lease.is_valid(self.tenure.term, replica.shared.env.clock.holder_ns()) {
            reply.give();
        } else {
            reply.sink.send(WriteOutcome::Retry("the leader's lease is over"));
        }
    }
}
