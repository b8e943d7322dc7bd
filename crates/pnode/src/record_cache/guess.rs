//! A guess where the answer to a read is kept, from where it was the last time: whoever guesses right is spared the filters of the
//! memtables, some lines of memory that are rarely in the processor's caches. A wrong guess costs a lookup.

use std::sync::atomic::{AtomicU64, Ordering};

/// 8 KiB of bits.
const WORDS: usize = 1024;

/// A bit for each key, which it shares with others.
pub(super) struct Guess(Box<[AtomicU64]>);

impl Guess {
    pub fn new() -> Self {
        Self((0..WORDS).map(|_| AtomicU64::new(0)).collect())
    }

    #[inline]
    fn place(&self, hash: u64) -> (&AtomicU64, u64) {
        (&self.0[(hash >> 6) as usize % WORDS], 1 << (hash % 64))
    }

    /// Whether a leader's answer was kept, and good, the last time.
    #[inline]
    pub fn is_kept(&self, hash: u64) -> bool {
        let (word, bit) = self.place(hash);
        word.load(Ordering::Relaxed) & bit != 0
    }

    /// Written only if it is news: threads share the lines.
    #[inline]
    pub fn was_kept(&self, hash: u64, kept: bool) {
        let (word, bit) = self.place(hash);
        if (word.load(Ordering::Relaxed) & bit != 0) != kept {
            match kept {
                true => word.fetch_or(bit, Ordering::Relaxed),
                false => word.fetch_and(!bit, Ordering::Relaxed),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_so_the_last_time_is_guessed() {
        let guess = Guess::new();
        assert!(!guess.is_kept(7));
        guess.was_kept(7, true);
        assert!(guess.is_kept(7) && !guess.is_kept(8) && !guess.is_kept(7 + 64));
        guess.was_kept(8, true);
        guess.was_kept(7, false);
        assert!(!guess.is_kept(7) && guess.is_kept(8));
    }
}
