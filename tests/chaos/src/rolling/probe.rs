//! Clients beside the load: one small operation after the other.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sextant_client::{Client, ClientOptions};
use sextant_common::error::Result;
use sextant_environment::Env;
use tokio::task::JoinSet;

/// Clients of each kind for each p-node that they name first.
const CLIENTS: usize = 2;
/// Between two operations of a client.
const PAUSE: Duration = Duration::from_millis(2);
/// Keys of a client: those that it wrote, it reads.
const KEYS: u64 = 64;

/// What the clients saw since they were last asked.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub operations: u64,
    /// Their texts.
    pub errors: Vec<String>,
    /// The longest time of a client between two successes, in milliseconds: of those that write, and of those that read.
    pub write_silence_ms: f64,
    pub read_silence_ms: f64,
}

impl Seen {
    pub fn line(&self) -> String {
        format!(
            "{} operations, {} errors, longest silence of a writer {:.0} ms, of a reader {:.0} ms",
            self.operations,
            self.errors.len(),
            self.write_silence_ms,
            self.read_silence_ms
        )
    }
}

pub struct Probes {
    seen: Arc<Mutex<Seen>>,
    _clients: JoinSet<()>,
}

impl Probes {
    /// They end when this is dropped.
    pub async fn start(env: &Env, addrs: &[String]) -> Result<Self> {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mut clients = JoinSet::new();
        for n in 0..CLIENTS * addrs.len() {
            let mut both = addrs.to_vec();
            both.rotate_left(n % addrs.len());
            for writes in [true, false] {
                let client = Client::connect(env.clone(), both.clone(), ClientOptions::default()).await?;
                clients.spawn(probe(env.clone(), client, n, writes, seen.clone()));
            }
        }
        Ok(Self { seen, _clients: clients })
    }

    pub fn since_last(&self) -> Seen {
        std::mem::take(&mut *self.seen.lock())
    }
}

async fn probe(env: Env, client: Client, id: usize, writes: bool, seen: Arc<Mutex<Seen>>) {
    let mut success_ns = env.clock.holder_ns();
    for turn in 0u64.. {
        let key = format!("probe{id}.{}", turn % KEYS);
        let done = match writes {
            true => client.put("", key, turn.to_string()).await.map(drop),
            false => client.get("", key).await.map(drop),
        };
        let now_ns = env.clock.holder_ns();
        {
            let mut seen = seen.lock();
            seen.operations += 1;
            match done {
                Ok(()) => {
                    let ms = now_ns.saturating_sub(success_ns) as f64 / 1e6;
                    success_ns = now_ns;
                    let longest = if writes { &mut seen.write_silence_ms } else { &mut seen.read_silence_ms };
                    *longest = longest.max(ms);
                }
                Err(e) => seen.errors.push(e.to_string()),
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
