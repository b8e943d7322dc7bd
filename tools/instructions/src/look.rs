//! A p-node's look at a key that it has in its cache, under leases of a cluster that runs beside.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use sextant_client::{Client, ClientOptions, LeaseMode};
use sextant_common::Result;
use sextant_dev_cluster::{DevCluster, DevOptions};
use sextant_environment::Env;
use sextant_environment::config::LeaseConfig;
use sextant_pnode::{LibraryConfig, Operation, PNode, ReadOptions, WriteOptions};

use crate::{counted, key};

/// Few: each is written and read by a p-node that callgrind slows down.
const KEYS: u64 = 100;
const CACHE_BYTES: u64 = 16 << 20;
/// All is slow under callgrind.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(20);
/// Leases that outlast a count many times.
const LEASES: LeaseConfig = LeaseConfig {
    mode: LeaseMode::Ack,
    lease_ms: 3_000,
    leader_lease_ms: 4_000,
    heartbeat_ms: 100,
    election_jitter_ms: 150,
    drift_ppm: 500,
    group_interval_us: 0,
};

pub fn count(program: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let within = async { tokio::time::timeout(PATIENCE, looks(program)).await };
    match runtime.block_on(within) {
        Ok(Ok(true)) => counted("pnode_look", KEYS),
        Ok(Ok(false)) => println!("skipped pnode_look: a key was not at hand while it was counted"),
        Ok(Err(e)) => println!("skipped pnode_look: {e}"),
        Err(_) => println!("skipped pnode_look: not done within {PATIENCE:?}"),
    }
}

/// Whether all keys were at hand.
async fn looks(program: &Path) -> Result<bool> {
    let env = Env::real();
    let dir = tempfile::tempdir()?;
    // Processes: they are not counted, and not slowed down.
    let mut options = DevOptions {
        pnodes: 1,
        processes: Some(program.to_owned()),
        ..DevOptions::on_free_ports(dir.path())
    };
    options.tuning.lease = Some(LEASES);
    let cluster = DevCluster::start(env.clone(), options).await?;
    let mut config = LibraryConfig::new(cluster.cluster_config().clone());
    config.cache_bytes = CACHE_BYTES;
    config.default_deadline = PATIENCE;
    let pnode = PNode::start(env.clone(), config).await?;
    pnode.ready(PATIENCE).await?;
    let keys: Vec<_> = (0..KEYS).map(|i| Bytes::copy_from_slice(&key(i))).collect();
    for key in &keys {
        let put = Operation::put("", key.clone(), vec![7; 100]);
        pnode.write(vec![put], WriteOptions::default()).await?;
    }
    flush(&env, &cluster).await?;
    let all_at_hand = loop {
        for key in &keys {
            pnode.get("", key, ReadOptions::default()).await?;
        }
        if keys.iter().all(|key| matches!(pnode.try_get("", key), Some(Ok(Some(_))))) {
            break counted_pnode_look(&pnode, &keys) == KEYS;
        }
        tokio::time::sleep(PAUSE).await;
    };
    pnode.shutdown().await;
    cluster.shutdown().await?;
    Ok(all_at_hand)
}

/// What is flushed is read from an SSTable once, and is then in the cache.
async fn flush(env: &Env, cluster: &DevCluster) -> Result<()> {
    let options = ClientOptions { deadline: PATIENCE, ..ClientOptions::default() };
    let client = Client::connect_in(env.clone(), cluster.grpc_addrs(), options).await?;
    client.freeze(None).await?;
    client.flush(None).await?;
    Ok(())
}

#[unsafe(no_mangle)]
#[inline(never)]
fn counted_pnode_look(pnode: &PNode, keys: &[Bytes]) -> u64 {
    keys.iter().filter(|key| matches!(pnode.try_get("", key), Some(Ok(Some(_))))).count() as u64
}
