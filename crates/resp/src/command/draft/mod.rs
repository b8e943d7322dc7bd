//! A draft: records, and elements of objects, as commands would leave them that take effect together.
//!
//! Owns what was read, what is to be written, and on what that depends. Every change of an object writes its header: so its elements
//! are as they were read if the header is still the same version.

mod elements;
mod moves;
mod ranges;

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use sextant_common::expiry::Tick;
use sextant_common::ids::Seq;
use sextant_common::limits::BATCH_BYTES_MAX;
use sextant_common::marks::Kind;
use sextant_common::object::{Bounds, ELEMENTS_TABLE, Header, Tag, version_of};
use sextant_common::operation::{
    Change, Condition, Effect, Lifetime, Operation, Record, Update, WriteOutcome,
};
use sextant_common::{Error, Result};
use sextant_environment::Env;
use sextant_rules::mutant::{self, Mutant};

use super::atomic::{READS_MAX, check, writes_of};
use super::errors::{self, WRONG_TYPE, plain, store_error};
use super::execution::{CHUNK_KEYS, change_reply, is_decimal, set_reply};
use super::objects;
use super::request::Request;
use super::transaction::Queued;
use crate::element_turns::OfOwner;
use crate::frame::Reply;
use crate::gathering::Gathered;
use crate::shared::Shared;
use crate::store::Store;

/// Longest values that are read together, in bytes.
pub(crate) const READ_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Longest replies that are given together, in bytes.
const REPLY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most bytes of values that a draft makes.
const MADE_BYTES_MAX: usize = 4 * BATCH_BYTES_MAX;
/// Commands, and bytes that they make, after which others have their turn.
const TURN_COMMANDS: usize = 256;
const TURN_BYTES: usize = 1024 * 1024;

/// Why a command comes to nothing.
#[derive(Debug)]
pub(super) enum Stop {
    /// It has no sense: that is its reply, and others of its transaction take effect.
    Reply(Reply),
    /// Nothing of its transaction takes effect.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Failed(error)
    }
}

impl From<Reply> for Stop {
    fn from(reply: Reply) -> Self {
        Stop::Reply(reply)
    }
}

pub(super) use ranges::{Nearer, after};

pub(super) type Carried<T> = std::result::Result<T, Stop>;

/// The records as the commands so far would leave them.
pub(super) struct Draft<'s, S> {
    store: &'s S,
    env: &'s Env,
    cells: BTreeMap<Bytes, Cell>,
    /// Elements that have changed, by their keys; None: removed.
    elements: BTreeMap<Bytes, Option<Bytes>>,
    /// Stored ones that were read by their names. (A version is of one object: its key need not be kept with each of them.)
    known: HashMap<(u64, Tag), HashMap<Bytes, Option<Bytes>>>,
    /// The same of elements of which only that was asked: whether they are there.
    known_to_exist: HashMap<(u64, Tag), HashMap<Bytes, bool>>,
    /// Of those names.
    known_bytes: usize,
    /// Ranges that were read, of commands that may come back to them.
    fetched: Vec<ranges::Fetched>,
    /// Versions that were given here: nothing of them is stored.
    fresh: HashSet<u64>,
    /// What was read of stored elements.
    read: Read,
    /// Elements that were looked at, also those at hand.
    looked: usize,
    /// Elements that are asked for together are asked of the leader, as they are at one moment.
    of_leader: bool,
    /// Others came between before.
    is_repeated: bool,
    /// The p-node's clock. What a lifetime is counted from in the end is the leader's.
    now: Tick,
    /// Bytes of the values that were made.
    made: usize,
    /// Whether all that was read has to have been so at one moment, also what no reply needs together with anything else: something
    /// is expected to be of some version, or there are several commands, some of which go by the header.
    is_of_one_moment: bool,
    /// Something was not read, and is expected to be of some version.
    expects: bool,
    gathered: Gathered<'s>,
    turns: OfOwner<'s>,
}

#[derive(Debug, Default)]
struct Read {
    /// How many times something was read that was so at one moment.
    moments: usize,
    /// Whether some answer rests on the object being there.
    rests_on_header: bool,
    elements: usize,
    bytes: usize,
    /// Of elements that were read and not kept.
    dropped_bytes: usize,
}

#[derive(Debug)]
struct Cell {
    /// The version that was read, or is expected; 0: there was none. None: it was not asked for.
    seen: Option<Seq>,
    /// Of an object, as it was read.
    seen_header: Option<Header>,
    record: Option<Record>,
    /// Of a record that has changed.
    lifetime: Lifetime,
    has_changed: bool,
}

fn header_of(record: &Record) -> Option<Header> {
    if record.kind == Kind::Plain { None } else { Header::decode(&record.value) }
}

impl<'s, S: Store> Draft<'s, S> {
    /// `attempt`: from 0; from [`READS_MAX`] on what is asked for together is asked of the leader.
    pub async fn read(shared: &'s Shared<S>, keys: &[Bytes], attempt: usize) -> Result<Self> {
        let (store, env) = (&shared.store, &shared.env);
        let (mut cells, mut bytes) = (BTreeMap::new(), 0);
        let mut gathered = Gathered::new(&shared.gathering);
        for keys in keys.chunks(CHUNK_KEYS) {
            let records = store.multi_get(keys.to_vec(), S::Missed::default()).await?;
            for (key, record) in keys.iter().zip(records) {
                bytes += record.as_ref().map_or(0, |record| record.value.len());
                let seen = Some(record.as_ref().map_or(Seq(0), |record| record.seq));
                let seen_header = record.as_ref().and_then(header_of);
                let lifetime = Lifetime::Kept;
                let cell = Cell { seen, seen_header, record, lifetime, has_changed: false };
                cells.insert(key.clone(), cell);
            }
            gathered.make_room(bytes)?;
            if bytes > READ_BYTES_MAX {
                return Err(Error::invalid(format!(
                    "nothing took effect: the values that it reads are longer than {READ_BYTES_MAX} bytes"
                )));
            }
        }
        Ok(Self {
            store,
            env,
            cells,
            elements: BTreeMap::new(),
            known: HashMap::new(),
            known_to_exist: HashMap::new(),
            known_bytes: 0,
            fetched: Vec::new(),
            fresh: HashSet::new(),
            read: Read { bytes, ..Read::default() },
            looked: 0,
            of_leader: attempt >= READS_MAX,
            is_repeated: attempt > 0,
            now: Tick(store.now_ms()),
            made: 0,
            is_of_one_moment: false,
            expects: false,
            gathered,
            turns: shared.elements.of(keys.first().map_or(0, |key| store.owner(key))),
        })
    }

    /// That these versions are there. False: it is known that they are not. (What was not read may be long, and is of no use.)
    pub fn expect(&mut self, expected: &[(&Bytes, Seq)]) -> bool {
        self.is_of_one_moment |= !expected.is_empty();
        expected.iter().all(|(key, seq)| {
            let cell = self.cells.entry((*key).clone()).or_insert_with(|| {
                self.expects = true;
                Cell {
                    seen: Some(*seq),
                    seen_header: None,
                    record: None,
                    lifetime: Lifetime::Kept,
                    has_changed: false,
                }
            });
            cell.seen == Some(*seq)
        })
    }

    fn record(&self, key: &[u8]) -> Option<&Record> {
        self.cells.get(key)?.record.as_ref()
    }

    fn leave(&mut self, key: &Bytes, record: Option<Record>, lifetime: Lifetime) {
        let cell = self.cells.entry(key.clone()).or_insert(Cell {
            seen: None,
            seen_header: None,
            record: None,
            lifetime,
            has_changed: true,
        });
        cell.lifetime = match lifetime {
            // Of the record that is there, or of none.
            Lifetime::Kept if cell.record.is_some() => cell.lifetime,
            Lifetime::Kept => Lifetime::Unlimited,
            lifetime => lifetime,
        };
        cell.record = record;
        cell.has_changed = true;
    }

    fn execute(&mut self, ops: &[Operation]) -> WriteOutcome {
        let before = |op: &Operation| self.record(&op.key).cloned();
        let (changes, outcome) = Operation::execute_batch(ops, before, self.now);
        for (op, (change, expires_at)) in ops.iter().zip(changes) {
            match change {
                Change::To(value, kind) => {
                    if matches!(op.effect, Effect::Update(_)) {
                        self.made += value.len();
                    }
                    let record = Record { value, seq: Seq(0), expires_at, kind };
                    self.leave(&op.key, Some(record), op.lifetime);
                }
                Change::Removed => self.leave(&op.key, None, Lifetime::Unlimited),
                Change::None => {}
            }
        }
        outcome
    }

    /// The replies.
    pub async fn carry_all_out(&mut self, commands: &[Queued]) -> Result<Vec<Reply>> {
        let mut replies = Vec::with_capacity(commands.len());
        let (mut bytes, mut turn) = (0, (0, 0));
        self.is_of_one_moment |= commands.len() > 1;
        if commands.len() > 1
            && let Err(Stop::Failed(error)) = Box::pin(objects::read_ahead(commands, self)).await
        {
            return Err(error);
        }
        for (at, command) in commands.iter().enumerate() {
            let carried = match command {
                Queued::Known(reply) => Ok(reply.clone()),
                Queued::Ask(Request::Object(object)) => Box::pin(object.carry_out(self)).await,
                Queued::Ask(Request::Move(moved)) => Box::pin(self.carry_over(moved)).await,
                Queued::Ask(request) => Ok(self.carry_out(request)),
            };
            let reply = match carried {
                Ok(reply) | Err(Stop::Reply(reply)) => reply,
                Err(Stop::Failed(error)) => return Err(error),
            };
            bytes += reply.size();
            if bytes > REPLY_BYTES_MAX {
                return Err(Error::invalid(format!(
                    "nothing took effect: the answers are longer than {REPLY_BYTES_MAX} bytes"
                )));
            }
            self.check_made()?;
            self.make_room(bytes)?;
            replies.push(reply);
            if at > turn.0 + TURN_COMMANDS || self.made > turn.1 + TURN_BYTES {
                turn = (at, self.made);
                tokio::task::yield_now().await;
            }
        }
        Ok(replies)
    }

    fn carry_out(&mut self, request: &Request) -> Reply {
        let applied = |outcome: &WriteOutcome| outcome.results.iter().filter(|result| result.applied).count();
        match request {
            Request::Get(key) => errors::value(self.record(key).cloned()),
            Request::Inspect(key, aspect) => aspect.of(self.record(key).cloned(), self.now.0),
            Request::MultiGet(keys) => {
                let value = |key: &Bytes| plain(self.record(key).cloned());
                Reply::Array(keys.iter().map(value).collect())
            }
            Request::Exists(keys) => {
                Reply::Integer(keys.iter().filter(|key| self.record(key).is_some()).count() as i64)
            }
            Request::Set { reply, .. } => {
                let outcome = self.execute(&writes_of(request));
                set_reply(applied(&outcome) == 1, *reply)
            }
            Request::MultiSet(_) => {
                self.execute(&writes_of(request));
                Reply::OK
            }
            Request::Delete(_) => Reply::Integer(applied(&self.execute(&writes_of(request))) as i64),
            Request::Change { ops, reply } => {
                let outcome = self.execute(ops);
                change_reply(outcome, *reply, is_decimal(ops)).unwrap_or_else(|e| store_error(&e))
            }
            Request::Object(_)
            | Request::Waiting(_)
            | Request::Whole(_)
            | Request::Move(_)
            | Request::Scan(_)
            | Request::Watch(_)
            | Request::UnderWatch(_)
            | Request::Transaction(_) => {
                store_error(&Error::internal("a transaction has a command that it may not have"))
            }
        }
    }

    /// What makes it so, if everything that was read is still the same. None of it: there is nothing to make, and what was read was so
    /// at one moment anyway.
    pub fn into_ops(self) -> Vec<Operation> {
        let has_changed =
            |cell: &Cell| cell.has_changed && (cell.record.is_some() || cell.seen != Some(Seq(0)));
        let seen = self.cells.values().filter(|cell| cell.seen.is_some()).count();
        if seen < 2 && !self.expects && !self.cells.values().any(has_changed) {
            return vec![];
        }
        // Of what is gone as a whole, nothing is removed one by one.
        let live: HashSet<u64> = self.versions().collect();
        let is_live = |key: &Bytes| version_of(key).is_some_and(|version| live.contains(&version));
        let is_fresh = |key: &Bytes| version_of(key).is_some_and(|version| self.fresh.contains(&version));
        let elements = self.elements.into_iter().filter(|(key, _)| is_live(key));
        let elements = elements.filter_map(|(key, value)| match value {
            Some(value) => Some(Operation::put(ELEMENTS_TABLE, key, value)),
            None if is_fresh(&key) => None,
            None => Some(Operation::delete(ELEMENTS_TABLE, key)),
        });
        let mut ops: Vec<Operation> = elements.collect();
        ops.extend(self.cells.into_iter().map(|(key, cell)| {
            let op = match (&cell.record, has_changed(&cell)) {
                (_, false) => check(&key),
                (Some(Record { kind: Kind::Plain, value, .. }), true) => {
                    Operation::put("", key, value.clone()).lasting(cell.lifetime)
                }
                (Some(Record { kind, value, .. }), true) => {
                    let header = Update::Header { kind: *kind, value: value.clone() };
                    Operation::update("", key, header).lasting(cell.lifetime)
                }
                (None, true) => Operation::delete("", key),
            };
            match cell.seen {
                Some(_) if cell.has_changed && mutant::active(Mutant::ChangesWithoutCondition) => op,
                Some(seq) => op.only_if(Condition::SeqEquals(seq)),
                None => op,
            }
        }));
        ops
    }

    /// Of the objects that it leaves.
    fn versions(&self) -> impl Iterator<Item = u64> {
        self.cells.values().filter_map(|cell| cell.record.as_ref().and_then(header_of)).map(|h| h.version)
    }

    /// Whether what was read of one object, and nothing changed, was so at one moment. (Otherwise the write says it.)
    pub async fn is_settled(&self) -> Result<bool> {
        let mut cells = self.cells.iter();
        let (Some((key, cell)), None) = (cells.next(), cells.next()) else { return Ok(true) };
        let is_of_one_moment = self.is_of_one_moment && self.read.moments > 0;
        let rests = self.read.rests_on_header || self.read.moments > 1 || is_of_one_moment;
        if cell.has_changed || !rests {
            return Ok(true);
        }
        let now = self.store.get(key.clone(), S::Missed::default()).await?;
        Ok(match self.read.moments {
            // What was not there, or all that was there, was so while the object was this one.
            0 | 1 if !is_of_one_moment => {
                let version = |header: Header| header.version;
                now.as_ref().and_then(header_of).map(version) == cell.seen_header.map(version)
            }
            _ => now.map_or(Seq(0), |record| record.seq) == cell.seen.unwrap_or_default(),
        })
    }

    /// What was read, and what that takes.
    pub fn read_bytes(&self) -> usize {
        self.read.bytes + self.read.dropped_bytes + elements::beside(self.read.elements)
    }

    /// Random, and of no object before.
    pub fn fresh_version(&mut self) -> u64 {
        let version = self.env.rng.next_u64();
        self.fresh.insert(version);
        version
    }

    pub fn random_below(&self, n: u64) -> u64 {
        self.env.rng.next_u64() % n.max(1)
    }

    /// The object of this kind; None: there is none.
    pub fn object(&self, key: &[u8], kind: Kind) -> Carried<Option<Header>> {
        match self.record(key) {
            None => Ok(None),
            Some(record) if record.kind != kind => Err(WRONG_TYPE.into()),
            Some(record) => header_of(record).map(Some).ok_or_else(|| damaged().into()),
        }
    }

    pub fn is_repeated(&self) -> bool {
        self.is_repeated
    }

    /// Of a sorted set: within which all its members are, as they are stored, and as commands have left them.
    pub fn bounds(&self, key: &[u8], header: &Header) -> Bounds {
        let seen = self.cells.get(key).and_then(|cell| cell.seen_header);
        match seen.filter(|seen| seen.version == header.version) {
            // (Also before what has been removed: those that go together read one range.)
            Some(seen) => seen.bounds.or(header.bounds),
            None => header.bounds,
        }
    }

    /// The object, and its kind; None: there is none.
    pub fn object_of_any(&self, key: &[u8]) -> Carried<Option<(Kind, Header)>> {
        match self.record(key) {
            None => Ok(None),
            Some(record) if record.kind == Kind::Plain => Err(WRONG_TYPE.into()),
            Some(record) => {
                let header = header_of(record).ok_or_else(|| Stop::from(damaged()))?;
                Ok(Some((record.kind, header)))
            }
        }
    }

    /// The object of this kind, or a new one.
    pub fn object_or_new(&mut self, key: &[u8], kind: Kind) -> Carried<Header> {
        Ok(match self.object(key, kind)? {
            Some(header) => header,
            None => Header::new(self.fresh_version(), 0),
        })
    }

    /// What an object has become. Without elements it is gone.
    pub fn leave_object(&mut self, key: &Bytes, kind: Kind, header: Header) {
        if header.count == 0 {
            if self.record(key).is_some() {
                self.leave(key, None, Lifetime::Unlimited);
            }
            return;
        }
        let expires_at = self.record(key).and_then(|record| record.expires_at);
        let record = Record { value: header.encode(), seq: Seq(0), expires_at, kind };
        self.leave(key, Some(record), Lifetime::Kept);
    }

    /// As [`Draft::leave_object`], in place of whatever is there.
    pub fn replace_object(&mut self, key: &Bytes, kind: Kind, header: Header) {
        let record = (header.count > 0).then(|| Record {
            value: header.encode(),
            seq: Seq(0),
            expires_at: None,
            kind,
        });
        if record.is_some() || self.record(key).is_some() {
            self.leave(key, record, Lifetime::Unlimited);
        }
    }
}

fn damaged() -> Error {
    Error::corrupt("the header of an object is damaged")
}
