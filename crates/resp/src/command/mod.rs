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
mod draft;
mod errors;
mod execution;
mod hello;
mod info;
mod introspection;
mod objects;
mod request;
mod scan;
mod slowlog;
mod transaction;

use futures::future::BoxFuture;

use crate::clients::ClientEntry;
use crate::command_table::{self, Id};
use crate::config::Order;
use crate::frame::{Command, Protocol, Reply};
use crate::shared::Shared;
use crate::store::Store;
use crate::who::Who;

pub(crate) use acl::Waited;
pub(crate) use ahead::{Ahead, look_ahead};
pub(crate) use errors::value;
pub(crate) use execution::set_status;
pub(crate) use request::Request;
pub(crate) use scan::KeysTurns;
pub(crate) use transaction::Transactions;

/// What a connection remembers between commands.
pub(crate) struct Conversation {
    pub protocol: Protocol,
    pub entry: std::sync::Arc<ClientEntry>,
    pub who: Who,
    pub transactions: Transactions,
    pub order: Order,
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
        return (None, errors::unknown_command(command));
    };
    if !spec.accepts(command.len()) {
        conversation.transactions.refuse();
        return (Some(spec.id), Action::Reply(errors::wrong_arity(spec.name)));
    }
    if let Err(refused) = conversation.who.permit(spec, command) {
        conversation.transactions.refuse();
        shared.metrics.refused_commands.inc();
        conversation.who.refused(spec.name);
        return (Some(spec.id), Action::Reply(refused));
    }
    if conversation.transactions.is_open() && !transaction::is_at_once(spec.id) {
        return (Some(spec.id), Action::Reply(queue(spec.id, command, conversation, shared)));
    }
    (Some(spec.id), run(spec.id, command, conversation, shared))
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
    let reply = match id {
        Id::Get
        | Id::Strlen
        | Id::Getrange
        | Id::Substr
        | Id::Type
        | Id::Touch
        | Id::Ttl
        | Id::Pttl
        | Id::Expiretime
        | Id::Pexpiretime
        | Id::Incr
        | Id::Decr
        | Id::Incrby
        | Id::Decrby
        | Id::Incrbyfloat
        | Id::Append
        | Id::Setrange
        | Id::Getset
        | Id::Getdel
        | Id::Msetnx
        | Id::Persist
        | Id::Expire
        | Id::Pexpire
        | Id::Expireat
        | Id::Pexpireat
        | Id::Setex
        | Id::Psetex
        | Id::Getex
        | Id::Mget
        | Id::Exists
        | Id::Set
        | Id::Setnx
        | Id::Mset
        | Id::Del
        | Id::Unlink
        | Id::Rename
        | Id::Renamenx
        | Id::Object
        | Id::Copy => {
            return match data::decode(id, command) {
                Ok(request) => Action::Run(id, request),
                Err(reply) => Action::Reply(reply),
            };
        }
        Id::Hset
        | Id::Hmset
        | Id::Hsetnx
        | Id::Hget
        | Id::Hmget
        | Id::Hgetall
        | Id::Hdel
        | Id::Hlen
        | Id::Hexists
        | Id::Hkeys
        | Id::Hvals
        | Id::Hincrby
        | Id::Hincrbyfloat
        | Id::Hstrlen
        | Id::Hrandfield
        | Id::Hscan
        | Id::Sadd
        | Id::Srem
        | Id::Sismember
        | Id::Smismember
        | Id::Scard
        | Id::Smembers
        | Id::Spop
        | Id::Srandmember
        | Id::Smove
        | Id::Sinter
        | Id::Sunion
        | Id::Sdiff
        | Id::Sinterstore
        | Id::Sunionstore
        | Id::Sdiffstore
        | Id::Sscan
        | Id::Zadd
        | Id::Zincrby
        | Id::Zrem
        | Id::Zscore
        | Id::Zmscore
        | Id::Zcard
        | Id::Zrange
        | Id::Zrangebyscore
        | Id::Zrevrange
        | Id::Zrevrangebyscore
        | Id::Zrangebylex
        | Id::Zrevrangebylex
        | Id::Zcount
        | Id::Zlexcount
        | Id::Zrank
        | Id::Zrevrank
        | Id::Zpopmin
        | Id::Zpopmax
        | Id::Zremrangebyrank
        | Id::Zremrangebyscore
        | Id::Zremrangebylex
        | Id::Zrandmember
        | Id::Zscan
        | Id::Lpush
        | Id::Rpush
        | Id::Lpushx
        | Id::Rpushx
        | Id::Lpop
        | Id::Rpop
        | Id::Lrange
        | Id::Llen
        | Id::Lindex
        | Id::Lset
        | Id::Lrem
        | Id::Ltrim
        | Id::Linsert
        | Id::Lmove
        | Id::Rpoplpush => {
            return match objects::decode(id, command, shared) {
                Ok(request) => Action::Run(id, request),
                Err(reply) => Action::Reply(reply),
            };
        }
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
        Id::Multi => transaction::multi(conversation, shared),
        Id::Exec => return transaction::exec(conversation),
        Id::Discard => transaction::discard(conversation),
        Id::Watch => return transaction::watch(command, conversation, shared),
        Id::Unwatch => transaction::unwatch(conversation),
        Id::Quit => return Action::Close(Some(Reply::OK)),
        Id::Ping if command.len() > 2 => errors::wrong_arity("ping"),
        Id::Ping if command.len() == 2 => Reply::Bulk(command.bytes(1)),
        Id::Ping => Reply::Simple("PONG"),
        Id::Echo => Reply::Bulk(command.bytes(1)),
        Id::Hello => return hello::hello(command, conversation),
        Id::Auth => return hello::auth(command, conversation),
        Id::Acl => return acl::acl(command, conversation),
        Id::Select => hello::select(command),
        Id::Reset => hello::reset(conversation, shared.config.order),
        Id::Client => client::client(command, conversation, shared),
        Id::Command => introspection::command(command),
        Id::Config => config::config(command),
        Id::Info => info::info(command, shared),
        Id::Slowlog => slowlog::slowlog(command, shared),
        Id::Time => info::time(shared),
        Id::Role => Reply::Array(vec![Reply::bulk("master"), Reply::Integer(0), Reply::Array(vec![])]),
        Id::Dbsize => Reply::error("ERR DBSIZE is not supported: keys are not counted"),
    };
    Action::Reply(reply)
}

/// Case does not matter in option and subcommand names.
fn is(arg: &[u8], name: &str) -> bool {
    arg.eq_ignore_ascii_case(name.as_bytes())
}
