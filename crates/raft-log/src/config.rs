//! What a log is opened with.

use std::path::PathBuf;

use sextant_common::ids::NodeId;
use sextant_common::{Error, Result};

use crate::format::identity::CLUSTER_BYTES_MAX;

/// Smallest and largest size of a segment: offsets have 32 bits, and entries may overshoot the size.
const SEGMENT_BYTES: std::ops::RangeInclusive<u64> = 16 << 10..=1 << 30;
/// More than a server has; keeps the device number small on disk.
const DEVICES_MAX: usize = 64;

#[derive(Clone, Debug)]
pub struct RaftLogConfig {
    /// One directory per log device; made if missing. The list belongs to the log: neither its order nor its length may
    /// change later.
    pub devices: Vec<PathBuf>,
    /// Size of a segment, 16 KiB to 1 GiB. The first ones of a new log are smaller.
    pub segment_bytes: u64,
    /// Name of the cluster, 1 to 64 bytes. A directory of another cluster is refused.
    pub cluster: String,
    /// Fingerprint of the cluster's configuration: noted in segment headers, not enforced.
    pub fingerprint: u64,
    /// This server. A directory of another one is refused.
    pub node: NodeId,
    /// Newest entries kept in memory, per partition, for replication.
    pub cache_bytes: u64,
}

impl RaftLogConfig {
    /// 64 MiB.
    pub const SEGMENT_BYTES_DEFAULT: u64 = 64 << 20;

    /// [`sextant_common::ErrorKind::Invalid`] with what is wrong.
    pub fn validate(&self) -> Result<()> {
        let count = self.devices.len();
        if count == 0 || count > DEVICES_MAX {
            return Err(Error::invalid(format!("log devices: {count} given, 1 to {DEVICES_MAX} needed")));
        }
        let mut sorted = self.devices.clone();
        sorted.sort();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid(format!("log device {} is given twice", pair[0].display())));
        }
        if !SEGMENT_BYTES.contains(&self.segment_bytes) {
            let what = format!("log segments of {} bytes: 16 KiB to 1 GiB allowed", self.segment_bytes);
            return Err(Error::invalid(what));
        }
        if self.cluster.is_empty() || self.cluster.len() > CLUSTER_BYTES_MAX {
            return Err(Error::invalid(format!("cluster name: 1 to {CLUSTER_BYTES_MAX} bytes")));
        }
        Ok(())
    }
}
