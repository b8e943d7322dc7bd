//! Reads of memtables: from which state a leader answers, and when it may.
//!
//! Owns two orders. *State*: the published seq is loaded before the view, so that everything published by then is in its memtables, or
//! was flushed, and then the version that the reader names tells. *Right*: a read begins with the term that is served ([`Round::at`]),
//! and the leader lease is asked last ([`Round::lapsed`]), so that it held when the state was read.

pub mod page;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use sextant_common::ids::{ManifestVersion, PartitionId, TableId};
use sextant_common::manifest::Manifest;

use crate::partition::view::ReadAnswer;
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
    /// The term that each partition served before it was read.
    terms: HashMap<PartitionId, u64>,
}

/// What a page of a scan is made of.
pub enum PageAnswer {
    Page(Page),
    TooLarge(TooLarge),
    StaleManifest(Arc<Manifest>),
    UnknownTable,
}

/// A partition that may be read in a round.
pub struct Reader<'s> {
    state: &'s ReplicaState,
}

impl Round {
    /// Before anything of the partition is read.
    pub fn at<'s>(&mut self, state: &'s ReplicaState) -> Reader<'s> {
        self.terms.entry(state.id).or_insert_with(|| state.serving_term.load(Ordering::Acquire));
        Reader { state }
    }

    /// After everything was read: why what was read of this partition does not count; None: it does.
    pub fn lapsed(&self, state: &ReplicaState) -> Option<Lapsed> {
        let term = self.terms.get(&state.id).copied().unwrap_or(0);
        if term != 0 && state.serving() == Some(term) {
            return None;
        }
        let leader = state.leader();
        Some(if leader.node == state.node { Lapsed::NotReady } else { Lapsed::NotLeader(leader) })
    }
}

impl Reader<'_> {
    /// The newest published version of a key in everything that the SSTables of version `searched` do not hold.
    pub fn read(&self, table: TableId, key: &Bytes, searched: ManifestVersion) -> ReadAnswer {
        let at = self.state.published_seq.load(Ordering::Acquire);
        self.state.view.load().read(table, key, searched, at)
    }

    /// The same for a range, and the seq as of which it is.
    pub fn page(&self, table: TableId, range: &Range, searched: ManifestVersion) -> (u64, PageAnswer) {
        let at = self.state.published_seq.load(Ordering::Acquire);
        let view = self.state.view.load();
        let Some(memtables) = view.tables.get(&table).map(|t| t.memtables_for(searched)) else {
            return (at, PageAnswer::UnknownTable);
        };
        let Some(memtables) = memtables else {
            return (at, PageAnswer::StaleManifest(view.manifest.clone()));
        };
        let memtables: Vec<_> = memtables.cloned().collect();
        match page::merge(&memtables, range, at) {
            Ok(page) => (at, PageAnswer::Page(page)),
            Err(too_large) => (at, PageAnswer::TooLarge(too_large)),
        }
    }
}

#[cfg(test)]
mod tests {
    use sextant_environment::Env;

    use super::*;

    /// A replica that serves `term`, under a lease of its own.
    fn serving(term: u64) -> Arc<ReplicaState> {
        let state = ReplicaState::for_tests(&Env::real());
        state.set_leader(term, state.node);
        state.lease.begin(term, state.node, vec![vec![state.node]]);
        state.lease.set_terms(crate::leadership::Terms {
            lease_ns: 60_000_000_000,
            abstention_ns: 60_000_000_000,
            configured_at: 0,
        });
        state.lease.renew_if_alone(state.env.clock.holder_ns());
        state.serving_term.store(term, Ordering::Release);
        state
    }

    #[test]
    fn what_was_read_counts_while_the_term_that_it_was_read_in_is_served() {
        let state = serving(3);
        let mut round = Round::default();
        round.at(&state);
        assert_eq!(round.lapsed(&state), None);
        state.serving_term.store(0, Ordering::Release);
        assert_eq!(round.lapsed(&state), Some(Lapsed::NotReady));
        let successor = Leader { partition: state.id, term: 4, node: 2 };
        state.set_leader(successor.term, successor.node);
        assert_eq!(round.lapsed(&state), Some(Lapsed::NotLeader(successor)));
    }

    #[test]
    fn a_read_that_began_before_the_term_was_served_does_not_count_nor_one_of_the_term_before() {
        let state = serving(3);
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
