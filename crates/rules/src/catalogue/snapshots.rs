//! Snapshots: what a replica starts from.

macro_rules! snapshots {
    ($next:ident $($later:ident)* => $($before:tt)*) => { $next! { $($later)* => $($before)*
    "Snapshots" {
        "a-checkpoint-is-of-its-place" {
            says:
                "A snapshot has the state as of where replay begins: seqs, time, generations, sessions with results, \
                 membership.",
            otherwise: "a replica that starts from it differs from its peers",
            source: "design 10",
            kept_in: ["crates/memtable-server/src/partition/snapshot.rs"],
            tests: ["replicas_agree_after_truncations_and_restarts"],
            broken_by: SnapshotWithoutNextSeq "snapshot-without-next-seq"
                "Snapshots lack the next seq." [Patch("left-out-of-a-snapshot")],
            broken_by: SnapshotWithoutTime "snapshot-without-time"
                "Snapshots lack the partition's time." [Patch("left-out-of-a-snapshot")],
            broken_by: SnapshotWithoutGenerations "snapshot-without-generations"
                "Snapshots lack memtables' generations." [Patch("left-out-of-a-snapshot")],
            broken_by: SnapshotWithoutSessions "snapshot-without-sessions"
                "Snapshots lack sessions." [Patch("left-out-of-a-snapshot")],
            broken_by: SnapshotWithoutResults "snapshot-without-results"
                "Sessions in snapshots lack what requests were answered." [Patch("left-out-of-a-snapshot")],
            broken_by: SnapshotWithoutFloors "snapshot-without-floors"
                "Sessions in snapshots lack the number below which results are gone." [Patch("left-out-of-a-snapshot")],
            broken_by: SnapshotWithoutLastUse "snapshot-without-last-use"
                "Sessions in snapshots lack the time of last use." [Patch("left-out-of-a-snapshot")],
            broken_by: SnapshotWithoutMembership "snapshot-without-membership"
                "Snapshots lack membership." [Patch("left-out-of-a-snapshot")],
        }
        "a-snapshot-carries-what-is-committed" {
            says: "It also has the newest committed manifest and configuration, every field.",
            otherwise: "a replica plans, flushes or answers by others than its peers",
            source: "design 10",
            kept_in: ["crates/memtable-server/src/partition/snapshot.rs"],
            tests: [
                "the_configuration_is_replicated_and_outlives_the_files",
                "replay_skips_per_table_what_its_flush_flag_covers",
            ],
            broken_by: SnapshotWithoutNextTable "snapshot-without-next-table"
                "Snapshots lack the next table's id." [Patch("left-out-of-a-snapshot")],
            broken_by: SnapshotWithoutConfiguration "snapshot-without-configuration"
                "Snapshots lack the configuration." [Patch("left-out-of-a-snapshot")],
            broken_by: SnapshotWithoutConfiguredAt "snapshot-without-configured-at"
                "Snapshots lack the configuration's place in the log." [Patch("left-out-of-a-snapshot")],
            broken_by: ManifestWithoutVersion "manifest-without-version"
                "Manifests in snapshots lack their version." [Patch("left-out-of-a-snapshot")],
            broken_by: ManifestWithoutFlushes "manifest-without-flushes"
                "Manifests in snapshots lack the flushes remembered." [Patch("left-out-of-a-snapshot")],
            broken_by: ManifestWithoutFlushesKnownAfter "manifest-without-flushes-known-after"
                "Manifests in snapshots lack the version after which all flushes are remembered."
                [Patch("left-out-of-a-snapshot")],
            broken_by: ManifestWithoutSsts "manifest-without-ssts"
                "Manifests in snapshots lack SSTables." [Patch("left-out-of-a-snapshot")],
            broken_by: ManifestWithoutOptions "manifest-without-options"
                "Manifests in snapshots lack tables' options." [Patch("left-out-of-a-snapshot")],
            broken_by: ManifestWithoutFlushedGenerations "manifest-without-flushed-generations"
                "Manifests in snapshots lack flushed generations." [Patch("left-out-of-a-snapshot")],
            broken_by: ManifestWithoutFlushVersions "manifest-without-flush-versions"
                "Manifests in snapshots lack the versions that last flushes made." [Patch("left-out-of-a-snapshot")],
            broken_by: ManifestWithoutPersisted "manifest-without-persisted"
                "Manifests in snapshots lack tables' persistence points." [Patch("left-out-of-a-snapshot")],
        }
    }
    } };
}
