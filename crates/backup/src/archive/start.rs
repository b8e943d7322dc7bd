//! Where a follower begins in a partition's log: where the repository ends; if that is gone, at the newest backup; else as early as
//! there is anything.

use sextant_client::{FollowedLog, LogReader};
use sextant_common::archive::{LogAnswer, LogPage};
use sextant_common::error::{Error, Result};
use sextant_common::ids::{LogPosition, PartitionId};

use super::segment::History;
use super::store::Archive;
use super::time_text;
use crate::repository::Repository;

/// A log that is read from a position on.
pub struct Begun {
    pub history: History,
    pub after: LogPosition,
    /// Until then it was said to be complete before.
    pub said_ms: u64,
    pub first: LogPage,
    pub pages: FollowedLog,
    /// For who watches.
    pub told: String,
}

/// Opens it; None: it is not there from that position on.
pub async fn open(
    reader: &LogReader,
    partition: PartitionId,
    after: LogPosition,
) -> Result<Option<(LogPage, FollowedLog)>> {
    let mut pages = reader.follow(partition, Some(after)).await?;
    Ok(match pages.next().await? {
        LogAnswer::Page(first) => Some((first, pages)),
        LogAnswer::Gone { .. } => None,
    })
}

pub async fn begin(reader: &LogReader, repository: &Repository, partition: PartitionId) -> Result<Begun> {
    let (lineage, first) = match reader.follow(partition, None).await?.next().await? {
        LogAnswer::Gone { lineage, first } => (lineage, first),
        LogAnswer::Page(_) => return Err(Error::internal("a page of the log that nobody asked for")),
    };
    let history = History { partition, lineage };
    let archive = repository.archive().await?;
    let end = archive.segments_of(&history).iter().map(|segment| segment.to).max();
    let backup = newest_backup(repository, history).await?;
    let candidates = [
        (end, "goes on where the archive ends"),
        (backup, "begins at the newest backup"),
        (Some(first), "begins"),
    ];
    for (after, how) in candidates {
        let Some(after) = after else { continue };
        let Some((page, pages)) = open(reader, partition, after).await? else { continue };
        if page.lineage != lineage {
            return Err(Error::retry(format!("partition {partition} was rebuilt just now")));
        }
        let mut told = format!("partition {partition}: it {how}, after entry {after}");
        if let Some(end) = end.filter(|end| *end != after) {
            told = format!("{told}. {}", gap(&archive, history, end));
        }
        return Ok(Begun { history, after, said_ms: said(&archive, history), first: page, pages, told });
    }
    Err(Error::retry(format!("partition {partition}: its log goes on faster than it is read")))
}

async fn newest_backup(repository: &Repository, history: History) -> Result<Option<LogPosition>> {
    let mut newest = None;
    for name in repository.names().await? {
        let backup = repository.backup(&name).await?;
        let cut = backup.cuts.get(&history.partition).filter(|cut| cut.lineage == history.lineage);
        newest = newest.max(cut.and_then(|cut| cut.position()));
    }
    Ok(newest)
}

/// What nobody is to be told otherwise of.
fn said(archive: &Archive, history: History) -> u64 {
    let segments = archive.segments_of(&history).iter().map(|segment| segment.until_ms);
    segments.chain(archive.marks_of(&history).iter().map(|mark| mark.until_ms)).max().unwrap_or(0)
}

fn gap(archive: &Archive, history: History, end: LogPosition) -> String {
    let until = archive.segments_of(&history).iter().filter(|s| s.to == end).map(|s| s.until_ms).max();
    format!(
        "The log after entry {end} ({}) is gone: there is a gap, and only backups that were made after it are continued",
        time_text(until.unwrap_or(0))
    )
}
