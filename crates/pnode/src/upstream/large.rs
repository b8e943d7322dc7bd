//! Large answers to reads: room for them before they are asked for.
//!
//! Owns: how many bytes of them are in memory in all, and on their way from each server. How large a value is, is known only when a
//! server has been asked; so it is asked first for values that are small, and says how long a large one is. That one is asked for
//! again, alone, over a connection of its own, once there is room.
//!
//! Invariant: the room of a value is held as long as anybody holds the value ([`held`]).

use std::time::Duration;

use bytes::Bytes;
use sextant_common::limits::LARGE_BYTES;
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::Clock;
use sextant_environment::room::{Purse, Room, Share};

use super::Deadline;

/// Longest value that is sent along with others.
pub(crate) const VALUE_BYTES_MAX: u32 = LARGE_BYTES as u32;
/// Large answers on their way from one server, in bytes: whoever waits for a server that is slow takes no more room than this from
/// those that ask others.
const PER_SERVER_BYTES_MAX: usize = 32 * 1024 * 1024;
/// After this time one read may have more than there is, so that those who hold room and wait for another read (an earlier one of
/// the same pipeline) get on.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a server may take for a large answer.
pub(crate) const LARGE_ANSWER_MAX: Duration = Duration::from_secs(3);

/// Room in all.
pub(crate) struct LargeReads(Room);

/// Room on the way from one server.
#[derive(Clone)]
pub(crate) struct OnTheWay(Room);

impl LargeReads {
    pub fn new(bytes_max: usize) -> Self {
        Self(Room::new(bytes_max))
    }

    /// For a piece of work that reads several values and holds them all.
    pub fn purse(&self) -> Purse {
        self.0.purse()
    }

    /// Waits for room until the deadline: the answer's, to be held as long as the value is, and that on its way. Nobody who has
    /// the one on its way waits for the other: whoever has that waits for the server only.
    pub async fn take(
        &self,
        bytes: usize,
        way: &OnTheWay,
        purse: Option<&Purse>,
        clock: &dyn Clock,
        deadline: Deadline,
    ) -> Result<(Share, Share)> {
        let taking = async {
            let on_the_way = way.0.take(bytes).await;
            let at_once = match purse {
                Some(purse) => purse.try_take(bytes),
                None => self.0.try_take(bytes),
            };
            if let Some(share) = at_once {
                return (share, on_the_way);
            }
            drop(on_the_way);
            let share = match purse {
                Some(purse) => purse.take(bytes, PATIENCE).await,
                None => self.0.take_or_more(bytes, PATIENCE).await,
            };
            (share, way.0.take(bytes).await)
        };
        let taken = tokio::time::timeout(deadline.left(clock), taking).await;
        taken.map_err(|_| busy("too many bytes of large values are being read: try again later"))
    }

    /// For a page of a scan: `bytes` of one record or a few.
    pub async fn take_for_page(
        &self,
        bytes: usize,
        purse: &Purse,
        clock: &dyn Clock,
        deadline: Deadline,
    ) -> Result<Share> {
        let taken = tokio::time::timeout(deadline.left(clock), purse.take(bytes, PATIENCE)).await;
        taken.map_err(|_| busy("too many bytes of large values are being read: try again later"))
    }

    #[cfg(test)]
    pub fn held_bytes(&self) -> usize {
        self.0.held_bytes()
    }
}

impl Default for OnTheWay {
    fn default() -> Self {
        Self(Room::new(PER_SERVER_BYTES_MAX))
    }
}

/// It was not done, and may be asked for again.
pub(crate) fn busy(why: &str) -> Error {
    Error::new(ErrorKind::Overloaded, why.to_owned())
}

struct Held<R> {
    value: Bytes,
    _room: R,
}

impl<R> AsRef<[u8]> for Held<R> {
    fn as_ref(&self) -> &[u8] {
        &self.value
    }
}

/// The value with its room: given back when nobody has it any more.
pub(crate) fn held(value: Bytes, room: impl Send + 'static) -> Bytes {
    Bytes::from_owner(Held { value, _room: room })
}

#[cfg(test)]
mod tests {
    use sextant_simulated::ManualClock;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_value_holds_its_room_until_nobody_has_it_and_who_finds_none_is_told_to_come_back() {
        let (clock, reads, way) = (ManualClock::default(), LargeReads::new(1 << 20), OnTheWay::default());
        let deadline = Deadline::after(&clock, Duration::from_secs(5));
        let take = |bytes| reads.take(bytes, &way, None, &clock, deadline);
        let (room, _) = take(1 << 20).await.unwrap();
        let value = held(Bytes::from_static(b"value"), room);
        let part = value.slice(1..);
        drop(value);
        assert_eq!((&part[..], reads.held_bytes()), (&b"alue"[..], 1 << 20));
        // One may have more than there is.
        let _more = take(1 << 20).await.unwrap();
        assert_eq!(take(1 << 20).await.unwrap_err().kind, ErrorKind::Overloaded);
        drop(part);
        take(1 << 20).await.unwrap();
    }
}
