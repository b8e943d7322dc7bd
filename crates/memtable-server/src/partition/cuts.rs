//! Cuts: what a partition's tables were at one position of its log, held for who reads it (design, section 16).
//!
//! An entry freezes all tables that have something, at once, and names the memtables that end. When the flush flag of a table's memtable
//! is committed, its list of SSTables is *captured*: it has all that was written before the cut, and nothing that came after, whatever
//! was flushed or merged since. SSTables do not change, so a cut needs no old versions of keys.
//!
//! Invariant: a table that leaves the manifest is captured by no cut from then on. So what neither manifest nor cuts name is never
//! named again, and may be deleted.

use std::sync::Arc;

use sextant_common::cut::{CUTS_KEPT, CUTS_MAX, Cut, CutTable, WantedCut};
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::expiry::Tick;
use sextant_common::ids::{Generation, LogPosition, Seq, SstId, TableId};
use sextant_common::manifest::SstList;

use super::Partition;
use super::commit::CommitEffect;
use crate::command::{Command, CutPoint, EndCut, OpenCut};

pub fn unknown_cut(id: u64) -> Error {
    Error::invalid(format!("there is no snapshot {id:016x}: it has ended, or was never opened"))
}

impl Partition {
    pub fn cuts(&self) -> &[Arc<Cut>] {
        &self.cuts.cuts
    }

    pub fn is_held(&self, id: SstId) -> bool {
        self.cuts().iter().any(|cut| cut.names(id))
    }

    /// A cut of what has been appended, to be proposed now. None: there is one of this id, or there will be.
    pub fn plan_cut(&self, term: u64, wanted: WantedCut, opened_ms: u64) -> Result<Option<OpenCut>> {
        let id = wanted.id;
        let coming: Vec<u64> = self.coming_cuts().map(|cut| cut.id).collect();
        if coming.contains(&id) || self.cuts().iter().any(|cut| cut.id == id) {
            return Ok(None);
        }
        if coming.len() + self.cuts().len() >= wanted.room() {
            let kept = match wanted.privileged {
                true => String::new(),
                false => format!(" ({CUTS_KEPT} of {CUTS_MAX} places are kept for administrators)"),
            };
            let why = format!("there are {} snapshots of partition {} already{kept}", wanted.room(), self.id);
            return Err(Error::new(ErrorKind::Overloaded, why));
        }
        // Each freezes all memtables: whoever opens many at once gets one after the other.
        if !coming.is_empty() || self.cuts().iter().any(|cut| !cut.is_complete()) {
            return Err(Error::retry(format!("another snapshot of partition {} is being opened", self.id)));
        }
        Ok(Some(self.cut_now(term, wanted, opened_ms)))
    }

    pub(super) fn cut_now(&self, term: u64, wanted: WantedCut, opened_ms: u64) -> OpenCut {
        let WantedCut { id, lease_ms, .. } = wanted;
        let point = |(table, state): (TableId, &super::table::TableState)| {
            let (generation, freezes) = (state.generation(), !state.active.is_empty());
            CutPoint {
                table,
                generation: if freezes { generation } else { Generation(generation.0 - 1) },
                freezes,
            }
        };
        let tables = self.tables().filter(|(table, _)| !self.has_ended(*table)).map(point).collect();
        OpenCut { term, id, next_seq: self.next_seq, tick: self.tick, opened_ms, lease_ms, tables }
    }

    /// Whether a cut is appended, and nobody has seen it yet.
    pub fn is_cutting(&self) -> bool {
        self.coming_cuts().next().is_some()
    }

    /// Appended, and not yet committed.
    fn coming_cuts(&self) -> impl Iterator<Item = &OpenCut> {
        self.uncommitted.iter().filter_map(|(_, command)| match command {
            Command::OpenCut(cut) => Some(cut),
            _ => None,
        })
    }

    /// Up to when flushes and merges may take records for expired: not beyond a cut that they write for.
    pub fn may_expire_by(&self, published: Tick) -> Tick {
        let unfinished = self.cuts().iter().filter(|cut| !cut.is_complete()).map(|cut| cut.tick);
        let coming = self.coming_cuts().map(|cut| cut.tick);
        unfinished.chain(coming).fold(published, Tick::min)
    }

    pub(super) fn fits(&self, cut: &OpenCut) -> bool {
        let fits = |point: &CutPoint| {
            let active = Generation(point.generation.0.saturating_add(u64::from(!point.freezes)));
            self.is_current(point.table, active)
        };
        cut.next_seq == self.next_seq && cut.tick == self.tick && cut.tables.iter().all(fits)
    }

    pub(super) fn open_cut(&mut self, at: LogPosition, cut: OpenCut) -> Option<CommitEffect> {
        if at.index <= self.cuts.applied {
            return None;
        }
        self.cuts.applied = at.index;
        if self.cuts.cuts.iter().any(|held| held.id == cut.id) {
            return None;
        }
        let OpenCut { id, next_seq, tick, opened_ms, lease_ms, tables, .. } = cut;
        // (A table that was made meanwhile had nothing then.)
        let point = |table: TableId| tables.iter().find(|point| point.table == table);
        let captured = self.manifest.tables.iter().map(|table| {
            let generation = point(table.table).map_or(Generation(0), |point| point.generation);
            let ssts = match point(table.table) {
                None => Some(SstList::default()),
                Some(_) => (table.flushed_generation >= generation).then(|| table.ssts.clone()),
            };
            let (name, options) = (table.name.clone(), table.options.clone());
            CutTable { table: table.table, name, options, generation, ssts }
        });
        let (seq, tables) = (Seq(next_seq.saturating_sub(1)), captured.collect());
        let lineage = self.configuration.as_ref().map_or(0, |(c, _)| c.lineage);
        let (term, at) = (at.term, at.index);
        self.cuts.cuts.push(Arc::new(Cut { id, at, seq, tick, opened_ms, lease_ms, tables, term, lineage }));
        Some(CommitEffect::Cut)
    }

    pub(super) fn end_cut(&mut self, at: LogPosition, end: &EndCut) -> Option<CommitEffect> {
        if at.index <= self.cuts.applied {
            return None;
        }
        self.cuts.applied = at.index;
        self.cuts.cuts.retain(|cut| cut.id != end.id);
        Some(CommitEffect::Cut)
    }

    /// A table was dropped: cuts that waited for its memtables end, because nobody has those any more.
    pub(super) fn end_cuts_without(&mut self, table: TableId) {
        let lacks = |t: &CutTable| t.table == table && t.ssts.is_none();
        self.cuts.cuts.retain(|cut| !cut.tables.iter().any(lacks));
    }

    /// A flag of the table was committed: the cuts that waited for it have what the manifest says now.
    pub(super) fn capture(&mut self, table: TableId) {
        let Some(entry) = self.manifest.table(table) else { return };
        for cut in &mut self.cuts.cuts {
            let waits = |t: &CutTable| {
                t.table == table && t.ssts.is_none() && t.generation == entry.flushed_generation
            };
            if cut.tables.iter().any(waits) {
                let tables = &mut Arc::make_mut(cut).tables;
                tables.iter_mut().filter(|t| waits(t)).for_each(|t| t.ssts = Some(entry.ssts.clone()));
            }
        }
    }
}
