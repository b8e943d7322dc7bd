//! What is measured: a cluster behind gRPC, behind RESP, or through a p-node inside the generator.

pub mod embedded;
pub mod grpc;
pub mod hash;
#[cfg(test)]
pub mod memory;
pub mod resp;

use std::future::Future;

use bytes::Bytes;
use sextant_common::error::{Error, Result};
use sextant_common::operation::ReadMode;

/// A way to reach a cluster.
pub trait Target: Send + Sync + 'static {
    type Thread: Thread;

    /// What thread `index` uses. Threads are spread evenly over what there is: connections, addresses, p-nodes.
    fn thread(&self, index: usize, mode: ReadMode) -> impl Future<Output = Result<Self::Thread>> + Send;

    /// How many p-nodes there are: thread i uses number i modulo this.
    fn p_nodes(&self) -> usize;

    /// Pages of metrics of p-nodes inside the generator.
    fn metrics(&self) -> Vec<String> {
        Vec::new()
    }
}

/// One closed-loop client: one operation at a time.
pub trait Thread: Send + 'static {
    fn read(&mut self, key: Bytes) -> impl Future<Output = Result<Option<Bytes>>> + Send;

    /// Writes the record whether it exists or not.
    fn put(&mut self, key: Bytes, value: Bytes) -> impl Future<Output = Result<()>> + Send;

    /// Writes the record if it does not exist. False: it does.
    fn insert(&mut self, key: Bytes, value: Bytes) -> impl Future<Output = Result<bool>> + Send;

    /// Up to `count` records from `start` on.
    fn scan(&mut self, start: Bytes, count: u32) -> impl Future<Output = Result<Vec<(Bytes, Bytes)>>> + Send;
}

/// A RESP server has no command for a range of keys, but one for a range of a sorted set.
pub(crate) fn no_scans() -> Error {
    Error::invalid(
        "workload e scans, and RESP has no command for it: use --layout hash, --grpc or --embedded",
    )
}
