//! `CONFIG`: only what clients and benchmarks ask for on connecting.

use sextant_common::database::Database;

use super::errors::{unknown_subcommand, wrong_arity};
use super::is;
use crate::config::RespConfig;
use crate::frame::{Command, Reply};

pub(super) fn config(command: &Command<'_>, settings: &RespConfig) -> Reply {
    if !is(command.arg(1), "get") {
        return unknown_subcommand(command, "CONFIG");
    }
    if command.len() < 3 {
        return wrong_arity("config|get");
    }
    // (There are no snapshots to schedule, and every write is synced before it is acknowledged.)
    let parameters = [
        ("appendonly", "yes".to_owned()),
        ("databases", Database::COUNT.to_string()),
        ("save", String::new()),
        ("tcp-keepalive", settings.tcp_keepalive_s.to_string()),
    ];
    let asked = |name: &str| (2..command.len()).any(|i| command.arg(i) == b"*" || is(command.arg(i), name));
    let found = parameters.into_iter().filter(|(name, _)| asked(name));
    Reply::Map(found.map(|(name, value)| (Reply::bulk(name), Reply::Bulk(value.into()))).collect())
}
