//! `sextant config init`: one file that all servers of a cluster share, and one for each server.

use std::collections::HashMap;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;

use sextant_environment::config::{ClusterConfig, LeaseConfig, Server};
use sextant_pnode::ADMIN_PORT_OFFSET;

use super::is_link_local;
use crate::args::ConfigInitArgs;
use crate::exit::{CommandResult, Failure};

/// What all share.
const SHARED_FILE: &str = "cluster.toml";

/// What a role listens on, if nothing else is said: gRPC, and how far from it the others are.
struct Ports {
    grpc: u16,
    http: i32,
    resp: i32,
}

const MEMTABLE: Ports = Ports { grpc: 7300, http: 90, resp: 0 };
const SSTABLE: Ports = Ports { grpc: 7350, http: 90, resp: 0 };
const PNODE: Ports = Ports { grpc: 7400, http: 80, resp: -1020 };

/// A host, as others reach it, the port of its gRPC service, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Host {
    name: String,
    port: u16,
    zone: Option<String>,
}

pub fn run(args: &ConfigInitArgs) -> CommandResult {
    let files = files(args).map_err(Failure::usage)?;
    std::fs::create_dir_all(&args.out).map_err(|e| failed(&args.out, &e))?;
    // All or none.
    let mut written = Vec::new();
    for (name, text) in &files {
        let path = args.out.join(name);
        if let Err(failure) = create(&path, text) {
            written.iter().for_each(|path| drop(std::fs::remove_file(path)));
            return Err(failure);
        }
        written.push(path);
    }
    let mut stdout = std::io::stdout().lock();
    for path in &written {
        writeln!(stdout, "{}", path.display())?;
    }
    Ok(())
}

fn create(path: &Path, text: &str) -> CommandResult {
    match std::fs::File::create_new(path) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            Err(Failure::usage(format!("{}: exists already, and is not overwritten", path.display())))
        }
        Err(e) => Err(failed(path, &e)),
        Ok(mut file) => file.write_all(text.as_bytes()).map_err(|e| {
            let _ = std::fs::remove_file(path);
            failed(path, &e)
        }),
    }
}

fn failed(path: &Path, e: &std::io::Error) -> Failure {
    Failure::error(format!("{}: {e}", path.display()))
}

/// The files' names and contents.
fn files(args: &ConfigInitArgs) -> Result<Vec<(String, String)>, String> {
    let memtable = hosts(&args.memtable, &MEMTABLE)?;
    let sstable = hosts(&args.sstable, &SSTABLE)?;
    let pnode = hosts(&args.pnode, &PNODE)?;
    if pnode.iter().any(|host| host.zone.is_some()) {
        return Err("--pnode: a p-node has no zone: it measures which servers are near".to_owned());
    }
    cluster(args, &memtable, &sstable).validate().map_err(|e| e.message.into_owned())?;
    let mut taken = HashMap::new();
    let mut files = vec![(SHARED_FILE.to_owned(), shared(args, &memtable, &sstable))];
    for (role, ports, hosts) in
        [("memtable", MEMTABLE, &memtable), ("sstable", SSTABLE, &sstable), ("pnode", PNODE, &pnode)]
    {
        for (id, host) in (1..).zip(hosts) {
            let name = format!("{role}-{id}");
            let mut port = |offset: i32, service: &str| {
                let port = u16::try_from(i32::from(host.port) + offset).ok().filter(|port| *port > 0);
                let port = port.ok_or_else(|| format!("{name}: no port {offset} from {}", host.port))?;
                match taken.insert((host.name.clone(), port), format!("{name} ({service})")) {
                    None => Ok(port),
                    Some(other) => {
                        let host = &host.name;
                        Err(format!(
                            "{other} and {name} ({service}) would both listen on {host}:{port}: name a host once a role, or \
                             with ports of its own, as in {host}:{}",
                            port.saturating_add(1)
                        ))
                    }
                }
            };
            let (grpc, http) = (port(0, "gRPC")?, port(ports.http, "HTTP")?);
            // All addresses of the kind that the host is reached by. (`[::]` takes IPv4 as well, but not where `bindv6only` is set.)
            let is_ipv4 =
                host.name.parse::<Ipv4Addr>().is_ok() || (!args.ipv6 && !host.name.starts_with('['));
            let any = if is_ipv4 { "0.0.0.0" } else { "[::]" };
            let mut text = format!("role = \"{role}\"\nid = {id}\ncluster = \"{SHARED_FILE}\"\n");
            if role == "pnode" {
                let resp = port(ports.resp, "RESP")?;
                port(i32::from(ADMIN_PORT_OFFSET), "administration")?;
                text +=
                    "# For clients. Administration listens on loopback only, 1000 above the port of gRPC.\n";
                text += &format!("grpc = \"{any}:{grpc}\"\nresp = \"{any}:{resp}\"\n");
            } else {
                let tier = if role == "memtable" { &memtable } else { &sstable };
                text += &format!("# The others reach it as {}.\n", addr(&tier[id - 1]));
                text += &format!("listen = \"{any}:{grpc}\"\n");
            }
            text += &format!("# /metrics, /health/live, /health/ready, /status\nhttp = \"{any}:{http}\"\n");
            if role != "pnode" {
                let dir = args.data.join(&name);
                text += "# Belongs to this server alone.\n";
                text += &format!("data_dir = {}\n", toml::Value::from(dir.display().to_string()));
            }
            if let Some(dir) = &args.tls {
                let file = |file: String| toml::Value::from(dir.join(file).display().to_string());
                text += "\n# Every port speaks TLS. Clients show a certificate of the same authority; so do servers, their own.\n";
                text += &format!("[tls]\nca = {}\n", file("ca.pem".into()));
                text += &format!("cert = {}\n", file(format!("{name}.pem")));
                text += &format!("key = {}\n", file(format!("{name}.key")));
            }
            files.push((format!("{name}.toml"), text));
        }
    }
    Ok(files)
}

fn cluster(args: &ConfigInitArgs, memtable: &[Host], sstable: &[Host]) -> ClusterConfig {
    let server = |(id, host): (u64, &Host)| Server { zone: host.zone.clone(), ..Server::new(id, addr(host)) };
    let servers = |hosts: &[Host]| (1..).zip(hosts).map(server).collect();
    ClusterConfig {
        id: args.id.clone(),
        partitions: args.partitions,
        memtable: servers(memtable),
        sstable: servers(sstable),
        lease: LeaseConfig::default(),
    }
}

fn shared(args: &ConfigInitArgs, memtable: &[Host], sstable: &[Host]) -> String {
    let servers = |hosts: &[Host]| {
        let lines: Vec<String> = (1..)
            .zip(hosts)
            .map(|(id, host)| {
                let zone = host.zone.as_deref().map(|zone| format!(", zone = {}", toml::Value::from(zone)));
                format!("    {{ id = {id}, addr = \"{}\"{} }},\n", addr(host), zone.unwrap_or_default())
            })
            .collect();
        lines.concat()
    };
    format!(
        "# What all servers of the cluster share: the same file beside every server's own. All settings: deploy/config.\n\
         id = {id}\n\
         # Fixed when the cluster is first started.\n\
         partitions = {partitions}\n\
         memtable = [\n{memtable}]\n\
         sstable = [\n{sstable}]\n",
        id = toml::Value::from(args.id.as_str()),
        partitions = args.partitions,
        memtable = servers(memtable),
        sstable = servers(sstable),
    )
}

fn addr(host: &Host) -> String {
    format!("{}:{}", host.name, host.port)
}

fn hosts(names: &[String], ports: &Ports) -> Result<Vec<Host>, String> {
    names.iter().map(|name| host(name.trim(), ports.grpc)).collect()
}

/// `name`, `name:port`, `10.0.0.1`, `10.0.0.1:port`, `[::1]`, `[::1]:port`, and each with `@zone`.
fn host(text: &str, default: u16) -> Result<Host, String> {
    let bad =
        || format!("{text:?} is no host or host:port (an IPv6 address stands in brackets: [::1]:{default})");
    let (place, zone) = match text.split_once('@') {
        Some((place, zone)) => (place, Some(zone.to_owned())),
        None => (text, None),
    };
    let (name, port) = match place.rsplit_once(':') {
        Some((name, port)) if !place.ends_with(']') => (name, port.parse().map_err(|_| bad())?),
        _ => (place, default),
    };
    let in_brackets = name.starts_with('[') && name.ends_with(']');
    let is_sound = match in_brackets {
        true => name[1..name.len() - 1].parse::<std::net::Ipv6Addr>().is_ok(),
        false => {
            !name.is_empty()
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
        }
    };
    if !is_sound || port == 0 {
        return Err(bad());
    }
    if is_link_local(name) {
        return Err(format!(
            "{text:?} is link-local, an address of an interface, which cannot be named here: use another one of the host"
        ));
    }
    Ok(Host { name: name.to_owned(), port, zone })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use sextant_environment::config::load_file;
    use sextant_memtable_server::MemtableServerConfig;
    use sextant_pnode::PNodeConfig;
    use sextant_sstable_server::SstServerConfig;

    use super::*;

    fn names(hosts: &[&str]) -> Vec<String> {
        hosts.iter().map(|h| (*h).to_owned()).collect()
    }

    fn args(memtable: &[&str], sstable: &[&str], pnode: &[&str]) -> ConfigInitArgs {
        ConfigInitArgs {
            memtable: names(memtable),
            sstable: names(sstable),
            pnode: names(pnode),
            id: "a \"name\"".into(),
            partitions: 4,
            ipv6: false,
            tls: None,
            data: PathBuf::from("/var/lib/sextant"),
            out: PathBuf::new(),
        }
    }

    #[test]
    fn what_is_written_is_what_the_servers_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut args = args(&["m1", "10.0.0.2@b", "[::1]:7000@b"], &["m1@a \"b\""], &["m1", "p2"]);
        args.out = dir.path().join("new");
        run(&args).unwrap();
        let path = |name: &str| args.out.join(name);
        let memtable: MemtableServerConfig = load_file(&path("memtable-3.toml"), "memtable").unwrap();
        memtable.validate().unwrap();
        assert_eq!(memtable.cluster.id, "a \"name\"");
        let addrs: Vec<&str> = memtable.cluster.memtable.iter().map(|s| s.addr.as_str()).collect();
        assert_eq!(addrs, ["m1:7300", "10.0.0.2:7300", "[::1]:7000"]);
        let zones: Vec<_> = memtable.cluster.memtable.iter().map(|s| s.zone.as_deref()).collect();
        assert_eq!(zones, [None, Some("b"), Some("b")]);
        assert_eq!(memtable.cluster.sstable[0].zone.as_deref(), Some("a \"b\""));
        assert_eq!((memtable.id.0, memtable.listen.as_str()), (3, "[::]:7000"));
        assert_eq!(memtable.http.as_deref(), Some("[::]:7090"));
        assert_eq!(memtable.data_dir, PathBuf::from("/var/lib/sextant/memtable-3"));
        let sstable: SstServerConfig = load_file(&path("sstable-1.toml"), "sstable").unwrap();
        sstable.validate().unwrap();
        assert_eq!(sstable.cluster, memtable.cluster);
        let pnode: PNodeConfig = load_file(&path("pnode-2.toml"), "pnode").unwrap();
        pnode.validate().unwrap();
        assert_eq!((pnode.grpc.as_str(), pnode.resp.as_deref()), ("0.0.0.0:7400", Some("0.0.0.0:6380")));
        // A second time nothing is overwritten, and nothing left half done.
        std::fs::remove_file(path("cluster.toml")).unwrap();
        assert!(run(&args).is_err());
        assert!(!path("cluster.toml").exists());
        assert!(path("pnode-2.toml").exists());
    }

    #[test]
    fn hosts_with_names_listen_where_they_are_reached() {
        let listens = |ipv6: bool| {
            let all = ConfigInitArgs { ipv6, ..args(&["m", "10.0.0.2", "[fd00::3]"], &["s"], &["p"]) };
            let files = files(&all).unwrap().into_iter();
            let lines = files.flat_map(|(_, text)| text.lines().map(str::to_owned).collect::<Vec<_>>());
            let listens = lines.filter(|line| line.starts_with("listen = ") || line.starts_with("resp = "));
            listens.collect::<Vec<_>>()
        };
        assert_eq!(
            listens(false),
            [
                "listen = \"0.0.0.0:7300\"",
                "listen = \"0.0.0.0:7300\"",
                "listen = \"[::]:7300\"",
                "listen = \"0.0.0.0:7350\"",
                "resp = \"0.0.0.0:6380\""
            ]
        );
        assert_eq!(
            listens(true),
            [
                "listen = \"[::]:7300\"",
                "listen = \"0.0.0.0:7300\"",
                "listen = \"[::]:7300\"",
                "listen = \"[::]:7350\"",
                "resp = \"[::]:6380\""
            ]
        );
    }

    #[test]
    fn servers_of_one_host_need_ports_of_their_own() {
        let clash = files(&args(&["a", "a"], &["b"], &["c"])).unwrap_err();
        assert!(
            clash.contains("memtable-1 (gRPC) and memtable-2 (gRPC) would both listen on a:7300"),
            "{clash}"
        );
        let clash = files(&args(&["a"], &["a"], &["a:6300"])).unwrap_err();
        assert!(clash.contains("memtable-1 (gRPC) and pnode-1 (administration)"), "{clash}");
        files(&args(&["a", "a:7301", "a:7302"], &["a", "a:7351"], &["a", "a:7401"])).unwrap();
    }

    #[test]
    fn a_name_that_no_cluster_may_have_is_refused() {
        for id in [String::new(), "x".repeat(65)] {
            let refused = files(&ConfigInitArgs { id, ..args(&["a"], &["b"], &["c"]) }).unwrap_err();
            assert!(refused.contains("cluster.id"), "{refused}");
        }
    }

    #[test]
    fn hosts_are_names_or_addresses() {
        for good in ["h", "h.example", "h_1:2", "10.0.0.1", "[fd00::1]", "[::]:5", "h@z", "h:1@z", "[::]@z"] {
            host(good, 1).unwrap();
        }
        for bad in ["", ":1", "h:", "h:0", "h:70000", "::1", "a b", "[x]", "h/x", "@z", "[fe80::1]:7300"] {
            assert!(host(bad, 1).is_err(), "{bad}");
        }
    }
}
