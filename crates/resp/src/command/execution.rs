//! How commands on keys are run: what a look did not find out is asked of the store, and made into a reply.

use std::sync::Arc;

use bytes::Bytes;
use sextant_common::ids::Seq;
use sextant_common::operation::{Effect, Lane, OpOutcome, Operation, Record, Told, Update, WriteOutcome};
use sextant_common::{Error, ErrorKind, Result};

use super::ahead::{Ahead, Head};
use super::atomic::{self, Done};
use super::errors::{self, CROSS_SLOT, plain, store_error};
use super::request::{ChangeReply, Request, SetReply};
use super::transaction::{self, Queued, UnderWatch};
use crate::frame::{Reply, parse_integer};
use crate::shared::Shared;
use crate::store::Store;

/// Keys that are asked of the store at once by a command that names many: bounds what its values can pile up to before
/// their sizes are known.
pub(super) const CHUNK_KEYS: usize = 256;
/// Longest reply to a command that names many keys, in bytes (Redis' longest string).
const REPLY_BYTES_MAX: usize = 512 * 1024 * 1024;

impl Request {
    /// Asks the store for what is not known yet. Errors become error replies.
    pub async fn run<S: Store>(self, shared: Arc<Shared<S>>, ahead: Ahead<S::Missed>, lane: Lane) -> Reply {
        match ahead {
            Ahead::Reply(reply) => reply,
            Ahead::Missed(head) => {
                let filled = self.filled();
                let reply = self.ask(&shared, head, lane).await.unwrap_or_else(|e| store_error(&e));
                filled.iter().for_each(|key| shared.waiters.wake(shared.database, key));
                reply
            }
        }
    }

    async fn ask<S: Store>(self, shared: &Shared<S>, head: Head<S::Missed>, lane: Lane) -> Result<Reply> {
        let store = shared.store.clone();
        Ok(match self {
            Self::Get(key) => errors::value(store.get(key, head.missed).await?),
            Self::Inspect(key, aspect) => {
                let record = store.get(key, head.missed).await?;
                aspect.of(record, store.now_ms())
            }
            Self::Change { ops, reply } => {
                if !store.are_together(ops.iter().map(|op| &op.key[..])) {
                    return Ok(CROSS_SLOT);
                }
                let is_decimal = is_decimal(&ops);
                change_reply(store.execute(ops, lane).await?, reply, is_decimal)?
            }
            Self::MultiGet(keys) => multi_get(store, keys, head).await?,
            Self::Exists(mut keys) => {
                keys.drain(..head.keys);
                Reply::Integer(head.exist + exist(&store, keys, head.missed).await? as i64)
            }
            Self::Set { put, condition, reply } => set_reply(store.set(put, condition, lane).await?, reply),
            Self::MultiSet(pairs) => {
                store.multi_set(pairs, lane).await?;
                Reply::OK
            }
            Self::Delete(keys) => Reply::Integer(store.delete(keys, lane).await? as i64),
            Self::Move(_) => match atomic::run(shared, &[Queued::Ask(self)], &[], lane).await? {
                Done::Replies(mut replies) => replies.pop().unwrap_or(Reply::Nil),
                Done::Apart => CROSS_SLOT,
                Done::Changed => Reply::Nil,
                Done::NoRoom(e) => return Err(e),
            },
            Self::Object(object) => object.run(shared, lane).await?,
            // (Without anybody who could be answered later.)
            Self::Waiting(waiting) => waiting.at_once(shared).await.unwrap_or(Reply::NilArray),
            Self::Scan(scan) => scan.run(&store).await?,
            Self::Whole(whole) => whole.run(shared, lane).await?,
            Self::Watch(watched) => {
                let mut seen = Vec::with_capacity(watched.keys.len());
                // (The values are of no use: few at a time.)
                let mut chunk = CHUNK_KEYS.min(watched.keys.len());
                while let Some(left) = watched.keys.get(seen.len()..).filter(|left| !left.is_empty()) {
                    let keys = left[..chunk.min(left.len())].to_vec();
                    match store.multi_get(keys, S::Missed::default()).await {
                        Ok(records) => {
                            let seq = |record: &Option<Record>| record.as_ref().map_or(Seq(0), |r| r.seq);
                            seen.extend(records.iter().map(seq));
                        }
                        // Their values are too long together.
                        Err(e) if e.kind == ErrorKind::Invalid && chunk > 1 => chunk /= 2,
                        Err(e) => return Err(e),
                    }
                }
                let _ = watched.seen.set(seen);
                Reply::OK
            }
            Self::UnderWatch(under) => return Box::pin(run_under_watch(*under, shared, lane)).await,
            Self::Transaction(transaction) => {
                match atomic::run(shared, &transaction.commands, &transaction.watched, lane).await? {
                    Done::Replies(replies) => Reply::Array(replies),
                    Done::Apart => CROSS_SLOT,
                    Done::Changed => Reply::NilArray,
                    Done::NoRoom(e) => return Err(e),
                }
            }
        })
    }
}

/// As a transaction of its own, which tells whether the keys still are as they were when they were watched. If they are not, or it cannot
/// be one, as if nobody watched.
async fn run_under_watch<S: Store>(under: UnderWatch, shared: &Shared<S>, lane: Lane) -> Result<Reply> {
    let UnderWatch { request, watched } = under;
    let expected = transaction::absent_of(&watched, &request);
    let mut command = [Queued::Ask(request)];
    if !expected.is_empty() {
        match atomic::run_within(shared, &command, &expected, lane, atomic::ATTEMPTS_MAX).await {
            Ok(Done::Replies(mut replies)) => return Ok(replies.pop().unwrap_or(Reply::Nil)),
            Ok(Done::Apart) => {}
            Ok(Done::Changed | Done::NoRoom(_)) => watched.iter().for_each(|watched| watched.met_another()),
            // (What it meets the ordinary way is not known then.)
            Err(e) if matches!(e.kind, ErrorKind::Invalid | ErrorKind::Overloaded) => {
                watched.iter().for_each(|watched| watched.met_another());
            }
            Err(e) => return Err(e),
        }
    }
    match std::mem::replace(&mut command[0], Queued::Known(Reply::Nil)) {
        Queued::Ask(request) => request.ask(shared, Head::default(), lane).await,
        Queued::Known(reply) => Ok(reply),
    }
}

/// Whether a change adds decimal numbers.
pub(super) fn is_decimal(ops: &[Operation]) -> bool {
    ops.iter().any(|op| matches!(&op.effect, Effect::Update(Update::IncrementDecimal(_))))
}

/// The reply to a change. `is_decimal`: it adds decimal numbers.
pub(super) fn change_reply(outcome: WriteOutcome, reply: ChangeReply, is_decimal: bool) -> Result<Reply> {
    if reply == ChangeReply::Applied {
        return Ok(Reply::Integer(i64::from(outcome.applied)));
    }
    let [outcome] = <[OpOutcome; 1]>::try_from(outcome.results)
        .map_err(|results| Error::internal(format!("{} results for one change", results.len())))?;
    let unexpected = |told: &Told| Error::internal(format!("a change was answered with {told:?}"));
    match (reply, outcome.told) {
        (_, Told::Misfit(misfit)) => Ok(errors::misfit(misfit, is_decimal)),
        (_, Told::Forgotten) => Err(Error::new(
            ErrorKind::OutcomeUnknown,
            "the command took effect, once, but its first answer was lost, and the value that it met is longer than what is \
             kept for that",
        )),
        (ChangeReply::Number, Told::Value(number)) => match parse_integer(&number) {
            Some(number) => Ok(Reply::Integer(number)),
            None => Err(unexpected(&Told::Value(number))),
        },
        (ChangeReply::Effect, _) => Ok(Reply::Integer(i64::from(outcome.applied))),
        (ChangeReply::Length, Told::Length(length)) => Ok(Reply::Integer(length as i64)),
        (ChangeReply::Value, Told::Value(value)) => Ok(Reply::Bulk(value)),
        (ChangeReply::Value, Told::Nothing) if !outcome.existed => Ok(Reply::Nil),
        (_, told) => Err(unexpected(&told)),
    }
}

/// The reply to a plain `SET`: without a condition, and without `KEEPTTL`.
pub(crate) fn set_status(done: Result<()>) -> Reply {
    done.map_or_else(|e| store_error(&e), |()| Reply::OK)
}

/// The reply to other ones, to `SETNX`, and to what moves a record: whether it was done.
pub(super) fn set_reply(applied: bool, reply: SetReply) -> Reply {
    match (reply, applied) {
        (SetReply::Status, true) => Reply::OK,
        (SetReply::Status, false) => Reply::Nil,
        (SetReply::Number, applied) => Reply::Integer(i64::from(applied)),
    }
}

/// How many are there. Their values are read, in halves if they are too long to be read at once; not of very many keys: that would take
/// as long as nobody waits.
async fn exist<S: Store>(store: &S, keys: Vec<Bytes>, first: S::Missed) -> Result<u64> {
    if keys.len() > CHUNK_KEYS {
        return store.exists(keys, first).await;
    }
    let (mut parts, mut first) = (vec![keys], Some(first));
    let mut count = 0;
    while let Some(mut part) = parts.pop() {
        match store.exists(part.clone(), first.take().unwrap_or_default()).await {
            Ok(found) => count += found,
            Err(e) if e.kind == ErrorKind::Invalid && part.len() > 1 => {
                let rest = part.split_off(part.len() / 2);
                parts.extend([rest, part]);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(count)
}

async fn multi_get<S: Store>(store: S, mut keys: Vec<Bytes>, head: Head<S::Missed>) -> Result<Reply> {
    let Head { keys: known, values: mut replies, missed: mut first, .. } = head;
    keys.drain(..known);
    if keys.len() <= CHUNK_KEYS {
        let values = store.multi_get(keys, first).await?;
        replies.extend(values.into_iter().map(plain));
        return Ok(Reply::Array(replies));
    }
    replies.reserve(keys.len());
    let mut bytes = 0;
    let mut longest = 1;
    while !keys.is_empty() {
        // Later chunks are as large as the room that is left allows, by the longest value so far.
        let fitting = (REPLY_BYTES_MAX - bytes) / longest;
        let chunk = keys.len().min(fitting.clamp(1, CHUNK_KEYS * 16)).min(CHUNK_KEYS.max(replies.len()));
        let rest = keys.split_off(chunk);
        let values = store.multi_get(std::mem::replace(&mut keys, rest), std::mem::take(&mut first)).await?;
        for record in values {
            let reply = plain(record);
            bytes += reply.size();
            longest = longest.max(reply.size());
            replies.push(reply);
        }
        if bytes > REPLY_BYTES_MAX {
            return Err(Error::invalid(format!(
                "the reply is longer than {REPLY_BYTES_MAX} bytes: ask for fewer keys"
            )));
        }
    }
    Ok(Reply::Array(replies))
}
