//! Who can be reached, in the log: a name that nobody has, a host that is silent, a certificate that is not good are told once when
//! it begins, and when it is over; not with every attempt, nor again where two reasons take turns (a name server that knows no
//! such host, or says nothing).

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use super::net::{Connection, Door, Listener, Network, Whom};
use crate::clock::Clock;
use crate::config::UnixListen;

/// Another reason is told no sooner than this after the one before.
const PAUSE_NS: u64 = 10_000_000_000;
/// Servers have fewer peers; whoever has more is not told of all.
const PEERS_MAX: usize = 1024;
/// Reasons for one peer: there are few kinds, but some texts have numbers.
const REASONS_MAX: usize = 16;

/// A network whose failures to connect are logged.
pub struct Reaching {
    net: Arc<dyn Network>,
    clock: Arc<dyn Clock>,
    /// By address: those that are not reached.
    missed: Arc<Mutex<BTreeMap<String, Missed>>>,
}

#[derive(Default)]
struct Missed {
    /// All that were told since it began.
    why: Vec<String>,
    told_ns: u64,
}

impl Missed {
    /// Whether this reason is to be told now.
    fn tells(&mut self, why: &str, now_ns: u64) -> bool {
        let is_too_soon = !self.why.is_empty() && now_ns.saturating_sub(self.told_ns) < PAUSE_NS;
        if is_too_soon || self.why.len() == REASONS_MAX || self.why.iter().any(|before| before == why) {
            return false;
        }
        self.why.push(why.to_owned());
        self.told_ns = now_ns;
        true
    }
}

impl Reaching {
    pub fn told(net: Arc<dyn Network>, clock: Arc<dyn Clock>) -> Arc<dyn Network> {
        Arc::new(Self { net, clock, missed: Arc::default() })
    }
}

impl Network for Reaching {
    fn bind(&self, addr: String, door: Door) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        self.net.bind(addr, door)
    }

    fn bind_unix(&self, listen: UnixListen) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        self.net.bind_unix(listen)
    }

    fn connect(&self, addr: String, whom: Whom) -> BoxFuture<'static, io::Result<Connection>> {
        let connecting = self.net.connect(addr.clone(), whom);
        let (missed, clock) = (self.missed.clone(), self.clock.clone());
        let mut attempt = Attempt { addr, missed, clock, is_over: false };
        Box::pin(async move {
            let connected = connecting.await;
            attempt.ended(connected.as_ref().err().map(ToString::to_string));
            connected
        })
    }

    fn register(&self, registry: &mut Registry) {
        self.net.register(registry);
    }
}

struct Attempt {
    addr: String,
    missed: Arc<Mutex<BTreeMap<String, Missed>>>,
    clock: Arc<dyn Clock>,
    is_over: bool,
}

impl Attempt {
    /// `why` it failed.
    fn ended(&mut self, why: Option<String>) {
        self.is_over = true;
        let addr = &self.addr;
        let mut missed = self.missed.lock();
        let Some(why) = why else {
            if missed.remove(addr).is_some() {
                tracing::info!("{addr} is reached");
            }
            return;
        };
        let now_ns = self.clock.holder_ns();
        if missed.len() == PEERS_MAX && !missed.contains_key(addr) {
            return;
        }
        if missed.entry(addr.clone()).or_default().tells(&why, now_ns) {
            tracing::warn!("cannot connect to {addr}: {why}");
        }
    }
}

/// Whoever connects has waited for as long as it wanted to.
impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.is_over {
            self.ended(Some("no answer".into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::env::TcpNetwork;

    #[tokio::test]
    async fn whoever_is_not_reached_is_known_until_it_is() {
        let net = Reaching {
            net: Arc::new(TcpNetwork::default()),
            clock: Arc::new(SystemClock::default()),
            missed: Arc::default(),
        };
        let missed = || net.missed.lock().values().flat_map(|missed| missed.why.clone()).collect::<Vec<_>>();
        let free = crate::env::free_addrs(&crate::Env::real(), 1).await.unwrap().remove(0);
        let connect = || net.connect(free.clone(), Whom::Host);
        assert!(connect().await.is_err() && missed()[0].contains("refused"), "{:?}", missed());
        let first_ns = net.missed.lock()[&free].told_ns;
        assert!(connect().await.is_err() && net.missed.lock()[&free].told_ns == first_ns, "told once");
        // Another reason, too soon.
        drop(connect());
        assert!(missed().len() == 1 && missed()[0].contains("refused"), "{:?}", missed());
        let listener = std::net::TcpListener::bind(&free).unwrap();
        connect().await.unwrap();
        assert!(missed().is_empty());
        drop(connect());
        assert_eq!(missed(), ["no answer"]);
        drop(listener);
    }

    #[test]
    fn reasons_that_take_turns_are_told_once_each() {
        let mut missed = Missed::default();
        let mut tells =
            |at: u64| missed.tells(["no such host", "no answer"][at as usize % 2], at * PAUSE_NS / 3);
        let told: Vec<u64> = (0..100).filter(|at| tells(*at)).collect();
        assert_eq!(told, [0, 3]);
    }
}
