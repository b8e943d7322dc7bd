//! The tables.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sextant_common::error::{Error, Result};

use super::probe::Kind;
use super::scenario::{Scenario, Silences};
use super::silence::quantile;
use crate::server::PNODES;

/// All silences of all runs.
#[derive(Debug, Default)]
pub struct Report {
    runs: BTreeMap<Scenario, Vec<Silences>>,
}

fn ms(ns: u64) -> u64 {
    ns / 1_000_000
}

/// One run on one line.
pub fn line(silences: &Silences) -> String {
    let words =
        silences.iter().map(|((pnode, kind), ns)| format!("p{} {} {} ms", pnode + 1, kind.name(), ms(*ns)));
    words.collect::<Vec<_>>().join(", ")
}

impl Report {
    pub fn add(&mut self, scenario: Scenario, silences: Silences) {
        self.runs.entry(scenario).or_default().push(silences);
    }

    /// Median and worst of every fault, for every kind through every p-node, in milliseconds.
    pub fn markdown(&self) -> String {
        let mut text = String::from("| fault | runs |");
        let columns: Vec<(usize, Kind)> =
            (0..PNODES).flat_map(|pnode| Kind::ALL.map(move |kind| (pnode, kind))).collect();
        for (pnode, kind) in &columns {
            let _ = write!(text, " p-node {}: {} |", pnode + 1, kind.name());
        }
        let _ = write!(text, "\n|---|---|{}\n", "---|".repeat(columns.len()));
        for (scenario, runs) in &self.runs {
            let _ = write!(text, "| {} | {} |", scenario.name(), runs.len());
            for column in &columns {
                let values: Vec<u64> = runs.iter().filter_map(|run| run.get(column)).copied().collect();
                if values.is_empty() {
                    text.push_str(" - |");
                } else {
                    let _ =
                        write!(text, " {} / {} |", ms(quantile(&values, 0.5)), ms(quantile(&values, 1.0)));
                }
            }
            text.push('\n');
        }
        text
    }

    /// Every silence of every run, in milliseconds.
    pub fn json(&self) -> Result<String> {
        let runs = self.runs.iter().flat_map(|(scenario, runs)| {
            runs.iter().enumerate().flat_map(move |(run, silences)| {
                silences.iter().map(move |((pnode, kind), ns)| {
                    serde_json::json!({
                        "fault": scenario.name(),
                        "run": run + 1,
                        "pnode": pnode + 1,
                        "kind": kind.name(),
                        "silence_ms": *ns as f64 / 1e6,
                    })
                })
            })
        });
        let all: Vec<serde_json::Value> = runs.collect();
        serde_json::to_string_pretty(&all).map_err(|e| Error::internal(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_median_and_worst() {
        let mut report = Report::default();
        for ns in [3_000_000, 1_000_000, 9_000_000] {
            report.add(Scenario::LeaderKilled, [((0, Kind::Write), ns)].into());
        }
        let table = report.markdown();
        assert!(table.contains("| leader-killed | 3 | 3 / 9 | - |"), "{table}");
        assert!(report.json().unwrap().contains("\"silence_ms\": 9.0"));
    }
}
