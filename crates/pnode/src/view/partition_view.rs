//! One partition as routing sees it at one instant.

use std::sync::Arc;

use sextant_common::expiry::{Tick, Ticks};
use sextant_common::ids::{Generation, TableId};
use sextant_common::manifest::{Manifest, ManifestChange};
use sextant_environment::Clock;
use sextant_proto::convert::manifest_change::ToldOfManifest;
use sextant_rules::mutant::{self, Mutant};

use super::{FilterCopies, ManifestView};
use crate::lease::Lease;

/// Filters, N, v, set of SSTables and expiry: one object.
#[derive(Clone)]
pub(crate) struct PartitionView {
    pub manifest: Arc<ManifestView>,
    /// Whether `manifest` came from a leader (and is not merely the empty one of the beginning).
    pub manifest_known: bool,
    pub copies: Option<FilterCopies>,
    /// The newest tick that is known to be published. What was published stays so, whoever leads.
    pub published: Tick,
    /// Only together with `copies` of its epoch and SSTables of its version or newer.
    pub lease: Option<Lease>,
}

impl PartitionView {
    pub fn empty() -> Self {
        Self {
            manifest: Arc::new(ManifestView::empty()),
            manifest_known: false,
            copies: None,
            published: Tick::default(),
            lease: None,
        }
    }

    /// What is known of the partition's time. The newest announced tick means something under a lease only.
    #[inline]
    pub fn ticks(&self) -> Ticks {
        let announced = self.copies.as_ref().map_or(Tick::default(), |copies| copies.announced);
        if mutant::active(Mutant::ExpiredByKnownTick) {
            return Ticks::exactly(announced.max(self.published));
        }
        Ticks { published: self.published, announced }
    }

    /// The filters, if a lease makes them usable at this instant. Reads the clock.
    #[inline]
    pub fn leased_copies(&self, clock: &dyn Clock) -> Option<&FilterCopies> {
        let lease = self.lease.as_ref()?;
        debug_assert!(
            lease.manifest_version <= self.manifest.version,
            "a lease needs SSTables of its version or newer"
        );
        if lease.is_usable(clock) { self.copies.as_ref() } else { None }
    }

    /// This view with a newer manifest, whole or as changes of what it has; None if there is nothing new in it. `told`: what came
    /// with it.
    pub fn with_news(&self, whole: Option<Manifest>, told: Option<&ToldOfManifest>) -> Option<Self> {
        let Some(manifest) = whole else { return self.with_changes(&told?.changes) };
        let digest = told.filter(|told| told.version == manifest.version).map(|told| told.digest);
        if self.manifest_known && !self.manifest.is_superseded_by(&manifest, digest) {
            return None;
        }
        Some(self.with_manifest(ManifestView::of_whole(manifest, digest, &self.manifest)))
    }

    /// As far as they go on from what it has, and lead to what they were made for.
    fn with_changes(&self, changes: &[ManifestChange]) -> Option<Self> {
        let mut next: Option<ManifestView> = None;
        for change in changes {
            let before = next.as_ref().unwrap_or(&self.manifest);
            if change.from < before.version {
                continue;
            }
            match before.changed(change) {
                Ok(changed) => next = Some(changed),
                Err(_) => break,
            }
        }
        next.map(|manifest| self.with_manifest(manifest))
    }

    /// What the manifest has flushed needs no filter any more.
    fn with_manifest(&self, manifest: ManifestView) -> Self {
        let mut view = Self { manifest: Arc::new(manifest), manifest_known: true, ..self.clone() };
        view.drop_flushed_filters();
        view
    }

    /// Whether the leader has told of another manifest than this one, which has to be fetched.
    pub fn lacks(&self, told: &ToldOfManifest) -> bool {
        let ours = (self.manifest.version, self.manifest.digest);
        told.version > ours.0 || told.version == ours.0 && told.digest != ours.1
    }

    pub fn drop_flushed_filters(&mut self) {
        if let Some(copies) = &mut self.copies {
            copies.drop_flushed(|table, generation| is_flushed(&self.manifest, table, generation));
        }
    }
}

/// Whether the memtable's contents are in the SSTables of this manifest.
pub(crate) fn is_flushed(manifest: &ManifestView, table: TableId, generation: Generation) -> bool {
    manifest.table(table).is_some_and(|t| generation <= t.flushed_generation)
}
