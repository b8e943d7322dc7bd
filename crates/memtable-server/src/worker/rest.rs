//! How often a worker looks around when nothing wakes it: often while something is under way, seldom in a partition at rest, so that a
//! server of many partitions that nobody uses costs next to nothing. Whatever is due at a time of its own (a lease that forbids a
//! publication, a group's turn) wakes the worker then, in either case.

use std::time::Duration;

use sextant_common::ids::{PartitionId, TableId};

use super::leading::Leading;
use super::replica::Replica;
use crate::partition::table::TableState;

/// While something is under way.
const TICK: Duration = Duration::from_millis(20);
/// At rest: the longest that a freeze by age, or the end of a session, can be late.
const TICK_AT_REST: Duration = Duration::from_millis(500);
/// How often upkeep runs: it walks over all tables.
const UPKEEP: Duration = Duration::from_millis(5);
/// So long after anything happened a worker looks around as often as if it still did.
const RESTLESS_NS: u64 = 200_000_000;

#[derive(Debug, Default)]
pub(super) struct Rest {
    /// When something last happened (grantor's clock).
    stirred_ns: u64,
    next_upkeep_ns: u64,
    rests: bool,
}

impl Rest {
    /// Something happened.
    pub fn stir(&mut self, now_ns: u64) {
        self.stirred_ns = now_ns;
        self.rests = false;
        self.next_upkeep_ns = self.next_upkeep_ns.min(now_ns + UPKEEP.as_nanos() as u64);
    }

    /// Whether the worker looks around seldom.
    pub fn rests(&self) -> bool {
        self.rests
    }

    /// Upkeep is due at the next turn.
    pub fn hurry(&mut self) {
        self.next_upkeep_ns = 0;
    }

    /// Whether upkeep is due; it is taken for done. `busy`: something is under way.
    pub fn takes_upkeep(&mut self, now_ns: u64, busy: impl FnOnce() -> bool) -> bool {
        if now_ns < self.next_upkeep_ns {
            return false;
        }
        self.rests = now_ns.saturating_sub(self.stirred_ns) > RESTLESS_NS && !busy();
        let pause = if self.rests { TICK_AT_REST } else { UPKEEP };
        self.next_upkeep_ns = now_ns + pause.as_nanos() as u64;
        true
    }

    /// How long the worker may sleep.
    pub fn wake(&self, now_ns: u64) -> Duration {
        let upkeep = Duration::from_nanos(self.next_upkeep_ns.saturating_sub(now_ns));
        let tick = if self.rests { TICK_AT_REST } else { TICK };
        tick.min(upkeep.max(Duration::from_millis(1)))
    }
}

/// How long a table rests after what came last. Each of a cluster that has just been started has a time of its own, up to twice as late:
/// or all would rest at once.
pub(super) fn table_rests_ns(after_ns: u64, partition: PartitionId, table: TableId) -> u64 {
    let place = (u64::from(partition.0) * 389 + u64::from(table.0) * 71) % 1000;
    after_ns.saturating_add(after_ns / 1000 * place)
}

/// Whether time alone will bring something to do.
pub(super) fn is_busy(replica: &Replica, leading: Option<&Leading>) -> bool {
    let unfinished = |t: &TableState| !t.frozen.is_empty() || !t.grace.is_empty();
    !replica.queue.is_empty()
        || replica.log_takes_groups().is_err()
        || replica.partition.tables().any(|(_, table)| unfinished(table))
        || leading.is_some_and(|leading| leading.is_busy() || expires_soon(replica))
}

/// Before the worker would look again.
fn expires_soon(replica: &Replica) -> bool {
    let wall_ms = replica.shared.env.clock.wall_guess_ns() / 1_000_000;
    let soon_ms = wall_ms.saturating_add(2 * TICK_AT_REST.as_millis() as u64);
    replica.partition.next_expiry().is_some_and(|next| next.0 <= soon_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_partition_where_nothing_happens_is_looked_at_seldom_and_at_once_when_something_does() {
        let mut rest = Rest::default();
        rest.stir(1000 * MS);
        assert!(rest.takes_upkeep(1000 * MS, || false));
        assert!(!rest.takes_upkeep(1004 * MS, || false));
        assert_eq!(rest.wake(1001 * MS), Duration::from_millis(4));
        assert!(rest.takes_upkeep(1005 * MS, || false), "it still might go on");
        assert!(rest.takes_upkeep(1300 * MS, || true));
        assert_eq!(rest.wake(1300 * MS), UPKEEP, "a flush is under way");
        assert!(rest.takes_upkeep(1305 * MS, || false));
        assert_eq!(rest.wake(1305 * MS), TICK_AT_REST);
        rest.stir(1310 * MS);
        assert_eq!(rest.wake(1310 * MS), UPKEEP);
        rest.hurry();
        assert!(rest.takes_upkeep(1311 * MS, || false));
    }
}
