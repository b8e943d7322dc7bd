//! What became of registration slots (design, section 14): for each the serial from which on an answer may still be used.

use std::sync::atomic::{AtomicU64, Ordering};

use sextant_common::ids::{Epoch, Serial};

/// What the leader's answer to a registered read is kept with: taken before the slot was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    pub epoch: Epoch,
    pub serial: Serial,
}

/// Of one epoch's slots. Only ever rises, so views share it; a write that comes in between makes fewer answers usable, never more.
#[derive(Debug)]
pub(crate) struct SlotSerials(Box<[AtomicU64]>);

impl SlotSerials {
    /// Whole filters of this serial were installed: what happened to the slots before is unknown. `slots`: 0 or a power of two.
    pub fn new(slots: usize, serial: Serial) -> Self {
        Self((0..slots).map(|_| AtomicU64::new(serial.0)).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// What was kept of each of these before its entry is over; the first entry comes right after `before`.
    pub fn invalidate(&self, slots: impl Iterator<Item = usize>, before: Serial) {
        let mut serial = before.0;
        let mut strays = false;
        for slot in slots {
            serial += 1;
            match self.0.get(slot) {
                Some(over) => _ = over.fetch_max(serial, Ordering::Release),
                None => strays = true,
            }
        }
        if strays {
            // Of no slot of ours: whatever is meant, it is over.
            self.0.iter().for_each(|over| _ = over.fetch_max(serial, Ordering::Release));
        }
    }

    #[inline]
    pub fn over_at(&self, slot: usize) -> Option<Serial> {
        self.0.get(slot).map(|over| Serial(over.load(Ordering::Acquire)))
    }
}
