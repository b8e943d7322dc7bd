//! The log after a backup: what was written up to a time is restored, all of it and nothing later, through crashes of leaders and of
//! the follower; and where the log was lost, or went past a load, it is said.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use sextant_backup::archive::follow::{self, follow};
use sextant_backup::archive::reach::Reach;
use sextant_backup::archive::verify::verify_log;
use sextant_backup::archive::{End, Name};
use sextant_backup::create::{self, create};
use sextant_backup::inventory::Inventory;
use sextant_backup::restore::{self, restore, restore_to};
use sextant_backup::{Backup, Repository, prune};
use sextant_client::{Client, ErrorKind, LogReader, Operation, PartitionId, ScanOptions};
use sextant_common::archive::LogAnswer;
use sextant_common::ids::LogPosition;
use sextant_environment::Env;
use sextant_environment::clock::{ClockError, WrongClock};
use sextant_environment::shutdown::{self, ShutdownTrigger};
use sextant_memtable_server::Tuning;
use sextant_tests::cluster::{Cluster, Maintenance, Options};
use sextant_tests::eventually;
use tokio::task::JoinHandle;

const WRITERS: u64 = 4;
/// More than is written while no follower looks.
const KEPT: u64 = 1_000_000;

/// Flushed often. `kept`: entries of the log behind what is flushed.
fn options(partitions: u32, kept: u64) -> Options {
    let tuning = Tuning { memtable_bytes: 64 << 10, log_entries_kept: kept, ..Options::default().tuning };
    Options { partitions, tuning, ..Options::default() }
}

async fn client(c: &Cluster, pnode: usize) -> Client {
    let addr = c.pnode(pnode).grpc_addr().to_string();
    Client::connect(addr).await.unwrap().with_deadline(Duration::from_secs(60))
}

fn silent(_: String) {}

fn now_ms(c: &Cluster) -> u64 {
    c.env.clock.wall_guess_ns() / 1_000_000
}

fn repository(c: &Cluster, dir: &Path) -> Repository {
    Repository::open(&c.env, dir.to_str().unwrap()).unwrap()
}

/// A follower beside the cluster, as the command starts one.
struct Follower {
    stop: ShutdownTrigger,
    running: JoinHandle<sextant_client::Result<()>>,
    told: Arc<parking_lot::Mutex<Vec<String>>>,
}

impl Follower {
    async fn start(c: &Cluster, repository: &Repository) -> Self {
        let (client, repository) = (client(c, 1).await, repository.clone());
        let (stop, stopping) = shutdown::channel();
        let told: Arc<parking_lot::Mutex<Vec<String>>> = Arc::default();
        let lines = told.clone();
        let running = tokio::spawn(async move {
            let options = follow::Options { every: Duration::from_millis(200) };
            follow(&client, &repository, options, stopping, &|line| lines.lock().push(line)).await
        });
        Self { stop, running, told }
    }

    async fn stop(self) -> Vec<String> {
        self.stop.trigger();
        self.running.await.unwrap().unwrap();
        std::mem::take(&mut *self.told.lock())
    }
}

async fn reach(repository: &Repository, backup: &Backup) -> Reach {
    Reach::of(backup, &repository.archive().await.unwrap())
}

/// Waits until a backup can be restored to a time.
async fn reaches(repository: &Repository, backup: &Backup, to_ms: u64) {
    eventually("the archive reaches that time", async || reach(repository, backup).await.check(to_ms).ok())
        .await;
}

/// A time at which nothing is written: all that was acknowledged is before it, and what is begun from now on after it.
async fn moment(c: &Cluster) -> u64 {
    let at = now_ms(c);
    eventually("the clock goes on", async || (now_ms(c) > at).then_some(())).await;
    at
}

async fn all_of(client: &Client) -> BTreeMap<String, String> {
    let records = client.scan("", ScanOptions::default()).collect_records().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    records.into_iter().map(|r| (text(&r.key), text(&r.value))).collect()
}

/// Writers that put, overwrite, delete and write in batches, until they are stopped.
struct Writers {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    running: Vec<JoinHandle<()>>,
}

impl Writers {
    async fn start(c: &Cluster, round: u64) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut running = Vec::new();
        for writer in 0..WRITERS {
            let (client, stop, done) = (client(c, writer as usize % 2).await, stop.clone(), done.clone());
            running.push(tokio::spawn(async move {
                for n in 1.. {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    let (key, text) = (format!("{writer}-{}", n % 40), format!("{round}-{n}"));
                    match n % 5 {
                        0 => drop(client.delete("", key).await.unwrap()),
                        1 => {
                            let both = [0, 1]
                                .map(|half| Operation::put("", format!("{{{writer}}}{half}"), text.clone()));
                            client.batch(both.to_vec()).await.unwrap();
                        }
                        _ => drop(client.put("", key, text).await.unwrap()),
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                }
            }));
        }
        Self { stop, done, running }
    }

    async fn have_written(&self, more: u64) {
        let least = self.done.load(Ordering::SeqCst) + more;
        let enough = || self.done.load(Ordering::SeqCst) >= least;
        eventually("some is written", async || enough().then_some(())).await;
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::SeqCst);
        join_all(self.running).await.into_iter().for_each(|ended| ended.unwrap());
    }
}

async fn objects(c: &Cluster, round: u64) {
    let mut redis = c.redis(0).await;
    let mut run = async |words: &[&str]| {
        redis::cmd(words[0]).arg(&words[1..]).exec_async(&mut redis).await.unwrap();
    };
    let text = round.to_string();
    run(&["HSET", "hash", "field", &text, &format!("of-{text}"), "1"]).await;
    run(&["RPUSH", "list", &text]).await;
    run(&["DEL", "set"]).await;
    run(&["SADD", "set", &text, "always"]).await;
    run(&["SET", "later", &text, "EX", "100000"]).await;
    // Gone by the time of a restore; what was there before does not come back.
    run(&["SET", "soon", "stays"]).await;
    run(&["SET", "soon", &text, "PX", "1"]).await;
    // Of another kind every other time.
    run(&["DEL", "changing"]).await;
    match round % 2 {
        0 => run(&["SET", "changing", &text]).await,
        _ => run(&["ZADD", "changing", "1", &text]).await,
    }
}

/// What the Redis protocol says of them.
async fn said_of_objects(c: &Cluster) -> Vec<String> {
    let mut redis = c.redis(1).await;
    let mut said = Vec::new();
    for words in [
        &["HGET", "hash", "field"][..],
        &["HLEN", "hash"],
        &["LLEN", "list"],
        &["LINDEX", "list", "-1"],
        &["SCARD", "set"],
        &["TYPE", "changing"],
        &["GET", "later"],
        &["EXISTS", "soon"],
        &["EXPIRETIME", "later"],
    ] {
        let value: redis::Value =
            redis::cmd(words[0]).arg(&words[1..]).query_async(&mut redis).await.unwrap();
        said.push(format!("{words:?}: {value:?}"));
    }
    let mut members: Vec<String> = redis::cmd("SMEMBERS").arg("set").query_async(&mut redis).await.unwrap();
    members.sort();
    said.push(format!("{members:?}"));
    said
}

/// Everything that a client sees.
async fn seen(c: &Cluster) -> (BTreeMap<String, String>, Vec<String>) {
    let client = client(c, 0).await;
    eventually("what is over is gone", async || {
        client.get("", "soon").await.unwrap().is_none().then_some(())
    })
    .await;
    let mut said = said_of_objects(c).await;
    said.push(format!("{:?}", client.get("made-later", "key").await.unwrap().map(|r| r.value)));
    (all_of(&client).await, said)
}

async fn assert_restored(
    repository: &Repository,
    backup: &Backup,
    partitions: u32,
    to_ms: u64,
    expected: &(BTreeMap<String, String>, Vec<String>),
) {
    let other = Cluster::start(options(partitions, KEPT)).await;
    let there = client(&other, 0).await;
    let restored = restore_to(&there, repository, backup, to_ms, &restore::Options::default(), &silent).await;
    assert!(restored.unwrap().of_log > 0);
    assert_eq!(&seen(&other).await, expected);
    other.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_up_to_a_time_is_restored_and_nothing_later() {
    let mut c = Cluster::start(Options { faulty_disks: true, ..options(2, KEPT) }).await;
    let dir = tempfile::tempdir().unwrap();
    let repository = repository(&c, dir.path());
    let operator = client(&c, 0).await;
    objects(&c, 0).await;
    let writers = Writers::start(&c, 0).await;
    writers.have_written(20).await;
    let follower = Follower::start(&c, &repository).await;
    let named = |name: &str| create::Options { name: Some(name.into()), ..Default::default() };
    let first = create(&operator, &repository, &named("first"), &silent).await.unwrap().backup;

    // A leader dies, and the follower is stopped and started again; nobody stops writing.
    writers.have_written(50).await;
    objects(&c, 1).await;
    let leader = c.leader(0).await;
    c.crash_memtable(&[leader]).await;
    writers.have_written(20).await;
    follower.stop().await;
    writers.have_written(5).await;
    // Two at once, each of which cuts segments where it likes.
    let follower = Follower::start(&c, &repository).await;
    writers.have_written(7).await;
    let another = Follower::start(&c, &repository).await;
    operator.ensure_table("made-later", &Default::default()).await.unwrap();
    operator.put("made-later", "key", "value").await.unwrap();
    objects(&c, 2).await;
    writers.have_written(20).await;
    writers.stop().await;
    let at_first = seen(&c).await;
    let first_ms = moment(&c).await;

    // What comes later.
    c.start_memtable(leader).await;
    let writers = Writers::start(&c, 1).await;
    writers.have_written(50).await;
    let second = create(&operator, &repository, &named("second"), &silent).await.unwrap().backup;
    objects(&c, 3).await;
    writers.have_written(30).await;
    writers.stop().await;
    let at_second = seen(&c).await;
    assert_ne!(at_first, at_second);
    let second_ms = moment(&c).await;
    let writers = Writers::start(&c, 2).await;
    writers.have_written(20).await;
    writers.stop().await;
    reaches(&repository, &first, second_ms).await;
    reaches(&repository, &second, second_ms).await;

    let inventory = Inventory::read(&repository).await.unwrap();
    assert_eq!(inventory.newest_by(first_ms).unwrap().backup, first);
    assert_eq!(inventory.newest_by(second_ms).unwrap().backup, second);
    assert_restored(&repository, &first, 3, first_ms, &at_first).await;
    assert_restored(&repository, &first, 1, second_ms, &at_second).await;
    assert_restored(&repository, &second, 2, second_ms, &at_second).await;

    // What only the first one needed goes with it.
    for backup in [&first, &second] {
        let verified = verify_log(&repository, backup, &silent).await.unwrap();
        assert!(verified.bad.is_empty() && verified.segments > 0 && verified.groups > 0, "{verified:?}");
    }
    let told = [follower.stop().await, another.stop().await].concat();
    assert!(!told.iter().any(|line| line.contains("gap")), "{told:?}");
    assert!(prune::prune(&repository, 1, &silent).await.unwrap().segments > 0);
    let verified = verify_log(&repository, &second, &silent).await.unwrap();
    assert!(verified.bad.is_empty(), "{verified:?}");
    verified.reach.check(second_ms).unwrap();
    damage_one(&repository, dir.path(), &second).await;
    c.shutdown().await;
}

/// A bit of a segment is another one, and then what comes after the backup is gone.
async fn damage_one(repository: &Repository, dir: &Path, backup: &Backup) {
    let reach = reach(repository, backup).await;
    let covered = reach.partitions.values().find(|covered| !covered.segments.is_empty()).unwrap();
    let name = covered.segments[0];
    let path = dir.join("archive").join(name.history.to_string()).join(name.to_string());
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let verified = verify_log(repository, backup, &silent).await.unwrap();
    assert!(verified.bad.len() == 1 && verified.bad[0].contains(&name.to_string()), "{verified:?}");
    // What two followers have written has to be lost twice.
    let archive = repository.archive().await.unwrap();
    let begin = backup.cuts[&name.history.partition].at;
    let begins = |name: &&Name| name.after.index <= begin && begin < name.to.index;
    for name in archive.segments_of(&name.history).iter().filter(begins) {
        std::fs::remove_file(path.with_file_name(name.to_string())).unwrap();
    }
    let verified = verify_log(repository, backup, &silent).await.unwrap();
    assert!(verified.bad.len() == 1 && verified.bad[0].contains("a gap"), "{verified:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gap_and_a_load_are_told_and_refused_until_the_next_backup() {
    let c = Cluster::start(options(1, 100)).await;
    let dir = tempfile::tempdir().unwrap();
    let repository = repository(&c, dir.path());
    let operator = client(&c, 0).await;
    operator.put("", "a", "1").await.unwrap();
    let first = create(&operator, &repository, &create::Options::default(), &silent).await.unwrap().backup;
    let follower = Follower::start(&c, &repository).await;
    operator.put("", "a", "2").await.unwrap();
    let before = moment(&c).await;
    reaches(&repository, &first, before).await;
    follower.stop().await;

    // Nobody follows, and the log goes on until it forgets.
    let partition = *first.cuts.keys().next().unwrap();
    let end = reach(&repository, &first).await.partitions[&partition].to;
    eventually("what was not archived is purged", async || {
        for n in 0..30 {
            operator.put("", "b", n.to_string()).await.unwrap();
        }
        c.maintain(Maintenance::Flush, "").await;
        let reader = operator.log_reader().await.unwrap();
        match answer(&reader, Some(end)).await {
            LogAnswer::Gone { .. } => Some(()),
            LogAnswer::Page(_) => None,
        }
    })
    .await;
    let follower = Follower::start(&c, &repository).await;
    operator.put("", "a", "3").await.unwrap();
    let lost = moment(&c).await;
    eventually("it is known", async || {
        let reach = reach(&repository, &first).await;
        reach.partitions.values().any(|covered| covered.end == End::Gap).then_some(())
    })
    .await;
    assert!(follower.told.lock().iter().any(|line| line.contains("there is a gap")));
    let other = Cluster::start(options(1, KEPT)).await;
    let there = client(&other, 0).await;
    let how = restore::Options::default();
    let refused = restore_to(&there, &repository, &first, lost, &how, &silent).await.unwrap_err();
    assert!(refused.kind == ErrorKind::Invalid && refused.message.contains("a gap"), "{refused}");
    assert!(all_of(&there).await.is_empty(), "nothing was written");
    restore_to(&there, &repository, &first, before, &how, &silent).await.unwrap();
    assert_eq!(all_of(&there).await, BTreeMap::from([("a".to_owned(), "2".to_owned())]));

    // From the next backup on there is a log again, until something is loaded.
    let named = create::Options { name: Some("second".into()), ..Default::default() };
    let second = create(&operator, &repository, &named, &silent).await.unwrap().backup;
    operator.put("", "a", "4").await.unwrap();
    let between = moment(&c).await;
    reaches(&repository, &second, between).await;
    let loaded =
        restore::Options { loaded_bytes_min: Some(0), into_existing: true, ..restore::Options::default() };
    restore(&operator, &repository, &first, &loaded, &silent).await.unwrap();
    let later = moment(&c).await;
    eventually("it is known", async || {
        let reach = reach(&repository, &second).await;
        reach.partitions.values().any(|covered| covered.end == End::Load).then_some(())
    })
    .await;
    reach(&repository, &second).await.check(between).unwrap();
    let refused = reach(&repository, &second).await.check(later).unwrap_err();
    assert!(refused.message.contains("a bulk load"), "{refused}");
    follower.stop().await;
    other.shutdown().await;
    c.shutdown().await;
}

/// What is known of the log after a position, as soon as a leader answers.
async fn answer(reader: &LogReader, after: Option<LogPosition>) -> LogAnswer {
    eventually("the log is read", async || reader.follow(PartitionId(0), after).await.ok()?.next().await.ok())
        .await
}

/// All that a partition's log has written after a position, up to the first write of a key.
async fn written(reader: &LogReader, after: LogPosition, last: &str) -> Vec<String> {
    let (mut keys, mut after) = (Vec::new(), after);
    // (Nobody leads for a moment, as on a busy machine: it is followed anew.)
    eventually("the last key is read", async || {
        let mut pages = reader.follow(PartitionId(0), Some(after)).await.ok()?;
        while let Ok(answer) = pages.next().await {
            let LogAnswer::Page(page) = answer else { panic!("it is gone") };
            assert!(page.now_ms > 0, "whoever answers says what time it is");
            for group in &page.groups {
                let of_group = group.records().map(|(_, record)| record.key.to_vec());
                keys.extend(of_group.map(|key| String::from_utf8(key).unwrap()));
            }
            after = page.to;
            if keys.iter().any(|key| key == last) {
                return Some(());
            }
        }
        None
    })
    .await;
    keys
}

async fn first(reader: &LogReader) -> LogPosition {
    match answer(reader, None).await {
        LogAnswer::Gone { first, .. } => first,
        LogAnswer::Page(page) => panic!("nobody asked for {page:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_leader_does_not_know_since_it_was_started_again_another_replica_tells() {
    let mut c = Cluster::start(options(1, KEPT)).await;
    let (operator, reader) = (client(&c, 0).await, client(&c, 0).await.log_reader().await.unwrap());
    let begin = first(&reader).await;
    let mut expected = Vec::new();
    for round in 0.. {
        for n in 0..3 {
            expected.push(format!("{round}-{n}"));
            operator.put("", format!("{round}-{n}"), "1").await.unwrap();
        }
        c.maintain(Maintenance::Flush, "").await;
        let (leader, servers) = (c.leader(0).await, c.config.memtable.len());
        let heir = (leader + 1) % servers;
        c.stop_memtable(heir).await;
        c.start_memtable(heir).await;
        let id = c.config.memtable[heir].id.0;
        eventually("it leads", async || c.transfer(0, id).await.ok()).await;
        // (It may not have stored its snapshot before it was stopped.)
        if first(&reader).await.index > begin.index {
            break;
        }
    }
    operator.put("", "last", "1").await.unwrap();
    expected.push("last".into());
    assert_eq!(written(&reader, begin, "last").await, expected);
    // What never was in the log is in no replica's.
    let other = LogPosition { term: 1 << 40, index: begin.index + 3 };
    let answer = answer(&reader, Some(other)).await;
    assert!(matches!(answer, LogAnswer::Gone { .. }), "{answer:?}");
    c.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_whose_clock_is_behind_writes_nothing_and_takes_nothing_back() {
    let c = Cluster::start(options(2, KEPT)).await;
    let dir = tempfile::tempdir().unwrap();
    let repository = repository(&c, dir.path());
    let operator = client(&c, 0).await;
    let backup = create(&operator, &repository, &create::Options::default(), &silent).await.unwrap().backup;
    let follower = Follower::start(&c, &repository).await;
    operator.put("", "a", "1").await.unwrap();
    let before = moment(&c).await;
    reaches(&repository, &backup, before).await;
    follower.stop().await;
    let archived = repository.archive().await.unwrap();

    operator.put("", "a", "2").await.unwrap();
    let error = ClockError { wall_us: -600_000_000, drift_ppm: 0 };
    let clock = Arc::new(WrongClock::new(c.env.clock.clone(), error));
    let behind = Repository::open(&Env { clock, ..c.env.clone() }, dir.path().to_str().unwrap()).unwrap();
    let follower = Follower::start(&c, &behind).await;
    let is_told = || follower.told.lock().iter().any(|line| line.contains("s behind the leaders'"));
    eventually("it is told", async || is_told().then_some(())).await;
    follower.stop().await;
    let there = repository.archive().await.unwrap();
    assert_eq!((there.segments, there.marks), (archived.segments, archived.marks));

    let follower = Follower::start(&c, &repository).await;
    let after = moment(&c).await;
    reaches(&repository, &backup, after).await;
    follower.stop().await;
    c.shutdown().await;
}
