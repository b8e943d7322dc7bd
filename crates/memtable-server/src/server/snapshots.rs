//! Snapshots that a worker offers become the partition's newest.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::partition::snapshot::Snapshot;
use crate::raft::Raft;
use crate::raft::snapshot_store::SnapshotStore;

/// A snapshot that could not be stored is tried again after this time.
const SNAPSHOT_RETRY: Duration = Duration::from_secs(1);

/// Stores the snapshots that a worker offers, and tells Raft when the log may be purged. One that could not be stored (the
/// disk is full) is tried again: the log waits for it.
pub(super) async fn keep(
    store: SnapshotStore,
    mut offered: watch::Receiver<Option<Arc<Snapshot>>>,
    raft: Raft,
) {
    let mut failed = false;
    loop {
        let patience = if failed { SNAPSHOT_RETRY } else { Duration::MAX };
        if let Ok(Err(_)) = tokio::time::timeout(patience, offered.changed()).await {
            return;
        }
        let Some(snapshot) = offered.borrow_and_update().clone() else { continue };
        failed = false;
        match store.put(&snapshot).await {
            Ok(true) => {
                let _ = raft.trigger().snapshot().await;
            }
            Ok(false) => {}
            // The log keeps everything until a snapshot succeeds.
            Err(e) => {
                tracing::error!("cannot store a partition's snapshot: {e}");
                failed = true;
            }
        }
    }
}
