//! What is answered.

use bytes::Bytes;

use super::Told;
use crate::error::{Error, Result};
use crate::expiry::Tick;
use crate::ids::Seq;
use crate::marks::{Kind, Marks};

/// A record as a read sees it: a value and the version that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub value: Bytes,
    /// Rises with each write, unique within the partition; for [`Expected::Seq`](super::Expected::Seq).
    pub seq: Seq,
    /// From when on there is no record; None: it does not expire.
    pub expires_at: Option<Tick>,
    /// Not plain: the value is the header of an object, which has elements ([`crate::object`]).
    pub kind: Kind,
}

impl Record {
    /// With what was read beside its value.
    pub fn marked(value: Bytes, seq: Seq, marks: Marks) -> Self {
        Self { value, seq, expires_at: marks.expires_at(), kind: marks.kind() }
    }

    pub fn marks(&self) -> Marks {
        Marks::new(self.kind, self.expires_at)
    }

    /// The same, if its value is what a client has written.
    ///
    /// # Errors
    /// `Invalid`: it is an object.
    pub fn plain(self) -> Result<Self> {
        match self.kind {
            Kind::Plain => Ok(self),
            kind => Err(Error::invalid(format!(
                "the record is a {}: it has elements, which the Redis protocol serves, and no value of its own",
                kind.name()
            ))),
        }
    }
}

/// What became of one operation of a request that was decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpOutcome {
    /// False: its condition failed, or another one's that failed the whole batch.
    pub applied: bool,
    /// Whether the key existed before, as far as the condition had to find out.
    pub existed: bool,
    /// The new version if applied, else the version that failed the condition (0: absent).
    pub seq: Seq,
    /// What else there is to say.
    pub told: Told,
}

/// What became of a batch that was decided. That one was *not* decided, or that nobody knows, is an
/// [`Error`](crate::Error).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteOutcome {
    /// False: a condition failed and nothing took effect.
    pub applied: bool,
    /// One for each operation, in their order.
    pub results: Vec<OpOutcome>,
}

/// An [`OpOutcome`] as the log and the duplicate table keep it: a repeated request gets the same answer, and for that
/// it has to be known whether it had failed as a whole. Clients never see `failed`: to them it is the status of the
/// whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedOutcome {
    pub applied: bool,
    pub existed: bool,
    /// The operation's condition did not hold, or its update did not go with what is there, and so the whole request had no
    /// effect.
    pub failed: bool,
    pub seq: Seq,
    /// None: [`Told::Nothing`]. (Boxed, because there are many outcomes and few say more.)
    pub told: Option<Box<Told>>,
}

/// Longest value that is kept for a repeated request, in bytes: of a longer one it learns [`Told::Forgotten`].
pub const TOLD_BYTES_MAX: usize = 512;

/// So many bytes of a value that is kept weigh as much as an operation.
pub const WEIGHT_BYTES: usize = 32;

impl RecordedOutcome {
    /// As it is kept for a repeated request. `room`: for the values that are kept with it, in bytes.
    pub fn to_keep(&self, room: &mut usize) -> Self {
        let told = match self.told.as_deref() {
            Some(Told::Value(value)) if value.len() <= TOLD_BYTES_MAX.min(*room) => {
                *room -= value.len();
                // A copy, or the value would hold what it is a slice of.
                Some(Box::new(Told::Value(Bytes::copy_from_slice(value))))
            }
            Some(Told::Value(_)) => Some(Box::new(Told::Forgotten)),
            _ => self.told.clone(),
        };
        Self { told, ..*self }
    }

    /// What it weighs among those that are kept: one, and more for a value.
    pub fn weight(&self) -> usize {
        1 + self.told.as_ref().map_or(0, |told| told.bytes() / WEIGHT_BYTES)
    }
}

impl From<RecordedOutcome> for OpOutcome {
    fn from(recorded: RecordedOutcome) -> Self {
        let RecordedOutcome { applied, existed, seq, told, .. } = recorded;
        Self { applied, existed, seq, told: told.map_or(Told::Nothing, |told| *told) }
    }
}

/// How a leader disposes of a write, of the opening of a session, or of the creation of a table. But for the first two
/// and the last: it was not executed by this request; one that was sent before, under the same number, may have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteStatus {
    Ok,
    /// Nothing of the request took effect.
    ConditionFailed,
    /// A flush was applied after the version of a base: search the SSTables again.
    StaleManifest,
    NotLeader,
    /// Certainly not executed: try again.
    Retry,
    UnknownTable,
    UnknownPartition,
    UnknownSession,
    /// The result of so old a request is no longer kept: not executed now, may have been before.
    RequestTooOld,
    /// Flushing cannot keep up, or memory is full.
    Overloaded,
    Invalid,
    /// May or may not take effect. A retry under the same session and number tells.
    OutcomeUnknown,
}
