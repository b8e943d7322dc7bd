//! SSTables: blocks, frames, the footer, and whole files.

use std::collections::BTreeMap;

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use sextant_common::ErrorKind;
use sextant_common::expiry::Tick;
use sextant_common::ids::{Epoch, LogPosition, PartitionId, SstId, TableId};
use sextant_common::key::filter_hash;
use sextant_common::manifest::{Compression, Generations, Origin, TableOptions};
use sextant_common::marks::{Kind, Marks};
use sextant_simulated::MemoryFile;
use sextant_sstable_server::table::block::{BackwardCursor, Block, BlockBuilder, Content, ForwardCursor};
use sextant_sstable_server::table::block_cache::BlockCache;
use sextant_sstable_server::table::footer::{
    TRAILER_BYTES, TableMeta, Trailer, UNHASHED_BYTES, VERSION, VERSION_WITH_PREFIXES,
};
use sextant_sstable_server::table::index::{self, Handle};
use sextant_sstable_server::table::zstd::Unpacker;
use sextant_sstable_server::table::{
    Access, Caching, Direction, KeyRange, Lookup, Table, TableIter, TableWriter, frame, frame_salt,
    frame_seed, reader,
};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::edits;
use crate::input::Input;
use crate::memory::bounded;

/// Key -> (value, seq, tombstone).
type Model = BTreeMap<Vec<u8>, (Vec<u8>, u64, bool)>;
type Record = (Vec<u8>, (Vec<u8>, u64, bool));

fn id() -> SstId {
    SstId {
        partition: PartitionId(1),
        plan: LogPosition { term: 2, index: 3 },
        epoch: Epoch { term: 4, incarnation: 5 },
        counter: 6,
    }
}

const TABLE: TableId = TableId(9);

/// The interval (1 to 16), then a block's payload; the same bytes also as a frame.
pub fn block(data: &[u8]) {
    let mut input = Input::new(data);
    let interval = usize::from(input.u8() % 16) + 1;
    let payload = Bytes::copy_from_slice(input.rest());
    let records = bounded(payload.len(), 1 << 16, 64, || {
        let block = Block::parse(payload.clone()).ok()?;
        for probe in [&b""[..], b"a", b"key", &[255; 20], &payload[..payload.len().min(8)]] {
            let _ = (block.get(probe), block.floor(probe), index::covering(&block, probe));
            let _ = BackwardCursor::seek_before(block.clone(), probe).map(backward);
            let _ = ForwardCursor::seek(block.clone(), probe).map(forward);
        }
        for at in 0..block.restarts().min(64) {
            let _ = (block.restart_key(at), index::handle(&block, at).map(|handle| handle.end()));
        }
        BackwardCursor::last(block.clone()).map(backward).ok();
        ForwardCursor::first(block).ok().map(forward)
    });
    if let Some(Some(records)) = records {
        rebuild(&records, interval);
    }
    for seed in [0, 7] {
        let mut framed = payload.to_vec();
        framed.extend_from_slice(&(xxh3_64_with_seed(&payload, seed) as u32).to_le_bytes());
        let framed = Bytes::from(framed);
        // LZ4 expands by up to 255.
        let unpacked =
            bounded(framed.len(), 4096, 300, || frame::decode(&framed, seed, &Unpacker::default()));
        if let Ok(unpacked) = unpacked {
            for compression in [Compression::None, Compression::Lz4] {
                let mut again = Vec::new();
                frame::encode(&unpacked, compression, seed, &mut again);
                assert_eq!(frame::decode(&again.into(), seed, &Unpacker::default()).as_ref(), Ok(&unpacked));
            }
        }
        assert!(frame::decode(&framed, seed ^ 1, &Unpacker::default()).is_err(), "the seed does not matter");
    }
}

/// All records, if the walk ends without an error and the keys rise.
fn forward(mut cursor: ForwardCursor) -> Option<Vec<Record>> {
    let mut records: Vec<Record> = Vec::new();
    while let Some(slot) = cursor.slot() {
        let value = cursor.block().value(slot).to_vec();
        let record = (cursor.key().to_vec(), (value, slot.seq, slot.tombstone));
        // Short prefixes in a few bytes make long keys; those are not worth keeping.
        let rises = records.last().is_none_or(|before| before.0 < record.0);
        if !rises || record.0.len() > 1000 || records.len() > 500 {
            return None;
        }
        records.push(record);
        cursor.advance().ok()?;
    }
    Some(records)
}

fn backward(mut cursor: BackwardCursor) -> usize {
    let mut count = 0;
    while cursor.slot().is_some() {
        count += 1;
        if cursor.advance().is_err() {
            break;
        }
    }
    count
}

/// Records that a block held make a block that holds them, for lookups and walks of every kind.
fn rebuild(records: &[Record], interval: usize) {
    let Some(last) = records.last() else { return };
    let mut builder = BlockBuilder::new(interval);
    for (key, (value, seq, tombstone)) in records {
        builder.add(key, *seq, Content::new((!tombstone).then_some(value), Marks::NONE));
    }
    let Ok(block) = Block::parse(Bytes::copy_from_slice(builder.finish())) else { panic!("its own block") };
    assert_eq!(ForwardCursor::first(block.clone()).map(forward), Ok(Some(records.to_vec())));
    assert_eq!(BackwardCursor::last(block.clone()).map(backward), Ok(records.len()));
    for (at, (key, (value, seq, tombstone))) in records.iter().enumerate() {
        let found = block.get(key).map(|slot| slot.map(|s| (block.value(&s), s.seq, s.tombstone)));
        assert_eq!(found, Ok(Some((Bytes::copy_from_slice(value), *seq, *tombstone))));
        assert_eq!(BackwardCursor::seek_before(block.clone(), key).map(backward), Ok(at));
    }
    assert_eq!(block.get(&[&last.0[..], b"x"].concat()), Ok(None));
}

pub fn block_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (interval, count) in [(16u8, 40u32), (1, 10), (4, 1)] {
        let mut builder = BlockBuilder::new(usize::from(interval));
        for i in 0..count {
            let tombstone = i % 5 == 4;
            let value = vec![i as u8; if tombstone { 0 } else { 10 }];
            let kind = if i % 5 == 2 { Kind::Hash } else { Kind::Plain };
            let marks = Marks::new(kind, (i % 7 == 3).then_some(Tick(1_700_000_000_000 + u64::from(i))));
            let content = Content::new((!tombstone).then_some(&value), marks);
            builder.add(format!("key{i:03}").as_bytes(), u64::from(i) + 1000, content);
        }
        let payload = builder.finish().to_vec();
        seeds.push([&[interval - 1][..], &payload].concat());
        for compression in [Compression::None, Compression::Lz4] {
            let mut framed = Vec::new();
            frame::encode(&payload, compression, 0, &mut framed);
            // Without the checksum: the target adds it.
            framed.truncate(framed.len() - 4);
            seeds.push([&[interval - 1][..], &framed].concat());
        }
    }
    // One interval of keys that each unfold from a few bytes.
    let mut builder = BlockBuilder::new(1 << 20);
    let mut key = Vec::new();
    for seq in 0..1200 {
        key.push(1);
        builder.add(&key, seq, Content::Value(b""));
    }
    seeds.push([&[0][..], builder.finish()].concat());
    seeds
}

/// A trailer (124 bytes), then a meta section.
pub fn footer(data: &[u8]) {
    let mut input = Input::new(data);
    let mut trailer = input.take(TRAILER_BYTES).to_vec();
    let meta = Bytes::copy_from_slice(input.rest());
    // As it is, and with the right checksum.
    for _ in 0..2 {
        for file_bytes in [0, trailer.len() as u64, stated_length(&trailer)] {
            if let Ok(parsed) = Trailer::parse(&trailer, file_bytes) {
                for handle in [parsed.index, parsed.filter, parsed.meta] {
                    assert!(handle.end() <= file_bytes, "a section beyond the file");
                }
                let written = index::WrittenIndex { top: parsed.index, levels: parsed.index_levels };
                let mut again = Trailer::hashed_bytes(
                    parsed.version,
                    parsed.id,
                    parsed.table,
                    written,
                    parsed.filter,
                    parsed.meta,
                );
                Trailer::complete(&mut again, parsed.file_checksum);
                assert_eq!(again, trailer);
            }
        }
        if let Some(at) = trailer.len().checked_sub(4) {
            let checksum = xxh3_64(&trailer[..at]) as u32;
            trailer[at..].copy_from_slice(&checksum.to_le_bytes());
        }
    }
    for version in VERSION..=VERSION_WITH_PREFIXES {
        if let Ok(parsed) = bounded(meta.len(), 1024, 4, || TableMeta::parse(&meta, version)) {
            assert_eq!(parsed.encode(), meta, "a meta section has one encoding");
            assert_eq!(parsed.version(), version);
            assert!(parsed.min_key <= parsed.max_key && parsed.tombstones <= parsed.records);
        }
    }
}

fn stated_length(trailer: &[u8]) -> u64 {
    trailer.get(104..112).map_or(0, |field| u64::from_le_bytes(field.try_into().unwrap_or_default()))
}

pub fn footer_seeds() -> Vec<Vec<u8>> {
    let seed = |image: &Image| {
        let at = image.bytes.len() - TRAILER_BYTES;
        let meta = image.frames[image.frames.len() - 1];
        let meta = &image.bytes[meta.offset as usize..at - frame::TAIL_BYTES];
        [&image.bytes[at..], meta].concat()
    };
    images().iter().take(4).map(seed).collect()
}

/// A good table.
struct Image {
    model: Model,
    bytes: Vec<u8>,
    /// Where its frames are, in the order of their places; the last is the meta section.
    frames: Vec<Handle>,
}

fn images() -> &'static [Image] {
    static IMAGES: OnceLock<Vec<Image>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let small: Model = (0..20u8)
            .map(|i| (vec![b'k', i], (vec![i; 30], u64::from(i), false)))
            .chain([(b"kz".to_vec(), (Vec::new(), 77, true))])
            .collect();
        let blocks: Model = (0..150u64)
            .map(|i| {
                let tombstone = i % 7 == 0;
                let value = if tombstone { Vec::new() } else { vec![(i % 50) as u8; 80] };
                (format!("user:{:05}", i * 3).into_bytes(), (value, 1000 - i, tombstone))
            })
            .collect();
        // Keys of the largest size: few of them make an index of two levels, and compressed it is small.
        let deep: Model = (0..90u64)
            .map(|i| {
                let mut key = vec![b'p'; 14_000];
                key.extend_from_slice(&i.to_be_bytes());
                (key, (vec![i as u8; 5], i, false))
            })
            .collect();
        let one = Model::from([(b"only".to_vec(), (b"value".to_vec(), u64::MAX, false))]);
        // So much that there is a dictionary.
        let enough: Model = (0..10_000u64)
            .map(|i| {
                let value = format!("{i} bottles of beer, {} on the wall", filter_hash(&i.to_le_bytes()));
                (format!("bottle:{i:06}").into_bytes(), (value.into_bytes(), i, false))
            })
            .collect();
        [
            (small.clone(), Compression::None),
            (small, Compression::Lz4),
            (blocks.clone(), Compression::None),
            (blocks, Compression::Lz4),
            (one, Compression::None),
            (deep, Compression::Lz4),
            (enough, Compression::Zstd),
        ]
        .into_iter()
        .map(|(model, compression)| image(model, compression))
        .collect()
    })
}

fn image(model: Model, compression: Compression) -> Image {
    let file = Arc::new(MemoryFile::default());
    let options = TableOptions { compression, ..TableOptions::default() };
    let mut writer = TableWriter::new(file.clone(), id(), TABLE, options).at_the_bottom();
    if compression == Compression::Zstd {
        let (name, generations) = ("fuzz".to_owned(), Generations::new(1, 1));
        writer = writer.with_origin(Some(Origin { lineage: 1, name, generations, range: KeyRange::all() }));
    }
    for (key, (value, seq, tombstone)) in &model {
        if let Err(e) = writer.add(key, *seq, Content::new((!tombstone).then_some(value), Marks::NONE)) {
            panic!("a good record: {e}");
        }
    }
    if let Err(e) = writer.finish() {
        panic!("a good table: {e}");
    }
    let bytes = std::mem::take(&mut *file.0.lock());
    let frames = frames(&bytes);
    Image { model, bytes, frames }
}

fn payload(bytes: &[u8], at: Handle) -> Bytes {
    let frame = Bytes::copy_from_slice(&bytes[at.offset as usize..at.end() as usize]);
    match frame::decode(&frame, frame_seed(frame_salt(id(), TABLE), at.offset), &Unpacker::default()) {
        Ok(payload) => payload,
        Err(e) => panic!("a good frame: {e}"),
    }
}

fn entries(bytes: &[u8], at: Handle) -> Vec<Handle> {
    let Ok(block) = Block::parse(payload(bytes, at)) else { panic!("a good index") };
    (0..block.restarts()).filter_map(|entry| index::handle(&block, entry).ok()).collect()
}

fn frames(bytes: &[u8]) -> Vec<Handle> {
    let trailer = match Trailer::parse(&bytes[bytes.len() - TRAILER_BYTES..], bytes.len() as u64) {
        Ok(trailer) => trailer,
        Err(e) => panic!("a good trailer: {e}"),
    };
    let mut frames = vec![trailer.index, trailer.filter, trailer.meta];
    let below = entries(bytes, trailer.index);
    if trailer.index_levels == 2 {
        frames.extend(below.iter().flat_map(|leaf| entries(bytes, *leaf)));
    }
    frames.extend(below);
    frames.sort_by_key(|handle| handle.offset);
    frames
}

fn open(bytes: Vec<u8>) -> sextant_common::Result<reader::Opened> {
    Table::open(Arc::new(MemoryFile(Mutex::new(bytes))), id(), 1, Arc::new(BlockCache::new(1 << 20)))
}

/// Reads everything in every way. The number of errors; right answers are compared with the model if there is one.
fn read_all(opened: reader::Opened, probes: &Model, model: Option<&Model>) -> usize {
    let mut errors = usize::from(opened.filter_damage.is_some());
    let table = Arc::new(opened.table);
    let absent = b"absent".to_vec();
    for key in probes.keys().chain([&absent]) {
        match table.get(key, filter_hash(key), Access::Fill, &mut reader::Tally::default()) {
            Ok(found) => {
                let Some(model) = model else { continue };
                let got = match found {
                    Lookup::Found(f) => Some((f.value.to_vec(), f.seq, f.tombstone)),
                    Lookup::Absent => None,
                    Lookup::NeedsDisk | Lookup::Large(_) => panic!("it may read the disk"),
                };
                assert_eq!(got.as_ref(), model.get(key), "a wrong answer");
            }
            Err(e) => {
                errors += 1;
                assert!(e.kind == ErrorKind::Corrupt && e.message.contains("offset"), "{e}");
            }
        }
    }
    for direction in [Direction::Forward, Direction::Backward] {
        for caching in [Caching::Look, Caching::Bypass] {
            match walk(&table, direction, caching, probes.len()) {
                Ok(records) => {
                    let Some(model) = model else { continue };
                    let expected = model.iter().map(|(key, record)| (key.clone(), record.clone()));
                    let mut expected: Vec<Record> = expected.collect();
                    if direction == Direction::Backward {
                        expected.reverse();
                    }
                    assert!(records == expected, "a walk gives other records");
                }
                Err(e) => {
                    errors += 1;
                    assert_eq!(e.kind, ErrorKind::Corrupt, "{e}");
                }
            }
        }
    }
    errors
}

fn walk(
    table: &Arc<Table>,
    direction: Direction,
    caching: Caching,
    expected: usize,
) -> sextant_common::Result<Vec<Record>> {
    let mut iter = TableIter::new(table.clone(), KeyRange::all(), direction, caching)?;
    let mut records = Vec::new();
    // An index that names a block many times makes a walk long, but not endless.
    while !iter.is_at_end() && records.len() <= 4 * expected {
        records.push((iter.key().to_vec(), (iter.value().to_vec(), iter.seq(), iter.is_tombstone())));
        iter.advance()?;
    }
    Ok(records)
}

/// Which table, then edits to its file.
pub fn damage(data: &[u8]) {
    let mut input = Input::new(data);
    let image = &images()[usize::from(input.u8()) % images().len()];
    let edits = edits::read(&mut input);
    let mut files = vec![image.bytes.clone()];
    edits.iter().for_each(|edit| edit.apply(&mut files));
    let bytes = files.remove(0);
    let unchanged = bytes == image.bytes;
    match open(bytes) {
        Ok(opened) => {
            let errors = read_all(opened, &image.model, Some(&image.model));
            // The file's own checksum, which only copies and scrubbing look at, may be what was changed.
            assert!(unchanged == (errors == 0), "{errors} errors, unchanged: {unchanged}");
        }
        Err(e) => assert!(!unchanged && e.kind == ErrorKind::Corrupt, "{e}"),
    }
}

/// The same, and then all checksums are made right.
pub fn crafted(data: &[u8]) {
    let mut input = Input::new(data);
    let image = &images()[usize::from(input.u8()) % images().len()];
    let edits = edits::read(&mut input);
    let mut files = vec![image.bytes.clone()];
    edits.iter().for_each(|edit| edit.apply(&mut files));
    let mut bytes = files.remove(0);
    let salt = frame_salt(id(), TABLE);
    for at in &image.frames {
        let Some(frame) = bytes.get_mut(at.offset as usize..at.end() as usize) else { continue };
        let end = frame.len() - 4;
        let checksum = xxh3_64_with_seed(&frame[..end], frame_seed(salt, at.offset)) as u32;
        frame[end..].copy_from_slice(&checksum.to_le_bytes());
    }
    if let Some(hashed) = bytes.len().checked_sub(UNHASHED_BYTES)
        && let Some(trailer_at) = bytes.len().checked_sub(TRAILER_BYTES)
    {
        let checksum = xxh3_64(&bytes[..hashed]);
        bytes[hashed..hashed + 8].copy_from_slice(&checksum.to_le_bytes());
        let own = xxh3_64(&bytes[trailer_at..hashed + 8]) as u32;
        bytes[hashed + 8..].copy_from_slice(&own.to_le_bytes());
    }
    // The model's keys and what a walk collects, the block cache, and LZ4's 255 for a block at a time.
    let model: usize = image.model.iter().map(|(key, (value, ..))| key.len() + value.len() + 100).sum();
    bounded(bytes.len() + model, 4 << 20, 600, || {
        if let Ok(opened) = open(bytes) {
            read_all(opened, &image.model, None);
        }
    });
}

pub fn damage_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (number, image) in images().iter().enumerate() {
        seeds.push(vec![number as u8]);
        let mut places: Vec<usize> =
            vec![image.bytes.len() - 10, image.bytes.len() - 50, image.bytes.len() - 110];
        for at in image.frames.iter().take(1).chain(image.frames.iter().rev().take(3)) {
            places.extend([at.offset as usize + 3, at.end() as usize - 6]);
        }
        for at in places {
            seeds.push([&[number as u8][..], &edits::flip(0, at, 4)].concat());
        }
        seeds.push([&[number as u8][..], &edits::cut(0, image.bytes.len() / 2)].concat());
    }
    seeds
}
