//! `sextant doctor`, before a cluster is started, beside one, and beside one that is not what its files say.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use sextant_dev_cluster::{DevCluster, DevOptions};
use sextant_environment::Env;
use sextant_environment::env::free_addrs;

fn doctor(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sextant")).arg("doctor").args(args).output().unwrap()
}

/// What `--json` says of a server's file.
struct Report {
    code: Option<i32>,
    document: Value,
}

impl Report {
    fn of(files: &[&Path]) -> Self {
        let mut args = vec!["--json"];
        args.extend(files.iter().flat_map(|file| ["--config", file.to_str().unwrap()]));
        let output = doctor(&args);
        let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
        Self { code: output.status.code(), document }
    }

    /// Again, if something was too slow for it.
    fn in_time(files: &[&Path], is_in_time: impl Fn(&Self) -> bool) -> Self {
        let mut report = Self::of(files);
        for _ in 0..5 {
            if is_in_time(&report) {
                break;
            }
            report = Self::of(files);
        }
        report
    }

    fn checks(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        let checks = self.document["checks"].as_array().unwrap();
        checks.iter().map(|check| {
            let text = |field: &str| check[field].as_str().unwrap();
            (text("verdict"), text("subject"), text("reason"))
        })
    }

    /// Of the check whose subject begins so.
    fn found(&self, subject: &str) -> (&str, &str) {
        let mut about = self.checks().filter(|(_, known, _)| known.starts_with(subject));
        let (verdict, _, reason) = about.next().unwrap_or_else(|| panic!("no {subject}: {}", self.document));
        (verdict, reason)
    }
}

/// Files of a cluster of one host, with free ports, and the directory that they are in.
async fn files(dir: &Path) -> [PathBuf; 3] {
    let addrs = free_addrs(&Env::real(), 4).await.unwrap();
    let [memtable, other, sstable, grpc] = <[String; 4]>::try_from(addrs).unwrap();
    let shared = format!(
        "id = \"c\"\npartitions = 1\nsstable = [{{ id = 1, addr = \"{sstable}\" }}]\n\
         memtable = [{{ id = 1, addr = \"{memtable}\" }}, {{ id = 2, addr = \"{other}\" }}]\n"
    );
    std::fs::write(dir.join("cluster.toml"), shared).unwrap();
    let data = dir.join("data");
    let own = [
        ("memtable", format!("listen = \"{memtable}\"\ndata_dir = {:?}\n", data.join("m"))),
        ("sstable", format!("listen = \"{sstable}\"\ndata_dir = {:?}\n", data.join("s"))),
        ("pnode", format!("grpc = \"{grpc}\"\nadmin = \"127.0.0.1:0\"\n")),
    ];
    own.map(|(role, rest)| {
        let path = dir.join(format!("{role}-1.toml"));
        std::fs::write(&path, format!("id = 1\ncluster = \"cluster.toml\"\n{rest}")).unwrap();
        path
    })
}

#[test]
fn without_a_file_only_the_machine_is_looked_at() {
    let output = doctor(&[]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{printed}");
    for subject in ["clock source", "kernel clock", "cores", "memory", "open files"] {
        assert_eq!(printed.matches(&format!("  {subject}: ")).count(), 1, "{subject}: {printed}");
    }
    assert!(printed.lines().last().unwrap().starts_with("verdict: "), "{printed}");
}

#[test]
fn a_file_that_is_wrong_is_said_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("memtable.toml");
    std::fs::write(&file, "id = \"one\"\n").unwrap();
    let output = doctor(&["--config", file.to_str().unwrap()]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.lines().count() == 1 && said.contains("memtable.toml:1"), "{said}");
}

#[tokio::test]
async fn before_the_start_ports_are_free_and_others_not_there_yet() {
    let dir = tempfile::tempdir().unwrap();
    let [memtable, sstable, pnode] = files(dir.path()).await;
    let before = std::fs::read_dir(dir.path()).unwrap().count();
    let report = Report::of(&[&memtable, &sstable, &pnode]);
    for (verdict, subject, reason) in report.checks().filter(|(_, subject, _)| subject.starts_with("port ")) {
        assert_eq!((verdict, reason), ("ok", "free"), "{subject}");
    }
    let (verdict, reason) = report.found("connection of memtable-2");
    assert!(verdict == "warning" && reason.contains("not started yet"), "{reason}");
    let directory = format!("directory {}", dir.path().join("data/m/log").display());
    assert!(report.found(&directory).1.starts_with("it can be made in "));
    let measured = |subject: &str| {
        let checks = report.document["checks"].as_array().unwrap().iter();
        let mut of_subject = checks.filter(|check| check["subject"].as_str().unwrap().starts_with(subject));
        of_subject.next().unwrap_or_else(|| panic!("no {subject}"))["measured"].clone()
    };
    assert!(measured("fsync at ")["writes"].as_u64().unwrap() > 0);
    assert!(measured("throughput at ")["bytes_per_s"].as_u64().unwrap() > 0);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), before, "something was left behind");
}

#[tokio::test]
async fn what_nobody_can_reach_or_listen_on_is_bad() {
    let dir = tempfile::tempdir().unwrap();
    let [memtable, ..] = files(dir.path()).await;
    let change = |name: &Path, from: &str, to: &str| {
        let text = std::fs::read_to_string(name).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(name, text.replace(from, to)).unwrap();
    };
    change(
        &dir.path().join("cluster.toml"),
        "sstable = [{ id = 1, addr = \"127.0.0.1:",
        "sstable = [{ id = 1, addr = \"nowhere.invalid:",
    );
    // Somebody who says nothing has the port.
    let listens = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let http = format!("http = \"{}\"\n", listens.local_addr().unwrap());
    change(&memtable, "cluster = ", &format!("{http}cluster = "));
    let report = Report::of(&[&memtable]);
    assert_eq!((report.code, report.document["verdict"].as_str()), (Some(1), Some("bad")));
    assert_eq!(report.found("name of sstable-1").0, "bad");
    let (verdict, reason) = report.found(&format!("port {}", listens.local_addr().unwrap()));
    assert!(verdict == "bad" && reason.starts_with("in use by another program"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn beside_a_cluster_it_knows_who_runs_and_asks_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let options = DevOptions {
        processes: Some(env!("CARGO_BIN_EXE_sextant").into()),
        partitions: Some(1),
        pnodes: 1,
        ..DevOptions::on_free_ports(dir.path())
    };
    let cluster = DevCluster::start(Env::real(), options).await.unwrap();
    let file = |name: &str| dir.path().join("config").join(name);
    let files = [file("memtable-1.toml"), file("sstable-1.toml"), file("pnode-1.toml")];
    let report = Report::in_time(&[&files[0], &files[1], &files[2]], |report| {
        let about = |subject: &str| subject.starts_with("port ") || subject.contains(" of ");
        report.checks().all(|(verdict, subject, _)| !about(subject) || verdict == "ok")
    });
    let ours = format!("(version {})", env!("CARGO_PKG_VERSION"));
    for (verdict, subject, reason) in report.checks().filter(|(_, subject, _)| subject.starts_with("port ")) {
        assert!(
            verdict == "ok" && reason.contains("this server") && reason.contains(&ours),
            "{subject}: {reason}"
        );
    }
    for other in ["memtable-2", "memtable-3", "sstable-2", "sstable-3"] {
        assert!(report.found(&format!("server of {other}")).1.starts_with("version "), "{}", report.document);
        for what in ["name", "server", "clock"] {
            assert_eq!(report.found(&format!("{what} of {other}")).0, "ok", "{}", report.document);
        }
        assert_ne!(report.found(&format!("connection of {other}")).0, "bad", "{}", report.document);
    }
    // Who runs is not held up.
    assert!(report.found("throughput at ").1.starts_with("not tried"));

    // Servers of another cluster answer, and say so.
    let text = std::fs::read_to_string(&files[0]).unwrap();
    let id = &cluster.cluster_config().id;
    let another = file("memtable-another.toml");
    std::fs::write(&another, text.replace(&format!("id = {id:?}"), "id = \"another\"")).unwrap();
    let http = cluster.http(sextant_dev_cluster::Role::Memtable, 0).unwrap();
    let port = format!("port {http}");
    let report = Report::in_time(&[&another], |report| report.found(&port).1.contains("of cluster"));
    assert_eq!(report.code, Some(1), "{}", report.document);
    assert_eq!(report.found("server of memtable-2").0, "bad", "{}", report.document);
    let (verdict, reason) = report.found(&port);
    assert!(verdict == "bad" && reason.contains(&format!("of cluster {id:?}")), "{reason}");
    cluster.shutdown().await.unwrap();
}
