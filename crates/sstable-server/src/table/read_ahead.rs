//! Reading neighbouring blocks in few, growing pieces: what makes scans and compactions sequential on the disk.

use bytes::Bytes;
use sextant_common::error::Result;

use super::direction::Direction;
use super::index::Handle;
use super::reader::Table;

/// The piece of the file that was read last.
#[derive(Debug)]
pub struct ReadAhead {
    piece: Bytes,
    piece_at: u64,
    next_bytes: u64,
    most_bytes: u64,
    /// Read from the file so far.
    pub disk_bytes: u64,
}

impl ReadAhead {
    /// Pieces of `first_bytes` to `most_bytes`, each twice as long as the one before it.
    pub fn new(first_bytes: u64, most_bytes: u64) -> Self {
        Self { piece: Bytes::new(), piece_at: 0, next_bytes: first_bytes, most_bytes, disk_bytes: 0 }
    }

    /// The bytes of a frame. Those of uncompressed blocks stay in memory together with their whole piece.
    pub fn frame(&mut self, table: &Table, at: Handle, direction: Direction) -> Result<Bytes> {
        table.check_handle(at)?;
        let piece_end = self.piece_at + self.piece.len() as u64;
        if at.offset < self.piece_at || at.end() > piece_end {
            let wanted = at.bytes.max(self.next_bytes);
            let (start, end) = match direction {
                Direction::Forward => (at.offset, (at.offset + wanted).min(table.trailer().index.offset)),
                Direction::Backward => (at.end().saturating_sub(wanted), at.end()),
            };
            self.piece = table.read(Handle { offset: start, bytes: end - start })?;
            self.piece_at = start;
            self.disk_bytes += end - start;
            self.next_bytes = (self.next_bytes * 2).min(self.most_bytes);
        }
        let start = (at.offset - self.piece_at) as usize;
        Ok(self.piece.slice(start..start + at.bytes as usize))
    }
}
