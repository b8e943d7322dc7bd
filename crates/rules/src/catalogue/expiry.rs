//! Expiry: who says when that a record has expired.
//!
//! Most were found and are shown by the model; servers ask the same functions.

macro_rules! expiry {
    ($next:ident $($later:ident)* => $($before:tt)*) => { $next! { $($later)* => $($before)*
    "Expiry" {
        "time-is-in-the-log" {
            says: "Whether a record has expired is judged by ticks of the log, never by a clock.",
            otherwise: "a p-node whose clock is ahead does not find what the others still do",
            source: "design 15",
            kept_in: ["crates/common/src/expiry.rs", "crates/memtable-server/src/reading/mod.rs", "crates/pnode/src/router/consult.rs"],
            tests: ["reads_of_records_that_expire", "whoever_knows_bounds_says_what_the_leader_would", "the_slower_modes_go_by_the_leaders_answer"],
            broken_by: ExpiryByOwnClock "expiry-by-own-clock" "A p-node judges by its own clock, which is ahead." [Model, Operand],
        }
        "time-never-goes-back" {
            says: "A leader proposes no tick below the newest in its log, committed or not, whatever its clock shows.",
            otherwise: "a record that has expired is alive again under a new leader",
            source: "design 15",
            kept_in: ["crates/common/src/expiry.rs", "crates/memtable-server/src/partition/ingest.rs", "crates/memtable-server/src/partition/snapshot.rs"],
            tests: ["time_goes_forward_on_any_clocks", "expiry_over_a_failover", "a_truncated_tick_is_taken_back_and_time_never_falls", "a_restart_knows_the_time"],
            broken_by: TickGoesBack "tick-goes-back" "A new leader proposes what its clock shows, which is behind." [Model],
        }
        "time-rests-until-something-may-expire" {
            says:
                "A tick is due when a record may expire: it goes as far as just before the first that may, and a step \
                 beyond. A time to live counts from the later of the newest tick and the leader's clock.",
            otherwise: "ticks catch up by small steps after a rest, and records live too long; or they expire before their time",
            source: "design 15",
            kept_in: ["crates/common/src/expiry.rs", "crates/memtable-server/src/worker/leading/ticks.rs"],
            tests: [
                "after_a_rest_of_any_length_a_record_lives_as_long_as_it_is_to",
                "time_rests_until_a_record_may_expire",
                "a_time_to_live_counts_from_the_later_of_tick_and_clock",
                "the_next_expiry_is_the_earliest_that_may_still_come",
            ],
        }
        "a-tick-is-published-like-a-write" {
            says: "A tick has an entry of the ring and waits for the leases below it.",
            otherwise: "one p-node is told \"expired\" by the leader, another finds the record under its lease",
            source: "design 15",
            kept_in: ["crates/memtable-server/src/worker/leading/ticks.rs", "crates/memtable-server/src/publication/queue.rs"],
            tests: ["reads_of_records_that_expire", "expiry_at_two_pnodes"],
            broken_by: TickWaitsForNobody "tick-waits-for-nobody" "A tick has no entry of the ring." [Model, Operand],
        }
        "the-leader-judges-by-published-ticks" {
            says: "A read at the leader, and what it tells p-nodes, goes by the newest published tick.",
            otherwise: "somebody is told \"expired\" by a tick that is truncated, or while others may not be",
            source: "design 15",
            kept_in: ["crates/memtable-server/src/reading/mod.rs", "crates/memtable-server/src/replica/state.rs"],
            tests: ["reads_of_records_that_expire", "expiry_over_a_failover"],
            broken_by: TickNotPublished "tick-not-published" "The leader goes by the newest appended tick." [Model, Operand],
        }
        "a-read-has-one-position" {
            says:
                "A read at the leader takes its tick of the very position at which it reads: `published_seq` and the \
                 tick are loaded as one.",
            otherwise: "a record that was overwritten before it could expire is told to have expired",
            source: "design 15",
            kept_in: ["crates/memtable-server/src/replica/published.rs", "crates/memtable-server/src/reading/mod.rs"],
            tests: ["expiry_in_halves", "seq_and_tick_are_always_of_one_position"],
            broken_by: TickReadApart "tick-read-apart"
                "A read loads the published tick after the published position." [Model],
        }
        "between-two-ticks-the-leader-says" {
            says:
                "A p-node takes for expired what expires up to D, the newest tick that it knows to be published, and \
                 for alive what expires after T, the newest that the ring has brought up to N; in between it asks \
                 the leader.",
            otherwise: "of two p-nodes one says \"expired\", and the other finds the record after that",
            source: "design 15",
            kept_in: ["crates/common/src/expiry.rs", "crates/pnode/src/router/plan.rs"],
            tests: ["between_what_is_published_and_what_is_announced_nobody_but_the_leader_knows", "reads_of_records_that_expire", "expiry_at_two_pnodes", "a_record_of_an_sstable_is_judged_by_what_is_known_and_in_between_by_the_leader"],
            broken_by: ExpiredByKnownTick "expired-by-known-tick" "A p-node says \"expired\" up to T." [Model, Operand],
            broken_by: AliveByPublishedTick "alive-by-published-tick" "A p-node says \"alive\" after D." [Model],
        }
        "a-tick-is-known-where-the-view-is-consulted" {
            says: "A p-node judges what it finds by the D and T that it had when it consulted its view, or by the leader's answer.",
            otherwise: "a record that was overwritten before it could expire is told to have expired",
            source: "design 15",
            kept_in: ["crates/pnode/src/router/consult.rs", "crates/pnode/src/router/point_reads.rs", "crates/pnode/src/view/partition_view.rs"],
            tests: ["expiry_where_every_write_leaves_a_bit"],
            broken_by: JudgedByNewestView "judged-by-newest-view"
                "A p-node judges what the SSTables say by the D that it knows by then." [Model],
        }
        "whole-filters-have-the-rings-tick" {
            says:
                "Whole filters carry the newest tick that is out in the ring, appended or not; a new leader's the \
                 newest in its log.",
            otherwise: "a p-node holds a lease beyond a tick that it does not know, and finds what has expired",
            source: "design 15",
            kept_in: ["crates/memtable-server/src/worker/leading/ticks.rs", "crates/pnode/src/filter_copies/copy/mod.rs"],
            tests: ["reads_of_records_that_expire", "a_tick_is_announced_by_its_serial_and_published_when_the_leader_says_so"],
            broken_by: WholeFiltersOfAppendedTicks "whole-filters-of-appended-ticks"
                "Whole filters carry the newest appended tick." [Model],
            broken_by: TicksOfCommittedOnly "ticks-of-committed-only"
                "A new leader's whole filters carry the newest tick that it knows to be committed." [Model],
            broken_by: RefusedTickKeepsRing "refused-tick-keeps-ring"
                "When Raft refuses a tick, the ring goes on: p-nodes ask the leader more often." [Covered],
        }
        "what-is-kept-is-judged-at-each-use" {
            says: "What a p-node keeps of an answer, or of an SSTable, is kept with its expiry, and judged at each use.",
            otherwise: "a p-node finds for ever what has expired",
            source: "design 15",
            kept_in: ["crates/pnode/src/record_cache/mod.rs", "crates/pnode/src/router/consult.rs"],
            tests: ["registered_reads_of_records_that_expire", "a_leaders_answer_that_was_kept_is_judged_at_each_use"],
            broken_by: KeptIsNotJudged "kept-is-not-judged" "What the leader once called alive is used while it is kept." [Model, Operand],
        }
        "the-sequencer-judges-by-appended-ticks" {
            says:
                "Conditions are judged by the newest appended tick, what p-nodes found too: a base carries the \
                 record's expiry.",
            otherwise: "a condition is answered that held, or failed, at no moment",
            source: "design 15",
            kept_in: ["crates/memtable-server/src/partition/evaluate.rs"],
            tests: ["conditions_on_records_that_expire", "a_record_has_expired_once_a_tick_is_appended_that_reaches_its_expiry", "what_a_p_node_found_is_judged_by_the_sequencer"],
            broken_by: ConditionsByPublishedTick "conditions-by-published-tick"
                "Conditions are judged by the newest published tick." [Model],
            broken_by: BaseJudgedByPnode "base-judged-by-pnode"
                "A base says what the p-node took for alive, without its expiry." [Model],
        }
        "expired-is-a-tombstone" {
            says: "For whoever reads, an expired record is a tombstone, and ends the search below it.",
            otherwise: "an older version comes back",
            source: "design 15",
            kept_in: ["crates/pnode/src/router/plan.rs", "crates/memtable-server/src/reading/mod.rs", "crates/pnode/src/router/merge.rs"],
            tests: ["expiry_over_a_flush", "what_has_expired_by_the_pages_time_is_absent_and_hides_older_records"],
            broken_by: ExpiredIsNoEntry "expired-is-no-entry" "What has expired is passed over." [Model],
        }
        "expired-is-not-final-in-an-sstable" {
            says:
                "After an expired record of an SSTable, as after a tombstone, the memtables are asked, unless every \
                 write leaves a bit.",
            otherwise: "a merge has dropped the record, and what was inserted then left no bit: it is not found",
            source: "design 15",
            kept_in: ["crates/pnode/src/router/plan.rs", "tests/model/src/step/reads.rs"],
            tests: ["expiry_over_a_merge", "what_has_expired_in_an_sstable_may_have_been_inserted_again"],
            broken_by: ExpiredIsFinal "expired-is-final"
                "An expired record of an SSTable ends the read if no bit leads to the memtables." [Model],
            broken_by: ExpiredLeavesNoBit "expired-leaves-no-bit"
                "A put or INSERT over an expired record leaves no bit, as if there were none." [Covered],
        }
        "a-merge-drops-what-has-expired-for-all" {
            says: "A merge takes a record for a tombstone once a published tick has reached its expiry.",
            otherwise: "a p-node with the merged table says \"absent\", another one finds the record",
            source: "design 15",
            kept_in: ["crates/sstable-server/src/compaction/job.rs", "crates/memtable-server/src/worker/leading/upkeep/work.rs"],
            tests: ["expiry_over_a_merge", "what_has_expired_by_the_time_that_is_named_counts_as_a_tombstone"],
            broken_by: MergeByUnpublishedTick "merge-by-unpublished-tick" "A merge goes by the newest appended tick." [Model],
            broken_by: ExpiredIsMergedAway "expired-is-merged-away"
                "A merge leaves out what has expired before it looks for the newest record." [Model],
        }
    }
    } };
}
