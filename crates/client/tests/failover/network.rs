//! A network in memory, and the runtime's paused time as a clock. Nothing waits for a real socket, so time moves on only when everybody
//! waits for it: what happens within a timeout does not depend on how fast the machine is.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use sextant_environment::Env;
use sextant_environment::clock::{Clock, WallInterval};
use sextant_environment::env::{Connection, Door, Listener, Network, Whom};
use tokio::sync::mpsc;

/// Bytes that one end may be ahead of the other.
const PIPE_BYTES: usize = 64 * 1024;

/// For a test with `start_paused`.
pub fn env() -> Env {
    Env { net: Arc::new(MemoryNetwork::default()), clock: Arc::new(PausedTime::start()), ..Env::real() }
}

/// Gives each listener a port of its own, whatever it asks for.
#[derive(Default)]
struct MemoryNetwork {
    listeners: Mutex<HashMap<SocketAddr, mpsc::UnboundedSender<Connection>>>,
}

struct MemoryListener {
    addr: SocketAddr,
    arriving: mpsc::UnboundedReceiver<Connection>,
}

impl Network for MemoryNetwork {
    fn bind(&self, _addr: String, _: Door) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        let mut listeners = self.listeners.lock();
        let addr = SocketAddr::from(([127, 0, 0, 1], 1000 + listeners.len() as u16));
        let (sender, arriving) = mpsc::unbounded_channel();
        listeners.insert(addr, sender);
        Box::pin(async move { Ok(Box::new(MemoryListener { addr, arriving }) as Box<dyn Listener>) })
    }

    fn connect(&self, addr: String, _: Whom) -> BoxFuture<'static, io::Result<Connection>> {
        let listener = addr.parse().ok().and_then(|addr| self.listeners.lock().get(&addr).cloned());
        Box::pin(async move {
            let refused = || io::Error::new(io::ErrorKind::ConnectionRefused, "connection refused");
            let (near, far) = tokio::io::duplex(PIPE_BYTES);
            let listener = listener.ok_or_else(refused)?;
            listener.send(Connection::new(far, None)).map_err(|_| refused())?;
            Ok(Connection::new(near, None))
        })
    }
}

impl Listener for MemoryListener {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addr)
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async move { self.arriving.recv().await.ok_or_else(|| io::ErrorKind::NotConnected.into()) })
    }
}

/// The runtime's time since the test began.
struct PausedTime(tokio::time::Instant);

impl PausedTime {
    #[allow(clippy::disallowed_methods, reason = "the runtime's paused time is this test's only one")]
    fn start() -> Self {
        Self(tokio::time::Instant::now())
    }
}

impl Clock for PausedTime {
    fn wall(&self) -> WallInterval {
        WallInterval::UNSYNCHRONISED
    }

    fn wall_guess_ns(&self) -> u64 {
        self.holder_ns()
    }

    fn holder_ns(&self) -> u64 {
        // Some uptime, so that subtractions stay positive.
        (Duration::from_secs(1000) + self.0.elapsed()).as_nanos() as u64
    }

    fn grantor_ns(&self) -> u64 {
        self.holder_ns()
    }
}
