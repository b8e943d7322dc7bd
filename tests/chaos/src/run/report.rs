//! What a run came to.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use sextant_checker::{Expiry, Options};
use sextant_common::error::Result;

use super::Counts;
use crate::workload::Tally;

/// Clocks are off by less than a tenth of a second, and jump by twice that. When an object ends at the latest, nobody says: a partition
/// without a leader has no time.
const EXPIRY: Expiry = Expiry { early_ns: 1_000_000_000, late_ns: u64::MAX };

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    pub seed: u64,
    pub faults: Counts,
    pub operations: BTreeMap<&'static str, Tally>,
    /// Kind of operation, kind of error, how often, the last message.
    pub reasons: Vec<(&'static str, String, u64, String)>,
    /// Servers that ended although nothing ended them.
    pub deaths: Vec<String>,
    /// Whether the cluster served again after healing; if not, why.
    pub converged: Result<(), String>,
    /// Reads of all keys at the end, and how many of them failed.
    pub last_reads: (u64, u64),
    /// Transfers of leadership that went where they were to go.
    pub transfers: u64,
    /// Changes of the mode of leases or of the bound on drift.
    pub modes: u64,
    /// Servers that were wiped and voted again.
    pub wipes_survived: u64,
    /// Starts that were refused because directories did not belong together.
    pub refused_starts: u64,
    /// Capabilities that the machine lacks.
    pub skips: usize,
    checked: Option<sextant_checker::Report>,
}

impl Report {
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            faults: Counts::default(),
            operations: BTreeMap::new(),
            reasons: Vec::new(),
            deaths: Vec::new(),
            converged: Ok(()),
            last_reads: (0, 0),
            transfers: 0,
            modes: 0,
            wipes_survived: 0,
            refused_starts: 0,
            skips: 0,
            checked: None,
        }
    }

    /// Checks the recorded history.
    pub fn check(&mut self, history: &Path) -> Result<()> {
        let options = Options { expiry: EXPIRY, ..Options::default() };
        self.checked = Some(sextant_checker::check_file(history, &options)?);
        Ok(())
    }

    /// Nothing was wrong, and that is certain.
    pub fn passed(&self) -> bool {
        self.checked.as_ref().is_some_and(sextant_checker::Report::passed)
            && self.deaths.is_empty()
            && self.converged.is_ok()
            && self.last_reads.1 == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nseed {}; capabilities skipped: {}", self.seed, self.skips)?;
        writeln!(f, "\n{:<16} {:>8}", "fault", "times")?;
        for (kind, times) in &self.faults {
            writeln!(f, "{:<16} {times:>8}", kind.name())?;
        }
        writeln!(f, "{:<16} {:>8}", "(transfers)", self.transfers)?;
        writeln!(f, "{:<16} {:>8}", "(modes)", self.modes)?;
        writeln!(f, "{:<16} {:>8}", "(wipes survived)", self.wipes_survived)?;
        writeln!(f, "{:<16} {:>8}", "(refused starts)", self.refused_starts)?;
        writeln!(f, "\n{:<12} {:>10} {:>8} {:>8}", "operation", "ok", "failed", "unknown")?;
        for (op, t) in &self.operations {
            writeln!(f, "{op:<12} {:>10} {:>8} {:>8}", t.ok, t.failed, t.unknown)?;
        }
        if !self.reasons.is_empty() {
            writeln!(f, "\nwhy operations failed (the last of each kind):")?;
        }
        for (op, kind, times, last) in &self.reasons {
            writeln!(f, "  {op} {kind} x {times}: {last}")?;
        }
        writeln!(f)?;
        for death in &self.deaths {
            writeln!(f, "ENDED BY ITSELF: {death}")?;
        }
        if let Err(why) = &self.converged {
            writeln!(f, "DID NOT CONVERGE: {why}")?;
        }
        let (reads, failed) = self.last_reads;
        writeln!(f, "last reads: {reads}, failed: {failed}")?;
        if let Some(checked) = &self.checked {
            writeln!(f, "{checked}")?;
        }
        writeln!(f, "verdict: {}", if self.passed() { "passed" } else { "FAILED" })
    }
}
