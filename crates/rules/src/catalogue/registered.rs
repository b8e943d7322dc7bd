//! Registered reads: what a p-node may keep of a leader's answers, and what ends it; tables from outside.
//!
//! Servers adopt loads under no lease ([the decision](../../../../docs/decisions/0034-loads.md)); what loads under leases would need is
//! kept in the model, which shows what is enough.

macro_rules! registered {
    ($next:ident $($later:ident)* => $($before:tt)*) => { $next! { $($later)* => $($before)*
    "Registered reads" {
        "a-registration-begins-with-its-serial" {
            says: "The leader takes (epoch, newest serial of the ring) before it sets the slot's bit for a memtable read.",
            otherwise: "a write between the two is invalidated by a serial that the answer already has: a stale read",
            source: "design 14",
            kept_in: ["crates/memtable-server/src/reading/mod.rs"],
            tests: ["answers_are_kept_with_what_the_ring_was_before_the_first_of_them", "registered_reads_of_two_writes"],
            broken_by: SerialAfterBit "serial-after-bit"
                "A registered read takes the serial after it set the slot's bit." [Model, Operand],
        }
        "epoch-and-serial-are-one" {
            says: "A registered read takes epoch and serial of one ring, under one lock.",
            otherwise:
                "a serial of the old ring under the name of the new one outlives the first invalidations there: a \
                 stale read",
            source: "design 14",
            kept_in: ["crates/memtable-server/src/reading/mod.rs", "crates/memtable-server/src/lease/desk.rs"],
            tests: ["registered_reads_and_new_rings"],
            broken_by: EpochAndSerialApart "epoch-and-serial-apart"
                "A registered read takes the serial, and then the epoch." [Model, Operand],
        }
        "an-answer-is-kept-if-its-slot-is-published" {
            says:
                "A registered read's answer may be kept only if the newest seq formed for its slot, when the bit was \
                 set, is not above the seq that was read at.",
            otherwise: "a write on its way had seen no registration, and invalidates nothing: a stale read",
            source: "design 14",
            kept_in: ["crates/memtable-server/src/reading/mod.rs", "crates/memtable-server/src/lease/slots.rs"],
            tests: ["an_answer_may_be_kept_if_no_write_of_its_slot_is_on_its_way", "registered_reads_of_two_writes"],
            broken_by: SlotSeqNotCompared "slot-seq-not-compared"
                "An answer is kept whatever was formed for its slot." [Model, Operand],
            broken_by: PublishedBeforeBit "published-before-bit"
                "A registered read loads the published seq before it sets the slot's bit." [Covered],
        }
        "slots-are-swapped-first" {
            says:
                "The sequencer swaps each slot of a group for (seq, unregistered), in one atomic step, before ring \
                 entries and proposal; the group's serial is its last entry's, invalidations too.",
            otherwise: "the write is published while somebody holds a lease and what was kept: a stale read",
            source: "design 14",
            kept_in: ["crates/memtable-server/src/worker/leading/sequencer/forming.rs", "crates/memtable-server/src/lease/slots.rs"],
            tests: ["no_registration_is_lost_between_threads", "registered_reads_of_two_writes", "registered_reads_of_keys_that_share_a_slot"],
            broken_by: SwapAfterProposal "swap-after-proposal"
                "A group's slots are swapped after it was proposed." [Model, Operand],
            broken_by: SwapInHalves "swap-in-halves"
                "A slot is read, and then written: a bit set in between is lost." [Model],
        }
        "an-ignored-group-ends-the-ring" {
            says:
                "When every replica ignores a group whose ring entries are out, if only invalidations, a new ring \
                 begins, as after a refusal.",
            otherwise:
                "its swaps have taken the registrations; evaluated again it invalidates nothing, may leave no bit, \
                 and waits for nobody: a stale read",
            source: "design 14",
            kept_in: ["crates/memtable-server/src/worker/leading/mod.rs"],
            tests: ["registered_reads_and_groups_that_are_ignored"],
            broken_by: IgnoredBitsStay "ignored-bits-stay" "After an ignored group the ring goes on." [Model],
        }
        "an-invalidation-is-applied-before-it-is-acknowledged" {
            says: "A p-node applies invalidations before it acknowledges their serial.",
            otherwise: "the write is published, and its old value is still used: a stale read",
            source: "design 14",
            kept_in: ["crates/pnode/src/filter_copies/copy/mod.rs"],
            tests: ["invalidations_count_as_they_come_and_old_views_see_them_too", "registered_reads_at_two_pnodes"],
            broken_by: AcknowledgedBeforeApplied "acknowledged-before-applied"
                "A p-node acknowledges invalidations before it applies them." [Model, Patch("acknowledged-before-applied")],
        }
        "what-is-kept-has-the-serial-of-its-read" {
            says:
                "A p-node keeps an answer with the epoch and serial that the leader took for that read, however late \
                 it arrives.",
            otherwise: "an answer that was invalidated on its way is used: a stale read",
            source: "design 14",
            kept_in: ["crates/pnode/src/router/point_reads.rs", "crates/pnode/src/record_cache/kept.rs"],
            tests: ["an_answer_that_arrives_after_its_invalidation_is_over", "registered_reads_of_two_writes"],
            broken_by: KeptAtArrival "kept-at-arrival"
                "An answer is kept with the p-node's own epoch and serial at its arrival." [Model, Operand],
        }
        "what-is-kept-ends-with-its-epoch" {
            says: "A kept answer is usable only in the epoch that it was read in.",
            otherwise: "the new leader knows of no registration, and invalidates nothing: a stale read",
            source: "design 14",
            kept_in: ["crates/pnode/src/view/filters.rs"],
            tests: ["what_is_kept_ends_with_its_epoch_and_with_whole_filters", "registered_reads_and_a_failover", "registered_reads_and_new_rings"],
            broken_by: KeptOverEpoch "kept-over-epoch" "A kept answer is usable in any epoch." [Model, Operand],
        }
        "whole-filters-end-what-was-kept-before" {
            says:
                "At every installation of whole filters, an epoch's first too, the serial of every slot becomes theirs.",
            otherwise: "an invalidation that the p-node never saw counts for nothing: a stale read",
            source: "design 14",
            kept_in: ["crates/pnode/src/filter_copies/copy/mod.rs"],
            tests: ["everything_ends_with_a_new_epoch_and_with_whole_filters",
                "registered_reads_and_whole_filters_within_an_epoch",
                "registered_reads_and_a_failover",
            ],
            broken_by: KeptOverWholeFilters "kept-over-whole-filters"
                "Whole filters of the same epoch leave the slots' serials." [Model, Operand],
            broken_by: KeptOverFirstFilters "kept-over-first-filters"
                "With an epoch's first whole filters the slots' serials begin at 0." [Model, Operand],
        }
        "what-is-kept-needs-a-lease" {
            says: "A kept answer is used only under a lease, and where the filters are consulted.",
            otherwise: "nobody waited for this p-node: a stale read",
            source: "design 14",
            kept_in: ["crates/pnode/src/router/consult.rs"],
            tests: ["nothing_is_used_without_a_lease_nor_in_other_modes", "registered_reads_of_two_writes"],
            broken_by: KeptWithoutLease "kept-without-lease" "A kept answer is used without a lease." [Model, Operand],
        }
        "slots-begin-at-the-newest-seq" {
            says: "A new leader begins every slot with the newest appended seq.",
            otherwise: "nothing, while a fresh leader answers no read before all of its log at the start is published",
            source: "design 14",
            kept_in: ["crates/memtable-server/src/worker/leading/mod.rs", "crates/memtable-server/src/lease/slots.rs"],
            tests: ["registered_reads_and_a_failover"],
            broken_by: SlotsStartAtNothing "slots-start-at-nothing"
                "A new leader begins every slot with no seq." [Covered],
        }
    }
    "Tables from outside" {
        "a-load-is-announced" {
            says:
                "Before a table from outside replaces what is there (or drops it), an announcement is published: from \
                 then on holders ask the leader for every key, until they use the load's manifest. Whole filters \
                 carry it from the moment its ring entry is out.",
            otherwise: "a holder reads the old SSTables after the load, as no bit leads away from them: a stale read",
            source: "design 14",
            kept_in: ["tests/model/src/step/loads.rs"],
            tests: ["loads_beside_reads_and_writes"],
            broken_by: LoadNotAnnounced "load-not-announced"
                "A load is proposed without an announcement." [Model],
            broken_by: WholeFiltersWithoutAnnouncement "whole-filters-without-announcement"
                "Whole filters do not say that a load is announced." [Model],
            broken_by: AnnouncedWhenAppended "announced-when-appended"
                "Whole filters say so when the announcement is in the log, not when its ring entry is out." [Model],
            broken_by: LoadProposedEarly "load-proposed-early"
                "A load is proposed when its announcement is appended, not published." [Covered],
            broken_by: LoadAnnouncesItself "load-announces-itself"
                "A load is announced by a ring entry of its own, without an earlier log entry." [Covered],
        }
        "a-load-writes-every-key" {
            says: "A load takes a seq, swaps it into every slot, and invalidates everything.",
            otherwise: "a stale read of what was kept",
            source: "design 14",
            kept_in: ["tests/model/src/step/loads.rs"],
            tests: ["loads_beside_reads_and_writes"],
            broken_by: LoadInvalidatesNothing "load-invalidates-nothing"
                "A load swaps every slot and invalidates nothing." [Model],
            broken_by: LoadSwapsNothing "load-swaps-nothing"
                "A load invalidates everything and swaps no slot." [Model],
        }
        "a-load-is-shown-before-it-is-published" {
            says:
                "Readers get the load's manifest when it may be published, before its seq is; from then on readers of \
                 older versions are stale, without a grace.",
            otherwise:
                "an answer from before the load is taken for one after it, and kept; or a reader of the old SSTables \
                 is answered \"no entry\"",
            source: "design 14",
            kept_in: ["tests/model/src/step/loads.rs"],
            tests: ["loads_beside_reads_and_writes"],
            broken_by: LoadPublishedFirst "load-published-first"
                "A load's seq is published before readers get its manifest." [Model],
            broken_by: LoadInGrace "load-in-grace"
                "Readers of versions before a load are answered for a while, as after a flush." [Model],
        }
        "a-load-voids-bases-when-it-is-appended" {
            says: "From a load's append until its manifest is out no base of a condition counts: no group is formed.",
            otherwise: "an INSERT succeeds on a key that the load brings",
            source: "design 14",
            kept_in: ["crates/memtable-server/src/worker/leading/adoption.rs", "tests/model/src/step/loads.rs"],
            tests: ["loads_beside_reads_and_writes", "readers_and_conditions_of_before_a_load_are_stale_at_once"],
            broken_by: BaseOverLoad "base-over-load" "A load voids bases when it is shown, as a flush does." [Model],
        }
        "a-load-is-seen-under-no-lease" {
            says:
                "A load is proposed when no lease lives, and none is granted until it is applied: then by a new ring, \
                 for the manifest that has it.",
            otherwise: "a holder reads the old SSTables after the load, as no bit leads away from them: a stale read",
            source: "design 14",
            kept_in: ["crates/memtable-server/src/worker/leading/adoption.rs"],
            tests: [
                "a_load_is_proposed_when_no_lease_lives_and_nothing_is_under_way",
                "while_leases_are_withheld_the_old_ones_run_out_or_are_acknowledged_away",
                "loads_that_are_adopted_while_no_lease_lives",
                "everybody_sees_a_load_from_one_moment_on_whoever_reads_and_writes_and_leads_meanwhile"
            ],
            broken_by: LoadUnderLease "load-under-lease"
                "A load is proposed while leases live." [Model, Operand],
            broken_by: LoadGrantsOn "load-grants-on"
                "Leases are granted while a load is on its way." [Model],
        }
        "what-is-kept-ends-when-a-load-is-applied" {
            says: "The view has a load, then the ring begins anew, and only then leases are granted for its manifest.",
            otherwise: "what was kept of a read before it, or between the new ring and the load, is used after it",
            source: "design 14",
            kept_in: [
                "crates/memtable-server/src/worker/leading/adoption.rs",
                "crates/memtable-server/src/worker/inbox/events.rs"
            ],
            tests: ["loads_that_are_adopted_while_no_lease_lives"],
            broken_by: LoadKeepsRing "load-keeps-ring" "After a load the ring goes on." [Model, Operand],
            broken_by: LoadRenewsEarly "load-renews-early"
                "The ring begins anew when a load is proposed, not when it is applied." [Model],
        }
        "a-load-is-newer-than-what-was-written-before" {
            says:
                "A load ends an empty memtable above which nothing is unflushed, and its seq is above all before it and \
                 below all after it; nobody has seen it before.",
            otherwise: "an older write hides what is loaded, or a compare with its seq holds for another record",
            source: "design 14",
            kept_in: ["crates/memtable-server/src/partition/ingest.rs", "crates/common/src/load.rs"],
            tests: [
                "a_load_comes_on_top_as_one_change_and_numbers_go_on_behind_it",
                "a_load_that_was_made_for_another_log_does_nothing",
                "a_restart_and_a_replay_from_before_it_apply_a_load_once",
                "no_two_loads_share_a_generation"
            ],
        }
        "no-stamp-passes-a-load" {
            says: "A cached record's stamp never moves past a load, which may lack what was there.",
            otherwise: "a record that was dropped comes back",
            source: "design 14",
            kept_in: ["tests/model/src/step/reads.rs", "crates/pnode/src/record_cache/mod.rs"],
            tests: ["drops_beside_the_cache", "nothing_is_known_of_a_table_that_the_manifest_does_not_have"],
            broken_by: StampOverLoad "stamp-over-load"
                "A cached record's stamp moves past a load that lacks the key, as past a flush." [Model],
        }
        "a-table-is-changed-under-no-lease" {
            says:
                "A table is dropped, or gets other options, by an entry that is proposed when no lease lives; none is granted, \
                 and no group formed, until it is applied; then by a new ring.",
            otherwise: "a holder reads what is gone, or takes for absent what left no bit",
            source: "design 14",
            kept_in: ["crates/memtable-server/src/worker/leading/adoption.rs"],
            tests: [
                "drops_while_no_lease_lives",
                "what_was_dropped_is_seen_by_nobody_whoever_reads_and_writes_and_leads_meanwhile",
                "options_change_under_writers_and_nothing_that_was_written_is_missed"
            ],
        }
        "options-change-over-an-empty-memtable" {
            says: "Options change when all that was written to the table before is flushed.",
            otherwise: "keys that were inserted without a bit are taken for absent when every insert is to leave one",
            source: "design 14",
            kept_in: [
                "crates/memtable-server/src/worker/leading/adoption.rs",
                "crates/memtable-server/src/partition/commit.rs"
            ],
            tests: ["options_change_when_all_that_was_written_before_is_flushed"],
            broken_by: OptionsOverMemtable "options-over-memtable"
                "Options change over a memtable that holds something." [Operand],
        }
        "nothing-is-written-to-a-dropped-table" {
            says:
                "What comes after a drop in the log and names the table is ignored by every replica; who creates that table \
                 late does not.",
            otherwise: "replicas differ, or a table that nobody can name holds the log",
            source: "design 14",
            kept_in: [
                "crates/memtable-server/src/partition/ingest.rs",
                "crates/memtable-server/src/partition/commit.rs"
            ],
            tests: [
                "nothing_that_comes_after_it_in_the_log_writes_to_a_dropped_table_committed_or_not",
                "a_dropped_table_is_not_made_again_by_who_comes_late_and_its_name_is_free",
                "a_dropped_table_holds_no_log_and_a_replay_from_before_makes_the_same_of_the_rest"
            ],
        }
    }
    } };
}
