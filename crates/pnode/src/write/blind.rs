//! Writes that ask nothing: one operation each, without a condition, and small. They are what most writes are, and travel in batches:
//! handed over together, each with a number of its own, each answered on its own.
//!
//! Owns the way of a write that is answered at the first attempt: no future, timer or channel for each, but one of each for all. Whatever
//! ends otherwise (refused, lost, too late, no session) goes on as any other write, with what became of its first attempt
//! ([`Writer::write_until_known`]).
//!
//! Invariant: a number is given up only when its answer is here, or nobody waits for it any more.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt};
use sextant_common::ids::{NodeId, PartitionId};
use sextant_common::operation::{Lane, RequestId, WriteOutcome};
use sextant_common::{Error, ErrorKind, Result};
use tokio::time::Sleep;

use super::attempt::Attempt;
use super::base::base_at_once;
use super::numbers::{Line, SessionGone, Ticket};
use super::prepare::{PreparedOp, is_large};
use super::sessions::too_many_before;
use super::writer::{ANSWER_MAX, Begun, Identity, Made, Writer};
use crate::core::{PATIENCE, WriteDeadlines};
use crate::upstream::{Answers, SentOp, SentWrite, WriteSays};

/// A write, by its place in the batch, and what became of it.
pub(crate) type Done = (usize, Result<WriteOutcome>);

/// Whether a request is a blind write.
pub(super) fn is_blind(ops: &[PreparedOp]) -> bool {
    matches!(ops, [op] if op.op.is_blind()) && !is_large(ops)
}

/// A batch of blind writes under way, each in its partition's session: a stream of what became of them. Dropped, it takes back what
/// has not left.
pub(crate) struct BlindWrites {
    writer: Arc<Writer>,
    lane: Lane,
    deadlines: WriteDeadlines,
    // Dropped in this order: nothing leaves any more, then nobody waits for the numbers that are given up.
    answers: Answers<Result<WriteSays>>,
    lines: Vec<Waiting>,
    writes: Vec<Write>,
    /// Those that were not answered at the first attempt.
    slowly: FuturesUnordered<BoxFuture<'static, Done>>,
    /// When to look whether something takes too long.
    look: Option<Pin<Box<Sleep>>>,
    done: Vec<Done>,
    unfinished: usize,
}

/// One of the batch.
struct Write {
    /// None: it goes on slowly, or is done.
    op: Option<PreparedOp>,
    sent: Option<Sent>,
}

/// Under which number, and to whom.
struct Sent {
    ticket: Ticket,
    leader: NodeId,
}

/// Those of a partition that wait for numbers, the next one last.
struct Waiting {
    partition: PartitionId,
    line: Line,
    writes: Vec<usize>,
}

impl BlindWrites {
    /// Each of `ops` is a write of its own.
    pub(super) fn start(
        writer: &Arc<Writer>,
        ops: Vec<PreparedOp>,
        lane: Lane,
        deadlines: WriteDeadlines,
    ) -> Self {
        writer.core.metrics.writes.inc_by(ops.len() as u64);
        let unfinished = ops.len();
        let mut this = Self {
            writer: writer.clone(),
            lane,
            deadlines,
            answers: Answers::to(unfinished),
            writes: ops.into_iter().map(|op| Write { op: Some(op), sent: None }).collect(),
            lines: Vec::new(),
            slowly: FuturesUnordered::new(),
            look: None,
            done: Vec::new(),
            unfinished,
        };
        this.begin();
        this
    }

    /// The outcome of a batch of one.
    pub async fn one(mut self) -> Result<WriteOutcome> {
        let done = self.next().await.and_then(|mut done| done.pop());
        done.map_or_else(|| Err(Error::internal("a batch without a write")), |(_, outcome)| outcome)
    }

    /// Gets in line.
    fn begin(&mut self) {
        let travels = self.writer.core.coalesces();
        let mut by_partition: BTreeMap<PartitionId, Vec<usize>> = BTreeMap::new();
        for at in (0..self.writes.len()).rev() {
            let Some(op) = &self.writes[at].op else { continue };
            if !travels || !is_blind(std::slice::from_ref(op)) {
                self.go_on_slowly(at, None, None);
                continue;
            }
            by_partition.entry(op.partition).or_default().push(at);
        }
        for (partition, writes) in by_partition {
            match self.writer.sessions.line(partition, self.lane, writes.len()) {
                Some(line) => self.lines.push(Waiting { partition, line, writes }),
                None => writes.into_iter().rev().for_each(|at| self.go_on_slowly(at, None, None)),
            }
        }
    }

    /// Sends what has a number now.
    fn take_numbers(&mut self, cx: &Context<'_>) {
        let mut lines = std::mem::take(&mut self.lines);
        lines.retain_mut(|waiting| {
            let mut ready = Vec::new();
            let mut over = Ok(());
            while waiting.line.wants() > 0 && over.is_ok() {
                let mut each = |ticket| ready.extend(waiting.writes.pop().map(|at| (at, ticket)));
                match waiting.line.poll(&mut each, cx) {
                    Poll::Pending => break,
                    Poll::Ready(result) => over = result,
                }
            }
            self.send(waiting.partition, ready);
            if over == Err(SessionGone) {
                while let Some(at) = waiting.writes.pop() {
                    self.go_on_slowly(at, None, None);
                }
            }
            !waiting.writes.is_empty()
        });
        self.lines = lines;
    }

    fn send(&mut self, partition: PartitionId, ready: Vec<(usize, Ticket)>) {
        let Some((_, first)) = ready.first() else { return };
        // The smallest that is outstanding is outstanding for all of them.
        let acked_below = first.acked_below();
        let core = self.writer.core.clone();
        let taken = self.deadlines.taken;
        let left = taken.left(&*core.env.clock);
        let leader = core.leaders.get(partition).node;
        let peer = leader.and_then(|node| Some((node, core.memtables.get(&node)?)));
        let view = core.views.load(partition);
        for (at, ticket) in ready {
            let Some(op) = &self.writes[at].op else { continue };
            let id = RequestId { session: ticket.session, number: ticket.number, acked_below };
            let ops = std::iter::once(SentOp {
                table: op.table.id,
                op: &op.op,
                found: base_at_once(&view, op).into(),
            });
            match peer {
                Some((leader, peer))
                    if !left.is_zero()
                        && peer.hand_over(SentWrite { partition, id, ops, left }, &self.answers, at) =>
                {
                    self.writes[at].sent = Some(Sent { ticket, leader });
                }
                _ => self.go_on_slowly(at, Some(ticket), None),
            }
        }
    }

    fn take_answers(&mut self, cx: &Context<'_>) {
        let mut arrived = Vec::new();
        while self.answers.poll(&mut arrived, cx).is_ready() {
            for (at, answer) in arrived.drain(..) {
                // It may have gone on, tired of waiting.
                let Some(Sent { ticket, leader }) = self.writes[at].sent.take() else { continue };
                let Some(op) = &self.writes[at].op else { continue };
                let attempt = match answer.and_then(|says| says) {
                    Ok(says) => self.writer.judge(op.partition, leader, says, 1),
                    Err(e) => self.lost(at, op.partition, leader, e),
                };
                match attempt {
                    Attempt::Done(outcome) => self.finished(at, Ok(outcome)),
                    attempt => {
                        let made = Made { attempt, leader: Some(leader) };
                        self.go_on_slowly(at, Some(ticket), Some(made));
                    }
                }
            }
        }
    }

    /// No answer will be waited for.
    fn lost(&self, at: usize, partition: PartitionId, leader: NodeId, why: Error) -> Attempt {
        let why = self.writer.core.unanswered(partition, leader, why);
        if self.answers.slip(at).withdraw() { Attempt::NotSent(why) } else { Attempt::Unknown(why) }
    }

    /// Looks, now and then, whether something takes too long.
    fn look_around(&mut self, cx: &mut Context<'_>) {
        while self.unfinished > self.slowly.len() + self.done.len() {
            let mut look = match self.look.take() {
                Some(look) => look,
                None => Box::pin(tokio::time::sleep(self.next_look())),
            };
            if look.as_mut().poll(cx).is_pending() {
                self.look = Some(look);
                return;
            }
            self.give_up_what_is_late();
        }
    }

    /// At the next deadline, but soon: the leader may have changed.
    fn next_look(&self) -> Duration {
        let clock = &*self.writer.core.env.clock;
        let WriteDeadlines { taken, answered } = self.deadlines;
        let deadlines = [taken.left(clock), answered.left(clock)].into_iter().filter(|left| !left.is_zero());
        deadlines.min().map_or(PATIENCE, |left| left.min(PATIENCE))
    }

    fn give_up_what_is_late(&mut self) {
        let core = self.writer.core.clone();
        let clock = &*core.env.clock;
        let now_ns = clock.holder_ns();
        let WriteDeadlines { taken, answered } = self.deadlines;
        let answer_by_ns = taken.at_ns().saturating_add(ANSWER_MAX.as_nanos() as u64);
        for at in 0..self.writes.len() {
            let (Some(op), Some(sent)) = (&self.writes[at].op, &self.writes[at].sent) else { continue };
            let (partition, leader) = (op.partition, sent.leader);
            let has_left = self.answers.slip(at).sent_ns().is_some();
            let attempt = if core.leaders.get(partition).node != Some(leader) {
                let why = Error::unavailable("the leader has changed");
                match self.answers.slip(at).withdraw() {
                    true => Attempt::NotSent(why),
                    false => Attempt::Unknown(why),
                }
            } else if !has_left && now_ns >= taken.at_ns() {
                let why = "the write was not executed: too much was before it on the way to the leader";
                self.lost(at, partition, leader, Error::new(ErrorKind::Overloaded, why))
            } else if answered.is_over(clock) || has_left && now_ns >= answer_by_ns {
                let why = Error::unavailable("the leader did not answer in time");
                self.lost(at, partition, leader, why)
            } else {
                continue;
            };
            let ticket = self.writes[at].sent.take().map(|sent| sent.ticket);
            self.go_on_slowly(at, ticket, Some(Made { attempt, leader: Some(leader) }));
        }
        if now_ns >= taken.at_ns() {
            for waiting in std::mem::take(&mut self.lines) {
                waiting.writes.iter().rev().for_each(|at| self.finished(*at, Err(too_many_before())));
            }
        }
    }

    /// As any other write.
    fn go_on_slowly(&mut self, at: usize, ticket: Option<Ticket>, made: Option<Made>) {
        let Some(op) = self.writes[at].op.take() else { return };
        let (writer, lane, deadlines) = (self.writer.clone(), self.lane, self.deadlines);
        let begun = made.map_or(Begun::Nothing, Begun::Made);
        self.slowly.push(Box::pin(async move {
            let ops = [op];
            let identity = match ticket {
                Some(ticket) => Ok(Identity::Own(ticket)),
                None => writer.own_identity(&ops, lane, deadlines).await,
            };
            let outcome = match identity {
                Ok(identity) => writer.write_until_known(&ops, identity, deadlines, begun).await,
                Err(e) => Err(e),
            };
            (at, outcome)
        }));
    }

    fn finished(&mut self, at: usize, outcome: Result<WriteOutcome>) {
        self.writes[at].op = None;
        self.done.push((at, outcome));
    }
}

impl Stream for BlindWrites {
    type Item = Vec<Done>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Vec<Done>>> {
        let this = &mut *self;
        if this.unfinished == 0 {
            return Poll::Ready(None);
        }
        this.take_numbers(cx);
        this.take_answers(cx);
        this.look_around(cx);
        while let Poll::Ready(Some(done)) = this.slowly.poll_next_unpin(cx) {
            this.done.push(done);
        }
        if this.done.is_empty() {
            return Poll::Pending;
        }
        this.unfinished -= this.done.len();
        Poll::Ready(Some(std::mem::take(&mut this.done)))
    }
}
