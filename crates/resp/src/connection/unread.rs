//! A client that sends all of a pipeline before it reads the first reply: what it sends is read ahead, up to a bound and as far as there
//! is room, as nothing would go on if both sides waited for each other. Commands wait until it reads: they are mostly far shorter than
//! what is answered.
//!
//! Nothing of this counts as a sign of life: a client that takes none of its replies is closed as late as if it sent nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use bytes::BytesMut;
use sextant_environment::room::{Room, Share};
use tokio::time::Sleep;

use super::output::BUFFER_KEPT_BYTES;
use super::{Connection, READ_BYTES};
use crate::store::Store;

/// What may be read ahead of one client.
const AHEAD_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How often one for whom there is no room looks again: others give theirs back without a word.
const AGAIN: Duration = Duration::from_millis(100);

/// Of one client.
#[derive(Default)]
pub(super) struct Ahead {
    /// Of all of the input's buffer: commands that are slices of it keep it, too.
    room: Option<Arc<Vec<Share>>>,
    again: Option<Pin<Box<Sleep>>>,
}

impl Ahead {
    /// What a command is to keep as long as its arguments.
    pub fn room(&self) -> Option<Arc<Vec<Share>>> {
        self.room.clone()
    }

    /// Takes room for a buffer of so many bytes: what it has is part of it, if no command keeps the buffer before.
    fn grow(&mut self, ahead: &Room, bytes: usize) -> bool {
        let (held, kept) = match self.room.take().map(Arc::try_unwrap) {
            Some(Err(kept)) => (Vec::new(), Some(kept)),
            Some(Ok(held)) => (held, None),
            None => (Vec::new(), None),
        };
        let has: usize = held.iter().map(Share::bytes).sum();
        let more = ahead.try_take(bytes.saturating_sub(has));
        let grows = more.is_some();
        let shares: Vec<Share> = held.into_iter().chain(more).collect();
        self.room = if shares.is_empty() { kept } else { Some(Arc::new(shares)) };
        grows
    }
}

impl<S: Store> Connection<S> {
    /// Reads while the client takes no replies. Users with limits, and who is none, get no room for it.
    pub(super) fn read_ahead(&mut self, cx: &mut Context<'_>) -> bool {
        let who = &mut self.conversation.who;
        if who.is_nobody() || who.has_limits() {
            return false;
        }
        if self.input.capacity() - self.input.len() < READ_BYTES / 2 && !self.make_room_ahead(cx) {
            return false;
        }
        self.read_quietly(cx)
    }

    /// A larger buffer, which has room for as much again. False: there is none now; the task is woken to look again, if there ever may be.
    fn make_room_ahead(&mut self, cx: &mut Context<'_>) -> bool {
        let capacity = (2 * self.input.len()).max(BUFFER_KEPT_BYTES);
        if capacity > AHEAD_BYTES_MAX {
            return false;
        }
        if !self.ahead.grow(&self.shared.ahead, capacity) {
            let again = self.ahead.again.get_or_insert_with(|| Box::pin(tokio::time::sleep(AGAIN)));
            if again.as_mut().poll(cx).is_ready() {
                self.ahead.again = None;
                cx.waker().wake_by_ref();
            }
            return false;
        }
        let mut input = BytesMut::with_capacity(capacity);
        input.extend_from_slice(&self.input);
        (self.input, self.ahead.again) = (input, None);
        true
    }

    /// Nothing complete is in the input any more: what is left of it needs no more room than any.
    pub(super) fn give_ahead_back(&mut self) {
        if self.ahead.room.is_some() && self.input.len() <= BUFFER_KEPT_BYTES {
            self.input = BytesMut::from(&self.input[..]);
            self.ahead = Ahead::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    #[test]
    fn a_buffer_grows_into_its_own_room_unless_a_command_keeps_the_one_before() {
        let room = Room::new(16 * KIB);
        let mut ahead = Ahead::default();
        assert!(ahead.grow(&room, 4 * KIB) && ahead.grow(&room, 8 * KIB) && ahead.grow(&room, 12 * KIB));
        assert_eq!(room.held_bytes(), 12 * KIB);
        let command = ahead.room();
        assert!(!ahead.grow(&room, 16 * KIB), "12 KiB are kept");
        assert_eq!(room.held_bytes(), 12 * KIB);
        drop(command);
        assert!(ahead.grow(&room, 16 * KIB));
        assert_eq!(room.held_bytes(), 16 * KIB);
        let command = ahead.room();
        drop(ahead);
        assert_eq!(room.held_bytes(), 16 * KIB, "as long as its arguments");
        drop(command);
        assert_eq!(room.held_bytes(), 0);
    }
}
