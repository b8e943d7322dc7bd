//! Writes a table file from records in rising order of keys.
//!
//! Invariant: the bytes are a function of id, table, options, origin and records alone (block sizes are constants, not configuration),
//! so that replicas which were written separately have the same checksum.

use std::sync::Arc;

use bytes::Bytes;
use sextant_common::error::{Error, Result};
use sextant_common::ids::{SstId, TableId};
use sextant_common::limits::{check_key, check_value};
use sextant_common::manifest::{Compression, Expiring, Origin, SstMeta, TableOptions};
use sextant_common::marks::Kind;
use sextant_environment::vfs::VfsFile;
use xxhash_rust::xxh3::Xxh3;

use super::block::{BlockBuilder, Content, RESTART_INTERVAL};
use super::filter::FilterBuilder;
use super::footer::{TableMeta, Trailer};
use super::index::{Handle, IndexBuilder, lower_bound};
use super::{frame, frame_salt, frame_seed};

/// A data block is cut when its payload has reached so many bytes.
pub const BLOCK_BYTES: usize = 4096;
/// Written to the file in pieces of about this size.
const WRITE_BYTES: usize = 1024 * 1024;
/// Most records in a table: what a filter can be built for at once (its construction takes about 30 bytes a record).
pub const RECORDS_MAX: u64 = 1 << 30;

/// See the module's head. Dropped without [`TableWriter::finish`], it leaves an incomplete file.
pub struct TableWriter {
    id: SstId,
    table: TableId,
    salt: u64,
    sink: Sink,
    block: BlockBuilder,
    /// Lower bound of the block that is being built.
    block_bound: Vec<u8>,
    index: IndexBuilder,
    filter: FilterBuilder,
    last_key: Vec<u8>,
    meta: TableMeta,
}

impl TableWriter {
    /// `file` is empty.
    pub fn new(file: Arc<dyn VfsFile>, id: SstId, table: TableId, options: TableOptions) -> Self {
        Self {
            id,
            table,
            salt: frame_salt(id, table),
            sink: Sink {
                file,
                buffer: Vec::with_capacity(WRITE_BYTES + WRITE_BYTES / 8),
                flushed: 0,
                hasher: Xxh3::new(),
            },
            block: BlockBuilder::new(RESTART_INTERVAL),
            block_bound: Vec::new(),
            index: IndexBuilder::default(),
            filter: FilterBuilder::default(),
            last_key: Vec::new(),
            meta: TableMeta {
                records: 0,
                tombstones: 0,
                min_seq: u64::MAX,
                max_seq: 0,
                data_blocks: 0,
                key_bytes: 0,
                value_bytes: 0,
                options,
                min_key: Bytes::new(),
                max_key: Bytes::new(),
                origin: None,
                expiring: Expiring::default(),
                has_objects: false,
            },
        }
    }

    /// The table is to say where it comes from.
    pub fn with_origin(mut self, origin: Option<Origin>) -> Self {
        self.meta.origin = origin;
        self
    }

    pub fn records(&self) -> u64 {
        self.meta.records
    }

    /// Bytes of the file so far.
    pub fn bytes(&self) -> u64 {
        self.sink.offset()
    }

    /// Appends a record. Its key must be larger than the one before.
    pub fn add(&mut self, key: &[u8], seq: u64, content: Content<'_>) -> Result<()> {
        let value = content.value();
        check_key(key)?;
        check_value(value)?;
        if self.meta.records > 0 && key <= self.last_key.as_slice() {
            return Err(Error::invalid(format!(
                "record {} is not in rising order of keys",
                self.meta.records
            )));
        }
        if !content.marks().is_none() && self.meta.origin.is_none() {
            // (Format versions 3 and 4 are those of tables which say where they come from.)
            return Err(Error::invalid(
                "records of a table without an origin do not expire, and are no objects",
            ));
        }
        if self.meta.records >= RECORDS_MAX {
            return Err(Error::invalid(format!("table has more than {RECORDS_MAX} records")));
        }
        // A large record gets a block of its own, so that reads of its small neighbours stay small.
        if !self.block.is_empty() && key.len() + value.len() >= BLOCK_BYTES {
            self.cut_block()?;
        }
        if self.meta.records == 0 {
            self.meta.min_key = Bytes::copy_from_slice(key);
        } else if self.block.is_empty() {
            self.block_bound.clear();
            self.block_bound.extend_from_slice(lower_bound(&self.last_key, key));
        }
        self.block.add(key, seq, content);
        self.filter.add(key);
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        let meta = &mut self.meta;
        meta.records += 1;
        meta.tombstones += u64::from(content.is_tombstone());
        meta.expiring.add(content.marks().expires_at());
        meta.has_objects |= content.marks().kind() != Kind::Plain;
        meta.min_seq = meta.min_seq.min(seq);
        meta.max_seq = meta.max_seq.max(seq);
        meta.key_bytes += key.len() as u64;
        meta.value_bytes += value.len() as u64;
        if self.block.len() >= BLOCK_BYTES { self.cut_block() } else { Ok(()) }
    }

    fn cut_block(&mut self) -> Result<()> {
        let handle = self.sink.frame(self.block.finish(), self.meta.options.compression, self.salt)?;
        self.index.add(&self.block_bound, handle);
        self.block.clear();
        Ok(())
    }

    /// Completes the file and makes its contents durable (not its name). A table has at least one record.
    pub fn finish(mut self) -> Result<SstMeta> {
        if self.meta.records == 0 {
            return Err(Error::invalid("a table has at least one record"));
        }
        if !self.block.is_empty() {
            self.cut_block()?;
        }
        let (sink, salt) = (&mut self.sink, self.salt);
        let compression = self.meta.options.compression;
        let index = self.index.finish(|payload| sink.frame(payload, compression, salt))?;
        let filter = sink.frame(&self.filter.finish().to_bytes(), Compression::None, salt)?;
        self.meta.data_blocks = self.index.blocks() as u64;
        self.meta.max_key = Bytes::copy_from_slice(&self.last_key);
        let meta = sink.frame(&self.meta.encode(), Compression::None, salt)?;
        let version = self.meta.version();
        let hashed = Trailer::hashed_bytes(version, self.id, self.table, index, filter, meta);
        let (file_bytes, file_checksum) = sink.finish(hashed)?;
        let trailer = Trailer {
            version,
            id: self.id,
            table: self.table,
            index_levels: index.levels,
            index: index.top,
            filter,
            meta,
            file_bytes,
            file_checksum,
        };
        Ok(self.meta.sst_meta(&trailer))
    }
}

/// The file, written in large pieces and hashed on the way.
struct Sink {
    file: Arc<dyn VfsFile>,
    buffer: Vec<u8>,
    flushed: u64,
    hasher: Xxh3,
}

impl Sink {
    fn offset(&self) -> u64 {
        self.flushed + self.buffer.len() as u64
    }

    fn frame(&mut self, payload: &[u8], compression: Compression, salt: u64) -> Result<Handle> {
        if payload.len() > frame::PAYLOAD_BYTES_MAX {
            return Err(Error::invalid("a section of the table is longer than 4 GiB"));
        }
        let offset = self.offset();
        let bytes = frame::encode(payload, compression, frame_seed(salt, offset), &mut self.buffer) as u64;
        if self.buffer.len() >= WRITE_BYTES {
            self.hasher.update(&self.buffer);
            self.flush()?;
        }
        Ok(Handle { offset, bytes })
    }

    /// Writes what is buffered; the caller has hashed it.
    fn flush(&mut self) -> Result<()> {
        self.file.write_all_at(&self.buffer, self.flushed)?;
        self.flushed = self.offset();
        self.buffer.clear();
        // One large record must not pin its size for the rest of the table.
        self.buffer.shrink_to(WRITE_BYTES + WRITE_BYTES / 8);
        Ok(())
    }

    /// Appends the trailer and syncs; returns length and checksum of the file.
    fn finish(&mut self, mut trailer: Vec<u8>) -> Result<(u64, u64)> {
        self.buffer.extend_from_slice(&trailer);
        self.hasher.update(&self.buffer);
        let checksum = self.hasher.digest();
        let hashed = trailer.len();
        Trailer::complete(&mut trailer, checksum);
        self.buffer.extend_from_slice(&trailer[hashed..]);
        self.flush()?;
        self.file.sync_data()?;
        Ok((self.flushed, checksum))
    }
}
