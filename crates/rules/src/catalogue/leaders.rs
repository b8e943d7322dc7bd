//! Leaders: leader leases, votes, what a new leader may do.

macro_rules! leaders {
    ($next:ident $($later:ident)* => $($before:tt)*) => { $next! { $($later)* => $($before)*
    "Leaders" {
        "the-leader-lease-counts-from-the-sending" {
            says: "A leader's lease runs from when it sent what a majority then acknowledged.",
            otherwise: "it outlasts what followers promised: a stale read beside a new leader",
            source: "design 7",
            kept_in: [
                "crates/memtable-server/src/leadership/leader_lease.rs",
                "crates/memtable-server/src/raft/network/pipeline.rs",
            ],
            tests: ["the_lease_counts_from_the_send_time_that_a_majority_acknowledged"],
            broken_by: LeaseFromReceipt "lease-from-receipt"
                "The leader's lease runs from the acknowledgements' arrival." [Patch("lease-from-receipt")],
        }
        "nobody-votes-within-a-lease" {
            says:
                "No node votes, pre-votes or campaigns within a lease of its start, of the last sign of a leader, or \
                 of its own last round.",
            otherwise: "a second leader beside a living lease",
            source: "design 7",
            kept_in: [
                "crates/memtable-server/src/leadership/vote_guard.rs",
                "crates/memtable-server/src/raft/network/mod.rs",
            ],
            tests: [
                "closed_after_start_and_after_every_sign_of_a_leader",
                "a_node_that_hears_from_a_leader_asks_for_no_votes_and_takes_none",
                "a_voter_abstains_longer_than_the_leader_serves_whatever_the_drift",
            ],
            broken_by: NoVoteGuard "no-vote-guard" "Nodes vote and campaign at any time." [Patch("no-vote-guard")],
        }
        "old-leases-end-before-a-new-leader-publishes" {
            says:
                "A new leader publishes nothing while a lease of earlier leaders lives; winning an election implies it."
                ,
            otherwise: "a stale read under the old leader's lease",
            source: "design 7",
            kept_in: [
                "crates/memtable-server/src/leadership/vote_guard.rs",
                "crates/memtable-server/src/leadership/leader_lease.rs",
            ],
            tests: [
                "closed_after_start_and_after_every_sign_of_a_leader",
                "the_lease_counts_from_the_send_time_that_a_majority_acknowledged",
            ],
            broken_by: PublishUnderOldLease "publish-under-old-lease"
                "A new leader publishes while a lease of the old one lives." [Model],
        }
        "a-vote-forswears" {
            says: "After a vote for another leader late acknowledgements bring nothing of a node's own lease back.",
            otherwise: "its lease revives beside the new leader's",
            source: "design 7",
            kept_in: ["crates/memtable-server/src/leadership/leader_lease.rs"],
            tests: ["after_a_vote_no_late_acknowledgement_brings_the_lease_back"],
            broken_by: ForswearSkipped "forswear-skipped"
                "After a vote late acknowledgements count." [Patch("forswear-skipped")],
        }
        "every-set-of-voters-counts" {
            says: "While voters change, the leader's lease counts every set that may elect somebody.",
            otherwise: "it lives when the other set elects: a stale read",
            source: "design 7",
            kept_in: ["crates/memtable-server/src/worker/leading/voters/counted.rs"],
            tests: [
                "while_voters_change_both_sets_are_counted_and_what_lasts_already_stays",
                "every_set_that_may_elect_somebody_is_counted",
            ],
            broken_by: NewVotersOnly "new-voters-only"
                "The leader's lease counts the newest set of voters only." [Patch("new-voters-only")],
        }
        "only-a-voter-campaigns" {
            says: "A server that is no voter asks for no votes.",
            otherwise: "a leader that was removed",
            source: "design 7",
            kept_in: ["crates/memtable-server/src/raft/election.rs"],
            tests: ["only_a_voter_campaigns"],
        }
        "a-fresh-leader-waits-to-serve" {
            says: "A leader answers no memtable read until its own first entry is published.",
            otherwise: "a value that the old leader published disappears",
            source: "design 4",
            kept_in: [
                "crates/memtable-server/src/worker/leading/publisher/publish.rs",
                "crates/memtable-server/src/publication/queue.rs",
            ],
            tests: [
                "a_fresh_leader_serves_only_when_its_own_first_entry_is_published",
                "no_manifest_is_served_before_the_leaders_own_first_entry_is_applied",
            ],
            broken_by: FreshLeaderReads "fresh-leader-reads"
                "A leader answers reads before its own first entry is published." [Model, Operand],
        }
        "reads-need-the-leader-lease" {
            says: "The leader answers memtable reads only while it holds its lease.",
            otherwise: "one deposed unnoticed answers: a stale read",
            source: "design 4",
            kept_in: ["crates/memtable-server/src/replica/state.rs"],
            tests: ["without_a_majority_nothing_is_acknowledged_and_no_read_is_answered"],
            broken_by: ReadWithoutLeaderLease "read-without-leader-lease"
                "Memtable reads are answered without the leader's lease." [Operand],
        }
        "the-leader-lease-is-asked-last" {
            says: "The term is taken before memtables are read, and the lease asked after.",
            otherwise: "a former leader answers when another has published more",
            source: "design 4",
            kept_in: ["crates/memtable-server/src/reading/mod.rs"],
            tests: [
                "what_was_read_counts_while_the_term_that_it_was_read_in_is_served",
                "a_read_that_began_before_the_term_was_served_does_not_count_nor_one_of_the_term_before",
            ],
            broken_by: LeaderLeaseAskedFirst "leader-lease-asked-first"
                "The leader's lease is asked before a read, not after." [Patch("leader-lease-asked-first")],
        }
        "a-format-is-raised-when-all-can-read-it" {
            says:
                "An entry that lets newer kinds into the log is proposed only when every member of the newest membership \
                 has said in this term that it reads them, and none is being added; newer kinds only after it was \
                 committed.",
            otherwise: "an older member cannot go on with its log, and perhaps a majority cannot",
            source: "design 7",
            kept_in: [
                "crates/memtable-server/src/worker/leading/configure/format.rs",
                "crates/memtable-server/src/worker/leading/sequencer/forming.rs",
            ],
            tests: [
                "a_format_is_raised_only_when_every_member_can_read_it_and_never_left_again",
                "a_format_is_possible_when_every_member_has_said_that_it_reads_it",
            ],
        }
    }
    } };
}
