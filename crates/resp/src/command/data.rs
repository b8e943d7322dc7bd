//! Commands on keys: arguments to requests.

use std::collections::HashMap;

use bytes::Bytes;
use sextant_common::database::Database;
use sextant_common::expiry::Tick;
use sextant_common::limits;
use sextant_common::operation::{
    Condition, Lifetime, LifetimeTest, Operation, Put, Returns, Update, parse_decimal,
};

use super::errors::{self, SYNTAX, TOO_LONG, store_error};
use super::is;
use super::refusals::DATABASES;
use super::request::{Aspect, ChangeReply, LifeForm, Move, Request, SetReply};
use crate::command_table::Id;
use crate::frame::{Command, Reply, parse_integer};
use crate::store::SetCondition;

/// `database`: the one that it is about.
pub(super) fn decode(id: Id, command: &Command<'_>, database: Database) -> Result<Request, Reply> {
    match id {
        Id::Get => Ok(Request::Get(key(command, 1)?)),
        Id::Strlen => Ok(Request::Inspect(key(command, 1)?, Aspect::Length)),
        Id::Getrange | Id::Substr => {
            let (start, end) = (integer(command, 2)?, integer(command, 3)?);
            Ok(Request::Inspect(key(command, 1)?, Aspect::Range(start, end)))
        }
        Id::Type => Ok(Request::Inspect(key(command, 1)?, Aspect::Kind)),
        Id::Ttl | Id::Pttl | Id::Expiretime | Id::Pexpiretime => {
            let absolute = matches!(id, Id::Expiretime | Id::Pexpiretime);
            let form = LifeForm { absolute, seconds: matches!(id, Id::Ttl | Id::Expiretime) };
            Ok(Request::Inspect(key(command, 1)?, Aspect::Life(form)))
        }
        Id::Persist => {
            let limited = Condition::Lifetime(LifetimeTest::Limited);
            Ok(change(touch(command, Lifetime::Unlimited)?.only_if(limited), ChangeReply::Effect))
        }
        Id::Expire => expire(command, "expire", Unit::EX),
        Id::Pexpire => expire(command, "pexpire", Unit::PX),
        Id::Expireat => expire(command, "expireat", Unit::EXAT),
        Id::Pexpireat => expire(command, "pexpireat", Unit::PXAT),
        Id::Setex => set_for(command, "setex", Unit::EX),
        Id::Psetex => set_for(command, "psetex", Unit::PX),
        Id::Getex => get_and_touch(command),
        Id::Incr => increment(command, 1),
        Id::Decr => increment(command, -1),
        Id::Incrby => increment(command, integer(command, 2)?),
        Id::Decrby => match integer(command, 2)?.checked_neg() {
            Some(by) => increment(command, by),
            None => Err(Reply::error("ERR decrement would overflow")),
        },
        Id::Incrbyfloat => {
            let Some(by) = parse_decimal(command.arg(2)) else {
                return Ok(Request::Inspect(key(command, 1)?, Aspect::NoDecimal));
            };
            let op = update(command, Update::IncrementDecimal(by))?.returning(Returns::After);
            Ok(change(op, ChangeReply::Value))
        }
        Id::Append => Ok(change(update(command, Update::Append(value(command, 2)?))?, ChangeReply::Length)),
        Id::Setrange => set_range(command),
        Id::Getset => {
            let op = Operation::put("", key(command, 1)?, value(command, 2)?).returning(Returns::Before);
            Ok(change(op, ChangeReply::Value))
        }
        Id::Getdel => {
            let op = Operation::delete_checked("", key(command, 1)?).returning(Returns::Before);
            Ok(change(op, ChangeReply::Value))
        }
        Id::Msetnx => {
            let puts = pairs(command, "msetnx")?.into_iter();
            let ops = puts.map(|(key, value)| Operation::insert("", key, value)).collect();
            Ok(Request::Change { ops, reply: ChangeReply::Applied })
        }
        Id::Mget => Ok(Request::MultiGet(keys(command)?)),
        Id::Exists | Id::Touch => Ok(Request::Exists(keys(command)?)),
        Id::Del | Id::Unlink => Ok(Request::Delete(distinct(keys(command)?))),
        Id::Set => set(command),
        Id::Setnx => Ok(Request::Set {
            put: put(command, (1, 2), Lifetime::Unlimited)?,
            condition: SetCondition::IfAbsent,
            reply: SetReply::Number,
        }),
        Id::Rename => rename(command, true, SetReply::Status),
        Id::Renamenx => rename(command, false, SetReply::Number),
        Id::Copy => copy(command, database),
        Id::Mset => Ok(multi_set(pairs(command, "mset")?)),
        Id::Object => object(command),
        Id::Memory => super::diagnosis::memory(command),
        _ => Err(errors::wrong_arity("unknown")),
    }
}

pub(super) fn key(command: &Command<'_>, index: usize) -> Result<Bytes, Reply> {
    limits::check_key(command.arg(index)).map_err(|e| store_error(&e))?;
    Ok(command.bytes(index))
}

fn value(command: &Command<'_>, index: usize) -> Result<Bytes, Reply> {
    limits::check_value(command.arg(index)).map_err(|e| store_error(&e))?;
    Ok(command.bytes(index))
}

pub(super) fn keys(command: &Command<'_>) -> Result<Vec<Bytes>, Reply> {
    (1..command.len()).map(|i| key(command, i)).collect()
}

pub(super) fn distinct(mut keys: Vec<Bytes>) -> Vec<Bytes> {
    if keys.len() > 1 {
        keys.sort_unstable();
        keys.dedup();
    }
    keys
}

pub(super) fn integer(command: &Command<'_>, index: usize) -> Result<i64, Reply> {
    parse_integer(command.arg(index)).ok_or(errors::NOT_AN_INTEGER)
}

fn update(command: &Command<'_>, update: Update) -> Result<Operation, Reply> {
    Ok(Operation::update("", key(command, 1)?, update))
}

fn change(op: Operation, reply: ChangeReply) -> Request {
    Request::Change { ops: vec![op], reply }
}

fn increment(command: &Command<'_>, by: i64) -> Result<Request, Reply> {
    let op = update(command, Update::Increment(by))?.returning(Returns::After);
    Ok(change(op, ChangeReply::Number))
}

fn set_range(command: &Command<'_>) -> Result<Request, Reply> {
    let offset = integer(command, 2)?;
    if offset < 0 {
        return Err(Reply::error("ERR offset is out of range"));
    }
    let bytes = value(command, 3)?;
    let set = Update::SetRange { offset: u32::try_from(offset).unwrap_or(u32::MAX), bytes };
    if set.least_bytes() > limits::VALUE_BYTES_MAX {
        return Err(TOO_LONG);
    }
    Ok(change(update(command, set)?, ChangeReply::Length))
}

/// Distinct keys with their values; `name`: of the command.
fn pairs(command: &Command<'_>, name: &str) -> Result<Vec<(Bytes, Bytes)>, Reply> {
    if command.len().is_multiple_of(2) {
        return Err(errors::wrong_arity(name));
    }
    let mut pairs: Vec<(Bytes, Bytes)> = Vec::with_capacity(command.len() / 2);
    // A key that is named twice keeps its last value.
    let mut places: HashMap<Bytes, usize> = HashMap::with_capacity(command.len() / 2);
    for i in (1..command.len()).step_by(2) {
        let (key, value) = (key(command, i)?, value(command, i + 1)?);
        match places.entry(key.clone()) {
            std::collections::hash_map::Entry::Occupied(place) => pairs[*place.get()].1 = value,
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(pairs.len());
                pairs.push((key, value));
            }
        }
    }
    Ok(pairs)
}

/// Of one key it is an ordinary set, which goes with others.
fn multi_set(mut pairs: Vec<(Bytes, Bytes)>) -> Request {
    match pairs.pop() {
        Some((key, value)) if pairs.is_empty() => {
            let put = Put { key, value, lifetime: Lifetime::Unlimited };
            Request::Set { put, condition: SetCondition::Always, reply: SetReply::Status }
        }
        last => {
            pairs.extend(last);
            Request::MultiSet(pairs)
        }
    }
}

fn put(command: &Command<'_>, (key_at, value_at): (usize, usize), lifetime: Lifetime) -> Result<Put, Reply> {
    Ok(Put { key: key(command, key_at)?, value: value(command, value_at)?, lifetime })
}

/// A change of the lifetime only, of a record that is there.
fn touch(command: &Command<'_>, lifetime: Lifetime) -> Result<Operation, Reply> {
    let touch = update(command, Update::Touch)?.lasting(lifetime);
    Ok(touch.only_if(Condition::Present).skip_on_failure())
}

/// How a command says when a record is to expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unit {
    name: &'static str,
    absolute: bool,
    ms: i64,
}

impl Unit {
    const EX: Unit = Unit { name: "ex", absolute: false, ms: 1000 };
    const PX: Unit = Unit { name: "px", absolute: false, ms: 1 };
    const EXAT: Unit = Unit { name: "exat", absolute: true, ms: 1000 };
    const PXAT: Unit = Unit { name: "pxat", absolute: true, ms: 1 };
    const ALL: [Unit; 4] = [Unit::EX, Unit::PX, Unit::EXAT, Unit::PXAT];

    /// `name`: of the command. What is over is so at once, if the command takes such a time at all.
    fn lifetime(self, number: i64, name: &str) -> Result<Lifetime, Reply> {
        let ms = number.checked_mul(self.ms).ok_or_else(|| invalid_expiry(name))?;
        // As in Redis: the time itself has to have a place in 63 bits.
        if !self.absolute && ms > i64::MAX - LATEST_NOW_MS {
            return Err(invalid_expiry(name));
        }
        let ms = u64::try_from(ms).unwrap_or(0);
        Ok(if self.absolute { Lifetime::Until(Tick(ms)) } else { Lifetime::Milliseconds(ms) })
    }

    /// The same for commands that take none which is not positive.
    fn positive(self, number: i64, name: &str) -> Result<Lifetime, Reply> {
        if number > 0 { self.lifetime(number, name) } else { Err(invalid_expiry(name)) }
    }
}

fn invalid_expiry(name: &str) -> Reply {
    Reply::error(format!("ERR invalid expire time in '{name}' command"))
}

/// A time that clocks will not show soon: the year 9999.
const LATEST_NOW_MS: i64 = 253_402_300_800_000;

fn expire(command: &Command<'_>, name: &str, unit: Unit) -> Result<Request, Reply> {
    let (mut unlimited, mut limited, mut shorter, mut longer) = (false, false, false, false);
    for i in 3..command.len() {
        let options =
            [("nx", &mut unlimited), ("xx", &mut limited), ("gt", &mut shorter), ("lt", &mut longer)];
        match options.into_iter().find(|(name, _)| is(command.arg(i), name)) {
            Some((_, option)) => *option = true,
            None => {
                let mut text = b"ERR Unsupported option ".to_vec();
                text.extend_from_slice(command.arg(i));
                return Err(Reply::Error(text.into()));
            }
        }
    }
    let condition = match (unlimited, limited, shorter, longer) {
        (true, false, false, false) => Condition::Lifetime(LifetimeTest::Unlimited),
        (true, ..) => {
            let why = "ERR NX and XX, GT or LT options at the same time are not compatible";
            return Err(Reply::error(why));
        }
        (_, _, true, true) => {
            return Err(Reply::error("ERR GT and LT options at the same time are not compatible"));
        }
        // One without a limit is not shorter.
        (_, _, true, _) => Condition::Lifetime(LifetimeTest::Shorter),
        (_, true, _, true) => Condition::Lifetime(LifetimeTest::LimitedAndLonger),
        (_, false, _, true) => Condition::Lifetime(LifetimeTest::Longer),
        (_, true, _, false) => Condition::Lifetime(LifetimeTest::Limited),
        (_, false, _, false) => Condition::Present,
    };
    let lifetime = unit.lifetime(integer(command, 2)?, name)?;
    Ok(change(touch(command, lifetime)?.only_if(condition), ChangeReply::Effect))
}

fn object(command: &Command<'_>) -> Result<Request, Reply> {
    let aspect = match command.arg(1) {
        what if is(what, "encoding") => Aspect::Encoding,
        what if is(what, "refcount") => Aspect::Constant(1),
        what if is(what, "idletime") => Aspect::Constant(0),
        what if is(what, "freq") => Aspect::Frequency,
        what if is(what, "help") && command.len() == 2 => return Err(object_help()),
        _ => return Err(errors::unknown_subcommand(command, "OBJECT")),
    };
    if command.len() != 3 {
        let what = String::from_utf8_lossy(command.arg(1)).to_ascii_lowercase();
        return Err(errors::wrong_arity(&format!("object|{what}")));
    }
    Ok(Request::Inspect(key(command, 2)?, aspect))
}

fn object_help() -> Reply {
    let lines = [
        "OBJECT <subcommand> [<arg> ...]. Subcommands are:",
        "ENCODING <key>: how Redis would keep it",
        "FREQ <key>: an error",
        "IDLETIME <key>: 0",
        "REFCOUNT <key>: 1",
    ];
    Reply::Array(lines.map(Reply::Simple).into())
}

fn rename(command: &Command<'_>, replaces: bool, reply: SetReply) -> Result<Request, Reply> {
    let (from, to) = (key(command, 1)?, key(command, 2)?);
    Ok(Request::Move(Move { from, to, copies: false, replaces, reply }))
}

fn copy(command: &Command<'_>, database: Database) -> Result<Request, Reply> {
    let mut replaces = false;
    let mut i = 3;
    while i < command.len() {
        if is(command.arg(i), "replace") {
            replaces = true;
        } else if is(command.arg(i), "db") && i + 1 < command.len() {
            i += 1;
            if errors::database(command.arg(i))? != database {
                return Err(errors::unsupported("COPY into another database", DATABASES));
            }
        } else {
            return Err(SYNTAX);
        }
        i += 1;
    }
    let (from, to) = (key(command, 1)?, key(command, 2)?);
    if from == to {
        return Err(Reply::error("ERR source and destination objects are the same"));
    }
    Ok(Request::Move(Move { from, to, copies: true, replaces, reply: SetReply::Number }))
}

fn set_for(command: &Command<'_>, name: &str, unit: Unit) -> Result<Request, Reply> {
    let lifetime = unit.positive(integer(command, 2)?, name)?;
    let put = put(command, (1, 3), lifetime)?;
    Ok(Request::Set { put, condition: SetCondition::Always, reply: SetReply::Status })
}

fn get_and_touch(command: &Command<'_>) -> Result<Request, Reply> {
    let lifetime = match command.len() {
        2 => return Ok(Request::Get(key(command, 1)?)),
        3 if is(command.arg(2), "persist") => Lifetime::Unlimited,
        4 => match Unit::ALL.into_iter().find(|unit| is(command.arg(2), unit.name)) {
            Some(unit) => unit.positive(integer(command, 3)?, "getex")?,
            None => return Err(SYNTAX),
        },
        _ => return Err(SYNTAX),
    };
    let mut touch = touch(command, lifetime)?.returning(Returns::Before);
    if lifetime == Lifetime::Unlimited {
        // Where there is nothing to take away, nothing changes.
        touch = touch.only_if(Condition::Lifetime(LifetimeTest::Limited));
    }
    Ok(change(touch, ChangeReply::Value))
}

fn set(command: &Command<'_>) -> Result<Request, Reply> {
    let mut condition = SetCondition::Always;
    // What is said of the lifetime: its unit, and where the number stands; or that it is kept.
    let (mut until, mut kept) = (None, false);
    let mut wants_old = false;
    let mut i = 3;
    while i < command.len() {
        let option = command.arg(i);
        if is(option, "nx") && condition != SetCondition::IfPresent {
            condition = SetCondition::IfAbsent;
        } else if is(option, "xx") && condition != SetCondition::IfAbsent {
            condition = SetCondition::IfPresent;
        } else if is(option, "get") {
            wants_old = true;
        } else if is(option, "keepttl") && until.is_none() {
            kept = true;
        } else if let Some(unit) = Unit::ALL.into_iter().find(|unit| is(option, unit.name))
            && until.is_none_or(|(other, _)| other == unit)
            && !kept
            && i + 1 < command.len()
        {
            i += 1;
            until = Some((unit, i));
        } else {
            return Err(SYNTAX);
        }
        i += 1;
    }
    let lifetime = match until {
        Some((unit, at)) => unit.positive(integer(command, at)?, "set")?,
        None if kept => Lifetime::Kept,
        None => Lifetime::Unlimited,
    };
    let put = put(command, (1, 2), lifetime)?;
    if wants_old {
        let Put { key, value, lifetime } = put;
        let put = Operation::put("", key, value).lasting(lifetime).only_if(condition.into());
        return Ok(change(put.skip_on_failure().returning(Returns::Before), ChangeReply::Value));
    }
    Ok(Request::Set { put, condition, reply: SetReply::Status })
}
