//! Room for what commands on several records or elements read and make before they answer.
//!
//! Owns what one of them holds of it. The room is taken in steps, ahead of what is read; whoever finds none is refused at once, as it
//! may hold some that others need.

use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::room::{Room, Share};

/// So many bytes need no room.
const FREE_BYTES: usize = 64 * 1024;
/// Room is taken in steps of so many.
const STEP_BYTES: usize = 256 * 1024;

#[derive(Debug)]
pub(crate) struct Gathered<'r> {
    room: &'r Room,
    steps: Vec<Share>,
    bytes: usize,
    lacks_room: bool,
}

impl<'r> Gathered<'r> {
    pub fn new(room: &'r Room) -> Self {
        Self { room, steps: Vec::new(), bytes: FREE_BYTES, lacks_room: false }
    }

    /// For so many bytes in all.
    pub fn make_room(&mut self, bytes: usize) -> Result<()> {
        while bytes > self.bytes {
            let step = (bytes - self.bytes).max(STEP_BYTES);
            let Some(share) = self.room.try_take(step) else {
                self.lacks_room = true;
                return Err(Error::new(
                    ErrorKind::Overloaded,
                    "nothing took effect: others read or make so much at the moment that there is no room for this",
                ));
            };
            self.steps.push(share);
            self.bytes += step;
        }
        Ok(())
    }

    /// Whether it was refused.
    pub fn lacks_room(&self) -> bool {
        self.lacks_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_gathers_more_than_there_is_room_for_is_refused_and_gives_back_what_it_has() {
        let room = Room::new(4 * STEP_BYTES);
        let (mut one, mut other) = (Gathered::new(&room), Gathered::new(&room));
        one.make_room(FREE_BYTES).unwrap();
        assert_eq!(room.held_bytes(), 0);
        one.make_room(FREE_BYTES + 1).unwrap();
        assert_eq!(room.held_bytes(), STEP_BYTES);
        other.make_room(3 * STEP_BYTES).unwrap();
        assert_eq!(one.make_room(2 * STEP_BYTES).unwrap_err().kind, ErrorKind::Overloaded);
        other.make_room(FREE_BYTES).unwrap();
        drop(one);
        other.make_room(3 * STEP_BYTES + FREE_BYTES).unwrap();
        drop(other);
        assert_eq!(room.held_bytes(), 0);
    }
}
