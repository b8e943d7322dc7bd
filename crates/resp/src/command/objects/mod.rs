//! Commands on hashes, sets, sorted sets and lists.
//!
//! Each is carried out on a [`Draft`](super::draft::Draft), which reads what it needs and is written as one batch if the object is
//! still the same version: alone, and in transactions. Commands that change elements by their names have a [quick](quick) way
//! beside it, on which those of many clients do not make each other repeat. How objects are kept: `sextant_common::object`.

mod decode;
mod hash;
mod list;
mod pages;
mod quick;
mod set;
mod sorted;

use std::sync::Arc;

use bytes::Bytes;
use sextant_common::operation::Lane;
use sextant_common::{Error, Result};
use sextant_environment::Env;

use super::atomic::{self, Done};
use super::draft::{Carried, Draft};
use super::errors::CROSS_SLOT;
use super::request::Request;
use super::transaction::Queued;
use crate::frame::Reply;
use crate::hints::Hints;
use crate::store::Store;

pub(super) use decode::decode;

/// A command on objects.
pub(crate) struct Object {
    /// Of the objects; the first one is that which is written, if there is one.
    pub keys: Vec<Bytes>,
    pub writes: bool,
    command: Command,
    hints: Arc<Hints>,
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Object").field("command", &self.command).finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Command {
    Hash(hash::Hash),
    Set(set::Set),
    Sorted(sorted::Sorted),
    List(list::List),
    Page(pages::Page),
}

impl Object {
    pub(super) async fn carry_out<S: Store>(&self, draft: &mut Draft<'_, S>) -> Carried<Reply> {
        match &self.command {
            Command::Hash(command) => command.carry_out(&self.keys[0], draft).await,
            Command::Set(command) => command.carry_out(&self.keys, draft).await,
            Command::Sorted(command) => command.carry_out(&self.keys[0], draft).await,
            Command::List(command) => command.carry_out(&self.keys, draft).await,
            Command::Page(command) => command.carry_out(&self.keys[0], draft).await,
        }
    }

    /// Alone.
    pub async fn run<S: Store>(self: Box<Self>, store: &S, env: &Env, lane: Lane) -> Result<Reply> {
        let keys: Vec<&[u8]> = self.keys.iter().map(|key| &key[..]).collect();
        if !store.are_together(&keys) {
            return Ok(CROSS_SLOT);
        }
        if let Some(reply) = quick::run(&self, store, env, lane).await? {
            return Ok(reply);
        }
        match atomic::run(store, env, &[Queued::Ask(Request::Object(self))], &[], lane).await? {
            Done::Replies(mut replies) => {
                replies.pop().ok_or_else(|| Error::internal("a command without a reply"))
            }
            Done::Apart => Ok(CROSS_SLOT),
            Done::Changed => Ok(Reply::Nil),
        }
    }
}
