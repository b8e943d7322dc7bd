//! Other clients: small reads and writes, one at a time, of keys of their own.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sextant_environment::Env;
use tokio::task::JoinSet;

use super::load::{Resp, command, set};

/// Clients of each kind.
const CLIENTS: usize = 2;
/// Between two requests of a client.
const PAUSE: Duration = Duration::from_millis(10);
/// A request that takes longer counts as failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the witnesses saw of one kind of request, in milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub ms: Vec<f64>,
    pub errors: usize,
    /// Errors that leave open whether a write took effect.
    pub unknown: usize,
}

#[derive(Clone, Debug, Default)]
pub struct Witnessed {
    pub reads: Seen,
    pub writes: Seen,
}

impl Seen {
    pub fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.ms.clone();
        sorted.sort_by(f64::total_cmp);
        let at = (sorted.len() as f64 * share).ceil() as usize;
        sorted.get(at.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }

    pub fn short(&self) -> String {
        format!("{:.1} / {:.0} / {:.0}", self.quantile(0.5), self.quantile(0.99), self.quantile(1.0))
    }
}

impl Witnessed {
    pub fn line(&self) -> String {
        let one = |name: &str, seen: &Seen| {
            format!(
                "{} small {name}: p50/p99/worst {} ms, {} failed, {} unknown",
                seen.ms.len(),
                seen.short(),
                seen.errors,
                seen.unknown
            )
        };
        format!("{}; {}", one("reads", &self.reads), one("writes", &self.writes))
    }
}

pub struct Witnesses {
    seen: Arc<Mutex<Witnessed>>,
    _clients: JoinSet<()>,
}

impl Witnesses {
    /// They end when this is dropped.
    pub fn start(env: &Env, addr: &str) -> Self {
        let seen = Arc::new(Mutex::new(Witnessed::default()));
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            for writes in [true, false] {
                clients.spawn(watch(env.clone(), addr.to_owned(), client, writes, seen.clone()));
            }
        }
        Self { seen, _clients: clients }
    }

    pub fn begin(&self) {
        *self.seen.lock() = Witnessed::default();
    }

    pub fn end(&self) -> Witnessed {
        std::mem::take(&mut *self.seen.lock())
    }
}

async fn watch(env: Env, addr: String, client: usize, writes: bool, seen: Arc<Mutex<Witnessed>>) {
    let mut connection = None;
    for turn in 0u64.. {
        // Keys change, so that reads do not all come from the p-node's cache, and writes leave bits.
        let key = format!("witness:{client}:{}", turn % 512);
        let request = match writes {
            true => set(key.as_bytes(), format!("{turn:0100}").as_bytes()),
            false => command(&[b"GET", key.as_bytes()]),
        };
        let began_ns = env.clock.holder_ns();
        let exchange = async {
            if connection.is_none() {
                connection = Some(Resp::connect(&env, &addr).await.ok()?);
            }
            let io = connection.as_mut()?;
            io.send(&request).await.ok()?;
            io.answer().await.ok()
        };
        let answer = tokio::time::timeout(PATIENCE, exchange).await.ok().flatten();
        let ms = env.clock.holder_ns().saturating_sub(began_ns) as f64 / 1e6;
        {
            let mut seen = seen.lock();
            let kind = if writes { &mut seen.writes } else { &mut seen.reads };
            kind.ms.push(ms);
            match answer.as_deref() {
                Some("OK" | "value" | "nil") => {}
                other => {
                    kind.errors += 1;
                    kind.unknown += usize::from(other == Some("OUTCOMEUNKNOWN"));
                }
            }
        }
        if answer.is_none() {
            connection = None;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
