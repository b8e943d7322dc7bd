//! `sextant config check`: each file by itself, and all of a cluster together.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

use sextant_access::AccessConfig;
use sextant_common::ids::NodeId;
use sextant_dev_cluster::Role;
use sextant_environment::config::{ClusterConfig, Server, Zone, host_port};
use sextant_environment::env::Door;

use super::is_link_local;
use crate::args::ConfigCheckArgs;
use crate::exit::{CommandResult, Exit, Failure};
use crate::server_file::{ServerFile, Variables};

/// The least memory (KiB), and memory times passes, of a password's hash: those of all the costs that OWASP names for argon2id.
const HASH_KIB_MIN: u64 = 7 * 1024;
const HASH_WORK_MIN: u64 = 5 * HASH_KIB_MIN;
/// Of a hash that does not name its cost.
const HASH_COST_DEFAULT: (u64, u64) = (19 * 1024, 2);

/// What is compared of a file.
struct Configured {
    path: PathBuf,
    role: Role,
    id: NodeId,
    cluster: ClusterConfig,
    /// Of its gRPC service.
    listen: String,
    doors: Vec<(Door, String)>,
    directories: Vec<PathBuf>,
    has_tls: bool,
    /// Superusers whose password's hash is cheap to try, and what it costs.
    cheap: Vec<(String, (u64, u64))>,
}

/// A finding: an error keeps a server from starting, or a cluster from working; a warning may be meant.
#[derive(Debug, PartialEq, Eq)]
enum Finding {
    Error(String),
    Warning(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Error(what) => write!(f, "error: {what}"),
            Finding::Warning(what) => write!(f, "warning: {what}"),
        }
    }
}

pub fn run(args: &ConfigCheckArgs) -> CommandResult {
    let variables = if args.env { Variables::Applied } else { Variables::Ignored };
    let findings = check(&args.files, variables);
    let mut stdout = std::io::stdout().lock();
    for finding in &findings {
        writeln!(stdout, "{finding}")?;
    }
    let errors = findings.iter().filter(|f| matches!(f, Finding::Error(_))).count();
    writeln!(stdout, "{} files, {errors} errors, {} warnings", args.files.len(), findings.len() - errors)?;
    match errors {
        0 => Ok(()),
        _ => Err(Failure::silent(Exit::Usage)),
    }
}

fn check(files: &[PathBuf], variables: Variables) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut sound = Vec::new();
    for path in files {
        match read(path, variables) {
            Ok(configured) => sound.push(configured),
            Err(why) => findings.push(Finding::Error(why)),
        }
    }
    together(&sound, &mut findings);
    findings
}

/// What one file says, if it says it well.
fn read(path: &Path, variables: Variables) -> Result<Configured, String> {
    let file = ServerFile::read(path, variables)?;
    Ok(Configured {
        path: path.to_owned(),
        role: file.role(),
        id: file.id(),
        cluster: file.cluster().clone(),
        listen: file.listen().to_owned(),
        doors: file.doors(),
        directories: file.directories(),
        has_tls: file.tls().is_some(),
        cheap: file.access().map(cheap).unwrap_or_default(),
    })
}

fn cheap(access: &AccessConfig) -> Vec<(String, (u64, u64))> {
    let hashes = access.superusers.iter().filter(|(_, phc)| !phc.is_empty());
    let costs = hashes.map(|(name, phc)| (name.clone(), cost(phc)));
    costs.filter(|(_, (kib, passes))| *kib < HASH_KIB_MIN || kib * passes < HASH_WORK_MIN).collect()
}

/// Memory (KiB) and passes of a hash, a good one in the PHC string format: `$argon2id$v=19$m=19456,t=2,p=1$SALT$HASH`.
fn cost(phc: &str) -> (u64, u64) {
    let named = |name: &str| phc.split(['$', ',']).find_map(|part| part.strip_prefix(name)?.parse().ok());
    let (kib, passes) = HASH_COST_DEFAULT;
    (named("m=").unwrap_or(kib), named("t=").unwrap_or(passes))
}

fn together(all: &[Configured], findings: &mut Vec<Finding>) {
    let Some(first) = all.first() else { return };
    for other in &all[1..] {
        compare(first, other, findings);
    }
    if let Some(first) = all.iter().find(|one| one.role == Role::Memtable) {
        all.iter().for_each(|other| compare_zones(first, other, findings));
    }
    let mut by_id: BTreeMap<(Role, NodeId), &Configured> = BTreeMap::new();
    for one in all {
        if let Some(before) = by_id.insert((one.role, one.id), one) {
            findings.push(both_are(before, one));
        }
        listens_where_it_is_reached(one, findings);
        listens_twice(one, findings);
        let listens = one.doors.iter().map(|(_, addr)| addr);
        listens.for_each(|addr| findings.extend(of_no_interface(one, addr)));
        for (name, (kib, passes)) in &one.cheap {
            findings.push(Finding::Warning(format!(
                "{}: access.superusers.{name}: who sees this hash (m={kib},t={passes}) tries passwords quickly: make one with \
                 `sextant user hash`",
                one.path.display()
            )));
        }
    }
    for (at, one) in all.iter().enumerate() {
        let on_its_host = all[..at].iter().filter(|other| host(other).is_some() && host(other) == host(one));
        on_its_host.for_each(|other| share_a_host(other, one, findings));
    }
    if let Some(other) = all.iter().find(|other| other.has_tls != first.has_tls) {
        let (with, without) = if first.has_tls { (first, other) } else { (other, first) };
        findings.push(Finding::Error(format!(
            "{} has [tls], {} has not: they do not reach each other",
            with.path.display(),
            without.path.display()
        )));
    }
    let servers = first.cluster.memtable.iter().chain(&first.cluster.sstable);
    let mut by_addr: BTreeMap<&str, NodeId> = BTreeMap::new();
    for server in servers {
        if by_addr.insert(&server.addr, server.id).is_some() {
            let what = format!("{}: two servers have the address {}", first.path.display(), server.addr);
            findings.push(Finding::Error(what));
        }
        findings.extend(of_no_interface(first, &server.addr));
    }
    for role in [Role::Memtable, Role::Sstable] {
        let lacking: Vec<String> = tier(&first.cluster, role)
            .iter()
            .filter(|server| !by_id.contains_key(&(role, server.id)))
            .map(|server| server.id.to_string())
            .collect();
        if !lacking.is_empty() {
            let what = format!("not checked: no file of {} {}", role.name(), lacking.join(", "));
            findings.push(Finding::Warning(what));
        }
    }
    in_one_zone(&first.cluster, findings);
    findings.extend(one_too_many(first.cluster.memtable.len()));
}

/// An even number of memtable servers needs one more for a majority.
fn one_too_many(voters: usize) -> Option<Finding> {
    let fewer = voters.checked_sub(1).filter(|fewer| fewer % 2 == 1)?;
    let survived = fewer / 2;
    let failures = if survived == 1 { "failure" } else { "failures" };
    let does = if fewer == 1 { "does" } else { "do" };
    let what = format!("{voters} memtable servers survive {survived} {failures}, as {fewer} {does}");
    Some(Finding::Warning(what))
}

/// An address that needs more than is said of it.
fn of_no_interface(one: &Configured, addr: &str) -> Option<Finding> {
    host_port(addr).filter(|(host, _)| is_link_local(host))?;
    let path = one.path.display();
    let why =
        "is link-local, an address of an interface, which cannot be named here: use another one of the host";
    Some(Finding::Error(format!("{path}: {addr} {why}")))
}

/// How many zones there are, and the one with most servers, if it has a name.
fn largest_zone(servers: &[Server]) -> Option<(usize, &str, usize)> {
    let mut zones: BTreeMap<Zone<'_>, usize> = BTreeMap::new();
    servers.iter().for_each(|server| *zones.entry(server.zone()).or_default() += 1);
    let count = zones.len();
    match zones.into_iter().max_by_key(|(_, servers)| *servers)? {
        (Zone::Named(name), servers) => Some((count, name, servers)),
        (Zone::Own(_), _) => None,
    }
}

/// What the loss of one zone would take.
fn in_one_zone(cluster: &ClusterConfig, findings: &mut Vec<Finding>) {
    let voters = cluster.memtable.len();
    if let Some((_, zone, here)) = largest_zone(&cluster.memtable)
        && 2 * (voters - here) <= voters
    {
        let what =
            format!("zone {zone:?} has {here} of {voters} memtable servers: without it there is no majority");
        findings.push(Finding::Warning(what));
    }
    if let Some((1, zone, _)) = largest_zone(&cluster.sstable) {
        let what = format!("all sstable servers are in zone {zone:?}: without it no table can be read");
        findings.push(Finding::Warning(what));
    }
}

/// An id is a server's own, but for p-nodes: leases and sessions do not rest on theirs.
fn both_are(before: &Configured, one: &Configured) -> Finding {
    let (a, b) = (before.path.display(), one.path.display());
    let what = format!("{a} and {b} are both {} {}", one.role.name(), one.id);
    match one.role {
        Role::PNode => Finding::Warning(format!("{what}: only logs and certificates do not tell them apart")),
        Role::Memtable | Role::Sstable => Finding::Error(what),
    }
}

/// What all files of a cluster must say alike.
fn compare(first: &Configured, other: &Configured, findings: &mut Vec<Finding>) {
    let (a, b) = (&first.cluster, &other.cluster);
    let where_ = format!("{} and {}", first.path.display(), other.path.display());
    let ids = |servers: &[Server]| servers.iter().map(|s| s.id).collect::<Vec<_>>();
    let differ = [
        ("cluster.id", a.id != b.id),
        ("cluster.partitions", a.partitions != b.partitions),
        ("the ids of cluster.memtable", ids(&a.memtable) != ids(&b.memtable)),
        ("the ids of cluster.sstable", ids(&a.sstable) != ids(&b.sstable)),
        ("cluster.lease", a.lease != b.lease),
    ];
    for (what, _) in differ.iter().filter(|(_, differ)| *differ) {
        findings.push(Finding::Error(format!("{where_} do not agree on {what}")));
    }
    for (tier, ours, theirs) in [("memtable", &a.memtable, &b.memtable), ("sstable", &a.sstable, &b.sstable)]
    {
        for (one, two) in ours.iter().zip(theirs.iter()).filter(|(one, two)| one.id == two.id) {
            if one.addr != two.addr {
                findings.push(Finding::Warning(format!(
                    "{where_} reach {tier} {} at {} and at {}: good only if that is one server",
                    one.id, one.addr, two.addr
                )));
            }
        }
    }
}

/// Each leader goes by its own file.
fn compare_zones(first: &Configured, other: &Configured, findings: &mut Vec<Finding>) {
    if (first.role, other.role) != (Role::Memtable, Role::Memtable) {
        return;
    }
    let name = |server: &Server| server.zone.clone().unwrap_or_else(|| "none".to_owned());
    for one in &first.cluster.sstable {
        let two = other.cluster.sstable.iter().find(|two| two.id == one.id);
        if let Some(two) = two.filter(|two| two.zone != one.zone) {
            let (a, b) = (first.path.display(), other.path.display());
            findings.push(Finding::Warning(format!(
                "{a} and {b} do not agree on the zone of sstable {} ({}, {}): tables move when leaders change",
                one.id,
                name(one),
                name(two)
            )));
        }
    }
}

fn tier(cluster: &ClusterConfig, role: Role) -> &[Server] {
    match role {
        Role::Memtable => &cluster.memtable,
        Role::Sstable => &cluster.sstable,
        Role::PNode => &[],
    }
}

fn listens_where_it_is_reached(one: &Configured, findings: &mut Vec<Finding>) {
    let port = |addr: &str| addr.rsplit_once(':').map(|(_, port)| port.to_owned());
    let Some(reached) = tier(&one.cluster, one.role).iter().find(|server| server.id == one.id) else {
        return;
    };
    if port(&reached.addr) != port(&one.listen) {
        findings.push(Finding::Warning(format!(
            "{}: it listens on {}, and the others reach it at {}: good only if something forwards that",
            one.path.display(),
            one.listen,
            reached.addr
        )));
    }
    if reached.addr.starts_with('[') && one.listen.starts_with("0.0.0.0:") {
        findings.push(Finding::Error(format!(
            "{}: it listens on IPv4 only ({}), and the others reach it at {}: let it listen on [::]",
            one.path.display(),
            one.listen,
            reached.addr
        )));
    }
}

/// The host as which the others reach it.
fn host(one: &Configured) -> Option<&str> {
    let reached = tier(&one.cluster, one.role).iter().find(|server| server.id == one.id)?;
    host_port(&reached.addr).map(|(host, _)| host)
}

/// Whether only one of them can listen there.
fn is_one_place(a: &str, b: &str) -> bool {
    let (Some((a, port)), Some((b, other))) = (host_port(a), host_port(b)) else { return false };
    let is_any = |host: &str| ["0.0.0.0", "[::]"].contains(&host);
    port == other && port != 0 && (a == b || is_any(a) || is_any(b))
}

fn listens_twice(one: &Configured, findings: &mut Vec<Finding>) {
    for (at, (door, addr)) in one.doors.iter().enumerate() {
        for (other, before) in one.doors[..at].iter().filter(|(_, before)| is_one_place(before, addr)) {
            findings.push(Finding::Error(format!(
                "{}: {} and {} cannot both have one port ({before}, {addr})",
                one.path.display(),
                other.name(),
                door.name()
            )));
        }
    }
}

/// Two servers of one machine.
fn share_a_host(one: &Configured, two: &Configured, findings: &mut Vec<Finding>) {
    let both = format!("{} and {}, on one host", one.path.display(), two.path.display());
    for (_, addr) in &one.doors {
        if let Some((_, other)) = two.doors.iter().find(|(_, other)| is_one_place(addr, other)) {
            findings.push(Finding::Error(format!("{both}, cannot both have one port ({addr}, {other})")));
        }
    }
    for directory in one.directories.iter().filter(|directory| two.directories.contains(directory)) {
        findings.push(Finding::Error(format!("{both}, have the directory {}", directory.display())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: &str = "id = \"c\"\npartitions = 4\nmemtable = [{ id = 1, addr = \"m:7300\" }]\n\
                          sstable = [{ id = 1, addr = \"s:7350\" }]\n";

    fn own(role: &str, id: u32, rest: &str) -> String {
        format!("role = \"{role}\"\nid = {id}\ncluster = \"cluster.toml\"\n{rest}")
    }

    /// Findings for these files beside a `cluster.toml`.
    fn findings(files: &[(&str, String)]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cluster.toml"), SHARED).unwrap();
        let write = |(name, text): &(&str, String)| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let paths: Vec<PathBuf> = files.iter().map(write).collect();
        let shown = check(&paths, Variables::Ignored).into_iter().map(|f| f.to_string());
        shown.map(|f| f.replace(&format!("{}/", dir.path().display()), "")).collect()
    }

    fn sound() -> Vec<(&'static str, String)> {
        vec![
            ("m.toml", own("memtable", 1, "listen = \"0.0.0.0:7300\"\ndata_dir = \"/m\"\n")),
            ("s.toml", own("sstable", 1, "listen = \"0.0.0.0:7350\"\ndata_dir = \"/s\"\n")),
            ("p.toml", own("pnode", 1, "grpc = \"0.0.0.0:7400\"\n")),
        ]
    }

    fn on_one_host(files: &mut [(&'static str, String)]) {
        for (_, text) in files {
            let inline = "cluster = { id = \"c\", partitions = 4, memtable = [{ id = 1, addr = \"a:7300\" }], \
                          sstable = [{ id = 1, addr = \"a:7350\" }] }";
            *text = text.replace("cluster = \"cluster.toml\"", inline);
        }
    }

    #[test]
    fn a_sound_cluster_has_no_findings() {
        assert_eq!(findings(&sound()), Vec::<String>::new());
        let mut files = sound();
        on_one_host(&mut files);
        files[0].1 += "http = \"0.0.0.0:7390\"\n";
        files[1].1 += "http = \"127.0.0.1:7440\"\n";
        assert_eq!(findings(&files), Vec::<String>::new());
    }

    #[test]
    fn what_one_zone_would_take_along_is_said() {
        let server = |id, zone: &str| Server { zone: Some(zone.into()), ..Server::new(id, "a:1") };
        let said = |memtable: &[&str], sstable: &[&str]| {
            let tier =
                |zones: &[&str]| (1..).zip(zones).map(|(id, zone)| server(id, zone)).collect::<Vec<_>>();
            let (memtable, sstable) = (tier(memtable), tier(sstable));
            let lease = Default::default();
            let cluster = ClusterConfig { id: "c".into(), partitions: 1, memtable, sstable, lease };
            let mut findings = Vec::new();
            in_one_zone(&cluster, &mut findings);
            findings.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(said(&["a", "b", "c"], &["a", "b"]), Vec::<String>::new());
        assert_eq!(said(&["a", "a", "b", "b", "c"], &["a", "b"]), Vec::<String>::new());
        assert_eq!(
            said(&["a", "b", "b"], &["a", "a"]),
            [
                "warning: zone \"b\" has 2 of 3 memtable servers: without it there is no majority",
                "warning: all sstable servers are in zone \"a\": without it no table can be read"
            ]
        );
    }

    #[test]
    fn how_many_failures_an_even_number_of_memtable_servers_survives_is_said() {
        let said = |voters| one_too_many(voters).map(|finding| finding.to_string());
        assert_eq!([0, 1, 3, 5].map(said), [None, None, None, None]);
        for (voters, expected) in [
            (2, "warning: 2 memtable servers survive 0 failures, as 1 does"),
            (4, "warning: 4 memtable servers survive 1 failure, as 3 do"),
            (6, "warning: 6 memtable servers survive 2 failures, as 5 do"),
        ] {
            assert_eq!(said(voters).as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_hash_that_is_cheap_to_try_is_named_without_it() {
        for (cost, expected) in [
            ("m=8,t=1,p=1", Some("m=8,t=1")),
            ("m=19456,t=1,p=1", Some("m=19456,t=1")),
            ("m=4096,t=16,p=1", Some("m=4096,t=16")),
            ("m=7168,t=5,p=1", None),
            ("m=19456,t=2,p=1", None),
            ("m=65536,t=3,p=4", None),
        ] {
            let mut files = sound();
            files[2].1 += &format!(
                "[access.superusers]\nalice = \"\"\nroot = \"$argon2id$v=19${cost}$c2FsdHNhbHQ$aGFzaGhhc2hoYXNo\"\n"
            );
            let found = findings(&files);
            let Some(expected) = expected else {
                assert_eq!(found, Vec::<String>::new(), "{cost}");
                continue;
            };
            let begins = format!("warning: p.toml: access.superusers.root: who sees this hash ({expected})");
            assert!(found.len() == 1 && found[0].starts_with(&begins), "{found:?}");
            assert!(!found[0].contains("c2FsdHNhbHQ"), "{found:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_said() {
        assert_eq!(findings(&sound()[1..]), ["warning: not checked: no file of memtable 1"]);
    }

    #[test]
    fn mistakes_are_named_with_their_files() {
        type Mistake = fn(&mut Vec<(&'static str, String)>);
        let cases: [(Mistake, &str); 16] = [
            (|f| f[0].1 += "nonsense = 1\n", "error: m.toml:6: unknown field `nonsense`"),
            (|f| f[0].1 += "log_devices = [\"/l\", \"/l\"]\n", "error: m.toml: log device /l is given twice"),
            (|f| f[0].1 = f[0].1.replace("id = 1", "id = 2"), "error: m.toml: "),
            (|f| f[1].1 = f[1].1.replace("7350", "7351"), "warning: s.toml: it listens on 0.0.0.0:7351"),
            (
                |f| {
                    let inline = "cluster = { id = \"c\", partitions = 4, memtable = [{ id = 1, addr = \"[::1]:7300\" }], \
                                  sstable = [{ id = 1, addr = \"s:7350\" }] }";
                    f[0].1 = f[0].1.replace("cluster = \"cluster.toml\"", inline);
                },
                "error: m.toml: it listens on IPv4 only",
            ),
            (
                |f| f[2].1 = f[2].1.replace("0.0.0.0", "[fe80::1]"),
                "error: p.toml: [fe80::1]:7400 is link-local",
            ),
            (
                |f| {
                    let inline = "cluster = { id = \"c\", partitions = 4, memtable = [{ id = 1, addr = \"m:7300\" }], \
                                  sstable = [{ id = 1, addr = \"[fe80::2]:7350\" }] }";
                    f[0].1 = f[0].1.replace("cluster = \"cluster.toml\"", inline);
                },
                "error: m.toml: [fe80::2]:7350 is link-local",
            ),
            (
                |f| f[2].1 += "http = \"[::]:7400\"\n",
                "error: p.toml: grpc and http cannot both have one port",
            ),
            (
                |f| f[2].1 += "[tls]\nca = \"a\"\ncert = \"b\"\nkey = \"c\"\n",
                "error: p.toml has [tls], m.toml has not",
            ),
            (
                |f| {
                    on_one_host(f);
                    f[0].1 += "http = \"127.0.0.1:7440\"\n";
                    f[1].1 += "http = \"0.0.0.0:7440\"\n";
                },
                "error: m.toml and s.toml, on one host, cannot both have one port (127.0.0.1:7440, 0.0.0.0:7440)",
            ),
            (
                |f| {
                    on_one_host(f);
                    f[1].1 = f[1].1.replace("/s", "/m");
                },
                "error: m.toml and s.toml, on one host, have the directory /m",
            ),
            (|f| f.push(("p2.toml", f[2].1.clone())), "warning: p.toml and p2.toml are both pnode 1"),
            (|f| f.push(("s2.toml", f[1].1.clone())), "error: s.toml and s2.toml are both sstable 1"),
            (|f| f[2].1 = f[2].1.replace("\"pnode\"", "\"sstable\""), "error: p.toml:"),
            (|f| f[2].1 = f[2].1.replace("role = \"pnode\"\n", ""), "error: p.toml: whose?"),
            (
                |f| {
                    let inline = "cluster = { id = \"c\", partitions = 5, memtable = [{ id = 1, addr = \"x:7300\" }], \
                                  sstable = [{ id = 1, addr = \"s:7350\" }] }";
                    f[2].1 = f[2].1.replace("cluster = \"cluster.toml\"", inline);
                },
                "error: m.toml and p.toml do not agree on cluster.partitions",
            ),
        ];
        for (mistake, expected) in cases {
            let mut files = sound();
            mistake(&mut files);
            let found = findings(&files);
            assert!(found.iter().any(|f| f.starts_with(expected)), "{found:?}: not {expected}");
        }
    }
}
