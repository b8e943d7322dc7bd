//! What all hosts of a run share: true time, the trace, the phase, what was found.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use sextant_common::ids::{PartitionId, SstId};
use sextant_simulated::FaultyVfs;
use tokio::sync::Notify;
use xxhash_rust::xxh3::Xxh3;

use crate::clock::TrueTime;
use crate::invariants::Invariants;

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// Servers start, tables are made; no faults.
    Boot,
    /// Clients and faults.
    Load,
    /// No more faults: everything must come back.
    Heal,
    Done,
}

/// What the operator is to do at once, because a fault is about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Everything.
    Freeze,
    /// Everything.
    Flush,
    /// All partitions are to be led by this memtable server.
    Transfer { to: u64 },
    /// Leases that are longer than those that the servers started with.
    LongLeases,
    /// The other mode of leases, everywhere.
    OtherMode,
    /// This memtable server is to be the only voter of all partitions.
    Alone { node: u64 },
}

pub struct World {
    pub seed: u64,
    pub time: Arc<TrueTime>,
    phase: AtomicU8,
    trace: Mutex<Trace>,
    violations: Mutex<Vec<String>>,
    wanted: Mutex<VecDeque<Wanted>>,
    more_wanted: Notify,
    /// Something is broken now.
    faulty: AtomicBool,
    /// Of the sstable servers.
    disks: Mutex<Vec<FaultyVfs>>,
    /// The memtable server that leads each partition, as far as it said so.
    leaders: Mutex<BTreeMap<PartitionId, u64>>,
    /// How often each partition has got a leader.
    elections: Mutex<BTreeMap<PartitionId, u64>>,
    /// How many sstable servers are not running.
    sstables_down: AtomicU64,
    /// Loads that are written are to be committed now.
    commits: Notify,
    /// By partition: who said last that it serves it, and when it was asked.
    serving: Mutex<BTreeMap<u64, (u64, u64)>>,
    /// When (true time) a memtable server was last asked and was a voter of every partition, in possession of its memory.
    standing: Mutex<BTreeMap<u64, u64>>,
    /// How often memtable servers have started.
    memtable_starts: AtomicU64,
    loads_held: AtomicU64,
    pub invariants: Mutex<Invariants>,
}

struct Trace {
    hash: Xxh3,
    events: u64,
    print: bool,
}

impl World {
    pub fn new(seed: u64, print: bool, invariants: Invariants) -> Arc<Self> {
        Arc::new(Self {
            seed,
            time: Arc::default(),
            phase: AtomicU8::new(Phase::Boot as u8),
            trace: Mutex::new(Trace { hash: Xxh3::new(), events: 0, print }),
            violations: Mutex::default(),
            wanted: Mutex::default(),
            more_wanted: Notify::new(),
            faulty: AtomicBool::new(false),
            disks: Mutex::default(),
            leaders: Mutex::default(),
            elections: Mutex::default(),
            sstables_down: AtomicU64::new(0),
            commits: Notify::new(),
            serving: Mutex::default(),
            standing: Mutex::default(),
            memtable_starts: AtomicU64::new(0),
            loads_held: AtomicU64::new(0),
            invariants: Mutex::new(invariants),
        })
    }

    /// True time since the start of the run, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.time.now_ns()
    }

    pub fn phase(&self) -> Phase {
        match self.phase.load(Relaxed) {
            0 => Phase::Boot,
            1 => Phase::Load,
            2 => Phase::Heal,
            _ => Phase::Done,
        }
    }

    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Relaxed);
        self.note(&format!("phase {phase:?}"));
    }

    /// An event of the trace: who, what, how much, and the bytes.
    pub fn trace(&self, who: &str, what: &str, bytes: &[u8]) {
        let now_ns = self.now_ns();
        let mut trace = self.trace.lock();
        trace.events += 1;
        trace.hash.update(&now_ns.to_le_bytes());
        trace.hash.update(who.as_bytes());
        trace.hash.update(what.as_bytes());
        trace.hash.update(&(bytes.len() as u64).to_le_bytes());
        trace.hash.update(bytes);
        if trace.print {
            let digest = xxhash_rust::xxh3::xxh3_64(bytes);
            eprintln!("{:>10} us {who:<4} {what} {} bytes {digest:016x}", now_ns / 1000, bytes.len());
        }
    }

    /// An event that is worth reading.
    pub fn note(&self, text: &str) {
        self.trace("-", text, &[]);
    }

    pub fn trace_hash(&self) -> (u64, u64) {
        let trace = self.trace.lock();
        (trace.hash.digest(), trace.events)
    }

    pub fn violation(&self, text: String) {
        self.note(&text);
        self.violations.lock().push(text);
    }

    pub fn want(&self, what: Wanted) {
        self.wanted.lock().push_back(what);
        self.more_wanted.notify_one();
    }

    /// For one operator.
    pub async fn wanted(&self) -> Wanted {
        loop {
            if let Some(wanted) = self.wanted.lock().pop_front() {
                return wanted;
            }
            self.more_wanted.notified().await;
        }
    }

    pub fn set_faulty(&self, faulty: bool) {
        self.faulty.store(faulty, Relaxed);
    }

    pub fn is_faulty(&self) -> bool {
        self.faulty.load(Relaxed)
    }

    pub fn add_disk(&self, disk: FaultyVfs) {
        self.disks.lock().push(disk);
    }

    /// On how many sstable servers a table would survive a loss of power of all of them.
    pub fn durable_replicas(&self, id: SstId) -> usize {
        let path = std::path::PathBuf::from(format!("/disk/{id}.sst"));
        self.disks.lock().iter().filter(|disk| disk.is_durable(&path)).count()
    }

    pub fn leads(&self, partition: PartitionId, node: u64) {
        self.leaders.lock().insert(partition, node);
        *self.elections.lock().entry(partition).or_default() += 1;
    }

    pub fn elections(&self, partition: PartitionId) -> u64 {
        self.elections.lock().get(&partition).copied().unwrap_or(0)
    }

    pub fn set_sstables_down(&self, servers: u64) {
        self.sstables_down.store(servers, Relaxed);
    }

    pub fn sstables_down(&self) -> u64 {
        self.sstables_down.load(Relaxed)
    }

    /// Whoever has written a load, and waits for this, goes on.
    pub fn commit_loads(&self) {
        self.commits.notify_waiters();
    }

    pub async fn commits_wanted(&self) {
        self.commits.notified().await;
    }

    /// A leader holds back leases and groups for a load.
    pub fn load_is_held(&self) {
        self.loads_held.fetch_add(1, Relaxed);
    }

    /// How often one did.
    pub fn loads_held(&self) -> u64 {
        self.loads_held.load(Relaxed)
    }

    pub fn memtable_starts(&self) {
        self.memtable_starts.fetch_add(1, Relaxed);
    }

    /// How often memtable servers have started, and installed snapshots.
    pub fn memtable_lives(&self) -> (u64, u64) {
        (self.memtable_starts.load(Relaxed), self.invariants.lock().seen.installed)
    }

    pub fn set_standing(&self, node: u64, asked_ns: u64) {
        self.standing.lock().insert(node, asked_ns);
    }

    /// When a memtable server was last asked and was a voter of everything.
    pub fn stands(&self, name: &str) -> Option<u64> {
        self.standing.lock().get(&name.strip_prefix('m')?.parse().ok()?).copied()
    }

    /// A memtable server was asked, and was serving a partition as its leader.
    pub fn set_serving(&self, partition: u64, node: u64, asked_ns: u64) {
        self.serving.lock().insert(partition, (node, asked_ns));
    }

    /// Who leads the partitions, of those whose leader has said so since.
    pub fn leaders_in_office(&self, since_ns: u64) -> Vec<u64> {
        let serving = self.serving.lock();
        serving.values().filter(|(_, asked_ns)| *asked_ns >= since_ns).map(|(node, _)| *node).collect()
    }

    /// The name of the host that leads some partition; `which` chooses.
    pub fn a_leader(&self, which: u64) -> Option<String> {
        let leaders = self.leaders.lock();
        let at = which as usize % leaders.len().max(1);
        leaders.values().nth(at).map(|node| format!("m{node}"))
    }

    pub fn first_violation(&self) -> Option<String> {
        self.violations.lock().first().cloned()
    }
}
