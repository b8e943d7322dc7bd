//! Arguments to commands on objects.

use bytes::Bytes;
use sextant_common::limits;
use sextant_common::marks::Kind;
use sextant_common::object::element_bytes_max;
use sextant_common::operation::{Update, parse_decimal};

use super::super::data::{integer, key};
use super::super::errors::{self, NO_SUCH_KEY, NOT_A_FLOAT, NOT_AN_INTEGER, SYNTAX, store_error};
use super::super::is;
use super::super::scan::glob;
use super::decode_sorted::sorted;
use super::hash::{Hash, Part};
use super::list::{End, Find, List};
use super::pages::{Page, no_page};
use super::senseless::Senseless;
use super::set::{Combination, Set};
use super::several;
use super::sorted::Sorted;
use super::{Command as What, Object};
use crate::command_table::{Family, Id, Spec};
use crate::frame::{Command, Protocol, Reply, parse_integer};
use crate::remembered::Asked;
use crate::shared::Shared;
use crate::store::Position;

pub(super) type Decoded<T> = Result<T, Reply>;

const INVALID_CURSOR: Reply = Reply::Error(Bytes::from_static(b"ERR invalid cursor"));
const NOT_POSITIVE: Reply = Reply::Error(Bytes::from_static(b"ERR value is out of range, must be positive"));

const OUT_OF_RANGE: Reply = Reply::Error(Bytes::from_static(
    b"ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
));

/// Elements that a page has, if it is not said how many (Redis' figure), and at the most.
const COUNT_DEFAULT: u64 = 10;
const COUNT_MAX: u64 = 10_000;

pub(in super::super) fn decode<S>(
    spec: &Spec,
    command: &Command<'_>,
    protocol: Protocol,
    shared: &Shared<S>,
) -> Decoded<Object> {
    let places = spec.key_places(command).into_iter();
    let keys = places.map(|at| key(command, at)).collect::<Decoded<Vec<_>>>()?;
    let what = match command_of(spec, command, shared) {
        Err(error) => What::Senseless(senseless(spec.id, error)?),
        Ok(what) => match kind_of_nothing(&what) {
            Some(kind) => What::Senseless(Senseless::of_nothing(kind)),
            None => what,
        },
    };
    let bytes = (0..command.len()).map(|at| command.arg(at).len()).sum();
    let writes = spec.flags.contains(&"write");
    let arguments = command.len();
    let asked = match &keys[..] {
        [_] if what.is_worth_remembering() && shared.remembered.remembers_any() => {
            Asked::new(shared.database, spec.id, command, protocol, shared.key_seed)
        }
        _ => None,
    };
    Ok(Object { keys, writes, bytes, arguments, command: what, asked, hints: shared.hints.clone() })
}

/// Of which nothing is to be removed, as nothing can have any of the names.
fn kind_of_nothing(what: &What) -> Option<Kind> {
    let (kind, names) = match what {
        What::Hash(Hash::Delete(names)) => (Kind::Hash, names),
        What::Set(Set::Remove(names)) => (Kind::Set, names),
        What::Sorted(Sorted::Remove(names)) => (Kind::SortedSet, names),
        _ => return None,
    };
    names.is_empty().then_some(kind)
}

fn command_of<S>(spec: &Spec, command: &Command<'_>, shared: &Shared<S>) -> Decoded<What> {
    Ok(match (spec.id, spec.of) {
        (Id::Hscan, _) => What::Page(page(Kind::Hash, command, shared)?),
        (Id::Sscan, _) => What::Page(page(Kind::Set, command, shared)?),
        (Id::Zscan, _) => What::Page(page(Kind::SortedSet, command, shared)?),
        (id, Family::Hash) => What::Hash(hash(id, spec.name, command)?),
        (id, Family::Set) => What::Set(set(id, command)?),
        (_, Family::List | Family::Sorted) if several::names_several(spec) => several::decode(spec, command)?,
        (id, Family::List) => What::List(list(id, spec.name, command)?),
        (id, _) => What::Sorted(sorted(id, command)?),
    })
}

/// Of commands that look at their arguments only when there is an object to use them on. Others end at once.
fn senseless(id: Id, error: Reply) -> Decoded<Senseless> {
    let of = |kind, absent, error| Ok(Senseless { kind, absent, error });
    match id {
        Id::Lindex => of(Kind::List, Reply::Nil, error),
        Id::Lset => of(Kind::List, NO_SUCH_KEY, error),
        Id::Hscan if error != INVALID_CURSOR => of(Kind::Hash, no_page(), error),
        Id::Sscan if error != INVALID_CURSOR => of(Kind::Set, no_page(), error),
        Id::Zscan if error != INVALID_CURSOR => of(Kind::SortedSet, no_page(), error),
        _ => Err(error),
    }
}

/// Whether no element of the command's key can have this name.
fn is_too_long(command: &Command<'_>, at: usize) -> bool {
    command.arg(at).len() > element_bytes_max(command.arg(1))
}

/// Names of elements that go. (None goes that nothing can have.)
pub(super) fn removed(command: &Command<'_>) -> Vec<Bytes> {
    (2..command.len()).filter(|at| !is_too_long(command, *at)).map(|at| command.bytes(at)).collect()
}

/// Names of elements that are read: under one that is too long [nothing is found](super::super::draft::Draft::elements).
pub(super) fn asked(command: &Command<'_>) -> Vec<Bytes> {
    command.bytes_from(2).collect()
}

/// A field or a member that is written.
pub(super) fn element(command: &Command<'_>, at: usize) -> Decoded<Bytes> {
    if is_too_long(command, at) {
        let (most, len) = (element_bytes_max(command.arg(1)), command.arg(at).len());
        return Err(Reply::error(format!(
            "ERR a field or member of this key has up to {most} bytes, not {len}"
        )));
    }
    Ok(command.bytes(at))
}

pub(super) fn elements(command: &Command<'_>, from: usize) -> Decoded<Vec<Bytes>> {
    (from..command.len()).map(|at| element(command, at)).collect()
}

fn value(command: &Command<'_>, at: usize) -> Decoded<Bytes> {
    limits::check_value(command.arg(at)).map_err(|e| store_error(&e))?;
    Ok(command.bytes(at))
}

fn hash(id: Id, name: &str, command: &Command<'_>) -> Decoded<Hash> {
    Ok(match id {
        Id::Hset | Id::Hmset => {
            if !command.len().is_multiple_of(2) {
                return Err(errors::wrong_arity(name));
            }
            let pair = |at| Ok((element(command, at)?, value(command, at + 1)?));
            let pairs = (2..command.len()).step_by(2).map(pair).collect::<Decoded<_>>()?;
            Hash::Set(pairs, id == Id::Hset)
        }
        Id::Hsetnx => Hash::SetNew(element(command, 2)?, value(command, 3)?),
        Id::Hget => Hash::Get(command.bytes(2)),
        Id::Hmget => Hash::GetMany(asked(command)),
        Id::Hdel => Hash::Delete(removed(command)),
        Id::Hlen => Hash::Length,
        Id::Hexists => Hash::Exists(command.bytes(2)),
        Id::Hkeys => Hash::All(Part::Fields),
        Id::Hvals => Hash::All(Part::Values),
        Id::Hincrby => Hash::Increment(element(command, 2)?, integer(command, 3)?),
        Id::Hincrbyfloat => {
            let by = parse_decimal(command.arg(3)).ok_or(NOT_A_FLOAT)?;
            Hash::IncrementDecimal(element(command, 2)?, Update::IncrementDecimal(by))
        }
        Id::Hstrlen => Hash::ValueLength(command.bytes(2)),
        Id::Hrandfield => {
            let (count, with_values) = chosen(command, "withvalues")?;
            Hash::Random(count, with_values)
        }
        _ => Hash::All(Part::Both),
    })
}

/// `[count [WITHVALUES]]`.
pub(super) fn chosen(command: &Command<'_>, with: &str) -> Decoded<(Option<i64>, bool)> {
    if command.len() < 3 {
        return Ok((None, false));
    }
    let count = count(command)?;
    match command.len() {
        3 => Ok((Some(count), false)),
        4 if !is(command.arg(3), with) => Err(SYNTAX),
        // (Each comes as two.)
        4 if count.unsigned_abs() > i64::MAX as u64 / 2 => Err(Reply::error("ERR value is out of range")),
        4 => Ok((Some(count), true)),
        _ => Err(SYNTAX),
    }
}

/// How many are to be chosen.
fn count(command: &Command<'_>) -> Decoded<i64> {
    match integer(command, 2)? {
        i64::MIN => Err(OUT_OF_RANGE),
        count => Ok(count),
    }
}

/// `[count]`.
pub(super) fn positive(command: &Command<'_>, too_many: Reply) -> Decoded<Option<u64>> {
    match command.len() {
        2 => Ok(None),
        3 => {
            let count = parse_integer(command.arg(2)).and_then(|count| u64::try_from(count).ok());
            Ok(Some(count.ok_or(NOT_POSITIVE)?))
        }
        _ => Err(too_many),
    }
}

fn set(id: Id, command: &Command<'_>) -> Decoded<Set> {
    use Combination::{All, Common, Difference};
    Ok(match id {
        Id::Sadd => Set::Add(elements(command, 2)?),
        Id::Srem => Set::Remove(removed(command)),
        Id::Sismember => Set::IsMember(command.bytes(2)),
        Id::Smismember => Set::AreMembers(asked(command)),
        Id::Scard => Set::Length,
        Id::Spop => Set::Pop(positive(command, SYNTAX)?),
        Id::Srandmember => match command.len() {
            2 => Set::Random(None),
            3 => Set::Random(Some(count(command)?)),
            _ => return Err(SYNTAX),
        },
        Id::Smove => {
            let most = element_bytes_max(command.arg(2));
            let member = command.bytes(3);
            // It has to go with both names, if it can be there at all.
            if member.len() > most && !is_too_long(command, 3) {
                return Err(Reply::error(format!("ERR a member of this key has up to {most} bytes")));
            }
            Set::Move(member)
        }
        Id::Sintercard => Set::CountCommon(several::count_of_common(command)?),
        Id::Sinter => Set::Combine(Common, false),
        Id::Sunion => Set::Combine(All, false),
        Id::Sdiff => Set::Combine(Difference, false),
        Id::Sinterstore => Set::Combine(Common, true),
        Id::Sunionstore => Set::Combine(All, true),
        Id::Sdiffstore => Set::Combine(Difference, true),
        _ => Set::Members,
    })
}

fn list(id: Id, name: &str, command: &Command<'_>) -> Decoded<List> {
    let values = || (2..command.len()).map(|at| value(command, at)).collect::<Decoded<Vec<_>>>();
    let end = |at: usize| end(command.arg(at));
    Ok(match id {
        Id::Lpush => List::Push(End::Left, values()?, true),
        Id::Rpush => List::Push(End::Right, values()?, true),
        Id::Lpushx => List::Push(End::Left, values()?, false),
        Id::Rpushx => List::Push(End::Right, values()?, false),
        Id::Lpop => List::Pop(End::Left, positive(command, errors::wrong_arity(name))?),
        Id::Rpop => List::Pop(End::Right, positive(command, errors::wrong_arity(name))?),
        Id::Lrange => List::Range(integer(command, 2)?, integer(command, 3)?),
        Id::Lindex => List::Index(integer(command, 2)?),
        Id::Lset => List::Set(integer(command, 2)?, value(command, 3)?),
        Id::Lrem => List::Remove(integer(command, 2)?, value(command, 3)?),
        Id::Ltrim => List::Trim(integer(command, 2)?, integer(command, 3)?),
        Id::Linsert => {
            let before = match command.arg(2) {
                place if is(place, "before") => true,
                place if is(place, "after") => false,
                _ => return Err(SYNTAX),
            };
            List::Insert(before, value(command, 3)?, value(command, 4)?)
        }
        Id::Lmove | Id::Blmove => List::Move(end(3)?, end(4)?),
        Id::Rpoplpush | Id::Brpoplpush => List::Move(End::Right, End::Left),
        Id::Lpos => List::Find(find(command)?),
        _ => List::Length,
    })
}

pub(super) fn end(word: &[u8]) -> Decoded<End> {
    match word {
        end if is(end, "left") => Ok(End::Left),
        end if is(end, "right") => Ok(End::Right),
        _ => Err(SYNTAX),
    }
}

/// A number that is not negative, or else this error.
pub(super) fn not_negative(command: &Command<'_>, at: usize, error: &'static str) -> Decoded<u64> {
    let number = parse_integer(command.arg(at)).and_then(|number| u64::try_from(number).ok());
    number.ok_or_else(|| Reply::error(error))
}

fn find(command: &Command<'_>) -> Decoded<Find> {
    let mut find = Find { value: command.bytes(2), rank: 1, count: None, at_most: 0 };
    for at in (3..command.len()).step_by(2) {
        let option = command.arg(at);
        if at + 1 == command.len() {
            return Err(SYNTAX);
        } else if is(option, "rank") {
            find.rank = integer(command, at + 1)?;
            if find.rank == 0 {
                return Err(Reply::error(
                    "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use \
                     negative to start from the end of the list",
                ));
            }
            if find.rank == i64::MIN {
                return Err(OUT_OF_RANGE);
            }
        } else if is(option, "count") {
            find.count = Some(not_negative(command, at + 1, "ERR COUNT can't be negative")?);
        } else if is(option, "maxlen") {
            find.at_most = not_negative(command, at + 1, "ERR MAXLEN can't be negative")?;
        } else {
            return Err(SYNTAX);
        }
    }
    Ok(find)
}

fn page<S>(kind: Kind, command: &Command<'_>, shared: &Shared<S>) -> Decoded<Page> {
    let text = std::str::from_utf8(command.arg(2)).ok();
    let number: u64 = text.and_then(|text| text.parse().ok()).ok_or(INVALID_CURSOR)?;
    let (mut pattern, mut count) = (None, COUNT_DEFAULT);
    for at in (3..command.len()).step_by(2) {
        if at + 1 == command.len() {
            return Err(SYNTAX);
        }
        let (option, value) = (command.arg(at), command.arg(at + 1));
        if is(option, "count") {
            count = match parse_integer(value) {
                Some(count) if count > 0 => (count as u64).min(COUNT_MAX),
                Some(_) => return Err(SYNTAX),
                None => return Err(NOT_AN_INTEGER),
            };
        } else if is(option, "match") {
            pattern = Some(glob(value)?);
        } else {
            return Err(SYNTAX);
        }
    }
    let position = match number {
        0 => Position::default(),
        number => shared.cursors.find(number).ok_or(INVALID_CURSOR)?,
    };
    let (cursors, env) = (shared.cursors.clone(), shared.env.clone());
    Ok(Page { kind, pattern, count, position, cursors, env })
}
