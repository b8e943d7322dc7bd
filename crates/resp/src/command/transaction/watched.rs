//! What is watched: the versions that were found, and whether the connection has met others since.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use sextant_common::ids::Seq;
use sextant_common::{Error, Result};

use super::super::request::Request;
use crate::queued::Piece;

/// Keys of a command, each of which is compared with all that are watched.
const UNDER_WATCH_KEYS_MAX: usize = 64;

/// The keys of a `WATCH`, and the versions that it found: those that a transaction wants to find again. None: not yet, or it failed.
#[derive(Debug)]
pub(crate) struct Watched {
    /// Copies: nothing else of the command is kept.
    pub keys: Box<[Bytes]>,
    /// 0: the key does not exist.
    pub seen: OnceLock<Vec<Seq>>,
    /// A command of the connection met something else. (A key that did not exist may not exist again: versions do not show that.)
    met_another: AtomicBool,
    /// It may be looked for after it is not watched any more.
    _room: Option<Piece>,
}

impl Watched {
    pub fn new(keys: &[Bytes], room: Option<Piece>) -> Self {
        Self {
            keys: keys.iter().map(|key| Bytes::copy_from_slice(key)).collect(),
            seen: OnceLock::new(),
            met_another: AtomicBool::new(false),
            _room: room,
        }
    }

    /// Whether it is one of them, and did not exist as far as is known.
    fn may_come_and_go(&self, key: &[u8]) -> bool {
        match self.seen.get() {
            Some(_) => self.absent(key).is_some(),
            None => self.keys.iter().any(|watched| watched == key),
        }
    }

    /// It, if it is one of them and did not exist.
    fn absent(&self, key: &[u8]) -> Option<&Bytes> {
        let mut seen = self.keys.iter().zip(self.seen.get()?);
        seen.find(|(watched, seq)| *watched == key && **seq == Seq(0)).map(|(watched, _)| watched)
    }

    pub fn met_another(&self) {
        self.met_another.store(true, Ordering::Relaxed);
    }

    /// What a transaction expects of them. None: that has not been so all the time.
    pub fn expected(&self) -> Result<Option<impl Iterator<Item = (&Bytes, Seq)>>> {
        let seen = self
            .seen
            .get()
            .ok_or_else(|| Error::invalid("nothing took effect: the keys to watch could not be read"))?;
        let is_as_it_was = !self.met_another.load(Ordering::Relaxed);
        Ok(is_as_it_was.then(|| self.keys.iter().zip(seen).map(|(key, seq)| (key, *seq))))
    }
}

/// What is to be done, if that may meet a key that is watched and did not exist.
pub(super) fn under_watch(all: &[Arc<Watched>], request: Request) -> Request {
    let comes_later = matches!(
        request,
        Request::Watch(_)
            | Request::Transaction(_)
            | Request::Waiting(_)
            | Request::Scan(_)
            | Request::Whole(_)
            | Request::UnderWatch(_)
    );
    if all.is_empty() || comes_later {
        return request;
    }
    let mut keys = 0;
    request.for_each_key(&mut |_| keys += 1);
    if keys > UNDER_WATCH_KEYS_MAX {
        return request;
    }
    let mut watched: Vec<Arc<Watched>> = Vec::new();
    request.for_each_key(&mut |key| {
        let of_key = all.iter().filter(|watched| watched.may_come_and_go(key));
        watched.extend(of_key.cloned());
    });
    if watched.is_empty() {
        return request;
    }
    Request::UnderWatch(Box::new(UnderWatch { request, watched }))
}

/// A command on keys that its connection watches and that did not exist when that began: does it still meet that?
#[derive(Debug)]
pub(crate) struct UnderWatch {
    pub request: Request,
    pub watched: Vec<Arc<Watched>>,
}

/// Those keys of a request that are watched and did not exist.
pub(in crate::command) fn absent_of<'w>(
    watched: &'w [Arc<Watched>],
    request: &Request,
) -> Vec<(&'w Bytes, Seq)> {
    let mut absent = Vec::new();
    request.for_each_key(&mut |key| {
        let key = watched.iter().find_map(|watched| watched.absent(key));
        absent.extend(key.map(|key| (key, Seq(0))));
    });
    absent
}
