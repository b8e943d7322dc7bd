//! Metrics of the front end.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sextant_environment::latency::Latencies;

use crate::command_table::{COMMANDS, Id, Spec};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CommandLabel {
    command: &'static str,
}

/// Cheap to clone. One set for each registry: registering twice would name every metric twice.
#[derive(Clone, Debug)]
pub struct RespMetrics(pub(crate) Arc<Metrics>);

#[derive(Debug)]
pub(crate) struct Metrics {
    pub connections: Gauge,
    pub accepted: Counter,
    pub refused: Counter,
    pub protocol_errors: Counter,
    pub error_replies: Counter,
    pub refused_commands: Counter,
    pub refused_for_room: Counter,
    pub bytes_read: Counter,
    pub bytes_written: Counter,
    /// By id; the last is for unknown commands.
    commands: Vec<Counter>,
    /// The same.
    took: Vec<Latencies>,
    pace: Mutex<Pace>,
}

impl RespMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("sextant_resp");
        let connections = Gauge::default();
        registry.register("connections", "Open connections", connections.clone());
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        let accepted = counter("connections_accepted", "Connections accepted");
        let refused = counter("connections_refused", "Connections refused for want of room");
        let protocol_errors = counter("protocol_errors", "Connections closed because of malformed input");
        let error_replies = counter("error_replies", "Error replies sent");
        let refused_commands = counter("commands_refused", "Commands whose user may not run them");
        let refused_for_room =
            counter("commands_without_room", "Long commands that were not received for want of room");
        let bytes_read = counter("read_bytes", "Bytes read from clients");
        let bytes_written = counter("written_bytes", "Bytes written to clients");
        let by_command = Family::<CommandLabel, Counter>::default();
        registry.register("commands", "Commands received", by_command.clone());
        let took = Family::<CommandLabel, Latencies>::default();
        registry.register(
            "command_seconds",
            "Time from when a command was read until its reply was there",
            took.clone(),
        );
        let labels = COMMANDS.iter().map(|spec| spec.name).chain(["unknown"]);
        let labels = labels.map(|command| CommandLabel { command });
        let commands = labels.clone().map(|label| by_command.get_or_create_owned(&label)).collect();
        let took = labels.map(|label| took.get_or_create_owned(&label)).collect();
        Self(Arc::new(Metrics {
            connections,
            accepted,
            refused,
            protocol_errors,
            error_replies,
            refused_commands,
            refused_for_room,
            bytes_read,
            bytes_written,
            commands,
            took,
            pace: Mutex::default(),
        }))
    }
}

impl Metrics {
    pub fn commands(&self, id: Option<Id>) -> &Counter {
        &self.commands[place(id)]
    }

    pub fn took(&self, id: Option<Id>) -> &Latencies {
        &self.took[place(id)]
    }

    /// The `Stats` section of `INFO`.
    pub fn info(&self, now_ns: u64) -> Vec<(String, String)> {
        let commands: u64 = self.commands.iter().map(|c| c.get()).sum();
        [
            ("total_connections_received", self.accepted.get()),
            ("total_commands_processed", commands),
            ("instantaneous_ops_per_sec", self.pace.lock().at(now_ns, commands)),
            ("evicted_keys", 0),
            ("pubsub_channels", 0),
            ("pubsub_patterns", 0),
            ("latest_fork_usec", 0),
            ("rejected_connections", self.refused.get()),
            ("total_net_input_bytes", self.bytes_read.get()),
            ("total_net_output_bytes", self.bytes_written.get()),
            ("total_error_replies", self.error_replies.get()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_string()))
        .collect()
    }
}

impl Metrics {
    /// The `Commandstats` section of `INFO`: of the commands that have come.
    pub fn commandstats(&self) -> Vec<(String, String)> {
        let of = |spec: &Spec| {
            let calls = self.commands(Some(spec.id)).get();
            let took_us = self.took(Some(spec.id)).sum_ns() / 1000;
            let each = took_us as f64 / calls.max(1) as f64;
            let line = format!("calls={calls},usec={took_us},usec_per_call={each:.2}");
            (calls > 0).then(|| (format!("cmdstat_{}", spec.name), line))
        };
        COMMANDS.iter().filter_map(of).collect()
    }
}

/// Commands a second since it was asked the last time, a second ago or longer.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    since_ns: u64,
    commands: u64,
    per_second: u64,
}

impl Pace {
    const LEAST_NS: u64 = 1_000_000_000;

    fn at(&mut self, now_ns: u64, commands: u64) -> u64 {
        let past_ns = now_ns.saturating_sub(self.since_ns);
        if past_ns >= Self::LEAST_NS {
            let per_second = commands.saturating_sub(self.commands) as f64 * 1e9 / past_ns as f64;
            *self = Self { since_ns: now_ns, commands, per_second: per_second.round() as u64 };
        }
        self.per_second
    }
}

/// Among the commands; the last place is for those that are unknown.
fn place(id: Option<Id>) -> usize {
    id.map_or(COMMANDS.len(), |id| id as usize)
}

/// Counts of one connection that are added to the shared counters once a turn: a pipeline of equal commands costs one
/// atomic operation, not one each, and those of them that were answered at once have taken equally long.
#[derive(Default)]
pub(crate) struct Tally {
    last: Option<Option<Id>>,
    count: u64,
    at_once: u64,
}

impl Tally {
    /// `took_ns`: how long it has been since the command was read; `at_once`: whether it is answered.
    pub fn add(&mut self, id: Option<Id>, at_once: bool, metrics: &Metrics, took_ns: impl FnOnce() -> u64) {
        if self.last != Some(id) {
            self.flush(metrics, took_ns);
            self.last = Some(id);
        }
        self.count += 1;
        self.at_once += u64::from(at_once);
    }

    pub fn flush(&mut self, metrics: &Metrics, took_ns: impl FnOnce() -> u64) {
        if let Some(id) = self.last
            && self.count > 0
        {
            metrics.commands(id).inc_by(self.count);
            if self.at_once > 0 {
                metrics.took(id).observe_many_ns(took_ns(), self.at_once);
            }
            (self.count, self.at_once) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_loses_nothing() {
        let metrics = RespMetrics::register(&mut Registry::default()).0;
        let mut tally = Tally::default();
        for id in [Some(Id::Get), Some(Id::Get), None, Some(Id::Get), Some(Id::Set)] {
            tally.add(id, id != Some(Id::Set), &metrics, || 10_000);
        }
        tally.flush(&metrics, || 10_000);
        tally.flush(&metrics, || 10_000);
        assert_eq!(metrics.commands(Some(Id::Get)).get(), 3);
        assert_eq!(metrics.commands(Some(Id::Set)).get(), 1);
        assert_eq!(metrics.commands(None).get(), 1);
        let took = [Some(Id::Get), None, Some(Id::Set)].map(|id| metrics.took(id).count());
        assert_eq!(took, [3, 1, 0], "a SET that waits is observed when it is done");
    }
}
