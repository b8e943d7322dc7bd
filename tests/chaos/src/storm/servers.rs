//! What a storm does to the servers: their terms, and how much memory they took.

use std::collections::BTreeMap;
use std::time::Duration;

use sextant_client::http;
use sextant_dev_cluster::{DevCluster, Role};
use sextant_environment::Env;

const STATUS_WITHIN: Duration = Duration::from_secs(5);

/// The newest term of each partition that any memtable server knows.
pub type Terms = BTreeMap<u64, u64>;

pub async fn terms(env: &Env, cluster: &DevCluster) -> Terms {
    let mut terms = Terms::new();
    for index in 0..cluster.count(Role::Memtable) {
        let Ok(addr) = cluster.http(Role::Memtable, index) else { continue };
        let Ok(answer) = http::get(env, addr, "/status", STATUS_WITHIN).await else { continue };
        let status: serde_json::Value = serde_json::from_str(&answer.text()).unwrap_or_default();
        for partition in status["partitions"].as_array().into_iter().flatten() {
            let id = partition["partition"].as_u64().unwrap_or(0);
            let term = partition["term"].as_u64().unwrap_or(0);
            let known = terms.entry(id).or_default();
            *known = term.max(*known);
        }
    }
    terms
}

fn processes(cluster: &DevCluster) -> Vec<(Role, u32)> {
    let tiers = [Role::PNode, Role::Memtable, Role::Sstable];
    let all = tiers.into_iter().flat_map(|role| (0..cluster.count(role)).map(move |index| (role, index)));
    all.filter_map(|(role, index)| Some((role, cluster.pid(role, index).ok()??))).collect()
}

/// From now on only new peaks count.
pub fn forget_peaks(cluster: &DevCluster) {
    for (_, pid) in processes(cluster) {
        // Where the kernel does not allow it, the peak is that of the process's life.
        let _ = std::fs::write(format!("/proc/{pid}/clear_refs"), "5");
    }
}

/// The most resident memory of any process of each role, in MiB.
pub fn peaks(cluster: &DevCluster) -> BTreeMap<&'static str, u64> {
    let mut peaks = BTreeMap::new();
    for (role, pid) in processes(cluster) {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib: u64 = line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0);
        let peak = peaks.entry(role.name()).or_insert(0);
        *peak = (kib / 1024).max(*peak);
    }
    peaks
}
