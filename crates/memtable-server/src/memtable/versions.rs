//! The versions of one key: its record, and the chain of records that hangs from it, newest first.
//!
//! The version in the key's record is the oldest, and comes last. (If an older one does come, a copy of it goes into the chain: then
//! nobody who walks the chain gets as far as the original who should not.)

use bytes::Bytes;
use sextant_common::marks::Marks;

use super::Version;
use super::arena::{At, New, Record, Value, Writing};

/// A version, where it stands.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'m>(Record<'m>);

impl<'m> Seen<'m> {
    pub fn seq(&self) -> u64 {
        self.0.seq()
    }

    /// None: a tombstone.
    pub fn value(&self) -> Option<&'m [u8]> {
        match self.0.value() {
            Value::Tombstone => None,
            Value::Inline(value) => Some(value),
            Value::Apart(value) => Some(value),
        }
    }

    pub fn marks(&self) -> Marks {
        self.0.marks()
    }

    pub fn to_version(&self) -> Version {
        self.with_value(Bytes::copy_from_slice(self.inline_value()))
    }

    /// What of the value stands in the record: all of it, unless it is long.
    pub(super) fn inline_value(&self) -> &'m [u8] {
        match self.0.value() {
            Value::Inline(value) => value,
            Value::Tombstone | Value::Apart(_) => &[],
        }
    }

    /// The version, given a copy of its inline value.
    pub(super) fn with_value(&self, inline: Bytes) -> Version {
        let value = match self.0.value() {
            Value::Tombstone => None,
            Value::Inline(_) => Some(inline),
            Value::Apart(value) => Some(value.clone()),
        };
        Version { seq: self.seq(), value, marks: self.marks() }
    }
}

/// A version that is written, but for its seq.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewVersion<'v> {
    /// None: a tombstone.
    pub value: Option<&'v [u8]>,
    pub marks: Marks,
}

impl<'v> NewVersion<'v> {
    pub(super) fn record<'n>(&self, key: Option<&'n [u8]>, seq: u64, link: At) -> New<'n>
    where
        'v: 'n,
    {
        let Self { value, marks } = *self;
        New { key, seq, value, marks, link }
    }

    /// What it takes beyond its header.
    pub(super) fn bytes(&self) -> usize {
        self.value.map_or(0, <[u8]>::len) + if self.marks.is_none() { 0 } else { size_of::<u64>() }
    }
}

/// The newest version with a seq of at most `at`.
pub fn newest<'m>(key: Record<'m>, at: u64) -> Option<Seen<'m>> {
    let mut version = key;
    while let Some(older) = version.next() {
        if older.seq() <= at {
            return Some(Seen(older));
        }
        version = older;
    }
    (!key.is_removed() && key.seq() <= at).then_some(Seen(key))
}

/// Adds a version to a key. False: it has one with this seq.
pub fn add(writing: &mut Writing<'_>, key: Record<'_>, seq: u64, new: &NewVersion<'_>) -> bool {
    // It goes behind this one.
    let mut newer = key;
    let mut next = key.next();
    while let Some(version) = next
        && version.seq() > seq
    {
        newer = version;
        next = version.next();
    }
    let original = key.seq();
    let in_original = next.is_none() && !key.is_removed();
    if next.is_some_and(|version| version.seq() == seq) || in_original && original == seq {
        return false;
    }
    let link = newer.link();
    let (mut at, _) = writing.put(new.record(None, seq, link));
    let newer_is_newer = newer.is_same(&key) || newer.seq() > original;
    if in_original && original > seq && newer_is_newer {
        let here = Seen(key);
        let copy = NewVersion { value: here.value(), marks: here.marks() };
        (at, _) = writing.put(copy.record(None, original, at));
    }
    newer.set_link(at);
    true
}

/// Takes a version out; who is at it walks on. Its value, if it was there.
pub fn remove<'m>(_: &Writing<'m>, key: Record<'m>, seq: u64) -> Option<Seen<'m>> {
    let mut removed = None;
    let mut newer = key;
    while let Some(version) = newer.next() {
        if version.seq() == seq {
            newer.set_link(version.link());
            removed = Some(Seen(version));
            break;
        }
        newer = version;
    }
    if !key.is_removed() && key.seq() == seq {
        key.set_removed();
        removed = Some(Seen(key));
    }
    removed
}
