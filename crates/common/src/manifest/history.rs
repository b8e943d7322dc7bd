//! The newest changes of a manifest: what whoever is a little behind is told instead of the whole.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Manifest;
use super::change::ManifestChange;
use super::digest::ManifestDigest;
use crate::ids::ManifestVersion;

/// Changes that are kept: minutes of a busy partition. Whoever was away for longer takes the whole.
const CHANGES_MAX: usize = 512;
/// And bytes of them. More than one whole manifest is not worth it, and this is not much of one.
const BYTES_MAX: usize = 1 << 20;

/// A manifest, with what led to it. A copy is cheap.
#[derive(Clone, Debug)]
pub struct Versions {
    pub newest: Arc<Manifest>,
    digest: ManifestDigest,
    changes: Arc<Changes>,
}

#[derive(Clone, Debug, Default)]
struct Changes {
    /// Oldest first, each with the digest of the manifest that it changes. One begins where the one before ends.
    all: VecDeque<(ManifestDigest, Arc<ManifestChange>)>,
    bytes: usize,
}

/// What brings a holder up to date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It has the newest version.
    None,
    /// Oldest first.
    Changes(Vec<Arc<ManifestChange>>),
    /// Only the whole does.
    TooOld,
    /// It has something else by that version: only the whole helps.
    Differs,
}

impl Versions {
    pub fn digest(&self) -> ManifestDigest {
        self.digest
    }

    /// Whether a holder of that version has something to take, as [`Versions::news`] says.
    pub fn is_news(&self, version: ManifestVersion, digest: Option<ManifestDigest>) -> bool {
        let ours = self.newest.version;
        version < ours || version == ours && digest.is_some_and(|digest| digest != self.digest)
    }

    /// The next version.
    pub fn follow(&mut self, next: Arc<Manifest>) {
        let before = self.digest;
        let change = ManifestChange::between(&self.newest, &next);
        self.digest = change.as_ref().map_or_else(|| next.digest(), |change| change.digest);
        self.newest = next;
        Arc::make_mut(&mut self.changes).push(before, change);
    }

    /// For a holder of `version`; it says nothing of its digest if that is None.
    pub fn news(&self, version: ManifestVersion, digest: Option<ManifestDigest>) -> News {
        let differs = |ours: ManifestDigest| digest.is_some_and(|theirs| theirs != ours);
        if version >= self.newest.version {
            let differs = version == self.newest.version && differs(self.digest);
            return if differs { News::Differs } else { News::None };
        }
        let changes = &self.changes.all;
        let at = changes.partition_point(|(_, change)| change.from < version);
        match changes.get(at) {
            Some((before, change)) if change.from == version && differs(*before) => News::Differs,
            Some((_, change)) if change.from == version => {
                News::Changes(changes.range(at..).map(|(_, change)| change.clone()).collect())
            }
            _ => News::TooOld,
        }
    }
}

impl Changes {
    /// None: nobody can follow.
    fn push(&mut self, before: ManifestDigest, change: Option<ManifestChange>) {
        let Some(change) = change else { return *self = Self::default() };
        self.bytes += change.weight();
        self.all.push_back((before, Arc::new(change)));
        while self.all.len() > CHANGES_MAX || self.bytes > BYTES_MAX {
            let Some((_, gone)) = self.all.pop_front() else { return };
            self.bytes -= gone.weight();
        }
    }
}

/// Of which nobody knows what led to it.
impl From<Arc<Manifest>> for Versions {
    fn from(newest: Arc<Manifest>) -> Self {
        Self { digest: newest.digest(), newest, changes: Arc::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PartitionId;

    fn versions(changes: u64) -> Versions {
        let mut versions = Versions::from(Arc::new(Manifest::empty(PartitionId(0))));
        for version in 1..=changes {
            let next = Manifest { version: ManifestVersion(version), ..Manifest::empty(PartitionId(0)) };
            versions.follow(Arc::new(next));
        }
        versions
    }

    #[test]
    fn a_holder_gets_the_changes_that_it_lacks() {
        let versions = versions(5);
        let News::Changes(changes) = versions.news(ManifestVersion(2), None) else { panic!() };
        let steps: Vec<(u64, u64)> = changes.iter().map(|change| (change.from.0, change.to.0)).collect();
        assert_eq!(steps, [(2, 3), (3, 4), (4, 5)]);
        assert_eq!(versions.news(ManifestVersion(5), Some(versions.digest())), News::None);
    }

    #[test]
    fn a_holder_that_means_something_else_by_its_version_is_told_so() {
        let versions = versions(5);
        let wrong = Some(ManifestDigest(1));
        assert_eq!(versions.news(ManifestVersion(2), wrong), News::Differs);
        assert_eq!(versions.news(ManifestVersion(5), wrong), News::Differs);
        // Of what is newer than ours we know nothing.
        assert_eq!(versions.news(ManifestVersion(6), wrong), News::None);
    }

    #[test]
    fn a_holder_that_is_too_far_behind_takes_the_whole() {
        let versions = versions(CHANGES_MAX as u64 + 2);
        assert_eq!(versions.news(ManifestVersion(1), None), News::TooOld);
        assert!(matches!(versions.news(ManifestVersion(2), None), News::Changes(_)));
    }

    #[test]
    fn changes_are_kept_up_to_a_bound_of_bytes() {
        let mut versions = versions(1);
        let name = "n".repeat(100);
        for version in 2..40 {
            let mut next = Manifest { version: ManifestVersion(version), ..(*versions.newest).clone() };
            let keys = crate::key_range::KeyRange::new(vec![1; 60_000], vec![]);
            let mut table = super::super::TableManifest::new(
                crate::ids::TableId(version as u32),
                name.clone(),
                Default::default(),
            );
            table.ssts.insert(0, super::super::change::tests::sst(version as u32, keys));
            next.tables.push(table);
            versions.follow(Arc::new(next));
        }
        assert!(versions.changes.bytes <= BYTES_MAX && versions.changes.all.len() > 10);
        assert_eq!(versions.news(ManifestVersion(2), None), News::TooOld);
    }
}
