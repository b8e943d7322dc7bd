//! `WAIT`, `LATENCY`, `MEMORY`: what operators' tools ask a Redis, as far as there is something to say.

use super::errors::{self, NOT_AN_INTEGER, unknown_subcommand, wrong_arity};
use super::is;
use super::request::{Aspect, Request};
use crate::frame::{Command, Reply, parse_integer};
use crate::shared::Shared;
use crate::store::Store;

/// How many copies, beside the leader's, every write has that was answered: at once, as no later one has to be waited for.
pub(super) fn wait<S: Store>(command: &Command<'_>, shared: &Shared<S>) -> Reply {
    let (Some(_), Some(timeout)) = (parse_integer(command.arg(1)), parse_integer(command.arg(2))) else {
        return match parse_integer(command.arg(1)) {
            None => NOT_AN_INTEGER,
            Some(_) => Reply::error("ERR timeout is not an integer or out of range"),
        };
    };
    if timeout < 0 {
        return Reply::error("ERR timeout is negative");
    }
    Reply::Integer(i64::from(shared.store.copies()))
}

/// Events are not kept: metrics and the slow log are.
pub(super) fn latency(command: &Command<'_>) -> Reply {
    let names = command.len() - 2;
    match command.arg(1) {
        word if is(word, "latest") && names == 0 => Reply::Array(vec![]),
        word if is(word, "history") && names == 1 => Reply::Array(vec![]),
        word if is(word, "reset") => Reply::Integer(0),
        word if is(word, "histogram") => Reply::Map(vec![]),
        word if is(word, "doctor") && names == 0 => {
            Reply::Text("Latencies are in the metrics (sextant_resp_command_seconds), and in SLOWLOG.".into())
        }
        word if ["latest", "history", "doctor"].iter().any(|name| is(word, name)) => {
            let name = String::from_utf8_lossy(word).to_ascii_lowercase();
            wrong_arity(&format!("latency|{name}"))
        }
        _ => unknown_subcommand(command, "LATENCY"),
    }
}

pub(super) fn memory(command: &Command<'_>) -> Result<Request, Reply> {
    let word = command.arg(1);
    let about_usage = is(word, "usage");
    if about_usage && command.len() >= 3 {
        match command.len() {
            3 => {}
            5 if is(command.arg(3), "samples") => {
                let samples = parse_integer(command.arg(4)).ok_or(NOT_AN_INTEGER)?;
                if samples < 0 {
                    return Err(errors::SYNTAX);
                }
            }
            _ => return Err(errors::SYNTAX),
        }
        return Ok(Request::Inspect(super::data::key(command, 2)?, Aspect::Bytes));
    }
    Err(match command.len() {
        2 if is(word, "doctor") => {
            Reply::Text("What is used is in the metrics: each server has bounds of its own.".into())
        }
        2 if is(word, "purge") => Reply::OK,
        2 if is(word, "stats") => Reply::Map(vec![]),
        _ if ["usage", "doctor", "purge", "stats"].iter().any(|name| is(word, name)) => {
            wrong_arity(&format!("memory|{}", String::from_utf8_lossy(word).to_ascii_lowercase()))
        }
        _ => unknown_subcommand(command, "MEMORY"),
    })
}
