//! A store in memory, for tests and for measuring the front end alone.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;
use sextant_common::Result;
use sextant_common::expiry::{Tick, is_expired};
use sextant_common::ids::Seq;
use sextant_common::object::ELEMENTS_TABLE;
use sextant_common::operation::{Change, Lane, Operation, Put, Record, WriteOutcome};
use sextant_resp::{ElementPage, ElementRange, Look, Named, Position, SetCondition, Store, Walk};

type Shard = RwLock<HashMap<Box<[u8]>, Record>>;

const SHARDS: usize = 64;

#[derive(Clone)]
pub struct MemoryStore {
    shards: Arc<[Shard; SHARDS]>,
    /// Of objects.
    elements: Arc<RwLock<BTreeMap<Bytes, Record>>>,
    hasher: std::hash::RandomState,
    /// Whether reads are answered by the fast path.
    fast: bool,
    now_ms: Arc<AtomicU64>,
    /// Of the newest version.
    seq: Arc<AtomicU64>,
}

/// Where its time begins, in milliseconds since 1970.
pub const BEGAN_MS: u64 = 1_700_000_000_000;

impl MemoryStore {
    pub fn new(fast: bool) -> Self {
        let shards = Arc::new(std::array::from_fn(|_| Shard::default()));
        Self {
            shards,
            elements: Arc::default(),
            hasher: Default::default(),
            fast,
            now_ms: Arc::new(BEGAN_MS.into()),
            seq: Arc::default(),
        }
    }

    /// Lets time go on.
    #[allow(dead_code, reason = "the measurement of the front end alone has no use for it")]
    pub fn advance(&self, ms: u64) {
        self.now_ms.fetch_add(ms, Ordering::Relaxed);
    }

    fn now(&self) -> Tick {
        Tick(self.now_ms.load(Ordering::Relaxed))
    }

    fn shard(&self, key: &[u8]) -> &Shard {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    fn read(&self, key: &[u8]) -> Option<Record> {
        self.shard(key).read().get(key).filter(|record| !is_expired(record.expires_at, self.now())).cloned()
    }
}

impl Store for MemoryStore {
    type Missed = ();

    fn look(&self, key: &[u8]) -> Look<()> {
        if self.fast { Look::Known(Ok(self.read(key))) } else { Look::Missed(()) }
    }

    fn look_element(&self, key: &[u8]) -> Option<Result<Option<Record>>> {
        self.fast.then(|| Ok(self.elements.read().get(key).cloned()))
    }

    async fn get(&self, key: Bytes, (): ()) -> Result<Option<Record>> {
        Ok(self.read(&key))
    }

    async fn multi_get(&self, keys: Vec<Bytes>, (): ()) -> Result<Vec<Option<Record>>> {
        Ok(keys.iter().map(|key| self.read(key)).collect())
    }

    async fn set(&self, put: Put, condition: SetCondition, lane: Lane) -> Result<bool> {
        let Put { key, value, lifetime } = put;
        let put = Operation::put("", key, value).lasting(lifetime).only_if(condition.into());
        Ok(self.execute(vec![put], lane).await?.applied)
    }

    async fn multi_set(&self, pairs: Vec<(Bytes, Bytes)>, _: Lane) -> Result<()> {
        for (key, value) in pairs {
            self.execute(vec![Operation::put("", key, value)], Lane::Single).await?;
        }
        Ok(())
    }

    async fn delete(&self, keys: Vec<Bytes>, _: Lane) -> Result<u64> {
        let delete = |key: &&Bytes| {
            let existed = self.read(key).is_some();
            self.shard(key).write().remove(&***key);
            existed
        };
        Ok(keys.iter().filter(delete).count() as u64)
    }

    async fn exists(&self, keys: Vec<Bytes>, (): ()) -> Result<u64> {
        Ok(keys.iter().filter(|key| self.read(key).is_some()).count() as u64)
    }

    async fn elements(&self, keys: Vec<Bytes>) -> Result<Vec<Option<Record>>> {
        let elements = self.elements.read();
        Ok(keys.iter().map(|key| elements.get(key).cloned()).collect())
    }

    async fn element_page(&self, range: ElementRange) -> Result<ElementPage> {
        // Short ones, so that there are several.
        const PAGE: u64 = 7;
        let ElementRange { start, end, reverse, limit } = range;
        let elements = self.elements.read();
        let all = elements.range(start..end).map(|(key, record)| (key.clone(), record.value.clone()));
        let most = limit.min(PAGE) as usize;
        let elements: Vec<_> =
            if reverse { all.rev().take(most).collect() } else { all.take(most).collect() };
        Ok(ElementPage { has_more: elements.len() == most, elements, took_several: false })
    }

    async fn walk(&self, walk: Walk) -> Result<(Vec<Named>, Option<Position>)> {
        let Walk { start, end, position, limit } = walk;
        let Some(shard) = self.shards.get(position.part as usize) else { return Ok((vec![], None)) };
        let next = |from: &[u8], part| Position { part, from: Bytes::copy_from_slice(from) };
        let in_range =
            |key: &[u8]| key >= &position.from[..] && key >= &start[..] && (end.is_empty() || key < &end[..]);
        let shard = shard.read();
        let keys = shard.iter().filter(|(key, _)| in_range(key));
        let mut keys: Vec<Named> =
            keys.map(|(key, record)| (Bytes::copy_from_slice(key), record.kind)).collect();
        keys.sort_unstable();
        Ok(match keys.get(limit as usize).cloned() {
            Some((more, _)) => (keys.drain(..limit as usize).collect(), Some(next(&more, position.part))),
            None => (keys, Some(next(b"", position.part + 1))),
        })
    }

    async fn any_key(&self, random: u64) -> Result<Option<Bytes>> {
        let keys: Vec<Bytes> = self
            .shards
            .iter()
            .flat_map(|shard| shard.read().keys().map(|key| Bytes::copy_from_slice(key)).collect::<Vec<_>>())
            .filter(|key| self.read(key).is_some())
            .collect();
        Ok(keys.get((random % keys.len().max(1) as u64) as usize).cloned())
    }

    fn are_together(&self, keys: &[&[u8]]) -> bool {
        // As if keys were apart that begin with "apart".
        keys.len() < 2 || !keys.iter().any(|key| key.starts_with(b"apart"))
    }

    /// One after the other, which is all that a single client can tell.
    async fn execute(&self, ops: Vec<Operation>, _: Lane) -> Result<WriteOutcome> {
        let before = |op: &Operation| match op.table == ELEMENTS_TABLE {
            true => self.elements.read().get(&op.key).cloned(),
            false => self.read(&op.key),
        };
        let (changes, outcome) = Operation::execute_batch(&ops, before, self.now());
        for (op, (change, expires_at)) in ops.iter().zip(changes) {
            if op.table == ELEMENTS_TABLE {
                let mut elements = self.elements.write();
                match change {
                    Change::To(value, kind) => {
                        let seq = Seq(self.seq.fetch_add(1, Ordering::Relaxed) + 1);
                        let (key, value) = (Bytes::copy_from_slice(&op.key), Bytes::copy_from_slice(&value));
                        elements.insert(key, Record { value, seq, expires_at, kind });
                    }
                    Change::Removed => drop(elements.remove(&op.key)),
                    Change::None => {}
                }
                continue;
            }
            let mut shard = self.shard(&op.key).write();
            match change {
                Change::To(value, kind) => {
                    let seq = Seq(self.seq.fetch_add(1, Ordering::Relaxed) + 1);
                    let record = Record { value: Bytes::copy_from_slice(&value), seq, expires_at, kind };
                    match shard.get_mut(&*op.key) {
                        Some(old) => *old = record,
                        None => drop(shard.insert(Box::from(&*op.key), record)),
                    }
                }
                Change::Removed => drop(shard.remove(&*op.key)),
                Change::None => {}
            }
        }
        Ok(outcome)
    }

    fn now_ms(&self) -> u64 {
        self.now().0
    }

    fn info(&self) -> Vec<(&'static str, Vec<(String, String)>)> {
        vec![("Memory store", vec![("shards".into(), SHARDS.to_string())])]
    }
}
