//! What a process that died leaves in a directory: files that were not written to their end, under names that the store lists to nobody
//! (NAME#DIGITS). A store of objects has none.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use sextant_common::error::Result;

use crate::repository::Repository;

/// Where whoever prunes is alone.
const ALONE: [&str; 2] = ["tables", "backups"];
/// Followers, and those who put marks, may be writing what is younger.
const OTHERS: [&str; 2] = ["archive", "marks"];
const AGE_MIN_MS: u64 = 60 * 60 * 1000;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Litter {
    path: PathBuf,
    pub bytes: u64,
}

impl Repository {
    /// Of those who are no more. `now_ms`: by the clock that files get their times from.
    pub(crate) async fn litter(&self, now_ms: u64) -> Result<Vec<Litter>> {
        let Some(root) = &self.root else { return Ok(Vec::new()) };
        let mut litter = Vec::new();
        for (folders, age_min_ms) in [(ALONE, 0), (OTHERS, AGE_MIN_MS)] {
            for folder in folders {
                let mut dirs = vec![root.join(folder)];
                dirs.extend(self.folders(folder).await?.into_iter().map(|name| root.join(folder).join(name)));
                for dir in dirs {
                    litter.extend(self.unfinished(&dir, now_ms.saturating_sub(age_min_ms))?);
                }
            }
        }
        Ok(litter)
    }

    /// Those of a directory that nobody has written since.
    fn unfinished(&self, dir: &Path, since_ms: u64) -> Result<Vec<Litter>> {
        let paths = match self.env.vfs.list(dir) {
            Ok(paths) => paths,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e.into()),
        };
        let mut litter = Vec::new();
        for path in paths.into_iter().filter(|path| is_unfinished(path)) {
            // (The store writes them past the environment, whose files have no times.)
            match std::fs::metadata(&path) {
                Ok(found) if changed_ms(&found) <= since_ms => {
                    litter.push(Litter { path, bytes: found.len() })
                }
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(litter)
    }

    pub(crate) fn remove_litter(&self, litter: &Litter) -> Result<()> {
        match self.env.vfs.remove_file(&litter.path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e.into()),
            _ => Ok(()),
        }
    }
}

/// Unknown: now.
fn changed_ms(found: &std::fs::Metadata) -> u64 {
    let since = found.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    since.and_then(|since| u64::try_from(since.as_millis()).ok()).unwrap_or(u64::MAX)
}

fn is_unfinished(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let digits = name.and_then(|name| name.split_once('#')).map_or("", |(_, digits)| digits);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use sextant_environment::Env;

    use super::*;
    use crate::testing::{backup, segment};

    #[tokio::test]
    async fn what_was_not_written_to_its_end_is_found_where_nobody_can_be_writing_it() {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::open(&Env::real(), dir.path().to_str().unwrap()).unwrap();
        backup(&repository, "a", 1, &[1]).await;
        let history = crate::archive::segment::History { partition: Default::default(), lineage: 7 };
        let name = segment(history, 1, 5).name;
        repository.write_segment(&name, b"".as_slice().into()).await.unwrap();
        std::fs::create_dir_all(dir.path().join("backups/died")).unwrap();
        let archived = format!("archive/{history}/{name}#1");
        let begun = ["backups/a/manifest#2", "backups/died/manifest#1", "tables/t-1#12", &archived];
        for file in begun.iter().chain(&["tables/t-1#x", "tables/t-2#"]) {
            std::fs::write(dir.path().join(file), "begun").unwrap();
        }
        let of = |path: &str| Litter { path: dir.path().join(path), bytes: 5 };
        let at = changed_ms(&std::fs::metadata(dir.path().join(&archived)).unwrap());
        let mut found = repository.litter(at + AGE_MIN_MS - 1).await.unwrap();
        found.sort();
        assert_eq!(found, begun[..3].iter().map(|path| of(path)).collect::<Vec<_>>());
        assert!(repository.litter(at + AGE_MIN_MS).await.unwrap().contains(&of(&archived)));
        for litter in &found {
            repository.remove_litter(litter).unwrap();
            repository.remove_litter(litter).unwrap();
        }
        assert!(repository.litter(at).await.unwrap().is_empty());
        assert_eq!(repository.names().await.unwrap(), ["a"]);
    }
}
