//! Copies of the memtables' filters (B_m): one per table and memtable generation.

use std::sync::Arc;

use parking_lot::RwLock;
use sextant_common::expiry::Tick;
use sextant_common::filter::LayeredBloom;
use sextant_common::ids::{Epoch, Generation, Serial, TableId};
use sextant_common::key::registration_slot;
use sextant_rules::mutant::{self, Mutant};

use super::slots::{Registration, SlotSerials};

/// How many hashes are inserted under one hold of the write lock: some tens of microseconds, so that readers hardly wait.
const INSERTS_PER_LOCK: usize = 512;

/// The copy of one filter. Only ever gains bits.
#[derive(Default)]
pub(crate) struct FilterCopy {
    bits: RwLock<LayeredBloom>,
}

impl FilterCopy {
    pub fn new(bits: LayeredBloom) -> Self {
        Self { bits: RwLock::new(bits) }
    }

    pub fn contains(&self, hash: u64) -> bool {
        self.bits.read().contains(hash)
    }

    pub fn insert_all(&self, mut hashes: impl Iterator<Item = u64>) {
        loop {
            let mut bits = self.bits.write();
            for _ in 0..INSERTS_PER_LOCK {
                match hashes.next() {
                    Some(hash) => bits.insert(hash),
                    None => return,
                }
            }
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.bits.read().memory_bytes()
    }
}

/// Whether an answer that was kept in `kept.epoch`, when the ring had come to `kept.serial`, is what a read would be told now: its slot's
/// last invalidation, in the epoch of the filters, is no newer.
#[inline]
pub fn is_usable(kept: Registration, epoch: Epoch, over_at: Serial) -> bool {
    let of_this_epoch = kept.epoch == epoch || mutant::active(Mutant::KeptOverEpoch);
    of_this_epoch && kept.serial >= over_at
}

#[derive(Clone)]
pub(crate) struct TableFilters {
    pub table: TableId,
    /// By rising generation: the last one is the active memtable's.
    pub generations: Vec<(Generation, Arc<FilterCopy>)>,
}

/// All filters of a partition's memtables as of one serial of one epoch (later bits may have been added since).
#[derive(Clone)]
pub(crate) struct FilterCopies {
    pub epoch: Epoch,
    /// Everything up to this serial is in the filters.
    pub serial: Serial,
    /// The incarnation of the server that keeps the bf-log; None until its first reply after whole filters.
    pub boot: Option<u64>,
    /// The newest tick that an entry up to `serial` has announced: while a lease of this serial is usable, no later one is published.
    pub announced: Tick,
    /// What was kept of reads that were registered.
    pub slots: Arc<SlotSerials>,
    /// By rising table. Shared between views as long as no filter comes or goes.
    tables: Arc<Vec<TableFilters>>,
}

impl FilterCopies {
    /// `slots`: that the leader has in this epoch.
    pub fn new(
        epoch: Epoch,
        serial: Serial,
        slots: usize,
        filters: impl IntoIterator<Item = (TableId, Generation, LayeredBloom)>,
    ) -> Self {
        let slots = Arc::new(SlotSerials::new(slots, serial));
        let announced = Tick::default();
        let mut copies = Self { epoch, serial, boot: None, announced, slots, tables: Arc::default() };
        for (table, generation, bits) in filters {
            copies.put(table, generation, Arc::new(FilterCopy::new(bits)));
        }
        copies
    }

    /// Whether any memtable's filter of the table contains the hash.
    #[inline]
    pub fn contains(&self, table: TableId, hash: u64) -> bool {
        let Ok(at) = self.tables.binary_search_by_key(&table, |t| t.table) else { return false };
        self.tables[at].generations.iter().rev().any(|(_, copy)| copy.contains(hash))
    }

    /// Whether what was kept of a key with this registration may be used, under a lease of these filters.
    #[inline]
    pub fn may_use(&self, kept: Registration, table: TableId, hash: u64) -> bool {
        let slots = self.slots.len();
        if slots == 0 {
            return false;
        }
        let over_at = self.slots.over_at(registration_slot(table, hash, slots));
        over_at.is_some_and(|over_at| is_usable(kept, self.epoch, over_at))
    }

    pub fn filter(&self, table: TableId, generation: Generation) -> Option<&Arc<FilterCopy>> {
        let at = self.tables.binary_search_by_key(&table, |t| t.table).ok()?;
        let generations = &self.tables[at].generations;
        generations.iter().find(|(g, _)| *g == generation).map(|(_, copy)| copy)
    }

    /// The filter of a memtable, an empty new one if there is none yet.
    pub fn filter_or_new(&mut self, table: TableId, generation: Generation) -> Arc<FilterCopy> {
        if let Some(copy) = self.filter(table, generation) {
            return Arc::clone(copy);
        }
        let copy = Arc::new(FilterCopy::default());
        self.put(table, generation, Arc::clone(&copy));
        copy
    }

    /// Drops the filters for which `flushed` is true: what their memtables held is in SSTables.
    pub fn drop_flushed(&mut self, flushed: impl Fn(TableId, Generation) -> bool) {
        if self.tables.iter().any(|t| t.generations.iter().any(|(g, _)| flushed(t.table, *g))) {
            for table in Arc::make_mut(&mut self.tables) {
                table.generations.retain(|(g, _)| !flushed(table.table, *g));
            }
        }
    }

    pub fn memory_bytes(&self) -> usize {
        let filters: usize =
            self.tables.iter().flat_map(|t| &t.generations).map(|(_, copy)| copy.memory_bytes()).sum();
        filters + self.slots.len() * size_of::<u64>()
    }

    fn put(&mut self, table: TableId, generation: Generation, copy: Arc<FilterCopy>) {
        let tables = Arc::make_mut(&mut self.tables);
        let at = tables.binary_search_by_key(&table, |t| t.table).unwrap_or_else(|at| {
            tables.insert(at, TableFilters { table, generations: Vec::new() });
            at
        });
        let generations = &mut tables[at].generations;
        match generations.binary_search_by_key(&generation, |(g, _)| *g) {
            Ok(at) => generations[at].1 = copy,
            Err(at) => generations.insert(at, (generation, copy)),
        }
    }
}
