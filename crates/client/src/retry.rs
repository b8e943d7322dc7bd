//! Whether, when and where a failed attempt is repeated.
//!
//! [`Retry`] is pure: failures in, steps out. `Client::call` is the shell around it that sends, waits and measures
//! time.

use std::future::Future;
use std::time::Duration;

use sextant_common::error::{Error, ErrorKind, Result};
use tonic::Status;

use crate::client::Client;
use crate::failure::Failure;
use crate::wire::Wire;

/// First wait before the p-nodes are asked a second time.
const BACKOFF_MIN: Duration = Duration::from_millis(5);
/// Longest wait: an election ends in well under a second, and nobody wants to notice it late.
const BACKOFF_MAX: Duration = Duration::from_millis(250);
/// Least wait after "overloaded".
const OVERLOADED_BACKOFF_MIN: Duration = Duration::from_millis(20);

/// A write that was certainly not executed is not tried again within less time than this (or a fifth of the whole, if
/// that is less): several times the margin that p-nodes take to answer before their caller gives up.
const SHORTEST_REPEATED_WRITE: Duration = Duration::from_millis(200);

/// What a repeated request would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Nothing but answer again: reads, idempotent administration.
    Harmless,
    /// The same, of what waits long by nature: that there is no room for it is told at once, as there may be none for long.
    HarmlessIfThereIsRoom,
    /// Take effect once: it carries a session and a request number.
    Once,
    /// Perhaps take effect twice: not repeated unless it was certainly not executed.
    Unsafe,
}

impl Repeat {
    fn is_harmless(self) -> bool {
        matches!(self, Self::Harmless | Self::HarmlessIfThereIsRoom)
    }
}

#[derive(Debug)]
pub(crate) enum Step {
    /// Try again after this wait.
    Again(Duration),
    GiveUp(Error),
}

/// The state of one operation across its attempts.
#[derive(Debug)]
pub(crate) struct Retry {
    repeat: Repeat,
    endpoints: u32,
    failures: u32,
    silences: u32,
    /// An attempt may have been executed although no result came back.
    ambiguous: bool,
    last: Option<Error>,
}

impl Retry {
    pub fn new(repeat: Repeat, endpoints: usize) -> Self {
        Self {
            repeat,
            endpoints: endpoints.max(1) as u32,
            failures: 0,
            silences: 0,
            ambiguous: false,
            last: None,
        }
    }

    /// How long the next attempt may take.
    pub fn attempt_timeout(&self, first: Duration, left: Duration) -> Duration {
        first.saturating_mul(1 << self.silences.min(10)).min(left)
    }

    /// `jitter` in 0.0..1.0.
    pub fn failed(&mut self, failure: Failure, silence: bool, jitter: f64) -> Step {
        self.ambiguous |= failure.ambiguous;
        self.silences += u32::from(silence);
        self.failures += 1;
        let kind = failure.error.kind;
        let again = match kind {
            ErrorKind::Overloaded => self.repeat != Repeat::HarmlessIfThereIsRoom,
            ErrorKind::Retry
            | ErrorKind::NotLeader
            | ErrorKind::Unavailable
            | ErrorKind::Stopping
            | ErrorKind::OutcomeUnknown => true,
            // The session is gone, and with it the memory of earlier attempts.
            ErrorKind::UnknownSession if self.ambiguous => {
                return Step::GiveUp(self.unknown(Some(&failure.error)));
            }
            ErrorKind::UnknownSession
            | ErrorKind::Invalid
            | ErrorKind::UnknownTable
            | ErrorKind::Corrupt
            | ErrorKind::Disk
            | ErrorKind::Unauthenticated
            | ErrorKind::Denied
            | ErrorKind::Outdated
            | ErrorKind::Internal => false,
        };
        if !again || (self.repeat == Repeat::Unsafe && self.ambiguous) {
            return Step::GiveUp(self.verdict(failure.error));
        }
        self.last = Some(failure.error);
        let wait = self.backoff(jitter);
        Step::Again(if kind == ErrorKind::Overloaded { wait.max(OVERLOADED_BACKOFF_MIN) } else { wait })
    }

    /// Whether another attempt may be made that can take so long. One that is too short to hear an answer turns
    /// "certainly not executed" into "unknown": better to report what is known.
    pub fn is_worth_it(&self, left: Duration, deadline: Duration) -> bool {
        let certain = !self.ambiguous && !self.repeat.is_harmless();
        left > if certain { SHORTEST_REPEATED_WRITE.min(deadline / 5) } else { Duration::ZERO }
    }

    /// The deadline has passed.
    pub fn expired(self, deadline: Duration) -> Error {
        let error = self
            .last
            .clone()
            .unwrap_or_else(|| Error::unavailable(format!("no answer within {} ms", deadline.as_millis())));
        self.verdict(error)
    }

    /// The final error: whoever wrote must not take an ambiguous failure for "not executed".
    fn verdict(&self, error: Error) -> Error {
        if self.ambiguous && !self.repeat.is_harmless() { self.unknown(Some(&error)) } else { error }
    }

    fn unknown(&self, cause: Option<&Error>) -> Error {
        match cause {
            Some(e) if e.kind == ErrorKind::OutcomeUnknown => e.clone(),
            Some(e) => Error::new(
                ErrorKind::OutcomeUnknown,
                format!("the write may or may not have taken effect; the last attempt: {}", e.message),
            ),
            None => Error::new(ErrorKind::OutcomeUnknown, "the write may or may not have taken effect"),
        }
    }

    /// No wait while there are p-nodes that were not asked in this round; then a doubling wait with jitter.
    fn backoff(&self, jitter: f64) -> Duration {
        if !self.failures.is_multiple_of(self.endpoints) {
            return Duration::ZERO;
        }
        let round = self.failures / self.endpoints - 1;
        let full = BACKOFF_MIN.saturating_mul(1 << round.min(16)).min(BACKOFF_MAX);
        full.mul_f64(0.5 + jitter / 2.0)
    }
}

impl Client {
    /// Runs one operation: attempts, failover and backoff within `deadline`. `attempt` makes one call on a channel; its
    /// time is bounded here, and told to the p-node by [`timed`].
    pub(crate) async fn call<T, F, A>(&self, repeat: Repeat, deadline: Duration, mut attempt: F) -> Result<T>
    where
        F: FnMut(Wire, Duration) -> A,
        A: Future<Output = Result<T, Status>>,
    {
        let endpoints = &self.inner.endpoints;
        self.call_at(repeat, deadline, |at, limit| attempt(endpoints.channel(at), limit)).await
    }

    /// The same; `attempt` is told which p-node it is to ask.
    pub(crate) async fn call_at<T, F, A>(
        &self,
        repeat: Repeat,
        deadline: Duration,
        mut attempt: F,
    ) -> Result<T>
    where
        F: FnMut(usize, Duration) -> A,
        A: Future<Output = Result<T, Status>>,
    {
        let clock = &self.inner.env.clock;
        let endpoints = &self.inner.endpoints;
        let started_ns = clock.holder_ns();
        let mut now_ns = started_ns;
        let mut retry = Retry::new(repeat, endpoints.len());
        let mut failed = None;
        loop {
            let left = deadline.saturating_sub(Duration::from_nanos(now_ns - started_ns));
            if left.is_zero() {
                return Err(retry.expired(deadline));
            }
            let at = endpoints.pick(now_ns, failed);
            let limit = retry.attempt_timeout(self.attempt_timeout(), left);
            let (failure, silence) = match tokio::time::timeout(limit, attempt(at, limit)).await {
                Ok(Ok(answer)) => {
                    endpoints.succeeded(at);
                    return Ok(answer);
                }
                Ok(Err(status)) => (Failure::from_status(status), false),
                Err(_) => (Failure::silence(), true),
            };
            now_ns = clock.holder_ns();
            if failure.blames_endpoint {
                endpoints.failed(at, now_ns);
            } else {
                endpoints.succeeded(at);
            }
            failed = Some(at);
            match retry.failed(failure, silence, self.inner.env.rng.unit_f64()) {
                Step::GiveUp(error) => return Err(error),
                Step::Again(wait) => {
                    let left = deadline.saturating_sub(Duration::from_nanos(now_ns - started_ns));
                    if !retry.is_worth_it(left.saturating_sub(wait), deadline) {
                        return Err(retry.expired(deadline));
                    }
                    if !wait.is_zero() {
                        tokio::time::sleep(wait).await;
                        now_ns = clock.holder_ns();
                    }
                }
            }
        }
    }
}

/// A request that tells the p-node how long its caller waits.
pub(crate) fn timed<T>(message: T, limit: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(limit);
    request
}

#[cfg(test)]
mod tests {
    use sextant_environment::env::status_of;

    use super::*;

    fn said(kind: ErrorKind) -> Failure {
        Failure::from_status(status_of(Error::new(kind, "said")))
    }

    fn broken() -> Failure {
        Failure::from_status(Status::unknown("transport error"))
    }

    fn gives_up(step: Step) -> ErrorKind {
        match step {
            Step::GiveUp(error) => error.kind,
            Step::Again(_) => panic!("would have tried again"),
        }
    }

    fn waits(step: Step) -> Duration {
        match step {
            Step::Again(wait) => wait,
            Step::GiveUp(error) => panic!("gave up: {error}"),
        }
    }

    #[test]
    fn a_refused_write_is_not_tried_again_when_its_answer_could_not_be_heard() {
        let mut refused = Retry::new(Repeat::Once, 2);
        waits(refused.failed(said(ErrorKind::Overloaded), false, 0.0));
        let (deadline, short) = (Duration::from_secs(5), Duration::from_millis(30));
        assert!(refused.is_worth_it(Duration::from_secs(1), deadline));
        assert!(!refused.is_worth_it(short, deadline));
        assert!(refused.is_worth_it(short, Duration::from_millis(100)), "whoever has little time risks it");
        assert_eq!(refused.expired(Duration::from_secs(1)).kind, ErrorKind::Overloaded);
        // Nothing to lose: the next answer may be the one that tells.
        let mut lost = Retry::new(Repeat::Once, 2);
        waits(lost.failed(broken(), false, 0.0));
        assert!(lost.is_worth_it(short, deadline));
        let mut read = Retry::new(Repeat::Harmless, 2);
        waits(read.failed(said(ErrorKind::Unavailable), false, 0.0));
        assert!(read.is_worth_it(short, deadline) && !read.is_worth_it(Duration::ZERO, deadline));
    }

    #[test]
    fn a_lost_write_with_a_session_is_repeated_and_without_one_is_unknown() {
        waits(Retry::new(Repeat::Once, 1).failed(broken(), false, 0.0));
        assert_eq!(
            gives_up(Retry::new(Repeat::Unsafe, 1).failed(broken(), false, 0.0)),
            ErrorKind::OutcomeUnknown
        );
        waits(Retry::new(Repeat::Unsafe, 1).failed(said(ErrorKind::Retry), false, 0.0));
    }

    #[test]
    fn unknown_session_is_harmless_at_first_and_unknown_after_a_lost_answer() {
        let mut first = Retry::new(Repeat::Once, 1);
        assert_eq!(
            gives_up(first.failed(said(ErrorKind::UnknownSession), false, 0.0)),
            ErrorKind::UnknownSession
        );
        let mut refused_before = Retry::new(Repeat::Once, 1);
        waits(refused_before.failed(said(ErrorKind::Overloaded), false, 0.0));
        assert_eq!(
            gives_up(refused_before.failed(said(ErrorKind::UnknownSession), false, 0.0)),
            ErrorKind::UnknownSession
        );
        let mut lost_before = Retry::new(Repeat::Once, 1);
        waits(lost_before.failed(broken(), false, 0.0));
        assert_eq!(
            gives_up(lost_before.failed(said(ErrorKind::UnknownSession), false, 0.0)),
            ErrorKind::OutcomeUnknown
        );
    }

    #[test]
    fn an_ambiguous_failure_stays_ambiguous_whatever_comes_after() {
        let mut retry = Retry::new(Repeat::Once, 1);
        waits(retry.failed(Failure::silence(), true, 0.0));
        waits(retry.failed(said(ErrorKind::Overloaded), false, 0.0));
        assert_eq!(retry.expired(Duration::from_secs(1)).kind, ErrorKind::OutcomeUnknown);
        let mut read = Retry::new(Repeat::Harmless, 1);
        waits(read.failed(Failure::silence(), true, 0.0));
        assert_eq!(read.expired(Duration::from_secs(1)).kind, ErrorKind::Unavailable);
    }

    #[test]
    fn faults_of_the_request_are_not_repeated() {
        for kind in [ErrorKind::Invalid, ErrorKind::UnknownTable, ErrorKind::Corrupt, ErrorKind::Disk] {
            assert_eq!(gives_up(Retry::new(Repeat::Harmless, 3).failed(said(kind), false, 0.0)), kind);
        }
    }

    #[test]
    fn what_there_may_be_no_room_for_for_long_is_not_repeated() {
        let mut open = Retry::new(Repeat::HarmlessIfThereIsRoom, 2);
        waits(open.failed(Failure::silence(), true, 0.0));
        assert_eq!(gives_up(open.failed(said(ErrorKind::Overloaded), false, 0.0)), ErrorKind::Overloaded);
    }

    #[test]
    fn other_p_nodes_are_asked_at_once_and_the_rounds_wait_longer_and_longer() {
        let mut retry = Retry::new(Repeat::Harmless, 2);
        let waits: Vec<_> =
            (0..24).map(|_| waits(retry.failed(said(ErrorKind::Retry), false, 1.0 - f64::EPSILON))).collect();
        assert!(waits.iter().step_by(2).all(Duration::is_zero));
        let rounds: Vec<_> = waits.iter().skip(1).step_by(2).collect();
        assert!(rounds[0] <= &BACKOFF_MIN && rounds.windows(2).all(|w| w[0] <= w[1]));
        assert!(rounds.iter().all(|w| **w <= BACKOFF_MAX));
    }

    #[test]
    fn silence_doubles_the_time_of_the_next_attempt_within_the_deadline() {
        let mut retry = Retry::new(Repeat::Harmless, 2);
        let first = Duration::from_millis(100);
        let left = Duration::from_millis(350);
        assert_eq!(retry.attempt_timeout(first, left), first);
        waits(retry.failed(Failure::silence(), true, 0.0));
        assert_eq!(retry.attempt_timeout(first, left), first * 2);
        waits(retry.failed(Failure::silence(), true, 0.0));
        assert_eq!(retry.attempt_timeout(first, left), left);
    }
}
