//! What is published, and who is told.

use std::sync::atomic::Ordering;

use sextant_common::ids::Serial;
use sextant_rules::mutant::{self, Mutant};
use sextant_rules::probe::ProbeEvent;

use super::Published;
use crate::publication::{Next, Permission, permission};
use crate::replica::{ReplicaState, WriteFate};
use crate::worker::leading::{Leading, Tenure};
use crate::worker::proposal::Reply;
use crate::worker::replica::Replica;
use crate::worker::waiting::Waiting;

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
            self.shared.published.store(entry.position);
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
            let since = |ns: u64| now_ns.saturating_sub(ns);
            self.metrics.propose_to_publish.observe_ns(since(waiting.proposed_ns));
            let known = waiting.committed_ns > 0;
            let commit_wait_ns = if known { since(waiting.committed_ns) } else { 0 };
            self.metrics.commit_wait.observe_ns(commit_wait_ns);
            if !waiting.replies.is_empty() {
                let stages = &self.metrics.stages;
                stages.ingested.observe_ns(waiting.ingested_ns.saturating_sub(waiting.proposed_ns));
                stages.committed.observe_ns(since(waiting.ingested_ns).saturating_sub(commit_wait_ns));
                stages.published.observe_ns(commit_wait_ns);
            }
        }
        waiting.replies.into_iter().for_each(Reply::give);
        if let Some(pending) = waiting.pending {
            pending.succeeded();
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

impl Leading {
    /// Something may have been published.
    pub fn published(&mut self, replica: &Replica, published: Published) {
        self.publisher.look_again_at_ns = published.look_again_at_ns;
        let (shared, queue) = (&replica.shared, &replica.queue);
        if (queue.has_published(self.tenure.first_index) || mutant::active(Mutant::FreshLeaderReads))
            && shared.serving_term.load(Ordering::Relaxed) != self.tenure.term
        {
            shared.serve(self.tenure.term);
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
            reply.sink.send(WriteFate::Retry("the leader's lease is over"));
        }
    }
}
