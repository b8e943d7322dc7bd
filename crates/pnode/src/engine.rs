//! The library: what an application embeds.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sextant_common::ids::TableId;
use sextant_common::manifest::TableOptions;
use sextant_common::{Env, Error, Result};

use crate::api::{BatchOp, ReadOptions, Record, ScanRange, ScanStream, WriteOptions, WriteOutcome};
use crate::config::EngineConfig;
use crate::metrics::PNodeMetrics;

/// A p-node inside an application. Cheap to clone.
#[derive(Clone)]
pub struct PNode {
    inner: Arc<Inner>,
}

struct Inner {
    metrics: PNodeMetrics,
}

impl PNode {
    pub async fn start(_env: Env, config: EngineConfig) -> Result<PNode> {
        config.validate()?;
        Ok(PNode { inner: Arc::new(Inner { metrics: PNodeMetrics::default() }) })
    }

    pub async fn ready(&self, _deadline: Duration) -> Result<()> {
        Err(unfinished())
    }

    pub fn try_get(&self, _table: &str, _key: &[u8]) -> Option<Result<Option<Record>>> {
        None
    }

    pub async fn get(&self, _table: &str, _key: &[u8], _options: ReadOptions) -> Result<Option<Record>> {
        Err(unfinished())
    }

    pub async fn multi_get(
        &self,
        _table: &str,
        _keys: &[Bytes],
        _options: ReadOptions,
    ) -> Result<Vec<Option<Record>>> {
        Err(unfinished())
    }

    pub async fn write(&self, _ops: Vec<BatchOp>, _options: WriteOptions) -> Result<WriteOutcome> {
        Err(unfinished())
    }

    pub fn scan(&self, _table: &str, _range: ScanRange) -> ScanStream {
        ScanStream::new(tokio::sync::mpsc::channel(1).1)
    }

    pub async fn create_table(&self, _name: &str, _options: TableOptions) -> Result<(TableId, bool)> {
        Err(unfinished())
    }

    pub async fn open_session(&self) -> Result<u64> {
        Err(unfinished())
    }

    pub fn metrics(&self) -> &PNodeMetrics {
        &self.inner.metrics
    }

    pub fn set_coalesce(&self, _on: bool) {}

    pub fn set_cache(&self, _on: bool) {}

    pub async fn shutdown(&self) {}
}

fn unfinished() -> Error {
    Error::internal("being written")
}
