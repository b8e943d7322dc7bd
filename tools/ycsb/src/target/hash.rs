//! Through p-nodes over RESP, records as YCSB's Redis binding keeps them: a hash each, and all keys in one sorted set, by which scans
//! find them.
//!
//! Field `stamp` is what stands before the fields in a [value](crate::record), `field0` and so on are the fields. An insert writes the
//! hash and then the index, an update the whole hash: two commands that are not atomic together, as in YCSB. Other than there, scores are
//! not Java's hash of a key, but keep the order of the keys, so that a scan can be checked.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use redis::Cmd;
use sextant_common::error::{Error, Result};
use sextant_common::operation::ReadMode;

use super::resp::{Resp, RespThread};
use super::{Target, Thread};
use crate::record::HEADER_BYTES;

const INDEX: &str = "_indices";
const STAMP: &str = "stamp";
/// As many as a score holds exactly.
const DIGITS: usize = 15;

pub struct Hashes(pub Resp);

pub struct HashThread(RespThread);

impl Target for Hashes {
    type Thread = HashThread;

    async fn thread(&self, index: usize, mode: ReadMode) -> Result<HashThread> {
        self.0.thread(index, mode).await.map(HashThread)
    }

    fn p_nodes(&self) -> usize {
        self.0.p_nodes()
    }
}

/// The first digits of a key as a number: keys of the generator sort by it, and then by themselves.
fn score(key: &[u8]) -> u64 {
    let digits = key.iter().filter(|byte| byte.is_ascii_digit()).map(|byte| u64::from(byte - b'0'));
    digits.chain(std::iter::repeat(0)).take(DIGITS).fold(0, |sum, digit| sum * 10 + digit)
}

/// `HSET key stamp .. field0 ..`.
fn set(key: &[u8], value: &[u8]) -> Cmd {
    let (stamp, body) = value.split_at(HEADER_BYTES.min(value.len()));
    let fields = usize::from(*stamp.get(1).unwrap_or(&1)).max(1);
    let mut command = redis::cmd("HSET");
    command.arg(key).arg(STAMP).arg(stamp);
    for (at, field) in body.chunks((body.len() / fields).max(1)).enumerate() {
        command.arg(format!("field{at}")).arg(field);
    }
    command
}

/// None: there is no such hash.
fn value(mut fields: HashMap<String, Vec<u8>>) -> Option<Bytes> {
    let mut value = BytesMut::from(&fields.remove(STAMP)?[..]);
    for at in 0..fields.len() {
        value.extend_from_slice(&fields.remove(&format!("field{at}"))?);
    }
    Some(value.freeze())
}

fn get(key: &[u8]) -> Cmd {
    let mut command = redis::cmd("HGETALL");
    command.arg(key);
    command
}

impl HashThread {
    /// Whether it is new.
    async fn write(&mut self, key: Bytes, value: Bytes) -> Result<bool> {
        let is_new = self.0.query::<u64>(&set(&key, &value), true).await? > 0;
        if is_new {
            let mut index = redis::cmd("ZADD");
            index.arg(INDEX).arg(score(&key)).arg(&key[..]);
            self.0.query::<u64>(&index, true).await?;
        }
        Ok(is_new)
    }
}

impl Thread for HashThread {
    async fn read(&mut self, key: Bytes) -> Result<Option<Bytes>> {
        self.0.query(&get(&key), false).await.map(value)
    }

    async fn put(&mut self, key: Bytes, value: Bytes) -> Result<()> {
        self.write(key, value).await.map(drop)
    }

    /// (What was there is overwritten.)
    async fn insert(&mut self, key: Bytes, value: Bytes) -> Result<bool> {
        self.write(key, value).await
    }

    async fn scan(&mut self, start: Bytes, count: u32) -> Result<Vec<(Bytes, Bytes)>> {
        let mut range = redis::cmd("ZRANGEBYSCORE");
        range.arg(INDEX).arg(score(&start)).arg("+inf").arg("LIMIT").arg(0).arg(count);
        let keys: Vec<Vec<u8>> = self.0.query(&range, false).await?;
        let mut found = Vec::with_capacity(keys.len());
        for key in keys.into_iter().map(Bytes::from).filter(|key| *key >= start) {
            let fields = self.0.query(&get(&key), false).await?;
            let value =
                value(fields).ok_or_else(|| Error::internal("the index has a key without a record"))?;
            found.push((key, value));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::key;
    use crate::record::Layout;

    #[test]
    fn scores_keep_the_order_of_keys() {
        let mut keys: Vec<Bytes> = (0..10_000).map(key).collect();
        keys.sort_unstable();
        assert!(keys.windows(2).all(|pair| score(&pair[0]) <= score(&pair[1])));
        assert_eq!(score(b"user12"), 120_000_000_000_000);
        assert!(score(b"user9999999999999999999") < 1 << 53);
    }

    #[test]
    fn a_record_is_taken_apart_and_put_together() {
        let layout = Layout::new(1000, 10).unwrap();
        let record = layout.generate(b"k", &mut fastrand::Rng::with_seed(1));
        let command = set(b"k", &record);
        let words: Vec<Vec<u8>> = command
            .args_iter()
            .filter_map(|word| match word {
                redis::Arg::Simple(word) => Some(word.to_vec()),
                _ => None,
            })
            .collect();
        assert_eq!(words.len(), 2 + 2 * 11);
        let fields =
            words[2..].chunks(2).map(|pair| (String::from_utf8(pair[0].clone()).unwrap(), pair[1].clone()));
        assert_eq!(value(fields.collect()), Some(record));
        assert_eq!(value(HashMap::new()), None);
    }
}
