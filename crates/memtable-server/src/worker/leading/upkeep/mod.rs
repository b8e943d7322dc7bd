//! What a leader starts by itself: freezes, flushes, compactions. Which are due is decided in the parts, purely; here they are
//! proposed or handed to [`Background`](crate::flush::Background), and what comes of them becomes commands.

mod choice;
mod columns;
mod compactions;
mod flushes;
mod work;

use std::collections::HashSet;

use sextant_common::ids::TableId;

use compactions::{Compactions, Standing};
use flushes::Flushes;
pub(super) use flushes::generations;

use crate::leadership::leadership_changed;

/// After a failed flush or compaction, how long until the next attempt.
const RETRY_NS: u64 = 500_000_000;

#[derive(Default)]
pub(in crate::worker) struct Upkeep {
    /// Freezes that are proposed, or about to be.
    freezing: HashSet<TableId>,
    flushes: Flushes,
    compactions: Compactions,
    /// What the server's log had written when an empty memtable was frozen on demand.
    frozen_at_rest_bytes: u64,
}

impl Upkeep {
    /// Of the last flush of each table, if it failed.
    pub fn flush_error(&self, table: TableId) -> Option<&str> {
        self.flushes.errors.get(&table).map(String::as_str)
    }

    pub fn flush_errors(&self) -> impl Iterator<Item = (TableId, &str)> {
        self.flushes.errors.iter().map(|(table, error)| (*table, error.as_str()))
    }

    pub fn is_freezing(&self, table: TableId) -> bool {
        self.freezing.contains(&table)
    }

    /// The table is gone.
    pub fn forget(&mut self, table: TableId) {
        self.freezing.remove(&table);
        self.flushes.forget(table);
        self.compactions.forget(table);
    }

    /// The table's memtable was frozen.
    pub fn frozen(&mut self, table: TableId) {
        self.freezing.remove(&table);
    }

    /// What was proposed may have come to nothing: freezes are due again.
    pub fn freezes_are_due_again(&mut self) {
        self.freezing.clear();
    }

    pub fn is_busy(&self) -> bool {
        !self.freezing.is_empty() || !self.flushes.under_way.is_empty() || !self.compactions.is_idle()
    }

    /// Of all tables of the partition.
    pub fn standing(&self) -> Standing {
        self.compactions.standing()
    }

    /// Leadership ends.
    pub fn end(&mut self) {
        self.compactions.end_all(&Err(leadership_changed()));
    }
}
