//! Where SSTables are: naming servers, and releasing copies.

macro_rules! placement {
    ($next:ident $($later:ident)* => $($before:tt)*) => { $next! { $($later)* => $($before)*
    "Where SSTables are" {
        "named-when-durable" {
            says: "A server is named by the manifest when it has told the leader that proposes it that it has the table.",
            otherwise: "the manifest counts a copy that is not there",
            source: "design 10",
            kept_in: ["crates/memtable-server/src/flush/repair/mod.rs"],
            tests: ["tables_of_a_lost_and_of_a_drained_server_move_to_others_while_all_goes_on"],
            broken_by: NamedBeforeDurable "named-before-durable"
                "A server is named, and copies afterwards." [Placement],
        }
        "released-when-not-to-be-named" {
            says: "A leader has a server release its copy only if nothing that it has proposed may name it yet.",
            otherwise: "the copy goes, and then the change that names it is committed",
            source: "design 10",
            kept_in: ["crates/memtable-server/src/flush/repair/placement.rs"],
            tests: ["nothing_is_released_that_a_change_under_way_may_name"],
            broken_by: ReleasedWhileProposed "released-while-proposed"
                "What the manifest does not name is released, whatever is under way." [Placement],
        }
        "a-release-is-fenced" {
            says: "A server releases tables of a partition for no order older than the newest one to copy, over restarts.",
            otherwise: "a deposed leader's late order takes the copy that its successor has had made and named",
            source: "design 10",
            kept_in: ["crates/sstable-server/src/catalog/fences.rs"],
            tests: ["an_older_order_releases_nothing", "what_was_ordered_is_remembered_over_a_restart"],
            broken_by: ReleaseUnfenced "release-unfenced"
                "Orders to release are obeyed whenever they come." [Placement],
        }
        "questions-are-fenced-too" {
            says: "A leader's question for what there is counts as its order: older ones are refused from then on.",
            otherwise: "what the leader has counted, after a disk was lost, is released for one before it",
            source: "design 10",
            kept_in: ["crates/sstable-server/src/catalog/fences.rs"],
            tests: ["a_question_of_a_newer_leader_fences_older_ones"],
            broken_by: QuestionUnfenced "question-unfenced"
                "Only orders to copy are remembered." [Placement],
        }
        "cuts-hold-their-tables" {
            says: "What a cut names is neither deleted nor released where the cut has found it, until an entry of the log ends the cut.",
            otherwise: "a compaction, or a move, takes the tables that a backup or a long scan reads",
            source: "design 16",
            kept_in: ["crates/memtable-server/src/flush/repair/mod.rs", "crates/memtable-server/src/partition/cuts.rs"],
            tests: ["what_a_cut_names_is_no_orphan_and_no_surplus", "compactions_leave_what_a_cut_names"],
            broken_by: HoldIgnored "hold-ignored"
                "What the manifest does not name is deleted, and released." [Placement],
        }
        "cuts-end-in-the-log" {
            says: "A cut ends for everybody by one entry of the log; a leader's clock only makes it propose that.",
            otherwise: "a deposed leader, who hears of no renewal, deletes what the cut names",
            source: "design 16",
            kept_in: ["crates/memtable-server/src/worker/leading/cuts.rs", "crates/memtable-server/src/partition/cuts.rs"],
            tests: ["a_cut_ends_by_an_entry_and_not_before"],
            broken_by: HoldEndedByClock "hold-ended-by-clock"
                "A leader takes a cut for ended when its own clock says so." [Placement],
        }
    }
    } };
}
