//! The run's own namespaces: the program starts itself again in a new network, mount and process namespace.
//!
//! Whatever is made inside (interfaces, rules, mounts, processes) ends with the namespaces, and they end with the program,
//! however it ends. That is the whole cleanup.

use std::os::unix::process::CommandExt;
use std::process::Command;

use sextant_common::error::{Error, Result};

use super::shell;

/// Set in the inner program: `yes`, or the reason why there are no namespaces.
const INSIDE: &str = "SEXTANT_CHAOS_INSIDE";

const FLAGS: [&str; 6] = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// Where the run stands.
pub enum Confined {
    Yes,
    /// Why not.
    No(String),
}

/// Called first of all. Outside it replaces the process by one in namespaces of its own, if that works; so it returns only
/// inside, or if it does not work.
pub fn enter() -> Confined {
    match std::env::var(INSIDE) {
        Ok(inside) if inside == "yes" => return Confined::Yes,
        Ok(reason) => return Confined::No(reason),
        Err(_) => {}
    }
    let flags = match probe() {
        Ok(flags) => flags,
        Err(reason) => return Confined::No(reason),
    };
    let Ok(program) = std::env::current_exe() else {
        return Confined::No("this program's own path is not known".into());
    };
    let error = Command::new("unshare")
        .args(flags)
        .arg("--")
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "yes")
        .exec();
    Confined::No(format!("unshare: {error}"))
}

/// The flags with which namespaces can be made here: as root, or in a user namespace.
fn probe() -> std::result::Result<Vec<&'static str>, String> {
    let mut reason = String::new();
    for more in [&[][..], &["--user", "--map-root-user"]] {
        let flags = [more, &FLAGS].concat();
        match Command::new("unshare").args(&flags).args(["--", "ip", "link", "set", "lo", "up"]).output() {
            Ok(output) if output.status.success() => return Ok(flags),
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                reason = said.trim().lines().last().unwrap_or("no reason given").to_owned();
            }
            Err(e) => reason = format!("unshare: {e}"),
        }
    }
    Err(reason)
}

/// Inside: loopback, and a place for network namespaces that the machine does not see.
pub async fn furnish() -> Result<()> {
    shell::run(&["ip", "link", "set", "lo", "up"]).await?;
    std::fs::create_dir_all("/run/netns").map_err(|e| Error::unavailable(format!("/run/netns: {e}")))?;
    shell::run(&["mount", "-t", "tmpfs", "tmpfs", "/run/netns"]).await?;
    Ok(())
}
