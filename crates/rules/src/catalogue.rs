//! The catalogue: each rule of the protocol, what goes wrong without it, where it is kept, and what shows that it is needed.
//!
//! Plain data. [`Mutant`](crate::mutant::Mutant) is made from it, and with it the lists of the model and of the simulation;
//! `docs/rules.md` is written from it ([`crate::document`]). Tests ask that the files and tests that it names are there.
//!
//! Sources: "design N" is a section of `docs/design.md`; "PDA" is the paper "precise data access", "PASV" the one on one log.
//!
//! To add a rule: an entry under its subject; `kept_in` are files, `tests` names of functions. A broken build is
//! `Variant "name" "what it does" [ways]`. `Operand`: ask `mutant::active(Mutant::Variant)` in the code. `Patch`: see
//! `tests/sim/mutants/README.md`. `Model`, `Election`: weaken it in `tests/model`. Measure it (`cargo xtask sim --mutants NAME`,
//! `cargo test -p sextant-model -- --nocapture`), put the row into `measured.rs`, then `cargo xtask rules` and
//! `cargo test -p sextant-rules`.

/// A rule of the protocol.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub name: &'static str,
    pub says: &'static str,
    /// What goes wrong if it is weakened.
    pub otherwise: &'static str,
    pub source: &'static str,
    /// The files that keep it.
    pub kept_in: &'static [&'static str],
    /// Test functions that hold it.
    pub tests: &'static [&'static str],
    pub broken_by: &'static [Broken],
}

/// A build that breaks a rule.
#[derive(Clone, Copy, Debug)]
pub struct Broken {
    /// As command lines name it.
    pub name: &'static str,
    pub does: &'static str,
    pub ways: &'static [Way],
}

/// Where a rule is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In the model of the protocol.
    Model,
    /// There, and no violation follows: another rule covers for it.
    Covered,
    /// In the model of elections and lost memory.
    Election,
    /// In the servers' own code, or on the simulated disk, by an operand that is constant in every other build.
    Operand,
    /// In the servers' code by a patch, which the mutation run applies to a copy of the tree: `tests/sim/mutants/NAME.patch`.
    Patch(&'static str),
}

impl Way {
    pub fn is_of_the_simulation(self) -> bool {
        matches!(self, Way::Operand | Way::Patch(_))
    }
}

/// Rules about one thing.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    pub title: &'static str,
    pub rules: &'static [Rule],
}

/// All rules.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    RULES.iter().flat_map(|subject| subject.rules)
}

macro_rules! rules {
    ($($title:literal {
        $($name:literal {
            says: $says:literal,
            otherwise: $otherwise:literal,
            source: $source:literal,
            kept_in: $kept_in:tt,
            tests: $tests:tt,
            $(broken_by: $broken:ident $broken_name:literal $does:literal $ways:tt,)*
        })+
    })+) => {
        /// The rules by subject.
        pub const RULES: &[Subject] = &[$(Subject {
            title: $title,
            rules: &[$(Rule {
                name: $name,
                says: $says,
                otherwise: $otherwise,
                source: $source,
                kept_in: &$kept_in,
                tests: &$tests,
                broken_by: &[$(Broken { name: $broken_name, does: $does, ways: { use Way::*; &$ways } },)*],
            },)+],
        },)+];

        crate::mutant::mutants! { $($($($broken = $broken_name, $does, { use Way::*; &$ways };)*)+)+ }
    };
}

crate::catalogue_registered::with_registered_reads! { rules! {
    "Durability" {
        "a-batch-is-fsynced-before-it-counts" {
            says: "A replica acknowledges entries of the log when they are fsynced; a failed fsync ends the process.",
            otherwise: "acknowledged writes are gone after a loss of power",
            source: "design 3; PASV (one log)",
            kept_in: ["crates/raft-log/src/device/worker.rs"],
            tests: ["a_failed_fsync_or_write_is_fatal_and_nothing_is_acknowledged_after_it"],
            broken_by: NoFsync "no-fsync" "The Raft log calls a batch durable that it has only written." [Operand],
        }
        "names-are-fsynced-too" {
            says: "A file that was created, renamed or removed counts when its directory is fsynced.",
            otherwise: "whole segments and tables are gone after a loss of power",
            source: "design 3",
            kept_in: ["crates/raft-log/src/device/worker.rs", "crates/sstable-server/src/catalog/mod.rs"],
            tests: ["an_atomic_write_leaves_old_or_new_wherever_power_fails"],
            broken_by: NoDirectoryFsync "no-directory-fsync" "The simulated disk ignores fsyncs of directories." [Operand],
        }
        "a-majority-before-publication" {
            says: "A group is published when Raft has committed it, not when the leader has appended it.",
            otherwise: "an acknowledged write is truncated",
            source: "design 3.8",
            kept_in: ["crates/memtable-server/src/worker/leading/publisher/publish.rs", "crates/memtable-server/src/publication/queue.rs"],
            tests: ["what_is_not_committed_is_not_published_and_truncation_takes_it_back"],
            broken_by: AcknowledgedBeforeMajority "acknowledged-before-majority" "A group is published when the leader has appended it." [Patch("acknowledged-before-majority")],
        }
    }
    "Writes, conditions, duplicates" {
        "a-flush-voids-a-check" {
            says: "A condition that was checked against SSTables of an older version than the table's last flush is checked again, whichever way it went; the p-node repeats the read.",
            otherwise: "an INSERT on a live key, or an \"exists\" that nothing explains",
            source: "design 3, Conditions; PDA 3.2",
            kept_in: ["crates/memtable-server/src/partition/rules.rs"],
            tests: ["a_flush_voids_an_insert_in_both_directions", "insert_repeated_after_stale_manifest"],
            broken_by: InsertNotVoided "insert-not-voided" "A condition that was checked before a flush holds after it." [Model, Operand],
        }
        "a-failed-condition-waits" {
            says: "A failed condition is answered when everything that it saw is published in that term.",
            otherwise: "it reports a write that is truncated later",
            source: "design 3, Conditions",
            kept_in: ["crates/memtable-server/src/worker/leading/publisher/publish.rs"],
            tests: ["two_inserts_of_one_key_in_one_group_do_not_both_pass"],
            broken_by: FailedAtOnce "failed-at-once" "A failed condition is answered before what it saw is published." [Model, Patch("answers-at-once")],
        }
        "failed-conditions-are-replicated" {
            says: "Every replica remembers what a request was answered, also that its condition failed.",
            otherwise: "INSERT fails and its client is told; a delete; under the next leader a delayed copy inserts",
            source: "design 3, Duplicates",
            kept_in: ["crates/memtable-server/src/partition/evaluate.rs"],
            tests: ["a_failed_condition_is_remembered_by_every_replica"],
            broken_by: FailedForgotten "failed-forgotten" "No replica remembers failed conditions." [Model, Operand],
        }
        "a-retry-takes-effect-once" {
            says: "A request that is in the duplicate table is answered from it; one of an unknown session is refused, never executed.",
            otherwise: "a retried write takes effect twice",
            source: "design 3, Duplicates",
            kept_in: ["crates/memtable-server/src/partition/evaluate.rs", "crates/memtable-server/src/partition/sessions.rs"],
            tests: ["a_retry_takes_effect_once_also_within_a_group_and_after_a_failover", "an_expired_session_is_unknown_and_reopening_it_forgets_its_results"],
            broken_by: NoDuplicateTable "no-duplicate-table" "Retried requests are executed again." [Model, Operand],
            broken_by: ForgottenExecuted "forgotten-executed" "A request of a session that has expired is executed, as if the session were new." [Model],
        }
        "a-duplicate-waits-for-its-original" {
            says: "A duplicate is answered when its original is published.",
            otherwise: "acknowledged, then truncated",
            source: "design 3, Duplicates",
            kept_in: ["crates/memtable-server/src/worker/leading/publisher/publish.rs"],
            tests: [],
            broken_by: DuplicateAtOnce "duplicate-at-once" "A duplicate is answered before its original is published." [Model, Patch("answers-at-once")],
        }
        "a-truncation-undoes-everything" {
            says: "A truncation removes versions, puts the duplicate table back and undoes freezes; only bits stay.",
            otherwise: "a retry is answered from an entry that was truncated",
            source: "design 3.7",
            kept_in: ["crates/memtable-server/src/partition/ingest.rs"],
            tests: ["a_truncated_freeze_is_undone_with_its_filter", "replicas_agree_after_truncations_and_restarts"],
            broken_by: DuplicateTableNotUndone "duplicate-table-not-undone" "A truncation leaves the duplicate table as it is." [Model, Operand],
        }
        "generations-are-compared" {
            says: "An entry names the generation of each memtable that it writes to, and its first seq; every replica ignores one that does not fit.",
            otherwise: "a freeze slips in between evaluation and append, and the bit lands in the filter of the memtable before",
            source: "design 3.4",
            kept_in: ["crates/memtable-server/src/partition/rules.rs", "crates/memtable-server/src/partition/ingest.rs"],
            tests: ["a_freeze_between_evaluation_and_append_voids_the_group", "a_group_evaluated_before_a_lost_predecessor_is_ignored"],
            broken_by: FreezeSlipsIn "freeze-slips-in" "A freeze slips in between a group's evaluation and its append, and nobody compares generations." [Model, Patch("between-evaluation-and-append")],
        }
    }
    "Bits and filters" {
        "bits-go-out-first" {
            says: "A group's bits are in the leader's filters and in the ring before the group is proposed.",
            otherwise: "a group is published that no holder of a lease has heard of: a stale read",
            source: "design 3.5; PDA 3.4, 4.2",
            kept_in: ["crates/memtable-server/src/worker/leading/sequencer/mod.rs"],
            tests: ["a_group_beyond_an_unacknowledged_lease_waits_for_its_expiry"],
            broken_by: BitsAfterProposal "bits-after-proposal" "A group's bits go out after it was proposed, and it waits for nobody." [Patch("between-evaluation-and-append")],
            broken_by: BitsAfterPublication "bits-after-publication" "bf-log entries go out after publication." [Model],
        }
        "the-memtable-says-what-it-holds" {
            says: "Whether the active memtable has a key is asked of the memtable, never of its filter: truncations and refused groups leave bits behind.",
            otherwise: "a refused update leaves its bit, the next one leaves none and waits for nobody",
            source: "design 3.2",
            kept_in: ["crates/memtable-server/src/partition/evaluate.rs", "crates/memtable-server/src/partition/rules.rs"],
            tests: ["a_truncated_update_leaves_its_bit_and_the_next_update_leaves_one_again"],
            broken_by: FilterSaysInMemtable "filter-says-in-memtable" "Whether the active memtable has a key is asked of its filter, and a refused group leads to no new ring." [Model, Patch("filter-says-in-memtable")],
            broken_by: FilterSaysWithNewRing "filter-says-with-new-ring" "Whether the active memtable has a key is asked of its filter, but a refused group leads to a new ring." [Covered],
        }
        "a-refused-group-ends-the-ring" {
            says: "When Raft refuses a group whose bits are out, a new incarnation of the ring begins.",
            otherwise: "with registered reads a stale read of what was kept: its swaps have taken the registrations away, and evaluated again it may wait for nobody. (Without them nothing, while the memtable says what it holds: each rule covers for the other, and both are kept)",
            source: "design 3.9",
            kept_in: ["crates/memtable-server/src/worker/leading/sequencer/mod.rs"],
            tests: [],
            broken_by: RefusedBitsStay "refused-bits-stay" "Raft refused a group whose bits are out, and the ring goes on." [Model],
        }
        "a-put-over-a-frozen-key-leaves-a-bit" {
            says: "A blind PUT is treated as an INSERT only if no frozen memtable holds the key either.",
            otherwise: "the flush of the frozen memtable brings the older value into an SSTable, and no bit leads past it",
            source: "design 5; PDA 3.2",
            kept_in: ["crates/memtable-server/src/partition/evaluate.rs"],
            tests: ["a_put_leaves_a_bit_while_only_a_frozen_memtable_holds_the_key"],
            broken_by: PutAsInsertOverFrozen "put-as-insert-over-frozen" "A put leaves no bit if a frozen memtable has the key." [Model, Operand],
        }
        "whole-filters-hold-the-log" {
            says: "A leader's filters hold every entry of its log, committed or not, and it serves none, nor a manifest, before its own first entry is applied.",
            otherwise: "a new leader's whole filters lack what it then publishes",
            source: "design 7",
            kept_in: ["crates/memtable-server/src/worker/leading/mod.rs", "crates/memtable-server/src/partition/ingest.rs"],
            tests: ["no_manifest_is_served_before_the_leaders_own_first_entry_is_applied"],
            broken_by: FiltersOfCommittedOnly "filters-of-committed-only" "Whole filters hold what is committed, not everything that is in the log." [Model, Patch("filters-of-committed-only")],
        }
        "serials-end-with-their-epoch" {
            says: "Serials and acknowledgements count within an epoch; at a new one p-nodes take whole filters.",
            otherwise: "the new leader uses a position again; a bit is missed",
            source: "design 5",
            kept_in: ["crates/memtable-server/src/lease/desk.rs", "crates/pnode/src/filter_copies/copy/mod.rs"],
            tests: ["serials_do_not_continue_across_epochs", "whole_filters_at_new_epoch", "whole_filters_at_new_epoch_though_serials_would_fit", "a_reply_of_another_boot_needs_whole_filters"],
            broken_by: SerialsGoOn "serials-go-on" "Serials mean the same under every leader." [Model, Operand],
        }
        "a-new-ring-binds-nothing-in-flight" {
            says: "When a new ring begins, everything in flight loses its serial, also the group that is on its way into the log.",
            otherwise: "a group waits for a serial of a ring that is gone, and can never be published",
            source: "design 3.9",
            kept_in: ["crates/memtable-server/src/worker/leading/ring.rs"],
            tests: ["a_new_ring_binds_nothing_that_is_in_flight_also_not_what_is_on_its_way_into_the_log", "changes_of_mode_and_drift_bound_under_load_hold_up_no_publication"],
            broken_by: ProposalKeepsSerial "proposal-keeps-serial" "A group that is proposed when the ring starts anew keeps its serial of the old one." [Model, Operand],
        }
    }
    "Leases and publication" {
        "leases-hold-up-publication" {
            says: "A group is published when every lease that was granted with a serial below its own is acknowledged up to it, or has expired.",
            otherwise: "a stale read under a lease",
            source: "design 6; PDA 4.1, 4.3",
            kept_in: ["crates/memtable-server/src/publication/rule.rs", "crates/memtable-server/src/lease/grantor.rs"],
            tests: ["a_group_beyond_an_unacknowledged_lease_waits_for_its_expiry", "a_lease_forbids_only_groups_after_its_grant_that_its_holder_has_not_acknowledged"],
            broken_by: NoLeaseWait "no-lease-wait" "A group is published although a lease forbids it." [Operand],
        }
        "only-earlier-grants-count" {
            says: "Grants that were made after a group cover it already, and never extend the wait.",
            otherwise: "a p-node that renews for ever stops publication",
            source: "design 6",
            kept_in: ["crates/memtable-server/src/lease/grantor.rs"],
            tests: ["only_grants_made_before_the_group_count_so_a_deaf_holder_delays_it_once"],
            broken_by: LaterGrantsCount "later-grants-count" "Grants made after a group count for it too." [Model],
        }
        "publication-is-in-log-order" {
            says: "Groups are published strictly in the order of the log, also those that left no bits.",
            otherwise: "what the predecessor wrote is visible under a lease that forbids it",
            source: "design 3.8",
            kept_in: ["crates/memtable-server/src/publication/queue.rs"],
            tests: ["a_group_without_bits_still_waits_for_its_predecessor", "the_order_is_the_logs_whatever_the_leases_say"],
            broken_by: BitlessOvertakes "bitless-overtakes" "A group without bits is published before its predecessors." [Model, Patch("bitless-overtakes")],
        }
        "a-lease-has-its-manifest" {
            says: "Filters and set of SSTables are used as a pair: a lease with version v is usable only with the tables of v or newer.",
            otherwise: "the flushed memtable's filter is gone, and the old SSTables are searched: a stale read",
            source: "design 6; PDA 5.2",
            kept_in: ["crates/pnode/src/filter_copies/copy/mod.rs", "crates/pnode/src/view/partition_view.rs"],
            tests: ["lease_is_paired_with_its_manifest_version"],
            broken_by: LeaseWithoutManifest "lease-without-manifest" "Filters and lease are used without the manifest that belongs to them." [Model, Patch("lease-without-manifest")],
        }
        "an-acknowledgement-ends-older-leases" {
            says: "A p-node that acknowledges a serial uses no lease of an older one any more.",
            otherwise: "it acknowledged without a new lease, and uses the old one on: a stale read",
            source: "design 6",
            kept_in: ["crates/pnode/src/filter_copies/copy/mod.rs"],
            tests: ["a_view_that_moves_on_needs_a_lease_for_where_it_stands"],
            broken_by: LeaseOutlivesItsSerial "lease-outlives-its-serial" "A p-node keeps its lease when it acknowledges beyond it." [Model, Operand],
        }
        "a-new-ring-remembers-leases" {
            says: "What was granted under an older incarnation of the ring binds until it expires.",
            otherwise: "a stale read under a lease of the former ring",
            source: "design 3.9",
            kept_in: ["crates/memtable-server/src/lease/desk.rs"],
            tests: ["a_new_incarnation_remembers_how_long_old_leases_bind", "leases_of_a_ring_before_hold_up_everything_also_what_left_no_bits"],
            broken_by: IncarnationForgetsLeases "incarnation-forgets-leases" "A new ring incarnation forgets the leases of the one before." [Model, Patch("incarnation-forgets-leases")],
        }
        "a-lease-ends-before-the-leaders-own" {
            says: "A p-node's lease never outlives the leader's, less the drift of both clocks.",
            otherwise: "another leader publishes while it lives: a stale read",
            source: "design 7",
            kept_in: ["crates/memtable-server/src/lease/offer.rs"],
            tests: ["a_lease_ends_before_the_leaders_own_whatever_is_wanted"],
            broken_by: LeaseOutlivesLeadership "lease-outlives-leadership" "A p-node's lease may outlive the leader's." [Patch("lease-outlives-leadership")],
        }
        "a-lease-is-timed-before-it-is-measured" {
            says: "A lease counts from a time that was taken before the leader asked how much of its own is left.",
            otherwise: "a process that is paused in between grants what it no longer has",
            source: "design 7",
            kept_in: ["crates/memtable-server/src/lease/offer.rs"],
            tests: ["the_holder_never_believes_beyond_the_grantors_expiry"],
            broken_by: LeaseTimedLate "lease-timed-late" "A lease's length is measured first, and counted from a later time." [Patch("lease-timed-late")],
        }
        "clocks-are-intervals" {
            says: "Of a wall clock the grantor takes the earliest time that it may be, the holder the latest; one that is not synchronised says nothing.",
            otherwise: "a lease is used after its grantor takes it for expired: a stale read",
            source: "design 6, 9; PDA 4.4",
            kept_in: ["crates/pnode/src/lease/holder.rs", "crates/memtable-server/src/replica/state.rs"],
            tests: ["the_wall_bound_alone_suffices_but_only_if_both_sides_are_synchronised", "a_wall_clock_expiry_is_waited_for_too"],
            broken_by: ZeroUncertainty "zero-uncertainty" "Grantor and holder take their wall clocks at their word, synchronised or not." [Patch("zero-uncertainty")],
        }
    }
    "Leaders" {
        "the-leader-lease-counts-from-the-sending" {
            says: "A leader's lease runs from when it sent what a majority then acknowledged.",
            otherwise: "it believes itself bound longer than its followers are, beside a new leader: a stale read",
            source: "design 7",
            kept_in: ["crates/memtable-server/src/leadership/leader_lease.rs", "crates/memtable-server/src/raft/network/pipeline.rs"],
            tests: ["the_lease_counts_from_the_send_time_that_a_majority_acknowledged"],
            broken_by: LeaseFromReceipt "lease-from-receipt" "The leader counts its lease from the arrival of acknowledgements, not from the sending of what they acknowledge." [Patch("lease-from-receipt")],
        }
        "nobody-votes-within-a-lease" {
            says: "No node votes, pre-votes or campaigns within a lease of its start, of the last sign of a leader, or of its own last round as one.",
            otherwise: "a second leader beside a living lease",
            source: "design 7",
            kept_in: ["crates/memtable-server/src/leadership/vote_guard.rs", "crates/memtable-server/src/raft/network/mod.rs"],
            tests: ["closed_after_start_and_after_every_sign_of_a_leader", "a_node_that_hears_from_a_leader_asks_for_no_votes_and_takes_none", "a_voter_abstains_longer_than_the_leader_serves_whatever_the_drift"],
            broken_by: NoVoteGuard "no-vote-guard" "Nodes vote and campaign at any time." [Patch("no-vote-guard")],
        }
        "old-leases-end-before-a-new-leader-publishes" {
            says: "A new leader publishes nothing until every lease of earlier leaders has ended; winning an election implies it.",
            otherwise: "a stale read at a p-node that still uses the old leader's lease",
            source: "design 7",
            kept_in: ["crates/memtable-server/src/leadership/vote_guard.rs", "crates/memtable-server/src/leadership/leader_lease.rs"],
            tests: ["closed_after_start_and_after_every_sign_of_a_leader", "the_lease_counts_from_the_send_time_that_a_majority_acknowledged"],
            broken_by: PublishUnderOldLease "publish-under-old-lease" "A new leader publishes while a lease of the old one lives." [Model],
        }
        "a-vote-forswears" {
            says: "A vote for another leader that leaves a node ends what acknowledgements still on their way could bring back of its own lease.",
            otherwise: "a late answer revives its lease beside the new leader's",
            source: "design 7",
            kept_in: ["crates/memtable-server/src/leadership/leader_lease.rs"],
            tests: ["after_a_vote_no_late_acknowledgement_brings_the_lease_back"],
            broken_by: ForswearSkipped "forswear-skipped" "A vote that leaves a former leader does not end what late acknowledgements bring back." [Patch("forswear-skipped")],
        }
        "every-set-of-voters-counts" {
            says: "While voters change, the leader's lease is counted from every set of them that may elect somebody.",
            otherwise: "a lease is alive when the other set elects somebody: a stale read",
            source: "design 7",
            kept_in: ["crates/memtable-server/src/worker/leading/voters/counted.rs"],
            tests: ["while_voters_change_both_sets_are_counted_and_what_lasts_already_stays", "every_set_that_may_elect_somebody_is_counted"],
            broken_by: NewVotersOnly "new-voters-only" "While voters change, the leader's lease is counted from the newest set of them only." [Patch("new-voters-only")],
        }
        "only-a-voter-campaigns" {
            says: "A server that is no voter asks for no votes.",
            otherwise: "a leader that nobody asked for: one that was removed",
            source: "design 7",
            kept_in: ["crates/memtable-server/src/raft/election.rs"],
            tests: ["only_a_voter_campaigns"],
        }
        "a-fresh-leader-waits-to-serve" {
            says: "A leader answers no memtable read until its own first entry is published.",
            otherwise: "a value that the old leader published disappears",
            source: "design 4",
            kept_in: ["crates/memtable-server/src/worker/leading/publisher/publish.rs", "crates/memtable-server/src/publication/queue.rs"],
            tests: ["a_fresh_leader_serves_only_when_its_own_first_entry_is_published", "no_manifest_is_served_before_the_leaders_own_first_entry_is_applied"],
            broken_by: FreshLeaderReads "fresh-leader-reads" "A leader serves reads before its own first entry is published." [Model, Operand],
        }
        "reads-need-the-leader-lease" {
            says: "The leader answers memtable reads only while it holds its lease.",
            otherwise: "a leader that was deposed unnoticed answers: a stale read",
            source: "design 4",
            kept_in: ["crates/memtable-server/src/replica/state.rs"],
            tests: ["without_a_majority_nothing_is_acknowledged_and_no_read_is_answered"],
            broken_by: ReadWithoutLeaderLease "read-without-leader-lease" "The leader answers memtable reads without its lease." [Operand],
        }
        "the-leader-lease-is-asked-last" {
            says: "The term is taken before memtables are read, and the lease asked after.",
            otherwise: "a read is answered from what a former leader had, when another has published more",
            source: "design 4",
            kept_in: ["crates/memtable-server/src/reading/mod.rs"],
            tests: ["what_was_read_counts_while_the_term_that_it_was_read_in_is_served", "a_read_that_began_before_the_term_was_served_does_not_count_nor_one_of_the_term_before"],
            broken_by: LeaderLeaseAskedFirst "leader-lease-asked-first" "The leader asks for its lease before it reads its memtables, and not afterwards." [Patch("leader-lease-asked-first")],
        }
    }
    "Reads" {
        "a-memtable-tombstone-is-final" {
            says: "A memtable read has three answers: value, tombstone, no entry; a tombstone ends the search.",
            otherwise: "a deleted record is found in an SSTable",
            source: "design 4",
            kept_in: ["crates/memtable-server/src/reading/mod.rs", "crates/pnode/src/router/plan.rs"],
            tests: ["a_memtable_tombstone_is_an_answer", "memtable_tombstone_is_final", "memtable_tombstone_is_final_in_every_mode"],
            broken_by: MemtableTombstoneIsNoEntry "memtable-tombstone-is-no-entry" "A tombstone in a memtable is answered as \"no entry\"." [Model, Patch("memtable-tombstone-is-no-entry")],
        }
        "an-sstable-tombstone-is-not" {
            says: "After a tombstone in an SSTable, or one in the cache, the memtables are asked: an INSERT since then left no bit.",
            otherwise: "delete, flush, insert: the insert is not seen",
            source: "design 8; PDA 3.3",
            kept_in: ["crates/pnode/src/router/plan.rs"],
            tests: ["sst_tombstone_is_not_final", "sst_tombstone_is_not_final_neither_from_a_server_nor_from_the_cache"],
            broken_by: SstTombstoneFinal "sst-tombstone-final" "An SSTable's tombstone ends a read: the memtables are not asked." [Model, Operand],
        }
        "a-tombstone-ends-the-search-in-sstables" {
            says: "SSTables are searched newest first, and the first that has the key ends it, with a value or a tombstone.",
            otherwise: "a deleted record comes back",
            source: "design 8; PDA 3.3",
            kept_in: ["crates/pnode/src/router/sst_search.rs"],
            tests: ["older_tables_are_not_searched_after_a_tombstone"],
            broken_by: SearchPastTombstone "search-past-tombstone" "The search goes on in older SSTables after a tombstone." [Model, Operand],
        }
        "stale-readers-are-told" {
            says: "A reader whose SSTables lack any memtable that is gone is told so, whether or not that memtable was frozen at the reader's version.",
            otherwise: "\"absent\", or an older value, for a record that was flushed meanwhile",
            source: "design 4; PDA 5.2",
            kept_in: ["crates/memtable-server/src/partition/rules.rs", "crates/memtable-server/src/partition/view.rs"],
            tests: ["a_reader_behind_a_flush_is_told_so", "staleness_counts_memtables_that_were_active_at_the_readers_version"],
            broken_by: NoStaleManifest "no-stale-manifest" "No reader is told that its manifest is stale." [Model, Operand],
            broken_by: StaleOnlyIfFrozen "stale-only-if-frozen" "A manifest is stale only if it is one version behind: what was still active at older ones does not count." [Model, Patch("stale-only-if-frozen")],
        }
        "a-read-names-what-it-searched" {
            says: "A memtable read names the version of the SSTables that its p-node searched, not the newest that it knows.",
            otherwise: "tombstone found at v, the insert after it is flushed at v + 1, the memtable read names v + 1: \"absent\", unnoticed",
            source: "design 4",
            kept_in: ["crates/pnode/src/router/point_reads.rs"],
            tests: ["memtable_reread_names_the_searched_version"],
            broken_by: RereadNamesNewest "reread-names-newest" "A memtable read names the newest manifest version, not the one whose SSTables were searched." [Model, Patch("reread-names-newest")],
        }
        "the-cache-holds-what-sstables-said" {
            says: "The record cache holds the newest SSTable record of a key, never a memtable's.",
            otherwise: "insert, read, update: no bit, and a stale hit",
            source: "design 8",
            kept_in: ["crates/pnode/src/router/point_reads.rs", "crates/pnode/src/record_cache/mod.rs"],
            tests: ["cache_never_holds_memtable_values"],
            broken_by: CacheHoldsMemtableValues "cache-holds-memtable-values" "The record cache takes values of memtables." [Model, Patch("cache-holds-memtable-values")],
        }
        "a-stamp-passes-only-what-can-be-asked" {
            says: "A cached record's stamp moves past a flush when the filter of what was flushed rules the key out; if it cannot be asked, the record is dropped.",
            otherwise: "a stale hit",
            source: "design 8",
            kept_in: ["crates/pnode/src/record_cache/mod.rs"],
            tests: ["cache_entry_dropped_when_a_flush_filter_is_missing"],
            broken_by: StampPastSwallowed "stamp-past-swallowed" "A cached record's stamp moves past flushed tables that nobody can look into any more." [Model, Operand],
        }
        "a-stamp-is-what-was-searched" {
            says: "A record is cached with the version that was searched, however late it arrives.",
            otherwise: "a stale hit",
            source: "design 8",
            kept_in: ["crates/pnode/src/router/point_reads.rs"],
            tests: ["cache_stamp_is_the_searched_version"],
            broken_by: StampAtArrival "stamp-at-arrival" "A record is cached with the manifest version at its arrival." [Model, Patch("stamp-at-arrival")],
        }
    }
    "Flushes and merges" {
        "a-flush-follows-publication" {
            says: "A memtable is flushed when everything up to its freeze is published.",
            otherwise: "one p-node sees the new value through the new SSTable, the other the old one under its lease",
            source: "design 10; PDA 5.1",
            kept_in: ["crates/memtable-server/src/partition/rules.rs"],
            tests: ["a_memtable_is_flushable_only_when_everything_up_to_its_freeze_is_published"],
            broken_by: FlushBeforePublished "flush-before-published" "A memtable is flushed before everything up to its freeze is published." [Model, Operand],
        }
        "flags-are-in-freeze-order" {
            says: "Flush flags of a table apply strictly in the order of its freezes.",
            otherwise: "the older memtable's table shadows the newer one",
            source: "design 10",
            kept_in: ["crates/memtable-server/src/partition/commit.rs"],
            tests: ["flush_flags_apply_strictly_in_freeze_order"],
            broken_by: FlagsOutOfOrder "flags-out-of-order" "The newest frozen memtable is flushed first." [Model, Patch("flags-out-of-order")],
        }
        "an-id-has-one-content" {
            says: "An SSTable's id carries plan, epoch and attempt, and a sealed table is never replaced.",
            otherwise: "a late seal of an old leader replaces a table: contents change under the manifest",
            source: "design 10",
            kept_in: ["crates/memtable-server/src/flush/mod.rs", "crates/sstable-server/src/catalog/mod.rs"],
            tests: ["an_id_has_one_content_for_ever", "sst_id_round_trips_as_bytes_and_as_a_name"],
            broken_by: TableReplaced "table-replaced" "Tables that are planned on one manifest version share an id, and a later seal replaces the table." [Model, Patch("table-replaced")],
        }
        "a-tombstone-stays-above-older-tables" {
            says: "A merge drops tombstones only if no older table outside its inputs can hold their keys.",
            otherwise: "a deleted record comes back",
            source: "design 10",
            kept_in: ["crates/memtable-server/src/worker/leading/upkeep/compactions.rs", "crates/memtable-server/src/partition/commit.rs"],
            tests: ["a_compaction_applies_only_while_its_inputs_are_there_and_reach_the_oldest_table"],
            broken_by: TombstoneDroppedEarly "tombstone-dropped-early" "A merge of the newer tables drops tombstones although older tables remain." [Model, Patch("tombstone-dropped-early")],
        }
    }
    "Servers that lose their memory" {
        "messages-name-an-incarnation" {
            says: "Whatever is sent to a member names the incarnation that the sender means.",
            otherwise: "a follower votes for a new leader, is wiped, takes the old leader's entries again and counts for it: a write is acknowledged that the new leader lacks",
            source: "design 12",
            kept_in: ["crates/memtable-server/src/raft/acceptor/addressed.rs"],
            tests: ["a_wiped_voter_loses_nothing_and_is_let_in_again"],
            broken_by: IncarnationNotNamed "incarnation-not-named" "No message says which incarnation it means: a server without its memory is taken for what it was." [Election, Operand],
        }
        "who-forgot-does-not-vote" {
            says: "A server votes only as the incarnation that the group means.",
            otherwise: "the leader has a write on itself and on one other; that is wiped, and votes for the third, which lacks it",
            source: "design 12",
            kept_in: ["crates/memtable-server/src/raft/acceptor/addressed.rs"],
            tests: ["a_wiped_voter_loses_nothing_and_is_let_in_again"],
            broken_by: AmnesiacVotes "amnesiac-votes" "A server votes although the group means another incarnation of it: one that remembered." [Election, Patch("amnesiac-votes")],
        }
        "out-before-in" {
            says: "A new incarnation is let in when the removal of the old one is committed.",
            otherwise: "the old leader lets the wiped one in again by itself, and the two of them acknowledge a write beside the new leader",
            source: "design 12",
            kept_in: ["crates/memtable-server/src/leadership/strangers.rs", "crates/memtable-server/src/worker/leading/voters/rejoin.rs"],
            tests: ["a_wiped_voter_is_taken_out_let_go_and_let_in_again"],
            broken_by: ReadmittedBeforeRemoval "readmitted-before-removal" "The leader lets a new incarnation in before the removal of the old one is committed." [Election],
        }
        "one-server-founds" {
            says: "One fixed server founds a group, and only if everybody is empty.",
            otherwise: "a founder is wiped and founds again with a server that has nothing yet",
            source: "design 12",
            kept_in: ["crates/memtable-server/src/founding.rs"],
            tests: ["a_partition_that_had_a_group_is_not_founded_in_silence_even_if_everybody_is_empty"],
            broken_by: FoundedByAnybody "founded-by-anybody" "Any server that has nothing founds the group, if a majority has nothing." [Election],
        }
    }
    "Snapshots" {
        "a-checkpoint-is-of-its-place" {
            says: "A snapshot carries the partition's state as of the place from which the log is replayed: seqs, time, generations, sessions with their results, membership.",
            otherwise: "a restarted server, or a follower that is sent a snapshot, goes on from another state than its peers",
            source: "design 10",
            kept_in: ["crates/memtable-server/src/partition/snapshot.rs"],
            tests: ["replicas_agree_after_truncations_and_restarts"],
            broken_by: SnapshotWithoutNextSeq "snapshot-without-next-seq" "A snapshot is read without the next seq." [Patch("left-out-of-a-snapshot")],
            broken_by: SnapshotWithoutTime "snapshot-without-time" "A snapshot is read without the partition's time." [Patch("left-out-of-a-snapshot")],
            broken_by: SnapshotWithoutGenerations "snapshot-without-generations" "A snapshot is read without the generations of its memtables." [Patch("left-out-of-a-snapshot")],
            broken_by: SnapshotWithoutSessions "snapshot-without-sessions" "A snapshot is read without its sessions." [Patch("left-out-of-a-snapshot")],
            broken_by: SnapshotWithoutResults "snapshot-without-results" "A snapshot's sessions are read without what their requests were answered." [Patch("left-out-of-a-snapshot")],
            broken_by: SnapshotWithoutFloors "snapshot-without-floors" "A snapshot's sessions are read without the number below which results are gone." [Patch("left-out-of-a-snapshot")],
            broken_by: SnapshotWithoutLastUse "snapshot-without-last-use" "A snapshot's sessions are read without the time of their last use." [Patch("left-out-of-a-snapshot")],
            broken_by: SnapshotWithoutMembership "snapshot-without-membership" "A snapshot is read without its membership." [Patch("left-out-of-a-snapshot")],
        }
        "a-snapshot-carries-what-is-committed" {
            says: "Beside the checkpoint a snapshot carries the newest committed manifest and configuration, every field of them.",
            otherwise: "a replica plans, flushes, or answers readers by another manifest or configuration than its peers",
            source: "design 10",
            kept_in: ["crates/memtable-server/src/partition/snapshot.rs"],
            tests: ["the_configuration_is_replicated_and_outlives_the_files", "replay_skips_per_table_what_its_flush_flag_covers"],
            broken_by: SnapshotWithoutNextTable "snapshot-without-next-table" "A snapshot is read without the id of the next table." [Patch("left-out-of-a-snapshot")],
            broken_by: SnapshotWithoutConfiguration "snapshot-without-configuration" "A snapshot is read without the partition's configuration." [Patch("left-out-of-a-snapshot")],
            broken_by: SnapshotWithoutConfiguredAt "snapshot-without-configured-at" "A snapshot is read without the place of its configuration in the log." [Patch("left-out-of-a-snapshot")],
            broken_by: ManifestWithoutVersion "manifest-without-version" "A snapshot's manifest is read without its version." [Patch("left-out-of-a-snapshot")],
            broken_by: ManifestWithoutFlushes "manifest-without-flushes" "A snapshot's manifest is read without the flushes that it remembers." [Patch("left-out-of-a-snapshot")],
            broken_by: ManifestWithoutFlushesKnownAfter "manifest-without-flushes-known-after" "A snapshot's manifest is read without the version after which it remembers all flushes." [Patch("left-out-of-a-snapshot")],
            broken_by: ManifestWithoutSsts "manifest-without-ssts" "A snapshot's manifest is read without its SSTables." [Patch("left-out-of-a-snapshot")],
            broken_by: ManifestWithoutOptions "manifest-without-options" "A snapshot's manifest is read without the options of its tables." [Patch("left-out-of-a-snapshot")],
            broken_by: ManifestWithoutFlushedGenerations "manifest-without-flushed-generations" "A snapshot's manifest is read without the generations that are flushed." [Patch("left-out-of-a-snapshot")],
            broken_by: ManifestWithoutFlushVersions "manifest-without-flush-versions" "A snapshot's manifest is read without the versions that the last flushes made." [Patch("left-out-of-a-snapshot")],
            broken_by: ManifestWithoutPersisted "manifest-without-persisted" "A snapshot's manifest is read without the places that its tables are persisted up to." [Patch("left-out-of-a-snapshot")],
        }
    }
} }
