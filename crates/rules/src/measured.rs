//! How soon each broken build was noticed: measurements, as they were made, for `docs/rules.md`.
//!
//! The model's are lengths of shortest traces, which its tests print again (`cargo test -p sextant-model -- --nocapture`); the
//! simulation's are rows of the table that `cargo xtask sim --mutants` prints, on seeds that nothing was tuned with.

/// A mutant of the model.
#[derive(Clone, Copy, Debug)]
pub struct Traced {
    pub mutant: &'static str,
    /// Length of a shortest trace, in the bounds of the model's tests.
    pub steps: u32,
    /// What it leads to, if the rule's `otherwise` does not say it.
    pub to: Option<&'static str>,
}

/// A mutant of the simulation.
#[derive(Clone, Copy, Debug)]
pub struct Simulated {
    pub mutant: &'static str,
    /// The options of `cargo xtask sim`, but for `--mutants`.
    pub options: &'static str,
    /// Until the third conviction by the check that is blind to versions, or the last seed.
    pub runs: u32,
    /// So many of them were convicted by that check.
    pub blind: u32,
    /// By something else that clients see: versions, half a batch, a cluster that does not come back.
    pub clients: u32,
    /// By assertions of the servers or of openraft, and, where nothing else helped, by invariants.
    pub inside: u32,
    pub first: u32,
}

const fn traced(mutant: &'static str, steps: u32) -> Traced {
    Traced { mutant, steps, to: None }
}

const fn traced_to(mutant: &'static str, steps: u32, to: &'static str) -> Traced {
    Traced { mutant, steps, to: Some(to) }
}

/// `caught`: blind, clients, inside.
const fn simulated(
    mutant: &'static str,
    options: &'static str,
    runs: u32,
    caught: [u32; 3],
    first: u32,
) -> Simulated {
    let [blind, clients, inside] = caught;
    Simulated { mutant, options, runs, blind, clients, inside, first }
}

/// The model of the protocol.
pub const MODEL: &[Traced] = &[
    traced("sst-tombstone-final", 11),
    traced("search-past-tombstone", 16),
    traced("memtable-tombstone-is-no-entry", 8),
    traced_to("no-stale-manifest", 13, "flushed and dropped in between: \"absent\""),
    traced_to(
        "stale-only-if-frozen",
        18,
        "active at the reader's version, and a merge made the next: an older value",
    ),
    traced("reread-names-newest", 20),
    traced_to("insert-not-voided", 13, "an INSERT on a live key"),
    traced("put-as-insert-over-frozen", 22),
    traced_to("bits-after-publication", 11, "a stale read under a lease"),
    traced("lease-without-manifest", 17),
    traced("publish-under-old-lease", 14),
    traced("fresh-leader-reads", 9),
    traced_to("failed-at-once", 5, "\"exists\", and nothing explains it"),
    traced("bitless-overtakes", 15),
    traced("freeze-slips-in", 22),
    traced("filter-says-in-memtable", 13),
    traced("insert-leaves-no-prefix", 10),
    traced("frozen-prefix-counts", 21),
    traced("prefix-without-lease", 8),
    traced("filter-says-prefix", 12),
    traced("serials-go-on", 16),
    traced("flush-before-published", 20),
    traced("flags-out-of-order", 23),
    traced("table-replaced", 19),
    traced("tombstone-dropped-early", 19),
    traced("cache-holds-memtable-values", 18),
    traced("stamp-past-swallowed", 22),
    traced("stamp-at-arrival", 19),
    traced("failed-forgotten", 8),
    traced("duplicate-at-once", 5),
    traced("no-duplicate-table", 5),
    traced_to("forgotten-executed", 6, "a late copy takes effect again"),
    traced("duplicate-table-not-undone", 6),
    traced("lease-outlives-its-serial", 19),
    traced("incarnation-forgets-leases", 13),
    traced("proposal-keeps-serial", 4),
    traced("filters-of-committed-only", 13),
    traced("later-grants-count", 2),
    traced("serial-after-bit", 16),
    traced("epoch-and-serial-apart", 25),
    traced("slot-seq-not-compared", 16),
    traced_to(
        "swap-after-proposal",
        16,
        "its serial is known before its invalidation, and it waits for nobody",
    ),
    traced_to("swap-in-halves", 17, "the write invalidates nothing"),
    traced_to(
        "refused-bits-stay",
        17,
        "an INSERT, evaluated again, invalidates nothing, leaves no bit and waits for nobody",
    ),
    traced_to("ignored-bits-stay", 21, "a freeze slips in before an INSERT, which waits for nobody then"),
    traced("acknowledged-before-applied", 16),
    traced("kept-at-arrival", 16),
    traced("kept-over-epoch", 18),
    traced("kept-over-whole-filters", 18),
    traced_to(
        "kept-over-first-filters",
        16,
        "what the new leader said was invalidated before its first whole filters came, and they hide it",
    ),
    traced("kept-without-lease", 14),
    traced("load-not-announced", 12),
    traced_to(
        "whole-filters-without-announcement",
        17,
        "a p-node with whole filters does not know that it has to ask",
    ),
    traced_to(
        "announced-when-appended",
        17,
        "the same, of whole filters made between the ring entry and the append",
    ),
    traced_to("load-invalidates-nothing", 21, "what was kept before the load is used after it"),
    traced_to("load-swaps-nothing", 21, "a read after the invalidation and before the load is kept"),
    traced_to(
        "load-published-first",
        21,
        "what a read found in the old SSTables is taken for what was loaded, and kept",
    ),
    traced_to("load-in-grace", 14, "a reader of the old SSTables is told \"no entry\", and searches them"),
    traced("base-over-load", 10),
    traced("load-under-lease", 9),
    traced("load-grants-on", 9),
    traced_to("load-keeps-ring", 13, "what was kept before the load is used after it"),
    traced_to("load-renews-early", 13, "a read between the new ring and the load is kept"),
    traced("stamp-over-load", 19),
    traced("expiry-by-own-clock", 3),
    traced("tick-goes-back", 16),
    traced("tick-waits-for-nobody", 13),
    traced("tick-not-published", 5),
    traced("tick-read-apart", 13),
    traced_to("expired-by-known-tick", 8, "\"expired\" by a tick that is not committed"),
    traced("alive-by-published-tick", 13),
    traced("judged-by-newest-view", 14),
    traced("whole-filters-of-appended-ticks", 13),
    traced("ticks-of-committed-only", 15),
    traced("kept-is-not-judged", 14),
    traced("conditions-by-published-tick", 4),
    traced_to("base-judged-by-pnode", 4, "a put-if-present takes effect on what has expired"),
    traced("expired-is-no-entry", 12),
    traced("expired-is-final", 22),
    traced("merge-by-unpublished-tick", 13),
    traced_to("expired-is-merged-away", 23, "an older version comes back"),
];

/// The model of elections and lost memory.
pub const ELECTION: &[Traced] = &[
    traced("amnesiac-votes", 12),
    traced("incarnation-not-named", 13),
    traced("readmitted-before-removal", 15),
    traced("founded-by-anybody", 12),
];

/// The model of where SSTables are.
pub const PLACEMENT: &[Traced] = &[
    traced("named-before-durable", 2),
    traced("released-while-proposed", 5),
    traced("release-unfenced", 5),
    traced("question-unfenced", 9),
    traced("hold-ignored", 5),
    traced("hold-ended-by-clock", 6),
];

/// The simulation. The older rows are from before some of its scenes and witnesses.
pub const SIMULATION: &[Simulated] = &[
    simulated("failed-forgotten", "--seeds 30 --first 70001 --theme late_copies", 5, [3, 0, 0], 1),
    simulated(
        "duplicate-table-not-undone",
        "--seeds 30 --first 70001 --theme there_and_back",
        11,
        [4, 2, 0],
        5,
    ),
    simulated(
        "incarnation-forgets-leases",
        "--seeds 30 --first 70001 --theme refused_proposals",
        15,
        [3, 0, 0],
        6,
    ),
    simulated(
        "filter-says-in-memtable",
        "--seeds 30 --first 40001 --theme refused_proposals",
        24,
        [3, 0, 0],
        7,
    ),
    simulated("lease-from-receipt", "--seeds 30 --first 70001 --theme asleep", 10, [4, 0, 0], 3),
    simulated("stamp-at-arrival", "--seeds 30 --first 70001 --theme late_sstables", 10, [3, 0, 0], 4),
    simulated("fresh-leader-reads", "--seeds 30 --first 70001 --theme laggard", 12, [3, 0, 0], 5),
    simulated("filters-of-committed-only", "--seeds 30 --first 70001 --theme laggard", 12, [4, 0, 0], 4),
    simulated(
        "flush-before-published",
        "--seeds 30 --first 70001 --theme flush_under_lease",
        13,
        [4, 0, 0],
        3,
    ),
    simulated(
        "lease-outlives-its-serial",
        "--seeds 100 --first 70001 --theme slow_pnode",
        100,
        [0, 0, 1],
        41,
    ),
    simulated("lease-timed-late", "--seeds 100 --first 70001 --theme asleep", 100, [0, 0, 1], 88),
    simulated("read-without-leader-lease", "--seeds 30 --first 70001 --theme asleep", 4, [4, 0, 0], 1),
    simulated("failed-at-once", "--seeds 30 --first 70001 --theme flush_under_lease", 11, [3, 0, 0], 4),
    simulated("duplicate-at-once", "--seeds 30 --first 70001 --theme flush_under_lease", 6, [3, 0, 0], 3),
    simulated("serials-go-on", "--seeds 30 --first 70001 --theme handover_under_lease", 30, [1, 0, 0], 22),
    simulated(
        "leader-lease-asked-first",
        "--seeds 30 --first 70001 --theme hung_under_lease",
        30,
        [2, 0, 0],
        18,
    ),
    simulated("no-fsync", "--seeds 12 --first 30001", 12, [0, 3, 5], 1),
    simulated("no-directory-fsync", "--seeds 12 --first 30001", 12, [4, 1, 3], 1),
    simulated("no-lease-wait", "--seeds 12 --first 30001", 6, [3, 0, 0], 1),
    simulated("zero-uncertainty", "--seeds 12 --first 30001", 6, [3, 0, 0], 1),
    simulated("acknowledged-before-majority", "--seeds 12 --first 30001", 12, [3, 1, 0], 5),
    simulated("no-vote-guard", "--seeds 12 --first 30001", 2, [0, 0, 1], 2),
    simulated("lease-outlives-leadership", "--seeds 12 --first 30001", 7, [0, 0, 1], 7),
    simulated("sst-tombstone-final", "--seeds 12 --first 30001", 4, [3, 0, 0], 1),
    simulated("search-past-tombstone", "--seeds 12 --first 30001", 6, [4, 0, 0], 1),
    simulated("memtable-tombstone-is-no-entry", "--seeds 12 --first 30001", 4, [4, 0, 0], 1),
    simulated("no-stale-manifest", "--seeds 12 --first 30001", 7, [4, 0, 0], 4),
    simulated("stale-only-if-frozen", "--seeds 12 --first 30001", 9, [3, 0, 0], 5),
    simulated("reread-names-newest", "--seeds 12 --first 30001", 9, [3, 0, 0], 5),
    simulated("insert-not-voided", "--seeds 12 --first 30001", 6, [4, 0, 0], 2),
    simulated("insert-leaves-no-prefix", "--seeds 16 --first 70001", 5, [4, 0, 0], 2),
    simulated("frozen-prefix-counts", "--seeds 16 --first 70001", 5, [4, 0, 0], 2),
    simulated("prefix-without-lease", "--seeds 16 --first 70001", 7, [3, 0, 0], 3),
    simulated("put-as-insert-over-frozen", "--seeds 12 --first 30001", 4, [4, 0, 0], 1),
    simulated("bits-after-proposal", "--seeds 12 --first 30001", 4, [3, 0, 0], 1),
    simulated("lease-without-manifest", "--seeds 12 --first 30001", 8, [3, 0, 0], 1),
    simulated("bitless-overtakes", "--seeds 12 --first 30001", 10, [3, 0, 0], 7),
    simulated("freeze-slips-in", "--seeds 12 --first 30001", 4, [4, 0, 0], 1),
    simulated("flags-out-of-order", "--seeds 12 --first 30001", 12, [0, 4, 0], 3),
    simulated("table-replaced", "--seeds 12 --first 30001", 12, [2, 6, 0], 1),
    simulated("tombstone-dropped-early", "--seeds 12 --first 30001", 5, [4, 0, 0], 1),
    simulated("cache-holds-memtable-values", "--seeds 12 --first 30001", 7, [3, 0, 0], 1),
    simulated("stamp-past-swallowed", "--seeds 12 --first 30001", 9, [3, 0, 0], 1),
    simulated("no-duplicate-table", "--seeds 12 --first 30001", 4, [4, 0, 0], 1),
    simulated("amnesiac-votes", "--seeds 14 --first 501 --wipes", 14, [0, 0, 6], 1),
    simulated("incarnation-not-named", "--seeds 14 --first 501 --wipes", 11, [3, 2, 0], 1),
    simulated("proposal-keeps-serial", "--seeds 30 --first 70001 --themed", 30, [0, 1, 0], 8),
    simulated("forswear-skipped", "--seeds 30 --first 70001 --themed", 30, [1, 0, 1], 14),
    simulated("new-voters-only", "--seeds 30 --first 70001 --themed", 30, [1, 0, 0], 24),
    simulated("snapshot-without-next-seq", "--seeds 30 --first 70001 --theme laggard", 7, [3, 0, 0], 3),
    simulated("snapshot-without-time", "--seeds 8 --first 70001 --theme laggard", 2, [0, 0, 2], 1),
    simulated("snapshot-without-generations", "--seeds 8 --first 70001 --theme laggard", 5, [3, 0, 0], 2),
    simulated("snapshot-without-sessions", "--seeds 8 --first 70001 --theme laggard", 8, [0, 2, 0], 4),
    simulated("snapshot-without-results", "--seeds 8 --first 70001 --theme laggard", 8, [0, 4, 0], 2),
    simulated("snapshot-without-floors", "--seeds 8 --first 70001 --theme laggard", 2, [0, 0, 2], 1),
    simulated("snapshot-without-last-use", "--seeds 8 --first 70001 --theme laggard", 8, [0, 1, 0], 6),
    simulated("snapshot-without-membership", "--seeds 8 --first 70001 --theme laggard", 8, [0, 4, 0], 1),
    simulated("snapshot-without-next-table", "--seeds 8 --first 70001 --theme laggard", 2, [0, 0, 2], 1),
    simulated("snapshot-without-configuration", "--seeds 30 --first 70001 --theme laggard", 2, [0, 0, 2], 1),
    simulated("snapshot-without-configured-at", "--seeds 30 --first 70001 --theme laggard", 2, [0, 0, 2], 1),
    simulated("manifest-without-version", "--seeds 30 --first 70001 --theme laggard", 5, [3, 0, 0], 2),
    simulated("manifest-without-flushes", "--seeds 30 --first 70001 --theme laggard", 21, [3, 0, 0], 12),
    simulated(
        "manifest-without-flushes-known-after",
        "--seeds 30 --first 70001 --theme laggard",
        3,
        [0, 0, 1],
        3,
    ),
    simulated("manifest-without-ssts", "--seeds 30 --first 70001 --theme laggard", 5, [3, 0, 0], 2),
    simulated("manifest-without-options", "--seeds 30 --first 70001 --theme laggard", 13, [3, 0, 0], 3),
    simulated(
        "manifest-without-flushed-generations",
        "--seeds 30 --first 70001 --theme laggard",
        30,
        [0, 2, 0],
        7,
    ),
    simulated(
        "manifest-without-flush-versions",
        "--seeds 30 --first 70001 --theme laggard",
        28,
        [3, 0, 0],
        20,
    ),
    simulated("manifest-without-persisted", "--seeds 30 --first 70001 --theme laggard", 2, [0, 0, 2], 1),
    simulated("update-misses-group", "--seeds 12 --first 70001", 12, [0, 4, 0], 2),
    simulated("serial-after-bit", "--seeds 60 --first 70001 --themed", 23, [4, 0, 0], 8),
    simulated("epoch-and-serial-apart", "--seeds 60 --first 70001 --themed", 43, [3, 0, 0], 2),
    simulated("slot-seq-not-compared", "--seeds 60 --first 70001 --themed", 5, [3, 0, 0], 1),
    simulated("swap-after-proposal", "--seeds 60 --first 70001 --themed", 13, [4, 0, 0], 2),
    simulated("acknowledged-before-applied", "--seeds 60 --first 70001 --themed", 5, [3, 0, 0], 1),
    simulated("kept-at-arrival", "--seeds 60 --first 70001 --themed", 6, [3, 0, 0], 2),
    simulated("kept-over-epoch", "--seeds 60 --first 70001 --themed", 5, [3, 0, 0], 1),
    simulated("kept-over-whole-filters", "--seeds 60 --first 70001 --themed", 60, [1, 0, 0], 52),
    simulated("kept-over-first-filters", "--seeds 60 --first 70001 --themed", 11, [3, 0, 0], 4),
    simulated("kept-without-lease", "--seeds 60 --first 70001 --themed", 5, [3, 0, 0], 1),
    simulated("expiry-by-own-clock", "--seeds 24 --first 70001 --themed", 5, [4, 0, 0], 1),
    simulated("tick-waits-for-nobody", "--seeds 24 --first 70001 --themed", 24, [0, 0, 1], 18),
    simulated("tick-not-published", "--seeds 30 --first 70001 --themed", 30, [1, 0, 0], 6),
    simulated("expired-by-known-tick", "--seeds 24 --first 70001 --themed", 24, [1, 0, 0], 14),
    simulated("kept-is-not-judged", "--seeds 24 --first 70001 --themed", 9, [3, 0, 0], 2),
    simulated("changes-without-condition", "--seeds 1 --first 30001 --profile quiet", 1, [1, 0, 0], 1),
    simulated("watch-without-versions", "--seeds 1 --first 30001 --profile quiet", 1, [1, 0, 0], 1),
    simulated("remembers-without-version", "--seeds 40 --first 70001 --themed", 7, [4, 0, 0], 2),
    simulated("counts-one-element", "--seeds 1 --first 30001 --profile quiet", 1, [1, 0, 0], 1),
    simulated("any-version-counts", "--seeds 1 --first 30001 --profile quiet", 1, [1, 0, 0], 1),
    simulated("load-under-lease", "--seeds 24 --first 70001 --themed", 21, [3, 6, 0], 2),
    simulated("load-keeps-ring", "--seeds 24 --first 70001 --themed", 10, [3, 2, 0], 1),
    simulated("options-over-memtable", "--seeds 24 --first 70001", 22, [3, 0, 0], 5),
    simulated("versions-again", "--seeds 1 --first 30001 --profile quiet", 1, [1, 0, 0], 1),
];
