//! What the front end needs from whoever holds the data.

use std::any::Any;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures::TryFutureExt;
use futures::stream::{FuturesUnordered, Stream, StreamExt};
use sextant_common::Result;
use sextant_common::database::Database;
use sextant_common::marks::Kind;
use sextant_common::operation::{Condition, Lane, Operation, Put, Record, WriteOutcome};

/// How long a step over keys, or over elements of an object, searches for the next one, and goes on when it has found some: a client
/// gets a cursor that is behind deleted ones, too.
pub const STEP_TIME_MAX: Duration = Duration::from_millis(500);

/// When a `SET` takes effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SetCondition {
    #[default]
    Always,
    /// `NX`: only if the key does not exist.
    IfAbsent,
    /// `XX`: only if the key exists.
    IfPresent,
}

impl From<SetCondition> for Condition {
    fn from(condition: SetCondition) -> Self {
        match condition {
            SetCondition::Always => Condition::None,
            SetCondition::IfAbsent => Condition::Absent,
            SetCondition::IfPresent => Condition::Present,
        }
    }
}

/// What a store knows of a key without waiting.
#[derive(Debug)]
pub enum Look<M> {
    /// What [`Store::get`] would answer.
    Known(Result<Option<Record>>),
    /// It has to be asked for; the read that does goes on from here.
    Missed(M),
}

/// How far a walk over all keys has come. The default: it has not begun.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Of the parts that the store has, which come one after the other.
    pub part: u32,
    /// The least key that comes; empty: the first one.
    pub from: Bytes,
}

/// A step of a walk over keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Inclusive; empty: from the first key.
    pub start: Bytes,
    /// Exclusive; empty: to the last key.
    pub end: Bytes,
    pub position: Position,
    /// Most keys.
    pub limit: u64,
}

/// Elements of objects, by their keys ([`sextant_common::object`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElementRange {
    /// Inclusive.
    pub start: Bytes,
    /// Exclusive.
    pub end: Bytes,
    /// From the end on.
    pub reverse: bool,
    /// Most elements.
    pub limit: u64,
}

/// The first elements of a range, as they were at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElementPage {
    /// Keys and values.
    pub elements: Vec<(Bytes, Bytes)>,
    /// Whether the range has, or may have, others.
    pub has_more: bool,
    /// It took several readings: the elements of before the first one that is here were looked for earlier.
    pub took_several: bool,
}

/// What a search for the first elements of a range has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElementStep {
    Found(ElementPage),
    /// None so far: this is left of the range, and was not looked at. What is before it was looked at piece by piece, each at a moment of
    /// its own.
    Searched(ElementRange),
}

/// What became of some of the sets of a [`Store::set_each`]: their places, and the outcomes.
pub type SetDone = Vec<(usize, Result<()>)>;

/// A place of a command that waits for others on the same key; given back when it is dropped.
pub type InLine = Box<dyn Any + Send>;

/// A key, and what its record is.
pub type Named = (Bytes, Kind);

/// A key-value store, cheap to clone, and in it one database.
///
/// Keys and values that are passed in are within `sextant_common::limits` and are slices of a connection's input buffer:
/// whoever keeps one beyond the call copies it, or it pins the whole buffer.
///
/// The front end may drop a future before it is done (a server that stops); a write that was under way then may or may not
/// take effect. Every future must end on its own within the store's deadline: the front end sets none.
pub trait Store: Clone + Send + Sync + 'static {
    /// What a look at a key that is not at hand found out, so that nothing is looked up twice. The default: nobody has looked.
    type Missed: Default + Send + 'static;

    /// The same store, as one that has another database (this one too has this method for all). Costs nothing.
    fn database(&self, database: Database) -> Self;

    /// Whether the database is there; if it is not, it is made, if `makes` says so.
    fn open(&self, makes: bool) -> impl Future<Output = Result<bool>> + Send + 'static;

    /// Those that somebody has made, the first one among them.
    fn databases(&self) -> impl Future<Output = Result<Vec<Database>>> + Send;

    /// What is known without waiting: the first step of every read that nothing holds up.
    fn look(&self, key: &[u8]) -> Look<Self::Missed>;

    /// The same of an element of an object, whose key this is; None: it has to be asked for.
    fn look_element(&self, _key: &[u8]) -> Option<Result<Option<Record>>> {
        None
    }

    /// Another one whenever records of the key's partition, also of elements of objects, may be others without having been written: they
    /// were loaded. (It may be another one for less.)
    fn loaded(&self, _key: &[u8]) -> u64 {
        0
    }

    /// `missed`: of a look at this key, taken when everything that had to come before this read had.
    fn get(&self, key: Bytes, missed: Self::Missed) -> impl Future<Output = Result<Option<Record>>> + Send;

    /// One result a key, in the order of the keys. Linearizable for each key; not a snapshot. `first`: as for
    /// [`Store::get`], of the first key.
    fn multi_get(
        &self,
        keys: Vec<Bytes>,
        first: Self::Missed,
    ) -> impl Future<Output = Result<Vec<Option<Record>>>> + Send;

    /// Whether the value was set: false only if the condition failed.
    fn set(&self, put: Put, condition: SetCondition, lane: Lane)
    -> impl Future<Output = Result<bool>> + Send;

    /// Sets without a condition that have come together, each on its own: they take effect in any order, and what becomes of one says
    /// nothing about the others. The stream ends when all are told of.
    fn set_each(&self, puts: Vec<Put>, lane: Lane) -> impl Stream<Item = SetDone> + Send + 'static {
        one_by_one(self, puts, lane)
    }

    /// The keys are distinct. Atomic for the keys of one partition only.
    fn multi_set(&self, pairs: Vec<(Bytes, Bytes)>, lane: Lane) -> impl Future<Output = Result<()>> + Send;

    /// How many of the keys (distinct) existed.
    fn delete(&self, keys: Vec<Bytes>, lane: Lane) -> impl Future<Output = Result<u64>> + Send;

    /// How many of the keys exist; a key that is named twice counts twice. `first`: as for [`Store::get`], of the first key.
    fn exists(&self, keys: Vec<Bytes>, first: Self::Missed) -> impl Future<Output = Result<u64>> + Send;

    /// Elements of objects: one result a key, in the order of the keys. Linearizable for each key; not a snapshot.
    fn elements(&self, keys: Vec<Bytes>) -> impl Future<Output = Result<Vec<Option<Record>>>> + Send;

    /// The first elements of a range, of one object's: at most as many as the limit says, and at least one, if there is one.
    fn element_page(&self, range: ElementRange) -> impl Future<Output = Result<ElementPage>> + Send;

    /// The same for as long as a step takes ([`STEP_TIME_MAX`]), if none is found by then. The default: for as long as it takes.
    fn element_step(&self, range: ElementRange) -> impl Future<Output = Result<ElementStep>> + Send {
        self.element_page(range).map_ok(ElementStep::Found)
    }

    /// The object of this key is gone, or another one has taken its place: what elements it has left may be swept away. Nothing
    /// depends on whether, and when, that is done.
    fn is_garbage(&self, _key: &[u8]) {}

    /// Keys of a range with what they are, in no order that means something, and where it goes on; None: there are no more. A key that is there from the
    /// first step to the last comes in one of them, and in only one.
    fn walk(&self, walk: Walk) -> impl Future<Output = Result<(Vec<Named>, Option<Position>)>> + Send;

    /// Some key, by chance, if there is any: none is more likely than others by much, where keys are spread evenly.
    fn any_key(&self, random: u64) -> impl Future<Output = Result<Option<Bytes>>> + Send;

    /// How many servers, beside the one that decides, have every write that was answered.
    fn copies(&self) -> u32 {
        0
    }

    /// Whether [`Store::execute`] takes these keys together.
    fn are_together<'k>(&self, keys: impl IntoIterator<Item = &'k [u8]>) -> bool;

    /// A number of whoever owns a key: the same for those that [are together](Store::are_together).
    fn owner(&self, _key: &[u8]) -> u32 {
        0
    }

    /// One batch, atomic, of keys that [are together](Store::are_together), in the database's table, or in that of
    /// its elements, if an operation says so ([`ELEMENTS_TABLE`](sextant_common::object::ELEMENTS_TABLE)): what became of each operation.
    fn execute(&self, ops: Vec<Operation>, lane: Lane) -> impl Future<Output = Result<WriteOutcome>> + Send;

    /// A command on this key begins to wait for others on the same key that are under way. An error: too many wait already for who
    /// owns the key.
    fn stand_in_line(&self, _key: &[u8]) -> Result<Option<InLine>> {
        Ok(None)
    }

    /// The wall clock, in milliseconds since 1970: what is left of a lifetime counts from here.
    fn now_ms(&self) -> u64;

    /// Sections for `INFO`: a title, and pairs of field and value.
    fn info(&self) -> Vec<(&'static str, Vec<(String, String)>)>;
}

/// A key from the first to the last one, which may have much in common at their beginning; by chance.
pub fn between(first: &[u8], last: &[u8], random_below: impl FnOnce(u64) -> u64) -> Bytes {
    let common = first.iter().zip(last.iter()).take_while(|(a, b)| a == b).count();
    let number = |key: &[u8]| {
        let mut bytes = [0; 8];
        bytes.iter_mut().zip(&key[common..]).for_each(|(to, from)| *to = *from);
        u64::from_be_bytes(bytes)
    };
    let (low, high) = (number(first), number(last));
    let chosen = low + random_below(high.saturating_sub(low).saturating_add(1));
    Bytes::from([&first[..common], &chosen.to_be_bytes()].concat())
}

/// [`Store::set_each`] for a store that has no better way.
pub fn one_by_one<S: Store>(
    store: &S,
    puts: Vec<Put>,
    lane: Lane,
) -> impl Stream<Item = SetDone> + Send + 'static {
    let sets: FuturesUnordered<_> = puts
        .into_iter()
        .enumerate()
        .map(|(at, put)| {
            let store = store.clone();
            async move { (at, store.set(put, SetCondition::Always, lane).await.map(|_| ())) }
        })
        .collect();
    sets.map(|done| vec![done])
}
