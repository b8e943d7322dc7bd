//! openraft's state machine: passes on how far the log is committed, and hands out snapshots.

use std::io;

use futures::{Stream, StreamExt};
use openraft::OptionalSend;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use sextant_common::ids::PartitionId;
use sextant_raft_log::{LogId, StoredMembership, TypeConfig};
use tokio::sync::{mpsc, oneshot};

use super::snapshot_store::{Meta, SnapshotData, SnapshotStore};
use crate::partition::snapshot;
use crate::replica::Event;

type RaftSnapshot = openraft::alias::SnapshotOf<TypeConfig, SnapshotData>;

pub struct StateMachine {
    partition: PartitionId,
    events: mpsc::UnboundedSender<Event>,
    store: SnapshotStore,
    applied: Option<LogId>,
    membership: StoredMembership,
}

impl StateMachine {
    /// Starts from the newest stored snapshot: what comes after it is applied again, and recognised.
    pub fn new(partition: PartitionId, events: mpsc::UnboundedSender<Event>, store: SnapshotStore) -> Self {
        let (applied, membership) = match store.newest() {
            Some((meta, _)) => (meta.last_log_id, meta.last_membership),
            None => (None, StoredMembership::default()),
        };
        Self { partition, events, store, applied, membership }
    }
}

/// Hands out what the store holds: the worker decides when a snapshot is taken.
pub struct Builder(SnapshotStore);

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> Result<RaftSnapshot, io::Error> {
        let (meta, snapshot) = self.0.newest().ok_or_else(|| io::Error::other("nothing was flushed yet"))?;
        Ok(RaftSnapshot { meta, snapshot })
    }
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            if let openraft::EntryPayload::Membership(m) = &entry.payload {
                self.membership = StoredMembership::new(Some(entry.log_id), m.clone());
            }
            self.applied = Some(entry.log_id);
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        if let Some(applied) = &self.applied {
            let _ = self.events.send(Event::Committed(applied.index));
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, _force: bool) -> Option<Builder> {
        self.store.newest().map(|_| Builder(self.store.clone()))
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder(self.store.clone())
    }

    async fn install_snapshot(&mut self, meta: &Meta, snapshot: SnapshotData) -> Result<(), io::Error> {
        let decoded = snapshot::decode(&snapshot.0, self.partition).map_err(io::Error::other)?;
        self.store.put(&decoded).await.map_err(io::Error::other)?;
        let (done, installed) = oneshot::channel();
        let _ = self.events.send(Event::Install { snapshot: Box::new(decoded), done });
        installed.await.map_err(|_| io::Error::other("the worker is gone"))?.map_err(io::Error::other)?;
        self.applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<RaftSnapshot>, io::Error> {
        Ok(self.store.newest().map(|(meta, snapshot)| RaftSnapshot { meta, snapshot }))
    }
}
