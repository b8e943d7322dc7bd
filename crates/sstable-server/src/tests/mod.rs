//! The server over real sockets, on a disk in memory that can fail.

mod damage;
mod disk_faults;
mod filling;
mod jobs;
mod memory;
mod reads;
mod transfer;

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use sextant_common::error::Result;
use sextant_common::ids::{NodeId, SstId};
use sextant_common::manifest::SstMeta;
use sextant_environment::Env;
use sextant_environment::env::{Party, Whom, cluster_channel, error_of};
use sextant_environment::vfs::Vfs;
use sextant_proto::MESSAGE_BYTES_MAX;
use sextant_proto::convert::sst_id_to_wire;
use sextant_proto::v1::sst_client::SstClient;
use sextant_proto::v1::*;
use sextant_simulated::FaultyVfs;
use tonic::transport::Channel;

use crate::testing::{Model, cluster_config, options};
use crate::{SstServer, SstServerConfig};

type Client = SstClient<Channel>;

/// One server on its own disk.
struct Node {
    vfs: FaultyVfs,
    env: Env,
    config: SstServerConfig,
    server: Option<SstServer>,
    client: Client,
}

impl Node {
    async fn start() -> Node {
        Node::with(FaultyVfs::new(7), |_| {}).await
    }

    async fn with(vfs: FaultyVfs, adjust: impl FnOnce(&mut SstServerConfig)) -> Node {
        let mut config = SstServerConfig::new(NodeId(1), cluster_config(&["a:1"]), "127.0.0.1:0", "/data");
        config.scrub_interval_s = 0;
        adjust(&mut config);
        let env = Env { vfs: Arc::new(vfs.clone()), ..Env::real() };
        let server = SstServer::start(env.clone(), config.clone()).await.unwrap();
        let client = client(&env, &server.addr().to_string());
        Node { vfs, env, config, server: Some(server), client }
    }

    async fn restart(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown().await;
        }
        self.begin_again().await;
    }

    /// Power fails and comes back.
    async fn crash(&mut self) {
        drop(self.server.take());
        self.vfs.crash();
        self.begin_again().await;
    }

    async fn begin_again(&mut self) {
        let server = SstServer::start(self.env.clone(), self.config.clone()).await.unwrap();
        self.client = client(&self.env, &server.addr().to_string());
        self.server = Some(server);
    }

    fn addr(&self) -> String {
        self.server.as_ref().unwrap().addr().to_string()
    }

    async fn ingest(&mut self, id: SstId, model: &Model) -> Result<SstMeta> {
        send(&mut self.client, messages(id, model)).await
    }

    async fn get(&mut self, candidates: &[SstId], key: &[u8]) -> GetReply {
        let batch = GetBatch { batch: 3, gets: vec![get(candidates, key)], ..GetBatch::default() };
        let mut reply = self.client.get(batch).await.unwrap().into_inner();
        assert_eq!((reply.batch, reply.replies.len()), (3, 1));
        reply.replies.remove(0)
    }

    async fn inventory(&mut self) -> Vec<InventoryEntry> {
        let request = InventoryRequest { partition: 1, order: None, ..Default::default() };
        self.client.inventory(request).await.unwrap().into_inner().entries
    }

    /// Everything that the tables hold.
    async fn scan_all(&mut self, tables: &[SstId]) -> SstScanReply {
        let tables = tables.iter().map(|id| sst_id_to_wire(*id)).collect();
        let request = SstScanRequest { tables, ..SstScanRequest::default() };
        self.client.scan(request).await.unwrap().into_inner()
    }

    async fn assert_holds(&mut self, id: SstId, model: &Model) {
        let reply = self.scan_all(&[id]).await;
        assert_eq!(reply.status(), GetStatus::GetValue, "{}", reply.message);
        assert!(reply.complete);
        assert_eq!(to_model(reply.records), *model);
    }

    fn path(&self, id: SstId) -> PathBuf {
        self.config.data_dir.join(format!("{id}.sst"))
    }

    /// Files of what was deleted have none.
    fn tables_with_a_name(&self) -> usize {
        self.files().iter().filter(|name| name.ends_with(".sst")).count()
    }

    fn files(&self) -> Vec<String> {
        let paths = self.vfs.list(&self.config.data_dir).unwrap();
        let name = |p: PathBuf| p.file_name().unwrap().to_string_lossy().into_owned();
        paths.into_iter().map(name).filter(|n| !["IDENTITY", "LOCK", "FENCES"].contains(&&n[..])).collect()
    }
}

fn channel(env: &Env, addr: &str) -> Channel {
    // The cluster's name and number of partitions are all that counts.
    cluster_channel(&env.net, addr, &cluster_config(&[]), Party::TOOL, None)
}

fn client(env: &Env, addr: &str) -> Client {
    SstClient::new(channel(env, addr))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

fn get(candidates: &[SstId], key: &[u8]) -> GetRequest {
    let candidates = candidates.iter().map(|id| sst_id_to_wire(*id)).collect();
    GetRequest { candidates, key: Bytes::copy_from_slice(key) }
}

fn to_wire(model: &Model) -> Vec<ScanRecord> {
    let record = |(key, (value, seq, tombstone)): (&Vec<u8>, &(Vec<u8>, u64, bool))| ScanRecord {
        key: key.clone().into(),
        value: value.clone().into(),
        seq: *seq,
        tombstone: *tombstone,
        expires_at: 0,
    };
    model.iter().map(record).collect()
}

fn to_model(records: Vec<ScanRecord>) -> Model {
    records.into_iter().map(|r| (r.key.to_vec(), (r.value.to_vec(), r.seq, r.tombstone))).collect()
}

fn header(id: SstId) -> IngestRequest {
    let header = IngestHeader {
        id: sst_id_to_wire(id),
        table: 9,
        options: Some((&options(true)).into()),
        origin: None,
    };
    IngestRequest { header: Some(header), ..IngestRequest::default() }
}

fn messages(id: SstId, model: &Model) -> Vec<IngestRequest> {
    let mut messages = vec![header(id)];
    for records in to_wire(model).chunks(50) {
        messages.push(IngestRequest { records: records.to_vec(), ..IngestRequest::default() });
    }
    messages.push(IngestRequest {
        finish: true,
        record_count: model.len() as u64,
        ..IngestRequest::default()
    });
    messages
}

async fn send(client: &mut Client, messages: Vec<IngestRequest>) -> Result<SstMeta> {
    let reply = client.ingest(futures::stream::iter(messages)).await.map_err(error_of)?;
    reply.into_inner().meta.unwrap().try_into()
}

fn key(i: u64) -> Vec<u8> {
    format!("key{i:05}").into_bytes()
}

/// `count` records with every third a tombstone; seqs from `seq` on.
fn model(count: u64, seq: u64) -> Model {
    let record = |i: u64| {
        if i % 3 == 2 { (Vec::new(), seq + i, true) } else { (vec![i as u8; 200], seq + i, false) }
    };
    (0..count).map(|i| (key(i), record(i))).collect()
}

async fn http_get(env: &Env, addr: std::net::SocketAddr, path: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut connection = env.net.connect(addr.to_string(), Whom::Host).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    answer
}
