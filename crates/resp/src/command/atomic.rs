//! Several commands as one: what they read and write is so at one moment, or none of it takes effect.
//!
//! Commands that are operations of the sequencer become one batch ([`as_batch`]): nothing that others do makes it try again. Otherwise
//! the records are read, the commands are carried out on a [draft](super::draft), and what they leave is written on the condition that each
//! record that was read is still the same version; if one is not, again from the start.
//!
//! Invariant: a reply is given only for what took effect, or for records that were all as read at one moment.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sextant_common::ids::Seq;
use sextant_common::limits::BATCH_OPS_MAX;
use sextant_common::marks::Marks;
use sextant_common::operation::{
    Condition, Lane, Lifetime, OpOutcome, Operation, Put, Record, Returns, Told, WriteOutcome,
};
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::Env;
use sextant_rules::mutant::{self, Mutant};

use super::draft::{Draft, READ_BYTES_MAX};
use super::errors::store_error;
use super::execution::{change_reply, is_decimal, set_reply};
use super::request::{Aspect, ChangeReply, Request};
use super::transaction::{Queued, Watched};
use crate::frame::Reply;
use crate::shared::Shared;
use crate::store::{SetCondition, Store};

/// How often the records may turn out to have changed meanwhile.
pub(super) const ATTEMPTS_MAX: usize = 100;

/// Once the records have changed so often meanwhile, the leader reads them all at one moment, and other writes of them through this
/// server [let it pass](crate::repeats).
pub(super) const READS_MAX: usize = 3;
/// Most bytes that are read again from then on: what is long is not read a hundred times.
const READ_AGAIN_BYTES_MAX: usize = READ_BYTES_MAX;
/// Longest pause before it is tried again.
const PAUSE_MAX: Duration = Duration::from_millis(8);

/// What became of the commands.
#[derive(Debug)]
pub(super) enum Done {
    Replies(Vec<Reply>),
    /// A watched key has changed: nothing took effect.
    Changed,
    /// The keys are not of one partition: nothing took effect.
    Apart,
    /// There is no room for what the commands read or make, or they would read it too often: nothing took effect. Some of them may need
    /// little.
    NoRoom(Error),
}

/// `watched`: keys that have to be as they were then.
pub(super) async fn run<S: Store>(
    shared: &Shared<S>,
    commands: &[Queued],
    watched: &[Arc<Watched>],
    lane: Lane,
) -> Result<Done> {
    let mut expected = Vec::new();
    for watched in watched.iter().filter(|_| !mutant::active(Mutant::WatchWithoutVersions)) {
        let Some(of_these) = watched.expected()? else { return Ok(Done::Changed) };
        expected.extend(of_these);
    }
    run_within(shared, commands, &expected, lane, ATTEMPTS_MAX).await
}

/// The same, of keys that have to be of these versions, with so many attempts.
pub(super) async fn run_within<S: Store>(
    shared: &Shared<S>,
    commands: &[Queued],
    expected: &[(&Bytes, Seq)],
    lane: Lane,
    attempts: usize,
) -> Result<Done> {
    let (store, env) = (&shared.store, &shared.env);
    if !are_together(store, commands, expected) {
        return Ok(Done::Apart);
    }
    let mut batch = as_batch(commands, expected);
    let (needed, named) = needed(commands, expected);
    if named > BATCH_OPS_MAX {
        return Err(Error::invalid(format!(
            "nothing took effect: it names {named} keys: the limit is {BATCH_OPS_MAX}"
        )));
    }
    let until_ns = shared.now_ns() + shared.config.patience.attempts.as_nanos() as u64;
    let too_often =
        || Error::new(ErrorKind::Retry, "nothing took effect: others change the same records too often");
    let (mut repeating, mut read_again) = (None, 0);
    for attempt in 0..attempts {
        if attempt > 0 {
            let reads_too_much = read_again > READ_AGAIN_BYTES_MAX;
            if reads_too_much && commands.len() > 1 {
                return Ok(Done::NoRoom(too_often()));
            }
            if reads_too_much || shared.now_ns() > until_ns {
                break;
            }
            pause(attempt, env).await;
        }
        if attempt >= READS_MAX && repeating.is_none() {
            repeating = Some(shared.repeats.mark(&needed));
        }
        // What changes nothing is read where that is cheapest, unless others come between again and again.
        if let Some(Batch { ops, .. }) = batch.take_if(|batch| batch.writes || attempt >= READS_MAX) {
            match store.execute(ops, lane).await {
                Ok(outcome) if outcome.applied => {
                    return Ok(Done::Replies(replies(commands, &outcome.results[expected.len()..])));
                }
                Ok(outcome) => {
                    let has_misfit =
                        outcome.results.iter().any(|result| matches!(result.told, Told::Misfit(_)));
                    if !has_misfit && !expected.is_empty() {
                        return Ok(Done::Changed);
                    }
                    // A command that does not go with the value that it met keeps nothing else from taking effect.
                }
                // More than one batch may have, or be told: certainly not executed, and the long way has bounds of its own.
                Err(e) if e.kind == ErrorKind::Invalid => {}
                Err(e) => return Err(e),
            }
        }
        let mut draft = Draft::read(shared, &needed, attempt).await?;
        if !draft.expect(expected) {
            return Ok(Done::Changed);
        }
        let replies = match draft.carry_all_out(commands).await {
            Err(e) if draft.lacks_room() => return Ok(Done::NoRoom(e)),
            replies => replies?,
        };
        let is_settled = draft.is_settled().await?;
        read_again += if attempt >= READS_MAX { draft.read_bytes() } else { 0 };
        let ops = draft.into_ops();
        if !is_settled {
            continue;
        }
        if ops.is_empty() {
            return Ok(Done::Replies(replies));
        }
        let watched = positions(&ops, expected);
        let outcome = store.execute(ops, lane).await?;
        if outcome.applied {
            return Ok(Done::Replies(replies));
        }
        let met = |at: usize| outcome.results.get(at).map(|met| if met.existed { met.seq } else { Seq(0) });
        if watched.into_iter().any(|(at, seq)| met(at).is_some_and(|met| met != seq)) {
            return Ok(Done::Changed);
        }
    }
    Err(too_often())
}

/// Operations of the sequencer, all on one key, as one batch. None: they did not take effect.
pub(super) async fn run_as_batch<S: Store>(
    store: &S,
    commands: &[Queued],
    lane: Lane,
) -> Result<Option<Vec<Reply>>> {
    let Some(Batch { ops, .. }) = as_batch(commands, &[]) else { return Ok(None) };
    let outcome = store.execute(ops, lane).await?;
    Ok(outcome.applied.then(|| replies(commands, &outcome.results)))
}

/// The operations on what is watched, and the versions that they expect.
fn positions(ops: &[Operation], expected: &[(&Bytes, Seq)]) -> Vec<(usize, Seq)> {
    let expected: HashMap<&Bytes, Seq> = expected.iter().copied().collect();
    // (Elements have a table of their own.)
    let records = ops.iter().enumerate().filter(|(_, op)| op.table.is_empty());
    records.filter_map(|(at, op)| Some((at, *expected.get(&op.key)?))).collect()
}

/// Before it is tried again: of a random length, so that those who were in each other's way are less so.
pub(super) async fn pause(attempt: usize, env: &Env) {
    let most = PAUSE_MAX.min(Duration::from_micros(100) * (1 << attempt.min(16)));
    let micros = env.rng.next_u64() % (most.as_micros() as u64).max(1);
    tokio::time::sleep(Duration::from_micros(micros)).await;
}

fn are_together<S: Store>(store: &S, commands: &[Queued], expected: &[(&Bytes, Seq)]) -> bool {
    let mut owned: Vec<Bytes> = Vec::new();
    for command in commands {
        if let Queued::Ask(request) = command {
            request.for_each_key(&mut |key| owned.push(Bytes::copy_from_slice(key)));
        }
    }
    let expected = expected.iter().map(|(key, _)| *key);
    store.are_together(expected.chain(&owned).map(|key| &key[..]))
}

/// Operations of the sequencer that the commands are.
struct Batch {
    /// Those that make sure of what is expected, and then the commands in their order.
    ops: Vec<Operation>,
    /// Whether any of them may change a record.
    writes: bool,
}

pub(super) fn check(key: &Bytes) -> Operation {
    Operation::check_only("", key.clone())
}

/// None: some command is no operation.
fn as_batch(commands: &[Queued], expected: &[(&Bytes, Seq)]) -> Option<Batch> {
    let expect = |(key, seq): &(&Bytes, Seq)| check(key).only_if(Condition::SeqEquals(*seq));
    let mut ops: Vec<Operation> = expected.iter().map(expect).collect();
    let mut writes = false;
    for command in commands {
        let Queued::Ask(request) = command else { continue };
        let peek = |key: &Bytes| check(key).returning(Returns::Before);
        match request {
            Request::Get(key) => ops.push(peek(key)),
            Request::Inspect(key, Aspect::Length | Aspect::Range(..)) => ops.push(peek(key)),
            Request::MultiGet(keys) => ops.extend(keys.iter().map(peek)),
            Request::Exists(keys) => {
                let is_there = |key| check(key).only_if(Condition::Present).skip_on_failure();
                ops.extend(keys.iter().map(is_there));
            }
            Request::Change { ops: changes, .. } => {
                let [op] = &changes[..] else { return None };
                writes = true;
                ops.push(Operation { skip_on_failure: op.condition != Condition::None, ..op.clone() });
            }
            Request::Set { .. } | Request::MultiSet(_) | Request::Delete(_) => {
                writes = true;
                ops.extend(writes_of(request));
            }
            Request::Inspect(..)
            | Request::Move(_)
            | Request::Object(_)
            | Request::Waiting(_)
            | Request::Whole(_)
            | Request::Scan(_)
            | Request::Watch(_)
            | Request::UnderWatch(_)
            | Request::Transaction(_) => {
                return None;
            }
        }
    }
    (!ops.is_empty()).then_some(Batch { ops, writes })
}

/// What a command writes that is neither a change nor a move.
pub(super) fn writes_of(request: &Request) -> Vec<Operation> {
    match request {
        Request::Set { put: Put { key, value, lifetime }, condition, .. } => {
            let put = Operation::put("", key.clone(), value.clone()).lasting(*lifetime);
            vec![match condition {
                SetCondition::Always => put,
                condition => put.only_if((*condition).into()).skip_on_failure(),
            }]
        }
        Request::MultiSet(pairs) => {
            pairs.iter().map(|(key, value)| Operation::put("", key.clone(), value.clone())).collect()
        }
        Request::Delete(keys) => keys.iter().map(|key| Operation::delete_checked("", key.clone())).collect(),
        _ => vec![],
    }
}

/// The replies to commands that took effect [as a batch](as_batch).
fn replies(commands: &[Queued], mut results: &[OpOutcome]) -> Vec<Reply> {
    let mut take = |n: usize| {
        let (these, rest) = results.split_at(n.min(results.len()));
        results = rest;
        these
    };
    let told = |results: &[OpOutcome], reply, is_decimal| {
        let applied = results.iter().all(|result| result.applied);
        let outcome = WriteOutcome { applied, results: results.to_vec() };
        change_reply(outcome, reply, is_decimal)
    };
    let applied = |results: &[OpOutcome]| results.iter().filter(|result| result.applied).count() as i64;
    let reply = |command: &Queued| {
        let request = match command {
            Queued::Known(reply) => return Ok(reply.clone()),
            Queued::Ask(request) => request,
        };
        Ok(match request {
            Request::Get(_) => told(take(1), ChangeReply::Value, false)?,
            Request::Inspect(_, aspect) => match told(take(1), ChangeReply::Value, false)? {
                Reply::Bulk(value) => aspect.of(Some(Record::marked(value, Seq(0), Marks::NONE)), 0),
                _ => aspect.of(None, 0),
            },
            Request::MultiGet(keys) => {
                let values = keys.iter().map(|_| told(take(1), ChangeReply::Value, false));
                Reply::Array(values.collect::<Result<_>>()?)
            }
            Request::Exists(keys) | Request::Delete(keys) => Reply::Integer(applied(take(keys.len()))),
            Request::Change { ops, reply } => told(take(1), *reply, is_decimal(ops))?,
            Request::Set { reply, .. } => set_reply(applied(take(1)) == 1, *reply),
            Request::MultiSet(pairs) => {
                take(pairs.len());
                Reply::OK
            }
            Request::Move(_)
            | Request::Object(_)
            | Request::Waiting(_)
            | Request::Whole(_)
            | Request::Scan(_)
            | Request::Watch(_)
            | Request::UnderWatch(_)
            | Request::Transaction(_) => {
                return Err(Error::internal("a command that is no operation took effect as one"));
            }
        })
    };
    commands.iter().map(reply).map(|reply: Result<Reply>| reply.unwrap_or_else(|e| store_error(&e))).collect()
}

/// The keys whose records have to be known: all but those that are written before anything is asked of them, or only
/// watched. And how many keys there are in all.
fn needed(commands: &[Queued], expected: &[(&Bytes, Seq)]) -> (Vec<Bytes>, usize) {
    let mut needed: HashSet<Bytes> = HashSet::new();
    let mut written: HashSet<&[u8]> = HashSet::new();
    for command in commands {
        let Queued::Ask(request) = command else { continue };
        match request {
            Request::Set { put, condition: SetCondition::Always, .. } if put.lifetime != Lifetime::Kept => {
                written.insert(&put.key);
            }
            Request::MultiSet(pairs) => written.extend(pairs.iter().map(|(key, _)| &key[..])),
            request => request.for_each_key(&mut |key| {
                if !written.contains(key) && !needed.contains(key) {
                    needed.insert(Bytes::copy_from_slice(key));
                }
            }),
        }
    }
    let others: HashSet<&[u8]> =
        written.into_iter().chain(expected.iter().map(|(key, _)| &key[..])).collect();
    let named = needed.len() + others.into_iter().filter(|key| !needed.contains(*key)).count();
    let mut needed: Vec<Bytes> = needed.into_iter().collect();
    needed.sort_unstable();
    (needed, named)
}
