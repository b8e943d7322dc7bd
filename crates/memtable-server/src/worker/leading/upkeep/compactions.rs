//! When SSTables of a table are compacted, and who waits for that. (Which: [`choice`](super::choice).)

use std::collections::{HashMap, HashSet};

use sextant_common::error::Result;
use sextant_common::ids::{Generation, ManifestVersion, PartitionId, SstId, TableId};
use sextant_common::key_range::KeyRange;
use sextant_common::manifest::{Manifest, SstMeta, TableManifest};
use tokio::sync::oneshot;

use super::choice::{Choice, Limits, Reason, Tree};
use crate::worker::rest::table_rests_ns;

type Done = oneshot::Sender<Result<()>>;

/// Compactions of one table of a partition at a time: one may be of much, and others must not wait for it. An sstable server does two
/// at a time unless it is told otherwise.
const OF_A_TABLE_MAX: usize = 2;

/// After a failure a range waits, twice as long each time: others of the table go on meanwhile.
const WAITS_NS: u64 = 500_000_000;
const WAITS_NS_MAX: u64 = 120_000_000_000;

/// A range whose last compactions have failed.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    failures: u32,
    until_ns: u64,
}

/// One that is under way, until its command is committed.
#[derive(Debug)]
struct UnderWay {
    table: TableId,
    range: KeyRange,
    inputs: Vec<SstId>,
    reaches_the_oldest: bool,
    reason: Reason,
    bytes: u64,
}

/// What a look goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Looked {
    version: ManifestVersion,
    limits: Limits,
    /// Something is to be tried again then.
    until_ns: u64,
}

/// What a table has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::worker) struct Standing {
    pub columns: usize,
    /// What compactions that are due would read, in bytes, those under way included.
    pub debt_bytes: u64,
}

/// Somebody waits until nothing is left of what a table had.
struct Demand {
    table: TableId,
    /// And of what was made of it, unless that reaches the oldest.
    of: HashSet<SstId>,
    done: Option<Done>,
}

#[derive(Default)]
pub(in crate::worker) struct Compactions {
    under_way: Vec<UnderWay>,
    demands: Vec<Demand>,
    waiting: HashMap<(TableId, KeyRange), Waits>,
    standings: HashMap<TableId, Standing>,
    /// The newest memtable that each table's SSTables have, and when that was seen.
    flushed: HashMap<TableId, (Generation, u64)>,
    /// As of when it was looked last: nothing else is due until that changes, or something begins or ends, or until a time.
    looked: Option<Looked>,
}

impl Compactions {
    /// What is due, and may begin. `trigger` 0: only on demand.
    pub fn due<'m>(
        &mut self,
        manifest: &'m Manifest,
        limits: &Limits,
        now_ns: u64,
        has_writes: impl Fn(TableId) -> bool,
    ) -> Vec<(&'m TableManifest, Choice<'m>)> {
        let is_as_before =
            |l: Looked| l.version == manifest.version && l.limits == *limits && now_ns < l.until_ns;
        if self.looked.is_some_and(is_as_before) {
            return Vec::new();
        }
        let (mut all, mut at_rest, mut until_ns) = (Vec::new(), None, u64::MAX);
        for entry in &manifest.tables {
            let (table, is_wanted) = (entry.table, self.demands.iter().any(|d| d.table == entry.table));
            let under_way = self.under_way.iter().filter(|u| u.table == table).count();
            if under_way >= OF_A_TABLE_MAX {
                continue;
            }
            if !is_wanted && (limits.trigger == 0 || entry.ssts.is_empty()) {
                continue;
            }
            let tree = Tree::new(entry);
            let is_busy = |sst: &SstMeta| self.is_busy(table, sst);
            let mut due = match is_wanted {
                true => self.demanded(&tree, table, limits, now_ns),
                false => tree.due(limits, is_busy),
            };
            let debt: u64 = due.iter().map(|choice| choice.bytes).sum();
            // (What is done at rest is no debt: nobody has to wait for it.)
            let begun = self.under_way.iter().filter(|u| u.table == table && u.reason != Reason::Rest);
            let begun: u64 = begun.map(|u| u.bytes).sum();
            self.standings.insert(table, Standing { columns: tree.columns(), debt_bytes: debt + begun });
            due.retain(|choice| match self.waits_until(table, choice.range).filter(|at| *at > now_ns) {
                Some(at_ns) if choice.reason != Reason::Demand => {
                    until_ns = until_ns.min(at_ns);
                    false
                }
                _ => true,
            });
            if due.is_empty() && !is_wanted && limits.rests_after_ns > 0 && !has_writes(table) {
                let rests_at_ns = self.rests_at(manifest.partition, entry, limits, now_ns);
                if rests_at_ns > now_ns {
                    until_ns = until_ns.min(rests_at_ns);
                } else if at_rest.is_none() {
                    let (is_busy, waits) = (
                        |sst: &SstMeta| self.is_busy(table, sst),
                        |sst: &SstMeta| self.waits(table, sst, now_ns),
                    );
                    let choice = tree.due_at_rest(limits, is_busy, waits).into_iter().next();
                    at_rest = choice.map(|choice| (entry, choice));
                    let waiting =
                        self.waiting.iter().filter(|((of, _), _)| *of == table).map(|(_, w)| w.until_ns);
                    until_ns = waiting.filter(|at| *at > now_ns).fold(until_ns, u64::min);
                }
            }
            due.truncate(OF_A_TABLE_MAX - under_way);
            all.extend(due.into_iter().map(|choice| (entry, choice)));
        }
        // One at a time, and nothing else: others must not wait for it.
        if all.is_empty() && self.under_way.is_empty() {
            all.extend(at_rest);
        }
        // (What is due and is not begun after all is looked for again.)
        let looked = Looked { version: manifest.version, limits: *limits, until_ns };
        self.looked = Some(looked).filter(|_| all.is_empty());
        all
    }

    /// What somebody wants, which may take hours; and, one at a time and before that, what is due of columns that have nothing of it:
    /// what is flushed meanwhile must not pile up.
    fn demanded<'m>(&self, tree: &Tree<'m>, table: TableId, limits: &Limits, now_ns: u64) -> Vec<Choice<'m>> {
        let is_busy = |sst: &SstMeta| self.is_busy(table, sst);
        let wanted = tree.demanded(limits, |sst| self.is_demanded(table, &sst.id), is_busy);
        let has_other = self.under_way.iter().any(|u| u.table == table && u.reason != Reason::Demand);
        if limits.trigger == 0 || has_other {
            return wanted;
        }
        let waits = |choice: &Choice<'_>| self.waits_until(table, choice.range).filter(|at| *at > now_ns);
        let is_other =
            |choice: &Choice<'_>| !tree.column_of(choice).any(|sst| self.is_demanded(table, &sst.id));
        let mut others: Vec<_> = tree.due(limits, is_busy).into_iter().filter(is_other).collect();
        // (If all wait, it is the one that waits for the shortest, which tells until when.)
        others.sort_by_key(waits);
        others.truncate(1);
        others.into_iter().chain(wanted).collect()
    }

    /// From when on a table rests, if nothing comes until then. (A flush of nothing is none.)
    fn rests_at(
        &mut self,
        partition: PartitionId,
        entry: &TableManifest,
        limits: &Limits,
        now_ns: u64,
    ) -> u64 {
        let newest = entry.ssts.iter().map(|sst| sst.generations.last).max().unwrap_or_default();
        let seen = self.flushed.entry(entry.table).or_insert((newest, now_ns));
        if seen.0 != newest {
            *seen = (newest, now_ns);
        }
        seen.1.saturating_add(table_rests_ns(limits.rests_after_ns, partition, entry.table))
    }

    fn waits(&self, table: TableId, sst: &SstMeta, now_ns: u64) -> bool {
        self.waits_until(table, &sst.range).is_some_and(|at| at > now_ns)
    }

    /// (Whoever asks for it does not wait: it is told if it fails.)
    fn waits_until(&self, table: TableId, range: &KeyRange) -> Option<u64> {
        self.waiting.get(&(table, range.clone())).map(|waits| waits.until_ns)
    }

    fn is_busy(&self, table: TableId, sst: &SstMeta) -> bool {
        let of_table = self.under_way.iter().filter(|u| u.table == table && u.range == sst.range);
        of_table.into_iter().any(|u| u.inputs.contains(&sst.id))
    }

    fn is_demanded(&self, table: TableId, sst: &SstId) -> bool {
        self.demands.iter().any(|demand| demand.table == table && demand.of.contains(sst))
    }

    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    fn position(&self, table: TableId, range: &KeyRange, inputs: &[SstId]) -> Option<usize> {
        self.under_way.iter().position(|u| u.table == table && u.range == *range && u.inputs == inputs)
    }

    pub fn is_under_way(&self, table: TableId, range: &KeyRange, inputs: &[SstId]) -> bool {
        self.position(table, range, inputs).is_some()
    }

    pub fn begin(&mut self, table: TableId, choice: &Choice<'_>) {
        self.looked = None;
        self.under_way.push(UnderWay {
            table,
            range: choice.range.clone(),
            inputs: choice.inputs.iter().map(|sst| sst.id).collect(),
            reaches_the_oldest: choice.reaches_the_oldest,
            reason: choice.reason,
            bytes: choice.bytes,
        });
    }

    /// Of all tables together, as of when it was looked at last.
    pub fn standing(&self) -> Standing {
        self.standings.values().fold(Standing::default(), |all, one| Standing {
            columns: all.columns + one.columns,
            debt_bytes: all.debt_bytes + one.debt_bytes,
        })
    }

    /// All that the table has is to become new.
    pub fn demand(&mut self, entry: &TableManifest, done: Option<Done>) {
        let of: HashSet<SstId> = entry.ssts.iter().map(|sst| sst.id).collect();
        self.demands.push(Demand { table: entry.table, of, done });
        self.settle(entry);
        self.looked = None;
    }

    /// A compaction took effect. If it was begun here: why.
    pub fn done(
        &mut self,
        entry: &TableManifest,
        range: &KeyRange,
        inputs: &[SstId],
        added: &[SstId],
    ) -> Option<Reason> {
        self.looked = None;
        let under_way = self.position(entry.table, range, inputs).map(|at| self.under_way.swap_remove(at));
        self.forget_waits(entry, range);
        // (Of what another leader has begun nobody knows: it is looked at again.)
        let reaches_the_oldest = under_way.as_ref().is_some_and(|u| u.reaches_the_oldest);
        for demand in self.demands.iter_mut().filter(|d| d.table == entry.table && !reaches_the_oldest) {
            if inputs.iter().any(|input| demand.of.contains(input)) {
                demand.of.extend(added);
            }
        }
        self.settle(entry);
        under_way.map(|u| u.reason)
    }

    /// Tells those who have waited for what is no more.
    fn settle(&mut self, entry: &TableManifest) {
        if self.demands.iter().all(|demand| demand.table != entry.table) {
            return;
        }
        let there: HashSet<&SstId> = entry.ssts.iter().map(|sst| &sst.id).collect();
        for demand in self.demands.extract_if(.., |demand| {
            demand.table == entry.table && !demand.of.iter().any(|sst| there.contains(sst))
        }) {
            let _ = demand.done.map(|done| done.send(Ok(())));
        }
    }

    /// A compaction came to nothing. Why it was begun.
    pub fn failed(
        &mut self,
        table: TableId,
        range: &KeyRange,
        inputs: &[SstId],
        error: &sextant_common::error::Error,
    ) -> Option<Reason> {
        let under_way = self.position(table, range, inputs).map(|at| self.under_way.swap_remove(at));
        self.looked = None;
        let is_of_it =
            |demand: &Demand| demand.table == table && inputs.iter().any(|input| demand.of.contains(input));
        for demand in self.demands.extract_if(.., |demand| is_of_it(demand)) {
            let _ = demand.done.map(|done| done.send(Err(error.clone())));
        }
        under_way.map(|u| u.reason)
    }

    /// It failed, and not because the set of tables has changed: its range waits.
    pub fn wait(&mut self, table: TableId, range: &KeyRange, now_ns: u64) {
        self.looked = None;
        let waits = self.waiting.entry((table, range.clone())).or_default();
        let wait_ns = WAITS_NS.saturating_mul(1 << waits.failures.min(16)).min(WAITS_NS_MAX);
        *waits = Waits { failures: waits.failures + 1, until_ns: now_ns.saturating_add(wait_ns) };
    }

    /// One of this range took effect; and what is no range of the table any more is forgotten.
    fn forget_waits(&mut self, entry: &TableManifest, range: &KeyRange) {
        let is_there = |of: &KeyRange| of != range && entry.ssts.iter().any(|sst| sst.range == *of);
        self.waiting.retain(|(table, of), _| *table != entry.table || is_there(of));
    }

    /// The table is gone, and with it what was wanted of it.
    pub fn forget(&mut self, table: TableId) {
        self.looked = None;
        self.under_way.retain(|under_way| under_way.table != table);
        self.waiting.retain(|(of, _), _| *of != table);
        self.standings.remove(&table);
        self.flushed.remove(&table);
        for demand in self.demands.extract_if(.., |demand| demand.table == table) {
            let _ = demand.done.map(|done| done.send(Ok(())));
        }
    }

    /// Leadership ends. (What is wanted is wanted of the next leader, by who asks it.)
    pub fn end_all(&mut self, result: &Result<()>) {
        for done in self.demands.drain(..).filter_map(|demand| demand.done) {
            let _ = done.send(result.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use sextant_common::error::Error;
    use sextant_common::expiry::Tick;
    use sextant_common::manifest::{Generations, TableOptions};

    use super::*;
    use crate::partition::testing::sst;

    const T: TableId = TableId(1);
    const U: TableId = TableId(2);

    /// A table with so many SSTables of one size, one a memtable.
    fn flushed(table: TableId, times: u64) -> TableManifest {
        let sst = |g| SstMeta { table, generations: Generations::new(g, g), ..sst(g as u32) };
        TableManifest {
            table,
            name: table.to_string(),
            options: TableOptions::default(),
            flushed_generation: Generation(times),
            last_flush_version: ManifestVersion(times),
            persisted: Default::default(),
            ssts: (1..=times).rev().map(sst).collect(),
        }
    }

    fn manifest(tables: Vec<TableManifest>) -> Manifest {
        Manifest { tables, ..Manifest::empty(PartitionId(0)) }
    }

    fn limits(trigger: usize) -> Limits {
        Limits { trigger, target_bytes: 1 << 40, rests_after_ns: 0, expired_by: Tick(0) }
    }

    fn due(compactions: &mut Compactions, manifest: &Manifest, trigger: usize, now_ns: u64) -> Vec<TableId> {
        let due = compactions.due(manifest, &limits(trigger), now_ns, |_| false);
        due.into_iter().map(|(entry, _)| entry.table).collect()
    }

    /// All that is due begins.
    fn begin(
        compactions: &mut Compactions,
        manifest: &Manifest,
        trigger: usize,
    ) -> Vec<(KeyRange, Vec<SstId>)> {
        let due = compactions.due(manifest, &limits(trigger), 0, |_| false);
        let begun = due.into_iter().map(|(entry, choice)| {
            compactions.begin(entry.table, &choice);
            (choice.range.clone(), choice.inputs.iter().map(|sst| sst.id).collect())
        });
        begun.collect()
    }

    fn ask(compactions: &mut Compactions, entry: &TableManifest) -> oneshot::Receiver<Result<()>> {
        let (done, told) = oneshot::channel();
        compactions.demand(entry, Some(done));
        told
    }

    #[test]
    fn a_table_is_due_when_it_has_as_many_ssts_as_the_trigger_says() {
        let mut compactions = Compactions::default();
        let manifest = manifest(vec![flushed(T, 3), flushed(U, 6)]);
        assert_eq!(due(&mut compactions, &manifest, 3, 0), [T, U]);
        assert_eq!(due(&mut compactions, &manifest, 4, 0), [U], "each table for itself");
        assert_eq!(due(&mut compactions, &manifest, 6, 0), [U]);
        assert!(due(&mut Compactions::default(), &manifest, 7, 0).is_empty());
        assert!(due(&mut Compactions::default(), &manifest, 0, 0).is_empty(), "0: never by itself");
    }

    #[test]
    fn a_table_without_writes_rests_and_is_compacted_one_at_a_time_until_little_is_wasted() {
        const AFTER_NS: u64 = 1_000;
        let limits = Limits { rests_after_ns: AFTER_NS, ..limits(6) };
        let rest_ns = |table| table_rests_ns(AFTER_NS, PartitionId(0), table);
        let mut manifest = manifest(vec![flushed(T, 2), flushed(U, 2)]);
        let mut compactions = Compactions::default();
        let due = |compactions: &mut Compactions, manifest: &Manifest, now_ns, written: Option<TableId>| {
            let due = compactions.due(manifest, &limits, now_ns, |table| Some(table) == written);
            due.into_iter().map(|(entry, choice)| (entry.table, choice.reason)).collect::<Vec<_>>()
        };
        assert!(due(&mut compactions, &manifest, 5, None).is_empty());
        assert!(due(&mut compactions, &manifest, 4 + rest_ns(T), None).is_empty());
        // A flush, and it is awake again. A flush of nothing is none: only the version has changed.
        manifest.tables[0] = flushed(T, 3);
        manifest.tables[1].last_flush_version.0 += 1;
        manifest.version.0 += 1;
        let (flushed_ns, first_ns) = (4 + rest_ns(T), 5 + rest_ns(U));
        assert!(due(&mut compactions, &manifest, flushed_ns, None).is_empty());
        assert_eq!(due(&mut compactions, &manifest, first_ns, None), [(U, Reason::Rest)]);
        assert!(due(&mut compactions, &manifest, first_ns, Some(U)).is_empty(), "it has writes");
        // Both rest: one after the other.
        let late_ns = first_ns + flushed_ns + 2 * AFTER_NS;
        manifest.version.0 += 1;
        assert_eq!(due(&mut compactions, &manifest, late_ns, None), [(T, Reason::Rest)]);
        let begun = compactions.due(&manifest, &limits, late_ns, |_| false).remove(0);
        compactions.begin(T, &begun.1);
        assert!(due(&mut compactions, &manifest, late_ns, None).is_empty(), "one is under way");
        assert_eq!(compactions.standing().debt_bytes, 0);
        let (range, inputs) =
            (begun.1.range.clone(), begun.1.inputs.iter().map(|sst| sst.id).collect::<Vec<_>>());
        // What a compaction leaves is no flush, and has nothing to be had.
        let mut after = manifest.clone();
        let whole = SstMeta { table: T, generations: Generations::new(1, 3), ..sst(9) };
        after.tables[0].ssts = vec![whole].into();
        after.version.0 += 1;
        compactions.done(&after.tables[0], &range, &inputs, &[sst(9).id]);
        assert_eq!(due(&mut compactions, &after, late_ns, None), [(U, Reason::Rest)]);
        assert!(due(&mut compactions, &after, late_ns, Some(U)).is_empty());
    }

    #[test]
    fn one_sst_alone_is_never_due() {
        for trigger in 0..3 {
            let manifest = manifest(vec![flushed(T, 0), flushed(U, 1)]);
            assert!(due(&mut Compactions::default(), &manifest, trigger, 0).is_empty(), "trigger {trigger}");
        }
        let two = manifest(vec![flushed(T, 2)]);
        assert_eq!(due(&mut Compactions::default(), &two, 1, 0), [T], "as if it were 2");
    }

    #[test]
    fn an_sst_is_compacted_once_at_a_time_and_not_soon_again_after_a_failure() {
        let mut compactions = Compactions::default();
        let manifest = manifest(vec![flushed(T, 4)]);
        let (range, inputs) = begin(&mut compactions, &manifest, 4).remove(0);
        assert!(compactions.is_under_way(T, &range, &inputs) && !compactions.is_idle());
        assert!(due(&mut compactions, &manifest, 4, 0).is_empty());
        compactions.failed(T, &range, &inputs, &Error::retry("no server has room"));
        compactions.wait(T, &range, 0);
        for now_ns in [1, 2, WAITS_NS - 1] {
            assert!(due(&mut compactions, &manifest, 4, now_ns).is_empty());
        }
        assert_eq!(due(&mut compactions, &manifest, 4, WAITS_NS), [T]);
    }

    /// Five columns, of two SSTables each.
    fn in_columns(entry: &mut TableManifest) {
        let bound = |at: usize| if at.is_multiple_of(5) { String::new() } else { (at % 5).to_string() };
        entry.ssts.edit(|all| {
            for (at, sst) in all.iter_mut().enumerate() {
                sst.range = KeyRange::new(bound(at), bound(at + 1));
            }
        });
    }

    #[test]
    fn columns_that_cannot_be_compacted_leave_the_places_to_others_and_wait_longer_each_time() {
        let mut entry = flushed(T, 10);
        in_columns(&mut entry);
        let manifest = manifest(vec![entry]);
        let mut compactions = Compactions::default();
        let (mut tried, mut now_ns) = (HashSet::new(), 0);
        for _ in 0..3 {
            let begun = begin(&mut compactions, &manifest, 2);
            for (range, inputs) in begun {
                compactions.failed(T, &range, &inputs, &Error::retry("no sound copy"));
                compactions.wait(T, &range, now_ns);
                tried.insert(range);
            }
        }
        assert_eq!(tried.len(), 5, "each had its turn");
        let range = tried.iter().next().unwrap().clone();
        for _ in 0..20 {
            compactions.wait(T, &range, now_ns);
            now_ns = compactions.waiting[&(T, range.clone())].until_ns;
        }
        let last = compactions.waiting[&(T, range.clone())];
        compactions.wait(T, &range, last.until_ns);
        assert_eq!(compactions.waiting[&(T, range)].until_ns - last.until_ns, WAITS_NS_MAX);
        let mut told = ask(&mut compactions, &manifest.tables[0]);
        assert!(told.try_recv().is_err());
        assert_eq!(begin(&mut compactions, &manifest, 2).len(), OF_A_TABLE_MAX, "who asks does not wait");
    }

    #[test]
    fn columns_are_compacted_at_the_same_time_but_not_all_of_them() {
        let mut entry = flushed(T, 10);
        in_columns(&mut entry);
        let manifest = manifest(vec![entry]);
        let mut compactions = Compactions::default();
        let mut begun = begin(&mut compactions, &manifest, 2);
        assert_eq!(begun.len(), OF_A_TABLE_MAX);
        assert!(begin(&mut compactions, &manifest, 2).is_empty());
        let (range, inputs) = begun.remove(0);
        let mut after = manifest.clone();
        after.version.0 += 1;
        after.tables[0].ssts.edit(|all| all.retain(|sst| sst.range != range || sst.id == inputs[1]));
        compactions.done(&after.tables[0], &range, &inputs, &[]);
        let next = begin(&mut compactions, &after, 2);
        assert!(next.len() == 1 && begun.iter().all(|(other, _)| *other != next[0].0 && range != next[0].0));
    }

    #[test]
    fn what_is_flushed_while_somebody_waits_for_the_whole_does_not_pile_up() {
        let mut entry = flushed(T, 10);
        in_columns(&mut entry);
        let mut compactions = Compactions::default();
        let _told = ask(&mut compactions, &entry);
        let wanted = entry.ssts.clone();
        entry.ssts.edit(|all| {
            let newer = (11..=14).rev().map(|g| SstMeta {
                table: T,
                generations: Generations::new(g, g),
                range: KeyRange::all(),
                ..sst(g as u32)
            });
            *all = newer.chain(wanted.iter().cloned()).collect();
        });
        let mut manifest = manifest(vec![entry]);
        let begun = begin(&mut compactions, &manifest, 2);
        assert_eq!(begun.len(), OF_A_TABLE_MAX);
        assert!(begun[0].0 == KeyRange::all() && begun[1].0 != KeyRange::all(), "{begun:?}");
        // The other place is not for that too, however much comes.
        let (range, inputs) = begun[1].clone();
        manifest.version.0 += 1;
        manifest.tables[0].ssts.edit(|all| all.retain(|sst| sst.range != range));
        compactions.done(&manifest.tables[0], &range, &inputs, &[]);
        let next = begin(&mut compactions, &manifest, 2);
        assert!(next.len() == 1 && next[0].0 != KeyRange::all(), "{next:?}");
    }

    #[test]
    fn whoever_asks_is_told_when_nothing_is_left_of_what_was_there() {
        let mut compactions = Compactions::default();
        let mut manifest = manifest(vec![flushed(T, 2), flushed(U, 1)]);
        let (mut first, mut second) =
            (ask(&mut compactions, &manifest.tables[0]), ask(&mut compactions, &manifest.tables[0]));
        let mut other = ask(&mut compactions, &manifest.tables[1]);
        let begun = begin(&mut compactions, &manifest, 0);
        assert_eq!(begun.len(), 2);
        // A flush comes in between; what is asked after it is another thing.
        manifest.tables[0].ssts.insert(0, sst(3));
        manifest.version.0 += 1;
        let mut third = ask(&mut compactions, &manifest.tables[0]);
        assert!(begin(&mut compactions, &manifest, 0).is_empty(), "its column is being compacted");
        manifest.tables[0].ssts = vec![sst(3), sst(9)].into();
        manifest.version.0 += 1;
        compactions.done(&manifest.tables[0], &begun[0].0, &begun[0].1, &[sst(9).id]);
        assert!(first.try_recv().unwrap().is_ok() && second.try_recv().unwrap().is_ok());
        assert!(third.try_recv().is_err() && other.try_recv().is_err());
        let (range, inputs) = begin(&mut compactions, &manifest, 0).remove(0);
        assert_eq!(inputs, [sst(3).id, sst(9).id]);
        compactions.failed(T, &range, &inputs, &Error::retry("no server has room"));
        assert!(third.try_recv().unwrap().is_err());
        compactions.end_all(&Err(Error::retry("leadership changed")));
        assert!(other.try_recv().unwrap().is_err());
        assert!(ask(&mut compactions, &flushed(T, 0)).try_recv().unwrap().is_ok(), "there is nothing");
    }

    #[test]
    fn what_was_pushed_down_on_demand_is_compacted_there() {
        let of = |counter, start: &'static str, end: &'static str| SstMeta {
            range: KeyRange::new(start, end),
            ..sst(counter)
        };
        let mut manifest = manifest(vec![flushed(T, 1)]);
        manifest.tables[0].ssts = vec![of(3, "", ""), of(2, "", "m"), of(1, "m", "")].into();
        let mut compactions = Compactions::default();
        let mut told = ask(&mut compactions, &manifest.tables[0]);
        let pushed = begin(&mut compactions, &manifest, 0);
        assert_eq!(pushed, [(KeyRange::all(), vec![sst(3).id])]);
        manifest.tables[0].ssts = vec![of(4, "", "m"), of(5, "m", ""), of(2, "", "m"), of(1, "m", "")].into();
        manifest.version.0 += 1;
        compactions.done(&manifest.tables[0], &pushed[0].0, &pushed[0].1, &[sst(4).id, sst(5).id]);
        let lower = begin(&mut compactions, &manifest, 0);
        assert_eq!(lower.len(), 2);
        manifest.tables[0].ssts = vec![of(4, "", "m"), of(2, "", "m"), of(6, "m", "")].into();
        compactions.done(&manifest.tables[0], &lower[1].0, &lower[1].1, &[sst(6).id]);
        assert!(told.try_recv().is_err());
        manifest.tables[0].ssts = vec![of(7, "", "m"), of(6, "m", "")].into();
        compactions.done(&manifest.tables[0], &lower[0].0, &lower[0].1, &[sst(7).id]);
        assert!(told.try_recv().unwrap().is_ok() && compactions.is_idle());
    }
}
