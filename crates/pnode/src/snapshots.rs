//! Snapshots that clients have opened: a cut of each partition, held by the partition's leader.
//!
//! Owns what this p-node knows of them: a complete cut never changes, so any p-node may learn it, and need not ask again. Does not own how
//! long one is held. Invariant: what a snapshot names is looked for in its own SSTables only; when they are gone it is an error.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use parking_lot::Mutex;
use sextant_common::cut::Cut;
use sextant_common::ids::{DEFAULT_TABLE_NAME, ManifestVersion, PartitionId};
use sextant_common::manifest::{Manifest, TableInfo, TableManifest};
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::env::error_of;
use sextant_proto::v1;
use sextant_proto::v1::cut_request::Action;

use crate::core::Core;
use crate::upstream::{Backoff, Deadline};
use crate::view::{ManifestView, PartitionView};

/// Snapshots that are remembered: more have to be asked for again.
const REMEMBERED_MAX: usize = 32;
/// A cut waits for the flush of all memtables of its partition.
const OPEN_MAX: Duration = Duration::from_secs(600);

/// What is asked of a cut.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    pub action: Action,
    /// With [`Action::Open`]; 0: as long as usual.
    pub lease_ms: u64,
    /// With [`Action::Open`]: by an administrator.
    pub privileged: bool,
}

impl From<Action> for Wish {
    fn from(action: Action) -> Self {
        Self { action, lease_ms: 0, privileged: false }
    }
}

pub(crate) struct Snapshot {
    pub id: u64,
    /// By partition.
    pub cuts: Vec<OfPartition>,
}

/// A cut, and what routing makes of it.
pub(crate) struct OfPartition {
    pub cut: Cut,
    pub view: PartitionView,
}

impl OfPartition {
    fn new(partition: PartitionId, cut: Cut) -> Self {
        let table = |table: &sextant_common::cut::CutTable| TableManifest {
            table: table.table,
            name: table.name.clone(),
            options: table.options.clone(),
            flushed_generation: table.generation,
            last_flush_version: ManifestVersion(0),
            persisted: Default::default(),
            ssts: table.ssts.clone().unwrap_or_default(),
        };
        let tables = cut.tables.iter().map(table).collect();
        let manifest = Manifest { tables, ..Manifest::empty(partition) };
        let manifest = Arc::new(ManifestView::of_whole(manifest, None, &ManifestView::empty()));
        Self { cut, view: PartitionView { manifest, manifest_known: true, ..PartitionView::empty() } }
    }
}

impl Snapshot {
    pub fn of(&self, partition: PartitionId) -> Result<&OfPartition> {
        let of = self.cuts.get(partition.0 as usize);
        of.ok_or_else(|| Error::invalid(format!("there is no partition {partition}")))
    }

    /// The table that had this name then ("": the default table), if any of its partitions had it.
    pub fn table(&self, name: &str) -> Option<TableInfo> {
        let name = if name.is_empty() { DEFAULT_TABLE_NAME } else { name };
        // (A partition may have an older one still: that was dropped.)
        let named = self.cuts.iter().flat_map(|of| of.view.manifest.infos()).filter(|info| info.name == name);
        named.max_by_key(|info| info.id)
    }
}

pub(crate) struct Snapshots {
    core: Arc<Core>,
    /// Newest last.
    known: Mutex<VecDeque<Arc<Snapshot>>>,
}

impl Snapshots {
    pub fn new(core: &Arc<Core>) -> Self {
        Self { core: core.clone(), known: Mutex::default() }
    }

    /// Begins a cut in every partition. None is left over if one cannot be had. `privileged`: for an administrator.
    pub async fn open(
        &self,
        lease_ms: u64,
        privileged: bool,
        limit: Option<Duration>,
    ) -> Result<Arc<Snapshot>> {
        let lease = sextant_common::cut::check_lease(lease_ms)?;
        let id = self.core.env.rng.nonzero_u64();
        let deadline = Deadline::after(&*self.core.env.clock, limit.unwrap_or(OPEN_MAX).min(OPEN_MAX));
        let wish = Wish { action: Action::Open, lease_ms, privileged };
        let opened = tokio::select! {
            opened = self.everywhere(id, wish, deadline) => opened,
            () = self.renew_meanwhile(id, lease) => unreachable!("it renews for ever"),
        };
        match opened {
            Ok(snapshot) => Ok(snapshot),
            Err(e) => {
                let _ = self.close(id).await;
                Err(e)
            }
        }
    }

    /// A partition may be done long before another one: its cut is held until all are.
    async fn renew_meanwhile(&self, id: u64, lease: Duration) {
        let pause = lease / 3;
        loop {
            tokio::time::sleep(pause).await;
            let deadline = Deadline::after(&*self.core.env.clock, pause);
            let partitions = self.core.views.partitions();
            // (Those that have none yet say so.)
            join_all(partitions.map(|partition| self.ask(partition, id, Action::Renew.into(), deadline)))
                .await;
        }
    }

    pub async fn renew(&self, id: u64) -> Result<Arc<Snapshot>> {
        self.everywhere(id, Action::Renew.into(), self.core.deadline(None)).await
    }

    pub async fn close(&self, id: u64) -> Result<()> {
        self.known.lock().retain(|snapshot| snapshot.id != id);
        let deadline = self.core.deadline(None);
        let partitions = self.core.views.partitions();
        let ends = partitions.map(|partition| self.ask(partition, id, Action::End.into(), deadline));
        join_all(ends).await.into_iter().try_for_each(|ended| ended.map(drop))
    }

    /// One that somebody has opened, here or elsewhere.
    pub async fn find(&self, id: u64) -> Result<Arc<Snapshot>> {
        let known = self.known.lock().iter().find(|snapshot| snapshot.id == id).cloned();
        match known {
            Some(snapshot) => Ok(snapshot),
            None => self.everywhere(id, Action::Look.into(), self.core.deadline(None)).await,
        }
    }

    /// Whether its leader still holds it; if so, what went wrong is something else.
    pub async fn why(&self, id: u64, partition: PartitionId, error: Error) -> Error {
        match self.ask(partition, id, Action::Look.into(), self.core.deadline(None)).await {
            Err(ended) if ended.kind == ErrorKind::Invalid => {
                self.known.lock().retain(|snapshot| snapshot.id != id);
                ended
            }
            _ => error,
        }
    }

    async fn everywhere(&self, id: u64, wish: Wish, deadline: Deadline) -> Result<Arc<Snapshot>> {
        let partitions = self.core.views.partitions();
        let cuts = partitions.map(|partition| async move {
            let cut = self.ask(partition, id, wish, deadline).await?;
            let cut = cut.filter(Cut::is_complete);
            let cut = cut.ok_or_else(|| Error::unavailable("the snapshot is not complete yet"))?;
            Ok::<_, Error>(OfPartition::new(partition, cut))
        });
        let snapshot = Arc::new(Snapshot { id, cuts: try_join_all(cuts).await? });
        let mut known = self.known.lock();
        known.retain(|other| other.id != id);
        known.push_back(snapshot.clone());
        while known.len() > REMEMBERED_MAX {
            known.pop_front();
        }
        Ok(snapshot)
    }

    /// Asks the partition's leader, whoever that is by then.
    pub async fn ask(
        &self,
        partition: PartitionId,
        id: u64,
        wish: Wish,
        deadline: Deadline,
    ) -> Result<Option<Cut>> {
        let mut backoff = Backoff::default();
        let Wish { action, lease_ms, privileged } = wish;
        let request =
            v1::CutRequest { partition: partition.0, id, action: action.into(), lease_ms, privileged };
        loop {
            self.core.check_running()?;
            let leader = self.core.leaders.get(partition).node;
            let asked = self.core.ask_leader(partition, deadline, OPEN_MAX, |peer| {
                let mut admin = peer.admin.clone();
                async move { Ok(admin.cut(request).await) }
            });
            let error = match asked.await {
                Ok((_, Ok(reply))) => return reply.into_inner().cut.map(TryInto::try_into).transpose(),
                Ok((node, Err(status))) => {
                    let error = error_of(status);
                    if error.kind == ErrorKind::NotLeader {
                        self.core.leaders.suspect(partition, node);
                    }
                    error
                }
                Err(unanswered) => unanswered.into_error(),
            };
            let is_final =
                matches!(error.kind, ErrorKind::Invalid | ErrorKind::Overloaded | ErrorKind::Denied);
            if is_final || !self.core.wait_to_retry(partition, leader, &mut backoff, deadline).await {
                return Err(error);
            }
        }
    }
}
