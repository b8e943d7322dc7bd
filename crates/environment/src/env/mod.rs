//! The environment that a server runs in: everything that is not a pure function of its input.

mod dialing;
mod handshake;
mod hangup;
mod identity;
mod keep_alive;
mod listening;
mod names;
mod net;
mod ports;
mod reaching;
pub mod roles;
mod status;
mod unix;
mod workers;

use std::future::Future;
use std::sync::Arc;

use futures::future::BoxFuture;
use sextant_rules::probe::{PausePoint, Probe, ProbeEvent};

use crate::clock::{Clock, SystemClock};
use crate::rng::{Rng, SeededRng};
use crate::vfs::{RealVfs, Vfs};

pub(crate) use handshake::CalledPath;
pub use handshake::{Party, PartyRole, internal_calls, shown as shown_cluster};
pub use hangup::Hangup;
pub use identity::{Holder, Identity};
pub use listening::Listening;
pub use names::Names;
pub(crate) use net::accepted;
pub use net::{
    Caller, Connection, DetachedConnection, Door, HANDSHAKES_MAX, Handshake, Listener, Network, TcpNetwork,
    Whom, attached, cannot_listen, cluster_channel, established, grpc_channel, grpc_incoming,
    grpc_incoming_spread, grpc_stream_channel,
};
pub use ports::{free_addrs, free_port};
pub use reaching::Reaching;
pub use status::{KIND_HEADER, error_of, never_connected, status_of};
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
    /// Simulations only.
    pub probe: Option<Arc<dyn Probe>>,
}

/// What happens when a server must stop at once (a failed fsync, a hole in the log).
pub trait Fatal: Send + Sync + 'static {
    /// Real servers end the process. In a test or a simulation this may return: the caller must then do nothing more that
    /// could acknowledge anything.
    fn fatal(&self, message: &str);

    /// The same for a server that is too old for its data: nothing is wrong with them.
    fn outdated(&self, message: &str) {
        self.fatal(message);
    }
}

/// Exit code of a server that is too old for its data.
pub const OUTDATED: u8 = 76;

/// Logs the reason and ends the process with exit code 70.
#[derive(Debug, Default)]
pub struct ExitProcess;

impl Fatal for ExitProcess {
    fn fatal(&self, message: &str) {
        tracing::error!("fatal: {message}");
        eprintln!("sextant: fatal: {message}");
        std::process::exit(70);
    }

    fn outdated(&self, message: &str) {
        tracing::error!("{message}");
        eprintln!("sextant: {message}");
        std::process::exit(OUTDATED.into());
    }
}

/// With more cores than this, more than one thread serves.
const CORES_OF_ONE_THREAD: usize = 3;

impl Env {
    /// The real world: system clock, OS randomness, real disk, TCP, threads.
    pub fn real() -> Self {
        Self {
            clock: Arc::new(SystemClock::default()),
            rng: Arc::new(SeededRng::from_os()),
            vfs: Arc::new(RealVfs),
            net: Arc::new(TcpNetwork::default()),
            workers: Arc::new(ThreadWorkers),
            fatal: Arc::new(ExitProcess),
            probe: None,
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

    /// How many threads serve, if the configuration leaves that open (`asked` is 0): one on a machine of up to three cores, since the
    /// other servers there want theirs, then one for two.
    pub fn serving_threads(&self, asked: usize) -> usize {
        let cores = self.workers.cores();
        match asked {
            0 if cores <= CORES_OF_ONE_THREAD => 1,
            0 => cores / 2,
            asked => asked,
        }
    }

    /// Runs a task on a thread of its own; see [`Workers::dedicated`].
    pub fn dedicated(&self, name: &str, task: impl Future<Output = ()> + Send + 'static) {
        let task: BoxFuture<'static, ()> = Box::pin(task);
        self.workers.dedicated(name, task);
    }

    /// Tells the probe, if there is one.
    #[inline]
    pub fn tell(&self, event: impl FnOnce() -> ProbeEvent) {
        if let Some(probe) = &self.probe {
            probe.event(event());
        }
    }

    /// Stops the task, if there is a probe and it says so.
    #[inline]
    pub async fn pause_point(&self, at: PausePoint) {
        if let Some(probe) = &self.probe
            && let Some(pause) = probe.pause(at)
        {
            tokio::time::sleep(pause).await;
        }
    }
}

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Env")
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use sextant_common::ErrorKind;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn work_runs_elsewhere_and_its_result_comes_back() {
        let env = Env::real();
        let here = std::thread::current().id();
        let there = env.blocking(|| std::thread::current().id()).await;
        assert!(there.is_some_and(|there| there != here));
        let (tx, rx) = tokio::sync::oneshot::channel();
        env.dedicated("worker-7", async move {
            let _ = tx.send(std::thread::current().name().map(str::to_owned));
        });
        assert_eq!(rx.await.unwrap().as_deref(), Some("worker-7"));
    }

    #[tokio::test]
    async fn work_that_panics_gives_nothing() {
        assert_eq!(Env::real().blocking(|| panic!("on purpose")).await, None::<()>);
    }

    #[tokio::test]
    async fn a_port_that_is_in_use_may_be_had_later_and_what_is_forbidden_may_not() {
        let listen = async |addr: &str| {
            let bound = Env::real().net.bind(addr.to_owned(), Door::Members).await;
            cannot_listen("listen", &bound.err().unwrap())
        };
        let holder = Env::real().net.bind("127.0.0.1:0".into(), Door::Members).await.unwrap();
        let in_use = listen(&holder.local_addr().unwrap().to_string()).await;
        assert!(in_use.kind == ErrorKind::Unavailable && in_use.message.starts_with("listen: "), "{in_use}");
        // An address for documentation: no host has it.
        assert_eq!(listen("192.0.2.1:0").await.kind, ErrorKind::Unavailable);
        let forbidden = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        assert_eq!(cannot_listen("listen", &forbidden).kind, ErrorKind::Invalid);
        drop(holder);
    }

    #[tokio::test]
    async fn connections_arrive_until_the_stream_is_dropped() {
        let net = Env::real().net;
        let listener = net.bind("127.0.0.1:0".into(), Door::Members).await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let in_use = net.bind(addr.clone(), Door::Members).await.err().unwrap();
        assert!(in_use.to_string().contains(&addr), "{in_use}");
        let mut incoming = Box::pin(grpc_incoming(listener));
        let mut near = net.connect(addr.clone(), Whom::Host).await.unwrap();
        let mut far = incoming.next().await.unwrap().unwrap();
        assert!(near.peer.is_some_and(|peer| peer.to_string() == addr) && far.peer.is_some());
        near.write_all(b"ping").await.unwrap();
        let mut buf = [0; 4];
        far.read_exact(&mut buf).await.unwrap();
        assert_eq!(&buf, b"ping");
        drop(incoming);
        // The listener closes as soon as its task notices.
        while net.connect(addr.clone(), Whom::Host).await.is_ok() {
            tokio::task::yield_now().await;
        }
    }
}
