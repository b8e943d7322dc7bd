//! Tables, status and maintenance.

use std::time::Duration;

use sextant_common::error::{Error, Result};
use sextant_common::ids::{NodeId, PartitionId, TableId};
use sextant_common::limits;
use sextant_common::manifest::TableOptions;
use sextant_proto::v1;

use crate::client::{Client, admin, kv};
use crate::retry::{Repeat, timed};

/// A flush or a compaction moves gigabytes: it may take this long, whatever the client's deadline.
const MAINTENANCE_DEADLINE: Duration = Duration::from_secs(600);

/// A table as the cluster knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableInfo {
    pub id: TableId,
    pub name: String,
    pub options: TableOptions,
}

/// What became of a freeze, flush or compaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Maintenance {
    /// Partitions for which it was done.
    pub done: Vec<PartitionId>,
    /// One line for each partition for which it was not.
    pub errors: Vec<String>,
}

#[derive(Clone, Copy)]
enum Work {
    Freeze,
    Flush,
    Compact,
}

impl Client {
    /// Creates a table; its id and whether it is new. A table that exists with other options is an error.
    pub async fn create_table(&self, name: &str, options: &TableOptions) -> Result<(TableId, bool)> {
        limits::check_table_name(name)?;
        let request = v1::KvCreateTableRequest { name: name.to_owned(), options: Some(options.into()) };
        let reply = self
            .call(Repeat::Harmless, self.deadline(), async |channel, limit| {
                Ok(kv(channel).create_table(timed(request.clone(), limit)).await?.into_inner())
            })
            .await?;
        Ok((TableId(reply.id), reply.created))
    }

    pub async fn list_tables(&self) -> Result<Vec<TableInfo>> {
        let reply = self
            .call(Repeat::Harmless, self.deadline(), async |channel, limit| {
                Ok(kv(channel).list_tables(timed(v1::KvListTablesRequest {}, limit)).await?.into_inner())
            })
            .await?;
        reply
            .tables
            .into_iter()
            .map(|t| {
                Ok(TableInfo {
                    id: TableId(t.id),
                    name: t.name,
                    options: t.options.unwrap_or_default().try_into()?,
                })
            })
            .collect()
    }

    /// The state of the cluster as the p-node sees it: a JSON document for people and tools.
    pub async fn status(&self) -> Result<String> {
        let reply = self
            .call(Repeat::Harmless, self.deadline(), async |channel, limit| {
                Ok(admin(channel).status(timed(v1::StatusRequest {}, limit)).await?.into_inner())
            })
            .await?;
        Ok(reply.json)
    }

    /// Ends the active memtables (of one table, or of all) in all partitions.
    pub async fn freeze(&self, table: Option<&str>) -> Result<Maintenance> {
        self.maintain(Work::Freeze, table).await
    }

    /// Makes what is in memory durable as SSTables; returns when it is.
    pub async fn flush(&self, table: Option<&str>) -> Result<Maintenance> {
        self.maintain(Work::Flush, table).await
    }

    /// Merges the SSTables (of one table, or of all) in all partitions; returns when it is done.
    pub async fn compact(&self, table: Option<&str>) -> Result<Maintenance> {
        self.maintain(Work::Compact, table).await
    }

    /// Moves the leadership of a partition to a memtable server; who leads now, as a rule that one. Writes and memtable reads
    /// of the partition wait meanwhile, for about one leader lease. `Unavailable` if the server does not catch up with the log
    /// or nobody was elected in time.
    pub async fn transfer(&self, partition: PartitionId, to: NodeId) -> Result<NodeId> {
        let request = v1::TransferRequest { partition: partition.0, to: to.0 };
        let patient = self.with_attempt_timeout(self.deadline());
        let reply = patient
            .call(Repeat::Harmless, self.deadline(), async |channel, limit| {
                Ok(admin(channel).transfer(timed(request, limit)).await?.into_inner())
            })
            .await?;
        Ok(NodeId(reply.leader))
    }

    async fn maintain(&self, work: Work, table: Option<&str>) -> Result<Maintenance> {
        if let Some(name) = table {
            limits::check_table_name(name)?;
        }
        let request =
            v1::MaintenanceRequest { table: table.unwrap_or_default().to_owned(), partitions: Vec::new() };
        // One long attempt and not several short ones: each would start the work again.
        let deadline = self.deadline().max(MAINTENANCE_DEADLINE);
        let patient = self.with_attempt_timeout(deadline);
        let reply = patient
            .call(Repeat::Harmless, deadline, async |channel, limit| {
                let request = timed(request.clone(), limit);
                let mut admin = admin(channel);
                Ok(match work {
                    Work::Freeze => admin.freeze(request).await,
                    Work::Flush => admin.flush(request).await,
                    Work::Compact => admin.compact(request).await,
                }?
                .into_inner())
            })
            .await?;
        if reply.done.is_empty() && reply.errors.is_empty() {
            return Err(Error::internal("the answer names no partition"));
        }
        Ok(Maintenance { done: reply.done.into_iter().map(PartitionId).collect(), errors: reply.errors })
    }
}
