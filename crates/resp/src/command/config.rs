//! `CONFIG`: what clients, benchmarks and libraries ask for on connecting.

use sextant_common::database::Database;
use sextant_common::limits::VALUE_BYTES_MAX;
use sextant_environment::slow_log::{KEPT_MAX, SlowLog};

use super::errors::{unknown_subcommand, unsupported, wrong_arity};
use super::is;
use super::scan::glob;
use crate::config::RespConfig;
use crate::frame::{Command, Reply};
use crate::shared::Shared;

/// Each is compared with all parameters, while others wait.
const PATTERNS_MAX: usize = 128;

pub(super) fn config<S>(command: &Command<'_>, shared: &Shared<S>) -> Reply {
    if let Some(name) = ["set", "rewrite", "resetstat"].iter().find(|name| is(command.arg(1), name)) {
        let name = name.to_ascii_uppercase();
        return unsupported(&format!("CONFIG {name}"), "settings are in the servers' files");
    }
    if !is(command.arg(1), "get") {
        return unknown_subcommand(command, "CONFIG");
    }
    if command.len() < 3 {
        return wrong_arity("config|get");
    }
    if command.len() - 2 > PATTERNS_MAX {
        return Reply::error(format!("ERR CONFIG GET takes up to {PATTERNS_MAX} patterns"));
    }
    let mut parameters = parameters(&shared.config, &shared.slow).map(|parameter| (parameter, false));
    // One pattern at a time: compiled, it may be a hundred times as long.
    for at in 2..command.len() {
        let pattern = match glob(&command.arg(at).to_ascii_lowercase()) {
            Ok(pattern) => pattern,
            Err(refused) => return refused,
        };
        for ((name, _), is_asked) in &mut parameters {
            *is_asked |= pattern.matches(name.as_bytes(), &mut 0);
        }
    }
    let found = parameters.into_iter().filter(|(_, is_asked)| *is_asked).map(|(parameter, _)| parameter);
    Reply::Map(found.map(|(name, value)| (Reply::bulk(name), Reply::Bulk(value.into()))).collect())
}

fn parameters(settings: &RespConfig, slow: &SlowLog) -> [(&'static str, String); 13] {
    [
        // Every write is synced before it is acknowledged, and there are no snapshots to schedule.
        ("appendonly", "yes".into()),
        ("appendfsync", "always".into()),
        ("save", String::new()),
        ("databases", Database::COUNT.to_string()),
        ("maxclients", settings.max_connections.to_string()),
        // Nothing is evicted.
        ("maxmemory", "0".into()),
        ("maxmemory-policy", EVICTION.into()),
        ("notify-keyspace-events", String::new()),
        ("proto-max-bulk-len", VALUE_BYTES_MAX.to_string()),
        ("slowlog-log-slower-than", slower_than_us(slow).to_string()),
        ("slowlog-max-len", KEPT_MAX.to_string()),
        ("tcp-keepalive", settings.tcp_keepalive_s.to_string()),
        ("timeout", settings.idle_timeout().map_or(0, |idle| idle.as_secs().max(1)).to_string()),
    ]
}

/// In microseconds; -1: nothing is slow.
fn slower_than_us(slow: &SlowLog) -> i64 {
    slow.threshold_ns().map_or(-1, |ns| i64::try_from(ns / 1_000).unwrap_or(i64::MAX))
}

/// There is none.
pub(super) const EVICTION: &str = "noeviction";

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;
    use sextant_environment::Env;
    use sextant_environment::slow_log::Done;

    use super::*;

    fn slow_from(threshold_ms: u64) -> SlowLog {
        SlowLog::new(Env::real().clock, threshold_ms, &mut Registry::default())
    }

    #[test]
    fn what_is_slow_is_told_in_microseconds() {
        for (threshold_ms, told_us) in [(0, -1), (1, 1_000), (37, 37_000), (3_600_000, 3_600_000_000)] {
            assert_eq!(slower_than_us(&slow_from(threshold_ms)), told_us);
        }
    }

    #[test]
    fn as_many_slow_commands_are_kept_as_is_told() {
        let slow = slow_from(1);
        for _ in 0..=KEPT_MAX {
            let done = Done {
                operation: "get",
                client: String::new(),
                request: None,
                key: None,
                took_ns: 2_000_000,
            };
            slow.note(done, None);
        }
        assert_eq!(slow.len(), KEPT_MAX);
    }
}
