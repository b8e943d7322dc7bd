//! Publication: strictly in log order, when Raft has committed and the publish rule allows.

use std::sync::atomic::Ordering;

use sextant_common::error::Error;
use sextant_common::ids::Serial;
use sextant_proto::v1;

use super::Worker;
use super::sequence::{Control, Proposal, Proposed};
use crate::command::group::OpResult;
use crate::lease::grantor::Permission;
use crate::shared::ReplySink;

/// An appended entry that is not yet published.
pub(super) struct Published {
    pub index: u64,
    /// The newest seq after this entry.
    last_seq: u64,
    /// Of the group's last bf-log entry; 0: it has none, and needs no acknowledgements.
    serial: Serial,
    replies: Vec<(ReplySink, v1::WriteStatus, Vec<OpResult>)>,
    control: Option<Control>,
    pub proposed_ns: u64,
}

/// An answer about appended state: given only when everything that it saw is published.
pub(super) struct Deferred {
    pub after_index: u64,
    pub reply: ReplySink,
    pub status: v1::WriteStatus,
    pub results: Vec<OpResult>,
}

impl Published {
    pub fn bare(index: u64, last_seq: u64) -> Self {
        Self { index, last_seq, serial: Serial(0), replies: Vec::new(), control: None, proposed_ns: 0 }
    }

    /// The entry is the leader's own proposal.
    pub fn take(&mut self, proposal: Proposal) {
        self.proposed_ns = proposal.proposed_ns;
        match proposal.what {
            Proposed::Group { serial, writes } => {
                self.serial = serial;
                self.replies = writes.into_iter().map(|d| (d.write.reply, d.status, d.results)).collect();
            }
            Proposed::Control(control) => self.control = Some(control),
        }
    }

    /// The entry was truncated: certainly not executed.
    pub fn lost(self) {
        for (reply, ..) in self.replies {
            reply.status(v1::WriteStatus::WriteRetry, "the entry was truncated by a new leader");
        }
        if let Some(control) = self.control {
            control.failed();
        }
    }

    /// Whether it commits will be decided by another leader.
    pub fn forget_clients(&mut self) {
        for (reply, ..) in self.replies.drain(..) {
            reply.status(v1::WriteStatus::WriteOutcomeUnknown, "leadership changed");
        }
        if let Some(control) = self.control.take() {
            control.failed();
        }
        self.serial = Serial(0);
    }

    /// Leases of a former ring incarnation are waited for as a whole.
    pub fn forget_serial(&mut self) {
        self.serial = Serial(0);
    }
}

impl Worker {
    pub(super) fn publish(&mut self) {
        self.publish_at_ns = None;
        let committed = self.partition.committed_index();
        let mut published = false;
        while let Some(front) = self.queue.front() {
            // Index 0 is the first membership; it is committed with whatever follows it.
            if front.index > committed {
                break;
            }
            if let Some(lead) = &self.lead {
                let now = self.shared.now();
                if now.mono_ns < lead.hold_until_ns {
                    self.publish_at_ns = Some(lead.hold_until_ns);
                    break;
                }
                if front.serial.0 > 0
                    && let Permission::WaitUntil(at) = self.shared.desk.may_publish(front.serial, now)
                {
                    self.publish_at_ns = Some(at);
                    break;
                }
            }
            let Some(item) = self.queue.pop_front() else { break };
            self.published_index = item.index;
            self.shared.published_seq.store(item.last_seq, Ordering::Release);
            published = true;
            if item.proposed_ns > 0 {
                let waited = self.shared.env.clock.holder_ns().saturating_sub(item.proposed_ns);
                self.metrics.commit_to_publish.observe(waited as f64 / 1e9);
            }
            for (reply, status, results) in item.replies {
                reply.send(answer(status, &results));
            }
            if let Some(control) = item.control {
                control.succeeded();
            }
        }
        if let Some(lead) = &self.lead
            && self.published_index >= lead.first_index
            && self.shared.serving_term.load(Ordering::Relaxed) != lead.term
        {
            self.shared.serving_term.store(lead.term, Ordering::Release);
            self.shared.news.notify_waiters();
        }
        if published || self.queue.is_empty() {
            while self.deferred.front().is_some_and(|d| d.after_index <= self.published_index || self.queue.is_empty()) {
                if let Some(deferred) = self.deferred.pop_front() {
                    deferred.reply.send(answer(deferred.status, &deferred.results));
                }
            }
        }
    }

    /// Answers when everything appended so far is published; at once if it is.
    pub(super) fn answer_when_published(&mut self, reply: ReplySink, status: v1::WriteStatus, results: Vec<OpResult>) {
        let serving = self.lead.as_ref().is_some_and(|l| self.published_index >= l.first_index);
        if self.queue.is_empty() && serving {
            reply.send(answer(status, &results));
        } else {
            self.deferred.push_back(Deferred { after_index: self.partition.last().index, reply, status, results });
        }
    }
}

pub(super) fn answer(status: v1::WriteStatus, results: &[OpResult]) -> v1::WriteReply {
    v1::WriteReply {
        status: status.into(),
        results: results
            .iter()
            .map(|r| v1::OpResult { applied: r.applied, existed: r.existed, seq: r.seq })
            .collect(),
        ..Default::default()
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
