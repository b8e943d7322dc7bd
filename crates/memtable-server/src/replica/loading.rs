//! The bulk load that a partition's leader has begun: one at a time. It is in the leader's memory alone until the log has it: whoever
//! loads sends the records again if the leader changes.
//!
//! Invariant: tables of a load are pending ([`ReplicaState::pending_ssts`](super::ReplicaState)) as long as it is here and may be adopted:
//! in the term in which it began.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::{Epoch, Generation, LoadId, LogPosition, SstId, TableId};
use sextant_common::manifest::{SstMeta, TableOptions};

/// A load that nobody has spoken of for so long is forgotten, with its tables.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// What a load's SSTables are to be of.
#[derive(Clone, Debug)]
pub struct LoadJob {
    /// Of all loads that were begun here.
    pub count: u64,
    pub term: u64,
    pub epoch: Epoch,
    pub table: TableId,
    pub name: String,
    pub options: TableOptions,
    pub plan: LogPosition,
    pub lineage: u64,
    /// Of its first SSTable; the others follow.
    pub first: Generation,
    /// Of all its records.
    pub seq: u64,
}

/// A load whose SSTables are durable.
#[derive(Clone, Debug)]
pub struct Written {
    pub id: LoadId,
    pub term: u64,
    pub table: TableId,
    pub name: String,
    pub first: Generation,
    pub seq: u64,
    /// By rising keys; each has a generation of its own, from the first one on.
    pub ssts: Vec<SstMeta>,
}

impl Written {
    pub fn records(&self) -> u64 {
        self.ssts.iter().map(|sst| sst.records).sum()
    }

    pub fn bytes(&self) -> u64 {
        self.ssts.iter().map(|sst| sst.file_bytes).sum()
    }

    pub fn ids(&self) -> Vec<SstId> {
        self.ssts.iter().map(|sst| sst.id).collect()
    }
}

/// What became of the wish that a load, or a change of a table, is seen.
#[derive(Debug)]
pub enum Adopted {
    Seen,
    /// Certainly not; it may be tried again.
    NotNow(Error),
}

#[derive(Debug)]
pub enum Phase {
    /// Its records arrive.
    Arriving,
    Written(Written),
    /// It is to be seen: its tables may be named by the log.
    Ending,
}

#[derive(Debug)]
struct UnderWay {
    id: LoadId,
    /// Of all that were begun here.
    count: u64,
    phase: Phase,
    heard_ns: u64,
}

impl UnderWay {
    /// Whether a load may take its place.
    fn gives_way(&self, id: LoadId, term: u64, now_ns: u64) -> bool {
        let Phase::Written(written) = &self.phase else { return false };
        self.id == id || written.term != term || is_silent(self.heard_ns, now_ns)
    }

    fn in_the_way_of(&self, id: LoadId) -> Error {
        let why = match self.id == id {
            true => "this load is on its way already",
            false => "another load is under way",
        };
        Error::new(ErrorKind::Overloaded, why)
    }
}

#[derive(Debug, Default)]
pub struct LoadPlace {
    under_way: Mutex<Option<UnderWay>>,
    begun: AtomicU64,
    /// A term, and how many loads were begun in it here.
    of_term: Mutex<(u64, u64)>,
}

impl LoadPlace {
    /// Whether this one is under way.
    pub fn has(&self, count: u64) -> bool {
        self.under_way.lock().as_ref().is_some_and(|load| load.count == count)
    }

    /// How many were begun, this one included.
    pub fn count(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The number of a load that begins in this term, from 1 on. An error: the place is another load's, and no number is taken.
    pub fn number(&self, id: LoadId, term: u64, now_ns: u64) -> Result<u64> {
        if let Some(other) = &*self.under_way.lock()
            && !other.gives_way(id, term, now_ns)
        {
            return Err(other.in_the_way_of(id));
        }
        let mut of_term = self.of_term.lock();
        if of_term.0 != term {
            *of_term = (term, 0);
        }
        of_term.1 += 1;
        Ok(of_term.1)
    }

    /// Takes the place for records that arrive. What stood there and was given up for it. An error: it is another load's.
    pub fn enter(&self, id: LoadId, count: u64, term: u64, now_ns: u64) -> Result<Option<Written>> {
        let mut place = self.under_way.lock();
        if let Some(other) = place.as_ref().filter(|other| !other.gives_way(id, term, now_ns)) {
            return Err(other.in_the_way_of(id));
        }
        let before = place.take().and_then(|other| match other.phase {
            Phase::Written(written) => Some(written),
            Phase::Arriving | Phase::Ending => None,
        });
        *place = Some(UnderWay { id, count, phase: Phase::Arriving, heard_ns: now_ns });
        Ok(before)
    }

    /// The load that was begun as this one is in another phase now.
    pub fn set(&self, count: u64, phase: Phase, now_ns: u64) {
        if let Some(load) = self.under_way.lock().as_mut().filter(|load| load.count == count) {
            (load.phase, load.heard_ns) = (phase, now_ns);
        }
    }

    pub fn leave(&self, count: u64) {
        self.under_way.lock().take_if(|load| load.count == count);
    }

    /// Somebody speaks of a load of this term: what is written of it. None: it is not here. An error: it is busy.
    pub fn heard(&self, id: LoadId, term: u64, now_ns: u64) -> Result<Option<Written>> {
        let mut place = self.under_way.lock();
        let Some(load) = place.as_mut().filter(|load| load.id == id) else { return Ok(None) };
        match &load.phase {
            Phase::Written(written) if written.term == term => {
                load.heard_ns = now_ns;
                Ok(Some(written.clone()))
            }
            Phase::Written(_) => Ok(None),
            Phase::Arriving => Err(Error::retry("the load's records are arriving")),
            Phase::Ending => Err(Error::retry("the load is being committed")),
        }
    }

    /// Takes a written load of this term for its end, and its number.
    pub fn end(&self, id: LoadId, term: u64) -> Option<(Written, u64)> {
        let mut place = self.under_way.lock();
        let load = place.as_mut().filter(|load| load.id == id)?;
        let Phase::Written(written) = &load.phase else { return None };
        if written.term != term {
            return None;
        }
        let written = written.clone();
        load.phase = Phase::Ending;
        Some((written, load.count))
    }

    /// The load is taken out if nobody has spoken of it for long, or its leader has changed.
    pub fn forget(&self, count: u64, serving: Option<u64>, now_ns: u64) -> Option<Written> {
        let mut place = self.under_way.lock();
        let load = place.take_if(|load| match &load.phase {
            Phase::Written(written) if load.count == count => {
                Some(written.term) != serving || is_silent(load.heard_ns, now_ns)
            }
            _ => false,
        })?;
        match load.phase {
            Phase::Written(written) => Some(written),
            Phase::Arriving | Phase::Ending => None,
        }
    }
}

fn is_silent(heard_ns: u64, now_ns: u64) -> bool {
    now_ns.saturating_sub(heard_ns) >= SILENCE_MAX.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT: u64 = SILENCE_MAX.as_nanos() as u64;

    fn written(id: u64, term: u64) -> Written {
        Written {
            id: LoadId(id),
            term,
            table: TableId(1),
            name: "t".into(),
            first: Generation(1 << 24),
            seq: 9,
            ssts: Vec::new(),
        }
    }

    fn place_with(id: u64, term: u64) -> LoadPlace {
        let place = LoadPlace::default();
        assert!(place.enter(LoadId(id), 1, term, 0).unwrap().is_none());
        place.set(1, Phase::Written(written(id, term)), 0);
        place
    }

    #[test]
    fn one_load_at_a_time_until_it_is_silent_or_sent_again_or_of_another_leader() {
        let place = place_with(7, 3);
        assert_eq!(place.enter(LoadId(8), 2, 3, SILENT - 1).unwrap_err().kind, ErrorKind::Overloaded);
        assert!(place_with(7, 3).enter(LoadId(8), 2, 3, SILENT).unwrap().is_some());
        assert!(place_with(7, 3).enter(LoadId(7), 2, 3, 0).unwrap().is_some());
        assert!(place_with(7, 3).enter(LoadId(8), 2, 4, 0).unwrap().is_some());
        place.heard(LoadId(7), 3, SILENT).unwrap().unwrap();
        assert!(place.forget(1, Some(3), SILENT + 1).is_none(), "somebody has spoken of it");
        assert!(place.forget(1, Some(3), 2 * SILENT).is_some());
        assert!(place_with(7, 3).forget(1, None, 1).is_some());
    }

    #[test]
    fn loads_are_numbered_in_each_term_and_who_finds_the_place_taken_takes_no_number() {
        let place = place_with(7, 3);
        assert_eq!(place.number(LoadId(8), 3, 0).unwrap_err().kind, ErrorKind::Overloaded);
        assert_eq!(place.number(LoadId(7), 3, 0).unwrap(), 1);
        assert_eq!(place.number(LoadId(7), 3, 0).unwrap(), 2);
        assert_eq!(place.number(LoadId(8), 4, 0).unwrap(), 1, "a later leader begins anew");
    }

    #[test]
    fn a_load_ends_once_and_what_is_over_does_not_touch_the_next_one() {
        let place = place_with(7, 3);
        assert!(place.end(LoadId(8), 3).is_none() && place.end(LoadId(7), 4).is_none());
        let (_, count) = place.end(LoadId(7), 3).unwrap();
        assert!(place.end(LoadId(7), 3).is_none());
        assert!(place.heard(LoadId(7), 3, 1).unwrap_err().message.contains("being committed"));
        assert!(place.forget(1, None, 9 * SILENT).is_none(), "its tables may be named by the log");
        place.leave(count);
        assert!(place.enter(LoadId(8), 2, 3, 1).unwrap().is_none());
        place.leave(count);
        assert!(place.heard(LoadId(8), 3, 1).is_err(), "it arrives");
    }
}
