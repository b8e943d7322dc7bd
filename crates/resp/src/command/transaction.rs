//! `MULTI`, `EXEC`, `DISCARD`, `WATCH`, `UNWATCH`: what a connection collects for one transaction.
//!
//! Owns what is queued and what is watched, and the room that this takes. How a transaction takes effect is [`super::atomic`]'s.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use sextant_common::ids::Seq;
use sextant_common::limits::{BATCH_BYTES_MAX, BATCH_OPS_MAX};
use sextant_environment::room::{Room, Share};

use super::request::Request;
use super::{Action, Conversation, data};
use crate::command_table::{Access, Id};
use crate::frame::{Command, Reply};
use crate::shared::Shared;

/// So many bytes need no room: of each connection.
const FREE_BYTES: usize = 4 * 1024;
/// Room is taken in pieces of so many bytes.
const PIECE_BYTES: usize = 16 * 1024;
/// What a queued command, or a watched key, takes beside its bytes.
const QUEUED_BYTES: usize = 256;
/// What a connection may watch: keys, and what they take.
const WATCHED_BYTES_MAX: usize = 1024 * 1024;

/// Of one connection.
#[derive(Debug, Default)]
pub(crate) struct Transactions {
    /// From `MULTI` on.
    open: Option<Open>,
    watched: Vec<Arc<Watched>>,
    watched_bytes: usize,
    /// Something that was to be watched is not: there will be no transaction.
    watches_too_much: bool,
}

#[derive(Debug)]
struct Open {
    /// When `MULTI` came.
    since_ns: u64,
    queue: Vec<Queued>,
    /// Some command was refused, so that there will be no transaction.
    is_refused: bool,
    /// Of the rights that the commands were judged by.
    rights: u64,
    /// Of the queued commands.
    bytes: usize,
    held: Held,
}

/// Room for what is queued; given back when dropped.
#[derive(Debug)]
struct Held {
    shares: Vec<Share>,
    left: usize,
}

impl Default for Held {
    fn default() -> Self {
        Self { shares: Vec::new(), left: FREE_BYTES }
    }
}

impl Held {
    fn take(&mut self, room: &Room, bytes: usize) -> bool {
        if self.left < bytes {
            let Some(share) = room.try_take(bytes.max(PIECE_BYTES)) else { return false };
            self.left += share.bytes();
            self.shares.push(share);
        }
        self.left -= bytes;
        true
    }
}

/// A command of a transaction.
#[derive(Debug)]
pub(crate) enum Queued {
    /// It has nothing to do with keys, or has no sense.
    Known(Reply),
    Ask(Request),
}

/// The keys of a `WATCH`, and the versions that it found: those that a transaction wants to find again. None: not yet, or it failed.
#[derive(Debug)]
pub(crate) struct Watched {
    pub keys: Vec<Bytes>,
    /// 0: the key does not exist.
    pub seen: OnceLock<Vec<Seq>>,
}

/// What `EXEC` is to do.
#[derive(Debug)]
pub(crate) struct Transaction {
    pub commands: Vec<Queued>,
    pub watched: Vec<Arc<Watched>>,
    _held: Held,
}

impl Transaction {
    /// Of the first command that names one.
    pub fn first_key(&self) -> Option<Bytes> {
        self.commands.iter().find_map(|command| match command {
            Queued::Ask(request) => request.first_key(),
            Queued::Known(_) => None,
        })
    }

    /// Whether any of its commands may change a record.
    pub fn may_write(&self) -> bool {
        self.commands
            .iter()
            .any(|command| matches!(command, Queued::Ask(request) if request.access() == Access::Write))
    }

    pub fn for_each_key(&self, each: &mut dyn FnMut(&[u8])) {
        for command in &self.commands {
            if let Queued::Ask(request) = command {
                request.for_each_key(each);
            }
        }
        self.watched.iter().flat_map(|watched| &watched.keys).for_each(|key| each(key));
    }
}

impl Transactions {
    #[inline]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Since when it holds what others may have to do without.
    pub fn holds_room_since_ns(&self) -> Option<u64> {
        self.open.as_ref().filter(|open| !open.held.shares.is_empty()).map(|open| open.since_ns)
    }

    /// A command was refused: if a transaction is open, there will be none.
    pub fn refuse(&mut self) {
        if let Some(open) = &mut self.open {
            open.is_refused = true;
            // What was queued is of no use any more.
            (open.queue, open.held) = Default::default();
        }
    }

    pub fn forget(&mut self) {
        self.open = None;
        self.unwatch();
    }

    fn unwatch(&mut self) {
        self.watched.clear();
        (self.watched_bytes, self.watches_too_much) = (0, false);
    }

    fn queue(&mut self, queued: Queued, bytes: usize, room: &Room) -> Reply {
        let Some(open) = &mut self.open else { return Reply::error("ERR no transaction is open") };
        if open.is_refused {
            return Reply::Simple("QUEUED");
        }
        let bytes = bytes + QUEUED_BYTES;
        open.bytes += bytes;
        if open.queue.len() == BATCH_OPS_MAX || open.bytes > 2 * BATCH_BYTES_MAX {
            self.refuse();
            return Reply::error(format!(
                "ERR a transaction has up to {BATCH_OPS_MAX} commands and {} bytes",
                2 * BATCH_BYTES_MAX
            ));
        }
        if !open.held.take(room, bytes) {
            self.refuse();
            return Reply::error("TRYAGAIN too many bytes are queued in transactions");
        }
        open.queue.push(queued);
        Reply::Simple("QUEUED")
    }
}

/// Whether a transaction that is open does not queue a command of this kind, but has it done at once.
pub(super) fn is_at_once(id: Id) -> bool {
    matches!(id, Id::Multi | Id::Exec | Id::Discard | Id::Watch | Id::Quit | Id::Reset)
}

/// Who it is cannot change within a transaction, whose commands were judged by that.
pub(super) fn is_refused(id: Id) -> bool {
    matches!(id, Id::Hello | Id::Auth | Id::Acl)
}

/// Queues a command, whose number of arguments is right and that may be run. `decoded`: what is to be done about it.
pub(super) fn queue<S>(
    decoded: Action,
    command: &Command<'_>,
    conversation: &mut Conversation,
    shared: &Shared<S>,
) -> Reply {
    let (queued, reply_bytes) = match decoded {
        Action::Run(_, Request::Scan(_)) => {
            conversation.transactions.refuse();
            return Reply::error("ERR Command not allowed inside a transaction");
        }
        Action::Run(_, request) => (Queued::Ask(request), 0),
        Action::Reply(reply) => {
            let bytes = reply.size();
            (Queued::Known(reply), bytes)
        }
        Action::Wait(_) | Action::Close(_) => {
            conversation.transactions.refuse();
            return Reply::error("ERR Command not allowed inside a transaction");
        }
    };
    let bytes = (0..command.len()).map(|at| command.arg(at).len() + 64).sum::<usize>() + reply_bytes;
    conversation.transactions.queue(queued, bytes, &shared.queued)
}

pub(super) fn multi<S>(conversation: &mut Conversation, shared: &Shared<S>) -> Reply {
    if conversation.transactions.is_open() {
        return Reply::error("ERR MULTI calls can not be nested");
    }
    conversation.transactions.open = Some(Open {
        since_ns: shared.now_ns(),
        queue: Vec::new(),
        is_refused: false,
        rights: conversation.who.generation(),
        bytes: 0,
        held: Held::default(),
    });
    Reply::OK
}

pub(super) fn discard(conversation: &mut Conversation) -> Reply {
    if !conversation.transactions.is_open() {
        return Reply::error("ERR DISCARD without MULTI");
    }
    conversation.transactions.forget();
    Reply::OK
}

pub(super) fn exec(conversation: &mut Conversation) -> Action {
    let rights = conversation.who.generation();
    let Some(open) = conversation.transactions.open.take() else {
        return Action::Reply(Reply::error("ERR EXEC without MULTI"));
    };
    let Transactions { watched, watches_too_much, .. } = std::mem::take(&mut conversation.transactions);
    if watches_too_much {
        return Action::Reply(Reply::error(
            "EXECABORT Transaction discarded: not everything could be watched.",
        ));
    }
    if open.is_refused {
        return Action::Reply(Reply::error("EXECABORT Transaction discarded because of previous errors."));
    }
    if open.rights != rights {
        return Action::Reply(Reply::error(
            "EXECABORT Transaction discarded: the rights of users have changed.",
        ));
    }
    let transaction = Transaction { commands: open.queue, watched, _held: open.held };
    Action::Run(Id::Exec, Request::Transaction(Box::new(transaction)))
}

pub(super) fn watch(command: &Command<'_>, conversation: &mut Conversation) -> Action {
    let transactions = &mut conversation.transactions;
    if transactions.is_open() {
        return Action::Reply(Reply::error("ERR WATCH inside MULTI is not allowed"));
    }
    let keys = match data::keys(&command.copied()) {
        Ok(keys) => data::distinct(keys),
        Err(reply) => return Action::Reply(reply),
    };
    transactions.watched_bytes += keys.iter().map(|key| key.len() + QUEUED_BYTES).sum::<usize>();
    if transactions.watched_bytes > WATCHED_BYTES_MAX {
        transactions.unwatch();
        transactions.watches_too_much = true;
        return Action::Reply(Reply::error(format!(
            "ERR a connection watches up to {WATCHED_BYTES_MAX} bytes: the next transaction will be discarded"
        )));
    }
    let watched = Arc::new(Watched { keys, seen: OnceLock::new() });
    transactions.watched.push(watched.clone());
    Action::Run(Id::Watch, Request::Watch(watched))
}

pub(super) fn unwatch(conversation: &mut Conversation) -> Reply {
    // (In a transaction it comes too late: that looks after what was watched before.)
    if !conversation.transactions.is_open() {
        conversation.transactions.unwatch();
    }
    Reply::OK
}
