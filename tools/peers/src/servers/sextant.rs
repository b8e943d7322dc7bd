//! `sextant dev --processes`, as users start it.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use sextant_common::error::{Error, Result};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::{Addresses, Running, must_run};
use crate::process;

const READY_WITHIN: Duration = Duration::from_secs(120);
/// A flush ends when the SSTables are there, which may take a disk its time.
const FLUSH_DEADLINE_MS: &str = "120000";

/// What is used of the ready line.
#[derive(Deserialize)]
struct Ready {
    pnodes: Vec<PNode>,
    memtable: Vec<Process>,
    sstable: Vec<Process>,
}

#[derive(Deserialize)]
struct PNode {
    grpc: String,
    resp: String,
    pid: u32,
}

#[derive(Deserialize)]
struct Process {
    pid: u32,
}

pub async fn start(program: &Path, dir: &Path) -> Result<(String, Running)> {
    let version = process::run(program, &["--version"]).await?;
    let data = dir.join("data").display().to_string();
    let args = ["dev", "--processes", "--json", "--resp", "0", "--grpc", "0", "--http", "0", "--data", &data];
    let args = args.map(str::to_owned);
    let log = dir.join("dev.log");
    let (mut server, stdout) = process::start(program, &args, &log, true)?;
    let stdout = stdout.ok_or_else(|| Error::internal("no pipe"))?;
    let mut line = String::new();
    let mut reader = BufReader::new(stdout);
    let late = |_| Error::unavailable(format!("not ready within {READY_WITHIN:?}"));
    tokio::time::timeout(READY_WITHIN, reader.read_line(&mut line)).await.map_err(late)??;
    if line.is_empty() {
        // The pipe ends before the process does.
        server.ended_soon().await;
        must_run(&mut server, &log)?;
    }
    let ready = parse(&line)?;
    let grpc = ready.pnodes[0].grpc.clone();
    let mut pids = vec![server.pid];
    pids.extend(ready.pnodes.iter().map(|pnode| pnode.pid));
    pids.extend(ready.memtable.iter().chain(&ready.sstable).map(|process| process.pid));
    let addresses = Addresses::Resp(ready.pnodes.into_iter().map(|pnode| pnode.resp).collect());
    let admin = Some((program.to_owned(), grpc));
    Ok((version.trim().to_owned(), Running { started: vec![server], pids, addresses, admin }))
}

fn parse(line: &str) -> Result<Ready> {
    let ready: Ready = serde_json::from_str(line)
        .map_err(|e| Error::internal(format!("not a ready line: {e}: {}", line.trim())))?;
    if ready.pnodes.is_empty() { Err(Error::internal("a cluster without p-nodes")) } else { Ok(ready) }
}

/// All that is in memtables becomes SSTables.
pub async fn flush(program: &Path, address: &str) -> Result<()> {
    for what in ["freeze", "flush"] {
        let args = ["admin", what, "--server", address, "--deadline-ms", FLUSH_DEADLINE_MS];
        process::run(program, &args).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_is_understood() {
        let line = r#"{"ready":true,"pnodes":[{"id":1,"grpc":"g","admin":"a","resp":"r","http":"h","pid":7}],
            "memtable":[{"id":1,"addr":"m","http":"h","pid":8}],"sstable":[]}"#;
        let ready = parse(line).unwrap();
        assert_eq!((ready.pnodes[0].resp.as_str(), ready.memtable[0].pid), ("r", 8));
        assert!(parse("").is_err() && parse(r#"{"pnodes":[],"memtable":[],"sstable":[]}"#).is_err());
    }
}
