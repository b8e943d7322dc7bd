//! `cargo xtask metrics`: writes `docs/metrics.md` from what the servers of a cluster show. That it is up to date is a test of
//! the `sextant` command (`crates/cli/tests/metrics.rs`).

pub mod families;
mod tls;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::{root, run, target};
use families::{EVERY, Families, PAGE, ROLES};

const HEAD: &str = "\
# Metrics

Every server with an `http` address shows them at `/metrics` (OpenMetrics).
What to look at first, alerts and dashboards: [operations](operations.md#looking-at-it).

* A *counter* only grows, and begins at 0 when the server starts: look at its `rate`.
* A *gauge* is what it is at the moment.
* A *histogram* has three samples: `.._bucket` (by `le`), `.._sum`, `.._count`.

A unit is the end of the name; what has none is a number of what the text says.
Labels in parentheses have these values; others have as many as the cluster has (`partition`, `device`), or say how
something ended (`outcome`: `ok`, or the kind of the error; such a metric is there once something has ended).
Numbers are those of the server that is asked, not of the cluster.

This page is written by `cargo xtask metrics` from a running cluster.
";

const USAGE: &str = "usage: cargo xtask metrics (SEXTANT_PROGRAM: a binary that was built already)";
/// Servers of each role.
const SERVERS: [usize; 3] = [1, 3, 3];
const SHAPE: [&str; 6] = ["--pnodes", "1", "--memtable", "3", "--sstable", "3"];
/// What shows nothing before it has happened somewhere.
const LATE: [&str; 3] = ["sextant_sst_ingests", "sextant_sst_compactions", "sextant_sst_copies"];
/// Looks at the cluster, a quarter of a second apart.
const LOOKS_MAX: usize = 240;
const LOOK_EVERY: Duration = Duration::from_millis(250);
const TIMEOUT: Duration = Duration::from_secs(10);
const KEYS: usize = 200;

pub fn write(options: &[&str]) -> Result<(), String> {
    if !options.is_empty() {
        return Err(USAGE.to_owned());
    }
    let program = program()?;
    let data = target().join("metrics");
    let _ = std::fs::remove_dir_all(&data);
    let cluster = Cluster::start(&program, &data)?;
    let asked = cluster.use_it(&program).and_then(|()| cluster.look());
    drop(cluster);
    let _ = std::fs::remove_dir_all(&data);
    let path = format!("{}/{PAGE}", root());
    std::fs::write(path, families::page(HEAD, &sections(asked?))).map_err(|e| format!("xtask: {PAGE}: {e}"))
}

/// What is in the repository.
pub fn documented() -> Result<BTreeMap<String, families::Family>, String> {
    let page = std::fs::read_to_string(format!("{}/{PAGE}", root()));
    let sections = families::read(&page.map_err(|e| format!("{PAGE}: {e}"))?)?;
    Ok(sections.into_iter().flat_map(|(_, families)| families).collect())
}

/// By role, into what all have and what only one has; and what nobody of this cluster has.
fn sections(by_role: Vec<Families>) -> Vec<(String, Families)> {
    let (first, others) = by_role.split_first().expect("there are roles");
    let mut every = first.clone();
    every.retain(|name, _| others.iter().all(|families| families.contains_key(name)));
    let own = ROLES.iter().zip(by_role).map(|(title, mut families)| {
        families.retain(|name, _| !every.contains_key(name));
        ((*title).to_owned(), families)
    });
    let mut sections: Vec<_> = own.collect();
    sections.push((EVERY.to_owned(), every));
    sections.push((tls::TITLE.to_owned(), tls::families()));
    sections
}

fn program() -> Result<PathBuf, String> {
    const BUILD: crate::Step = ("build", &["build", "--package", "sextant", "--bin", "sextant"]);
    if let Some(program) = std::env::var_os("SEXTANT_PROGRAM") {
        return Ok(program.into());
    }
    run(&[BUILD])?;
    Ok(target().join("debug").join("sextant"))
}

/// `sextant dev`, which ends with this.
struct Cluster {
    process: Child,
    grpc: String,
    resp: String,
    /// p-nodes first, then memtable servers, then sstable servers.
    http: Vec<String>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Cluster {
    fn start(program: &Path, data: &Path) -> Result<Self, String> {
        let mut command = Command::new(program);
        command
            .args(["dev", "--processes", "--json", "--resp", "0", "--grpc", "0", "--http", "0"])
            .args(SHAPE);
        let cannot = |e| format!("xtask: metrics: cannot start {}: {e}", program.display());
        let mut process = command.arg("--data").arg(data).stdout(Stdio::piped()).spawn().map_err(cannot)?;
        let mut ready = String::new();
        let out = process.stdout.take().expect("it is piped");
        let read = BufReader::new(out).read_line(&mut ready);
        let [grpc, resp, http] = ["grpc", "resp", "http"].map(|field| values(&ready, field));
        let cluster = Cluster { process, grpc: grpc.concat(), resp: resp.concat(), http };
        if read.is_err() || cluster.http.len() != SERVERS.iter().sum::<usize>() {
            return Err(format!("xtask: metrics: no cluster: {ready:?}"));
        }
        Ok(cluster)
    }

    /// Something of everything, for what is counted by what happened.
    fn use_it(&self, program: &Path) -> Result<(), String> {
        let sextant = |args: &[&str]| {
            let done = Command::new(program)
                .args(args)
                .args(["--server", &self.grpc, "--deadline-ms", "60000"])
                .stdout(Stdio::null())
                .status();
            match done {
                Ok(status) if status.success() => Ok(()),
                other => Err(format!("xtask: metrics: sextant {}: {other:?}", args.join(" "))),
            }
        };
        let mut redis = String::new();
        for key in 0..KEYS {
            redis += &format!("SET key{key} value\r\nGET key{key}\r\n");
        }
        redis += "NONSENSE\r\nQUIT\r\n";
        exchange(&self.resp, &redis)?;
        for round in ["1", "2"] {
            sextant(&["put", "a", round])?;
            sextant(&["admin", "flush"])?;
            for mode in ["pda", "bda", "nda"] {
                sextant(&["get", "a", "--mode", mode])?;
            }
        }
        sextant(&["scan", "--limit", "10"])?;
        sextant(&["admin", "compact"])
    }

    /// By role.
    fn look(&self) -> Result<Vec<Families>, String> {
        for _ in 0..LOOKS_MAX {
            let mut addrs = self.http.iter();
            let mut by_role = Vec::new();
            for servers in SERVERS {
                let mut families = Families::new();
                for addr in addrs.by_ref().take(servers) {
                    let answer = exchange(addr, "GET /metrics HTTP/1.0\r\n\r\n")?;
                    let (_, body) = answer.split_once("\r\n\r\n").ok_or("xtask: metrics: no body")?;
                    families::merge(&mut families, families::exposed(body)?);
                }
                by_role.push(families);
            }
            let is_there = |name: &str| by_role.iter().any(|families| families.contains_key(name));
            if LATE.iter().all(|name| is_there(name)) {
                return Ok(by_role);
            }
            #[allow(clippy::disallowed_methods, reason = "a tool that waits for a cluster")]
            std::thread::sleep(LOOK_EVERY);
        }
        Err(format!("xtask: metrics: no server showed all of {}", LATE.join(", ")))
    }
}

/// All values of a field of the ready line.
fn values(json: &str, field: &str) -> Vec<String> {
    let before = format!("\"{field}\":\"");
    json.split(&before).skip(1).filter_map(|part| part.split('"').next()).map(str::to_owned).collect()
}

/// Sends a text, and returns all that comes until the other side closes.
fn exchange(addr: &str, text: &str) -> Result<String, String> {
    let exchange = || {
        let mut stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(text.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    exchange().map_err(|e: std::io::Error| format!("xtask: metrics: {addr}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP sextant_pnode_reads Point reads by mode and by the tiers that were asked.
# TYPE sextant_pnode_reads counter
sextant_pnode_reads_total{mode=\"pda\",path=\"kept\"} 17
sextant_pnode_reads_total{mode=\"nda\",path=\"both\"} 1
# HELP sextant_memtable_unflushed_bytes Bytes of memtables that are not yet flushed
# TYPE sextant_memtable_unflushed_bytes gauge
sextant_memtable_unflushed_bytes{partition=\"0\"} 0
# HELP sextant_raft_log_fsync_seconds Time of one fdatasync.
# TYPE sextant_raft_log_fsync_seconds histogram
# UNIT sextant_raft_log_fsync_seconds seconds
sextant_raft_log_fsync_seconds_sum{device=\"0\"} 4.4
sextant_raft_log_fsync_seconds_count{device=\"0\"} 2857
sextant_raft_log_fsync_seconds_bucket{le=\"1e-5\",device=\"0\"} 0
# EOF
";

    #[test]
    fn the_page_has_what_servers_show() {
        let families = families::exposed(TEXT).unwrap();
        let page = families::page("# Title\n\n* a list\n", &[("p-node".to_owned(), families.clone())]);
        let expected = "\
# Title

* a list

## p-node

* `sextant_memtable_unflushed_bytes`: gauge, bytes; by `partition`.
  Bytes of memtables that are not yet flushed.
* `sextant_pnode_reads_total`: counter; by `mode` (`nda`, `pda`) and `path` (`both`, `kept`).
  Point reads by mode and by the tiers that were asked.
* `sextant_raft_log_fsync_seconds`: histogram, seconds; by `device`.
  Time of one fdatasync.
";
        assert_eq!(page, expected);
        assert_eq!(families::read(&page).unwrap(), [("p-node".to_owned(), families)]);
    }

    #[test]
    fn long_entries_are_wrapped_and_read_again() {
        let values = (0..40).map(|i| format!("value{i}")).collect();
        let family = families::Family {
            kind: "counter".into(),
            help: "A meaning: ".to_owned() + &"word ".repeat(60) + "end",
            labels: [("command".to_owned(), values)].into(),
        };
        let families = Families::from([("sextant_resp_commands".to_owned(), family)]);
        let page = families::page("# Title", &[("p-node".to_owned(), families.clone())]);
        assert!(page.lines().all(|line| line.len() <= 120), "{page}");
        assert_eq!(families::read(&page).unwrap(), [("p-node".to_owned(), families)]);
    }

    #[test]
    fn what_is_no_exposition_is_said() {
        for text in ["<html>", "sextant_x 1", "# HELP a b\n# TYPE a counter\nb_total 1", "# NOTE a b"] {
            families::exposed(text).unwrap_err();
        }
    }

    /// What needs no cluster to be seen: the page is as it would be written, apart from what is in it.
    #[test]
    fn the_page_is_as_it_is_written() {
        let there = std::fs::read_to_string(format!("{}/{PAGE}", root())).unwrap();
        let sections = families::read(&there).unwrap();
        assert!(there == families::page(HEAD, &sections), "{PAGE} was edited: run `cargo xtask metrics`");
        let (title, encrypted) = sections.last().unwrap();
        assert!(title == tls::TITLE && *encrypted == tls::families(), "{PAGE}: run `cargo xtask metrics`");
        for (title, families) in &sections {
            assert!(!families.is_empty(), "{title}");
            for (name, family) in families {
                assert!(family.help.len() > 10, "{name}: what does it mean?");
            }
        }
    }

    #[test]
    fn the_ready_line_is_understood() {
        let line = r#"{"pnodes":[{"id":1,"grpc":"a:1","http":"a:2"}],"memtable":[{"http":"a:3"}]}"#;
        assert_eq!(values(line, "http"), ["a:2", "a:3"]);
        assert_eq!(values(line, "grpc"), ["a:1"]);
    }
}
