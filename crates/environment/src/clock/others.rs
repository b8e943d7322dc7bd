//! Whether other servers' wall clocks agree with this one's: told in the log when that changes.
//!
//! Leases do not rest on it. But records with a time to live end by the clocks of memtable servers, and certificates by everybody's;
//! which of two clocks is wrong, nobody knows.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::env::Party;

/// Clocks that somebody sets are never as far apart.
const APART_NS: u64 = 10_000_000_000;
/// Servers have fewer peers.
const PEERS_MAX: usize = 1024;

/// What was last heard of them. Clones are of the same one.
#[derive(Clone, Debug, Default)]
pub struct OtherClocks {
    apart: Arc<Mutex<BTreeMap<Party, bool>>>,
    count: Gauge,
}

impl OtherClocks {
    pub fn register(registry: &mut Registry) -> Self {
        let clocks = Self::default();
        registry.register(
            "clocks_apart",
            "Servers that this one hears of whose wall clock is more than 10 s away from its own",
            clocks.count.clone(),
        );
        clocks
    }

    /// `from` said that it is `theirs_ns` (nanoseconds since 1970; 0: it does not say), when it was `ours_ns` here, give or take
    /// `uncertain_ns`.
    pub fn heard(&self, from: Party, theirs_ns: u64, ours_ns: u64, uncertain_ns: u64) {
        if theirs_ns == 0 {
            return;
        }
        let away_ns = theirs_ns.abs_diff(ours_ns).saturating_sub(uncertain_ns);
        let is_apart = away_ns > APART_NS;
        let mut apart = self.apart.lock();
        if apart.len() == PEERS_MAX && !apart.contains_key(&from) {
            return;
        }
        if apart.insert(from, is_apart).unwrap_or(false) == is_apart {
            return;
        }
        self.count.set(apart.values().filter(|is_apart| **is_apart).count() as i64);
        let side = if theirs_ns > ours_ns { "ahead of" } else { "behind" };
        match is_apart {
            true => tracing::warn!(
                "the clock of {from} is {} {side} this server's: one of them is wrong (chronyd, ntpd or systemd-timesyncd sets it)",
                shown(away_ns)
            ),
            false => tracing::info!("the clock of {from} agrees with this server's again"),
        }
    }
}

fn shown(ns: u64) -> String {
    match ns / 1_000_000_000 {
        seconds if seconds < 600 => format!("{seconds} s"),
        seconds if seconds < 36_000 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use sextant_common::ids::NodeId;

    use super::*;

    #[test]
    fn a_clock_that_is_hours_off_counts_until_it_agrees_again() {
        let clocks = OtherClocks::default();
        let [one, two] = [1, 2].map(|id| Party::memtable(NodeId(id)));
        let (now, second) = (1_000_000_000_000_000_000, 1_000_000_000);
        let apart = || clocks.count.get();
        clocks.heard(one, now + second, now, 0);
        clocks.heard(one, 0, now, 0);
        assert_eq!(apart(), 0, "a second is nothing; who does not say is not judged");
        clocks.heard(one, now + 3 * 3600 * second, now, 0);
        clocks.heard(one, now + 3 * 3600 * second, now, 0);
        assert_eq!(apart(), 1);
        clocks.heard(two, now - 12 * second, now, 3 * second);
        assert_eq!(apart(), 1, "it may be nearer");
        clocks.heard(two, 1, now, 0);
        assert_eq!(apart(), 2);
        clocks.heard(one, now, now, 0);
        assert_eq!(apart(), 1);
        assert_eq!([9, 700, 40_000].map(|s| shown(s * second)), ["9 s", "11 min", "11 h"]);
    }
}
