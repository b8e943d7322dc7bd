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
use sextant_common::ids::DEFAULT_TABLE_NAME;
use sextant_common::marks::Kind;
use sextant_common::object::{Bounds, Header, inner_key, version_of, version_part};
use sextant_common::sstable::RecordVersion;

use crate::records::PASSED_MAX;

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

/// Whether a table is one of keys of the Redis protocol: nobody else writes objects.
fn has_headers(table: &str) -> bool {
    table == DEFAULT_TABLE_NAME || Database::all().any(|database| database.table() == table)
}

/// Of one run.
#[derive(Clone, Copy, Debug)]
pub struct Renaming(u64);

impl Renaming {
    /// `random`: not 0, which would change nothing.
    pub fn new(random: u64) -> Self {
        Self(random)
    }

    pub fn of(self, table: &str) -> TableRenaming {
        let holds = match Part::of(table) {
            Part::Elements => Holds::Elements,
            Part::Headers if has_headers(table) => Holds::Headers,
            Part::Headers => Holds::NoObjects,
        };
        TableRenaming { table: table.into(), holds, random: self.0 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Headers,
    Elements,
    NoObjects,
}

/// As the records of a table are restored.
#[derive(Clone, Debug)]
pub struct TableRenaming {
    table: Arc<str>,
    holds: Holds,
    random: u64,
}

impl TableRenaming {
    fn version(&self, version: u64) -> u64 {
        version ^ self.random
    }

    /// None: it is not restored (a mark of sweepers, of no object).
    ///
    /// # Errors
    /// It is of an object, and no header.
    pub fn record(&self, record: RecordVersion) -> Result<Option<RecordVersion>> {
        match self.holds {
            Holds::Elements => Ok(self.element(record)),
            Holds::Headers => self.header(record).map(Some),
            Holds::NoObjects => Ok(Some(record)),
        }
    }

    fn element(&self, record: RecordVersion) -> Option<RecordVersion> {
        let (inner, version) = (inner_key(&record.key)?, version_of(&record.key)?);
        if inner.is_empty() {
            return None;
        }
        let mut key = record.key.to_vec();
        let at = 2 + inner.len();
        key.get_mut(at..at + 8)?.copy_from_slice(&self.version(version).to_be_bytes());
        Some(RecordVersion { key: key.into(), ..record })
    }

    fn header(&self, record: RecordVersion) -> Result<RecordVersion> {
        let Some(value) = record.value.as_ref().filter(|_| record.marks.kind() != Kind::Plain) else {
            return Ok(record);
        };
        let header = Header::decode(value).ok_or_else(|| self.damaged(&record.key))?;
        // (Bounds are as good as none. So what is restored can be read by every version.)
        let header = Header { version: self.version(header.version), bounds: Bounds::default(), ..header };
        Ok(RecordVersion { value: Some(header.encode()), ..record })
    }

    fn damaged(&self, key: &[u8]) -> Error {
        let key = String::from_utf8_lossy(key.get(..KEY_TOLD_BYTES).unwrap_or(key));
        Error::corrupt(format!("table {:?}: the header of the object {key:?} is damaged", self.table))
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

/// Records of a table of a backup, in order of their keys there, as they are restored. None where many were passed over, here or before.
pub struct Renamed<I> {
    records: I,
    renaming: TableRenaming,
    pass: Pass,
    highest: Highest,
}

impl<I> Renamed<I> {
    pub fn new(records: I, renaming: TableRenaming, pass: Pass) -> Self {
        Self { records, renaming, pass, highest: Highest::default() }
    }

    fn is_wanted(&mut self, record: &RecordVersion) -> bool {
        // (Other keys stay what they are, and rise.)
        let rises = self.renaming.holds != Holds::Elements || self.highest.rises(&record.key);
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
}

impl<I: Iterator<Item = Result<Option<RecordVersion>>>> Iterator for Renamed<I> {
    type Item = Result<Option<RecordVersion>>;

    fn next(&mut self) -> Option<Self::Item> {
        for _ in 0..PASSED_MAX {
            let record = match self.records.next()? {
                Ok(Some(record)) => record,
                not_yet => return Some(not_yet),
            };
            match self.renaming.record(record) {
                Ok(Some(record)) if self.is_wanted(&record) => return Some(Ok(Some(record))),
                Ok(_) => {}
                Err(e) => return Some(Err(e)),
            }
        }
        Some(Ok(None))
    }
}

/// The highest version so far of the object whose elements come: as their keys begin.
#[derive(Debug, Default)]
struct Highest(Option<Bytes>);

impl Highest {
    /// Whether the element is of no lower version. (Objects follow each other, and so do elements of a version.)
    fn rises(&mut self, key: &Bytes) -> bool {
        let Some(part) = version_part(key) else { return true };
        if let Some(highest) = &self.0 {
            if **highest == *part {
                return true;
            }
            if **highest > *part && inner_key(highest) == inner_key(part) {
                return false;
            }
        }
        self.0 = Some(key.slice(..part.len()));
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use sextant_common::error::ErrorKind;
    use sextant_common::ids::Seq;
    use sextant_common::marks::Marks;
    use sextant_common::object::{Tag, element_key};

    use super::*;

    const ELEMENTS: &str = sextant_common::object::ELEMENTS_TABLE;

    fn record(key: Bytes, value: Option<Bytes>, kind: Kind) -> RecordVersion {
        RecordVersion { key, seq: Seq(1), value, marks: Marks::new(kind, None) }
    }

    fn element(object: &[u8], version: u64, field: &[u8]) -> RecordVersion {
        record(element_key(object, version, Tag::Field, field), Some("v".into()), Kind::Plain)
    }

    fn one(table: &str, random: u64, record: RecordVersion) -> Result<Option<RecordVersion>> {
        Renaming::new(random).of(table).record(record)
    }

    #[test]
    fn a_header_and_its_elements_get_the_same_new_version_and_nothing_else_changes() {
        let header = Header { ends: Some((4, 5)), ..Header::new(0x0ff0, 3) };
        for table in ["", DEFAULT_TABLE_NAME, "db1", "db15"] {
            let before = record("k".into(), Some(header.encode()), Kind::List);
            let renamed = one(table, 0xff00, before).unwrap().unwrap();
            assert_eq!(Header::decode(&renamed.value.unwrap()), Some(Header { version: 0xf0f0, ..header }));
            assert_eq!(renamed.marks.kind(), Kind::List);
        }
        // Tombstones too: the log deletes what it has written.
        for value in [Some(Bytes::from("v")), None] {
            let of =
                |version| record(element_key(b"k", version, Tag::Field, b"f"), value.clone(), Kind::Plain);
            for table in [ELEMENTS, "sextant.elements.db15"] {
                assert_eq!(one(table, 0xff00, of(0x0ff0)).unwrap(), Some(of(0xf0f0)));
            }
        }
        // Plain records stay, whatever their bytes; so do tombstones of headers, and tables that have no objects.
        for (table, stays) in [
            (DEFAULT_TABLE_NAME, record("k".into(), Some(header.encode()), Kind::Plain)),
            (DEFAULT_TABLE_NAME, record("k".into(), None, Kind::Plain)),
            (DEFAULT_TABLE_NAME, record("k".into(), None, Kind::Hash)),
            ("db16", record("k".into(), Some("any".into()), Kind::Hash)),
            ("sextant.access", element(b"k", 7, b"f")),
        ] {
            assert_eq!(one(table, 0xff00, stays.clone()).unwrap(), Some(stays));
        }
    }

    #[test]
    fn what_is_no_header_is_told_and_what_is_no_element_is_left_out() {
        for (key, told) in [("key".to_owned(), "key".to_owned()), ("k".repeat(65), "k".repeat(64))] {
            let no_header = record(key.into(), Some("x".into()), Kind::Hash);
            let damaged = one("db1", 1, no_header).unwrap_err();
            let told = format!("table \"db1\": the header of the object {told:?} is damaged");
            assert_eq!((damaged.kind, &*damaged.message), (ErrorKind::Corrupt, &*told));
        }
        let claim = [&[0, 0][..], b"walk", &[0, 0, 0, 7]].concat();
        for key in [claim, vec![], vec![0], vec![0, 9, 1], vec![0, 1, b'k', 1, 2]] {
            assert_eq!(one(ELEMENTS, 1, record(key.into(), None, Kind::Plain)).unwrap(), None);
        }
    }

    proptest! {
        /// What rises, in keys that rise, and what does not, are all elements, each once.
        #[test]
        fn keys_rise_or_come_later(
            elements in prop::collection::btree_set((0u8..3, 0u64..6, 0u8..3), 0..40),
            random: u64,
        ) {
            let records: BTreeSet<Bytes> =
                elements.iter().map(|(k, v, f)| element(&[*k], *v, &[*f]).key).collect();
            let keys = |pass: Pass| {
                let records = records.iter().map(|key| Ok(Some(record(key.clone(), Some("v".into()), Kind::Plain))));
                let renamed = Renamed::new(records, Renaming::new(random).of(ELEMENTS), pass);
                renamed.filter_map(|record| Some(record.unwrap()?.key)).collect::<Vec<Bytes>>()
            };
            let has_others = Arc::new(AtomicBool::new(false));
            let rising = keys(Pass::Rising(has_others.clone()));
            let (others, all) = (keys(Pass::Others), keys(Pass::All));
            prop_assert!(rising.windows(2).all(|two| two[0] < two[1]));
            prop_assert_eq!(has_others.load(Ordering::Relaxed), !others.is_empty());
            prop_assert!(!rising.is_empty() || all.is_empty(), "the first one rises");
            let expected: BTreeSet<Bytes> =
                elements.iter().map(|(k, v, f)| element(&[*k], v ^ random, &[*f]).key).collect();
            prop_assert_eq!(&all.iter().cloned().collect::<BTreeSet<_>>(), &expected);
            prop_assert_eq!(rising.len() + others.len(), expected.len());
            prop_assert_eq!(&rising.into_iter().chain(others).collect::<BTreeSet<_>>(), &expected);
        }
    }
}
