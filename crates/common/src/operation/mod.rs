//! What clients ask of records, and what becomes of it: one vocabulary for clients, p-nodes, memtable servers and
//! tools.
//!
//! Owns the words, and what makes sense of a single operation by itself: an [`Operation`] has an [`Effect`] and a
//! [`Condition`]; a [`RequestId`] makes a repeated one take effect once; [`OpOutcome`] and [`WriteOutcome`] are what is
//! answered. As the leader of its partition gets it, an operation is a [`WriteOp`] with a [`Base`]. A read has a
//! [`ReadMode`] and finds a [`Record`]. Whoever waits does so in a [`Lane`]. Does not own how conditions are decided (memtable-server `partition/rules.rs`),
//! nor how anything travels (`proto`).

mod condition;
mod lane;
mod outcome;
mod read_mode;
mod request;

use bytes::Bytes;

use crate::error::Result;
use crate::limits::{check_key, check_value};

pub use condition::{Base, Condition, Expected};
pub use lane::Lane;
pub use outcome::{OpOutcome, Record, RecordedOutcome, WriteOutcome, WriteStatus};
pub use read_mode::ReadMode;
pub use request::{RequestId, WriteOp, WriteRequest};

/// What a write does to the record of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Put(Bytes),
    Delete,
}

impl Effect {
    /// The new value. None: a delete.
    pub fn value(&self) -> Option<&Bytes> {
        match self {
            Effect::Put(value) => Some(value),
            Effect::Delete => None,
        }
    }

    /// The new value's length, in bytes.
    pub fn bytes(&self) -> usize {
        self.value().map_or(0, Bytes::len)
    }
}

/// One write of a batch, as a client asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// "" or "default": the default table. A batch may write to several tables.
    pub table: String,
    pub key: Bytes,
    pub effect: Effect,
    pub condition: Condition,
    /// A failed condition skips this write only; otherwise it fails the whole batch.
    pub skip_on_failure: bool,
}

impl Operation {
    pub fn new(table: impl Into<String>, key: impl Into<Bytes>, effect: Effect) -> Self {
        let condition = Condition::None;
        Self { table: table.into(), key: key.into(), effect, condition, skip_on_failure: false }
    }

    /// A blind put.
    pub fn put(table: impl Into<String>, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self::new(table, key, Effect::Put(value.into()))
    }

    /// Puts only if the key does not exist.
    pub fn insert(table: impl Into<String>, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self::put(table, key, value).only_if(Condition::Absent)
    }

    /// A blind delete.
    pub fn delete(table: impl Into<String>, key: impl Into<Bytes>) -> Self {
        Self::new(table, key, Effect::Delete)
    }

    /// Deletes and reports whether the key existed: skipped if it does not.
    pub fn delete_checked(table: impl Into<String>, key: impl Into<Bytes>) -> Self {
        Self::delete(table, key).only_if(Condition::Present).skip_on_failure()
    }

    pub fn only_if(mut self, condition: Condition) -> Self {
        self.condition = condition;
        self
    }

    pub fn skip_on_failure(mut self) -> Self {
        self.skip_on_failure = true;
        self
    }

    /// What it writes: key and value, in bytes.
    pub fn written_bytes(&self) -> usize {
        self.key.len() + self.effect.bytes()
    }

    /// What it carries: the value that it expects too, in bytes.
    pub fn carried_bytes(&self) -> usize {
        self.written_bytes() + self.condition.bytes()
    }

    /// Whether its key and values are within the [limits](crate::limits).
    pub fn check(&self) -> Result<()> {
        check_key(&self.key)?;
        [self.effect.value(), self.condition.value()].into_iter().flatten().try_for_each(|v| check_value(v))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::limits::VALUE_BYTES_MAX;

    #[test]
    fn an_operation_knows_what_it_writes_and_what_it_carries() {
        let expects = Operation::put("", "k", "new").only_if(Condition::ValueEquals("before".into()));
        assert_eq!((expects.written_bytes(), expects.carried_bytes()), (4, 10));
        let checked = Operation::delete_checked("t", "key");
        assert_eq!((checked.written_bytes(), checked.carried_bytes()), (3, 3));
        assert!(checked.skip_on_failure && checked.effect.value().is_none());
    }

    #[test]
    fn key_value_and_expected_value_are_checked() {
        let too_long = || Bytes::from(vec![0; VALUE_BYTES_MAX + 1]);
        Operation::insert("", "k", "v").check().unwrap();
        for bad in [
            Operation::delete("", ""),
            Operation::put("", "k", too_long()),
            Operation::delete("", "k").only_if(Condition::ValueEquals(too_long())),
        ] {
            assert_eq!(bad.check().unwrap_err().kind, ErrorKind::Invalid);
        }
    }
}
