//! Snapshots and backups while all goes on: what they have is one published state of each partition; what they name is there as long as
//! they are held, and goes afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use sextant_backup::create::{self, create, create_until};
use sextant_backup::restore::{self, restore};
use sextant_backup::{Backup, Repository, compare, prune, verify};
use sextant_client::{Client, ErrorKind, NodeId, Operation, PartitionId, ScanOptions};
use sextant_environment::shutdown;
use sextant_memtable_server::Tuning;
use sextant_tests::cluster::{Cluster, Maintenance, Options};
use sextant_tests::eventually;

const WRITERS: usize = 4;
const SSTABLE_SERVERS: usize = 4;
const LARGE_BYTES: usize = 5 << 20;

fn options(partitions: u32) -> Options {
    let tuning = Tuning {
        compaction_trigger: 3,
        memtable_bytes: 32 << 10,
        sst_replicas: 2,
        sst_replicas_required: 2,
        ..Options::default().tuning
    };
    Options { partitions, sstable: SSTABLE_SERVERS, tuning, ..Options::default() }
}

async fn client(c: &Cluster, pnode: usize) -> Client {
    let addr = c.pnode(pnode).grpc_addr().to_string();
    Client::connect(addr).await.unwrap().with_deadline(Duration::from_secs(60))
}

fn silent(_: String) {}

/// One that writes its numbers, each twice in one batch, and once more afterwards.
#[derive(Default)]
struct Writer {
    /// All up to here are acknowledged.
    done: AtomicU64,
    begun: AtomicU64,
}

fn keys(writer: usize) -> [String; 3] {
    ["a", "b", "after"].map(|name| format!("{{{writer}}}{name}"))
}

async fn write(client: Client, at: usize, writer: Arc<Writer>, stop: Arc<AtomicBool>) {
    let [a, b, after] = keys(at);
    for n in 1.. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let text = n.to_string();
        writer.begun.store(n, Ordering::SeqCst);
        let both =
            vec![Operation::put("", a.clone(), text.clone()), Operation::put("", b.clone(), text.clone())];
        client.batch(both).await.unwrap();
        client.put("", after.clone(), text).await.unwrap();
        // Something that fills memtables, is overwritten, and is deleted.
        let filler = format!("{{{at}}}filler-{}", n % 50);
        match n % 7 {
            0 => drop(client.delete("", filler).await.unwrap()),
            _ => drop(client.put("", filler, "x".repeat(500)).await.unwrap()),
        }
        writer.done.store(n, Ordering::SeqCst);
    }
}

/// The table's records.
async fn all_of(client: &Client) -> BTreeMap<String, String> {
    let records = client.scan("", ScanOptions::default()).collect_records().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    records.into_iter().map(|r| (text(&r.key), text(&r.value))).collect()
}

/// What a snapshot has.
async fn all_of_snapshot(client: &Client, id: u64) -> Result<BTreeMap<String, String>, ErrorKind> {
    let records = client.scan_snapshot(id, "", ScanOptions::default()).collect_records().await;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    Ok(records.map_err(|e| e.kind)?.into_iter().map(|r| (text(&r.key), text(&r.value))).collect())
}

/// Whether records are one published state that has everything up to `done`, and nothing beyond `begun`.
fn assert_one_state(records: &BTreeMap<String, String>, done: &[u64], begun: &[u64]) {
    for writer in 0..WRITERS {
        let number = |key: &String| records.get(key).map_or(0, |text| text.parse::<u64>().unwrap());
        let [a, b, after] = keys(writer).each_ref().map(number);
        assert_eq!(a, b, "writer {writer}: half a batch");
        assert!(after == a || after + 1 == a, "writer {writer}: {after} after {a}");
        assert!((done[writer]..=begun[writer]).contains(&a), "writer {writer}: {a}");
        assert!(after >= done[writer], "writer {writer}: {after} was acknowledged");
    }
}

/// Everything is loaded, in pieces of about a file.
fn loaded() -> restore::Options {
    restore::Options { loaded_bytes_min: Some(0), piece_bytes: 1, ..Default::default() }
}

/// Everything is written as clients do.
fn written() -> restore::Options {
    restore::Options { loaded_bytes_min: None, ..Default::default() }
}

async fn restored_into(
    c: &Cluster,
    repository: &Repository,
    backup: &Backup,
    how: &restore::Options,
) -> Client {
    let client = client(c, 0).await;
    restore(&client, repository, backup, how, &silent).await.unwrap();
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_load_is_restored_as_one_published_state_of_each_partition() {
    let c = Cluster::start(options(2)).await;
    let dir = tempfile::tempdir().unwrap();
    let repository = Repository::open(&c.env, dir.path().to_str().unwrap()).unwrap();
    let operator = client(&c, 1).await;
    let (writers, stop): (Vec<Arc<Writer>>, _) =
        ((0..WRITERS).map(|_| Arc::default()).collect(), Arc::new(AtomicBool::new(false)));
    let mut running = Vec::new();
    for (at, writer) in writers.iter().enumerate() {
        let client = client(&c, at % 2).await;
        running.push(tokio::spawn(write(client, at, writer.clone(), stop.clone())));
    }
    let reached = |least: u64| {
        let writers = writers.clone();
        move || writers.iter().all(|w| w.done.load(Ordering::SeqCst) >= least).then_some(())
    };
    // What is longer than messages are by default, what has elements elsewhere, and what expires, but not soon.
    operator.put("", "large", "x".repeat(LARGE_BYTES)).await.unwrap();
    let mut redis = c.redis(0).await;
    redis::cmd("HSET").arg("object").arg("field").arg("of it").exec_async(&mut redis).await.unwrap();
    redis::cmd("SET").arg("later").arg("1").arg("EX").arg(100_000).exec_async(&mut redis).await.unwrap();
    let enough = reached(8);
    eventually("some is written", async || enough()).await;

    let numbers = |of: fn(&Writer) -> &AtomicU64| -> Vec<u64> {
        writers.iter().map(|w| of(w).load(Ordering::SeqCst)).collect()
    };
    let done = numbers(|w| &w.done);
    // The leader moves while it is made.
    let leader = c.leader(0).await;
    let to = NodeId(c.config.memtable[(leader + 1) % c.config.memtable.len()].id.0);
    let options = create::Options { name: Some("first".into()), ..Default::default() };
    let (first, _) = tokio::join!(
        create(&operator, &repository, &options, &silent),
        eventually("the leader moves", async || operator.transfer(PartitionId(0), to).await.ok())
    );
    let (first, begun) = (first.unwrap(), numbers(|w| &w.begun));
    assert_eq!(first.copied, first.files, "the repository was empty");

    // A second one copies only what is new.
    let least = begun.iter().max().unwrap() + 5;
    let more = reached(least);
    eventually("more is written", async || more()).await;
    stop.store(true, Ordering::SeqCst);
    join_all(running).await.into_iter().for_each(|ended| ended.unwrap());
    let last = numbers(|w| &w.done);
    let options = create::Options { name: Some("second".into()), ..Default::default() };
    let second = create(&operator, &repository, &options, &silent).await.unwrap();
    let third = create::Options { name: Some("third".into()), ..Default::default() };
    let third = create(&operator, &repository, &third, &silent).await.unwrap();
    // (Nothing was written since. A compaction may have made new ones of the same records.)
    let there: BTreeSet<_> = [&first, &second].iter().flat_map(|made| made.backup.files()).collect();
    let new = third.backup.files().into_iter().filter(|file| !there.contains(file)).count();
    assert_eq!(third.copied, new, "only what is not there yet is copied");
    assert_eq!(repository.names().await.unwrap(), ["first", "second", "third"]);
    assert!(create(&operator, &repository, &options, &silent).await.is_err(), "the name is taken");

    for backup in [&first.backup, &second.backup] {
        let verified = verify::verify(&repository, backup, Some(dir.path()), &silent).await.unwrap();
        assert!(verified.bad.is_empty() && verified.files > 0, "{verified:?}");
    }
    let now = all_of(&operator).await;
    assert_one_state(&now, &last, &last);
    let compared = compare::compare(&operator, &repository, &second.backup, None, &silent).await.unwrap();
    assert!(compared.is_equal() && compared.equal == now.len() as u64, "{compared:?}");

    // Into clusters of other numbers of partitions.
    for (partitions, how) in [(1, written()), (3, loaded())] {
        let other = Cluster::start(self::options(partitions)).await;
        let there = restored_into(&other, &repository, &first.backup, &how).await;
        let restored = all_of(&there).await;
        assert_one_state(&restored, &done, &begun);
        assert_eq!(restored["large"].len(), LARGE_BYTES);
        assert_object(&other).await;
        let compared = compare::compare(&there, &repository, &first.backup, None, &silent).await.unwrap();
        assert!(compared.is_equal() && compared.equal > 0, "{compared:?}");
        let again = restore(&there, &repository, &second.backup, &how, &silent).await;
        assert_eq!(again.unwrap_err().kind, ErrorKind::Invalid, "the table is not empty");
        let how = restore::Options { into_existing: true, ..how };
        restore(&there, &repository, &second.backup, &how, &silent).await.unwrap();
        let compared = compare::compare(&there, &repository, &second.backup, None, &silent).await.unwrap();
        assert_eq!((compared.differing, compared.equal), (0, now.len() as u64));
        assert_object(&other).await;
        other.shutdown().await;
    }

    // What the last one names stays.
    let pruned = prune::prune(&repository, 1, &silent).await.unwrap();
    assert_eq!(pruned.backups, 2);
    assert_eq!(repository.names().await.unwrap(), ["third"]);
    let verified = verify::verify(&repository, &third.backup, None, &silent).await.unwrap();
    assert_eq!((verified.bad.len(), verified.files), (0, third.files));
    assert_eq!(repository.tables().await.unwrap().len(), third.files, "nothing else is left");
    // An object that is missing is a difference, and hides no key that is new.
    redis::cmd("DEL").arg("object").exec_async(&mut redis).await.unwrap();
    operator.put("", "new", "1").await.unwrap();
    let compared = compare::compare(&operator, &repository, &third.backup, None, &silent).await.unwrap();
    assert_eq!((compared.equal, compared.differing, compared.more), (now.len() as u64 - 1, 1, 1));
    damage_one(&repository, dir.path(), &third.backup).await;
    c.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_only_the_backup_or_only_the_cluster_has_are_compared_too() {
    let c = Cluster::start(options(1)).await;
    let dir = tempfile::tempdir().unwrap();
    let repository = Repository::open(&c.env, dir.path().to_str().unwrap()).unwrap();
    let operator = client(&c, 0).await;
    let make = async |table: &str| {
        operator.ensure_table(table, &Default::default()).await.unwrap();
        operator.put(table, "key", "value").await.unwrap();
    };
    make("gone").await;
    make("stays").await;
    let all = create(&operator, &repository, &create::Options::default(), &silent).await.unwrap().backup;
    let named =
        create::Options { name: Some("part".into()), tables: vec!["stays".into()], ..Default::default() };
    let part = create(&operator, &repository, &named, &silent).await.unwrap().backup;
    operator.drop_table("gone").await.unwrap();
    make("new").await;
    let compared = compare::compare(&operator, &repository, &all, None, &silent).await.unwrap();
    assert_eq!((compared.equal, compared.differing, compared.more), (1, 1, 1), "{compared:?}");
    let compared = compare::compare(&operator, &repository, &part, None, &silent).await.unwrap();
    assert!(compared.is_equal() && compared.equal == 1, "{compared:?}");
    c.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_expired_since_the_backup_is_not_seen_after_a_restore() {
    let c = Cluster::start(options(1)).await;
    let dir = tempfile::tempdir().unwrap();
    let repository = Repository::open(&c.env, dir.path().to_str().unwrap()).unwrap();
    let (operator, mut redis) = (client(&c, 0).await, c.redis(0).await);
    operator.put("", "stays", "1").await.unwrap();
    // On a slow machine it may be over before the backup is there.
    let mut backup = None;
    for seconds in [2, 8, 32, 128] {
        redis::cmd("SET").arg("soon").arg("1").arg("EX").arg(seconds).exec_async(&mut redis).await.unwrap();
        let at: u64 = redis::cmd("PEXPIRETIME").arg("soon").query_async(&mut redis).await.unwrap();
        let made = create(&operator, &repository, &create::Options::default(), &silent).await.unwrap().backup;
        if made.cuts[&PartitionId(0)].tick.0 < at {
            backup = Some(made);
            break;
        }
    }
    let backup = backup.expect("a backup takes less than two minutes");
    eventually("it has expired", async || operator.get("", "soon").await.unwrap().is_none().then_some(()))
        .await;
    for how in [loaded(), written()] {
        let other = Cluster::start(options(1)).await;
        let there = restored_into(&other, &repository, &backup, &how).await;
        assert_eq!(all_of(&there).await.into_keys().collect::<Vec<_>>(), ["stays"]);
        other.shutdown().await;
    }
    c.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_that_is_stopped_holds_nothing_and_leaves_no_mark() {
    let c = Cluster::start(options(1)).await;
    let dir = tempfile::tempdir().unwrap();
    let repository = Repository::open(&c.env, dir.path().to_str().unwrap()).unwrap();
    let operator = client(&c, 0).await;
    operator.put("", "a", "1").await.unwrap();
    let (stop, stopping) = shutdown::channel();
    // A byte in each second: it is under way for long.
    let options = create::Options { bytes_per_second: Some(1), ..Default::default() };
    let progress = |line: String| {
        if line.contains("to be copied") {
            stop.trigger();
        }
    };
    let stopped = create_until(&operator, &repository, &options, stopping, &progress).await.unwrap_err();
    assert_eq!(stopped.kind, ErrorKind::Stopping, "{stopped}");
    assert!(repository.names().await.unwrap().is_empty());
    assert_eq!(std::fs::read_dir(dir.path().join("marks")).unwrap().count(), 0);
    eventually("no snapshot is held", async || (snapshots(&c).await == 0).then_some(())).await;
    c.shutdown().await;
}

/// The object has its element, and what expires will.
async fn assert_object(c: &Cluster) {
    let mut redis = c.redis(1).await;
    let field: String = redis::cmd("HGET").arg("object").arg("field").query_async(&mut redis).await.unwrap();
    let seconds: u64 = redis::cmd("TTL").arg("later").query_async(&mut redis).await.unwrap();
    assert!(field == "of it" && (1..=100_000).contains(&seconds), "{field} {seconds}");
}

/// A bit of a file is another one.
async fn damage_one(repository: &Repository, dir: &std::path::Path, backup: &Backup) {
    let name = backup.files()[0].name();
    let path = dir.join("tables").join(&name);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let verified = verify::verify(repository, backup, None, &silent).await.unwrap();
    assert!(verified.bad.len() == 1 && verified.bad[0].contains(&name), "{verified:?}");
    std::fs::remove_file(&path).unwrap();
    let verified = verify::verify(repository, backup, None, &silent).await.unwrap();
    assert!(verified.bad.len() == 1 && verified.bad[0].contains("not there"), "{verified:?}");
}

/// The ids of the tables whose files a server has.
fn held(c: &Cluster, server: usize) -> BTreeSet<String> {
    let file = c.sstable_file(server, "any");
    let files = std::fs::read_dir(file.parent().unwrap()).unwrap();
    let names = files.map(|f| f.unwrap().file_name().into_string().unwrap());
    names.filter_map(|n| n.strip_suffix(".sst").map(str::to_owned)).collect()
}

fn all_held(c: &Cluster) -> BTreeSet<String> {
    (0..SSTABLE_SERVERS).flat_map(|server| held(c, server)).collect()
}

/// The tables that the manifests name.
async fn named(c: &Cluster) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    for partition in 0..c.config.partitions as usize {
        let status = c.status(c.leader(partition).await);
        let tables = status["partitions"][partition]["tables"].as_array().unwrap().clone();
        let ssts = tables.iter().flat_map(|table| table["sstables"].as_array().unwrap());
        ids.extend(ssts.map(|sst| sst["id"].as_str().unwrap().to_owned()));
    }
    ids
}

/// How many snapshots the leaders hold.
async fn snapshots(c: &Cluster) -> usize {
    let mut count = 0;
    for partition in 0..c.config.partitions as usize {
        let status = c.status(c.leader(partition).await);
        count += status["partitions"][partition]["snapshots"].as_array().unwrap().len();
    }
    count
}

async fn fill(client: &Client, round: u64) {
    for i in 0..60 {
        let key = format!("key-{:03}", (i * 7 + round) % 90);
        match (i + round) % 5 {
            0 => drop(client.delete("", key).await.unwrap()),
            _ => client.put("", key, format!("of round {round}")).await.map(drop).unwrap(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_snapshot_names_outlives_compactions_and_a_drained_server_and_goes_when_it_ends() {
    let mut options = options(2);
    // Only when it is told to: none is under way when the snapshot is opened.
    options.tuning.compaction_trigger = 0;
    let c = Cluster::start(options).await;
    let (client, other) = (client(&c, 0).await, client(&c, 1).await);
    for round in 0..3 {
        fill(&client, round).await;
        c.maintain(Maintenance::Flush, "").await;
    }
    fill(&client, 3).await;
    let model = all_of(&client).await;
    let snapshot = client.open_snapshot(Duration::from_secs(600)).await.unwrap();
    assert_eq!(snapshot.partitions.len(), 2);
    assert_eq!(snapshots(&c).await, 2);
    let of_snapshot = named(&c).await;

    // All is overwritten and compacted, and a server is to be empty.
    for round in 4..8 {
        fill(&client, round).await;
        c.maintain(Maintenance::Flush, "").await;
    }
    let drained = c.config.sstable[0].id.0;
    c.maintain(Maintenance::Drain(&[drained]), "").await;
    c.maintain(Maintenance::Compact, "").await;
    let now = all_of(&client).await;
    assert_ne!(now, model);
    // What was replaced since, and no snapshot names, is deleted; by then the grace of the others was over too.
    eventually("only what is named is left", async || {
        let named: BTreeSet<String> = named(&c).await.union(&of_snapshot).cloned().collect();
        (all_held(&c).is_subset(&named)).then_some(())
    })
    .await;
    assert!(of_snapshot.is_disjoint(&named(&c).await), "all of it was compacted");
    assert!(of_snapshot.is_subset(&all_held(&c)));
    for client in [&client, &other] {
        assert_eq!(all_of_snapshot(client, snapshot.id).await.unwrap(), model);
    }
    let part = ScanOptions { reverse: true, limit: 5, ..ScanOptions::range("key-010", "key-050") };
    let part = client.scan_snapshot(snapshot.id, "", part).collect_records().await.unwrap();
    let keys: Vec<_> = model.range("key-010".to_owned().."key-050".to_owned()).rev().take(5).collect();
    assert!(part.iter().map(|r| &r.key[..]).eq(keys.iter().map(|(key, _)| key.as_bytes())));

    // A new leader knows of it, and holds it.
    let leader = c.leader(0).await;
    let to = NodeId(c.config.memtable[(leader + 1) % c.config.memtable.len()].id.0);
    eventually("the leader moves", async || client.transfer(PartitionId(0), to).await.ok()).await;
    assert_eq!(other.renew_snapshot(snapshot.id).await.unwrap(), snapshot);
    assert_eq!(all_of_snapshot(&other, snapshot.id).await.unwrap(), model);

    client.close_snapshot(snapshot.id).await.unwrap();
    eventually("what it named is gone", async || {
        let named = named(&c).await;
        (all_held(&c).is_subset(&named) && held(&c, 0).is_empty()).then_some(())
    })
    .await;
    assert_eq!(client.renew_snapshot(snapshot.id).await.unwrap_err().kind, ErrorKind::Invalid);
    for client in [&client, &other] {
        assert_eq!(all_of_snapshot(client, snapshot.id).await.unwrap_err(), ErrorKind::Invalid);
    }
    assert_eq!(all_of(&client).await, now);

    // One that nobody renews ends by itself.
    client.open_snapshot(Duration::from_secs(1)).await.unwrap();
    eventually("it has ended", async || (snapshots(&c).await == 0).then_some(())).await;
    assert!(client.open_snapshot(Duration::from_millis(1)).await.is_err(), "too short");
    let verified = client.verify_tables().await.unwrap();
    assert!(verified.lacking.is_empty() && verified.servers.len() == SSTABLE_SERVERS, "{verified:?}");
    assert!(verified.servers.iter().all(|s| s.error.is_empty() && s.damaged.is_empty()), "{verified:?}");
    c.shutdown().await;
}
