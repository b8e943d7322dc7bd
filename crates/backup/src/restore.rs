//! A backup is written into a cluster: any, of any number of partitions.
//!
//! Where the records go is a [`RestoreSink`]'s: [`Imports`] writes them as a client does, so a restore that ended half-way may be begun again.

use std::collections::BTreeMap;
use std::path::PathBuf;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use sextant_client::{Client, ScanOptions};
use sextant_common::cut::Cut;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::PartitionId;
use sextant_common::manifest::TableOptions;
use sextant_common::sstable::RecordVersion;
use sextant_proto::v1;

use crate::manifest::Backup;
use crate::records::{Records, work_dir};
use crate::repository::Repository;
use crate::{OWN_TABLES, Progress, USERS_TABLE};

/// Of one import.
const RECORDS_MAX: usize = 1000;
const BYTES_MAX: usize = 1024 * 1024;
const IMPORTS_AT_ONCE: usize = 4;

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Empty: all.
    pub tables: Vec<String>,
    /// What a table has already stays, unless the backup has the key.
    pub into_existing: bool,
    /// Users and their rights too.
    pub users: bool,
    /// Where files are put while they are read; None: where the system has its temporary ones.
    pub dir: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// By table.
    pub records: BTreeMap<String, u64>,
}

/// Takes the records of a restore.
pub trait RestoreSink: Send {
    /// What comes next is of this table of a partition of the backup: in rising order of keys, each once.
    fn begin<'a>(&'a mut self, partition: PartitionId, table: &'a str) -> BoxFuture<'a, Result<()>>;

    fn write<'a>(&'a mut self, records: Vec<RecordVersion>) -> BoxFuture<'a, Result<()>>;

    /// Returns when all of the table's partition is there.
    fn end(&mut self) -> BoxFuture<'_, Result<()>>;
}

pub async fn restore(
    client: &Client,
    repository: &Repository,
    backup: &Backup,
    options: &Options,
    sink: &mut dyn RestoreSink,
    progress: Progress<'_>,
) -> Result<Restored> {
    let tables = chosen(backup, options)?;
    if !options.into_existing {
        check_empty(client, &tables).await?;
    }
    for (name, table_options) in &tables {
        client.ensure_table(name, table_options).await?;
    }
    let dir = work_dir(options.dir.as_deref())?;
    let mut restored = Restored::default();
    for (partition, cut) in &backup.cuts {
        for table in cut.tables.iter().filter(|table| tables.contains_key(&table.name)) {
            sink.begin(*partition, &table.name).await?;
            let mut records = Records::open(repository, table, cut.tick, &dir).await?;
            let count = restored.records.entry(table.name.clone()).or_default();
            loop {
                let page = records.next(RECORDS_MAX, BYTES_MAX)?;
                if page.is_empty() {
                    break;
                }
                *count += page.len() as u64;
                sink.write(page).await?;
            }
            sink.end().await?;
            progress(format!(
                "table {:?}, partition {partition} of the backup: {count} records so far",
                table.name
            ));
        }
    }
    Ok(restored)
}

/// By name, with their options.
fn chosen(backup: &Backup, options: &Options) -> Result<BTreeMap<String, TableOptions>> {
    let all = backup.cuts.values().flat_map(|cut: &Cut| &cut.tables);
    let all: BTreeMap<String, TableOptions> = all.map(|t| (t.name.clone(), t.options.clone())).collect();
    if let Some(unknown) = options.tables.iter().find(|name| !all.contains_key(*name)) {
        let why = format!("backup {} has no table {unknown:?}", backup.name);
        return Err(Error::new(ErrorKind::UnknownTable, why));
    }
    let is_chosen = |name: &str| match name {
        USERS_TABLE => options.users,
        name => {
            name.starts_with(OWN_TABLES)
                || options.tables.is_empty()
                || options.tables.iter().any(|t| t == name)
        }
    };
    Ok(all.into_iter().filter(|(name, _)| is_chosen(name)).collect())
}

async fn check_empty(client: &Client, tables: &BTreeMap<String, TableOptions>) -> Result<()> {
    let known = client.list_tables().await?;
    for table in known.iter().filter(|table| tables.contains_key(&table.name)) {
        let one = ScanOptions { limit: 1, ..ScanOptions::default() };
        if !client.scan(&table.name, one).collect_records().await?.is_empty() {
            return Err(Error::invalid(format!(
                "table {:?} is not empty: --into-existing restores into it all the same",
                table.name
            )));
        }
    }
    Ok(())
}

/// Writes as clients do, several batches at once.
pub struct Imports {
    client: Client,
    table: String,
    under_way: FuturesUnordered<BoxFuture<'static, Result<()>>>,
}

impl Imports {
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone(), table: String::new(), under_way: FuturesUnordered::new() }
    }

    async fn wait(&mut self, at_most: usize) -> Result<()> {
        while self.under_way.len() > at_most {
            self.under_way.next().await.unwrap_or(Ok(()))?;
        }
        Ok(())
    }
}

impl RestoreSink for Imports {
    fn begin<'a>(&'a mut self, _partition: PartitionId, table: &'a str) -> BoxFuture<'a, Result<()>> {
        table.clone_into(&mut self.table);
        Box::pin(std::future::ready(Ok(())))
    }

    fn write<'a>(&'a mut self, records: Vec<RecordVersion>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.wait(IMPORTS_AT_ONCE - 1).await?;
            let (client, table) = (self.client.clone(), self.table.clone());
            let records = records.into_iter().map(v1::ScanRecord::from).collect::<Vec<_>>();
            self.under_way.push(Box::pin(async move { client.import(&table, records).await.map(drop) }));
            Ok(())
        })
    }

    fn end(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.wait(0))
    }
}
