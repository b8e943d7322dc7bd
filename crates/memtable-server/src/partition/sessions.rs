//! The duplicate table: what each session's last requests answered, so that a retry takes effect once.
//!
//! Part of the replicated state. Changed when a log entry is appended, and put back when it is truncated: each change
//! returns what undoes it. A session expires by the time that log entries carry; an unknown session's requests are refused,
//! never executed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use sextant_common::limits::REMEMBERED_OPS_MAX;
use sextant_common::operation::{RecordedOutcome, RequestId};
use sextant_common::snapshot::{SessionMemory, weight};

use crate::command::RequestResult;

/// An idle session is forgotten after this long. A client that retries later gets "unknown session", never a second effect.
pub const SESSION_TTL_MS: u64 = 15 * 60 * 1000;
/// Most sessions of a partition: the longest unused goes first.
pub const SESSIONS_MAX: usize = 10_000;
/// Most results kept for a session: a client may have so many requests outstanding.
pub const RESULTS_MAX: usize = 4096;
/// And so many operations in all of a partition's sessions (32 bytes each, some 90 if they tell anything, values beside; of one session
/// [`REMEMBERED_OPS_MAX`], so the largest request still is remembered). Beyond that, sessions that were unused for longest lose
/// their answers ..
pub const ALL_OPS_MAX: usize = 8 * REMEMBERED_OPS_MAX;
/// .. until there are no more than so many: they are not looked through for each request.
const ALL_OPS_AFTER: usize = 7 * REMEMBERED_OPS_MAX;
/// Those with no more have room in any case, however many they are.
const LIGHT_OPS: usize = ALL_OPS_AFTER / SESSIONS_MAX;
/// A session that was not used for so long hardly has a request under way.
const RESTS_MS: u64 = 60 * 1000;

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
    /// What the answers of all of them weigh.
    ops: usize,
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
    /// It was opened, forgotten, or lost its answers.
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
        let mut undo: Vec<_> = gone.into_iter().map(|id| self.put(id, None)).collect();
        if self.sessions.len() >= SESSIONS_MAX && !self.sessions.contains_key(&session) {
            // Ties are broken by id, so that every replica forgets the same one.
            let oldest = self.sessions.iter().map(|(id, s)| (s.last_used_ms, *id)).min();
            if let Some((_, id)) = oldest {
                undo.push(self.put(id, None));
            }
        }
        let mut opened = match self.sessions.get(&session) {
            Some(s) if !expired(s, now_ms) => (**s).clone(),
            _ => SessionMemory::default(),
        };
        opened.last_used_ms = now_ms;
        undo.push(self.put(session, Some(Arc::new(opened))));
        undo
    }

    /// Remembers the result of a request. A session that is unknown stays so. `undo`: of more than this session, if there is no room.
    pub fn record(&mut self, request: &RequestResult, now_ms: u64, undo: &mut Vec<SessionUndo>) {
        let Some(session) = self.sessions.get_mut(&request.id.session) else { return };
        // Copied only if a checkpoint holds the session as it was.
        let session = Arc::make_mut(session);
        let (floor, last_used_ms, ops) = (session.floor, session.last_used_ms, session.ops);
        session.last_used_ms = now_ms;
        session.answers.insert(request.id.number, request.results.clone().into());
        session.ops += weight(&request.results);
        session.floor = session.floor.max(request.id.acked_below);
        let mut forgotten = Vec::new();
        while let Some(oldest) = session.answers.first_key_value().map(|(number, _)| *number)
            && (oldest < session.floor
                || session.answers.len() > RESULTS_MAX
                || session.ops > REMEMBERED_OPS_MAX)
        {
            if let Some((number, answer)) = session.answers.pop_first() {
                session.floor = session.floor.max(number.saturating_add(1));
                session.ops -= weight(&answer);
                forgotten.push((number, answer));
            }
        }
        self.ops = self.ops - ops + session.ops;
        let before = Before::Recorded { number: request.id.number, forgotten, floor, last_used_ms };
        undo.push(SessionUndo { id: request.id.session, before });
        if self.ops > ALL_OPS_MAX {
            self.make_room(request.id.session, now_ms, undo);
        }
    }

    /// Whoever repeats a request of a session that loses its answers, or has one under way, learns that it is too old, and not what
    /// became of it. Those that rest go first, and of these the heavy ones; who is active and has few answers keeps them.
    fn make_room(&mut self, user: u64, now_ms: u64, undo: &mut Vec<SessionUndo>) {
        let places = self.sessions.iter().filter(|(id, session)| **id != user && session.ops > 0).filter_map(
            |(id, session)| {
                let rests = session.last_used_ms.saturating_add(RESTS_MS) <= now_ms;
                let is_light = session.ops <= LIGHT_OPS;
                // Ties are broken by id, so that every replica forgets the same.
                (rests || !is_light).then_some((!rests, is_light, session.last_used_ms, *id))
            },
        );
        let mut places: Vec<_> = places.collect();
        places.sort_unstable();
        for (_, _, last_used_ms, id) in places {
            if self.ops <= ALL_OPS_AFTER {
                return;
            }
            let Some(session) = self.sessions.get(&id) else { continue };
            let newest = session.answers.last_key_value().map_or(0, |(number, _)| number.saturating_add(1));
            let emptied = SessionMemory::new(last_used_ms, session.floor.max(newest), BTreeMap::new());
            undo.push(self.put(id, Some(Arc::new(emptied))));
        }
    }

    /// None: it is forgotten.
    fn put(&mut self, id: u64, session: Option<Arc<SessionMemory>>) -> SessionUndo {
        self.ops += session.as_ref().map_or(0, |session| session.ops);
        let before = match session {
            Some(session) => self.sessions.insert(id, session),
            None => self.sessions.remove(&id),
        };
        self.ops -= before.as_ref().map_or(0, |session| session.ops);
        SessionUndo { id, before: Before::Whole(before) }
    }

    /// Undoes changes; the newest first.
    pub fn undo(&mut self, changes: Vec<SessionUndo>) {
        for SessionUndo { id, before } in changes.into_iter().rev() {
            match before {
                Before::Whole(session) => drop(self.put(id, session)),
                Before::Recorded { number, forgotten, floor, last_used_ms } => {
                    let Some(session) = self.sessions.get_mut(&id).map(Arc::make_mut) else {
                        continue;
                    };
                    let ops = session.ops;
                    session.answers.extend(forgotten);
                    session.answers.remove(&number);
                    session.ops = session.answers.values().map(|answer| weight(answer)).sum();
                    self.ops = self.ops - ops + session.ops;
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
        let sessions: HashMap<_, _> =
            sessions.into_iter().map(|(id, session)| (id, Arc::new(session))).collect();
        let ops = sessions.values().map(|session| session.ops).sum();
        Self { sessions, ops }
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

    fn record(s: &mut DuplicateTable, request: &RequestResult, now_ms: u64) -> Vec<SessionUndo> {
        let mut undo = Vec::new();
        s.record(request, now_ms, &mut undo);
        assert_eq!(s.ops, s.iter().map(|(_, session)| session.ops).sum::<usize>());
        undo
    }

    fn all(s: &DuplicateTable) -> Vec<(u64, SessionMemory)> {
        s.iter().map(|(id, session)| (id, session.clone())).collect()
    }

    #[test]
    fn a_retry_finds_its_result_and_an_old_one_is_refused() {
        let mut s = DuplicateTable::default();
        assert_eq!(s.seen(id(1, 0), 0), Seen::UnknownSession);
        s.open(7, 0);
        assert_eq!(s.seen(id(1, 0), 0), Seen::New);
        record(&mut s, &request(1, 0), 5);
        record(&mut s, &request(2, 0), 6);
        assert!(matches!(s.seen(id(1, 0), 6), Seen::Duplicate(r) if r[0].seq == Seq(10)));
        record(&mut s, &request(3, 3), 7);
        assert_eq!(s.seen(id(2, 0), 7), Seen::TooOld);
        assert!(matches!(s.seen(id(3, 0), 7), Seen::Duplicate(_)));
    }

    #[test]
    fn an_expired_session_is_unknown_and_reopening_it_forgets_its_results() {
        let mut s = DuplicateTable::default();
        s.open(7, 0);
        record(&mut s, &request(1, 0), 0);
        let late = SESSION_TTL_MS + 1;
        assert_eq!(s.seen(id(1, 0), late), Seen::UnknownSession);
        s.open(7, late);
        assert_eq!(s.seen(id(1, 0), late), Seen::New);
    }

    #[test]
    fn undo_puts_everything_back() {
        let mut s = DuplicateTable::default();
        s.open(7, 0);
        record(&mut s, &request(1, 0), 1);
        let before = all(&s);
        let mut undo = Vec::new();
        undo.extend(record(&mut s, &request(2, 2), 2));
        undo.extend(s.open(9, SESSION_TTL_MS + 9));
        undo.extend(record(&mut s, &request(3, 3), 3));
        s.undo(undo);
        assert_eq!(before, all(&s));
    }

    #[test]
    fn numbers_and_times_at_their_end_are_only_numbers() {
        let mut s = DuplicateTable::default();
        s.open(7, u64::MAX);
        assert_eq!(s.seen(id(u64::MAX, 0), u64::MAX), Seen::New);
        let many = vec![RecordedOutcome::default(); REMEMBERED_OPS_MAX + 1];
        record(&mut s, &RequestResult { id: id(u64::MAX, 0), results: many }, u64::MAX);
        assert_eq!(s.seen(id(5, 0), u64::MAX), Seen::TooOld);
    }

    #[test]
    fn results_are_bounded() {
        let mut s = DuplicateTable::default();
        s.open(7, 0);
        for n in 1..=RESULTS_MAX as u64 + 10 {
            record(&mut s, &request(n, 0), n);
        }
        assert_eq!(s.seen(id(10, 0), 100), Seen::TooOld);
        assert!(matches!(s.seen(id(11, 0), 100), Seen::Duplicate(_)));
    }

    #[test]
    fn all_sessions_together_are_bounded_and_those_that_rest_lose_their_answers_first() {
        const BATCH: usize = 100_000;
        let of = |session: u64, number| RequestResult {
            id: RequestId { session, number, acked_below: 0 },
            results: vec![RecordedOutcome::default(); BATCH],
        };
        let mut s = DuplicateTable::default();
        let fit = (ALL_OPS_MAX / BATCH) as u64;
        for session in (1..=fit + 1).chain([99]) {
            s.open(session, 0);
        }
        let light = RequestId { session: 99, number: 1, acked_below: 0 };
        record(&mut s, &RequestResult { id: light, results: vec![RecordedOutcome::default()] }, 0);
        let seen_light = |s: &DuplicateTable| matches!(s.seen(light, 2), Seen::Duplicate(_));
        // 2 was used before 1, which was used when the others were.
        record(&mut s, &of(2, 1), 1);
        for session in (1..=fit).filter(|session| *session != 2) {
            record(&mut s, &of(session, 1), 2);
        }
        let before = all(&s);
        assert!((1..=fit).all(|session| matches!(s.seen(of(session, 1).id, 2), Seen::Duplicate(_))));
        let undo = record(&mut s, &of(fit + 1, 1), 2);
        assert!(s.ops <= ALL_OPS_MAX);
        let answered =
            |s: &DuplicateTable, session| matches!(s.seen(of(session, 1).id, 2), Seen::Duplicate(_));
        assert_eq!([1, 2, fit, fit + 1].map(|session| answered(&s, session)), [false, false, true, true]);
        assert!(seen_light(&s), "it takes no room");
        assert_eq!((s.seen(of(2, 1).id, 2), s.seen(of(2, 2).id, 2)), (Seen::TooOld, Seen::New));
        s.undo(undo);
        assert_eq!((all(&s), s.ops), (before, BATCH * fit as usize + 1));
        // Who rests, light or not, goes before who is active.
        record(&mut s, &of(1, 2), RESTS_MS);
        record(&mut s, &of(fit + 1, 1), RESTS_MS + 1);
        let forgotten = [!seen_light(&s), !answered(&s, 2), !answered(&s, 3)];
        assert_eq!((forgotten, answered(&s, fit)), ([true; 3], true));
        assert!(
            matches!(s.seen(of(1, 2).id, 2), Seen::Duplicate(_)),
            "the oldest of all, but it was used lately"
        );
    }
}
