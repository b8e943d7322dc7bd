//! `sextant cert`: a private authority, and certificates of it, for small set-ups and tests.

use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sextant_common::error::Error;
use sextant_common::ids::NodeId;
use sextant_dev_cluster::Role;
use sextant_environment::Env;
use sextant_environment::config::{ClusterConfig, host_port, is_host, load_file};
use sextant_environment::env::{Holder, Party, PartyRole};
use sextant_memtable_server::MemtableServerConfig;
use sextant_pnode::PNodeConfig;
use sextant_sstable_server::SstServerConfig;
use sextant_tls::authority::{Authority, Issued};
use sextant_tls::host_names;

use crate::args::{CertCommand, CertInitArgs, CertServerArgs, CertUserArgs, IssueArgs};
use crate::exit::{CommandResult, Failure};
use crate::server_file::role_of_file;

const AUTHORITY: &str = "ca";
/// Readable for the owner only.
const KEY_MODE: u32 = 0o600;
const CERT_MODE: u32 = 0o644;
/// Of a part of a host name (RFC 1035).
const LABEL_BYTES_MAX: usize = 63;

pub fn run(command: &CertCommand) -> CommandResult {
    match command {
        CertCommand::Init(args) => init(args),
        CertCommand::Server(args) => servers(args),
        CertCommand::User(args) => user(args),
    }
}

fn init(args: &CertInitArgs) -> CommandResult {
    let issued = Authority::create(&args.cluster, now_s(), args.days)?;
    std::fs::create_dir_all(&args.dir).map_err(|e| failed(&args.dir, &e))?;
    // An authority that is replaced is lost, and all that it has issued with it.
    write(&args.dir, AUTHORITY, &issued, false)
}

fn servers(args: &CertServerArgs) -> CommandResult {
    let further = args.host.iter().map(|text| host(text)).collect::<Result<Vec<_>, _>>()?;
    let authority = authority(&args.issue)?;
    // All are read before the first is issued.
    let named = args.files.iter().map(|path| server(path)).collect::<Result<Vec<_>, _>>()?;
    let mut all = Vec::with_capacity(named.len());
    for (party, cluster, mut hosts) in named {
        if cluster != authority.cluster() {
            let of = authority.cluster();
            return Err(Failure::usage(format!(
                "{party} is of cluster {cluster:?}, the authority is of {of:?}"
            )));
        }
        hosts.extend(further.iter().cloned());
        if args.issue.renew {
            hosts.extend(names_before(&args.issue.dir, party)?);
        }
        all.push((party, hosts));
    }
    for (party, hosts) in all {
        let issued = authority.issue(Holder::Server(party), &hosts, now_s(), args.issue.days)?;
        write(&args.issue.dir, &party.to_string(), &issued, args.issue.renew)?;
    }
    Ok(())
}

/// A host that clients can look for in a certificate: a name, of which the first part may be `*`, or an address (an IPv6 one with
/// brackets or without).
fn host(text: &str) -> Result<String, Failure> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if bare.parse::<IpAddr>().is_ok_and(|address| bare == text || address.is_ipv6()) {
        return Ok(bare.to_owned());
    }
    let name = text.strip_prefix("*.").unwrap_or(text);
    let is_label = |label: &str| (1..=LABEL_BYTES_MAX).contains(&label.len());
    if is_host(name) && !name.contains(':') && name.split('.').all(is_label) {
        return Ok(text.to_owned());
    }
    Err(Failure::usage(format!(
        "--host: {text:?} is no host: a name (letters, digits, '-', '_', '.', \"*.\" before all others) or an IP address"
    )))
}

/// The host names of the certificate that is to be replaced: a p-node's file does not say what clients call it.
fn names_before(dir: &Path, party: Party) -> Result<Vec<String>, Failure> {
    let path = dir.join(format!("{party}.pem"));
    let pem = match std::fs::read_to_string(&path) {
        Ok(pem) => pem,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed(&path, &e)),
    };
    let told =
        |e: Error| format!("{}: {}: remove it, and name its hosts (--host)", path.display(), e.message);
    host_names(&pem).map_err(|e| Failure::usage(told(e)))
}

fn user(args: &CertUserArgs) -> CommandResult {
    let is_name = |name: &str| {
        !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'@'))
    };
    if !is_name(&args.name) || args.name.starts_with('.') {
        return Err(Failure::usage(format!(
            "{:?}: a user's name has letters, digits, '-', '_', '.', '@'",
            args.name
        )));
    }
    let holder = Holder::User(args.name.clone());
    let issued = authority(&args.issue)?.issue(holder, &[], now_s(), args.issue.days)?;
    write(&args.issue.dir, &format!("user-{}", args.name), &issued, args.issue.renew)
}

fn authority(args: &IssueArgs) -> Result<Authority, Failure> {
    let read = |extension: &str| {
        let path = args.dir.join(AUTHORITY).with_extension(extension);
        std::fs::read_to_string(&path).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))
    };
    let (cert, key) = (read("pem")?, read("key")?);
    Authority::load(&cert, &key)
        .map_err(|e| Failure::usage(format!("{}: {}", args.dir.join("ca.pem").display(), e.message)))
}

/// Which server a configuration is of, its cluster's name, and the hosts under which it is reached.
fn server(path: &Path) -> Result<(Party, String, Vec<String>), Failure> {
    let role = role_of_file(path).map_err(Failure::usage)?;
    let reached = |cluster: &ClusterConfig, id: NodeId| {
        let tier = if role == Role::Memtable { &cluster.memtable } else { &cluster.sstable };
        let mut of_id = tier.iter().filter(|server| server.id == id);
        of_id.find_map(|server| host_of(&server.addr)).into_iter().collect()
    };
    Ok(match role {
        Role::Memtable => {
            let config: MemtableServerConfig = load_file(path, role.name())?;
            let hosts = reached(&config.cluster, config.id);
            (Party::memtable(config.id), config.cluster.id, hosts)
        }
        Role::Sstable => {
            let config: SstServerConfig = load_file(path, role.name())?;
            let hosts = reached(&config.cluster, config.id);
            (Party { role: PartyRole::Sstable, id: config.id }, config.cluster.id, hosts)
        }
        Role::PNode => {
            let config: PNodeConfig = load_file(path, role.name())?;
            let listens =
                [Some(&config.grpc), config.admin.as_ref(), config.resp.as_ref(), config.http.as_ref()];
            let hosts = listens.into_iter().flatten().filter_map(|addr| host_of(addr)).collect();
            (Party::pnode(config.id), config.cluster.id, hosts)
        }
    })
}

/// A host that a certificate can name: not "all addresses".
fn host_of(addr: &str) -> Option<String> {
    let (host, _) = host_port(addr)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (!matches!(host, "0.0.0.0" | "::")).then(|| host.to_owned())
}

/// `name.pem` and `name.key`, whose names are printed.
fn write(dir: &Path, name: &str, issued: &Issued, renew: bool) -> CommandResult {
    let (cert, key) = (dir.join(format!("{name}.pem")), dir.join(format!("{name}.key")));
    if !renew && let Some(there) = [&cert, &key].into_iter().find(|path| path.exists()) {
        return Err(Failure::usage(format!("{}: exists already, and is not overwritten", there.display())));
    }
    let files = [(&key, &issued.key, KEY_MODE), (&cert, &issued.cert, CERT_MODE)];
    // Whole or not at all, each; a server that looks in between finds that they do not fit each other, and looks again.
    for (path, text, mode) in files {
        let beside = path.with_extension("new");
        place(&beside, path, text, mode).map_err(|e| {
            let _ = std::fs::remove_file(&beside);
            failed(path, &e)
        })?;
    }
    writeln!(std::io::stdout(), "{}\n{}", cert.display(), key.display())?;
    Ok(())
}

fn place(beside: &PathBuf, path: &Path, text: &str, mode: u32) -> std::io::Result<()> {
    let _ = std::fs::remove_file(beside);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(beside, path)
}

fn failed(path: &Path, e: &std::io::Error) -> Failure {
    Failure::error(format!("{}: {e}", path.display()))
}

/// Certificates are for the calendar.
fn now_s() -> u64 {
    Env::real().clock.wall_guess_ns() / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_those_that_a_client_can_look_for() {
        for good in ["h", "db.example.org", "a_b-1", "*.example.org", "10.0.0.1", "::1", "fd00::7"] {
            assert_eq!(host(good).unwrap(), good);
        }
        assert_eq!(host("[fd00::7]").unwrap(), "fd00::7");
        let long = "a".repeat(LABEL_BYTES_MAX + 1);
        for bad in [
            "",
            "bad host",
            " h",
            "h:7400",
            "a..b",
            "h.",
            "*",
            "a.*.b",
            "*h",
            "10.0.0",
            "[10.0.0.1]",
            "[x]",
            "a/b",
            "*.[::1]",
            "ü",
            "[::1",
            &long,
        ] {
            let why = format!("{:?}", host(bad).unwrap_err());
            assert!(why.contains("is no host"), "{bad}: {why}");
        }
    }
}
