//! Objects of the Redis protocol, restored from a backup: each is what it was, whatever the cluster still has of it, and whoever sweeps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use sextant_backup::archive::follow::{self, follow};
use sextant_backup::archive::reach::Reach;
use sextant_backup::create::{self, create};
use sextant_backup::restore::{self, restore, restore_to};
use sextant_backup::{Backup, Repository};
use sextant_client::{Client, PartitionId};
use sextant_environment::shutdown;
use sextant_memtable_server::Tuning;
use sextant_tests::cluster::{Cluster, Maintenance, Options};
use sextant_tests::eventually;

const ELEMENTS: &str = "sextant.elements";

fn options(partitions: u32) -> Options {
    // (Entries of the log are there until a follower has read them.)
    let tuning = Tuning { log_entries_kept: 1_000_000, ..Options::default().tuning };
    Options { partitions, tuning, ..Options::default() }
}

async fn client(c: &Cluster) -> Client {
    let addr = c.pnode(0).grpc_addr().to_string();
    Client::connect(addr).await.unwrap().with_deadline(Duration::from_secs(60))
}

fn repository(c: &Cluster, dir: &tempfile::TempDir) -> Repository {
    Repository::open(&c.env, dir.path().to_str().unwrap()).unwrap()
}

async fn backup(client: &Client, repository: &Repository) -> Backup {
    create(client, repository, &create::Options::default(), &silent).await.unwrap().backup
}

fn silent(_: String) {}

fn now_ms(c: &Cluster) -> u64 {
    c.env.clock.wall_guess_ns() / 1_000_000
}

/// Everything is loaded, in pieces of about a file.
fn loaded() -> restore::Options {
    restore::Options { loaded_bytes_min: Some(0), piece_bytes: 1, ..Default::default() }
}

/// Everything is written as clients do.
fn written() -> restore::Options {
    restore::Options { loaded_bytes_min: None, ..Default::default() }
}

async fn ask(redis: &mut MultiplexedConnection, command: &str) -> redis::Value {
    let words: Vec<&str> = command.split(' ').collect();
    redis::cmd(words[0]).arg(&words[1..]).query_async(redis).await.unwrap()
}

async fn run(redis: &mut MultiplexedConnection, commands: &[&str]) {
    for command in commands {
        ask(redis, command).await;
    }
}

/// What the Redis protocol says of the objects of the first test.
async fn said(redis: &mut MultiplexedConnection) -> BTreeMap<&'static str, String> {
    let mut said = BTreeMap::new();
    for command in [
        "HLEN h",
        "HGETALL h",
        "HMGET h a b c",
        "ZCARD z",
        "ZRANGE z 0 -1 WITHSCORES",
        "ZSCORE z k",
        "LLEN l",
        "LRANGE l 0 -1",
        "SCARD s",
        "SMEMBERS s",
        "SMEMBERS emptied",
        "HLEN often",
        "HGETALL often",
        "TYPE z",
    ] {
        let text = match ask(redis, command).await {
            // (Fields and members come in no order.)
            redis::Value::Array(values) if command.starts_with("HGETALL") => {
                let mut pairs: Vec<String> = values.chunks(2).map(|pair| format!("{pair:?}")).collect();
                pairs.sort();
                pairs.concat()
            }
            redis::Value::Array(mut values) if command.starts_with("SMEMBERS") => {
                values.sort_by_key(|value| format!("{value:?}"));
                format!("{values:?}")
            }
            value => format!("{value:?}"),
        };
        said.insert(command, text);
    }
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_what_they_were_also_where_they_have_changed_since() {
    let c = Cluster::start(options(2)).await;
    let (mut redis, operator) = (c.redis(0).await, client(&c).await);
    let dir = tempfile::tempdir().unwrap();
    let repository = repository(&c, &dir);
    run(
        &mut redis,
        &[
            "HSET h a 1 b 2",
            "ZADD z 1 m 2 n",
            "RPUSH l x y",
            "SADD s p q",
            "SADD emptied o",
            // Elements of several versions, most of them in one file, some in others.
            "HSET often a 0 b 0",
        ],
    )
    .await;
    for round in 1..=10 {
        run(&mut redis, &["DEL often", &format!("HSET often a {round} c{round} {round} d 0 e 0")]).await;
        if round % 4 == 0 {
            c.maintain(Maintenance::Flush, ELEMENTS).await;
        }
    }
    let before = said(&mut redis).await;
    let backup = backup(&operator, &repository).await;
    let mut counts = Vec::new();
    for how in [loaded(), written()] {
        run(
            &mut redis,
            &[
                "HSET h c 3",
                "HDEL h a",
                "ZREM z m",
                "ZADD z 5 k 7 n",
                "LPUSH l w",
                "LSET l 1 other",
                "HSET often c5 5 new 1",
                // Those whose elements may not be swept yet.
                "DEL s emptied",
                "SADD s r",
            ],
        )
        .await;
        assert_ne!(said(&mut redis).await, before);
        let how = restore::Options { into_existing: true, ..how };
        let restored = restore(&operator, &repository, &backup, &how, &silent).await.unwrap();
        assert_eq!(said(&mut redis).await, before);
        counts.push(restored.records);
    }
    // Each element once, also of those that are nobody's any more: but for what was swept before the backup.
    assert_eq!((counts[0]["default"], &counts[0]), (6, &counts[1]));
    assert!((15..=15 + 38).contains(&counts[0][ELEMENTS]), "{counts:?}");
    // They go on as they are.
    run(&mut redis, &["HSET h c 3", "ZADD z 0 first", "RPUSH l z"]).await;
    assert_eq!(redis.hlen::<_, u64>("h").await.unwrap(), 3);
    assert_eq!(redis.zrange::<_, Vec<String>>("z", 0, 0).await.unwrap(), ["first"]);
    assert_eq!(redis.lrange::<_, Vec<String>>("l", -1, -1).await.unwrap(), ["z"]);
    c.shutdown().await;
}

/// A hash that expires after the backup, but for being renewed then; until when it was not to expire.
async fn renewed_after(c: &Cluster, operator: &Client, repository: &Repository) -> (Backup, u64) {
    let mut redis = c.redis(0).await;
    // On a slow machine it may be over before it is renewed.
    for seconds in [2, 8, 32, 128] {
        run(&mut redis, &["DEL h", "HSET h a 1 b 2 c 3"]).await;
        let _: bool = redis.expire("h", seconds).await.unwrap();
        let expires_ms: u64 = redis::cmd("PEXPIRETIME").arg("h").query_async(&mut redis).await.unwrap();
        let made = backup(operator, repository).await;
        if made.cuts[&PartitionId(0)].tick.0 < expires_ms && redis.persist::<_, bool>("h").await.unwrap() {
            run(&mut redis, &["HSET h c 4 d 5", "HDEL h a"]).await;
            return (made, expires_ms);
        }
    }
    panic!("a backup takes less than two minutes");
}

/// Puts the log into the repository, until it leads from the backup to a time.
async fn archive(client: &Client, repository: &Repository, backup: &Backup, to_ms: u64) {
    let (stop, stopping) = shutdown::channel();
    let options = follow::Options { every: Duration::from_millis(200) };
    let reaches = async {
        eventually("the archive reaches that time", async || {
            let archive = repository.archive().await.unwrap();
            Reach::of(backup, &archive).check(to_ms).ok()
        })
        .await;
        stop.trigger();
    };
    let (followed, ()) = tokio::join!(follow(client, repository, options, stopping, &silent), reaches);
    followed.unwrap();
}

/// Sweeps, and holds up the calling thread until that is done. (A test's own thread is none of the runtime's workers.)
fn sweep(c: &Arc<Cluster>) {
    let (c, (done, swept)) = (c.clone(), std::sync::mpsc::channel());
    tokio::spawn(async move {
        let swept = c.pnode(0).sweep().await;
        drop(c);
        let _ = done.send(swept);
    });
    swept.recv().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_during_a_restore_to_a_time_finds_the_headers_of_that_time() {
    let c = Cluster::start(options(1)).await;
    let operator = client(&c).await;
    let dir = tempfile::tempdir().unwrap();
    let repository = repository(&c, &dir);
    let (backup, expires_ms) = renewed_after(&c, &operator, &repository).await;
    let renewed_ms = now_ms(&c);
    eventually("it would have expired", async || (now_ms(&c) > expires_ms.max(renewed_ms)).then_some(()))
        .await;
    archive(&operator, &repository, &backup, renewed_ms).await;
    for how in [loaded(), written()] {
        let other = Arc::new(Cluster::start(options(1)).await);
        let told = parking_lot::Mutex::new(Vec::new());
        let progress = |line: String| {
            // The base's elements have just come, and the restore waits.
            if line.contains(ELEMENTS) {
                sweep(&other);
            }
            told.lock().push(line);
        };
        let there = client(&other).await;
        restore_to(&there, &repository, &backup, renewed_ms, &how, &progress).await.unwrap();
        let told = told.into_inner();
        assert!(told.iter().any(|line| line.contains(ELEMENTS)), "{told:?}");
        let all: BTreeMap<String, u64> = other.redis(1).await.hgetall("h").await.unwrap();
        let expected = [("b", 2), ("c", 4), ("d", 5)].map(|(field, value)| (field.to_owned(), value));
        assert_eq!(all, BTreeMap::from(expected), "{told:?}");
        Arc::into_inner(other).expect("nobody sweeps any more").shutdown().await;
    }
    c.shutdown().await;
}
