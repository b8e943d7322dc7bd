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
use sextant_environment::room::Share;
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
    room: Option<Arc<Share>>,
    again: Option<Pin<Box<Sleep>>>,
}

impl Ahead {
    /// What a command is to keep as long as its arguments.
    pub fn room(&self) -> Option<Arc<Share>> {
        self.room.clone()
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
        let Some(room) = self.shared.ahead.try_take(capacity) else {
            let again = self.ahead.again.get_or_insert_with(|| Box::pin(tokio::time::sleep(AGAIN)));
            if again.as_mut().poll(cx).is_ready() {
                self.ahead.again = None;
                cx.waker().wake_by_ref();
            }
            return false;
        };
        let mut input = BytesMut::with_capacity(capacity);
        input.extend_from_slice(&self.input);
        self.input = input;
        self.ahead = Ahead { room: Some(Arc::new(room)), again: None };
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
