//! A state of the whole system, small and flat: a log, its leader, the p-nodes, what is on its way between them, and what the
//! clients know.
//!
//! What follows from the log (memtables, manifest, duplicate table) is not stored but read off it ([`log`], [`manifest`]): a
//! truncation then undoes exactly what appending did, as the partition's tests show of the real one. Log positions count from
//! 1; 0 is the state before the first entry.

pub mod log;
pub mod manifest;
mod packed;
pub mod pnode;
pub mod registered;

use log::{Asked, Entry, LOG};
use pnode::PNode;
use registered::{SLOTS, Slot, Slots};
use sextant_common::expiry::Tick;

pub const KEYS: usize = 2;
pub const WRITES: usize = 4;
pub const PNODES: usize = 2;
/// Generation g of the (one) table stands at index g - 1.
pub const GENERATIONS: usize = 4;
pub const SSTS: usize = 8;
/// The newest tick that an entry of the ring can name.
pub const TICKS: u8 = 3;
/// bf-log entries of an epoch.
pub const RING: usize = 15;

/// A set of keys.
pub type Keys = u8;

pub fn keys_of(set: Keys) -> impl Iterator<Item = usize> {
    (0..KEYS).filter(move |k| set & (1 << k) != 0)
}

/// What a table or memtable has of a key. Every write writes a value of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cell(u8);

impl Cell {
    pub const NOTHING: Cell = Cell(0);

    pub const fn value(write: usize) -> Self {
        Cell(2 * write as u8 + 2)
    }

    pub const fn tombstone(write: usize) -> Self {
        Cell(2 * write as u8 + 3)
    }

    pub fn is_value(self) -> bool {
        self.0 != 0 && self.0.is_multiple_of(2)
    }

    pub fn is_tombstone(self) -> bool {
        self.0 % 2 == 1
    }

    /// A tombstone in its place.
    pub fn buried(self) -> Self {
        self.write().map_or(self, Cell::tombstone)
    }

    /// Who wrote it.
    fn write(self) -> Option<usize> {
        (self.0 != 0).then(|| usize::from(self.0) / 2 - 1)
    }
}

/// As the rules have it.
pub fn tick(n: u8) -> Tick {
    Tick(u64::from(n))
}

/// Who wrote what was there before everything.
pub const PRELOADED: usize = WRITES;
/// Who wrote what a load brings.
pub const LOADED: usize = WRITES + 1;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WriteKind {
    #[default]
    None,
    /// A blind put.
    Update,
    /// A blind put that may be treated as an INSERT where the rules allow it.
    Put,
    /// Put if absent.
    Insert,
    /// Put if present.
    Replace,
    /// A blind delete.
    Delete,
}

impl WriteKind {
    pub const ALL: [WriteKind; 5] =
        [WriteKind::Update, WriteKind::Put, WriteKind::Insert, WriteKind::Replace, WriteKind::Delete];

    /// The p-node looks into the SSTables before it sends the request.
    pub fn needs_base(self) -> bool {
        matches!(self, WriteKind::Put | WriteKind::Insert | WriteKind::Replace)
    }

    pub fn name(self) -> &'static str {
        match self {
            WriteKind::None => "none",
            WriteKind::Update => "update",
            WriteKind::Put => "put",
            WriteKind::Insert => "insert",
            WriteKind::Replace => "replace",
            WriteKind::Delete => "delete",
        }
    }
}

/// What the client knows of its write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Outcome {
    #[default]
    Unsent,
    Pending,
    Ok,
    Failed,
}

/// A copy of a request on its way to the leader, with what the SSTables of version `searched` said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCopy {
    pub sent: bool,
    pub searched: u8,
    /// Keys that exist there.
    pub present: Keys,
    /// Keys that a filter there matches.
    pub matched: Keys,
    /// When what is there expires; 0: never.
    pub expires: [u8; KEYS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Write {
    pub kind: WriteKind,
    pub keys: Keys,
    pub outcome: Outcome,
    /// Per key: what had completed or was seen before the write began, as a log position.
    pub floor: [u8; KEYS],
    pub copies: [RequestCopy; 2],
    /// The answer that waits until everything it saw is published; None: no answer waits.
    pub deferred: Option<bool>,
    /// Up to where it saw the log.
    pub deferred_after: u8,
    /// The client was told, or must assume, that the outcome is unknown.
    pub unknown: bool,
    /// When what it writes expires; 0: never.
    pub expires: u8,
}

/// What is proposed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum What {
    #[default]
    Group,
    Announcement,
    Load,
    Tick,
}

/// A group that was evaluated, on its way into the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proposal {
    pub on: bool,
    pub generation: u8,
    pub serial: u8,
    pub asked: [Asked; 2],
    /// Which copy of each request.
    pub copies: [u8; 2],
    /// Its ring entries are out: it may be appended.
    pub out: bool,
    pub what: What,
    /// Of a tick.
    pub time: u8,
    /// Slots that are still to be swapped; those that were registered.
    pub due: Slots,
    pub found: Slots,
    /// Slots that were looked at and not yet written (a mutant).
    pub half: Slots,
}

/// Work on SSTables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum JobPhase {
    #[default]
    None,
    /// Only where tables are replaced (a mutant): planned, and not yet sealed.
    Planned,
    Sealed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Job {
    pub phase: JobPhase,
    /// Flush: of which memtable. 0: it is a merge.
    pub generation: u8,
    /// Merge: of which tables, a set.
    pub inputs: u8,
    /// [`log::NO_SST`]: nothing is left.
    pub sst: u8,
    /// Planned only.
    pub contents: [Cell; KEYS],
}

pub const FLUSH: usize = 0;
pub const MERGE: usize = 1;
/// A job of a former leader that still goes on.
pub const ZOMBIE: usize = 2;

/// A bf-log entry: which key of which memtable; `key` 255: the memtable begins; generation 0: see [`registered`] and [`Bit::tick`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bit {
    pub generation: u8,
    pub key: u8,
}

pub const FREEZE: u8 = 255;

impl Bit {
    /// A ring entry that is no key's: the time is to go on.
    pub fn tick(time: u8) -> Self {
        Bit { generation: 0, key: FIRST_TICK + time }
    }

    pub fn is_tick(self) -> Option<u8> {
        (self.generation == 0 && self.key > FIRST_TICK).then(|| self.key - FIRST_TICK)
    }
}

/// Above the entries of registered reads.
const FIRST_TICK: u8 = 1 << SLOTS;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    // The log and who leads it.
    pub log: [Entry; LOG],
    pub len: u8,
    /// Up to here every future leader has the log.
    pub committed: u8,
    /// Up to where the leader knows so.
    pub known_committed: u8,
    pub published: u8,
    /// Position of the leader's own first entry.
    pub first: u8,
    pub term: u8,
    pub incarnation: u8,
    pub ring: [Bit; RING],
    pub serial: u8,
    /// The leader's filters, per memtable.
    pub filters: [Keys; GENERATIONS],
    pub proposal: Proposal,
    /// Readers below this version are stale.
    pub dropped: u8,
    /// Writes whose failure the leader remembers by itself (a mutant).
    pub remembered: u8,
    /// Writes that a duplicate table remembers although their entries are gone (a mutant).
    pub ghosts: u8,
    pub slots: [Slot; SLOTS],
    /// Slots of the newest appended group that are still to be swapped (a mutant).
    pub late: Slots,
    /// Part of the leader's filters: a load is to come.
    pub announced: bool,
    /// Readers are given the manifest of the load in the log.
    pub shown: bool,
    /// The newest tick that is out in the ring, or was in the log when it began: part of whole filters.
    pub announced_tick: u8,

    pub jobs: [Job; 3],
    pub ssts: [[Cell; KEYS]; SSTS],
    /// What the first SSTable has of every key; nothing: there is none.
    pub preloaded: Cell,
    /// When that expires; 0: never.
    pub preloaded_expiry: u8,

    pub pnodes: [PNode; PNODES],
    pub writes: [Write; WRITES],
    /// Per key: the oldest position that a new operation may see.
    pub floor: [u8; KEYS],

    // What was used up of the bounds.
    pub freezes: u8,
    pub compactions: u8,
    pub failovers: u8,
    pub refusals: u8,
    pub retries: u8,
}

impl State {
    /// The beginning: an empty log; one SSTable with every key, or none.
    pub fn root(preloaded: Cell, preloaded_expiry: u8) -> Self {
        let mut ssts = [[Cell::NOTHING; KEYS]; SSTS];
        ssts[0] = [preloaded; KEYS];
        State {
            log: [Entry::default(); LOG],
            len: 0,
            committed: 0,
            known_committed: 0,
            published: 0,
            first: 0,
            term: 1,
            incarnation: 1,
            ring: [Bit::default(); RING],
            serial: 0,
            filters: [0; GENERATIONS],
            proposal: Proposal::default(),
            dropped: 0,
            remembered: 0,
            ghosts: 0,
            slots: Default::default(),
            late: 0,
            announced: false,
            shown: false,
            announced_tick: 0,
            jobs: [Job::default(); 3],
            ssts,
            preloaded,
            preloaded_expiry,
            pnodes: Default::default(),
            writes: Default::default(),
            floor: [0; KEYS],
            freezes: 0,
            compactions: 0,
            failovers: 0,
            refusals: 0,
            retries: 0,
        }
    }

    /// (term, ring incarnation), as one number; never 0.
    pub fn epoch(&self) -> u8 {
        self.term * 16 + self.incarnation
    }

    /// Adds a bf-log entry; false: there is no more room (the bounds are too wide).
    pub fn push_bit(&mut self, bit: Bit) -> bool {
        let at = usize::from(self.serial);
        if at >= RING {
            return false;
        }
        self.ring[at] = bit;
        self.serial += 1;
        true
    }

    /// When a record expires.
    pub fn expires_at(&self, cell: Cell) -> Option<Tick> {
        let at = match cell.write() {
            _ if !cell.is_value() => 0,
            Some(PRELOADED) => self.preloaded_expiry,
            Some(write) => self.writes.get(write).map_or(0, |w| w.expires),
            None => 0,
        };
        (at != 0).then(|| tick(at))
    }

    /// What a write leaves of a key.
    pub fn cell_of(&self, write: usize) -> Cell {
        if self.writes[write].kind == WriteKind::Delete { Cell::tombstone(write) } else { Cell::value(write) }
    }
}
