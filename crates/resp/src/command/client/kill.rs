//! `CLIENT KILL`: ends connections of this p-node.
//!
//! What such a client has under way is done, and nobody is told; what it has sent after that is not looked at.

use super::is_everybody;
use crate::clients::ClientEntry;
use crate::command::errors::SYNTAX;
use crate::command::{Action, Conversation, is};
use crate::frame::{Command, Reply, parse_integer};
use crate::shared::Shared;
use crate::store::Store;
use crate::who::DEFAULT_USER;

/// Whom it means: those with all that is said.
#[derive(Default)]
struct Whom {
    id: Option<u64>,
    addr: Option<String>,
    local_addr: Option<String>,
    user: Option<String>,
    /// A type that nobody is of.
    nobody: bool,
    /// Also who asks for it.
    me_too: bool,
}

pub(super) fn kill<S: Store>(
    command: &Command<'_>,
    conversation: &Conversation,
    shared: &Shared<S>,
) -> Action {
    // Of old: an address.
    let is_old = command.len() == 3;
    let whom = if is_old {
        Ok(Whom { addr: Some(text(command.arg(2))), me_too: true, ..Whom::default() })
    } else {
        whom(command, conversation, shared)
    };
    let whom = match whom {
        Ok(whom) => whom,
        Err(refused) => return Action::Reply(refused),
    };
    let (mut killed, mut is_me) = (0, false);
    let here = shared.clients.local_addr().to_string();
    for client in shared.clients.all().iter().filter(|client| whom.means(client, &here)) {
        if client.id() != conversation.entry.id() {
            killed += i64::from(client.kill());
        } else if whom.me_too {
            // Once it has the reply.
            (killed, is_me) = (killed + 1, true);
        }
    }
    if killed > 0 && conversation.who.desk().is_some() {
        tracing::info!(target: "audit", "{} ends {killed} connections", conversation.entry.user());
    }
    let reply = match (is_old, killed) {
        (true, 0) => Reply::error("ERR No such client"),
        (true, _) => Reply::OK,
        (false, killed) => Reply::Integer(killed),
    };
    if is_me { Action::Close(Some(reply)) } else { Action::Reply(reply) }
}

fn whom<S: Store>(
    command: &Command<'_>,
    conversation: &Conversation,
    shared: &Shared<S>,
) -> Result<Whom, Reply> {
    let is_user = |name: &str| match conversation.who.desk() {
        Some(desk) => desk.find(name).is_some() || is_shown(name, shared),
        None => name == DEFAULT_USER,
    };
    let mut whom = Whom::default();
    for at in (2..command.len()).step_by(2) {
        if at + 1 == command.len() {
            return Err(SYNTAX);
        }
        let (option, value) = (command.arg(at), command.arg(at + 1));
        match option {
            option if is(option, "id") => {
                let id = parse_integer(value).and_then(|id| u64::try_from(id).ok()).filter(|id| *id > 0);
                whom.id = Some(id.ok_or(Reply::error("ERR client-id should be greater than 0"))?);
            }
            option if is(option, "type") => whom.nobody = !is_everybody(value)?,
            option if is(option, "addr") => whom.addr = Some(text(value)),
            option if is(option, "laddr") => whom.local_addr = Some(text(value)),
            option if is(option, "user") => {
                let user = text(value);
                if !is_user(&user) {
                    return Err(Reply::error(format!("ERR No such user '{user}'")));
                }
                whom.user = Some(user);
            }
            option if is(option, "skipme") => {
                whom.me_too = match value {
                    value if is(value, "yes") => false,
                    value if is(value, "no") => true,
                    _ => return Err(SYNTAX),
                };
            }
            _ => return Err(SYNTAX),
        }
    }
    Ok(whom)
}

/// Whether somebody is connected as this user, which may be there no more.
fn is_shown<S: Store>(name: &str, shared: &Shared<S>) -> bool {
    shared.clients.all().iter().any(|client| client.user() == name)
}

impl Whom {
    /// `here`: where clients are connected to.
    fn means(&self, client: &ClientEntry, here: &str) -> bool {
        !self.nobody
            && self.id.is_none_or(|id| id == client.id())
            && self.addr.as_ref().is_none_or(|addr| *addr == client.addr())
            && self.local_addr.as_ref().is_none_or(|addr| addr == here)
            && self.user.as_ref().is_none_or(|user| *user == client.user())
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
