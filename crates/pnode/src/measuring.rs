//! For benchmarks: what a p-node does with a manifest and its changes, and how it finds the SSTables of a key.

use sextant_common::ids::TableId;
use sextant_common::key::filter_hash;
use sextant_common::manifest::{Manifest, ManifestChange, Mismatch};

use crate::view::ManifestView;

/// A manifest as reads use it.
pub struct Followed(ManifestView);

impl Followed {
    pub fn whole(manifest: Manifest) -> Self {
        Self(ManifestView::of_whole(manifest, None, &ManifestView::empty()))
    }

    /// The same manifest came again, or a newer one.
    pub fn replaced(&self, manifest: Manifest) -> Self {
        Self(ManifestView::of_whole(manifest, None, &self.0))
    }

    pub fn changed(&self, change: &ManifestChange) -> Result<Self, Mismatch> {
        self.0.changed(change).map(Self)
    }

    /// How many SSTables a point read has to ask at most.
    pub fn candidates(&self, table: TableId, key: &[u8]) -> usize {
        let hash = filter_hash(key);
        let table = self.0.table(table);
        table.map_or(0, |table| table.answering(key).filter(|sst| sst.may_contain(key, hash)).count())
    }
}
