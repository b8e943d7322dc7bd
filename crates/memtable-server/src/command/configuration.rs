//! A partition's replicated configuration: what its replicas must agree on for leases to be safe, and for what the leader
//! admits to fit everywhere (design, sections 7 and 10).
//!
//! The configuration file is only its seed: the first leader of a partition writes it to the log. Later changes are entries
//! too, each with the next revision; they take effect when they are committed.
//!
//! The data are in `common::configuration`; what follows from them is here.
//!
//! Invariant, across changes: **a leader never trusts a lease that a voter might not honour.** Both ends lean to the safe side
//! while a change is in the log and not yet committed: the leader uses the shortest of the lengths, voters abstain for the
//! longest. A longer lease counts only with voters, the leader itself among them, that have the entry durably (a restarted
//! voter remembers nothing else) and were told to abstain for so long. A shorter one is written to the log only after the leader has lived by it for as long
//! as the old one lasts, so that none of the old kind is alive that a restarted voter would not know of.

use std::collections::BTreeSet;
use std::time::Duration;

use sextant_common::error::{Error, Result};
use sextant_environment::clock::CLOCK_DISAGREEMENT_NS;
use sextant_environment::config::LeaseConfig;

pub use sextant_common::configuration::{Configuration, ConfigurationChange};

/// What a memtable server makes of a configuration. (A trait, as the data are everybody's.)
pub trait ConfigurationRules: Sized {
    /// The first revision, from the configuration file.
    fn founding(lease: &LeaseConfig, memory_bytes: u64) -> Self;

    /// The next revision, in which these are left out. None: it is so already.
    fn leaving_out(&self, servers: BTreeSet<u64>) -> Option<Self>;

    /// The next revision, of this format at least. None: it is so already.
    fn raised(&self, format: u32) -> Option<Self>;

    /// The next revision. `heartbeat_ms`: of this server; a lease that heartbeats cannot keep alive is refused.
    fn changed(&self, change: &ConfigurationChange, heartbeat_ms: u64) -> Result<Self>;

    /// Whether its lengths are such as a server would have written: arithmetic on others could overflow.
    fn check(&self) -> Result<()>;

    /// Whether the two ask for the same, whatever their revisions.
    fn same(&self, other: &Self) -> bool;

    fn lease_ns(&self) -> u64;

    /// How long a leader may serve after the send time of a round: the leader lease less a margin for both ends' drift, and for
    /// the threads on which the round's times are taken and asked about.
    fn leader_lease_ns(&self) -> u64;

    /// How long a voter abstains: the leader lease as the slowest clock may count it, and some for a voter that is bound on one
    /// thread and asks on another.
    fn abstention_ns(&self) -> u64;
}

impl ConfigurationRules for Configuration {
    fn founding(lease: &LeaseConfig, memory_bytes: u64) -> Self {
        Self {
            revision: 1,
            mode: lease.mode,
            lease_ms: lease.lease_ms,
            leader_lease_ms: lease.leader_lease_ms,
            drift_ppm: lease.drift_ppm,
            memory_bytes,
            lineage: 0,
            left_out: BTreeSet::new(),
            draining: BTreeSet::new(),
            format: 0,
            format_open: false,
        }
    }

    fn leaving_out(&self, servers: BTreeSet<u64>) -> Option<Self> {
        let next = || Self { revision: self.revision + 1, left_out: servers.clone(), ..self.clone() };
        (self.left_out != servers).then(next)
    }

    fn raised(&self, format: u32) -> Option<Self> {
        let next = || Self {
            revision: self.revision + 1,
            format: self.format.max(format),
            format_open: false,
            ..self.clone()
        };
        (format > self.format || self.format_open).then(next)
    }

    fn changed(&self, change: &ConfigurationChange, heartbeat_ms: u64) -> Result<Self> {
        let next = Self {
            revision: self.revision + 1,
            mode: change.mode.unwrap_or(self.mode),
            lease_ms: change.lease_ms.unwrap_or(self.lease_ms),
            leader_lease_ms: change.leader_lease_ms.unwrap_or(self.leader_lease_ms),
            drift_ppm: change.drift_ppm.unwrap_or(self.drift_ppm),
            memory_bytes: change.memory_bytes.unwrap_or(self.memory_bytes),
            draining: change.draining.clone().unwrap_or_else(|| self.draining.clone()),
            left_out: self.left_out.clone(),
            ..*self
        };
        lease(&next, heartbeat_ms).validate()?;
        // (What is there already may stay.)
        if change.memory_bytes.is_some_and(|bytes| !(MEMORY_BYTES_MIN..=MEMORY_BYTES_MAX).contains(&bytes)) {
            return Err(Error::invalid(format!(
                "memory_bytes: {MEMORY_BYTES_MIN} to {MEMORY_BYTES_MAX} for each partition"
            )));
        }
        Ok(next)
    }

    fn check(&self) -> Result<()> {
        lease(self, 1).validate()
    }

    fn same(&self, other: &Self) -> bool {
        let bare = |c: &Self| Self {
            revision: 0,
            lineage: 0,
            left_out: BTreeSet::new(),
            format: 0,
            format_open: false,
            ..c.clone()
        };
        bare(self) == bare(other)
    }

    fn lease_ns(&self) -> u64 {
        self.lease_ms * 1_000_000
    }

    fn leader_lease_ns(&self) -> u64 {
        let ns = self.leader_lease_ms * 1_000_000;
        ns.saturating_sub(ns * 2 * self.drift_ppm / 1_000_000 + CLOCK_DISAGREEMENT_NS)
    }

    fn abstention_ns(&self) -> u64 {
        let stretched = lease(self, 1).stretched(Duration::from_millis(self.leader_lease_ms));
        stretched.as_nanos() as u64 + CLOCK_DISAGREEMENT_NS
    }
}

fn lease(configuration: &Configuration, heartbeat_ms: u64) -> LeaseConfig {
    LeaseConfig {
        mode: configuration.mode,
        lease_ms: configuration.lease_ms,
        leader_lease_ms: configuration.leader_lease_ms,
        drift_ppm: configuration.drift_ppm,
        heartbeat_ms,
        ..LeaseConfig::default()
    }
}

/// Less than this holds no useful memtable.
const MEMORY_BYTES_MIN: u64 = 64 * 1024;
/// Beyond that somebody mistook the unit.
const MEMORY_BYTES_MAX: u64 = 1 << 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_voter_abstains_longer_than_the_leader_serves_whatever_the_drift() {
        for drift_ppm in [0, 500, 100_000] {
            let c = Configuration { drift_ppm, ..Configuration::founding(&LeaseConfig::default(), 1 << 20) };
            let rho = drift_ppm as f64 / 1e6;
            // The leader's slow clock counts its lease; the voter's fast one its abstention.
            // Both ask on other threads than those that counted: the leader's is behind, the voter's ahead.
            let lease = (c.leader_lease_ns() + CLOCK_DISAGREEMENT_NS) as f64 / (1.0 - rho);
            let abstention = (c.abstention_ns() - CLOCK_DISAGREEMENT_NS) as f64 / (1.0 + rho);
            assert!(lease <= abstention, "{drift_ppm}");
        }
    }

    #[test]
    fn a_format_rises_and_is_nothing_that_other_changes_touch() {
        let first =
            Configuration { format_open: true, ..Configuration::founding(&LeaseConfig::default(), 1 << 20) };
        let settled = first.raised(0).unwrap();
        assert_eq!((settled.revision, settled.format, settled.format_open), (2, 0, false));
        let raised = settled.raised(1).unwrap();
        assert_eq!((raised.revision, raised.format), (3, 1));
        assert_eq!((raised.raised(1), raised.raised(0)), (None, None));
        assert!(raised.same(&first));
        let change = ConfigurationChange { lease_ms: Some(200), ..ConfigurationChange::default() };
        assert_eq!(raised.changed(&change, 60).unwrap().format, 1);
        assert!(first.changed(&change, 60).unwrap().format_open);
    }

    #[test]
    fn a_change_names_what_is_wrong_with_it() {
        let c = Configuration::founding(&LeaseConfig::default(), 1 << 20);
        let next = c
            .changed(&ConfigurationChange { lease_ms: Some(200), ..ConfigurationChange::default() }, 60)
            .unwrap();
        assert_eq!((next.revision, next.lease_ms, next.leader_lease_ms), (2, 200, 400));
        let of_lineage = Configuration { lineage: 7, ..c.clone() };
        assert!(of_lineage.same(&c), "a lineage is nothing that an operator asks for");
        let next_of_lineage = of_lineage
            .changed(&ConfigurationChange { lease_ms: Some(200), ..ConfigurationChange::default() }, 60)
            .unwrap();
        assert_eq!(next_of_lineage, Configuration { lineage: 7, ..next.clone() }, "and it never changes");
        let left_out = c.leaving_out([3].into()).unwrap();
        assert_eq!((left_out.revision, left_out.leaving_out([3].into())), (2, None));
        assert!(left_out.same(&c), "nor are servers that were left out");
        let next_of_left_out = left_out
            .changed(&ConfigurationChange { lease_ms: Some(200), ..ConfigurationChange::default() }, 60)
            .unwrap();
        assert_eq!(next_of_left_out.left_out, [3].into());
        let drained = ConfigurationChange { draining: Some([2].into()), ..ConfigurationChange::default() };
        let drained = c.changed(&drained, 60).unwrap();
        assert!(drained.draining == [2].into() && !drained.same(&c), "which an operator does ask for");
        left_out.check().unwrap();
        assert!(Configuration { leader_lease_ms: u64::MAX, ..c.clone() }.check().is_err());
        assert!(!c.same(&next) && c.same(&Configuration { revision: 9, ..c.clone() }));
        let wrong = |change: ConfigurationChange, word: &str| {
            let e = c.changed(&change, 60).unwrap_err();
            assert!(e.message.contains(word), "{e}");
        };
        wrong(ConfigurationChange { lease_ms: Some(401), ..ConfigurationChange::default() }, "lease_ms");
        wrong(
            ConfigurationChange { leader_lease_ms: Some(100), ..ConfigurationChange::default() },
            "heartbeat_ms",
        );
        for bytes in [1, u64::MAX] {
            let change = ConfigurationChange { memory_bytes: Some(bytes), ..ConfigurationChange::default() };
            wrong(change, "memory_bytes");
        }
        wrong(
            ConfigurationChange { drift_ppm: Some(u64::MAX), ..ConfigurationChange::default() },
            "drift_ppm",
        );
    }
}
