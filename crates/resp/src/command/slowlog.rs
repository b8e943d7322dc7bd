//! `SLOWLOG`: what took too long, and where the time went.

use bytes::Bytes;
use sextant_environment::slow_log::Slow;

use super::errors::{unknown_subcommand, wrong_arity};
use super::is;
use crate::frame::{Command, Reply};
use crate::shared::Shared;

/// Entries that are shown if nobody says how many.
const SHOWN: usize = 10;

pub(super) fn slowlog<S>(command: &Command<'_>, shared: &Shared<S>) -> Reply {
    let subcommand = command.arg(1);
    match (command.len(), subcommand) {
        (2 | 3, name) if is(name, "get") => match shown(command) {
            Some(count) => Reply::Array(shared.slow.latest(count).into_iter().map(entry).collect()),
            None => Reply::error("ERR count should be greater than or equal to -1"),
        },
        (2, name) if is(name, "len") => Reply::Integer(shared.slow.len() as i64),
        (2, name) if is(name, "reset") => {
            shared.slow.clear();
            Reply::OK
        }
        (_, name) if is(name, "get") => {
            let name = String::from_utf8_lossy(name).into_owned();
            Reply::error(format!(
                "ERR unknown subcommand or wrong number of arguments for '{name}'. Try SLOWLOG HELP."
            ))
        }
        (_, name) if is(name, "len") || is(name, "reset") => {
            wrong_arity(&format!("slowlog|{}", String::from_utf8_lossy(name).to_ascii_lowercase()))
        }
        _ => unknown_subcommand(command, "SLOWLOG"),
    }
}

/// How many are asked for; -1: all.
fn shown(command: &Command<'_>) -> Option<usize> {
    if command.len() == 2 {
        return Some(SHOWN);
    }
    let count: i64 = std::str::from_utf8(command.arg(2)).ok()?.parse().ok()?;
    if count == -1 { Some(usize::MAX) } else { usize::try_from(count).ok() }
}

/// As Redis shows it. Where the time went stands behind the arguments, of which only the first key is kept.
fn entry(slow: Slow) -> Reply {
    let key = slow.key.into_iter().map(Reply::Bulk);
    let arguments = [text(slow.operation)].into_iter().chain(key).chain([text(slow.time_went)]);
    Reply::Array(vec![
        Reply::Integer(slow.id as i64),
        Reply::Integer(slow.at_unix_s as i64),
        Reply::Integer((slow.took_ns / 1_000) as i64),
        Reply::Array(arguments.collect()),
        text(slow.client),
        text(slow.request.unwrap_or_default()),
    ])
}

fn text(text: String) -> Reply {
    Reply::Bulk(Bytes::from(text))
}
