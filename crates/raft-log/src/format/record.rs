//! Record headers.
//!
//! ```text
//!  0 crc u32 of the header's other 28 bytes and the payload
//!  4 length u32 of the payload      8 partition u32
//! 12 kind u8 (1 entry, 2 vote, 3 committed, 4 truncate, 5 purge)   13 detail u8   14 zero u16
//! 16 term u64                      24 index u64
//! ```
//!
//! Only entries have a payload. The detail: an entry's kind byte; 1 if a vote is committed; for the others 1 if there is a
//! log id. A vote's `index` is the node that was voted for.

use super::fields::{put, u16_at, u32_at, u64_at};

pub(crate) const RECORD_HEADER_BYTES: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    Entry = 1,
    Vote = 2,
    Committed = 3,
    Truncate = 4,
    Purge = 5,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub length: u32,
    pub partition: u32,
    pub kind: RecordKind,
    pub detail: u8,
    pub term: u64,
    pub index: u64,
}

impl RecordHeader {
    /// Appends header and payload to `out`; returns the record's checksum.
    pub fn write(&self, payload: &[u8], salt: u32, out: &mut Vec<u8>) -> u32 {
        let mut header = [0; RECORD_HEADER_BYTES];
        put(&mut header, 4, &self.length.to_le_bytes());
        put(&mut header, 8, &self.partition.to_le_bytes());
        header[12] = self.kind as u8;
        header[13] = self.detail;
        put(&mut header, 16, &self.term.to_le_bytes());
        put(&mut header, 24, &self.index.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c_append(salt, &header[4..]), payload);
        put(&mut header, 0, &crc.to_le_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(payload);
        crc
    }

    /// The record at the start of `bytes` and its checksum, if it is whole.
    pub fn read(bytes: &[u8], salt: u32) -> Option<(Self, u32)> {
        let header = bytes.get(..RECORD_HEADER_BYTES)?;
        let length = u32_at(header, 4);
        let whole = bytes.get(4..RECORD_HEADER_BYTES.checked_add(length as usize)?)?;
        let crc = u32_at(header, 0);
        if crc != crc32c::crc32c_append(salt, whole) || u16_at(header, 14) != 0 {
            return None;
        }
        let kind = match header[12] {
            1 => RecordKind::Entry,
            2 => RecordKind::Vote,
            3 => RecordKind::Committed,
            4 => RecordKind::Truncate,
            5 => RecordKind::Purge,
            _ => return None,
        };
        let (partition, detail) = (u32_at(header, 8), header[13]);
        let (term, index) = (u64_at(header, 16), u64_at(header, 24));
        Some((Self { length, partition, kind, detail, term, index }, crc))
    }
}

/// Folds a record's checksum into the one of its batch.
pub(crate) fn fold_crc(batch_crc: u32, record_crc: u32) -> u32 {
    crc32c::crc32c_append(batch_crc, &record_crc.to_le_bytes())
}

/// Walks the records of a batch's body. Returns false, and may have called `f` for some of them, unless all are whole and
/// together are what the batch's header states.
pub(crate) fn read_records(
    body: &[u8],
    records: u32,
    body_crc: u32,
    salt: u32,
    mut f: impl FnMut(usize, RecordHeader),
) -> bool {
    let (mut at, mut crc) = (0, salt);
    for _ in 0..records {
        let Some((header, record_crc)) = RecordHeader::read(&body[at..], salt) else { return false };
        f(at, header);
        crc = fold_crc(crc, record_crc);
        at += RECORD_HEADER_BYTES + header.length as usize;
    }
    at == body.len() && crc == body_crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_round_trips_and_every_byte_is_checked() {
        let header = RecordHeader {
            length: 5,
            partition: 3,
            kind: RecordKind::Entry,
            detail: 1,
            term: 9,
            index: 1 << 33,
        };
        let mut bytes = Vec::new();
        let crc = header.write(b"hello", 77, &mut bytes);
        assert_eq!(bytes.len(), RECORD_HEADER_BYTES + 5);
        assert_eq!(RecordHeader::read(&bytes, 77), Some((header, crc)));
        assert_eq!(RecordHeader::read(&bytes, 78), None);
        assert_eq!(RecordHeader::read(&bytes[..bytes.len() - 1], 77), None);
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x40;
            assert_eq!(RecordHeader::read(&bad, 77), None, "byte {at}");
        }
    }

    #[test]
    fn a_batch_of_records_is_all_or_nothing() {
        let (mut body, mut crc) = (Vec::new(), 5);
        for index in 0..3u64 {
            let header =
                RecordHeader { length: 2, partition: 1, kind: RecordKind::Entry, detail: 1, term: 1, index };
            crc = fold_crc(crc, header.write(b"xy", 5, &mut body));
        }
        let mut seen = Vec::new();
        assert!(read_records(&body, 3, crc, 5, |at, header| seen.push((at, header.index))));
        assert_eq!(seen, [(0, 0), (34, 1), (68, 2)]);
        assert!(!read_records(&body, 2, crc, 5, |_, _| ()));
        // A whole record of the same shape that does not belong to this batch.
        let mut other = Vec::new();
        RecordHeader { length: 2, partition: 1, kind: RecordKind::Entry, detail: 1, term: 1, index: 9 }
            .write(b"xy", 5, &mut other);
        body[34..68].copy_from_slice(&other);
        assert!(!read_records(&body, 3, crc, 5, |_, _| ()));
    }
}
