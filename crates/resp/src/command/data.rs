//! Commands on keys: arguments to requests.

use std::collections::HashMap;

use bytes::Bytes;
use sextant_common::limits;

use super::errors::{self, SYNTAX, store_error};
use super::is;
use super::request::{Request, SetReply};
use crate::command_table::Id;
use crate::frame::{Command, Reply, parse_integer};
use crate::store::SetCondition;

pub(super) fn decode(id: Id, command: &Command<'_>) -> Result<Request, Reply> {
    match id {
        Id::Get => Ok(Request::Get(key(command, 1)?)),
        Id::Strlen => Ok(Request::Strlen(key(command, 1)?)),
        Id::Mget => Ok(Request::MultiGet(keys(command)?)),
        Id::Exists => Ok(Request::Exists(keys(command)?)),
        Id::Del | Id::Unlink => Ok(Request::Delete(distinct(keys(command)?))),
        Id::Set => set(command),
        Id::Setnx => Ok(Request::Set {
            key: key(command, 1)?,
            value: value(command, 2)?,
            condition: SetCondition::IfAbsent,
            reply: SetReply::Number,
        }),
        Id::Mset => multi_set(command),
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

fn multi_set(command: &Command<'_>) -> Result<Request, Reply> {
    if command.len().is_multiple_of(2) {
        return Err(errors::wrong_arity("mset"));
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
    Ok(Request::MultiSet(pairs))
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
        return Err(Reply::error("ERR SET with GET is not supported"));
    }
    Ok(Request::Set { key: key(command, 1)?, value: value(command, 2)?, condition, reply: SetReply::Status })
}
