//! Notices silence. Looks only now and then, so that traffic costs no clock reads.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

pub(super) struct Watch {
    sleep: Pin<Box<Sleep>>,
    period: Duration,
    /// Bytes moved since the last look.
    moved: bool,
    /// Looks without traffic in a row.
    silent: u32,
}

impl Watch {
    /// Looks once a period.
    pub fn new(period: Duration) -> Self {
        Self { sleep: Box::pin(tokio::time::sleep(period)), period, moved: false, silent: 0 }
    }

    /// Bytes have moved.
    pub fn note(&mut self) {
        self.moved = true;
    }

    /// At a look: how long it has been silent. Otherwise the task is woken at the next.
    pub fn poll_look(&mut self, cx: &mut Context<'_>) -> Poll<Duration> {
        if self.sleep.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.sleep.set(tokio::time::sleep(self.period));
        self.silent = if self.moved { 0 } else { self.silent + 1 };
        self.moved = false;
        Poll::Ready(self.period * self.silent)
    }
}
