//! Freezes, flushes, merges.

use sextant_memtable_server::partition::rules;

use super::{Action, Protocol};
use crate::Mutant;
use crate::state::log::{Entry, EntryKind, NO_SST};
use crate::state::{Bit, Cell, FLUSH, FREEZE, Job, JobPhase, KEYS, MERGE, State, ZOMBIE};

impl Protocol {
    pub(super) fn table_actions(&self, s: &State, out: &mut Vec<Action>) {
        let active = s.generation();
        let may_slip = self.bounds.slips || self.is(Mutant::FreezeSlipsIn);
        // Empty memtables are frozen at times too; that matters where nothing but the freeze does.
        let worth = !s.is_empty(active) || (self.bounds.slips && self.bounds.registered);
        if s.freezes < self.bounds.freezes && (!s.proposal.on || may_slip) && worth {
            out.push(Action::Freeze);
        }
        let manifest = self.manifest(s);
        if s.jobs[FLUSH].phase == JobPhase::None && self.serves(s) {
            let in_order = |g: u8| g == manifest.next_to_flush() || self.is(Mutant::FlagsOutOfOrder);
            let due = (1..active).filter(|g| !manifest.is_flushed(*g) && in_order(*g));
            out.extend(due.filter(|g| self.may_flush(s, *g)).map(|generation| Action::Flush { generation }));
        }
        let merging = s.jobs[MERGE].phase != JobPhase::None
            || s.entries().any(|(at, e)| e.kind == EntryKind::Merge && at > s.known_committed);
        let n = manifest.tables().len();
        if s.compactions < self.bounds.compactions && !merging && n > 0 {
            out.push(Action::Merge { from: 0, to: n });
            // Neighbours in age. (Of one table alone: only where that is more than a copy.)
            let least = if self.is(Mutant::TombstoneDroppedEarly) { 1 } else { 2 };
            let runs = (0..n).flat_map(|from| (from + least..=n).map(move |to| (from, to)));
            let some = runs.filter(|run| *run != (0, n) && (least > 1 || run.0 == 0));
            out.extend(some.map(|(from, to)| Action::Merge { from, to }));
        }
        for job in [FLUSH, MERGE, ZOMBIE] {
            match s.jobs[job].phase {
                JobPhase::None => {}
                JobPhase::Planned => out.push(Action::Seal { job }),
                JobPhase::Sealed if !s.proposal.on => out.push(Action::Flag { job }),
                JobPhase::Sealed => {}
            }
        }
        if self.bounds.grace && s.dropped < manifest.last_flush {
            out.push(Action::EndGrace);
        }
    }

    fn may_flush(&self, s: &State, generation: u8) -> bool {
        let Some(freeze) = s.freeze_of(generation) else { return false };
        let flagged = s.entries().any(|(at, e)| {
            e.kind == EntryKind::Flush && e.generation == generation && at > s.known_committed
        });
        let up_to = if self.is(Mutant::FlushBeforePublished) { s.known_committed } else { s.published };
        !flagged && rules::may_flush(u64::from(freeze), u64::from(up_to))
    }

    pub(super) fn freeze(&self, s: &mut State) -> Result<(), String> {
        let generation = s.generation();
        s.freezes += 1;
        self.append(s, Entry { kind: EntryKind::Freeze, generation, ..Entry::default() })?;
        if s.push_bit(Bit { generation: generation + 1, key: FREEZE }) {
            Ok(())
        } else {
            Err("the model's ring is too short for these bounds".into())
        }
    }

    /// A table's id: its own for ever; where tables are replaced, only a number that follows from the manifest.
    fn new_id(&self, s: &State) -> u8 {
        if self.is(Mutant::TableReplaced) {
            return self.manifest(s).version;
        }
        s.free_sst().unwrap_or(NO_SST)
    }

    fn start(&self, s: &mut State, slot: usize, mut job: Job, contents: [Cell; KEYS]) {
        if contents == [Cell::NOTHING; KEYS] {
            (job.phase, job.sst) = (JobPhase::Sealed, NO_SST);
        } else if self.is(Mutant::TableReplaced) {
            (job.phase, job.contents) = (JobPhase::Planned, contents);
        } else {
            job.phase = JobPhase::Sealed;
            s.ssts[usize::from(job.sst)] = contents;
        }
        s.jobs[slot] = job;
    }

    pub(super) fn flush(&self, s: &mut State, generation: u8) {
        let buries = |cell| self.bounds.buries && self.merges_as_tombstone(s, cell);
        let newest = |key| s.newest(key, s.len, |g| g == generation);
        let cell = |key| match newest(key).map(|version| version.cell) {
            Some(cell) if buries(cell) => cell.buried(),
            Some(cell) => cell,
            None => Cell::NOTHING,
        };
        let contents = std::array::from_fn(cell);
        let job = Job { generation, sst: self.new_id(s), ..Job::default() };
        self.start(s, FLUSH, job, contents);
    }

    /// The newest record of each key; tombstones are dropped if no older table is left out.
    pub(super) fn merge(&self, s: &mut State, from: usize, to: usize) {
        let manifest = self.manifest(s);
        let inputs = &manifest.tables()[from..to];
        let drops = to == manifest.tables().len() || self.is(Mutant::TombstoneDroppedEarly);
        let newest = |key: usize| {
            let cells = inputs.iter().map(|sst| s.ssts[usize::from(*sst)][key]);
            let skips = |c: Cell| {
                c.is_value() && self.is(Mutant::ExpiredIsMergedAway) && self.merges_as_tombstone(s, c)
            };
            let mut cells = cells.into_iter().filter(|c| *c != Cell::NOTHING && !skips(*c));
            let newest = cells.next().unwrap_or_default();
            match self.merges_as_tombstone(s, newest) {
                true if drops => Cell::NOTHING,
                true => newest.buried(),
                false => newest,
            }
        };
        let contents = std::array::from_fn(newest);
        let set = inputs.iter().fold(0, |set, sst| set | 1 << sst);
        let job = Job { inputs: set, sst: self.new_id(s), ..Job::default() };
        s.compactions += 1;
        self.start(s, MERGE, job, contents);
    }

    pub(super) fn seal(&self, s: &mut State, job: usize) {
        let planned = std::mem::take(&mut s.jobs[job]);
        s.ssts[usize::from(planned.sst)] = planned.contents;
        if job != ZOMBIE {
            s.jobs[job] = Job { phase: JobPhase::Sealed, contents: Default::default(), ..planned };
        }
    }

    pub(super) fn flag(&self, s: &mut State, job: usize) -> Result<(), String> {
        let sealed = std::mem::take(&mut s.jobs[job]);
        let kind = if job == FLUSH { EntryKind::Flush } else { EntryKind::Merge };
        let Job { generation, inputs, sst, .. } = sealed;
        self.append(s, Entry { kind, generation, inputs, sst, ..Entry::default() })
    }
}
