//! Each weakened rule leads to a violation. The bounds are the smallest in which it was found; the traces' lengths are printed
//! (`--nocapture`), and stand in `docs/rules.md`.

use sextant_model::bounds::{TOMBSTONES, VALUES};
use sextant_model::state::Cell;
use sextant_model::state::WriteKind::{self, Delete, Insert, Put, Replace, Update};
use sextant_model::{Bounds, Mutant, Protocol, explore};
use sextant_rules::catalogue::Way;

/// More than any of them needs.
const STATES_MAX: u64 = 3_000_000;

fn bounds(beginning: Cell, writes: usize, kinds: &[WriteKind]) -> Bounds {
    Bounds { preloaded: vec![beginning], writes, kinds: kinds.to_vec(), ..Bounds::small() }
}

fn scans(beginning: Cell, writes: usize, kinds: &[WriteKind]) -> Bounds {
    Bounds { scans: true, ..bounds(beginning, writes, kinds) }
}

fn registered(beginning: Cell, writes: usize, kinds: &[WriteKind]) -> Bounds {
    Bounds { registered: true, ..bounds(beginning, writes, kinds) }
}

fn a_load(beginning: Cell) -> Bounds {
    Bounds { loads: 1, ..registered(beginning, 0, &[Update]) }
}

/// The preloaded value expires at the only tick.
fn a_tick(writes: usize, kinds: &[WriteKind]) -> Bounds {
    Bounds { ticks: 1, preloaded_expiry: 1, ..bounds(VALUES, writes, kinds) }
}

fn assert_found(mutant: Mutant, bounds: Bounds) {
    let explored = explore(&Protocol::new(bounds.with(mutant)).unwrap(), STATES_MAX);
    let violation = explored.violation.unwrap_or_else(|| {
        panic!("{}: nothing found in {} states", mutant.name(), explored.states);
    });
    println!(
        "{}: {} steps, {} states: {}",
        mutant.name(),
        violation.trace.len(),
        explored.states,
        violation.what
    );
    violation.trace.iter().enumerate().for_each(|(n, line)| println!("{:4}. {line}", n + 1));
}

macro_rules! mutants {
    ($($name:ident: $mutant:ident => $bounds:expr;)*) => {
        $(#[test]
        fn $name() {
            assert_found(Mutant::$mutant, $bounds);
        })*

        #[test]
        fn every_mutant_has_a_test() {
            let tested = [$(Mutant::$mutant),*];
            for mutant in Mutant::ALL {
                let weakened = mutant.ways().contains(&Way::Model);
                assert_eq!(tested.contains(mutant), weakened, "{}", mutant.name());
            }
        }
    };
}

mutants! {
    sst_tombstone_final: SstTombstoneFinal => bounds(TOMBSTONES, 1, &[Insert]);
    search_past_tombstone: SearchPastTombstone => Bounds { freezes: 1, ..bounds(VALUES, 1, &[Delete]) };
    memtable_tombstone_is_no_entry: MemtableTombstoneIsNoEntry => bounds(VALUES, 1, &[Delete]);
    no_stale_manifest: NoStaleManifest => Bounds { freezes: 1, ..bounds(Cell::NOTHING, 1, &[Insert]) };
    stale_only_if_frozen: StaleOnlyIfFrozen =>
        Bounds { freezes: 1, compactions: 1, ..bounds(VALUES, 1, &[Update]) };
    reread_names_newest: RereadNamesNewest => Bounds { freezes: 1, ..bounds(TOMBSTONES, 1, &[Insert]) };
    insert_not_voided: InsertNotVoided => Bounds { freezes: 1, ..bounds(Cell::NOTHING, 2, &[Insert]) };
    put_as_insert_over_frozen: PutAsInsertOverFrozen =>
        Bounds { freezes: 1, ..bounds(Cell::NOTHING, 2, &[Put]) };
    bits_after_publication: BitsAfterPublication => bounds(VALUES, 1, &[Update]);
    lease_without_manifest: LeaseWithoutManifest => Bounds { freezes: 1, ..bounds(VALUES, 1, &[Update]) };
    publish_under_old_lease: PublishUnderOldLease => Bounds { failovers: 1, ..bounds(VALUES, 1, &[Update]) };
    fresh_leader_reads: FreshLeaderReads => Bounds { failovers: 1, ..bounds(VALUES, 1, &[Update]) };
    failed_at_once: FailedAtOnce => Bounds { failovers: 1, ..bounds(Cell::NOTHING, 2, &[Insert]) };
    bitless_overtakes: BitlessOvertakes => bounds(VALUES, 2, &[Update]);
    freeze_slips_in: FreezeSlipsIn => Bounds { freezes: 1, ..bounds(VALUES, 2, &[Update]) };
    insert_leaves_no_prefix: InsertLeavesNoPrefix => scans(Cell::NOTHING, 1, &[Insert]);
    frozen_prefix_counts: FrozenPrefixCounts => Bounds { freezes: 1, ..scans(VALUES, 2, &[Update]) };
    prefix_without_lease: PrefixWithoutLease => scans(VALUES, 1, &[Update]);
    filter_says_prefix: FilterSaysPrefix => Bounds { refusals: 1, ..scans(VALUES, 1, &[Update]) };
    filter_says_in_memtable: FilterSaysInMemtable => Bounds { refusals: 1, ..bounds(VALUES, 1, &[Update]) };
    serials_go_on: SerialsGoOn =>
        Bounds { keys: 2, freezes: 1, failovers: 1, ..bounds(VALUES, 2, &[Update]) };
    flush_before_published: FlushBeforePublished =>
        Bounds { pnodes: 2, freezes: 1, ..bounds(VALUES, 1, &[Update]) };
    flags_out_of_order: FlagsOutOfOrder => Bounds { freezes: 2, ..bounds(Cell::NOTHING, 2, &[Update]) };
    table_replaced: TableReplaced => Bounds { freezes: 1, compactions: 1, ..bounds(VALUES, 1, &[Update]) };
    tombstone_dropped_early: TombstoneDroppedEarly =>
        Bounds { freezes: 1, compactions: 1, ..bounds(VALUES, 1, &[Delete]) };
    cache_holds_memtable_values: CacheHoldsMemtableValues =>
        Bounds { cache: true, ..bounds(Cell::NOTHING, 2, &[Insert, Update]) };
    stamp_past_swallowed: StampPastSwallowed =>
        Bounds { cache: true, freezes: 1, compactions: 1, ..bounds(VALUES, 1, &[Update]) };
    stamp_at_arrival: StampAtArrival => Bounds { cache: true, freezes: 1, ..bounds(VALUES, 1, &[Update]) };
    failed_forgotten: FailedForgotten =>
        Bounds { sessions: true, retries: 1, failovers: 1, ..bounds(VALUES, 2, &[Insert, Delete]) };
    duplicate_at_once: DuplicateAtOnce =>
        Bounds { sessions: true, retries: 1, failovers: 1, ..bounds(Cell::NOTHING, 1, &[Update]) };
    no_duplicate_table: NoDuplicateTable =>
        Bounds { sessions: true, retries: 1, ..bounds(Cell::NOTHING, 1, &[Update]) };
    duplicate_table_not_undone: DuplicateTableNotUndone =>
        Bounds { sessions: true, retries: 1, failovers: 1, ..bounds(Cell::NOTHING, 1, &[Update]) };
    forgotten_executed: ForgottenExecuted =>
        Bounds { sessions: true, session_expiries: 1, retries: 1, ..bounds(Cell::NOTHING, 1, &[Update]) };
    lease_outlives_its_serial: LeaseOutlivesItsSerial => Bounds { keys: 2, ..bounds(VALUES, 2, &[Update]) };
    incarnation_forgets_leases: IncarnationForgetsLeases =>
        Bounds { refusals: 1, ..bounds(VALUES, 1, &[Update]) };
    proposal_keeps_serial: ProposalKeepsSerial => Bounds { mode_changes: 1, ..bounds(VALUES, 1, &[Update]) };
    filters_of_committed_only: FiltersOfCommittedOnly =>
        Bounds { failovers: 1, ..bounds(VALUES, 1, &[Update]) };
    later_grants_count: LaterGrantsCount => bounds(VALUES, 1, &[Update]);

    serial_after_bit: SerialAfterBit => registered(VALUES, 1, &[Update]);
    epoch_and_serial_apart: EpochAndSerialApart => Bounds { mode_changes: 1, ..a_load(VALUES) };
    slot_seq_not_compared: SlotSeqNotCompared => registered(VALUES, 1, &[Update]);
    swap_after_proposal: SwapAfterProposal => registered(VALUES, 1, &[Update]);
    swap_in_halves: SwapInHalves => registered(VALUES, 1, &[Update]);
    refused_bits_stay: RefusedBitsStay => Bounds { refusals: 1, ..registered(Cell::NOTHING, 1, &[Insert]) };
    ignored_bits_stay: IgnoredBitsStay =>
        Bounds { slips: true, freezes: 1, ..registered(Cell::NOTHING, 1, &[Insert]) };
    acknowledged_before_applied: AcknowledgedBeforeApplied => registered(VALUES, 1, &[Update]);
    kept_at_arrival: KeptAtArrival => registered(VALUES, 1, &[Update]);
    kept_over_epoch: KeptOverEpoch => Bounds { failovers: 1, ..registered(VALUES, 1, &[Update]) };
    kept_over_whole_filters: KeptOverWholeFilters =>
        Bounds { overflows: true, ..registered(VALUES, 1, &[Update]) };
    kept_over_first_filters: KeptOverFirstFilters =>
        Bounds { failovers: 1, ..registered(VALUES, 1, &[Update]) };
    kept_without_lease: KeptWithoutLease => registered(VALUES, 1, &[Update]);

    load_not_announced: LoadNotAnnounced => a_load(VALUES);
    whole_filters_without_announcement: WholeFiltersWithoutAnnouncement => a_load(VALUES);
    announced_when_appended: AnnouncedWhenAppended => a_load(VALUES);
    load_invalidates_nothing: LoadInvalidatesNothing => a_load(VALUES);
    load_swaps_nothing: LoadSwapsNothing => a_load(VALUES);
    load_published_first: LoadPublishedFirst => a_load(VALUES);
    load_in_grace: LoadInGrace => Bounds { grace: true, ..a_load(VALUES) };
    base_over_load: BaseOverLoad => Bounds { writes: 1, kinds: vec![Insert], ..a_load(Cell::NOTHING) };
    load_under_lease: LoadUnderLease => Bounds { adopted: true, ..a_load(VALUES) };
    load_grants_on: LoadGrantsOn => Bounds { adopted: true, ..a_load(VALUES) };
    load_keeps_ring: LoadKeepsRing => Bounds { adopted: true, ..a_load(VALUES) };
    load_renews_early: LoadRenewsEarly => Bounds { adopted: true, ..a_load(VALUES) };
    stamp_over_load: StampOverLoad => Bounds { cache: true, loaded: Cell::NOTHING, ..a_load(VALUES) };

    expiry_by_own_clock: ExpiryByOwnClock => a_tick(0, &[Update]);
    tick_goes_back: TickGoesBack => Bounds { ticks: 2, preloaded_expiry: 2, failovers: 1, ..a_tick(0, &[Update]) };
    tick_waits_for_nobody: TickWaitsForNobody => Bounds { pnodes: 2, ..a_tick(0, &[Update]) };
    tick_not_published: TickNotPublished => a_tick(0, &[Update]);
    tick_read_apart: TickReadApart => Bounds { split_reads: true, ..a_tick(1, &[Update]) };
    expired_by_known_tick: ExpiredByKnownTick => a_tick(0, &[Update]);
    alive_by_published_tick: AliveByPublishedTick => Bounds { pnodes: 2, ..a_tick(0, &[Update]) };
    judged_by_newest_view: JudgedByNewestView => a_tick(1, &[Update]);
    whole_filters_of_appended_ticks: WholeFiltersOfAppendedTicks => Bounds { pnodes: 2, ..a_tick(0, &[Update]) };
    ticks_of_committed_only: TicksOfCommittedOnly =>
        Bounds { pnodes: 2, failovers: 1, ..a_tick(0, &[Update]) };
    kept_is_not_judged: KeptIsNotJudged => Bounds { registered: true, ..a_tick(0, &[Update]) };
    conditions_by_published_tick: ConditionsByPublishedTick => a_tick(1, &[Replace]);
    base_judged_by_pnode: BaseJudgedByPnode => a_tick(1, &[Replace]);
    expired_is_no_entry: ExpiredIsNoEntry =>
        Bounds { preloaded_expiry: 0, expiries: vec![1], ..a_tick(1, &[Update]) };
    expired_is_final: ExpiredIsFinal => Bounds { cache: true, compactions: 1, ..a_tick(1, &[Insert]) };
    merge_by_unpublished_tick: MergeByUnpublishedTick =>
        Bounds { pnodes: 2, compactions: 1, ..a_tick(0, &[Update]) };
    expired_is_merged_away: ExpiredIsMergedAway => Bounds {
        preloaded_expiry: 0,
        expiries: vec![1],
        freezes: 1,
        compactions: 1,
        ..a_tick(1, &[Update])
    };
}
