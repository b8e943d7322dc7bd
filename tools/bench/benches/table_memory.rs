//! Memory of an sstable server with thousands of tables, whose indexes and filters are more than its budget has room for: of
//! its process alone, on a real disk, with all kinds of work. `SEXTANT_TABLES`, `SEXTANT_MEMORY_BYTES`: other sizes.

#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use bytes::Bytes;
use futures::StreamExt;
use sextant_common::ids::{Epoch, LogPosition, NodeId, PartitionId, SstId};
use sextant_common::key::filter_hash;
use sextant_common::manifest::{Compression, TableOptions};
use sextant_environment::Env;
use sextant_environment::config::{ClusterConfig, LeaseConfig, Server};
use sextant_environment::env::{Party, cluster_channel};
use sextant_proto::MESSAGE_BYTES_MAX;
use sextant_proto::convert::sst_id_to_wire;
use sextant_proto::v1::sst_client::SstClient;
use sextant_proto::v1::{
    CompactRequest, GetBatch, GetRequest, IngestHeader, IngestRequest, ScanRecord, SstScanRequest,
};
use sextant_sstable_server::{SstServer, SstServerConfig};
use tonic::transport::Channel;

type Client = SstClient<Channel>;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const RECORDS: u64 = 10_000;
const VALUE_BYTES: usize = 100;

fn cluster() -> ClusterConfig {
    let server = |addr: &str| vec![Server::new(1, addr)];
    let (memtable, sstable) = (server("127.0.0.1:1"), server("127.0.0.1:2"));
    ClusterConfig { id: "bench".into(), partitions: 1, memtable, sstable, lease: LeaseConfig::default() }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
}

/// The server's process: until its standard input ends. What the allocator gives back is as in `sextant sstable`, unless the environment
/// says otherwise.
fn serve(dir: &str) {
    if std::env::var_os("MIMALLOC_ALLOW_THP").is_none() {
        sextant_environment::process::without_huge_pages();
    }
    runtime().block_on(async {
        let mut config = SstServerConfig::new(NodeId(1), cluster(), "127.0.0.1:0", dir);
        config.memory_bytes = Some(number("SEXTANT_MEMORY_BYTES", 256 << 20));
        let server = SstServer::start(Env::real(), config).await.unwrap();
        println!("{}", server.addr());
        let _ = std::io::stdin().read(&mut [0]);
        print!("{}", server.status_json());
        server.shutdown().await;
    });
}

struct Process {
    child: Child,
    addr: String,
    output: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn start(dir: &Path) -> Self {
        let delay = std::env::var("MIMALLOC_PURGE_DELAY").unwrap_or_else(|_| "10".into());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env("MIMALLOC_PURGE_DELAY", delay)
            .arg("serve")
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut output, mut addr) = (BufReader::new(child.stdout.take().unwrap()), String::new());
        output.read_line(&mut addr).unwrap();
        Self { child, addr: addr.trim().to_owned(), output }
    }

    /// Prints what it has in memory, and the most since the last time.
    fn report(&self, what: &str, count: u64, since: Instant) {
        let of = |file: &str| format!("/proc/{}/{file}", self.child.id());
        let status = std::fs::read_to_string(of("status")).unwrap();
        let mib = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
        };
        let seconds = since.elapsed().as_secs_f64();
        println!(
            "{what:<28} {count:>8} {seconds:>8.1} s {:>6} MiB now {:>6} MiB at most",
            mib("VmRSS:"),
            mib("VmHWM:")
        );
        std::fs::write(of("clear_refs"), "5").unwrap();
    }

    /// Stops it; prints what it says of its memory.
    fn stop(mut self) {
        drop(self.child.stdin.take());
        let mut status = String::new();
        self.output.read_to_string(&mut status).unwrap();
        let memory = status.split_once("\"memory\"").map_or("", |(_, rest)| rest);
        let memory: Vec<&str> = memory.split('}').next().unwrap().lines().map(str::trim).collect();
        println!("  {}", memory.concat());
        self.child.wait().unwrap();
    }

    fn client(&self) -> Client {
        let channel = cluster_channel(&Env::real().net, &self.addr, &cluster(), Party::TOOL, None);
        SstClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }
}

fn id(counter: u64) -> Bytes {
    let (plan, epoch) = (LogPosition { term: 1, index: 1 }, Epoch { term: 1, incarnation: 1 });
    sst_id_to_wire(SstId { partition: PartitionId(0), plan, epoch, counter: counter as u32 })
}

fn key(i: u64) -> Bytes {
    Bytes::from(format!("user{i:012}"))
}

/// Half of it compresses.
fn value(i: u64) -> Bytes {
    let noise =
        (0..VALUE_BYTES as u64 / 16).flat_map(|j| filter_hash(&(i * 1000 + j).to_le_bytes()).to_le_bytes());
    let mut value: Vec<u8> = noise.collect();
    value.resize(VALUE_BYTES, b'.');
    value.into()
}

fn options() -> TableOptions {
    TableOptions { compression: Compression::Lz4, ..TableOptions::default() }
}

/// Every second key; all tables have the same ones.
async fn ingest(mut client: Client, table: u64) {
    let header = IngestHeader { id: id(table), table: 1, options: Some((&options()).into()), origin: None };
    let record = move |i: u64| ScanRecord {
        key: key(2 * i),
        value: value(table * RECORDS + i),
        seq: table * RECORDS + i + 1,
        ..ScanRecord::default()
    };
    let pieces = (0..RECORDS / 1000).map(move |piece| IngestRequest {
        header: (piece == 0).then(|| header.clone()),
        records: (piece * 1000..(piece + 1) * 1000).map(record).collect(),
        ..IngestRequest::default()
    });
    let last = IngestRequest { finish: true, record_count: RECORDS, ..IngestRequest::default() };
    client.ingest(futures::stream::iter(pieces.chain([last]))).await.unwrap();
}

async fn ingest_all(client: &Client, tables: std::ops::Range<u64>) {
    futures::stream::iter(tables).for_each_concurrent(3, |table| ingest(client.clone(), table)).await;
}

/// 64 keys, each of another table.
async fn get(mut client: Client, tables: u64, batch: u64) {
    let get = |i: u64| {
        let hash = filter_hash(&(batch * 64 + i).to_le_bytes());
        GetRequest { key: key((hash >> 32) % (2 * RECORDS)), candidates: vec![id(hash % tables)] }
    };
    let batch = GetBatch { batch, gets: (0..64).map(get).collect(), ..GetBatch::default() };
    let replies = client.get(batch).await.unwrap().into_inner().replies;
    assert!(replies.iter().all(|reply| reply.message.is_empty()), "{replies:?}");
}

async fn get_all(client: &Client, tables: u64, batches: std::ops::Range<u64>) {
    futures::stream::iter(batches).for_each_concurrent(16, |batch| get(client.clone(), tables, batch)).await;
}

/// Of a hundred tables.
async fn scan(mut client: Client, tables: u64, page: u64) {
    let tables = (0..100).map(|i| id((page * 37 + i * 11) % tables)).collect();
    let start = key(filter_hash(&page.to_le_bytes()) % (2 * RECORDS - 1000));
    let request = SstScanRequest { tables, start, limit_records: 200, ..SstScanRequest::default() };
    // (Not named newest first: what matters is what is read.)
    let _ = client.scan(request).await;
}

async fn scan_all(client: &Client, tables: u64, pages: std::ops::Range<u64>) {
    futures::stream::iter(pages).for_each_concurrent(8, |page| scan(client.clone(), tables, page)).await;
}

/// Merges eight tables.
async fn compact(mut client: Client, first: u64, output: u64) {
    let request = CompactRequest {
        inputs: (first..first + 8).rev().map(id).collect(),
        output: id(output),
        table: 1,
        options: Some((&options()).into()),
        ..CompactRequest::default()
    };
    client.compact(request).await.unwrap();
}

async fn compact_all(client: &Client, outputs: std::ops::Range<u64>) {
    let first = outputs.start;
    let each = |output| compact(client.clone(), (output - first) * 8, output);
    futures::stream::iter(outputs).for_each_concurrent(2, each).await;
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|what| what == "serve") {
        return serve(&arguments[2]);
    }
    let tables = number("SEXTANT_TABLES", 2400);
    let dir = tempfile::tempdir_in(std::env::var("SEXTANT_DIR").unwrap_or_else(|_| ".".into())).unwrap();
    let runtime = runtime();
    let server = Process::start(dir.path());
    runtime.block_on(async {
        let (client, since) = (server.client(), Instant::now());
        ingest_all(&client, 0..tables).await;
        server.report("tables ingested", tables, since);
    });
    server.stop();
    let since = Instant::now();
    let server = Process::start(dir.path());
    server.report("tables opened", tables, since);
    runtime.block_on(async {
        let (client, since) = (server.client(), Instant::now());
        get_all(&client, tables, 0..4000).await;
        server.report("gets", 4000 * 64, since);
        let since = Instant::now();
        scan_all(&client, tables, 0..200).await;
        server.report("pages of 100 tables", 200, since);
        let since = Instant::now();
        compact_all(&client, tables..tables + 20).await;
        server.report("compactions of 8 tables", 20, since);
        let since = Instant::now();
        let (gets, scans) = (get_all(&client, tables, 4000..8000), scan_all(&client, tables, 200..400));
        let outputs = tables + 20..tables + 40;
        let compactions = compact_all(&client, outputs);
        let ingests = ingest_all(&client, tables + 40..tables + 240);
        futures::join!(gets, scans, compactions, ingests);
        server.report("all of that, and ingests", 200, since);
    });
    server.stop();
    let _ = std::io::stdout().flush();
}
