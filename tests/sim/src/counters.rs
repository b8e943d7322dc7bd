//! The servers' own counters, of all their lives, and what they come to.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sextant_memtable_server::Metrics as MemtableMetrics;
use sextant_pnode::{CacheEvent, KeptEvent, PNodeMetrics, ReadMode, ReadPath, WrongTurn};
use sextant_sstable_server::metrics::Metrics as SstMetrics;

#[derive(Default)]
pub struct Counters {
    pub memtable: Mutex<Vec<Arc<MemtableMetrics>>>,
    pub sstable: Mutex<Vec<SstMetrics>>,
    pub pnode: Mutex<Vec<Arc<PNodeMetrics>>>,
}

impl Counters {
    /// By all memtable servers, in all their lives.
    pub fn snapshots_refused(&self) -> u64 {
        self.memtable.lock().iter().map(|m| m.snapshots_refused.get()).sum()
    }

    /// Sums over all servers and all their lives.
    pub fn sums(&self) -> BTreeMap<&'static str, u64> {
        let memtable = self.memtable.lock();
        let m = |count: fn(&MemtableMetrics) -> u64| memtable.iter().map(|m| count(m)).sum::<u64>();
        let sstable = self.sstable.lock();
        let s = |count: fn(&SstMetrics) -> u64| sstable.iter().map(count).sum::<u64>();
        let pnode = self.pnode.lock();
        let p = |count: fn(&PNodeMetrics) -> u64| pnode.iter().map(|p| count(p)).sum::<u64>();
        BTreeMap::from([
            ("memtable_reads", m(|m| m.reads.get())),
            ("stale_reads", m(|m| m.stale_reads.get())),
            ("stale_writes", m(|m| m.stale_writes.get())),
            ("overloaded", m(|m| m.overloaded.get())),
            ("refused_proposals", m(|m| m.refused_proposals.get())),
            ("leases_granted", m(|m| m.leases.get())),
            ("whole_filters", m(|m| m.whole_filters.get())),
            ("ticks", m(|m| m.ticks.get())),
            ("elections", m(|m| m.elections_won.get())),
            ("truncations", m(|m| m.truncations.get())),
            ("flushes", m(|m| m.flushes.get())),
            ("flush_failures", m(|m| m.flush_failures.get())),
            ("compactions", m(|m| m.compactions.get())),
            ("compaction_failures", m(|m| m.compaction_failures.get())),
            ("snapshots_installed", m(|m| m.snapshots_installed.get())),
            ("snapshots_refused", m(|m| m.snapshots_refused.get())),
            ("lost_members", m(|m| m.lost_members.get())),
            ("votes_dropped", m(|m| m.votes_dropped.get())),
            ("handovers", m(|m| m.handovers.get())),
            ("tables_moved", m(|m| m.tables_moved.get())),
            ("tables_released", m(|m| m.tables_released.get())),
            ("tables_ingested", s(|s| s.ingest.done())),
            ("tables_copied", s(|s| s.copy.done())),
            ("tables_compacted", s(|s| s.compact.done())),
            ("tables_deleted", s(|s| s.deleted.get())),
            ("sst_corrupt_reads", s(|s| s.corrupt.get())),
            ("sst_io_errors", s(|s| s.io_errors.get())),
            ("scrub_failures", s(|s| s.scrub_failures.get())),
            ("registered_reads", m(|m| m.registered_reads.get())),
            ("registrations_refused", m(|m| m.registrations_refused.get())),
            ("invalidations", m(|m| m.invalidations.get())),
            ("kept_reads", p(|p| p.reads(ReadMode::Pda, ReadPath::Kept))),
            ("kept_over", p(|p| p.kept(KeptEvent::Over))),
            ("cache_reads", p(|p| p.reads(ReadMode::Pda, ReadPath::Cache))),
            ("sstable_only_reads", p(|p| p.reads(ReadMode::Pda, ReadPath::Sstable))),
            ("reads_of_nobody", p(|p| p.reads(ReadMode::Pda, ReadPath::Nobody))),
            ("memtable_only_reads", p(|p| p.reads(ReadMode::Pda, ReadPath::Memtable))),
            ("reads_of_both", p(|p| p.reads(ReadMode::Pda, ReadPath::Both))),
            ("scan_pages_without_leader", p(PNodeMetrics::scan_pages_without_leader)),
            ("scan_tables_passed_over", p(|p| p.scan_tables().1)),
            ("no_lease_reads", p(PNodeMetrics::no_lease_reads)),
            ("expired_lease_reads", p(PNodeMetrics::expired_lease_reads)),
            ("clock_contradictions", p(|p| p.clock_contradictions().0)),
            ("wall_clock_contradictions", p(|p| p.clock_contradictions().1)),
            ("tombstone_turns", p(|p| p.wrong_turns(WrongTurn::Tombstone))),
            ("stale_turns", p(|p| p.wrong_turns(WrongTurn::StaleManifest))),
            ("gone_turns", p(|p| p.wrong_turns(WrongTurn::TableGone))),
            ("cache_carried", p(|p| p.cache(CacheEvent::Carried))),
            ("write_retries", p(PNodeMetrics::write_retries)),
            ("swept_elements", p(PNodeMetrics::swept_elements)),
        ])
    }
}
