//! What servers and leaders remember, and what the explorer knows besides.

pub const SERVERS: usize = 3;

/// Servers, a set.
pub type Set = u8;

pub fn has(set: Set, server: usize) -> bool {
    set & (1 << server) != 0
}

pub fn with(set: Set, server: usize) -> Set {
    set | 1 << server
}

pub fn without(set: Set, server: usize) -> Set {
    set & !(1 << server)
}

/// What an order is as new as: the term of the leader that gives it, then its place among those that this leader gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    pub term: u8,
    pub order: u8,
}

/// A change of the replicated state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Change {
    pub term: u8,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// Of the servers that the manifest names.
    Name {
        add: Set,
        remove: Set,
    },
    /// Another table takes its place: the manifest names it no more.
    Compact,
    /// A cut names what the manifest does.
    Cut,
    EndCut,
}

impl What {
    pub fn added(self) -> Set {
        if let What::Name { add, .. } = self { add } else { 0 }
    }
}

/// A leader, in office or deposed: what it knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Leader {
    pub term: u8,
    /// By the newest manifest that it has applied. (None: there is another table in its place.)
    pub named: Set,
    /// Where a cut has it, by what it has applied.
    pub held: Set,
    /// Servers that it has proposed to name; it does not know yet what came of that.
    pub pending: Set,
    /// Servers that have told it that they have the table, and were not told to release it since.
    pub told: Set,
    pub orders: u8,
}

/// An order on its way. It may arrive at any time, also twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release {
    pub server: u8,
    pub stamp: Stamp,
    /// No manifest names the table any more: whose order it is does not matter.
    pub deletes: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Servers that have the table, durably.
    pub holding: Set,
    /// What each remembers: the newest order to copy the table, or question.
    pub fences: [Stamp; SERVERS],
    /// By the manifest, as committed.
    pub named: Set,
    /// By a cut, as committed.
    pub held: Set,
    /// Nobody's knowledge: servers that have lost their disks since a leader in office had them copy the table, or heard that it is there.
    pub lost: Set,
    /// Proposed, not committed. (An election takes those of earlier leaders in or leaves them out.)
    pub proposed: Vec<Change>,
    /// By rising term.
    pub leaders: Vec<Leader>,
    /// Sorted.
    pub releases: Vec<Release>,
    pub copies: u8,
    pub changes: u8,
    pub cuts: u8,
    pub sent: u8,
    pub wipes: u8,
}

impl State {
    /// Two of three servers have the table, and a leader knows it.
    pub fn new() -> Self {
        let named = 0b011;
        Self {
            holding: named,
            fences: [Stamp::default(); SERVERS],
            named,
            held: 0,
            lost: 0,
            proposed: Vec::new(),
            leaders: vec![Leader { term: 1, named, ..Leader::default() }],
            releases: Vec::new(),
            copies: 0,
            changes: 0,
            cuts: 0,
            sent: 0,
            wipes: 0,
        }
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}
