//! A client that sends all of a pipeline before it reads the first reply: what it sends is read ahead, up to a bound and as far as there
//! is room, as nothing would go on if both sides waited for each other. Commands wait until it reads: they are mostly far shorter than
//! what is answered.
//!
//! Nothing of this counts as a sign of life: a client that takes none of its replies is closed as late as if it sent nothing.

use std::task::Context;

use bytes::BytesMut;

use super::output::BUFFER_KEPT_BYTES;
use super::{Connection, READ_BYTES};
use crate::store::Store;

/// What may be read ahead of one client.
const AHEAD_BYTES_MAX: usize = 16 * 1024 * 1024;

impl<S: Store> Connection<S> {
    /// Reads while the client takes no replies. Users with limits, and who is none, get no room for it.
    pub(super) fn read_ahead(&mut self, cx: &mut Context<'_>) -> bool {
        let who = &mut self.conversation.who;
        if who.is_nobody() || who.has_limits() {
            return false;
        }
        if self.input.capacity() - self.input.len() < READ_BYTES / 2 {
            let capacity = (2 * self.input.len()).clamp(BUFFER_KEPT_BYTES, AHEAD_BYTES_MAX);
            if self.input.len() + READ_BYTES / 2 > capacity {
                return false;
            }
            let Some(room) = self.shared.ahead.try_take(capacity) else { return false };
            let mut input = BytesMut::with_capacity(capacity);
            input.extend_from_slice(&self.input);
            (self.input, self.ahead) = (input, Some(room));
        }
        self.read_quietly(cx)
    }

    /// Nothing complete is in the input any more: what is left of it needs no more room than any.
    pub(super) fn give_ahead_back(&mut self) {
        if self.ahead.is_some() && self.input.len() <= BUFFER_KEPT_BYTES {
            self.input = BytesMut::from(&self.input[..]);
            self.ahead = None;
        }
    }
}
