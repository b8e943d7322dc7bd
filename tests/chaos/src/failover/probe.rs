//! Probes: single operations at a fixed rate, each kind through each p-node, over all partitions in turn.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sextant_client::{Client, ReadMode};
use sextant_common::error::{Error, Result};
use sextant_common::ids::PartitionId;
use sextant_common::key::SlotMap;
use sextant_common::manifest::TableOptions;
use sextant_environment::Env;
use tokio::task::JoinSet;

use crate::testbed::PARTITIONS;

/// Between two probes of a kind through a p-node; a partition is probed every third time.
const TICK: Duration = Duration::from_millis(4);
/// A probe that was not answered so long after a fault is not waited for.
const DEADLINE: Duration = Duration::from_secs(10);
/// Probes of one kind through one p-node that may be unanswered: all those of a long silence.
const UNANSWERED_MAX: usize = 3_000;
/// Keys of each partition that are read, hot and cold each.
const KEYS: usize = 200;
/// Loading is done with so many writes at a time.
const LOADERS: usize = 16;
const WAIT_POLL: Duration = Duration::from_millis(5);
/// A cluster that does not serve after this long does not come back.
const ALIVE_WITHIN: Duration = Duration::from_secs(60);

/// What a probe does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A put of a key that was never used.
    Write,
    /// A read, in pda mode, of a record in a memtable.
    Hot,
    /// A read, in pda mode, of a record in an SSTable.
    Cold,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Write, Kind::Hot, Kind::Cold];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Write => "writes",
            Kind::Hot => "hot reads",
            Kind::Cold => "cold reads",
        }
    }
}

/// One kind through one p-node (from 0) of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stream {
    pub pnode: usize,
    pub kind: Kind,
    pub partition: u32,
}

/// All probes.
pub struct Probes {
    env: Env,
    pub clients: Vec<Client>,
    slots: SlotMap,
    seed: u64,
    next_key: AtomicU64,
    hot: Vec<Vec<String>>,
    cold: Vec<Vec<String>>,
    /// When successes were seen.
    done: BTreeMap<Stream, Mutex<Vec<u64>>>,
}

impl Probes {
    /// Writes what is to be read: the cold keys are flushed, the hot ones are not.
    pub async fn prepare(env: Env, clients: Vec<Client>, seed: u64) -> Result<Self> {
        let streams = (0..clients.len()).flat_map(|pnode| {
            Kind::ALL
                .into_iter()
                .flat_map(move |kind| (0..PARTITIONS).map(move |partition| Stream { pnode, kind, partition }))
        });
        let mut probes = Self {
            env,
            done: streams.map(|stream| (stream, Mutex::default())).collect(),
            clients,
            slots: SlotMap::even(PARTITIONS),
            seed,
            next_key: AtomicU64::new(0),
            hot: Vec::new(),
            cold: Vec::new(),
        };
        probes.cold = probes.load("cold").await?;
        let first = probes.clients.first().ok_or_else(|| Error::invalid("no p-node"))?;
        let flushed = first.flush(None).await?;
        if !flushed.errors.is_empty() {
            return Err(Error::unavailable(flushed.errors.join("; ")));
        }
        probes.hot = probes.load("hot").await?;
        Ok(probes)
    }

    fn partition(&self, key: &str) -> PartitionId {
        self.slots.partition_of(key.as_bytes(), &TableOptions::default())
    }

    /// Writes enough keys of every partition.
    async fn load(&self, name: &str) -> Result<Vec<Vec<String>>> {
        let mut keys = vec![Vec::new(); PARTITIONS as usize];
        for n in 0.. {
            let key = format!("{name}{n}");
            let of = &mut keys[self.partition(&key).0 as usize];
            if of.len() < KEYS {
                of.push(key);
            }
            if keys.iter().all(|of| of.len() == KEYS) {
                break;
            }
        }
        let mut writes = JoinSet::new();
        for key in keys.iter().flatten().cloned() {
            while writes.len() >= LOADERS {
                joined(writes.join_next().await)?;
            }
            let client = self.clients[0].clone();
            writes.spawn(async move { client.put("", key, "value").await.map(|_| ()) });
        }
        while let Some(result) = writes.join_next().await {
            joined(Some(result))?;
        }
        Ok(keys)
    }

    /// Probes until the result is dropped.
    pub fn start(self: &Arc<Self>) -> JoinSet<()> {
        let mut beating = JoinSet::new();
        for pnode in 0..self.clients.len() {
            for kind in Kind::ALL {
                beating.spawn(self.clone().beat(pnode, kind));
            }
        }
        beating
    }

    async fn beat(self: Arc<Self>, pnode: usize, kind: Kind) {
        let unanswered = Arc::new(AtomicUsize::new(0));
        let client = self.clients[pnode].with_mode(ReadMode::Pda).with_deadline(DEADLINE);
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for n in 0_usize.. {
            tick.tick().await;
            if unanswered.load(Ordering::Relaxed) >= UNANSWERED_MAX {
                continue;
            }
            let partition = n % PARTITIONS as usize;
            let key = match kind {
                Kind::Write => self.fresh_key(partition),
                Kind::Hot => self.hot[partition][n / PARTITIONS as usize % KEYS].clone(),
                Kind::Cold => self.cold[partition][n / PARTITIONS as usize % KEYS].clone(),
            };
            unanswered.fetch_add(1, Ordering::Relaxed);
            let (this, client, unanswered) = (self.clone(), client.clone(), unanswered.clone());
            tokio::spawn(async move {
                let ok = match kind {
                    Kind::Write => client.put("", key, "value").await.is_ok(),
                    Kind::Hot | Kind::Cold => client.get("", key).await.is_ok_and(|r| r.is_some()),
                };
                unanswered.fetch_sub(1, Ordering::Relaxed);
                if ok {
                    let stream = Stream { pnode, kind, partition: partition as u32 };
                    if let Some(done) = this.done.get(&stream) {
                        done.lock().push(this.env.clock.holder_ns());
                    }
                }
            });
        }
    }

    /// A key of the partition that was never used.
    fn fresh_key(&self, partition: usize) -> String {
        loop {
            let n = self.next_key.fetch_add(1, Ordering::Relaxed);
            let key = format!("w{:x}.{n}", self.seed);
            if self.partition(&key).0 as usize == partition {
                return key;
            }
        }
    }

    pub fn now(&self) -> u64 {
        self.env.clock.holder_ns()
    }

    /// Forgets all successes.
    pub fn forget(&self) {
        self.done.values().for_each(|done| done.lock().clear());
    }

    /// When successes of a stream were seen since they were last forgotten.
    pub fn done(&self, stream: Stream) -> Vec<u64> {
        self.done.get(&stream).map(|done| done.lock().clone()).unwrap_or_default()
    }

    pub fn streams(&self) -> impl Iterator<Item = Stream> {
        self.done.keys().copied()
    }

    /// Waits until each of these streams has had `successes` since they were last forgotten that are later than `since`.
    pub async fn alive(&self, streams: &[Stream], since: u64, successes: usize) -> Result<()> {
        let enough = |stream: &Stream| {
            self.done
                .get(stream)
                .is_some_and(|d| d.lock().iter().filter(|at| **at > since).count() >= successes)
        };
        let all = async {
            while !streams.iter().all(enough) {
                tokio::time::sleep(WAIT_POLL).await;
            }
        };
        if tokio::time::timeout(ALIVE_WITHIN, all).await.is_ok() {
            return Ok(());
        }
        let lacking: Vec<String> = streams.iter().filter(|s| !enough(s)).map(|s| format!("{s:?}")).collect();
        Err(Error::unavailable(format!("no service after {ALIVE_WITHIN:?}: {}", lacking.join(", "))))
    }
}

fn joined(result: Option<std::result::Result<Result<()>, tokio::task::JoinError>>) -> Result<()> {
    match result {
        Some(Ok(written)) => written,
        Some(Err(e)) => Err(Error::internal(e.to_string())),
        None => Ok(()),
    }
}
