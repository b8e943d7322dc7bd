//! Registered reads: what the leader keeps of its slots, how far a memtable read has come with its registration, and what a
//! p-node keeps of the answer.

use super::log::EntryKind;
use super::{Bit, Cell, State};

pub const SLOTS: usize = 2;

/// A set of slots.
pub type Slots = u8;

/// A word of the leader's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// The newest seq that was formed for any key of the slot.
    pub seq: u8,
    /// Somebody may keep what he was told of such a key since.
    pub registered: bool,
}

/// Steps of a registration that were done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    #[default]
    None,
    /// Only the serial is known, not yet its epoch (a mutant).
    Halfway,
    /// The first of two: epoch and serial are known.
    First,
    /// Both: the bit is set, too.
    Both,
}

/// A memtable read that is to be kept, at the leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registration {
    pub phase: Phase,
    pub epoch: u8,
    /// The ring's newest, in that epoch.
    pub serial: u8,
    /// The slot's, when its bit was set.
    pub seq: u8,
}

/// What a p-node keeps of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Said {
    #[default]
    Nothing,
    /// No memtable has it: what the SSTables say is final.
    NoEntry,
    /// The memtables said so, or the SSTables after them.
    Absent,
    Value(Cell),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub said: Said,
    pub epoch: u8,
    pub serial: u8,
}

impl Bit {
    /// A ring entry that is no key's: what was kept of these slots is over.
    pub fn invalidation(slots: Slots) -> Self {
        Bit { generation: 0, key: slots }
    }

    /// A ring entry that is no key's: a load is to come.
    pub const ANNOUNCEMENT: Bit = Bit { generation: 0, key: 1 << SLOTS };

    pub fn is_of_a_key(self) -> bool {
        self.generation != 0 && self.key != super::FREEZE
    }

    /// The slots that an entry invalidates.
    pub fn slots(self) -> Slots {
        if self.generation == 0 && self.key < 1 << SLOTS { self.key } else { 0 }
    }
}

pub fn slots_of(set: Slots) -> impl Iterator<Item = usize> {
    (0..SLOTS).filter(move |slot| set & (1 << slot) != 0)
}

impl State {
    /// The newest seq up to a position: of a group, or of a load.
    pub fn seq_at(&self, position: u8) -> u8 {
        let takes_one = |kind| matches!(kind, EntryKind::Group | EntryKind::Load);
        self.entries().filter(|(at, e)| *at <= position && takes_one(e.kind)).count() as u8
    }

    pub fn announcement(&self) -> Option<u8> {
        self.entries().find(|(_, e)| e.kind == EntryKind::Announce).map(|(at, _)| at)
    }

    /// Position of the load, and the memtable that it ended.
    pub fn load(&self) -> Option<(u8, u8)> {
        self.entries().find(|(_, e)| e.kind == EntryKind::Load).map(|(at, e)| (at, e.generation))
    }
}
