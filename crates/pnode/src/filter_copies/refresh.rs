//! A manifest out of turn: a table is gone, or a name is unknown.

use std::time::Duration;

use sextant_common::ids::{ManifestVersion, PartitionId};
use sextant_common::{Error, Result};
use sextant_proto::v1;

use super::copy::UpdateStatus;
use super::puller::pull_once;
use super::{whole, wire};
use crate::engine::Engine;
use crate::upstream::Deadline;

/// How long the leader may take.
const ANSWER_MAX: Duration = Duration::from_millis(500);

impl Engine {
    /// Asks the partition's leader for its manifest and installs it if it is newer than `seen`, the version that left
    /// something to be desired. Callers of one partition share the request: a manifest is committed state, and each reader
    /// consults anew afterwards.
    pub(crate) async fn refresh_manifest(
        &self,
        partition: PartitionId,
        seen: ManifestVersion,
        deadline: Deadline,
    ) -> Result<()> {
        let turn = self.refreshes[partition.0 as usize].acquire();
        let clock = &*self.env.clock;
        let _turn = deadline.limit(clock, ANSWER_MAX, async { Ok(turn.await) }).await?;
        if self.views.peek(partition).manifest.version > seen {
            return Ok(());
        }
        self.metrics.manifest_refreshes.inc();
        deadline.limit(clock, ANSWER_MAX, self.ask_for_manifest(partition)).await
    }

    async fn ask_for_manifest(&self, partition: PartitionId) -> Result<()> {
        let leader = self.leaders.get(partition).node;
        let node =
            leader.ok_or_else(|| Error::retry(format!("no leader of partition {partition} is known")))?;
        let position = {
            let view = self.views.peek(partition);
            view.copies.is_some().then(|| wire::position(partition, &view, &*self.env.clock))
        };
        if let Some(position) = position {
            // It acknowledges only what is in use. The lease and the bf-log entries of the answer are left to the pull
            // loop, whose positions they would get ahead of.
            let request = v1::PullRequest {
                holder: self.holder.clone(),
                pull: 1,
                positions: vec![position],
                no_wait: true,
                no_leases: false,
            };
            let mut client = self.memtable(node)?.lease.clone();
            let reply = pull_once(&mut client, request, ANSWER_MAX).await?;
            let update = reply.updates.into_iter().find(|u| u.partition == partition.0);
            let update = update.ok_or_else(|| Error::internal("a reply without the partition"))?;
            let status = wire::status(update.status)?;
            match status {
                UpdateStatus::NotLeader => {
                    self.memtable(node)?.news.not_leader(partition, update.leader.as_ref());
                    return Err(Error::retry("the leader has changed"));
                }
                UpdateStatus::NotReady => return Err(Error::retry("the leader is not ready")),
                UpdateStatus::Ok | UpdateStatus::Throttled => {
                    self.install_manifest_of(partition, update.manifest)?;
                    return Ok(());
                }
                UpdateStatus::NeedFilters => {}
            }
        }
        self.manifest_from_filters(partition).await
    }

    /// The manifest in the header of whole filters, which does not depend on any version of ours. (Creating a table changes
    /// no SSTable and may leave the version as it is.)
    pub(crate) async fn manifest_from_filters(&self, partition: PartitionId) -> Result<()> {
        let leader = self.leaders.get(partition).node;
        let node =
            leader.ok_or_else(|| Error::retry(format!("no leader of partition {partition} is known")))?;
        let (header, _chunks) = whole::open(self, node, partition).await?;
        match wire::status(header.status)? {
            UpdateStatus::Ok => self.install_manifest_of(partition, header.manifest),
            status => Err(Error::retry(format!("the server answered {status:?}"))),
        }
    }

    fn install_manifest_of(&self, partition: PartitionId, manifest: Option<v1::Manifest>) -> Result<()> {
        if let Some(manifest) = wire::manifest_of(partition, manifest)? {
            self.views.install_manifest(manifest);
        }
        Ok(())
    }
}
