//! A p-node: its view, its reader, its cache; and, kept with it, what the leader's books say of it.

use sextant_common::expiry::Ticks;
use sextant_pnode::rules::{Progress, Step};

use super::registered::{Kept, Registration, SLOTS};
use super::{Cell, GENERATIONS, KEYS, Keys, tick};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReplyKind {
    #[default]
    None,
    /// The answer to a pull: bf-log entries after `from`, up to `serial`.
    News,
    /// Whole filters as of `serial`.
    Whole,
}

/// A reply on its way to the p-node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    pub kind: ReplyKind,
    pub epoch: u8,
    pub from: u8,
    pub serial: u8,
    pub bits: [Keys; GENERATIONS],
    pub manifest: u8,
    /// A lease that has not expired yet.
    pub leased: bool,
    /// News: per slot, the serial of its newest invalidation; 0: none.
    pub slots: [u8; SLOTS],
    /// A load is to come.
    pub announced: bool,
    /// News: the newest tick of which an entry is among them; whole filters: that there is; 0: none.
    pub tick: u8,
    /// The newest that was published when the leader answered.
    pub published_tick: u8,
}

/// What a p-node knows of the partition's time: the newest tick that it knows to be published, and the newest of which an entry of
/// the ring came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    pub published: u8,
    pub announced: u8,
}

impl Times {
    pub fn exactly(at: u8) -> Self {
        Times { published: at, announced: at }
    }

    /// As the rules have it.
    pub fn ticks(self) -> Ticks {
        Ticks { published: tick(self.published), announced: tick(self.announced) }
    }
}

/// A read under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    pub progress: Progress,
    /// What comes next; never `Done`.
    pub step: Step,
    pub key: u8,
    /// The oldest position that it may see.
    pub floor: u8,
    /// Version of the SSTables that it searches.
    pub searched: u8,
    pub cached: Cell,
    /// A memtable read that has loaded the published position, and not yet the memtables: 1 + position.
    pub loaded: u8,
    pub registration: Registration,
    /// No memtable had an entry, and that is kept: what the SSTables say may be, too.
    pub keeps: bool,
    /// Of the view that it consulted; once the leader has answered: the time that it answered of.
    pub times: Times,
    /// What the SSTables said, if only the leader knows whether that has expired.
    pub undecided: Cell,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cached {
    /// [`Cell::NOTHING`]: no entry.
    pub cell: Cell,
    pub stamp: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PNode {
    // The view: one object.
    pub manifest: u8,
    /// 0: it has no filters.
    pub epoch: u8,
    pub serial: u8,
    pub filters: [Keys; GENERATIONS],
    /// The serial of the grant that makes the filters usable.
    pub lease: Option<u8>,
    /// SSTables that were in some view, so that their filters are here: a set.
    pub seen: u8,
    /// Part of the view: per slot, the newest serial that may have invalidated what is kept.
    pub slot_serials: [u8; SLOTS],
    /// Part of the view: a load is to come, and until its manifest is here the leader is asked for every key.
    pub announced: bool,
    /// Part of the view.
    pub times: Times,

    pub replies: [Reply; 2],
    pub reader: Option<Reader>,
    pub cache: [Cached; KEYS],
    /// What the leader said, of either key.
    pub kept: [Kept; KEYS],
    /// Invalidations that are acknowledged and not yet applied (a mutant).
    pub unapplied: [u8; SLOTS],

    // The leader's books.
    pub acked: u8,
    /// Serials of grants of this epoch that have not expired: a set.
    pub grants: u16,
    /// A lease of a former incarnation (or, for a mutant, of a former leader) has not expired.
    pub old_grant: bool,
}

impl PNode {
    /// Before anything was pulled.
    pub fn new(preloaded: bool) -> Self {
        PNode { manifest: 1, seen: u8::from(preloaded), ..PNode::default() }
    }

    /// Whether B_m of any memtable has the key.
    pub fn in_filters(&self, key: usize) -> bool {
        self.filters.iter().any(|f| f & (1 << key) != 0)
    }
}
