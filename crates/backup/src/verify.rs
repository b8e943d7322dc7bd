//! Whether a backup could be restored: every file is read to its end.

use std::collections::BTreeMap;
use std::path::Path;

use sextant_common::cut::Cut;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::manifest::SstMeta;

use crate::Progress;
use crate::create::Check;
use crate::manifest::{Backup, File};
use crate::records::{Local, count, file_of, work_dir};
use crate::repository::Repository;
use futures::StreamExt;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    pub files: usize,
    pub bytes: u64,
    /// Of all files, tombstones and overwritten ones too.
    pub records: u64,
    /// A line each.
    pub bad: Vec<String>,
    /// Of those, whose bytes may be others than they were.
    pub suspects: Vec<File>,
}

/// Every file is there, has its size and its checksum, is a table, and has as many records as it should. Fails where that cannot be
/// told: the store does not answer, or the directory has no room. What was found by then is told.
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
                Err(e) if e.kind == ErrorKind::Corrupt => {
                    verified.bad.push(format!("{}: {e}", file.name()));
                    verified.suspects.push(*file);
                }
                Err(_) if is_gone(repository, *file).await => {
                    verified.bad.push(format!("{}: it is not there any more", file.name()));
                }
                Err(e) => {
                    verified.bad.into_iter().for_each(progress);
                    return Err(unread(*file, &dir, &e));
                }
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

/// Whether the store says so. (If it says nothing, nothing is known of the file.)
async fn is_gone(repository: &Repository, file: File) -> bool {
    repository.tables().await.is_ok_and(|there| !there.contains_key(&file.name()))
}

/// What keeps a file from being read says nothing of the file.
fn unread(file: File, dir: &Path, e: &Error) -> Error {
    let name = file.name();
    Error::new(e.kind, format!("{name}, which is read into {} (--work-dir): {}", dir.display(), e.message))
}

async fn read(repository: &Repository, file: File, sst: &SstMeta, dir: &Path) -> Result<u64> {
    let local = Local::fetch(repository, file, dir).await?;
    let (records, tombstones) = count(local.table.clone())?;
    if (records, tombstones) != (sst.records, sst.tombstones) {
        return Err(Error::corrupt(format!(
            "it has {records} records, {tombstones} of them tombstones, instead of {} and {}",
            sst.records, sst.tombstones
        )));
    }
    Ok(records)
}

/// Damaged files are put elsewhere: as long as one has its name and its size, each new backup counts on
/// it, though the cluster may still have the bytes. A line each, also of those where that fails.
pub async fn set_aside(repository: &Repository, suspects: &[File]) -> Vec<String> {
    let mut told = Vec::new();
    for file in suspects {
        let line = match set_one_aside(repository, *file).await {
            Ok(None) => continue,
            Ok(Some(to)) => format!("it is {to} now, and is copied again by the next backup that has it"),
            Err(e) => format!("it is not set aside: {e}"),
        };
        told.push(format!("{}: {line}", file.name()));
    }
    told
}

/// Where it is now; None: it is good.
async fn set_one_aside(repository: &Repository, file: File) -> Result<Option<String>> {
    Ok(match is_damaged(repository, file).await? {
        true => Some(repository.set_table_aside(&file).await?),
        false => None,
    })
}

/// Once more: what came over a bad way, or is of a version that this program does not read, is not damaged.
async fn is_damaged(repository: &Repository, file: File) -> Result<bool> {
    match check(repository, file).await {
        Ok(()) => Ok(false),
        Err(e) if e.kind == ErrorKind::Corrupt => Ok(true),
        Err(e) => Err(e),
    }
}

async fn check(repository: &Repository, file: File) -> Result<()> {
    let (mut pieces, mut check) = (repository.read_table(&file).await?, Check::new(file));
    while let Some(piece) = pieces.next().await {
        check.take(&piece?)?;
    }
    check.finish()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;
    use parking_lot::Mutex;
    use sextant_common::ids::PartitionId;
    use sextant_environment::Env;
    use sextant_sstable_server::table::footer::UNHASHED_BYTES;
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;
    use crate::testing::{backup, cut, sst, stored};

    #[tokio::test]
    async fn a_damaged_file_is_set_aside_so_that_it_is_copied_again_and_a_good_one_is_not() {
        let repository = Repository::over(&Env::real(), Arc::new(InMemory::new()));
        // (Its files are of another checksum than their names say.)
        backup(&repository, "a", 1, &[1]).await;
        let backup = repository.backup("a").await.unwrap();
        let bytes = [b"sst".to_vec(), vec![0; UNHASHED_BYTES]].concat();
        let good = File { id: sst(2).id, checksum: xxh3_64(b"sst"), bytes: bytes.len() as u64 };
        let mut to = repository.write_table(&good);
        to.write(&bytes).await.unwrap();
        to.finish().await.unwrap();
        let verified = verify(&repository, &backup, None, &|_| ()).await.unwrap();
        let bad = backup.files()[0];
        assert_eq!((verified.bad.len(), &verified.suspects), (1, &vec![bad]));
        let told = set_aside(&repository, &[bad, good]).await;
        assert!(told.len() == 1 && told[0].contains(&format!("it is damaged/{}", bad.name())), "{told:?}");
        assert_eq!(repository.tables().await.unwrap().into_keys().collect::<Vec<_>>(), [good.name()]);
        let kept = repository.list("damaged").await.unwrap();
        assert_eq!((kept.len(), kept[0].size), (1, 3));
    }

    #[tokio::test]
    async fn a_directory_that_takes_nothing_is_no_finding_about_a_file() {
        let (work, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let repository = Repository::over(&Env::real(), Arc::new(InMemory::new()));
        let live = [("a".to_owned(), false)];
        let metas = [
            stored(&repository, kept.path(), 1, &live).await,
            stored(&repository, kept.path(), 2, &live).await,
        ];
        let cuts = BTreeMap::from([(PartitionId(0), cut(metas.into_iter()))]);
        let backup = Backup { name: "a".into(), created_ms: 1, cuts, is_part: false };
        let verified = verify(&repository, &backup, Some(work.path()), &|_| ()).await.unwrap();
        assert_eq!((verified.files, verified.bad.len()), (2, 0), "{:?}", verified.bad);
        // A file where the directory is to be; and a finding that was made before.
        let file = work.path().join("file");
        std::fs::write(&file, "").unwrap();
        repository.remove_table(&backup.files()[0].name()).await.unwrap();
        let told = Mutex::new(Vec::new());
        let tell = |line: String| told.lock().push(line);
        let error = verify(&repository, &backup, Some(&file), &tell).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Disk, "{error}");
        assert!(error.message.contains(&backup.files()[1].name()), "{error}");
        assert!(error.message.contains(&file.display().to_string()), "{error}");
        assert!(told.lock().iter().any(|line| line.ends_with("it is not there")), "{told:?}");
    }

    #[tokio::test]
    async fn one_file_that_cannot_be_set_aside_keeps_no_other_from_it() {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::open(&Env::real(), dir.path().to_str().unwrap()).unwrap();
        backup(&repository, "a", 1, &[1, 2, 3]).await;
        let [gone, bad, other] = repository.backup("a").await.unwrap().files()[..] else { panic!() };
        std::fs::remove_file(dir.path().join("tables").join(gone.name())).unwrap();
        let told = set_aside(&repository, &[gone, bad]).await;
        assert!(
            told.len() == 2 && told[0].starts_with(&format!("{}: it is not set aside: ", gone.name())),
            "{told:?}"
        );
        assert!(told[1].contains(&format!("it is damaged/{}", bad.name())), "{told:?}");
        // A file where the folder is to be.
        std::fs::remove_dir_all(dir.path().join("damaged")).unwrap();
        std::fs::write(dir.path().join("damaged"), "").unwrap();
        let told = set_aside(&repository, &[other]).await;
        assert!(told[0].contains("it is not set aside"), "{told:?}");
        assert_eq!(repository.tables().await.unwrap().into_keys().collect::<Vec<_>>(), [other.name()]);
    }
}
