//! Leases and publication: who holds up publication, and for how long.

macro_rules! leases {
    ($next:ident $($later:ident)* => $($before:tt)*) => { $next! { $($later)* => $($before)*
    "Leases and publication" {
        "leases-hold-up-publication" {
            says: "A group waits until every lease granted below its serial is acknowledged up to it, or has expired.",
            otherwise: "a stale read under a lease",
            source: "design 6; PDA 4.1, 4.3",
            kept_in: [
                "crates/memtable-server/src/publication/rule.rs",
                "crates/memtable-server/src/lease/grantor.rs",
                "crates/memtable-server/src/worker/leading/publisher/publish.rs",
            ],
            tests: [
                "what_is_acknowledged_is_forbidden_by_no_lease_and_no_lease_outlives_a_later_acknowledgement",
                "an_acknowledgement_frees_the_group",
                "a_group_beyond_an_unacknowledged_lease_waits_for_its_expiry",
                "a_lease_forbids_only_groups_after_its_grant_that_its_holder_has_not_acknowledged",
            ],
            broken_by: NoLeaseWait "no-lease-wait" "Groups are published whatever leases forbid." [Operand],
        }
        "only-earlier-grants-count" {
            says: "Grants made after a group cover it already, and never extend the wait.",
            otherwise: "a p-node that renews for ever stops publication",
            source: "design 6",
            kept_in: ["crates/memtable-server/src/lease/grantor.rs"],
            tests: ["only_grants_made_before_the_group_count_so_a_deaf_holder_delays_it_once"],
            broken_by: LaterGrantsCount "later-grants-count" "Grants made after a group hold it up too." [Model],
        }
        "publication-is-in-log-order" {
            says: "Groups are published strictly in log order, also those without bits.",
            otherwise: "the predecessor's write is visible under a lease that forbids it",
            source: "design 3.8",
            kept_in: ["crates/memtable-server/src/publication/queue.rs"],
            tests: [
                "a_group_without_bits_still_waits_for_its_predecessor",
                "the_order_is_the_logs_whatever_the_leases_say",
            ],
            broken_by: BitlessOvertakes "bitless-overtakes"
                "A group without bits overtakes its predecessors." [Model, Patch("bitless-overtakes")],
        }
        "a-lease-has-its-manifest" {
            says: "A lease with version v is usable only with the tables of v or newer.",
            otherwise: "the flushed memtable's filter is gone, and old SSTables are searched",
            source: "design 6; PDA 5.2",
            kept_in: ["crates/pnode/src/filter_copies/copy/mod.rs", "crates/pnode/src/view/partition_view.rs"],
            tests: ["lease_is_paired_with_its_manifest_version"],
            broken_by: LeaseWithoutManifest "lease-without-manifest"
                "Filters and lease are used without their manifest." [Model, Patch("lease-without-manifest")],
        }
        "a-change-leads-where-its-leader-is" {
            says: "A p-node has a version of the manifest only if its leader's change to it, made of what it had, has the \
                   leader's digest.",
            otherwise: "it searches other SSTables than its version stands for",
            source: "design 10",
            kept_in: ["crates/common/src/manifest/change.rs", "crates/pnode/src/view/partition_view.rs"],
            tests: [
                "a_change_for_another_manifest_is_noticed",
                "what_changes_do_not_lead_to_is_not_used_nor_a_lease_of_it",
            ],
        }
        "an-acknowledgement-ends-older-leases" {
            says: "A p-node that acknowledges a serial uses no older lease any more.",
            otherwise: "without a new lease it uses the old one on: a stale read",
            source: "design 6",
            kept_in: ["crates/pnode/src/filter_copies/copy/mod.rs"],
            tests: ["a_view_that_moves_on_needs_a_lease_for_where_it_stands"],
            broken_by: LeaseOutlivesItsSerial "lease-outlives-its-serial"
                "A p-node keeps its lease when it acknowledges beyond it." [Model, Operand],
        }
        "a-new-ring-remembers-leases" {
            says: "What was granted under an older ring binds until it expires.",
            otherwise: "a stale read under such a lease",
            source: "design 3.9",
            kept_in: ["crates/memtable-server/src/lease/desk.rs"],
            tests: [
                "a_new_incarnation_remembers_how_long_old_leases_bind",
                "leases_of_a_ring_before_hold_up_everything_also_what_left_no_bits",
            ],
            broken_by: IncarnationForgetsLeases "incarnation-forgets-leases"
                "A new ring forgets the leases of the old." [Model, Patch("incarnation-forgets-leases")],
        }
        "a-lease-ends-before-the-leaders-own" {
            says: "A p-node's lease never outlives the leader's, less the drift of both clocks.",
            otherwise: "another leader publishes while it lives: a stale read",
            source: "design 7",
            kept_in: ["crates/memtable-server/src/lease/offer.rs"],
            tests: ["a_lease_ends_before_the_leaders_own_whatever_is_wanted"],
            broken_by: LeaseOutlivesLeadership "lease-outlives-leadership"
                "A p-node's lease may outlive the leader's." [Patch("lease-outlives-leadership")],
        }
        "a-lease-is-timed-before-it-is-measured" {
            says: "A lease counts from a time taken before the leader asked how much of its own is left.",
            otherwise: "a pause in between grants what the leader no longer has",
            source: "design 7",
            kept_in: ["crates/memtable-server/src/lease/offer.rs"],
            tests: ["the_holder_never_believes_beyond_the_grantors_expiry"],
            broken_by: LeaseTimedLate "lease-timed-late"
                "A lease is measured first, and counted from later." [Patch("lease-timed-late")],
        }
        "clocks-are-intervals" {
            says:
                "Of a wall clock the grantor takes the earliest possible time, the holder the latest; unsynchronised, \
                 it says nothing.",
            otherwise: "a lease is used after its grantor's expiry: a stale read",
            source: "design 6, 9; PDA 4.4",
            kept_in: ["crates/pnode/src/lease/holder.rs", "crates/memtable-server/src/replica/state.rs"],
            tests: [
                "the_wall_bound_alone_suffices_but_only_if_both_sides_are_synchronised",
                "a_wall_clock_expiry_is_waited_for_too",
            ],
            broken_by: ZeroUncertainty "zero-uncertainty"
                "Wall clocks are taken at their word." [Patch("zero-uncertainty")],
        }
    }
    } };
}
