//! The storms themselves, and what became of their requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures::StreamExt;
use sextant_client::{Client, ClientOptions, ScanOptions};
use sextant_common::error::{Error, Result};
use sextant_environment::Env;
use sextant_environment::env::{Connection, Whom};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

/// The largest value there may be.
const LARGE_BYTES: usize = 8 * 1024 * 1024;
/// Clients that each write one of them at the same moment.
const LARGE_WRITERS: usize = 100;
/// Clients that each send so many small writes without waiting for an answer.
const PIPELINES: usize = 300;
const PIPELINED: usize = 1000;
const SMALL_BYTES: usize = 100;
/// Clients that each read all records.
const SCANNERS: usize = 32;
/// Clients that each ask for a large value and do not read it, and for how long they do not.
const BULK_READERS: usize = 500;
const UNREAD: Duration = Duration::from_secs(12);
/// A client that has no answer after this has none.
const PATIENCE: Duration = Duration::from_secs(180);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storm {
    LargeSets,
    Pipelines,
    BulkReads,
    Scans,
}

/// How many requests ended in which way.
pub type Outcomes = BTreeMap<String, usize>;

impl Storm {
    pub const ALL: [Storm; 4] = [Storm::LargeSets, Storm::Pipelines, Storm::BulkReads, Storm::Scans];

    pub fn name(self) -> &'static str {
        match self {
            Storm::LargeSets => "large-sets",
            Storm::Pipelines => "pipelines",
            Storm::BulkReads => "bulk-reads",
            Storm::Scans => "scans",
        }
    }

    pub fn describe(self) -> String {
        match self {
            Storm::LargeSets => format!("{LARGE_WRITERS} clients SET 8 MiB each at once"),
            Storm::Pipelines => {
                format!("{PIPELINES} clients send {PIPELINED} pipelined SETs of {SMALL_BYTES} B each")
            }
            Storm::BulkReads => {
                format!("{BULK_READERS} clients GET 8 MiB each and read nothing for {} s", UNREAD.as_secs())
            }
            Storm::Scans => format!("{SCANNERS} clients scan all records at once"),
        }
    }
}

/// What a storm needs to find: the bulk readers large values in SSTables.
pub async fn prepare(env: &Env, storm: Storm, resp: &str, grpc: &[String]) -> Result<()> {
    if storm != Storm::BulkReads {
        return Ok(());
    }
    let value = Bytes::from(vec![b'p'; LARGE_BYTES]);
    let mut client = Resp::connect(env, resp).await?;
    for number in 0..16 {
        client.send(&set(format!("bulk:{number}").as_bytes(), &value)).await?;
        let answer = client.answer().await?;
        if answer != "OK" {
            return Err(Error::unavailable(format!("preparing {}: {answer}", storm.name())));
        }
    }
    let client = Client::connect_in(env.clone(), grpc.to_vec(), ClientOptions::default()).await?;
    client.freeze(None).await?;
    client.flush(None).await.map(|_| ())
}

/// Runs a storm until every client has its answer, or has waited long enough.
pub async fn unleash(env: &Env, storm: Storm, resp: &str, grpc: &[String]) -> Result<Outcomes> {
    let mut clients: JoinSet<Outcomes> = JoinSet::new();
    match storm {
        Storm::LargeSets => {
            let value = Bytes::from(vec![b'v'; LARGE_BYTES]);
            for number in 0..LARGE_WRITERS {
                let request = set(format!("large:{number}").as_bytes(), &value);
                let client = Resp::connect(env, resp).await?;
                clients.spawn(pipeline(client, Arc::new(vec![request]), 1));
            }
        }
        Storm::Pipelines => {
            let value = Bytes::from(vec![b'v'; SMALL_BYTES]);
            for number in 0..PIPELINES {
                let mut requests = BytesMut::new();
                for key in 0..PIPELINED {
                    requests.extend_from_slice(&set(format!("deep:{number}:{key}").as_bytes(), &value));
                }
                let client = Resp::connect(env, resp).await?;
                clients.spawn(pipeline(client, Arc::new(vec![requests.freeze()]), PIPELINED));
            }
        }
        Storm::BulkReads => {
            for number in 0..BULK_READERS {
                let request = command(&[b"GET", format!("bulk:{}", number % 16).as_bytes()]);
                let mut client = Resp::connect(env, resp).await?;
                clients.spawn(async move {
                    if let Err(e) = client.send(&request).await {
                        return one(format!("connection: {}", e.message));
                    }
                    tokio::time::sleep(UNREAD).await;
                    match tokio::time::timeout(PATIENCE, client.answer()).await {
                        Ok(Ok(answer)) => one(answer),
                        Ok(Err(e)) => one(format!("connection: {}", e.message)),
                        Err(_) => one("no answer".into()),
                    }
                });
            }
        }
        Storm::Scans => {
            for _ in 0..SCANNERS {
                let options = ClientOptions::default();
                let client = Client::connect_in(env.clone(), vec![grpc[0].clone()], options).await?;
                clients.spawn(async move {
                    let mut pages = client.scan("default", ScanOptions::default());
                    let reading = async {
                        while let Some(page) = pages.next().await {
                            if let Err(e) = page {
                                return one(format!("{:?}", e.kind));
                            }
                        }
                        one("OK".into())
                    };
                    tokio::time::timeout(PATIENCE, reading).await.unwrap_or_else(|_| one("no answer".into()))
                });
            }
        }
    }
    let mut outcomes = Outcomes::new();
    while let Some(ended) = clients.join_next().await {
        for (outcome, count) in ended.map_err(|e| Error::internal(e.to_string()))? {
            *outcomes.entry(outcome).or_default() += count;
        }
    }
    Ok(outcomes)
}

fn one(outcome: String) -> Outcomes {
    [(outcome, 1)].into()
}

/// Sends everything without waiting, and then reads the answers that it is due.
async fn pipeline(client: Resp, requests: Arc<Vec<Bytes>>, answers: usize) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let Resp { io, mut input } = client;
    let (mut reader, mut writer) = tokio::io::split(io);
    let sending = async {
        for request in requests.iter() {
            if writer.write_all(request).await.is_err() {
                return;
            }
        }
    };
    let receiving = async {
        for done in 0..answers {
            match tokio::time::timeout(PATIENCE, answer(&mut reader, &mut input)).await {
                Ok(Ok(answer)) => *outcomes.entry(answer).or_default() += 1,
                Ok(Err(_)) => {
                    *outcomes.entry("connection lost".into()).or_default() += answers - done;
                    return;
                }
                Err(_) => {
                    *outcomes.entry("no answer".into()).or_default() += answers - done;
                    return;
                }
            }
        }
    };
    tokio::join!(sending, receiving);
    outcomes
}

/// A connection that speaks RESP, as little as is needed.
pub struct Resp {
    io: Connection,
    input: BytesMut,
}

impl Resp {
    pub async fn connect(env: &Env, addr: &str) -> Result<Self> {
        Ok(Self { io: env.net.connect(addr.to_owned(), Whom::Host).await?, input: BytesMut::new() })
    }

    pub async fn send(&mut self, request: &[u8]) -> Result<()> {
        Ok(self.io.write_all(request).await?)
    }

    pub async fn answer(&mut self) -> Result<String> {
        answer(&mut self.io, &mut self.input).await
    }
}

/// The next answer: "OK", "value", or the first word of an error and, of an unknown outcome, its reason.
async fn answer(io: &mut (impl AsyncReadExt + Unpin), input: &mut BytesMut) -> Result<String> {
    let line = loop {
        if let Some(end) = input.windows(2).position(|w| w == b"\r\n") {
            let line = input.split_to(end);
            input.advance(2);
            break line;
        }
        more(io, input).await?;
    };
    let text = String::from_utf8_lossy(&line[1..]).into_owned();
    match line.first() {
        Some(b'+') => Ok(text),
        Some(b'$') if text == "-1" => Ok("nil".into()),
        Some(b'$') => {
            let mut left: usize = text.parse().map_err(|_| Error::invalid(format!("a length: {text}")))?;
            left += 2;
            while left > 0 {
                if input.is_empty() {
                    more(io, input).await?;
                }
                let read = left.min(input.len());
                input.advance(read);
                left -= read;
            }
            Ok("value".into())
        }
        Some(b'-') => Ok(text.split(' ').next().unwrap_or_default().to_owned()),
        _ => Err(Error::invalid("not RESP")),
    }
}

async fn more(io: &mut (impl AsyncReadExt + Unpin), input: &mut BytesMut) -> Result<()> {
    input.reserve(64 * 1024);
    match io.read_buf(input).await? {
        0 => Err(Error::unavailable("closed by the server")),
        _ => Ok(()),
    }
}

pub fn command(words: &[&[u8]]) -> Bytes {
    let mut out = Vec::new();
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out.into()
}

pub fn set(key: &[u8], value: &[u8]) -> Bytes {
    command(&[b"SET", key, value])
}
