//! Flushes and compactions: how SSTables come about.

macro_rules! tables {
    ($next:ident $($later:ident)* => $($before:tt)*) => { $next! { $($later)* => $($before)*
    "Flushes and compactions" {
        "a-flush-follows-publication" {
            says: "A memtable is flushed when everything up to its freeze is published.",
            otherwise: "one p-node sees the new value, another the old one under its lease",
            source: "design 10; PDA 5.1",
            kept_in: ["crates/memtable-server/src/partition/rules.rs"],
            tests: ["a_memtable_is_flushable_only_when_everything_up_to_its_freeze_is_published"],
            broken_by: FlushBeforePublished "flush-before-published"
                "A memtable is flushed before its freeze is published." [Model, Operand],
        }
        "flags-are-in-freeze-order" {
            says: "Flush flags of a table apply strictly in the order of its freezes.",
            otherwise: "the older memtable's table shadows the newer one",
            source: "design 10",
            kept_in: ["crates/memtable-server/src/partition/commit.rs"],
            tests: ["flush_flags_apply_strictly_in_freeze_order"],
            broken_by: FlagsOutOfOrder "flags-out-of-order"
                "The newest frozen memtable is flushed first." [Model, Patch("flags-out-of-order")],
        }
        "an-id-has-one-content" {
            says: "An SSTable's id carries plan, epoch and attempt, and a sealed table is never replaced.",
            otherwise: "an old leader's late seal changes contents under the manifest",
            source: "design 2, 10",
            kept_in: ["crates/memtable-server/src/flush/mod.rs", "crates/sstable-server/src/catalog/mod.rs"],
            tests: ["an_id_has_one_content_for_ever", "sst_id_round_trips_as_bytes_and_as_a_name"],
            broken_by: TableReplaced "table-replaced"
                "Tables planned on one version share an id, and a later seal replaces."
                [Model, Patch("table-replaced")],
        }
        "a-tombstone-stays-above-older-tables" {
            says: "A compaction drops tombstones only if no older table outside its inputs can hold their keys.",
            otherwise: "a deleted record comes back",
            source: "design 10",
            kept_in: [
                "crates/memtable-server/src/worker/leading/upkeep/choice.rs",
                "crates/memtable-server/src/flush/compaction.rs",
                "crates/memtable-server/src/partition/columns.rs",
            ],
            tests: [
                "a_compaction_applies_only_while_its_inputs_are_there_and_hide_all_that_they_hid",
                "each_key_sees_what_it_saw_whatever_is_compacted",
            ],
            broken_by: TombstoneDroppedEarly "tombstone-dropped-early"
                "A compaction of the newer tables drops tombstones." [Model, Patch("tombstone-dropped-early")],
        }
        "outputs-take-the-place-of-the-oldest-input" {
            says: "A compaction's outputs go where its oldest input was, and nothing that overlaps lies between its inputs.",
            otherwise: "a newer table's record is hidden by an older one",
            source: "design 10",
            kept_in: ["crates/memtable-server/src/partition/columns.rs"],
            tests: ["each_key_sees_what_it_saw_whatever_is_compacted", "what_lies_between_the_inputs_forbids_a_compaction"],
        }
    }
    } };
}
