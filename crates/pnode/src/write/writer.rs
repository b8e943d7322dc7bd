//! A write from its checks to its outcome.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use sextant_common::ids::{ManifestVersion, NodeId, PartitionId};
use sextant_common::limits::LARGE_BYTES;
use sextant_common::operation::{Lane, Operation, Put, RequestId, WriteOutcome, WriteStatus};
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::slow_log::{self, Tier};

use super::attempt::{Attempt, classify};
use super::base::{Bases, Found, NoBase};
use super::blind::{self, BlindWrites};
use super::numbers::Ticket;
use super::prepare::{PreparedOp, is_large, prepare, size_of};
use super::sessions::Sessions;
use crate::api::WriteOptions;
use crate::core::{Core, Unanswered, WriteDeadlines};
use crate::filter_copies::Copies;
use crate::record_cache::RecordCache;
use crate::router::{SearchFailed, SstSearch};
use crate::tables::{Tables, check_placed_alike};
use crate::upstream::{
    Answers, Backoff, Deadline, Passage, Patience, SentOp, SentWrite, WriteSays, more_telling,
};

/// How long a leader may take for a request that it has taken, before the request is sent again (under the same number): a
/// publication that waits for a lease, and a busy disk.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(3);
/// What a write may keep of what its conditions rest on while it waits for a number.
const KEPT_BYTES: usize = 1024;
/// Longest pause while the server is overloaded.
const OVERLOAD_PAUSE_MAX: Duration = Duration::from_millis(250);

/// Under which session and number a request travels.
pub(super) enum Identity {
    Own(Ticket),
    Callers(RequestId),
}

impl Identity {
    fn request_id(&self) -> RequestId {
        match self {
            Identity::Own(t) => {
                RequestId { session: t.session, number: t.number, acked_below: t.acked_below() }
            }
            Identity::Callers(id) => *id,
        }
    }
}

/// An attempt that was made already, and who was asked.
pub(super) struct Made {
    pub attempt: Attempt,
    pub leader: Option<NodeId>,
}

/// What a write rests on.
pub(super) struct Searched {
    version: ManifestVersion,
    bases: Vec<Found>,
}

impl Searched {
    /// Of the values.
    fn bytes(&self) -> usize {
        self.bases.iter().filter_map(|found| found.value.as_ref()).map(Bytes::len).sum()
    }
}

/// Why it is not known.
enum Unsearched {
    TooLong(Error),
    Failed(Error),
}

/// What was done of a write before its attempts.
#[derive(Default)]
pub(super) enum Begun {
    #[default]
    Nothing,
    Searched(Searched),
    Made(Made),
}

pub(crate) struct Writer {
    pub(super) core: Arc<Core>,
    copies: Arc<Copies>,
    pub(super) tables: Arc<Tables>,
    bases: Bases,
    pub(super) sessions: Sessions,
}

/// What a caller says that a retry is known by.
fn checked(request: RequestId) -> Result<RequestId> {
    let why = match request {
        RequestId { session: 0, .. } => "session 0 is no session",
        RequestId { number: 0, .. } => "numbers begin at 1",
        RequestId { number, acked_below, .. } if acked_below > number => {
            "acked_below is above its own number, whose answer is yet to come"
        }
        _ => return Ok(request),
    };
    Err(Error::invalid(format!("request: {why}")))
}

impl Writer {
    pub fn new(
        core: &Arc<Core>,
        copies: &Arc<Copies>,
        tables: &Arc<Tables>,
        search: SstSearch,
        cache: Arc<RecordCache>,
    ) -> Self {
        Self {
            core: core.clone(),
            copies: copies.clone(),
            tables: tables.clone(),
            bases: Bases { search, cache },
            sessions: Sessions::new(core),
        }
    }

    /// Registers a session in every partition that can be reached, for a caller.
    pub async fn open_session(&self, limit: Option<Duration>) -> Result<u64> {
        self.sessions.open(limit).await
    }

    pub async fn write(self: &Arc<Self>, ops: Vec<Operation>, options: WriteOptions) -> Result<WriteOutcome> {
        let deadlines = self.core.write_deadlines(options.deadline);
        if ops.is_empty() {
            return Ok(WriteOutcome { applied: true, results: Vec::new() });
        }
        let ops = prepare(&self.tables, &self.core.views.slot_map, ops, deadlines.taken).await?;
        if options.request.is_none() && blind::is_blind(&ops) {
            let written = BlindWrites::start(self, ops, options.lane, deadlines);
            return slow_log::asking(Tier::Memtables, &*self.core.env.clock, written.one()).await;
        }
        self.core.metrics.writes.inc();
        let (identity, begun) = match options.request {
            Some(request) => {
                let request = checked(request)?;
                self.sessions.opened(ops[0].partition, request.session, deadlines.taken).await?;
                (Identity::Callers(request), Begun::Nothing)
            }
            None => {
                // First: who waits for SSTables with a number holds up all that come after it.
                let searched = self.search(&ops, deadlines.taken).await?;
                let mut identity = pin!(self.own_identity(&ops, options.lane, deadlines));
                match futures::poll!(identity.as_mut()) {
                    Poll::Ready(identity) => (identity?, Begun::Searched(searched)),
                    Poll::Pending => {
                        // Many may wait for their turn: what they have found would fill the memory.
                        let kept = Some(searched).filter(|searched| searched.bytes() <= KEPT_BYTES);
                        (identity.await?, kept.map_or(Begun::Nothing, Begun::Searched))
                    }
                }
            }
        };
        self.write_until_known(&ops, identity, deadlines, begun).await
    }

    /// What the operations rest on, however often it is looked for until the deadline.
    async fn search(&self, ops: &[PreparedOp], deadline: Deadline) -> Result<Searched> {
        let (mut backoff, mut damage) = (Backoff::default(), None);
        let partition = ops[0].partition;
        loop {
            let error = match self.search_once(ops, deadline).await {
                Ok(searched) => return Ok(searched),
                Err(Unsearched::TooLong(error)) => return Err(error),
                Err(Unsearched::Failed(error)) => more_telling(&mut damage, error),
            };
            self.core.metrics.write_retries.inc();
            self.core.check_running()?;
            let leader = self.core.leaders.get(partition).node;
            if !self.core.wait_to_retry(partition, leader, &mut backoff, deadline).await {
                return Err(error);
            }
        }
    }

    async fn search_once(&self, ops: &[PreparedOp], deadline: Deadline) -> Result<Searched, Unsearched> {
        let partition = ops[0].partition;
        // One view: all bases are of one version.
        let view = self.core.views.load(partition);
        let version = view.manifest.version;
        match self.bases.of(&view, ops, deadline).await {
            Ok(bases) => Ok(Searched { version, bases }),
            Err(NoBase::TooLong) => {
                let why = "the values that the batch changes, or is to tell, have more than 16 MiB together";
                Err(Unsearched::TooLong(Error::invalid(why)))
            }
            Err(NoBase::Failed(failed)) => {
                let _ = self.copies.refresh_manifest(partition, version, deadline).await;
                Err(Unsearched::Failed(match failed {
                    SearchFailed::Gone => Error::unavailable("an SSTable is on none of its replicas"),
                    SearchFailed::NoReplica(error) => error,
                }))
            }
        }
    }

    /// Puts that are each a write of their own. None: they are to be written one by one, because the table is not known yet, or one of
    /// them is to be refused.
    pub fn puts(
        self: &Arc<Self>,
        table: &str,
        puts: &[Put],
        lane: Lane,
        deadline: Option<Duration>,
    ) -> Option<BlindWrites> {
        let info = self.core.views.tables.get(table)?;
        let slots = &self.core.views.slot_map;
        let put = |Put { key, value, lifetime }: &Put| {
            let put = Operation::put(table, key.clone(), value.clone()).lasting(*lifetime);
            PreparedOp::of(info.clone(), slots, put)
        };
        let ops = puts.iter().map(put).collect::<Result<_>>().ok()?;
        Some(BlindWrites::start(self, ops, lane, self.core.write_deadlines(deadline)))
    }

    /// A number of the p-node's own.
    pub(super) async fn own_identity(
        &self,
        ops: &[PreparedOp],
        lane: Lane,
        deadlines: WriteDeadlines,
    ) -> Result<Identity> {
        let ticket = self.sessions.ticket(ops[0].partition, size_of(ops), lane, deadlines.taken);
        ticket.await.map(Identity::Own)
    }

    pub(super) async fn write_until_known(
        &self,
        ops: &[PreparedOp],
        identity: Identity,
        deadlines: WriteDeadlines,
        begun: Begun,
    ) -> Result<WriteOutcome> {
        let result = self.attempts(ops, identity, deadlines, begun).await;
        if let Err(e) = &result
            && e.kind == ErrorKind::OutcomeUnknown
        {
            self.core.metrics.writes_unknown.inc();
        }
        result
    }

    async fn attempts(
        &self,
        ops: &[PreparedOp],
        mut identity: Identity,
        deadlines: WriteDeadlines,
        mut begun: Begun,
    ) -> Result<WriteOutcome> {
        let clock = &*self.core.env.clock;
        let partition = ops[0].partition;
        let mut backoff = Backoff::default();
        let mut overload_backoff = Backoff::up_to(OVERLOAD_PAUSE_MAX);
        // Once an attempt may have been executed, only an answer under the same number tells.
        let mut maybe_executed = false;
        let mut told: Option<Error> = None;
        let mut denied = false;
        let mut damage = None;
        // Whatever broke a stream, it was perhaps the company: a request that was lost travels alone from then on.
        let mut alone = !self.core.coalesces();
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
                self.core.metrics.write_retries.inc();
            }
            // Whether it was executed is worth more time than executing it.
            let deadline = if maybe_executed { deadlines.answered } else { deadlines.taken };
            let spans = WriteDeadlines { taken: deadline, ..deadlines };
            let Made { attempt: became, leader } = match std::mem::take(&mut begun) {
                Begun::Made(made) => made,
                begun => {
                    let leader = self.core.leaders.get(partition).node;
                    let searched = match begun {
                        Begun::Searched(searched) => Ok(searched),
                        _ => self.search_once(ops, spans.taken).await,
                    };
                    let attempt = match searched {
                        Ok(searched) => {
                            self.write_once(ops, searched, identity.request_id(), spans, alone).await
                        }
                        Err(Unsearched::TooLong(error)) => Attempt::Refused(error),
                        Err(Unsearched::Failed(error)) => Attempt::Again(error),
                    };
                    Made { attempt, leader }
                }
            };
            let error = match became {
                Attempt::Done(outcome) => return Ok(outcome),
                Attempt::Refused(error) => return Err(unknown(maybe_executed, error)),
                Attempt::UnknownSession => {
                    let error =
                        Error::new(ErrorKind::UnknownSession, "the session has expired or was never opened");
                    let Identity::Own(ticket) = &identity else { return Err(unknown(maybe_executed, error)) };
                    self.sessions.forget(partition, ticket.session);
                    if maybe_executed {
                        return Err(unknown(true, error));
                    }
                    identity = Identity::Own(
                        self.sessions.ticket(partition, size_of(ops), Lane::Single, deadline).await?,
                    );
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
                        && let Some(peer) = leader.and_then(|node| self.core.memtables.get(&node))
                    {
                        peer.renew_writes();
                    }
                    error
                }
                Attempt::NotSent(error) => told.clone().unwrap_or(error),
                Attempt::UnknownTable => {
                    let mut replaced = HashMap::new();
                    let mut asked = HashSet::new();
                    for op in ops.iter().filter(|op| asked.insert(op.table.id)) {
                        let missing = self.tables.missing_in(&op.table, partition, deadline).await;
                        if let Some(other) = missing.map_err(|e| unknown(maybe_executed, e))? {
                            check_placed_alike(&op.table, &other).map_err(|e| unknown(maybe_executed, e))?;
                            replaced.insert(op.table.id, other);
                        }
                    }
                    if !replaced.is_empty() && maybe_executed {
                        return Err(unknown(true, Error::retry("a table was replaced by another one")));
                    }
                    if !replaced.is_empty() {
                        let of = |op: &PreparedOp| replaced.get(&op.table.id).unwrap_or(&op.table).clone();
                        let ops: Vec<_> = ops.iter().map(|op| op.of_table(of(op))).collect();
                        return Box::pin(self.attempts(&ops, identity, deadlines, Begun::Nothing)).await;
                    }
                    Error::new(ErrorKind::UnknownTable, "the table is not in its partition yet")
                }
                Attempt::Overloaded(error) => {
                    told = Some(error.clone());
                    if !overload_backoff.wait(clock, &*self.core.env.rng, deadline).await {
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
            if let Err(stopping) = self.core.check_running() {
                return Err(unknown(maybe_executed, stopping));
            }
            if !self.core.wait_to_retry(partition, leader, &mut backoff, deadline).await {
                return Err(unknown(maybe_executed, error));
            }
        }
        Err(unknown(maybe_executed, Error::unavailable("too many attempts")))
    }

    async fn write_once(
        &self,
        ops: &[PreparedOp],
        searched: Searched,
        id: RequestId,
        deadlines: WriteDeadlines,
        alone: bool,
    ) -> Attempt {
        let deadline = deadlines.taken;
        let partition = ops[0].partition;
        let clock = &*self.core.env.clock;
        let answers = Answers::to(1);
        // As long as the leader may let it wait for its turn, and then for its execution.
        let answer = deadline.left(clock).saturating_add(ANSWER_MAX);
        let patience = Patience { leave_by_ns: deadline.at_ns(), answer };
        let base_bytes = searched.bytes();
        let Searched { version: searched, bases } = searched;
        let sent = ops.iter().zip(bases).map(|(op, found)| SentOp { table: op.table.id, op: &op.op, found });
        let write = SentWrite { partition, id, ops: sent, left: deadline.left(clock) };
        let large = is_large(ops) || base_bytes > LARGE_BYTES;
        let by = Passage { large, alone, answers: &answers, patience };
        let asked =
            self.core.ask_leader(partition, deadlines.answered, Duration::MAX, |peer| peer.write(write, by));
        let (node, says) = match asked.await {
            Ok(answer) => answer,
            Err(Unanswered::NotSent(e)) => return Attempt::NotSent(e),
            // Whatever ended the wait: what has not left by now never will.
            Err(Unanswered::Lost(e)) if answers.slip(0).withdraw() => return Attempt::NotSent(e),
            Err(Unanswered::Lost(e)) => return Attempt::Unknown(e),
        };
        if says.status == WriteStatus::StaleManifest
            && self.core.views.peek(partition).manifest.version <= searched
        {
            // The answer brought no manifest.
            let _ = self.copies.refresh_manifest(partition, searched, deadline).await;
        }
        self.judge(partition, node, says, ops.len())
    }

    /// What `node` has said about a write to `partition`.
    pub(super) fn judge(&self, partition: PartitionId, node: NodeId, says: WriteSays, ops: usize) -> Attempt {
        if says.status == WriteStatus::NotLeader {
            self.core.leaders.suspect(partition, node);
        }
        classify(says, ops)
    }
}
