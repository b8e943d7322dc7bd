//! The p-nodes that a client knows, and which of them is asked.
//!
//! The first address is preferred: staying with one p-node keeps its caches warm. A p-node that failed is put aside for
//! a pause that doubles with each failure in a row; if all are put aside, the one whose pause ends first is asked, so
//! that a client never gives up by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use sextant_common::error::{Error, Result};
use sextant_environment::config::check_reached_here;
use sextant_environment::env::Network;

use crate::wire::{Over, Says, Wire};

/// First pause of a p-node that failed.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause: how late a p-node that came back is noticed, and how often a request is risked on a dead one.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// More p-nodes than any client needs to fail over between.
const ENDPOINTS_MAX: usize = 256;

pub(crate) struct Endpoints {
    list: Vec<Endpoint>,
    says: Says,
}

struct Endpoint {
    addr: String,
    calls: Channels,
    streams: Channels,
    health: Health,
}

/// Used in turn. They connect when they are first used.
struct Channels {
    list: Vec<Wire>,
    next: AtomicUsize,
}

impl Channels {
    fn new(list: Vec<Wire>) -> Self {
        Self { list, next: AtomicUsize::new(0) }
    }

    fn next(&self) -> Wire {
        match &self.list[..] {
            [only] => only.clone(),
            several => several[self.next.fetch_add(1, Relaxed) % several.len()].clone(),
        }
    }
}

#[derive(Default)]
struct Health {
    failures_in_a_row: AtomicU32,
    paused_until_ns: AtomicU64,
}

impl Endpoints {
    pub fn new(net: &Arc<dyn Network>, addrs: &[String], connections: usize, says: Says) -> Result<Self> {
        if addrs.is_empty() || addrs.len() > ENDPOINTS_MAX {
            return Err(Error::invalid(format!("1 to {ENDPOINTS_MAX} p-node addresses are needed")));
        }
        let list = addrs
            .iter()
            .map(|addr| {
                check_reached_here("bad address", addr)?;
                let channels =
                    |over: Over| Channels::new((0..connections).map(|_| over(&says, net, addr)).collect());
                Ok(Endpoint {
                    addr: addr.clone(),
                    calls: channels(Says::over),
                    streams: channels(Says::streams_over),
                    health: Health::default(),
                })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { list, says })
    }

    /// Who the client is, for connections elsewhere.
    pub fn says(&self) -> &Says {
        &self.says
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Which p-node to ask at `now_ns`; after a failure of `failed`, the search starts behind it.
    pub fn pick(&self, now_ns: u64, failed: Option<usize>) -> usize {
        pick(self.list.len(), now_ns, failed, |i| self.list[i].health.paused_until_ns.load(Relaxed))
    }

    pub fn channel(&self, at: usize) -> Wire {
        self.list[at].calls.next()
    }

    /// For answers that whoever asked may leave unread.
    pub fn stream_channel(&self, at: usize) -> Wire {
        self.list[at].streams.next()
    }

    /// As it was given: `host:port`, or `unix:` and a path.
    pub fn addr(&self, at: usize) -> &str {
        &self.list[at].addr
    }

    pub fn succeeded(&self, at: usize) {
        let health = &self.list[at].health;
        // Read first: the common case writes nothing to a shared cache line.
        if health.failures_in_a_row.load(Relaxed) != 0 {
            health.failures_in_a_row.store(0, Relaxed);
            health.paused_until_ns.store(0, Relaxed);
        }
    }

    pub fn failed(&self, at: usize, now_ns: u64) {
        let health = &self.list[at].health;
        let before = health.failures_in_a_row.fetch_add(1, Relaxed);
        health.paused_until_ns.store(now_ns + pause(before).as_nanos() as u64, Relaxed);
    }
}

/// The pause after so many earlier failures in a row.
fn pause(earlier_failures: u32) -> Duration {
    PAUSE_MIN.saturating_mul(1 << earlier_failures.min(16)).min(PAUSE_MAX)
}

fn pick(count: usize, now_ns: u64, failed: Option<usize>, paused_until_ns: impl Fn(usize) -> u64) -> usize {
    let first = failed.map_or(0, |at| at + 1);
    let order = || (0..count).map(|i| (first + i) % count);
    order()
        .find(|at| paused_until_ns(*at) <= now_ns)
        .or_else(|| order().min_by_key(|at| paused_until_ns(*at)))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_healthy_one_is_preferred() {
        let pauses = [500, 0, 0];
        assert_eq!(pick(3, 100, None, |i| pauses[i]), 1);
        assert_eq!(pick(3, 500, None, |i| pauses[i]), 0, "its pause is over");
    }

    #[test]
    fn a_retry_goes_to_another() {
        assert_eq!(pick(3, 0, Some(0), |_| 0), 1);
        assert_eq!(pick(3, 0, Some(2), |_| 0), 0);
        assert_eq!(pick(1, 0, Some(0), |_| 0), 0, "there is no other");
    }

    #[test]
    fn if_all_are_put_aside_the_one_whose_pause_ends_first_is_asked() {
        let pauses = [900, 700, 800];
        assert_eq!(pick(3, 100, None, |i| pauses[i]), 1);
    }

    #[test]
    fn pauses_double_up_to_a_bound() {
        assert_eq!(pause(0), PAUSE_MIN);
        assert_eq!(pause(1), PAUSE_MIN * 2);
        assert_eq!(pause(u32::MAX), PAUSE_MAX);
    }
}
