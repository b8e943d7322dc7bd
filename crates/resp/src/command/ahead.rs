//! The fast path of reads: what a store knows of their keys without waiting, and what it found out of the first that it does not.
//!
//! Invariant: from when a command has its turn, each key is looked at once. What a look found out is handed to the read that has
//! to ask. (Not of commands on objects, which look at all that they need or begin anew.)

use super::errors::{plain, store_error, value};
use super::request::Request;
use sextant_common::operation::Record;

use crate::frame::Reply;
use crate::shared::Shared;
use crate::store::{Look, Store};

/// Most keys that are looked at in place for one command: other connections wait meanwhile.
const KEYS_MAX: usize = 64;

/// Most bytes of values that wait for the rest of a command. With more, all of it is asked for, under the store's own limit.
const HELD_BYTES_MAX: usize = 1024 * 1024;

/// How far a read came without waiting.
pub(crate) enum Ahead<M> {
    /// All the way.
    Reply(Reply),
    /// Up to a key that has to be asked for.
    Missed(Head<M>),
}

/// The keys before the first one that is not at hand. The default: none, and nobody has looked.
#[derive(Default)]
pub(crate) struct Head<M> {
    /// How many there are.
    pub keys: usize,
    /// Their values, if the command wants them.
    pub values: Vec<Reply>,
    /// How many of them exist, if the command wants to know.
    pub exist: i64,
    /// Of the key after them.
    pub missed: M,
}

impl<M: Default> Default for Ahead<M> {
    fn default() -> Self {
        Self::Missed(Head::default())
    }
}

/// Looks at the keys of a read, of which nothing that conflicts with it is before it. `looked`: at the key of a `GET`, just now.
pub(crate) fn look_ahead<S: Store>(
    request: &Request,
    shared: &Shared<S>,
    looked: Option<Look<S::Missed>>,
) -> Ahead<S::Missed> {
    fn one<M>(look: Look<M>, reply: impl FnOnce(Option<Record>) -> Reply) -> Ahead<M>
    where
        Head<M>: Default,
    {
        match look {
            Look::Known(value) => Ahead::Reply(value.map_or_else(|e| store_error(&e), reply)),
            Look::Missed(missed) => Ahead::Missed(Head { missed, ..Head::default() }),
        }
    }
    let store = &shared.store;
    match request {
        Request::Get(key) => one(looked.unwrap_or_else(|| store.look(key)), value),
        Request::Inspect(key, aspect) => one(store.look(key), |record| aspect.of(record, store.now_ms())),
        Request::MultiGet(keys) if keys.len() <= KEYS_MAX => {
            let (mut values, mut bytes) = (Vec::with_capacity(keys.len()), 0);
            for key in keys {
                match store.look(key) {
                    Look::Known(Ok(record)) => {
                        bytes += record.as_ref().map_or(0, |record| record.value.len());
                        values.push(plain(record));
                    }
                    Look::Known(Err(e)) => return Ahead::Reply(store_error(&e)),
                    Look::Missed(_) if bytes > HELD_BYTES_MAX => return Ahead::default(),
                    Look::Missed(missed) => {
                        return Ahead::Missed(Head { keys: values.len(), values, missed, ..Head::default() });
                    }
                }
            }
            Ahead::Reply(Reply::Array(values))
        }
        Request::Exists(keys) if keys.len() <= KEYS_MAX => {
            let mut exist = 0;
            for (at, key) in keys.iter().enumerate() {
                match store.look(key) {
                    Look::Known(Ok(record)) => exist += i64::from(record.is_some()),
                    Look::Known(Err(e)) => return Ahead::Reply(store_error(&e)),
                    Look::Missed(missed) => {
                        return Ahead::Missed(Head { keys: at, exist, missed, ..Head::default() });
                    }
                }
            }
            Ahead::Reply(Reply::Integer(exist))
        }
        Request::Object(object) => {
            let reply = object.look(store).or_else(|| object.remember(shared));
            reply.map_or_else(Ahead::default, Ahead::Reply)
        }
        _ => Ahead::default(),
    }
}
