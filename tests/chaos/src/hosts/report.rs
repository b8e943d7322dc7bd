//! What a round came to.

use std::fmt;
use std::path::Path;

use sextant_common::error::Result;

use super::Fault;
use super::zones::Zone;
use crate::rolling::probe::Seen;

#[derive(Debug)]
pub struct Report {
    /// From the first container to the last that was healthy, in seconds.
    pub started_s: f64,
    /// By clients that name all p-nodes, or of each zone those that name its own.
    pub quiet: Vec<Seen>,
    pub rows: Vec<Row>,
    /// Operations of the recorded clients.
    pub answered: u64,
    /// Whether the cluster served at the end; if not, why.
    pub converged: Result<(), String>,
    /// Reads of all keys at the end, and how many of them failed.
    pub last_reads: (u64, u64),
    /// Over two zones: what went through the line between them.
    pub line: Option<String>,
    /// Whether errors of clients during a restart are held against it.
    strict: bool,
    checked: Option<sextant_checker::Report>,
}

impl Report {
    pub fn new(started_s: f64, strict: bool) -> Self {
        Self {
            started_s,
            strict,
            quiet: Vec::new(),
            rows: Vec::new(),
            answered: 0,
            converged: Ok(()),
            last_reads: (0, 0),
            line: None,
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
    /// As [`Report::quiet`].
    pub seen: Vec<Seen>,
}

/// With the zone, if there are two.
fn lines(seen: &[Seen]) -> String {
    match seen {
        [seen] => seen.line(),
        _ => {
            let of = |(zone, seen): (Zone, &Seen)| format!("\n  zone {}: {}", zone.name(), seen.line());
            Zone::ALL.into_iter().zip(seen).map(of).collect()
        }
    }
}

impl Row {
    pub fn line(&self) -> String {
        format!("{:<8} {:<11} {:5.1} s: {}", self.fault, self.server, self.took_s, lines(&self.seen))
    }
}

impl Report {
    /// Errors that clients saw while servers were restarted in turn.
    fn noticed(&self) -> usize {
        let restarts = self.rows.iter().filter(|row| row.fault == Fault::Restart.name());
        restarts.flat_map(|row| &row.seen).map(|seen| seen.errors.len()).sum()
    }

    pub fn passed(&self) -> bool {
        self.checked.as_ref().is_some_and(sextant_checker::Report::passed)
            && self.converged.is_ok()
            && self.last_reads.1 == 0
            && (!self.strict || self.noticed() == 0)
    }

    pub fn markdown(&self) -> String {
        let zones = self.line.is_some();
        let (zone, cold) = if zones { ("zone  ", "    cold") } else { ("", "") };
        let mut text = format!(
            "fault    server       healthy after  {zone}operations  errors  \
             longest silence, ms: writer  reader{cold}\n"
        );
        for row in &self.rows {
            for (n, seen) in row.seen.iter().enumerate() {
                // Of the second zone, only what is its own.
                let took = format!("{:<8} {:<11} {:>12.1} s", row.fault, row.server, row.took_s);
                text += &if n == 0 { took } else { " ".repeat(took.len()) };
                text += &if zones { format!("  {:<4}", Zone::ALL[n].name()) } else { String::new() };
                text += &format!(
                    "  {:>10}  {:>6}  {:>27.0}  {:>6.0}",
                    seen.operations,
                    seen.errors.len(),
                    seen.write_silence_ms,
                    seen.read_silence_ms
                );
                text += &if zones { format!("  {:>6.0}\n", seen.cold_silence_ms) } else { "\n".to_owned() };
            }
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
            lines(&self.quiet)
        )?;
        writeln!(f, "{}", self.markdown())?;
        for (row, seen) in self.rows.iter().flat_map(|row| row.seen.iter().map(move |seen| (row, seen))) {
            if let Some(last) = seen.errors.last() {
                writeln!(f, "{} {}: {} errors, the last: {last}", row.fault, row.server, seen.errors.len())?;
            }
        }
        if let Some(line) = &self.line {
            writeln!(f, "the line: {line}")?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(write_silence_ms: f64) -> Seen {
        Seen { write_silence_ms, read_silence_ms: 7.0, cold_silence_ms: 9.0, ..Seen::default() }
    }

    fn report(line: Option<&str>, silences: &[f64]) -> Report {
        let seen = silences.iter().map(|ms| seen(*ms)).collect();
        let row = Row { fault: "zone", server: "zone B".into(), took_s: 10.2, seen };
        Report { rows: vec![row], line: line.map(Into::into), ..Report::new(1.0, true) }
    }

    #[test]
    fn each_zone_has_a_line_of_its_own() {
        let words = |text: String| -> Vec<Vec<String>> {
            text.lines().skip(1).map(|line| line.split_whitespace().map(Into::into).collect()).collect()
        };
        let zones = words(report(Some("x"), &[300.0, 10_400.0]).markdown());
        assert_eq!(zones[0], ["zone", "zone", "B", "10.2", "s", "A", "0", "0", "300", "7", "9"]);
        assert_eq!(zones[1], ["B", "0", "0", "10400", "7", "9"]);
        let one = words(report(None, &[300.0]).markdown());
        assert_eq!(one[0], ["zone", "zone", "B", "10.2", "s", "0", "0", "300", "7"]);
    }

    #[test]
    fn the_head_stands_above_its_columns() {
        let text = report(Some("x"), &[300.0, 10_400.0]).markdown();
        let ends = |line: &str| line.trim_end().len();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| ends(line) == ends(lines[0])), "{text}");
        assert_eq!(lines[1].find(" A "), lines[2].find(" B "), "{text}");
    }
}
