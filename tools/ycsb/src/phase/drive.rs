//! Runs the threads of a phase. A thread is a tokio task: a closed-loop client with one operation at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::operation::ReadMode;
use sextant_environment::Env;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::measure::{Failure, Measurements};
use crate::phase::request::Context;
use crate::phase::source::Source;
use crate::progress::Progress;
use crate::target::Target;

/// Operations that a thread claims at once: few enough for an even finish, enough that the counter is no bottleneck.
const CLAIM: u64 = 16;
/// Wait after an operation that found nobody: a dead target is not to be hammered with refused connections.
const UNAVAILABLE_PAUSE: Duration = Duration::from_millis(20);
/// A thread without a single success for so long gives the whole phase up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);

/// How much, how fast, by how many.
#[derive(Clone, Debug)]
pub struct Pace {
    pub threads: usize,
    /// Operations of all threads together; `u64::MAX`: until the sources end.
    pub operations: u64,
    /// Ends the phase early.
    pub seconds_max: Option<f64>,
    /// Operations per second that all threads together offer.
    pub rate: Option<f64>,
    pub seed: u64,
    pub quiet: bool,
}

/// What came out of a phase.
#[derive(Debug)]
pub struct Driven {
    pub measured: Measurements,
    pub seconds: f64,
    pub gave_up: bool,
}

/// Runs `pace.threads` threads, each with the source that `source(index)` makes, and merges what they measured. The clock
/// starts when all are connected.
pub async fn drive<T: Target, S: Source>(
    env: &Env,
    target: &T,
    mode: ReadMode,
    label: &str,
    pace: &Pace,
    context: &Context,
    source: impl Fn(usize) -> S,
) -> Result<Driven> {
    let progress =
        Progress::start(label, if pace.operations == u64::MAX { 0 } else { pace.operations }, pace.quiet);
    let shared = Arc::new(Shared {
        claimed: AtomicU64::new(0),
        operations: pace.operations,
        done: progress.counter(),
        gave_up: AtomicBool::new(false),
        ready: Barrier::new(pace.threads),
        seconds_max: pace.seconds_max,
    });
    let mut threads = JoinSet::new();
    for index in 0..pace.threads {
        let worker = Worker {
            env: env.clone(),
            thread: target.thread(index, mode).await?,
            source: source(index),
            context: context.clone(),
            rng: thread_rng(pace.seed, index),
            interval_ns: pace.rate.map(|rate| (pace.threads as f64 * 1e9 / rate) as u64),
            index: index as u64,
            threads: pace.threads as u64,
            shared: shared.clone(),
            measured: Measurements::default(),
        };
        threads.spawn(worker.run());
    }
    let mut measured = Measurements::default();
    let (mut started_ns, mut ended_ns) = (u64::MAX, 0);
    while let Some(joined) = threads.join_next().await {
        let (theirs, started, ended) = joined.map_err(|e| Error::internal(format!("a thread died: {e}")))?;
        measured.merge(theirs);
        started_ns = started_ns.min(started);
        ended_ns = ended_ns.max(ended);
    }
    progress.finish();
    let seconds = ended_ns.saturating_sub(started_ns) as f64 / 1e9;
    Ok(Driven { measured, seconds, gave_up: shared.gave_up.load(Relaxed) })
}

/// Each thread has its own stream of random numbers; the same seed and index give the same stream.
fn thread_rng(seed: u64, index: usize) -> fastrand::Rng {
    let mut seeds = fastrand::Rng::with_seed(seed ^ (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    fastrand::Rng::with_seed(seeds.u64(..))
}

struct Shared {
    claimed: AtomicU64,
    operations: u64,
    done: Arc<AtomicU64>,
    gave_up: AtomicBool,
    ready: Barrier,
    seconds_max: Option<f64>,
}

struct Worker<T, S> {
    env: Env,
    thread: T,
    source: S,
    context: Context,
    rng: fastrand::Rng,
    /// Nanoseconds between two operations of this thread, if a rate was asked for.
    interval_ns: Option<u64>,
    index: u64,
    threads: u64,
    shared: Arc<Shared>,
    measured: Measurements,
}

impl<T: crate::target::Thread, S: Source> Worker<T, S> {
    /// What was measured, and when it started and ended on the holder clock.
    async fn run(mut self) -> (Measurements, u64, u64) {
        self.shared.ready.wait().await;
        let started_ns = self.env.clock.holder_ns();
        let limit_ns = self.shared.seconds_max.map(|s| started_ns + (s * 1e9) as u64);
        // The threads of a paced phase start one after the other within the first interval.
        let mut due_ns = started_ns + self.interval_ns.unwrap_or(0) * self.index / self.threads;
        let mut last_success_ns = started_ns;
        let mut now_ns = started_ns;
        'claims: loop {
            let first = self.shared.claimed.fetch_add(CLAIM, Relaxed);
            let end = self.shared.operations.min(first.saturating_add(CLAIM));
            if first >= end {
                break;
            }
            for index in first..end {
                if limit_ns.is_some_and(|limit| now_ns >= limit) || self.shared.gave_up.load(Relaxed) {
                    break 'claims;
                }
                let Some(request) = self.source.next(index, &mut self.rng) else { break 'claims };
                let begun_ns = match self.interval_ns {
                    Some(interval) => {
                        let due = due_ns;
                        due_ns += interval;
                        self.wait_until(due).await;
                        due
                    }
                    None => self.env.clock.holder_ns(),
                };
                let operation = request.operation();
                let result = request.execute(&mut self.thread, &self.context, &mut self.rng).await;
                now_ns = self.env.clock.holder_ns();
                match result {
                    Ok(()) => {
                        self.measured.succeeded(operation, now_ns.saturating_sub(begun_ns));
                        last_success_ns = now_ns;
                    }
                    Err(failure) => {
                        self.measured.failed(operation, &failure);
                        self.after_failure(&failure, now_ns - last_success_ns).await;
                    }
                }
                // An answer out of a cache needs no wait: without this a thread would keep its worker to itself.
                tokio::task::consume_budget().await;
            }
            self.shared.done.fetch_add(end - first, Relaxed);
        }
        (self.measured, started_ns, now_ns)
    }

    async fn wait_until(&mut self, due_ns: u64) {
        let now_ns = self.env.clock.holder_ns();
        if now_ns < due_ns {
            tokio::time::sleep(Duration::from_nanos(due_ns - now_ns)).await;
        }
    }

    async fn after_failure(&mut self, failure: &Failure, without_success_ns: u64) {
        if let Failure::Error(e) = failure
            && matches!(e.kind, ErrorKind::Unavailable | ErrorKind::OutcomeUnknown)
        {
            tokio::time::sleep(UNAVAILABLE_PAUSE).await;
            if without_success_ns > GIVE_UP_AFTER.as_nanos() as u64 {
                self.shared.gave_up.store(true, Relaxed);
            }
        }
    }
}
