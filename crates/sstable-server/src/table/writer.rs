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
use super::zstd::{self, Packer};
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
    packing: Packing,
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
            packing: Packing::AtOnce,
            block: BlockBuilder::new(RESTART_INTERVAL),
            block_bound: Vec::new(),
            index: IndexBuilder::default(),
            filter: FilterBuilder::new(options.filter_prefix),
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
                dictionary: None,
            },
        }
    }

    /// The table is to say where it comes from.
    pub fn with_origin(mut self, origin: Option<Origin>) -> Self {
        self.meta.origin = origin;
        self
    }

    /// Nothing older lies below: this is where most of the table is.
    pub fn at_the_bottom(mut self) -> Self {
        if self.meta.options.compression == Compression::Zstd {
            self.packing = Packing::Gathering(Gathered::default());
        }
        self
    }

    pub fn records(&self) -> u64 {
        self.meta.records
    }

    /// Of the filter so far.
    pub fn hashes(&self) -> u64 {
        self.filter.hashes() as u64
    }

    /// Bytes of the file so far; of what is not compressed yet, as it is.
    pub fn bytes(&self) -> u64 {
        let gathered = match &self.packing {
            Packing::Gathering(gathered) => gathered.payloads.len() as u64,
            Packing::AtOnce | Packing::Zstd { .. } => 0,
        };
        self.sink.offset() + gathered
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
        let (payload, bound) = (self.block.finish(), &self.block_bound);
        let handle = match &mut self.packing {
            Packing::AtOnce => self.sink.frame(payload, self.meta.options.compression, self.salt)?,
            Packing::Zstd { packer, .. } => self.sink.packed(payload, packer, self.salt)?,
            Packing::Gathering(gathered) => {
                gathered.add(payload, bound);
                self.block.clear();
                return if gathered.payloads.len() >= zstd::SAMPLE_BYTES {
                    self.begin_zstd()
                } else {
                    Ok(())
                };
            }
        };
        self.index.add(bound, handle);
        self.block.clear();
        Ok(())
    }

    /// Writes what was gathered, with a dictionary that suits it, and goes on like that.
    fn begin_zstd(&mut self) -> Result<()> {
        let Packing::Gathering(gathered) = &mut self.packing else { return Ok(()) };
        let Gathered { payloads, lengths, bounds } = std::mem::take(gathered);
        let dictionary = zstd::dictionary_of(&payloads, &lengths);
        let mut packer = Packer::new(dictionary.as_deref())?;
        let mut at = 0;
        for (len, bound) in lengths.into_iter().zip(bounds) {
            let handle = self.sink.packed(&payloads[at..at + len], &mut packer, self.salt)?;
            self.index.add(&bound, handle);
            at += len;
        }
        self.packing = Packing::Zstd { packer, dictionary };
        Ok(())
    }

    fn write_dictionary(&mut self) -> Result<()> {
        self.begin_zstd()?;
        if let Packing::Zstd { dictionary: Some(dictionary), .. } = &self.packing {
            self.meta.dictionary = Some(self.sink.frame(dictionary, Compression::None, self.salt)?);
        }
        Ok(())
    }

    /// Completes the file and makes its contents durable (not its name). A table has at least one record.
    pub fn finish(mut self) -> Result<SstMeta> {
        if self.meta.records == 0 {
            return Err(Error::invalid("a table has at least one record"));
        }
        if self.meta.options.compression == Compression::Zstd && self.meta.origin.is_none() {
            return Err(Error::invalid("a table without an origin is not compressed with Zstd"));
        }
        if self.meta.options.filter_prefix > 0 && self.meta.origin.is_none() {
            return Err(Error::invalid("the filter of a table without an origin has no prefixes"));
        }
        if !self.block.is_empty() {
            self.cut_block()?;
        }
        self.write_dictionary()?;
        let (sink, salt) = (&mut self.sink, self.salt);
        // (An index is read more often than any data: LZ4.)
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

/// How data blocks become frames.
enum Packing {
    /// As the table's options say.
    AtOnce,
    /// Later: when there is enough to make a dictionary from.
    Gathering(Gathered),
    Zstd {
        packer: Packer,
        dictionary: Option<Vec<u8>>,
    },
}

/// Blocks that are not compressed yet.
#[derive(Default)]
struct Gathered {
    payloads: Vec<u8>,
    lengths: Vec<usize>,
    bounds: Vec<Vec<u8>>,
}

impl Gathered {
    fn add(&mut self, payload: &[u8], bound: &[u8]) {
        self.payloads.extend_from_slice(payload);
        self.lengths.push(payload.len());
        self.bounds.push(bound.to_vec());
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
        let seed = frame_seed(salt, self.offset());
        self.add(|out| frame::encode(payload, compression, seed, out))
    }

    fn packed(&mut self, payload: &[u8], packer: &mut Packer, salt: u64) -> Result<Handle> {
        let seed = frame_seed(salt, self.offset());
        self.add(|out| frame::encode_packed(payload, packer, seed, out))
    }

    /// `encode`: appends a frame, and returns its length.
    fn add(&mut self, encode: impl FnOnce(&mut Vec<u8>) -> usize) -> Result<Handle> {
        let offset = self.offset();
        let bytes = encode(&mut self.buffer) as u64;
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
