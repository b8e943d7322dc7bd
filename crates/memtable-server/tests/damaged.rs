//! A server whose directories are damaged does not start, and says what to do: its log, a snapshot, the file that says whose they are.

mod support;

use std::path::{Path, PathBuf};

use sextant_common::error::{Error, ErrorKind};
use sextant_environment::Env;
use sextant_environment::config::{ClusterConfig, LeaseConfig, Server};
use sextant_environment::env::{Party, cluster_channel, free_addrs};
use sextant_memtable_server::{MemtableServer, MemtableServerConfig, Tuning};
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;

use support::eventually;

/// After that come the records.
const SEGMENT_HEADER_BYTES: usize = 4096;

/// The only one of its tier.
async fn config(dir: &Path) -> MemtableServerConfig {
    let addrs = free_addrs(&Env::real(), 2).await.unwrap();
    support::sstable::serve_nothing(&addrs[1]);
    let cluster = ClusterConfig {
        id: "test".into(),
        partitions: 1,
        memtable: vec![Server::new(1, addrs[0].clone())],
        sstable: vec![Server::new(1, addrs[1].clone())],
        lease: LeaseConfig::default(),
    };
    MemtableServerConfig {
        id: cluster.memtable[0].id,
        listen: addrs[0].clone(),
        cluster,
        http: None,
        data_dir: dir.to_owned(),
        log_devices: vec![],
        clock: Default::default(),
        tls: None,
        // At rest, it freezes now and then; nothing is kept of what a snapshot has.
        tuning: Tuning {
            log_segment_bytes: 4 << 20,
            freeze_log_bytes: 256,
            log_entries_kept: 0,
            sst_replicas: 1,
            sst_replicas_required: 1,
            ..Tuning::default()
        },
    }
}

/// Runs until its log was purged: without the snapshot it is not the whole story any more.
async fn run_for_a_while(config: &MemtableServerConfig) {
    let env = Env::real();
    let server = MemtableServer::start(env.clone(), config.clone()).await.unwrap();
    let channel = cluster_channel(&env.net, &config.listen, &config.cluster, Party::TOOL, None);
    let mut admin = AdminClient::new(channel);
    let mut n = 0;
    eventually(async || {
        // Something for the log. (Refused while nobody leads.)
        n += 1;
        let table = v1::EnsureTableRequest { name: format!("t{}", n % 20), ..Default::default() };
        let _ = admin.ensure_table(table).await;
        let all = v1::MaintenanceRequest { partitions: vec![0], ..Default::default() };
        let _ = admin.flush(all).await;
        let status: serde_json::Value = serde_json::from_str(&server.status()).unwrap();
        (status["partitions"][0]["purged_index"].as_u64()? > 0).then_some(())
    })
    .await;
    server.shutdown().await;
}

/// Why it does not start when `damage` is done. (Who ran before gives its directories back, and writes its last snapshot, in the
/// background: then it is done again.)
async fn refusal(config: &MemtableServerConfig, damage: impl Fn()) -> Error {
    eventually(async || {
        damage();
        match MemtableServer::start(Env::real(), config.clone()).await {
            Ok(server) => {
                server.shutdown().await;
                None
            }
            Err(e) => (e.kind != ErrorKind::Unavailable).then_some(e),
        }
    })
    .await
}

/// What it says, and that it says what to do.
async fn assert_refuses(config: &MemtableServerConfig, what: &str, damage: impl Fn()) {
    let e = refusal(config, damage).await;
    assert_eq!(e.kind, ErrorKind::Corrupt, "{e}");
    assert!(e.message.contains(what), "{what:?}: {e}");
    let dirs = config.data_dir.display().to_string();
    let advice = e.message.find("empty all of its directories").map(|at| &e.message[at..]);
    assert!(advice.is_some_and(|advice| advice.contains(&dirs) && advice.contains("as a new one")), "{e}");
    assert_eq!(e.message.matches("empty all").count(), 1, "{e}");
}

fn with_byte_changed(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] ^= 0x55;
    bytes
}

/// Of the log's device.
fn segments(config: &MemtableServerConfig) -> Vec<PathBuf> {
    let log = &config.devices()[0];
    let files = std::fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.metadata().unwrap().len() > 64 * 1024).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_damaged_is_named_and_what_to_do_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path()).await;
    run_for_a_while(&config).await;
    config.tuning.freeze_log_bytes = u64::MAX;

    let snapshot = dir.path().join("partition-0.snapshot");
    let sound = std::fs::read(&snapshot).unwrap();
    assert_refuses(&config, "is missing or old", || drop(std::fs::remove_file(&snapshot))).await;
    let damaged = with_byte_changed(&sound, sound.len() - 1);
    let checksum = "partition-0.snapshot: checksum mismatch";
    assert_refuses(&config, checksum, || std::fs::write(&snapshot, &damaged).unwrap()).await;
    let cut = "partition-0.snapshot: too short";
    assert_refuses(&config, cut, || std::fs::write(&snapshot, &sound[..10]).unwrap()).await;
    std::fs::write(&snapshot, &sound).unwrap();

    let file = dir.path().join("INCARNATION");
    let sound = std::fs::read(&file).unwrap();
    assert_refuses(&config, "INCARNATION: not text", || std::fs::write(&file, [0xff, 0xfe]).unwrap()).await;
    std::fs::write(&file, &sound).unwrap();

    let sound: Vec<_> = segments(&config).into_iter().map(|at| (std::fs::read(&at).unwrap(), at)).collect();
    let damage = || {
        for (bytes, at) in &sound {
            std::fs::write(at, with_byte_changed(bytes, SEGMENT_HEADER_BYTES + 8)).unwrap();
        }
    };
    assert_refuses(&config, "at offset", damage).await;
    let damage = || {
        for (bytes, at) in &sound {
            let mut bytes = bytes.clone();
            bytes[SEGMENT_HEADER_BYTES..].fill(0);
            std::fs::write(at, bytes).unwrap();
        }
    };
    assert_refuses(&config, "the log knows neither a vote nor a purge", damage).await;
}
