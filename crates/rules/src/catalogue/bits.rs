//! Bits and filters: what p-nodes hear of a write, and when.

macro_rules! bits {
    ($next:ident $($later:ident)* => $($before:tt)*) => { $next! { $($later)* => $($before)*
    "Bits and filters" {
        "bits-go-out-first" {
            says: "A group's bits are in the leader's filters and ring before it is proposed.",
            otherwise: "it is published, and no lease's holder knows: a stale read",
            source: "design 3.5; PDA 3.4, 4.2",
            kept_in: ["crates/memtable-server/src/worker/leading/sequencer/mod.rs"],
            tests: ["a_group_beyond_an_unacknowledged_lease_waits_for_its_expiry"],
            broken_by: BitsAfterProposal "bits-after-proposal"
                "Bits go out after the proposal, and it waits for nobody." [Patch("between-evaluation-and-append")],
            broken_by: BitsAfterPublication "bits-after-publication" "bf-log entries go out after publication." [Model],
        }
        "the-memtable-says-what-it-holds" {
            says:
                "What the active memtable holds is asked of it, never of its filter: truncations and refused groups \
                 leave bits.",
            otherwise: "after a refused update the next leaves no bit, and waits for nobody",
            source: "design 3.2",
            kept_in: [
                "crates/memtable-server/src/partition/evaluate.rs",
                "crates/memtable-server/src/partition/rules.rs",
            ],
            tests: ["a_truncated_update_leaves_its_bit_and_the_next_update_leaves_one_again"],
            broken_by: FilterSaysInMemtable "filter-says-in-memtable"
                "The memtable's filter is asked; a refused group leads to no new ring."
                [Model, Patch("filter-says-in-memtable")],
            broken_by: FilterSaysWithNewRing "filter-says-with-new-ring"
                "The memtable's filter is asked; a refused group leads to a new ring." [Covered],
        }
        "a-prefix-leaves-a-bit-in-each-memtable" {
            says:
                "In a table whose filters know prefixes, the first write of each memtable with a prefix leaves a bit for \
                 it, whatever it is; the memtable says whether it is the first.",
            otherwise: "a scan of the prefix asks no leader, and misses what memtables have of it",
            source: "design 17",
            kept_in: [
                "crates/memtable-server/src/partition/evaluate.rs",
                "crates/memtable-server/src/partition/rules.rs",
                "crates/pnode/src/router/scan/page.rs",
            ],
            tests: ["the_first_write_of_a_prefix_leaves_a_bit_in_each_memtable"],
            broken_by: InsertLeavesNoPrefix "insert-leaves-no-prefix"
                "An INSERT leaves no bit for its prefix." [Model, Operand],
            broken_by: FrozenPrefixCounts "frozen-prefix-counts"
                "A prefix that a frozen memtable has leaves no bit." [Model, Operand],
            broken_by: PrefixWithoutLease "prefix-without-lease"
                "A scan goes by the filters' word on its prefix without a lease." [Model, Operand],
            broken_by: FilterSaysPrefix "filter-says-prefix"
                "The memtable's filter is asked whether it has the prefix; a refused group leads to no new ring." [Model],
        }
        "a-refused-group-ends-the-ring" {
            says: "When Raft refuses a group whose bits are out, a new ring begins.",
            otherwise:
                "with registered reads a stale read of what was kept: its swaps have taken the registrations, and \
                 evaluated again it may wait for nobody; without them nothing, while the memtable says what it holds",
            source: "design 3.9, 14",
            kept_in: ["crates/memtable-server/src/worker/leading/sequencer/mod.rs"],
            tests: ["registered_reads_and_new_rings"],
            broken_by: RefusedBitsStay "refused-bits-stay" "After a refused group the ring goes on." [Model],
        }
        "a-put-over-a-frozen-key-leaves-a-bit" {
            says: "A blind PUT passes for an INSERT only if no frozen memtable holds the key either.",
            otherwise: "a flush brings the older value into an SSTable, and no bit leads past it",
            source: "design 5; PDA 3.2",
            kept_in: ["crates/memtable-server/src/partition/evaluate.rs"],
            tests: ["a_put_leaves_a_bit_while_only_a_frozen_memtable_holds_the_key"],
            broken_by: PutAsInsertOverFrozen "put-as-insert-over-frozen"
                "A put leaves no bit if a frozen memtable has the key." [Model, Operand],
        }
        "whole-filters-hold-the-log" {
            says:
                "A leader's filters hold all of its log; it serves neither them nor a manifest before its own first \
                 entry is applied.",
            otherwise: "a new leader's filters lack what it then publishes",
            source: "design 5, 7",
            kept_in: [
                "crates/memtable-server/src/worker/leading/mod.rs",
                "crates/memtable-server/src/partition/ingest.rs",
            ],
            tests: ["no_manifest_is_served_before_the_leaders_own_first_entry_is_applied"],
            broken_by: FiltersOfCommittedOnly "filters-of-committed-only"
                "Whole filters hold only what is committed." [Model, Patch("filters-of-committed-only")],
        }
        "serials-end-with-their-epoch" {
            says: "Serials and acknowledgements count within an epoch; at a new one p-nodes take whole filters.",
            otherwise: "the new leader uses a position again; a bit is missed",
            source: "design 5",
            kept_in: ["crates/memtable-server/src/lease/desk.rs", "crates/pnode/src/filter_copies/copy/mod.rs"],
            tests: [
                "serials_do_not_continue_across_epochs",
                "whole_filters_at_new_epoch",
                "whole_filters_at_new_epoch_though_serials_would_fit",
                "a_reply_of_another_boot_needs_whole_filters",
            ],
            broken_by: SerialsGoOn "serials-go-on" "Serials mean the same under every leader." [Model, Operand],
        }
        "a-new-ring-binds-nothing-in-flight" {
            says: "When a new ring begins, everything in flight loses its serial, also on its way into the log.",
            otherwise: "it waits for ever for a ring that is gone",
            source: "design 3.9",
            kept_in: ["crates/memtable-server/src/worker/leading/ring.rs"],
            tests: [
                "a_new_ring_binds_nothing_that_is_in_flight_also_not_what_is_on_its_way_into_the_log",
                "changes_of_mode_and_drift_bound_under_load_hold_up_no_publication",
            ],
            broken_by: ProposalKeepsSerial "proposal-keeps-serial"
                "A proposed group keeps its serial of the old ring." [Model, Operand],
        }
    }
    } };
}
