//! Which servers have lost their memory, and what copies there are of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// The files of a disk, as they were.
pub(super) type Contents = Vec<(PathBuf, Vec<u8>)>;

/// Memory that was lost, and copies to put back.
#[derive(Default)]
pub(super) struct Wipes {
    /// By server: since when (true time) it has been without its memory.
    pub(super) lost: BTreeMap<String, u64>,
    /// Whoever must not start with what is left, until the rest is emptied too.
    pub(super) partly: BTreeSet<String>,
    /// With the time (true time) that they were made at.
    pub(super) copies: BTreeMap<String, (u64, Contents)>,
    /// Whose directories have been set back, until that is noticed or the calm is over.
    pub(super) older: BTreeSet<String>,
    pub(super) calm: Option<Calm>,
    pub(super) full: Option<FullLaggard>,
}

/// A time without faults, around an older copy.
pub(super) struct Calm {
    pub(super) since_ns: u64,
    /// When the present leaders were first seen, and who they are.
    pub(super) leaders: (u64, Vec<u64>),
    /// Whose directories have been set back, and when.
    pub(super) put_back: Option<(String, u64)>,
}

/// A follower that lags, whose disk is going to be full, or is, until it has refused a snapshot.
pub(super) struct FullLaggard {
    pub(super) name: String,
    /// Then it is given up: nobody sends it one.
    pub(super) until_ns: u64,
    /// How many snapshots had been refused before, by anybody.
    pub(super) refused_before: u64,
    /// After the refusal its disk stays full for so long.
    pub(super) well_ms: u64,
}

impl Wipes {
    /// Whether a fault now could make an older copy one that nobody can notice.
    pub(super) fn is_calm(&self) -> bool {
        self.calm.is_some()
    }
}
