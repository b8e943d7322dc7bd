//! Writes: single records and atomic batches.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::Seq;
use sextant_common::limits;
use sextant_common::operation::{
    Condition, Effect, Expected, Lifetime, OpOutcome, Operation, Returns, Told, Update, WriteOutcome,
    parse_integer,
};
use sextant_proto::convert::operation::compare_and_set_effect;
use sextant_proto::v1;
use tonic::{Response, Status};

use crate::client::{Client, kv};
use crate::retry::{Repeat, timed};
use crate::sessions::{SESSIONS_MAX, WINDOW};
use crate::wire::Wire;

impl Client {
    /// Writes a record, whether it exists or not. Returns its version.
    pub fn put<'a>(
        &'a self,
        table: &'a str,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> BoxFuture<'a, Result<Seq>> {
        self.put_record(table, key.into(), value.into())
    }

    fn put_record<'a>(&'a self, table: &'a str, key: Bytes, value: Bytes) -> BoxFuture<'a, Result<Seq>> {
        Box::pin(async move {
            let request = put_request(table, key, value)?;
            let reply = self.write(1, Put(request)).await?;
            Ok(single(reply)?.seq)
        })
    }

    /// Writes a record that is there for so long, whether it exists or not. Returns its version.
    ///
    /// When it is gone is decided by the clocks of the partition's leaders, for all readers at once (docs/consistency.md).
    pub fn put_for<'a>(
        &'a self,
        table: &'a str,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        time_to_live: Duration,
    ) -> BoxFuture<'a, Result<Seq>> {
        let put = Operation::put(table, key, value).lasting(milliseconds(time_to_live));
        Box::pin(async move { Ok(self.change(put).await?.seq) })
    }

    /// Changes how long a record is there, and nothing else. Whether there is one.
    pub fn expire<'a>(
        &'a self,
        table: &'a str,
        key: impl Into<Bytes>,
        lifetime: Lifetime,
    ) -> BoxFuture<'a, Result<bool>> {
        let touch = Operation::update(table, key, Update::Touch).lasting(lifetime);
        let touch = touch.only_if(Condition::Present).skip_on_failure();
        Box::pin(async move { Ok(self.change(touch).await?.applied) })
    }

    /// Writes a record only if its key does not exist; see [`OpOutcome::applied`].
    pub fn insert<'a>(
        &'a self,
        table: &'a str,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> BoxFuture<'a, Result<OpOutcome>> {
        self.insert_record(table, key.into(), value.into())
    }

    fn insert_record<'a>(
        &'a self,
        table: &'a str,
        key: Bytes,
        value: Bytes,
    ) -> BoxFuture<'a, Result<OpOutcome>> {
        Box::pin(async move {
            let request = put_request(table, key, value)?;
            let reply = self.write(1, Insert(request)).await?;
            single(reply)
        })
    }

    /// Deletes a record, whether it exists or not. Returns the version of the deletion.
    pub fn delete<'a>(&'a self, table: &'a str, key: impl Into<Bytes>) -> BoxFuture<'a, Result<Seq>> {
        self.delete_unchecked(table, key.into())
    }

    fn delete_unchecked<'a>(&'a self, table: &'a str, key: Bytes) -> BoxFuture<'a, Result<Seq>> {
        Box::pin(async move { Ok(self.delete_request(table, key, false).await?.seq) })
    }

    /// Deletes a record and tells whether it existed ([`OpOutcome::existed`]). Costs a check like an insert's.
    pub fn delete_checked<'a>(
        &'a self,
        table: &'a str,
        key: impl Into<Bytes>,
    ) -> BoxFuture<'a, Result<OpOutcome>> {
        self.delete_request(table, key.into(), true)
    }

    fn delete_request<'a>(
        &'a self,
        table: &'a str,
        key: Bytes,
        check_exists: bool,
    ) -> BoxFuture<'a, Result<OpOutcome>> {
        Box::pin(async move {
            limits::check_key(&key)?;
            let request = v1::KvDeleteRequest { table: table.to_owned(), key, check_exists, request: None };
            let reply = self.write(1, Delete(request)).await?;
            single(reply)
        })
    }

    /// Compare-and-set: `effect` takes place only if the record is as `expected`; see [`OpOutcome::applied`].
    pub fn compare_and_set<'a>(
        &'a self,
        table: &'a str,
        key: impl Into<Bytes>,
        expected: Expected,
        effect: Effect,
    ) -> BoxFuture<'a, Result<OpOutcome>> {
        self.compare_and_set_record(table, key.into(), expected, effect)
    }

    fn compare_and_set_record<'a>(
        &'a self,
        table: &'a str,
        key: Bytes,
        expected: Expected,
        effect: Effect,
    ) -> BoxFuture<'a, Result<OpOutcome>> {
        Box::pin(async move {
            limits::check_key(&key)?;
            effect.value().map_or(Ok(()), |value| limits::check_value(value))?;
            let request = v1::KvCompareAndSetRequest {
                table: table.to_owned(),
                key,
                expected: Some(expected.into()),
                effect: Some(compare_and_set_effect(effect)?),
                request: None,
                lifetime: None,
            };
            let reply = self.write(1, CompareAndSet(request)).await?;
            single(reply)
        })
    }

    /// Adds to an integer in decimal text (0 if there is no record), and returns the sum. Many clients may add to one counter:
    /// nothing is retried for that.
    ///
    /// # Errors
    /// `Invalid`: the value is no integer of 64 bits, or the sum would be none. Nothing has changed then.
    pub fn increment<'a>(
        &'a self,
        table: &'a str,
        key: impl Into<Bytes>,
        by: i64,
    ) -> BoxFuture<'a, Result<i64>> {
        let op = Operation::update(table, key, Update::Increment(by)).returning(Returns::After);
        Box::pin(async move {
            let outcome = self.change(op).await?;
            let sum = outcome.told.value().and_then(|sum| parse_integer(sum));
            sum.ok_or_else(|| Error::internal("an increment was answered without a number"))
        })
    }

    /// Appends to a value (an empty one if there is no record), and returns its length, in bytes.
    ///
    /// # Errors
    /// `Invalid`: the value would be longer than a value may be. Nothing has changed then.
    pub fn append<'a>(
        &'a self,
        table: &'a str,
        key: impl Into<Bytes>,
        bytes: impl Into<Bytes>,
    ) -> BoxFuture<'a, Result<u64>> {
        let op = Operation::update(table, key, Update::Append(bytes.into()));
        Box::pin(async move {
            match self.change(op).await?.told {
                Told::Length(length) => Ok(length),
                told => Err(Error::internal(format!("an append was answered with {told:?}"))),
            }
        })
    }

    /// Writes a record, and returns the value that was there.
    pub fn get_and_put<'a>(
        &'a self,
        table: &'a str,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> BoxFuture<'a, Result<Option<Bytes>>> {
        self.get_and(Operation::put(table, key, value))
    }

    /// Deletes a record, and returns the value that was there.
    pub fn get_and_delete<'a>(
        &'a self,
        table: &'a str,
        key: impl Into<Bytes>,
    ) -> BoxFuture<'a, Result<Option<Bytes>>> {
        self.get_and(Operation::delete_checked(table, key))
    }

    fn get_and(&self, op: Operation) -> BoxFuture<'_, Result<Option<Bytes>>> {
        Box::pin(async move {
            let outcome = self.change(op.returning(Returns::Before)).await?;
            match outcome.told {
                Told::Value(value) => Ok(Some(value)),
                Told::Nothing if !outcome.existed => Ok(None),
                Told::Forgotten => Err(Error::new(
                    ErrorKind::OutcomeUnknown,
                    "the write took effect, once, but its first answer was lost, and the value that was there is longer \
                     than what is kept for that",
                )),
                told => Err(Error::internal(format!("a write was answered with {told:?}"))),
            }
        })
    }

    /// A batch of one operation.
    async fn change(&self, op: Operation) -> Result<OpOutcome> {
        let mut outcome = self.batch(vec![op]).await?;
        match outcome.results.pop() {
            Some(OpOutcome { told: Told::Misfit(misfit), .. }) => Err(Error::invalid(misfit.message())),
            Some(outcome) => Ok(outcome),
            None => Err(Error::internal("no result for one write")),
        }
    }

    /// Several writes, atomic and visible at once. All keys must be of one partition (`Invalid` otherwise).
    pub fn batch(&self, ops: Vec<Operation>) -> BoxFuture<'_, Result<WriteOutcome>> {
        Box::pin(async move {
            if ops.is_empty() {
                return Ok(WriteOutcome { applied: true, results: Vec::new() });
            }
            ops.iter().try_for_each(Operation::check)?;
            limits::check_batch(ops.len(), ops.iter().map(Operation::written_bytes).sum())?;
            let expected = ops.len();
            let telling = ops.iter().filter(|op| op.returns != Returns::Nothing).count();
            let span = limits::numbers_taken(limits::answer_weight_max(expected, telling), WINDOW);
            let ops = ops.into_iter().map(Into::into).collect();
            let request = v1::KvBatchRequest { ops, request: None };
            let reply = self.write(span, Batch(request)).await?;
            if reply.applied && reply.results.len() != expected {
                return Err(Error::internal(format!(
                    "{} results for {expected} writes",
                    reply.results.len()
                )));
            }
            Ok(reply.into())
        })
    }

    /// Sends a write under a session and a number (if sessions are on), again and again under the same ones until it is
    /// answered. If the session turns out to be gone before anything could have been executed, a new one is opened.
    async fn write<W: Write>(&self, span: u64, write: W) -> Result<v1::KvWriteReply> {
        if !self.uses_sessions() {
            let attempt = |channel, limit| send(write.clone(), channel, limit);
            return self.call(Repeat::Unsafe, self.deadline(), attempt).await;
        }
        let sessions = &self.inner.sessions;
        let clock = &self.inner.env.clock;
        let started_ns = clock.holder_ns();
        let left = || self.deadline().saturating_sub(Duration::from_nanos(clock.holder_ns() - started_ns));
        let opened = AtomicU32::new(0);
        let open = || {
            opened.fetch_add(1, Relaxed);
            self.open_session(left())
        };
        let mut unknown = 0;
        loop {
            let ticket = match tokio::time::timeout(left(), sessions.ticket(span, open)).await {
                Ok(ticket) => ticket?,
                Err(_) => return Err(Error::unavailable("no session could be opened in time")),
            };
            let attempt = |channel, limit| send(write.numbered(ticket.request_id().into()), channel, limit);
            let is_last = unknown == SESSIONS_MAX || opened.load(Relaxed) > REOPENED_MAX;
            match self.call(Repeat::Once, left(), attempt).await {
                Err(e) if e.kind == ErrorKind::UnknownSession && !is_last => {
                    unknown += 1;
                    sessions.forget(ticket);
                }
                other => return other,
            }
        }
    }

    async fn open_session(&self, deadline: Duration) -> Result<u64> {
        let reply = self
            .call(Repeat::Harmless, deadline, async |channel, limit| {
                let request = timed(v1::KvOpenSessionRequest {}, limit);
                Ok(kv(channel).open_session(request).await?.into_inner())
            })
            .await?;
        if reply.session == 0 {
            return Err(Error::internal("the p-node gave session 0, which means none"));
        }
        Ok(reply.session)
    }
}

/// How often one write opens a new session, after the first. More than once or twice means that the servers lose sessions as fast as
/// they are opened. (Those that others have opened, and that expired since, do not count: there may be [`SESSIONS_MAX`].)
const REOPENED_MAX: u32 = 3;

/// A write request, which can carry a session and a number.
trait Write: Clone + Send + Sync {
    fn numbered(&self, id: v1::RequestId) -> Self;
    fn send(
        self,
        channel: Wire,
        limit: Duration,
    ) -> impl Future<Output = Result<Response<v1::KvWriteReply>, Status>> + Send;
}

async fn send<W: Write>(write: W, channel: Wire, limit: Duration) -> Result<v1::KvWriteReply, Status> {
    Ok(write.send(channel, limit).await?.into_inner())
}

macro_rules! write_requests {
    ($($name:ident($request:ty) => $method:ident),* $(,)?) => {$(
        #[derive(Clone)]
        struct $name($request);

        impl Write for $name {
            fn numbered(&self, id: v1::RequestId) -> Self {
                let mut request = self.0.clone();
                request.request = Some(id);
                Self(request)
            }

            async fn send(
                self,
                channel: Wire,
                limit: Duration,
            ) -> Result<Response<v1::KvWriteReply>, Status> {
                kv(channel).$method(timed(self.0, limit)).await
            }
        }
    )*};
}

write_requests! {
    Put(v1::KvPutRequest) => put,
    Insert(v1::KvPutRequest) => insert,
    Delete(v1::KvDeleteRequest) => delete,
    CompareAndSet(v1::KvCompareAndSetRequest) => compare_and_set,
    Batch(v1::KvBatchRequest) => batch,
}

fn put_request(table: &str, key: Bytes, value: Bytes) -> Result<v1::KvPutRequest> {
    limits::check_key(&key)?;
    limits::check_value(&value)?;
    Ok(v1::KvPutRequest { table: table.to_owned(), key, value, request: None, lifetime: None })
}

/// Not 0, which would be none.
fn milliseconds(time: Duration) -> Lifetime {
    Lifetime::Milliseconds(u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1))
}

/// The outcome of a request with one write.
fn single(reply: v1::KvWriteReply) -> Result<OpOutcome> {
    let WriteOutcome { applied, results } = reply.into();
    let [one] = <[OpOutcome; 1]>::try_from(results)
        .map_err(|results| Error::internal(format!("{} results for one write", results.len())))?;
    Ok(OpOutcome { applied: applied && one.applied, ..one })
}
