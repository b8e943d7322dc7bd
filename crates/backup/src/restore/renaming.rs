//! Objects get new versions when they are restored.
//!
//! Versions are never given twice: what a cluster still has of an object (elements that are not swept yet, or of what it has become)
//! must not become part of what is restored, and a sweep that has found an old version dead must not take what has just come back. So
//! each run of a restore draws a number, and versions are combined with it: in headers and in the keys of elements, of a backup and of
//! the log after it alike. Two versions that differed differ afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use sextant_common::database::Database;
use sextant_common::error::{Error, Result};
use sextant_common::marks::Kind;
use sextant_common::object::{Header, inner_key, version_of, version_part};
use sextant_common::sstable::RecordVersion;

use crate::records::{Joined, bytes_of};

/// So much of a key is told.
const KEY_TOLD_BYTES: usize = 64;

/// Which tables: headers of objects are written before any of their elements, which a sweep would delete otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All tables but those of elements.
    Headers,
    Elements,
}

impl Part {
    pub fn of(table: &str) -> Self {
        match Database::all().any(|database| database.elements() == table) {
            true => Self::Elements,
            false => Self::Headers,
        }
    }
}

/// Of one run.
#[derive(Clone, Copy, Debug)]
pub struct Renaming(u64);

impl Renaming {
    pub fn new(random: u64) -> Self {
        Self(random)
    }

    fn version(self, version: u64) -> u64 {
        version ^ self.0
    }

    /// The record as it is restored into this table. None: it is not (a mark of sweepers, of no object).
    pub fn record(self, table: &str, record: RecordVersion) -> Result<Option<RecordVersion>> {
        match Part::of(table) {
            Part::Elements => Ok(self.element(record)),
            Part::Headers => self.header(table, record).map(Some),
        }
    }

    fn element(self, record: RecordVersion) -> Option<RecordVersion> {
        let (inner, version) = (inner_key(&record.key)?, version_of(&record.key)?);
        if inner.is_empty() {
            return None;
        }
        let mut key = record.key.to_vec();
        let at = 2 + inner.len();
        key.get_mut(at..at + 8)?.copy_from_slice(&self.version(version).to_be_bytes());
        Some(RecordVersion { key: key.into(), ..record })
    }

    fn header(self, table: &str, record: RecordVersion) -> Result<RecordVersion> {
        let Some(value) = record.value.as_ref().filter(|_| record.marks.kind() != Kind::Plain) else {
            return Ok(record);
        };
        let header = Header::decode(value).ok_or_else(|| {
            let key =
                String::from_utf8_lossy(&record.key[..record.key.len().min(KEY_TOLD_BYTES)]).into_owned();
            Error::corrupt(format!("table {table:?}: the header of the object {key:?} is damaged"))
        })?;
        let header = Header { version: self.version(header.version), ..header };
        Ok(RecordVersion { value: Some(header.encode()), ..record })
    }
}

/// Loads take keys that rise. Where an object has left elements of several versions, the new ones may come in another order.
#[derive(Clone, Debug)]
pub enum Pass {
    All,
    /// Those whose keys rise; whether there are others is said there.
    Rising(Arc<AtomicBool>),
    /// The others.
    Others,
}

/// Records of a backup, as they are restored into a table.
pub struct Renamed {
    records: Joined,
    table: String,
    renaming: Renaming,
    pass: Pass,
    /// The object whose elements come, as their keys begin, and the beginning of the highest of the keys.
    highest: Option<Bytes>,
}

impl Renamed {
    pub fn new(records: Joined, table: &str, renaming: Renaming, pass: Pass) -> Self {
        Self { records, table: table.to_owned(), renaming, pass, highest: None }
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    fn next(&mut self) -> Result<Option<RecordVersion>> {
        while let Some(record) = self.records.next()? {
            let Some(record) = self.renaming.record(&self.table, record)? else { continue };
            if self.is_wanted(&record) {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    fn is_wanted(&mut self, record: &RecordVersion) -> bool {
        if Part::of(&self.table) == Part::Headers {
            return !matches!(self.pass, Pass::Others);
        }
        let rises = rises(&mut self.highest, &record.key);
        match &self.pass {
            Pass::All => true,
            Pass::Others => !rises,
            Pass::Rising(has_others) => {
                if !rises {
                    has_others.store(true, Ordering::Relaxed);
                }
                rises
            }
        }
    }

    /// The next of them; up to so many, and about so many bytes. Empty: that was all.
    pub fn next_page(&mut self, count_max: usize, bytes_max: usize) -> Result<Vec<RecordVersion>> {
        let (mut page, mut bytes) = (Vec::new(), 0);
        while page.len() < count_max && bytes < bytes_max {
            let Some(record) = self.next()? else { break };
            bytes += bytes_of(&record);
            page.push(record);
        }
        Ok(page)
    }
}

/// Whether an element is of the highest version of its object so far. (Objects follow each other, and so do elements of a version.)
fn rises(highest: &mut Option<Bytes>, key: &Bytes) -> bool {
    let Some(part) = version_part(key) else { return true };
    if highest.as_ref().is_some_and(|before| **before == *part) {
        return true;
    }
    let steps_back =
        highest.as_ref().is_some_and(|before| **before > *part && inner_key(before) == inner_key(part));
    if !steps_back {
        *highest = Some(key.slice(..part.len()));
    }
    !steps_back
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sextant_common::ids::Seq;
    use sextant_common::marks::Marks;
    use sextant_common::object::{Tag, element_key};

    use super::*;

    fn record(key: Bytes, value: Option<Bytes>, kind: Kind) -> RecordVersion {
        RecordVersion { key, seq: Seq(1), value, marks: Marks::new(kind, None) }
    }

    fn element(object: &[u8], version: u64, field: &[u8]) -> RecordVersion {
        record(element_key(object, version, Tag::Field, field), Some("v".into()), Kind::Plain)
    }

    const ELEMENTS: &str = sextant_common::object::ELEMENTS_TABLE;

    #[test]
    fn a_header_and_its_elements_get_the_same_new_version_and_nothing_else_changes() {
        let renaming = Renaming::new(0xff00);
        let header = Header { version: 0x0ff0, count: 3, ends: Some((4, 5)) };
        let renamed =
            renaming.record("db1", record("k".into(), Some(header.encode()), Kind::List)).unwrap().unwrap();
        assert_eq!(Header::decode(&renamed.value.unwrap()), Some(Header { version: 0xf0f0, ..header }));
        assert_eq!(renamed.marks.kind(), Kind::List);
        for value in [Some(Bytes::from("v")), None] {
            let of =
                |version| record(element_key(b"k", version, Tag::Field, b"f"), value.clone(), Kind::Plain);
            assert_eq!(renaming.record(ELEMENTS, of(0x0ff0)).unwrap(), Some(of(0xf0f0)));
        }
        // Plain records stay, whatever their bytes; so do tombstones of headers.
        for plain in [
            record("k".into(), Some(header.encode()), Kind::Plain),
            record("k".into(), None, Kind::Plain),
            record("k".into(), None, Kind::Hash),
        ] {
            assert_eq!(renaming.record("default", plain.clone()).unwrap(), Some(plain));
        }
    }

    #[test]
    fn what_is_no_header_is_told_and_what_is_no_element_is_left_out() {
        let renaming = Renaming::new(1);
        let damaged =
            renaming.record("default", record("key".into(), Some("x".into()), Kind::Hash)).unwrap_err();
        assert!(damaged.message.contains("\"default\"") && damaged.message.contains("\"key\""), "{damaged}");
        let claim = [&[0, 0][..], b"walk", &[0, 0, 0, 7]].concat();
        for key in [claim, vec![], vec![0], vec![0, 9, 1], vec![0, 1, b'k', 1, 2]] {
            assert_eq!(renaming.record(ELEMENTS, record(key.into(), None, Kind::Plain)).unwrap(), None);
        }
    }

    proptest! {
        /// What rises, in keys that rise, and what does not, are all elements, each once.
        #[test]
        fn keys_rise_or_come_later(
            elements in prop::collection::btree_set((0u8..3, 0u64..6, 0u8..3), 0..40),
            random: u64,
        ) {
            let renaming = Renaming::new(random);
            let mut records: Vec<_> = elements.iter().map(|(k, v, f)| element(&[*k], *v, &[*f])).collect();
            records.sort_by(|a, b| a.key.cmp(&b.key));
            let renamed: Vec<Bytes> =
                records.into_iter().map(|r| renaming.record(ELEMENTS, r).unwrap().unwrap().key).collect();
            let mut highest = None;
            let (rising, others): (Vec<&Bytes>, Vec<&Bytes>) = renamed.iter().partition(|key| rises(&mut highest, key));
            prop_assert!(rising.windows(2).all(|two| two[0] < two[1]));
            prop_assert_eq!(rising.len() + others.len(), elements.len());
            let distinct: std::collections::BTreeSet<_> = renamed.iter().collect();
            prop_assert_eq!(distinct.len(), elements.len());
        }
    }
}
