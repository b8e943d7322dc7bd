//! A network that measures how long its connections take: below TLS, so that round trip and handshake are told apart.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::BoxFuture;
use sextant_environment::Env;
use sextant_environment::env::{Connection, Door, Listener, Network, Whom};
use std::sync::Arc;

pub struct Stopwatch {
    env: Env,
    /// Of the newest connection, in nanoseconds.
    connected_ns: Arc<AtomicU64>,
}

impl Stopwatch {
    pub fn new(env: Env) -> Self {
        Self { env, connected_ns: Arc::default() }
    }

    /// How long the newest connection took, without what comes on top of it.
    pub fn connected_ns(&self) -> u64 {
        self.connected_ns.load(Ordering::Relaxed)
    }
}

impl Network for Stopwatch {
    fn bind(&self, addr: String, door: Door) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        self.env.net.bind(addr, door)
    }

    fn connect(&self, addr: String, whom: Whom) -> BoxFuture<'static, io::Result<Connection>> {
        let (clock, connected_ns) = (self.env.clock.clone(), self.connected_ns.clone());
        let connecting = self.env.net.connect(addr, whom);
        Box::pin(async move {
            let before_ns = clock.holder_ns();
            let connection = connecting.await?;
            connected_ns.store(clock.holder_ns().saturating_sub(before_ns), Ordering::Relaxed);
            Ok(connection)
        })
    }
}
