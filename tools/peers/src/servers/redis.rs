//! `redis-server`, alone.

use std::path::Path;
use std::time::Duration;

use sextant_common::error::{Error, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Addresses, Running, must_run};
use crate::process;

const READY_WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

pub async fn start(dir: &Path, durability: &[&str]) -> Result<(String, Running)> {
    let program = Path::new("redis-server");
    let version = process::run(program, &["--version"]).await?;
    let port = process::free_ports(1)?[0].to_string();
    let mut args: Vec<String> = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--dir"]
        .iter()
        .map(|arg| (*arg).to_owned())
        .collect();
    args.push(dir.display().to_string());
    args.extend(durability.iter().map(|arg| (*arg).to_owned()));
    let log = dir.join("redis.log");
    let (mut server, _) = process::start(program, &args, &log, false)?;
    let address = format!("127.0.0.1:{port}");
    let ready = async {
        while !answers(&address).await {
            must_run(&mut server, &log)?;
            tokio::time::sleep(POLL).await;
        }
        Ok::<(), Error>(())
    };
    let late = |_| Error::unavailable(format!("no answer within {READY_WITHIN:?}"));
    tokio::time::timeout(READY_WITHIN, ready).await.map_err(late)??;
    let pids = vec![server.pid];
    let running =
        Running { started: vec![server], pids, addresses: Addresses::Resp(vec![address]), admin: None };
    Ok((version_of(&version), running))
}

async fn answers(address: &str) -> bool {
    let ping = async {
        let mut socket = TcpStream::connect(address).await.ok()?;
        socket.write_all(b"PING\r\n").await.ok()?;
        let mut reply = [0; 7];
        socket.read_exact(&mut reply).await.ok()?;
        (&reply == b"+PONG\r\n").then_some(())
    };
    ping.await.is_some()
}

/// `Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 ...`
fn version_of(said: &str) -> String {
    let version = said.split_ascii_whitespace().find_map(|word| word.strip_prefix("v="));
    format!("Redis {}", version.unwrap_or("of an unknown version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found() {
        assert_eq!(version_of("Redis server v=7.0.15 sha=0:0 malloc=x"), "Redis 7.0.15");
        assert_eq!(version_of("?"), "Redis of an unknown version");
    }
}
