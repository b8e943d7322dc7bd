//! openraft's runtime in a simulation: tokio's, but with random numbers from a seed.
//!
//! openraft's own `DeterministicRng` keeps its seed in the task, so every task that calls openraft would have to be started
//! inside its scope; here the seed is the thread's. A simulation runs on one thread, so the order of the draws is the order
//! of its events, which is fixed. A thread that nobody seeds has a seed of its own, by chance: whoever is built together with the
//! simulation and is none behaves as ever.

use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::BuildHasher;
use std::time::Duration;

use futures::FutureExt;
use openraft::OptionalSend;
use openraft::rt::AsyncRuntime;
use openraft::rt::deterministic_rng::DeterministicRng;

#[allow(deprecated, reason = "openraft names the crate that it wants instead, but re-exports the type")]
type Inner = DeterministicRng<openraft::impls::TokioRuntime>;
#[allow(deprecated, reason = "as above")]
type Tokio = openraft::impls::TokioRuntime;

thread_local! {
    static SEED: Cell<u64> = Cell::new(RandomState::new().hash_one(0));
}

/// Seeds openraft's random numbers on this thread.
pub fn seed_openraft(seed: u64) {
    SEED.set(seed);
}

#[derive(Debug)]
pub struct SimulatedRuntime(Tokio);

impl AsyncRuntime for SimulatedRuntime {
    type JoinError = <Tokio as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <Tokio as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <Tokio as AsyncRuntime>::Sleep;
    type Instant = <Tokio as AsyncRuntime>::Instant;
    type TimeoutError = <Tokio as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = <Tokio as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = <Inner as AsyncRuntime>::ThreadLocalRng;
    type Mpsc = <Tokio as AsyncRuntime>::Mpsc;
    type Watch = <Tokio as AsyncRuntime>::Watch;
    type Oneshot = <Tokio as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <Tokio as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        Tokio::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        Tokio::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        Tokio::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        Tokio::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        Tokio::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        Tokio::is_panic(join_error)
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        let seed = SEED.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        SEED.set(seed);
        // The scope's only public use is a future; this one is ready when it is polled first.
        let drawn = Inner::scope(seed, async { Inner::thread_rng() }).now_or_never();
        drawn.expect("a future without an await")
    }

    fn new(threads: usize) -> Self {
        Self(Tokio::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }
}
