//! A partition replica from what is on the disk: its snapshot, and the log after it.

use std::sync::Arc;

use sextant_common::error::{Error, Result};
use sextant_common::ids::{LogPosition, PartitionId};
use sextant_environment::Env;
use sextant_raft_log::{RaftLog, position_of};
use tokio::sync::{Notify, mpsc};

use crate::command::Configuration;
use crate::config::MemtableServerConfig;
use crate::incarnation::Incarnation;
use crate::partition::Partition;
use crate::publication::Position;
use crate::raft::snapshot_store::SnapshotStore;
use crate::replica::{Event, QueuedWrite, ReplicaState, body_of};

/// One partition replica, recovered but not yet running.
pub(super) struct Recovered {
    pub shared: Arc<ReplicaState>,
    pub events: mpsc::UnboundedSender<Event>,
    pub event_queue: mpsc::UnboundedReceiver<Event>,
    pub writes: mpsc::Sender<QueuedWrite>,
    pub write_queue: mpsc::Receiver<QueuedWrite>,
    pub partition: Partition,
    pub recovered: Vec<(LogPosition, Position)>,
    pub of_snapshot: Position,
    pub store: SnapshotStore,
}

/// Restores a partition from its snapshot and fills its memtables from the log after it.
pub(super) fn recover(
    env: &Env,
    config: &MemtableServerConfig,
    id: PartitionId,
    log: &RaftLog,
    founding: &Configuration,
    news: &Arc<Notify>,
    incarnation: &Arc<Incarnation>,
) -> Result<Recovered> {
    let (store, snapshot) = SnapshotStore::open(env, &config.data_dir, id)?;
    let mut partition = snapshot.as_ref().map_or_else(|| Partition::new(id), |s| Partition::restore(id, s));
    partition.format_max = config.tuning.format_max;
    if let Some((configuration, _)) = partition.configuration() {
        partition.check_format(configuration)?;
    }
    let partition_log = log.partition(id);
    if let Some(purged) = partition_log.purged()
        && purged.index >= partition.next_index()
    {
        return Err(Error::corrupt(format!(
            "partition {id}: the log begins after entry {}, but the snapshot reaches only to {}: {} is missing or old",
            purged.index,
            partition.next_index().saturating_sub(1),
            config.data_dir.join(format!("partition-{id}.snapshot")).display(),
        )));
    }
    if snapshot.is_some() && partition_log.purged().is_none() && partition_log.vote().is_none() {
        return Err(Error::corrupt(format!(
            "partition {id}: there is a snapshot in {}, but the log knows neither a vote nor a purge: it is not the log that belongs to \
             it",
            config.data_dir.display(),
        )));
    }
    if let Some(covered) = store.newest().and_then(|(meta, _)| meta.last_log_id) {
        let removed = partition_log.follow_snapshot(covered)?;
        if removed > 0 {
            tracing::warn!(
                partition = %id, removed,
                "the log lacks the last entry of a leader's snapshot: it begins after it now. What was removed is in the snapshot, \
                 or was never committed"
            );
        }
    }
    let of_snapshot = partition.position();
    let mut recovered = Vec::new();
    let next = partition.next_index();
    partition_log.replay(next, &mut |entry| {
        let at = position_of(&entry.log_id);
        partition.ingest(at, &body_of(&entry), false)?;
        recovered.push((at, partition.position()));
        Ok(())
    })?;
    let (events, event_queue) = mpsc::unbounded_channel();
    let (writes, write_queue) = mpsc::channel(config.tuning.queue_requests);
    let kept = config.tuning.bf_log_serials;
    let shared = Arc::new(ReplicaState::new(env, config.id.0, &partition, founding, incarnation, news, kept));
    Ok(Recovered {
        shared,
        events,
        event_queue,
        writes,
        write_queue,
        partition,
        recovered,
        of_snapshot,
        store,
    })
}
