//! Tables, status and maintenance.

use std::time::Duration;

use futures::future::BoxFuture;
use sextant_common::configuration::{ConfigurationChange, PartitionFormat};
use sextant_common::error::{Error, Result};
use sextant_common::ids::{NodeId, PartitionId, TableId};
use sextant_common::limits;
use sextant_common::manifest::{OptionsChange, TableInfo, TableOptions};
use sextant_common::recovery::{RecoveredPartition, RecoveryOrder};
use sextant_proto::v1;

use crate::client::{Client, kv};
use crate::retry::{Repeat, timed};

/// A flush or a compaction moves gigabytes: it may take this long, whatever the client's deadline.
const MAINTENANCE_DEADLINE: Duration = Duration::from_secs(600);

/// Partitions wait for leases to run out, and flush, whatever the client's deadline.
const CHANGE_DEADLINE: Duration = Duration::from_secs(120);

/// A shorter lease takes effect when the longer ones are over.
const CONFIGURE_DEADLINE: Duration = Duration::from_secs(60);

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
    pub fn create_table<'a>(
        &'a self,
        name: &'a str,
        options: &'a TableOptions,
    ) -> BoxFuture<'a, Result<(TableId, bool)>> {
        Box::pin(async move {
            limits::check_table_name(name)?;
            let request = v1::KvCreateTableRequest { name: name.to_owned(), options: Some(options.into()) };
            let reply = self
                .call(Repeat::Harmless, self.deadline(), async |channel, limit| {
                    Ok(kv(channel).create_table(timed(request.clone(), limit)).await?.into_inner())
                })
                .await?;
            Ok((TableId(reply.id), reply.created))
        })
    }

    /// Drops a table with all its records; whether there was one. Its name is free then. However often it is tried, no other table goes
    /// than the one that has the name when this is called.
    pub fn drop_table<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            limits::check_table_name(name)?;
            let there = self.list_tables().await?.into_iter().find(|table| table.name == name);
            let id = there.map_or(TableId(0), |table| table.id);
            let request = v1::KvDropTableRequest { name: name.to_owned(), id: Some(id.0) };
            self.with_attempt_timeout(CHANGE_DEADLINE)
                .call(Repeat::Harmless, CHANGE_DEADLINE, async |channel, limit| {
                    Ok(kv(channel).drop_table(timed(request.clone(), limit)).await?.into_inner())
                })
                .await?;
            Ok(id.0 > 0)
        })
    }

    /// Changes options of a table that is in use; all of them, as they are then.
    pub fn alter_table<'a>(
        &'a self,
        name: &'a str,
        change: &'a OptionsChange,
    ) -> BoxFuture<'a, Result<TableOptions>> {
        Box::pin(async move {
            let request = v1::KvAlterTableRequest::of(name, change);
            let reply = self
                .with_attempt_timeout(CHANGE_DEADLINE)
                .call(Repeat::Harmless, CHANGE_DEADLINE, async |channel, limit| {
                    Ok(kv(channel).alter_table(timed(request.clone(), limit)).await?.into_inner())
                })
                .await?;
            reply.options.unwrap_or_default().try_into()
        })
    }

    /// All tables, with their options.
    pub fn list_tables<'a>(&'a self) -> BoxFuture<'a, Result<Vec<TableInfo>>> {
        Box::pin(async move {
            let reply = self
                .call(Repeat::Harmless, self.deadline(), async |channel, limit| {
                    Ok(kv(channel).list_tables(timed(v1::KvListTablesRequest {}, limit)).await?.into_inner())
                })
                .await?;
            reply.tables.into_iter().map(TableInfo::try_from).collect()
        })
    }

    /// The state of the cluster as the p-node sees it: a JSON document for people and tools.
    pub fn status<'a>(&'a self) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            let reply = self
                .administer(self.deadline(), async |mut admin, limit| {
                    Ok(admin.status(timed(v1::StatusRequest {}, limit)).await?.into_inner())
                })
                .await?;
            Ok(reply.json)
        })
    }

    /// Ends the active memtables (of one table, or of all) in all partitions.
    pub fn freeze<'a>(&'a self, table: Option<&'a str>) -> BoxFuture<'a, Result<Maintenance>> {
        Box::pin(async move { self.maintain(Work::Freeze, table).await })
    }

    /// Makes what is in memory durable as SSTables; returns when it is.
    pub fn flush<'a>(&'a self, table: Option<&'a str>) -> BoxFuture<'a, Result<Maintenance>> {
        Box::pin(async move { self.maintain(Work::Flush, table).await })
    }

    /// Compacts the SSTables (of one table, or of all) in all partitions; returns when it is done.
    pub fn compact<'a>(&'a self, table: Option<&'a str>) -> BoxFuture<'a, Result<Maintenance>> {
        Box::pin(async move { self.maintain(Work::Compact, table).await })
    }

    /// Changes the replicated configuration of all partitions; returns when it is in effect. What is None stays as it
    /// is. `memory_bytes`: for each partition, on every replica.
    pub fn configure<'a>(&'a self, change: &'a ConfigurationChange) -> BoxFuture<'a, Result<Maintenance>> {
        Box::pin(async move {
            let request = v1::ConfigureRequest::from(change);
            let deadline = self.deadline().max(CONFIGURE_DEADLINE);
            let patient = self.with_attempt_timeout(deadline);
            let reply = patient
                .administer(deadline, async |mut admin, limit| {
                    Ok(admin.configure(timed(request.clone(), limit)).await?.into_inner())
                })
                .await?;
            Ok(Maintenance { done: reply.done.into_iter().map(PartitionId).collect(), errors: reply.errors })
        })
    }

    /// Moves the leadership of a partition to a memtable server; who leads now, as a rule that one. Writes and memtable
    /// reads of the partition wait meanwhile, for about one leader lease.
    /// [`ErrorKind::Invalid`](sextant_common::ErrorKind::Invalid) if the server does not answer or does not catch up with the log: who
    /// leads stays; `Unavailable` if nobody was elected in time.
    pub fn transfer<'a>(&'a self, partition: PartitionId, to: NodeId) -> BoxFuture<'a, Result<NodeId>> {
        Box::pin(async move {
            let request = v1::TransferRequest { partition: partition.0, to: to.0 };
            let patient = self.with_attempt_timeout(self.deadline());
            let reply = patient
                .administer(self.deadline(), async |mut admin, limit| {
                    Ok(admin.transfer(timed(request, limit)).await?.into_inner())
                })
                .await?;
            Ok(NodeId(reply.leader))
        })
    }

    /// Makes exactly these memtable servers the voters of a partition; returns when it is so. New ones get the whole
    /// log first, reads and writes go on meanwhile. [`ErrorKind::Invalid`](sextant_common::ErrorKind::Invalid) if the
    /// partition could lose its majority by it: a new voter does not catch up, or too few of the voters answer; then
    /// they are as before.
    pub fn change_voters<'a>(
        &'a self,
        partition: PartitionId,
        voters: &'a [NodeId],
    ) -> BoxFuture<'a, Result<Vec<NodeId>>> {
        Box::pin(async move {
            let voters = voters.iter().map(|n| n.0).collect();
            let request = v1::ChangeVotersRequest { partition: partition.0, voters };
            let deadline = self.deadline().max(MAINTENANCE_DEADLINE);
            let patient = self.with_attempt_timeout(deadline);
            let reply = patient
                .administer(deadline, async |mut admin, limit| {
                    Ok(admin.change_voters(timed(request.clone(), limit)).await?.into_inner())
                })
                .await?;
            Ok(reply.voters.into_iter().map(NodeId).collect())
        })
    }

    /// After the loss of all memtable servers' disks: rebuilds the partitions from the tables that the sstable servers
    /// hold, or, as a dry run, says what would be done. Idempotent: what has a group is left alone.
    pub fn recover<'a>(&'a self, order: &'a RecoveryOrder) -> BoxFuture<'a, Result<Vec<RecoveredPartition>>> {
        Box::pin(async move {
            let request = v1::RecoverRequest::from(order);
            let deadline = self.deadline().max(MAINTENANCE_DEADLINE);
            let patient = self.with_attempt_timeout(deadline);
            let reply = patient
                .administer(deadline, async |mut admin, limit| {
                    Ok(admin.recover(timed(request.clone(), limit)).await?.into_inner())
                })
                .await?;
            reply.partitions.into_iter().map(TryInto::try_into).collect()
        })
    }

    /// Raises the format of all partitions, or, as a dry run, says what could be done. `to`: None is the newest that the
    /// leaders can read. Idempotent. What is refused is so partition by partition.
    pub fn raise_format<'a>(
        &'a self,
        to: Option<u32>,
        dry_run: bool,
    ) -> BoxFuture<'a, Result<Vec<PartitionFormat>>> {
        Box::pin(async move {
            let request = v1::RaiseFormatRequest { partitions: Vec::new(), to: to.unwrap_or(0), dry_run };
            let deadline = self.deadline().max(CONFIGURE_DEADLINE);
            let patient = self.with_attempt_timeout(deadline);
            let reply = patient
                .administer(deadline, async |mut admin, limit| {
                    Ok(admin.raise_format(timed(request.clone(), limit)).await?.into_inner())
                })
                .await?;
            Ok(reply.partitions.into_iter().map(Into::into).collect())
        })
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
            .administer(deadline, async |mut admin, limit| {
                let request = timed(request.clone(), limit);
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
