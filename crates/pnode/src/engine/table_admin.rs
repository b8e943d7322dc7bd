//! Tables by name: looked up in manifests, created in partition 0 (which allocates the id) and then everywhere else.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use sextant_common::ids::{DEFAULT_TABLE, DEFAULT_TABLE_NAME, ManifestVersion, PartitionId, TableId};
use sextant_common::limits::check_table_name;
use sextant_common::manifest::TableOptions;
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::env::error_of;
use sextant_proto::v1;

use super::Engine;
use crate::upstream::{Backoff, Deadline};
use crate::view::TableInfo;

/// The partition that allocates ids of tables.
const ALLOCATOR: PartitionId = PartitionId(0);
/// Partitions in which a table is created at once.
const CREATIONS_MAX: usize = 16;
/// How long a leader may take to answer: a write and some.
const ANSWER_MAX: Duration = Duration::from_secs(2);

impl Engine {
    /// The table of a name ("": the default table). An unknown name is looked for once in the newest manifest.
    pub(crate) async fn table(&self, name: &str, deadline: Deadline) -> Result<Arc<TableInfo>> {
        if let Some(table) = self.views.tables.get(name) {
            return Ok(table);
        }
        if !name.is_empty() {
            check_table_name(name)?;
        }
        self.check_running()?;
        let mut manifests = self.views.watch_manifests();
        let looked = deadline.limit(&*self.env.clock, Duration::MAX, async {
            // Right after the start there is nothing to look in yet.
            while !self.views.peek(ALLOCATOR).manifest_known && self.views.tables.get(name).is_none() {
                if tokio::time::timeout(Duration::from_millis(50), manifests.changed()).await.is_err() {
                    self.check_running()?;
                }
            }
            if self.views.tables.get(name).is_none() {
                let _turn = self.refreshes[ALLOCATOR.0 as usize].acquire().await;
                self.manifest_from_filters(ALLOCATOR).await?;
            }
            Ok(())
        });
        let looked = looked.await;
        if let Some(table) = self.views.tables.get(name) {
            return Ok(table);
        }
        looked?;
        if name.is_empty() || name == DEFAULT_TABLE_NAME {
            // It exists in every cluster, whether or not the manifest has come to name it.
            let options = TableOptions::default();
            return Ok(Arc::new(TableInfo { id: DEFAULT_TABLE, name: DEFAULT_TABLE_NAME.into(), options }));
        }
        Err(Error::new(ErrorKind::UnknownTable, format!("there is no table {name:?}")))
    }

    /// Creates a table in all partitions; idempotent. The id, and whether it is new.
    pub(crate) async fn create_table(
        &self,
        name: &str,
        options: TableOptions,
        deadline: Deadline,
    ) -> Result<(TableId, bool)> {
        check_table_name(name)?;
        let wanted = TableInfo { id: TableId(0), name: name.to_owned(), options };
        let (table, created) = self.ensure_table(ALLOCATOR, &wanted, deadline).await?;
        let others = self.views.partitions().filter(|p| *p != ALLOCATOR);
        futures::stream::iter(others.map(|partition| self.ensure_table(partition, &table, deadline)))
            .buffer_unordered(CREATIONS_MAX)
            .try_for_each(|_| async { Ok(()) })
            .await?;
        let id = table.id;
        self.views.tables.learn(table);
        Ok((id, created))
    }

    /// Completes the creation of a table that partition 0 knows and this one does not.
    pub(crate) async fn create_in_partition(
        &self,
        table: &TableInfo,
        partition: PartitionId,
        deadline: Deadline,
    ) -> Result<()> {
        if partition == ALLOCATOR {
            // What it does not know was dropped, or is known to us by an error.
            let seen = ManifestVersion(self.views.peek(partition).manifest.version.0);
            let _ = self.refresh_manifest(partition, seen, deadline).await;
            return Ok(());
        }
        self.ensure_table(partition, table, deadline).await.map(|_| ())
    }

    async fn ensure_table(
        &self,
        partition: PartitionId,
        table: &TableInfo,
        deadline: Deadline,
    ) -> Result<(TableInfo, bool)> {
        let request = v1::EnsureTableRequest {
            partition: partition.0,
            name: table.name.clone(),
            options: Some((&table.options).into()),
            id: table.id.0,
        };
        let mut backoff = Backoff::default();
        loop {
            let before = self.leaders.get(partition).node;
            let asked = self.ask_leader(partition, deadline, ANSWER_MAX, |peer| {
                let (mut admin, request) = (peer.admin.clone(), request.clone());
                async move { Ok(admin.ensure_table(request).await.map_err(error_of)?.into_inner()) }
            });
            let error = match asked.await {
                Ok((node, reply)) => match v1::WriteStatus::try_from(reply.status) {
                    Ok(v1::WriteStatus::WriteOk) => {
                        let options = reply.options.map(TableOptions::try_from).transpose()?;
                        let options = options.unwrap_or_else(|| table.options.clone());
                        return Ok((
                            TableInfo { id: TableId(reply.id), name: table.name.clone(), options },
                            reply.created,
                        ));
                    }
                    Ok(v1::WriteStatus::WriteNotLeader | v1::WriteStatus::WriteUnknownPartition) => {
                        self.memtable(node)?.news.not_leader(partition, reply.leader.as_ref());
                        Error::unavailable(format!("no leader of partition {partition} answers"))
                    }
                    Ok(v1::WriteStatus::WriteInvalid) => return Err(Error::invalid(reply.message)),
                    _ => Error::unavailable(format!("the table could not be created yet: {}", reply.message)),
                },
                Err(unanswered) => unanswered.into_error(),
            };
            self.check_running()?;
            if matches!(error.kind, ErrorKind::Invalid)
                || !self.wait_to_retry(partition, before, &mut backoff, deadline).await
            {
                return Err(error);
            }
        }
    }
}
