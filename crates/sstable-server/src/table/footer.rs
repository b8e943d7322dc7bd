//! The end of a table file: the meta section and the trailer.
//!
//! Meta section (a frame), little-endian: records u64, tombstones u64, least seq u64, largest seq u64, data blocks u64, bytes of
//! all keys u64, bytes of all values u64, table options (filter_inserts u8, compression u8, partition_prefix u32), smallest
//! key (length u32, bytes), largest key (length u32, bytes); since version 2 of the format the origin: lineage u64, first and last
//! generation u64 each, name of the table (length u32, bytes); from version 3 on how many records expire u64, and when the first and the
//! last of them does (ticks, u64 each). Version 4 is that of tables with headers of objects. In version 5 the range of keys that the
//! table answers for: first key, and the first key beyond it (length u32, bytes each; empty: none), and whether it has headers of
//! objects, u8; also in version 6, where the range may be all keys, and which goes on with offset and length (u64 each) of the
//! dictionary, 0 and 0 without one; version 7 is version 6 of any compression, and ends with the option filter_prefix, u32, not 0.
//!
//! Trailer, the last 124 bytes: magic 8 bytes, version u32, index levels u32, SSTable id 36 bytes, table u32; offset and
//! length (u64 each) of the top index block, of the filter and of the meta section; length of the file u64; file checksum
//! u64; trailer checksum u32. The file checksum is xxh3_64 of every byte before it: it names the contents of the file in
//! manifests. The trailer checksum is the low half of xxh3_64 of the trailer's bytes before it, so that the file checksum
//! can be trusted without reading the file.

use bytes::Bytes;
use sextant_common::error::{Error, Result};
use sextant_common::expiry::Tick;
use sextant_common::ids::{SstId, TableId};
use sextant_common::key_range::KeyRange;
use sextant_common::limits::{KEY_BYTES_MAX, TABLE_NAME_BYTES_MAX};
use sextant_common::manifest::{Compression, Expiring, Generations, Origin, SstMeta, TableOptions};
use xxhash_rust::xxh3::xxh3_64;

use super::codec::{u32_at, u64_at};
use super::index::{Handle, WrittenIndex};

pub const MAGIC: [u8; 8] = *b"\xa5sextSST";
/// Of tables that do not say where they come from.
pub const VERSION: u32 = 1;
/// Of tables whose meta section ends with their origin.
pub const VERSION_WITH_ORIGIN: u32 = 2;
/// Of tables with records that expire.
pub const VERSION_WITH_EXPIRY: u32 = 3;
/// Of tables with headers of objects: records that have a kind. Otherwise as version 3, also if none expires.
pub const VERSION_WITH_OBJECTS: u32 = 4;
/// Of tables that answer for a part of the keys.
pub const VERSION_WITH_RANGE: u32 = 5;
/// Of tables whose option is Zstd.
pub const VERSION_WITH_ZSTD: u32 = 6;
/// Of tables whose filter has prefixes, compressed or not.
pub const VERSION_WITH_PREFIXES: u32 = 7;
pub const TRAILER_BYTES: usize = 124;
/// The file checksum and the trailer checksum: what the file checksum does not cover.
pub const UNHASHED_BYTES: usize = 12;

/// What the trailer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    pub version: u32,
    pub id: SstId,
    pub table: TableId,
    pub index_levels: u32,
    pub index: Handle,
    pub filter: Handle,
    pub meta: Handle,
    pub file_bytes: u64,
    pub file_checksum: u64,
}

impl Trailer {
    /// The trailer's bytes without the two checksums.
    pub fn hashed_bytes(
        version: u32,
        id: SstId,
        table: TableId,
        index: WrittenIndex,
        filter: Handle,
        meta: Handle,
    ) -> Vec<u8> {
        let mut out = Vec::with_capacity(TRAILER_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&index.levels.to_le_bytes());
        out.extend_from_slice(&id.to_bytes());
        out.extend_from_slice(&table.0.to_le_bytes());
        for handle in [index.top, filter, meta] {
            out.extend_from_slice(&handle.offset.to_le_bytes());
            out.extend_from_slice(&handle.bytes.to_le_bytes());
        }
        out.extend_from_slice(&(meta.end() + TRAILER_BYTES as u64).to_le_bytes());
        debug_assert_eq!(out.len(), TRAILER_BYTES - UNHASHED_BYTES);
        out
    }

    /// Appends the two checksums to [`Trailer::hashed_bytes`].
    pub fn complete(hashed: &mut Vec<u8>, file_checksum: u64) {
        hashed.extend_from_slice(&file_checksum.to_le_bytes());
        let own = xxh3_64(hashed) as u32;
        hashed.extend_from_slice(&own.to_le_bytes());
    }

    /// Reads and checks a trailer. `file_bytes` is the length that the file has.
    pub fn parse(bytes: &[u8], file_bytes: u64) -> Result<Self> {
        let bad = |what: &str| Error::corrupt(format!("trailer: {what}"));
        if bytes.len() != TRAILER_BYTES || bytes[..8] != MAGIC {
            return Err(bad("this is not a table file"));
        }
        let stated = u32_at(bytes, TRAILER_BYTES - 4);
        if stated != Some(xxh3_64(&bytes[..TRAILER_BYTES - 4]) as u32) {
            return Err(bad("checksum mismatch"));
        }
        let (u32_of, u64_of) = (|at| u32_at(bytes, at).unwrap_or(0), |at| u64_at(bytes, at).unwrap_or(0));
        if !(VERSION..=VERSION_WITH_PREFIXES).contains(&u32_of(8)) {
            return Err(bad(&format!(
                "format version {} is not known (this is {VERSION_WITH_PREFIXES})",
                u32_of(8)
            )));
        }
        let handle = |at| Handle { offset: u64_of(at), bytes: u64_of(at + 8) };
        let trailer = Trailer {
            version: u32_of(8),
            index_levels: u32_of(12),
            id: SstId::from_bytes(&bytes[16..52]).ok_or_else(|| bad("bad id"))?,
            table: TableId(u32_of(52)),
            index: handle(56),
            filter: handle(72),
            meta: handle(88),
            file_bytes: u64_of(104),
            file_checksum: u64_of(112),
        };
        if trailer.file_bytes != file_bytes {
            return Err(bad(&format!("file has {file_bytes} bytes, expected {}", trailer.file_bytes)));
        }
        let in_order = trailer.index.end() == trailer.filter.offset
            && trailer.filter.end() == trailer.meta.offset
            && trailer.meta.end().checked_add(TRAILER_BYTES as u64) == Some(file_bytes);
        if !in_order || !(1..=2).contains(&trailer.index_levels) {
            return Err(bad("sections are not in order"));
        }
        Ok(trailer)
    }
}

/// Counts and bounds of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableMeta {
    pub records: u64,
    pub tombstones: u64,
    pub min_seq: u64,
    pub max_seq: u64,
    pub data_blocks: u64,
    pub key_bytes: u64,
    pub value_bytes: u64,
    pub options: TableOptions,
    pub min_key: Bytes,
    pub max_key: Bytes,
    /// None in version 1.
    pub origin: Option<Origin>,
    /// None of them before version 3.
    pub expiring: Expiring,
    /// Whether some are headers of objects: from version 4 on.
    pub has_objects: bool,
    /// What data blocks are compressed with, if they are with one: from version 6 on.
    pub dictionary: Option<Handle>,
}

impl TableMeta {
    /// The version of the format that a table with this section has.
    pub fn version(&self) -> u32 {
        match (&self.origin, self.expiring.records) {
            (None, _) => VERSION,
            _ if self.options.filter_prefix > 0 => VERSION_WITH_PREFIXES,
            _ if self.options.compression == Compression::Zstd => VERSION_WITH_ZSTD,
            (Some(origin), _) if !origin.range.is_all() => VERSION_WITH_RANGE,
            (Some(_), _) if self.has_objects => VERSION_WITH_OBJECTS,
            (Some(_), 0) => VERSION_WITH_ORIGIN,
            (Some(_), _) => VERSION_WITH_EXPIRY,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let numbers = [
            self.records,
            self.tombstones,
            self.min_seq,
            self.max_seq,
            self.data_blocks,
            self.key_bytes,
            self.value_bytes,
        ];
        numbers.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
        out.push(u8::from(self.options.filter_inserts));
        out.push(match self.options.compression {
            Compression::None => 0,
            Compression::Lz4 => 1,
            Compression::Zstd => 2,
        });
        out.extend_from_slice(&self.options.partition_prefix.to_le_bytes());
        for key in [&self.min_key, &self.max_key] {
            out.extend_from_slice(&(key.len() as u32).to_le_bytes());
            out.extend_from_slice(key);
        }
        if let Some(Origin { lineage, name, generations, .. }) = &self.origin {
            for number in [*lineage, generations.first.0, generations.last.0] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            out.extend_from_slice(&(name.len() as u32).to_le_bytes());
            out.extend_from_slice(name.as_bytes());
        }
        let version = self.version();
        if version >= VERSION_WITH_EXPIRY {
            let Expiring { records, first, last } = self.expiring;
            [records, first.0, last.0].iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
        }
        if let Some(Origin { range, .. }) = &self.origin
            && version >= VERSION_WITH_RANGE
        {
            for key in [&range.start, &range.end] {
                out.extend_from_slice(&(key.len() as u32).to_le_bytes());
                out.extend_from_slice(key);
            }
            out.push(u8::from(self.has_objects));
        }
        if version >= VERSION_WITH_ZSTD {
            let Handle { offset, bytes } = self.dictionary.unwrap_or(Handle { offset: 0, bytes: 0 });
            [offset, bytes].iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
        }
        if version >= VERSION_WITH_PREFIXES {
            out.extend_from_slice(&self.options.filter_prefix.to_le_bytes());
        }
        out
    }

    /// `version`: what the trailer says.
    pub fn parse(bytes: &Bytes, version: u32) -> Result<Self> {
        Self::read(bytes, version).ok_or_else(|| Error::corrupt("meta section: malformed"))
    }

    fn read(bytes: &Bytes, version: u32) -> Option<Self> {
        let number = |i: usize| u64_at(bytes, 8 * i);
        let (filter_inserts, compression) = (*bytes.get(56)?, *bytes.get(57)?);
        let mut options = TableOptions {
            filter_inserts: filter_inserts == 1,
            compression: match compression {
                0 => Compression::None,
                1 => Compression::Lz4,
                2 => Compression::Zstd,
                _ => return None,
            },
            partition_prefix: u32_at(bytes, 58)?,
            filter_prefix: 0,
        };
        let is_zstd = options.compression == Compression::Zstd;
        let key = |at: usize| {
            let len = u32_at(bytes, at)? as usize;
            let end = (at + 4).checked_add(len)?;
            // A copy: a slice would pin the section, and these live as long as the table.
            (len <= KEY_BYTES_MAX && end <= bytes.len())
                .then(|| (Bytes::copy_from_slice(&bytes[at + 4..end]), end))
        };
        let (min_key, next) = key(62)?;
        let (max_key, mut end) = key(next)?;
        let mut origin = None;
        if version >= VERSION_WITH_ORIGIN {
            let number = |i: usize| u64_at(bytes, end + 8 * i);
            let (lineage, generations) = (number(0)?, Generations::new(number(1)?, number(2)?));
            let len = u32_at(bytes, end + 24)? as usize;
            let name = bytes.get(end + 28..(end + 28).checked_add(len)?)?;
            let name = std::str::from_utf8(name).ok()?.to_owned();
            if name.is_empty() || len > TABLE_NAME_BYTES_MAX || !generations.are_known() {
                return None;
            }
            end += 28 + len;
            origin = Some(Origin { lineage, name, generations, range: KeyRange::all() });
        }
        let mut expiring = Expiring::default();
        if version >= VERSION_WITH_EXPIRY {
            let number = |i: usize| u64_at(bytes, end + 8 * i);
            let (first, last) = (Tick(number(1)?), Tick(number(2)?));
            expiring = Expiring { records: number(0)?, first, last };
            if expiring.records == 0 && (version == VERSION_WITH_EXPIRY || last.0 > 0) || first > last {
                return None;
            }
            end += 24;
        }
        let mut has_objects = version == VERSION_WITH_OBJECTS;
        if version >= VERSION_WITH_RANGE {
            let (start, next) = key(end)?;
            let (before, after) = key(next)?;
            let range = KeyRange { start, end: before };
            if range.is_all() && version == VERSION_WITH_RANGE
                || !range.contains(&min_key)
                || !range.contains(&max_key)
            {
                return None;
            }
            has_objects = match bytes.get(after)? {
                0 => false,
                1 => true,
                _ => return None,
            };
            end = after + 1;
            origin.as_mut()?.range = range;
        }
        let mut dictionary = None;
        if version >= VERSION_WITH_ZSTD {
            let at = Handle { offset: u64_at(bytes, end)?, bytes: u64_at(bytes, end + 8)? };
            dictionary = (at.bytes > 0).then_some(at);
            if dictionary.is_none() && at.offset > 0 {
                return None;
            }
            end += 16;
        }
        if version >= VERSION_WITH_PREFIXES {
            options.filter_prefix = u32_at(bytes, end)?;
            if options.filter_prefix == 0 {
                return None;
            }
            end += 4;
        }
        let is_zstd_as_stated = match version {
            VERSION_WITH_ZSTD => is_zstd,
            VERSION_WITH_PREFIXES => is_zstd || dictionary.is_none(),
            _ => !is_zstd,
        };
        let meta = TableMeta {
            records: number(0)?,
            tombstones: number(1)?,
            min_seq: number(2)?,
            max_seq: number(3)?,
            data_blocks: number(4)?,
            key_bytes: number(5)?,
            value_bytes: number(6)?,
            options,
            min_key,
            max_key,
            origin,
            expiring,
            has_objects,
            dictionary,
        };
        let sound = end == bytes.len()
            && is_zstd_as_stated
            && filter_inserts <= 1
            && meta.records > 0
            && meta.tombstones.saturating_add(meta.expiring.records) <= meta.records
            && meta.min_seq <= meta.max_seq
            && meta.min_key <= meta.max_key;
        sound.then_some(meta)
    }

    /// As the manifest names the table, without replicas.
    pub fn sst_meta(&self, trailer: &Trailer) -> SstMeta {
        SstMeta {
            id: trailer.id,
            table: trailer.table,
            records: self.records,
            tombstones: self.tombstones,
            min_key: self.min_key.clone(),
            max_key: self.max_key.clone(),
            min_seq: self.min_seq,
            max_seq: self.max_seq,
            file_bytes: trailer.file_bytes,
            checksum: trailer.file_checksum,
            generations: self.origin.as_ref().map(|o| o.generations).unwrap_or_default(),
            range: self.origin.as_ref().map(|o| o.range.clone()).unwrap_or_default(),
            expiring: self.expiring,
            replicas: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn meta_round_trips(numbers in prop::array::uniform7(1u64..1000), expiring in 0u64..3, objects in any::<bool>(), inserts in any::<bool>(), prefix in any::<u32>(), key in prop::collection::vec(any::<u8>(), 1..9), name in "[a-z]{0,9}", bounds in 0u8..4, zstd in any::<bool>(), dictionary in any::<bool>(), filter_prefix in prop_oneof![Just(0u32), any::<u32>()]) {
            let [tombstones, more, min_seq, span, data_blocks, key_bytes, value_bytes] = numbers;
            let mut range = KeyRange::all();
            if bounds & 1 != 0 { range.start = Bytes::copy_from_slice(&key[..1]); }
            if bounds & 2 != 0 { range.end = [&key[..], &[0]].concat().into(); }
            let generations = Generations::new(more, more + span);
            let origin = (!name.is_empty()).then_some(Origin { lineage: min_seq, name, generations, range });
            let first = Tick(if expiring > 0 && origin.is_some() { min_seq } else { 0 });
            let expiring = Expiring { records: if first.0 > 0 { expiring } else { 0 }, first, last: Tick(first.0 * span) };
            let compression = if zstd && origin.is_some() { Compression::Zstd } else { Compression::Lz4 };
            let dictionary = (compression == Compression::Zstd && dictionary).then_some(Handle { offset: span, bytes: more });
            let filter_prefix = if origin.is_some() { filter_prefix } else { 0 };
            let meta = TableMeta {
                records: tombstones + more + expiring.records, tombstones, min_seq, max_seq: min_seq + span, data_blocks, key_bytes, value_bytes,
                options: TableOptions { filter_inserts: inserts, partition_prefix: prefix, compression, filter_prefix },
                min_key: Bytes::copy_from_slice(&key[..1]), max_key: key.into(), has_objects: objects && origin.is_some(), origin, expiring, dictionary,
            };
            let bytes = Bytes::from(meta.encode());
            for cut in 0..bytes.len() {
                prop_assert!(TableMeta::parse(&bytes.slice(..cut), meta.version()).is_err());
            }
            // (Versions 3 and 4 look alike.)
            for other in (VERSION..=VERSION_WITH_PREFIXES).filter(|version| *version != meta.version()).filter(|version| version + meta.version() != 7) {
                prop_assert!(TableMeta::parse(&bytes, other).is_err());
            }
            prop_assert_eq!(TableMeta::parse(&bytes, meta.version()).unwrap(), meta);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = TableMeta::parse(&bytes.clone().into(), VERSION);
            let _ = TableMeta::parse(&bytes.clone().into(), VERSION_WITH_ORIGIN);
            let _ = TableMeta::parse(&bytes.clone().into(), VERSION_WITH_EXPIRY);
            let _ = TableMeta::parse(&bytes.clone().into(), VERSION_WITH_OBJECTS);
            let _ = TableMeta::parse(&bytes.clone().into(), VERSION_WITH_RANGE);
            let _ = TableMeta::parse(&bytes.clone().into(), VERSION_WITH_PREFIXES);
            let mut trailer = MAGIC.to_vec();
            trailer.extend_from_slice(&VERSION.to_le_bytes());
            trailer.extend_from_slice(&bytes);
            trailer.resize(TRAILER_BYTES - UNHASHED_BYTES, 0xff);
            Trailer::complete(&mut trailer, 7);
            let _ = Trailer::parse(&trailer, u64::MAX);
        }
    }
}
