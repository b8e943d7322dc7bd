//! A store in memory, for tests and for measuring the front end alone.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use sextant_common::Result;
use sextant_common::operation::{Change, Lane, Operation, WriteOutcome};
use sextant_resp::{Look, SetCondition, Store};

type Shard = RwLock<HashMap<Box<[u8]>, Bytes>>;

const SHARDS: usize = 64;

#[derive(Clone)]
pub struct MemoryStore {
    shards: Arc<[Shard; SHARDS]>,
    hasher: std::hash::RandomState,
    /// Whether reads are answered by the fast path.
    fast: bool,
}

impl MemoryStore {
    pub fn new(fast: bool) -> Self {
        Self { shards: Arc::new(std::array::from_fn(|_| Shard::default())), hasher: Default::default(), fast }
    }

    fn shard(&self, key: &[u8]) -> &Shard {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    fn read(&self, key: &[u8]) -> Option<Bytes> {
        self.shard(key).read().get(key).cloned()
    }
}

impl Store for MemoryStore {
    type Missed = ();

    fn look(&self, key: &[u8]) -> Look<()> {
        if self.fast { Look::Known(Ok(self.read(key))) } else { Look::Missed(()) }
    }

    async fn get(&self, key: Bytes, (): ()) -> Result<Option<Bytes>> {
        Ok(self.read(&key))
    }

    async fn multi_get(&self, keys: Vec<Bytes>, (): ()) -> Result<Vec<Option<Bytes>>> {
        Ok(keys.iter().map(|key| self.read(key)).collect())
    }

    async fn set(&self, key: Bytes, value: Bytes, condition: SetCondition, _: Lane) -> Result<bool> {
        let mut shard = self.shard(&key).write();
        let met = match condition {
            SetCondition::Always => true,
            SetCondition::IfAbsent => !shard.contains_key(&*key),
            SetCondition::IfPresent => shard.contains_key(&*key),
        };
        if met {
            let value = Bytes::copy_from_slice(&value);
            match shard.get_mut(&*key) {
                Some(old) => *old = value,
                None => {
                    shard.insert(Box::from(&*key), value);
                }
            }
        }
        Ok(met)
    }

    async fn multi_set(&self, pairs: Vec<(Bytes, Bytes)>, _: Lane) -> Result<()> {
        for (key, value) in pairs {
            self.set(key, value, SetCondition::Always, Lane::Single).await?;
        }
        Ok(())
    }

    async fn delete(&self, keys: Vec<Bytes>, _: Lane) -> Result<u64> {
        Ok(keys.iter().filter(|key| self.shard(key).write().remove(&***key).is_some()).count() as u64)
    }

    async fn exists(&self, keys: Vec<Bytes>, (): ()) -> Result<u64> {
        Ok(keys.iter().filter(|key| self.read(key).is_some()).count() as u64)
    }

    fn are_together(&self, keys: &[&[u8]]) -> bool {
        // As if keys were apart that begin with "apart".
        keys.len() < 2 || !keys.iter().any(|key| key.starts_with(b"apart"))
    }

    /// One after the other, which is all that a single client can tell.
    async fn execute(&self, ops: Vec<Operation>, _: Lane) -> Result<WriteOutcome> {
        // All of a batch applies, or nothing: what does not apply by itself is found first.
        let refused =
            |op: &Operation| !op.skip_on_failure && !op.execute(self.read(&op.key).as_ref()).1.applied;
        let applied = !ops.iter().any(refused);
        let mut results = Vec::new();
        for op in ops {
            let (change, mut result) = op.execute(self.read(&op.key).as_ref());
            result.applied &= applied;
            results.push(result);
            let mut shard = self.shard(&op.key).write();
            match change {
                Change::To(value) if applied => {
                    shard.insert(Box::from(&*op.key), Bytes::copy_from_slice(&value));
                }
                Change::Removed if applied => {
                    shard.remove(&*op.key);
                }
                _ => {}
            }
        }
        Ok(WriteOutcome { applied, results })
    }

    fn info(&self) -> Vec<(&'static str, Vec<(String, String)>)> {
        vec![("Memory store", vec![("shards".into(), SHARDS.to_string())])]
    }
}
