//! The consult: a view, a clock and a key turned into a plan. The load of the view is the read's linearization point.

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;

use sextant_common::expiry::{Tick, Ticks};
use sextant_common::ids::ManifestVersion;
use sextant_common::manifest::TableInfo;
use sextant_common::operation::ReadMode;
use sextant_environment::Clock;
use sextant_rules::mutant::{self, Mutant};

use super::plan::{Answer, Facts, Found, Plan, route};
use crate::metrics::ReadPath;
use crate::record_cache::{CachedRecord, Kept, RecordCache, Said};
use crate::view::{FilterCopies, PartitionView, ReadKey, Sst};

/// What one look at a view, the clock and the filters found out. It stays good however much later it is carried out: what it rests
/// on held at the look, and whatever is asked afterwards is told which version was searched.
pub(crate) struct Consult {
    pub plan: Plan,
    /// The version of the SSTables that this read searches: every memtable read of it names this one.
    pub searched: ManifestVersion,
    /// What was known of the partition's time: what the SSTables say is judged by it, however late, or by the leader's answer.
    pub ticks: Ticks,
    /// SSTables that may have the key, newest first. Empty if `cached` is there.
    pub candidates: Vec<Arc<Sst>>,
    /// What the SSTables of `searched` say, known without asking them.
    pub cached: Option<CachedRecord>,
    /// What the leader has answered before, and would answer again.
    pub kept: Option<Kept>,
    /// Not looked for if what was kept is the answer.
    pub in_memtable_filter: bool,
    /// A pda read for which no lease was valid.
    pub lacked_a_lease: bool,
    /// It had one, which was over.
    pub lease_was_over: bool,
    /// And the wall clock says that it lasts.
    pub wall_clock_errs: bool,
}

/// An answer that nobody has to be asked for.
pub(crate) struct AtOnce {
    pub record: Option<CachedRecord>,
    pub path: ReadPath,
}

impl Consult {
    /// The answer, if it is known without asking anyone: a pda read under a lease, and either what was kept of its leader's last
    /// answer, or no bit in any B_m and a cached value or a table whose negatives are final. Else this consult, to be carried out.
    #[inline]
    pub fn answer_at_once(self) -> ControlFlow<AtOnce, Consult> {
        match self.kept {
            Some(Kept { said: Said::Record(record), .. }) => {
                let is_there =
                    found(&record, self.ticks) == Found::Value || mutant::active(Mutant::KeptIsNotJudged);
                return Break(AtOnce { record: is_there.then_some(record), path: ReadPath::Kept });
            }
            Some(Kept { said: Said::Absent, .. }) => {
                return Break(AtOnce { record: None, path: ReadPath::Kept });
            }
            _ => {}
        }
        let found = self.cached.as_ref().map(|record| found(record, self.ticks));
        match self.plan.answer_at_once(found) {
            Some(Answer::Value) => Break(AtOnce { record: self.cached, path: ReadPath::Cache }),
            Some(Answer::Absent) => Break(AtOnce { record: None, path: ReadPath::Nobody }),
            None => Continue(self),
        }
    }
}

/// What a record is, when it is known which it is.
#[inline]
pub(super) fn found(record: &CachedRecord, ticks: Ticks) -> Found {
    Found::of(record.value.is_some(), record.marks.expires_at(), ticks)
}

/// What a view knows of the time.
#[inline]
fn ticks_of(view: &PartitionView, clock: &dyn Clock) -> Ticks {
    match mutant::active(Mutant::ExpiryByOwnClock) {
        true => Ticks::exactly(Tick(clock.wall_guess_ns() / 1_000_000)),
        false => view.ticks(),
    }
}

/// A look at a view, which was loaded before, and at the clock: what any number of reads of its partition go by, all of which began
/// before the view was loaded. It is the linearization point of them all.
pub(crate) struct Glance<'v> {
    view: &'v PartitionView,
    mode: ReadMode,
    ticks: Ticks,
    /// Of a pda read whose lease was valid.
    copies: Option<&'v FilterCopies>,
    wall_clock_errs: bool,
}

impl<'v> Glance<'v> {
    #[inline]
    pub fn new(view: &'v PartitionView, clock: &dyn Clock, mode: ReadMode) -> Self {
        let ticks = ticks_of(view, clock);
        let copies = if mode == ReadMode::Pda { view.leased_copies(clock) } else { None };
        let wall_clock_errs =
            copies.is_none() && view.lease.as_ref().is_some_and(|l| l.contradicts_wall_clocks(clock));
        Self { view, mode, ticks, copies, wall_clock_errs }
    }

    /// Looks at what was kept and at the filters. Allocates only if there are SSTables to be asked.
    #[inline]
    pub fn consult(&self, cache: &RecordCache, table: &TableInfo, key: ReadKey<'_>) -> Consult {
        let Self { view, mode, ticks, copies, wall_clock_errs } = *self;
        let searched = view.manifest.version;
        let kept = || {
            let unleased = if mutant::active(Mutant::KeptWithoutLease) { view.copies.as_ref() } else { None };
            let kept = cache.kept(copies.or(unleased)?, searched, table.id, key)?;
            // What may have expired is for the leader to say.
            let judged = !mutant::active(Mutant::KeptIsNotJudged);
            let is_undecided = |record: &CachedRecord| judged && found(record, ticks) == Found::Undecided;
            if matches!(&kept.said, Said::Record(record) if is_undecided(record)) { None } else { Some(kept) }
        };
        let is_final = |kept: &Kept| !matches!(kept.said, Said::NoEntry(_));
        // Whichever is more likely to be the answer is looked for first.
        let guessed = copies.is_some() && cache.guesses_kept(key.hash);
        let early = if guessed { kept() } else { None };
        let is_known = early.as_ref().is_some_and(is_final);
        let in_memtable_filter = !is_known && copies.is_some_and(|c| c.contains(table.id, key.hash));
        let early = if in_memtable_filter && !guessed { kept() } else { early };
        let is_known = early.as_ref().is_some_and(is_final);
        let cached = if is_known { None } else { cache.lookup(&view.manifest, table.id, key) };
        let has_value = cached.as_ref().is_some_and(|record| record.value.is_some());
        let kept = if guessed || in_memtable_filter || has_value { early } else { kept() };
        if copies.is_some() {
            cache.was_kept(key.hash, kept.as_ref().is_some_and(is_final));
        }
        let known = cached.is_some() || kept.as_ref().is_some_and(is_final);
        let candidates = if known { Vec::new() } else { candidates(view, table, key, mode) };
        let plan = route(Facts {
            mode,
            leased: copies.is_some(),
            in_memtable_filter,
            sst_candidates: cached.is_some() || !candidates.is_empty(),
            // What this partition's leader goes by, and no other's.
            filter_inserts: view.manifest.table(table.id).is_some_and(|t| t.filter_inserts),
            no_entry: kept.as_ref().is_some_and(|kept| !is_final(kept)),
        });
        Consult {
            plan,
            searched,
            ticks,
            candidates,
            cached,
            kept,
            in_memtable_filter,
            lacked_a_lease: mode == ReadMode::Pda && copies.is_none(),
            lease_was_over: mode == ReadMode::Pda && copies.is_none() && view.lease.is_some(),
            wall_clock_errs,
        }
    }
}

/// The SSTables that may have the key, newest first.
pub(crate) fn candidates(
    view: &PartitionView,
    table: &TableInfo,
    key: ReadKey<'_>,
    mode: ReadMode,
) -> Vec<Arc<Sst>> {
    let Some(table) = view.manifest.table(table.id) else { return Vec::new() };
    let may_have = |sst: &&Arc<Sst>| match mode {
        ReadMode::Nda => sst.meta.covers(key.key),
        ReadMode::Pda | ReadMode::Bda => sst.may_contain(key.key, key.hash),
    };
    table.answering(key.key).filter(may_have).cloned().collect()
}
