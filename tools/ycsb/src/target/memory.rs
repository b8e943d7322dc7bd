//! A map in memory, which can be made to answer wrongly: for tests of the generator itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use sextant_common::error::{Error, Result};
use sextant_common::operation::ReadMode;

use super::{Target, Thread};

#[derive(Default)]
pub struct State {
    pub records: BTreeMap<Bytes, Bytes>,
    pub writes: u64,
    pub reads: u64,
    /// Answers this read (counted from 1) with another record's value.
    pub wrong_read: Option<u64>,
    /// Refuses every so many-th write.
    pub refuse_every: Option<u64>,
}

#[derive(Clone, Default)]
pub struct Memory(pub Arc<Mutex<State>>);

impl Target for Memory {
    type Thread = Memory;

    async fn thread(&self, _index: usize, _mode: ReadMode) -> Result<Memory> {
        Ok(self.clone())
    }

    fn p_nodes(&self) -> usize {
        2
    }
}

impl State {
    fn write(&mut self) -> Result<()> {
        self.writes += 1;
        match self.refuse_every {
            Some(n) if self.writes.is_multiple_of(n) => Err(Error::retry("refused")),
            _ => Ok(()),
        }
    }
}

impl Thread for Memory {
    async fn read(&mut self, key: Bytes) -> Result<Option<Bytes>> {
        let mut state = self.0.lock();
        state.reads += 1;
        if state.wrong_read == Some(state.reads) {
            return Ok(state.records.iter().find(|(k, _)| **k != key).map(|(_, v)| v.clone()));
        }
        Ok(state.records.get(&key).cloned())
    }

    async fn put(&mut self, key: Bytes, value: Bytes) -> Result<()> {
        let mut state = self.0.lock();
        state.write()?;
        state.records.insert(key, value);
        Ok(())
    }

    async fn insert(&mut self, key: Bytes, value: Bytes) -> Result<bool> {
        let mut state = self.0.lock();
        state.write()?;
        let absent = !state.records.contains_key(&key);
        if absent {
            state.records.insert(key, value);
        }
        Ok(absent)
    }

    async fn scan(&mut self, start: Bytes, count: u32) -> Result<Vec<(Bytes, Bytes)>> {
        let state = self.0.lock();
        Ok(state.records.range(start..).take(count as usize).map(|(k, v)| (k.clone(), v.clone())).collect())
    }
}
