//! `AUTH` where there are users, and `ACL`: who they are, and what they may do.

use std::net::SocketAddr;
use std::sync::Arc;

use futures::future::BoxFuture;
use sextant_access::Desk;

use super::errors::{store_error, unknown_subcommand, wrong_arity};
use super::{Action, Conversation, is};
use crate::frame::{Command, Reply};
use crate::who::{DEFAULT_USER, not_permitted};

/// What a conversation becomes when something has been waited for, and what is answered.
pub(crate) type Waited = Box<dyn FnOnce(&mut Conversation) -> Reply + Send>;

/// Asks the desk who `name` is; `then` answers to who has shown it.
pub(super) fn authenticate(
    desk: Arc<Desk>,
    name: &[u8],
    password: &[u8],
    from: Option<SocketAddr>,
    then: impl FnOnce(&mut Conversation) -> Reply + Send + 'static,
) -> Action {
    let name = String::from_utf8_lossy(name).into_owned();
    let password = password.to_vec();
    let waits: BoxFuture<'static, Waited> = Box::pin(async move {
        let authenticated = desk.authenticate(&name, &password, from).await;
        let waited: Waited = match authenticated {
            Ok(principal) => Box::new(move |conversation: &mut Conversation| {
                conversation.who.becomes(principal);
                conversation.show_user();
                then(conversation)
            }),
            Err(e) if e.kind == sextant_common::ErrorKind::Unauthenticated => {
                Box::new(|_: &mut Conversation| {
                    Reply::error("WRONGPASS invalid username-password pair or user is disabled.")
                })
            }
            Err(e) => Box::new(move |_: &mut Conversation| store_error(&e)),
        };
        waited
    });
    Action::Wait(waits)
}

pub(super) fn acl(command: &Command<'_>, conversation: &mut Conversation) -> Action {
    const SUBCOMMANDS: [(&str, usize, bool); 8] = [
        ("whoami", 2, false),
        ("cat", 0, false),
        ("help", 2, false),
        ("list", 2, true),
        ("users", 2, true),
        ("getuser", 3, true),
        ("setuser", 0, true),
        ("deluser", 0, true),
    ];
    let subcommand = command.arg(1);
    let Some((name, len, is_admins)) = SUBCOMMANDS.into_iter().find(|(name, ..)| is(subcommand, name)) else {
        return Action::Reply(unknown_subcommand(command, "ACL"));
    };
    if (len != 0 && command.len() != len) || (["setuser", "deluser"].contains(&name) && command.len() < 3) {
        return Action::Reply(wrong_arity(&format!("acl|{name}")));
    }
    if is_admins && !conversation.who.may_administrate() {
        let command = format!("acl|{name}");
        conversation.who.refused(&command);
        return Action::Reply(not_permitted(&command));
    }
    let Some(desk) = conversation.who.desk().cloned() else {
        return Action::Reply(without_access_control(name, command));
    };
    let reply = match name {
        "whoami" => bulk(conversation.who.name().to_owned()),
        "cat" => categories(command),
        "help" => help(),
        "list" => lines(desk.list().iter().map(|(name, words)| format!("user {name} {words}"))),
        "users" => lines(desk.list().into_iter().map(|(name, _)| name)),
        "getuser" => {
            let asked = String::from_utf8_lossy(command.arg(2)).into_owned();
            let found = desk.list().into_iter().find(|(name, _)| *name == asked);
            found.map_or(Reply::Nil, |(_, words)| described(&words))
        }
        "setuser" => return set_user(desk, command, conversation),
        _ => return delete_users(desk, command, conversation),
    };
    Action::Reply(reply)
}

/// Everybody is the default user, who may do everything.
fn without_access_control(name: &str, command: &Command<'_>) -> Reply {
    match name {
        "whoami" => Reply::bulk(DEFAULT_USER),
        "cat" => categories(command),
        "help" => help(),
        "users" => lines([DEFAULT_USER.to_owned()]),
        "list" => lines([format!("user {DEFAULT_USER} on nopass ~* +@all")]),
        "getuser" if command.arg(2) == DEFAULT_USER.as_bytes() => described("on nopass ~* +@all"),
        "getuser" => Reply::Nil,
        _ => Reply::error("ERR there are no users here: the p-node's configuration has no section [access]"),
    }
}

fn set_user(desk: Arc<Desk>, command: &Command<'_>, conversation: &mut Conversation) -> Action {
    let mut words = Vec::new();
    for i in 2..command.len() {
        match std::str::from_utf8(command.arg(i)) {
            Ok(word) => words.push(word.to_owned()),
            Err(_) => {
                return Action::Reply(Reply::error("ERR Error in ACL SETUSER modifier: it is not UTF-8"));
            }
        }
    }
    let name = words.remove(0);
    let by = conversation.who.name().to_owned();
    wait(async move {
        match desk.set(&by, &name, words).await {
            Ok(()) => Reply::OK,
            Err(e) if e.kind == sextant_common::ErrorKind::Invalid => {
                Reply::error(format!("ERR Error in ACL SETUSER modifier: {}", e.message))
            }
            Err(e) => store_error(&e),
        }
    })
}

fn delete_users(desk: Arc<Desk>, command: &Command<'_>, conversation: &mut Conversation) -> Action {
    let names: Vec<_> =
        (2..command.len()).map(|i| String::from_utf8_lossy(command.arg(i)).into_owned()).collect();
    let by = conversation.who.name().to_owned();
    wait(async move {
        let mut removed = 0;
        for name in &names {
            match desk.remove(&by, name).await {
                Ok(was_there) => removed += i64::from(was_there),
                Err(e) => return store_error(&e),
            }
        }
        Reply::Integer(removed)
    })
}

/// What is answered when the future is ready, and changes nothing for the conversation.
fn wait(answer: impl Future<Output = Reply> + Send + 'static) -> Action {
    Action::Wait(Box::pin(async move {
        let reply = answer.await;
        let waited: Waited = Box::new(move |_: &mut Conversation| reply);
        waited
    }))
}

fn bulk(text: String) -> Reply {
    Reply::Bulk(text.into())
}

fn lines(lines: impl IntoIterator<Item = String>) -> Reply {
    Reply::Array(lines.into_iter().map(bulk).collect())
}

fn categories(command: &Command<'_>) -> Reply {
    use crate::command_table::COMMANDS;

    const CATEGORIES: [(&str, &str); 4] =
        [("read", "readonly"), ("write", "write"), ("admin", "admin"), ("dangerous", "dangerous")];
    if command.len() == 2 {
        return lines(CATEGORIES.map(|(name, _)| name.to_owned()));
    }
    match CATEGORIES.into_iter().find(|(name, _)| command.len() == 3 && is(command.arg(2), name)) {
        Some((_, flag)) => {
            lines(COMMANDS.iter().filter(|c| c.flags.contains(&flag)).map(|c| c.name.to_owned()))
        }
        None if command.len() == 3 => {
            let name = String::from_utf8_lossy(command.arg(2));
            Reply::error(format!("ERR Unknown category '{}'", name.escape_default()))
        }
        None => wrong_arity("acl|cat"),
    }
}

fn help() -> Reply {
    let text = [
        "ACL <subcommand> [<arg> ...]. Subcommands are:",
        "CAT [<category>]: the classes that rights are given for, or the commands of one",
        "DELUSER <name> [<name> ...]",
        "GETUSER <name>",
        "LIST: users and their rules",
        "SETUSER <name> [on|off] [><password>|<<password>|nopass|resetpass] [~<keys>|%R~<keys>|%W~<keys>|resetkeys]",
        "    [table=<name>|resettables] [+@read|+@write|+@admin|+@dangerous|+@all|-@...] [reset]: patterns end with * or have none",
        "USERS: their names",
        "WHOAMI",
    ];
    lines(text.map(str::to_owned))
}

/// In the form of Redis 7: flags, passwords, commands, keys, channels, selectors.
fn described(words: &str) -> Reply {
    let all: Vec<&str> = words.split(' ').collect();
    let of = |keep: fn(&str) -> bool| all.iter().copied().filter(|word| keep(word)).collect::<Vec<_>>();
    let flags = of(|w| ["on", "off", "nopass", "superuser"].contains(&w));
    Reply::Map(vec![
        (Reply::bulk("flags"), Reply::Set(flags.into_iter().map(|flag| bulk(flag.to_owned())).collect())),
        (Reply::bulk("passwords"), lines(of(|w| w.starts_with('#')).into_iter().map(str::to_owned))),
        (Reply::bulk("commands"), bulk(of(|w| w.starts_with(['+', '-'])).join(" "))),
        (Reply::bulk("keys"), bulk(of(|w| w.starts_with(['~', '%'])).join(" "))),
        (Reply::bulk("tables"), bulk(of(|w| w.starts_with("table=")).join(" "))),
        (Reply::bulk("channels"), Reply::bulk("")),
        (Reply::bulk("selectors"), Reply::Array(vec![])),
    ])
}
