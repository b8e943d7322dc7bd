//! Starting a redis-server and a cluster, each with a directory of its own; both end with this program.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
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

/// What replies are compared with: others answer some commands otherwise.
const REDIS_VERSION: &str = "7.0.";
/// How often redis-server is started: somebody else may take its port first.
const ATTEMPTS: usize = 5;

/// What a server writes to its standard error, in a file: nobody has to read it for it to go on.
struct Errors(PathBuf);

impl Errors {
    fn new(dir: &Path, name: &str) -> Result<Self, String> {
        let path = dir.join(format!("{name}.stderr"));
        File::create(&path).map(|_| Self(path)).map_err(|e| e.to_string())
    }

    fn stdio(&self) -> Result<Stdio, String> {
        File::options().append(true).open(&self.0).map(Stdio::from).map_err(|e| e.to_string())
    }

    /// Its end.
    fn text(&self) -> String {
        let text = std::fs::read(&self.0).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(SHOWN_BYTES)..]).into_owned()
    }
}

/// Of what a server that did not start has said.
const SHOWN_BYTES: usize = 4096;

/// Whether there is one of the right version, installed if need be. Err: why not.
pub fn has_redis() -> Result<(), String> {
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
    if !is_there() {
        return Err("there is no redis-server, and it could not be installed".into());
    }
    let version = redis_version();
    match version.starts_with(REDIS_VERSION) {
        true => Ok(()),
        false => Err(format!("redis-server is {version}: replies are those of {REDIS_VERSION}x")),
    }
}

fn redis_version() -> String {
    let said = said("redis-server", &["--version"]).unwrap_or_default();
    said.split(' ').find_map(|word| word.strip_prefix("v=")).unwrap_or("?").to_owned()
}

pub fn said(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// `options`: further ones.
pub fn redis(dir: &Path, options: &[&str]) -> Result<Server, String> {
    let mut why = String::new();
    for _ in 0..ATTEMPTS {
        match redis_once(dir, options) {
            Ok(server) => return Ok(server),
            Err(e) => why = e,
        }
    }
    Err(why)
}

fn redis_once(dir: &Path, options: &[&str]) -> Result<Server, String> {
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map_err(|e| e.to_string())?.port();
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(dir);
    command.args(options);
    let errors = Errors::new(dir, &format!("redis-server-{port}"))?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors.stdio()?);
    let mut process = Process(command.spawn().map_err(|e| format!("redis-server: {e}"))?);
    let mut said = BufReader::new(process.0.stdout.take().ok_or("redis-server: no output")?);
    let address = format!("127.0.0.1:{port}");
    let (mut line, mut log) = (String::new(), String::new());
    while !line.contains("Ready to accept connections") {
        line.clear();
        if said.read_line(&mut line).map_err(|e| format!("redis-server: {e}"))? == 0 {
            return Err(format!("redis-server has ended: {log}{}", errors.text()));
        }
        log.push_str(&line);
    }
    Ok(Server { _process: process, _said: said, address, version: format!("Redis {}", redis_version()) })
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
    let errors = Errors::new(dir, "sextant")?;
    command.arg(dir.join("sextant")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors.stdio()?);
    let mut process = Process(command.spawn().map_err(|e| failed(&e))?);
    let mut said = BufReader::new(process.0.stdout.take().ok_or_else(|| failed(&"no output"))?);
    let mut line = String::new();
    said.read_line(&mut line).map_err(|e| failed(&e))?;
    let ready: Ready = serde_json::from_str(&line)
        .map_err(|e| failed(&format!("not ready: {e}: {line}{}", errors.text())))?;
    let pnode = ready.pnodes.first().ok_or_else(|| failed(&"no p-node"))?;
    Ok(Server { _process: process, _said: said, address: pnode.resp.clone(), version })
}
