//! Repairing a damaged filter section without another replica.
//!
//! The filter is a function of the keys, so it is rebuilt by a scan. With it, the file's bytes are known again, and the file
//! checksum tells whether they are right: then the file is replaced. If they are not, or the disk refuses, the rebuilt filter
//! serves from memory and the table stays marked as damaged, so that it is copied from another replica.

use std::sync::Arc;

use sextant_common::error::{Error, Result};
use sextant_common::manifest::Compression;
use xxhash_rust::xxh3::Xxh3;

use super::Catalog;
use crate::table::filter::FilterBuilder;
use crate::table::footer::UNHASHED_BYTES;
use crate::table::{Caching, Direction, KeyRange, Opened, Table, TableIter, frame, frame_salt, frame_seed};

/// Copied in pieces of this size.
const PIECE_BYTES: u64 = 1024 * 1024;

impl Catalog {
    /// Gives `table` a rebuilt filter, and returns the table on its repaired file.
    pub(super) fn heal_filter(&self, table: &Arc<Table>) -> Result<Arc<Table>> {
        let mut builder = FilterBuilder::new(table.meta().options.filter_prefix);
        let mut iter = TableIter::new(table.clone(), KeyRange::all(), Direction::Forward, Caching::Bypass)?;
        while !iter.is_at_end() {
            builder.add(iter.key());
            iter.advance()?;
        }
        let filter = builder.finish();
        let trailer = *table.trailer();
        let mut section = Vec::new();
        let seed = frame_seed(frame_salt(trailer.id, trailer.table), trailer.filter.offset);
        frame::encode(&filter.to_bytes(), Compression::None, seed, &mut section);
        table.set_rebuilt_filter(filter);
        if section.len() as u64 != trailer.filter.bytes {
            return Err(Error::corrupt("the rebuilt filter does not have the size of the old one"));
        }
        let temporary = self.create_temporary(trailer.id)?;
        let (from, to) = (table.file(), temporary.file());
        let mut hasher = Xxh3::new();
        let hashed_end = trailer.file_bytes - UNHASHED_BYTES as u64;
        let mut at = 0;
        while at < trailer.file_bytes {
            // Pieces end where the filter starts and where the hashed part ends.
            let stop = [trailer.filter.offset, hashed_end, trailer.file_bytes].into_iter().find(|s| *s > at);
            let mut piece = if at == trailer.filter.offset {
                std::mem::take(&mut section)
            } else {
                vec![0; PIECE_BYTES.min(stop.unwrap_or(at) - at) as usize]
            };
            if at != trailer.filter.offset {
                from.read_exact_at(&mut piece, at)?;
            }
            if at < hashed_end {
                hasher.update(&piece);
            }
            to.write_all_at(&piece, at)?;
            at += piece.len() as u64;
        }
        if hasher.digest() != trailer.file_checksum {
            return Err(Error::corrupt("other parts of the file are damaged too"));
        }
        to.sync_data()?;
        let Opened { table: healed, filter_damage } =
            Table::open(to.clone(), trailer.id, self.next_number(), self.cache.clone())?;
        if let Some(error) = filter_damage {
            return Err(error);
        }
        self.dir.publish(temporary)?;
        self.dir.sync()?;
        Ok(Arc::new(healed))
    }
}
