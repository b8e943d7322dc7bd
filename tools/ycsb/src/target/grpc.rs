//! Through p-nodes over gRPC.

use bytes::Bytes;
use sextant_client::{Client, ClientOptions, ScanOptions};
use sextant_common::error::Result;
use sextant_common::operation::ReadMode;
use sextant_environment::Env;

use super::{Target, Thread};

/// One client for each p-node, with the others behind it for failover.
pub struct Grpc {
    clients: Vec<Client>,
    table: String,
}

impl Grpc {
    /// `addrs`: the p-nodes.
    pub async fn new(env: &Env, addrs: &[String], table: &str, options: ClientOptions) -> Result<Self> {
        let mut clients = Vec::new();
        for first in 0..addrs.len() {
            let mut order = addrs.to_vec();
            order.rotate_left(first);
            clients.push(Client::connect_in(env.clone(), order, options.clone()).await?);
        }
        Ok(Self { clients, table: table.to_owned() })
    }
}

impl Target for Grpc {
    type Thread = GrpcThread;

    async fn thread(&self, index: usize, mode: ReadMode) -> Result<GrpcThread> {
        let client = self.clients[index % self.clients.len()].with_mode(mode);
        Ok(GrpcThread { client, table: self.table.clone() })
    }

    fn p_nodes(&self) -> usize {
        self.clients.len()
    }
}

pub struct GrpcThread {
    client: Client,
    table: String,
}

impl Thread for GrpcThread {
    async fn read(&mut self, key: Bytes) -> Result<Option<Bytes>> {
        Ok(self.client.get(&self.table, key).await?.map(|record| record.value))
    }

    async fn put(&mut self, key: Bytes, value: Bytes) -> Result<()> {
        self.client.put(&self.table, key, value).await.map(drop)
    }

    async fn insert(&mut self, key: Bytes, value: Bytes) -> Result<bool> {
        Ok(self.client.insert(&self.table, key, value).await?.applied)
    }

    async fn scan(&mut self, start: Bytes, count: u32) -> Result<Vec<(Bytes, Bytes)>> {
        let options = ScanOptions { start, limit: u64::from(count), ..ScanOptions::default() };
        let records = self.client.scan(&self.table, options).collect_records().await?;
        Ok(records.into_iter().map(|r| (r.key, r.value)).collect())
    }
}
