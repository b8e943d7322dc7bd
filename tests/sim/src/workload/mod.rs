//! What clients do: operations through chosen p-nodes, written down with what was answered.
//!
//! Every answer goes into one history, key by key, which the checker judges. What concerns more than one key (a batch is seen
//! whole) is judged here.

mod changes;
mod copies;
mod history;
mod increments;
mod late_retries;
mod loads;
mod mayflies;
mod objects;
mod operator;
mod registers;
mod snapshots;
mod trap;
mod verifier;
mod warden;
mod witness;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use sextant_checker::Recorder;
use sextant_client::{Client, ClientOptions};
use sextant_objects::Groups;
use sextant_proto::v1;

use crate::cluster::pnode_addr;
use crate::host::{Host, mix};
use crate::plan::{PNODES, Plan};
use crate::world::{Phase, World};

pub use changes::changes;
pub use copies::late_copies;
pub use history::Book;
pub use late_retries::late_retries;
pub use loads::loads;
pub use mayflies::{OF_A_MAYFLY, mayflies};
pub use objects::objects;
pub use operator::{operate, run_errands};
pub use registers::registers;
pub use snapshots::snapshots;
pub use trap::lease_trap;
pub use verifier::verify;
pub use warden::watch_standing;
pub use witness::witness;

/// What all clients of a run share.
pub struct Shared {
    pub world: Arc<World>,
    pub plan: Plan,
    pub recorder: Recorder,
    pub tally: Tally,
    /// Every key that was ever written, by table.
    pub keys: Mutex<BTreeSet<(String, String)>>,
    /// What was done to counters, by table and key.
    pub increments: Mutex<BTreeMap<(String, String), Vec<increments::Increment>>>,
    /// The objects in use, and those that were.
    pub groups: Groups,
    /// What was said of the times of partitions.
    pub mayflies: mayflies::Times,
    /// What is loaded in bulk.
    pub loads: loads::Sets,
    next_client: AtomicU64,
    /// Clients that still work.
    pub working: AtomicU64,
    pub maintenance: Mutex<BTreeMap<&'static str, u64>>,
    /// Mode and drift bound of each partition's leases, as far as the operator has changed them.
    pub modes: Mutex<BTreeMap<u32, (v1::LeaseMode, u64)>>,
}

#[derive(Default)]
pub struct Tally {
    pub ok: AtomicU64,
    pub failed: AtomicU64,
    pub unknown: AtomicU64,
}

impl Shared {
    pub fn new(world: &Arc<World>, plan: Plan, recorder: Recorder) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            plan,
            recorder,
            tally: Tally::default(),
            keys: Mutex::default(),
            increments: Mutex::default(),
            groups: Groups::new(mix(world.seed, 5)),
            mayflies: mayflies::Times::default(),
            loads: loads::Sets::default(),
            next_client: AtomicU64::new(1),
            working: AtomicU64::new(0),
            maintenance: Mutex::default(),
            modes: Mutex::default(),
        })
    }

    /// A client id that nobody had.
    pub fn new_client_id(&self) -> u64 {
        self.next_client.fetch_add(1, Relaxed)
    }

    pub fn loading(&self) -> bool {
        self.world.phase() <= Phase::Load
    }

    /// Waits until the load begins.
    pub async fn load_begins(&self) {
        while self.world.phase() == Phase::Boot {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub fn count(&self, what: &'static str) {
        *self.maintenance.lock().entry(what).or_default() += 1;
    }
}

/// How long a client waits: for an operation, and for one p-node.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub deadline_ms: u64,
    pub attempt_ms: u64,
}

impl Default for Patience {
    fn default() -> Self {
        Self { deadline_ms: 3_000, attempt_ms: 700 }
    }
}

/// A client of p-nodes, the first of them preferred.
pub async fn connect(host: &Arc<Host>, pnodes: &[usize], sessions: bool, patience: Patience) -> Client {
    let addrs = pnodes.iter().map(|i| pnode_addr(*i)).collect();
    let options = ClientOptions {
        deadline: Duration::from_millis(patience.deadline_ms),
        attempt_timeout: Duration::from_millis(patience.attempt_ms),
        sessions,
        ..ClientOptions::default()
    };
    Client::connect_in(host.boot(), addrs, options).await.expect("addresses and options are good")
}

/// One p-node only.
pub async fn connect_to(host: &Arc<Host>, pnode: usize) -> Client {
    connect(host, &[pnode % PNODES], true, Patience::default()).await
}
