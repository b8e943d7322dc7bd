//! Three members of etcd, their data on one disk.

use std::path::Path;
use std::time::Duration;

use sextant_common::error::{Error, Result};

use super::{Addresses, Running, must_run};
use crate::client::etcd::leader_of;
use crate::process;

const MEMBERS: usize = 3;
const READY_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);
/// It keeps every version, and refuses writes beyond its quota.
const QUOTA_BYTES: u64 = 8 << 30;

pub async fn start(dir: &Path) -> Result<(String, Running)> {
    let program = Path::new("etcd");
    let version = process::run(program, &["--version"]).await?;
    let ports = process::free_ports(2 * MEMBERS)?;
    let urls: Vec<_> = ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
    let (clients, peers) = urls.split_at(MEMBERS);
    let name = |member: usize| format!("member-{}", member + 1);
    let cluster = peers.iter().enumerate().map(|(i, url)| format!("{}={url}", name(i))).collect::<Vec<_>>();
    let mut started = Vec::new();
    for (i, (client, peer)) in clients.iter().zip(peers).enumerate() {
        let args = [
            format!("--name={}", name(i)),
            format!("--data-dir={}", dir.join(name(i)).display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster={}", cluster.join(",")),
            "--initial-cluster-state=new".to_owned(),
            format!("--quota-backend-bytes={QUOTA_BYTES}"),
            "--logger=zap".to_owned(),
            "--log-level=error".to_owned(),
        ];
        started.push(process::start(program, &args, &dir.join(format!("{}.log", name(i))), false)?.0);
    }
    let ready = async {
        loop {
            if let Some(leader) = leader_of(clients).await {
                return Ok::<usize, Error>(leader);
            }
            for (i, server) in started.iter_mut().enumerate() {
                must_run(server, &dir.join(format!("{}.log", name(i))))?;
            }
            tokio::time::sleep(POLL).await;
        }
    };
    let late = |_| Error::unavailable(format!("no leader within {READY_WITHIN:?}"));
    let leader = tokio::time::timeout(READY_WITHIN, ready).await.map_err(late)??;
    // The leader first.
    let mut addresses = clients.to_vec();
    addresses.swap(0, leader);
    let pids = started.iter().map(|server| server.pid).collect();
    let running = Running { started, pids, addresses: Addresses::Etcd(addresses), admin: None };
    Ok((version_of(&version), running))
}

/// `etcd Version: 3.4.23`, and more lines.
fn version_of(said: &str) -> String {
    let version = said.lines().find_map(|line| line.strip_prefix("etcd Version: "));
    format!("etcd {}", version.unwrap_or("of an unknown version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found() {
        assert_eq!(version_of("etcd Version: 3.4.23\nGit SHA: x\n"), "etcd 3.4.23");
    }
}
