//! What is proposed to Raft: a group or a command, and whoever waits for it, until it comes back from the log or is refused.

use bytes::Bytes;
use openraft::errors::ClientWriteError;
use sextant_common::error::Result;
use sextant_common::ids::Serial;
use sextant_raft_log::{Entry, TypeConfig, position_of};
use tokio::sync::oneshot;

use crate::command::Command;
use crate::leadership::leadership_changed;
use crate::replica::{QueuedWrite, ReplySink, WriteFate};

pub(super) type RaftAnswer =
    openraft::alias::OneshotReceiverOf<TypeConfig, openraft::raft::ClientWriteResult<TypeConfig>>;

/// What was proposed and is not yet ingested.
pub(super) struct Proposal {
    pub(super) payload: Bytes,
    pub(super) term: u64,
    /// None: Raft has answered already.
    pub(super) raft: Option<RaftAnswer>,
    /// Of the ring entries that it has left: its publication waits for them. 0: none.
    pub serial: Serial,
    pub what: Proposed,
    pub proposed_ns: u64,
}

pub(super) enum Proposed {
    /// A group. The requests are kept: if Raft refuses it, they are evaluated again.
    Group(Vec<Decided>),
    Command(Box<PendingCommand>),
}

/// Why Raft did not take a proposal.
pub(super) enum Refused {
    NotAppended(String),
    Unknown(String),
}

/// A request and what it is to be answered when its group is published.
pub(super) struct Decided {
    pub(super) write: QueuedWrite,
    pub(super) fate: WriteFate,
}

/// An answer that waits.
pub(super) struct Reply {
    pub sink: ReplySink,
    pub fate: WriteFate,
}

impl Reply {
    pub fn give(self) {
        self.sink.send(self.fate);
    }
}

impl Decided {
    pub fn into_reply(self) -> Reply {
        Reply { sink: self.write.reply, fate: self.fate }
    }
}

/// A rare command and whoever waits for it.
pub(super) struct PendingCommand {
    pub command: Command,
    pub done: Option<oneshot::Sender<Result<()>>>,
    /// For an administrator: there may be places that are kept for those.
    pub privileged: bool,
}

impl PendingCommand {
    pub fn succeeded(self) {
        self.end(Ok(()));
    }

    pub fn failed(self) {
        self.end(Err(leadership_changed()));
    }

    pub(super) fn end(self, result: Result<()>) {
        if let Some(done) = self.done {
            let _ = done.send(result);
        }
    }
}

impl Proposal {
    /// Whether an entry of the log is this proposal.
    pub fn is(&self, entry: &Entry) -> bool {
        match &entry.payload {
            openraft::EntryPayload::Normal(p) => {
                position_of(&entry.log_id).term == self.term && p.0 == self.payload
            }
            _ => false,
        }
    }

    /// Completes when Raft refuses it.
    pub(super) async fn refusal(&mut self) -> Refused {
        let Some(waiting) = &mut self.raft else { return std::future::pending().await };
        let answer = waiting.await;
        self.raft = None;
        match answer {
            Ok(Err(ClientWriteError::ForwardToLeader(e))) => Refused::NotAppended(e.to_string()),
            Ok(Err(e)) => Refused::Unknown(e.to_string()),
            Err(_) => Refused::Unknown("Raft has stopped".into()),
            // Committed already: the entry is on its way through the queue of events.
            Ok(Ok(_)) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
impl Proposal {
    pub fn for_tests(serial: u64, what: Proposed) -> Self {
        Self { payload: Bytes::new(), term: 3, raft: None, serial: Serial(serial), what, proposed_ns: 1 }
    }
}
