//! What comes in, one command after the other: answered at once, or admitted to the pipeline and started.
//!
//! Invariant: a key is looked at in place only if nothing that conflicts with the read is before it.

use std::future::Future;
use std::task::{Context, Poll};

use sextant_common::Result;
use sextant_common::database::Database;
use sextant_common::limits;
use sextant_common::operation::Lane;
use sextant_environment::slow_log;

use super::pipeline::{Admitted, Keys, Ticket};
use super::{Asked, Connection, Due, EXPECTED_BYTES_MAX, Intake, OUTPUT_BYTES_HIGH};
use crate::command::{self, Action, Ahead, Request};
use crate::command_table::{self, Access, Id};
use crate::config::Order;
use crate::frame::{ProtocolError, Reply};
use crate::replies::SHORT_BYTES;
use crate::store::{Look, Store};

/// What became of a command whose turn has come and that may be a `GET`.
enum InPlace<M> {
    Answered,
    /// It is one, with nothing before it, and has to be asked for or is long.
    Looked(Look<M>),
    NoGet,
}

/// Longest request of who is nobody yet, in bytes: a name and a password.
const STRANGERS_BYTES_MAX: usize = 16 * 1024;

/// Why dispatching stopped.
#[derive(PartialEq, Eq)]
pub(super) enum Dispatched {
    NeedsInput,
    /// Replies must go out first.
    Busy,
    /// A command waits until there is something for it: what comes after it waits too.
    Held,
}

impl<S: Store> Connection<S> {
    /// Runs a command. It is polled once right here: many stores answer at once, and need no place among the running. (But for sets
    /// without a condition, which the turn hands over together.)
    pub(super) fn start(
        &mut self,
        ticket: Ticket,
        asked: Asked,
        ahead: Ahead<S::Missed>,
        cx: &mut Context<'_>,
    ) -> Option<Due> {
        let Asked { id, request, protocol, leave, since_ns } = asked;
        let request = match request.into_put() {
            Ok(put) => {
                self.sets.begin(ticket, protocol, leave, since_ns, put);
                return None;
            }
            Err(request) => request,
        };
        self.forget_hints(&request);
        if let Request::Waiting(waiting) = request {
            return self.start_waiting(ticket, (id, waiting, protocol), leave, since_ns);
        }
        let (may_write, key) = (request.may_write(), request.first_key());
        let run = request.run(self.shared.clone(), ahead, self.lane());
        let mut running = Box::pin(slow_log::traced(run));
        let ready = match running.as_mut().poll(cx) {
            Poll::Ready(reply) if reply.size() <= SHORT_BYTES => {
                self.shared.took(id, since_ns, key, &self.conversation.entry, None);
                return Some((reply, protocol, None));
            }
            Poll::Ready(reply) => Some(reply),
            Poll::Pending => None,
        };
        let (shared, client) = (self.shared.clone(), self.conversation.entry.clone());
        self.running.push(Box::pin(async move {
            let reply = match ready {
                Some(reply) => reply,
                None => running.as_mut().await,
            };
            let trace = running.as_mut().take_value();
            let (reply, room) = match may_write {
                false => shared.replies.admit(reply).await,
                true => shared.replies.admit_written(reply).await,
            };
            drop(leave);
            shared.took(id, since_ns, key, &client, trace.as_ref());
            (ticket, (reply, protocol, room))
        }));
        None
    }

    /// What was known of an object that is deleted.
    pub(super) fn forget_hints(&self, request: &Request) {
        if let Request::Delete(keys) = request {
            for key in keys.iter().filter(|key| self.shared.hints.forget(key)) {
                self.shared.store.is_garbage(key);
            }
        }
    }

    /// Starts what the input holds, as far as the limits allow.
    pub(super) fn dispatch(&mut self, cx: &mut Context<'_>) -> (Dispatched, bool) {
        let dispatched = self.dispatch_as_far_as_may_be(cx);
        self.start_held_back(cx);
        self.admission.rest();
        dispatched
    }

    fn dispatch_as_far_as_may_be(&mut self, cx: &mut Context<'_>) -> (Dispatched, bool) {
        let mut progress = false;
        loop {
            if let Some(waiting) = &mut self.waiting {
                let Poll::Ready(waited) = waiting.1.as_mut().poll(cx) else {
                    return (Dispatched::Busy, progress);
                };
                let id = waiting.0;
                self.waiting = None;
                self.shared.metrics.took(id).observe_ns(self.shared.since(self.read_ns));
                let reply = waited(&mut self.conversation);
                self.follow_selection();
                self.reply(reply);
                self.conversation.wanted.go_on();
                progress = true;
            }
            if self.intake == Intake::Closed {
                return (Dispatched::NeedsInput, progress);
            }
            if self.held_by.is_some() {
                self.admission.leave_all_lines();
                return (Dispatched::Held, progress);
            }
            let expected = (self.pipeline.unfinished() + 1).saturating_mul(self.expected_bytes);
            if self.output.len() + self.held_bytes > OUTPUT_BYTES_HIGH
                || self.pipeline.len() >= self.shared.config.max_pipeline
                || (expected > EXPECTED_BYTES_MAX && self.pipeline.unfinished() > 0)
            {
                // It may be long before it can go on.
                self.admission.leave_all_lines();
                return (Dispatched::Busy, progress);
            }
            if std::mem::take(&mut self.was_held_up) {
                self.time_anew();
            }
            match self.parser.parse(&mut self.input) {
                Ok(true) => {}
                Ok(false) | Err(ProtocolError::TooBigArgument(_))
                    if self.parser.announced() > STRANGERS_BYTES_MAX && self.conversation.who.is_nobody() =>
                {
                    self.reply(Reply::error("NOAUTH Authentication required."));
                    self.close_intake();
                    return (Dispatched::NeedsInput, true);
                }
                Ok(false) => return (Dispatched::NeedsInput, progress),
                Err(error @ ProtocolError::TooBigArgument(_)) => {
                    // It counts as one that began: those behind it wait for that.
                    if let Ok(Some(allowance)) = self.conversation.who.allowance() {
                        allowance.book();
                    }
                    self.admission.let_go();
                    self.refuse_unread(Reply::Error(error.message()));
                    progress = true;
                    continue;
                }
                Err(error) => {
                    self.shared.metrics.protocol_errors.inc();
                    self.reply(Reply::Error(error.message()));
                    self.close_intake();
                    return (Dispatched::NeedsInput, true);
                }
            }
            match self.within_limits(cx) {
                Ok(true) => {}
                Ok(false) => {
                    self.admission.leave_line();
                    if self.broken {
                        // Nobody waits for what its user may not have yet.
                        self.close_intake();
                        return (Dispatched::NeedsInput, true);
                    }
                    return (Dispatched::Busy, progress);
                }
                Err(refused) => {
                    self.reply(Reply::error(format!("ERR {}", refused.message)));
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
            if self.pipeline.unfinished() > 0 && self.may_select() {
                // What came before is of another database.
                self.admission.leave_all_lines();
                return (Dispatched::Busy, progress);
            }
            let room = self.shared.config.max_pipeline - self.pipeline.len();
            let here = self.parser.alike(&self.input).min(room);
            let lane = if self.pipeline.unfinished() > 0 { Lane::Pipelined } else { Lane::Single };
            if !self.admission.take_turn(&self.shared.turns, here, lane, cx) {
                return (Dispatched::Busy, progress);
            }
            if !self.bytes_within_limits(cx) {
                self.admission.leave_line();
                return (Dispatched::Busy, progress);
            }
            self.admission.begun();
            progress = true;
            let Self { parser, input, conversation, shared, .. } = self;
            let (id, action) = parser.take(input, |command| command::decode(command, conversation, shared));
            self.follow_selection();
            self.conversation.entry.has_queued(self.conversation.transactions.queued());
            let at_once = !matches!(action, Action::Run(..) | Action::Wait(_));
            self.count(id, at_once);
            if !matches!(action, Action::Run(..)) {
                let carried = self.admission.give_back();
                carried.into_iter().for_each(|permit| self.conversation.transactions.carry(permit));
            }
            match action {
                Action::Reply(reply) => self.reply(reply),
                Action::Wait(waiting) => {
                    self.waiting = Some((id, waiting));
                    continue;
                }
                Action::Run(id, request) => self.admit(id, request, looked, cx),
                Action::Close(reply) => {
                    if let Some(reply) = reply {
                        self.reply(reply);
                    }
                    self.close_intake();
                }
            }
            self.conversation.wanted.go_on();
        }
    }

    /// What the client's slowness took is not how long the commands took that it held up.
    fn time_anew(&mut self) {
        self.tally.flush(&self.shared.metrics, || self.shared.since(self.read_ns));
        self.read_ns = self.shared.now_ns();
    }

    /// Whether the user may begin one more command now. Err: it may not even have this connection.
    #[inline]
    fn within_limits(&mut self, cx: &mut Context<'_>) -> Result<bool> {
        if !self.conversation.who.has_limits() {
            return Ok(true);
        }
        let is_for_anybody = self.is_for_anybody();
        if !is_for_anybody || self.stays_without_a_place(cx) {
            self.conversation.who.allowance()?;
        }
        if is_for_anybody && self.says_who_it_is() {
            return Ok(true);
        }
        let Some(allowance) = self.conversation.who.limits() else { return Ok(true) };
        let had_to_wait = self.admission.waits();
        let may = self.admission.may_begin(allowance, cx);
        if may && had_to_wait {
            // What its user's limit took is not how long the command took.
            self.read_ns = self.shared.now_ns();
        }
        Ok(may)
    }

    /// Whether the command may take the connection to another database.
    fn may_select(&self) -> bool {
        let name = self.parser.arg(&self.input, 0);
        let is_reset = || self.shared.database != Database::FIRST && name.eq_ignore_ascii_case(b"reset");
        name.eq_ignore_ascii_case(b"select") || is_reset()
    }

    #[inline]
    fn follow_selection(&mut self) {
        let database = self.conversation.who.database();
        if self.shared.database != database {
            self.shared = self.databases[usize::from(database.number())].clone();
        }
    }

    /// Commands of those, too, who have not said yet who they are.
    fn is_for_anybody(&self) -> bool {
        let name = self.parser.arg(&self.input, 0);
        command_table::find(name).is_some_and(|spec| spec.flags.contains(&"no_auth"))
    }

    /// Commands that no limit of another user's, or of those who have not said yet who they are, may keep away.
    fn says_who_it_is(&self) -> bool {
        let arg = |at| self.parser.arg(&self.input, at);
        match command_table::find(arg(0)).map(|spec| spec.id) {
            Some(Id::Auth | Id::Quit) => true,
            Some(Id::Hello) => command::has_password(self.parser.len(), arg),
            _ => false,
        }
    }

    /// Whether the user may have the command's bytes under way now.
    fn bytes_within_limits(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.conversation.who.has_limits() || self.is_for_anybody() {
            return true;
        }
        let bytes = (0..self.parser.len()).map(|at| self.parser.arg(&self.input, at).len()).sum();
        // (What ends a transaction does not wait for what that keeps.)
        let ends = self.parser.len() == 1 && bytes <= "discard".len();
        ends && self.conversation.transactions.is_open() || self.may_carry(bytes, cx)
    }

    /// The hottest case: a `GET` with nothing before it, whose value the store has at hand. Answered from where it lies in
    /// the input: nothing of the command is copied.
    fn get_in_place(&mut self) -> InPlace<S::Missed> {
        if !self.pipeline.is_empty() || self.parser.len() != 2 {
            return InPlace::NoGet;
        }
        if self.conversation.transactions.is_open() || self.conversation.transactions.watches() {
            return InPlace::NoGet;
        }
        if !self.conversation.wanted.is_all() {
            return InPlace::NoGet;
        }
        if !self.parser.arg(&self.input, 0).eq_ignore_ascii_case(b"get") {
            return InPlace::NoGet;
        }
        let key = self.parser.arg(&self.input, 1);
        if limits::check_key(key).is_err() || !self.conversation.who.may_read(key) {
            return InPlace::NoGet;
        }
        let value = match self.shared.store.look(key) {
            Look::Known(Ok(record)) if record.as_ref().is_none_or(|r| r.value.len() <= SHORT_BYTES) => record,
            look => return InPlace::Looked(look),
        };
        let reply = command::value(value);
        self.conversation.entry.asked(Id::Get, None);
        self.output.put(&reply, self.conversation.protocol, None);
        self.parser.skip(&mut self.input);
        self.admission.begun();
        self.count(Some(Id::Get), true);
        InPlace::Answered
    }

    #[inline]
    fn count(&mut self, id: Option<Id>, at_once: bool) {
        let Self { tally, shared, read_ns, .. } = self;
        tally.add(id, at_once, &shared.metrics, || shared.since(*read_ns));
    }

    /// `looked`: at the key of a `GET`, just now.
    fn admit(&mut self, id: Id, request: Request, looked: Option<Look<S::Missed>>, cx: &mut Context<'_>) {
        let leave = self.admission.leave(self.ahead.room());
        let access = request.access();
        let unhindered = self.pipeline.unfinished() == 0;
        let mut ahead = Ahead::default();
        let order = self.conversation.order;
        // The first one in another order waits for all that were not.
        let is_first = std::mem::replace(&mut self.order, order) != order;
        let waits_for_all = is_first && order == Order::Pipeline && !unhindered;
        let keys_of = |request: &Request| match waits_for_all {
            true => Keys::All,
            false => Keys::of(request, self.shared.key_seed, order),
        };
        let is_blocked = |keys: &Keys| match access {
            Access::Read => self.pipeline.blocks_read(keys),
            // (What turns out to change nothing has its place among the others all the same.)
            Access::Write => self.pipeline.blocks_write(keys),
        };
        if request.may_be_looked_up() && (unhindered || !is_blocked(&keys_of(&request))) {
            ahead = match command::look_ahead(&request, &self.shared, looked) {
                Ahead::Reply(reply) if reply.size() <= SHORT_BYTES => {
                    let client = &self.conversation.entry;
                    self.shared.took(id, self.read_ns, request.first_key(), client, None);
                    return self.reply(reply);
                }
                ahead => ahead,
            };
        }
        let keys = keys_of(&request);
        // In the pipeline's order each waits for the one before it.
        let access = if order == Order::Pipeline { Access::Write } else { access };
        let (protocol, since_ns) = (self.conversation.encoding(), self.read_ns);
        let asked = Asked { id, request, protocol, leave, since_ns };
        let waits = matches!(asked.request, Request::Waiting(_));
        // Whoever waits for a write looks after it.
        let admitted = self.pipeline.admit(keys, access, asked);
        if waits {
            self.held_by = Some(self.pipeline.newest());
        }
        let may_more_come = !self.input.is_empty();
        let admitted = match admitted {
            Admitted::Start(ticket, asked)
                if may_more_come && command::may_have_others(&asked.request) && !asked.request.is_put() =>
            {
                return self.held_back.push((ticket, asked));
            }
            admitted => admitted,
        };
        if let Admitted::Start(ticket, asked) = admitted
            && let Some(due) = self.start(ticket, asked, ahead, cx)
        {
            self.finished(ticket, due, cx);
        }
    }

    /// A reply that is known at once: encoded at once if nothing is before it.
    pub(super) fn reply(&mut self, reply: Reply) {
        if self.pipeline.is_empty() {
            self.put(&reply, self.conversation.encoding(), None);
        } else {
            self.held_bytes += reply.size();
            self.pipeline.push_finished((reply, self.conversation.encoding(), None));
        }
    }
}
