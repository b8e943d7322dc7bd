//! Whoever waits for an entry's publication.

use sextant_common::ids::Serial;

use super::proposal::{Decided, PendingCommand, Proposal, Proposed, Reply};
use crate::publication::{Appended, Position};
use crate::replica::WriteFate;

/// Whoever waits for an entry's publication.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) replies: Vec<Reply>,
    pub(super) pending: Option<PendingCommand>,
    /// When the entry was proposed here (holder's clock); 0: it was not.
    pub(super) proposed_ns: u64,
    /// When it came back from the log (holder's clock), if it was proposed here.
    pub(super) ingested_ns: u64,
    /// When it was known to be committed (holder's clock); 0: not yet.
    pub(super) committed_ns: u64,
}

/// The entry of a proposal of this leader, which comes back from the log.
pub(super) fn own(index: u64, position: Position, proposal: Proposal, now_ns: u64) -> Appended<Waiting> {
    let mut waiting =
        Waiting { proposed_ns: proposal.proposed_ns, ingested_ns: now_ns, ..Waiting::default() };
    match proposal.what {
        Proposed::Group(writes) => {
            waiting.replies = writes.into_iter().map(Decided::into_reply).collect();
        }
        Proposed::Command(pending) => waiting.pending = Some(*pending),
    }
    Appended { index, position, serial: proposal.serial, waiting }
}

/// An entry that nobody here waits for.
pub(super) fn bare(index: u64, position: Position) -> Appended<Waiting> {
    Appended { index, position, serial: Serial(0), waiting: Waiting::default() }
}

impl Waiting {
    /// The entry had no effect: its requests may be sent again.
    pub fn refused(self, why: &'static str) {
        for reply in self.replies {
            reply.sink.send(WriteFate::Retry(why));
        }
        if let Some(pending) = self.pending {
            pending.failed();
        }
    }

    /// Whether the entry commits will be decided under another leader. (One that was truncated here may be in another server's
    /// log, and that server may lead one day.)
    pub fn unknown(&mut self) {
        for reply in self.replies.drain(..) {
            reply.sink.send(WriteFate::Unknown("leadership changed"));
        }
        if let Some(pending) = self.pending.take() {
            pending.failed();
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
