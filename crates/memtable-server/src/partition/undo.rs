//! What is kept of an appended entry until it is committed, to undo it if the log is cut.

use bytes::Bytes;
use sextant_common::expiry::Tick;
use sextant_common::ids::{Generation, LogPosition, TableId};

use super::sessions::SessionUndo;

/// Undoes one entry.
#[derive(Debug)]
pub(super) struct Undo {
    pub(super) index: u64,
    pub(super) last: LogPosition,
    pub(super) next_seq: u64,
    pub(super) time_ms: u64,
    pub(super) tick: Tick,
    pub(super) done: Done,
}

/// What it did, as far as that has to be undone.
#[derive(Debug)]
pub(super) enum Done {
    Nothing,
    Group {
        versions: Vec<(TableId, Bytes, u64)>,
        sessions: Vec<SessionUndo>,
    },
    Freeze(TableId),
    /// The freezes of a cut.
    Freezes(Vec<Done>),
    /// A freeze of a memtable that is flushed already: only the generation moved, from this one.
    SkippedFreeze(TableId, Generation),
    /// A table was dropped.
    Ended(TableId),
    Session(Vec<SessionUndo>),
    Membership(Bytes),
}
