//! A partition's replicated configuration: what its replicas must agree on for leases to be safe, and for what the leader
//! admits to fit everywhere (design, sections 7 and 10).
//!
//! The configuration file is only its seed: the first leader of a partition writes it to the log. Later changes are entries
//! too, each with the next revision; they take effect when they are committed.
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
use sextant_environment::config::{LeaseConfig, LeaseMode};
use sextant_proto::v1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// 1 for the first; each change has the next.
    pub revision: u64,
    pub mode: LeaseMode,
    /// Longest lease of a p-node.
    pub lease_ms: u64,
    pub leader_lease_ms: u64,
    /// Bound on the drift of monotonic clocks, in parts per million.
    pub drift_ppm: u64,
    /// Memory for memtables of this partition that are not yet flushed, in bytes, on every replica.
    pub memory_bytes: u64,
    /// Of the partition's history: random, drawn with the first revision, the same in all that follow. It is in every SSTable, and
    /// who deletes one has to name it. 0: the first revision was written by an older version.
    pub lineage: u64,
    /// Memtable servers that the last choice of voters by an operator left out: a leader lets none of them in by itself, whatever
    /// they ask for and whoever led when they were left out.
    pub left_out: BTreeSet<u64>,
}

/// What an operator wants changed; None: as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub mode: Option<LeaseMode>,
    pub lease_ms: Option<u64>,
    pub leader_lease_ms: Option<u64>,
    pub drift_ppm: Option<u64>,
    pub memory_bytes: Option<u64>,
}

impl Configuration {
    /// The first revision, from the configuration file.
    pub fn founding(lease: &LeaseConfig, memory_bytes: u64) -> Self {
        Self {
            revision: 1,
            mode: lease.mode,
            lease_ms: lease.lease_ms,
            leader_lease_ms: lease.leader_lease_ms,
            drift_ppm: lease.drift_ppm,
            memory_bytes,
            lineage: 0,
            left_out: BTreeSet::new(),
        }
    }

    /// The next revision, in which these are left out. None: it is so already.
    pub fn leaving_out(&self, servers: BTreeSet<u64>) -> Option<Self> {
        let next = || Self { revision: self.revision + 1, left_out: servers.clone(), ..self.clone() };
        (self.left_out != servers).then(next)
    }

    /// The next revision. `heartbeat_ms`: of this server; a lease that heartbeats cannot keep alive is refused.
    pub fn changed(&self, change: &Change, heartbeat_ms: u64) -> Result<Self> {
        let next = Self {
            revision: self.revision + 1,
            mode: change.mode.unwrap_or(self.mode),
            lease_ms: change.lease_ms.unwrap_or(self.lease_ms),
            leader_lease_ms: change.leader_lease_ms.unwrap_or(self.leader_lease_ms),
            drift_ppm: change.drift_ppm.unwrap_or(self.drift_ppm),
            memory_bytes: change.memory_bytes.unwrap_or(self.memory_bytes),
            lineage: self.lineage,
            left_out: self.left_out.clone(),
        };
        next.lease(heartbeat_ms).validate()?;
        if next.memory_bytes < MEMORY_BYTES_MIN {
            return Err(Error::invalid(format!(
                "memory_bytes: at least {MEMORY_BYTES_MIN} for each partition"
            )));
        }
        Ok(next)
    }

    fn lease(&self, heartbeat_ms: u64) -> LeaseConfig {
        LeaseConfig {
            mode: self.mode,
            lease_ms: self.lease_ms,
            leader_lease_ms: self.leader_lease_ms,
            drift_ppm: self.drift_ppm,
            heartbeat_ms,
            ..LeaseConfig::default()
        }
    }

    /// Whether the two ask for the same, whatever their revisions.
    pub fn same(&self, other: &Self) -> bool {
        let bare = |c: &Self| Self { revision: 0, lineage: 0, left_out: BTreeSet::new(), ..c.clone() };
        bare(self) == bare(other)
    }

    pub fn lease_ns(&self) -> u64 {
        self.lease_ms * 1_000_000
    }

    /// How long a leader may serve after the send time of a round: the leader lease less a margin for both ends' drift, and for
    /// the threads on which the round's times are taken and asked about.
    pub fn leader_lease_ns(&self) -> u64 {
        let ns = self.leader_lease_ms * 1_000_000;
        ns.saturating_sub(ns * 2 * self.drift_ppm / 1_000_000 + CLOCK_DISAGREEMENT_NS)
    }

    /// How long a voter abstains: the leader lease as the slowest clock may count it, and some for a voter that is bound on one
    /// thread and asks on another.
    pub fn abstention_ns(&self) -> u64 {
        let stretched = self.lease(1).stretched(Duration::from_millis(self.leader_lease_ms));
        stretched.as_nanos() as u64 + CLOCK_DISAGREEMENT_NS
    }
}

/// Less than this holds no useful memtable.
const MEMORY_BYTES_MIN: u64 = 64 * 1024;

impl From<&Configuration> for v1::PartitionConfiguration {
    fn from(c: &Configuration) -> Self {
        Self {
            revision: c.revision,
            lease_mode: mode_to_wire(c.mode).into(),
            lease_ms: c.lease_ms,
            leader_lease_ms: c.leader_lease_ms,
            drift_ppm: c.drift_ppm,
            memory_bytes: c.memory_bytes,
            lineage: c.lineage,
            left_out: c.left_out.iter().copied().collect(),
        }
    }
}

impl TryFrom<v1::PartitionConfiguration> for Configuration {
    type Error = Error;

    fn try_from(m: v1::PartitionConfiguration) -> Result<Self> {
        let mode = mode_from_wire(m.lease_mode)?;
        let c = Self {
            revision: m.revision,
            mode,
            lease_ms: m.lease_ms,
            leader_lease_ms: m.leader_lease_ms,
            drift_ppm: m.drift_ppm,
            memory_bytes: m.memory_bytes,
            lineage: m.lineage,
            left_out: m.left_out.into_iter().collect(),
        };
        // Lengths that no server would have written: arithmetic on them could overflow.
        c.lease(1).validate()?;
        Ok(c)
    }
}

impl TryFrom<v1::ConfigureRequest> for Change {
    type Error = Error;

    fn try_from(m: v1::ConfigureRequest) -> Result<Self> {
        Ok(Self {
            mode: m.lease_mode.map(mode_from_wire).transpose()?,
            lease_ms: m.lease_ms,
            leader_lease_ms: m.leader_lease_ms,
            drift_ppm: m.drift_ppm,
            memory_bytes: m.memory_bytes,
        })
    }
}

pub fn mode_to_wire(mode: LeaseMode) -> v1::LeaseMode {
    match mode {
        LeaseMode::Ack => v1::LeaseMode::Ack,
        LeaseMode::Timed => v1::LeaseMode::Timed,
    }
}

fn mode_from_wire(mode: i32) -> Result<LeaseMode> {
    match v1::LeaseMode::try_from(mode) {
        Ok(v1::LeaseMode::Ack) => Ok(LeaseMode::Ack),
        Ok(v1::LeaseMode::Timed) => Ok(LeaseMode::Timed),
        Err(_) => Err(Error::invalid(format!("unknown lease mode {mode}"))),
    }
}

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
    fn a_change_names_what_is_wrong_with_it() {
        let c = Configuration::founding(&LeaseConfig::default(), 1 << 20);
        let next = c.changed(&Change { lease_ms: Some(200), ..Change::default() }, 60).unwrap();
        assert_eq!((next.revision, next.lease_ms, next.leader_lease_ms), (2, 200, 400));
        let of_lineage = Configuration { lineage: 7, ..c.clone() };
        assert!(of_lineage.same(&c), "a lineage is nothing that an operator asks for");
        let next_of_lineage =
            of_lineage.changed(&Change { lease_ms: Some(200), ..Change::default() }, 60).unwrap();
        assert_eq!(next_of_lineage, Configuration { lineage: 7, ..next.clone() }, "and it never changes");
        let left_out = c.leaving_out([3].into()).unwrap();
        assert_eq!((left_out.revision, left_out.leaving_out([3].into())), (2, None));
        assert!(left_out.same(&c), "nor are servers that were left out");
        let next_of_left_out =
            left_out.changed(&Change { lease_ms: Some(200), ..Change::default() }, 60).unwrap();
        assert_eq!(next_of_left_out.left_out, [3].into());
        let wire = Configuration::try_from(v1::PartitionConfiguration::from(&left_out)).unwrap();
        assert_eq!(wire, left_out);
        assert!(!c.same(&next) && c.same(&Configuration { revision: 9, ..c.clone() }));
        let wrong = |change: Change, word: &str| {
            let e = c.changed(&change, 60).unwrap_err();
            assert!(e.message.contains(word), "{e}");
        };
        wrong(Change { lease_ms: Some(401), ..Change::default() }, "lease_ms");
        wrong(Change { leader_lease_ms: Some(100), ..Change::default() }, "heartbeat_ms");
        wrong(Change { memory_bytes: Some(1), ..Change::default() }, "memory_bytes");
        wrong(Change { drift_ppm: Some(u64::MAX), ..Change::default() }, "drift_ppm");
    }
}
