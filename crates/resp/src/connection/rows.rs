//! Commands on one key that stand directly behind each other go [together](RowRun), instead of each waiting for the one
//! before it.
//!
//! Owns when they are gathered: when the first of them is started, from those that wait for it and nothing else. So the first one of a
//! turn is started at the turn's end.

use std::task::Context;

use futures::stream::{self, BoxStream, StreamExt};
use sextant_environment::slow_log;

use super::pipeline::Ticket;
use super::{Asked, Connection, Due};
use crate::command::{Ahead, RowRun, RowSize, go_together, may_have_others};
use crate::frame::Reply;
use crate::store::Store;

/// What is started and not done.
pub(super) type Rows = stream::SelectAll<BoxStream<'static, (Ticket, Due)>>;

impl<S: Store> Connection<S> {
    /// Starts a command that may run, with those behind it that may go with it.
    pub(super) fn start_with_others(
        &mut self,
        ticket: Ticket,
        asked: Asked,
        cx: &mut Context<'_>,
    ) -> Option<Due> {
        if !self.pipeline.has_waiting() || !may_have_others(&asked.request) {
            return self.start(ticket, asked, Ahead::default(), cx);
        }
        let mut size = RowSize::default();
        let has_room = size.takes(&asked.request);
        let mut row = vec![(ticket, asked)];
        while has_room
            && let Some((last, before)) = row.last()
            && let Some(next) = self.pipeline.take_follower(*last, |next| {
                go_together(&before.request, &next.request) && size.takes(&next.request)
            })
        {
            row.push(next);
        }
        match <[_; 1]>::try_from(row) {
            Ok([(ticket, asked)]) => return self.start(ticket, asked, Ahead::default(), cx),
            Err(row) if row.iter().all(|(_, asked)| asked.request.is_put()) => self.start_sets(row, cx),
            Err(row) => self.start_row(row),
        }
        None
    }

    /// Those that were held back until the turn's end.
    pub(super) fn start_held_back(&mut self, cx: &mut Context<'_>) {
        for (ticket, asked) in std::mem::take(&mut self.held_back) {
            if let Some(due) = self.start_with_others(ticket, asked, cx) {
                self.finished(ticket, due, cx);
            }
        }
    }

    /// Sets of this turn that are not handed over yet take those directly behind them along.
    pub(super) fn join_sets(&mut self) {
        let Self { sets, pipeline, .. } = self;
        if pipeline.has_waiting() {
            sets.join(|last, key| {
                let is_set_of_it =
                    |next: &Asked| next.request.is_put() && next.request.single_key() == Some(key);
                pipeline.take_follower(last, is_set_of_it)
            });
        }
    }

    fn start_sets(&mut self, row: Vec<(Ticket, Asked)>, cx: &mut Context<'_>) {
        let mut row = row.into_iter();
        if let Some((ticket, asked)) = row.next() {
            let started = self.start(ticket, asked, Ahead::default(), cx);
            debug_assert!(started.is_none(), "sets are handed over by the turn");
        }
        row.for_each(|(ticket, asked)| self.sets.add_to_newest(ticket, asked));
    }

    fn start_row(&mut self, row: Vec<(Ticket, Asked)>) {
        let (shared, client, lane) = (self.shared.clone(), self.conversation.entry.clone(), self.lane());
        let mut requests = Vec::with_capacity(row.len());
        let mut waiting = Vec::with_capacity(row.len());
        for (ticket, Asked { id, request, protocol, leave, since_ns }) in row {
            self.forget_hints(&request);
            waiting.push((ticket, id, request.first_key(), protocol, leave, since_ns));
            requests.push(request);
        }
        let run = RowRun::new(requests, shared.clone(), lane);
        // Each is answered before the next one begins, or at least has room for its answer.
        let rest = (waiting.into_iter(), run, shared, client);
        let due = stream::unfold(rest, |(mut waiting, mut run, shared, client)| async move {
            let (ticket, id, key, protocol, leave, since_ns) = waiting.next()?;
            let mut running = Box::pin(slow_log::traced(run.next()));
            let answered = running.as_mut().await;
            let trace = running.as_mut().take_value();
            drop(running);
            let no_reply = || (Reply::error("ERR a command without a reply: a bug"), None);
            let (reply, its_own) = answered.unwrap_or_else(no_reply);
            let trace = its_own.or(trace);
            let (reply, room) = run.meanwhile(shared.replies.admit_written(reply)).await;
            drop(leave);
            shared.took(id, since_ns, key, &client, trace.as_ref());
            Some(((ticket, (reply, protocol, room)), (waiting, run, shared, client)))
        });
        self.rows.push(due.boxed());
    }
}
