//! How long cuts are held: each for its lease after its last renewal, and none for ever, nor for long if what it waits for cannot be
//! flushed.
//!
//! Owns the times, on this leader's clock, and what is proposed about cuts. A new leader counts anew, so it ends none early. An entry of
//! the log ends a cut, not a clock; what a cut is, is [`crate::partition::cuts`].

use std::collections::{HashMap, HashSet};

use sextant_common::cut::{Cut, CutTable, STUCK_MAX, WantedCut};
use sextant_common::error::{Error, Result};
use sextant_common::expiry::Tick;
use sextant_common::manifest::Manifest;
use tokio::sync::oneshot;

use super::Leading;
use crate::command::{Command, EndCut, OpenCut};
use crate::partition::cuts::unknown_cut;
use crate::worker::proposal::PendingCommand;
use crate::worker::replica::Replica;

#[derive(Default)]
pub(in crate::worker) struct Cuts {
    held: HashMap<u64, Watch>,
    /// Whose end is proposed, or about to be.
    ending: HashSet<u64>,
}

/// How far a cut is: tables that are captured, and the sum of the others' flushed generations.
type Progress = (usize, u64);

/// A held cut, on this leader's clock.
struct Watch {
    /// It is held.
    until_ns: u64,
    progress: Progress,
    /// When that last changed.
    progress_ns: u64,
}

impl Watch {
    fn new(cut: &Cut, progress: Progress, now_ns: u64) -> Self {
        Self { until_ns: lease_end(cut, now_ns), progress, progress_ns: now_ns }
    }

    /// Why it ends, if it does.
    fn over(&mut self, cut: &Cut, progress: Progress, now_ns: u64) -> Option<&'static str> {
        if cut.is_complete() {
            return (self.until_ns <= now_ns).then_some("nobody has renewed it");
        }
        // Who asked for it waits.
        self.until_ns = lease_end(cut, now_ns);
        if self.progress != progress {
            (self.progress, self.progress_ns) = (progress, now_ns);
        }
        let stuck_ns = now_ns.saturating_sub(self.progress_ns);
        (stuck_ns >= STUCK_MAX.as_nanos() as u64).then_some("what it waits for is not flushed")
    }
}

fn lease_end(cut: &Cut, now_ns: u64) -> u64 {
    now_ns.saturating_add(cut.lease_ms.saturating_mul(1_000_000))
}

fn progress(cut: &Cut, manifest: &Manifest) -> Progress {
    let waiting = || cut.tables.iter().filter(|table| table.ssts.is_none());
    let flushed = |table: &CutTable| manifest.table(table.table).map_or(0, |t| t.flushed_generation.0);
    (cut.tables.len() - waiting().count(), waiting().map(flushed).fold(0, u64::wrapping_add))
}

impl Leading {
    /// What it says is decided when it is proposed.
    pub fn begin_cut(&mut self, replica: &Replica, wanted: WantedCut, done: oneshot::Sender<Result<()>>) {
        let (term, WantedCut { id, lease_ms, privileged }) = (self.tenure.term, wanted);
        let (next_seq, tick, opened_ms, tables) = (0, Tick::default(), 0, Vec::new());
        let command = Command::OpenCut(OpenCut { term, id, next_seq, tick, opened_ms, lease_ms, tables });
        self.client_pending(replica, PendingCommand { command, done: Some(done), privileged });
    }

    /// What ends one makes room: it is refused no more than a flag.
    fn propose_end(&mut self, id: u64, done: Option<oneshot::Sender<Result<()>>>) {
        let term = self.tenure.term;
        self.command(Command::EndCut(EndCut { term, id }), done);
    }

    /// The cut is of what the log has come to. None: there is nothing to be proposed, and who waits was told.
    pub fn plan_cut(&self, replica: &Replica, pending: Box<PendingCommand>) -> Option<Box<PendingCommand>> {
        let Command::OpenCut(OpenCut { term, id, lease_ms, .. }) = pending.command else {
            return Some(pending);
        };
        let opened_ms = replica.shared.env.clock.wall_guess_ns() / 1_000_000;
        let privileged = pending.privileged;
        match replica.partition.plan_cut(term, WantedCut { id, lease_ms, privileged }, opened_ms) {
            Ok(Some(cut)) => {
                replica.metrics.cuts_opened.inc();
                Some(PendingCommand { command: Command::OpenCut(cut), ..*pending }.into())
            }
            Ok(None) => {
                pending.succeeded();
                None
            }
            Err(e) => {
                pending.end(Err(e));
                None
            }
        }
    }

    pub fn renew_cut(&mut self, replica: &Replica, id: u64, done: oneshot::Sender<Result<u64>>) {
        let is_ending =
            self.cuts.ending.contains(&id) || !replica.queue.has_published(self.tenure.first_index);
        let held = replica.partition.cuts().iter().find(|cut| cut.id == id).filter(|_| !is_ending);
        let _ = done.send(match held {
            Some(cut) => {
                let now_ns = replica.shared.env.clock.grantor_ns();
                let fresh = || Watch::new(cut, progress(cut, replica.partition.manifest()), now_ns);
                self.cuts.held.entry(id).or_insert_with(fresh).until_ns = lease_end(cut, now_ns);
                Ok(self.tenure.term)
            }
            None if !replica.queue.has_published(self.tenure.first_index) => {
                Err(Error::retry("the leader is not ready"))
            }
            None => Err(unknown_cut(id)),
        });
    }

    pub fn end_cut(&mut self, replica: &Replica, id: u64, done: oneshot::Sender<Result<()>>) {
        if !replica.partition.cuts().iter().any(|cut| cut.id == id) {
            let _ = done.send(Ok(()));
        } else if self.cuts.ending.insert(id) {
            self.propose_end(id, Some(done));
        } else {
            // One proposal is enough: whoever asks in a loop does not fill the log.
            let _ = done.send(Err(Error::retry("the snapshot is about to end")));
        }
    }

    /// Ends those that nobody has renewed, or that are too old.
    pub fn end_cuts_when_due(&mut self, replica: &Replica, now_ns: u64) {
        let held = replica.partition.cuts();
        self.cuts.held.retain(|id, _| held.iter().any(|cut| cut.id == *id));
        self.cuts.ending.retain(|id| held.iter().any(|cut| cut.id == *id));
        if held.is_empty() {
            return;
        }
        // (Of two leaders, perhaps: off by as much as their clocks differ.)
        let wall_ms = replica.shared.env.clock.wall_guess_ns() / 1_000_000;
        let mut over = Vec::new();
        for cut in held {
            let progress = progress(cut, replica.partition.manifest());
            let watch = self.cuts.held.entry(cut.id).or_insert_with(|| Watch::new(cut, progress, now_ns));
            let is_old = wall_ms.saturating_sub(cut.opened_ms) >= replica.tuning.snapshot_age_max_ms;
            let why = watch.over(cut, progress, now_ns).or(is_old.then_some("it is too old"));
            if let Some(why) = why.filter(|_| !self.cuts.ending.contains(&cut.id)) {
                over.push((cut.id, why));
            }
        }
        for (id, why) in over {
            tracing::info!(partition = %replica.shared.id, "snapshot {id:016x} ends: {why}");
            replica.metrics.cuts_expired.inc();
            self.cuts.ending.insert(id);
            self.propose_end(id, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use sextant_common::ids::{Generation, PartitionId, Seq, TableId};
    use sextant_common::manifest::{SstList, TableManifest, TableOptions};

    use super::*;

    const STUCK_NS: u64 = STUCK_MAX.as_nanos() as u64;
    const LEASE_NS: u64 = 60_000_000_000;

    /// Of two tables, of which so many are captured.
    fn cut(captured: usize) -> Cut {
        let table = |at: usize| CutTable {
            table: TableId(at as u32 + 1),
            name: at.to_string(),
            options: TableOptions::default(),
            generation: Generation(5),
            ssts: (at < captured).then(SstList::default),
        };
        let (seq, tick, tables) = (Seq(9), Tick(3), (0..2).map(table).collect());
        Cut {
            id: 7,
            at: 20,
            seq,
            tick,
            opened_ms: 0,
            lease_ms: LEASE_NS / 1_000_000,
            tables,
            term: 1,
            lineage: 1,
        }
    }

    fn manifest(flushed: [u64; 2]) -> Manifest {
        let table = |(id, flushed): (u32, u64)| TableManifest {
            flushed_generation: Generation(flushed),
            ..TableManifest::new(TableId(id), id.to_string(), TableOptions::default())
        };
        let tables = (1..).zip(flushed).map(table).collect();
        Manifest { tables, ..Manifest::empty(PartitionId(0)) }
    }

    #[test]
    fn a_cut_that_is_complete_is_held_for_its_lease() {
        let complete = cut(2);
        let mut watch = Watch::new(&complete, (2, 0), 10);
        assert_eq!(watch.over(&complete, (2, 0), 10 + LEASE_NS - 1), None);
        assert_eq!(watch.over(&complete, (2, 0), 10 + LEASE_NS), Some("nobody has renewed it"));
    }

    #[test]
    fn a_cut_waits_as_long_as_flushes_go_on_and_ends_if_they_do_not() {
        let states = [(cut(0), [1, 4]), (cut(0), [2, 4]), (cut(1), [5, 4]), (cut(1), [6, 5])];
        let mut now_ns = 10;
        let mut watch = Watch::new(&states[0].0, progress(&states[0].0, &manifest([0, 0])), now_ns);
        for (cut, state) in &states {
            now_ns += STUCK_NS - 1;
            assert_eq!(watch.over(cut, progress(cut, &manifest(*state)), now_ns), None, "{state:?}");
        }
        let (cut, state) = &states[3];
        // Others that it does not wait for do not count.
        let as_before = progress(cut, &manifest([9, state[1]]));
        assert_eq!(watch.over(cut, as_before, now_ns + STUCK_NS - 1), None);
        assert!(watch.over(cut, as_before, now_ns + STUCK_NS).unwrap().contains("not flushed"));
    }

    #[test]
    fn the_lease_of_a_cut_begins_when_it_is_complete() {
        let mut watch = Watch::new(&cut(0), (0, 0), 10);
        let complete_ns = 10 + 2 * LEASE_NS;
        assert_eq!(watch.over(&cut(0), (0, 1), complete_ns), None);
        assert_eq!(watch.over(&cut(2), (2, 0), complete_ns + LEASE_NS - 1), None);
        assert!(watch.over(&cut(2), (2, 0), complete_ns + LEASE_NS).is_some());
    }
}
