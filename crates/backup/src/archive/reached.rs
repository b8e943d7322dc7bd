//! How far an archive reaches: what a follower says of each partition, again and again. So where nobody writes it costs one small file,
//! and no segments.
//!
//! A mark is true whoever wrote it, and whenever: of two followers the one that writes last does no harm.

use std::collections::BTreeMap;

use prost::Message;
use sextant_common::error::{Error, Result};
use sextant_common::ids::{LogPosition, PartitionId};
use sextant_proto::v1;

use super::segment::History;
use crate::framing::{framed, unframed};

const MAGIC: [u8; 8] = *b"\xa5sextREA";
const VERSION: u32 = 1;

/// All that comes after the entry `archived` is later than `until_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// In segments, or where the follower began.
    pub archived: LogPosition,
    pub until_ms: u64,
}

pub type Marks = BTreeMap<History, Mark>;

#[derive(Clone, PartialEq, Message)]
struct WireMarks {
    #[prost(message, repeated, tag = "1")]
    marks: Vec<WireMark>,
}

#[derive(Clone, PartialEq, Message)]
struct WireMark {
    #[prost(uint32, tag = "1")]
    partition: u32,
    #[prost(fixed64, tag = "2")]
    lineage: u64,
    #[prost(message, optional, tag = "3")]
    archived: Option<v1::LogPosition>,
    #[prost(uint64, tag = "4")]
    until_ms: u64,
}

pub fn encode(marks: &Marks) -> Vec<u8> {
    let mark = |(history, mark): (&History, &Mark)| WireMark {
        partition: history.partition.0,
        lineage: history.lineage,
        archived: Some(mark.archived.into()),
        until_ms: mark.until_ms,
    };
    framed(MAGIC, VERSION, &WireMarks { marks: marks.iter().map(mark).collect() })
}

pub fn decode(name: &str, bytes: &[u8]) -> Result<Marks> {
    let bad = |what: String| Error::corrupt(format!("mark {name} {what}"));
    let message: WireMarks = unframed(MAGIC, VERSION, bytes).map_err(bad)?;
    let mark = |mark: WireMark| {
        let history = History { partition: PartitionId(mark.partition), lineage: mark.lineage };
        (history, Mark { archived: mark.archived.unwrap_or_default().into(), until_ms: mark.until_ms })
    };
    Ok(message.marks.into_iter().map(mark).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_as_they_were_written_and_not_if_a_bit_of_them_is_another() {
        let of = |partition, index| {
            let history = History { partition: PartitionId(partition), lineage: 7 };
            (history, Mark { archived: LogPosition { term: 2, index }, until_ms: 100 })
        };
        let marks = Marks::from([of(0, 5), of(1, 9)]);
        let bytes = encode(&marks);
        assert_eq!(decode("a", &bytes).unwrap(), marks);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(decode("a", &damaged).is_err(), "byte {at}");
        }
    }
}
