//! Through p-nodes inside the generator: no hop between the load and the node that routes it.

use std::time::Duration;

use bytes::Bytes;
use prometheus_client::registry::Registry;
use sextant_common::error::{Error, Result};
use sextant_common::operation::ReadMode;
use sextant_environment::Env;
use sextant_environment::config::ClusterConfig;
use sextant_pnode::{LibraryConfig, Operation, PNode, ReadOptions, ScanRange, WriteOptions, WriteOutcome};

use super::{Target, Thread};

/// How long a p-node may take to find the leaders.
const READY_WITHIN: Duration = Duration::from_secs(60);

pub struct Embedded {
    pnodes: Vec<PNode>,
    table: String,
    deadline: Duration,
}

impl Embedded {
    /// Starts `count` p-nodes in the cluster; returns when all can route.
    pub async fn start(
        env: &Env,
        cluster: &ClusterConfig,
        count: usize,
        cache_bytes: u64,
        coalesce: bool,
        table: &str,
        deadline: Duration,
    ) -> Result<Self> {
        let mut pnodes = Vec::new();
        for _ in 0..count {
            let mut config = LibraryConfig::new(cluster.clone());
            config.cache_bytes = cache_bytes;
            config.coalesce = coalesce;
            config.default_deadline = deadline;
            pnodes.push(PNode::start(env.clone(), config).await?);
        }
        for pnode in &pnodes {
            pnode.ready(READY_WITHIN).await?;
        }
        Ok(Self { pnodes, table: table.to_owned(), deadline })
    }

    /// Gives the leases back.
    pub async fn shutdown(self) {
        for pnode in self.pnodes {
            pnode.shutdown().await;
        }
    }
}

impl Target for Embedded {
    type Thread = EmbeddedThread;

    async fn thread(&self, index: usize, mode: ReadMode) -> Result<EmbeddedThread> {
        Ok(EmbeddedThread {
            pnode: self.pnodes[index % self.pnodes.len()].clone(),
            table: self.table.clone(),
            read: ReadOptions { mode, deadline: Some(self.deadline) },
            write: WriteOptions { deadline: Some(self.deadline), ..WriteOptions::default() },
        })
    }

    fn p_nodes(&self) -> usize {
        self.pnodes.len()
    }

    fn metrics(&self) -> Vec<String> {
        let page = |pnode: &PNode| {
            let mut registry = Registry::default();
            pnode.metrics().register(&mut registry);
            let mut text = String::new();
            // Writing to a string cannot fail.
            let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
            text
        };
        self.pnodes.iter().map(page).collect()
    }
}

pub struct EmbeddedThread {
    pnode: PNode,
    table: String,
    read: ReadOptions,
    write: WriteOptions,
}

impl EmbeddedThread {
    async fn write(&self, op: Operation) -> Result<WriteOutcome> {
        self.pnode.write(vec![op], self.write).await
    }
}

impl Thread for EmbeddedThread {
    async fn read(&mut self, key: Bytes) -> Result<Option<Bytes>> {
        Ok(self.pnode.get(&self.table, &key, self.read).await?.map(|record| record.value))
    }

    async fn put(&mut self, key: Bytes, value: Bytes) -> Result<()> {
        self.write(Operation::put(&self.table, key, value)).await.map(drop)
    }

    async fn insert(&mut self, key: Bytes, value: Bytes) -> Result<bool> {
        Ok(self.write(Operation::insert(&self.table, key, value)).await?.applied)
    }

    async fn scan(&mut self, start: Bytes, count: u32) -> Result<Vec<(Bytes, Bytes)>> {
        let range = ScanRange { start, limit: u64::from(count), page_records: count, ..ScanRange::default() };
        let mut pages = self.pnode.scan(&self.table, range);
        let mut records = Vec::new();
        loop {
            let page = tokio::time::timeout(self.write.deadline.unwrap_or(READY_WITHIN), pages.next_page());
            match page.await.map_err(|_| Error::unavailable("no page of the scan in time"))? {
                Some(page) => records.extend(page?.records.into_iter().map(|(key, r)| (key, r.value))),
                None => return Ok(records),
            }
        }
    }
}
