//! Sets without a condition: those that one turn has started go to the store together.
//!
//! Owns what is started and not yet handed over, and who waits for what was. Most writes are such sets, and a pipeline of them costs one
//! stream, not a future for each.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::stream::{BoxStream, SelectAll, StreamExt};
use sextant_common::operation::{Lane, Put};

use super::admission::Leave;
use super::pipeline::Ticket;
use super::{Asked, Due};
use crate::clients::ClientEntry;
use crate::command::set_status;
use crate::frame::Protocol;
use crate::shared::Shared;
use crate::store::Store;

#[derive(Default)]
pub(super) struct Sets {
    puts: Vec<Put>,
    /// By the place in `puts`.
    waiting: Vec<Option<Row>>,
    under_way: SelectAll<BoxStream<'static, Vec<(Ticket, Due)>>>,
}

/// A command that waits for its set.
struct Waiting {
    ticket: Ticket,
    protocol: Protocol,
    _leave: Leave,
    since_ns: u64,
    key: Bytes,
}

/// One that is written, and those before it on the same key, which it takes along: at one moment, so nobody can have seen them.
struct Row {
    last: Waiting,
    before: Vec<Waiting>,
}

impl Sets {
    pub fn begin(&mut self, ticket: Ticket, protocol: Protocol, leave: Leave, since_ns: u64, put: Put) {
        let key = put.key.clone();
        self.puts.push(put);
        let last = Waiting { ticket, protocol, _leave: leave, since_ns, key };
        self.waiting.push(Some(Row { last, before: Vec::new() }));
    }

    /// A set of the same key, directly behind the one that was begun last.
    pub fn add_to_newest(&mut self, ticket: Ticket, asked: Asked) {
        if let Some(at) = self.puts.len().checked_sub(1) {
            self.add(at, ticket, asked);
        }
    }

    fn add(&mut self, at: usize, ticket: Ticket, asked: Asked) {
        let Asked { request, protocol, leave, since_ns, .. } = asked;
        let (Ok(put), Some(row)) = (request.into_put(), &mut self.waiting[at]) else { return };
        let last = Waiting { ticket, protocol, _leave: leave, since_ns, key: put.key.clone() };
        row.before.push(std::mem::replace(&mut row.last, last));
        self.puts[at] = put;
    }

    /// `follower`: takes the set that stands directly behind one of this key.
    pub fn join(&mut self, mut follower: impl FnMut(Ticket, &[u8]) -> Option<(Ticket, Asked)>) {
        for at in 0..self.waiting.len() {
            while let Some(row) = &self.waiting[at]
                && let Some((ticket, asked)) = follower(row.last.ticket, &row.last.key)
            {
                self.add(at, ticket, asked);
            }
        }
    }

    /// Hands over what was started. False: nothing was.
    pub fn hand_over<S: Store>(
        &mut self,
        shared: &Arc<Shared<S>>,
        client: &Arc<ClientEntry>,
        lane: Lane,
    ) -> bool {
        if self.puts.is_empty() {
            return false;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        let (shared, client, handed_ns) = (shared.clone(), client.clone(), shared.now_ns());
        let sets = shared.store.set_each(std::mem::take(&mut self.puts), lane);
        self.under_way.push(Box::pin(sets.map(move |done| {
            let now_ns = shared.now_ns();
            let leader_ns = now_ns.saturating_sub(handed_ns);
            let mut due = Vec::with_capacity(done.len());
            for (at, result) in done {
                let Some(Row { last, before }) = waiting.get_mut(at).and_then(Option::take) else { continue };
                let status = set_status(result);
                for Waiting { ticket, protocol, since_ns, key, .. } in before.into_iter().chain([last]) {
                    shared.set_took(now_ns.saturating_sub(since_ns), leader_ns, key, &client);
                    due.push((ticket, (status.clone(), protocol, None)));
                }
            }
            due
        })));
        true
    }

    /// What is done. Pending: nothing, and the task is woken when something is.
    pub fn poll_done(&mut self, cx: &mut Context<'_>) -> Poll<Vec<(Ticket, Due)>> {
        match self.under_way.poll_next_unpin(cx) {
            Poll::Ready(Some(done)) => Poll::Ready(done),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}
