//! A server that speaks just enough HTTP/2 to answer calls as no server of ours does.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use sextant_environment::Env;
use sextant_environment::env::{Connection, Door};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What it does with each call.
#[derive(Clone, Copy, Debug)]
pub enum Manner {
    /// Resets it, as if too much had been asked.
    Resets,
    /// Says something when the call was given up, and nothing before.
    Late,
}

/// Where it listens, and how many connections have come.
pub struct RawServer {
    pub addr: String,
    pub connections: Arc<AtomicUsize>,
}

const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;

const CANCEL: [u8; 4] = 8u32.to_be_bytes();
const ENHANCE_YOUR_CALM: [u8; 4] = 11u32.to_be_bytes();

pub async fn serve(env: &Env, manner: Manner) -> RawServer {
    let mut listener = env.net.bind("127.0.0.1:0".into(), Door::Grpc).await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let connections = Arc::<AtomicUsize>::default();
    let arrived = connections.clone();
    tokio::spawn(async move {
        while let Ok(connection) = listener.accept().await {
            arrived.fetch_add(1, Relaxed);
            tokio::spawn(answer(connection, manner));
        }
    });
    RawServer { addr, connections }
}

/// Until the client goes.
async fn answer(mut connection: Connection, manner: Manner) -> io::Result<()> {
    connection.read_exact(&mut [0; PREFACE_BYTES]).await?;
    connection.write_all(&frame(SETTINGS, [0; 4], &[])).await?;
    loop {
        let mut head = [0; HEAD_BYTES];
        connection.read_exact(&mut head).await?;
        let [a, b, c, kind, _, stream @ ..] = head;
        let mut body = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        connection.read_exact(&mut body).await?;
        let answer = match (manner, kind) {
            (Manner::Resets, HEADERS) => frame(RST_STREAM, stream, &ENHANCE_YOUR_CALM),
            (Manner::Late, RST_STREAM) if body == CANCEL => frame(DATA, stream, &[0]),
            _ => continue,
        };
        connection.write_all(&answer).await?;
    }
}

fn frame(kind: u8, stream: [u8; 4], body: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = (body.len() as u32).to_be_bytes();
    [&length[..], &[kind, 0][..], &stream[..], body].concat()
}
