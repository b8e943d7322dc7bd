//! openraft's own conformance tests, over the real file system.

use std::io;
use std::sync::Arc;

use futures::{Stream, TryStreamExt};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{EntryPayload, OptionalSend, StorageError};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use sextant_common::ids::PartitionId;
use sextant_environment::Env;

use crate::{LogId, PartitionLog, RaftLog, StoredMembership, TypeConfig};

use super::support::Server;

type SnapshotMeta = openraft::alias::SnapshotMetaOf<TypeConfig>;
type Snapshot = openraft::alias::SnapshotOf<TypeConfig, ()>;

/// As little state machine as the suite needs.
#[derive(Clone, Default)]
struct Machine(Arc<Mutex<State>>);

#[derive(Clone, Default)]
struct State {
    applied: Option<LogId>,
    membership: StoredMembership,
    snapshot: Option<SnapshotMeta>,
}

impl RaftSnapshotBuilder<TypeConfig> for Machine {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let mut state = self.0.lock();
        let meta = SnapshotMeta { last_log_id: state.applied, last_membership: state.membership.clone() };
        state.snapshot = Some(meta.clone());
        Ok(Snapshot { meta, snapshot: () })
    }
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotData = ();
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let state = self.0.lock();
        Ok((state.applied, state.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some((entry, _)) = entries.try_next().await? {
            let mut state = self.0.lock();
            state.applied = Some(entry.log_id);
            if let EntryPayload::Membership(membership) = entry.payload {
                state.membership = StoredMembership::new(Some(entry.log_id), membership);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, _: ()) -> Result<(), io::Error> {
        let mut state = self.0.lock();
        state.applied = meta.last_log_id;
        state.membership = meta.last_membership.clone();
        state.snapshot = Some(meta.clone());
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        Ok(self.0.lock().snapshot.clone().map(|meta| Snapshot { meta, snapshot: () }))
    }
}

struct Builder {
    devices: usize,
}

impl StoreBuilder<TypeConfig, PartitionLog, Machine, (RaftLog, tempfile::TempDir)> for Builder {
    async fn build(
        &self,
    ) -> Result<((RaftLog, tempfile::TempDir), PartitionLog, Machine), StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Server::with_devices(0, self.devices).config;
        for path in &mut config.devices {
            *path = dir.path().join(path.strip_prefix("/").unwrap());
        }
        config.cache_bytes = 0;
        let log = RaftLog::open(Env::real(), config, &[], &mut Registry::default()).await.unwrap();
        let partition = log.partition(PartitionId(5));
        Ok(((log, dir), partition, Machine::default()))
    }
}

#[test]
fn the_suite_passes() {
    for devices in [1, 2] {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(Suite::test_all(Builder { devices })).unwrap();
    }
}
