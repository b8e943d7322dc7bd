//! Commands on all keys of a database at once: `DBSIZE`, `RANDOMKEY`, `FLUSHDB`; and on those of all: `FLUSHALL`. (`SCAN` and `KEYS`: [`super::scan`].)

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sextant_common::database::Database;
use sextant_common::marks::Kind;
use sextant_common::operation::Lane;
use sextant_common::{Error, ErrorKind, Result};

use super::errors::SYNTAX;
use super::scan::{KeysPlace, KeysTurns};
use super::{Conversation, is};
use crate::clients::ClientEntry;
use crate::command_table::Id;
use crate::frame::{Command, Reply};
use crate::shared::Shared;
use crate::store::{Position, Store, Walk};
use crate::who::Standing;

/// Keys that are counted, and that are deleted, in a step.
const COUNTED: u64 = 10_000;
const DELETED: u64 = 1_000;
/// How long counting may take.
const COUNT_TIME_MAX: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Whole {
    what: What,
    /// Which are emptied.
    emptied: Vec<Database>,
    /// None: everybody may do everything.
    standing: Option<Standing>,
    turns: Arc<KeysTurns>,
    client: Arc<ClientEntry>,
    user: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Count,
    /// Some key.
    Any,
    /// All are deleted, of one database or of all.
    Flush,
}

pub(super) fn decode<S>(
    id: Id,
    command: &Command<'_>,
    conversation: &mut Conversation,
    shared: &Shared<S>,
) -> std::result::Result<Whole, Reply> {
    let what = match (id, command.len()) {
        (Id::Dbsize, _) => What::Count,
        (Id::Randomkey, _) => What::Any,
        (_, 1) => What::Flush,
        (_, 2) if ["async", "sync"].iter().any(|how| is(command.arg(1), how)) => What::Flush,
        _ => return Err(SYNTAX),
    };
    if what != What::Flush && !conversation.who.may_scan(b"", b"") {
        return Err(Reply::error("NOPERM No permissions to read all keys"));
    }
    let emptied: Vec<Database> = match id {
        Id::Flushall => Database::all().collect(),
        _ => vec![shared.database],
    };
    let standing = conversation.who.standing();
    let user = conversation.who.name().to_owned();
    let (turns, client) = (shared.keys_turns.clone(), conversation.entry.clone());
    Ok(Whole { what, emptied, standing, turns, client, user })
}

impl Whole {
    pub fn writes(&self) -> bool {
        self.what == What::Flush
    }

    pub async fn run<S: Store>(self, shared: &Shared<S>, lane: Lane) -> Result<Reply> {
        if self.what == What::Any {
            return shared.store.any_key(shared.env.rng.next_u64()).await.map(Reply::optional);
        }
        let place = self.turns.enter()?;
        if self.what == What::Flush {
            return self.flush(shared, lane, &place).await;
        }
        let _turn = place.turn().await?;
        self.count(shared).await
    }

    async fn count<S: Store>(&self, shared: &Shared<S>) -> Result<Reply> {
        let until_ns = shared.now_ns().saturating_add(COUNT_TIME_MAX.as_nanos() as u64);
        let (mut count, mut at) = (0, Some(Position::default()));
        while let Some(position) = at {
            if self.client.is_gone() {
                return Err(Error::invalid("nobody waits for it any more"));
            }
            if shared.now_ns() > until_ns {
                let most = COUNT_TIME_MAX.as_secs();
                return Err(Error::invalid(format!("there are more keys than are counted in {most} s")));
            }
            let walk = Walk { start: Bytes::new(), end: Bytes::new(), position, limit: COUNTED };
            let (keys, next) = shared.store.walk(walk).await?;
            count += keys.len() as i64;
            at = next;
        }
        Ok(Reply::Integer(count))
    }

    async fn flush<S: Store>(&self, shared: &Shared<S>, lane: Lane, place: &KeysPlace<'_>) -> Result<Reply> {
        let there = match &self.emptied[..] {
            [one] => vec![*one],
            _ => shared.store.databases().await?,
        };
        let emptied: Vec<_> = self.emptied.iter().filter(|database| there.contains(database)).collect();
        if let Some(database) = emptied.iter().find(|database| !self.may_empty(***database)) {
            let number = database.number();
            shared.metrics.refused_commands.inc();
            if let Some(desk) = &shared.access {
                desk.refused(&self.user, "flushall", self.client.peer_addr());
            }
            return Ok(Reply::error(format!("NOPERM No permissions to empty database {number}")));
        }
        for database in emptied {
            if self.standing.is_some() {
                tracing::info!(target: "audit", "{} empties database {}", self.user, database.number());
            }
            self.empty(*database, shared, lane, place).await?;
        }
        Ok(Reply::OK)
    }

    fn may_empty(&self, database: Database) -> bool {
        self.standing.as_ref().is_none_or(|standing| standing.may_empty(database))
    }

    /// Step by step, so what others write meanwhile may stay. It may take long: each step is a turn.
    async fn empty<S: Store>(
        &self,
        database: Database,
        shared: &Shared<S>,
        lane: Lane,
        place: &KeysPlace<'_>,
    ) -> Result<()> {
        let (store, hints) = (shared.store.database(database), shared.hints.of(database));
        let mut at = Some(Position::default());
        while let Some(position) = at {
            let _turn = place.turn().await?;
            if self.client.is_gone() {
                return Err(Error::invalid("nobody waits for it any more"));
            }
            if !self.may_empty(database) {
                return Err(Error::new(ErrorKind::Denied, "the user may not do this any more"));
            }
            let walk = Walk { start: Bytes::new(), end: Bytes::new(), position, limit: DELETED };
            let (keys, next) = store.walk(walk).await?;
            let objects: Vec<Bytes> =
                keys.iter().filter(|(_, kind)| *kind != Kind::Plain).map(|(key, _)| key.clone()).collect();
            if !keys.is_empty() {
                store.delete(keys.into_iter().map(|(key, _)| key).collect(), lane).await?;
            }
            for key in &objects {
                hints.forget(key);
                store.is_garbage(key);
            }
            at = next;
        }
        Ok(())
    }
}
