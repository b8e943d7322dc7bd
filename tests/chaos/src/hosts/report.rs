//! What a round came to.

use std::fmt;
use std::path::Path;

use sextant_common::error::Result;

use super::Fault;
use crate::rolling::probe::Seen;

#[derive(Debug)]
pub struct Report {
    /// From the first container to the last that was healthy, in seconds.
    pub started_s: f64,
    pub quiet: Seen,
    pub rows: Vec<Row>,
    /// Operations of the recorded clients.
    pub answered: u64,
    /// Whether the cluster served at the end; if not, why.
    pub converged: Result<(), String>,
    /// Reads of all keys at the end, and how many of them failed.
    pub last_reads: (u64, u64),
    /// Whether errors of clients during a restart are held against it.
    strict: bool,
    checked: Option<sextant_checker::Report>,
}

impl Report {
    pub fn new(started_s: f64, strict: bool) -> Self {
        Self {
            started_s,
            strict,
            quiet: Seen::default(),
            rows: Vec::new(),
            answered: 0,
            converged: Ok(()),
            last_reads: (0, 0),
            checked: None,
        }
    }

    pub fn check(&mut self, history: &Path) -> Result<()> {
        self.checked = Some(sextant_checker::check_file(history, &Default::default())?);
        Ok(())
    }
}

/// One fault of one server.
#[derive(Debug)]
pub struct Row {
    pub fault: &'static str,
    pub server: String,
    /// Until it was healthy again, what it was held for included.
    pub took_s: f64,
    /// By clients that name both p-nodes.
    pub seen: Seen,
}

impl Row {
    pub fn line(&self) -> String {
        format!("{:<8} {:<11} {:5.1} s: {}", self.fault, self.server, self.took_s, self.seen.line())
    }
}

impl Report {
    /// Errors that clients saw while servers were restarted in turn.
    fn noticed(&self) -> usize {
        let restarts = self.rows.iter().filter(|row| row.fault == Fault::Restart.name());
        restarts.map(|row| row.seen.errors.len()).sum()
    }

    pub fn passed(&self) -> bool {
        self.checked.as_ref().is_some_and(sextant_checker::Report::passed)
            && self.converged.is_ok()
            && self.last_reads.1 == 0
            && (!self.strict || self.noticed() == 0)
    }

    pub fn markdown(&self) -> String {
        let mut text =
            "fault    server       healthy after  operations  errors  longest silence, ms: writer  reader\n"
                .to_owned();
        for Row { fault, server, took_s, seen } in &self.rows {
            text += &format!(
                "{fault:<8} {server:<11} {took_s:>12.1} s  {:>10}  {:>6}  {:>27.0}  {:>6.0}\n",
                seen.operations,
                seen.errors.len(),
                seen.write_silence_ms,
                seen.read_silence_ms
            );
        }
        text
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\nhealthy after {:.1} s; before the first fault: {}\n",
            self.started_s,
            self.quiet.line()
        )?;
        writeln!(f, "{}", self.markdown())?;
        for row in self.rows.iter().filter(|row| !row.seen.errors.is_empty()) {
            let last = row.seen.errors.last().map_or("", String::as_str);
            writeln!(f, "{} {}: {} errors, the last: {last}", row.fault, row.server, row.seen.errors.len())?;
        }
        if let Err(why) = &self.converged {
            writeln!(f, "DID NOT CONVERGE: {why}")?;
        }
        let (reads, failed) = self.last_reads;
        writeln!(f, "{} operations recorded; last reads: {reads}, failed: {failed}", self.answered)?;
        if let Some(checked) = &self.checked {
            writeln!(f, "{checked}")?;
        }
        writeln!(f, "verdict: {}", if self.passed() { "passed" } else { "FAILED" })
    }
}
