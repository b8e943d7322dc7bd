//! `CONFIG`: only what clients and benchmarks ask for on connecting.

use super::errors::{unknown_subcommand, wrong_arity};
use super::is;
use crate::frame::{Command, Reply};

/// There are no snapshots to schedule, and every write is synced before it is acknowledged.
const PARAMETERS: [(&str, &str); 2] = [("appendonly", "yes"), ("save", "")];

pub(super) fn config(command: &Command<'_>) -> Reply {
    if !is(command.arg(1), "get") {
        return unknown_subcommand(command, "CONFIG");
    }
    if command.len() < 3 {
        return wrong_arity("config|get");
    }
    let asked = |name: &str| (2..command.len()).any(|i| command.arg(i) == b"*" || is(command.arg(i), name));
    let found = PARAMETERS.into_iter().filter(|(name, _)| asked(name));
    Reply::Map(found.map(|(name, value)| (Reply::bulk(name), Reply::bulk(value))).collect())
}
