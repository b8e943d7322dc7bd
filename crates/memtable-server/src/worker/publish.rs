//! Publication: strictly in log order, when Raft has committed and the publish rule allows.

use std::sync::atomic::Ordering;

use sextant_common::env::ProbeEvent;
use sextant_common::error::Error;
use sextant_common::ids::Serial;
use sextant_common::mutant::{self, Mutant};

use super::Worker;
use super::sequence::{Control, Decided, Proposal, Proposed};
use crate::lease::grantor::Permission;
use crate::publication::{Appended, Next};
use crate::replica::{ReplicaState, ReplySink, WriteOutcome};

/// Whoever waits for an entry's publication.
#[derive(Default)]
pub(super) struct Waiting {
    replies: Vec<Reply>,
    control: Option<Control>,
    /// When the entry was proposed here (holder's clock); 0: it was not.
    pub proposed_ns: u64,
    /// When it was known to be committed; 0: not yet.
    pub committed_ns: u64,
}

/// An answer that waits.
pub(super) struct Reply {
    pub sink: ReplySink,
    pub outcome: WriteOutcome,
}

/// An answer about appended state: given only when everything that it saw is published.
pub(super) struct Deferred {
    pub after_index: u64,
    pub reply: Reply,
}

/// The entry of a proposal of this leader.
pub(super) fn own(index: u64, last_seq: u64, proposal: Proposal) -> Appended<Waiting> {
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
pub(super) fn bare(index: u64, last_seq: u64) -> Appended<Waiting> {
    Appended { index, last_seq, serial: Serial(0), waiting: Waiting::default() }
}

impl Waiting {
    /// The entry was truncated here. Another server may still have it, and may lead one day.
    pub fn lost(mut self) {
        self.unknown();
    }

    /// The entry had no effect: its requests may be sent again.
    pub fn refused(self, why: &'static str) {
        for reply in self.replies {
            reply.sink.send(WriteOutcome::Retry(why));
        }
        if let Some(control) = self.control {
            control.failed();
        }
    }

    /// Whether the entry commits will be decided under another leader.
    pub fn unknown(&mut self) {
        for reply in self.replies.drain(..) {
            reply.sink.send(WriteOutcome::Unknown("leadership changed"));
        }
        if let Some(control) = self.control.take() {
            control.failed();
        }
    }
}

/// A simulation is told of an entry that waits for a serial which the ring has not given to anybody.
fn tell_of_waiting(shared: &ReplicaState, serial: Serial) {
    let newest = shared.desk.serial();
    if serial > newest {
        let (partition, node) = (shared.id, shared.node);
        shared.env.tell(|| ProbeEvent::WaitsForNothing { partition, node, serial, newest });
    }
}

impl Worker {
    pub(super) fn publish(&mut self) {
        self.publish_at_ns = None;
        let committed = if mutant::active(Mutant::AcknowledgedBeforeMajority) && self.lead.is_some() {
            self.partition.last().index
        } else {
            self.partition.committed_index()
        };
        let mut published = false;
        let is_watched = self.shared.env.probe.is_some();
        loop {
            let (shared, lead) = (&self.shared, self.lead.as_ref());
            let next = self.queue.next(committed, |serial| {
                let Some(lead) = lead else { return Permission::Granted };
                let now = shared.now();
                if mutant::active(Mutant::NoLeaseWait) {
                    Permission::Granted
                } else if now.mono_ns < lead.hold_until_ns {
                    Permission::WaitUntil(lead.hold_until_ns)
                } else if serial.0 == 0 {
                    Permission::Granted
                } else {
                    if is_watched {
                        tell_of_waiting(shared, serial);
                    }
                    shared.desk.may_publish(serial, now)
                }
            });
            let entry = match next {
                Next::Publish(entry) => entry,
                Next::WaitUntil(at) => {
                    self.publish_at_ns = Some(at);
                    break;
                }
                Next::Idle => break,
            };
            self.shared.published_seq.store(entry.last_seq, Ordering::Release);
            published = true;
            if let Some(lead) = &self.lead {
                self.shared.env.tell(|| ProbeEvent::Published {
                    partition: self.shared.id,
                    node: self.shared.node,
                    epoch: lead.epoch,
                    index: entry.index,
                    serial: entry.serial,
                });
            }
            if entry.waiting.proposed_ns > 0 {
                let waited = self.shared.env.clock.holder_ns().saturating_sub(entry.waiting.proposed_ns);
                self.metrics.propose_to_publish.observe(waited as f64 / 1e9);
                let committed_ns = entry.waiting.committed_ns;
                let waited = self.shared.env.clock.holder_ns().saturating_sub(committed_ns);
                self.metrics.commit_wait.observe(if committed_ns > 0 { waited as f64 / 1e9 } else { 0.0 });
            }
            for reply in entry.waiting.replies {
                reply.give();
            }
            if let Some(control) = entry.waiting.control {
                control.succeeded();
            }
        }
        if let Some(lead) = &self.lead
            && (self.queue.has_published(lead.first_index) || mutant::active(Mutant::FreshLeaderReads))
            && self.shared.serving_term.load(Ordering::Relaxed) != lead.term
        {
            self.shared.serving_term.store(lead.term, Ordering::Release);
            self.shared.news.notify_waiters();
        }
        if published || self.queue.is_empty() {
            while self
                .deferred
                .front()
                .is_some_and(|d| d.after_index <= self.queue.published_index() || self.queue.is_empty())
            {
                if let Some(deferred) = self.deferred.pop_front() {
                    self.answer_if_leading(deferred.reply);
                }
            }
        }
    }

    /// Answers when everything appended so far is published; at once if it is.
    pub(super) fn answer_when_published(&mut self, reply: Reply) {
        let serving = self.lead.as_ref().is_some_and(|l| self.queue.has_published(l.first_index));
        let retried = matches!(reply.outcome, WriteOutcome::Executed(_));
        let at_once = if retried { Mutant::DuplicateAtOnce } else { Mutant::FailedAtOnce };
        if self.queue.is_empty() && serving || mutant::active(at_once) {
            self.answer_if_leading(reply);
        } else {
            self.deferred.push_back(Deferred { after_index: self.partition.last().index, reply });
        }
    }
}

impl Worker {
    /// An answer that changes nothing is a read: it needs the leader lease, asked after everything that it saw.
    fn answer_if_leading(&mut self, reply: Reply) {
        let term = self.lead.as_ref().map_or(0, |l| l.term);
        if self.shared.lease.is_valid(term, self.shared.env.clock.holder_ns()) {
            reply.give();
        } else {
            reply.sink.send(WriteOutcome::Retry("the leader's lease is over"));
        }
    }
}

impl Reply {
    fn give(self) {
        self.sink.send(self.outcome);
    }
}

impl Control {
    fn succeeded(self) {
        if let Some(done) = self.done {
            let _ = done.send(Ok(()));
        }
    }

    pub(super) fn failed(self) {
        if let Some(done) = self.done {
            let _ = done.send(Err(Error::retry("leadership changed")));
        }
    }
}
