//! kill -9 of a server of each role in turn, in a cluster of processes under load: no stale read (the history is checked),
//! nothing acknowledged is lost, and service goes on. How long it was gone is printed (run with `--nocapture`), not asserted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sextant_checker::{Call, Recorder, Returned};
use sextant_client::{Client, ClientOptions, Expected, http};
use sextant_common::error::ErrorKind;
use sextant_dev_cluster::{DevCluster, DevOptions, Role};
use sextant_environment::Env;
use sextant_environment::rng::{Rng, SeededRng};

const HOT_KEYS: u64 = 8;
const COLD_KEYS: u64 = 400;
const CLIENTS_PER_PNODE: u64 = 6;
/// Far more than anybody has to wait: a busy machine is no error.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(25);

/// When operations of one kind through one p-node last succeeded, and their longest silence.
#[derive(Default)]
struct Pulse {
    last_ns: AtomicU64,
    longest_ns: AtomicU64,
    beats: AtomicU64,
}

impl Pulse {
    fn beat(&self, now: u64) {
        self.beats.fetch_add(1, Ordering::SeqCst);
        let before = self.last_ns.swap(now, Ordering::SeqCst);
        if before != 0 {
            self.longest_ns.fetch_max(now.saturating_sub(before), Ordering::SeqCst);
        }
    }

    fn restart(&self) {
        self.longest_ns.store(0, Ordering::SeqCst);
    }
}

struct Load {
    env: Env,
    recorder: Recorder,
    stop: AtomicBool,
    /// By p-node: writes, reads.
    pulses: Vec<[Pulse; 2]>,
    next_client: AtomicU64,
}

async fn run_client(load: Arc<Load>, client: Client, pnode: usize, seed: u64) {
    let rng: Arc<dyn Rng> = Arc::new(SeededRng::new(seed));
    let mut id = load.next_client.fetch_add(1, Ordering::SeqCst);
    let mut n = 0;
    while !load.stop.load(Ordering::SeqCst) {
        n += 1;
        let key = if rng.below(5) == 0 {
            format!("hot{}", rng.below(HOT_KEYS))
        } else {
            format!("cold{}", rng.below(COLD_KEYS))
        };
        let value = format!("{id}.{n}");
        let [writes, reads] = &load.pulses[pnode];
        let now = || load.env.clock.holder_ns();
        let failed = match rng.below(8) {
            0..=3 => {
                let pending = load.recorder.call(id, &key, Call::Get);
                match client.get("", key.clone()).await {
                    Ok(record) => {
                        let text = record.as_ref().map(|r| String::from_utf8_lossy(&r.value).into_owned());
                        pending.returned(Returned::Value(text.as_deref()), record.map(|r| r.seq.0));
                        reads.beat(now());
                        None
                    }
                    Err(_) => {
                        pending.not_executed();
                        None
                    }
                }
            }
            4 | 5 => {
                let pending = load.recorder.call(id, &key, Call::Put(&value));
                match client.put("", key.clone(), value.clone()).await {
                    Ok(seq) => {
                        pending.returned(Returned::Done, Some(seq.0));
                        writes.beat(now());
                        None
                    }
                    Err(e) => Some((pending, e)),
                }
            }
            6 => {
                let pending = load.recorder.call(id, &key, Call::Delete);
                match client.delete("", key.clone()).await {
                    Ok(seq) => {
                        pending.returned(Returned::Done, Some(seq.0));
                        writes.beat(now());
                        None
                    }
                    Err(e) => Some((pending, e)),
                }
            }
            _ => {
                let pending = load.recorder.call(id, &key, Call::Insert(&value));
                match client.insert("", key.clone(), value.clone()).await {
                    Ok(outcome) => {
                        pending.returned(
                            Returned::Applied(outcome.applied),
                            outcome.applied.then_some(outcome.seq.0),
                        );
                        writes.beat(now());
                        None
                    }
                    Err(e) => Some((pending, e)),
                }
            }
        };
        if let Some((pending, e)) = failed {
            match e.kind {
                ErrorKind::Retry
                | ErrorKind::NotLeader
                | ErrorKind::Overloaded
                | ErrorKind::UnknownSession => {
                    pending.not_executed();
                }
                _ => {
                    pending.unknown();
                    id = load.next_client.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    }
}

/// Looks until there is something to be seen.
async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(seen) = look().await {
                return seen;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never: {what}"))
}

/// Index of the memtable server that serves partition 0.
async fn leader(env: &Env, cluster: &DevCluster) -> usize {
    eventually("somebody serves partition 0", async || {
        for i in 0..cluster.count(Role::Memtable) {
            let Ok(addr) = cluster.http(Role::Memtable, i) else { continue };
            let Ok(answer) = http::get(env, addr, "/status", Duration::from_secs(1)).await else { continue };
            let status: serde_json::Value = serde_json::from_str(&answer.text()).unwrap_or_default();
            if status["partitions"][0]["serving"] == true {
                return Some(i);
            }
        }
        None
    })
    .await
}

/// Waits until every pulse has beaten again, and so the longest silence is known.
async fn until_all_beat(load: &Load, among: &[usize]) {
    let since = load.env.clock.holder_ns();
    let alive = |p: &Pulse| p.last_ns.load(Ordering::SeqCst) > since;
    let all = || among.iter().all(|i| load.pulses[*i].iter().all(alive));
    eventually("service comes back", async || all().then_some(())).await;
}

/// Waits for so many more operations: enough that a wrong answer has a chance to be seen.
async fn until_done(load: &Load, more: u64) {
    let beats = || load.pulses.iter().flatten().map(|p| p.beats.load(Ordering::SeqCst)).sum::<u64>();
    let target = beats() + more;
    eventually("the load goes on", async || (beats() >= target).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_each_role_is_killed_under_load() {
    let env = Env::real();
    let dir = tempfile::tempdir().unwrap();
    let options = DevOptions {
        processes: Some(env!("CARGO_BIN_EXE_sextant").into()),
        ..DevOptions::on_free_ports(dir.path())
    };
    let mut cluster = DevCluster::start(env.clone(), options).await.unwrap();
    let addrs = cluster.grpc_addrs();
    let (recorder, history) = Recorder::in_memory(env.clock.clone());
    let load = Arc::new(Load {
        env: env.clone(),
        recorder,
        stop: AtomicBool::new(false),
        pulses: addrs.iter().map(|_| Default::default()).collect(),
        next_client: AtomicU64::new(1),
    });
    let mut clients = tokio::task::JoinSet::new();
    let mut direct = Vec::new();
    for (pnode, addr) in addrs.iter().enumerate() {
        let client =
            Client::connect_in(env.clone(), vec![addr.clone()], ClientOptions::default()).await.unwrap();
        for i in 0..CLIENTS_PER_PNODE {
            clients.spawn(run_client(load.clone(), client.clone(), pnode, pnode as u64 * 100 + i));
        }
        direct.push(client.with_deadline(PATIENCE));
    }
    until_all_beat(&load, &[0, 1]).await;
    // Some of the keys are in SSTables, so that reads go both ways.
    direct[0].flush(None).await.unwrap();

    let mut silences: BTreeMap<&str, String> = BTreeMap::new();
    for what in ["leader", "follower", "sstable server", "p-node"] {
        let first = leader(&env, &cluster).await;
        let (role, index, among): (Role, usize, &[usize]) = match what {
            "leader" => (Role::Memtable, first, &[0, 1]),
            "follower" => (Role::Memtable, (first + 1) % 3, &[0, 1]),
            "sstable server" => (Role::Sstable, 0, &[0, 1]),
            _ => (Role::PNode, 0, &[1]),
        };
        load.recorder.fault(&format!("kill -9 of a {what}"));
        load.pulses.iter().flatten().for_each(Pulse::restart);
        cluster.kill(role, index).await.unwrap();
        until_all_beat(&load, among).await;
        let gone = among
            .iter()
            .map(|i| {
                let [writes, reads] = &load.pulses[*i];
                let ms = |p: &Pulse| p.longest_ns.load(Ordering::SeqCst) / 1_000_000;
                format!("p-node {}: writes {} ms, reads {} ms", i + 1, ms(writes), ms(reads))
            })
            .collect::<Vec<_>>();
        silences.insert(what, gone.join("; "));
        cluster.restart(role, index).await.unwrap();
        leader(&env, &cluster).await;
        until_all_beat(&load, &[0, 1]).await;
        until_done(&load, 250).await;
    }
    load.stop.store(true, Ordering::SeqCst);
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    load.recorder.finish().unwrap();
    let report = sextant_checker::check_reader(&history()[..], &Default::default()).unwrap();
    println!("longest silence after kill -9:");
    for (what, gone) in &silences {
        println!("  {what}: {gone}");
    }
    println!("{report}");
    assert!(report.passed(), "{report}");
    assert!(report.operations > 1000, "{report}");
    let swap = direct[1]
        .compare_and_set("", "hot0", Expected::Seq(Default::default()), sextant_client::Effect::Delete)
        .await;
    assert!(swap.is_ok(), "the cluster serves at the end: {swap:?}");
    cluster.shutdown().await.unwrap();
}
