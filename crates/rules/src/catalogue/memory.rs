//! Servers that lose their memory: incarnations and founding.

macro_rules! memory {
    ($next:ident $($later:ident)* => $($before:tt)*) => { $next! { $($later)* => $($before)*
    "Servers that lose their memory" {
        "messages-name-an-incarnation" {
            says: "What is sent to a member names the incarnation meant.",
            otherwise: "a follower that voted for a new leader and was wiped acknowledges the old one's write",
            source: "design 12",
            kept_in: ["crates/memtable-server/src/raft/acceptor/addressed.rs"],
            tests: ["a_wiped_voter_loses_nothing_and_is_let_in_again"],
            broken_by: IncarnationNotNamed "incarnation-not-named"
                "No message names an incarnation." [Election, Operand],
        }
        "who-forgot-does-not-vote" {
            says: "A server votes only as the incarnation that the group means.",
            otherwise: "one of two that have a write is wiped, and votes for the third",
            source: "design 12",
            kept_in: ["crates/memtable-server/src/raft/acceptor/addressed.rs"],
            tests: ["a_wiped_voter_loses_nothing_and_is_let_in_again"],
            broken_by: AmnesiacVotes "amnesiac-votes"
                "A server votes as another incarnation, which remembered." [Election, Patch("amnesiac-votes")],
        }
        "out-before-in" {
            says: "A new incarnation is let in when the removal of the old one is committed.",
            otherwise: "an old leader lets the wiped one in, and both acknowledge a write beside the new leader",
            source: "design 12",
            kept_in: [
                "crates/memtable-server/src/leadership/strangers.rs",
                "crates/memtable-server/src/worker/leading/voters/rejoin.rs",
            ],
            tests: ["a_wiped_voter_is_taken_out_let_go_and_let_in_again"],
            broken_by: ReadmittedBeforeRemoval "readmitted-before-removal"
                "A new incarnation is let in before the old one's removal is committed." [Election],
        }
        "one-server-founds" {
            says: "One fixed server founds a group, and only if everybody is empty.",
            otherwise: "a founder is wiped and founds again with an empty server",
            source: "design 12",
            kept_in: ["crates/memtable-server/src/founding.rs"],
            tests: ["a_partition_that_had_a_group_is_not_founded_in_silence_even_if_everybody_is_empty"],
            broken_by: FoundedByAnybody "founded-by-anybody"
                "Any empty server founds, if a majority is empty." [Election],
        }
    }
    } };
}
