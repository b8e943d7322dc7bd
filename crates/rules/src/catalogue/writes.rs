//! Writes, conditions, duplicates: conditions, retries, truncation.

macro_rules! writes {
    ($next:ident $($later:ident)* => $($before:tt)*) => { $next! { $($later)* => $($before)*
    "Writes, conditions, duplicates" {
        "a-flush-voids-a-check" {
            says: "A condition that was checked before the table's last flush is checked again, whichever way it went.",
            otherwise: "an INSERT on a live key, or an unexplained \"exists\"",
            source: "design 3; PDA 3.2",
            kept_in: ["crates/memtable-server/src/partition/rules.rs"],
            tests: ["a_flush_voids_an_insert_in_both_directions", "insert_repeated_after_stale_manifest"],
            broken_by: InsertNotVoided "insert-not-voided"
                "A check from before a flush holds after it." [Model, Operand],
        }
        "an-update-meets-the-newest-state" {
            says:
                "An update is made from the newest appended state, which the group being formed is part of; a base counts \
                 as it does for a condition.",
            otherwise: "an increment is lost, or two of them are answered the same number",
            source: "design 3",
            kept_in: ["crates/memtable-server/src/partition/evaluate.rs"],
            tests: ["an_update_meets_the_newest_state_wherever_it_is", "updates_of_one_group_meet_each_other"],
            broken_by: UpdateMissesGroup "update-misses-group"
                "An update does not see what its group has written before it." [Operand],
        }
        "a-failed-condition-waits" {
            says: "A failed condition is answered when everything that it saw is published in that term.",
            otherwise: "it reports a write that is truncated later",
            source: "design 3",
            kept_in: ["crates/memtable-server/src/worker/leading/publisher/publish.rs"],
            tests: ["two_inserts_of_one_key_in_one_group_do_not_both_pass"],
            broken_by: FailedAtOnce "failed-at-once"
                "A failed condition is answered at once." [Model, Patch("answers-at-once")],
        }
        "failed-conditions-are-replicated" {
            says: "Every replica remembers that a request's condition failed.",
            otherwise: "after a delete, a delayed copy of what failed inserts under the next leader",
            source: "design 3",
            kept_in: ["crates/memtable-server/src/partition/evaluate.rs"],
            tests: ["a_failed_condition_is_remembered_by_every_replica"],
            broken_by: FailedForgotten "failed-forgotten" "No replica remembers failed conditions." [Model, Operand],
        }
        "a-retry-takes-effect-once" {
            says: "A request in the duplicate table is answered from it; one of an unknown session is refused.",
            otherwise: "a retried write takes effect twice",
            source: "design 3",
            kept_in: [
                "crates/memtable-server/src/partition/evaluate.rs",
                "crates/memtable-server/src/partition/sessions.rs",
            ],
            tests: [
                "a_retry_takes_effect_once_also_within_a_group_and_after_a_failover",
                "an_expired_session_is_unknown_and_reopening_it_forgets_its_results",
            ],
            broken_by: NoDuplicateTable "no-duplicate-table" "Retried requests are executed again." [Model, Operand],
            broken_by: ForgottenExecuted "forgotten-executed" "A request of an expired session is executed." [Model],
        }
        "a-duplicate-waits-for-its-original" {
            says: "A duplicate is answered when its original is published.",
            otherwise: "acknowledged, then truncated",
            source: "design 3",
            kept_in: ["crates/memtable-server/src/worker/leading/publisher/publish.rs"],
            tests: [],
            broken_by: DuplicateAtOnce "duplicate-at-once"
                "A duplicate is answered at once." [Model, Patch("answers-at-once")],
        }
        "a-truncation-undoes-everything" {
            says: "A truncation removes versions, puts the duplicate table back and undoes freezes; only bits stay.",
            otherwise: "a retry is answered from a truncated entry",
            source: "design 3.7",
            kept_in: ["crates/memtable-server/src/partition/ingest.rs"],
            tests: ["a_truncated_freeze_is_undone_with_its_filter", "replicas_agree_after_truncations_and_restarts"],
            broken_by: DuplicateTableNotUndone "duplicate-table-not-undone"
                "A truncation leaves the duplicate table." [Model, Operand],
        }
        "generations-are-compared" {
            says: "An entry names its generations and first seq; replicas ignore one that does not fit.",
            otherwise: "after a freeze in between, its bit lands in the filter before",
            source: "design 3.4",
            kept_in: [
                "crates/memtable-server/src/partition/rules.rs",
                "crates/memtable-server/src/partition/ingest.rs",
            ],
            tests: [
                "a_freeze_between_evaluation_and_append_voids_the_group",
                "a_group_evaluated_before_a_lost_predecessor_is_ignored",
            ],
            broken_by: FreezeSlipsIn "freeze-slips-in"
                "A freeze slips in after evaluation, and nobody compares generations."
                [Model, Patch("between-evaluation-and-append")],
        }
    }
    } };
}
