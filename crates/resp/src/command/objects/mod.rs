//! Commands on hashes, sets, sorted sets and lists.
//!
//! Each is carried out on a [`Draft`](super::draft::Draft), which reads what it needs and is written as one batch if the object is
//! still the same version: alone, in transactions, or [with others](crate::companions) on the same object. Commands that change elements by their names have a [quick](quick) way
//! beside it, on which those of many clients do not make each other repeat. How objects are kept: `sextant_common::object`.

mod ahead;
mod combined;
mod decode;
mod decode_sorted;
mod first;
mod hash;
mod list;
mod look;
mod pages;
mod quick;
mod senseless;
mod set;
mod several;
mod sorted;

use bytes::Bytes;
use sextant_common::marks::Kind;
use sextant_common::operation::Lane;
use sextant_common::{Error, ErrorKind, Result};
use tokio::sync::oneshot::Receiver;

use self::first::{First, From};
use self::list::{End, List};
use self::sorted::Sorted;
use super::atomic::{self, Done};
use super::draft::{Carried, Draft};
use super::errors::{CROSS_SLOT, store_error};
use super::request::Request;
use super::row::requests_of;
use super::transaction::Queued;
use crate::companions::{Client, Companion, Entered, EnteredRow, Turn, overdue};
use crate::frame::Reply;
use crate::hints::Hints;
use crate::remembered::Asked;
use crate::shared::Shared;
use crate::store::Store;

pub(super) use ahead::read_ahead;
pub(super) use decode::decode;
pub(super) use decode_sorted::{number, says_zero};

/// How often commands of different quick ways are tried together.
const MIXED_ATTEMPTS: usize = 2;

/// A command on objects.
pub(crate) struct Object {
    /// Of the objects; the first one is that which is written, if there is one.
    pub keys: Vec<Bytes>,
    pub writes: bool,
    /// Of its arguments.
    pub bytes: usize,
    /// How many words it has.
    pub arguments: usize,
    command: Command,
    /// If its reply may be remembered.
    asked: Option<Asked>,
    hints: Hints,
}

/// How commands on one object go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Row {
    /// As [companions](crate::companions).
    InLine,
    /// The [quick](quick) way, with those that do the same; with others that have one it is tried.
    Quick(quick::Doing),
}

impl Row {
    /// (What has a way of its own does not stand in a line.)
    pub fn goes_with(self, other: Row) -> bool {
        (self == Row::InLine) == (other == Row::InLine)
    }
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Object").field("command", &self.command).finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Command {
    Hash(hash::Hash),
    Set(set::Set),
    Sorted(sorted::Sorted),
    List(list::List),
    Page(pages::Page),
    Combined(combined::Combined),
    First(first::First),
    Senseless(senseless::Senseless),
}

impl Object {
    pub(super) async fn carry_out<S: Store>(&self, draft: &mut Draft<'_, S>) -> Carried<Reply> {
        match &self.command {
            Command::Hash(command) => command.carry_out(&self.keys[0], draft).await,
            Command::Set(command) => command.carry_out(&self.keys, draft).await,
            Command::Sorted(command) => command.carry_out(&self.keys, draft).await,
            Command::List(command) => command.carry_out(&self.keys, draft).await,
            Command::Page(command) => command.carry_out(&self.keys[0], draft).await,
            Command::Combined(command) => command.carry_out(&self.keys, draft).await,
            Command::First(command) => command.carry_out(&self.keys, draft).await,
            Command::Senseless(command) => command.carry_out(&self.keys[0], draft),
        }
    }

    /// For one that takes something: the kind of what it takes it of.
    pub fn waits_for(&self) -> Option<Kind> {
        match &self.command {
            Command::First(first) => Some(first.from.kind()),
            Command::List(List::Move(..)) => Some(Kind::List),
            _ => None,
        }
    }

    pub fn is_move(&self) -> bool {
        matches!(self.command, Command::List(List::Move(..)))
    }

    /// The same of these keys, if it is one that takes something.
    pub fn of(&self, keys: Vec<Bytes>) -> Self {
        let command = match &self.command {
            Command::List(List::Move(from, to)) => Command::List(List::Move(*from, *to)),
            Command::First(first) => Command::First(*first),
            _ => Command::List(List::Length),
        };
        Self { keys, command, asked: None, hints: self.hints.clone(), ..*self }
    }

    #[cfg(test)]
    pub fn of_key(key: &'static str) -> Box<Self> {
        let keys = vec![Bytes::from_static(key.as_bytes())];
        Box::new(Self {
            keys,
            writes: true,
            bytes: 1,
            arguments: 1,
            command: Command::List(List::Length),
            asked: None,
            hints: Hints::default(),
        })
    }

    /// How many elements it takes from the left end of its only list, and how many from the right.
    fn takes(&self) -> Option<(u64, u64)> {
        let (end, count) = match (&self.command, &self.keys[..]) {
            (Command::List(List::Pop(end, count)), _) => (*end, *count),
            (Command::First(First { from: From::List(end), count }), [_]) => (*end, *count),
            _ => return None,
        };
        let count = count.unwrap_or(1);
        Some(if end == End::Left { (count, 0) } else { (0, count) })
    }

    /// Under which there may be something new for those who wait.
    pub fn filled(&self) -> &[Bytes] {
        match &self.command {
            Command::List(List::Push(..)) | Command::Combined(_) => &self.keys[..1],
            Command::List(List::Move(..)) => &self.keys[1..],
            Command::Sorted(Sorted::Add(_) | Sorted::Store(_)) => &self.keys[..1],
            _ => &[],
        }
    }

    /// How it may go with others on its only key, if it may.
    pub(super) fn row(&self) -> Option<Row> {
        if !self.writes || self.keys.len() > 1 {
            return None;
        }
        Some(quick::doing(self).map_or(Row::InLine, Row::Quick))
    }

    /// Alone, or with others on the same object that have come meanwhile.
    pub async fn run<S: Store>(self: Box<Self>, shared: &Shared<S>, lane: Lane) -> Result<Reply> {
        if !shared.store.are_together(self.keys.iter().map(|key| &key[..])) {
            return Ok(CROSS_SLOT);
        }
        if self.asked.is_some() {
            return self.run_and_note(shared, lane).await;
        }
        let_pass(std::slice::from_ref(&self), shared).await?;
        if let Some(reply) = quick::run(&self, shared, lane).await? {
            return Ok(reply);
        }
        if !self.writes || self.keys.len() > 1 {
            return alone(Queued::Ask(Request::Object(self)), shared, lane).await;
        }
        match shared.companions.enter(self, |key| shared.store.stand_in_line(key))? {
            Entered::First(_lead, object) => {
                shared.repeats.let_pass(&object.keys[0]).await;
                alone(Queued::Ask(Request::Object(object)), shared, lane).await
            }
            Entered::Behind(told) => behind(told, shared, lane).await,
        }
    }
}

/// Before they go their quick way they let those pass that [repeat](crate::repeats) because of others who did. (They do not stand in the
/// line of their key: who leads there may be one of those that repeat for long.)
async fn let_pass<S: Store>(objects: &[Box<Object>], shared: &Shared<S>) -> Result<()> {
    let Some(object) = objects.first().filter(|o| matches!(o.row(), Some(Row::Quick(_)))) else {
        return Ok(());
    };
    let key = &object.keys[0];
    if !shared.repeats.is_marked(key) {
        return Ok(());
    }
    // (Whoever waits holds a turn, as those in a line do.)
    let places: Result<Vec<_>> = objects.iter().map(|_| shared.store.stand_in_line(key)).collect();
    let _places = places?;
    shared.repeats.let_pass(key).await;
    Ok(())
}

/// What became of a row.
pub(super) enum RowDone {
    Replies(Vec<Reply>),
    /// Nothing took effect: they may go one by one.
    Apart(Vec<Request>),
    /// Others lead; this is where each is told what becomes of it.
    InLine(Vec<Result<Receiver<Turn>>>),
}

/// In the boxes that they came in, and go on in.
pub(crate) type Objects = Vec<Box<Object>>;

/// Several that have a [`Row`], all on one key, in this order.
pub(super) async fn run_row<S: Store>(objects: Objects, shared: &Shared<S>, lane: Lane) -> RowDone {
    let rows = || objects.iter().map(|object| object.row());
    if rows().any(|row| row == Some(Row::InLine)) {
        return in_line(objects, shared, lane).await;
    }
    if let Err(e) = let_pass(&objects, shared).await {
        return RowDone::Replies(objects.iter().map(|_| store_error(&e)).collect());
    }
    if !rows().all(|row| row == objects[0].row()) {
        return mixed(objects, shared, lane).await;
    }
    let all: Vec<&Object> = objects.iter().map(|object| &**object).collect();
    match quick::run_all(&all, shared, lane).await {
        Ok(Some(replies)) => RowDone::Replies(replies),
        Err(e) if e.kind != ErrorKind::Invalid => {
            RowDone::Replies(objects.iter().map(|_| store_error(&e)).collect())
        }
        Ok(None) | Err(_) => RowDone::Apart(objects.into_iter().map(Request::Object).collect()),
    }
}

/// Those that each have a quick way, but not the same one. (None of them has to repeat often because it has company.)
async fn mixed<S: Store>(objects: Objects, shared: &Shared<S>, lane: Lane) -> RowDone {
    let commands: Vec<Queued> =
        objects.into_iter().map(|object| Queued::Ask(Request::Object(object))).collect();
    match atomic::run_within(shared, &commands, &[], lane, MIXED_ATTEMPTS).await {
        Ok(Done::Replies(replies)) => return RowDone::Replies(replies),
        Err(e) if !matches!(e.kind, ErrorKind::Invalid | ErrorKind::Retry | ErrorKind::Overloaded) => {
            return RowDone::Replies(commands.iter().map(|_| store_error(&e)).collect());
        }
        Ok(_) | Err(_) => {}
    }
    RowDone::Apart(requests_of(commands))
}

async fn in_line<S: Store>(objects: Objects, shared: &Shared<S>, lane: Lane) -> RowDone {
    let (_lead, objects) = match shared.companions.enter_row(objects, |key| shared.store.stand_in_line(key)) {
        EnteredRow::First(lead, objects) => (lead, objects),
        EnteredRow::Behind(waiting) => return RowDone::InLine(waiting),
    };
    if let Some(object) = objects.first() {
        shared.repeats.let_pass(&object.keys[0]).await;
    }
    let commands: Vec<Queued> =
        objects.into_iter().map(|object| Queued::Ask(Request::Object(object))).collect();
    match atomic::run(shared, &commands, &[], lane).await {
        Ok(Done::Replies(replies)) => return RowDone::Replies(replies),
        Ok(Done::NoRoom(_)) => {}
        Err(e) if e.kind == ErrorKind::Invalid => {}
        Err(e) => return RowDone::Replies(commands.iter().map(|_| store_error(&e)).collect()),
        Ok(Done::Apart | Done::Changed) => {
            return RowDone::Replies(commands.iter().map(|_| CROSS_SLOT).collect());
        }
    }
    RowDone::Apart(requests_of(commands))
}

pub(super) async fn behind<S: Store>(told: Receiver<Turn>, shared: &Shared<S>, lane: Lane) -> Result<Reply> {
    match told.await {
        Ok(Turn::Done(reply)) => reply,
        Ok(Turn::Lead(_lead, object, others)) => {
            shared.repeats.let_pass(&object.keys[0]).await;
            together(object, others, shared, lane).await
        }
        Err(_) => Err(Error::new(ErrorKind::OutcomeUnknown, "the server stops")),
    }
}

async fn alone<S: Store>(command: Queued, shared: &Shared<S>, lane: Lane) -> Result<Reply> {
    match atomic::run(shared, &[command], &[], lane).await? {
        Done::Replies(mut replies) => {
            replies.pop().ok_or_else(|| Error::internal("a command without a reply"))
        }
        Done::Apart => Ok(CROSS_SLOT),
        Done::Changed => Ok(Reply::Nil),
        Done::NoRoom(e) => Err(e),
    }
}

/// As one batch; if that would be more than one may be, or finds no room, one after the other.
async fn together<S: Store>(
    object: Box<Object>,
    others: Vec<Companion>,
    shared: &Shared<S>,
    lane: Lane,
) -> Result<Reply> {
    let ask = |object| Queued::Ask(Request::Object(object));
    if others.is_empty() {
        return alone(ask(object), shared, lane).await;
    }
    let (mut commands, mut waiting) = (vec![ask(object)], Vec::with_capacity(others.len()));
    for companion in others {
        let (object, client) = companion.parts();
        commands.push(ask(object));
        waiting.push(client);
    }
    let replies: Vec<Result<Reply>> = match atomic::run(shared, &commands, &[], lane).await {
        Ok(Done::Replies(replies)) => replies.into_iter().map(Ok).collect(),
        Ok(Done::NoRoom(_)) => return one_by_one(commands, waiting, shared, lane).await,
        Err(e) if e.kind == ErrorKind::Invalid => return one_by_one(commands, waiting, shared, lane).await,
        Err(e) => commands.iter().map(|_| Err(e.clone())).collect(),
        Ok(Done::Apart | Done::Changed) => commands.iter().map(|_| Ok(CROSS_SLOT)).collect(),
    };
    let mut replies = replies.into_iter();
    let first = replies.next();
    waiting.into_iter().zip(replies).for_each(|(client, reply)| client.done(reply));
    first.unwrap_or_else(|| Err(Error::internal("a command without a reply")))
}

/// `waiting`: the clients of all commands but the first.
async fn one_by_one<S: Store>(
    commands: Vec<Queued>,
    waiting: Vec<Client>,
    shared: &Shared<S>,
    lane: Lane,
) -> Result<Reply> {
    let until_ns =
        shared.env.clock.holder_ns().saturating_add(shared.config.patience.in_line.as_nanos() as u64);
    let mut commands = commands.into_iter();
    let first = match commands.next() {
        Some(command) => alone(command, shared, lane).await,
        None => Err(Error::internal("a command without a reply")),
    };
    for (command, client) in commands.zip(waiting) {
        let reply = match shared.env.clock.holder_ns() < until_ns {
            true => alone(command, shared, lane).await,
            false => Err(overdue()),
        };
        client.done(reply);
    }
    first
}
