//! One client's connection.
//!
//! A single task, and in it a loop of turns: take in the results that have arrived, start every command that the input
//! holds, append the replies that are due to one buffer, let other connections that are ready have their turns, write it
//! once, read more. Nothing waits for anything else: a slow command holds up only the replies behind it, and a client
//! that does not read its replies holds up only itself. (Writes of one key
//! that stand directly behind each other go together: [`rows`].)
//!
//! What a client may rely on: replies come in order; commands that touch the same key, one of them writing, take effect
//! in order. Everything else in a pipeline may take effect side by side, as if it had been sent over several
//! connections: whoever needs `SET b` to come after `SET a`, or two reads of a key to see time go forward, waits for the
//! first reply, sends a transaction, or asks for the order of the pipeline ([`Order`](crate::Order)).
//!
//! A client that goes away does not take back what it sent: commands that arrived in full are executed.

mod admission;
mod dispatch;
mod linger;
mod output;
mod pipeline;
mod rows;
mod sets;
mod unread;
mod waiting;
mod watch;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use sextant_common::database::Database;
use sextant_common::operation::Lane;
use sextant_environment::env;
use sextant_environment::room::Share;
use sextant_environment::shutdown::Shutdown;
use tokio::io::{AsyncReadExt, AsyncWrite};

pub(crate) use self::admission::Turns;
use self::admission::{Admission, Leave, Reading};
use self::dispatch::Dispatched;
use self::linger::linger;
use self::output::{BUFFER_KEPT_BYTES, Output};
use self::pipeline::{Pipeline, Ticket};
use self::rows::Rows;
use self::sets::Sets;
use self::unread::Ahead;
use self::watch::{Grace, Watch};
use crate::command::{Conversation, Release, Request, Transactions, Waited, Wanted};
use crate::command_table::Id;
use crate::config::Order;
use crate::frame::{Parser, Protocol, Reply};
use crate::metrics::Tally;
use crate::replies::SHORT_BYTES;
use crate::shared::{Databases, Shared};
use crate::store::Store;
use crate::who::Who;

/// Least room for a read: some hundred small commands, and little enough for ten thousand idle connections.
const READ_BYTES: usize = 16 * 1024;
/// Most room that is made at once for a long argument: what is announced is not what is sent.
const READ_BYTES_MAX: usize = 256 * 1024;
/// Replies of so many bytes may wait a moment for the other connections' turns.
const OUTPUT_BYTES_LOW: usize = 16 * 1024;
/// No command is started while so many bytes of replies wait to be written.
const OUTPUT_BYTES_HIGH: usize = 1024 * 1024;
/// Bound on what unfinished commands may be expected to answer, judged by earlier replies of the connection.
const EXPECTED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// A client that takes none of its replies for so long is gone.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a connection that its user may not have may stay: it may be about to say that it is somebody else.
const PLACE_GRACE: Duration = Duration::from_secs(30);
/// How long a connection may be nobody's where clients have to be users. (A connection over gRPC has as long for its first call.)
const NOBODY_GRACE: Duration = Duration::from_secs(30);
/// A reply, the protocol it is to be encoded in (that of the time when its command arrived), and its room if it is a long one.
type Due = (Reply, Protocol, Option<Share>);

/// A command on keys, from when it was decoded until it is done.
struct Asked {
    id: Id,
    request: Request,
    /// That of the time when it arrived.
    protocol: Protocol,
    leave: Leave,
    /// When it was read.
    since_ns: u64,
}

pub(crate) struct Connection<S: Store> {
    databases: Databases<S>,
    /// Of the selected one.
    shared: Arc<Shared<S>>,
    io: env::Connection,
    conversation: Conversation,
    parser: Parser,
    input: BytesMut,
    /// Of what of it was read ahead of a client that reads nothing.
    ahead: Ahead,
    output: Output,
    pipeline: Pipeline<Asked, Due>,
    running: FuturesUnordered<BoxFuture<'static, (Ticket, Due)>>,
    sets: Sets,
    rows: Rows,
    /// Until the turn's end: others may go with them.
    held_back: Vec<(Ticket, Asked)>,
    /// Commands that were unblocked; empty between uses.
    started: Vec<(Ticket, Asked)>,
    /// That the last command was admitted in.
    order: Order,
    admission: Admission,
    /// A command that waits until there is something for it.
    held_by: Option<Ticket>,
    /// Holds up what comes after it.
    waiting: Option<(Option<Id>, BoxFuture<'static, Waited>)>,
    intake: Intake,
    /// The server does.
    stops: bool,
    /// The peer is gone: replies are dropped.
    broken: bool,
    /// Other connections have had their turns since there is something to be written.
    gave_way: bool,
    /// Of the thread's connections, the one that was last.
    had_its_turn: Arc<AtomicU64>,
    /// Bytes of finished replies that wait behind unfinished ones.
    held_bytes: usize,
    /// The size of replies to expect: the largest, fading with each that is smaller.
    expected_bytes: usize,
    tally: Tally,
    /// When input was last read, or when the client last kept from going on what had come.
    read_ns: u64,
    /// Nothing was begun because the client took none of its replies.
    was_held_up: bool,
    watch: Watch,
    /// For a connection without a place.
    place_grace: Grace,
    /// For one of which it is not known whose it is.
    nobody_grace: Grace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intake {
    Open,
    /// Nothing more is read, but what was received in full is executed.
    Ended,
    /// Nothing more is started.
    Closed,
}

impl<S: Store> Connection<S> {
    /// `had_its_turn`: which of the thread's connections, the last time.
    pub fn new(databases: Databases<S>, io: env::Connection, had_its_turn: Arc<AtomicU64>) -> Self {
        let shared = databases[usize::from(Database::FIRST.number())].clone();
        let entry = shared.clients.add(io.peer, shared.now_ns());
        let (desk, allowances) = (shared.access.clone(), shared.allowances.clone());
        let who = Who::new(desk, io.peer, io.identity.as_deref(), allowances);
        entry.set_user(who.shown_name());
        let order = shared.config.order;
        let period = shared.config.idle_timeout().map_or(STALL_TIMEOUT, |idle| idle.min(STALL_TIMEOUT)) / 2;
        Self {
            conversation: Conversation {
                protocol: Protocol::default(),
                entry,
                who,
                transactions: Transactions::default(),
                order,
                wanted: Wanted::default(),
            },
            parser: Parser::new(shared.config.max_request_bytes),
            databases,
            shared,
            io,
            input: BytesMut::new(),
            ahead: Ahead::default(),
            output: Output::default(),
            pipeline: Pipeline::default(),
            running: FuturesUnordered::new(),
            sets: Sets::default(),
            rows: Rows::default(),
            held_back: Vec::new(),
            started: Vec::new(),
            order,
            admission: Admission::default(),
            held_by: None,
            waiting: None,
            intake: Intake::Open,
            stops: false,
            broken: false,
            gave_way: false,
            had_its_turn,
            held_bytes: 0,
            expected_bytes: 0,
            tally: Tally::default(),
            read_ns: 0,
            was_held_up: false,
            watch: Watch::new(period),
            place_grace: Grace::new(PLACE_GRACE),
            nobody_grace: Grace::new(NOBODY_GRACE),
        }
    }

    /// Serves until the client leaves, breaks the protocol, falls silent, or the server stops.
    pub async fn run(mut self, mut shutdown: Shutdown) {
        {
            let mut stop = std::pin::pin!(shutdown.wait());
            std::future::poll_fn(|cx| {
                if !self.stops && stop.as_mut().poll(cx).is_ready() {
                    self.stops = true;
                    self.conversation.entry.release(Release::Stops);
                    self.end_intake();
                }
                if !self.broken && self.conversation.entry.is_killed(cx.waker()) {
                    self.end_now(cx);
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
        // (Before its turns: who sends all the time leaves no time for it between them.)
        self.look_for_a_place(cx);
        self.look_who_it_is(cx);
        loop {
            let mut progress = self.collect(cx);
            let (dispatched, some) = self.dispatch(cx);
            progress |= some;
            self.join_sets();
            progress |= self.sets.hand_over(&self.shared, &self.conversation.entry, self.lane());
            self.encode_due();
            if self.gives_way() {
                self.tally.flush(&self.shared.metrics, || self.shared.since(self.read_ns));
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let written = self.write(cx);
            progress |= written;
            if dispatched == Dispatched::NeedsInput {
                match self.intake {
                    Intake::Open => progress |= self.read(cx),
                    Intake::Ended => self.intake = Intake::Closed,
                    Intake::Closed => {}
                }
            } else {
                self.admission.forbear();
                if dispatched == Dispatched::Held && self.intake == Intake::Open {
                    self.give_ahead_back();
                    progress |= self.read_while_held(cx);
                }
                let takes_nothing = !written && !self.output.is_empty();
                if dispatched == Dispatched::Busy && takes_nothing {
                    self.was_held_up |= self.output.len() > OUTPUT_BYTES_HIGH;
                    progress |= self.intake == Intake::Open && self.read_ahead(cx);
                }
            }
            let is_done = self.pipeline.is_empty() && self.output.is_empty() && self.waiting.is_none();
            if self.intake == Intake::Closed && is_done {
                self.tally.flush(&self.shared.metrics, || self.shared.since(self.read_ns));
                return Poll::Ready(());
            }
            if !progress {
                self.tally.flush(&self.shared.metrics, || self.shared.since(self.read_ns));
                if self.input.is_empty() && self.input.capacity() > BUFFER_KEPT_BYTES {
                    self.cut_input();
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
        while !self.rows.is_empty()
            && let Poll::Ready(Some((ticket, due))) = self.rows.poll_next_unpin(cx)
        {
            progress = true;
            self.finished(ticket, due, cx);
        }
        while let Poll::Ready(done) = self.sets.poll_done(cx) {
            progress = true;
            done.into_iter().for_each(|(ticket, due)| self.finished(ticket, due, cx));
        }
        progress
    }

    /// In which line of the store's those stand that were just started.
    fn lane(&self) -> Lane {
        if self.pipeline.unfinished() > 1 { Lane::Pipelined } else { Lane::Single }
    }

    fn finished(&mut self, ticket: Ticket, due: Due, cx: &mut Context<'_>) {
        let mut next = Some((ticket, due));
        while let Some((ticket, due)) = next {
            self.held_by.take_if(|held_by| *held_by == ticket);
            let size = due.0.size();
            self.held_bytes += size;
            self.expected_bytes = size.max(self.expected_bytes - self.expected_bytes / 8);
            let mut started = std::mem::take(&mut self.started);
            self.pipeline.finish(ticket, due, &mut started);
            // One of those that are unblocked may finish at once; it is finished here rather than in a recursion, which
            // could be as deep as the pipeline is long.
            next = None;
            for (ticket, asked) in started.drain(..) {
                match self.start_with_others(ticket, asked, cx) {
                    Some(due) if next.is_none() => next = Some((ticket, due)),
                    Some(due) => self.running.push(Box::pin(std::future::ready((ticket, due)))),
                    None => {}
                }
            }
            self.started = started;
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

    /// Whether other connections that are ready come first, once before each write. So all of them are read from before any is
    /// written to: a client of many connections is woken once and finds replies on all, not once for each. Not where there was no
    /// other since its last turn.
    fn gives_way(&mut self) -> bool {
        let id = self.conversation.entry.id();
        let was_last = self.had_its_turn.load(Ordering::Relaxed) == id;
        let waits = (1..=OUTPUT_BYTES_LOW).contains(&self.output.len()) && !self.broken && !was_last;
        self.gave_way = waits && !self.gave_way;
        if !self.gave_way && !self.output.is_empty() {
            self.had_its_turn.store(id, Ordering::Relaxed);
        }
        self.gave_way
    }

    fn write(&mut self, cx: &mut Context<'_>) -> bool {
        if self.output.is_empty() {
            return false;
        }
        if !self.broken {
            let written = self.output.write(&mut self.io, cx);
            self.shared.metrics.bytes_written.inc_by(written.bytes);
            if written.bytes > 0 || self.output.is_empty() {
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

    /// Whether the user may have so many bytes under way now. If not, the task is woken when it may.
    fn may_carry(&mut self, bytes: usize, cx: &mut Context<'_>) -> bool {
        let Conversation { who, transactions, .. } = &mut self.conversation;
        if !who.has_limits() {
            return true;
        }
        let Ok(Some(allowance)) = who.allowance() else { return true };
        // What its own transaction keeps, nobody else will give back.
        self.admission.may_carry(allowance, bytes, cx)
            || transactions.give_way() && self.admission.may_carry(allowance, bytes, cx)
    }

    fn read(&mut self, cx: &mut Context<'_>) -> bool {
        self.give_ahead_back();
        let missing = self.parser.missing(&self.input);
        let announced = self.parser.announced();
        // Its user's room first: whoever waits for that must not hold everybody's.
        if announced > SHORT_BYTES && !self.may_carry(announced, cx) {
            return false;
        }
        let patience = Duration::from_millis(self.shared.config.large_patience_ms);
        match self.admission.may_read(&self.shared.large, announced, patience, cx) {
            Reading::Admitted => {}
            Reading::Waits => return false,
            Reading::Refused => {
                self.shared.metrics.refused_for_room.inc();
                self.refuse_unread(Reply::error(format!(
                    "OOM the command was not executed: there is no room for its {announced} bytes"
                )));
                return true;
            }
        }
        if self.input.capacity() - self.input.len() < READ_BYTES / 2 {
            let room = missing.clamp(READ_BYTES, READ_BYTES_MAX);
            self.input.reserve(room);
        }
        self.read_some(cx)
    }

    /// Answers a command before it is here. The rest of it is dropped as it comes.
    fn refuse_unread(&mut self, why: Reply) {
        self.parser.give_up(&mut self.input);
        self.cut_input();
        self.conversation.transactions.refuse();
        self.reply(why);
        self.conversation.wanted.go_on();
    }

    fn read_some(&mut self, cx: &mut Context<'_>) -> bool {
        let read = self.read_quietly(cx);
        if read {
            self.watch.note();
        }
        read
    }

    /// Also if there is nothing more to be read, ever.
    fn read_quietly(&mut self, cx: &mut Context<'_>) -> bool {
        let reading = std::pin::pin!(self.io.read_buf(&mut self.input));
        match reading.poll(cx) {
            Poll::Pending => return false,
            Poll::Ready(Ok(0)) => self.end_intake(),
            Poll::Ready(Ok(read)) => {
                self.shared.metrics.bytes_read.inc_by(read as u64);
                self.read_ns = self.shared.now_ns();
                self.conversation.entry.heard(self.read_ns);
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
        while let Poll::Ready(silent) = self.watch.poll_look(cx) {
            // What others do without is not kept for so long.
            let since_ns = self.conversation.transactions.holds_since_ns(self.shared.queued.is_scarce());
            if since_ns.is_some_and(|since| self.shared.since(since) > STALL_TIMEOUT.as_nanos() as u64) {
                self.conversation.transactions.lose();
            }
            let keeps_others_waiting = self.admission.holds_room() || self.output.holds_room();
            if keeps_others_waiting && !silent.is_zero() && self.pipeline.unfinished() == 0 {
                tracing::debug!(
                    client = self.conversation.entry.id(),
                    "closed: it neither sends nor takes what it began"
                );
                self.break_off();
                cx.waker().wake_by_ref();
            }
            if self.takes_too_little() {
                tracing::debug!(
                    client = self.conversation.entry.id(),
                    "closed: it takes too little of its replies for what was read ahead of it"
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
            let waits = self.admission.waits() || self.waiting.is_some();
            let idle = self.output.is_empty() && self.pipeline.is_empty() && !waits;
            if idle && self.shared.config.idle_timeout().is_some_and(|limit| silent >= limit) {
                tracing::debug!(client = self.conversation.entry.id(), "closed: idle");
                self.close_intake();
                return Poll::Ready(());
            }
            if idle && !silent.is_zero() && self.intake == Intake::Open {
                self.leave_without_a_place(cx);
            }
        }
        Poll::Pending
    }

    /// Ends the connection if it stays without a place. What is under way is done first, also the comparison of a password.
    fn look_for_a_place(&mut self, cx: &mut Context<'_>) {
        if self.stays_without_a_place(cx) && self.intake == Intake::Open && !self.is_busy() {
            self.leave_without_a_place(cx);
        }
    }

    /// Ends the connection if its client has to say who it is, and has not for so long; once a password that is being compared has been.
    fn look_who_it_is(&mut self, cx: &mut Context<'_>) {
        let is_nobody = self.conversation.who.is_nobody();
        if self.nobody_grace.is_over(is_nobody, cx) && self.intake == Intake::Open && !self.is_busy() {
            tracing::debug!(client = self.conversation.entry.id(), "closed: it does not say who it is");
            let seconds = NOBODY_GRACE.as_secs();
            self.reply(Reply::error(format!("NOAUTH Authentication required within {seconds} seconds.")));
            self.close_intake();
        }
    }

    /// Whether something is under way.
    fn is_busy(&self) -> bool {
        self.pipeline.unfinished() > 0 || self.waiting.is_some()
    }

    /// Whether its user may not have it, and that for so long that it has had the time to say that it is somebody else. If not, the task
    /// is woken when it may be so.
    fn stays_without_a_place(&mut self, cx: &mut Context<'_>) -> bool {
        let lacks_it = self.conversation.who.lacks_a_place();
        self.place_grace.is_over(lacks_it, cx)
    }

    /// Ends the connection if its user may not have it: whoever asks for something is refused, and whoever does not has had the time
    /// to say that it is somebody else.
    fn leave_without_a_place(&mut self, cx: &mut Context<'_>) {
        if self.conversation.who.has_limits()
            && let Err(e) = self.conversation.who.allowance()
        {
            tracing::debug!(client = self.conversation.entry.id(), "closed: {e}");
            self.reply(Reply::error(format!("ERR {}", e.message)));
            self.close_intake();
            cx.waker().wake_by_ref();
        }
    }

    fn end_intake(&mut self) {
        if self.intake == Intake::Open {
            self.intake = Intake::Ended;
        }
        self.conversation.entry.release(Release::Gone);
    }

    fn close_intake(&mut self) {
        self.intake = Intake::Closed;
        (self.input, self.ahead) = (BytesMut::new(), Ahead::default());
        self.admission.leave_all_lines();
    }

    /// Somebody says so: what is under way is done, and nobody is told.
    fn end_now(&mut self, cx: &mut Context<'_>) {
        self.break_off();
        self.close_intake();
        // (Its client sees it before that.)
        let _ = std::pin::Pin::new(&mut self.io).poll_shutdown(cx);
    }

    fn break_off(&mut self) {
        self.broken = true;
        self.conversation.entry.leave();
        self.end_intake();
    }
}

impl<S: Store> Drop for Connection<S> {
    fn drop(&mut self) {
        self.shared.clients.remove(self.conversation.entry.id());
    }
}
