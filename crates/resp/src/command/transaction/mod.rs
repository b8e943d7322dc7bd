//! `MULTI`, `EXEC`, `DISCARD`, `WATCH`, `UNWATCH`: what a connection collects for one transaction.
//!
//! Owns what is queued and what is watched, and the room that this takes. How a transaction takes effect is [`super::atomic`]'s.

mod watched;

use std::sync::Arc;

use bytes::Bytes;
use sextant_common::limits::{BATCH_BYTES_MAX, BATCH_OPS_MAX};
use tokio::sync::OwnedSemaphorePermit;

use super::errors::CROSS_SLOT;
use super::request::Request;
use super::{Action, Conversation, data};
use crate::command_table::{Access, Id};
use crate::frame::{Command, Reply};
use crate::queued::{Held, QueuedRoom};
use crate::shared::Shared;
use crate::store::Store;

pub(super) use watched::absent_of;
pub(crate) use watched::{UnderWatch, Watched};

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
    watched_room: Held,
    /// They are of several partitions.
    watches_apart: bool,
    /// When the first of them came.
    watched_since_ns: u64,
    /// Something that was to be watched is not: there will be no transaction.
    watches_too_much: bool,
}

#[derive(Debug)]
struct Open {
    /// When `MULTI` came.
    since_ns: u64,
    queue: Vec<Queued>,
    /// Where in it the first command is that names a key.
    keyed_at: Option<usize>,
    /// Some command was refused, so that there will be no transaction.
    is_refused: bool,
    /// Of the rights that the commands were judged by.
    rights: u64,
    /// Of the queued commands.
    bytes: usize,
    held: Kept,
    /// Why it lost what was queued, until the client is told.
    lost: Option<Reply>,
}

/// What a transaction keeps until it is done.
#[derive(Debug, Default)]
struct Kept {
    room: Held,
    /// What its user may have under way.
    carried: Vec<OwnedSemaphorePermit>,
}

impl Kept {
    fn carry(&mut self, permit: OwnedSemaphorePermit) {
        match self.carried.last_mut() {
            Some(last) if Arc::ptr_eq(last.semaphore(), permit.semaphore()) => last.merge(permit),
            _ => self.carried.push(permit),
        }
    }

    /// Whether its user has less left than it keeps.
    fn is_most(&self) -> bool {
        self.carried.iter().any(|permit| permit.num_permits() > permit.semaphore().available_permits())
    }
}

/// A command of a transaction.
#[derive(Debug)]
pub(crate) enum Queued {
    /// It has nothing to do with keys, or has no sense.
    Known(Reply),
    Ask(Request),
}

impl Queued {
    fn first_key(&self) -> Option<Bytes> {
        match self {
            Self::Ask(request) => request.first_key(),
            Self::Known(_) => None,
        }
    }
}

/// What `EXEC` is to do.
#[derive(Debug)]
pub(crate) struct Transaction {
    pub commands: Vec<Queued>,
    pub watched: Vec<Arc<Watched>>,
    _held: (Kept, Held),
}

impl Transaction {
    /// Of the first command that names one.
    pub fn first_key(&self) -> Option<Bytes> {
        self.commands.iter().find_map(Queued::first_key)
    }

    /// Under which there may be something new then for those who wait.
    pub fn filled(&self) -> Vec<Bytes> {
        let filled = |command: &Queued| match command {
            Queued::Ask(request) => request.filled(),
            Queued::Known(_) => vec![],
        };
        self.commands.iter().flat_map(filled).collect()
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

    /// Of the open one.
    pub fn queued(&self) -> Option<usize> {
        self.open.as_ref().map(|open| open.queue.len())
    }

    pub fn watches(&self) -> bool {
        !self.watched.is_empty()
    }

    /// What is to be done, if that may meet a key that is watched and did not exist.
    pub fn under_watch(&self, request: Request) -> Request {
        watched::under_watch(&self.watched, request)
    }

    /// Since when it holds what others may have to do without. `is_scarce`: the room of all connections is.
    pub fn holds_since_ns(&self, is_scarce: bool) -> Option<u64> {
        let holds = |open: &&Open| is_scarce && !open.held.room.is_empty() || open.held.is_most();
        let open = self.open.as_ref().filter(holds).map(|open| open.since_ns);
        let watches = (is_scarce && !self.watched_room.is_empty()).then_some(self.watched_since_ns);
        open.into_iter().chain(watches).min()
    }

    /// Gives it back: there will be no transaction.
    pub fn lose(&mut self) {
        const LOST: &str =
            "TRYAGAIN the transaction took too long, and others need the room of what was queued";
        if let Some(open) = &mut self.open {
            open.lost.get_or_insert(Reply::error(LOST));
        }
        self.refuse();
        if !self.watched_room.is_empty() {
            self.unwatch();
            self.watches_too_much = true;
        }
    }

    /// What the user may have under way is not enough for the next command: whoever waits for more keeps none. Whether
    /// it kept some.
    pub fn give_way(&mut self) -> bool {
        const TOO_MUCH: &str =
            "TRYAGAIN the user's commands under way, and those that are queued, are too long together";
        let Some(open) = self.open.as_mut().filter(|open| !open.held.carried.is_empty()) else {
            return false;
        };
        open.lost.get_or_insert(Reply::error(TOO_MUCH));
        self.refuse();
        true
    }

    /// What a command that was just queued keeps of what its user may have under way.
    pub fn carry(&mut self, permit: OwnedSemaphorePermit) {
        if let Some(open) = self.open.as_mut().filter(|open| !open.is_refused) {
            open.held.carry(permit);
        }
    }

    /// A command was refused: if a transaction is open, there will be none.
    pub fn refuse(&mut self) {
        if let Some(open) = &mut self.open {
            open.is_refused = true;
            // What was queued is of no use any more.
            (open.queue, open.keyed_at, open.held) = Default::default();
        }
    }

    pub fn forget(&mut self) {
        self.open = None;
        self.unwatch();
    }

    fn unwatch(&mut self) {
        self.watched.clear();
        (self.watched_bytes, self.watches_too_much, self.watches_apart) = (0, false, false);
        self.watched_room = Held::default();
    }

    fn watch(&mut self, keys: &[Bytes], room: &QueuedRoom, now_ns: u64) -> Result<Arc<Watched>, Reply> {
        if self.watched.is_empty() {
            self.watched_since_ns = now_ns;
        }
        let bytes = keys.iter().map(|key| key.len() + QUEUED_BYTES).sum::<usize>();
        self.watched_bytes += bytes;
        let refused = if self.watched_bytes > WATCHED_BYTES_MAX {
            Some(format!("ERR a connection watches up to {WATCHED_BYTES_MAX} bytes"))
        } else if !self.watched_room.take(room, bytes) {
            Some("TRYAGAIN too many keys are watched".into())
        } else {
            None
        };
        if let Some(why) = refused {
            self.unwatch();
            self.watches_too_much = true;
            return Err(Reply::error(format!("{why}: the next transaction will be discarded")));
        }
        let watched = Arc::new(Watched::new(keys, self.watched_room.newest()));
        self.watched.push(watched.clone());
        Ok(watched)
    }

    fn queue(&mut self, queued: Queued, bytes: usize, room: &QueuedRoom) -> Reply {
        let Some(open) = &mut self.open else { return Reply::error("ERR no transaction is open") };
        if open.is_refused {
            return open.lost.take().unwrap_or(Reply::Simple("QUEUED"));
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
        if !open.held.room.take(room, bytes) {
            self.refuse();
            return Reply::error("TRYAGAIN too many bytes are queued in transactions");
        }
        if open.keyed_at.is_none() && matches!(queued, Queued::Ask(_)) {
            open.keyed_at = Some(open.queue.len());
        }
        open.queue.push(queued);
        Reply::Simple("QUEUED")
    }

    /// The first one that is watched, or named by a command that is queued.
    fn first_key(&self) -> Option<Bytes> {
        let watched = self.watched.first().and_then(|watched| watched.keys.first().cloned());
        watched.or_else(|| {
            let open = self.open.as_ref()?;
            open.queue.get(open.keyed_at?)?.first_key()
        })
    }

    /// Whether the keys of a command are of one partition, which is that of all that is watched and queued. (If nothing is queued any
    /// more, it does not matter.)
    fn is_together<S: Store>(&self, request: &Request, store: &S) -> bool {
        if self.open.as_ref().is_none_or(|open| open.is_refused) {
            return true;
        }
        let Some(first) = self.first_key().or_else(|| request.first_key()) else { return true };
        let mut is_together = !self.watches_apart;
        request.for_each_key(&mut |key| is_together = is_together && store.are_together([&first[..], key]));
        is_together
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
pub(super) fn queue<S: Store>(
    decoded: Action,
    command: &Command<'_>,
    conversation: &mut Conversation,
    shared: &Shared<S>,
) -> Reply {
    let (queued, reply_bytes) = match decoded {
        Action::Run(_, Request::Scan(_) | Request::Whole(_)) => {
            conversation.transactions.refuse();
            return Reply::error("ERR Command not allowed inside a transaction");
        }
        // (Whoever never looks at what `EXEC` says hears of it here.)
        Action::Run(_, request) if !conversation.transactions.is_together(&request, &shared.store) => {
            conversation.transactions.refuse();
            return CROSS_SLOT;
        }
        Action::Run(_, request) => (Queued::Ask(request), 0),
        // (Redis' subcommands are commands of their own.)
        Action::Reply(reply) if is_of_subcommand(&reply) => {
            conversation.transactions.refuse();
            return reply;
        }
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

/// Whether it says that there is no such subcommand, or that its arguments are too few or too many.
fn is_of_subcommand(reply: &Reply) -> bool {
    let Reply::Error(text) = reply else { return false };
    let is_arity = text.starts_with(b"ERR wrong number of arguments for '") && text.contains(&b'|');
    is_arity || text.starts_with(b"ERR unknown subcommand '")
}

pub(super) fn multi<S>(conversation: &mut Conversation, shared: &Shared<S>) -> Reply {
    if conversation.transactions.is_open() {
        return Reply::error("ERR MULTI calls can not be nested");
    }
    conversation.transactions.open = Some(Open {
        since_ns: shared.now_ns(),
        queue: Vec::new(),
        keyed_at: None,
        is_refused: false,
        rights: conversation.who.generation(),
        bytes: 0,
        held: Kept::default(),
        lost: None,
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
    let Transactions { watched, watched_room, watches_too_much, .. } =
        std::mem::take(&mut conversation.transactions);
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
    let transaction = Transaction { commands: open.queue, watched, _held: (open.held, watched_room) };
    Action::Run(Id::Exec, Request::Transaction(Box::new(transaction)))
}

/// It ends the transaction, whatever else it says.
pub(super) fn exec_with_arguments(conversation: &mut Conversation) -> Reply {
    conversation.transactions.forget();
    Reply::error("EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command")
}

pub(super) fn watch<S: Store>(
    command: &Command<'_>,
    conversation: &mut Conversation,
    shared: &Shared<S>,
) -> Action {
    let transactions = &mut conversation.transactions;
    if transactions.is_open() {
        return Action::Reply(Reply::error("ERR WATCH inside MULTI is not allowed"));
    }
    let keys = data::keys(command).map(data::distinct);
    match keys.and_then(|keys| transactions.watch(&keys, &shared.queued, shared.now_ns())) {
        Ok(watched) => {
            let first = transactions.first_key();
            let keys = first.iter().chain(&watched.keys).map(|key| &key[..]);
            transactions.watches_apart |= !shared.store.are_together(keys);
            Action::Run(Id::Watch, Request::Watch(watched))
        }
        Err(reply) => Action::Reply(reply),
    }
}

pub(super) fn unwatch(conversation: &mut Conversation) -> Reply {
    // (In a transaction it comes too late: that looks after what was watched before.)
    if !conversation.transactions.is_open() {
        conversation.transactions.unwatch();
    }
    Reply::OK
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    #[test]
    fn what_is_watched_is_counted_and_keeps_nothing_else_of_its_command() {
        let room = QueuedRoom::new(64 * MIB);
        let command = Bytes::from(vec![b'k'; MIB]);
        let mut transactions = Transactions::default();
        let same = data::distinct((0..MIB - 7).map(|_| command.slice(..7)).collect());
        let watched = transactions.watch(&same, &room, 0).unwrap();
        assert_eq!(watched.keys.concat(), b"kkkkkkk");
        assert!(!command.as_ptr_range().contains(&watched.keys[0].as_ptr()), "a copy");
        assert_eq!((transactions.watched_bytes, room.held_bytes()), (7 + QUEUED_BYTES, 0));
        let others: Vec<Bytes> = (0..100).map(|at| Bytes::from(format!("key{at:04}"))).collect();
        let watched = transactions.watch(&others, &room, 0).unwrap();
        assert_eq!(transactions.watched_bytes, 101 * (7 + QUEUED_BYTES));
        assert!(room.held_bytes() + 4096 >= transactions.watched_bytes);
        transactions.forget();
        assert!(room.held_bytes() > 0, "while it is looked for");
        drop(watched);
        assert_eq!(room.held_bytes(), 0);
    }

    #[test]
    fn without_room_nothing_is_watched_and_the_next_transaction_will_be_discarded() {
        let room = QueuedRoom::new(64 * 1024);
        let mut transactions = Transactions::default();
        let keys: Vec<Bytes> = (0..1000).map(|at| Bytes::from(format!("key{at:04}"))).collect();
        let watch =
            |transactions: &mut Transactions, keys: &[Bytes]| transactions.watch(keys, &room, 7).is_ok();
        assert!((0..100).any(|_| !watch(&mut transactions, &keys[..20])));
        assert!(transactions.watches_too_much && transactions.watched.is_empty());
        assert_eq!(room.held_bytes(), 0);
        transactions.forget();
        assert!(watch(&mut transactions, &keys[..30]));
        assert_eq!((transactions.holds_since_ns(false), transactions.holds_since_ns(true)), (None, Some(7)));
        transactions.lose();
        assert_eq!((room.held_bytes(), transactions.watches_too_much), (0, true));
    }
}
