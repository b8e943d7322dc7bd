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
mod pipeline;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use sextant_common::limits;
use sextant_environment::env;
use sextant_environment::room::Share;
use sextant_environment::shutdown::Shutdown;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Sleep;
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(crate) use self::admission::Replies;
use self::admission::{Admission, Leave, SHORT_BYTES};
use self::pipeline::{Admitted, Keys, Pipeline, Ticket};
use crate::command::{self, Access, Action, Ahead, Conversation, Id, Request};
use crate::frame::{Parser, Protocol, Reply};
use crate::metrics::Tally;
use crate::server::Shared;
use crate::store::{Look, Store};

/// Least room for a read: some hundred small commands, and little enough for ten thousand idle connections.
const READ_BYTES: usize = 16 * 1024;
/// Most room that is made at once for a long argument: what is announced is not what is sent.
const READ_BYTES_MAX: usize = 256 * 1024;
/// No command is started while so many bytes of replies wait to be written.
const OUTPUT_BYTES_HIGH: usize = 1024 * 1024;
/// Bound on what unfinished commands may be expected to answer, judged by earlier replies of the connection.
const EXPECTED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// A buffer that has grown beyond this is given back once it is empty.
const BUFFER_KEPT_BYTES: usize = 256 * 1024;
/// A client that takes none of its replies for so long is gone.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the input of a closed connection is thrown away, so that the last reply is not lost to a reset.
const LINGER: Duration = Duration::from_millis(500);
/// And how much of it.
const LINGER_BYTES: usize = 16 * 1024 * 1024;

/// A reply, the protocol it is to be encoded in (that of the time when its command arrived), and its room if it is a long one.
type Due = (Reply, Protocol, Option<Share>);

pub(crate) struct Connection<S: Store> {
    shared: Arc<Shared<S>>,
    io: env::Connection,
    conversation: Conversation,
    parser: Parser,
    input: BytesMut,
    output: BytesMut,
    pipeline: Pipeline<(Request, Protocol, Leave), Due>,
    running: FuturesUnordered<BoxFuture<'static, (Ticket, Due)>>,
    /// Commands that were unblocked; empty between uses.
    started: Vec<(Ticket, (Request, Protocol, Leave))>,
    admission: Admission,
    /// Room of replies in the output.
    writing: VecDeque<(u64, Share)>,
    /// Bytes that were written to the client in all.
    written: u64,
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

/// Notices silence. Looks only now and then, so that traffic costs no clock reads.
struct Watch {
    sleep: Pin<Box<Sleep>>,
    period: Duration,
    /// Bytes moved since the last look.
    moved: bool,
    /// Looks without traffic in a row.
    silent: u32,
}

/// What became of a command whose turn has come and that may be a `GET`.
enum InPlace<M> {
    Answered,
    /// It is one, with nothing before it, and has to be asked for or is long.
    Looked(Look<M>),
    NoGet,
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
            conversation: Conversation { protocol: Protocol::default(), entry },
            parser: Parser::new(shared.config.max_request_bytes),
            shared,
            io,
            input: BytesMut::new(),
            output: BytesMut::new(),
            pipeline: Pipeline::default(),
            running: FuturesUnordered::new(),
            started: Vec::new(),
            admission: Admission::default(),
            writing: VecDeque::new(),
            written: 0,
            intake: Intake::Open,
            broken: false,
            held_bytes: 0,
            expected_bytes: 0,
            tally: Tally::default(),
            watch: Watch { sleep: Box::pin(tokio::time::sleep(period)), period, moved: false, silent: 0 },
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
            let _ = tokio::time::timeout(LINGER, self.linger()).await;
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
                match self.start(ticket, (request, Ahead::default()), protocol, leave, cx) {
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
        (request, ahead): (Request, Ahead<S::Missed>),
        protocol: Protocol,
        leave: Leave,
        cx: &mut Context<'_>,
    ) -> Option<Due> {
        let access = request.access();
        let mut running = Box::pin(request.run(self.shared.store.clone(), ahead));
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
            let looked = match self.get_in_place() {
                InPlace::Answered => {
                    progress = true;
                    continue;
                }
                InPlace::Looked(look) => Some(look),
                InPlace::NoGet => None,
            };
            if !self.admission.take_turn(&self.shared.turns, cx) {
                return (Dispatched::Busy, progress);
            }
            progress = true;
            let Self { parser, input, conversation, shared, .. } = self;
            let (id, action) = parser.take(input, |command| command::decode(command, conversation, shared));
            self.tally.add(id, &self.shared.metrics);
            if !matches!(action, Action::Run(_)) {
                self.admission.give_back();
            }
            match action {
                Action::Reply(reply) => self.reply(reply),
                Action::Run(request) => self.admit(request, looked, cx),
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
    fn get_in_place(&mut self) -> InPlace<S::Missed> {
        if !self.pipeline.is_empty() || self.parser.len() != 2 {
            return InPlace::NoGet;
        }
        if !self.parser.arg(&self.input, 0).eq_ignore_ascii_case(b"get") {
            return InPlace::NoGet;
        }
        let key = self.parser.arg(&self.input, 1);
        if limits::check_key(key).is_err() {
            return InPlace::NoGet;
        }
        let value = match self.shared.store.look(key) {
            Look::Known(Ok(value)) if value.as_ref().is_none_or(|value| value.len() <= SHORT_BYTES) => value,
            look => return InPlace::Looked(look),
        };
        let reply = Reply::optional(value);
        reply.encode(self.conversation.protocol, &mut self.output);
        self.parser.skip(&mut self.input);
        self.tally.add(Some(Id::Get), &self.shared.metrics);
        InPlace::Answered
    }

    /// `looked`: at the key of a `GET`, just now.
    fn admit(&mut self, request: Request, looked: Option<Look<S::Missed>>, cx: &mut Context<'_>) {
        let leave = self.admission.leave();
        let access = request.access();
        let unhindered = self.pipeline.unfinished() == 0;
        let mut ahead = Ahead::default();
        if access == Access::Read && (unhindered || !self.pipeline.blocks_read(&self.keys_of(&request))) {
            ahead = match command::look_ahead(&request, &self.shared.store, looked) {
                Ahead::Reply(reply) if reply.size() <= SHORT_BYTES => return self.reply(reply),
                ahead => ahead,
            };
        }
        let keys = self.keys_of(&request);
        let protocol = self.conversation.protocol;
        // Whoever waits for a write looks after it.
        if let Admitted::Start(ticket, (request, protocol, leave)) =
            self.pipeline.admit(keys, access, (request, protocol, leave))
            && let Some(due) = self.start(ticket, (request, ahead), protocol, leave, cx)
        {
            self.finished(ticket, due, cx);
        }
    }

    fn keys_of(&self, request: &Request) -> Keys {
        let seed = self.shared.key_seed;
        if let Some(key) = request.single_key() {
            return Keys::One(xxh3_64_with_seed(key, seed));
        }
        let mut hashes = Vec::new();
        request.for_each_key(|key| hashes.push(xxh3_64_with_seed(key, seed)));
        Keys::Many(hashes)
    }

    /// A reply that is known at once: encoded at once if nothing is before it.
    fn reply(&mut self, reply: Reply) {
        if self.pipeline.is_empty() {
            encode(&reply, self.conversation.protocol, &mut self.output, &self.shared);
        } else {
            self.held_bytes += reply.size();
            self.pipeline.push_finished((reply, self.conversation.protocol, None));
        }
    }

    /// Moves the replies that are next to the output.
    fn encode_due(&mut self) {
        while self.output.len() <= OUTPUT_BYTES_HIGH
            && let Some((reply, protocol, room)) = self.pipeline.pop()
        {
            self.held_bytes -= reply.size();
            encode(&reply, protocol, &mut self.output, &self.shared);
            let end = self.written + self.output.len() as u64;
            self.writing.extend(room.map(|room| (end, room)));
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progress = false;
        while !self.output.is_empty() {
            if self.broken {
                self.output.clear();
                self.writing.clear();
                return true;
            }
            match Pin::new(&mut self.io).poll_write(cx, &self.output) {
                Poll::Ready(Ok(written)) if written > 0 => {
                    self.shared.metrics.bytes_written.inc_by(written as u64);
                    self.output.advance(written);
                    self.written += written as u64;
                    // Others wait for the room of what has gone, also while there is more to be written.
                    while self.writing.front().is_some_and(|(end, _)| *end <= self.written) {
                        self.writing.pop_front();
                    }
                    self.watch.moved = true;
                    progress = true;
                }
                Poll::Ready(_) => self.break_off(),
                Poll::Pending => return progress,
            }
        }
        if progress {
            if self.output.capacity() > BUFFER_KEPT_BYTES {
                self.output = BytesMut::new();
            } else {
                // Back to the start of the allocation.
                self.output.clear();
            }
        }
        progress
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
                self.watch.moved = true;
            }
            Poll::Ready(Err(_)) => self.break_off(),
        }
        true
    }

    /// Silence: too long without taking replies, or, if there is an idle timeout, without anything to do.
    fn poll_watch(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.intake == Intake::Open && self.admission.is_overdue(cx) {
            tracing::debug!(
                client = self.conversation.entry.id(),
                "closed: it is too slow to send what it began"
            );
            self.break_off();
            cx.waker().wake_by_ref();
        }
        while self.watch.sleep.as_mut().poll(cx).is_ready() {
            let period = self.watch.period;
            self.watch.sleep.set(tokio::time::sleep(period));
            self.watch.silent = if self.watch.moved { 0 } else { self.watch.silent + 1 };
            self.watch.moved = false;
            let silent = period * self.watch.silent;
            // What others wait for is not kept for so long.
            let keeps_others_waiting = self.admission.holds_room() || !self.writing.is_empty();
            if keeps_others_waiting && self.watch.silent > 0 && self.pipeline.unfinished() == 0 {
                tracing::debug!(
                    client = self.conversation.entry.id(),
                    "closed: it neither sends nor takes what it began"
                );
                self.break_off();
                cx.waker().wake_by_ref();
            }
            if !self.output.is_empty() && silent >= STALL_TIMEOUT {
                tracing::debug!(
                    client = self.conversation.entry.id(),
                    "closed: it does not take its replies"
                );
                self.break_off();
                cx.waker().wake_by_ref();
            }
            let idle = self.output.is_empty() && self.pipeline.is_empty();
            if idle && self.shared.config.idle_timeout().is_some_and(|limit| silent >= limit) {
                tracing::debug!(client = self.conversation.entry.id(), "closed: idle");
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

    /// Closing with unread input makes the kernel reset the connection, and the client may lose the last reply.
    async fn linger(&mut self) {
        if self.io.shutdown().await.is_err() {
            return;
        }
        let mut thrown_away = 0;
        while thrown_away < LINGER_BYTES {
            self.input.clear();
            self.input.reserve(READ_BYTES);
            match self.io.read_buf(&mut self.input).await {
                Ok(0) | Err(_) => return,
                Ok(n) => thrown_away += n,
            }
        }
    }
}

impl<S: Store> Drop for Connection<S> {
    fn drop(&mut self) {
        self.shared.clients.remove(self.conversation.entry.id());
    }
}

fn encode<S: Store>(reply: &Reply, protocol: Protocol, output: &mut BytesMut, shared: &Shared<S>) {
    if reply.is_error() {
        shared.metrics.error_replies.inc();
    }
    reply.encode(protocol, output);
}
