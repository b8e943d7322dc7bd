//! Changes of the partition's voters: who is asked to vote.
//!
//! A change goes: new servers get the log as *learners* ([`learn`]) -> a majority of the voters to be answers and has nearly the whole
//! log -> the lease counts both sets ([`counted`], with the proof) -> Raft does joint consensus -> the lease counts the new set ->
//! whoever is no voter any more is let go. What a crash leaves half-way (two sets of voters, learners) the next leader finishes.
//! Who has lost its memory is taken out and let in again by itself ([`rejoin`]).

mod counted;
mod learn;
mod rejoin;
mod steps;

use std::collections::BTreeSet;

use sextant_common::error::{Error, Result};
use tokio::sync::oneshot;

use crate::worker::standing::Standing;

pub(in crate::worker) use counted::Memberships;

/// How long a majority of the voters to be may take to answer: many heartbeats.
const READY_NS: u64 = 3_000_000_000;
/// How long a removed server may take to learn that it was removed. After that it is let go all the same.
const FAREWELL_NS: u64 = 3_000_000_000;

/// How soon Raft is asked again to finish a change, if it refused.
const ASK_AGAIN_NS: u64 = 100_000_000;

/// What a leader knows of changes of its voters.
#[derive(Default)]
pub(in crate::worker) struct Voters {
    change: Option<VoterChange>,
    /// Since when there are learners that nobody wants (holder's clock): they are let go.
    idle_learners_since_ns: Option<u64>,
    /// Not before this time (grantor's clock) Raft is asked again to finish a change.
    ask_again_ns: u64,
}

struct VoterChange {
    target: BTreeSet<u64>,
    stage: Stage,
    /// None: finishes what a former leader began.
    done: Option<oneshot::Sender<Result<()>>>,
}

enum Stage {
    /// New servers get the log.
    Learning,
    /// Raft is asked as soon as a majority of the target has answered what was sent from now on (holder's clock).
    Ready { since_ns: u64 },
    /// Raft was asked, so the lease counts the target. It is asked until it answers: an answer that nobody waited for might
    /// be followed by the change.
    Asked,
    /// Raft has answered. Over when the membership is uniform and committed, whatever it is.
    Answered(Result<()>),
    /// Raft was asked to let learners go: no set of voters changes.
    LettingGo,
}

impl Voters {
    /// What Raft was asked for and may still do.
    fn asked(&self) -> Option<&BTreeSet<u64>> {
        let asked = self.change.as_ref().filter(|c| matches!(c.stage, Stage::Asked | Stage::Answered(_)));
        asked.map(|c| &c.target)
    }

    /// Raft is about to be asked to let learners go: the voters stay.
    fn lets_go(&mut self, voters: BTreeSet<u64>) {
        self.idle_learners_since_ns = None;
        self.change = Some(VoterChange { target: voters, stage: Stage::LettingGo, done: None });
    }

    pub fn are_changing(&self) -> bool {
        self.change.is_some()
    }

    pub fn are_busy(&self) -> bool {
        self.are_changing() || self.idle_learners_since_ns.is_some()
    }

    /// Leadership ends: what becomes of a change that Raft was asked for, the next leader decides.
    pub fn end(&mut self, term: u64, standing: &mut Standing) {
        if let Some(target) = self.asked() {
            standing.leave_behind(term, target.clone());
        }
        if let Some(change) = self.change.take() {
            VoterChange::end(
                change.done,
                Err(Error::retry("leadership changed: the status shows who votes")),
            );
        }
    }
}

impl VoterChange {
    fn end(done: Option<oneshot::Sender<Result<()>>>, result: Result<()>) {
        if let Some(done) = done {
            let _ = done.send(result);
        }
    }
}
