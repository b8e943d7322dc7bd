//! `HELLO`, `AUTH`, `SELECT`, `RESET`: the state of a connection.

use bytes::Bytes;
use sextant_common::database::Database;

use super::errors::{self, SYNTAX, store_error};
use super::info::REDIS_VERSION;
use super::{Action, Conversation, Waited, Wanted, acl, is};
use crate::config::Order;
use crate::frame::{Command, Protocol, Reply, parse_integer};
use crate::shared::Shared;
use crate::store::Store;
use crate::who::DEFAULT_USER;

pub(super) fn hello(command: &Command<'_>, conversation: &mut Conversation) -> Action {
    greet(command, conversation).unwrap_or_else(Action::Reply)
}

/// Whether a `HELLO` of so many arguments says who the client is, if it is understood.
pub(crate) fn has_password<'a>(len: usize, arg: impl Fn(usize) -> &'a [u8]) -> bool {
    let mut at = 2;
    while at + 1 < len && is(arg(at), "setname") {
        at += 2;
    }
    at + 2 < len && is(arg(at), "auth")
}

/// What is to be done, or why it is refused.
fn greet(command: &Command<'_>, conversation: &mut Conversation) -> Result<Action, Reply> {
    let protocol = match (command.len() > 1).then(|| parse_integer(command.arg(1))) {
        None => conversation.protocol,
        Some(None) => return Err(Reply::error("ERR Protocol version is not an integer or out of range")),
        Some(Some(2)) => Protocol::Resp2,
        Some(Some(3)) => Protocol::Resp3,
        Some(Some(_)) => return Err(Reply::error("NOPROTO unsupported protocol version")),
    };
    let mut user = None;
    let mut name = None;
    let mut i = 2;
    while i < command.len() {
        let left = command.len() - i - 1;
        if is(command.arg(i), "auth") && left >= 2 {
            user = Some(i + 1);
            i += 3;
        } else if is(command.arg(i), "setname") && left >= 1 {
            let bytes = command.bytes(i + 1);
            if !is_valid_name(&bytes) {
                return Err(bad_name());
            }
            name = Some(bytes);
            i += 2;
        } else {
            let option = String::from_utf8_lossy(command.arg(i)).into_owned();
            return Err(Reply::error(format!("ERR Syntax error in HELLO option '{option}'")));
        }
    }
    // Whoever asks for something beyond the greeting must be somebody.
    let then = move |conversation: &mut Conversation| {
        if conversation.who.is_nobody() {
            return Reply::error(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> \
                 <pass> option can be used to authenticate the client and select the RESP protocol version at \
                 the same time",
            );
        }
        if let Some(name) = &name {
            conversation.entry.set_name(name);
        }
        greeted(protocol, conversation)
    };
    match (user, conversation.who.desk().cloned()) {
        (None, _) => Ok(Action::Reply(then(conversation))),
        (Some(i), None) => authenticate(command.arg(i)).map(|()| Action::Reply(then(conversation))),
        (Some(i), Some(desk)) => {
            let from = conversation.entry.peer_addr();
            Ok(acl::authenticate(desk, command.arg(i), command.arg(i + 1), from, then))
        }
    }
}

fn greeted(protocol: Protocol, conversation: &mut Conversation) -> Reply {
    conversation.protocol = protocol;
    conversation.entry.set_protocol(protocol);
    Reply::Map(vec![
        (Reply::bulk("server"), Reply::bulk("redis")),
        (Reply::bulk("version"), Reply::bulk(REDIS_VERSION)),
        (Reply::bulk("proto"), Reply::Integer(if protocol == Protocol::Resp3 { 3 } else { 2 })),
        (Reply::bulk("id"), Reply::Integer(conversation.entry.id() as i64)),
        (Reply::bulk("mode"), Reply::bulk("standalone")),
        (Reply::bulk("role"), Reply::bulk("master")),
        (Reply::bulk("modules"), Reply::Array(vec![])),
    ])
}

pub(super) fn auth(command: &Command<'_>, conversation: &mut Conversation) -> Action {
    if let Some(desk) = conversation.who.desk().cloned() {
        let from = conversation.entry.peer_addr();
        let (name, password) = match command.len() {
            2 => (DEFAULT_USER.as_bytes(), command.arg(1)),
            3 => (command.arg(1), command.arg(2)),
            _ => return Action::Reply(SYNTAX),
        };
        return acl::authenticate(desk, name, password, from, |_| Reply::OK);
    }
    Action::Reply(match command.len() {
        2 => Reply::error(
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
             configuration is correct?",
        ),
        3 => authenticate(command.arg(1)).err().unwrap_or(Reply::OK),
        _ => SYNTAX,
    })
}

/// As a Redis without a password: the default user may have any, and nobody else exists.
fn authenticate(user: &[u8]) -> Result<(), Reply> {
    if user == b"default" {
        Ok(())
    } else {
        Err(Reply::error("WRONGPASS invalid username-password pair or user is disabled."))
    }
}

/// The first to select a database makes it, if it may write. (What came before has been answered: [`crate::connection`].)
pub(super) fn select<S: Store>(
    command: &Command<'_>,
    conversation: &mut Conversation,
    shared: &Shared<S>,
) -> Action {
    match selected(command, conversation, shared) {
        Err(reply) => Action::Reply(reply),
        Ok(database) if database == shared.database => Action::Reply(Reply::OK),
        Ok(database) => {
            let store = shared.store.database(database);
            let makes = conversation.who.may_make_databases();
            Action::Wait(Box::pin(async move {
                let opened = store.open(makes).await;
                let then = move |conversation: &mut Conversation| match opened {
                    Ok(true) => {
                        enter(database, conversation);
                        Reply::OK
                    }
                    Ok(false) => {
                        conversation.who.refused("select");
                        Reply::error(format!("NOPERM No permissions to make database {}", database.number()))
                    }
                    Err(e) => store_error(&e),
                };
                Box::new(then) as Waited
            }))
        }
    }
}

/// Which one it is to be; or why not.
fn selected<S>(
    command: &Command<'_>,
    conversation: &mut Conversation,
    shared: &Shared<S>,
) -> Result<Database, Reply> {
    let database = errors::database(command.arg(1))?;
    if database != conversation.who.database() && conversation.transactions.watches() {
        return Err(errors::unsupported("SELECT of another database", "keys of this one are watched"));
    }
    if !conversation.who.may_enter(database) {
        shared.metrics.refused_commands.inc();
        conversation.who.refused("select");
        let number = database.number();
        return Err(Reply::error(format!("NOPERM No permissions to access database {number}")));
    }
    Ok(database)
}

fn enter(database: Database, conversation: &mut Conversation) {
    conversation.who.selects(database);
    conversation.entry.set_database(database);
}

/// `order`: that of connections that have said nothing.
pub(super) fn reset(conversation: &mut Conversation, order: Order) -> Reply {
    conversation.protocol = Protocol::Resp2;
    conversation.entry.set_protocol(Protocol::Resp2);
    conversation.entry.set_name(&Bytes::new());
    conversation.who.reset();
    conversation.show_user();
    conversation.transactions.forget();
    conversation.order = order;
    conversation.wanted = Wanted::default();
    enter(Database::FIRST, conversation);
    Reply::Simple("RESET")
}

/// Printable and without spaces, so that `CLIENT LIST` stays readable.
pub(super) fn is_valid_name(name: &[u8]) -> bool {
    name.iter().all(|b| (b'!'..=b'~').contains(b))
}

pub(super) fn bad_name() -> Reply {
    Reply::error("ERR Client names cannot contain spaces, newlines or special characters.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_with_a_password_is_known_before_it_is_done() {
        for (greeting, has) in [
            ("hello", false),
            ("hello 3", false),
            ("hello 3 AUTH u p", true),
            ("hello 3 setname n auth u p setname m", true),
            ("hello 3 auth u", false),
            ("hello 3 setname auth", false),
            ("hello 3 setname auth u p", false),
            ("hello auth u p", false),
        ] {
            let words: Vec<&[u8]> = greeting.split(' ').map(str::as_bytes).collect();
            assert_eq!(has_password(words.len(), |at| words[at]), has, "{greeting}");
        }
    }
}
