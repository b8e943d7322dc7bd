//! `CLIENT`: what clients say about themselves, and who is connected.

use super::errors::{NOT_AN_INTEGER, SYNTAX, unknown_subcommand, wrong_arity};
use super::hello::{bad_name, is_valid_name};
use super::{Conversation, Release, is};
use crate::config::Order;
use crate::frame::{Command, Reply, parse_integer};
use crate::shared::Shared;
use crate::store::Store;
use crate::who::not_permitted;

pub(super) fn client<S: Store>(
    command: &Command<'_>,
    conversation: &mut Conversation,
    shared: &Shared<S>,
) -> Reply {
    const SUBCOMMANDS: [(&str, usize); 10] = [
        ("id", 2),
        ("info", 2),
        ("getname", 2),
        ("setname", 3),
        ("setinfo", 4),
        ("no-evict", 3),
        ("no-touch", 3),
        ("list", 0),
        ("order", 3),
        ("unblock", 0),
    ];
    let subcommand = command.arg(1);
    let Some((name, len)) = SUBCOMMANDS.into_iter().find(|(name, _)| is(subcommand, name)) else {
        return unknown_subcommand(command, "CLIENT");
    };
    if len != 0 && command.len() != len {
        return wrong_arity(&format!("client|{name}"));
    }
    if ["list", "unblock"].contains(&name) && !conversation.who.may_administrate() {
        let command = format!("client|{name}");
        conversation.who.refused(&command);
        return not_permitted(conversation.who.name(), &command);
    }
    match name {
        "id" => Reply::Integer(conversation.entry.id() as i64),
        "info" => Reply::Text(shared.clients.line(&conversation.entry, shared.now_ns())),
        "getname" => conversation.entry.name().map_or(Reply::Nil, Reply::Bulk),
        "setname" => {
            let name = command.arg(2);
            if !is_valid_name(name) {
                return bad_name();
            }
            conversation.entry.set_name(name);
            Reply::OK
        }
        "setinfo" => set_info(command, conversation),
        // Sextant's own.
        "order" => {
            conversation.order = match command.arg(2) {
                order if is(order, "keys") => Order::Keys,
                order if is(order, "pipeline") => Order::Pipeline,
                _ => return SYNTAX,
            };
            Reply::OK
        }
        "unblock" => unblock(command, shared),
        "list" => list(command, conversation, shared),
        // Nothing here evicts clients, or keeps a time of last access.
        _ if is(command.arg(2), "on") || is(command.arg(2), "off") => Reply::OK,
        _ => SYNTAX,
    }
}

fn set_info(command: &Command<'_>, conversation: &Conversation) -> Reply {
    let (attribute, value) = (command.arg(2), command.arg(3));
    let is_name = is(attribute, "lib-name");
    if !is_name && !is(attribute, "lib-ver") {
        let attribute = String::from_utf8_lossy(attribute).into_owned();
        return Reply::error(format!("ERR Unrecognized option '{attribute}'"));
    }
    if !is_valid_name(value) {
        let attribute = if is_name { "lib-name" } else { "lib-ver" };
        return Reply::error(format!(
            "ERR {attribute} cannot contain spaces, newlines or special characters."
        ));
    }
    conversation.entry.set_library(is_name, value);
    Reply::OK
}

/// `id [TIMEOUT|ERROR]`.
fn unblock<S: Store>(command: &Command<'_>, shared: &Shared<S>) -> Reply {
    let why = match command.len() {
        3 => Release::TimedOut,
        4 if is(command.arg(3), "timeout") => Release::TimedOut,
        4 if is(command.arg(3), "error") => Release::Told,
        4 => return Reply::error("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"),
        _ => return wrong_arity("client|unblock"),
    };
    match parse_integer(command.arg(2)) {
        Some(id) => {
            Reply::Integer(i64::from(u64::try_from(id).is_ok_and(|id| shared.clients.release(id, why))))
        }
        None => NOT_AN_INTEGER,
    }
}

fn list<S: Store>(command: &Command<'_>, conversation: &Conversation, shared: &Shared<S>) -> Reply {
    match command.len() {
        2 => Reply::Text(shared.clients.list(shared.now_ns())),
        4 if is(command.arg(2), "type") => {
            let kind = command.arg(3);
            if is(kind, "normal") {
                Reply::Text(shared.clients.list(shared.now_ns()))
            } else if ["master", "replica", "slave", "pubsub"].iter().any(|k| is(kind, k)) {
                Reply::Text(String::new())
            } else {
                let kind = String::from_utf8_lossy(kind).into_owned();
                Reply::error(format!("ERR Unknown client type '{kind}'"))
            }
        }
        4 if is(command.arg(2), "id") && command.arg(3) == conversation.entry.id().to_string().as_bytes() => {
            Reply::Text(shared.clients.line(&conversation.entry, shared.now_ns()))
        }
        _ => SYNTAX,
    }
}
