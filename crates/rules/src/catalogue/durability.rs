//! Durability: when a write is safe.

macro_rules! durability {
    ($next:ident $($later:ident)* => $($before:tt)*) => { $next! { $($later)* => $($before)*
    "Durability" {
        "a-batch-is-fsynced-before-it-counts" {
            says: "Log entries are acknowledged when they are fsynced; a failed fsync ends the process.",
            otherwise: "a loss of power takes acknowledged writes",
            source: "design 3; PASV",
            kept_in: ["crates/raft-log/src/device/worker.rs"],
            tests: ["a_failed_fsync_or_write_is_fatal_and_nothing_is_acknowledged_after_it"],
            broken_by: NoFsync "no-fsync" "The log calls durable what it has only written." [Operand],
        }
        "names-are-fsynced-too" {
            says: "A file created, renamed or removed counts when its directory is fsynced.",
            otherwise: "a loss of power takes whole segments and tables",
            source: "design 3",
            kept_in: ["crates/raft-log/src/device/worker.rs", "crates/sstable-server/src/catalog/mod.rs"],
            tests: ["an_atomic_write_leaves_old_or_new_wherever_power_fails"],
            broken_by: NoDirectoryFsync "no-directory-fsync"
                "The simulated disk ignores fsyncs of directories." [Operand],
        }
        "a-majority-before-publication" {
            says: "A group is published when Raft has committed it.",
            otherwise: "an acknowledged write is truncated",
            source: "design 3.8",
            kept_in: [
                "crates/memtable-server/src/worker/leading/publisher/publish.rs",
                "crates/memtable-server/src/publication/queue.rs",
            ],
            tests: ["what_is_not_committed_is_not_published_and_truncation_takes_it_back"],
            broken_by: AcknowledgedBeforeMajority "acknowledged-before-majority"
                "A group is published when the leader has appended it." [Patch("acknowledged-before-majority")],
        }
    }
    } };
}
