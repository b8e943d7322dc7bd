//! Appended entries take effect; truncated ones are undone.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use sextant_common::error::{Error, Result};
use sextant_common::ids::{Generation, LogPosition, TableId};
use sextant_rules::mutant::{self, Mutant};

use super::table::TableState;
use super::undo::{Done, Undo};
use super::{Checkpoint, Partition, rules};
use crate::command::{
    Alteration, ChangeTable, Command, Configure, CutPoint, Freeze, Group, Load, OpenCut, OpenSession, Tick,
};
use crate::memtable::{Memtable, NewVersion};

/// An entry of the log, as the partition sees it.
#[derive(Clone, Debug)]
pub enum Body {
    Blank,
    /// raft_log's encoding of the membership that holds from this entry on.
    Membership(Bytes),
    Payload(Bytes),
}

/// What ingesting an entry did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ingested {
    /// It was here before.
    Known,
    /// Its numbers do not match what the log holds before it: ignored by every replica.
    Ignored,
    Other,
    /// A configuration that may take effect.
    Configured,
    Group {
        first_seq: u64,
    },
    /// Readers must get a new view.
    Frozen {
        table: TableId,
        next: Generation,
    },
    /// The same, of each of these.
    Cut(Vec<(TableId, Generation)>),
}

impl Partition {
    /// Takes an appended entry in. `bits_done`: the leader has put this group's bits into the filters already.
    ///
    /// An `Err` means damage or a hole in the log: the caller must stop.
    pub fn ingest(&mut self, at: LogPosition, body: &Body, bits_done: bool) -> Result<Ingested> {
        if at.index < self.next_index {
            return Ok(Ingested::Known);
        }
        if at.index != self.next_index {
            return Err(Error::internal(format!("hole in the log: entry {at} after {}", self.last)));
        }
        let mut undo = Undo {
            index: at.index,
            last: self.last,
            next_seq: self.next_seq,
            time_ms: self.time_ms,
            tick: self.tick,
            done: Done::Nothing,
        };
        let ingested = match body {
            Body::Blank => Ingested::Other,
            Body::Membership(encoded) => {
                let before = std::mem::replace(&mut self.membership, encoded.clone());
                undo.done = Done::Membership(before);
                Ingested::Other
            }
            Body::Payload(bytes) => {
                self.log_bytes += bytes.len() as u64;
                let command = Command::decode(bytes)?;
                if let Command::Configure(Configure { configuration, .. }) = &command {
                    self.check_format(configuration)?;
                }
                self.ingest_command(at, command, bits_done, &mut undo.done)
            }
        };
        if ingested == Ingested::Ignored {
            self.counters.ignored_entries += 1;
            self.verdicts.ignore(at);
        }
        self.last = at;
        self.next_index = at.index + 1;
        self.undo.push_back(undo);
        let froze = match &ingested {
            Ingested::Frozen { .. } => true,
            Ingested::Cut(frozen) => !frozen.is_empty(),
            _ => false,
        };
        if froze {
            self.checkpoint();
        }
        Ok(ingested)
    }

    fn ingest_command(
        &mut self,
        at: LogPosition,
        command: Command,
        bits_done: bool,
        done: &mut Done,
    ) -> Ingested {
        // A command is proposed to the leader of its own term only; another term means that the leader's view of the log
        // was another one when it was made.
        if command.term() != at.term {
            return Ingested::Ignored;
        }
        match command {
            Command::Group(group) => self.ingest_group(at, group, bits_done, done),
            Command::Freeze(Freeze { table, generation, .. }) => {
                if !self.is_current(table, generation) {
                    return Ingested::Ignored;
                }
                let next = Generation(generation.0 + 1);
                *done = self.end_memtable(at, table, generation, next, |state| state.freeze(at));
                Ingested::Frozen { table, next }
            }
            Command::OpenCut(cut) => self.ingest_cut(at, cut, done),
            Command::Load(load) => self.ingest_load(at, load, done),
            Command::ChangeTable(change) => self.ingest_change(at, change, done),
            Command::OpenSession(OpenSession { session, time_ms, .. }) => {
                self.time_ms = self.time_ms.max(time_ms);
                *done = Done::Session(self.sessions.open(session, self.time_ms));
                Ingested::Other
            }
            Command::Tick(Tick { at, .. }) => {
                self.tick = self.tick.max(at);
                Ingested::Other
            }
            command @ Command::Configure(_) => {
                self.uncommitted.push_back((at, command));
                Ingested::Configured
            }
            command @ (Command::Flush(_)
            | Command::Compaction(_)
            | Command::Placement(_)
            | Command::EnsureTable(_)
            | Command::EndCut(_)) => {
                self.uncommitted.push_back((at, command));
                Ingested::Other
            }
        }
    }

    /// Whether this is the active memtable of a table that entries may name.
    pub(super) fn is_current(&self, table: TableId, generation: Generation) -> bool {
        let current = self.tables.get(&table).map_or(Generation(1), |t| t.generation());
        !self.has_ended(table) && rules::fits(generation, current)
    }

    fn freeze(&mut self, at: LogPosition, CutPoint { table, generation, .. }: &CutPoint) -> Done {
        let next = Generation(generation.0 + 1);
        self.end_memtable(at, *table, *generation, next, |state| state.freeze(at))
    }

    /// Nothing comes between the freezes: what the cut has of its tables is of one position.
    fn ingest_cut(&mut self, at: LogPosition, cut: OpenCut, done: &mut Done) -> Ingested {
        if !self.fits(&cut) {
            return Ingested::Ignored;
        }
        let ending = cut.tables.iter().filter(|point| point.freezes);
        let frozen = ending.clone().map(|point| (point.table, Generation(point.generation.0 + 1))).collect();
        *done = Done::Freezes(ending.map(|point| self.freeze(at, point)).collect());
        self.uncommitted.push_back((at, Command::OpenCut(cut)));
        Ingested::Cut(frozen)
    }

    /// `end` does it, unless the memtable is flushed already: then only the number moves.
    fn end_memtable(
        &mut self,
        at: LogPosition,
        table: TableId,
        generation: Generation,
        next: Generation,
        end: impl FnOnce(&mut TableState),
    ) -> Done {
        let state = self.written_table(at, table);
        if generation <= state.flushed_generation {
            state.active = Arc::new(Memtable::new(next));
            return Done::SkippedFreeze(table, generation);
        }
        end(state);
        Done::Freeze(table)
    }

    /// What was loaded is of a later seq than all that was written, and of later generations: numbers go on behind them.
    fn ingest_load(&mut self, at: LogPosition, load: Load, done: &mut Done) -> Ingested {
        let Load { table, generation, next_seq, seq, flushed, .. } = load;
        if !self.is_current(table, generation) || next_seq != self.next_seq {
            return Ingested::Ignored;
        }
        let next = Generation(flushed.0 + 1);
        *done = self.end_memtable(at, table, generation, next, |state| state.jump(at, next));
        self.next_seq = seq + 1;
        self.uncommitted.push_back((at, Command::Load(load)));
        Ingested::Frozen { table, next }
    }

    /// What a dropped table has stays until that is committed: it may be truncated.
    fn ingest_change(&mut self, at: LogPosition, change: ChangeTable, done: &mut Done) -> Ingested {
        let ChangeTable { table, next_seq, generation, .. } = change;
        if !self.is_current(table, generation) || next_seq != self.next_seq {
            return Ingested::Ignored;
        }
        if change.alteration == Alteration::Drop {
            self.ended.insert(table);
            *done = Done::Ended(table);
        }
        self.uncommitted.push_back((at, Command::ChangeTable(change)));
        Ingested::Other
    }

    fn ingest_group(&mut self, at: LogPosition, group: Group, bits_done: bool, done: &mut Done) -> Ingested {
        let fits = group.first_seq == self.next_seq
            && group.tables.iter().all(|t| self.is_current(t.table, t.generation));
        if !fits {
            return Ingested::Ignored;
        }
        let seqs = group.seqs();
        let first_seq = group.first_seq;
        let log_bytes = self.log_bytes;
        // `bits_done`: it is the group that this leader evaluated.
        let bookmarks = if bits_done { std::mem::take(&mut self.expected) } else { Vec::new() };
        let mut versions = Vec::with_capacity(seqs as usize);
        for writes in group.tables {
            let (mut done, mut skipped) = (0, 0);
            let state = self.written_table(at, writes.table);
            let flushed = writes.generation <= state.flushed_generation;
            for write in writes.writes {
                if flushed {
                    skipped += 1;
                    continue;
                }
                let seq = first_seq + u64::from(write.ordinal);
                if !bits_done {
                    write.bits().for_each(|hash| state.filter.insert(hash));
                }
                let new = NewVersion { value: write.value.as_deref(), marks: write.marks };
                let bookmark = bookmarks.get(write.ordinal as usize).and_then(Option::as_ref);
                state.active.seek_again(&write.key, bookmark).insert(seq, new, at.index, log_bytes);
                versions.push((writes.table, write.key, seq));
                done += 1;
            }
            self.counters.writes += done;
            self.counters.skipped += skipped;
        }
        self.next_seq += seqs;
        self.time_ms = self.time_ms.max(group.time_ms);
        let mut sessions = Vec::with_capacity(group.requests.len());
        group.requests.iter().for_each(|r| self.sessions.record(r, self.time_ms, &mut sessions));
        *done = Done::Group { versions, sessions };
        Ingested::Group { first_seq }
    }

    /// Undoes every entry from index `first` on: versions are removed, the duplicate table is put back, freezes are undone.
    /// An `Err` means that a committed entry would be undone: the caller must stop.
    pub fn truncate_from(&mut self, first: u64) -> Result<()> {
        if self.committed_index > 0 && first <= self.committed_index {
            return Err(Error::internal(format!(
                "truncation from {first} would undo committed entries (up to {})",
                self.committed_index
            )));
        }
        while self.undo.back().is_some_and(|u| u.index >= first) {
            let Some(undo) = self.undo.pop_back() else { break };
            self.counters.truncated_entries += 1;
            self.take_back(undo.done);
            self.last = undo.last;
            self.next_index = undo.index;
            self.next_seq = undo.next_seq;
            self.time_ms = undo.time_ms;
            self.tick = undo.tick;
        }
        self.uncommitted.retain(|(at, _)| at.index < first);
        self.verdicts.truncate_from(first);
        self.checkpoints.retain(|c| c.at.index < first);
        Ok(())
    }

    fn take_back(&mut self, done: Done) {
        match done {
            Done::Nothing => {}
            Done::Group { versions, sessions } => {
                self.counters.truncated_groups += 1;
                if !mutant::active(Mutant::DuplicateTableNotUndone) {
                    self.sessions.undo(sessions);
                }
                for (table, key, seq) in versions {
                    if let Some(state) = self.tables.get_mut(&table) {
                        state.take_back(&key, seq);
                    }
                }
            }
            Done::Freeze(table) => {
                self.counters.truncated_freezes += 1;
                self.table_mut(table).unfreeze();
            }
            Done::Freezes(all) => all.into_iter().for_each(|one| self.take_back(one)),
            Done::SkippedFreeze(table, before) => {
                self.table_mut(table).active = Arc::new(Memtable::new(before));
            }
            Done::Ended(table) => drop(self.ended.remove(&table)),
            Done::Session(changes) => self.sessions.undo(changes),
            Done::Membership(before) => self.membership = before,
        }
    }

    /// Forgets how to undo entries up to `index`.
    pub(super) fn forget_undo(&mut self, index: u64) {
        while self.undo.front().is_some_and(|u| u.index <= index) {
            self.undo.pop_front();
        }
    }

    /// Remembers the state as of the newest entry.
    fn checkpoint(&mut self) {
        let named = self.tables.iter().filter(|(id, _)| !self.has_ended(**id));
        let generations: BTreeMap<_, _> = named.map(|(id, t)| (*id, t.generation())).collect();
        self.checkpoints.push_back(Checkpoint {
            at: self.last,
            next_seq: self.next_seq,
            time_ms: self.time_ms,
            tick: self.tick,
            generations,
            sessions: self.sessions.clone(),
            membership: self.membership.clone(),
        });
    }
}
