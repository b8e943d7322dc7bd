//! Commands that wait until there is something to take: `BLPOP`, `BLMOVE`, `BZPOPMIN` and their like.
//!
//! What is taken is taken as by the command that does not wait, in one batch; so an element is given to one client, once, whatever is
//! repeated. It is looked for first, by a read that changes nothing and that a lease mostly answers here; keys whose owner cannot be
//! reached have nothing, as far as anybody knows. Between `MULTI` and `EXEC` they do not wait.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use sextant_common::marks::Kind;
use sextant_common::operation::Lane;
use sextant_common::{Error, ErrorKind, Result};
use tokio::sync::oneshot;

use super::errors::{WRONG_TYPE, store_error};
use super::looks::{Found, Looks};
use super::objects::{self, Object, number, says_zero};
use super::request::Request;
use super::{Conversation, Release};
use crate::command_table::{Id, Spec};
use crate::frame::{Command, Reply};
use crate::shared::Shared;
use crate::store::Store;
use crate::waiters::Waiter;
use crate::who::{KEY_NOT_PERMITTED, Standing};

/// Most keys that one waits for, and their bytes.
const KEYS_MAX: usize = 1000;
const KEYS_BYTES_MAX: usize = 64 * 1024;
/// How long nothing may come of the looks at once, until it waits.
const PATIENCE: Duration = Duration::from_millis(100);
/// Longest wait for a turn to take something; then it looks again. (When its own time is over: [`crate::Patience`].)
const TURN_WAIT_MAX: Duration = Duration::from_millis(100);

/// A command, and how long it waits; None: for ever.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub object: Box<Object>,
    timeout: Option<Duration>,
}

pub(super) fn decode<S>(
    spec: &Spec,
    command: &Command<'_>,
    conversation: &Conversation,
    shared: &Shared<S>,
) -> std::result::Result<Request, Reply> {
    let at = match spec.id {
        Id::Blmpop | Id::Bzmpop => 1,
        _ => command.len() - 1,
    };
    // (As in Redis: what is wrong with the time is said last.)
    let object = Box::new(objects::decode(spec, command, conversation.protocol, shared)?);
    let timeout = timeout(command.arg(at))?;
    if conversation.transactions.is_open() {
        return Ok(Request::Object(object));
    }
    let bytes: usize = object.keys.iter().map(Bytes::len).sum();
    if object.keys.len() > KEYS_MAX || bytes > KEYS_BYTES_MAX {
        return Err(Reply::error(format!(
            "ERR one waits for up to {KEYS_MAX} keys, of {KEYS_BYTES_MAX} bytes together"
        )));
    }
    Ok(Request::Waiting(Box::new(Waiting { object, timeout })))
}

/// In seconds, 0: for ever.
fn timeout(text: &[u8]) -> std::result::Result<Option<Duration>, Reply> {
    const MS_MAX: f64 = i64::MAX as f64;
    let Some(seconds) = number(text) else {
        return Err(Reply::error("ERR timeout is not a float or out of range"));
    };
    // (Redis counts with more digits: what is next to nothing is not 0, which would be for ever.)
    let seconds =
        if says_zero(text) { seconds } else { seconds.abs().max(f64::MIN_POSITIVE).copysign(seconds) };
    let ms = (seconds * 1000.0).ceil();
    if ms > MS_MAX {
        return Err(Reply::error("ERR timeout is out of range"));
    }
    if ms < 0.0 {
        return Err(Reply::error("ERR timeout is negative"));
    }
    Ok((ms > 0.0).then(|| Duration::from_millis(ms as u64)))
}

/// Whether it has taken nothing.
fn is_nothing(reply: &Reply) -> bool {
    matches!(reply, Reply::Nil | Reply::NilArray)
}

/// Whether the error is of something that has certainly not taken effect, and may be otherwise soon.
fn passes(error: &Error) -> bool {
    matches!(
        error.kind,
        ErrorKind::Retry
            | ErrorKind::NotLeader
            | ErrorKind::Overloaded
            | ErrorKind::Unavailable
            | ErrorKind::UnknownSession
    )
}

/// What came of taking something that a look has found.
enum Tried {
    Done(Reply),
    /// There is nothing any more.
    Nothing,
    /// Nothing took effect; there may still be something.
    Failed(Error),
}

impl Waiting {
    /// Under which there may be something new for others who wait, when it has taken something.
    pub fn filled(&self) -> Vec<Bytes> {
        self.object.filled().iter().map(|key| Bytes::copy_from_slice(key)).collect()
    }

    fn kind(&self) -> Kind {
        self.object.waits_for().unwrap_or_default()
    }

    /// Of which it takes something.
    fn sources(&self) -> &[Bytes] {
        if self.object.is_move() { &self.object.keys[..1] } else { &self.object.keys }
    }

    /// When its time is over, from now on.
    pub fn time(&self) -> impl Future<Output = ()> + Send + use<> {
        let timeout = self.timeout;
        let sleep = timeout.map(tokio::time::sleep);
        async move {
            match sleep {
                Some(sleep) => sleep.await,
                None => std::future::pending().await,
            }
        }
    }

    /// What there is at once. Nobody is passed by who waits already. Err: it has to wait, and perhaps why none of the keys could be
    /// read.
    pub async fn at_once<S: Store>(&self, shared: &Shared<S>) -> std::result::Result<Reply, Option<Error>> {
        let (kind, sources) = (self.kind(), self.sources());
        let has_line = |key: &Bytes| shared.waiters.has_line((shared.database, kind), key);
        let free = if shared.store.are_together(sources.iter().map(|key| &key[..]))
            && !sources.iter().any(has_line)
        {
            sources.to_vec()
        } else {
            let mut looks = Looks::new(shared.store.clone());
            let found = looks.at(sources, PATIENCE).await;
            let there = sources.iter().filter_map(|key| Some((key, *found.get(key)?)));
            let mut free = Vec::new();
            for (key, its_kind) in there {
                if its_kind == kind {
                    free.extend((!has_line(key)).then(|| key.clone()));
                } else if free.is_empty() {
                    return Ok(WRONG_TYPE);
                } else {
                    break;
                }
            }
            if free.is_empty() {
                return Err(looks.blindness(Some(unanswered())));
            }
            free
        };
        let mut failure = None;
        for keys in together(shared, free) {
            match self.take(shared, keys).await {
                Ok(reply) if is_nothing(&reply) => {}
                Ok(reply) => return Ok(reply),
                Err(e) if passes(&e) => failure = Some(e),
                Err(e) => return Ok(store_error(&e)),
            }
        }
        Err(failure)
    }

    /// What it takes of these keys, which are together.
    async fn take<S: Store>(&self, shared: &Shared<S>, keys: Vec<Bytes>) -> Result<Reply> {
        let keys = if self.object.is_move() { self.object.keys.clone() } else { keys };
        Box::new(self.object.of(keys)).run(shared, Lane::Single).await
    }

    /// The keys as they are kept while it waits: copies, or they would hold all that came with them.
    fn kept(&self) -> Self {
        let keys = self.object.keys.iter().map(|key| Bytes::copy_from_slice(key)).collect();
        Self { object: Box::new(self.object.of(keys)), timeout: self.timeout }
    }

    /// Until there is something, the time is over, or it is released. `blind`: why none of the keys could be read at first.
    pub async fn wait<S: Store>(
        self: Box<Self>,
        shared: &Shared<S>,
        mut standing: Option<Standing>,
        mut released: oneshot::Receiver<Release>,
        mut time: Pin<&mut (impl Future<Output = ()> + Send)>,
        blind: Option<Error>,
    ) -> Reply {
        let waiting = self.kept();
        drop(self);
        let Some(waiter) = shared.waiters.enter((shared.database, waiting.kind()), waiting.sources()) else {
            return Reply::error("TRYAGAIN too many keys are waited for");
        };
        let mut looks = Looks::new(shared.store.clone());
        loop {
            let leads = waiter.leads();
            let found = tokio::select! {
                biased;
                why = &mut released => return why.unwrap_or(Release::Gone).reply(),
                () = &mut time => {
                    let blindness = looks.blindness(blind);
                    return waiting.over(shared, &waiter, &mut standing, &mut released, blindness).await;
                }
                found = looks.at(&leads, shared.waiters.pause()) => found,
            };
            let until = (&mut released, TURN_WAIT_MAX);
            let taken = waiting.take_found(shared, &waiter, (&leads, &found), &mut standing, until);
            if let Tried::Done(reply) = taken.await {
                return reply;
            }
            tokio::select! {
                biased;
                why = &mut released => return why.unwrap_or(Release::Gone).reply(),
                () = &mut time => {
                    let blindness = looks.blindness(blind);
                    return waiting.over(shared, &waiter, &mut standing, &mut released, blindness).await;
                }
                () = rest(shared, &waiter, !leads.is_empty()) => {}
            }
        }
    }

    /// The time is over. What has come since the last look, which may be long ago, is not left to lie: it looks once more, by a look that
    /// begins now. Whoever could read nothing does not know that there was nothing, and looks at all keys, also where others are first.
    async fn over<S: Store>(
        &self,
        shared: &Shared<S>,
        waiter: &Waiter<'_>,
        standing: &mut Option<Standing>,
        released: &mut oneshot::Receiver<Release>,
        blindness: Option<Error>,
    ) -> Reply {
        let leads = waiter.leads();
        let mut last = Looks::new(shared.store.clone());
        let keys = if blindness.is_some() { self.sources() } else { &leads };
        let found = last.at(keys, PATIENCE).await;
        let until = (released, shared.config.patience.last_turn);
        match self.take_found(shared, waiter, (&leads, &found), standing, until).await {
            Tried::Done(reply) => return reply,
            // (There was something.)
            Tried::Failed(why) => return store_error(&why),
            Tried::Nothing => {}
        }
        match blindness.and_then(|why| last.blindness(Some(why))) {
            Some(why) => store_error(&why),
            None => Reply::NilArray,
        }
    }

    /// Of the keys that it is first for, what a look has found. `patience`: until it has turns. Whoever is released until then takes
    /// nothing; from then on it is not given up: what was taken has to be told.
    async fn take_found<S: Store>(
        &self,
        shared: &Shared<S>,
        waiter: &Waiter<'_>,
        (leads, found): (&[Bytes], &Found),
        standing: &mut Option<Standing>,
        (released, mut patience): (&mut oneshot::Receiver<Release>, Duration),
    ) -> Tried {
        let is_there = |key: &&Bytes| found.get(*key) == Some(&self.kind());
        let there: Vec<Bytes> = leads.iter().filter(is_there).cloned().collect();
        if there.is_empty() {
            return Tried::Nothing;
        }
        if standing.as_mut().is_some_and(|standing| !standing.may_take(&self.object.keys)) {
            return Tried::Done(KEY_NOT_PERMITTED);
        }
        let mut failure = None;
        for keys in together(shared, there) {
            let _others_pass = waiter.tries(&keys);
            let owner = keys.first().map_or(0, |key| shared.store.owner(key));
            let turn = tokio::select! {
                biased;
                why = &mut *released => return Tried::Done(why.unwrap_or(Release::Gone).reply()),
                turn = shared.waiters.turn(owner, patience) => turn,
            };
            let Some(_turn) = turn else {
                (failure, patience) = (Some(no_turn()), Duration::ZERO);
                continue;
            };
            match self.try_to_take(shared, keys).await {
                Tried::Done(reply) => return Tried::Done(reply),
                Tried::Failed(why) => failure = Some(why),
                Tried::Nothing => {}
            }
        }
        failure.map_or(Tried::Nothing, Tried::Failed)
    }

    async fn try_to_take<S: Store>(&self, shared: &Shared<S>, keys: Vec<Bytes>) -> Tried {
        match self.take(shared, keys).await {
            Ok(reply) if is_nothing(&reply) => Tried::Nothing,
            // It has become something else since.
            Ok(reply) if reply == WRONG_TYPE && !self.object.is_move() => Tried::Nothing,
            Ok(reply) => Tried::Done(reply),
            Err(e) if passes(&e) => Tried::Failed(e),
            Err(e) => Tried::Done(store_error(&e)),
        }
    }
}

/// The keys, as far as they can be taken of in one batch.
fn together<S: Store>(shared: &Shared<S>, keys: Vec<Bytes>) -> Vec<Vec<Bytes>> {
    match shared.store.are_together(keys.iter().map(|key| &key[..])) {
        true => vec![keys],
        false => keys.into_iter().map(|key| vec![key]).collect(),
    }
}

fn no_turn() -> Error {
    Error::new(ErrorKind::Retry, "there is something, but many take of its partition, and are not answered")
}

fn unanswered() -> Error {
    Error::new(ErrorKind::Unavailable, "the owners of the keys do not answer")
}

/// `leads`: it has something to look at.
async fn rest<S>(shared: &Shared<S>, waiter: &Waiter<'_>, leads: bool) {
    match leads {
        true => drop(tokio::time::timeout(shared.waiters.pause(), waiter.woken()).await),
        false => waiter.woken().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_redis_reads_them() {
        let ms = |text: &str| timeout(text.as_bytes()).map(|time| time.map(|time| time.as_millis()));
        assert_eq!(
            (ms("0"), ms("0.0"), ms("1"), ms("0.0001")),
            (Ok(None), Ok(None), Ok(Some(1000)), Ok(Some(1)))
        );
        assert_eq!((ms("1e-400"), ms("0e-400")), (Ok(Some(1)), Ok(None)));
        for (text, error) in [
            ("x", "ERR timeout is not a float or out of range"),
            ("nan", "ERR timeout is not a float or out of range"),
            ("-1", "ERR timeout is negative"),
            ("1e30", "ERR timeout is out of range"),
            ("1e999", "ERR timeout is out of range"),
            ("inf", "ERR timeout is out of range"),
        ] {
            assert_eq!(ms(text), Err(Reply::error(error)), "{text}");
        }
    }
}
