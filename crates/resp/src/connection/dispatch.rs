//! What comes in, one command after the other: answered at once, or admitted to the pipeline and started.
//!
//! Invariant: a key is looked at in place only if nothing that conflicts with the read is before it.

use std::future::Future;
use std::task::{Context, Poll};

use sextant_common::limits;
use sextant_common::operation::Lane;

use super::admission::Leave;
use super::pipeline::{Admitted, Keys, Ticket};
use super::{Connection, Due, EXPECTED_BYTES_MAX, Intake, OUTPUT_BYTES_HIGH};
use crate::command::{self, Action, Ahead, Request};
use crate::command_table::{Access, Id};
use crate::frame::{Protocol, Reply};
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
}

impl<S: Store> Connection<S> {
    /// Runs a command. It is polled once right here: many stores answer at once, and need no place among the running. (But for sets
    /// without a condition, which the turn hands over together.)
    pub(super) fn start(
        &mut self,
        ticket: Ticket,
        (request, ahead): (Request, Ahead<S::Missed>),
        protocol: Protocol,
        leave: Leave,
        cx: &mut Context<'_>,
    ) -> Option<Due> {
        let request = match request.into_put() {
            Ok(put) => {
                self.sets.begin(ticket, protocol, leave, put);
                return None;
            }
            Err(request) => request,
        };
        let access = request.access();
        let mut running = Box::pin(request.run(self.shared.store.clone(), ahead, self.lane()));
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
    pub(super) fn dispatch(&mut self, cx: &mut Context<'_>) -> (Dispatched, bool) {
        let mut progress = false;
        loop {
            if let Some(waiting) = &mut self.waiting {
                let Poll::Ready(waited) = waiting.as_mut().poll(cx) else {
                    return (Dispatched::Busy, progress);
                };
                self.waiting = None;
                let reply = waited(&mut self.conversation);
                self.reply(reply);
                progress = true;
            }
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
                Ok(false)
                    if self.parser.announced() > STRANGERS_BYTES_MAX && self.conversation.who.is_nobody() =>
                {
                    self.reply(Reply::error("NOAUTH Authentication required."));
                    self.close_intake();
                    return (Dispatched::NeedsInput, true);
                }
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
            let lane = if self.pipeline.unfinished() > 0 { Lane::Pipelined } else { Lane::Single };
            if !self.admission.take_turn(&self.shared.turns, lane, cx) {
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
                Action::Wait(waiting) => self.waiting = Some(waiting),
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
        if limits::check_key(key).is_err() || !self.conversation.who.may_read(key) {
            return InPlace::NoGet;
        }
        let value = match self.shared.store.look(key) {
            Look::Known(Ok(value)) if value.as_ref().is_none_or(|value| value.len() <= SHORT_BYTES) => value,
            look => return InPlace::Looked(look),
        };
        let reply = Reply::optional(value);
        self.output.put(&reply, self.conversation.protocol, None);
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
        let keys_of = |request: &Request| Keys::of(request, self.shared.key_seed);
        if access == Access::Read && (unhindered || !self.pipeline.blocks_read(&keys_of(&request))) {
            ahead = match command::look_ahead(&request, &self.shared.store, looked) {
                Ahead::Reply(reply) if reply.size() <= SHORT_BYTES => return self.reply(reply),
                ahead => ahead,
            };
        }
        let keys = keys_of(&request);
        let protocol = self.conversation.protocol;
        // Whoever waits for a write looks after it.
        if let Admitted::Start(ticket, (request, protocol, leave)) =
            self.pipeline.admit(keys, access, (request, protocol, leave))
            && let Some(due) = self.start(ticket, (request, ahead), protocol, leave, cx)
        {
            self.finished(ticket, due, cx);
        }
    }

    /// A reply that is known at once: encoded at once if nothing is before it.
    fn reply(&mut self, reply: Reply) {
        if self.pipeline.is_empty() {
            self.put(&reply, self.conversation.protocol, None);
        } else {
            self.held_bytes += reply.size();
            self.pipeline.push_finished((reply, self.conversation.protocol, None));
        }
    }
}
