//! Disks without space: an sstable server that cannot take a flush, memtable servers whose log is full. Writes are refused
//! with the reason or go on elsewhere; nothing acknowledged is lost; space that comes back is noticed.

use std::time::Duration;

use bytes::Bytes;
use sextant_common::error::{Error, ErrorKind};
use sextant_common::ids::PartitionId;
use sextant_common::key::SlotMap;
use sextant_environment::vfs::Vfs;
use sextant_pnode::{Operation, ReadOptions, WriteOptions};
use sextant_tests::cluster::{Cluster, Maintenance, Options};
use sextant_tests::{PATIENCE, eventually};

const PARTITIONS: u32 = 2;
const VALUE_BYTES: usize = 16 * 1024;
/// No log takes more without a new segment.
const LOG_BYTES: usize = 8 << 20;

fn options(seed: u64) -> Options {
    let sstable_config =
        |config: &mut sextant_sstable_server::SstServerConfig| config.block_cache_bytes = Some(0);
    let pnode_config = |config: &mut sextant_pnode::PNodeConfig| config.cache_bytes = 0;
    Options {
        faulty_disks: true,
        seed,
        partitions: PARTITIONS,
        sstable_config,
        pnode_config,
        ..Options::default()
    }
}

/// The i-th key of a partition.
fn key(partition: u32, i: usize) -> String {
    let slots = SlotMap::even(PARTITIONS);
    let of = |tag: &u32| slots.partition_of(format!("{{{tag}}}").as_bytes(), &Default::default());
    let tag = (0..).find(|tag| of(tag) == PartitionId(partition));
    format!("{{{}}}key{i}", tag.unwrap_or(0))
}

fn value(key: &str) -> Bytes {
    let mut value = key.as_bytes().to_vec();
    value.resize(VALUE_BYTES, b'.');
    value.into()
}

async fn put(c: &Cluster, i: usize, key: &str, deadline: Duration) -> Result<(), Error> {
    let options = WriteOptions { deadline: Some(deadline), ..WriteOptions::default() };
    let op = Operation::put("default", key.to_owned(), value(key));
    c.pnode(i % c.pnodes().len()).local().write(vec![op], options).await.map(|_| ())
}

/// Long enough for a write that is not refused; if it is not, on a busy machine, it is not known what became of it.
const IMPATIENT: Duration = Duration::from_secs(3);

async fn put_all(c: &Cluster, partition: u32, range: std::ops::Range<usize>) -> Vec<String> {
    let keys: Vec<String> = range.map(|i| key(partition, i)).collect();
    for (i, key) in keys.iter().enumerate() {
        put(c, i, key, PATIENCE).await.unwrap();
    }
    keys
}

/// Through every p-node.
async fn all_there(c: &Cluster, keys: &[String]) {
    for pnode in c.pnodes() {
        for key in keys {
            let read = ReadOptions { deadline: Some(PATIENCE), ..ReadOptions::default() };
            let record = pnode.local().get("default", key.as_bytes(), read).await.unwrap();
            assert_eq!(record.map(|r| r.value), Some(value(key)), "acknowledged key {key} is lost");
        }
    }
}

/// Writes to a partition until it refuses. Returns what was acknowledged, and the refusal.
async fn write_until_refused(c: &Cluster, partition: u32, from: usize) -> (Vec<String>, Error) {
    let mut acknowledged = Vec::new();
    for i in from..from + LOG_BYTES / VALUE_BYTES {
        let key = key(partition, i);
        match put(c, i, &key, IMPATIENT).await {
            Ok(()) => acknowledged.push(key),
            Err(e) if is_stall(&e) => {}
            Err(e) => return (acknowledged, e),
        }
    }
    panic!("more was written than there was room for");
}

/// The answer was late: it says nothing about the write.
fn is_stall(e: &Error) -> bool {
    let is_late = || ["before it", "deadline passed"].iter().any(|why| e.message.contains(why));
    let is_unknown = matches!(e.kind, ErrorKind::OutcomeUnknown | ErrorKind::Unavailable);
    is_unknown || e.kind == ErrorKind::Overloaded && is_late()
}

fn assert_says_no_space(error: &Error) {
    assert_eq!(error.kind, ErrorKind::Overloaded, "{error}");
    assert!(error.message.contains("no space left"), "{error}");
}

async fn partition(c: &Cluster, at: u32) -> serde_json::Value {
    let leader = c.leader(at as usize).await;
    c.status(leader)["partitions"][at as usize].clone()
}

/// Waits until all replicas of all partitions have the same log.
async fn converged(c: &Cluster) {
    for at in 0..PARTITIONS as usize {
        eventually("all replicas have caught up", async || {
            let committed =
                |i: usize| c.status(i)["partitions"][at]["committed_index"].as_u64().unwrap_or_default();
            let all: Vec<u64> = (0..c.config.memtable.len()).map(committed).collect();
            all.iter().all(|index| *index == all[0]).then_some(())
        })
        .await;
    }
}

fn assert_nobody_ended(c: &Cluster) {
    for i in 0..c.config.memtable.len() {
        assert_eq!(c.memtable_fatals(i), 0, "memtable server {i}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_sstable_server_is_left_out_and_catches_up() {
    let mut c = Cluster::start(options(1)).await;
    let mut acknowledged = put_all(&c, 0, 0..20).await;
    acknowledged.extend(put_all(&c, 1, 0..20).await);
    // One of three: flushes go on with the other two.
    c.sstable_disk(0).set_capacity(Some(c.sstable_disk(0).used_bytes() + 1000));
    c.maintain(Maintenance::Flush, "").await;
    all_there(&c, &acknowledged).await;
    assert_eq!(c.sstable_status(0)["tables"], 0);
    // Two of three: flushes wait, and say what for.
    c.sstable_disk(1).set_capacity(Some(c.sstable_disk(1).used_bytes() + 1000));
    for at in 0..PARTITIONS {
        acknowledged.extend(put_all(&c, at, 20..30).await);
    }
    c.maintain(Maintenance::Freeze, "").await;
    for at in 0..PARTITIONS {
        eventually("a flush has failed for lack of space", async || {
            let status = partition(&c, at).await;
            let mut errors = status["memtables"].as_array()?.iter().filter_map(|t| t["flush_error"].as_str());
            // (The first to fail may have failed for another reason, on a busy machine.)
            let is_this = |error: &&str| error.contains("1 of 2 replicas") && error.contains("No space left");
            errors.find(is_this).map(drop)
        })
        .await;
    }
    all_there(&c, &acknowledged).await;
    for server in 0..2 {
        eventually("there is at most what is being tried now", async || {
            let files = c.sstable_disk(server).list("/disk".as_ref()).unwrap();
            let parts = files.iter().filter(|f| f.extension().is_some_and(|e| e == "tmp")).count();
            (parts <= 2).then_some(())
        })
        .await;
    }
    // Space comes back: nobody has to do anything.
    for server in 0..2 {
        c.sstable_disk(server).set_capacity(None);
    }
    for server in 0..3 {
        eventually("every server has every table", async || {
            let mut named = 0;
            for at in 0..PARTITIONS {
                let status = partition(&c, at).await;
                let frozen: u64 =
                    status["memtables"].as_array()?.iter().filter_map(|t| t["frozen"].as_u64()).sum();
                let ssts =
                    status["tables"].as_array()?.iter().filter_map(|t| Some(t["sstables"].as_array()?.len()));
                named += ssts.sum::<usize>();
                if frozen > 0 {
                    return None;
                }
            }
            (named == 4 && c.sstable_status(server)["tables"] == named).then_some(())
        })
        .await;
    }
    for alone in 0..2 {
        for other in (0..3).filter(|i| *i != alone) {
            c.stop_sstable(other).await;
        }
        all_there(&c, &acknowledged).await;
        for other in (0..3).filter(|i| *i != alone) {
            c.start_sstable(other).await;
        }
    }
    c.shutdown().await;
}

/// Nothing is flushed from now on, so no log is purged.
fn stop_flushes(c: &Cluster) {
    for server in 0..2 {
        c.sstable_disk(server).set_capacity(Some(c.sstable_disk(server).used_bytes()));
    }
}

fn fill(c: &Cluster, i: usize) {
    c.memtable_disk(i).set_capacity(Some(c.memtable_disk(i).used_bytes()));
}

fn give_space(c: &Cluster) {
    (0..2).for_each(|server| c.sstable_disk(server).set_capacity(None));
    (0..3).for_each(|i| c.memtable_disk(i).set_capacity(None));
}

/// All replicas come to the same, nobody has ended, and nothing is lost: now, and after a crash.
async fn ends_well(mut c: Cluster, acknowledged: &[String]) {
    converged(&c).await;
    all_there(&c, acknowledged).await;
    assert_nobody_ended(&c);
    all_there_after_a_crash(&mut c, acknowledged).await;
    c.shutdown().await;
}

/// What was acknowledged while disks were full is on disks.
async fn all_there_after_a_crash(c: &mut Cluster, acknowledged: &[String]) {
    c.crash_memtable(&[0, 1, 2]).await;
    for i in 0..3 {
        c.start_memtable(i).await;
    }
    c.ready().await;
    all_there(c, acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_log_is_full_hands_over_and_follows_later() {
    let c = Cluster::start(options(2)).await;
    let mut acknowledged = put_all(&c, 0, 0..5).await;
    acknowledged.extend(put_all(&c, 1, 0..5).await);
    stop_flushes(&c);
    let full = c.leader(0).await;
    fill(&c, full);
    // More than it has room for. Whoever waits long enough does not hear of it.
    acknowledged.extend(put_all(&c, 0, 100..100 + LOG_BYTES / VALUE_BYTES).await);
    let mut at = 2000;
    for partition in 0..PARTITIONS {
        eventually("another server leads", async || {
            at += 1;
            acknowledged.extend(put_all(&c, partition, at..at + 1).await);
            (c.leader(partition as usize).await != full).then_some(())
        })
        .await;
        acknowledged.extend(put_all(&c, partition, 3000..3100).await);
    }
    all_there(&c, &acknowledged).await;
    assert_nobody_ended(&c);
    // Space comes back: nobody has to do anything.
    give_space(&c);
    for at in 0..PARTITIONS {
        acknowledged.extend(put_all(&c, at, 4000..4010).await);
    }
    ends_well(c, &acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_log_is_full_refuses_writes_while_too_few_have_room_and_can_be_told_to_hand_over() {
    let mut c = Cluster::start(options(4)).await;
    let mut acknowledged = put_all(&c, 0, 0..5).await;
    acknowledged.extend(put_all(&c, 1, 0..5).await);
    stop_flushes(&c);
    let mut at = 100;
    let full = eventually("one of two servers without space leads, and refuses", async || {
        (0..3).for_each(|i| c.memtable_disk(i).set_capacity(None));
        let full = c.leader(0).await;
        fill(&c, full);
        fill(&c, (full + 1) % 3);
        for _ in 0..LOG_BYTES / VALUE_BYTES {
            // On a busy machine another may lead meanwhile, which has space.
            if c.leader(0).await != full {
                return None;
            }
            at += 1;
            let key = key(0, at);
            match put(&c, at, &key, IMPATIENT).await {
                Ok(()) => acknowledged.push(key),
                Err(e) if is_stall(&e) => return None,
                Err(e) => {
                    assert_says_no_space(&e);
                    let status = partition(&c, 0).await;
                    let why = status["writes_why"].as_str().unwrap_or_default();
                    let is_told = status["writes"] == "refused" && why.contains("no space left");
                    return is_told.then_some(full);
                }
            }
        }
        None
    })
    .await;
    all_there(&c, &acknowledged).await;
    let to = (full + 2) % 3;
    eventually("who has space leads", async || {
        // (A transfer may be refused, or another be elected, on a busy machine.)
        let _ = c.transfer(0, c.config.memtable[to].id.0).await;
        (c.leader(0).await == to).then_some(())
    })
    .await;
    all_there(&c, &acknowledged).await;
    assert_nobody_ended(&c);
    give_space(&c);
    for at in 0..PARTITIONS {
        acknowledged.extend(put_all(&c, at, 4000..4010).await);
    }
    converged(&c).await;
    assert_nobody_ended(&c);
    all_there_after_a_crash(&mut c, &acknowledged).await;
    c.shutdown().await;
}

/// Room for snapshots, which lie beside the log here.
const SNAPSHOTS_BYTES: u64 = 512 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_frees_the_full_log_of_a_follower_though_no_space_comes_back() {
    let c = Cluster::start(options(5)).await;
    // Nothing is ever written to partition 1. The log of `full` begins with its first entries all the same.
    let mut acknowledged = put_all(&c, 0, 0..5).await;
    let full = (c.leader(0).await + 1) % 3;
    // The segment in use is not given back: there have to be others.
    let room = 2 * options(5).tuning.log_segment_bytes + SNAPSHOTS_BYTES;
    c.memtable_disk(full).set_capacity(Some(c.memtable_disk(full).used_bytes() + room));
    let mut at = 100;
    eventually("a server has no space for what it follows", async || {
        acknowledged.extend(put_all(&c, 0, at..at + 40).await);
        at += 40;
        let committed = |i: usize| c.status(i)["partitions"][0]["committed_index"].as_u64();
        let leader = c.leader(0).await;
        (leader != full && committed(full)? + 60 < committed(leader)?).then_some(())
    })
    .await;
    // Its leader would keep what it lacks; instead it gets a snapshot, and has nothing of the partition in its log then.
    c.maintain(Maintenance::Flush, "").await;
    converged(&c).await;
    acknowledged.extend(put_all(&c, 0, 5000..5010).await);
    ends_well(c, &acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_that_are_full_everywhere_make_room_by_flushing() {
    let mut options = options(6);
    // A leader takes writes while there is room for three of these: less than a segment, more than what followers leave free.
    options.tuning.group_bytes = 1 << 20;
    let room = 2 * options.tuning.log_segment_bytes + SNAPSHOTS_BYTES;
    let c = Cluster::start(options).await;
    let mut acknowledged = put_all(&c, 0, 0..5).await;
    for i in 0..3 {
        c.memtable_disk(i).set_capacity(Some(c.memtable_disk(i).used_bytes() + room));
    }
    // More than twice what there is room for.
    acknowledged.extend(put_all(&c, 0, 100..100 + 4 * LOG_BYTES / VALUE_BYTES).await);
    converged(&c).await;
    all_there(&c, &acknowledged).await;
    assert_nobody_ended(&c);
    c.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memtable_servers_that_filled_up_together_still_elect_and_serve_reads() {
    let mut c = Cluster::start(options(3)).await;
    let mut acknowledged = put_all(&c, 0, 0..5).await;
    acknowledged.extend(put_all(&c, 1, 0..5).await);
    for i in 0..3 {
        c.memtable_disk(i).set_capacity(Some(c.memtable_disk(i).used_bytes()));
    }
    for at in 0..PARTITIONS {
        let (more, error) = write_until_refused(&c, at, 100).await;
        acknowledged.extend(more);
        assert_says_no_space(&error);
    }
    assert_nobody_ended(&c);
    all_there(&c, &acknowledged).await;
    // A change of leaders, and restarts, while nobody has space.
    for i in 0..3 {
        c.stop_memtable(i).await;
        c.start_memtable(i).await;
        all_there(&c, &acknowledged).await;
    }
    let mut at = 2000;
    let error = eventually("the write is refused", async || {
        // (Another may lead now, whose log has a little room left.)
        at += 1;
        match put(&c, at, &key(0, at), IMPATIENT).await {
            Ok(()) => acknowledged.push(key(0, at)),
            Err(e) if is_stall(&e) => {}
            Err(e) => return Some(e),
        }
        None
    })
    .await;
    assert_says_no_space(&error);
    assert_nobody_ended(&c);
    for i in 0..3 {
        c.memtable_disk(i).set_capacity(None);
    }
    for at in 0..PARTITIONS {
        acknowledged.extend(put_all(&c, at, 1000..1010).await);
    }
    converged(&c).await;
    all_there(&c, &acknowledged).await;
    assert_nobody_ended(&c);
    c.shutdown().await;
}
