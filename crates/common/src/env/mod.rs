//! The environment that a server runs in: everything that is not a pure function of its input.

mod net;
mod workers;

use std::future::Future;
use std::sync::Arc;

use futures::future::BoxFuture;

use crate::clock::{Clock, SystemClock};
use crate::rng::{Rng, SeededRng};
use crate::vfs::{RealVfs, Vfs};

pub use net::{Connection, Listener, Network, TcpNetwork, grpc_channel, grpc_incoming};
pub use workers::{ThreadWorkers, Workers};

/// Time, randomness, disk, network, threads, and what to do when going on would be unsafe. Cheap to clone.
#[derive(Clone)]
pub struct Env {
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    pub vfs: Arc<dyn Vfs>,
    pub net: Arc<dyn Network>,
    pub workers: Arc<dyn Workers>,
    pub fatal: Arc<dyn Fatal>,
}

/// What happens when a server must stop at once (a failed fsync, a hole in the log).
pub trait Fatal: Send + Sync + 'static {
    /// Real servers end the process. In a test or a simulation this may return: the caller must then do nothing more that
    /// could acknowledge anything.
    fn fatal(&self, message: &str);
}

/// Logs the reason and ends the process with exit code 70.
#[derive(Debug, Default)]
pub struct ExitProcess;

impl Fatal for ExitProcess {
    fn fatal(&self, message: &str) {
        tracing::error!("fatal: {message}");
        eprintln!("sextant: fatal: {message}");
        std::process::exit(70);
    }
}

impl Env {
    /// The real world: system clock, OS randomness, real disk, TCP, threads.
    pub fn real() -> Self {
        Self {
            clock: Arc::new(SystemClock::default()),
            rng: Arc::new(SeededRng::from_os()),
            vfs: Arc::new(RealVfs),
            net: Arc::new(TcpNetwork),
            workers: Arc::new(ThreadWorkers),
            fatal: Arc::new(ExitProcess),
        }
    }

    /// Runs blocking work elsewhere and waits for it. `None` if the work was dropped because the runtime is stopping.
    pub async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (tx, rx) = tokio::sync::oneshot::channel();
        self.workers.blocking(Box::new(move || {
            let _ = tx.send(work());
        }));
        rx.await.ok()
    }

    /// Runs a task on a thread of its own; see [`Workers::dedicated`].
    pub fn dedicated(&self, name: &str, task: impl Future<Output = ()> + Send + 'static) {
        let task: BoxFuture<'static, ()> = Box::pin(task);
        self.workers.dedicated(name, task);
    }
}

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Env")
    }
}
