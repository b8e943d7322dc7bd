//! The commands: what each of those that exist ([`command_table`]) makes of its arguments.
//!
//! A command is decoded when its turn comes. Most that concern the connection or the server are answered on the spot
//! ([`Action::Reply`]); those that concern keys become a [`Request`], which the connection runs against the store when no
//! earlier command stands in its way.

mod acl;
mod ahead;
mod atomic;
mod client;
mod config;
mod data;
mod diagnosis;
mod draft;
mod errors;
mod execution;
mod hello;
mod help;
mod increments;
mod info;
mod introspection;
mod looks;
mod objects;
mod refusals;
mod request;
mod row;
mod scan;
mod slowlog;
mod transaction;
mod waiting;
mod whole;

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::clients::ClientEntry;
use crate::command_table::{self, COMMANDS, Family, Id};
use crate::config::Order;
use crate::frame::{Command, Protocol, Reply};
use crate::replies::SHORT_BYTES;
use crate::shared::Shared;
use crate::store::Store;
use crate::subcommands;
use crate::who::Who;

pub(crate) use acl::Waited;
pub(crate) use ahead::{Ahead, look_ahead};
pub(crate) use draft::READ_BYTES_MAX;
pub(crate) use errors::value;
pub(crate) use execution::set_status;
pub(crate) use hello::has_password;
pub(crate) use objects::{Object, Objects};
pub(crate) use request::Request;
pub(crate) use row::{RowRun, RowSize, go_together, may_have_others};
pub(crate) use scan::KeysTurns;
pub(crate) use transaction::Transactions;
pub(crate) use waiting::Waiting;

pub(crate) use crate::clients::Release;

/// What a connection remembers between commands.
pub(crate) struct Conversation {
    pub protocol: Protocol,
    pub entry: std::sync::Arc<ClientEntry>,
    pub who: Who,
    pub transactions: Transactions,
    pub order: Order,
    pub wanted: Wanted,
}

/// Which replies a client wants (`CLIENT REPLY`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wanted {
    #[default]
    All,
    None,
    /// All but the one to this command, and the next.
    ButTheNext,
    /// All but the one to this command.
    ButThis,
}

impl Wanted {
    #[inline]
    pub fn is_all(self) -> bool {
        self == Self::All
    }

    /// A command has been looked at: what is wanted of the one after it.
    #[inline]
    pub fn go_on(&mut self) {
        *self = match *self {
            Self::ButTheNext => Self::ButThis,
            Self::ButThis => Self::All,
            same => same,
        };
    }

    fn but_the_next(self) -> Self {
        if self == Self::None { Self::None } else { Self::ButTheNext }
    }
}

impl Conversation {
    /// In which the reply to the present command is to be encoded.
    #[inline]
    pub fn encoding(&self) -> Protocol {
        if self.wanted.is_all() { self.protocol } else { Protocol::Silent }
    }

    /// It has become another user: others see it.
    fn show_user(&self) {
        self.entry.set_user(self.who.shown_name());
    }
}

/// What to do about a command.
pub(crate) enum Action {
    Reply(Reply),
    /// Ask the store.
    Run(Id, Request),
    /// Nothing that comes after it is looked at before it is ready.
    Wait(BoxFuture<'static, Waited>),
    /// Answer, if there is anything to say, and close the connection.
    Close(Option<Reply>),
}

/// Looks a command up, checks the number of its arguments, and decodes it. The id is `None` for an unknown command.
pub(crate) fn decode<S: Store>(
    command: &Command<'_>,
    conversation: &mut Conversation,
    shared: &Shared<S>,
) -> (Option<Id>, Action) {
    let Some(spec) = command_table::find(command.arg(0)) else {
        conversation.transactions.refuse();
        let refusal = refusals::refusal(command);
        return (None, refusal.map_or_else(|| errors::unknown_command(command), Action::Reply));
    };
    if !spec.accepts(command.len()) {
        if spec.id == Id::Exec {
            return (Some(spec.id), Action::Reply(transaction::exec_with_arguments(conversation)));
        }
        conversation.transactions.refuse();
        return (Some(spec.id), Action::Reply(errors::wrong_arity(spec.name)));
    }
    conversation.entry.asked(spec.id, subcommands::find(spec, command));
    if let Err(refused) = conversation.who.permit(spec, command) {
        conversation.transactions.refuse();
        shared.metrics.refused_commands.inc();
        conversation.who.refused(spec.name);
        // (So that libraries that say who they are when they connect do so.)
        let action = match conversation.who.is_cut_off() {
            true => Action::Close(Some(refused)),
            false => Action::Reply(refused),
        };
        return (Some(spec.id), action);
    }
    if conversation.transactions.is_open() && !transaction::is_at_once(spec.id) {
        return (Some(spec.id), Action::Reply(queue(spec.id, command, conversation, shared)));
    }
    let action = match run(spec.id, command, conversation, shared) {
        Action::Run(id, request) => Action::Run(id, conversation.transactions.under_watch(request)),
        action => action,
    };
    (Some(spec.id), action)
}

/// A command of a transaction: what it asks of the connection or the server is done, and answered later.
fn queue<S: Store>(
    id: Id,
    command: &Command<'_>,
    conversation: &mut Conversation,
    shared: &Shared<S>,
) -> Reply {
    if transaction::is_refused(id) {
        conversation.transactions.refuse();
        return Reply::error("ERR Command not allowed inside a transaction");
    }
    let command = command.copied();
    let decoded = run(id, &command, conversation, shared);
    transaction::queue(decoded, &command, conversation, shared)
}

fn run<S: Store>(
    id: Id,
    command: &Command<'_>,
    conversation: &mut Conversation,
    shared: &Shared<S>,
) -> Action {
    let spec = &COMMANDS[id as usize];
    let decoded = match spec.of {
        Family::Server => None,
        Family::Record => Some(data::decode(id, command, conversation.who.database())),
        _ if spec.flags.contains(&"blocking") => Some(waiting::decode(spec, command, conversation, shared)),
        _ => Some(
            objects::decode(spec, command, conversation.protocol, shared)
                .map(|object| Request::Object(Box::new(object))),
        ),
    };
    if let Some(decoded) = decoded {
        return decoded.map_or_else(Action::Reply, |request| Action::Run(id, request));
    }
    let reply = match id {
        Id::Scan | Id::Keys => {
            let scan = match id {
                Id::Scan => scan::scan(command, conversation, shared),
                _ => scan::keys(command, conversation, shared),
            };
            return match scan {
                Ok(scan) => Action::Run(id, Request::Scan(Box::new(scan))),
                Err(reply) => Action::Reply(reply),
            };
        }
        Id::Dbsize | Id::Randomkey | Id::Flushdb | Id::Flushall => {
            return match whole::decode(id, command, conversation, shared) {
                Ok(whole) => Action::Run(id, Request::Whole(Box::new(whole))),
                Err(reply) => Action::Reply(reply),
            };
        }
        Id::Multi => transaction::multi(conversation, shared),
        Id::Exec => return transaction::exec(conversation),
        Id::Discard => transaction::discard(conversation),
        Id::Watch => return transaction::watch(command, conversation, shared),
        Id::Unwatch => transaction::unwatch(conversation),
        Id::Quit => return Action::Close(Some(Reply::OK)),
        Id::Ping if command.len() > 2 => errors::wrong_arity("ping"),
        Id::Ping if command.len() == 2 => echoed(command),
        Id::Ping => Reply::Simple("PONG"),
        Id::Echo => echoed(command),
        Id::Hello => return hello::hello(command, conversation),
        Id::Auth => return hello::auth(command, conversation),
        Id::Acl => return acl::acl(command, conversation),
        Id::Select => return hello::select(command, conversation, shared),
        Id::Reset => hello::reset(conversation, shared.config.order),
        Id::Client => return client::client(command, conversation, shared),
        Id::Command => introspection::command(command),
        Id::Config => config::config(command, shared),
        Id::Info => info::info(command, shared),
        Id::Slowlog => slowlog::slowlog(command, shared),
        Id::Time => info::time(shared),
        Id::Role => Reply::Array(vec![Reply::bulk("master"), Reply::Integer(0), Reply::Array(vec![])]),
        Id::Wait => diagnosis::wait(command, shared),
        Id::Latency => diagnosis::latency(command),
        _ => errors::wrong_arity(spec.name),
    };
    Action::Reply(reply)
}

/// A short one is copied: the reply may wait, and would keep all that came with it.
fn echoed(command: &Command) -> Reply {
    let argument = command.bytes(1);
    Reply::Bulk(if argument.len() <= SHORT_BYTES { Bytes::copy_from_slice(&argument) } else { argument })
}

/// Case does not matter in option and subcommand names.
fn is(arg: &[u8], name: &str) -> bool {
    arg.eq_ignore_ascii_case(name.as_bytes())
}
