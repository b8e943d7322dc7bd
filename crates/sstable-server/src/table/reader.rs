//! An open table: what stays in memory, and point reads.
//!
//! Its bounds and what else its meta section says stay. Everything else is read when needed, checked, and kept while there is
//! room: sections (the top index block, the filter, the dictionary) and blocks.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::filter::SealedFilter;
use sextant_common::ids::SstId;
use sextant_common::limits::{KEY_BYTES_MAX, LARGE_BYTES, VALUE_BYTES_MAX};
use sextant_common::manifest::SstMeta;
use sextant_common::marks::Marks;
use sextant_common::sstable::Contents;
use sextant_environment::vfs::VfsFile;

use super::block::{Block, Malformed, Slot};
use super::block_cache::BlockCache;
use super::budget::Kind;
use super::footer::{TRAILER_BYTES, TableMeta, Trailer};
use super::index::{Handle, covering, handle};
use super::section::{Charge, Section};
use super::sections::{fixed_bytes, payload};
use super::zstd::Unpacker;
use super::{frame, frame_salt, frame_seed};

/// Longest frame of a dictionary.
const DICTIONARY_FRAME_BYTES_MAX: u64 = 1024 * 1024;
/// Longest frame of a data block or a leaf: one record of the largest size beside a full block of small ones.
const BLOCK_FRAME_BYTES_MAX: u64 = (KEY_BYTES_MAX + VALUE_BYTES_MAX + 64 * 1024) as u64;

/// What a read may do to get at a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing that blocks.
    CacheOnly,
    /// Read it from the file, and keep it in the cache.
    Fill,
    /// As [`Access::Fill`], but leave a large block where it is.
    FillSmall,
    /// Read it from the file; leave the cache as it is.
    NoFill,
}

/// The newest record of a key in this table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub seq: u64,
    pub tombstone: bool,
    /// None: it does not expire.
    pub marks: Marks,
    /// A slice of the block: empty for a tombstone.
    pub value: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    Found(Found),
    /// The table has no record of this key.
    Absent,
    /// A section or a block is not in memory (only with [`Access::CacheOnly`]).
    NeedsDisk,
    /// A block of about so many bytes would have to be read (only with [`Access::FillSmall`]).
    Large(usize),
}

/// A block, or why there is none.
enum Got {
    Block(Block),
    NeedsDisk,
    Large(usize),
}

/// What lookups did; the caller adds it to its metrics once a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub cache_hits: u64,
    pub cache_misses: u64,
    /// Indexes and filters that were in memory. (Those that were not: [`BlockCache::loads`].)
    pub index_hits: u64,
    pub filter_hits: u64,
    pub disk_bytes: u64,
    /// The range or the filter ruled the table out.
    pub filtered: u64,
    /// The filter let a key pass that the table does not have.
    pub false_positives: u64,
}

/// See the module's head. Shared behind an `Arc`: whoever reads keeps the file open, even after it was deleted.
pub struct Table {
    number: u64,
    file: Arc<dyn VfsFile>,
    trailer: Trailer,
    meta: TableMeta,
    salt: u64,
    sections: Sections,
    /// The filter section was damaged when the table was opened.
    lacks_filter: bool,
    /// In its place; while there is none, everything matches.
    rebuilt_filter: OnceLock<(SealedFilter, Charge)>,
    cache: Arc<BlockCache>,
    /// What the first check that failed found.
    damage: OnceLock<String>,
    _fixed: Charge,
}

/// What of a table is in memory while there is room.
pub(super) struct Sections {
    pub top: Arc<Section<Block>>,
    pub filter: Arc<Section<SealedFilter>>,
    pub dictionary: Arc<Section<Unpacker>>,
}

impl Drop for Sections {
    fn drop(&mut self) {
        self.top.clear();
        self.filter.clear();
        self.dictionary.clear();
    }
}

/// A table that was opened, and what is wrong with its filter section.
pub struct Opened {
    pub table: Table,
    pub filter_damage: Option<Error>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Table({})", self.trailer.id)
    }
}

impl Table {
    /// Opens a file and verifies trailer, index, meta and filter. `number` is unique within the process: the table's
    /// name in the block cache.
    pub fn open(file: Arc<dyn VfsFile>, id: SstId, number: u64, cache: Arc<BlockCache>) -> Result<Opened> {
        let named = |e: Error| Error::new(e.kind, format!("SSTable {id}: {e}"));
        let file_bytes = file.len()?;
        let trailer_at = file_bytes
            .checked_sub(TRAILER_BYTES as u64)
            .ok_or_else(|| named(Error::corrupt("file is too short for a trailer")))?;
        let trailer = read(&*file, Handle { offset: trailer_at, bytes: TRAILER_BYTES as u64 })
            .and_then(|bytes| Trailer::parse(&bytes, file_bytes))
            .map_err(|e| named(Error::new(e.kind, format!("offset {trailer_at}: {e}"))))?;
        if trailer.id != id {
            return Err(named(Error::corrupt(format!("the file holds SSTable {}", trailer.id))));
        }
        let salt = frame_salt(id, trailer.table);
        let meta = payload(&*file, id, salt, "meta section", trailer.meta)?;
        let meta = TableMeta::parse(&meta, trailer.version).map_err(named)?;
        if let Some(at) = meta.dictionary
            && (at.bytes > DICTIONARY_FRAME_BYTES_MAX || at.end() > trailer.index.offset)
        {
            return Err(named(Error::corrupt("the meta section names a place outside of the data")));
        }
        let sections = Sections {
            top: Section::new(Kind::Index),
            filter: Section::new(Kind::Filter),
            dictionary: Section::new(Kind::Dictionary),
        };
        let fixed = Charge::add(&cache, Kind::Table, fixed_bytes(&meta));
        let mut table = Table {
            number,
            file,
            trailer,
            meta,
            salt,
            sections,
            lacks_filter: false,
            rebuilt_filter: OnceLock::new(),
            cache,
            damage: OnceLock::new(),
            _fixed: fixed,
        };
        let filter_damage = table.verify_sections()?;
        table.lacks_filter = filter_damage.is_some();
        Ok(Opened { table, filter_damage })
    }

    pub fn id(&self) -> SstId {
        self.trailer.id
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn trailer(&self) -> &Trailer {
        &self.trailer
    }

    pub fn meta(&self) -> &TableMeta {
        &self.meta
    }

    pub fn sst_meta(&self) -> SstMeta {
        self.meta.sst_meta(&self.trailer)
    }

    /// What it says of itself.
    pub fn contents(&self) -> Contents {
        let (options, origin) = (self.meta.options.clone(), self.meta.origin.clone());
        Contents { meta: self.sst_meta(), options, origin }
    }

    pub fn file(&self) -> &Arc<dyn VfsFile> {
        &self.file
    }

    pub fn cache(&self) -> &BlockCache {
        &self.cache
    }

    pub(super) fn shared_cache(&self) -> &Arc<BlockCache> {
        &self.cache
    }

    pub(super) fn sections(&self) -> &Sections {
        &self.sections
    }

    pub(super) fn salt(&self) -> u64 {
        self.salt
    }

    pub(super) fn dictionary_at(&self) -> Option<Handle> {
        self.meta.dictionary
    }

    /// The filter as the file has it, or as it was rebuilt; `None`: damaged and not rebuilt. May have to be read.
    pub fn filter_bytes(&self) -> Result<Option<Vec<u8>>> {
        if self.lacks_filter {
            return Ok(self.rebuilt_filter.get().map(|(filter, _)| filter.to_bytes()));
        }
        Ok(Some(self.sealed_filter(Access::NoFill)?.part.to_bytes()))
    }

    /// Puts a rebuilt filter in the place of a damaged one. It stays in memory: the file does not have it.
    pub fn set_rebuilt_filter(&self, filter: SealedFilter) {
        let charge = Charge::add(&self.cache, Kind::Table, filter.memory_bytes() as u64);
        let _ = self.rebuilt_filter.set((filter, charge));
    }

    /// Whether a check failed since the table was opened.
    pub fn is_damaged(&self) -> bool {
        self.damage.get().is_some()
    }

    /// What the first check that failed found: names the table and, as far as it is known, the offset.
    pub fn damage(&self) -> Option<&str> {
        self.damage.get().map(String::as_str)
    }

    /// Only the first finding is kept, and logged.
    pub fn mark_damaged(&self, found: &str) {
        if self.damage.set(found.to_owned()).is_ok() {
            tracing::error!("a table is damaged and waits for its repair: {found}");
        }
    }

    /// Bytes in memory for as long as the table is open.
    pub fn pinned_bytes(&self) -> u64 {
        let rebuilt = self.rebuilt_filter.get().map_or(0, |(filter, _)| filter.memory_bytes());
        fixed_bytes(&self.meta) + rebuilt as u64
    }

    /// Looks a key up; `hash` is its filter hash.
    pub fn get(&self, key: &[u8], hash: u64, access: Access, tally: &mut Tally) -> Result<Lookup> {
        let in_range = self.meta.min_key.as_ref() <= key && key <= self.meta.max_key.as_ref();
        let matches = if in_range { self.matches(hash, access, tally)? } else { Some(false) };
        match matches {
            Some(true) => {}
            Some(false) => {
                tally.filtered += 1;
                return Ok(Lookup::Absent);
            }
            None => return Ok(Lookup::NeedsDisk),
        }
        let Some(mut at) = self.top_entry(key, access, tally)? else { return Ok(Lookup::NeedsDisk) };
        if self.trailer.index_levels == 2 {
            let Some(leaf) = self.leaf(at, access, tally)? else { return Ok(Lookup::NeedsDisk) };
            at = self.index_entry(&leaf, at, key)?;
        }
        let block = match self.block_of_any_size(at, access, tally)? {
            Got::Block(block) => block,
            Got::NeedsDisk => return Ok(Lookup::NeedsDisk),
            Got::Large(bytes) => return Ok(Lookup::Large(bytes)),
        };
        let slot = block.get(key).map_err(|Malformed| self.malformed(at))?;
        let Some(slot) = slot else {
            tally.false_positives += u64::from(!self.lacks_filter || self.rebuilt_filter.get().is_some());
            return Ok(Lookup::Absent);
        };
        let value = block.value(&slot);
        let Slot { seq, tombstone, marks, .. } = slot;
        Ok(Lookup::Found(Found { seq, tombstone, marks, value }))
    }

    /// Whether the filter lets the key pass; `None`: it would have to be read, and may not.
    #[inline]
    fn matches(&self, hash: u64, access: Access, tally: &mut Tally) -> Result<Option<bool>> {
        if self.lacks_filter {
            return Ok(Some(self.rebuilt_filter.get().is_none_or(|(filter, _)| filter.contains(hash))));
        }
        if let Some(filter) = &*self.sections.filter.get() {
            tally.filter_hits += 1;
            return Ok(Some(filter.part.contains(hash)));
        }
        match access {
            Access::CacheOnly => Ok(None),
            // (It may be the filter: a table can do without, and it would be read for nothing by each get.)
            _ if self.is_damaged() => Ok(Some(true)),
            access => match self.sealed_filter(access) {
                Ok(filter) => Ok(Some(filter.part.contains(hash))),
                Err(e) if e.kind == ErrorKind::Corrupt => Ok(Some(true)),
                Err(e) => Err(e),
            },
        }
    }

    /// What the top index block says of a key; `None`: it would have to be read, and may not.
    #[inline]
    fn top_entry(&self, key: &[u8], access: Access, tally: &mut Tally) -> Result<Option<Handle>> {
        if let Some(top) = &*self.sections.top.get() {
            tally.index_hits += 1;
            return self.index_entry(&top.part, self.trailer.index, key).map(Some);
        }
        match access {
            Access::CacheOnly => Ok(None),
            access => self.index_entry(&self.top(access)?.part, self.trailer.index, key).map(Some),
        }
    }

    fn index_entry(&self, block: &Block, lies_at: Handle, key: &[u8]) -> Result<Handle> {
        covering(block, key).and_then(|at| handle(block, at)).map_err(|Malformed| self.malformed(lies_at))
    }

    /// A leaf of the index; of those who want the same one, one reads it. `None` if it would have to be read, and may not.
    pub(super) fn leaf(&self, at: Handle, access: Access, tally: &mut Tally) -> Result<Option<Block>> {
        if let Some(leaf) = self.cache.get(self.number, at.offset) {
            tally.cache_hits += 1;
            return Ok(Some(leaf));
        }
        let read = || {
            self.check_handle(at)?;
            self.decode_with(at, &self.read(at)?, &Unpacker::default())
        };
        let (leaf, was_here) = match access {
            Access::CacheOnly => return Ok(None),
            Access::NoFill => (read()?, false),
            // Leaves are small, and serve many reads.
            Access::Fill | Access::FillSmall => self.cache.get_or_read(self.number, at.offset, read)?,
        };
        tally.cache_hits += u64::from(was_here);
        tally.cache_misses += u64::from(!was_here);
        tally.disk_bytes += if was_here { 0 } else { at.bytes };
        Ok(Some(leaf))
    }

    fn block_of_any_size(&self, at: Handle, access: Access, tally: &mut Tally) -> Result<Got> {
        if let Some(block) = self.cache.get(self.number, at.offset) {
            tally.cache_hits += 1;
            return Ok(Got::Block(block));
        }
        if access == Access::CacheOnly {
            return Ok(Got::NeedsDisk);
        }
        self.check_handle(at)?;
        if access == Access::FillSmall && at.bytes > LARGE_BYTES as u64 {
            let tail =
                Handle { offset: at.end() - frame::TAIL_BYTES as u64, bytes: frame::TAIL_BYTES as u64 };
            let stated = frame::stated_bytes(&self.read(tail)?).unwrap_or(0);
            // Nobody has checked that yet.
            return Ok(Got::Large(stated.clamp(at.bytes as usize, BLOCK_FRAME_BYTES_MAX as usize)));
        }
        tally.cache_misses += 1;
        tally.disk_bytes += at.bytes;
        let bytes = self.read(at)?;
        if access == Access::FillSmall
            && let Some(stated) = frame::stated_bytes(&bytes).filter(|stated| *stated > LARGE_BYTES)
        {
            return Ok(Got::Large(stated.min(BLOCK_FRAME_BYTES_MAX as usize)));
        }
        let block = self.decode(at, &bytes, access)?;
        if matches!(access, Access::Fill | Access::FillSmall) {
            self.cache.insert(self.number, at.offset, &block);
        }
        Ok(Got::Block(block))
    }

    /// Checks and decompresses the frame of a data block that was read from `at`.
    pub(super) fn decode(&self, at: Handle, bytes: &Bytes, access: Access) -> Result<Block> {
        match self.dictionary(access)? {
            Some(dictionary) => self.decode_with(at, bytes, &dictionary.part),
            None => self.decode_with(at, bytes, &Unpacker::default()),
        }
    }

    pub(super) fn decode_with(&self, at: Handle, bytes: &Bytes, unpacker: &Unpacker) -> Result<Block> {
        let payload = frame::decode(bytes, frame_seed(self.salt, at.offset), unpacker)
            .map_err(|e| self.corrupt(at.offset, &e.to_string()))?;
        Block::parse(payload).map_err(|Malformed| self.malformed(at))
    }

    /// The bytes of a frame, or of several neighbours, in front of the top index block.
    pub(super) fn read(&self, at: Handle) -> Result<Bytes> {
        read(&*self.file, at).map_err(|e| match e.kind {
            ErrorKind::Corrupt => self.corrupt(at.offset, &e.message),
            kind => Error::new(kind, format!("SSTable {}: offset {}: {e}", self.trailer.id, at.offset)),
        })
    }

    /// Reads top index, filter and meta section again: what was right when the table was opened may not be any more.
    pub fn check_sections(&self) -> Result<()> {
        let Trailer { index, filter, meta, .. } = self.trailer;
        let dictionary = self.meta.dictionary.map(|at| ("dictionary", at));
        let sections = [("index", index), ("filter", filter), ("meta section", meta)];
        for (name, at) in sections.into_iter().chain(dictionary) {
            frame::decode(&self.read(at)?, frame_seed(self.salt, at.offset), &Unpacker::default())
                .map_err(|e| self.corrupt(at.offset, &format!("{name}: {e}")))?;
        }
        Ok(())
    }

    /// Refuses handles that cannot be those of a block.
    pub(super) fn check_handle(&self, at: Handle) -> Result<()> {
        if at.bytes > BLOCK_FRAME_BYTES_MAX || at.end() > self.trailer.index.offset {
            return Err(self.corrupt(at.offset, "the index names a place outside of the data"));
        }
        Ok(())
    }

    pub(super) fn malformed(&self, at: Handle) -> Error {
        self.corrupt(at.offset, "malformed block")
    }

    /// Marks the table and names the place.
    pub fn corrupt(&self, offset: u64, what: &str) -> Error {
        let found = format!("SSTable {}: offset {offset}: {what}", self.trailer.id);
        self.mark_damaged(&found);
        Error::corrupt(found)
    }
}

/// Reads a part of a file; a file that ends before it is corrupt.
pub(super) fn read(file: &dyn VfsFile, at: Handle) -> Result<Bytes> {
    let mut buf = vec![0; usize::try_from(at.bytes).map_err(|_| Error::corrupt("impossible length"))?];
    match file.read_exact_at(&mut buf, at.offset) {
        Ok(()) => Ok(buf.into()),
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Err(Error::corrupt("the file ends here")),
        Err(e) => Err(e.into()),
    }
}
