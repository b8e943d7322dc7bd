//! A write from its checks to its outcome.

use std::sync::Arc;
use std::time::Duration;

use sextant_common::ids::PartitionId;
use sextant_common::key::filter_hash;
use sextant_common::limits::{LARGE_BYTES, check_batch, check_key, check_value};
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::env::error_of;
use sextant_proto::v1;

use super::Begun;
use super::session::Ticket;
use crate::api::{BatchOp, OpCondition, OpKind, OpOutcome, RequestId, WriteOptions, WriteOutcome};
use crate::engine::{Engine, Unanswered, WriteDeadlines};
use crate::router::SearchFailed;
use crate::upstream::{Backoff, Deadline, Patience, Slip, WriteSays, more_telling};
use crate::view::{ReadKey, TableInfo};

/// How long a leader may take for a request that it has taken, before the request is sent again (under the same number): a
/// publication that waits for a lease, and a busy disk.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Longest pause while the server is overloaded.
const OVERLOAD_PAUSE_MAX: Duration = Duration::from_millis(250);

/// An operation with its table, hashed once.
pub(super) struct PreparedOp {
    pub table: Arc<TableInfo>,
    pub partition: PartitionId,
    pub hash: u64,
    pub op: BatchOp,
}

impl PreparedOp {
    pub fn at(&self) -> ReadKey<'_> {
        ReadKey { partition: self.partition, key: &self.op.key, hash: self.hash }
    }

    /// Keys and values.
    fn bytes(&self) -> usize {
        let value = if let OpKind::Put(value) = &self.op.kind { value.len() } else { 0 };
        let expected = if let OpCondition::ValueEquals(value) = &self.op.condition { value.len() } else { 0 };
        self.op.key.len() + value + expected
    }

    pub fn needs_search(&self) -> bool {
        self.op.condition != OpCondition::None
    }

    fn to_wire(&self, base: Option<v1::Base>) -> v1::WriteOp {
        use v1::Condition as C;
        let (kind, value) = match &self.op.kind {
            OpKind::Put(value) => (v1::WriteKind::WritePut, value.clone()),
            OpKind::Delete => (v1::WriteKind::WriteDelete, bytes::Bytes::new()),
        };
        let (condition, expected_value, expected_seq) = match &self.op.condition {
            OpCondition::None => (C::None, bytes::Bytes::new(), 0),
            OpCondition::Absent => (C::Absent, bytes::Bytes::new(), 0),
            OpCondition::Present => (C::Present, bytes::Bytes::new(), 0),
            OpCondition::ValueEquals(value) => (C::ValueEquals, value.clone(), 0),
            OpCondition::SeqEquals(seq) => (C::SeqEquals, bytes::Bytes::new(), seq.0),
        };
        v1::WriteOp {
            table: self.table.id.0,
            kind: kind as i32,
            key: self.op.key.clone(),
            value,
            condition: condition as i32,
            expected_value,
            expected_seq,
            base,
            skip_on_failure: self.op.skip_on_failure,
        }
    }
}

/// Under which session and number a request travels.
enum Identity<'e> {
    Own(Ticket<'e>),
    Callers(RequestId),
}

impl Identity<'_> {
    fn request_id(&self) -> RequestId {
        match self {
            Identity::Own(t) => {
                RequestId { session: t.session, number: t.number, acked_below: t.acked_below() }
            }
            Identity::Callers(id) => *id,
        }
    }
}

/// What became of one attempt.
enum Attempt {
    Done(WriteOutcome),
    /// Not executed, and not to be tried again.
    Refused(Error),
    /// Not executed under this session, which the server does not know.
    UnknownSession,
    /// Certainly not executed: again at once.
    Stale,
    /// Certainly not executed.
    Again(Error),
    /// The server that is taken for the leader does not act as one. Certainly not executed.
    Denied(Error),
    /// It did not leave: what the attempt before it was told says more.
    NotSent(Error),
    Overloaded(Error),
    UnknownTable,
    /// May have been executed.
    Unknown(Error),
}

impl Engine {
    pub(crate) async fn write(&self, ops: Vec<BatchOp>, options: WriteOptions) -> Result<WriteOutcome> {
        let deadlines = self.write_deadlines(options.deadline);
        if ops.is_empty() {
            return Ok(WriteOutcome { applied: true, results: Vec::new() });
        }
        let ops = self.prepare(ops, deadlines.taken).await?;
        self.metrics.writes.inc();
        let mut identity = match options.request {
            Some(request) => {
                if request.session == 0 {
                    return Err(Error::invalid("request: session 0 is no session"));
                }
                Identity::Callers(request)
            }
            None => Identity::Own(self.own_ticket(&ops, deadlines.taken).await?),
        };
        let result = self.write_until_known(&ops, &mut identity, deadlines).await;
        if let Err(e) = &result
            && e.kind == ErrorKind::OutcomeUnknown
        {
            self.metrics.writes_unknown.inc();
        }
        result
    }

    /// Checks limits, finds the tables and the one partition.
    async fn prepare(&self, ops: Vec<BatchOp>, deadline: Deadline) -> Result<Vec<PreparedOp>> {
        let size =
            |op: &BatchOp| op.key.len() + if let OpKind::Put(value) = &op.kind { value.len() } else { 0 };
        check_batch(ops.len(), ops.iter().map(size).sum())?;
        let mut prepared: Vec<PreparedOp> = Vec::with_capacity(ops.len());
        for op in ops {
            check_key(&op.key)?;
            if let OpKind::Put(value) = &op.kind {
                check_value(value)?;
            }
            if let OpCondition::ValueEquals(value) = &op.condition {
                check_value(value)?;
            }
            let table = match prepared.last() {
                Some(before) if before.op.table == op.table => before.table.clone(),
                _ => self.table(&op.table, deadline).await?,
            };
            let partition = self.views.slot_map.partition_of(&op.key, &table.options);
            if prepared.first().is_some_and(|first| first.partition != partition) {
                return Err(Error::invalid(
                    "the keys of a batch must be of one partition: keys with the same {hash tag} are",
                ));
            }
            prepared.push(PreparedOp { hash: filter_hash(&op.key), table, partition, op });
        }
        Ok(prepared)
    }

    async fn write_until_known<'e>(
        &'e self,
        ops: &[PreparedOp],
        identity: &mut Identity<'e>,
        deadlines: WriteDeadlines,
    ) -> Result<WriteOutcome> {
        let clock = &*self.env.clock;
        let partition = ops[0].partition;
        let mut backoff = Backoff::default();
        let mut overload_backoff = Backoff::up_to(OVERLOAD_PAUSE_MAX);
        // Once an attempt may have been executed, only an answer under the same number tells.
        let mut maybe_executed = false;
        let mut told: Option<Error> = None;
        let mut denied = false;
        let mut damage = None;
        // Whatever broke a stream, it was perhaps the company: a request that was lost travels alone from then on.
        let mut alone = !self.coalesces();
        let unknown = |maybe: bool, error: Error| {
            if !maybe {
                return error;
            }
            Error::new(
                ErrorKind::OutcomeUnknown,
                format!("the write may or may not take effect; the last attempt: {error}"),
            )
        };
        for attempt in 0u32.. {
            if attempt > 0 {
                self.metrics.write_retries.inc();
            }
            // Whether it was executed is worth more time than executing it.
            let deadline = if maybe_executed { deadlines.answered } else { deadlines.taken };
            let leader = self.leaders.get(partition).node;
            let spans = WriteDeadlines { taken: deadline, ..deadlines };
            let error = match self.write_once(ops, identity.request_id(), spans, alone).await {
                Attempt::Done(outcome) => return Ok(outcome),
                Attempt::Refused(error) => return Err(unknown(maybe_executed, error)),
                Attempt::UnknownSession => {
                    let error =
                        Error::new(ErrorKind::UnknownSession, "the session has expired or was never opened");
                    let Identity::Own(ticket) = identity else { return Err(unknown(maybe_executed, error)) };
                    self.sessions.forget(partition, ticket.session);
                    if maybe_executed {
                        return Err(unknown(true, error));
                    }
                    *identity = Identity::Own(self.own_ticket(ops, deadline).await?);
                    error
                }
                Attempt::Stale => {
                    if attempt == 0 {
                        continue;
                    }
                    Error::unavailable("flushes outran the write's condition")
                }
                Attempt::Again(error) => error,
                Attempt::Denied(error) => {
                    // Once is a change of leaders. Twice, perhaps the stream leads to the server's predecessor.
                    if std::mem::replace(&mut denied, true)
                        && let Some(peer) = leader.and_then(|node| self.memtables.get(&node))
                    {
                        peer.renew_writes();
                    }
                    error
                }
                Attempt::NotSent(error) => told.clone().unwrap_or(error),
                Attempt::UnknownTable => {
                    for op in ops {
                        let created = self.create_in_partition(&op.table, partition, deadline).await;
                        created.map_err(|e| unknown(maybe_executed, e))?;
                    }
                    Error::new(ErrorKind::UnknownTable, "the table is not in its partition yet")
                }
                Attempt::Overloaded(error) => {
                    told = Some(error.clone());
                    if !overload_backoff.wait(clock, &*self.env.rng, deadline).await {
                        return Err(unknown(maybe_executed, error));
                    }
                    continue;
                }
                Attempt::Unknown(error) => {
                    maybe_executed = true;
                    alone = true;
                    error
                }
            };
            let error = more_telling(&mut damage, error);
            told = Some(error.clone());
            let deadline = if maybe_executed { deadlines.answered } else { deadlines.taken };
            if let Err(stopping) = self.check_running() {
                return Err(unknown(maybe_executed, stopping));
            }
            if !self.wait_to_retry(partition, leader, &mut backoff, deadline).await {
                return Err(unknown(maybe_executed, error));
            }
        }
        Err(unknown(maybe_executed, Error::unavailable("too many attempts")))
    }

    async fn write_once(
        &self,
        ops: &[PreparedOp],
        id: RequestId,
        deadlines: WriteDeadlines,
        alone: bool,
    ) -> Attempt {
        let deadline = deadlines.taken;
        let partition = ops[0].partition;
        let clock = &*self.env.clock;
        // One view: all bases are of one version.
        let view = self.views.load(partition);
        let searched = view.manifest.version;
        let bases = match self.bases(&view, ops, deadline).await {
            Ok(bases) => bases,
            Err(failed) => {
                let _ = self.refresh_manifest(partition, searched, deadline).await;
                return Attempt::Again(match failed {
                    SearchFailed::Gone => Error::unavailable("an SSTable is on none of its replicas"),
                    SearchFailed::NoReplica(error) => error,
                });
            }
        };
        drop(view);
        let request = v1::WriteRequest {
            id: 0,
            partition: partition.0,
            session: id.session,
            request_no: id.number,
            acked_below: id.acked_below,
            ops: ops.iter().zip(bases).map(|(op, base)| op.to_wire(base)).collect(),
            deadline_ms: u32::try_from(deadline.left(clock).as_millis()).unwrap_or(u32::MAX).max(1),
        };
        let slip = Slip::default();
        // As long as the leader may let it wait for its turn, and then for its execution.
        let answer = deadline.left(clock).saturating_add(ANSWER_MAX);
        let patience = Patience { leave_by_ns: deadline.at_ns(), answer };
        let asked = self.ask_leader(partition, deadlines.answered, Duration::MAX, |peer| {
            let slip = &slip;
            async move { peer.writes(is_large(ops)).ask_within(request, alone, slip, patience).await? }
        });
        let (node, says) = match asked.await {
            Ok(answer) => answer,
            Err(Unanswered::NotSent(e)) => return Attempt::NotSent(e),
            // Whatever ended the wait: what has not left by now never will.
            Err(Unanswered::Lost(e)) if slip.withdraw() => return Attempt::NotSent(e),
            Err(Unanswered::Lost(e)) => return Attempt::Unknown(e),
        };
        if matches!(says.status, v1::WriteStatus::WriteNotLeader | v1::WriteStatus::WriteUnknownPartition) {
            self.leaders.suspect(partition, node);
        }
        if says.status == v1::WriteStatus::WriteStaleManifest
            && self.views.peek(partition).manifest.version <= searched
        {
            // The answer brought no manifest.
            let _ = self.refresh_manifest(partition, searched, deadline).await;
        }
        classify(says, ops.len())
    }

    async fn own_ticket(&self, ops: &[PreparedOp], deadline: Deadline) -> Result<Ticket<'_>> {
        let partition = ops[0].partition;
        let large = is_large(ops);
        loop {
            let begun = async { Ok(self.sessions.begin(partition, large).await) };
            let begun = deadline.limit(&*self.env.clock, Duration::MAX, begun).await;
            let begun = begun.map_err(|_| {
                let why = "the write was not executed: too many are before it";
                Error::new(ErrorKind::Overloaded, why)
            })?;
            match begun {
                Begun::Ticket(ticket) => return Ok(ticket),
                Begun::Opening(turn) => {
                    let session = self.env.rng.nonzero_u64();
                    self.open_session_in(partition, session, deadline).await?;
                    self.metrics.sessions_opened.inc();
                    turn.opened(session);
                }
            }
        }
    }

    /// Registers a session in one partition; idempotent.
    pub(crate) async fn open_session_in(
        &self,
        partition: PartitionId,
        session: u64,
        deadline: Deadline,
    ) -> Result<()> {
        let request = v1::OpenSessionRequest { partition: partition.0, session };
        let mut backoff = Backoff::default();
        loop {
            let before = self.leaders.get(partition).node;
            let asked = self.ask_leader(partition, deadline, ANSWER_MAX, |peer| {
                let mut rows = peer.rows.clone();
                async move { Ok(rows.open_session(request).await.map_err(error_of)?.into_inner()) }
            });
            let error = match asked.await {
                Ok((node, reply)) => match v1::WriteStatus::try_from(reply.status) {
                    Ok(v1::WriteStatus::WriteOk) => return Ok(()),
                    Ok(v1::WriteStatus::WriteNotLeader | v1::WriteStatus::WriteUnknownPartition) => {
                        self.memtable(node)?.news.not_leader(partition, reply.leader.as_ref());
                        Error::unavailable(format!("no leader of partition {partition} answers"))
                    }
                    Ok(v1::WriteStatus::WriteInvalid) => return Err(Error::invalid(reply.message)),
                    Ok(v1::WriteStatus::WriteOverloaded) => {
                        Error::new(ErrorKind::Overloaded, format!("no session yet: {}", reply.message))
                    }
                    _ => Error::unavailable(format!("no session yet: {}", reply.message)),
                },
                Err(unanswered) => unanswered.into_error(),
            };
            self.check_running()?;
            if !self.wait_to_retry(partition, before, &mut backoff, deadline).await {
                return Err(error);
            }
        }
    }
}

/// Where a write travels, and in which session: what is before a small one is small.
fn is_large(ops: &[PreparedOp]) -> bool {
    ops.iter().map(PreparedOp::bytes).sum::<usize>() > LARGE_BYTES
}

/// What the leader's answer means for the request.
fn classify(says: WriteSays, ops: usize) -> Attempt {
    use v1::WriteStatus as S;
    let WriteSays { status, results, message } = says;
    let with =
        |fallback: &'static str| if message.is_empty() { fallback.to_owned() } else { message.clone() };
    match status {
        S::WriteOk | S::WriteConditionFailed => match complete(results, ops) {
            Some(results) => Attempt::Done(WriteOutcome { applied: status == S::WriteOk, results }),
            None => Attempt::Refused(Error::internal("the answer to a write lacks results")),
        },
        S::WriteStaleManifest => Attempt::Stale,
        S::WriteNotLeader | S::WriteUnknownPartition => {
            Attempt::Denied(Error::unavailable(with("no leader of the partition answers")))
        }
        S::WriteRetry => Attempt::Denied(Error::unavailable(with("the leader could not take the write"))),
        S::WriteUnknownTable => Attempt::UnknownTable,
        S::WriteUnknownSession => Attempt::UnknownSession,
        // Its result is no longer kept: it may have been executed long ago.
        S::WriteRequestTooOld => Attempt::Refused(Error::new(
            ErrorKind::OutcomeUnknown,
            with("the result of so old a request is no longer kept"),
        )),
        S::WriteOverloaded => {
            Attempt::Overloaded(Error::new(ErrorKind::Overloaded, with("flushing or memory cannot keep up")))
        }
        S::WriteInvalid => Attempt::Refused(Error::invalid(with("the server refused the write as invalid"))),
        S::WriteOutcomeUnknown => {
            Attempt::Unknown(Error::unavailable(with("the leader lost track of the write")))
        }
    }
}

fn complete(results: Vec<OpOutcome>, ops: usize) -> Option<Vec<OpOutcome>> {
    (results.len() == ops).then_some(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(status: v1::WriteStatus) -> WriteSays {
        WriteSays { status, results: vec![OpOutcome::default()], message: String::new() }
    }

    #[test]
    fn only_certain_answers_allow_a_new_number() {
        use v1::WriteStatus as S;
        for status in [S::WriteNotLeader, S::WriteRetry, S::WriteUnknownPartition] {
            assert!(matches!(classify(says(status), 1), Attempt::Denied(_)), "{status:?}");
        }
        assert!(matches!(classify(says(S::WriteOutcomeUnknown), 1), Attempt::Unknown(_)));
        assert!(matches!(classify(says(S::WriteStaleManifest), 1), Attempt::Stale));
        assert!(matches!(classify(says(S::WriteUnknownSession), 1), Attempt::UnknownSession));
        let Attempt::Refused(e) = classify(says(S::WriteRequestTooOld), 1) else { panic!() };
        assert_eq!(e.kind, ErrorKind::OutcomeUnknown);
        let Attempt::Done(outcome) = classify(says(S::WriteConditionFailed), 1) else { panic!() };
        assert!(!outcome.applied);
        assert!(matches!(classify(says(S::WriteOk), 2), Attempt::Refused(_)));
    }
}
