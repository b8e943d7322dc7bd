//! What the front end needs from whoever holds the data.

use std::future::Future;

use bytes::Bytes;
use sextant_common::Result;

/// When a `SET` takes effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SetCondition {
    #[default]
    Always,
    /// `NX`: only if the key does not exist.
    IfAbsent,
    /// `XX`: only if the key exists.
    IfPresent,
}

/// A key-value store, cheap to clone.
///
/// Keys and values that are passed in are within `sextant_common::limits` and are slices of a connection's input buffer:
/// whoever keeps one beyond the call copies it, or it pins the whole buffer.
///
/// The front end may drop a future before it is done (a server that stops); a write that was under way then may or may not
/// take effect. Every future must end on its own within the store's deadline: the front end sets none.
pub trait Store: Clone + Send + Sync + 'static {
    fn get(&self, key: Bytes) -> impl Future<Output = Result<Option<Bytes>>> + Send;

    /// One result a key, in the order of the keys. Linearizable for each key; not a snapshot.
    fn multi_get(&self, keys: Vec<Bytes>) -> impl Future<Output = Result<Vec<Option<Bytes>>>> + Send;

    /// Whether the value was set: false only if the condition failed.
    fn set(
        &self,
        key: Bytes,
        value: Bytes,
        condition: SetCondition,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// The keys are distinct. Atomic for the keys of one partition only.
    fn multi_set(&self, pairs: Vec<(Bytes, Bytes)>) -> impl Future<Output = Result<()>> + Send;

    /// How many of the keys (distinct) existed.
    fn delete(&self, keys: Vec<Bytes>) -> impl Future<Output = Result<u64>> + Send;

    /// How many of the keys exist; a key that is named twice counts twice.
    fn exists(&self, keys: Vec<Bytes>) -> impl Future<Output = Result<u64>> + Send;

    /// The fast path: what [`Store::get`] would answer, if that is known without waiting. `None`: use `get`.
    fn try_get(&self, key: &[u8]) -> Option<Result<Option<Bytes>>>;

    /// Sections for `INFO`: a title, and pairs of field and value.
    fn info(&self) -> Vec<(&'static str, Vec<(String, String)>)>;
}
