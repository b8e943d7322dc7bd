//! What was seen, as lines and as a table.

use std::fmt::Write;

use sextant_common::error::{Error, Result};

use super::probe::Seen;

/// What the load generator saw in all its runs.
#[derive(Clone, Debug, Default)]
pub struct Load {
    pub operations: u64,
    pub errors: u64,
    pub seconds: f64,
    pub worst_ms: f64,
    pub examples: Vec<String>,
}

/// One restart.
pub struct Row {
    pub server: String,
    /// From SIGTERM until it is ready again.
    pub seconds: f64,
    pub seen: Seen,
}

#[derive(Default)]
pub struct Report {
    pub records: u64,
    pub quiet: Seen,
    pub rows: Vec<Row>,
    pub load: Load,
}

impl Load {
    /// From the report that `sextant ycsb --json` writes.
    pub fn parse(json: &str) -> Result<Load> {
        let report: serde_json::Value =
            serde_json::from_str(json).map_err(|e| Error::internal(format!("the report of ycsb: {e}")))?;
        let kinds = report["kinds"].as_array().cloned().unwrap_or_default();
        let worst_us = kinds.iter().filter_map(|k| k["latency_us"]["max"].as_f64()).fold(0.0, f64::max);
        let number = |name: &str| {
            report[name].as_u64().ok_or_else(|| Error::internal(format!("the report of ycsb has no {name}")))
        };
        Ok(Load {
            operations: number("operations")?,
            errors: number("errors")?,
            seconds: report["seconds"].as_f64().unwrap_or(0.0),
            worst_ms: worst_us / 1000.0,
            examples: kinds.iter().map(|k| k["error_examples"].to_string()).filter(|e| e != "{}").collect(),
        })
    }

    pub fn add(&mut self, more: Load) {
        self.operations += more.operations;
        self.errors += more.errors;
        self.seconds += more.seconds;
        self.worst_ms = self.worst_ms.max(more.worst_ms);
        self.examples.extend(more.examples);
    }

    pub fn line(&self) -> String {
        let rate = if self.seconds > 0.0 { self.operations as f64 / self.seconds } else { 0.0 };
        format!(
            "{} operations in {:.0} s ({rate:.0}/s), {} errors, longest operation {:.0} ms{}",
            self.operations,
            self.seconds,
            self.errors,
            self.worst_ms,
            self.examples.iter().map(|e| format!("; {e}")).collect::<String>()
        )
    }
}

impl Row {
    pub fn line(&self) -> String {
        let first = self.seen.errors.first().map(|e| format!(" ({e})")).unwrap_or_default();
        format!("{} restarted in {:.1} s: {}{first}", self.server, self.seconds, self.seen.line())
    }
}

impl Report {
    /// No client saw an error.
    pub fn clean(&self) -> bool {
        self.load.errors == 0 && self.rows.iter().all(|row| row.seen.errors.is_empty())
    }

    pub fn markdown(&self) -> String {
        let mut out = String::from(
            "| restarted | seconds until ready | operations of probes | errors | longest silence of a writer, ms | of a reader, ms |\n\
             |---|---|---|---|---|---|\n",
        );
        let nothing = Row { server: "nothing".into(), seconds: 0.0, seen: self.quiet.clone() };
        for Row { server, seconds, seen } in std::iter::once(&nothing).chain(&self.rows) {
            let _ = writeln!(
                out,
                "| {server} | {seconds:.1} | {} | {} | {:.0} | {:.0} |",
                seen.operations,
                seen.errors.len(),
                seen.write_silence_ms,
                seen.read_silence_ms
            );
        }
        let _ = writeln!(
            out,
            "\n`ycsb run --workload a`, {} records, meanwhile: {}.",
            self.records,
            self.load.line()
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_the_load_generator_add_up() {
        let one = r#"{"operations": 10, "errors": 1, "seconds": 2.0,
            "kinds": [{"latency_us": {"max": 1500.0}, "error_examples": {"retry": "gone"}}]}"#;
        let two = r#"{"operations": 5, "errors": 0, "seconds": 1.0, "kinds": [{"latency_us": {"max": 2500.0}, "error_examples": {}}]}"#;
        let mut load = Load::default();
        load.add(Load::parse(one).unwrap());
        load.add(Load::parse(two).unwrap());
        assert_eq!((load.operations, load.errors, load.worst_ms), (15, 1, 2.5));
        assert!(load.line().contains("gone"), "{}", load.line());
        assert!(Load::parse("{}").is_err());
    }

    #[test]
    fn one_error_of_anybody_is_not_clean() {
        let mut report = Report::default();
        assert!(report.clean());
        report.rows.push(Row { server: "p-node 1".into(), seconds: 1.0, seen: Seen::default() });
        assert!(report.clean());
        report.rows[0].seen.errors.push("gone".into());
        assert!(!report.clean());
        report.rows.clear();
        report.load.errors = 1;
        assert!(!report.clean());
    }
}
