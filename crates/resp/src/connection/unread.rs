//! A client that sends all of a pipeline before it reads the first reply: what it sends is read ahead, up to a bound and as far as there
//! is room, as nothing would go on if both sides waited for each other. Commands wait until it reads: they are mostly far shorter than
//! what is answered.
//!
//! Nothing of this counts as a sign of life: a client that takes none of its replies is closed as late as if it sent nothing. Where
//! others may want the room, so is one that takes next to nothing of them.

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
/// A buffer that cannot grow by so much is full: it is copied for less than that no more.
const GROWTH_BYTES_MIN: usize = AHEAD_BYTES_MAX / 16;
/// What a client takes of its replies at least, in so long, if it has room that others may want.
const TAKEN_BYTES_MIN: u64 = 64 * 1024;
const TAKEN_WITHIN_NS: u64 = 20_000_000_000;
/// How often one for whom there is no room looks again: others give theirs back without a word.
const AGAIN: Duration = Duration::from_millis(100);

/// Of one client.
#[derive(Default)]
pub(super) struct Ahead {
    /// Of all of the input's buffer: commands that are slices of it keep it, too.
    room: Option<Arc<Vec<Share>>>,
    again: Option<Pin<Box<Sleep>>>,
    /// What the client had taken of its replies when it was last looked at, and when that was.
    seen: Option<(u64, u64)>,
}

impl Ahead {
    /// What a command is to keep as long as its arguments.
    pub fn room(&self) -> Option<Arc<Vec<Share>>> {
        self.room.clone()
    }

    /// Takes room for a buffer of so many bytes: what it has is part of it, if no command keeps the buffer before.
    fn grow(&mut self, ahead: &Room, bytes: usize) -> bool {
        let (mut shares, kept) = match self.room.take().map(Arc::try_unwrap) {
            Some(Err(kept)) => (Vec::new(), Some(kept)),
            Some(Ok(shares)) => (shares, None),
            None => (Vec::new(), None),
        };
        let mut has: usize = shares.iter().map(Share::bytes).sum();
        // What only a larger one needed is given back.
        while let Some(last) = shares.pop_if(|last| has - last.bytes() >= bytes) {
            has -= last.bytes();
        }
        let more = (has < bytes).then(|| ahead.try_take(bytes - has));
        let has_it = !matches!(more, Some(None));
        shares.extend(more.flatten());
        self.room = if shares.is_empty() { kept } else { Some(Arc::new(shares)) };
        has_it
    }

    /// At a look: whether the client, which is waited for, has taken too little of its replies since one that is long enough ago.
    /// `taken`: bytes so far.
    fn is_slow(&mut self, taken: u64, now_ns: u64) -> bool {
        let (taken_then, then_ns) = *self.seen.get_or_insert((taken, now_ns));
        let is_long_ago = now_ns.saturating_sub(then_ns) >= TAKEN_WITHIN_NS;
        if is_long_ago {
            self.seen = Some((taken, now_ns));
        }
        is_long_ago && taken - taken_then < TAKEN_BYTES_MIN
    }
}

/// How large a buffer that is full is to become, if so much of it is not looked at yet. None: it is large enough.
fn larger(unread_bytes: usize) -> Option<usize> {
    let capacity = (2 * unread_bytes).clamp(BUFFER_KEPT_BYTES, AHEAD_BYTES_MAX);
    let grows = capacity.saturating_sub(unread_bytes) >= GROWTH_BYTES_MIN.min(capacity / 2);
    grows.then_some(capacity)
}

impl<S: Store> Connection<S> {
    /// At a look: whether it has room that others may want, and takes too little of its replies for that.
    pub(super) fn takes_too_little(&mut self) -> bool {
        let is_waited_for = !self.output.is_empty() && self.pipeline.unfinished() == 0;
        if self.ahead.room.is_none() || !is_waited_for {
            self.ahead.seen = None;
            return false;
        }
        let left = self.shared.config.max_large_bytes.saturating_sub(self.shared.ahead.held_bytes());
        let scarce = AHEAD_BYTES_MAX.min(self.shared.config.max_large_bytes / 4);
        self.ahead.is_slow(self.output.taken(), self.shared.now_ns()) && left < scarce
    }

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
        let Some(capacity) = larger(self.input.len()) else { return false };
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
            self.cut_input();
        }
    }

    /// What is left of the input goes to a buffer of its own size. If that is a small one, it needs no room of those that read ahead.
    pub(super) fn cut_input(&mut self) {
        self.input = BytesMut::from(&self.input[..]);
        if self.input.len() <= BUFFER_KEPT_BYTES {
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

    #[test]
    fn a_smaller_buffer_gives_back_what_only_the_larger_one_needed() {
        let room = Room::new(16 * KIB);
        let mut ahead = Ahead::default();
        assert!([4, 8, 16].into_iter().all(|kib| ahead.grow(&room, kib * KIB)));
        for (kib, held_kib) in [(16, 16), (16, 16), (9, 16), (7, 8), (8, 8), (3, 4), (4, 4), (6, 6)] {
            assert!(ahead.grow(&room, kib * KIB));
            assert_eq!(room.held_bytes(), held_kib * KIB, "{kib}");
        }
    }

    #[test]
    fn all_that_may_be_read_ahead_is_wherever_it_begins_and_no_copy_is_made_for_little() {
        for begins in [0, 1, 100 * KIB, BUFFER_KEPT_BYTES - 1, 300 * KIB, 5 << 20, 9 << 20, 14 << 20] {
            let mut unread = begins;
            while let Some(capacity) = larger(unread) {
                assert!(capacity - unread >= GROWTH_BYTES_MIN.min(BUFFER_KEPT_BYTES / 2), "{unread}");
                assert!(capacity <= AHEAD_BYTES_MAX);
                unread = capacity - READ_BYTES / 2;
            }
            assert!(unread > AHEAD_BYTES_MAX - GROWTH_BYTES_MIN, "{begins}: {unread}");
        }
        assert_eq!((larger(AHEAD_BYTES_MAX), larger(3 * AHEAD_BYTES_MAX)), (None, None));
    }

    #[test]
    fn who_takes_a_byte_now_and_then_is_slow_and_who_takes_its_replies_is_not() {
        let (mut ahead, second) = (Ahead::default(), 1_000_000_000);
        let mut looks = |taken: &[u64]| {
            let at = (0..).map(|look| 7 + 30 * second * look);
            taken.iter().zip(at).map(|(taken, at)| ahead.is_slow(*taken, at)).collect::<Vec<_>>()
        };
        assert_eq!(looks(&[5, 6, 7]), [false, true, true]);
        let mut ahead = Ahead::default();
        assert!(!ahead.is_slow(0, 0) && !ahead.is_slow(0, 19 * second), "too soon to say");
        assert!(!ahead.is_slow(TAKEN_BYTES_MIN, 21 * second));
        assert!(!ahead.is_slow(TAKEN_BYTES_MIN, 40 * second) && ahead.is_slow(TAKEN_BYTES_MIN, 41 * second));
    }
}
