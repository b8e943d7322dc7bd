//! The front end over sockets.

mod bounds;
mod clients;
mod databases;
mod gated;
mod golden;
mod limits;
mod memory;
mod objects;
mod order;
mod real_client;
mod remembered;
mod repeats;
mod rights;
mod rows;
mod scans;
mod several;
mod together;
mod transactions;
mod users;
mod waiting;

use std::net::SocketAddr;
use std::time::Duration;

use prometheus_client::registry::Registry;
use sextant_environment::Env;
use sextant_resp::{Patience, RespConfig, RespMetrics, RespServer, Store};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Far longer than anything here takes: only a hanging test meets it.
const DEADLINE: Duration = Duration::from_secs(120);

fn config() -> RespConfig {
    RespConfig { listen: "127.0.0.1:0".into(), ..RespConfig::default() }
}

/// With commands that wait for others longer than any machine takes.
fn patient() -> RespConfig {
    let long = DEADLINE;
    let patience = Patience { let_pass: long, last_turn: long, in_line: long, attempts: long, reply: long };
    RespConfig { patience, ..config() }
}

async fn start<S: Store>(store: S, config: RespConfig) -> RespServer {
    let metrics = RespMetrics::register(&mut Registry::default());
    RespServer::start(Env::real(), config, store, metrics).await.expect("the server starts")
}

/// A client that sees bytes.
struct Raw(TcpStream);

impl Raw {
    async fn connect(addr: SocketAddr) -> Self {
        Self(TcpStream::connect(addr).await.expect("the server accepts"))
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.expect("the server reads");
    }

    /// Exactly these bytes come next.
    async fn expect(&mut self, expected: &[u8]) {
        let mut got = vec![0; expected.len()];
        let mut filled = 0;
        while filled < expected.len() {
            let read = tokio::time::timeout(DEADLINE, self.0.read(&mut got[filled..])).await;
            let read =
                read.unwrap_or_else(|_| panic!("only {:?} came", String::from_utf8_lossy(&got[..filled])));
            let read = read.expect("the connection is open");
            if read == 0 {
                break;
            }
            filled += read;
        }
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        assert_eq!(text(&got[..filled]), text(expected));
    }

    /// These bytes come, after others. Nothing is read beyond them.
    async fn expect_up_to(&mut self, last: &[u8]) {
        self.until(last).await;
    }

    /// What comes up to these bytes, with them.
    async fn until(&mut self, last: &[u8]) -> Vec<u8> {
        let mut got = Vec::new();
        while !got.ends_with(last) {
            let mut byte = [0];
            let read = tokio::time::timeout(DEADLINE, self.0.read_exact(&mut byte)).await;
            read.unwrap_or_else(|_| panic!("only {:?} came", got.escape_ascii().to_string()))
                .expect("an answer");
            got.push(byte[0]);
        }
        got
    }

    async fn ask(&mut self, request: &[u8], reply: &[u8]) {
        self.send(request).await;
        self.expect(reply).await;
    }

    /// The server closes, and says nothing more.
    async fn expect_end(&mut self) {
        let mut rest = Vec::new();
        let end = tokio::time::timeout(DEADLINE, self.0.read_to_end(&mut rest)).await;
        end.expect("the server closes").expect("in order");
        assert!(rest.is_empty(), "{:?}", rest.escape_ascii().to_string());
    }
}
