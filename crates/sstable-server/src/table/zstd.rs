//! Zstd with a dictionary of the table's own, for blocks that are too small to be compressed well each by itself.
//!
//! A frame is compressed when the table is written by a compaction, with [`LEVEL`]; whoever reads needs no level.

use std::cell::RefCell;

use bytes::Bytes;
use sextant_common::error::{Error, Result};
use zstd_safe::{CCtx, CDict, CParameter, DCtx, DDict};

/// What zstd itself takes. Reading is as fast at any level.
const LEVEL: i32 = 3;
/// A dictionary is made from so much of the beginning of a table ...
pub const SAMPLE_BYTES: usize = 2 * 1024 * 1024;
/// ... and is so long at most: a hundredth of it, as its makers advise, and little beside a table that is worth one.
pub const DICTIONARY_BYTES_MAX: usize = 16 * 1024;
/// A table with less than this gets none.
const SAMPLE_BYTES_MIN: usize = 16 * DICTIONARY_BYTES_MAX;

/// A dictionary for blocks like these: `samples` are their payloads one after the other, each of a length of `lengths`. None: there are
/// too few, or they have nothing in common. The same samples give the same bytes.
pub fn dictionary_of(samples: &[u8], lengths: &[usize]) -> Option<Vec<u8>> {
    if samples.len() < SAMPLE_BYTES_MIN {
        return None;
    }
    let mut dictionary = vec![0; DICTIONARY_BYTES_MAX];
    let len = zstd_safe::train_from_buffer(&mut dictionary[..], samples, lengths).ok()?;
    dictionary.truncate(len);
    Some(dictionary)
}

/// Compresses the blocks of one table.
pub struct Packer {
    context: CCtx<'static>,
    dictionary: Option<CDict<'static>>,
}

impl Packer {
    pub fn new(dictionary: Option<&[u8]>) -> Result<Self> {
        let mut context = CCtx::create();
        // The frame has a checksum and the length already.
        let parameters = [
            CParameter::CompressionLevel(LEVEL),
            CParameter::ChecksumFlag(false),
            CParameter::ContentSizeFlag(false),
            CParameter::DictIdFlag(false),
        ];
        for parameter in parameters {
            context.set_parameter(parameter).map_err(failed)?;
        }
        let dictionary = dictionary.map(|bytes| CDict::create(bytes, LEVEL));
        Ok(Self { context, dictionary })
    }

    /// How much room [`Packer::pack`] needs.
    pub fn most(len: usize) -> usize {
        zstd_safe::compress_bound(len)
    }

    /// The length of what it wrote into `room`.
    pub fn pack(&mut self, payload: &[u8], room: &mut [u8]) -> Option<usize> {
        match &self.dictionary {
            Some(dictionary) => self.context.compress_using_cdict(room, payload, dictionary).ok(),
            None => self.context.compress2(room, payload).ok(),
        }
    }
}

/// What a dictionary takes in memory beside its bytes: tables for decoding.
const DICTIONARY_TABLES_BYTES: usize = 28 * 1024;

/// Decompresses the blocks of one table.
#[derive(Default)]
pub struct Unpacker {
    dictionary: Option<DDict<'static>>,
}

impl std::fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Unpacker {{ has_dictionary: {} }}", self.dictionary.is_some())
    }
}

impl Unpacker {
    pub fn new(dictionary: &Bytes) -> Result<Self> {
        let dictionary = DDict::try_create(dictionary).ok_or_else(|| Error::corrupt("malformed"))?;
        Ok(Self { dictionary: Some(dictionary) })
    }

    /// Of one with a dictionary of so many bytes.
    pub fn memory_bytes(dictionary: usize) -> usize {
        dictionary + DICTIONARY_TABLES_BYTES
    }

    /// The length of what it wrote into `room`.
    pub fn unpack(&self, packed: &[u8], room: &mut [u8]) -> Option<usize> {
        thread_local! {
            // 100 KiB, so not one for each block.
            static CONTEXT: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
        }
        CONTEXT.with_borrow_mut(|context| match &self.dictionary {
            Some(dictionary) => context.decompress_using_ddict(room, packed, dictionary).ok(),
            None => context.decompress(room, packed).ok(),
        })
    }
}

fn failed(code: zstd_safe::ErrorCode) -> Error {
    Error::internal(format!("zstd: {}", zstd_safe::get_error_name(code)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use sextant_common::ErrorKind;
    use sextant_common::ids::TableId;
    use sextant_common::key::filter_hash;
    use sextant_common::manifest::{Compression, Generations, Origin, SstMeta, TableOptions};
    use sextant_common::marks::Marks;
    use sextant_simulated::MemoryFile;

    use crate::table::footer::VERSION_WITH_ZSTD;
    use crate::table::reader::Tally;
    use crate::table::{
        Access, Caching, Content, Direction, KeyRange, Lookup, Table, TableIter, TableWriter,
    };
    use crate::testing::{Model, open_bytes, sst_id};

    /// What a table of small records of one kind looks like.
    fn samples(blocks: u64) -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut lengths) = (Vec::new(), Vec::new());
        for block in 0..blocks {
            let start = bytes.len();
            (0..40).for_each(|i| bytes.extend_from_slice(&value(block * 40 + i)));
            lengths.push(bytes.len() - start);
        }
        (bytes, lengths)
    }

    fn packed(packer: &mut Packer, payload: &[u8]) -> Vec<u8> {
        let mut room = vec![0; Packer::most(payload.len())];
        let len = packer.pack(payload, &mut room).unwrap();
        room.truncate(len);
        room
    }

    #[test]
    fn what_is_packed_comes_back_with_and_without_a_dictionary() {
        let (bytes, lengths) = samples(300);
        let dictionary = dictionary_of(&bytes, &lengths).unwrap();
        assert_eq!(dictionary_of(&bytes, &lengths).unwrap(), dictionary);
        let block = &bytes[..lengths[0]];
        let mut sizes = Vec::new();
        for dictionary in [None, Some(Bytes::from(dictionary))] {
            let mut packer = Packer::new(dictionary.as_deref()).unwrap();
            let unpacker = dictionary.as_ref().map_or_else(Unpacker::default, |d| Unpacker::new(d).unwrap());
            let packed = packed(&mut packer, block);
            let mut room = vec![0; block.len()];
            assert_eq!(unpacker.unpack(&packed, &mut room), Some(block.len()));
            assert_eq!(room, block);
            assert_eq!(unpacker.unpack(&packed, &mut room[1..]), None, "too little room");
            sizes.push(packed.len());
        }
        assert!(sizes[1] < sizes[0], "{sizes:?}");
    }

    #[test]
    fn a_small_table_has_no_dictionary() {
        let (bytes, lengths) = samples(10);
        assert_eq!(dictionary_of(&bytes, &lengths), None);
    }

    fn value(i: u64) -> Vec<u8> {
        let hash = filter_hash(&i.to_le_bytes());
        format!("{{\"user\":{hash},\"city\":\"Sankt Gallen\",\"since\":{i}}}").into_bytes()
    }

    fn model(records: u64) -> Model {
        let record = |i: u64| {
            if i.is_multiple_of(7) { (Vec::new(), i, true) } else { (value(i), i, false) }
        };
        (0..records).map(|i| (format!("user:{i:08}").into_bytes(), record(i))).collect()
    }

    fn written(model: &Model, compression: Compression, is_at_the_bottom: bool) -> (Vec<u8>, SstMeta) {
        let origin = Origin {
            lineage: 3,
            name: "t".into(),
            generations: Generations::new(1, 4),
            range: KeyRange::all(),
        };
        let file = Arc::new(MemoryFile::default());
        let options = TableOptions { compression, ..TableOptions::default() };
        let writer = TableWriter::new(file.clone(), sst_id(7), TableId(9), options).with_origin(Some(origin));
        let mut writer = if is_at_the_bottom { writer.at_the_bottom() } else { writer };
        for (key, (value, seq, is_tombstone)) in model {
            let value = (!is_tombstone).then_some(value.as_slice());
            writer.add(key, *seq, Content::new(value, Marks::NONE)).unwrap();
        }
        let meta = writer.finish().unwrap();
        let bytes = std::mem::take(&mut *file.0.lock());
        (bytes, meta)
    }

    fn opened(bytes: Vec<u8>) -> Arc<Table> {
        Arc::new(open_bytes(bytes, sst_id(7), 1 << 20).unwrap().table)
    }

    fn check(table: &Arc<Table>, model: &Model) {
        for (key, (value, seq, tombstone)) in model {
            let found = table.get(key, filter_hash(key), Access::Fill, &mut Tally::default()).unwrap();
            let Lookup::Found(found) = found else { panic!("{key:?}") };
            assert_eq!((&found.value[..], found.seq, found.tombstone), (&value[..], *seq, *tombstone));
        }
        for direction in [Direction::Forward, Direction::Backward] {
            let mut iter =
                TableIter::new(table.clone(), KeyRange::all(), direction, Caching::Bypass).unwrap();
            let mut keys = Vec::new();
            while !iter.is_at_end() {
                keys.push(iter.key().to_vec());
                iter.advance().unwrap();
            }
            keys.sort();
            assert!(keys.iter().eq(model.keys()));
        }
    }

    #[test]
    fn at_the_bottom_a_table_is_smaller_and_reads_the_same() {
        // Less than is gathered; more; and so little that there is no dictionary.
        for (records, has_dictionary) in [(10_000, true), (60_000, true), (300, false)] {
            let model = model(records);
            let sizes = [Compression::Lz4, Compression::Zstd].map(|compression| {
                let (bytes, meta) = written(&model, compression, true);
                let table = opened(bytes.clone());
                check(&table, &model);
                table.check_sections().unwrap();
                let is_zstd = compression == Compression::Zstd;
                assert_eq!(table.trailer().version == VERSION_WITH_ZSTD, is_zstd);
                assert_eq!(table.meta().dictionary.is_some(), is_zstd && has_dictionary);
                assert_eq!(written(&model, compression, true).0, bytes, "the same records, the same bytes");
                meta.file_bytes
            });
            assert!(sizes[1] < sizes[0], "{sizes:?}");
        }
    }

    #[test]
    fn above_the_bottom_such_a_table_has_the_blocks_of_lz4() {
        let model = model(3000);
        let (lz4, zstd) =
            (written(&model, Compression::Lz4, false), written(&model, Compression::Zstd, false));
        let table = opened(zstd.0.clone());
        check(&table, &model);
        let data = table.trailer().index.offset as usize;
        assert!(lz4.0[..data] == zstd.0[..data]);
    }

    #[test]
    fn a_damaged_dictionary_is_noticed() {
        let model = model(10_000);
        let (mut bytes, _) = written(&model, Compression::Zstd, true);
        let at = opened(bytes.clone()).meta().dictionary.unwrap();
        bytes[at.offset as usize + 100] ^= 1;
        let refused = open_bytes(bytes, sst_id(7), 0).err().unwrap();
        assert_eq!(refused.kind, ErrorKind::Corrupt);
        assert!(refused.message.contains(&format!("offset {}: dictionary", at.offset)), "{refused}");
    }

    #[test]
    fn without_an_origin_it_is_refused() {
        let options = TableOptions { compression: Compression::Zstd, ..TableOptions::default() };
        let mut writer = TableWriter::new(Arc::new(MemoryFile::default()), sst_id(7), TableId(9), options);
        writer.add(b"k", 1, Content::Tombstone).unwrap();
        assert_eq!(writer.finish().unwrap_err().kind, ErrorKind::Invalid);
    }

    /// Format version 6 stays readable. (Its bytes are up to zstd's encoder.)
    #[test]
    fn the_format_with_a_dictionary_is_read() {
        let model = model(5000);
        if std::env::var_os("SEXTANT_WRITE_FIXTURES").is_some() {
            let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/table-v6.sst");
            std::fs::write(fixture, written(&model, Compression::Zstd, true).0).unwrap();
            return;
        }
        let table = opened(include_bytes!("../../fixtures/table-v6.sst").to_vec());
        assert_eq!(table.trailer().version, VERSION_WITH_ZSTD);
        assert!(table.meta().dictionary.is_some());
        check(&table, &model);
    }
}
