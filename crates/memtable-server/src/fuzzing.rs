//! Doors for the fuzz targets: the decoders of messages and files. Not part of the interface.

mod raft_node;

use std::path::Path;

use sextant_common::error::Result;
use sextant_common::ids::PartitionId;
use sextant_common::operation::WriteRequest;
use sextant_environment::Env;
use sextant_proto::v1;

use crate::partition::snapshot::Snapshot;
use crate::raft::snapshot_store::SnapshotStore;

pub use raft_node::RaftNode;

pub use crate::raft::wire::{
    Address, append_from_wire, append_reply_from_wire, append_reply_to_wire, append_to_wire,
    stream_result_from_wire, stream_result_to_wire, vote_reply_from_wire, vote_reply_to_wire,
    vote_request_from_wire, vote_request_to_wire,
};

/// A client's write, and what it costs in bytes.
pub fn write_request(request: v1::WriteRequest) -> Result<(WriteRequest, usize)> {
    crate::service::rows::write_from_wire(request)
}

/// Reads a partition's snapshot file from a directory.
pub fn open_snapshot(env: &Env, dir: &Path, id: PartitionId) -> Result<Option<Snapshot>> {
    SnapshotStore::open(env, dir, id).map(|(_, snapshot)| snapshot)
}
