//! Lays out batches in the buffer of one write.

use crate::format::batch::{BATCH_ALIGN, BATCH_HEADER_BYTES, BatchHeader, BatchKind};
use crate::format::checkpoint::Checkpoint;
use crate::format::record::{RecordHeader, fold_crc};
use crate::queue::Item;

/// The kernel reads a page from disk before it overwrites a part of it; writes are filled up with zeros to whole pages, so
/// that the pages of a recycled segment need not be read.
const PAGE_BYTES: u64 = 4096;

/// The bytes of one write, and where it goes.
#[derive(Default)]
pub(crate) struct WriteBuffer {
    pub bytes: Vec<u8>,
    /// In the segment's file.
    pub offset: u64,
    /// Where each entry's record starts in the file; the others have 0.
    pub places: Vec<u32>,
}

/// What all batches of a write have in common.
#[derive(Clone, Copy)]
pub(crate) struct Stamp {
    pub generation: u64,
    pub run: u32,
    pub salt: u32,
    pub durable_before: u64,
    pub durable_lsn: u64,
}

impl WriteBuffer {
    pub fn clear(&mut self, offset: u64) {
        self.bytes.clear();
        self.places.clear();
        self.offset = offset;
    }

    /// Where the next batch would start.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    pub fn push_checkpoint(&mut self, stamp: Stamp, first_lsn: u64, checkpoint: &Checkpoint) {
        let start = self.begin();
        self.bytes.extend_from_slice(&checkpoint.encode());
        let crc = crc32c::crc32c_append(stamp.salt, &self.bytes[start + BATCH_HEADER_BYTES..]);
        self.finish(start, stamp, BatchKind::Checkpoint, first_lsn, 0, crc);
    }

    /// `ids`: of the partitions, by slot.
    pub fn push_records<'a>(
        &mut self,
        stamp: Stamp,
        first_lsn: u64,
        items: impl Iterator<Item = &'a Item>,
        id_of: impl Fn(u32) -> u32,
    ) {
        let start = self.begin();
        let (mut crc, mut records) = (stamp.salt, 0);
        for item in items {
            self.places.push(self.end() as u32);
            let header = RecordHeader {
                length: item.payload.len() as u32,
                partition: id_of(item.slot),
                kind: item.kind,
                detail: item.detail,
                term: item.term,
                index: item.index,
            };
            crc = fold_crc(crc, header.write(&item.payload, stamp.salt, &mut self.bytes));
            records += 1;
        }
        self.finish(start, stamp, BatchKind::Records, first_lsn, records, crc);
    }

    fn begin(&mut self) -> usize {
        let start = self.bytes.len();
        debug_assert_eq!(self.end() % BATCH_ALIGN, 0);
        self.bytes.resize(start + BATCH_HEADER_BYTES, 0);
        start
    }

    fn finish(
        &mut self,
        start: usize,
        stamp: Stamp,
        kind: BatchKind,
        first_lsn: u64,
        records: u32,
        crc: u32,
    ) {
        let header = BatchHeader {
            kind,
            generation: stamp.generation,
            run: stamp.run,
            offset: (self.offset + start as u64) as u32,
            length: (self.bytes.len() - start - BATCH_HEADER_BYTES) as u32,
            records,
            first_lsn,
            durable_before: stamp.durable_before as u32,
            body_crc: crc,
            durable_lsn: stamp.durable_lsn,
        };
        self.bytes[start..start + BATCH_HEADER_BYTES].copy_from_slice(&header.encode(stamp.salt));
        let padded = self.bytes.len().next_multiple_of(BATCH_ALIGN as usize);
        self.bytes.resize(padded, 0);
    }

    /// The bytes to write: with zeros up to the end of the page, but not beyond `capacity`.
    pub fn whole_pages(&mut self, capacity: u64) -> &[u8] {
        let end = self.end();
        let page_end = end.next_multiple_of(PAGE_BYTES).min(capacity.max(end));
        self.bytes.resize((page_end - self.offset) as usize, 0);
        &self.bytes
    }
}
