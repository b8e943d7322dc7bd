//! Commands on keys, decoded: what they touch.

use std::sync::Arc;

use bytes::Bytes;
use sextant_common::marks::Kind;
use sextant_common::object::Header;
use sextant_common::operation::{Lifetime, Operation, Put, Record, parse_integer};

use super::errors;
use super::objects::Object;
use super::scan::Scan;
use super::transaction::{Transaction, UnderWatch, Watched};
use super::waiting::Waiting;
use super::whole::Whole;
use crate::command_table::Access;
use crate::frame::Reply;
use crate::store::SetCondition;

/// How a conditional `SET` says what happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetReply {
    /// `+OK` or nil.
    Status,
    /// `:1` or `:0`.
    Number,
}

/// What a command wants to know of a record, other than its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aspect {
    Length,
    /// From here to there, both included; negative: from the end.
    Range(i64, i64),
    Kind,
    /// What `OBJECT ENCODING` says.
    Encoding,
    /// What `OBJECT` says of every object.
    Constant(i64),
    /// What `OBJECT FREQ` says.
    Frequency,
    /// About how many bytes it takes.
    Bytes,
    Life(LifeForm),
    /// What is to be added to it is no number.
    NoDecimal,
}

/// How it is said when a record expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LifeForm {
    /// The time itself, not what is left until then.
    pub absolute: bool,
    /// Rounded to seconds.
    pub seconds: bool,
}

impl LifeForm {
    /// -2: there is no record; -1: it does not expire.
    fn of(self, record: Option<&Record>, now_ms: u64) -> i64 {
        let Some(record) = record else { return -2 };
        let Some(at) = record.expires_at else { return -1 };
        // What is still there has time left, whatever the clock here says.
        let ms = if self.absolute { at.0 } else { at.0.saturating_sub(now_ms) };
        let ms = i64::try_from(ms).unwrap_or(i64::MAX);
        if self.seconds { ms.saturating_add(500) / 1000 } else { ms }
    }
}

impl Aspect {
    /// `now_ms`: the wall clock.
    pub fn of(self, record: Option<Record>, now_ms: u64) -> Reply {
        if let Self::Life(form) = self {
            return Reply::Integer(form.of(record.as_ref(), now_ms));
        }
        match self {
            Self::Kind => return Reply::Simple(record.map_or("none", |record| record.kind.name())),
            Self::Encoding => return record.map_or(Reply::Nil, |record| Reply::bulk(encoding(&record))),
            Self::Frequency => return record.map_or(Reply::Nil, |_| NO_FREQUENCY),
            Self::Bytes => return record.map_or(Reply::Nil, |record| Reply::Integer(bytes_of(&record))),
            Self::Constant(number) => return record.map_or(Reply::Nil, |_| Reply::Integer(number)),
            _ => {}
        }
        if record.as_ref().is_some_and(|record| record.kind != Kind::Plain) {
            return errors::WRONG_TYPE;
        }
        if let Self::NoDecimal = self {
            return errors::NOT_A_FLOAT;
        }
        let value = record.map(|record| record.value);
        match self {
            Self::Length => Reply::Integer(value.map_or(0, |v| v.len() as i64)),
            Self::Range(start, end) => Reply::Bulk(value.map_or_else(Bytes::new, |v| range(v, start, end))),
            _ => Reply::Nil,
        }
    }
}

const NO_FREQUENCY: Reply = Reply::Error(Bytes::from_static(
    b"ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between \
      policies at runtime LRU and LFU data will take some time to adjust.",
));

/// Roughly: the elements of an object are not looked at.
fn bytes_of(record: &Record) -> i64 {
    const BESIDE: u64 = 64;
    let elements = match record.kind {
        Kind::Plain => 0,
        _ => Header::decode(&record.value).map_or(0, |header| header.count),
    };
    (BESIDE + record.value.len() as u64 + elements * BESIDE) as i64
}

/// How Redis would keep it. (Here all objects are kept alike.)
fn encoding(record: &Record) -> &'static str {
    const SHORT_BYTES: usize = 44;
    const FEW: u64 = 128;
    let is_small = || Header::decode(&record.value).is_some_and(|header| header.count <= FEW);
    match record.kind {
        Kind::Plain if parse_integer(&record.value).is_some() => "int",
        Kind::Plain if record.value.len() <= SHORT_BYTES => "embstr",
        Kind::Plain => "raw",
        Kind::Hash | Kind::SortedSet if is_small() => "listpack",
        Kind::Hash | Kind::Set => "hashtable",
        Kind::SortedSet => "skiplist",
        Kind::List => "quicklist",
    }
}

fn range(value: Bytes, start: i64, end: i64) -> Bytes {
    let len = value.len() as i64;
    if start < 0 && end < 0 && start > end {
        return Bytes::new();
    }
    let place = |at: i64| if at < 0 { at.saturating_add(len).max(0) } else { at };
    let (start, end) = (place(start), place(end).min(len - 1));
    if start > end { Bytes::new() } else { value.slice(start as usize..=end as usize) }
}

/// What a change is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeReply {
    /// The number that it left.
    Number,
    /// The value that it tells, if there is one.
    Value,
    /// The length of what it left.
    Length,
    /// Whether all of it took effect.
    Applied,
    /// Whether its operation, the only one, did.
    Effect,
}

/// A record is to have another name.
#[derive(Debug)]
pub(crate) struct Move {
    pub from: Bytes,
    pub to: Bytes,
    /// It has both names then.
    pub copies: bool,
    /// Also over a record that is there.
    pub replaces: bool,
    pub reply: SetReply,
}

#[derive(Debug)]
pub(crate) enum Request {
    Get(Bytes),
    Inspect(Bytes, Aspect),
    /// One batch. Of a single operation, whose outcome is the answer, or `MSETNX`.
    Change {
        ops: Vec<Operation>,
        reply: ChangeReply,
    },
    MultiGet(Vec<Bytes>),
    Exists(Vec<Bytes>),
    Set {
        put: Put,
        condition: SetCondition,
        reply: SetReply,
    },
    /// Distinct keys.
    MultiSet(Vec<(Bytes, Bytes)>),
    /// Distinct keys.
    Delete(Vec<Bytes>),
    Move(Move),
    /// A command on hashes, sets, sorted sets or lists.
    Object(Box<Object>),
    /// One that waits until there is something to take.
    Waiting(Box<Waiting>),
    Scan(Box<Scan>),
    /// Of all keys of the table.
    Whole(Box<Whole>),
    Watch(Arc<Watched>),
    /// Any other, on keys that the connection watches.
    UnderWatch(Box<UnderWatch>),
    Transaction(Box<Transaction>),
}

impl Request {
    /// Whether it is a `SET` that asks nothing.
    pub fn is_put(&self) -> bool {
        matches!(
            self,
            Self::Set { put, condition: SetCondition::Always, reply: SetReply::Status }
                if put.lifetime != Lifetime::Kept
        )
    }

    /// What it puts then; any other request comes back.
    pub fn into_put(self) -> Result<Put, Self> {
        match self {
            Self::Set { put, .. } if self.is_put() => Ok(put),
            other => Err(other),
        }
    }

    /// Of what it writes of one key, about.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Set { put, .. } => put.key.len() + put.value.len(),
            Self::Change { ops, .. } => ops.iter().map(|op| op.key.len() + op.effect.bytes()).sum(),
            Self::Object(object) => object.bytes,
            Self::UnderWatch(under) => under.request.bytes(),
            _ => 0,
        }
    }

    pub fn access(&self) -> Access {
        match self {
            Self::Get(_) | Self::Inspect(..) | Self::MultiGet(_) | Self::Exists(_) | Self::Scan(_) => {
                Access::Read
            }
            Self::Object(object) if object.writes => Access::Write,
            Self::Whole(whole) if !whole.writes() => Access::Read,
            Self::Object(_) => Access::Read,
            // Reads of these keys that come later see what it has seen, or something newer: whoever decides by them is undone if that
            // has changed.
            Self::Watch(_) => Access::Write,
            Self::Whole(_) | Self::Waiting(_) => Access::Write,
            Self::Set { .. } | Self::MultiSet(_) | Self::Delete(_) | Self::Change { .. } | Self::Move(_) => {
                Access::Write
            }
            // Also if it only reads: it comes after what it has watched.
            Self::Transaction(_) => Access::Write,
            // What it met is known before the transaction begins.
            Self::UnderWatch(_) => Access::Write,
        }
    }

    /// Whether it may be answered by a look at what is there: because it reads, or because it would change nothing.
    pub fn may_be_looked_up(&self) -> bool {
        match self {
            Self::Object(object) => !object.writes || object.may_change_nothing(),
            other => other.access() == Access::Read,
        }
    }

    /// Whether its answer may be to something that took effect.
    pub fn may_write(&self) -> bool {
        match self {
            Self::Transaction(transaction) => transaction.may_write(),
            Self::Watch(_) => false,
            Self::UnderWatch(under) => under.request.may_write(),
            other => other.access() == Access::Write,
        }
    }

    /// Under which there may be something new then for those who wait.
    pub fn filled(&self) -> Vec<Bytes> {
        match self {
            Self::Object(object) => object.filled().to_vec(),
            Self::Move(moved) => vec![moved.to.clone()],
            Self::Transaction(transaction) => transaction.filled(),
            Self::UnderWatch(under) => under.request.filled(),
            _ => vec![],
        }
    }

    /// For the slow log.
    pub fn first_key(&self) -> Option<Bytes> {
        match self {
            Self::Get(key) | Self::Inspect(key, _) | Self::Set { put: Put { key, .. }, .. } => {
                Some(key.clone())
            }
            Self::MultiGet(keys) | Self::Exists(keys) | Self::Delete(keys) => keys.first().cloned(),
            Self::MultiSet(pairs) => pairs.first().map(|(key, _)| key.clone()),
            Self::Change { ops, .. } => ops.first().map(|op| op.key.clone()),
            Self::Move(Move { from, .. }) => Some(from.clone()),
            Self::Object(object) => object.keys.first().cloned(),
            Self::Waiting(waiting) => waiting.object.keys.first().cloned(),
            Self::Scan(_) | Self::Whole(_) => None,
            Self::Watch(watched) => watched.keys.first().cloned(),
            Self::Transaction(transaction) => transaction.first_key(),
            Self::UnderWatch(under) => under.request.first_key(),
        }
    }

    /// The only key, if there is just one.
    pub fn single_key(&self) -> Option<&[u8]> {
        match self {
            Self::Get(key) | Self::Inspect(key, _) | Self::Set { put: Put { key, .. }, .. } => Some(key),
            Self::MultiGet(keys) | Self::Exists(keys) | Self::Delete(keys) if keys.len() == 1 => {
                Some(&keys[0])
            }
            Self::Change { ops, .. } if ops.len() == 1 => Some(&ops[0].key),
            Self::Object(object) if object.keys.len() == 1 => Some(&object.keys[0]),
            _ => None,
        }
    }

    pub fn for_each_key(&self, each: &mut dyn FnMut(&[u8])) {
        match self {
            Self::Get(key) | Self::Inspect(key, _) | Self::Set { put: Put { key, .. }, .. } => each(key),
            Self::MultiGet(keys) | Self::Exists(keys) | Self::Delete(keys) => {
                keys.iter().for_each(|k| each(k))
            }
            Self::MultiSet(pairs) => pairs.iter().for_each(|(k, _)| each(k)),
            Self::Change { ops, .. } => ops.iter().for_each(|op| each(&op.key)),
            Self::Move(Move { from, to, .. }) => {
                each(from);
                each(to);
            }
            Self::Object(object) => object.keys.iter().for_each(|k| each(k)),
            Self::Waiting(waiting) => waiting.object.keys.iter().for_each(|k| each(k)),
            Self::Scan(_) | Self::Whole(_) => {}
            Self::Watch(watched) => watched.keys.iter().for_each(|k| each(k)),
            Self::Transaction(transaction) => transaction.for_each_key(each),
            Self::UnderWatch(under) => under.request.for_each_key(each),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_as_redis_cuts_them() {
        let cut = |start, end| range(Bytes::from_static(b"This is a string"), start, end);
        for (start, end, what) in [
            (0, 3, "This"),
            (-3, -1, "ing"),
            (0, -1, "This is a string"),
            (10, 100, "string"),
            (5, 3, ""),
            (-1, -3, ""),
            (-100, 1, "Th"),
            (-100, -200, ""),
            (0, -100, "T"),
            (16, 20, ""),
            (i64::MIN, i64::MAX, "This is a string"),
            (i64::MAX, i64::MIN, ""),
        ] {
            assert_eq!(cut(start, end), what, "{start} to {end}");
        }
        assert_eq!(range(Bytes::new(), 0, -1), "");
    }
}
