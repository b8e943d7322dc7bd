//! Clients beside the load: one small operation after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;
use sextant_client::{Client, ClientOptions};
use sextant_common::error::{Error, Result};
use sextant_environment::Env;
use tokio::task::JoinSet;

/// Clients of each kind for each p-node that they name first.
const CLIENTS: usize = 2;
/// Between two operations of a client.
const PAUSE: Duration = Duration::from_millis(2);
/// The same of one that reads what is in SSTables: so that its keys last for some minutes.
const COLD_PAUSE: Duration = Duration::from_millis(10);
/// Keys of a client: those that it wrote, it reads.
const KEYS: u64 = 64;
/// Of one that reads what is in SSTables. A p-node keeps what it was asked for once.
const COLD_KEYS: u64 = 20_000;
/// Cold keys are written by so many at a time.
const LOADERS: usize = 64;
/// Clients that see no success for so long see none any more.
const ALIVE_WITHIN: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    /// What a writer wrote a moment ago: it is in a memtable.
    Recent,
    /// What is in SSTables, each key once.
    Cold,
}

impl Kind {
    fn pause(self) -> Duration {
        if self == Kind::Cold { COLD_PAUSE } else { PAUSE }
    }
}

/// What the clients saw since they were last asked.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub operations: u64,
    /// Their texts.
    pub errors: Vec<String>,
    /// The longest time of a client between two successes, in milliseconds: of those that write, and of those that read.
    pub write_silence_ms: f64,
    pub read_silence_ms: f64,
    /// Of those that read from SSTables, if there are some.
    pub cold_silence_ms: f64,
}

impl Seen {
    pub fn line(&self) -> String {
        let cold = match self.cold_silence_ms {
            0.0 => String::new(),
            ms => format!(", of a cold one {ms:.0} ms"),
        };
        format!(
            "{} operations, {} errors, longest silence of a writer {:.0} ms, of a reader {:.0} ms{cold}",
            self.operations,
            self.errors.len(),
            self.write_silence_ms,
            self.read_silence_ms
        )
    }
}

pub struct Probes {
    env: Env,
    seen: Arc<Mutex<Seen>>,
    /// When each client last had a success.
    success_ns: Vec<Arc<AtomicU64>>,
    clients: JoinSet<()>,
}

impl Probes {
    fn none(env: &Env) -> Self {
        Self { env: env.clone(), seen: Arc::default(), success_ns: Vec::new(), clients: JoinSet::new() }
    }

    /// Clients that name all p-nodes. They end when this is dropped.
    pub async fn start(env: &Env, addrs: &[String]) -> Result<Self> {
        let mut probes = Self::none(env);
        for n in 0..CLIENTS * addrs.len() {
            let mut both = addrs.to_vec();
            both.rotate_left(n % addrs.len());
            for kind in [Kind::Write, Kind::Recent] {
                probes.client(kind, &both, &format!("probe{n}")).await?;
            }
        }
        Ok(probes)
    }

    /// Clients of one p-node only; `name` is theirs alone. Some read what [`Probes::write_cold`] wrote for them.
    pub async fn start_with_cold(env: &Env, addr: &str, name: &str) -> Result<Self> {
        let mut probes = Self::none(env);
        let addrs = [addr.to_owned()];
        for n in 0..CLIENTS {
            for kind in [Kind::Write, Kind::Recent] {
                probes.client(kind, &addrs, &format!("probe{name}{n}")).await?;
            }
        }
        probes.client(Kind::Cold, &addrs, &format!("cold{name}")).await?;
        Ok(probes)
    }

    /// Through another p-node than the one that will be asked: that would keep them.
    pub async fn write_cold(env: &Env, addr: &str, name: &str) -> Result<()> {
        let client = Client::connect_in(env.clone(), vec![addr.to_owned()], ClientOptions::default()).await?;
        let put = |n: u64| client.put("", format!("cold{name}.{n}"), "0");
        let puts = futures::stream::iter((0..COLD_KEYS).map(put)).buffer_unordered(LOADERS);
        puts.try_for_each(|_| async { Ok(()) }).await
    }

    async fn client(&mut self, kind: Kind, addrs: &[String], prefix: &str) -> Result<()> {
        let client = Client::connect_in(self.env.clone(), addrs.to_vec(), ClientOptions::default()).await?;
        let success_ns = Arc::new(AtomicU64::new(self.env.clock.holder_ns()));
        self.success_ns.push(success_ns.clone());
        let env = self.env.clone();
        self.clients.spawn(probe(env, client, prefix.to_owned(), kind, success_ns, self.seen.clone()));
        Ok(())
    }

    pub fn since_last(&self) -> Seen {
        std::mem::take(&mut *self.seen.lock())
    }

    /// Waits until each client has had a success that is later than this.
    pub async fn alive_since(&self, since_ns: u64) -> Result<()> {
        let is_late = |at: &Arc<AtomicU64>| at.load(Ordering::SeqCst) > since_ns;
        let all = async {
            while !self.success_ns.iter().all(is_late) {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        let waited = tokio::time::timeout(ALIVE_WITHIN, all).await;
        waited.map_err(|_| Error::unavailable(format!("a client had no success for {ALIVE_WITHIN:?}")))
    }
}

async fn probe(
    env: Env,
    client: Client,
    prefix: String,
    kind: Kind,
    last_ns: Arc<AtomicU64>,
    seen: Arc<Mutex<Seen>>,
) {
    let keys = if kind == Kind::Cold { COLD_KEYS } else { KEYS };
    let mut success_ns = env.clock.holder_ns();
    for turn in 0u64.. {
        let key = format!("{prefix}.{}", turn % keys);
        let done = match kind {
            Kind::Write => client.put("", key, turn.to_string()).await.map(drop),
            Kind::Recent | Kind::Cold => client.get("", key).await.map(drop),
        };
        let now_ns = env.clock.holder_ns();
        {
            let mut seen = seen.lock();
            seen.operations += 1;
            match done {
                Ok(()) => {
                    let ms = now_ns.saturating_sub(success_ns) as f64 / 1e6;
                    success_ns = now_ns;
                    last_ns.store(now_ns, Ordering::SeqCst);
                    let longest = match kind {
                        Kind::Write => &mut seen.write_silence_ms,
                        Kind::Recent => &mut seen.read_silence_ms,
                        Kind::Cold => &mut seen.cold_silence_ms,
                    };
                    *longest = longest.max(ms);
                }
                Err(e) => seen.errors.push(e.to_string()),
            }
        }
        tokio::time::sleep(kind.pause()).await;
    }
}
