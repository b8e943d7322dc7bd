//! Batch headers: what one write to a device holds, and what it proves about the bytes before it.
//!
//! ```text
//!  0 magic u32 "SXLB"   4 kind u8   5 zero [3]
//!  8 generation u64     of the segment: bytes of an earlier use of the file never pass
//! 16 run u32            how often the log was opened: what an earlier run left beyond the cut never passes
//! 20 offset u32         of this header in the file
//! 24 length u32         of the body, without padding
//! 28 records u32
//! 32 first_lsn u64      of the first record; a checkpoint takes no lsn and states all records below this one
//! 40 durable_before u32 every byte of the file below it was durable when the batch was written
//! 44 body_crc u32       of the records' checksums in order, or of the checkpoint
//! 48 durable_lsn u64    every record up to it was durable, on all devices, when the batch was written
//! 56 zero u32           60 crc u32 of bytes 0..60
//! ```

use super::NUMBER_MAX;
use super::fields::{put, u32_at, u64_at};

const MAGIC: u32 = u32::from_le_bytes(*b"SXLB");

pub(crate) const BATCH_HEADER_BYTES: usize = 64;
/// Batches start on multiples of this.
pub(crate) const BATCH_ALIGN: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchKind {
    /// Records, possibly none: an empty one closes the log and proves that everything before it was durable.
    Records,
    Checkpoint,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub kind: BatchKind,
    pub generation: u64,
    pub run: u32,
    pub offset: u32,
    pub length: u32,
    pub records: u32,
    pub first_lsn: u64,
    pub durable_before: u32,
    pub body_crc: u32,
    pub durable_lsn: u64,
}

impl BatchHeader {
    /// The lsn after the last record.
    pub fn next_lsn(&self) -> u64 {
        self.first_lsn + u64::from(self.records)
    }

    pub fn body_start(&self) -> u64 {
        u64::from(self.offset) + BATCH_HEADER_BYTES as u64
    }

    /// Where the next batch starts.
    pub fn end(&self) -> u64 {
        (self.body_start() + u64::from(self.length)).next_multiple_of(BATCH_ALIGN)
    }

    pub fn encode(&self, salt: u32) -> [u8; BATCH_HEADER_BYTES] {
        let mut out = [0; BATCH_HEADER_BYTES];
        put(&mut out, 0, &MAGIC.to_le_bytes());
        out[4] = match self.kind {
            BatchKind::Records => 0,
            BatchKind::Checkpoint => 1,
        };
        put(&mut out, 8, &self.generation.to_le_bytes());
        put(&mut out, 16, &self.run.to_le_bytes());
        put(&mut out, 20, &self.offset.to_le_bytes());
        put(&mut out, 24, &self.length.to_le_bytes());
        put(&mut out, 28, &self.records.to_le_bytes());
        put(&mut out, 32, &self.first_lsn.to_le_bytes());
        put(&mut out, 40, &self.durable_before.to_le_bytes());
        put(&mut out, 44, &self.body_crc.to_le_bytes());
        put(&mut out, 48, &self.durable_lsn.to_le_bytes());
        let crc = crc32c::crc32c_append(salt, &out[..60]);
        put(&mut out, 60, &crc.to_le_bytes());
        out
    }

    /// The header at the start of `bytes`, if it is one that was written at `offset`.
    pub fn decode(bytes: &[u8], salt: u32, offset: u64) -> Option<Self> {
        let bytes = bytes.get(..BATCH_HEADER_BYTES)?;
        if u32_at(bytes, 0) != MAGIC || u32_at(bytes, 60) != crc32c::crc32c_append(salt, &bytes[..60]) {
            return None;
        }
        let kind = match bytes[4] {
            0 => BatchKind::Records,
            1 => BatchKind::Checkpoint,
            _ => return None,
        };
        let header = Self {
            kind,
            generation: u64_at(bytes, 8),
            run: u32_at(bytes, 16),
            offset: u32_at(bytes, 20),
            length: u32_at(bytes, 24),
            records: u32_at(bytes, 28),
            first_lsn: u64_at(bytes, 32),
            durable_before: u32_at(bytes, 40),
            body_crc: u32_at(bytes, 44),
            durable_lsn: u64_at(bytes, 48),
        };
        // What no log writes, whatever the checksum says: numbers near their end, and a future that is durable already.
        let sound = header.first_lsn <= NUMBER_MAX
            && header.generation <= NUMBER_MAX
            && header.run < u32::MAX
            && header.durable_before <= header.offset;
        (sound && u64::from(header.offset) == offset).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> BatchHeader {
        BatchHeader {
            kind: BatchKind::Checkpoint,
            generation: 7,
            run: 3,
            offset: 4096,
            length: 100,
            records: 5,
            first_lsn: 1 << 40,
            durable_before: 4096,
            body_crc: 0xdead_beef,
            durable_lsn: 99,
        }
    }

    #[test]
    fn the_bytes_are_these() {
        let bytes = header().encode(0x1234_5678);
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            &hex[..120],
            "53584c42010000000700000000000000030000000010000064000000050000000000000000010000\
             00100000efbeadde63000000000000000000000 0"
                .replace(' ', "")
        );
        assert_eq!(BatchHeader::decode(&bytes, 0x1234_5678, 4096), Some(header()));
        assert_eq!(header().end(), 4096 + 192);
    }

    #[test]
    fn what_no_log_writes_does_not_pass() {
        for bad in [
            BatchHeader { first_lsn: NUMBER_MAX + 1, ..header() },
            BatchHeader { generation: u64::MAX, ..header() },
            BatchHeader { run: u32::MAX, ..header() },
            BatchHeader { durable_before: 4097, ..header() },
        ] {
            assert_eq!(BatchHeader::decode(&bad.encode(1), 1, 4096), None, "{bad:?}");
        }
        let last = BatchHeader { first_lsn: NUMBER_MAX, ..header() };
        assert_eq!(BatchHeader::decode(&last.encode(1), 1, 4096), Some(last));
    }

    #[test]
    fn it_passes_only_whole_with_its_salt_and_in_its_place() {
        let bytes = header().encode(1);
        assert_eq!(BatchHeader::decode(&bytes, 2, 4096), None);
        assert_eq!(BatchHeader::decode(&bytes, 1, 8192), None);
        assert_eq!(BatchHeader::decode(&bytes[..63], 1, 4096), None);
        for at in 0..bytes.len() {
            let mut bad = bytes;
            bad[at] ^= 1;
            assert_eq!(BatchHeader::decode(&bad, 1, 4096), None, "byte {at}");
        }
    }
}
