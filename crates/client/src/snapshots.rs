//! Snapshots: what all partitions had, each at one position of its log, held until it is closed or not renewed.

use std::time::Duration;

use futures::future::BoxFuture;
use sextant_common::error::Result;
use sextant_common::expiry::Tick;
use sextant_common::ids::{PartitionId, Seq};
use sextant_proto::v1;

use crate::client::{Client, kv};
use crate::retry::{Repeat, timed};
use crate::scan::{ScanOptions, ScanStream};

/// A snapshot waits until all that is in memory is in SSTables: whatever the client's deadline, it may take this long.
const OPEN_DEADLINE: Duration = Duration::from_secs(600);

/// A snapshot that is held. Any client may scan and renew it by its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name.
    pub id: u64,
    /// Where it is, in each partition. The partitions' positions are not of one moment.
    pub partitions: Vec<SnapshotPartition>,
}

/// A position of a partition's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPartition {
    /// Which one.
    pub partition: PartitionId,
    /// The snapshot has all writes up to this one, and none after it.
    pub seq: Seq,
    /// What has expired by then is absent.
    pub tick: Tick,
}

impl From<v1::KvSnapshot> for Snapshot {
    fn from(snapshot: v1::KvSnapshot) -> Self {
        let partition = |p: v1::KvSnapshotPartition| SnapshotPartition {
            partition: PartitionId(p.partition),
            seq: Seq(p.seq),
            tick: Tick(p.tick),
        };
        let partitions = snapshot.partitions.into_iter().map(partition).collect();
        Self { id: snapshot.snapshot, partitions }
    }
}

impl Client {
    /// Opens a snapshot of all tables. What was acknowledged before is in it. It is held for `lease` (1 s to 10 min), and for as long again
    /// after each renewal, but no longer than the servers' `snapshot_age_max_ms`: as long as it is held it takes space.
    pub fn open_snapshot(&self, lease: Duration) -> BoxFuture<'_, Result<Snapshot>> {
        Box::pin(async move {
            let request = v1::KvOpenSnapshotRequest { lease_ms: lease.as_millis() as u64 };
            let deadline = self.deadline().max(OPEN_DEADLINE);
            // One long attempt: another one would be another snapshot.
            let patient = self.with_attempt_timeout(deadline);
            let reply = patient.call(Repeat::HarmlessIfThereIsRoom, deadline, async |channel, limit| {
                Ok(kv(channel).open_snapshot(timed(request, limit)).await?.into_inner())
            });
            Ok(reply.await?.into())
        })
    }

    /// It is held for its lease from now on. [`ErrorKind::Invalid`](crate::ErrorKind::Invalid): it has ended.
    pub fn renew_snapshot(&self, id: u64) -> BoxFuture<'_, Result<Snapshot>> {
        Box::pin(async move {
            let request = v1::KvSnapshotRequest { snapshot: id };
            let reply = self.call(Repeat::Harmless, self.deadline(), async |channel, limit| {
                Ok(kv(channel).renew_snapshot(timed(request, limit)).await?.into_inner())
            });
            Ok(reply.await?.into())
        })
    }

    /// What it has held may go.
    pub fn close_snapshot(&self, id: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let request = v1::KvSnapshotRequest { snapshot: id };
            self.call(Repeat::Harmless, self.deadline(), async |channel, limit| {
                Ok(kv(channel).close_snapshot(timed(request, limit)).await?.into_inner())
            })
            .await?;
            Ok(())
        })
    }

    /// As [`Client::scan`], of what the snapshot has.
    pub fn scan_snapshot(&self, id: u64, table: &str, options: ScanOptions) -> ScanStream {
        self.scan_of(Some(id), table, options)
    }
}
