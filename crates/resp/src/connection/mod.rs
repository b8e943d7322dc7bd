//! One client's connection.
//!
//! A single task, and in it a loop of turns: take in the results that have arrived, start every command that the input
//! holds, append the replies that are due to one buffer, write that once, read more. Nothing waits for anything else: a
//! slow command holds up only the replies behind it, and a client that does not read its replies holds up only itself.
//!
//! What a client may rely on: replies come in order; commands that touch the same key, one of them writing, take effect
//! in order. Everything else in a pipeline may take effect side by side, as if it had been sent over several
//! connections: whoever needs `SET b` to come after `SET a`, or two reads of a key to see time go forward, waits for the
//! first reply.
//!
//! A client that goes away does not take back what it sent: commands that arrived in full are executed.

mod admission;
mod linger;
mod output;
mod pipeline;
mod watch;

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use sextant_common::limits;
use sextant_environment::env;
use sextant_environment::room::Share;
use sextant_environment::shutdown::Shutdown;
use tokio::io::AsyncReadExt;

use self::admission::{Admission, Leave};
use self::linger::linger;
use self::output::{BUFFER_KEPT_BYTES, Output};
use self::pipeline::{Admitted, Keys, Pipeline, Ticket};
use self::watch::Watch;
use crate::command::{self, Access, Action, Id, Request, Session};
use crate::frame::{Parser, Protocol, Reply};
use crate::metrics::Tally;
use crate::replies::SHORT_BYTES;
use crate::shared::Shared;
use crate::store::Store;

/// Least room for a read: some hundred small commands, and little enough for ten thousand idle connections.
const READ_BYTES: usize = 16 * 1024;
/// Most room that is made at once for a long argument: what is announced is not what is sent.
const READ_BYTES_MAX: usize = 256 * 1024;
/// No command is started while so many bytes of replies wait to be written.
const OUTPUT_BYTES_HIGH: usize = 1024 * 1024;
/// Bound on what unfinished commands may be expected to answer, judged by earlier replies of the connection.
const EXPECTED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// A client that takes none of its replies for so long is gone.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// A reply, the protocol it is to be encoded in (that of the time when its command arrived), and its room if it is a long one.
type Due = (Reply, Protocol, Option<Share>);

pub(crate) struct Connection<S: Store> {
    shared: Arc<Shared<S>>,
    io: env::Connection,
    session: Session,
    parser: Parser,
    input: BytesMut,
    output: Output,
    pipeline: Pipeline<(Request, Protocol, Leave), Due>,
    running: FuturesUnordered<BoxFuture<'static, (Ticket, Due)>>,
    /// Commands that were unblocked; empty between uses.
    started: Vec<(Ticket, (Request, Protocol, Leave))>,
    admission: Admission,
    intake: Intake,
    /// The peer is gone: replies are dropped.
    broken: bool,
    /// Bytes of finished replies that wait behind unfinished ones.
    held_bytes: usize,
    /// The size of replies to expect: the largest, fading with each that is smaller.
    expected_bytes: usize,
    tally: Tally,
    watch: Watch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intake {
    Open,
    /// Nothing more is read, but what was received in full is executed.
    Ended,
    /// Nothing more is started.
    Closed,
}

/// Why dispatching stopped.
#[derive(PartialEq, Eq)]
enum Dispatched {
    NeedsInput,
    /// Replies must go out first.
    Busy,
}

impl<S: Store> Connection<S> {
    pub fn new(shared: Arc<Shared<S>>, io: env::Connection) -> Self {
        let entry = shared.clients.add(io.peer, shared.now_ns());
        let period = shared.config.idle_timeout().map_or(STALL_TIMEOUT, |idle| idle.min(STALL_TIMEOUT)) / 2;
        Self {
            session: Session { protocol: Protocol::default(), entry },
            parser: Parser::new(shared.config.max_request_bytes),
            shared,
            io,
            input: BytesMut::new(),
            output: Output::default(),
            pipeline: Pipeline::default(),
            running: FuturesUnordered::new(),
            started: Vec::new(),
            admission: Admission::default(),
            intake: Intake::Open,
            broken: false,
            held_bytes: 0,
            expected_bytes: 0,
            tally: Tally::default(),
            watch: Watch::new(period),
        }
    }

    /// Serves until the client leaves, breaks the protocol, falls silent, or the server stops.
    pub async fn run(mut self, mut shutdown: Shutdown) {
        {
            let mut stop = std::pin::pin!(shutdown.wait());
            let mut stopped = false;
            std::future::poll_fn(|cx| {
                if !stopped && stop.as_mut().poll(cx).is_ready() {
                    stopped = true;
                    self.end_intake();
                }
                self.poll_turns(cx)
            })
            .await;
        }
        if !self.broken {
            linger(&mut self.io).await;
        }
    }

    /// Turns until nothing moves any more. Ready: the connection is to be closed.
    fn poll_turns(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut progress = self.collect(cx);
            let (dispatched, some) = self.dispatch(cx);
            progress |= some;
            self.encode_due();
            progress |= self.write(cx);
            if dispatched == Dispatched::NeedsInput {
                match self.intake {
                    Intake::Open => progress |= self.read(cx),
                    Intake::Ended => self.intake = Intake::Closed,
                    Intake::Closed => {}
                }
            } else {
                self.admission.forbear();
            }
            if self.intake == Intake::Closed && self.pipeline.is_empty() && self.output.is_empty() {
                self.tally.flush(&self.shared.metrics);
                return Poll::Ready(());
            }
            if !progress {
                self.tally.flush(&self.shared.metrics);
                if self.input.is_empty() && self.input.capacity() > BUFFER_KEPT_BYTES {
                    self.input = BytesMut::new();
                }
                return self.poll_watch(cx);
            }
        }
    }

    /// Takes in what the store has answered, and starts what waited for it.
    fn collect(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progress = false;
        while !self.running.is_empty()
            && let Poll::Ready(Some((ticket, due))) = self.running.poll_next_unpin(cx)
        {
            progress = true;
            self.finished(ticket, due, cx);
        }
        progress
    }

    fn finished(&mut self, ticket: Ticket, due: Due, cx: &mut Context<'_>) {
        let mut next = Some((ticket, due));
        while let Some((ticket, due)) = next {
            let size = due.0.size();
            self.held_bytes += size;
            self.expected_bytes = size.max(self.expected_bytes - self.expected_bytes / 8);
            let mut started = std::mem::take(&mut self.started);
            self.pipeline.finish(ticket, due, &mut started);
            // One of those that are unblocked may finish at once; it is finished here rather than in a recursion, which
            // could be as deep as the pipeline is long.
            next = None;
            for (ticket, (request, protocol, leave)) in started.drain(..) {
                match self.start(ticket, request, protocol, leave, cx) {
                    Some(due) if next.is_none() => next = Some((ticket, due)),
                    Some(due) => self.running.push(Box::pin(std::future::ready((ticket, due)))),
                    None => {}
                }
            }
            self.started = started;
        }
    }

    /// Runs a command. It is polled once right here: many stores answer at once, and need no place among the running.
    fn start(
        &mut self,
        ticket: Ticket,
        request: Request,
        protocol: Protocol,
        leave: Leave,
        cx: &mut Context<'_>,
    ) -> Option<Due> {
        let access = request.access();
        let mut running = Box::pin(request.run(self.shared.store.clone()));
        let ready = match running.as_mut().poll(cx) {
            Poll::Ready(reply) if reply.size() <= SHORT_BYTES => return Some((reply, protocol, None)),
            Poll::Ready(reply) => Some(reply),
            Poll::Pending => None,
        };
        let shared = self.shared.clone();
        let since_ns = shared.now_ns();
        self.running.push(Box::pin(async move {
            let reply = match ready {
                Some(reply) => reply,
                None => running.await,
            };
            // Whoever has no room for the answer to a write says nothing else instead: these are short.
            let (reply, room) = match access {
                Access::Read => shared.replies.admit(reply).await,
                Access::Write => (reply, None),
            };
            drop(leave);
            let waited_ns = shared.now_ns().saturating_sub(since_ns);
            shared.metrics.waited(access).observe(waited_ns as f64 / 1e9);
            (ticket, (reply, protocol, room))
        }));
        None
    }

    /// Starts what the input holds, as far as the limits allow.
    fn dispatch(&mut self, cx: &mut Context<'_>) -> (Dispatched, bool) {
        let mut progress = false;
        loop {
            if self.intake == Intake::Closed {
                return (Dispatched::NeedsInput, progress);
            }
            let expected = (self.pipeline.unfinished() + 1).saturating_mul(self.expected_bytes);
            if self.output.len() + self.held_bytes > OUTPUT_BYTES_HIGH
                || self.pipeline.len() >= self.shared.config.max_pipeline
                || (expected > EXPECTED_BYTES_MAX && self.pipeline.unfinished() > 0)
            {
                // It may be long before it can go on.
                self.admission.leave_line();
                return (Dispatched::Busy, progress);
            }
            match self.parser.parse(&mut self.input) {
                Ok(true) => {}
                Ok(false) => return (Dispatched::NeedsInput, progress),
                Err(error) => {
                    self.shared.metrics.protocol_errors.inc();
                    self.reply(Reply::Error(error.message()));
                    self.close_intake();
                    return (Dispatched::NeedsInput, true);
                }
            }
            if self.get_in_place() {
                progress = true;
                continue;
            }
            if !self.admission.take_turn(&self.shared.turns, cx) {
                return (Dispatched::Busy, progress);
            }
            progress = true;
            let Self { parser, input, session, shared, .. } = self;
            let (id, action) = parser.take(input, |command| command::decode(command, session, shared));
            self.tally.add(id, &self.shared.metrics);
            if !matches!(action, Action::Run(_)) {
                self.admission.give_back();
            }
            match action {
                Action::Reply(reply) => self.reply(reply),
                Action::Run(request) => self.admit(request, cx),
                Action::Close(reply) => {
                    if let Some(reply) = reply {
                        self.reply(reply);
                    }
                    self.close_intake();
                }
            }
        }
    }

    /// The hottest case: a `GET` with nothing before it, whose value the store has at hand. Answered from where it lies in
    /// the input, without an allocation or a reference count.
    fn get_in_place(&mut self) -> bool {
        if !self.pipeline.is_empty() || self.parser.len() != 2 {
            return false;
        }
        if !self.parser.arg(&self.input, 0).eq_ignore_ascii_case(b"get") {
            return false;
        }
        let key = self.parser.arg(&self.input, 1);
        if limits::check_key(key).is_err() {
            return false;
        }
        let Some(Ok(value)) = self.shared.store.try_get(key) else { return false };
        if value.as_ref().is_some_and(|value| value.len() > SHORT_BYTES) {
            return false;
        }
        let reply = Reply::optional(value);
        self.output.put(&reply, self.session.protocol, None);
        self.parser.skip(&mut self.input);
        self.tally.add(Some(Id::Get), &self.shared.metrics);
        true
    }

    fn admit(&mut self, request: Request, cx: &mut Context<'_>) {
        let leave = self.admission.leave();
        let access = request.access();
        let unhindered = self.pipeline.unfinished() == 0;
        if access == Access::Read
            && (unhindered || !self.pipeline.blocks_read(&Keys::of(&request, self.shared.key_seed)))
            && let Some(reply) = command::fast_reply(&request, &self.shared.store)
            && reply.size() <= SHORT_BYTES
        {
            return self.reply(reply);
        }
        let keys = Keys::of(&request, self.shared.key_seed);
        let protocol = self.session.protocol;
        if let Admitted::Start(ticket, (request, protocol, leave)) =
            self.pipeline.admit(keys, access, (request, protocol, leave))
            && let Some(due) = self.start(ticket, request, protocol, leave, cx)
        {
            self.finished(ticket, due, cx);
        }
    }

    /// A reply that is known at once: encoded at once if nothing is before it.
    fn reply(&mut self, reply: Reply) {
        if self.pipeline.is_empty() {
            self.put(&reply, self.session.protocol, None);
        } else {
            self.held_bytes += reply.size();
            self.pipeline.push_finished((reply, self.session.protocol, None));
        }
    }

    /// Moves the replies that are next to the output.
    fn encode_due(&mut self) {
        while self.output.len() <= OUTPUT_BYTES_HIGH
            && let Some((reply, protocol, room)) = self.pipeline.pop()
        {
            self.held_bytes -= reply.size();
            self.put(&reply, protocol, room);
        }
    }

    fn put(&mut self, reply: &Reply, protocol: Protocol, room: Option<Share>) {
        if reply.is_error() {
            self.shared.metrics.error_replies.inc();
        }
        self.output.put(reply, protocol, room);
    }

    fn write(&mut self, cx: &mut Context<'_>) -> bool {
        if self.output.is_empty() {
            return false;
        }
        if !self.broken {
            let written = self.output.write(&mut self.io, cx);
            if written.bytes > 0 {
                self.shared.metrics.bytes_written.inc_by(written.bytes);
                self.watch.note();
            }
            if !written.failed {
                return written.bytes > 0;
            }
            self.break_off();
        }
        self.output.discard();
        true
    }

    fn read(&mut self, cx: &mut Context<'_>) -> bool {
        let missing = self.parser.missing(&self.input);
        if !self.admission.may_read(&self.shared.large, self.parser.announced(), cx) {
            return false;
        }
        if self.input.capacity() - self.input.len() < READ_BYTES / 2 {
            let room = missing.clamp(READ_BYTES, READ_BYTES_MAX);
            self.input.reserve(room);
        }
        let reading = std::pin::pin!(self.io.read_buf(&mut self.input));
        match reading.poll(cx) {
            Poll::Pending => return false,
            Poll::Ready(Ok(0)) => self.end_intake(),
            Poll::Ready(Ok(read)) => {
                self.shared.metrics.bytes_read.inc_by(read as u64);
                self.watch.note();
            }
            Poll::Ready(Err(_)) => self.break_off(),
        }
        true
    }

    /// Silence: too long without taking replies, or, if there is an idle timeout, without anything to do.
    fn poll_watch(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.intake == Intake::Open && self.admission.is_overdue(cx) {
            tracing::debug!(client = self.session.entry.id(), "closed: it is too slow to send what it began");
            self.break_off();
            cx.waker().wake_by_ref();
        }
        while let Poll::Ready(silent) = self.watch.poll_look(cx) {
            // What others wait for is not kept for so long.
            let keeps_others_waiting = self.admission.holds_room() || self.output.holds_room();
            if keeps_others_waiting && !silent.is_zero() && self.pipeline.unfinished() == 0 {
                tracing::debug!(
                    client = self.session.entry.id(),
                    "closed: it neither sends nor takes what it began"
                );
                self.break_off();
                cx.waker().wake_by_ref();
            }
            if !self.output.is_empty() && silent >= STALL_TIMEOUT {
                tracing::debug!(client = self.session.entry.id(), "closed: it does not take its replies");
                self.break_off();
                cx.waker().wake_by_ref();
            }
            let idle = self.output.is_empty() && self.pipeline.is_empty();
            if idle && self.shared.config.idle_timeout().is_some_and(|limit| silent >= limit) {
                tracing::debug!(client = self.session.entry.id(), "closed: idle");
                self.close_intake();
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    fn end_intake(&mut self) {
        if self.intake == Intake::Open {
            self.intake = Intake::Ended;
        }
    }

    fn close_intake(&mut self) {
        self.intake = Intake::Closed;
        self.input.clear();
    }

    fn break_off(&mut self) {
        self.broken = true;
        self.end_intake();
    }
}

impl<S: Store> Drop for Connection<S> {
    fn drop(&mut self) {
        self.shared.clients.remove(self.session.entry.id());
    }
}
