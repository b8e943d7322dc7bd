//! Notices silence: looks only now and then, so that traffic costs no clock reads. And what lasts too long.

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

/// Something that may be so for a while, and not longer.
pub(super) struct Grace {
    time: Duration,
    ends: Option<Pin<Box<Sleep>>>,
}

impl Grace {
    pub fn new(time: Duration) -> Self {
        Self { time, ends: None }
    }

    /// Whether it has been so all that time. If not, and it `is_so`, the task is woken when it may have.
    pub fn is_over(&mut self, is_so: bool, cx: &mut Context<'_>) -> bool {
        if !is_so {
            self.ends = None;
            return false;
        }
        let ends = self.ends.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.time)));
        ends.as_mut().poll(cx).is_ready()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_lasts_is_over_after_its_time_whatever_is_asked_meanwhile() {
        let mut grace = Grace::new(Duration::from_secs(30));
        let is_over =
            |grace: &mut Grace, is_so| grace.is_over(is_so, &mut Context::from_waker(Waker::noop()));
        for _ in 0..29 {
            assert!(!is_over(&mut grace, true));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!(!is_over(&mut grace, false), "it begins anew");
        assert!(!is_over(&mut grace, true));
        tokio::time::advance(Duration::from_secs(29)).await;
        assert!(!is_over(&mut grace, true));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(is_over(&mut grace, true) && is_over(&mut grace, true));
        assert!(!is_over(&mut grace, false));
    }
}
