//! Whether the log after a backup could be applied: every segment is read to its end, and none is missing between two.

use sextant_common::error::{ErrorKind, Result};

use super::coverage::End;
use super::reach::Reach;
use crate::Progress;
use crate::manifest::Backup;
use crate::repository::Repository;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedLog {
    pub reach: Reach,
    pub segments: usize,
    pub groups: u64,
    /// A line each.
    pub bad: Vec<String>,
}

pub async fn verify_log(
    repository: &Repository,
    backup: &Backup,
    progress: Progress<'_>,
) -> Result<VerifiedLog> {
    let reach = Reach::of(backup, &repository.archive().await?);
    let (mut segments, mut groups, mut bad) = (0, 0, Vec::new());
    for (partition, covered) in &reach.partitions {
        for name in &covered.segments {
            match repository.segment(name).await {
                Ok(segment) => {
                    segments += 1;
                    groups += segment.groups.len() as u64;
                }
                // What keeps a segment from being read says nothing of it.
                Err(e) if matches!(e.kind, ErrorKind::Unavailable | ErrorKind::Disk) => {
                    bad.into_iter().for_each(progress);
                    return Err(e);
                }
                Err(e) => bad.push(e.to_string()),
            }
        }
        if matches!(covered.end, End::Gap | End::Odd(_)) {
            bad.push(format!("partition {partition}: the log after the backup ends at {covered}"));
        }
        progress(format!("partition {partition}: {segments} segments so far, {} bad", bad.len()));
    }
    Ok(VerifiedLog { reach, segments, groups, bad })
}
