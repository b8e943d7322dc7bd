//! What manifest the tables make that sstable servers hold. Pure: inventories -> plan.
//!
//! Each table says which memtables' records it holds, as a range of generations, and for which keys ([`Origin`]). A key knows nothing
//! of others: so the keys are taken apart into intervals that no table's range cuts, and for each of them the tables that answer for
//! it make the order and the choice:
//!
//! * A flush begins where the newest table ended; a compaction takes all tables of its time. Of what was planned and never committed
//!   a range may also lie across another one: then the newer one is read first, and that is right, since each table holds, for each
//!   key, the newest record of its range, or a tombstone, or nothing because nothing older is left.
//! * A table whose range lies in another's is superseded: the other one holds, for each of its keys, the same record or a newer one,
//!   or nothing because a tombstone ended it and nothing older is left. That holds for compactions that were never committed too, and for
//!   several attempts to flush one memtable, which all hold the same.
//! * The manifest is a chain of tables from the newest memtable down to the first. A gap in it is a table that is lost: memtables
//!   that were empty are in the range of the next table. Of several chains the one is taken that leaves out least; then that has
//!   the fewest tables of which there is no sound copy, or one, or two, ..: a compaction that was done on one server must not cost its
//!   inputs; then the one with fewer tables.
//!
//! * A bulk load jumps over generations: before its first table there is no gap ([`chain::Places`]). Its tables count only if it was
//!   committed ([`loads`]).
//!
//! A gap may also be in some intervals only, because a compaction had nothing for them: that is no more than a doubt, unless it begins
//! with the first memtable.
//!
//! A table that is chosen in some intervals answers in the manifest for those only: elsewhere it may hold what was deleted since. Its
//! entries are cut so that of two that overlap the newer one has all keys of the older one, as compactions leave it.

mod chain;
mod loads;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use sextant_common::error::{Error, Result};
use sextant_common::ids::{Generation, NodeId, PartitionId, SstId, TableId};
use sextant_common::key_range::KeyRange;
use sextant_common::load::{LoadName, LoadNumber};
use sextant_common::manifest::{Generations, Origin, SstMeta, TableOptions};
use sextant_common::recovery::UndecidedLoad;
use sextant_common::sstable::{Contents, Holding};

use chain::{Gap, Places, best_chain, gaps};
use loads::Judged;
pub use loads::Word;

/// A table on a server.
#[derive(Clone, Debug)]
pub struct Found {
    pub server: NodeId,
    pub holding: Holding,
}

/// An entry of the manifest to be. A table may have several, for ranges that are apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    pub meta: SstMeta,
    /// Who has it, those with a sound copy first.
    pub holders: Vec<NodeId>,
    /// How many of them have a sound one.
    pub sound: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTable {
    pub table: TableId,
    pub name: String,
    pub options: TableOptions,
    /// Newest first for every key.
    pub ssts: Vec<Chosen>,
    /// The newest generation of any table that was found, chosen or not.
    pub newest: Generation,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// None: there are no tables.
    pub lineage: Option<u64>,
    /// By rising id.
    pub tables: Vec<PlannedTable>,
    /// Above nothing that any of the tables names.
    pub newest_seq: u64,
    pub newest_term: u64,
    pub newest_index: u64,
    /// What was found, a line each.
    pub notes: Vec<String>,
    /// Flushed records that are missing, a line each.
    pub losses: Vec<String>,
    /// That may be missing, if servers were not asked: nothing tells them from records that never were.
    pub doubts: Vec<String>,
    /// Of which an operator has to say whether they are to count. The tables are planned without them.
    pub undecided: Vec<UndecidedLoad>,
    /// Loads of which there are tables.
    pub loads: BTreeSet<LoadNumber>,
}

#[derive(Clone, Debug)]
struct Candidate {
    chosen: Chosen,
    options: TableOptions,
    origin: Origin,
}

impl Candidate {
    fn range(&self) -> Generations {
        self.origin.generations
    }

    /// Of tables with the same range the better one: sound, on more servers.
    fn rank(&self) -> (usize, usize, SstId) {
        (self.chosen.sound, self.chosen.holders.len(), self.chosen.meta.id)
    }
}

pub fn plan(partition: PartitionId, found: &[Found], word: &Word) -> Result<Plan> {
    let mut plan = Plan::default();
    let mut lineages = BTreeSet::new();
    for Found { server, holding: Holding { id, contents, .. } } in found {
        plan.newest_term = plan.newest_term.max(id.epoch.term).max(id.plan.term);
        plan.newest_index = plan.newest_index.max(id.plan.index);
        let Some(Contents { meta, origin, .. }) = contents else { continue };
        if meta.id != *id || id.partition != partition {
            return Err(Error::corrupt(format!("sstable server {server} gives {id} for another table")));
        }
        plan.newest_seq = plan.newest_seq.max(meta.max_seq);
        let origin = origin.as_ref().ok_or_else(|| {
            Error::invalid(format!(
                "SSTable {id} was written by an older version and does not say which records it holds: a manifest cannot be rebuilt"
            ))
        })?;
        lineages.insert(origin.lineage);
    }
    if lineages.len() > 1 {
        let all: Vec<String> = lineages.iter().map(|l| format!("{l:016x}")).collect();
        return Err(Error::invalid(format!(
            "there are tables of several lineages ({}): the partition was founded more than once. Move the files of those that are \
             not wanted out of the sstable servers' data directories",
            all.join(", ")
        )));
    }
    plan.lineage = lineages.first().copied();
    let by_table = candidates(found, &mut plan)?;
    for (table, candidates) in by_table {
        let planned = plan_table((partition, table), candidates, word, &mut plan)?;
        plan.tables.push(planned);
    }
    if let Some(number) = word.with.union(&word.without).find(|number| !plan.loads.contains(*number)) {
        let name = LoadName { partition, number: *number };
        return Err(Error::invalid(format!("there is nothing of load {name}")));
    }
    Ok(plan)
}

/// The readable tables, each once, by LSM-tree.
fn candidates(found: &[Found], plan: &mut Plan) -> Result<BTreeMap<TableId, Vec<Candidate>>> {
    let mut by_id: BTreeMap<SstId, Vec<&Found>> = BTreeMap::new();
    found.iter().for_each(|at| by_id.entry(at.holding.id).or_default().push(at));
    let mut by_table: BTreeMap<TableId, Vec<Candidate>> = BTreeMap::new();
    for (id, copies) in by_id {
        let servers =
            |copies: &[&Found]| copies.iter().map(|c| c.server.to_string()).collect::<Vec<_>>().join(", ");
        // Copies with another checksum than most are none of this table.
        let mut same: BTreeMap<u64, Vec<&Found>> = BTreeMap::new();
        for copy in &copies {
            if let Some(contents) = &copy.holding.contents {
                same.entry(contents.meta.checksum).or_default().push(copy);
            }
        }
        let sound = |copies: &[&Found]| copies.iter().filter(|c| !c.holding.damaged).count();
        let Some(mut best) = same.into_values().max_by_key(|c| (sound(c), c.len())) else {
            plan.losses.push(format!(
                "SSTable {id} cannot be read on any server that has it ({}): what it held is not known",
                servers(&copies)
            ));
            continue;
        };
        best.sort_by_key(|copy| (copy.holding.damaged, copy.server));
        let Some(Contents { meta, options, origin: Some(origin) }) = best[0].holding.contents.clone() else {
            continue;
        };
        if !origin.generations.are_known() {
            return Err(Error::corrupt(format!("SSTable {id} holds no memtable")));
        }
        let chosen = Chosen {
            sound: sound(&best),
            holders: best.iter().map(|copy| copy.server).collect(),
            meta: SstMeta {
                generations: origin.generations,
                range: origin.range.clone(),
                replicas: Vec::new(),
                ..meta
            },
        };
        let of_table = by_table.entry(chosen.meta.table).or_default();
        of_table.push(Candidate { chosen, options, origin });
    }
    Ok(by_table)
}

fn plan_table(
    (partition, table): (PartitionId, TableId),
    candidates: Vec<Candidate>,
    word: &Word,
    plan: &mut Plan,
) -> Result<PlannedTable> {
    let count = candidates.len();
    // The options may have been changed: what was planned last has the newest.
    let newest_plan = candidates.iter().max_by_key(|c| c.chosen.meta.id.plan);
    let (name, options) = newest_plan.map(|c| (c.origin.name.clone(), c.options.clone())).unwrap_or_default();
    let is_foreign =
        |c: &&Candidate| c.origin.name != name || c.options.partition_prefix != options.partition_prefix;
    if let Some(foreign) = candidates.iter().find(is_foreign) {
        return Err(Error::corrupt(format!(
            "SSTable {} calls table {table} {:?}, others {name:?}, or has another partition prefix",
            foreign.chosen.meta.id, foreign.origin.name
        )));
    }
    // Numbers go on behind what is left out, too.
    let newest = candidates.iter().map(|c| c.range().last).max().unwrap_or(Generation(0));
    let judged = loads::judge(candidates, word)?;
    let candidates = &judged.accepted;
    let places = Places::of(candidates);
    let intervals = intervals(candidates);
    let holding = |interval| candidates.iter().filter(move |c: &&Candidate| c.origin.range.covers(interval));
    let chain = |interval| best_chain(holding(interval), interval, &places);
    let chains: Vec<Vec<&Candidate>> = intervals.iter().map(chain).collect();
    tell_of_choice(candidates, &chains, plan);
    tell_of_loads(partition, &judged, &chains, plan);
    let newest_counting = candidates.iter().map(|c| c.range().last).max().unwrap_or(Generation(0));
    let missing: Vec<Vec<Gap>> =
        intervals.iter().zip(&chains).map(|(at, chain)| gaps(chain, at, newest_counting, &places)).collect();
    for gap in missing.iter().flatten().copied().collect::<BTreeSet<Gap>>() {
        // Of a compaction that had nothing for some keys nobody there remembers it. But there is always something that begins with the
        // first memtable, and a flush is of all keys.
        let everywhere = missing.iter().all(|gaps| gaps.contains(&gap));
        let part = if everywhere { "" } else { ", for a part of the keys," };
        let Gap { first, last } = gap;
        let lines = if everywhere || first.0 == 1 { &mut plan.losses } else { &mut plan.doubts };
        lines.push(format!(
            "table {name:?}: what was flushed of its memtables {first} to {last}{part} is in no table of the servers asked; older \
             versions of those records may be all that is left"
        ));
    }
    for pair in chains.iter().flat_map(|chain| chain.windows(2)) {
        let (newer, older) = (&pair[0].chosen.meta, &pair[1].chosen.meta);
        // (All of a load has one seq.)
        let are_apart = newer.generations.first > older.generations.last;
        let is_older = newer.range == older.range && newer.max_seq < older.max_seq;
        if are_apart && newer.min_seq < older.max_seq || is_older {
            return Err(Error::corrupt(format!(
                "SSTables {} and {} of table {name:?} hold versions in another order than their memtables",
                newer.id, older.id
            )));
        }
    }
    let newest_seq = candidates.iter().map(|c| c.chosen.meta.max_seq).max().unwrap_or(0);
    let ssts = entries(&intervals, &chains);
    let distinct: BTreeMap<SstId, &Chosen> = ssts.iter().map(|chosen| (chosen.meta.id, chosen)).collect();
    plan.notes.push(format!(
        "table {name:?} ({table}): {} of {count} SSTables, with its memtables up to {newest_counting}; newest version {newest_seq}. What was \
         written after that and not flushed is lost",
        distinct.len()
    ));
    for (id, alone) in distinct.iter().filter(|(_, chosen)| chosen.holders.len() == 1) {
        plan.notes.push(format!("SSTable {id} is on sstable server {} only", alone.holders[0]));
    }
    Ok(PlannedTable { table, name, options, ssts, newest })
}

/// Says which loads wait for the operator's word, and which are left out.
fn tell_of_loads(partition: PartitionId, judged: &Judged, chains: &[Vec<&Candidate>], plan: &mut Plan) {
    plan.loads.extend(&judged.found);
    for (number, ssts) in &judged.open {
        let load = loads::described(LoadName { partition, number: *number }, ssts);
        if loads::is_spanned(ssts, chains) {
            plan.notes.push(format!("{load}: newer SSTables have it, or it was not committed: not needed"));
        } else {
            plan.undecided.push(load);
        }
    }
    for (number, ssts) in &judged.left_out {
        let load = loads::described(LoadName { partition, number: *number }, ssts);
        plan.notes.push(format!("{load}: left out"));
    }
}

/// Says which tables are not what one would take.
fn tell_of_choice(candidates: &[Candidate], chains: &[Vec<&Candidate>], plan: &mut Plan) {
    let chosen: BTreeMap<SstId, &Candidate> =
        chains.iter().flatten().map(|candidate| (candidate.chosen.meta.id, *candidate)).collect();
    for candidate in candidates {
        let Chosen { meta: SstMeta { id, .. }, sound, .. } = candidate.chosen;
        let is_chosen = chosen.contains_key(&id);
        let holds = |part: &&Candidate| {
            let range = candidate.range();
            range.contains(&part.range())
                && range != part.range()
                && candidate.origin.range.overlaps(&part.origin.range)
        };
        if is_chosen && sound == 0 {
            plan.notes.push(format!(
                "SSTable {id} is damaged on every server that has it: reads of the damaged part will fail, and say so"
            ));
        } else if !is_chosen && chosen.values().copied().any(|part| holds(&part)) {
            plan.notes.push(match sound {
                0 => format!(
                    "SSTable {id} is damaged on every server that has it: the tables it was made of are used"
                ),
                _ => format!(
                    "SSTable {id} is sound on {sound} servers only, of the tables it was made of there are more copies: they are \
                     used"
                ),
            });
        }
    }
}

/// The intervals between the bounds of all tables' ranges, rising.
fn intervals(candidates: &[Candidate]) -> Vec<KeyRange> {
    let bounds = candidates.iter().flat_map(|c| [&c.origin.range.start, &c.origin.range.end]);
    let mut starts: BTreeSet<Bytes> = bounds.cloned().collect();
    starts.insert(Bytes::new());
    let ends = starts.iter().skip(1).cloned().chain([Bytes::new()]);
    starts.iter().cloned().zip(ends).map(|(start, end)| KeyRange { start, end }).collect()
}

/// The entries that give each interval its chain, newest first for every key: as few as there can be, if of two that overlap the newer
/// one is to have all keys of the older one.
fn entries(intervals: &[KeyRange], chains: &[Vec<&Candidate>]) -> Vec<Chosen> {
    // (A chain goes strictly down in both, so this is an order for all of them.)
    let age = |c: &Candidate| (Reverse(c.range().last), Reverse(c.range().first), c.chosen.meta.id);
    let mut by_age: BTreeMap<_, (&Candidate, Vec<usize>)> = BTreeMap::new();
    for (at, chain) in chains.iter().enumerate() {
        for candidate in chain {
            by_age.entry(age(candidate)).or_insert((candidate, Vec::new())).1.push(at);
        }
    }
    // Where entries begin and end that are newer.
    let mut bounds: BTreeSet<usize> = BTreeSet::new();
    let mut entries = Vec::new();
    for (candidate, chosen_in) in by_age.into_values() {
        let goes_on = |before: &usize, at: &usize| before + 1 == *at && !bounds.contains(at);
        let runs: Vec<(usize, usize)> =
            chosen_in.chunk_by(goes_on).map(|run| (run[0], run[run.len() - 1] + 1)).collect();
        for (first, end) in runs {
            let range =
                KeyRange { start: intervals[first].start.clone(), end: intervals[end - 1].end.clone() };
            let Chosen { meta, holders, sound } = candidate.chosen.clone();
            entries.push(Chosen { meta: SstMeta { range, ..meta }, holders, sound });
            bounds.extend([first, end]);
        }
    }
    entries
}

#[cfg(test)]
mod tests;
