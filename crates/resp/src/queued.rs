//! Room for what waits for `EXEC`: commands of transactions, and watched keys. (Keys that commands wait for have room of their own,
//! of the same kind.)
//!
//! Owns the room of all connections, and what each holds of it. A connection holds the first sixteenth of all of it in one half, and the
//! rest in the other: so no few that hold much keep away those that hold little.
//!
//! Invariant: what is taken beyond the few bytes that each connection has for nothing is within the room.

use std::sync::Arc;

use sextant_environment::room::{Room, Share};

/// So many bytes need no room: of each connection's transaction, and of what it watches.
const FREE_BYTES: usize = 4 * 1024;
/// Room is taken in pieces of so many bytes.
const PIECE_BYTES: usize = 16 * 1024;
/// What a connection holds beyond one part of so many is large.
const SMALL_PARTS: usize = 16;

/// Of all connections.
#[derive(Debug)]
pub(crate) struct QueuedRoom {
    small: Room,
    large: Room,
    /// Of each of the two.
    half_bytes: usize,
}

impl QueuedRoom {
    pub fn new(bytes_max: usize) -> Self {
        let half_bytes = bytes_max / 2;
        Self { small: Room::new(half_bytes), large: Room::new(half_bytes), half_bytes }
    }

    #[cfg(test)]
    pub fn held_bytes(&self) -> usize {
        self.small.held_bytes() + self.large.held_bytes()
    }

    /// Whether others may have to do without.
    pub fn is_scarce(&self) -> bool {
        self.small.held_bytes().max(self.large.held_bytes()) > self.half_bytes / 2
    }

    /// For who holds so much already.
    fn try_take(&self, held_bytes: usize, bytes: usize) -> Option<Share> {
        let small_bytes = 2 * self.half_bytes / SMALL_PARTS;
        let room = if held_bytes + bytes <= small_bytes { &self.small } else { &self.large };
        room.try_take(bytes)
    }
}

/// What one holds; given back when dropped.
#[derive(Debug)]
pub(crate) struct Held {
    pieces: Vec<Piece>,
    bytes: usize,
    left: usize,
}

/// Of what is held: whoever outlives that keeps the newest.
pub(crate) type Piece = Arc<Share>;

impl Default for Held {
    fn default() -> Self {
        Self { pieces: Vec::new(), bytes: 0, left: FREE_BYTES }
    }
}

impl Held {
    /// False: there is no room.
    pub fn take(&mut self, room: &QueuedRoom, bytes: usize) -> bool {
        if self.left < bytes {
            let piece = bytes.max(PIECE_BYTES);
            let Some(share) = room.try_take(self.bytes, piece) else { return false };
            self.bytes += piece;
            self.left += piece;
            self.pieces.push(Arc::new(share));
        }
        self.left -= bytes;
        true
    }

    pub fn newest(&self) -> Option<Piece> {
        self.pieces.last().cloned()
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    #[test]
    fn two_that_hold_much_keep_nobody_away_that_holds_little() {
        let room = QueuedRoom::new(64 * MIB);
        let (mut one, mut other) = (Held::default(), Held::default());
        while one.take(&room, 64 * 1024) {}
        while other.take(&room, 64 * 1024) {}
        assert!(room.is_scarce());
        assert!(one.bytes > 32 * MIB, "one transaction of the greatest length");
        let mut small: Vec<Held> = (0..6).map(|_| Held::default()).collect();
        for held in &mut small {
            assert!((0..60).all(|_| held.take(&room, 64 * 1024)));
        }
        drop((one, other, small));
        assert_eq!(room.held_bytes(), 0);
    }
}
