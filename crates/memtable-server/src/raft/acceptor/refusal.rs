//! Why a message is not taken.

use std::fmt::Display;

use sextant_common::error::Error;

/// Each leaves the sender as it was: it may send again.
#[derive(Debug)]
pub enum Refusal {
    /// It means another incarnation of this server, `named`, than it is.
    OtherIncarnation { named: u64, own: u64 },
    /// It makes no sense, or there is no room for it.
    Error(Error),
    /// This node cannot take it now.
    NotNow(String),
}

impl Refusal {
    /// Raft has stopped, or its log cannot go on.
    pub(super) fn of_raft(error: impl Display) -> Self {
        Self::NotNow(error.to_string())
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}
