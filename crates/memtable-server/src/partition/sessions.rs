//! The duplicate table: what each session's last requests answered, so that a retry takes effect once.
//!
//! Part of the replicated state. Changed when a log entry is appended, and put back when it is truncated: each change
//! returns what undoes it. A session expires by the time that log entries carry; an unknown session's requests are refused,
//! never executed.

use std::collections::HashMap;
use std::sync::Arc;

use sextant_common::operation::{RecordedOutcome, RequestId};
use sextant_common::snapshot::{SessionMemory, weight};

use crate::command::RequestResult;

/// An idle session is forgotten after this long. A client that retries later gets "unknown session", never a second effect.
pub const SESSION_TTL_MS: u64 = 15 * 60 * 1000;
/// Most sessions of a partition: the longest unused goes first.
pub const SESSIONS_MAX: usize = 10_000;
/// Most results kept for a session: a client may have so many requests outstanding.
pub const RESULTS_MAX: usize = 4096;
/// And so many operations in all (32 bytes each, some 90 if they tell anything, values beside): large batches are remembered for a
/// shorter while. The largest, with all that is kept of it, still is.
pub const RESULT_OPS_MAX: usize = 128 * 1024;

/// What is known of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    New,
    /// It was answered before, like this.
    Duplicate(Arc<[RecordedOutcome]>),
    /// So old that its result is gone.
    TooOld,
    UnknownSession,
}

/// All sessions of a partition, by their ids.
#[derive(Clone, Debug, Default)]
pub struct DuplicateTable {
    sessions: HashMap<u64, Arc<SessionMemory>>,
}

/// Puts a session back to what it was.
#[derive(Debug)]
pub struct SessionUndo {
    id: u64,
    before: Before,
}

/// What was there.
#[derive(Debug)]
enum Before {
    /// It was opened, or forgotten.
    Whole(Option<Arc<SessionMemory>>),
    /// An answer was recorded; only what that changed is kept, because it happens for every request.
    Recorded { number: u64, forgotten: Vec<(u64, Arc<[RecordedOutcome]>)>, floor: u64, last_used_ms: u64 },
}

impl DuplicateTable {
    pub fn seen(&self, id: RequestId, now_ms: u64) -> Seen {
        match self.sessions.get(&id.session) {
            None => Seen::UnknownSession,
            Some(s) if expired(s, now_ms) => Seen::UnknownSession,
            Some(s) => match s.answers.get(&id.number) {
                Some(answer) => Seen::Duplicate(answer.clone()),
                None if id.number < s.floor => Seen::TooOld,
                None => Seen::New,
            },
        }
    }

    /// Opens a session (or refreshes it), and forgets those that have expired.
    pub fn open(&mut self, session: u64, now_ms: u64) -> Vec<SessionUndo> {
        let gone: Vec<u64> = self
            .sessions
            .iter()
            .filter(|(id, s)| **id != session && expired(s, now_ms))
            .map(|(id, _)| *id)
            .collect();
        let mut undo: Vec<_> = gone
            .into_iter()
            .map(|id| SessionUndo { id, before: Before::Whole(self.sessions.remove(&id)) })
            .collect();
        if self.sessions.len() >= SESSIONS_MAX && !self.sessions.contains_key(&session) {
            // Ties are broken by id, so that every replica forgets the same one.
            let oldest = self.sessions.iter().map(|(id, s)| (s.last_used_ms, *id)).min();
            if let Some((_, id)) = oldest {
                undo.push(SessionUndo { id, before: Before::Whole(self.sessions.remove(&id)) });
            }
        }
        let before = self.sessions.get(&session).cloned();
        let mut opened = match &before {
            Some(s) if !expired(s, now_ms) => (**s).clone(),
            _ => SessionMemory::default(),
        };
        opened.last_used_ms = now_ms;
        self.sessions.insert(session, Arc::new(opened));
        undo.push(SessionUndo { id: session, before: Before::Whole(before) });
        undo
    }

    /// Remembers the result of a request. A session that is unknown stays so.
    pub fn record(&mut self, request: &RequestResult, now_ms: u64) -> Option<SessionUndo> {
        // Copied only if a checkpoint holds the session as it was.
        let session = Arc::make_mut(self.sessions.get_mut(&request.id.session)?);
        let (floor, last_used_ms) = (session.floor, session.last_used_ms);
        session.last_used_ms = now_ms;
        session.answers.insert(request.id.number, request.results.clone().into());
        session.ops += weight(&request.results);
        session.floor = session.floor.max(request.id.acked_below);
        let mut forgotten = Vec::new();
        while let Some(oldest) = session.answers.first_key_value().map(|(number, _)| *number)
            && (oldest < session.floor || session.answers.len() > RESULTS_MAX || session.ops > RESULT_OPS_MAX)
        {
            if let Some((number, answer)) = session.answers.pop_first() {
                session.floor = session.floor.max(number.saturating_add(1));
                session.ops -= weight(&answer);
                forgotten.push((number, answer));
            }
        }
        let before = Before::Recorded { number: request.id.number, forgotten, floor, last_used_ms };
        Some(SessionUndo { id: request.id.session, before })
    }

    /// Undoes changes; the newest first.
    pub fn undo(&mut self, changes: Vec<SessionUndo>) {
        for SessionUndo { id, before } in changes.into_iter().rev() {
            match before {
                Before::Whole(Some(session)) => {
                    self.sessions.insert(id, session);
                }
                Before::Whole(None) => {
                    self.sessions.remove(&id);
                }
                Before::Recorded { number, forgotten, floor, last_used_ms } => {
                    let Some(session) = self.sessions.get_mut(&id).map(Arc::make_mut) else {
                        continue;
                    };
                    session.answers.extend(forgotten);
                    session.answers.remove(&number);
                    session.ops = session.answers.values().map(|answer| weight(answer)).sum();
                    (session.floor, session.last_used_ms) = (floor, last_used_ms);
                }
            }
        }
    }

    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// By rising id.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &SessionMemory)> {
        let mut ids: Vec<_> = self.sessions.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().filter_map(|id| self.sessions.get(&id).map(|s| (id, s.as_ref())))
    }
}

/// Of what a snapshot remembers.
impl FromIterator<(u64, SessionMemory)> for DuplicateTable {
    fn from_iter<I: IntoIterator<Item = (u64, SessionMemory)>>(sessions: I) -> Self {
        Self { sessions: sessions.into_iter().map(|(id, session)| (id, Arc::new(session))).collect() }
    }
}

fn expired(session: &SessionMemory, now_ms: u64) -> bool {
    session.last_used_ms.saturating_add(SESSION_TTL_MS) < now_ms
}

#[cfg(test)]
mod tests {
    use sextant_common::ids::Seq;

    use super::*;

    fn id(number: u64, acked_below: u64) -> RequestId {
        RequestId { session: 7, number, acked_below }
    }

    fn request(number: u64, acked_below: u64) -> RequestResult {
        let outcome = RecordedOutcome { applied: true, seq: Seq(number * 10), ..RecordedOutcome::default() };
        RequestResult { id: id(number, acked_below), results: vec![outcome] }
    }

    #[test]
    fn a_retry_finds_its_result_and_an_old_one_is_refused() {
        let mut s = DuplicateTable::default();
        assert_eq!(s.seen(id(1, 0), 0), Seen::UnknownSession);
        s.open(7, 0);
        assert_eq!(s.seen(id(1, 0), 0), Seen::New);
        s.record(&request(1, 0), 5);
        s.record(&request(2, 0), 6);
        assert!(matches!(s.seen(id(1, 0), 6), Seen::Duplicate(r) if r[0].seq == Seq(10)));
        s.record(&request(3, 3), 7);
        assert_eq!(s.seen(id(2, 0), 7), Seen::TooOld);
        assert!(matches!(s.seen(id(3, 0), 7), Seen::Duplicate(_)));
    }

    #[test]
    fn an_expired_session_is_unknown_and_reopening_it_forgets_its_results() {
        let mut s = DuplicateTable::default();
        s.open(7, 0);
        s.record(&request(1, 0), 0);
        let late = SESSION_TTL_MS + 1;
        assert_eq!(s.seen(id(1, 0), late), Seen::UnknownSession);
        s.open(7, late);
        assert_eq!(s.seen(id(1, 0), late), Seen::New);
    }

    #[test]
    fn undo_puts_everything_back() {
        let mut s = DuplicateTable::default();
        s.open(7, 0);
        s.record(&request(1, 0), 1);
        let before: Vec<_> = s.iter().map(|(id, s)| (id, s.clone())).collect();
        let mut undo = Vec::new();
        undo.extend(s.record(&request(2, 2), 2));
        undo.extend(s.open(9, SESSION_TTL_MS + 9));
        undo.extend(s.record(&request(3, 3), 3));
        s.undo(undo);
        let after: Vec<_> = s.iter().map(|(id, s)| (id, s.clone())).collect();
        assert_eq!(before, after);
    }

    #[test]
    fn numbers_and_times_at_their_end_are_only_numbers() {
        let mut s = DuplicateTable::default();
        s.open(7, u64::MAX);
        assert_eq!(s.seen(id(u64::MAX, 0), u64::MAX), Seen::New);
        let many = vec![RecordedOutcome::default(); RESULT_OPS_MAX + 1];
        s.record(&RequestResult { id: id(u64::MAX, 0), results: many }, u64::MAX);
        assert_eq!(s.seen(id(5, 0), u64::MAX), Seen::TooOld);
    }

    #[test]
    fn results_are_bounded() {
        let mut s = DuplicateTable::default();
        s.open(7, 0);
        for n in 1..=RESULTS_MAX as u64 + 10 {
            s.record(&request(n, 0), n);
        }
        assert_eq!(s.seen(id(10, 0), 100), Seen::TooOld);
        assert!(matches!(s.seen(id(11, 0), 100), Seen::Duplicate(_)));
    }
}
