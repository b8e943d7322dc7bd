//! Sets without a condition: those that one turn has started go to the store together.
//!
//! Owns what is started and not yet handed over, and who waits for what was. Most writes are such sets, and a pipeline of them costs one
//! stream, not a future for each.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::stream::{BoxStream, SelectAll, StreamExt};
use sextant_common::operation::{Lane, Put};

use super::Due;
use super::admission::Leave;
use super::pipeline::Ticket;
use crate::clients::ClientEntry;
use crate::command::set_status;
use crate::frame::Protocol;
use crate::shared::Shared;
use crate::store::Store;

#[derive(Default)]
pub(super) struct Sets {
    puts: Vec<Put>,
    /// By the place in `puts`.
    waiting: Vec<Option<Waiting>>,
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

impl Sets {
    pub fn begin(&mut self, ticket: Ticket, protocol: Protocol, leave: Leave, since_ns: u64, put: Put) {
        let key = put.key.clone();
        self.puts.push(put);
        self.waiting.push(Some(Waiting { ticket, protocol, _leave: leave, since_ns, key }));
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
            let due = done.into_iter().filter_map(|(at, result)| {
                let Waiting { ticket, protocol, since_ns, key, .. } = waiting.get_mut(at)?.take()?;
                let leader_ns = now_ns.saturating_sub(handed_ns);
                shared.set_took(now_ns.saturating_sub(since_ns), leader_ns, key, &client);
                Some((ticket, (set_status(result), protocol, None)))
            });
            due.collect()
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
