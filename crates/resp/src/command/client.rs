//! `CLIENT`: what clients say about themselves, and who is connected.

mod kill;

use super::errors::{NOT_AN_INTEGER, SYNTAX, unknown_subcommand, unsupported, wrong_arity};
use super::hello::{bad_name, is_valid_name};
use super::{Action, Conversation, Release, Wanted, is};
use crate::config::Order;
use crate::frame::{Command, Reply, parse_integer};
use crate::shared::Shared;
use crate::store::Store;
use crate::who::not_permitted;

/// How many arguments each has, its name and the command's included; 0: several numbers of them.
const SUBCOMMANDS: [(&str, usize); 12] = [
    ("id", 2),
    ("info", 2),
    ("getname", 2),
    ("setname", 3),
    ("setinfo", 4),
    ("no-evict", 3),
    ("no-touch", 3),
    ("list", 0),
    ("kill", 0),
    ("order", 3),
    ("reply", 3),
    ("unblock", 0),
];
/// Whoever may administrate has these.
const OF_OTHERS: [&str; 3] = ["list", "kill", "unblock"];

/// These are not for transactions.
const AT_ONCE: [&str; 2] = ["kill", "reply"];

const NOT_TRACKED: &str = "no keys are tracked: p-nodes tell each other nothing of them";
const NOT_PAUSED: &str = "the clients of other p-nodes would go on";
/// Subcommands of Redis that are not there, and why not.
const REFUSED: [(&str, &str); 6] = [
    ("caching", NOT_TRACKED),
    ("getredir", NOT_TRACKED),
    ("tracking", NOT_TRACKED),
    ("trackinginfo", NOT_TRACKED),
    ("pause", NOT_PAUSED),
    ("unpause", NOT_PAUSED),
];

pub(super) fn client<S: Store>(
    command: &Command<'_>,
    conversation: &mut Conversation,
    shared: &Shared<S>,
) -> Action {
    Action::Reply(match subcommand(command, conversation) {
        Ok("kill") => return kill::kill(command, conversation, shared),
        Ok(name) => answer(name, command, conversation, shared),
        Err(refused) => refused,
    })
}

/// Which one it is, if it may be run.
fn subcommand(command: &Command<'_>, conversation: &mut Conversation) -> Result<&'static str, Reply> {
    let subcommand = command.arg(1);
    if let Some((name, why)) = REFUSED.into_iter().find(|(name, _)| is(subcommand, name)) {
        let name = name.to_ascii_uppercase();
        return Err(unsupported(&format!("CLIENT {name}"), why));
    }
    let Some((name, len)) = SUBCOMMANDS.into_iter().find(|(name, _)| is(subcommand, name)) else {
        return Err(unknown_subcommand(command, "CLIENT"));
    };
    if len != 0 && command.len() != len || name == "kill" && command.len() == 2 {
        return Err(wrong_arity(&format!("client|{name}")));
    }
    if OF_OTHERS.contains(&name) && !conversation.who.may_administrate() {
        let command = format!("client|{name}");
        conversation.who.refused(&command);
        return Err(not_permitted(&command));
    }
    // It would take effect at once, whatever becomes of the transaction.
    if AT_ONCE.contains(&name) && conversation.transactions.is_open() {
        conversation.transactions.refuse();
        return Err(Reply::error("ERR Command not allowed inside a transaction"));
    }
    Ok(name)
}

fn answer<S: Store>(
    name: &str,
    command: &Command<'_>,
    conversation: &mut Conversation,
    shared: &Shared<S>,
) -> Reply {
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
        "reply" => {
            conversation.wanted = match command.arg(2) {
                wanted if is(wanted, "on") => Wanted::All,
                wanted if is(wanted, "off") => Wanted::None,
                wanted if is(wanted, "skip") => conversation.wanted.but_the_next(),
                _ => return SYNTAX,
            };
            Reply::OK
        }
        "unblock" => unblock(command, shared),
        "list" => list(command, shared),
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

fn list<S: Store>(command: &Command<'_>, shared: &Shared<S>) -> Reply {
    let now_ns = shared.now_ns();
    match command.len() {
        2 => Reply::Text(shared.clients.list(now_ns)),
        4 if is(command.arg(2), "type") => match is_everybody(command.arg(3)) {
            Ok(true) => Reply::Text(shared.clients.list(now_ns)),
            Ok(false) => Reply::Text(String::new()),
            Err(unknown) => unknown,
        },
        4.. if is(command.arg(2), "id") => {
            let ids: Option<Vec<i64>> = (3..command.len()).map(|at| parse_integer(command.arg(at))).collect();
            let Some(ids) = ids else { return Reply::error("ERR Invalid client ID") };
            let ids: Vec<u64> = ids.into_iter().filter_map(|id| u64::try_from(id).ok()).collect();
            Reply::Text(shared.clients.list_of(&ids, now_ns))
        }
        _ => SYNTAX,
    }
}

/// Whether all clients are of this type, or none.
fn is_everybody(kind: &[u8]) -> Result<bool, Reply> {
    if is(kind, "normal") {
        Ok(true)
    } else if ["master", "replica", "slave", "pubsub"].iter().any(|k| is(kind, k)) {
        Ok(false)
    } else {
        let kind = String::from_utf8_lossy(kind).into_owned();
        Err(Reply::error(format!("ERR Unknown client type '{kind}'")))
    }
}
