//! The log after a backup, up to a time, is written on top of it.
//!
//! Each partition of the backup for itself: its groups in the order of its log, in batches, one written before the next. A key never
//! changes its partition there, so the order of each key holds, however many partitions the cluster has.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt, TryStreamExt};
use sextant_client::Client;
use sextant_common::archive::LogTable;
use sextant_common::error::Result;
use sextant_common::expiry::Tick;
use sextant_common::ids::OWN_TABLES;
use sextant_common::ids::{PartitionId, TableId};
use sextant_common::sstable::RecordVersion;

use super::fold::{Batch, Fold, as_of};
use super::{Options, check_empty, imports, is_chosen, restore};
use crate::Progress;
use crate::archive::coverage::Coverage;
use crate::archive::reach::Reach;
use crate::archive::segment::Segment;
use crate::archive::time_text_if_any;
use crate::manifest::Backup;
use crate::repository::Repository;
use crate::restore::Restored;

/// A backup, and what was written after it up to a time: all groups of that millisecond, none that is later. Refused before anything is
/// written, if the archive does not lead there.
pub async fn restore_to(
    client: &Client,
    repository: &Repository,
    backup: &Backup,
    to_ms: u64,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Restored> {
    let reach = Reach::of(backup, &repository.archive().await?);
    reach.check(to_ms)?;
    let there: BTreeSet<String> = client.list_tables().await?.into_iter().map(|table| table.name).collect();
    let mut restored = restore(client, repository, backup, options, progress).await?;
    let known: BTreeSet<String> =
        backup.cuts.values().flat_map(|cut| &cut.tables).map(|table| table.name.clone()).collect();
    let now = Tick(repository.env.clock.wall_guess_ns() / 1_000_000);
    let applying =
        Applying { client, repository, backup, options, progress, to_ms, now, there, known: known.into() };
    let applied: Vec<u64> = stream::iter(&reach.partitions)
        .map(|(partition, covered)| applying.partition(*partition, covered))
        .buffer_unordered(options.parallel.max(1))
        .try_collect()
        .await?;
    restored.of_log = applied.into_iter().sum();
    Ok(restored)
}

struct Applying<'a> {
    client: &'a Client,
    repository: &'a Repository,
    backup: &'a Backup,
    options: &'a Options,
    progress: Progress<'a>,
    to_ms: u64,
    /// What has expired by now is not written.
    now: Tick,
    /// Tables that the cluster had before.
    there: BTreeSet<String>,
    /// Tables that are made.
    known: tokio::sync::Mutex<BTreeSet<String>>,
}

/// Tables of the log that are wanted, by the ids that they had.
type Names = BTreeMap<TableId, String>;

impl Applying<'_> {
    /// How many records were written.
    async fn partition(&self, partition: PartitionId, covered: &Coverage) -> Result<u64> {
        let (mut fold, mut names, mut count) = (Fold::default(), Names::new(), 0);
        // Segments may have entries in common.
        let mut done = self.backup.cuts.get(&partition).map_or(0, |cut| cut.at);
        for name in covered.segments.iter().take_while(|name| name.from_ms <= self.to_ms) {
            let Segment { mut groups, mut tables, .. } = self.repository.segment(name).await?;
            let ends = groups.iter().position(|group| group.time_ms > self.to_ms);
            groups.truncate(ends.unwrap_or(groups.len()));
            groups.retain(|group| group.index > done);
            let written: BTreeSet<TableId> = groups.iter().flat_map(|g| &g.writes).map(|w| w.table).collect();
            tables.retain(|table| written.contains(&table.id));
            self.make(tables, &mut names).await?;
            for group in groups {
                if let Some(batch) = fold.push(group) {
                    count += self.write(batch, &names).await?;
                }
            }
            done = name.to.index;
            let until = time_text_if_any(name.until_ms.min(self.to_ms));
            let until = until.unwrap_or_else(|| format!("entry {}", name.to));
            (self.progress)(format!("partition {partition}: the log up to {until}, {count} records so far"));
            if ends.is_some() {
                break;
            }
        }
        count += self.write(fold.take(), &names).await?;
        Ok(count)
    }

    /// Tables that were made after the backup.
    async fn make(&self, tables: Vec<LogTable>, names: &mut Names) -> Result<()> {
        for LogTable { id, name, options } in tables {
            // (One that the backup has a later table in place of was dropped.)
            let is_replaced = self.backup.table(&name).is_some_and(|latest| id < latest);
            if is_replaced || !is_chosen(self.options, &name) {
                continue;
            }
            // (Held, so that no other partition finds what this one has begun to write.)
            let mut known = self.known.lock().await;
            let is_known = known.contains(&name);
            if !is_known && self.backup.is_part && !name.starts_with(OWN_TABLES) {
                // The backup left it out, or it was made later: what the log has of it may be half of it.
                continue;
            }
            if !is_known {
                if !self.options.into_existing && self.there.contains(&name) {
                    check_empty(self.client, [&name].into_iter()).await?;
                }
                self.client.ensure_table(&name, &options).await?;
                known.insert(name.clone());
            }
            names.insert(id, name);
        }
        Ok(())
    }

    /// Headers of objects before their elements: one without the other would be swept away.
    async fn write(&self, batch: Batch, names: &Names) -> Result<u64> {
        let named = batch.into_iter().filter_map(|(table, records)| Some((names.get(&table)?, records)));
        let (own, others): (Vec<_>, Vec<_>) = named.partition(|(name, _)| name.starts_with(OWN_TABLES));
        let mut count = 0;
        for (name, records) in others.into_iter().chain(own) {
            let records: Vec<RecordVersion> =
                records.into_iter().map(|record| as_of(record, self.now)).collect();
            count += imports::write(self.client, name, records).await?;
        }
        Ok(count)
    }
}
