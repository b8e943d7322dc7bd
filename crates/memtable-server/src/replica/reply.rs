//! What becomes of a write, and the way back to whoever sent it.
//!
//! Nothing here knows the wire: `service::rows::answers` puts fates into messages.
//!
//! Invariant: every write is answered once. A [`ReplySink`] that is dropped says that the outcome is unknown.

use std::borrow::Cow;

use sextant_common::ids::ManifestVersion;
use sextant_common::manifest::Versions;
use sextant_common::operation::RecordedOutcome;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::Leader;
use crate::partition::evaluate::Refusal;

/// What becomes of a write that has arrived, in the words of a leader. On its way to the p-node it is a
/// [`WriteStatus`](sextant_common::operation::WriteStatus) with what belongs to it; of what was executed or failed its condition, a
/// client sees a [`WriteOutcome`](sextant_common::operation::WriteOutcome), of the rest an error.
///
/// All but [`Executed`](Self::Executed) and [`Unknown`](Self::Unknown): it was not executed by this request;
/// one that was sent before, under the same number, may have been.
#[derive(Clone, Debug)]
pub enum WriteFate {
    /// It took effect, now or when it was sent before; published.
    Executed(Vec<RecordedOutcome>),
    /// A condition did not hold.
    ConditionFailed(Vec<RecordedOutcome>),
    /// The condition was checked against an older manifest than this one: against that of this version.
    Stale(Versions, ManifestVersion),
    /// The partition's state forbids it.
    Refused(Refusal),
    /// Another server leads the partition, or nobody does.
    NotLeader(Leader),
    /// There is no such partition.
    UnknownPartition(Cow<'static, str>),
    /// The request makes no sense.
    Invalid(Cow<'static, str>),
    /// There is no room for it now.
    Overloaded(Cow<'static, str>),
    /// To be sent again.
    Retry(&'static str),
    /// It may take effect, or have taken effect.
    Unknown(&'static str),
}

/// A fate on its way to the client.
pub struct Answer {
    /// The request's, on its stream.
    pub id: u64,
    /// When the request arrived.
    pub since_ns: u64,
    pub fate: WriteFate,
    /// Its share of what may be on its way to the client.
    pub room: Option<OwnedSemaphorePermit>,
}

/// Where the answer to a write goes.
pub struct ReplySink {
    id: u64,
    since_ns: u64,
    /// The queue is unbounded, so that a worker never waits for a client; it holds no more than there is room for.
    to: Option<mpsc::UnboundedSender<Answer>>,
    room: Option<OwnedSemaphorePermit>,
}

impl ReplySink {
    /// `since_ns`: when the request arrived; `room`: for the answer, given back when the client has it.
    pub fn new(
        id: u64,
        since_ns: u64,
        to: mpsc::UnboundedSender<Answer>,
        room: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Self { id, since_ns, to: Some(to), room }
    }

    /// When the request arrived.
    pub fn since_ns(&self) -> u64 {
        self.since_ns
    }

    pub fn send(mut self, fate: WriteFate) {
        self.give(fate);
    }

    fn give(&mut self, fate: WriteFate) {
        if let Some(to) = self.to.take() {
            let Self { id, since_ns, .. } = *self;
            let _ = to.send(Answer { id, since_ns, fate, room: self.room.take() });
        }
    }
}

impl Drop for ReplySink {
    fn drop(&mut self) {
        self.give(WriteFate::Unknown("the partition's worker stopped"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_answered_once_and_whoever_forgets_it_says_that_the_outcome_is_unknown() {
        let (to, mut answers) = mpsc::unbounded_channel();
        ReplySink::new(1, 0, to.clone(), None).send(WriteFate::Executed(Vec::new()));
        drop(ReplySink::new(2, 0, to, None));
        let mut told = Vec::new();
        while let Ok(answer) = answers.try_recv() {
            told.push((answer.id, matches!(answer.fate, WriteFate::Unknown(_))));
        }
        assert_eq!(told, [(1, false), (2, true)]);
    }
}
