//! `SCAN` and `KEYS`: walks over the keys.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sextant_common::key::prefix_end;
use sextant_common::limits::KEY_BYTES_MAX;
use sextant_common::marks::Kind;
use sextant_common::{Error, ErrorKind, Result};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::errors::{NOT_AN_INTEGER, SYNTAX};
use super::{Conversation, is};
use crate::clients::ClientEntry;
use crate::cursors::Cursors;
use crate::frame::{Command, Reply, parse_integer};
use crate::glob::{Glob, PATTERN_BYTES_MAX};
use crate::shared::Shared;
use crate::store::{Named, Position, Store, Walk};

/// Records that a `SCAN` looks at, if it does not say how many (Redis' figure).
const COUNT_DEFAULT: u64 = 10;
/// Most that it may look at.
const COUNT_MAX: u64 = 10_000;
/// Most records that `KEYS` looks at.
const KEYS_RECORDS_MAX: u64 = 1_000_000;
/// Longest reply to it, in memory.
const KEYS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// What a key takes there beside its bytes.
const KEY_BYTES: usize = 96;
/// How long it may take: a client may have gone long ago.
const KEYS_TIME_MAX: Duration = Duration::from_secs(60);
/// So many of them look at keys at once, and so many more wait for that: each holds a turn that other commands wait for.
const KEYS_AT_ONCE: usize = 2;
const KEYS_WAITING_MAX: usize = 16;
/// After so many steps of comparing keys with a pattern others have their turn.
pub(super) const STEPS: usize = 100_000;

/// What is looked for, and where.
#[derive(Debug)]
pub(crate) struct Scan {
    pattern: Option<Glob>,
    /// Of which what is found is.
    kinds: Vec<Kind>,
    count: u64,
    position: Position,
    extent: Extent,
    env: sextant_environment::Env,
}

/// How much of it at once.
#[derive(Debug)]
enum Extent {
    Step(Arc<Cursors>),
    /// For this client.
    All(Arc<KeysTurns>, Arc<ClientEntry>),
}

/// Who may look at all keys now, of all connections of a server.
#[derive(Debug)]
pub(crate) struct KeysTurns {
    waiting: Semaphore,
    running: Semaphore,
}

impl Default for KeysTurns {
    fn default() -> Self {
        Self {
            waiting: Semaphore::new(KEYS_AT_ONCE + KEYS_WAITING_MAX),
            running: Semaphore::new(KEYS_AT_ONCE),
        }
    }
}

impl KeysTurns {
    /// A place among those who wait for turns.
    pub(super) fn enter(&self) -> Result<KeysPlace<'_>> {
        let too_many = |_| Error::new(ErrorKind::Retry, "others look at all keys at the moment: use SCAN");
        Ok(KeysPlace { turns: self, _place: self.waiting.try_acquire().map_err(too_many)? })
    }
}

/// Of one who takes a turn, or several.
pub(super) struct KeysPlace<'t> {
    turns: &'t KeysTurns,
    _place: SemaphorePermit<'t>,
}

impl KeysPlace<'_> {
    pub async fn turn(&self) -> Result<SemaphorePermit<'_>> {
        self.turns.running.acquire().await.map_err(|_| Error::internal("no turns any more"))
    }
}

impl Scan {
    /// The range that the pattern leaves: from, and up to.
    fn range(&self) -> (Bytes, Bytes) {
        let Some(pattern) = &self.pattern else { return <_>::default() };
        let prefix = pattern.prefix();
        let start = Bytes::copy_from_slice(prefix);
        match pattern.is_literal() {
            // Just this key.
            true => (start, Bytes::from([prefix, b"\0"].concat())),
            false => (start, if prefix.is_empty() { Bytes::new() } else { prefix_end(prefix) }),
        }
    }

    /// Those of the keys that are looked for.
    async fn taken(&self, keys: Vec<Named>) -> Vec<Bytes> {
        let of_kind = keys.into_iter().filter(|(_, kind)| self.kinds.contains(kind));
        let keys: Vec<Bytes> = of_kind.map(|(key, _)| key).collect();
        let Some(pattern) = &self.pattern else { return keys };
        let (mut taken, mut steps) = (Vec::new(), 0);
        for key in keys {
            if pattern.matches(&key, &mut steps) {
                taken.push(key);
            }
            if steps > STEPS {
                steps = 0;
                tokio::task::yield_now().await;
            }
        }
        taken
    }

    pub async fn run<S: Store>(self, store: &S) -> Result<Reply> {
        // (Servers would have to be asked for keys that there cannot be, with as long a range.)
        let is_vain = self.pattern.as_ref().is_some_and(|pattern| pattern.prefix().len() > KEY_BYTES_MAX);
        match &self.extent {
            Extent::Step(_) if is_vain => {
                Ok(Reply::Array(vec![Reply::Bulk(Bytes::from_static(b"0")), Reply::Array(vec![])]))
            }
            Extent::All(..) if is_vain => Ok(Reply::Array(vec![])),
            Extent::Step(cursors) => self.step(store, cursors).await,
            Extent::All(turns, client) => self.all(store, turns, client).await,
        }
    }

    async fn step<S: Store>(&self, store: &S, cursors: &Cursors) -> Result<Reply> {
        let (start, end) = self.range();
        let walk = Walk { start, end, position: self.position.clone(), limit: self.count };
        let (keys, next) = store.walk(walk).await?;
        let number = next.map_or(0, |position| cursors.give(position, &self.env));
        let keys = self.taken(keys).await.into_iter().map(Reply::Bulk);
        Ok(Reply::Array(vec![Reply::Bulk(Bytes::from(number.to_string())), Reply::Array(keys.collect())]))
    }

    async fn all<S: Store>(&self, store: &S, turns: &KeysTurns, client: &ClientEntry) -> Result<Reply> {
        let place = turns.enter()?;
        let _turn = place.turn().await?;
        let (start, end) = self.range();
        let until_ns = self.env.clock.holder_ns().saturating_add(KEYS_TIME_MAX.as_nanos() as u64);
        let (mut found, mut bytes, mut looked_at) = (Vec::new(), 0, 0);
        let mut at = Some(self.position.clone());
        while let Some(position) = at {
            if client.is_gone() {
                return Err(Error::invalid("nobody waits for it any more"));
            }
            if self.env.clock.holder_ns() > until_ns {
                return Err(Error::invalid(format!(
                    "KEYS takes up to {} s: use SCAN",
                    KEYS_TIME_MAX.as_secs()
                )));
            }
            let limit = COUNT_MAX / 10;
            let (start, end) = (start.clone(), end.clone());
            let (keys, next) = store.walk(Walk { start, end, position, limit }).await?;
            looked_at += keys.len() as u64;
            for key in self.taken(keys).await {
                bytes += key.len() + KEY_BYTES;
                found.push(Reply::Bulk(key));
            }
            if bytes > KEYS_BYTES_MAX {
                return Err(Error::invalid(format!(
                    "KEYS answers with up to {KEYS_BYTES_MAX} bytes: use SCAN"
                )));
            }
            if looked_at >= KEYS_RECORDS_MAX && next.is_some() {
                return Err(Error::invalid(format!(
                    "KEYS looks at up to {KEYS_RECORDS_MAX} records: use SCAN"
                )));
            }
            at = next;
        }
        Ok(Reply::Array(found))
    }

    /// Whether the user may know of all keys that there may be.
    fn permitted(self, conversation: &mut Conversation) -> std::result::Result<Self, Reply> {
        let (start, end) = self.range();
        match conversation.who.may_scan(&start, &end) {
            true => Ok(self),
            false => Err(Reply::error("NOPERM No permissions to read all keys of this pattern")),
        }
    }
}

fn all_kinds() -> Vec<Kind> {
    [Kind::Plain].into_iter().chain(Kind::OBJECTS).collect()
}

pub(super) fn glob(pattern: &[u8]) -> std::result::Result<Glob, Reply> {
    Glob::new(pattern)
        .ok_or_else(|| Reply::error(format!("ERR a pattern has up to {PATTERN_BYTES_MAX} bytes")))
}

pub(super) fn scan<S>(
    command: &Command<'_>,
    conversation: &mut Conversation,
    shared: &Shared<S>,
) -> std::result::Result<Scan, Reply> {
    const INVALID_CURSOR: Reply = Reply::Error(Bytes::from_static(b"ERR invalid cursor"));
    let text = std::str::from_utf8(command.arg(1)).ok();
    let number: u64 = text.and_then(|text| text.parse().ok()).ok_or(INVALID_CURSOR)?;
    let (mut pattern, mut kinds, mut count) = (None, all_kinds(), COUNT_DEFAULT);
    let mut i = 2;
    while i < command.len() {
        if i + 1 == command.len() {
            return Err(SYNTAX);
        }
        let (option, value) = (command.arg(i), command.arg(i + 1));
        if is(option, "count") {
            count = match parse_integer(value) {
                Some(count) if count > 0 => count as u64,
                Some(_) => return Err(SYNTAX),
                None => return Err(NOT_AN_INTEGER),
            };
        } else if is(option, "match") {
            pattern = Some(glob(value)?);
        } else if is(option, "type") {
            kinds.retain(|kind| is(value, kind.name()));
        } else {
            return Err(SYNTAX);
        }
        i += 2;
    }
    let position = match number {
        0 => Position::default(),
        number => shared.cursors.find(number).ok_or(INVALID_CURSOR)?,
    };
    let (extent, env) = (Extent::Step(shared.cursors.clone()), shared.env.clone());
    let scan = Scan { pattern, kinds, count: count.min(COUNT_MAX), position, extent, env };
    scan.permitted(conversation)
}

pub(super) fn keys<S>(
    command: &Command<'_>,
    conversation: &mut Conversation,
    shared: &Shared<S>,
) -> std::result::Result<Scan, Reply> {
    let pattern = Some(glob(command.arg(1))?);
    let (position, env) = (Position::default(), shared.env.clone());
    let extent = Extent::All(shared.keys_turns.clone(), conversation.entry.clone());
    Scan { pattern, kinds: all_kinds(), count: 0, position, extent, env }.permitted(conversation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn few_look_at_all_keys_at_once_and_few_wait_for_that() {
        let turns = KeysTurns::default();
        let places: Vec<_> = (0..KEYS_AT_ONCE + KEYS_WAITING_MAX).map(|_| turns.enter().unwrap()).collect();
        assert_eq!(turns.enter().err().unwrap().kind, ErrorKind::Retry);
        let running = futures::future::try_join_all(places[1..=KEYS_AT_ONCE].iter().map(KeysPlace::turn));
        let running = running.await.unwrap();
        let mut next = Box::pin(places[0].turn());
        assert!(futures::poll!(next.as_mut()).is_pending());
        drop(running);
        assert!(next.as_mut().await.is_ok());
        drop(next);
        drop(places);
        assert!(turns.enter().is_ok());
    }
}
