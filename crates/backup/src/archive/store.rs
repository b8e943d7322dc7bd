//! Where a repository keeps the archive.

use std::collections::BTreeMap;

use bytes::Bytes;
use object_store::ObjectMeta;
use object_store::path::Path;
use sextant_common::error::Result;

use super::clocks::{Now, Time};
use super::reached::{self, Marks, Own};
use super::segment::{self, History, Name, Segment};
use crate::framing::BYTES_MIN;
use crate::repository::Repository;

const FOLDER: &str = "archive";
const MARKS: &str = "reached";
/// Far more than a follower writes at once: it is read into memory.
pub const SEGMENT_BYTES_MAX: u64 = 64 << 20;

/// Everything that a repository has of the log, by name.
#[derive(Clone, Debug)]
pub struct Archive {
    /// Those of a history sorted by position.
    pub segments: BTreeMap<History, Vec<Name>>,
    /// In bytes.
    pub sizes: BTreeMap<Name, u64>,
    /// By the names of their files.
    pub marks: BTreeMap<String, Marks>,
    /// Files that are called as segments are, and have less than any: somebody died. They are none, and may be written again.
    pub stumps: Vec<Name>,
    /// By the clock where it was read: later times are none.
    pub limit_ms: u64,
}

impl Default for Archive {
    fn default() -> Self {
        Self {
            segments: BTreeMap::new(),
            sizes: BTreeMap::new(),
            marks: BTreeMap::new(),
            stumps: Vec::new(),
            limit_ms: u64::MAX,
        }
    }
}

impl Archive {
    pub fn segments_of(&self, history: &History) -> &[Name] {
        self.segments.get(history).map_or(&[], Vec::as_slice)
    }

    pub fn marks_of(&self, history: &History) -> Vec<reached::Mark> {
        let of = self.marks.values().filter_map(|marks| marks.get(history)).flatten();
        of.map(|(archived, until_ms)| reached::Mark { archived: *archived, until_ms: *until_ms }).collect()
    }
}

/// As far as its size tells.
fn is_whole(segment: &ObjectMeta) -> bool {
    segment.size >= BYTES_MIN as u64
}

fn path(name: &Name) -> Path {
    Path::from(format!("{FOLDER}/{}/{name}", name.history))
}

fn mark_path(name: &str) -> Path {
    Path::from(format!("{FOLDER}/{MARKS}/{name}"))
}

impl Repository {
    pub async fn archive(&self) -> Result<Archive> {
        let mut archive = Archive { limit_ms: Time::of(self).limit_ms(), ..Archive::default() };
        for object in self.list(FOLDER).await? {
            let parts: Vec<String> = object.location.parts().map(|part| part.as_ref().to_owned()).collect();
            let [_, folder, name] = &parts[..] else { continue };
            if folder == MARKS {
                // (One that is pruned meanwhile is none.)
                match self.read_if_there(&mark_path(name)).await?.map(|bytes| reached::decode(name, &bytes)) {
                    Some(Ok(marks)) => drop(archive.marks.insert(name.clone(), marks)),
                    // Without it less is known to be complete, and the next one takes its place.
                    Some(Err(e)) => tracing::warn!("{e}"),
                    None => {}
                }
            } else if let Some(name) = History::parse(folder).and_then(|history| Name::parse(history, name)) {
                match is_whole(&object) {
                    true => archive.segments.entry(name.history).or_default().push(name),
                    false => archive.stumps.push(name),
                }
                archive.sizes.insert(name, object.size);
            }
        }
        archive.segments.values_mut().for_each(|names| names.sort());
        Ok(archive)
    }

    /// Only of one history, sorted by position.
    pub(crate) async fn segments_of(&self, history: History) -> Result<Vec<Name>> {
        let found = self.list(&format!("{FOLDER}/{history}")).await?;
        let names = found
            .iter()
            .filter(|object| is_whole(object))
            .filter_map(|object| Name::parse(history, object.location.filename()?));
        let mut names: Vec<Name> = names.collect();
        names.sort();
        Ok(names)
    }

    /// By the names of their files. What is damaged counts for nothing.
    pub(crate) async fn all_marks(&self) -> Result<BTreeMap<String, Marks>> {
        let mut all = BTreeMap::new();
        for object in self.list(&format!("{FOLDER}/{MARKS}")).await? {
            let Some(name) = object.location.filename() else { continue };
            match self.read_if_there(&mark_path(name)).await?.map(|bytes| reached::decode(name, &bytes)) {
                Some(Ok(marks)) => drop(all.insert(name.to_owned(), marks)),
                Some(Err(e)) => tracing::warn!("{e}"),
                None => {}
            }
        }
        Ok(all)
    }

    /// It is there when this returns, whole. Written again it is the same.
    pub(crate) async fn write_segment(&self, name: &Name, bytes: Bytes) -> Result<()> {
        self.replace(&path(name), bytes).await
    }

    pub async fn segment(&self, name: &Name) -> Result<Segment> {
        segment::decode(*name, &self.read_at_most(&path(name), SEGMENT_BYTES_MAX).await?)
    }

    /// Adds what a follower says to what is there, without times that cannot be; nothing, if it is not known whether they can. (Of
    /// two at once the second may not see the first, which says it again next time.)
    pub(crate) async fn add_marks(&self, name: &str, own: &Own, now: impl FnOnce() -> Now) -> Result<Marks> {
        let mut there =
            match self.read_if_there(&mark_path(name)).await?.map(|bytes| reached::decode(name, &bytes)) {
                Some(Ok(there)) => there,
                Some(Err(e)) => {
                    tracing::warn!("{e}: it is written anew");
                    Marks::default()
                }
                None => Marks::default(),
            };
        // (It may have taken minutes.)
        let now = now();
        if there.values().flatten().any(|(_, until_ms)| now.is_odd(*until_ms)) {
            now.check()?;
        }
        there.values_mut().for_each(|of| of.retain(|_, until_ms| !now.is_odd(*until_ms)));
        there.retain(|_, of| !of.is_empty());
        let merged = own.merged(there);
        self.write_marks(name, &merged).await?;
        Ok(merged)
    }

    pub(crate) async fn write_marks(&self, name: &str, marks: &Marks) -> Result<()> {
        self.replace(&mark_path(name), reached::encode(marks).into()).await
    }

    pub(crate) async fn remove_segment(&self, name: &Name) -> Result<()> {
        self.delete(&path(name)).await
    }

    pub(crate) async fn remove_marks(&self, name: &str) -> Result<()> {
        self.delete(&mark_path(name)).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;
    use sextant_common::ids::{LogPosition, PartitionId};
    use sextant_environment::Env;

    use super::super::clocks::tests::now;
    use super::super::reached::{Mark, Stretch};
    use super::*;
    use crate::testing::{archived, assert_archived, segment};

    const HISTORY: History = History { partition: PartitionId(3), lineage: 7 };

    #[tokio::test]
    async fn what_was_archived_is_found_by_its_names_in_a_directory_too() {
        let dir = tempfile::tempdir().unwrap();
        let in_directory = Repository::open(&Env::real(), dir.path().to_str().unwrap()).unwrap();
        for repository in [Repository::over(&Env::real(), Arc::new(InMemory::new())), in_directory] {
            assert!(repository.archive().await.unwrap().segments.is_empty(), "nobody has followed");
            let segments = archived(&repository, HISTORY).await;
            assert_archived(&repository, &segments).await;
            // Again, as of two followers.
            archived(&repository, HISTORY).await;
            assert_archived(&repository, &segments).await;
        }
    }

    #[tokio::test]
    async fn a_damaged_mark_counts_for_nothing_and_keeps_nobody_from_the_rest() {
        let repository = Repository::over(&Env::real(), Arc::new(InMemory::new()));
        let segments = archived(&repository, HISTORY).await;
        repository.replace(&mark_path("0000000000000007"), Bytes::from_static(b"bad")).await.unwrap();
        let archive = repository.archive().await.unwrap();
        assert_eq!(
            (archive.segments_of(&HISTORY).len(), archive.marks_of(&HISTORY).len()),
            (segments.len(), 0)
        );
    }

    #[tokio::test]
    async fn a_follower_adds_to_what_others_have_said() {
        let repository = Repository::over(&Env::real(), Arc::new(InMemory::new()));
        archived(&repository, HISTORY).await;
        let began = LogPosition { term: 1, index: 50 };
        let mut own = Own::default();
        let mark = Mark { archived: began, until_ms: 700 };
        own.begin(HISTORY, mark, Stretch::new(began, &[], []), None);
        let merged = repository.add_marks("0000000000000007", &own, || now(1000, 0)).await.unwrap();
        assert_eq!(merged[&HISTORY].values().copied().collect::<Vec<_>>(), [200, 700]);
        let archive = repository.archive().await.unwrap();
        assert_eq!(archive.marks["0000000000000007"], merged);
        // A time that cannot be does not stay.
        let mut odd = merged.clone();
        odd.get_mut(&HISTORY).unwrap().insert(LogPosition { term: 1, index: 60 }, 600_000);
        repository.write_marks("0000000000000007", &odd).await.unwrap();
        let told = repository.add_marks("0000000000000007", &own, || now(1000, 600_000)).await.unwrap_err();
        assert_eq!(&*told.message, "the clock here is 600 s behind the leaders'");
        assert_eq!(repository.archive().await.unwrap().marks["0000000000000007"], odd, "if that is known");
        assert_eq!(repository.add_marks("0000000000000007", &own, || now(1000, 0)).await.unwrap(), merged);
        // What it has read it knows when the file is lost.
        own.remember(merged.clone());
        repository.remove_marks("0000000000000007").await.unwrap();
        assert_eq!(repository.add_marks("0000000000000007", &own, || now(1000, 0)).await.unwrap(), merged);
    }

    #[tokio::test]
    async fn a_segment_that_has_a_name_and_no_bytes_is_none_until_it_is_written_again() {
        let repository = Repository::over(&Env::real(), Arc::new(InMemory::new()));
        let segments = archived(&repository, HISTORY).await;
        let name = segments[0].name;
        repository.write_segment(&name, Bytes::from_static(b"\xa5sextLOG\x01\0\0\0")).await.unwrap();
        let archive = repository.archive().await.unwrap();
        assert_eq!((archive.segments_of(&HISTORY), &archive.stumps), (&[segments[1].name][..], &vec![name]));
        assert_eq!(repository.segments_of(HISTORY).await.unwrap(), [segments[1].name]);
        archived(&repository, HISTORY).await;
        assert_archived(&repository, &segments).await;
    }

    #[tokio::test]
    async fn a_segment_that_is_too_large_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::open(&Env::real(), dir.path().to_str().unwrap()).unwrap();
        let segment = segment(HISTORY, 1, 5);
        repository.write_segment(&segment.name, segment::encode(segment.clone()).into()).await.unwrap();
        let file = dir.path().join("archive").join(HISTORY.to_string()).join(segment.name.to_string());
        std::fs::File::options().write(true).open(file).unwrap().set_len(SEGMENT_BYTES_MAX + 1).unwrap();
        let refused = repository.segment(&segment.name).await.unwrap_err();
        assert!(refused.message.contains(&segment.name.to_string()), "{refused}");
        assert!(refused.message.contains("67108865 bytes"), "{refused}");
    }

    #[tokio::test]
    async fn a_segment_under_the_name_of_another_is_none() {
        let repository = Repository::over(&Env::real(), Arc::new(InMemory::new()));
        let (one, other) = (segment(HISTORY, 1, 5), segment(HISTORY, 5, 9));
        repository.write_segment(&one.name, segment::encode(other).into()).await.unwrap();
        assert!(repository.segment(&one.name).await.is_err());
    }
}
