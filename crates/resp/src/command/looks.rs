//! Looks at keys that are waited for: reads that change nothing, side by side.
//!
//! Owns what is under way, and whether the last look at each key could read it. A key whose owner does not answer holds up no other:
//! what is known of the others is told without it, and its look goes on.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use sextant_common::marks::Kind;
use sextant_common::operation::Record;
use sextant_common::{Error, Result};

use crate::store::Store;

/// Most looks of one who waits that are under way.
const AT_ONCE: usize = 32;
/// Most of them at keys that could not be read the last time.
const DOUBTFUL_AT_ONCE: usize = AT_ONCE / 2;

/// A key, and what there was under it.
pub(super) type Found = HashMap<Bytes, Kind>;

type Look = BoxFuture<'static, (Bytes, Result<Option<Record>>)>;

pub(super) struct Looks<S> {
    store: S,
    under_way: FuturesUnordered<Look>,
    /// At these keys.
    looked_at: HashSet<Bytes>,
    /// Whether the last look could read them.
    was_read: HashMap<Bytes, bool>,
    /// Why the last one could not that could not.
    failure: Option<Error>,
}

impl<S: Store> Looks<S> {
    pub fn new(store: S) -> Self {
        Self {
            store,
            under_way: FuturesUnordered::new(),
            looked_at: HashSet::new(),
            was_read: HashMap::new(),
            failure: None,
        }
    }

    /// Looks at these keys, unless a look is under way. What has been found, also by earlier looks, when all have answered or none has
    /// for so long.
    pub async fn at(&mut self, keys: &[Bytes], patience: Duration) -> Found {
        let free = keys.iter().filter(|key| !self.looked_at.contains(*key)).cloned();
        let (mut doubtful, mut others): (VecDeque<Bytes>, VecDeque<Bytes>) =
            free.partition(|key| self.was_read.get(key) == Some(&false));
        let mut found = Found::new();
        loop {
            while self.under_way.len() < AT_ONCE
                && let Some(key) = others.pop_front()
            {
                self.begin(key);
            }
            while self.under_way.len() < DOUBTFUL_AT_ONCE
                && let Some(key) = doubtful.pop_front()
            {
                self.begin(key);
            }
            match tokio::time::timeout(patience, self.under_way.next()).await {
                Ok(Some((key, answer))) => {
                    self.looked_at.remove(&key);
                    match answer {
                        Ok(record) => {
                            self.was_read.insert(key.clone(), true);
                            found.extend(record.map(|record| (key, record.kind)));
                        }
                        Err(e) => {
                            self.was_read.insert(key, false);
                            self.failure = Some(e);
                        }
                    }
                }
                Ok(None) | Err(_) => return found,
            }
        }
    }

    fn begin(&mut self, key: Bytes) {
        let store = self.store.clone();
        self.looked_at.insert(key.clone());
        self.under_way.push(Box::pin(async move {
            let answer = store.get(key.clone(), S::Missed::default()).await;
            (key, answer)
        }));
    }

    /// Why none of the keys can be read; None: some can. `before`: what is known of that without any answer.
    pub fn blindness(&self, before: Option<Error>) -> Option<Error> {
        match self.was_read.values().any(|was_read| *was_read) {
            true => None,
            false => self.failure.clone().or(before),
        }
    }
}
