//! Debian packages of the peers, if they are not there and may be installed.

use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

use crate::servers::Server;

/// Installs what is missing. What cannot be had is said here, and again when a server cannot be started.
pub async fn missing(servers: &[Server]) {
    let needs = servers.iter().flat_map(|server| server.kind.needs());
    let mut packages: Vec<&str> =
        needs.filter(|(program, _)| !is_there(program)).map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    if packages.is_empty() {
        return;
    }
    let shown = packages.join(" ");
    // SAFETY: geteuid has no memory effects.
    if unsafe { libc::geteuid() } != 0 || !is_there("apt-get") {
        eprintln!("peers: not there, and may not be installed (root and apt-get are needed): {shown}");
        return;
    }
    eprintln!("peers: installing {shown}");
    // Fails where a source is not reached, although others may do.
    let _ = apt(&["update", "-qq"]).await;
    let mut install = vec!["install", "-y", "-qq", "--no-install-recommends"];
    install.extend(&packages);
    if !apt(&install).await {
        eprintln!("peers: could not install {shown}");
        return;
    }
    // The packages start services, which nobody here has asked for.
    if Path::new("/run/systemd/system").exists() {
        for unit in
            ["redis-server", "etcd"].iter().filter(|unit| packages.iter().any(|p| p.starts_with(*unit)))
        {
            ran(Command::new("systemctl").args(["disable", "--now", unit])).await;
        }
    }
}

async fn apt(args: &[&str]) -> bool {
    ran(Command::new("apt-get").args(args).env("DEBIAN_FRONTEND", "noninteractive")).await
}

async fn ran(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.kill_on_drop(true).status().await.is_ok_and(|status| status.success())
}

pub fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_their_names() {
        assert!(is_there("sh"));
        assert!(!is_there("no-such-program"));
    }
}
