//! Up to where a replica has published: read from any thread, as one.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use sextant_common::expiry::Tick;

use crate::publication::Position;

/// One writer, the worker; with each entry one of the two goes on, or none.
#[derive(Debug, Default)]
pub struct Published {
    seq: AtomicU64,
    tick: AtomicU64,
}

impl Published {
    pub fn store(&self, position: Position) {
        self.seq.store(position.seq, Release);
        self.tick.store(position.tick.0, Release);
    }

    /// The newest seq and the newest tick up to one position of the log.
    ///
    /// Two loads would not do: of a record that was overwritten before a tick, a reader might say that it has expired by it. Ticks
    /// only rise: that of both looks was that of the moment in between.
    #[inline]
    pub fn load(&self) -> Position {
        let mut tick = self.tick.load(Acquire);
        loop {
            let seq = self.seq.load(Acquire);
            let again = self.tick.load(Acquire);
            if again == tick {
                return Position { seq, tick: Tick(tick) };
            }
            tick = again;
        }
    }

    #[inline]
    pub fn seq(&self) -> u64 {
        self.seq.load(Acquire)
    }

    /// The newest tick that was ever published here.
    pub fn tick(&self) -> Tick {
        Tick(self.tick.load(Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seq_and_tick_are_always_of_one_position() {
        const ROUNDS: u64 = 20_000;
        let published = Published::default();
        // Writes and ticks by turns: the tick is never further than the seq, and never two steps behind.
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for n in 1..=ROUNDS {
                    published.store(Position { seq: n, tick: Tick(n - 1) });
                    published.store(Position { seq: n, tick: Tick(n) });
                }
            });
            while !writer.is_finished() {
                let Position { seq, tick } = published.load();
                assert!(seq == tick.0 || seq == tick.0 + 1, "{seq} {tick:?}");
            }
        });
        assert_eq!(published.load(), Position { seq: ROUNDS, tick: Tick(ROUNDS) });
    }
}
