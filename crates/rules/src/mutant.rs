//! Deliberate bugs, for showing that the tests would notice them.
//!
//! Owns the list of mutants and which one of them is active in this process. Without the feature `mutants` none ever is, the
//! question is a constant, and the compiler removes it together with its answer. The feature never gets into a release build.

#[cfg(all(feature = "mutants", not(debug_assertions)))]
compile_error!("the feature `mutants` is for tests: it must not be in a release build");

macro_rules! mutants {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// A rule that a mutant breaks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Mutant {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Mutant {
            /// All of them, by the names that `cargo xtask sim --mutant` takes, and what each does.
            pub const ALL: &[(&'static str, Mutant, &'static str)] =
                &[$(($name, Mutant::$variant, concat!($($doc),+)),)+];
        }
    };
}

mutants! {
    /// The Raft log calls a batch durable that it has only written.
    NoFsync = "no-fsync",
    /// The simulated disk ignores fsyncs of directories.
    NoDirectoryFsync = "no-directory-fsync",
    /// A group is published although a lease forbids it.
    NoLeaseWait = "no-lease-wait",
    /// Grantor and holder take their wall clocks at their word, synchronised or not.
    ZeroUncertainty = "zero-uncertainty",
    /// The leader counts its lease from the arrival of acknowledgements, not from the sending of what they acknowledge.
    LeaseFromReceipt = "lease-from-receipt",
    /// A lease's length is measured first, and counted from a later time.
    LeaseTimedLate = "lease-timed-late",
    /// The leader answers memtable reads without its lease.
    ReadWithoutLeaderLease = "read-without-leader-lease",
    /// The leader asks for its lease before it reads its memtables, and not afterwards.
    LeaderLeaseAskedFirst = "leader-lease-asked-first",
    /// A group is published when the leader has appended it.
    AcknowledgedBeforeMajority = "acknowledged-before-majority",
    /// Nodes vote and campaign at any time.
    NoVoteGuard = "no-vote-guard",
    /// A server votes although the group means another incarnation of it: one that remembered.
    AmnesiacVotes = "amnesiac-votes",
    /// No message says which incarnation it means: a server without its memory is taken for what it was.
    IncarnationNotNamed = "incarnation-not-named",
    /// A p-node's lease may outlive the leader's.
    LeaseOutlivesLeadership = "lease-outlives-leadership",
    /// An SSTable's tombstone ends a read: the memtables are not asked.
    SstTombstoneFinal = "sst-tombstone-final",
    /// The search goes on in older SSTables after a tombstone.
    SearchPastTombstone = "search-past-tombstone",
    /// A tombstone in a memtable is answered as "no entry".
    MemtableTombstoneIsNoEntry = "memtable-tombstone-is-no-entry",
    /// No reader is told that its manifest is stale.
    NoStaleManifest = "no-stale-manifest",
    /// A manifest is stale only if it is one version behind: what was still active at older ones does not count.
    StaleOnlyIfFrozen = "stale-only-if-frozen",
    /// A memtable read names the newest manifest version, not the one whose SSTables were searched.
    RereadNamesNewest = "reread-names-newest",
    /// A condition that was checked before a flush holds after it.
    InsertNotVoided = "insert-not-voided",
    /// A put leaves no bit if a frozen memtable has the key.
    PutAsInsertOverFrozen = "put-as-insert-over-frozen",
    /// A group's bits go out after it was proposed, and it waits for nobody.
    BitsAfterProposal = "bits-after-proposal",
    /// Filters and lease are used without the manifest that belongs to them.
    LeaseWithoutManifest = "lease-without-manifest",
    /// A p-node keeps its lease when it acknowledges beyond it.
    LeaseOutlivesItsSerial = "lease-outlives-its-serial",
    /// A leader serves reads before its own first entry is published.
    FreshLeaderReads = "fresh-leader-reads",
    /// A failed condition is answered before what it saw is published.
    FailedAtOnce = "failed-at-once",
    /// A group without bits is published before its predecessors.
    BitlessOvertakes = "bitless-overtakes",
    /// A freeze slips in between a group's evaluation and its append, and nobody compares generations.
    FreezeSlipsIn = "freeze-slips-in",
    /// Whether the active memtable has a key is asked of its filter, and a refused group leads to no new ring.
    FilterSaysInMemtable = "filter-says-in-memtable",
    /// Serials mean the same under every leader.
    SerialsGoOn = "serials-go-on",
    /// A new ring incarnation forgets the leases of the one before.
    IncarnationForgetsLeases = "incarnation-forgets-leases",
    /// A group that is proposed when the ring starts anew keeps its serial of the old one.
    ProposalKeepsSerial = "proposal-keeps-serial",
    /// A vote that leaves a former leader does not end what late acknowledgements bring back.
    ForswearSkipped = "forswear-skipped",
    /// While voters change, the leader's lease is counted from the newest set of them only.
    NewVotersOnly = "new-voters-only",
    /// Whole filters hold what is committed, not everything that is in the log.
    FiltersOfCommittedOnly = "filters-of-committed-only",
    /// A memtable is flushed before everything up to its freeze is published.
    FlushBeforePublished = "flush-before-published",
    /// The newest frozen memtable is flushed first.
    FlagsOutOfOrder = "flags-out-of-order",
    /// Tables that are planned on one manifest version share an id, and a later seal replaces the table.
    TableReplaced = "table-replaced",
    /// A merge of the newer tables drops tombstones although older tables remain.
    TombstoneDroppedEarly = "tombstone-dropped-early",
    /// The record cache takes values of memtables.
    CacheHoldsMemtableValues = "cache-holds-memtable-values",
    /// A cached record's stamp moves past flushed tables that nobody can look into any more.
    StampPastSwallowed = "stamp-past-swallowed",
    /// A record is cached with the manifest version at its arrival.
    StampAtArrival = "stamp-at-arrival",
    /// No replica remembers failed conditions.
    FailedForgotten = "failed-forgotten",
    /// A duplicate is answered before its original is published.
    DuplicateAtOnce = "duplicate-at-once",
    /// Retried requests are executed again.
    NoDuplicateTable = "no-duplicate-table",
    /// A truncation leaves the duplicate table as it is.
    DuplicateTableNotUndone = "duplicate-table-not-undone",
    /// A snapshot is read without the next seq.
    SnapshotWithoutNextSeq = "snapshot-without-next-seq",
    /// A snapshot is read without the partition's time.
    SnapshotWithoutTime = "snapshot-without-time",
    /// A snapshot is read without the generations of its memtables.
    SnapshotWithoutGenerations = "snapshot-without-generations",
    /// A snapshot is read without its sessions.
    SnapshotWithoutSessions = "snapshot-without-sessions",
    /// A snapshot's sessions are read without what their requests were answered.
    SnapshotWithoutResults = "snapshot-without-results",
    /// A snapshot's sessions are read without the number below which results are gone.
    SnapshotWithoutFloors = "snapshot-without-floors",
    /// A snapshot's sessions are read without the time of their last use.
    SnapshotWithoutLastUse = "snapshot-without-last-use",
    /// A snapshot is read without its membership.
    SnapshotWithoutMembership = "snapshot-without-membership",
    /// A snapshot is read without the id of the next table.
    SnapshotWithoutNextTable = "snapshot-without-next-table",
    /// A snapshot is read without the partition's configuration.
    SnapshotWithoutConfiguration = "snapshot-without-configuration",
    /// A snapshot is read without the place of its configuration in the log.
    SnapshotWithoutConfiguredAt = "snapshot-without-configured-at",
    /// A snapshot's manifest is read without its version.
    ManifestWithoutVersion = "manifest-without-version",
    /// A snapshot's manifest is read without the flushes that it remembers.
    ManifestWithoutFlushes = "manifest-without-flushes",
    /// A snapshot's manifest is read without the version after which it remembers all flushes.
    ManifestWithoutFlushesKnownAfter = "manifest-without-flushes-known-after",
    /// A snapshot's manifest is read without its SSTables.
    ManifestWithoutSsts = "manifest-without-ssts",
    /// A snapshot's manifest is read without the options of its tables.
    ManifestWithoutOptions = "manifest-without-options",
    /// A snapshot's manifest is read without the generations that are flushed.
    ManifestWithoutFlushedGenerations = "manifest-without-flushed-generations",
    /// A snapshot's manifest is read without the versions that the last flushes made.
    ManifestWithoutFlushVersions = "manifest-without-flush-versions",
    /// A snapshot's manifest is read without the places that its tables are persisted up to.
    ManifestWithoutPersisted = "manifest-without-persisted",
}

impl Mutant {
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(n, ..)| *n == name).map(|(_, mutant, _)| *mutant)
    }
}

#[cfg(feature = "mutants")]
static ACTIVE: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(u8::MAX);

/// Makes this process a mutant.
#[cfg(feature = "mutants")]
pub fn activate(mutant: Mutant) {
    ACTIVE.store(mutant as u8, std::sync::atomic::Ordering::Relaxed);
}

/// Whether this process is that mutant.
#[cfg(feature = "mutants")]
#[inline]
pub fn active(mutant: Mutant) -> bool {
    ACTIVE.load(std::sync::atomic::Ordering::Relaxed) == mutant as u8
}

/// Whether this process is that mutant: never.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn active(_: Mutant) -> bool {
    false
}
