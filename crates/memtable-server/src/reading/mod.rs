//! Reads of memtables: from which state a leader answers, and when it may.
//!
//! Owns three orders. *State*: the published position, its seq and its tick as one, is loaded before the view, so that everything
//! published by then is in its memtables, or was flushed, and then the version that the reader names tells. *Right*: a read begins with the term that is served ([`Round::at`]),
//! and the leader lease is asked last ([`Round::lapsed`]), so that it held when the state was read. *Registration*: a read whose answer
//! may be kept takes the ring's epoch and serial, then sets its slot's bit, then loads the published seq ([`Reader::read_registered`]).

pub mod page;

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use sextant_common::expiry::{Tick, is_expired};
use sextant_common::ids::{Epoch, ManifestVersion, PartitionId, Serial, TableId};
use sextant_common::key::{filter_hash, registration_slot};
use sextant_common::manifest::Versions;
use sextant_common::marks::Marks;
use sextant_rules::mutant::{self, Mutant};

use crate::memtable::Version;
use crate::partition::view::ReadAnswer;
use crate::publication::Position;
use crate::replica::{Leader, ReplicaState};
use page::{Page, Range, TooLarge};

/// Why what was read of a partition is not to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lapsed {
    /// This node leads, but does not serve yet, or its lease is over.
    NotReady,
    NotLeader(Leader),
}

/// Reads of some partitions that are answered together.
#[derive(Default)]
pub struct Round {
    partitions: HashMap<PartitionId, Begun>,
}

/// A partition of a round.
struct Begun {
    /// The term that was served before anything was read.
    term: u64,
    registration: Option<Registration>,
}

/// What a p-node keeps answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    pub epoch: Epoch,
    /// The ring's newest, before the first slot was registered.
    pub serial: Serial,
}

/// What the memtables have of a key at a position of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// What has expired is a tombstone.
    pub answer: ReadAnswer,
    /// The newest tick up to that position: what the SSTables say to this read is judged by it.
    pub tick: Tick,
}

/// An answer that a p-node would like to keep.
pub struct Registered {
    pub answered: Answered,
    /// No write is on its way that has not seen the registration.
    pub may_be_kept: bool,
}

/// What a page of a scan is made of.
pub enum PageAnswer {
    Page(Page),
    TooLarge(TooLarge),
    StaleManifest(Versions),
    UnknownTable,
}

/// A partition that may be read in a round.
pub struct Reader<'r, 's> {
    state: &'s ReplicaState,
    begun: &'r mut Begun,
}

impl Registration {
    /// Of one ring.
    fn newest(state: &ReplicaState) -> Option<Self> {
        let (epoch, serial) = state.desk.newest()?;
        Some(Self { epoch, serial })
    }
}

impl Round {
    /// Before anything of the partition is read.
    pub fn at<'r, 's>(&'r mut self, state: &'s ReplicaState) -> Reader<'r, 's> {
        let begun = self.partitions.entry(state.id).or_insert_with(|| Begun {
            term: state.serving_term.load(Ordering::Acquire),
            registration: None,
        });
        Reader { state, begun }
    }

    /// What the registered answers of a partition are kept with: taken when the first of them was read.
    pub fn registration(&self, state: &ReplicaState) -> Option<Registration> {
        let taken = self.partitions.get(&state.id)?.registration?;
        if mutant::active(Mutant::SerialAfterBit) {
            return Registration::newest(state);
        }
        if mutant::active(Mutant::EpochAndSerialApart) {
            return Some(Registration { serial: taken.serial, ..Registration::newest(state)? });
        }
        Some(taken)
    }

    /// After everything was read: why what was read of this partition does not count; None: it does.
    pub fn lapsed(&self, state: &ReplicaState) -> Option<Lapsed> {
        let term = self.partitions.get(&state.id).map_or(0, |begun| begun.term);
        if term != 0 && state.serving() == Some(term) {
            return None;
        }
        let leader = state.leader();
        Some(if leader.node == state.node { Lapsed::NotReady } else { Lapsed::NotLeader(leader) })
    }
}

impl Reader<'_, '_> {
    /// The newest published version of a key in everything that the SSTables of version `searched` do not hold.
    pub fn read(&self, table: TableId, key: &Bytes, searched: ManifestVersion) -> Answered {
        self.read_at(self.state.published.load(), table, key, searched)
    }

    fn read_at(&self, at: Position, table: TableId, key: &Bytes, searched: ManifestVersion) -> Answered {
        let answer = match self.state.view.load().read(table, key, searched, at.seq) {
            ReadAnswer::Found(version) if is_expired(version.marks.expires_at(), at.tick) => {
                ReadAnswer::Found(Version { value: None, marks: Marks::NONE, ..version })
            }
            answer => answer,
        };
        Answered { answer, tick: at.tick }
    }

    /// The same, for a p-node that would like to keep the answer.
    pub fn read_registered(&mut self, table: TableId, key: &Bytes, searched: ManifestVersion) -> Registered {
        let state = self.state;
        let registration = self.begun.registration.or_else(|| Registration::newest(state));
        self.begun.registration = registration;
        let slots = state.slots.load();
        let formed = slots.register(registration_slot(table, filter_hash(key), slots.count()));
        let at = state.published.load();
        let published = formed <= at.seq || mutant::active(Mutant::SlotSeqNotCompared);
        let answered = self.read_at(at, table, key, searched);
        let has_said = matches!(answered.answer, ReadAnswer::Found(_) | ReadAnswer::NoEntry);
        Registered { may_be_kept: has_said && published && registration.is_some(), answered }
    }

    /// The same for a range, and the position as of which it is: what has expired by its tick is for the reader to tell.
    pub fn page(&self, table: TableId, range: &Range, searched: ManifestVersion) -> (Position, PageAnswer) {
        let at = self.state.published.load();
        let view = self.state.view.load();
        let Some(memtables) = view.tables.get(&table).map(|t| t.memtables_for(searched)) else {
            return (at, PageAnswer::UnknownTable);
        };
        let Some(memtables) = memtables else {
            return (at, PageAnswer::StaleManifest(view.versions.clone()));
        };
        let memtables: Vec<_> = memtables.cloned().collect();
        match page::merge(&memtables, range, at.seq) {
            Ok(page) => (at, PageAnswer::Page(page)),
            Err(too_large) => (at, PageAnswer::TooLarge(too_large)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sextant_common::manifest::Manifest;
    use sextant_environment::config::LeaseMode;

    use super::*;
    use crate::lease::ring::Run;
    use crate::lease::slots::Slots;
    use crate::partition::view::{ReadView, TableView};

    #[test]
    fn what_was_read_counts_while_the_term_that_it_was_read_in_is_served() {
        let state = ReplicaState::serving_for_tests(3);
        let mut round = Round::default();
        round.at(&state);
        assert_eq!(round.lapsed(&state), None);
        state.serving_term.store(0, Ordering::Release);
        assert_eq!(round.lapsed(&state), Some(Lapsed::NotReady));
        let successor = Leader { partition: state.id, term: 4, node: 2 };
        state.set_leader(successor.term, successor.node);
        assert_eq!(round.lapsed(&state), Some(Lapsed::NotLeader(successor)));
    }

    fn at(seq: u64) -> Position {
        Position { seq, tick: Tick(0) }
    }

    /// The slot of a key.
    fn slot(state: &ReplicaState, key: &Bytes) -> usize {
        registration_slot(TableId(1), filter_hash(key), state.slots.load().count())
    }

    fn with_slots(state: &ReplicaState) {
        let epoch = Epoch { term: 3, incarnation: 1 };
        state.slots.store(Slots::new(64, 10).into());
        state.desk.open(epoch, LeaseMode::Ack, 0);
        let empty =
            TableView { memtables: Vec::new(), grace: Vec::new(), dropped_version: ManifestVersion(0) };
        let versions = Arc::new(Manifest::empty(state.id)).into();
        let view = ReadView { tables: [(TableId(1), empty)].into(), ..ReadView::empty(versions) };
        state.view.store(Arc::new(view));
    }

    #[test]
    fn an_answer_may_be_kept_if_no_write_of_its_slot_is_on_its_way() {
        let (state, key) = (ReplicaState::serving_for_tests(3), Bytes::from_static(b"k"));
        with_slots(&state);
        let read = |round: &mut Round| {
            round.at(&state).read_registered(TableId(1), &key, ManifestVersion(0)).may_be_kept
        };
        state.published.store(at(9));
        assert!(!read(&mut Round::default()), "the log of the terms before is not yet published");
        state.published.store(at(10));
        assert!(read(&mut Round::default()));
        assert!(state.slots.load().write(slot(&state, &key), 11), "the write learns of it");
        assert!(!read(&mut Round::default()), "that write has seen no registration since");
        state.published.store(at(11));
        assert!(read(&mut Round::default()));
    }

    #[test]
    fn answers_are_kept_with_what_the_ring_was_before_the_first_of_them() {
        let (state, key) = (ReplicaState::serving_for_tests(3), Bytes::from_static(b"k"));
        with_slots(&state);
        state.published.store(at(10));
        let mut round = Round::default();
        let mut read = || drop(round.at(&state).read_registered(TableId(1), &key, ManifestVersion(0)));
        read();
        state.desk.push([Run::Invalidated { slots: vec![slot(&state, &key) as u32] }]);
        read();
        let kept_with = Registration { epoch: Epoch { term: 3, incarnation: 1 }, serial: Serial(0) };
        assert_eq!(round.registration(&state), Some(kept_with));
        let mut later = Round::default();
        later.at(&state).read_registered(TableId(1), &key, ManifestVersion(0));
        assert_eq!(later.registration(&state), Some(Registration { serial: Serial(1), ..kept_with }));
    }

    #[test]
    fn what_says_nothing_of_the_key_is_not_kept() {
        let (state, key) = (ReplicaState::serving_for_tests(3), Bytes::from_static(b"k"));
        with_slots(&state);
        state.published.store(at(10));
        let mut round = Round::default();
        let registered = round.at(&state).read_registered(TableId(2), &key, ManifestVersion(0));
        assert_eq!(registered.answered.answer, ReadAnswer::UnknownTable);
        assert!(!registered.may_be_kept);
    }

    #[test]
    fn a_read_that_began_before_the_term_was_served_does_not_count_nor_one_of_the_term_before() {
        let state = ReplicaState::serving_for_tests(3);
        state.serving_term.store(0, Ordering::Release);
        let mut early = Round::default();
        early.at(&state);
        state.serving_term.store(3, Ordering::Release);
        early.at(&state);
        assert_eq!(early.lapsed(&state), Some(Lapsed::NotReady), "the first look counts");
        let mut round = Round::default();
        round.at(&state);
        state.serving_term.store(5, Ordering::Release);
        assert_eq!(round.lapsed(&state), Some(Lapsed::NotReady));
    }
}
