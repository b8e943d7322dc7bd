//! A small model beside the large one: elections, acknowledgement, servers that lose their memory, and how they are let in again.
//!
//! The large model takes Raft for granted, and Raft takes for granted that a voter never forgets. Here that is what is
//! explored: three servers, each with an *incarnation* that a loss of its directories replaces; votes, pre-votes and appends that
//! name the addressee's incarnation as in the sender's membership; a leader that takes an old incarnation out of the voters and
//! lets the new one in as a learner, then as a voter. What has to hold: **an acknowledged write is in the log of every later
//! leader** (and of those that lead then).
//!
//! Requests are delivered at any time while their sender is what it was when it sent them, or never; an answer is used at any
//! time after. Only what memory is needed for is modelled: no heartbeats, no timeouts, no snapshots (an append carries the
//! whole log), no leases.

mod state;
mod step;

pub use state::{Entry, Member, Role, SERVERS, Server, State, What};
pub use step::{Action, Election};

use crate::Mutant;

/// How much may happen.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub writes: u8,
    /// Servers that lose their memory; never so many at once that a majority of the voters has none.
    pub wipes: u8,
    /// Campaigns that are begun.
    pub campaigns: u8,
    /// Changes of membership that leaders append.
    pub changes: u8,
    pub mutant: Option<Mutant>,
}

impl Bounds {
    pub fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}
