//! The log after a backup, up to a time, is written on top of it.
//!
//! Each partition of the backup for itself: its groups in the order of its log, in batches, one written before the next. A key never
//! changes its partition there, so the order of each key holds, however many partitions the cluster has.
//!
//! The log is written on top of headers before the first element is, and then read again for elements: a header that had expired by now
//! in the backup, and was renewed later, is there before a sweep could miss it. Where there are no elements it is read once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use futures::stream::{self, StreamExt, TryStreamExt};
use sextant_client::Client;
use sextant_common::archive::LogTable;
use sextant_common::error::Result;
use sextant_common::ids::OWN_TABLES;
use sextant_common::ids::{PartitionId, TableId};
use sextant_common::sstable::RecordVersion;

use super::fold::{Batch, Fold, as_of};
use super::renaming::Part;
use super::{Options, Restoring, check_empty, imports, is_chosen};
use crate::Progress;
use crate::archive::coverage::Coverage;
use crate::archive::reach::Reach;
use crate::archive::segment::{Name, Segment};
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
    check_segments(repository, &reach, to_ms, options.parallel, progress).await?;
    let restoring = Restoring::begin(client, repository, backup, options, progress).await?;
    let known: BTreeSet<String> =
        backup.cuts.values().flat_map(|cut| &cut.tables).map(|table| table.name.clone()).collect();
    let has_elements = AtomicBool::new(restoring.tables.keys().any(|name| Part::of(name) == Part::Elements));
    let applying = Applying { restoring: &restoring, to_ms, known: known.into(), has_elements };
    let mut restored = Restored::default();
    for part in [Part::Headers, Part::Elements] {
        if part == Part::Elements && !applying.has_elements.load(Ordering::Relaxed) {
            break;
        }
        restoring.part(part, &mut restored).await?;
        let applied: Vec<u64> = stream::iter(&reach.partitions)
            .map(|(partition, covered)| applying.partition(part, *partition, covered))
            .buffer_unordered(options.parallel.max(1))
            .try_collect()
            .await?;
        restored.of_log += applied.into_iter().sum::<u64>();
    }
    Ok(restored)
}

/// What is wanted of the log can be read. (What is damaged would end the restore half-way.)
async fn check_segments(
    repository: &Repository,
    reach: &Reach,
    to_ms: u64,
    parallel: usize,
    progress: Progress<'_>,
) -> Result<()> {
    let names: Vec<&Name> = reach.partitions.values().flat_map(|covered| wanted(covered, to_ms)).collect();
    progress(format!("the log is read before anything is written: {} segments", names.len()));
    let reads = names.into_iter().map(|name| async move { repository.segment(name).await.map(drop) });
    stream::iter(reads).buffer_unordered(parallel.max(1)).try_collect().await
}

fn wanted(covered: &Coverage, to_ms: u64) -> impl Iterator<Item = &Name> {
    covered.segments.iter().take_while(move |name| name.from_ms <= to_ms)
}

struct Applying<'a> {
    restoring: &'a Restoring<'a>,
    to_ms: u64,
    /// Tables that are made.
    known: tokio::sync::Mutex<BTreeSet<String>>,
    /// Of objects, in the backup or in the log.
    has_elements: AtomicBool,
}

/// Tables of the log that are wanted, by the ids that they had.
type Names = BTreeMap<TableId, String>;

impl Applying<'_> {
    /// How many records were written.
    async fn partition(&self, part: Part, partition: PartitionId, covered: &Coverage) -> Result<u64> {
        let Restoring { repository, backup, progress, .. } = self.restoring;
        let (mut fold, mut names, mut count) = (Fold::default(), Names::new(), 0);
        // Segments may have entries in common.
        let mut done = backup.cuts.get(&partition).map_or(0, |cut| cut.at);
        for name in wanted(covered, self.to_ms) {
            let Segment { mut groups, mut tables, .. } = repository.segment(name).await?;
            let ends = groups.iter().position(|group| group.time_ms > self.to_ms);
            groups.truncate(ends.unwrap_or(groups.len()));
            groups.retain(|group| group.index > done);
            let written: BTreeSet<TableId> = groups.iter().flat_map(|g| &g.writes).map(|w| w.table).collect();
            tables.retain(|table| written.contains(&table.id));
            self.make(part, tables, &mut names).await?;
            for group in groups {
                if let Some(batch) = fold.push(group) {
                    count += self.write(batch, &names).await?;
                }
            }
            done = name.to.index;
            let until = time_text_if_any(name.until_ms.min(self.to_ms));
            let until = until.unwrap_or_else(|| format!("entry {}", name.to));
            let what = if part == Part::Elements { "elements" } else { "records" };
            progress(format!("partition {partition}: the log up to {until}, {count} {what} so far"));
            if ends.is_some() {
                break;
            }
        }
        count += self.write(fold.take(), &names).await?;
        Ok(count)
    }

    /// Tables that were made after the backup.
    async fn make(&self, part: Part, tables: Vec<LogTable>, names: &mut Names) -> Result<()> {
        let Restoring { client, backup, options: wanted, known: there, .. } = self.restoring;
        for LogTable { id, name, options } in tables {
            // (One that the backup has a later table in place of was dropped.)
            let is_replaced = backup.table(&name).is_some_and(|latest| id < latest);
            if is_replaced || !is_chosen(wanted, &name) {
                continue;
            }
            let of = Part::of(&name);
            if of == Part::Elements {
                self.has_elements.store(true, Ordering::Relaxed);
            }
            if of != part {
                continue;
            }
            // (Held, so that no other partition finds what this one has begun to write.)
            let mut known = self.known.lock().await;
            let is_known = known.contains(&name);
            if !is_known && backup.is_part && !name.starts_with(OWN_TABLES) {
                // The backup left it out, or it was made later: what the log has of it may be half of it.
                continue;
            }
            if !is_known {
                if !wanted.into_existing && there.contains_key(&name) {
                    check_empty(client, [&name].into_iter()).await?;
                }
                client.ensure_table(&name, &options).await?;
                known.insert(name.clone());
            }
            names.insert(id, name);
        }
        Ok(())
    }

    async fn write(&self, batch: Batch, names: &Names) -> Result<u64> {
        let Restoring { client, renaming, now, .. } = self.restoring;
        let mut count = 0;
        for (table, records) in batch {
            let Some(name) = names.get(&table) else { continue };
            let renaming = renaming.of(name);
            let renamed = records.into_iter().map(|record| renaming.record(as_of(record, *now)));
            let records: Vec<Option<RecordVersion>> = renamed.collect::<Result<_>>()?;
            count += imports::write(client, name, records.into_iter().flatten().collect()).await?;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;
    use sextant_environment::Env;

    use super::*;
    use crate::archive::segment::History;
    use crate::testing::{archived, backup};

    #[tokio::test]
    async fn a_damaged_segment_is_found_before_the_log_is_applied_if_it_is_wanted() {
        let repository = Repository::over(&Env::real(), Arc::new(InMemory::new()));
        let [first, second] = archived(&repository, History { partition: PartitionId(0), lineage: 1 }).await;
        backup(&repository, "a", 1, &[1]).await;
        repository.write_segment(&second.name, vec![7; 100].into()).await.unwrap();
        let reach = Reach::of(&repository.backup("a").await.unwrap(), &repository.archive().await.unwrap());
        let check = async |to_ms| check_segments(&repository, &reach, to_ms, 2, &|_| ()).await;
        check(first.name.until_ms).await.unwrap();
        let refused = check(second.name.from_ms).await.unwrap_err();
        assert!(refused.message.contains(&second.name.to_string()), "{refused}");
    }
}
