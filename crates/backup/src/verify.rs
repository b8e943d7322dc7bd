//! Whether a backup could be restored: every file is read to its end.

use std::collections::BTreeMap;
use std::path::Path;

use sextant_common::cut::Cut;
use sextant_common::error::Result;
use sextant_common::manifest::SstMeta;

use crate::Progress;
use crate::manifest::{Backup, File};
use crate::records::{Local, count, file_of, work_dir};
use crate::repository::Repository;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    pub files: usize,
    pub bytes: u64,
    /// Of all files, tombstones and overwritten ones too.
    pub records: u64,
    /// A line each.
    pub bad: Vec<String>,
}

/// Every file is there, has its size and its checksum, is a table, and has as many records as it should.
pub async fn verify(
    repository: &Repository,
    backup: &Backup,
    dir: Option<&Path>,
    progress: Progress<'_>,
) -> Result<Verified> {
    let dir = work_dir(dir)?;
    let all: BTreeMap<File, &SstMeta> =
        backup.cuts.values().flat_map(Cut::ssts).map(|sst| (file_of(sst), sst)).collect();
    let there = repository.tables().await?;
    let mut verified = Verified::default();
    for (file, sst) in &all {
        match there.get(&file.name()) {
            None => verified.bad.push(format!("{}: it is not there", file.name())),
            Some(bytes) if *bytes != file.bytes => {
                verified.bad.push(format!("{}: it has {bytes} bytes instead of {}", file.name(), file.bytes));
            }
            Some(_) => match read(repository, *file, sst, &dir).await {
                Ok(records) => {
                    verified.files += 1;
                    verified.bytes += file.bytes;
                    verified.records += records;
                }
                Err(e) => verified.bad.push(format!("{}: {e}", file.name())),
            },
        }
        progress(format!(
            "{} of {} files, {} bad",
            verified.files + verified.bad.len(),
            all.len(),
            verified.bad.len()
        ));
    }
    Ok(verified)
}

async fn read(repository: &Repository, file: File, sst: &SstMeta, dir: &Path) -> Result<u64> {
    let local = Local::fetch(repository, file, dir).await?;
    let (records, tombstones) = count(local.table.clone())?;
    if (records, tombstones) != (sst.records, sst.tombstones) {
        return Err(sextant_common::Error::corrupt(format!(
            "it has {records} records, {tombstones} of them tombstones, instead of {} and {}",
            sst.records, sst.tombstones
        )));
    }
    Ok(records)
}
