//! Registration slots (design, section 14): who writes a key learns whether somebody may keep what he was told of it, and who reads
//! it, whether a write is on its way.
//!
//! A slot is one atomic word: the newest seq that was formed for any of its keys, and whether somebody has registered since. The
//! sequencer swaps it, reads set its bit; neither waits for the other.

use std::sync::atomic::{AtomicU64, Ordering};

const REGISTERED: u64 = 1 << 63;
/// Memory for unflushed records that one slot goes with: a hot memtable has some slots for each of its keys.
const BYTES_PER_SLOT: usize = 1024;
/// 2 MiB here, and as much at each p-node.
const SLOTS_MAX: usize = 1 << 18;
const SLOTS_MIN: usize = 64;

/// The slots of one partition, in one term.
#[derive(Debug)]
pub struct Slots(Box<[AtomicU64]>);

impl Slots {
    /// How many a partition has whose memtables may take so many bytes.
    pub fn for_memory(bytes: usize) -> usize {
        (bytes / BYTES_PER_SLOT).clamp(SLOTS_MIN, SLOTS_MAX).next_power_of_two()
    }

    /// Of a new leader: nothing is registered, and everything up to `newest_seq` may be on its way. `slots`: a power of two.
    pub fn new(slots: usize, newest_seq: u64) -> Self {
        Self((0..slots.next_power_of_two()).map(|_| AtomicU64::new(newest_seq)).collect())
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// A write of the slot was formed. Whether somebody had registered, who must be told before it is published.
    #[inline]
    pub fn write(&self, slot: usize, seq: u64) -> bool {
        self.0[slot].swap(seq, Ordering::AcqRel) & REGISTERED != 0
    }

    /// Somebody reads a key of the slot and may keep the answer. The newest seq that was formed there: what is not published of it
    /// has seen no registration.
    #[inline]
    pub fn register(&self, slot: usize) -> u64 {
        self.0[slot].fetch_or(REGISTERED, Ordering::AcqRel) & !REGISTERED
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn a_write_learns_of_a_registration_once() {
        let slots = Slots::new(4, 7);
        assert!(!slots.write(2, 8));
        assert_eq!(slots.register(2), 8);
        assert_eq!(slots.register(2), 8, "registered twice is registered");
        assert!(!slots.write(1, 9), "of another slot");
        assert!(slots.write(2, 10));
        assert!(!slots.write(2, 11));
    }

    #[test]
    fn what_was_appended_before_the_term_may_be_on_its_way() {
        assert_eq!(Slots::new(4, 7).register(0), 7);
    }

    #[test]
    fn there_are_as_many_as_memory_allows_and_a_power_of_two() {
        assert_eq!(Slots::for_memory(0), 64);
        assert_eq!(Slots::for_memory(100 << 20), 1 << 17);
        assert_eq!(Slots::for_memory(usize::MAX), 1 << 18);
    }

    /// Of a write and a registration at the same time one sees the other.
    #[test]
    fn no_registration_is_lost_between_threads() {
        const ROUNDS: u64 = 20_000;
        let (slots, barrier) = (Slots::new(1, 0), Barrier::new(2));
        let (mut told, mut seen) = (Vec::new(), Vec::new());
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let write = |seq| {
                    barrier.wait();
                    slots.write(0, seq)
                };
                (1..=ROUNDS).map(write).collect::<Vec<_>>()
            });
            for _ in 1..=ROUNDS {
                barrier.wait();
                seen.push(slots.register(0));
            }
            told = writer.join().unwrap();
        });
        for ((seq, seen), told) in (1..).zip(seen).zip(told) {
            assert!(seen == seq || told, "round {seq}: neither saw the other");
        }
    }
}
