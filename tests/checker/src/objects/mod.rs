//! Objects of the Redis protocol: what commands do to them, and whether a history of commands is linearizable.
//!
//! Owns the sequential specification ([`keyspace`]: a small Redis), histories of commands, and a search of its own. What is
//! judged together is a *group*: one key, or a few that transactions touch together. Groups have nothing to do with each
//! other, so each is judged by itself.
//!
//! Does not own how commands travel, and knows no version: the search goes by what was answered, and by when.
//!
//! Invariant: a group that passes has a legal order. One for which the steps were not enough is undecided, which is no pass.

mod command;
pub(crate) mod history;
pub(crate) mod keyspace;
mod reply;
mod search;

pub(crate) use history::{Commands, Groups, ObjectLine};
pub use reply::Reply;
pub(crate) use search::{DeadEnd, Found, search};

/// A command with its arguments, as it is sent.
pub type Command = Vec<String>;

/// How exactly objects expire. (The default: not at all.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// So long before its time an object may be gone.
    pub early_ns: u64,
    /// So long after its time nobody finds it any more.
    pub late_ns: u64,
}

impl Default for Expiry {
    fn default() -> Self {
        Self { early_ns: u64::MAX, late_ns: u64::MAX }
    }
}
