//! Commands on keys: arguments to requests.

use std::collections::HashMap;

use bytes::Bytes;
use sextant_common::limits;
use sextant_common::operation::{Condition, Operation, Returns, Update, parse_decimal};

use super::errors::{self, NOT_A_FLOAT, SYNTAX, TOO_LONG, store_error};
use super::is;
use super::request::{Aspect, ChangeReply, Request, SetReply};
use crate::command_table::Id;
use crate::frame::{Command, Reply, parse_integer};
use crate::store::SetCondition;

pub(super) fn decode(id: Id, command: &Command<'_>) -> Result<Request, Reply> {
    match id {
        Id::Get => Ok(Request::Get(key(command, 1)?)),
        Id::Strlen => Ok(Request::Inspect(key(command, 1)?, Aspect::Length)),
        Id::Getrange | Id::Substr => {
            let (start, end) = (integer(command, 2)?, integer(command, 3)?);
            Ok(Request::Inspect(key(command, 1)?, Aspect::Range(start, end)))
        }
        Id::Type => Ok(Request::Inspect(key(command, 1)?, Aspect::Kind)),
        Id::Ttl | Id::Pttl | Id::Expiretime | Id::Pexpiretime => {
            Ok(Request::Inspect(key(command, 1)?, Aspect::Life))
        }
        Id::Persist => Ok(Request::Inspect(key(command, 1)?, Aspect::Unexpired)),
        Id::Incr => increment(command, 1),
        Id::Decr => increment(command, -1),
        Id::Incrby => increment(command, integer(command, 2)?),
        Id::Decrby => match integer(command, 2)?.checked_neg() {
            Some(by) => increment(command, by),
            None => Err(Reply::error("ERR decrement would overflow")),
        },
        Id::Incrbyfloat => {
            let by = parse_decimal(command.arg(2)).ok_or(NOT_A_FLOAT)?;
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
            key: key(command, 1)?,
            value: value(command, 2)?,
            condition: SetCondition::IfAbsent,
            reply: SetReply::Number,
        }),
        Id::Mset => Ok(Request::MultiSet(pairs(command, "mset")?)),
        _ => Err(errors::wrong_arity("unknown")),
    }
}

fn key(command: &Command<'_>, index: usize) -> Result<Bytes, Reply> {
    limits::check_key(command.arg(index)).map_err(|e| store_error(&e))?;
    Ok(command.bytes(index))
}

fn value(command: &Command<'_>, index: usize) -> Result<Bytes, Reply> {
    limits::check_value(command.arg(index)).map_err(|e| store_error(&e))?;
    Ok(command.bytes(index))
}

fn keys(command: &Command<'_>) -> Result<Vec<Bytes>, Reply> {
    (1..command.len()).map(|i| key(command, i)).collect()
}

fn distinct(mut keys: Vec<Bytes>) -> Vec<Bytes> {
    if keys.len() > 1 {
        keys.sort_unstable();
        keys.dedup();
    }
    keys
}

fn integer(command: &Command<'_>, index: usize) -> Result<i64, Reply> {
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

fn set(command: &Command<'_>) -> Result<Request, Reply> {
    let mut condition = SetCondition::Always;
    let mut expiry: Option<&'static str> = None;
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
        } else if is(option, "keepttl") && expiry.is_none_or(|e| e == "KEEPTTL") {
            expiry = Some("KEEPTTL");
        } else if let Some(unit) = ["EX", "PX", "EXAT", "PXAT"].into_iter().find(|unit| is(option, unit))
            && expiry.is_none()
            && i + 1 < command.len()
        {
            i += 1;
            match parse_integer(command.arg(i)) {
                None => return Err(errors::NOT_AN_INTEGER),
                Some(..=0) => return Err(Reply::error("ERR invalid expire time in 'set' command")),
                Some(_) => expiry = Some(unit),
            }
        } else {
            return Err(SYNTAX);
        }
        i += 1;
    }
    if let Some(option) = expiry {
        return Err(Reply::error(format!("ERR SET with {option} is not supported: keys do not expire")));
    }
    if wants_old {
        let condition = match condition {
            SetCondition::Always => Condition::None,
            SetCondition::IfAbsent => Condition::Absent,
            SetCondition::IfPresent => Condition::Present,
        };
        let put = Operation::put("", key(command, 1)?, value(command, 2)?).only_if(condition);
        return Ok(change(put.skip_on_failure().returning(Returns::Before), ChangeReply::Value));
    }
    Ok(Request::Set { key: key(command, 1)?, value: value(command, 2)?, condition, reply: SetReply::Status })
}
