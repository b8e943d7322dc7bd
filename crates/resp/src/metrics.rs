//! Metrics of the front end.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::command_table::{Access, COMMANDS, Id};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CommandLabel {
    command: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AccessLabel {
    access: &'static str,
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
    pub bytes_read: Counter,
    pub bytes_written: Counter,
    /// By id; the last is for unknown commands.
    commands: Vec<Counter>,
    waited_read: Histogram,
    waited_write: Histogram,
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
        let bytes_read = counter("read_bytes", "Bytes read from clients");
        let bytes_written = counter("written_bytes", "Bytes written to clients");
        let by_command = Family::<CommandLabel, Counter>::default();
        registry.register("commands", "Commands received", by_command.clone());
        let commands = COMMANDS
            .iter()
            .map(|spec| spec.name)
            .chain(["unknown"])
            .map(|command| by_command.get_or_create_owned(&CommandLabel { command }))
            .collect();
        // 16 us to about 17 s.
        let waited = Family::<AccessLabel, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(16e-6, 2.0, 21))
        });
        registry.register_with_unit(
            "command_wait",
            "Time that commands waited for the store (those that waited at all)",
            Unit::Seconds,
            waited.clone(),
        );
        Self(Arc::new(Metrics {
            connections,
            accepted,
            refused,
            protocol_errors,
            error_replies,
            refused_commands,
            bytes_read,
            bytes_written,
            commands,
            waited_read: waited.get_or_create_owned(&AccessLabel { access: "read" }),
            waited_write: waited.get_or_create_owned(&AccessLabel { access: "write" }),
        }))
    }
}

impl Metrics {
    pub fn commands(&self, id: Option<Id>) -> &Counter {
        &self.commands[id.map_or(COMMANDS.len(), |id| id as usize)]
    }

    pub fn waited(&self, access: Access) -> &Histogram {
        match access {
            Access::Read => &self.waited_read,
            Access::Write => &self.waited_write,
        }
    }

    /// The `Stats` section of `INFO`.
    pub fn info(&self) -> Vec<(String, String)> {
        let commands: u64 = self.commands.iter().map(|c| c.get()).sum();
        [
            ("total_connections_received", self.accepted.get()),
            ("total_commands_processed", commands),
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

/// Counts of one connection that are added to the shared counters once a turn: a pipeline of equal commands costs one
/// atomic operation, not one each.
#[derive(Default)]
pub(crate) struct Tally {
    last: Option<Option<Id>>,
    count: u64,
}

impl Tally {
    pub fn add(&mut self, id: Option<Id>, metrics: &Metrics) {
        if self.last != Some(id) {
            self.flush(metrics);
            self.last = Some(id);
        }
        self.count += 1;
    }

    pub fn flush(&mut self, metrics: &Metrics) {
        if let Some(id) = self.last
            && self.count > 0
        {
            metrics.commands(id).inc_by(self.count);
            self.count = 0;
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
            tally.add(id, &metrics);
        }
        tally.flush(&metrics);
        tally.flush(&metrics);
        assert_eq!(metrics.commands(Some(Id::Get)).get(), 3);
        assert_eq!(metrics.commands(Some(Id::Set)).get(), 1);
        assert_eq!(metrics.commands(None).get(), 1);
    }
}
