//! Mutants that leave a field out of what a snapshot carries (a checkpoint, the manifest, the configuration): each field is there
//! because something goes wrong without it. Never in a release build: there `mutant::active` is a constant.

use sextant_proto::v1;
use sextant_rules::mutant::{self, Mutant};

/// What a mutant does not find in a snapshot, after a restart or as a follower that was sent one.
pub(super) fn leave_out(snapshot: &mut v1::PartitionSnapshot) {
    // Checkpoint.
    if mutant::active(Mutant::SnapshotWithoutNextSeq) {
        snapshot.next_seq = 0;
    }
    if mutant::active(Mutant::SnapshotWithoutTime) {
        snapshot.time_ms = 0;
    }
    if mutant::active(Mutant::SnapshotWithoutGenerations) {
        snapshot.generations.clear();
    }
    if mutant::active(Mutant::SnapshotWithoutSessions) {
        snapshot.sessions.clear();
    }
    if mutant::active(Mutant::SnapshotWithoutResults) {
        snapshot.sessions.iter_mut().for_each(|s| s.results.clear());
    }
    if mutant::active(Mutant::SnapshotWithoutFloors) {
        snapshot.sessions.iter_mut().for_each(|s| s.floor = 0);
    }
    if mutant::active(Mutant::SnapshotWithoutLastUse) {
        snapshot.sessions.iter_mut().for_each(|s| s.last_used_ms = 0);
    }
    if mutant::active(Mutant::SnapshotWithoutMembership) {
        snapshot.membership.clear();
    }
    // Beside it.
    if mutant::active(Mutant::SnapshotWithoutNextTable) {
        snapshot.next_table = 0;
    }
    if mutant::active(Mutant::SnapshotWithoutConfiguration) {
        snapshot.configuration = None;
    }
    if mutant::active(Mutant::SnapshotWithoutConfiguredAt) {
        snapshot.configured_at = 0;
    }
    let Some(manifest) = &mut snapshot.manifest else { return };
    if mutant::active(Mutant::ManifestWithoutVersion) {
        manifest.version = 0;
    }
    if mutant::active(Mutant::ManifestWithoutFlushes) {
        manifest.recent_flushes.clear();
    }
    if mutant::active(Mutant::ManifestWithoutFlushesKnownAfter) {
        manifest.flushes_known_after = 0;
    }
    for table in &mut manifest.tables {
        if mutant::active(Mutant::ManifestWithoutSsts) {
            table.ssts.clear();
        }
        if mutant::active(Mutant::ManifestWithoutOptions) {
            table.options = Some(v1::TableOptions::default());
        }
        if mutant::active(Mutant::ManifestWithoutFlushedGenerations) {
            table.flushed_generation = 0;
        }
        if mutant::active(Mutant::ManifestWithoutFlushVersions) {
            table.last_flush_version = 0;
        }
        if mutant::active(Mutant::ManifestWithoutPersisted) {
            table.persisted = None;
        }
    }
}
