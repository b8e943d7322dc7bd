//! Arguments to commands that say how many keys they name, and to those that take what the first of several has.

use super::super::data::integer;
use super::super::errors::SYNTAX;
use super::super::is;
use super::Command as What;
use super::combined::{Aggregate, Combined, Told};
use super::decode::{Decoded, end, not_negative};
use super::decode_sorted::score;
use super::first::{First, From};
use super::list::End;
use super::set::Combination;
use super::sorted::Shown;
use crate::command_table::{Id, Spec};
use crate::frame::{Command, Reply, parse_integer};

pub(super) fn names_several(spec: &Spec) -> bool {
    let is_pop = matches!(spec.id, Id::Blpop | Id::Brpop | Id::Bzpopmin | Id::Bzpopmax);
    is_pop || spec.counted_keys_at().is_some()
}

pub(super) fn decode(spec: &Spec, command: &Command<'_>) -> Decoded<What> {
    let one = |from| Ok(What::First(First { from, count: None }));
    match spec.id {
        Id::Blpop => one(From::List(End::Left)),
        Id::Brpop => one(From::List(End::Right)),
        Id::Bzpopmin => one(From::Sorted(false)),
        Id::Bzpopmax => one(From::Sorted(true)),
        Id::Lmpop | Id::Blmpop | Id::Zmpop | Id::Bzmpop => first(spec, command).map(What::First),
        _ => combined(spec, command).map(What::Combined),
    }
}

/// `LIMIT`, 0: none. (Of `SINTERCARD`.)
pub(super) fn count_of_common(command: &Command<'_>) -> Decoded<u64> {
    let after = after_keys(command, 1)?;
    let too_many = || Reply::error("ERR Number of keys can't be greater than number of args");
    let after = after.filter(|after| *after <= command.len()).ok_or_else(too_many)?;
    match command.len() - after {
        0 => Ok(0),
        2 if is(command.arg(after), "limit") => limit(command, after + 1),
        _ => Err(SYNTAX),
    }
}

fn limit(command: &Command<'_>, at: usize) -> Decoded<u64> {
    not_negative(command, at, "ERR LIMIT can't be negative")
}

/// The place of what comes after the keys, whose number stands in this place; None: beyond every end.
fn after_keys(command: &Command<'_>, at: usize) -> Decoded<Option<usize>> {
    match parse_integer(command.arg(at)) {
        Some(count) if count > 0 => {
            Ok(usize::try_from(count).ok().and_then(|count| (at + 1).checked_add(count)))
        }
        _ => Err(Reply::error("ERR numkeys should be greater than 0")),
    }
}

/// `numkeys key .. LEFT|RIGHT|MIN|MAX [COUNT n]`.
fn first(spec: &Spec, command: &Command<'_>) -> Decoded<First> {
    let at = spec.counted_keys_at().unwrap_or(1);
    let after = after_keys(command, at)?.filter(|after| *after < command.len()).ok_or(SYNTAX)?;
    let from = match (spec.id, command.arg(after)) {
        (Id::Lmpop | Id::Blmpop, word) => From::List(end(word)?),
        (_, word) if is(word, "min") => From::Sorted(false),
        (_, word) if is(word, "max") => From::Sorted(true),
        _ => return Err(SYNTAX),
    };
    let count = match command.len() - after {
        1 => 1,
        3 if is(command.arg(after + 1), "count") => match parse_integer(command.arg(after + 2)) {
            Some(count) if count > 0 => count as u64,
            _ => return Err(Reply::error("ERR count should be greater than 0")),
        },
        _ => return Err(SYNTAX),
    };
    Ok(First { from, count: Some(count) })
}

fn combined(spec: &Spec, command: &Command<'_>) -> Decoded<Combined> {
    let at = spec.counted_keys_at().unwrap_or(1);
    let count = integer(command, at)?;
    if count < 1 {
        return Err(Reply::error(format!("ERR at least 1 input key is needed for '{}' command", spec.name)));
    }
    let keys = usize::try_from(count).ok().filter(|keys| *keys < command.len() - at).ok_or(SYNTAX)?;
    let combination = match spec.id {
        Id::Zunion | Id::Zunionstore => Combination::All,
        Id::Zdiff | Id::Zdiffstore => Combination::Difference,
        _ => Combination::Common,
    };
    let told = match spec.id {
        Id::Zintercard => Told::Count(0),
        Id::Zunion | Id::Zinter | Id::Zdiff => Told::Members(Shown::Members),
        _ => Told::Stored,
    };
    let mut all = Combined { combination, weights: vec![], aggregate: Aggregate::default(), told };
    let is_weighed = combination != Combination::Difference && spec.id != Id::Zintercard;
    let mut next = at + 1 + keys;
    while next < command.len() {
        let (option, left) = (command.arg(next), command.len() - next - 1);
        if is_weighed && left >= keys && is(option, "weights") {
            let weight =
                |at| score(command.arg(at)).ok_or_else(|| Reply::error("ERR weight value is not a float"));
            all.weights = (next + 1..=next + keys).map(weight).collect::<Decoded<_>>()?;
            next += keys;
        } else if is_weighed && left >= 1 && is(option, "aggregate") {
            all.aggregate = match command.arg(next + 1) {
                word if is(word, "sum") => Aggregate::Sum,
                word if is(word, "min") => Aggregate::Least,
                word if is(word, "max") => Aggregate::Highest,
                _ => return Err(SYNTAX),
            };
            next += 1;
        } else if matches!(told, Told::Members(_)) && is(option, "withscores") {
            all.told = Told::Members(Shown::WithScores);
        } else if spec.id == Id::Zintercard && left >= 1 && is(option, "limit") {
            all.told = Told::Count(limit(command, next + 1)?);
            next += 1;
        } else {
            return Err(SYNTAX);
        }
        next += 1;
    }
    Ok(all)
}
