//! Mutants: the protocol with one rule weakened. Each has to lead to a violation, or the rule (or the model) is pointless.

macro_rules! mutants {
    ($($(#[$doc:meta])* $variant:ident = $name:literal;)*) => {
        /// A weakened rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutant {
            $($(#[$doc])* $variant,)*
        }

        impl Mutant {
            pub const ALL: &[Mutant] = &[$(Mutant::$variant,)*];

            /// As the command line names it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Mutant::$variant => $name,)*
                }
            }
        }
    };
}

mutants! {
    /// A request of a session that has expired is executed, as if the session were new.
    ForgottenExecuted = "forgotten-executed";
    /// An SSTable's tombstone is taken as the final answer.
    SstTombstoneFinal = "sst-tombstone-final";
    /// Older SSTables are searched after a tombstone.
    SearchPastTombstone = "search-past-tombstone";
    /// A memtable's tombstone is reported as "no entry".
    MemtableTombstoneIsNoEntry = "memtable-tombstone-is-no-entry";
    /// A memtable read never answers `StaleManifest`.
    NoStaleManifest = "no-stale-manifest";
    /// `StaleManifest` only for memtables that were frozen at the reader's version.
    StaleOnlyIfFrozen = "stale-only-if-frozen";
    /// The memtable read after an SSTable search names the newest version known, not the one searched.
    RereadNamesNewest = "reread-names-newest";
    /// A flush does not void the proof of absence of an INSERT.
    InsertNotVoided = "insert-not-voided";
    /// A blind PUT of a key in no SSTable is treated as an INSERT although a frozen memtable holds it.
    PutAsInsertOverFrozen = "put-as-insert-over-frozen";
    /// bf-log entries go out after publication.
    BitsAfterPublication = "bits-after-publication";
    /// Filters and lease of a reply are used without its manifest.
    LeaseWithoutManifest = "lease-without-manifest";
    /// A new leader publishes while a lease of the old one lives.
    PublishUnderOldLease = "publish-under-old-lease";
    /// A fresh leader answers memtable reads before its own first entry is published.
    FreshLeaderReads = "fresh-leader-reads";
    /// A failed condition is answered at once.
    FailedAtOnce = "failed-at-once";
    /// A group without bits is published before its predecessor.
    BitlessOvertakes = "bitless-overtakes";
    /// A freeze slips in between evaluation and append, and the group is not ignored.
    FreezeSlipsIn = "freeze-slips-in";
    /// Whether the active memtable has a key is asked of its filter, where a refused group (whose bits stay in the ring, too) has
    /// left one.
    FilterSaysInMemtable = "filter-says-in-memtable";
    /// The same, but a refused group leads to a new ring.
    FilterSaysWithNewRing = "filter-says-with-new-ring";
    /// Serials go on across epochs: no whole filters at a new leader.
    SerialsGoOn = "serials-go-on";
    /// A memtable is flushed before everything up to its freeze is published.
    FlushBeforePublished = "flush-before-published";
    /// Flush flags apply out of freeze order.
    FlagsOutOfOrder = "flags-out-of-order";
    /// An SSTable's id lacks the log id, the epoch and the attempt: a late seal replaces a table.
    TableReplaced = "table-replaced";
    /// A merge drops tombstones although an older table outside of its inputs has the key.
    TombstoneDroppedEarly = "tombstone-dropped-early";
    /// The record cache holds memtable values.
    CacheHoldsMemtableValues = "cache-holds-memtable-values";
    /// A cache stamp moves past a flush whose table a merge has swallowed.
    StampPastSwallowed = "stamp-past-swallowed";
    /// A cache entry is stamped with the version at arrival.
    StampAtArrival = "stamp-at-arrival";
    /// The leader alone remembers what it answered to a failed condition.
    FailedForgotten = "failed-forgotten";
    /// A duplicate is answered before the first copy is published.
    DuplicateAtOnce = "duplicate-at-once";
    /// No duplicate table: a retry is a new request.
    NoDuplicateTable = "no-duplicate-table";
    /// A truncation leaves the duplicate table as it was.
    DuplicateTableNotUndone = "duplicate-table-not-undone";
    /// A p-node keeps its lease when its filters move on without a new one.
    LeaseOutlivesItsSerial = "lease-outlives-its-serial";
    /// A new ring incarnation forgets the leases of the one before.
    IncarnationForgetsLeases = "incarnation-forgets-leases";
    /// A group that is proposed when the ring starts anew keeps its serial of the old one.
    ProposalKeepsSerial = "proposal-keeps-serial";
    /// Raft refused a group whose bits are out, and the ring goes on.
    RefusedBitsStay = "refused-bits-stay";
    /// A new leader's filters hold only what it knows to be committed.
    FiltersOfCommittedOnly = "filters-of-committed-only";
    /// Grants made after a group count for it too.
    LaterGrantsCount = "later-grants-count";
}

impl Mutant {
    /// Rules that can be weakened one at a time, within the bounds explored so far: each covers for the other. (Bits that a refused
    /// group left behind are only false positives, unless the next update of the key takes them for its own: it then leaves
    /// none, and is published without waiting for those who have not pulled the old one.)
    pub const HARMLESS: &[Mutant] = &[Mutant::RefusedBitsStay, Mutant::FilterSaysWithNewRing];

    pub fn named(name: &str) -> Option<Mutant> {
        Mutant::ALL.iter().copied().find(|m| m.name() == name)
    }
}
