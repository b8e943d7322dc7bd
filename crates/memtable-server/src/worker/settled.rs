//! What requests with a session were answered without an entry in the log: failed conditions, operations that were all
//! skipped. A delayed copy of such a request must find its answer instead of taking effect after all.
//!
//! In memory only, and of this leader: an answer is remembered when it is *given*, so a truncation voids none. While an answer
//! waits for publication, copies of its request are sent away.

use std::collections::{BTreeMap, HashMap};

use sextant_proto::v1;

use crate::command::group::OpResult;

/// Sessions that are remembered; the one that was silent for longest goes first.
const SESSIONS_MAX: usize = 4096;
/// Answers of one session.
const ANSWERS_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Settled {
    sessions: HashMap<u64, Session>,
    /// Counts requests heard: a clock for "silent for longest".
    heard: u64,
}

#[derive(Debug, Default)]
struct Session {
    answers: BTreeMap<u64, Answer>,
    /// Below this number the client has all its answers: whatever arrives is a delayed copy.
    floor: u64,
    last_heard: u64,
}

#[derive(Debug)]
enum Answer {
    /// Evaluated, not yet given.
    Pending,
    Given(v1::WriteStatus, Vec<OpResult>),
}

/// What is known of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known {
    Nothing,
    /// A copy of it is waiting for its answer.
    Pending,
    Answered(v1::WriteStatus, Vec<OpResult>),
    TooOld,
}

impl Settled {
    /// A request arrives. Session 0 is no session.
    pub fn hear(&mut self, session: u64, number: u64, acked_below: u64) -> Known {
        if session == 0 {
            return Known::Nothing;
        }
        self.heard += 1;
        if self.sessions.len() >= SESSIONS_MAX && !self.sessions.contains_key(&session) {
            let silent = self.sessions.iter().min_by_key(|(_, s)| s.last_heard).map(|(id, _)| *id);
            silent.map(|id| self.sessions.remove(&id));
        }
        let known = self.sessions.entry(session).or_default();
        known.last_heard = self.heard;
        if number < known.floor {
            return Known::TooOld;
        }
        if acked_below > known.floor {
            known.floor = acked_below;
            let kept = known.answers.split_off(&acked_below);
            known.answers = kept;
        }
        match known.answers.get(&number) {
            None => Known::Nothing,
            Some(Answer::Pending) => Known::Pending,
            Some(Answer::Given(status, results)) => Known::Answered(*status, results.clone()),
        }
    }

    /// It was decided that the request changes nothing; the answer is given later.
    pub fn pending(&mut self, session: u64, number: u64) {
        self.put(session, number, Answer::Pending);
    }

    pub fn given(&mut self, session: u64, number: u64, status: v1::WriteStatus, results: &[OpResult]) {
        self.put(session, number, Answer::Given(status, results.to_vec()));
    }

    /// The answer was not given after all (leadership was lost): the request may be decided anew.
    pub fn withdrawn(&mut self, session: u64, number: u64) {
        if let Some(known) = self.sessions.get_mut(&session)
            && matches!(known.answers.get(&number), Some(Answer::Pending))
        {
            known.answers.remove(&number);
        }
    }

    fn put(&mut self, session: u64, number: u64, answer: Answer) {
        let Some(known) = self.sessions.get_mut(&session) else { return };
        if session == 0 || number < known.floor {
            return;
        }
        known.answers.insert(number, answer);
        while known.answers.len() > ANSWERS_MAX {
            if let Some((oldest, _)) = known.answers.pop_first() {
                known.floor = known.floor.max(oldest + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: v1::WriteStatus = v1::WriteStatus::WriteConditionFailed;

    #[test]
    fn a_delayed_copy_finds_its_answer_and_an_acknowledged_one_is_too_old() {
        let mut s = Settled::default();
        assert_eq!(s.hear(7, 5, 0), Known::Nothing);
        s.pending(7, 5);
        assert_eq!(s.hear(7, 5, 0), Known::Pending);
        s.given(7, 5, FAILED, &[]);
        assert_eq!(s.hear(7, 5, 0), Known::Answered(FAILED, vec![]));
        // The client has its answer: the floor rises also where nothing was written to the log.
        assert_eq!(s.hear(7, 6, 6), Known::Nothing);
        assert_eq!(s.hear(7, 5, 0), Known::TooOld);
    }

    #[test]
    fn an_answer_that_was_not_given_binds_nobody() {
        let mut s = Settled::default();
        s.hear(7, 5, 0);
        s.pending(7, 5);
        s.withdrawn(7, 5);
        assert_eq!(s.hear(7, 5, 0), Known::Nothing);
        s.given(7, 5, FAILED, &[]);
        s.withdrawn(7, 5);
        assert_eq!(s.hear(7, 5, 0), Known::Answered(FAILED, vec![]), "what was said stays said");
    }

    #[test]
    fn what_is_evicted_is_too_old_not_new() {
        let mut s = Settled::default();
        for n in 0..=ANSWERS_MAX as u64 {
            s.hear(7, n, 0);
            s.given(7, n, FAILED, &[]);
        }
        assert_eq!(s.hear(7, 0, 0), Known::TooOld);
    }
}
