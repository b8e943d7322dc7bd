//! Mixed operations on hot and cold keys through two p-nodes while freezes, flushes, compactions and restarts go on:
//! the history must be linearizable, in every read mode.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sextant_checker::Recorder;
use sextant_environment::config::{LeaseConfig, LeaseMode};
use sextant_pnode::ReadMode;
use sextant_tests::cluster::{Cluster, Maintenance, Options};
use sextant_tests::workload::{Shape, Tally, assert_linearizable, client};

/// Runs clients through both p-nodes and, meanwhile, `disturb` until they are done. Returns the tally.
async fn run(
    cluster: &mut Cluster,
    tables: &[&'static str],
    shape: Shape,
    clients: u64,
    mut disturb: impl AsyncFnMut(&mut Cluster, u64),
) -> Arc<Tally> {
    for table in tables {
        cluster.pnode(0).local().create_table(table, Default::default()).await.unwrap();
    }
    let (recorder, history) = Recorder::in_memory(cluster.env.clock.clone());
    let (recorder, tally) = (Arc::new(recorder), Arc::new(Tally::default()));
    let mut running = tokio::task::JoinSet::new();
    for i in 0..clients {
        let pnode = cluster.pnode(i as usize % cluster.pnodes().len()).local().clone();
        let table = tables[i as usize / 2 % tables.len()];
        running.spawn(client(pnode, recorder.clone(), table, shape, i + 1, tally.clone()));
    }
    let mut round = 0;
    let all = clients * shape.operations;
    loop {
        disturb(cluster, round).await;
        round += 1;
        let settled = || {
            tally.done.load(Ordering::Relaxed)
                + tally.unknown.load(Ordering::Relaxed)
                + tally.refused.load(Ordering::Relaxed)
        };
        if settled() >= all {
            break;
        }
        match tokio::time::timeout(Duration::from_millis(20), running.join_next()).await {
            Ok(None) => break,
            Ok(Some(done)) => done.unwrap(),
            Err(_) => {}
        }
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
    recorder.finish().unwrap();
    assert_linearizable(&history());
    tally
}

/// Freezes, flushes and compactions in turn. The first table most often, the second now and then, a third one never:
/// tables of one log are flushed at very different rates.
async fn maintenance(cluster: &mut Cluster, tables: &[&str], round: u64) {
    let what = match round % 3 {
        0 => Maintenance::Freeze,
        1 => Maintenance::Flush,
        _ => Maintenance::Compact,
    };
    let second = tables.get(1).filter(|_| round / 3 % 4 == 3);
    cluster.maintain(what, second.unwrap_or(&tables[0])).await;
}

fn shape(mode: ReadMode) -> Shape {
    Shape { hot_keys: 6, cold_keys: 200, operations: 250, mode }
}

async fn quiet_run(partitions: u32, tables: &[&'static str], mode: ReadMode) {
    run_with(Options { partitions, ..Options::default() }, tables, mode).await;
}

async fn run_with(options: Options, tables: &[&'static str], mode: ReadMode) {
    let mut cluster = Cluster::start(options).await;
    let disturb = async |cluster: &mut Cluster, round| maintenance(cluster, tables, round).await;
    let tally = run(&mut cluster, tables, shape(mode), 12, disturb).await;
    let done = tally.done.load(Ordering::Relaxed);
    assert!(done > 2000, "only {done} operations were answered: {tally:?}");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pda_with_one_partition_and_one_table() {
    quiet_run(1, &["default"], ReadMode::Pda).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pda_with_three_partitions_and_three_tables() {
    quiet_run(3, &["default", "t2", "t3"], ReadMode::Pda).await;
}

/// The paper's leases: short, never acknowledged, with commit wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pda_with_timed_leases() {
    let lease = LeaseConfig { mode: LeaseMode::Timed, group_interval_us: 5_000, ..LeaseConfig::default() };
    run_with(Options { lease, ..Options::default() }, &["default"], ReadMode::Pda).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bda_with_two_partitions() {
    quiet_run(2, &["default"], ReadMode::Bda).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nda_with_two_partitions() {
    quiet_run(2, &["default"], ReadMode::Nda).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_stop_and_come_back_one_after_another() {
    let mut cluster = Cluster::start(Options::default()).await;
    let shape = Shape { operations: 400, ..shape(ReadMode::Pda) };
    let tally = run(&mut cluster, &["default"], shape, 12, async |cluster, round| match round % 5 {
        0 => {
            let leader = cluster.leader(0).await;
            cluster.stop_memtable(leader).await;
            cluster.leader(0).await;
            cluster.start_memtable(leader).await;
        }
        1 => cluster.maintain(Maintenance::Flush, "").await,
        2 => {
            let which = round as usize % 3;
            cluster.stop_sstable(which).await;
            cluster.maintain(Maintenance::Freeze, "").await;
            cluster.start_sstable(which).await;
        }
        3 => cluster.maintain(Maintenance::Compact, "").await,
        _ => {
            let follower = (cluster.leader(1).await + 1) % 3;
            cluster.stop_memtable(follower).await;
            cluster.start_memtable(follower).await;
        }
    })
    .await;
    assert!(tally.done.load(Ordering::Relaxed) > 1000, "{tally:?}");
    cluster.shutdown().await;
}

/// Now a follower, now the leader is removed; what was removed misses flushes (so that the log that it lacks is purged,
/// and it gets a snapshot), is restarted, and votes again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn voters_change_while_clients_work() {
    let mut options = Options { memtable: 4, partitions: 1, ..Options::default() };
    options.tuning.log_entries_kept = 8;
    let mut cluster = Cluster::start(options).await;
    let shape = Shape { operations: 500, ..shape(ReadMode::Pda) };
    let (mut removed, mut changes, mut snapshots) = (0, 0, 0);
    let tally = run(&mut cluster, &["default"], shape, 12, async |cluster, round| match round % 4 {
        0 => {
            // The leader itself in every other turn.
            removed = (cluster.leader(0).await + (round as usize / 4 + 1) % 2) % 4;
            let rest: Vec<usize> = (0..4).filter(|i| *i != removed).collect();
            cluster.change_voters(0, &rest).await;
            changes += 1;
        }
        1 => cluster.maintain(Maintenance::Flush, "").await,
        2 => {
            if let Some(server) = cluster.memtable(removed) {
                snapshots += server.metrics().snapshots_installed.get();
            }
            cluster.stop_memtable(removed).await;
            cluster.maintain(Maintenance::Flush, "").await;
            cluster.start_memtable(removed).await;
        }
        _ => {
            cluster.change_voters(0, &[0, 1, 2, 3]).await;
            changes += 1;
        }
    })
    .await;
    assert!(tally.done.load(Ordering::Relaxed) > 1000, "{tally:?}");
    for i in 0..4 {
        snapshots += cluster.memtable(i).map_or(0, |s| s.metrics().snapshots_installed.get());
    }
    println!("{changes} changes, {snapshots} snapshots, {tally:?}");
    assert!(changes >= 4, "{changes} changes");
    cluster.shutdown().await;
}
