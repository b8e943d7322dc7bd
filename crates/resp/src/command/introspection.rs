//! `COMMAND`: the table, for clients that route by it.

use super::errors::{unknown_subcommand, wrong_arity};
use super::is;
use crate::command_table::{COMMANDS, Spec, find};
use crate::frame::{Command, Reply};

pub(super) fn command(command: &Command<'_>) -> Reply {
    if command.len() == 1 {
        return Reply::Array(COMMANDS.iter().map(describe).collect());
    }
    let subcommand = command.arg(1);
    if is(subcommand, "count") {
        if command.len() != 2 {
            return wrong_arity("command|count");
        }
        return Reply::Integer(COMMANDS.len() as i64);
    }
    if is(subcommand, "info") {
        if command.len() == 2 {
            return Reply::Array(COMMANDS.iter().map(describe).collect());
        }
        let named = (2..command.len()).map(|i| find(command.arg(i)).map_or(Reply::Nil, describe));
        return Reply::Array(named.collect());
    }
    if is(subcommand, "list") && command.len() == 2 {
        return Reply::Array(COMMANDS.iter().map(|spec| Reply::bulk(spec.name)).collect());
    }
    if is(subcommand, "getkeys") {
        return keys_of(command);
    }
    if is(subcommand, "docs") {
        // Nothing is documented here: clients take their own word for it.
        return Reply::Map(vec![]);
    }
    unknown_subcommand(command, "COMMAND")
}

/// Of the command that the arguments are.
fn keys_of(command: &Command<'_>) -> Reply {
    if command.len() < 3 {
        return wrong_arity("command|getkeys");
    }
    let Some(spec) = find(command.arg(2)) else { return Reply::error("ERR Invalid command specified") };
    let asked = command.from(2);
    if !spec.accepts(asked.len()) {
        return Reply::error("ERR Invalid number of arguments specified for command");
    }
    let places = spec.key_places(&asked);
    if places.is_empty() {
        return Reply::error("ERR The command has no key arguments");
    }
    Reply::Array(places.into_iter().map(|at| Reply::Bulk(asked.bytes(at))).collect())
}

/// The ten fields of Redis 7.
fn describe(spec: &Spec) -> Reply {
    let (first, last, step) = spec.keys;
    Reply::Array(vec![
        Reply::bulk(spec.name),
        Reply::Integer(spec.arity),
        Reply::Set(spec.flags.iter().map(|flag| Reply::Simple(flag)).collect()),
        Reply::Integer(first),
        Reply::Integer(last),
        Reply::Integer(step),
        Reply::Set(vec![]),
        Reply::Array(vec![]),
        Reply::Array(vec![]),
        Reply::Array(vec![]),
    ])
}
