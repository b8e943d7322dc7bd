//! Mutants that leave a field out of what a snapshot carries (a checkpoint, the manifest, the configuration): each field is there
//! because something goes wrong without it. Never in a release build: there `mutant::active` is a constant.

use sextant_proto::v1;

/// What a mutant does not find in a snapshot, after a restart or as a follower that was sent one.
pub(super) fn leave_out(snapshot: &mut v1::PartitionSnapshot) {
    // Checkpoint.
    if sextant_rules::mutant::active(sextant_rules::mutant::Mutant::SnapshotWithoutNextSeq) {
        snapshot.next_seq = 0;
    }
    if sextant_rules::mutant::active(sextant_rules::mutant::Mutant::SnapshotWithoutTime) {
        snapshot.time_ms = 0;
    }
    if sextant_rules::mutant::active(sextant_rules::mutant::Mutant::SnapshotWithoutGenerations) {
        snapshot.generations.clear();
    }
    if sextant_rules::mutant::active(sextant_rules::mutant::Mutant::SnapshotWithoutSessions) {
        snapshot.sessions.clear();
    }
    if sextant_rules::mutant::active(sextant_rules::mutant::Mutant::SnapshotWithoutResults) {
        snapshot.sessions.iter_mut().for_each(|s| s.results.clear());
    }
    if sextant_rules::mutant::active(sextant_rules::mutant::Mutant::SnapshotWithoutFloors) {
        snapshot.sessions.iter_mut().for_each(|s| s.floor = 0);
    }
    if sextant_rules::mutant::active(sextant_rules::mutant::Mutant::SnapshotWithoutLastUse) {
        snapshot.sessions.iter_mut().for_each(|s| s.last_used_ms = 0);
    }
    if sextant_rules::mutant::active(sextant_rules::mutant::Mutant::SnapshotWithoutMembership) {
        snapshot.membership.clear();
    }
    // Beside it.
    if sextant_rules::mutant::active(sextant_rules::mutant::Mutant::SnapshotWithoutNextTable) {
        snapshot.next_table = 0;
    }
    if sextant_rules::mutant::active(sextant_rules::mutant::Mutant::SnapshotWithoutConfiguration) {
        snapshot.configuration = None;
    }
    if sextant_rules::mutant::active(sextant_rules::mutant::Mutant::SnapshotWithoutConfiguredAt) {
        snapshot.configured_at = 0;
    }
    let Some(manifest) = &mut snapshot.manifest else { return };
    if sextant_rules::mutant::active(sextant_rules::mutant::Mutant::ManifestWithoutVersion) {
        manifest.version = 0;
    }
    if sextant_rules::mutant::active(sextant_rules::mutant::Mutant::ManifestWithoutFlushes) {
        manifest.recent_flushes.clear();
    }
    if sextant_rules::mutant::active(sextant_rules::mutant::Mutant::ManifestWithoutFlushesKnownAfter) {
        manifest.flushes_known_after = 0;
    }
    for table in &mut manifest.tables {
        if sextant_rules::mutant::active(sextant_rules::mutant::Mutant::ManifestWithoutSsts) {
            table.ssts.clear();
        }
        if sextant_rules::mutant::active(sextant_rules::mutant::Mutant::ManifestWithoutOptions) {
            table.options = Some(v1::TableOptions::default());
        }
        if sextant_rules::mutant::active(sextant_rules::mutant::Mutant::ManifestWithoutFlushedGenerations) {
            table.flushed_generation = 0;
        }
        if sextant_rules::mutant::active(sextant_rules::mutant::Mutant::ManifestWithoutFlushVersions) {
            table.last_flush_version = 0;
        }
        if sextant_rules::mutant::active(sextant_rules::mutant::Mutant::ManifestWithoutPersisted) {
            table.persisted = None;
        }
    }
}
