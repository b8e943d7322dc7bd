//! `SCAN` and `KEYS`: walks over the keys.

use std::sync::Arc;

use bytes::Bytes;
use sextant_common::key::prefix_end;
use sextant_common::marks::Kind;
use sextant_common::{Error, Result};

use super::errors::{NOT_AN_INTEGER, SYNTAX};
use super::{Conversation, is};
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
/// Longest reply to it, in bytes of keys.
const KEYS_BYTES_MAX: usize = 16 * 1024 * 1024;
/// After so many steps of comparing keys with a pattern others have their turn.
const STEPS: usize = 100_000;

/// What is looked for, and where.
#[derive(Debug)]
pub(crate) struct Scan {
    pattern: Option<Glob>,
    /// Of which what is found is.
    kinds: Vec<Kind>,
    count: u64,
    position: Position,
    /// None: all of it at once.
    cursors: Option<Arc<Cursors>>,
    env: sextant_environment::Env,
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
        match self.cursors.clone() {
            Some(cursors) => self.step(store, &cursors).await,
            None => self.all(store).await,
        }
    }

    async fn step<S: Store>(self, store: &S, cursors: &Cursors) -> Result<Reply> {
        let (start, end) = self.range();
        let walk = Walk { start, end, position: self.position.clone(), limit: self.count };
        let (keys, next) = store.walk(walk).await?;
        let number = next.map_or(0, |position| cursors.give(position, &self.env));
        let keys = self.taken(keys).await.into_iter().map(Reply::Bulk);
        Ok(Reply::Array(vec![Reply::Bulk(Bytes::from(number.to_string())), Reply::Array(keys.collect())]))
    }

    async fn all<S: Store>(self, store: &S) -> Result<Reply> {
        let (start, end) = self.range();
        let (mut found, mut bytes, mut looked_at) = (Vec::new(), 0, 0);
        let mut at = Some(self.position.clone());
        while let Some(position) = at {
            let limit = COUNT_MAX / 10;
            let (start, end) = (start.clone(), end.clone());
            let (keys, next) = store.walk(Walk { start, end, position, limit }).await?;
            looked_at += keys.len() as u64;
            for key in self.taken(keys).await {
                bytes += key.len() + 16;
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
    let (cursors, env) = (Some(shared.cursors.clone()), shared.env.clone());
    let scan = Scan { pattern, kinds, count: count.min(COUNT_MAX), position, cursors, env };
    scan.permitted(conversation)
}

pub(super) fn keys<S>(
    command: &Command<'_>,
    conversation: &mut Conversation,
    shared: &Shared<S>,
) -> std::result::Result<Scan, Reply> {
    let pattern = Some(glob(command.arg(1))?);
    let (position, env) = (Position::default(), shared.env.clone());
    Scan { pattern, kinds: all_kinds(), count: 0, position, cursors: None, env }.permitted(conversation)
}
