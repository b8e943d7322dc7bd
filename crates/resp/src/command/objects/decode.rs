//! Arguments to commands on objects.

use bytes::Bytes;
use sextant_common::limits;
use sextant_common::marks::Kind;
use sextant_common::object::element_bytes_max;
use sextant_common::operation::{Update, parse_decimal};

use super::super::data::{integer, key};
use super::super::errors::{self, NOT_A_FLOAT, NOT_AN_INTEGER, SYNTAX, store_error};
use super::super::is;
use super::super::request::Request;
use super::super::scan::glob;
use super::hash::{Hash, Part};
use super::list::{End, List};
use super::pages::Page;
use super::set::{Combination, Set};
use super::sorted::{Add, Bound, By, Range, Rule, Shown, Sorted};
use super::{Command as What, Object};
use crate::command_table::{COMMANDS, Id};
use crate::frame::{Command, Reply, parse_integer};
use crate::shared::Shared;
use crate::store::Position;

type Decoded<T> = Result<T, Reply>;

const NOT_POSITIVE: Reply = Reply::Error(Bytes::from_static(b"ERR value is out of range, must be positive"));
const NOT_A_BOUND: Reply = Reply::Error(Bytes::from_static(b"ERR min or max is not a float"));
const NOT_A_NAME: Reply = Reply::Error(Bytes::from_static(b"ERR min or max not valid string range item"));

/// Elements that a page has, if it is not said how many (Redis' figure), and at the most.
const COUNT_DEFAULT: u64 = 10;
const COUNT_MAX: u64 = 10_000;

pub(in super::super) fn decode<S>(id: Id, command: &Command<'_>, shared: &Shared<S>) -> Decoded<Request> {
    let name = COMMANDS[id as usize].name;
    let last = command.len() - 1;
    // How many keys there are, before other arguments.
    let keys = match id {
        Id::Sinter | Id::Sunion | Id::Sdiff | Id::Sinterstore | Id::Sunionstore | Id::Sdiffstore => last,
        Id::Smove | Id::Lmove | Id::Rpoplpush => 2,
        _ => 1,
    };
    let keys = (1..=keys).map(|at| key(command, at)).collect::<Decoded<Vec<_>>>()?;
    let what = match id {
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
        | Id::Hrandfield => What::Hash(hash(id, name, command)?),
        Id::Hscan => What::Page(page(Kind::Hash, command, shared)?),
        Id::Sscan => What::Page(page(Kind::Set, command, shared)?),
        Id::Zscan => What::Page(page(Kind::SortedSet, command, shared)?),
        Id::Sadd
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
        | Id::Sdiffstore => What::Set(set(id, command)?),
        Id::Lpush
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
        | Id::Rpoplpush => What::List(list(id, name, command)?),
        _ => What::Sorted(sorted(id, command)?),
    };
    let writes = COMMANDS[id as usize].flags.contains(&"write");
    Ok(Request::Object(Box::new(Object { keys, writes, command: what, hints: shared.hints.clone() })))
}

/// A field or a member.
fn element(command: &Command<'_>, at: usize) -> Decoded<Bytes> {
    let most = element_bytes_max(command.arg(1));
    let len = command.arg(at).len();
    if len > most {
        return Err(Reply::error(format!(
            "ERR a field or member of this key has up to {most} bytes, not {len}"
        )));
    }
    Ok(command.bytes(at))
}

fn elements(command: &Command<'_>, from: usize) -> Decoded<Vec<Bytes>> {
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
        Id::Hget => Hash::Get(element(command, 2)?),
        Id::Hmget => Hash::GetMany(elements(command, 2)?),
        Id::Hdel => Hash::Delete(elements(command, 2)?),
        Id::Hlen => Hash::Length,
        Id::Hexists => Hash::Exists(element(command, 2)?),
        Id::Hkeys => Hash::All(Part::Fields),
        Id::Hvals => Hash::All(Part::Values),
        Id::Hincrby => Hash::Increment(element(command, 2)?, integer(command, 3)?),
        Id::Hincrbyfloat => {
            let by = parse_decimal(command.arg(3)).ok_or(NOT_A_FLOAT)?;
            Hash::IncrementDecimal(element(command, 2)?, Update::IncrementDecimal(by))
        }
        Id::Hstrlen => Hash::ValueLength(element(command, 2)?),
        Id::Hrandfield => {
            let (count, with_values) = chosen(command, "withvalues")?;
            Hash::Random(count, with_values)
        }
        _ => Hash::All(Part::Both),
    })
}

/// `[count [WITHVALUES]]`.
fn chosen(command: &Command<'_>, with: &str) -> Decoded<(Option<i64>, bool)> {
    if command.len() < 3 {
        return Ok((None, false));
    }
    let count = integer(command, 2)?;
    match command.len() {
        3 => Ok((Some(count), false)),
        4 if is(command.arg(3), with) => Ok((Some(count), true)),
        _ => Err(SYNTAX),
    }
}

/// `[count]`.
fn positive(command: &Command<'_>, too_many: Reply) -> Decoded<Option<u64>> {
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
        Id::Srem => Set::Remove(elements(command, 2)?),
        Id::Sismember => Set::IsMember(element(command, 2)?),
        Id::Smismember => Set::AreMembers(elements(command, 2)?),
        Id::Scard => Set::Length,
        Id::Spop => Set::Pop(positive(command, SYNTAX)?),
        Id::Srandmember => match command.len() {
            2 => Set::Random(None),
            3 => Set::Random(Some(integer(command, 2)?)),
            _ => return Err(SYNTAX),
        },
        Id::Smove => {
            // It has to go with both names.
            let most = element_bytes_max(command.arg(2));
            let member = element(command, 3)?;
            if member.len() > most {
                return Err(Reply::error(format!("ERR a member of this key has up to {most} bytes")));
            }
            Set::Move(member)
        }
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
    let end = |at: usize| match command.arg(at) {
        end if is(end, "left") => Ok(End::Left),
        end if is(end, "right") => Ok(End::Right),
        _ => Err(SYNTAX),
    };
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
        Id::Lmove => List::Move(end(3)?, end(4)?),
        Id::Rpoplpush => List::Move(End::Right, End::Left),
        _ => List::Length,
    })
}

/// As `strtod` reads it, but for hexadecimal numbers.
fn score(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let score: f64 = text.parse().ok()?;
    let says_infinite = || text.to_ascii_lowercase().contains("inf");
    (!score.is_nan() && (score.is_finite() || says_infinite())).then_some(score)
}

fn sorted(id: Id, command: &Command<'_>) -> Decoded<Sorted> {
    let by_score = |least: usize, highest: usize| {
        let bound = |at: usize| {
            let text = command.arg(at);
            let (text, excluded) = text.strip_prefix(b"(").map_or((text, false), |text| (text, true));
            // (Redis takes nothing for 0 here.)
            let at = if text.is_empty() { Some(0.0) } else { score(text) };
            Ok::<_, Reply>(Bound { at: at.ok_or(NOT_A_BOUND)?, excluded })
        };
        Ok::<_, Reply>(By::Score(bound(least)?, bound(highest)?))
    };
    let by_name = |least: usize, highest: usize| {
        let bound = |at: usize, is_highest: bool| {
            let text = command.bytes(at);
            Ok::<_, Reply>(match &text[..] {
                b"-" => Bound { at: None, excluded: is_highest },
                b"+" => Bound { at: None, excluded: !is_highest },
                [b'[', ..] => Bound { at: Some(text.slice(1..)), excluded: false },
                [b'(', ..] => Bound { at: Some(text.slice(1..)), excluded: true },
                _ => return Err(NOT_A_NAME),
            })
        };
        Ok::<_, Reply>(By::Name(bound(least, false)?, bound(highest, true)?))
    };
    let by_index = || Ok::<_, Reply>(By::Index(integer(command, 2)?, integer(command, 3)?));
    let all = |by| Range { by, reverse: false, limit: None };
    Ok(match id {
        Id::Zadd => Sorted::Add(add(command)?),
        Id::Zincrby => {
            let by = score(command.arg(2)).ok_or(NOT_A_FLOAT)?;
            let members = vec![(by, element(command, 3)?)];
            Sorted::Add(Add { members, increments: true, ..Add::default() })
        }
        Id::Zrem => Sorted::Remove(elements(command, 2)?),
        Id::Zscore => Sorted::Score(element(command, 2)?),
        Id::Zmscore => Sorted::Scores(elements(command, 2)?),
        Id::Zrange => {
            let mut options = Options::read(command, true)?;
            if !options.by_score && !options.by_name {
                options = options.of_indexes()?;
            }
            let (least, highest) = if options.reverse { (3, 2) } else { (2, 3) };
            let by = match (options.by_score, options.by_name) {
                (true, _) => by_score(least, highest)?,
                (_, true) => by_name(least, highest)?,
                _ => by_index()?,
            };
            options.range(by)?
        }
        Id::Zrangebyscore => Options::read(command, false)?.range(by_score(2, 3)?)?,
        Id::Zrevrangebyscore => Options::read(command, false)?.reversed().range(by_score(3, 2)?)?,
        Id::Zrangebylex => Options::read(command, false)?.range(by_name(2, 3)?)?,
        Id::Zrevrangebylex => Options::read(command, false)?.reversed().range(by_name(3, 2)?)?,
        Id::Zrevrange => Options::read(command, false)?.of_indexes()?.reversed().range(by_index()?)?,
        Id::Zcount => Sorted::Count(all(by_score(2, 3)?)),
        Id::Zlexcount => Sorted::Count(all(by_name(2, 3)?)),
        Id::Zrank => Sorted::Rank(element(command, 2)?, false),
        Id::Zrevrank => Sorted::Rank(element(command, 2)?, true),
        Id::Zpopmin => Sorted::Pop(false, positive(command, SYNTAX)?),
        Id::Zpopmax => Sorted::Pop(true, positive(command, SYNTAX)?),
        Id::Zremrangebyrank => Sorted::RemoveRange(all(by_index()?)),
        Id::Zremrangebyscore => Sorted::RemoveRange(all(by_score(2, 3)?)),
        Id::Zremrangebylex => Sorted::RemoveRange(all(by_name(2, 3)?)),
        Id::Zrandmember => {
            let (count, with_scores) = chosen(command, "withscores")?;
            Sorted::Random(count, with_scores)
        }
        _ => Sorted::Length,
    })
}

fn add(command: &Command<'_>) -> Decoded<Add> {
    let mut add = Add::default();
    let Rule { only_new, only_there, only_greater, only_less } = &mut add.rule;
    let mut at = 2;
    while at < command.len() {
        let options = [
            ("nx", &mut *only_new),
            ("xx", &mut *only_there),
            ("gt", &mut *only_greater),
            ("lt", &mut *only_less),
            ("ch", &mut add.counts_changed),
            ("incr", &mut add.increments),
        ];
        let Some((_, option)) = options.into_iter().find(|(name, _)| is(command.arg(at), name)) else {
            break;
        };
        *option = true;
        at += 1;
    }
    let pairs = command.len() - at;
    if pairs == 0 || !pairs.is_multiple_of(2) {
        return Err(SYNTAX);
    }
    if *only_new && *only_there {
        return Err(Reply::error("ERR XX and NX options at the same time are not compatible"));
    }
    if *only_new && (*only_greater || *only_less) || *only_greater && *only_less {
        return Err(Reply::error("ERR GT, LT, and/or NX options at the same time are not compatible"));
    }
    if add.increments && pairs > 2 {
        return Err(Reply::error("ERR INCR option supports a single increment-element pair"));
    }
    let pair = |at| Ok((score(command.arg(at)).ok_or(NOT_A_FLOAT)?, element(command, at + 1)?));
    add.members = (at..command.len()).step_by(2).map(pair).collect::<Decoded<_>>()?;
    Ok(add)
}

/// Of `ZRANGE` and its like.
#[derive(Default)]
struct Options {
    by_score: bool,
    by_name: bool,
    reverse: bool,
    with_scores: bool,
    limit: Option<(i64, i64)>,
}

impl Options {
    /// `all`: not only those of the older commands.
    fn read(command: &Command<'_>, all: bool) -> Decoded<Self> {
        let mut options = Self::default();
        let mut at = 4;
        while at < command.len() {
            let option = command.arg(at);
            if is(option, "withscores") {
                options.with_scores = true;
            } else if is(option, "limit") && at + 2 < command.len() {
                options.limit = Some((integer(command, at + 1)?, integer(command, at + 2)?));
                at += 2;
            } else if all && is(option, "byscore") {
                options.by_score = true;
            } else if all && is(option, "bylex") {
                options.by_name = true;
            } else if all && is(option, "rev") {
                options.reverse = true;
            } else {
                return Err(SYNTAX);
            }
            at += 1;
        }
        Ok(options)
    }

    /// Of a range by index. (A limit that leaves nothing out is passed over, its offset too: as in Redis.)
    fn of_indexes(mut self) -> Decoded<Self> {
        match self.limit.take() {
            None | Some((_, -1)) => Ok(self),
            Some(_) => Err(Reply::error(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            )),
        }
    }

    fn reversed(self) -> Self {
        Self { reverse: true, ..self }
    }

    fn range(self, by: By) -> Decoded<Sorted> {
        if self.with_scores && matches!(by, By::Name(..)) {
            return Err(Reply::error("ERR syntax error, WITHSCORES not supported in combination with BYLEX"));
        }
        let shown = if self.with_scores { Shown::WithScores } else { Shown::Members };
        Ok(Sorted::Range(Range { by, reverse: self.reverse, limit: self.limit }, shown))
    }
}

fn page<S>(kind: Kind, command: &Command<'_>, shared: &Shared<S>) -> Decoded<Page> {
    const INVALID_CURSOR: Reply = Reply::Error(Bytes::from_static(b"ERR invalid cursor"));
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
