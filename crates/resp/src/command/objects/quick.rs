//! The quick way of commands that put, remove or add to elements by their names: one batch, whose header is counted by the sequencer.
//! So what many clients write to one object does not make any of them repeat, unless the object goes, or comes, meanwhile. Whatever
//! depends on the header is made to repeat by them: so whoever goes this way lets those pass first that [repeat often](crate::repeats).

use std::collections::HashMap;

use bytes::Bytes;
use sextant_common::ids::Seq;
use sextant_common::marks::Kind;
use sextant_common::object::{ELEMENTS_TABLE, Header, Tag, element_key};
use sextant_common::operation::{
    Condition, Effect, Lane, Lifetime, Misfit, OpOutcome, Operation, Returns, Told, Update,
};
use sextant_common::{Error, ErrorKind, Result};
use sextant_rules::mutant::{self, Mutant};

use super::super::atomic::{ATTEMPTS_MAX, pause};
use super::super::errors::WRONG_TYPE;
use super::hash::{self, Hash};
use super::set::Set;
use super::sorted::{Add, Placed, Sorted, by_score, score_of};
use super::{Command, Object};
use crate::frame::Reply;
use crate::gathering::Gathered;
use crate::shared::Shared;
use crate::store::Store;

/// Most elements that a command names on this way.
const ELEMENTS_MAX: usize = 1000;

/// The same of members of sorted sets that go: each takes two operations, whose keys have that of the object in them, and a batch has
/// bounds. (If all of them go, nothing of that need be written.)
const REMOVED_MAX: usize = 256;

/// What is written of elements, and how it is answered.
struct Plan {
    /// The last `counted` are those of the elements that the object counts.
    ops: Vec<Operation>,
    counted: usize,
    /// The answers, if they are known already.
    replies: Option<Vec<Reply>>,
}

/// None: the command has no such way.
pub(super) async fn run<S: Store>(object: &Object, shared: &Shared<S>, lane: Lane) -> Result<Option<Reply>> {
    Ok(run_all(&[object], shared, lane).await?.and_then(|mut replies| replies.pop()))
}

/// The same of several commands on one object, of one [`Doing`]: one batch, in their order. None: they have no such way together.
pub(super) async fn run_all<S: Store>(
    objects: &[&Object],
    shared: &Shared<S>,
    lane: Lane,
) -> Result<Option<Vec<Reply>>> {
    let (store, env) = (&shared.store, &shared.env);
    let [object, others @ ..] = objects else { return Ok(None) };
    let Some((kind, creates)) = way(&object.command) else { return Ok(None) };
    let key = &object.keys[0];
    let all =
        |reply: &dyn Fn(&Command) -> Reply| Ok(Some(objects.iter().map(|o| reply(&o.command)).collect()));
    // (The keys of elements have that of their object in them.)
    let mut gathered = Gathered::new(&shared.gathering);
    match gathered.make_room(objects.iter().map(|object| names_bytes(&object.command, key)).sum()) {
        // (There may be for each alone.)
        Err(_) if !others.is_empty() => return Ok(None),
        made => made?,
    }
    let mut hint = object.hints.find(key, kind);
    let until_ns = shared.now_ns() + shared.config.patience.attempts.as_nanos() as u64;
    for attempt in 0..ATTEMPTS_MAX {
        if attempt > 0 && shared.now_ns() > until_ns {
            break;
        }
        if attempt > 1 {
            pause(attempt, env).await;
        }
        let known = match hint {
            Some(version) => Some(version),
            None => match store.get(key.clone(), S::Missed::default()).await? {
                None => None,
                Some(record) if record.kind != kind => return all(&|_| WRONG_TYPE),
                Some(record) => {
                    let header = Header::decode(&record.value);
                    Some(header.ok_or_else(|| Error::corrupt("the header of an object is damaged"))?.version)
                }
            },
        };
        let (version, is_new) = match known {
            Some(version) => (version, false),
            None if creates && mutant::active(Mutant::VersionsAgain) => (7, true),
            None if creates => (env.rng.next_u64(), true),
            None => return all(&nothing),
        };
        let plan = match &object.command {
            Command::Hash(command) => of_hash(command, key, version),
            Command::Set(command) => of_set(command, key, version),
            Command::Sorted(Sorted::Add(_)) => {
                let adds = objects.iter().filter_map(|object| match &object.command {
                    Command::Sorted(Sorted::Add(add)) => Some(add),
                    _ => None,
                });
                of_adds(adds.collect(), key, version, is_new, store).await?
            }
            Command::Sorted(Sorted::Remove(_)) => {
                let removals = objects.iter().filter_map(|object| match &object.command {
                    Command::Sorted(Sorted::Remove(members)) => Some(&members[..]),
                    _ => None,
                });
                of_removals(removals.collect(), key, version, store).await?
            }
            _ => return Ok(None),
        };
        let Plan { mut ops, mut counted, replies } = plan;
        // (Those that are known already are of all commands.)
        let planned_apart = if replies.is_some() { &[][..] } else { others };
        if let (Some(replies), [Operation { effect: Effect::Check, .. }]) = (&replies, &ops[..]) {
            // Nothing is to be changed of its only member, if this is still the object: it was so when the member was read. (Several
            // may never have been so at one moment: the sequencer decides.)
            let now = store.get(key.clone(), S::Missed::default()).await?;
            let now = now.filter(|record| record.kind == kind).and_then(|r| Header::decode(&r.value));
            if now.is_some_and(|now| now.version == version) {
                object.hints.remember(key, kind, version);
                return Ok(Some(replies.clone()));
            }
            object.hints.forget(key);
            hint = None;
            continue;
        }
        let mut of_each = vec![ops.len()];
        for other in planned_apart {
            let plan = match &other.command {
                Command::Hash(command) => of_hash(command, key, version),
                Command::Set(command) => of_set(command, key, version),
                _ => return Ok(None),
            };
            of_each.push(plan.ops.len());
            counted += plan.counted;
            ops.extend(plan.ops);
        }
        let counted = u32::try_from(counted).unwrap_or(u32::MAX);
        let counted = if mutant::active(Mutant::CountsOneElement) { counted.min(1) } else { counted };
        ops.push(Operation::update(
            "",
            key.clone(),
            Update::Count { kind, version, creates: is_new, counted },
        ));
        let outcome = store.execute(ops, lane).await?;
        if outcome.applied {
            // (If the last element is gone, this one is no use, and does no harm.)
            object.hints.remember(key, kind, version);
            if replies.is_some() {
                return Ok(replies);
            }
            let mut results = &outcome.results[..outcome.results.len().saturating_sub(1)];
            let answers = objects.iter().zip(of_each).map(|(object, count)| {
                let (its, rest) = results.split_at(count.min(results.len()));
                results = rest;
                answer(&object.command, its)
            });
            return answers.collect::<Result<_>>().map(Some);
        }
        let misfit = outcome.results.iter().find_map(|result| match result.told {
            Told::Misfit(misfit) if misfit != Misfit::OtherObject => Some(misfit),
            _ => None,
        });
        let is_other = outcome.results.iter().any(|r| r.told == Told::Misfit(Misfit::OtherObject));
        match misfit {
            // What it does not go with is of an object that is gone.
            _ if is_other => {}
            Some(Misfit::WrongKind) => return all(&|_| WRONG_TYPE),
            // One of them does not go with the value that it met: nothing took effect.
            Some(_) if !others.is_empty() => return Ok(None),
            Some(misfit) => {
                let is_decimal = matches!(&object.command, Command::Hash(Hash::IncrementDecimal(..)));
                return Ok(Some(vec![hash::misfit(misfit, is_decimal)]));
            }
            // An element has changed since it was read.
            None => {}
        }
        hint = if is_other { None } else { hint.or((!is_new).then_some(version)) };
    }
    Err(Error::new(ErrorKind::Retry, "nothing took effect: others change the same object too often"))
}

/// What a command does that can be done together with others that do the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::command) enum Doing {
    SetsFields,
    DeletesFields,
    AddsMembers,
    RemovesMembers,
    /// Whether it makes a sorted set if there is none.
    SetsScores(bool),
    RemovesScores,
}

pub(super) fn doing(object: &Object) -> Option<Doing> {
    let (_, creates) = way(&object.command)?;
    match &object.command {
        Command::Sorted(Sorted::Add(_)) => Some(Doing::SetsScores(creates)),
        Command::Sorted(Sorted::Remove(_)) => Some(Doing::RemovesScores),
        Command::Hash(Hash::Delete(_)) => Some(Doing::DeletesFields),
        Command::Hash(_) => Some(Doing::SetsFields),
        Command::Set(Set::Add(_)) => Some(Doing::AddsMembers),
        Command::Set(Set::Remove(_)) => Some(Doing::RemovesMembers),
        _ => None,
    }
}

/// The kind of the object, and whether it is made if there is none.
fn way(command: &Command) -> Option<(Kind, bool)> {
    let few = |elements: usize| elements <= ELEMENTS_MAX;
    match command {
        Command::Hash(Hash::Set(pairs, _)) if few(pairs.len()) => Some((Kind::Hash, true)),
        Command::Hash(Hash::SetNew(..) | Hash::Increment(..) | Hash::IncrementDecimal(..)) => {
            Some((Kind::Hash, true))
        }
        Command::Hash(Hash::Delete(fields)) if few(fields.len()) => Some((Kind::Hash, false)),
        Command::Set(Set::Add(members)) if few(members.len()) => Some((Kind::Set, true)),
        Command::Set(Set::Remove(members)) if few(members.len()) => Some((Kind::Set, false)),
        Command::Sorted(Sorted::Add(add)) if few(add.members.len()) => {
            Some((Kind::SortedSet, !add.rule.only_there))
        }
        Command::Sorted(Sorted::Remove(members)) if members.len() <= REMOVED_MAX => {
            Some((Kind::SortedSet, false))
        }
        _ => None,
    }
}

/// Bytes of the keys of elements that are made for it at a time.
fn names_bytes(command: &Command, key: &[u8]) -> usize {
    let names = |names: &[Bytes]| names.iter().map(|name| key.len() + name.len()).sum();
    match command {
        Command::Hash(Hash::Set(pairs, _)) => pairs.iter().map(|(field, _)| key.len() + field.len()).sum(),
        Command::Hash(Hash::Delete(fields)) => names(fields),
        Command::Set(Set::Add(members) | Set::Remove(members)) => names(members),
        Command::Sorted(Sorted::Remove(members)) => 3 * names(members),
        // Two names, and the places of the old score and of the new one.
        Command::Sorted(Sorted::Add(add)) => {
            add.members.iter().map(|(_, member)| 4 * (key.len() + member.len())).sum()
        }
        _ => 3 * key.len(),
    }
}

/// The reply if there is no object.
fn nothing(command: &Command) -> Reply {
    match command {
        Command::Sorted(Sorted::Add(Add { increments: true, .. })) => Reply::Nil,
        _ => Reply::Integer(0),
    }
}

fn of_hash(command: &Hash, key: &Bytes, version: u64) -> Plan {
    let name = |field: &Bytes| element_key(key, version, Tag::Field, field);
    let update = |field, update| {
        vec![Operation::update(ELEMENTS_TABLE, name(field), update).returning(Returns::After)]
    };
    let ops = match command {
        Hash::Set(pairs, _) => pairs.iter().map(|(field, value)| met(name(field), value.clone())).collect(),
        Hash::SetNew(field, value) => vec![insert(name(field), value.clone())],
        Hash::Increment(field, by) => update(field, Update::Increment(*by)),
        Hash::IncrementDecimal(field, by) => update(field, by.clone()),
        Hash::Delete(fields) => {
            fields.iter().map(|field| Operation::delete_checked(ELEMENTS_TABLE, name(field))).collect()
        }
        _ => vec![],
    };
    Plan { counted: ops.len(), ops, replies: None }
}

fn of_set(command: &Set, key: &Bytes, version: u64) -> Plan {
    let name = |member: &Bytes| element_key(key, version, Tag::Member, member);
    let ops: Vec<Operation> = match command {
        Set::Add(members) => members.iter().map(|member| insert(name(member), Bytes::new())).collect(),
        Set::Remove(members) => {
            members.iter().map(|member| Operation::delete_checked(ELEMENTS_TABLE, name(member))).collect()
        }
        _ => vec![],
    };
    Plan { counted: ops.len(), ops, replies: None }
}

/// A put that says whether there was something before.
fn met(key: Bytes, value: Bytes) -> Operation {
    Operation::put(ELEMENTS_TABLE, key, value).lasting(Lifetime::Kept)
}

fn insert(key: Bytes, value: Bytes) -> Operation {
    Operation::insert(ELEMENTS_TABLE, key, value).skip_on_failure()
}

/// A member of a sorted set, and what becomes of it.
struct Member<'c> {
    name: &'c Bytes,
    key: Bytes,
    /// Of what was read; 0: it was not there.
    seq: Seq,
    before: Option<f64>,
    now: Option<f64>,
}

/// Those that commands name, each once.
struct Members<'c> {
    all: Vec<Member<'c>>,
    places: HashMap<&'c Bytes, usize>,
}

impl<'c> Members<'c> {
    fn named(names: impl Iterator<Item = &'c Bytes>, key: &Bytes, version: u64) -> Self {
        let (mut all, mut places) = (Vec::new(), HashMap::new());
        for name in names {
            places.entry(name).or_insert_with(|| {
                let key = element_key(key, version, Tag::Score, name);
                all.push(Member { name, key, seq: Seq(0), before: None, now: None });
                all.len() - 1
            });
        }
        Self { all, places }
    }

    async fn read<S: Store>(&mut self, store: &S) -> Result<()> {
        let found = store.elements(self.all.iter().map(|member| member.key.clone()).collect()).await?;
        for (member, record) in self.all.iter_mut().zip(found) {
            let Some(record) = record else { continue };
            let score = score_of(&record.value);
            (member.seq, member.before, member.now) = (record.seq, score, score);
        }
        Ok(())
    }

    /// One that was named.
    fn of(&mut self, name: &Bytes) -> &mut Member<'c> {
        &mut self.all[self.places[name]]
    }
}

/// The scores as they are now are read, and have to be so still when they are written. Each command finds what those before it leave.
async fn of_adds<S: Store>(
    adds: Vec<&Add>,
    key: &Bytes,
    version: u64,
    is_new: bool,
    store: &S,
) -> Result<Plan> {
    let names = adds.iter().flat_map(|add| &add.members).map(|(_, name)| name);
    let mut members = Members::named(names, key, version);
    if !is_new {
        members.read(store).await?;
    }
    let mut carry_out = |add: &Add| {
        let (mut counts, mut last) = ((0, 0), None);
        for (score, name) in &add.members {
            let member = members.of(name);
            let before = member.now;
            // (Only what adds to a score can go wrong, and that has one member.)
            let placed = match add.place(before, *score) {
                Ok(placed) => placed,
                Err(reply) => return reply,
            };
            last = Some((placed, before));
            if let Placed::At(score) = placed {
                member.now = Some(score);
                match before {
                    Some(_) => counts.1 += 1,
                    None => counts.0 += 1,
                }
            }
        }
        add.reply(counts, last)
    };
    let replies: Vec<Reply> = adds.iter().map(|add| carry_out(add)).collect();
    let header = Header::new(version, 0);
    let (counted, mut index, mut scores) = (members.all.len(), Vec::new(), Vec::new());
    for Member { name, key: score_key, seq, before, now } in members.all {
        let op = match now {
            Some(score) if now != before => {
                index.extend(
                    before.map(|old| Operation::delete(ELEMENTS_TABLE, by_score(key, &header, old, name))),
                );
                let place = by_score(key, &header, score, name);
                index.push(Operation::put(ELEMENTS_TABLE, place, Bytes::new()));
                let value = Bytes::copy_from_slice(&(score + 0.0).to_le_bytes());
                Operation::put(ELEMENTS_TABLE, score_key, value)
            }
            _ => Operation::check_only(ELEMENTS_TABLE, score_key),
        };
        scores.push(op.only_if(Condition::SeqEquals(seq)));
    }
    index.append(&mut scores);
    Ok(Plan { ops: index, counted, replies: Some(replies) })
}

/// As [`of_adds`].
async fn of_removals<S: Store>(
    removals: Vec<&[Bytes]>,
    key: &Bytes,
    version: u64,
    store: &S,
) -> Result<Plan> {
    let header = Header::new(version, 0);
    let mut members = Members::named(removals.iter().copied().flatten(), key, version);
    members.read(store).await?;
    let mut remove = |name: &Bytes| members.of(name).now.take().is_some();
    let replies = removals.iter().map(|names| {
        let removed = names.iter().filter(|name| remove(name)).count();
        Reply::Integer(removed as i64)
    });
    let replies = Some(replies.collect());
    let (counted, mut index, mut scores) = (members.all.len(), Vec::new(), Vec::new());
    for Member { name, key: score_key, seq, before, .. } in members.all {
        let op = match before {
            Some(score) => {
                index.push(Operation::delete(ELEMENTS_TABLE, by_score(key, &header, score, name)));
                Operation::delete(ELEMENTS_TABLE, score_key)
            }
            None => Operation::check_only(ELEMENTS_TABLE, score_key),
        };
        scores.push(op.only_if(Condition::SeqEquals(seq)));
    }
    index.append(&mut scores);
    Ok(Plan { ops: index, counted, replies })
}

/// The reply to what took effect.
fn answer(command: &Command, results: &[OpOutcome]) -> Result<Reply> {
    let applied = || results.iter().filter(|result| result.applied).count() as i64;
    let value = || match results.first().map(|result| &result.told) {
        Some(Told::Value(value)) => Ok(value.clone()),
        told => Err(Error::internal(format!("a change was answered with {told:?}"))),
    };
    Ok(match command {
        Command::Hash(Hash::Set(_, false)) => Reply::OK,
        Command::Hash(Hash::Set(_, true)) => {
            Reply::Integer(results.iter().filter(|result| !result.existed).count() as i64)
        }
        Command::Hash(Hash::Increment(..)) => {
            let text = value()?;
            let number = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
            Reply::Integer(number.ok_or_else(|| Error::internal("a sum that is no number"))?)
        }
        Command::Hash(Hash::IncrementDecimal(..)) => Reply::Bulk(value()?),
        _ => Reply::Integer(applied()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_that_count_stand_right_before_the_header() {
        let key = Bytes::from_static(b"k");
        let plan =
            of_hash(&Hash::Set(vec![("f".into(), "v".into()), ("g".into(), "w".into())], true), &key, 7);
        assert_eq!((plan.ops.len(), plan.counted), (2, 2));
        assert!(plan.ops.iter().all(|op| !op.is_blind() && op.table == ELEMENTS_TABLE));
        assert!(matches!(&plan.ops[0].effect, Effect::Put(value) if value == "v"));
    }
}
