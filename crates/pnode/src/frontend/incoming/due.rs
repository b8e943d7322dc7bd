//! How long a client may take to send a message: one that gets on is waited for.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::Sleep;

/// How long it may take until the first message of a call begins: it may wait for other calls of its connection.
pub(super) const BEGINS_WITHIN: Duration = Duration::from_secs(60);
/// How long a client may take to send a message that has begun: this, and a second for so many bytes. (As over RESP.)
pub(super) const UPLOAD_GRACE: Duration = Duration::from_secs(10);
pub(super) const UPLOAD_BYTES_PER_S: usize = 256 * 1024;
/// How much longer either may take, as long as the connection brings so many bytes a second, of whatever: clients send their calls in
/// turn, each has a part of it. (Enough for as many bytes as parts of messages have room.)
pub(super) const SHARING_MAX: Duration = Duration::from_secs(5 * 60);
/// When a message is to be here.
pub(super) struct Due {
    sleep: Pin<Box<Sleep>>,
    /// Which one; 0: it has not begun. And how many seconds it was given for its length.
    message: usize,
    seconds: usize,
    /// How long until then, from the last look; and what its connection had received at that look.
    period: Duration,
    received: u64,
    /// How much longer it may be waited for because its connection gets on.
    more: Duration,
}

impl Due {
    /// Of a message of so many bytes, as far as it is known. `before`: what was waited for last. `received`: by its connection, until now.
    pub fn of(before: Option<Due>, message: usize, length: usize, received: u64) -> Self {
        let seconds = length / UPLOAD_BYTES_PER_S;
        let before = before.filter(|due| due.message == message);
        let more = before.as_ref().map_or(SHARING_MAX, |due| due.more);
        if let Some(due) = before.filter(|due| due.seconds >= seconds) {
            return due;
        }
        let period = match message {
            0 => BEGINS_WITHIN,
            _ => UPLOAD_GRACE + Duration::from_secs(seconds as u64),
        };
        Self { sleep: Box::pin(tokio::time::sleep(period)), message, seconds, period, received, more }
    }

    /// Whether it is over; if not, the task is woken when it may be.
    pub fn is_over(&mut self, received: u64, cx: &mut Context<'_>) -> bool {
        while self.sleep.as_mut().poll(cx).is_ready() {
            let gets_on = received - self.received >= self.period.as_secs() * UPLOAD_BYTES_PER_S as u64;
            if !gets_on || self.more.is_zero() {
                return true;
            }
            (self.period, self.received) = (self.period.min(self.more), received);
            self.more -= self.period;
            // (From now on: this process may have stood still.)
            self.sleep.set(tokio::time::sleep(self.period));
        }
        false
    }
}
