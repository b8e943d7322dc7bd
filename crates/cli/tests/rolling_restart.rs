//! A rolling restart of all eight processes under load: SIGTERM, wait for the end, start again, wait until it is ready, next.
//! Clients that name both p-nodes see no error, and what they saw is linearizable. How long the longest operation took is
//! printed (run with `--nocapture`), not asserted.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sextant_checker::{Call, Recorder, Returned};
use sextant_client::{Client, ClientOptions, http};
use sextant_common::error::Error;
use sextant_dev_cluster::{DevCluster, DevOptions, Role};
use sextant_environment::Env;
use sextant_environment::rng::{Rng, SeededRng};

const SEXTANT: &str = env!("CARGO_BIN_EXE_sextant");
const HOT_KEYS: u64 = 8;
const COLD_KEYS: u64 = 400;
const CLIENTS: u64 = 8;
/// Operations between two restarts: enough that a wrong answer has a chance to be seen.
const BETWEEN: u64 = 200;
/// Far more than any client has to wait: a busy machine is no error.
const DEADLINE: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(25);
/// How often is looked: for two minutes.
const LOOKS: usize = 4800;

struct Load {
    env: Env,
    recorder: Recorder,
    stop: AtomicBool,
    done: AtomicU64,
    /// Of an operation since the last restart began.
    longest_ns: AtomicU64,
}

/// One client, one operation at a time, until it is told to stop or an operation fails.
async fn run_client(load: Arc<Load>, client: Client, id: u64) -> Result<(), Error> {
    let rng: Arc<dyn Rng> = Arc::new(SeededRng::new(id));
    let mut n = 0;
    while !load.stop.load(Ordering::SeqCst) {
        n += 1;
        let key = match rng.below(5) {
            0 => format!("hot{}", rng.below(HOT_KEYS)),
            _ => format!("cold{}", rng.below(COLD_KEYS)),
        };
        let value = format!("{id}.{n}");
        let begun_ns = load.env.clock.holder_ns();
        match rng.below(8) {
            0..=3 => {
                let pending = load.recorder.call(id, &key, Call::Get);
                let record = client.get("", key.clone()).await?;
                let text = record.as_ref().map(|r| String::from_utf8_lossy(&r.value).into_owned());
                pending.returned(Returned::Value(text.as_deref()), record.map(|r| r.seq.0));
            }
            4 | 5 => {
                let pending = load.recorder.call(id, &key, Call::Put(&value));
                let seq = client.put("", key.clone(), value.clone()).await?;
                pending.returned(Returned::Done, Some(seq.0));
            }
            6 => {
                let pending = load.recorder.call(id, &key, Call::Delete);
                let seq = client.delete("", key.clone()).await?;
                pending.returned(Returned::Done, Some(seq.0));
            }
            _ => {
                let pending = load.recorder.call(id, &key, Call::Insert(&value));
                let insert = client.insert("", key.clone(), value.clone()).await?;
                pending.returned(Returned::Applied(insert.applied), insert.applied.then_some(insert.seq.0));
            }
        }
        let took_ns = load.env.clock.holder_ns() - begun_ns;
        load.longest_ns.fetch_max(took_ns, Ordering::SeqCst);
        load.done.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

/// `sextant ycsb` with both p-nodes; its report.
async fn ycsb(env: &Env, phase: &str, addrs: &[String], json: &std::path::Path) -> serde_json::Value {
    let mut command = Command::new(SEXTANT);
    command.args(["ycsb", phase, "--workload", "a", "--records", "500", "--operations", "4000"]);
    command.args(["--threads", "8", "--quiet", "--deadline-ms", "60000", "--grpc", &addrs.join(",")]);
    command.arg("--json").arg(json);
    let output = env.blocking(move || command.output().unwrap()).await.unwrap();
    let said = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    assert!(output.status.success(), "{phase}: {said}");
    serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap()
}

/// What an operator waits for before the next server's turn.
async fn until_ready(env: &Env, cluster: &DevCluster, role: Role, index: usize) {
    let addr = cluster.http(role, index).unwrap();
    for _ in 0..LOOKS {
        let answer = http::get(env, addr, "/health/ready", Duration::from_secs(2)).await;
        if answer.is_ok_and(|a| a.is_ok()) {
            return;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    panic!("{role:?} {index} is not ready");
}

/// Waits for so many more operations.
async fn until_done(load: &Load, more: u64) {
    let target = load.done.load(Ordering::SeqCst) + more;
    for _ in 0..LOOKS {
        if load.done.load(Ordering::SeqCst) >= target {
            return;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    panic!("the load does not go on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_of_all_servers_shows_no_error_at_any_client() {
    let env = Env::real();
    let dir = tempfile::tempdir().unwrap();
    let options =
        DevOptions { processes: Some(SEXTANT.into()), ..DevOptions::on_free_ports(dir.path().join("data")) };
    let mut cluster = DevCluster::start(env.clone(), options).await.unwrap();
    let addrs = cluster.grpc_addrs();
    let json = dir.path().join("ycsb.json");
    ycsb(&env, "load", &addrs, &json).await;
    let (recorder, history) = Recorder::in_memory(env.clock.clone());
    let load = Arc::new(Load {
        env: env.clone(),
        recorder,
        stop: AtomicBool::new(false),
        done: AtomicU64::new(0),
        longest_ns: AtomicU64::new(0),
    });
    let mut clients = tokio::task::JoinSet::new();
    for id in 1..=CLIENTS {
        let mut both = addrs.clone();
        both.rotate_left(id as usize % addrs.len());
        let options = ClientOptions { deadline: DEADLINE, ..ClientOptions::default() };
        let client = Client::connect_in(env.clone(), both, options).await.unwrap();
        clients.spawn(run_client(load.clone(), client, id));
    }
    let generator = {
        let load = load.clone();
        let addrs = addrs.clone();
        tokio::spawn(async move {
            let mut reports = Vec::new();
            while !load.stop.load(Ordering::SeqCst) {
                reports.push(ycsb(&load.env, "run", &addrs, &json).await);
            }
            reports
        })
    };
    until_done(&load, BETWEEN).await;
    // Some of the keys are in SSTables, so that reads go both ways.
    let client = Client::connect_in(env.clone(), addrs.clone(), ClientOptions::default()).await.unwrap();
    client.flush(None).await.unwrap();

    println!("longest operation of a client around the restart of");
    for role in [Role::Sstable, Role::Memtable, Role::PNode] {
        for index in 0..cluster.count(role) {
            let before = cluster.pid(role, index).unwrap().unwrap();
            load.recorder.fault(&format!("restart of {role:?} {index}"));
            load.longest_ns.store(0, Ordering::SeqCst);
            cluster.restart(role, index).await.unwrap();
            until_ready(&env, &cluster, role, index).await;
            assert_ne!(cluster.pid(role, index).unwrap(), Some(before));
            until_done(&load, BETWEEN).await;
            let longest_ms = load.longest_ns.load(Ordering::SeqCst) / 1_000_000;
            println!("  {} {}: {longest_ms} ms", role.name(), index + 1);
        }
    }
    load.stop.store(true, Ordering::SeqCst);
    while let Some(ended) = clients.join_next().await {
        assert_eq!(ended.unwrap().map_err(|e| e.to_string()), Ok(()), "a client saw an error");
    }
    let reports = generator.await.unwrap();
    let of = |name: &str| reports.iter().map(|r| r[name].as_u64().unwrap()).sum::<u64>();
    println!("ycsb run --workload a: {} operations, {} errors", of("operations"), of("errors"));
    assert_eq!(of("errors"), 0, "{reports:?}");
    load.recorder.finish().unwrap();
    let report = sextant_checker::check_reader(&history()[..], &Default::default()).unwrap();
    println!("{report}");
    assert!(report.passed(), "{report}");
    assert!(report.operations > 8 * BETWEEN, "{report}");
    cluster.shutdown().await.unwrap();
}
