//! What was measured, as tables.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::Value;

use super::Zone;

const MODES: [&str; 3] = ["pda", "bda", "nda"];

/// One mode for some seconds.
#[derive(Clone, Debug)]
pub struct Reading {
    workload: &'static str,
    threads: u32,
    zone: Zone,
    mode: &'static str,
    figures: Figures,
    errors: u64,
}

/// Reads a second, or all operations if others are among them; times of the reads; messages for 1000 reads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Figures {
    throughput: f64,
    p50_us: f64,
    p99_us: f64,
    to_leaders: f64,
    to_sstables: f64,
}

impl Reading {
    /// Of the run of a comparison's JSON.
    pub fn of(run: &Value, workload: &'static str, threads: u32, zone: Zone) -> Option<Self> {
        let mode = MODES.into_iter().find(|mode| run["parameters"]["mode"] == *mode)?;
        let read = run["kinds"].as_array()?.iter().find(|kind| kind["operation"] == "read")?;
        let messages = |to: &str| run["per_1000_reads"][format!("messages to {to}")].as_f64().unwrap_or(0.0);
        let figures = Figures {
            throughput: run["throughput"].as_f64()?,
            p50_us: read["latency_us"]["p50"].as_f64()?,
            p99_us: read["latency_us"]["p99"].as_f64()?,
            to_leaders: messages("leaders"),
            to_sstables: messages("sstable servers"),
        };
        Some(Self { workload, threads, zone, mode, figures, errors: run["errors"].as_u64()? })
    }
}

#[derive(Debug, Default)]
pub struct Report {
    pub round_trips: Vec<(Zone, Duration)>,
    /// Partitions, and who leads them at the end.
    pub leaders: Vec<(u64, Option<u64>)>,
    /// How many had to be handed over to zone A between the rounds.
    pub moved: usize,
    pub line: String,
    /// What clients printed that only had to work.
    pub said: Vec<(String, String)>,
    pub readings: Vec<Reading>,
    /// Answers that were not as they should be.
    pub wrong: Vec<String>,
}

fn median(of: &[Figures], what: impl Fn(&Figures) -> f64) -> f64 {
    let mut values: Vec<f64> = of.iter().map(what).collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

impl Report {
    pub fn passed(&self) -> bool {
        self.wrong.is_empty() && self.readings.iter().all(|reading| reading.errors == 0)
    }

    /// By workload, threads and zone, then by mode.
    fn groups(&self) -> BTreeMap<(&'static str, u32, Zone), BTreeMap<&'static str, Vec<Figures>>> {
        let mut groups: BTreeMap<_, BTreeMap<_, Vec<_>>> = BTreeMap::new();
        for Reading { workload, threads, zone, mode, figures, .. } in &self.readings {
            let group = groups.entry((*workload, *threads, *zone)).or_default();
            group.entry(*mode).or_default().push(*figures);
        }
        groups
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (zone, took) in &self.round_trips {
            writeln!(f, "a connection to zone {}: {:.2} ms", zone.name(), took.as_secs_f64() * 1e3)?;
        }
        let leaders = self.leaders.iter().map(|(partition, leader)| match leader {
            Some(leader) => format!("{partition}: memtable-{leader}"),
            None => format!("{partition}: none"),
        });
        writeln!(f, "leaders at the end: {}", leaders.collect::<Vec<_>>().join(", "))?;
        writeln!(f, "handed over to zone A between rounds: {}", self.moved)?;
        writeln!(f, "the line: {}\n", self.line)?;
        for (what, said) in &self.said {
            writeln!(f, "{what:<12} {said}")?;
        }
        writeln!(
            f,
            "\nworkload threads zone mode  operations/s  p50 ms  p99 ms  pda against it  leaders  sstables  each round"
        )?;
        for ((workload, threads, zone), modes) in self.groups() {
            let pda = modes.get(MODES[0]).map_or(0.0, |of| median(of, |f| f.throughput));
            for (mode, of) in MODES.iter().filter_map(|mode| Some((mode, modes.get(mode)?))) {
                let throughput = median(of, |f| f.throughput);
                let each: Vec<String> = of.iter().map(|f| format!("{:.0}", f.throughput)).collect();
                writeln!(
                    f,
                    "{workload:<8} {threads:>7} {:<4} {mode:<4} {throughput:>13.0} {:>7.2} {:>7.2} {:>14.2}x {:>8.1} {:>9.1}  {}",
                    zone.name(),
                    median(of, |f| f.p50_us) / 1e3,
                    median(of, |f| f.p99_us) / 1e3,
                    pda / throughput.max(1.0),
                    median(of, |f| f.to_leaders),
                    median(of, |f| f.to_sstables),
                    each.join(" ")
                )?;
            }
        }
        for wrong in &self.wrong {
            writeln!(f, "WRONG: {wrong}")?;
        }
        let errors: u64 = self.readings.iter().map(|reading| reading.errors).sum();
        writeln!(f, "\n{errors} errors\nverdict: {}", if self.passed() { "passed" } else { "FAILED" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(mode: &str, throughput: f64, errors: u64) -> Value {
        serde_json::json!({
            "parameters": { "mode": mode }, "throughput": throughput, "errors": errors,
            "kinds": [{ "operation": "update" }, { "operation": "read", "latency_us": { "p50": 200.0, "p99": 900.0 } }],
            "per_1000_reads": { "messages to leaders": 11.5 }
        })
    }

    #[test]
    fn modes_are_compared_by_their_medians() {
        let reading = |mode, throughput| Reading::of(&run(mode, throughput, 0), "c", 64, Zone::B).unwrap();
        let readings =
            [("pda", 9.0), ("pda", 8000.0), ("pda", 9000.0), ("bda", 2000.0)].map(|(m, t)| reading(m, t));
        let report = Report { readings: readings.to_vec(), ..Report::default() };
        let text = report.to_string();
        let line = text.lines().find(|line| line.contains(" bda ")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[..8], ["c", "64", "B", "bda", "2000", "0.20", "0.90", "4.00x"]);
        assert!(report.passed(), "{text}");
    }

    #[test]
    fn an_error_of_a_client_is_a_failure() {
        let readings = vec![Reading::of(&run("nda", 1.0, 1), "b", 1, Zone::A).unwrap()];
        assert!(!Report { readings, ..Report::default() }.passed());
        assert!(!Report { wrong: vec!["x".to_owned()], ..Report::default() }.passed());
    }
}
