//! Reading a table's sections: when it is opened, and again whenever one is needed that is not in memory.
//!
//! What fails here names table and offset. Opening judges it; later it is an error of the read that needed the section, and
//! damage is marked as that of a block is.

use std::sync::Arc;

use bytes::Bytes;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::filter::SealedFilter;
use sextant_common::ids::SstId;
use sextant_environment::vfs::VfsFile;

use super::block::Block;
use super::footer::TableMeta;
use super::frame::{self, TAIL_BYTES};
use super::frame_seed;
use super::index::Handle;
use super::reader::{Access, Table, read};
use super::section::{Keep, Loaded, Section};
use super::zstd::Unpacker;

/// No section is longer than so many times its frame.
const EXPANSION_MAX: u64 = 255;
/// What an open table takes beside its keys and names: itself, three places for sections, its file, its entry in the catalog.
const TABLE_BYTES: usize = 2048;

/// What stays in memory as long as the table is open.
pub(super) fn fixed_bytes(meta: &TableMeta) -> u64 {
    let origin = meta.origin.as_ref().map_or(0, |o| o.name.len() + o.range.start.len() + o.range.end.len());
    (TABLE_BYTES + meta.min_key.len() + meta.max_key.len() + origin) as u64
}

/// The payload of a section; errors name table and place.
pub(super) fn payload(file: &dyn VfsFile, id: SstId, salt: u64, name: &str, at: Handle) -> Result<Bytes> {
    let named = |e: Error| Error::new(e.kind, format!("SSTable {id}: offset {}: {name}: {e}", at.offset));
    let bytes = read(file, at).map_err(named)?;
    frame::decode(&bytes, frame_seed(salt, at.offset), &Unpacker::default())
        .map_err(|e| named(Error::corrupt(e.to_string())))
}

impl Access {
    /// Whether a section that has to be read stays. (Reads that bypass the cache are those of jobs.)
    pub(super) fn keep(self) -> Keep {
        if self == Access::NoFill { Keep::No } else { Keep::IfThereIsRoom }
    }
}

impl Table {
    /// Reads all sections. What is wrong with the filter is returned apart: the table can do without.
    pub(super) fn verify_sections(&self) -> Result<Option<Error>> {
        if self.dictionary_at().is_some() {
            self.read_dictionary(Keep::IfThereIsRoom)?;
        }
        self.read_top(Keep::IfThereIsRoom)?;
        Ok(self.read_filter(Keep::IfThereIsRoom).err())
    }

    /// The top index block, read if it is not in memory.
    pub(super) fn top(&self, access: Access) -> Result<Arc<Loaded<Block>>> {
        self.marked(self.read_top(access.keep()))
    }

    /// The filter, read if it is not in memory.
    pub(super) fn sealed_filter(&self, access: Access) -> Result<Arc<Loaded<SealedFilter>>> {
        self.marked(self.read_filter(access.keep()))
    }

    /// The dictionary, if the table has one, read if it is not in memory.
    pub(super) fn dictionary(&self, access: Access) -> Result<Option<Arc<Loaded<Unpacker>>>> {
        match self.dictionary_at() {
            Some(_) => self.marked(self.read_dictionary(access.keep())).map(Some),
            None => Ok(None),
        }
    }

    /// What decompresses data blocks, apart from the budget: for a job, which has room of its own.
    pub(super) fn own_unpacker(&self) -> Result<Unpacker> {
        let Some(at) = self.dictionary_at() else { return Ok(Unpacker::default()) };
        let payload = payload(&**self.file(), self.id(), self.salt(), "dictionary", at);
        self.marked(payload.and_then(|payload| Unpacker::new(&payload)))
    }

    fn read_top(&self, keep: Keep) -> Result<Arc<Loaded<Block>>> {
        self.section(&self.sections().top, keep, "index", self.trailer().index, |payload| {
            let block = Block::parse(payload).map_err(|_| "malformed".to_owned())?;
            let bytes = block.size_bytes();
            Ok((block, bytes))
        })
    }

    fn read_filter(&self, keep: Keep) -> Result<Arc<Loaded<SealedFilter>>> {
        self.section(&self.sections().filter, keep, "filter", self.trailer().filter, |payload| {
            let filter = SealedFilter::from_bytes(&payload).map_err(|e| e.message.into_owned())?;
            let bytes = filter.memory_bytes();
            Ok((filter, bytes))
        })
    }

    fn read_dictionary(&self, keep: Keep) -> Result<Arc<Loaded<Unpacker>>> {
        let at = self.dictionary_at().ok_or_else(|| Error::internal("a table without a dictionary"))?;
        self.section(&self.sections().dictionary, keep, "dictionary", at, |payload| {
            let unpacker = Unpacker::new(&payload).map_err(|e| e.message.into_owned())?;
            Ok((unpacker, Unpacker::memory_bytes(payload.len())))
        })
    }

    /// `parse`: the section, and how many bytes it has in memory.
    fn section<T: Send + Sync + 'static>(
        &self,
        place: &Arc<Section<T>>,
        keep: Keep,
        name: &str,
        at: Handle,
        parse: impl FnOnce(Bytes) -> Result<(T, usize), String>,
    ) -> Result<Arc<Loaded<T>>> {
        if let Some(loaded) = &*place.get() {
            return Ok(loaded.clone());
        }
        let (file, id) = (&**self.file(), self.id());
        let named = |e: Error| Error::new(e.kind, format!("SSTable {id}: offset {}: {name}: {e}", at.offset));
        // While it is read, it is there as the file has it, and as memory will.
        let tail = Handle { offset: at.end().saturating_sub(TAIL_BYTES as u64), bytes: TAIL_BYTES as u64 };
        let stated = frame::stated_bytes(&read(file, tail).map_err(named)?).unwrap_or(0) as u64;
        // (Nobody has checked that yet.)
        let stated = stated.min(at.bytes.saturating_mul(EXPANSION_MAX));
        let bytes = at.bytes + Unpacker::memory_bytes(0) as u64 * u64::from(name == "dictionary") + stated;
        place.get_or_read(self.shared_cache(), keep, bytes, || {
            let payload = payload(file, id, self.salt(), name, at)?;
            let (part, bytes) = parse(payload).map_err(|e| named(Error::corrupt(e)))?;
            Ok((part, bytes as u64))
        })
    }

    /// Damage that a read met is the table's.
    fn marked<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(e) = &result
            && e.kind == ErrorKind::Corrupt
        {
            self.mark_damaged(&e.message);
        }
        result
    }
}
