//! The copies as the parts above know them: what keeps them current runs, and a manifest is to be had out of turn (a table is
//! gone, or a name is unknown).

use std::sync::Arc;
use std::time::Duration;

use sextant_common::ids::{ManifestVersion, PartitionId};
use sextant_common::{Error, Result};
use sextant_environment::shutdown::Shutdown;
use tokio::sync::Semaphore;

use super::copy::UpdateStatus;
use super::puller::run_pull_loops;
use super::sst_filters::run_sst_filter_fetcher;
use super::whole::{WholeFetches, fetch_manifest};
use super::wire::{Position, Pull, pull_once};
use crate::core::Core;
use crate::upstream::Deadline;

/// How long the leader may take.
const ANSWER_MAX: Duration = Duration::from_millis(500);

pub(crate) struct Copies {
    core: Arc<Core>,
    /// One permit a partition: refreshes of its manifest take turns.
    turns: Vec<Semaphore>,
}

impl Copies {
    /// Starts pulling, until shutdown. Must be called within a tokio runtime.
    pub fn start(core: &Arc<Core>, shutdown: Shutdown) -> Self {
        let whole = Arc::new(WholeFetches::new(core));
        core.env.dedicated("pnode-pulls", run_pull_loops(core.clone(), whole, shutdown.clone()));
        tokio::spawn(run_sst_filter_fetcher(core.clone(), shutdown));
        let turns = core.views.partitions().map(|_| Semaphore::new(1)).collect();
        Self { core: core.clone(), turns }
    }

    /// Asks the partition's leader for its manifest and installs it if it is newer than `seen`, the version that left
    /// something to be desired. Callers of one partition share the request: a manifest is committed state, and each reader
    /// consults anew afterwards.
    pub async fn refresh_manifest(
        &self,
        partition: PartitionId,
        seen: ManifestVersion,
        deadline: Deadline,
    ) -> Result<()> {
        let turn = self.turns[partition.0 as usize].acquire();
        let clock = &*self.core.env.clock;
        let _turn = deadline.limit(clock, ANSWER_MAX, async { Ok(turn.await) }).await?;
        if self.core.views.peek(partition).manifest.version > seen {
            return Ok(());
        }
        self.core.metrics.manifest_refreshes.inc();
        deadline.limit(clock, ANSWER_MAX, self.ask_for_manifest(partition)).await
    }

    async fn ask_for_manifest(&self, partition: PartitionId) -> Result<()> {
        let leader = self.core.leaders.get(partition).node;
        let node =
            leader.ok_or_else(|| Error::retry(format!("no leader of partition {partition} is known")))?;
        let position = {
            let view = self.core.views.peek(partition);
            view.copies.is_some().then(|| Position::in_use(partition, &view, &*self.core.env.clock))
        };
        if let Some(position) = position {
            // It acknowledges only what is in use. The lease and the bf-log entries of the answer are left to the pull
            // loop, whose positions they would get ahead of.
            let pull = Pull {
                holder: self.core.holder.clone(),
                number: 1,
                positions: vec![position],
                no_wait: true,
                no_leases: false,
            };
            let peer = self.core.memtable(node)?;
            let reply = pull_once(&mut peer.lease.clone(), pull, ANSWER_MAX).await?;
            let of_partition = reply.partitions.into_iter().find(|p| p.partition == partition);
            let of_partition =
                of_partition.ok_or_else(|| Error::internal("a reply without the partition"))?;
            let update = of_partition.update?;
            match update.status {
                UpdateStatus::NotLeader => {
                    peer.news.not_leader(partition, of_partition.hint);
                    return Err(Error::retry("the leader has changed"));
                }
                UpdateStatus::NotReady => return Err(Error::retry("the leader is not ready")),
                UpdateStatus::Ok | UpdateStatus::Throttled => {
                    let told = update.told.as_ref();
                    if !self.core.views.install_manifest(partition, update.manifest, told) {
                        return Ok(());
                    }
                }
                UpdateStatus::NeedFilters => {}
            }
        }
        self.whole_manifest(partition).await
    }

    /// Whatever manifest the leader has, when it is this caller's turn.
    pub async fn newest_manifest(&self, partition: PartitionId) -> Result<()> {
        let _turn = self.turns[partition.0 as usize].acquire().await;
        self.whole_manifest(partition).await
    }

    /// The whole manifest, which does not depend on any version of ours.
    async fn whole_manifest(&self, partition: PartitionId) -> Result<()> {
        let leader = self.core.leaders.get(partition).node;
        let node =
            leader.ok_or_else(|| Error::retry(format!("no leader of partition {partition} is known")))?;
        fetch_manifest(&self.core, node, partition).await
    }
}
