//! All memtable servers lose their disks, in a cluster of processes: nothing is founded and no table is deleted, no record is denied, and
//! `sextant admin recover` brings every flushed record back, with p-nodes that stayed up through all of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use sextant_client::{Client, ClientOptions, ScanOptions, http};
use sextant_common::manifest::TableOptions;
use sextant_dev_cluster::{DevCluster, DevOptions, Role, Tuning};
use sextant_environment::Env;

const TABLE: &str = "t";
const PATIENCE: Duration = Duration::from_secs(180);

fn sextant(args: &[&str], server: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_sextant");
    Command::new(program).args(args).args(["--server", server, "--deadline-ms", "60000"]).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The table files of all sstable servers: (server, name).
fn table_files(data: &Path) -> BTreeSet<(usize, String)> {
    let mut files = BTreeSet::new();
    for server in 1..=3 {
        for entry in std::fs::read_dir(data.join(format!("sstable-{server}"))).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".sst") {
                files.insert((server, name));
            }
        }
    }
    files
}

async fn eventually<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(value) = condition().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never: {what}"))
}

/// What was flushed: the newest value of each key, None for a deleted one.
type Model = BTreeMap<String, Option<String>>;

async fn put(client: &Client, model: &mut Model, key: String, value: String) {
    client.put("", key.clone(), value.clone()).await.unwrap();
    model.insert(key, Some(value));
}

async fn value(client: &Client, table: &str, key: &str) -> Option<String> {
    let record = eventually(key, async || client.get(table, key.to_owned()).await.ok()).await;
    record.map(|r| String::from_utf8_lossy(&r.value).into_owned())
}

async fn assert_holds(client: &Client, model: &Model) {
    for (key, expected) in model {
        assert_eq!(value(client, "", key).await, *expected, "{key}");
    }
    let scan = async || client.scan("", ScanOptions::default()).collect_records().await.ok();
    let scanned = eventually("a scan", scan).await;
    let scanned: Vec<_> = scanned.iter().map(|r| String::from_utf8_lossy(&r.key).into_owned()).collect();
    let alive: Vec<_> = model.iter().filter(|(_, v)| v.is_some()).map(|(k, _)| k.clone()).collect();
    assert_eq!(scanned, alive);
}

async fn lose_disk(cluster: &mut DevCluster, data: &Path, server: usize) {
    cluster.kill(Role::Memtable, server).await.unwrap();
    std::fs::remove_dir_all(data.join(format!("memtable-{}", server + 1))).unwrap();
}

async fn lose_all_memory(cluster: &mut DevCluster, data: &Path) {
    for i in 0..3 {
        lose_disk(cluster, data, i).await;
    }
    for i in 0..3 {
        cluster.relaunch(Role::Memtable, i).await.unwrap();
    }
}

/// What a recovery would do, when all servers are up.
async fn planned(server: &str) -> String {
    let plan = async || {
        let output = sextant(&["admin", "recover"], server);
        output.status.success().then(|| stdout(&output))
    };
    eventually("all answer", plan).await
}

/// Recovers, again while somebody is too slow to answer. All that was said.
async fn recover(server: &str, options: &[&str]) -> String {
    let mut said = String::new();
    let args = [&["admin", "recover", "--yes"], options].concat();
    let done = async || {
        let output = sextant(&args, server);
        said += &String::from_utf8_lossy(&output.stdout);
        output.status.success().then_some(())
    };
    eventually("it is recovered", done).await;
    said
}

/// What a recovery says that is refused for this reason, not because somebody is slow to answer.
async fn refusal(server: &str, reason: &str) {
    let refused = async || {
        let output = sextant(&["admin", "recover", "--yes"], server);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!output.status.success(), "{text}");
        text.contains(reason).then_some(())
    };
    eventually(reason, refused).await;
}

async fn flush(client: &Client) {
    let flushed = async || client.flush(None).await.unwrap().errors.is_empty().then_some(());
    eventually("all is flushed", flushed).await;
}

async fn compact(client: &Client) {
    let compacted = async || client.compact(None).await.unwrap().errors.is_empty().then_some(());
    eventually("all is compacted", compacted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_nothing_came_after_counts_if_the_operator_says_so_and_loads_go_on() {
    let env = Env::real();
    let dir = tempfile::tempdir().unwrap();
    let options = DevOptions {
        processes: Some(env!("CARGO_BIN_EXE_sextant").into()),
        partitions: Some(2),
        ..DevOptions::on_free_ports(dir.path())
    };
    let mut cluster = DevCluster::start(env.clone(), options).await.unwrap();
    let addrs = cluster.grpc_addrs();
    let patient = ClientOptions { deadline: PATIENCE, ..ClientOptions::default() };
    let client = Client::connect_in(env.clone(), addrs.clone(), patient).await.unwrap();
    let load = |round: &str| {
        let file = dir.path().join(format!("{round}.csv"));
        let lines: String = (0..50).map(|i| format!("k{i:02},{round} {i}\n")).collect();
        std::fs::write(&file, lines).unwrap();
        stdout(&sextant(&["load", file.to_str().unwrap()], &addrs[0]));
    };
    let model = |round: &str| -> Model {
        let loaded = (0..50).map(|i| (format!("k{i:02}"), Some(format!("{round} {i}"))));
        loaded.chain([("other".into(), Some("stays".into()))]).collect()
    };
    client.put("", "k00", "before").await.unwrap();
    client.put("", "other", "stays").await.unwrap();
    flush(&client).await;
    load("first");
    assert_holds(&client, &model("first")).await;

    lose_all_memory(&mut cluster, dir.path()).await;
    let plan = planned(&addrs[0]).await;
    let undecided: Vec<&str> =
        plan.lines().filter_map(|line| line.split("UNDECIDED: load ").nth(1)).collect();
    assert_eq!(undecided.len(), 2, "one in each partition: {plan}");
    let names: Vec<&str> = undecided.iter().filter_map(|line| line.split(' ').next()).collect();
    refusal(&addrs[0], "--with-load").await;
    let unknown = sextant(&["admin", "recover", "--yes", "--without-load", "0-99-9"], &addrs[0]);
    assert!(!unknown.status.success());
    let done = recover(&addrs[0], &["--with-load", &names.join(",")]).await;
    assert_eq!(done.matches("is rebuilt").count(), 2, "{done}");
    assert_holds(&client, &model("first")).await;

    // What comes after a load tells of it, also in a partition that was rebuilt.
    let write = async |round: &str| {
        for i in 0..50 {
            client.put("", format!("k{i:02}"), format!("{round} {i}")).await.unwrap();
        }
        flush(&client).await;
    };
    write("written").await;
    load("second");
    assert_holds(&client, &model("second")).await;
    write("third").await;
    lose_all_memory(&mut cluster, dir.path()).await;
    let plan = planned(&addrs[0]).await;
    assert!(!plan.contains("UNDECIDED") && !plan.contains("MISSING"), "{plan}");
    recover(&addrs[0], &[]).await;
    assert_holds(&client, &model("third")).await;
    cluster.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_memtable_disks_are_lost_and_every_flushed_record_comes_back() {
    let env = Env::real();
    let dir = tempfile::tempdir().unwrap();
    // Whoever would take the tables for orphans would delete them within half a second.
    let quick = "[tuning]\nrepair_interval_ms = 100\nsst_delete_grace_ms = 300\ncompaction_trigger = 0\nsst_target_bytes = 1024";
    let options = DevOptions {
        processes: Some(env!("CARGO_BIN_EXE_sextant").into()),
        partitions: Some(2),
        tuning: Tuning { memtable: toml::from_str(quick).unwrap(), ..Tuning::default() },
        ..DevOptions::on_free_ports(dir.path())
    };
    let mut cluster = DevCluster::start(env.clone(), options).await.unwrap();
    // A busy machine is no error.
    let patient = ClientOptions { deadline: PATIENCE, ..ClientOptions::default() };
    let mut clients = Vec::new();
    for addr in cluster.grpc_addrs() {
        clients.push(Client::connect_in(env.clone(), vec![addr], patient.clone()).await.unwrap());
    }
    let client = clients[0].clone();

    // Several flushes and a compaction, overwrites and deletions.
    let mut model = Model::new();
    let with_inserts = TableOptions { filter_inserts: true, ..TableOptions::default() };
    client.create_table(TABLE, &with_inserts).await.unwrap();
    client.create_table("never-flushed", &TableOptions::default()).await.unwrap();
    for i in 0..120 {
        put(&client, &mut model, format!("k{i:03}"), format!("first {i}")).await;
    }
    client.put(TABLE, "other", "table").await.unwrap();
    flush(&client).await;
    for i in 0..60 {
        put(&client, &mut model, format!("k{i:03}"), format!("second {i}")).await;
    }
    for i in 60..80 {
        client.delete("", format!("k{i:03}")).await.unwrap();
        model.insert(format!("k{i:03}"), None);
    }
    flush(&client).await;
    compact(&client).await;
    for i in 0..30 {
        put(&client, &mut model, format!("k{i:03}"), format!("third {i}")).await;
    }
    client.delete("", "k119").await.unwrap();
    model.insert("k119".into(), None);
    flush(&client).await;
    // Not flushed: these are what is lost.
    for i in 100..110 {
        client.put("", format!("k{i:03}"), "not flushed").await.unwrap();
        client.put("", format!("lost{i}"), "not flushed").await.unwrap();
    }
    // Both p-nodes have views, filters and cached records of the cluster that is about to be lost.
    for client in &clients {
        assert_eq!(value(client, "", "k105").await.as_deref(), Some("not flushed"));
        assert_eq!(value(client, "", "k003").await.as_deref(), Some("third 3"));
        assert_eq!(value(client, "", "k040").await.as_deref(), Some("second 40"));
    }

    for i in 0..3 {
        lose_disk(&mut cluster, dir.path(), i).await;
    }
    let before = table_files(dir.path());
    assert!(!before.is_empty());
    for i in 0..3 {
        cluster.relaunch(Role::Memtable, i).await.unwrap();
    }

    // Every server says why it does not serve, for both partitions.
    for i in 0..3 {
        let http_addr = cluster.http(Role::Memtable, i).unwrap().to_owned();
        let ask = async |path: &str| http::get(&env, &http_addr, path, Duration::from_secs(2)).await.ok();
        eventually("the refusal in the status", async || {
            let status: serde_json::Value = serde_json::from_str(&ask("/status").await?.text()).ok()?;
            let partitions = status["partitions"].as_array()?.clone();
            let refuses = |p: &serde_json::Value| {
                p["unfounded"].as_str().is_some_and(|why| why.contains("sextant admin recover"))
            };
            (partitions.len() == 2 && partitions.iter().all(refuses)).then_some(())
        })
        .await;
        eventually("the refusal of readiness", async || {
            let ready = ask("/health/ready").await?;
            assert!(!ready.is_ok());
            ready.text().contains("the memtable servers are empty").then_some(())
        })
        .await;
    }
    assert_eq!(table_files(dir.path()), before, "no table is deleted");

    // No record is denied, and none that was never there either: nobody knows.
    let impatient = ClientOptions { deadline: Duration::from_millis(700), ..ClientOptions::default() };
    for addr in cluster.grpc_addrs() {
        let client = Client::connect_in(env.clone(), vec![addr], impatient.clone()).await.unwrap();
        for key in ["k003", "k105", "k070", "lost105", "never"] {
            let answer = client.get("", key).await;
            assert!(answer.is_err(), "{key}: {answer:?}");
        }
    }

    // It says what it would do, and does it when it is told to, once.
    let addrs = cluster.grpc_addrs();
    let planned = planned(&addrs[0]).await;
    println!("{planned}");
    for words in
        ["partition 0: can be rebuilt", "partition 1: can be rebuilt", "newest version", "Nothing was done"]
    {
        assert!(planned.contains(words), "{planned}");
    }
    assert!(!planned.contains("MISSING"), "{planned}");
    cluster.stop(Role::Memtable, 1).await.unwrap();
    refusal(&addrs[0], "memtable server 2 does not answer").await;
    cluster.restart(Role::Memtable, 1).await.unwrap();
    cluster.stop(Role::Sstable, 2).await.unwrap();
    // (A table may be on that server only.)
    refusal(&addrs[0], "--without-sstable 3").await;
    cluster.restart(Role::Sstable, 2).await.unwrap();
    assert!(!self::planned(&addrs[0]).await.contains("MISSING"));
    assert_eq!(table_files(dir.path()), before);
    let done = recover(&addrs[0], &[]).await;
    println!("{done}");
    assert!(done.contains("partition 0: is rebuilt") && done.contains("partition 1: is rebuilt"), "{done}");
    let again = recover(&addrs[1], &[]).await;
    assert!(again.matches("has a group: nothing to be done").count() >= 2, "{again}");

    // Through p-nodes that were up all the time: the newest flushed values, and nothing of what was lost.
    for client in &clients {
        assert_holds(client, &model).await;
        assert_eq!(value(client, TABLE, "other").await.as_deref(), Some("table"));
    }
    // It is as durable as anything: nothing was flushed since.
    put(&client, &mut model, "k004".into(), "fourth".into()).await;
    for i in 0..3 {
        cluster.kill(Role::Memtable, i).await.unwrap();
    }
    for i in 0..3 {
        cluster.relaunch(Role::Memtable, i).await.unwrap();
    }
    for client in &clients {
        assert_holds(client, &model).await;
    }
    let tables = clients[1].list_tables().await.unwrap();
    let table = tables.iter().find(|t| t.name == TABLE).unwrap();
    assert_eq!(table.options, with_inserts);
    for i in 0..3 {
        let addr = cluster.http(Role::Memtable, i).unwrap().to_owned();
        eventually("readiness", async || {
            http::get(&env, &addr, "/health/ready", Duration::from_secs(2)).await.ok()?.is_ok().then_some(())
        })
        .await;
    }

    // It goes on as any cluster; and what it replaces is its own to delete.
    let (fresh, _) = client.create_table("fresh", &TableOptions::default()).await.unwrap();
    assert!(tables.iter().all(|t| t.id < fresh), "ids of forgotten tables are not given again");
    put(&client, &mut model, "k003".into(), "fourth".into()).await;
    put(&client, &mut model, "new".into(), "after".into()).await;
    client.put("fresh", "a", "b").await.unwrap();
    flush(&client).await;
    compact(&client).await;
    for client in &clients {
        assert_holds(client, &model).await;
        assert_eq!(value(client, "fresh", "a").await.as_deref(), Some("b"));
        assert_eq!(value(client, TABLE, "other").await.as_deref(), Some("table"));
    }
    eventually("the old tables are deleted when they are replaced", async || {
        table_files(dir.path()).is_disjoint(&before).then_some(())
    })
    .await;
    assert_holds(&clients[1], &model).await;
    cluster.shutdown().await.unwrap();
}
