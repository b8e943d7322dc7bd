//! A segment: consecutive entries of one term of a partition's log, as what their groups did. Immutable; its name says what it has.
//!
//! Bytes: magic, version u32, message, xxh3_64 of all before, as a backup's manifest (docs/formats/backup.md).

use std::fmt;

use prost::Message;
use sextant_common::archive::{LogGroup, LogTable};
use sextant_common::error::{Error, Result};
use sextant_common::ids::{LogPosition, PartitionId};
use sextant_proto::convert::archive;
use sextant_proto::v1;

use crate::framing::{framed, unframed};

const MAGIC: [u8; 8] = *b"\xa5sextLOG";
const VERSION: u32 = 1;

/// Of a partition: its number, and which founding of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct History {
    pub partition: PartitionId,
    pub lineage: u64,
}

/// What a segment has, as its name tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    pub history: History,
    /// The entries after this one ..
    pub after: LogPosition,
    /// .. up to this one, all of its term.
    pub to: LogPosition,
    /// Of its first group; without one, as `until_ms`.
    pub from_ms: u64,
    /// What comes after it is later than this.
    pub until_ms: u64,
    /// Its last entry is a bulk load, or the end of a table.
    pub ends_by_load: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub name: Name,
    pub groups: Vec<LogGroup>,
    pub tables: Vec<LogTable>,
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.partition.0, self.lineage)
    }
}

impl History {
    pub fn parse(text: &str) -> Option<Self> {
        let (partition, lineage) = text.split_once('-')?;
        let history = Self {
            partition: PartitionId(partition.parse().ok()?),
            lineage: u64::from_str_radix(lineage, 16).ok()?,
        };
        (history.to_string() == text).then_some(history)
    }
}

/// The file's name, below the history's folder. Names of a history sort by the position.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { after, to, from_ms, until_ms, ends_by_load, .. } = self;
        write!(f, "{:015}-{}-{:015}-{}-{from_ms}-{until_ms}", after.index, after.term, to.index, to.term)?;
        if *ends_by_load { f.write_str("-load") } else { Ok(()) }
    }
}

impl Name {
    pub fn parse(history: History, text: &str) -> Option<Self> {
        let (numbers, ends_by_load) = match text.strip_suffix("-load") {
            Some(numbers) => (numbers, true),
            None => (text, false),
        };
        let numbers: Vec<u64> = numbers.split('-').map(|n| n.parse().ok()).collect::<Option<_>>()?;
        let [after_index, after_term, index, term, from_ms, until_ms] = numbers[..] else { return None };
        let after = LogPosition { term: after_term, index: after_index };
        let to = LogPosition { term, index };
        let name = Self { history, after, to, from_ms, until_ms, ends_by_load };
        (name.to_string() == text && after.index < to.index && after.term <= to.term).then_some(name)
    }
}

#[derive(Clone, PartialEq, Message)]
struct WireSegment {
    #[prost(uint32, tag = "1")]
    partition: u32,
    #[prost(fixed64, tag = "2")]
    lineage: u64,
    #[prost(message, optional, tag = "3")]
    after: Option<v1::LogPosition>,
    #[prost(message, optional, tag = "4")]
    to: Option<v1::LogPosition>,
    #[prost(uint64, tag = "5")]
    from_ms: u64,
    #[prost(uint64, tag = "6")]
    until_ms: u64,
    #[prost(bool, tag = "7")]
    ends_by_load: bool,
    #[prost(message, repeated, tag = "8")]
    tables: Vec<v1::LogTable>,
    #[prost(message, repeated, tag = "9")]
    groups: Vec<v1::LogGroup>,
}

pub fn encode(segment: Segment) -> Vec<u8> {
    let Segment { name, groups, tables } = segment;
    let message = WireSegment {
        partition: name.history.partition.0,
        lineage: name.history.lineage,
        after: Some(name.after.into()),
        to: Some(name.to.into()),
        from_ms: name.from_ms,
        until_ms: name.until_ms,
        ends_by_load: name.ends_by_load,
        tables: tables.into_iter().map(Into::into).collect(),
        groups: groups.into_iter().map(Into::into).collect(),
    };
    framed(MAGIC, VERSION, &message)
}

/// Of a segment that is to be this one.
pub fn decode(name: Name, bytes: &[u8]) -> Result<Segment> {
    let bad = |what: String| Error::corrupt(format!("segment {}/{name} {what}", name.history));
    let message: WireSegment = unframed(MAGIC, VERSION, bytes).map_err(bad)?;
    let (after, to): (LogPosition, LogPosition) =
        (message.after.unwrap_or_default().into(), message.to.unwrap_or_default().into());
    let says = Name {
        history: History { partition: PartitionId(message.partition), lineage: message.lineage },
        after,
        to,
        from_ms: message.from_ms,
        until_ms: message.until_ms,
        ends_by_load: message.ends_by_load,
    };
    if says != name {
        return Err(bad(format!("is {}/{says}", says.history)));
    }
    let invalid = |e: Error| bad(e.message.into_owned());
    let groups = archive::groups(message.groups, after, to).map_err(invalid)?;
    let tables = archive::tables(message.tables, &groups).map_err(invalid)?;
    if groups.first().is_some_and(|first| first.time_ms != name.from_ms) {
        return Err(bad("does not begin when it says".into()));
    }
    Ok(Segment { name, groups, tables })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{group, log_table};

    fn segment() -> Segment {
        let name = Name {
            history: History { partition: PartitionId(3), lineage: 0xfeed },
            after: LogPosition { term: 2, index: 10 },
            to: LogPosition { term: 3, index: 15 },
            from_ms: 100,
            until_ms: 119,
            ends_by_load: false,
        };
        let groups =
            vec![group(11, 100, &[("a", Some("1"))]), group(14, 120, &[("a", None), ("b", Some("2"))])];
        Segment { name, groups, tables: vec![log_table()] }
    }

    #[test]
    fn a_segment_is_read_as_it_was_written_and_not_if_a_bit_of_it_is_another() {
        let segment = segment();
        let bytes = encode(segment.clone());
        assert_eq!(decode(segment.name, &bytes).unwrap(), segment);
        assert!(decode(Name { until_ms: 118, ..segment.name }, &bytes).is_err(), "under another name");
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(decode(segment.name, &damaged).is_err(), "byte {at}");
            assert!(decode(segment.name, &bytes[..at]).is_err(), "{at} bytes");
        }
    }

    #[test]
    fn the_bytes_of_a_segment_stay_what_they_are() {
        let hex: String = encode(segment()).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, include_str!("segment.hex").trim());
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        let name = segment().name;
        assert_eq!(name.to_string(), "000000000000010-2-000000000000015-3-100-119");
        assert_eq!(name.history.to_string(), "3-000000000000feed");
        assert_eq!(History::parse("3-000000000000feed"), Some(name.history));
        for bad in ["", "3", "3-feed", "03-000000000000feed", "3-000000000000FEED", "x-000000000000feed"] {
            assert_eq!(History::parse(bad), None, "{bad}");
        }
        for bad in ["", "1-2-3", "10-2-15-3-100-119", "000000000000015-2-000000000000010-3-1-2", "marks"] {
            assert_eq!(Name::parse(name.history, bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn all_names_are(after in 0u64..1 << 60, entries in 1u64..1 << 40, terms in (0u64..1 << 50, 0u64..1 << 50), from_ms: u64, until_ms: u64, ends_by_load: bool) {
            let after = LogPosition { term: terms.0, index: after };
            let to = LogPosition { term: terms.0 + terms.1, index: after.index + entries };
            let name = Name { after, to, from_ms, until_ms, ends_by_load, ..segment().name };
            prop_assert_eq!(Name::parse(name.history, &name.to_string()), Some(name));
        }

        #[test]
        fn no_bytes_make_reading_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(segment().name, &bytes);
        }
    }
}
