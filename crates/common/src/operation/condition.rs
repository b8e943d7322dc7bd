//! What a write wants to find, and what is known of it.

use bytes::Bytes;

use super::LifetimeTest;
use crate::expiry::{Tick, is_expired};
use crate::ids::{ManifestVersion, Seq};
use crate::marks::Marks;

/// On what an operation depends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    #[default]
    None,
    /// The key does not exist: makes the operation an INSERT.
    Absent,
    Present,
    /// The key exists with exactly this value.
    ValueEquals(Bytes),
    /// The key's newest version is this one; 0: the key does not exist.
    SeqEquals(Seq),
    /// The key exists, and its lifetime compares so.
    Lifetime(LifetimeTest),
}

impl Condition {
    /// The value that is expected.
    pub fn value(&self) -> Option<&Bytes> {
        match self {
            Condition::ValueEquals(value) => Some(value),
            _ => None,
        }
    }

    /// The expected value's length, in bytes.
    pub fn bytes(&self) -> usize {
        self.value().map_or(0, Bytes::len)
    }
}

/// What a compare-and-set expects to find: the conditions that it may have. (Others would make it no compare-and-set.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    Absent,
    /// The key exists and has exactly this value.
    Value(Bytes),
    /// The key's newest version is this one, as a read or a write reported it.
    Seq(Seq),
}

impl From<Expected> for Condition {
    fn from(expected: Expected) -> Self {
        match expected {
            // Rather by version than as an INSERT: that is how it travels.
            Expected::Absent => Condition::SeqEquals(Seq(0)),
            Expected::Value(value) => Condition::ValueEquals(value),
            Expected::Seq(seq) => Condition::SeqEquals(seq),
        }
    }
}

/// On what a condition rests if no memtable has the key: what a p-node found in the SSTables of a manifest version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    pub manifest: ManifestVersion,
    /// False: no entry, or a tombstone.
    pub present: bool,
    /// 0: absent.
    pub seq: Seq,
    /// Whether the value is the one that the condition expects: the p-node compared it.
    pub value_matches: bool,
    /// Of the record that is present, whatever the p-node takes it for: the sequencer judges.
    pub marks: Marks,
}

impl Base {
    /// That the SSTables of a version have no record of the key.
    pub fn absent(manifest: ManifestVersion) -> Self {
        Self { manifest, present: false, seq: Seq(0), value_matches: false, marks: Marks::NONE }
    }

    /// Whether there is a record that has expired by this time.
    pub fn has_expired(&self, at: Tick) -> bool {
        self.present && is_expired(self.marks.expires_at(), at)
    }

    /// What it says at this time.
    pub fn as_of(self, at: Tick) -> Self {
        if self.has_expired(at) { Self::absent(self.manifest) } else { self }
    }
}
