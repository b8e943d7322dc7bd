//! Commands that one client has sent on one key, one directly behind the other: they go as one batch, in their order.
//!
//! One by one each of them would wait until the one before it is durable. As a batch they take effect at one moment, or none does; each
//! has a reply of its own. What cannot go so goes one after the other.
//!
//! Owns which go together, and how. Does not own which stand behind each other: that is the connection's.

use std::sync::Arc;

use futures::future::BoxFuture;
use sextant_common::operation::Lane;
use sextant_common::{ErrorKind, Result};

use super::ahead::Ahead;
use super::atomic::{self, Done};
use super::errors::{CROSS_SLOT, store_error};
use super::objects;
use super::request::Request;
use super::transaction::Queued;
use crate::frame::Reply;
use crate::shared::Shared;
use crate::store::Store;

/// Of a row.
pub(crate) const ROW_MAX: usize = 128;
pub(crate) const ROW_BYTES_MAX: usize = 1024 * 1024;

/// Whether a command that writes one key may go with others on it.
pub(crate) fn may_have_others(request: &Request) -> bool {
    is_operation(request) || object_row(request).is_some()
}

/// Whether it may go with the one directly before it.
pub(crate) fn go_together(before: &Request, next: &Request) -> bool {
    let is_same_key = || before.single_key().is_some() && before.single_key() == next.single_key();
    match (object_row(before), object_row(next)) {
        (None, None) => is_operation(before) && is_operation(next) && is_same_key(),
        (before, next) => before == next && is_same_key(),
    }
}

/// One of the sequencer's.
fn is_operation(request: &Request) -> bool {
    match request {
        Request::Set { .. } => true,
        Request::Change { ops, .. } => ops.len() == 1,
        Request::Delete(keys) => keys.len() == 1,
        _ => false,
    }
}

/// Of a command on an object: how it goes with others.
fn object_row(request: &Request) -> Option<objects::Row> {
    match request {
        Request::Object(object) => object.row(),
        _ => None,
    }
}

/// The replies, in the order of the commands; there is at least one.
pub(crate) fn run<S: Store>(
    requests: Vec<Request>,
    shared: Arc<Shared<S>>,
    lane: Lane,
) -> BoxFuture<'static, Vec<Reply>> {
    match requests.iter().all(|request| matches!(request, Request::Object(_))) {
        true => Box::pin(on_an_object(requests, shared, lane)),
        false => Box::pin(as_batch(requests, shared, lane)),
    }
}

async fn on_an_object<S: Store>(requests: Vec<Request>, shared: Arc<Shared<S>>, lane: Lane) -> Vec<Reply> {
    let filled: Vec<_> = requests.iter().flat_map(Request::filled).collect();
    let objects = requests.into_iter().filter_map(|request| match request {
        Request::Object(object) => Some(object),
        _ => None,
    });
    let replies = objects::run_row(objects.collect(), &shared, lane).await;
    filled.iter().for_each(|key| shared.waiters.wake(key));
    replies.into_iter().map(said).collect()
}

async fn as_batch<S: Store>(requests: Vec<Request>, shared: Arc<Shared<S>>, lane: Lane) -> Vec<Reply> {
    let commands: Vec<Queued> = requests.into_iter().map(Queued::Ask).collect();
    match atomic::run(&shared, &commands, &[], lane).await {
        Ok(Done::Replies(replies)) => return replies,
        Ok(Done::NoRoom(_)) => {}
        Err(e) if e.kind == ErrorKind::Invalid => {}
        Err(e) => return commands.iter().map(|_| store_error(&e)).collect(),
        Ok(Done::Apart | Done::Changed) => return commands.iter().map(|_| CROSS_SLOT).collect(),
    }
    let mut replies = Vec::with_capacity(commands.len());
    for command in commands {
        replies.push(match command {
            Queued::Known(reply) => reply,
            Queued::Ask(request) => request.run(shared.clone(), Ahead::default(), lane).await,
        });
    }
    replies
}

fn said(reply: Result<Reply>) -> Reply {
    reply.unwrap_or_else(|e| store_error(&e))
}
