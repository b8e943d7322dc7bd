//! What an archive of the log is told.

use super::replica::Replica;
use crate::replica::KnownLog;

impl Replica {
    /// `leads`: what comes next is formed here, if the lease holds.
    pub(super) fn known_log(&self, leads: bool) -> KnownLog {
        let partition = &self.partition;
        let committed = partition.committed_index();
        // The time first, then the lease. What is formed from now on has this millisecond, or a later one.
        let now_ms = self.shared.env.clock.wall_guess_ns() / 1_000_000;
        let is_all = committed == partition.last().index && leads && self.shared.serving().is_some();
        KnownLog {
            lineage: partition.configuration().map_or(0, |(c, _)| c.lineage),
            committed,
            verdicts: partition.verdicts().clone(),
            manifest: partition.manifest().clone(),
            dropped: partition.dropped().clone(),
            complete_until_ms: if is_all { now_ms.saturating_sub(1) } else { 0 },
            now_ms,
        }
    }
}
