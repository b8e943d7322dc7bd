//! The results of a phase: a table for people, JSON for tools. Both carry all parameters, for a figure without them says
//! nothing.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use crate::distribution::Distribution;
use crate::measure::Measurements;
use crate::workload::Workload;

/// Everything that a figure depends on.
#[derive(Clone, Debug, Serialize)]
pub struct Parameters {
    pub workload: Option<Workload>,
    /// How many records the load phase writes.
    pub records: u64,
    /// Bytes of all records, keys and stored values together, before replication and compression.
    pub data_bytes: u64,
    pub operations: u64,
    /// Closed-loop clients with one operation at a time each (tokio tasks).
    pub threads: usize,
    /// OS threads of the generator's runtime.
    pub workers: usize,
    /// grpc, resp or embedded.
    pub target: &'static str,
    pub servers: Vec<String>,
    pub pnodes: usize,
    pub mode: &'static str,
    pub distribution: Option<Distribution>,
    pub theta: Option<f64>,
    /// Share of the records that `update` rewrites.
    pub share: Option<f64>,
    /// None: whatever the servers are configured to.
    pub cache: Option<bool>,
    pub cache_bytes: Option<u64>,
    /// None: whatever the servers are configured to.
    pub coalesce: Option<bool>,
    pub fields: u8,
    pub field_bytes: u32,
    pub table: String,
    pub seed: u64,
    /// Operations per second that were offered; None: as fast as the answers come.
    pub rate: Option<f64>,
    /// The phase was to end after so many seconds, whatever was left.
    pub seconds_max: Option<f64>,
    /// Operations before the measured ones.
    pub warmup: u64,
    /// HTTP/2 connections to each p-node (grpc).
    pub connections: Option<usize>,
    pub deadline_ms: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub tool: &'static str,
    pub version: &'static str,
    pub phase: &'static str,
    pub parameters: Parameters,
    pub seconds: f64,
    /// Successful operations.
    pub operations: u64,
    /// Successful operations per second.
    pub throughput: f64,
    pub errors: u64,
    /// The phase was given up because the target did not answer any more.
    pub gave_up: bool,
    pub kinds: Vec<KindReport>,
}

#[derive(Clone, Debug, Serialize)]
pub struct KindReport {
    pub operation: &'static str,
    pub count: u64,
    pub throughput: f64,
    pub latency_us: Latency,
    pub errors: BTreeMap<&'static str, u64>,
    pub error_examples: BTreeMap<&'static str, String>,
}

/// Microseconds. With a rate, counted from when the operation was due.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    pub mean: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Latency {
    fn of(histogram: &hdrhistogram::Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let us = |ns: u64| ns as f64 / 1000.0;
        let quantile = |q: f64| us(histogram.value_at_quantile(q));
        Self {
            mean: histogram.mean() / 1000.0,
            p50: quantile(0.5),
            p95: quantile(0.95),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: us(histogram.max()),
        }
    }
}

impl Report {
    pub fn new(
        phase: &'static str,
        parameters: Parameters,
        seconds: f64,
        gave_up: bool,
        measured: &Measurements,
    ) -> Self {
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let kinds = measured
            .kinds()
            .map(|(operation, stats)| KindReport {
                operation: operation.name(),
                count: stats.latency_ns.len(),
                throughput: per_second(stats.latency_ns.len()),
                latency_us: Latency::of(&stats.latency_ns),
                errors: stats.errors.clone(),
                error_examples: stats.examples.clone(),
            })
            .collect();
        Self {
            tool: "sextant ycsb",
            version: env!("CARGO_PKG_VERSION"),
            phase,
            parameters,
            seconds,
            operations: measured.count(),
            throughput: per_second(measured.count()),
            errors: measured.error_count(),
            gave_up,
            kinds,
        }
    }

    /// The table for people.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let p = &self.parameters;
        let _ = writeln!(out, "{}: {}", self.phase, p.summary());
        let _ = writeln!(
            out,
            "{} operations in {:.2} s: {:.0} operations/s, {} errors{}",
            self.operations,
            self.seconds,
            self.throughput,
            self.errors,
            if self.gave_up { " (given up: the target did not answer any more)" } else { "" }
        );
        let _ = writeln!(
            out,
            "{:<18}{:>11}{:>8}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}{:>12}",
            "operation",
            "count",
            "errors",
            "ops/s",
            "mean us",
            "p50 us",
            "p95 us",
            "p99 us",
            "p99.9 us",
            "max us"
        );
        for kind in &self.kinds {
            let l = &kind.latency_us;
            let _ = writeln!(
                out,
                "{:<18}{:>11}{:>8}{:>11.0}{:>11.1}{:>11.1}{:>11.1}{:>11.1}{:>11.1}{:>12.1}",
                kind.operation,
                kind.count,
                kind.errors.values().sum::<u64>(),
                kind.throughput,
                l.mean,
                l.p50,
                l.p95,
                l.p99,
                l.p999,
                l.max
            );
        }
        for kind in &self.kinds {
            for (name, count) in &kind.errors {
                let example = kind.error_examples.get(name).map_or("", String::as_str);
                let _ = writeln!(out, "errors: {} {name}: {count} (for example: {example})", kind.operation);
            }
        }
        out
    }
}

impl Parameters {
    fn summary(&self) -> String {
        format!("{}, {}", self.summary_without_mode(), self.mode)
    }

    pub(crate) fn summary_without_mode(&self) -> String {
        let mut out = String::new();
        if let Some(workload) = self.workload {
            let _ = write!(out, "workload {}, ", workload.name());
        }
        let _ = write!(out, "{} records ({}), ", self.records, bytes(self.data_bytes));
        let _ = write!(out, "{} threads, {}", self.threads, self.target);
        if self.target == "embedded" {
            let _ = write!(out, " x {}", self.pnodes);
        } else {
            let _ = write!(out, " {}", self.servers.join(","));
        }
        match (self.distribution, self.theta) {
            (Some(Distribution::Uniform), _) => out.push_str(", uniform"),
            (Some(Distribution::Zipfian), Some(theta)) => drop(write!(out, ", zipfian {theta}")),
            (Some(Distribution::Latest), Some(theta)) => drop(write!(out, ", latest {theta}")),
            _ => {}
        }
        if let Some(share) = self.share {
            let _ = write!(out, ", share {share}");
        }
        for (name, switch) in [("cache", self.cache), ("coalesce", self.coalesce)] {
            if let Some(on) = switch {
                let _ = write!(out, ", {name} {}", if on { "on" } else { "off" });
            }
        }
        if let Some(rate) = self.rate {
            let _ = write!(out, ", offered {rate} operations/s");
        }
        out
    }
}

fn bytes(n: u64) -> String {
    match n {
        0..1_000_000 => format!("{:.1} kB", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", n as f64 / 1e6),
        _ => format!("{:.2} GB", n as f64 / 1e9),
    }
}

#[cfg(test)]
pub(crate) fn test_parameters() -> Parameters {
    Parameters {
        workload: Some(Workload::A),
        records: 1000,
        data_bytes: 1_037_000,
        operations: 100,
        threads: 4,
        workers: 2,
        target: "grpc",
        servers: vec!["127.0.0.1:7400".into()],
        pnodes: 1,
        mode: "pda",
        distribution: Some(Distribution::Zipfian),
        theta: Some(0.99),
        share: None,
        cache: None,
        cache_bytes: None,
        coalesce: None,
        fields: 10,
        field_bytes: 100,
        table: String::new(),
        seed: 1,
        rate: None,
        seconds_max: None,
        warmup: 0,
        connections: Some(1),
        deadline_ms: 10_000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Failure;
    use crate::workload::Operation;

    #[test]
    fn json_and_table_say_the_same() {
        let mut measured = Measurements::default();
        for us in 1..=100u64 {
            measured.succeeded(Operation::Read, us * 1000);
        }
        measured.failed(Operation::Update, &Failure::Exists);
        let report = Report::new("run", test_parameters(), 2.0, false, &measured);
        let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(json["throughput"], 50.0);
        assert_eq!(json["parameters"]["workload"], "a");
        assert_eq!(json["parameters"]["data_bytes"], 1_037_000);
        assert_eq!(json["parameters"]["cache"], serde_json::Value::Null);
        assert_eq!(json["kinds"][0]["operation"], "read");
        let p50 = json["kinds"][0]["latency_us"]["p50"].as_f64().unwrap();
        assert!((p50 - 50.0).abs() < 0.1);
        assert_eq!(json["kinds"][1]["errors"]["exists"], 1);
        let table = report.table();
        assert!(table.contains("100 operations in 2.00 s: 50 operations/s, 1 errors"), "{table}");
        assert!(table.contains("errors: update exists: 1"), "{table}");
    }
}
