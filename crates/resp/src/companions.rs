//! Commands on one object that have come while another one on it is under way, which go together then.
//!
//! Each reads the object and writes it if it has not changed meanwhile: side by side, all but one would have to try again. So the
//! first one of a key goes alone (or with those of its own client that stand directly behind it), those that come meanwhile wait, and then
//! go as one batch, each with a reply of its own.
//!
//! Before it begins, whoever leads lets those pass that [repeat](crate::repeats) on the key and do not stand in its line.
//!
//! Whoever waits in a line holds a turn that others wait for. So it has a place among the commands of its key's owner as well, which
//! the store may refuse, and does not wait for ever.
//!
//! Invariant: a key has a line only while somebody leads it; whoever leads, and is gone, has passed that on.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::clock::Clock;
use tokio::sync::oneshot;

use crate::command::{Object, Objects};
use crate::frame::Reply;
use crate::store::InLine;

/// Most commands that go together, and bytes of their arguments.
const TOGETHER_MAX: usize = 512;
const TOGETHER_BYTES_MAX: usize = 1024 * 1024;

pub(crate) struct Companions {
    lines: Lines,
    clock: Arc<dyn Clock>,
    /// Whoever has waited longer when the next ones go is refused.
    wait_max: Duration,
}

type Lines = Arc<Mutex<HashMap<Bytes, VecDeque<Companion>>>>;

/// A command, and where its client waits.
#[derive(Debug)]
pub(crate) struct Companion {
    object: Box<Object>,
    turn: oneshot::Sender<Turn>,
    since_ns: u64,
    place: Option<InLine>,
}

/// Where a command stands.
pub(crate) enum Entered {
    First(Lead, Box<Object>),
    /// Another one leads; this is where it is told what becomes of it.
    Behind(oneshot::Receiver<Turn>),
}

/// What one who waits is told.
#[derive(Debug)]
pub(crate) enum Turn {
    /// It is to be done now, with those that have come after it.
    Lead(Lead, Box<Object>, Vec<Companion>),
    Done(Result<Reply>),
}

/// Whoever has it leads the line of its key.
pub(crate) struct Lead {
    /// None: it has passed that on.
    lines: Option<Lines>,
    key: Bytes,
    clock: Arc<dyn Clock>,
    wait_max: Duration,
}

impl std::fmt::Debug for Lead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lead").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Of a command that goes with others. It keeps its place until it is told what became of it.
pub(crate) struct Client {
    turn: oneshot::Sender<Turn>,
    _place: Option<InLine>,
}

impl Client {
    pub fn done(self, reply: Result<Reply>) {
        // (It may be gone.)
        let _ = self.turn.send(Turn::Done(reply));
    }
}

impl Companion {
    pub fn parts(self) -> (Box<Object>, Client) {
        (self.object, Client { turn: self.turn, _place: self.place })
    }
}

impl Companions {
    pub fn new(clock: Arc<dyn Clock>, wait_max: Duration) -> Self {
        Self { lines: Lines::default(), clock, wait_max }
    }

    fn lead(&self, key: Bytes) -> Lead {
        Lead { lines: Some(self.lines.clone()), key, clock: self.clock.clone(), wait_max: self.wait_max }
    }

    /// `place`: of one who waits. Err: there is none.
    pub fn enter(
        &self,
        object: Box<Object>,
        place: impl FnOnce(&[u8]) -> Result<Option<InLine>>,
    ) -> Result<Entered> {
        // (A copy: the key would hold on to the whole input of its client.)
        let key = Bytes::copy_from_slice(&object.keys[0]);
        let mut lines = self.lines.lock();
        if let Some(line) = lines.get_mut(&key) {
            let place = place(&key)?;
            let (turn, told) = oneshot::channel();
            let since_ns = self.clock.holder_ns();
            line.push_back(Companion { object, turn, since_ns, place });
            return Ok(Entered::Behind(told));
        }
        lines.insert(key.clone(), VecDeque::new());
        Ok(Entered::First(self.lead(key), object))
    }
}

/// Where a row stands.
pub(crate) enum EnteredRow {
    First(Lead, Objects),
    /// Others lead; where each is told what becomes of it, in their order. Err: it has no place.
    Behind(Vec<Result<oneshot::Receiver<Turn>>>),
}

impl Companions {
    /// Several of one key, so that nobody comes between them.
    pub fn enter_row(&self, objects: Objects, place: impl Fn(&[u8]) -> Result<Option<InLine>>) -> EnteredRow {
        let Some(first) = objects.first() else { return EnteredRow::Behind(vec![]) };
        let key = Bytes::copy_from_slice(&first.keys[0]);
        let mut lines = self.lines.lock();
        let Some(line) = lines.get_mut(&key) else {
            lines.insert(key.clone(), VecDeque::new());
            return EnteredRow::First(self.lead(key), objects);
        };
        let since_ns = self.clock.holder_ns();
        let enter = |object| {
            let place = place(&key)?;
            let (turn, told) = oneshot::channel();
            line.push_back(Companion { object, turn, since_ns, place });
            Ok(told)
        };
        EnteredRow::Behind(objects.into_iter().map(enter).collect())
    }
}

/// Those that go next.
fn taken(line: &mut VecDeque<Companion>) -> Vec<Companion> {
    let mut bytes = 0;
    let fits = |companion: &&Companion| {
        bytes += companion.object.bytes;
        bytes <= TOGETHER_BYTES_MAX
    };
    let count = line.iter().take(TOGETHER_MAX).take_while(fits).count();
    line.drain(..count.max(1).min(line.len())).collect()
}

pub(crate) fn overdue() -> Error {
    Error::new(ErrorKind::Retry, "nothing took effect: it has waited too long for others on the same key")
}

/// Those that have waited too long at this time.
fn refuse_overdue(line: &mut VecDeque<Companion>, now_ns: u64, wait_max: Duration) {
    let is_overdue = |c: &Companion| now_ns.saturating_sub(c.since_ns) > wait_max.as_nanos() as u64;
    while line.front().is_some_and(is_overdue) {
        if let Some(companion) = line.pop_front() {
            companion.parts().1.done(Err(overdue()));
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        let Some(all) = self.lines.take() else { return };
        let now_ns = self.clock.holder_ns();
        let mut lines = all.lock();
        if let Some(line) = lines.get_mut(&self.key) {
            refuse_overdue(line, now_ns, self.wait_max);
        }
        loop {
            let Some(line) = lines.get_mut(&self.key) else { return };
            let mut next = taken(line).into_iter();
            let Some(Companion { object, turn, .. }) = next.next() else {
                lines.remove(&self.key);
                return;
            };
            let (key, clock) = (self.key.clone(), self.clock.clone());
            let lead = Lead { lines: Some(all.clone()), key, clock, wait_max: self.wait_max };
            match turn.send(Turn::Lead(lead, object, next.collect())) {
                // It is gone; those after it are not.
                Err(Turn::Lead(mut lead, _, others)) => {
                    lead.lines = None;
                    others.into_iter().rev().for_each(|companion| line.push_front(companion));
                }
                _ => return,
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use sextant_environment::clock::WallInterval;

    use super::*;

    /// Milliseconds that a test says.
    pub(crate) struct Said(pub AtomicU64);

    impl Clock for Said {
        fn wall(&self) -> WallInterval {
            WallInterval::UNSYNCHRONISED
        }
        fn wall_guess_ns(&self) -> u64 {
            0
        }
        fn holder_ns(&self) -> u64 {
            self.0.load(Ordering::Relaxed) * 1_000_000
        }
        fn grantor_ns(&self) -> u64 {
            self.holder_ns()
        }
    }

    fn enter(all: &Companions) -> Entered {
        all.enter(Object::of_key("k"), |_| Ok(None)).unwrap()
    }

    fn behind(all: &Companions) -> oneshot::Receiver<Turn> {
        match enter(all) {
            Entered::Behind(told) => told,
            Entered::First(..) => panic!("another one leads"),
        }
    }

    #[tokio::test]
    async fn who_waits_behind_one_who_meets_nobody_does_not_wait_for_ever() {
        let clock = Arc::new(Said(AtomicU64::new(0)));
        let all = Companions::new(clock.clone(), Duration::from_secs(5));
        let Entered::First(lead, _) = enter(&all) else { panic!("nobody leads") };
        let early = behind(&all);
        clock.0.store(4000, Ordering::Relaxed);
        let late = behind(&all);
        clock.0.store(6000, Ordering::Relaxed);
        drop(lead);
        assert!(matches!(early.await.unwrap(), Turn::Done(Err(e)) if e.kind == ErrorKind::Retry));
        let Turn::Lead(lead, _, others) = late.await.unwrap() else { panic!("it is next") };
        assert!(others.is_empty());
        drop(lead);
        assert!(matches!(enter(&all), Entered::First(..)), "there is no line any more");
    }

    #[test]
    fn who_has_no_place_does_not_wait() {
        let all = Companions::new(Arc::new(Said(AtomicU64::new(0))), Duration::from_secs(5));
        let _first = enter(&all);
        let refused = all.enter(Object::of_key("k"), |_| Err(Error::new(ErrorKind::Overloaded, "full")));
        assert_eq!(refused.err().unwrap().kind, ErrorKind::Overloaded);
    }
}
