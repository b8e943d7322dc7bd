//! What is known of one partition's log, as its writer sees it: with everything that is queued.
//!
//! Owns the index of the partition's entries, the newest of them in memory, and its vote, committed and purged positions. Does not
//! own the lock around it ([`crate::shared`]), nor who changes it ([`crate::partition`]).

pub(crate) mod index;
mod recent;

use std::io;

use crate::format::checkpoint::{LogMeta, Position};
use crate::types::{Entry, LogId, Vote, log_id};

use index::Index;
use recent::Recent;

pub(crate) struct PartitionState {
    pub index: Index,
    pub recent: Recent,
    pub vote: Option<Vote>,
    pub committed: Option<LogId>,
    /// `committed` has changed and is not queued: it travels with the next record.
    pub committed_is_new: bool,
    pub purged: Option<LogId>,
}

impl PartitionState {
    pub fn new(cache_bytes: u64) -> Self {
        Self {
            index: Index::default(),
            recent: Recent::new(cache_bytes),
            vote: None,
            committed: None,
            committed_is_new: false,
            purged: None,
        }
    }

    pub fn recovered(cache_bytes: u64, meta: &LogMeta, index: Index) -> Self {
        let id = |position: Option<Position>| position.map(|(term, index)| log_id(term, index));
        Self {
            index,
            vote: meta.vote.map(|(term, node, committed)| {
                if committed { Vote::new_committed(term, node) } else { Vote::new(term, node) }
            }),
            committed: id(meta.committed),
            purged: id(meta.purged),
            ..Self::new(cache_bytes)
        }
    }

    pub fn last_log_id(&self) -> Option<LogId> {
        self.index.last().map(|(term, index)| log_id(term, index)).or(self.purged)
    }

    /// Whether it has exactly this entry, or has purged exactly up to it.
    pub fn has(&self, id: LogId) -> bool {
        match self.index.get(id.index) {
            Some(entry) => entry.term == id.leader_id.term,
            None => self.purged == Some(id),
        }
    }

    /// What the log knows to be committed, and what cannot be so if `id`, which the log lacks, is committed: the same place or a
    /// later one, or an earlier one of a higher term.
    pub fn contradicts(&self, id: LogId) -> Option<LogId> {
        let impossible = |known: &LogId| {
            *known != id && (known.index >= id.index || known.leader_id.term > id.leader_id.term)
        };
        self.committed.into_iter().chain(self.purged).find(impossible)
    }

    /// Whether these entries go on where the log ends.
    pub fn check_follows(&self, entries: &[Entry]) -> io::Result<()> {
        let mut last = self.last_log_id().map(|id| id.index);
        for entry in entries {
            let index = entry.log_id.index;
            if last.is_some_and(|last| last.checked_add(1) != Some(index)) {
                let what = format!("append at index {index}: the log ends at {}", last.unwrap_or_default());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
            last = Some(index);
        }
        Ok(())
    }

    /// Gives up cached entries beyond the budget.
    pub fn evict(&mut self) {
        let index = &self.index;
        self.recent.evict(|i| index.get(i).is_none_or(|entry| entry.place.is_some()));
    }
}
