//! A backup beside a cluster, key by key.

use std::path::Path;

use sextant_client::{Client, ScanOptions};
use sextant_common::cut::Cut;
use sextant_common::error::Result;
use sextant_common::ids::OWN_TABLES;
use sextant_common::marks::Kind;

use crate::Progress;
use crate::manifest::Backup;
use crate::records::{Joined, Records, next_page, work_dir};
use crate::repository::Repository;

/// Keys asked for at once.
const KEYS_MAX: usize = 500;
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Differences that are told; all are counted.
const TOLD_MAX: usize = 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Equal in both.
    pub equal: u64,
    /// Of the backup, and missing in the cluster, or another one there. (What has expired since counts here.)
    pub differing: u64,
    /// Of the cluster only.
    pub more: u64,
    /// Of some that differ, a line each.
    pub told: Vec<String>,
}

impl Compared {
    pub fn is_equal(&self) -> bool {
        self.differing == 0 && self.more == 0
    }
}

/// All tables of clients. Of objects of the Redis protocol only that they are there.
pub async fn compare(
    client: &Client,
    repository: &Repository,
    backup: &Backup,
    dir: Option<&Path>,
    progress: Progress<'_>,
) -> Result<Compared> {
    let dir = work_dir(dir)?;
    let mut compared = Compared::default();
    let all = backup.cuts.values().flat_map(|cut: &Cut| &cut.tables);
    let mut names: Vec<&String> = all.map(|t| &t.name).filter(|name| !name.starts_with(OWN_TABLES)).collect();
    names.sort();
    names.dedup();
    for name in names {
        let mut of_backup = 0;
        for cut in backup.cuts.values() {
            let Some(table) = cut.tables.iter().find(|table| table.name == *name) else { continue };
            let records = Records::open(repository, table, cut.tick, &dir).await?;
            let mut records = Joined::all(records)?;
            loop {
                let page = next_page(&mut records, KEYS_MAX, BYTES_MAX)?;
                if page.is_empty() {
                    break;
                }
                of_backup += page.len() as u64;
                let plain: Vec<_> = page.into_iter().filter(|r| r.marks.kind() == Kind::Plain).collect();
                let found = client.multi_get(name, plain.iter().map(|r| r.key.clone()).collect()).await?;
                for (record, found) in plain.into_iter().zip(found) {
                    let is_equal = found.as_ref().is_some_and(|found| {
                        Some(&found.value) == record.value.as_ref()
                            && found.expires_at == record.marks.expires_at()
                    });
                    if is_equal {
                        compared.equal += 1;
                        continue;
                    }
                    compared.differing += 1;
                    if compared.told.len() < TOLD_MAX {
                        let what = if found.is_some() { "is another one" } else { "is missing" };
                        compared.told.push(format!("table {name:?}: {:?} {what}", record.key));
                    }
                }
            }
        }
        let (mut pages, mut of_cluster) = (client.scan(name, ScanOptions::default()), 0);
        while let Some(page) = pages.next_page().await {
            of_cluster += page?.records.len() as u64;
        }
        compared.more += of_cluster.saturating_sub(of_backup);
        progress(format!("table {name:?}: {of_backup} records in the backup, {of_cluster} in the cluster"));
    }
    Ok(compared)
}
