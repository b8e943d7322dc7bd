//! `CONFIG`: what clients, benchmarks and libraries ask for on connecting.

use sextant_common::database::Database;
use sextant_common::limits::VALUE_BYTES_MAX;

use super::errors::{unknown_subcommand, wrong_arity};
use super::is;
use super::scan::glob;
use crate::config::RespConfig;
use crate::frame::{Command, Reply};

/// Each is compared with all parameters, while others wait.
const PATTERNS_MAX: usize = 128;

pub(super) fn config(command: &Command<'_>, settings: &RespConfig) -> Reply {
    if let Some(name) = ["set", "rewrite", "resetstat"].iter().find(|name| is(command.arg(1), name)) {
        let name = name.to_ascii_uppercase();
        return Reply::error(format!(
            "ERR CONFIG {name} is not supported: settings are in the servers' files"
        ));
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
    let mut parameters = parameters(settings).map(|parameter| (parameter, false));
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

fn parameters(settings: &RespConfig) -> [(&'static str, String); 11] {
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
        ("tcp-keepalive", settings.tcp_keepalive_s.to_string()),
        ("timeout", settings.idle_timeout().map_or(0, |idle| idle.as_secs().max(1)).to_string()),
    ]
}

/// There is none.
pub(super) const EVICTION: &str = "noeviction";
