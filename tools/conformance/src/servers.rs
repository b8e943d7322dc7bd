//! Starting a redis-server and a cluster, each with a directory of its own; both end with this program.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde::Deserialize;

pub struct Server {
    _process: Process,
    /// Kept open, or it could not write.
    _said: BufReader<ChildStdout>,
    pub address: String,
    pub version: String,
}

/// A process that ends with what it belongs to.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether there is one, installed if need be.
pub fn has_redis() -> bool {
    let is_there = || said("redis-server", &["--version"]).is_some();
    if !is_there() {
        println!("conformance: installing redis-server");
        let install = ["install", "-y", "-qq", "--no-install-recommends", "redis-server"];
        for args in [&["update", "-qq"][..], &install[..]] {
            let mut apt = Command::new("apt-get");
            apt.args(args)
                .env("DEBIAN_FRONTEND", "noninteractive")
                .stdin(Stdio::null())
                .stdout(Stdio::null());
            let _ = apt.status();
        }
    }
    is_there()
}

fn said(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

pub fn redis(dir: &Path) -> Result<Server, String> {
    let version = said("redis-server", &["--version"]).unwrap_or_default();
    let version = version.split(' ').find_map(|word| word.strip_prefix("v=")).unwrap_or("?").to_owned();
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map_err(|e| e.to_string())?.port();
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = Process(command.spawn().map_err(|e| format!("redis-server: {e}"))?);
    let mut said = BufReader::new(process.0.stdout.take().ok_or("redis-server: no output")?);
    let address = format!("127.0.0.1:{port}");
    let mut line = String::new();
    while !line.contains("Ready to accept connections") {
        line.clear();
        if said.read_line(&mut line).map_err(|e| format!("redis-server: {e}"))? == 0 {
            return Err("redis-server has ended".into());
        }
    }
    Ok(Server { _process: process, _said: said, address, version: format!("Redis {version}") })
}

#[derive(Deserialize)]
struct Ready {
    pnodes: Vec<PNode>,
}

#[derive(Deserialize)]
struct PNode {
    resp: String,
}

/// A cluster with one partition, so that all keys are together.
pub fn sextant(program: &Path, dir: &Path) -> Result<Server, String> {
    let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", program.display());
    let version = said(&program.display().to_string(), &["--version"]).unwrap_or_default();
    let mut command = Command::new(program);
    command.args([
        "dev",
        "--json",
        "--partitions",
        "1",
        "--pnodes",
        "1",
        "--resp",
        "0",
        "--grpc",
        "0",
        "--http",
        "0",
        "--data",
    ]);
    command.arg(dir.join("sextant")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = Process(command.spawn().map_err(|e| failed(&e))?);
    let mut said = BufReader::new(process.0.stdout.take().ok_or_else(|| failed(&"no output"))?);
    let mut line = String::new();
    said.read_line(&mut line).map_err(|e| failed(&e))?;
    let ready: Ready = serde_json::from_str(&line).map_err(|e| failed(&format!("not ready: {e}: {line}")))?;
    let pnode = ready.pnodes.first().ok_or_else(|| failed(&"no p-node"))?;
    Ok(Server { _process: process, _said: said, address: pnode.resp.clone(), version })
}
