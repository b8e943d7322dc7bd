//! The binary as a user runs it: a dev cluster with a process a server, the client commands, signals, restart.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// How often something is tried that a busy machine may be too slow for.
const TRIES: usize = 10;
const SEXTANT: &str = env!("CARGO_BIN_EXE_sextant");

struct Dev {
    process: Child,
    ready: Value,
}

impl Dev {
    fn start(data: &Path, more: &[&str]) -> Dev {
        let free = ["--resp", "0", "--grpc", "0", "--http", "0", "--json"];
        let mut process = Command::new(SEXTANT)
            .arg("dev")
            .arg("--data")
            .arg(data)
            .args(free)
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
        Dev { process, ready }
    }

    fn grpc(&self, pnode: usize) -> &str {
        self.ready["pnodes"][pnode]["grpc"].as_str().unwrap()
    }

    fn pids(&self) -> Vec<i32> {
        ["pnodes", "memtable", "sstable"]
            .iter()
            .flat_map(|tier| self.ready[tier].as_array().unwrap())
            .map(|server| server["pid"].as_i64().unwrap() as i32)
            .collect()
    }

    /// SIGTERM; the exit code.
    fn terminate(mut self) -> Option<i32> {
        send(self.process.id() as i32, libc::SIGTERM);
        self.process.wait().unwrap().code()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn send(pid: i32, signal: i32) {
    // SAFETY: kill has no memory effects.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

fn is_running(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn sextant(args: &[&str], server: &str) -> Output {
    Command::new(SEXTANT).args(args).args(["--server", server, "--deadline-ms", "60000"]).output().unwrap()
}

/// Again, if nobody led for a moment.
fn until_done(args: &[&str], server: &str) {
    let is_done = (0..TRIES).any(|_| {
        let output = sextant(args, server);
        eprintln!("{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.status.success()
    });
    assert!(is_done, "{args:?}");
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_cluster_of_processes_serves_survives_a_kill_and_a_restart_and_leaves_nobody_behind() {
    let dir = tempfile::tempdir().unwrap();
    let dev = Dev::start(dir.path(), &["--processes", "--partitions", "2"]);
    assert_eq!(dev.ready["ready"], true);
    assert_eq!(dev.ready["pnodes"].as_array().unwrap().len(), 2);
    let pids = dev.pids();
    assert_eq!(pids.len(), 8);
    assert!(pids.iter().all(|pid| *pid != dev.process.id() as i32 && is_running(*pid)));

    // Every command, through one p-node and the other.
    let (one, two) = (dev.grpc(0).to_owned(), dev.grpc(1).to_owned());
    stdout(&sextant(&["put", "a", "1"], &one));
    assert_eq!(stdout(&sextant(&["get", "a"], &two)), "1\n", "a line, as redis-cli prints it");
    assert_eq!(stdout(&sextant(&["get", "a", "--no-newline"], &two)), "1");
    for mode in ["bda", "nda"] {
        assert_eq!(stdout(&sextant(&["get", "a", "--mode", mode], &one)), "1\n");
    }
    let missing = sextant(&["get", "nothing"], &one);
    assert_eq!((missing.status.code(), missing.stdout.len()), (Some(1), 0));
    assert_eq!(String::from_utf8_lossy(&missing.stderr).lines().count(), 1);
    assert_eq!(sextant(&["insert", "a", "2"], &one).status.code(), Some(1));
    stdout(&sextant(&["insert", "b", "2"], &one));
    stdout(&sextant(&["cas", "b", "2", "3"], &two));
    assert_eq!(sextant(&["cas", "b", "2", "4"], &two).status.code(), Some(1));
    assert_eq!(stdout(&sextant(&["scan"], &one)), "a\t1\nb\t3\n");
    assert_eq!(stdout(&sextant(&["scan", "--reverse", "--keys-only", "--limit", "1"], &one)), "b\n");
    let several = sextant(&["mget", "b", "x", "a"], &one);
    assert_eq!(several.status.code(), Some(1));
    assert_eq!(several.stdout, b"b\t3\na\t1\n");
    stdout(&sextant(&["delete", "b"], &one));
    assert_eq!(sextant(&["delete", "b", "--check"], &one).status.code(), Some(1));
    stdout(&sextant(&["create-table", "t"], &one));
    stdout(&sextant(&["put", "k", "v", "--table", "t"], &one));
    assert_eq!(stdout(&sextant(&["get", "k", "--table", "t"], &two)), "v\n");
    until_done(&["admin", "flush"], &one);
    until_done(&["admin", "compact"], &one);
    assert_eq!(stdout(&sextant(&["get", "a"], &two)), "1\n");
    assert!(stdout(&sextant(&["status"], &one)).contains("memtable 3"));
    for (senseless, why) in [
        (&["admin", "drain", "--sstable", "9"][..], "no sstable server 9"),
        (&["admin", "configure", "--memory-bytes", "1"], "memory_bytes"),
        (&["admin", "configure", "--lease-ms", "100000"], "lease"),
        (&["admin", "flush", "--table", "nosuch"], "nosuch"),
    ] {
        // (Unless nobody leads for a moment.)
        let codes_and_text = (0..TRIES).map(|_| {
            let output = sextant(senseless, &one);
            (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
        });
        let refused = |(code, text): (Option<i32>, String)| {
            code == Some(2) && text.lines().count() == 1 && text.contains(why) && !text.contains("; ")
        };
        assert!(codes_and_text.into_iter().any(refused), "{senseless:?}");
    }

    // A second cluster on the same directory is refused in one clear line.
    let second = Command::new(SEXTANT).args(["dev", "--data"]).arg(dir.path()).output().unwrap();
    assert_eq!(second.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&second.stderr).contains("another cluster runs on"));

    // The leader of partition 0 is killed: reads and writes go on.
    let leader = (0..TRIES).find_map(|_| {
        let status: Value = serde_json::from_str(&stdout(&sextant(&["status", "--json"], &one))).unwrap();
        let servers = status["memtable"].as_array().unwrap();
        assert_eq!(servers.len(), 3);
        // (Of a server that is too slow to answer there is no status.)
        let leads = |server: &&Value| {
            let mut partitions = server["status"]["partitions"].as_array().into_iter().flatten();
            partitions.any(|p| p["partition"] == 0 && p["role"] == "leader")
        };
        servers.iter().find(leads)?["id"].as_u64()
    });
    let leader = leader.expect("somebody leads") as usize;
    send(dev.ready["memtable"][leader - 1]["pid"].as_i64().unwrap() as i32, libc::SIGKILL);
    stdout(&sextant(&["put", "after", "the kill"], &one));
    assert_eq!(stdout(&sextant(&["get", "after"], &two)), "the kill\n");

    assert_eq!(dev.terminate(), Some(0));
    assert!(pids.iter().all(|pid| !is_running(*pid)), "a server was left behind");

    // The same directory, in one process this time: all data and all ports are as they were.
    let again = Dev::start(dir.path(), &[]);
    assert_eq!(again.grpc(0), one);
    assert!(again.pids().iter().all(|pid| *pid == again.process.id() as i32));
    assert_eq!(stdout(&sextant(&["get", "a"], &one)), "1\n");
    assert_eq!(stdout(&sextant(&["get", "after"], &two)), "the kill\n");
    assert_eq!(stdout(&sextant(&["get", "k", "--table", "t"], &two)), "v\n");
    assert_eq!(again.terminate(), Some(0));
}

#[test]
fn children_die_with_a_parent_that_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let shape = ["--processes", "--partitions", "1", "--memtable", "1", "--sstable", "1", "--pnodes", "1"];
    let mut dev = Dev::start(dir.path(), &shape);
    let pids = dev.pids();
    dev.process.kill().unwrap();
    dev.process.wait().unwrap();
    // The kernel sends the signals while the parent ends; the children need a moment to be gone, a minute on a busy machine.
    for _ in 0..60_000 {
        if !pids.iter().any(|pid| is_running(*pid)) {
            return;
        }
        std::thread::yield_now();
        let _ = Command::new("true").status();
    }
    panic!("a server outlived its parent");
}

#[test]
fn the_load_generator_runs_against_a_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let dev = Dev::start(dir.path(), &[]);
    let json = dir.path().join("report.json");
    let cluster = dir.path().join("cluster.toml");
    let (grpc, resp) = (dev.grpc(0).to_owned(), dev.ready["pnodes"][1]["resp"].as_str().unwrap().to_owned());
    let ycsb = |phase: &str, more: &[&str]| -> Value {
        let output = Command::new(SEXTANT)
            .args(["ycsb", phase, "--records", "300", "--operations", "300", "--threads", "8", "--json"])
            .arg(&json)
            .args(more)
            .output()
            .unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{phase} {more:?}: {out}{err}");
        serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap()
    };
    let cluster = cluster.to_str().unwrap();
    assert_eq!(ycsb("load", &["--grpc", &grpc])["operations"], 300);
    until_done(&["admin", "flush"], &grpc);
    assert_eq!(ycsb("update", &["--grpc", &grpc, "--share", "0.1"])["operations"], 30);
    for workload in ["a", "b", "c", "d", "e", "f"] {
        for mode in ["pda", "bda", "nda"] {
            let report = ycsb("run", &["--workload", workload, "--mode", mode, "--grpc", &grpc]);
            assert_eq!(
                (&report["errors"], &report["operations"]),
                (&0.into(), &300.into()),
                "{workload} {mode}"
            );
            let embedded = ["--embedded", "--cluster", cluster, "--workload", workload, "--mode", mode];
            assert_eq!(ycsb("run", &embedded)["errors"], 0, "{workload} {mode}");
        }
        if workload != "e" {
            assert_eq!(ycsb("run", &["--workload", workload, "--resp", &resp])["errors"], 0, "{workload}");
        }
    }
    let asks_less = (0..3).any(|_| {
        let compared =
            ycsb("compare", &["--workload", "c", "--rounds", "1", "--embedded", "--cluster", cluster]);
        assert_eq!(compared["errors"], 0);
        assert_eq!(compared["medians"].as_array().unwrap().len(), 3);
        let leaders = |mode: usize| {
            compared["medians"][mode]["per_1000_reads"]["messages to leaders"].as_f64().unwrap()
        };
        // (Without a lease, as on a machine that stands still, it asks as often.)
        leaders(0) * 1.3 < leaders(2)
    });
    assert!(asks_less, "pda asks leaders less than nda does");
    assert_eq!(dev.terminate(), Some(0));
}

#[test]
fn wrong_arguments_and_configurations_are_one_line_and_exit_2() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("bad.toml");
    std::fs::File::create(&config).unwrap().write_all(b"id = 1\nlisten_on = \"x\"\n").unwrap();
    let config = config.to_str().unwrap();
    for args in [
        vec!["frobnicate"],
        vec!["get"],
        vec!["dev", "--partitions", "0"],
        vec!["memtable", "--config", config],
        vec!["sstable", "--config", config],
        vec!["pnode", "--config", "/nonexistent.toml"],
        vec!["get", "a", "--server", "nowhere"],
        vec!["ycsb", "run", "--embedded"],
        vec!["check", "/nonexistent.jsonl"],
    ] {
        let output = Command::new(SEXTANT).args(&args).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {err}");
        assert_eq!(err.lines().count(), 1, "{args:?}: {err}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}
