//! One compaction, on its own thread.

use std::sync::Arc;
use std::time::Duration;

use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::expiry::is_expired;
use sextant_common::manifest::SstMeta;
use sextant_environment::vfs::IoKind;
use tokio::sync::oneshot;

use super::plan::Plan;
use crate::catalog::Replace;
use crate::store::Store;
use crate::table::{Caching, Content, Direction, KeyRange, Merge, TableIter, TableWriter};

/// Between slices a compaction looks whether it is still wanted, and waits if it is too fast. 4 MiB take some ten milliseconds.
const SLICE_BYTES: u64 = 4 * 1024 * 1024;

pub(super) struct Job {
    store: Arc<Store>,
    plan: Plan,
}

impl Job {
    pub(super) fn new(store: Arc<Store>, plan: Plan) -> Self {
        Self { store, plan }
    }

    pub(super) async fn run(
        self,
        answer: &mut oneshot::Sender<Result<Option<SstMeta>>>,
    ) -> Result<Option<SstMeta>> {
        let Plan { inputs, output, table, options, drop_tombstones, expired_by, origin } = self.plan;
        let keeps_proof = origin.is_some();
        let store = self.store;
        let open = |table| TableIter::new(table, KeyRange::all(), Direction::Forward, Caching::Bypass);
        let iters = inputs.into_iter().map(open).collect::<Result<Vec<_>>>()?;
        let mut merge = Merge::new(iters, Direction::Forward);
        let temporary = store.catalog.create_temporary(output)?;
        let mut writer =
            TableWriter::new(temporary.file().clone(), output, table, options).with_origin(origin);
        let started_ns = store.env.clock.holder_ns();
        let (mut slice_end, mut merged_bytes) = (SLICE_BYTES, 0);
        // The newest of the tombstones that were dropped.
        let mut dropped: Option<(Vec<u8>, u64)> = None;
        while !merge.is_at_end() {
            // What has expired hides older records first, like any tombstone.
            let has_expired = is_expired(merge.marks().expires_at(), expired_by);
            let is_tombstone = merge.is_tombstone() || has_expired;
            if drop_tombstones && is_tombstone {
                if keeps_proof
                    && writer.records() == 0
                    && dropped.as_ref().is_none_or(|(_, seq)| *seq < merge.seq())
                {
                    dropped = Some((merge.key().to_vec(), merge.seq()));
                }
            } else {
                let value = (!is_tombstone).then(|| merge.value_ref());
                writer.add(merge.key(), merge.seq(), Content::new(value, merge.marks()))?;
            }
            merged_bytes += (merge.key().len() + merge.value_ref().len()) as u64;
            merge.advance()?;
            if merged_bytes >= slice_end {
                slice_end = merged_bytes + SLICE_BYTES;
                store.disk_delay(IoKind::Write).await;
                let wait = throttle(&store, started_ns, merge.disk_bytes());
                let mut shutdown = store.shutdown.clone();
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = answer.closed() => {}
                    () = shutdown.wait() => {}
                }
                if answer.is_closed() {
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        "nobody waits for this compaction any more",
                    ));
                }
                if store.shutdown.is_triggered() {
                    return Err(Error::new(ErrorKind::Stopping, "the server is stopping"));
                }
            }
        }
        if writer.records() == 0 {
            // One tombstone is kept: without a table that says so, nothing would show that the inputs are superseded, and one that
            // was forgotten on a server could bring deleted records back when a manifest is rebuilt.
            let Some((key, seq)) = dropped else { return Ok(None) };
            writer.add(&key, seq, Content::Tombstone)?;
        }
        store.disk_delay(IoKind::Sync).await;
        writer.finish()?;
        store.catalog.install(temporary, Replace::Refuse).map(Some)
    }
}

/// How long to wait so that having read so many bytes since the start is not too fast.
fn throttle(store: &Store, started_ns: u64, disk_bytes: u64) -> Duration {
    let due_ns = disk_bytes.saturating_mul(1_000_000_000).checked_div(store.config.compaction_bytes_per_s);
    Duration::from_nanos(due_ns.unwrap_or(0).saturating_sub(store.elapsed_ns(started_ns)))
}
