//! Tables by name: looked up in manifests, created in partition 0 (which allocates the id) and then everywhere else.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use sextant_common::ids::{DEFAULT_TABLE, DEFAULT_TABLE_NAME, ManifestVersion, PartitionId, TableId};
use sextant_common::limits::check_table_name;
use sextant_common::manifest::{TableInfo, TableOptions};
use sextant_common::operation::WriteStatus;
use sextant_common::{Error, ErrorKind, Result};

use crate::core::Core;
use crate::filter_copies::Copies;
use crate::upstream::{Backoff, Deadline};

/// The partition that allocates ids of tables.
const ALLOCATOR: PartitionId = PartitionId(0);
/// Partitions in which a table is created at once.
const CREATIONS_MAX: usize = 16;
/// How long a leader may take to answer: a write and some.
const ANSWER_MAX: Duration = Duration::from_secs(2);

pub(crate) struct Tables {
    core: Arc<Core>,
    copies: Arc<Copies>,
}

impl Tables {
    pub fn new(core: &Arc<Core>, copies: &Arc<Copies>) -> Self {
        Self { core: core.clone(), copies: copies.clone() }
    }

    /// The table of a name ("": the default table). An unknown name is looked for once in the newest manifest.
    pub async fn get(&self, name: &str, deadline: Deadline) -> Result<Arc<TableInfo>> {
        if let Some(table) = self.core.views.tables.get(name) {
            return Ok(table);
        }
        if !name.is_empty() {
            check_table_name(name)?;
        }
        self.core.check_running()?;
        let mut manifests = self.core.views.watch_manifests();
        let looked = deadline.limit(&*self.core.env.clock, Duration::MAX, async {
            // Right after the start there is nothing to look in yet.
            while !self.core.views.peek(ALLOCATOR).manifest_known
                && self.core.views.tables.get(name).is_none()
            {
                if tokio::time::timeout(Duration::from_millis(50), manifests.changed()).await.is_err() {
                    self.core.check_running()?;
                }
            }
            if self.core.views.tables.get(name).is_none() {
                self.copies.newest_manifest(ALLOCATOR).await?;
            }
            Ok(())
        });
        let looked = looked.await;
        if let Some(table) = self.core.views.tables.get(name) {
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

    /// Gets to know those that others have created.
    pub async fn look(&self) -> Result<()> {
        let deadline = self.core.deadline(None);
        let looked = async {
            let mut backoff = Backoff::default();
            loop {
                let before = self.core.leaders.get(ALLOCATOR).node;
                let Err(e) = self.copies.newest_manifest(ALLOCATOR).await else { return Ok(()) };
                self.core.check_running()?;
                if !self.core.wait_to_retry(ALLOCATOR, before, &mut backoff, deadline).await {
                    return Err(e);
                }
            }
        };
        deadline.limit(&*self.core.env.clock, Duration::MAX, looked).await
    }

    /// Creates a table in all partitions; idempotent. The id, and whether it is new.
    pub async fn create(
        &self,
        name: &str,
        options: TableOptions,
        deadline: Deadline,
    ) -> Result<(TableId, bool)> {
        check_table_name(name)?;
        let wanted = TableInfo { id: TableId(0), name: name.to_owned(), options };
        let (table, created) = self.ensure_table(ALLOCATOR, &wanted, deadline).await?;
        let others = self.core.views.partitions().filter(|p| *p != ALLOCATOR);
        futures::stream::iter(others.map(|partition| self.ensure_table(partition, &table, deadline)))
            .buffer_unordered(CREATIONS_MAX)
            .try_for_each(|_| async { Ok(()) })
            .await?;
        let id = table.id;
        self.core.views.tables.learn(table);
        Ok((id, created))
    }

    /// Completes the creation of a table that partition 0 knows and this one does not.
    pub async fn create_in_partition(
        &self,
        table: &TableInfo,
        partition: PartitionId,
        deadline: Deadline,
    ) -> Result<()> {
        if partition == ALLOCATOR {
            // What it does not know was dropped, or is known to us by an error.
            let seen = ManifestVersion(self.core.views.peek(partition).manifest.version.0);
            let _ = self.copies.refresh_manifest(partition, seen, deadline).await;
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
        let mut backoff = Backoff::default();
        loop {
            let before = self.core.leaders.get(partition).node;
            let asked = self
                .core
                .ask_leader(partition, deadline, ANSWER_MAX, |peer| peer.ensure_table(partition, table));
            let error = match asked.await {
                Ok((_, says)) => match says.status {
                    WriteStatus::Ok => {
                        let made = says.made;
                        let options = made.options.unwrap_or_else(|| table.options.clone());
                        return Ok((
                            TableInfo { id: made.id, name: table.name.clone(), options },
                            made.created,
                        ));
                    }
                    WriteStatus::NotLeader => {
                        Error::unavailable(format!("no leader of partition {partition} answers"))
                    }
                    WriteStatus::Invalid => return Err(Error::invalid(says.message)),
                    _ => Error::unavailable(format!("the table could not be created yet: {}", says.message)),
                },
                Err(unanswered) => unanswered.into_error(),
            };
            self.core.check_running()?;
            if matches!(error.kind, ErrorKind::Invalid)
                || !self.core.wait_to_retry(partition, before, &mut backoff, deadline).await
            {
                return Err(error);
            }
        }
    }
}
