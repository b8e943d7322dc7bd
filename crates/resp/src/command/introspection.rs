//! `COMMAND`: the table, for clients that route by it.

use super::errors::{SYNTAX, unknown_subcommand, wrong_arity};
use super::is;
use super::scan::glob;
use crate::command_table::{COMMANDS, Family, Spec, find};
use crate::frame::{Command, Reply};

/// Each takes a hundred times as long to answer as to ask for.
const NAMES_MAX: usize = 1024;

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
        if command.len() - 2 > NAMES_MAX {
            return Reply::error(format!("ERR COMMAND INFO takes up to {NAMES_MAX} names"));
        }
        let named = (2..command.len()).map(|i| find(command.arg(i)).map_or(Reply::Nil, describe));
        return Reply::Array(named.collect());
    }
    if is(subcommand, "list") {
        return list(command).unwrap_or_else(|refused| refused);
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

/// `[FILTERBY MODULE name|ACLCAT category|PATTERN pattern]`.
fn list(command: &Command<'_>) -> Result<Reply, Reply> {
    let names = |is_asked: &dyn Fn(&Spec) -> bool| {
        Reply::Array(
            COMMANDS.iter().filter(|spec| is_asked(spec)).map(|spec| Reply::bulk(spec.name)).collect(),
        )
    };
    match command.len() {
        2 => return Ok(names(&|_| true)),
        5 if is(command.arg(2), "filterby") => {}
        _ => return Err(SYNTAX),
    }
    let (by, value) = (command.arg(3), command.arg(4).to_ascii_lowercase());
    if is(by, "module") {
        Ok(names(&|_| false))
    } else if is(by, "aclcat") {
        Ok(names(&|spec| categories(spec).any(|category| category.as_bytes()[1..] == value)))
    } else if is(by, "pattern") {
        let pattern = glob(&value)?;
        Ok(names(&|spec| pattern.matches(spec.name.as_bytes(), &mut 0)))
    } else {
        Err(SYNTAX)
    }
}

/// The categories of Redis that tell what a command does. (Users have rights by fewer: `ACL CAT`.)
fn categories(spec: &Spec) -> impl Iterator<Item = &'static str> {
    let has = |flag: &str| spec.flags.contains(&flag);
    let of = match spec.of {
        Family::Hash => Some("@hash"),
        Family::Set => Some("@set"),
        Family::Sorted => Some("@sortedset"),
        Family::List => Some("@list"),
        Family::Record if ["object", "memory"].contains(&spec.name) => None,
        Family::Record if OF_ANY_KEY.contains(&spec.name) => Some("@keyspace"),
        Family::Record => Some("@string"),
        Family::Server if OF_ALL_KEYS.contains(&spec.name) => Some("@keyspace"),
        Family::Server if OF_TRANSACTIONS.contains(&spec.name) => Some("@transaction"),
        Family::Server if OF_CONNECTIONS.contains(&spec.name) => Some("@connection"),
        Family::Server => None,
    };
    let touches_keys = of.is_some_and(|of| of != "@transaction");
    let is_dangerous = has("dangerous") || ["info", "keys", "role"].contains(&spec.name);
    let where_it_belongs = |names: &[&str]| of.filter(|of| names.contains(of));
    // (In the order of Redis.)
    [
        where_it_belongs(&["@keyspace"]),
        (touches_keys && has("readonly")).then_some("@read"),
        (has("write") || has("dangerous")).then_some("@write"),
        where_it_belongs(&["@set", "@sortedset", "@list", "@hash", "@string"]),
        (spec.name == "role").then_some("@admin"),
        Some(if has("fast") { "@fast" } else { "@slow" }),
        has("blocking").then_some("@blocking"),
        is_dangerous.then_some("@dangerous"),
        where_it_belongs(&["@connection", "@transaction"]),
    ]
    .into_iter()
    .flatten()
}

const OF_ANY_KEY: [&str; 17] = [
    "copy",
    "del",
    "exists",
    "expire",
    "expireat",
    "expiretime",
    "persist",
    "pexpire",
    "pexpireat",
    "pexpiretime",
    "pttl",
    "rename",
    "renamenx",
    "touch",
    "ttl",
    "type",
    "unlink",
];
const OF_ALL_KEYS: [&str; 6] = ["dbsize", "flushall", "flushdb", "keys", "randomkey", "scan"];
const OF_TRANSACTIONS: [&str; 5] = ["discard", "exec", "multi", "unwatch", "watch"];
const OF_CONNECTIONS: [&str; 9] =
    ["auth", "command", "echo", "hello", "ping", "quit", "reset", "select", "wait"];

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
        Reply::Set(categories(spec).map(Reply::Simple).collect()),
        Reply::Array(vec![]),
        Reply::Array(vec![]),
        Reply::Array(vec![]),
    ])
}
