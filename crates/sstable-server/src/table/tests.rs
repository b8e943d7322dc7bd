use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use sextant_common::expiry::Tick;
use sextant_common::key::filter_hash;
use sextant_common::manifest::{Expiring, Generations, Origin};
use sextant_common::marks::{Kind, Marks};
use sextant_common::{ErrorKind, Result};

use super::reader::{Found, Tally};
use super::*;
use crate::testing::*;

type Record = (Vec<u8>, (Vec<u8>, u64, bool));

fn get(table: &Table, key: &[u8], access: Access) -> Result<Lookup> {
    table.get(key, filter_hash(key), access, &mut Tally::default())
}

fn expected(model: &Model, key: &[u8]) -> Lookup {
    match model.get(key) {
        Some((value, seq, tombstone)) => {
            let value = Bytes::copy_from_slice(value);
            Lookup::Found(Found { seq: *seq, tombstone: *tombstone, marks: Marks::NONE, value })
        }
        None => Lookup::Absent,
    }
}

fn walk(table: &Arc<Table>, range: &KeyRange, direction: Direction, caching: Caching) -> Result<Vec<Record>> {
    let mut iter = TableIter::new(table.clone(), range.clone(), direction, caching)?;
    let mut records = Vec::new();
    while !iter.is_at_end() {
        assert_eq!(iter.value(), iter.value_ref());
        records.push((iter.key().to_vec(), (iter.value().to_vec(), iter.seq(), iter.is_tombstone())));
        iter.advance()?;
    }
    Ok(records)
}

fn expected_walk(model: &Model, range: &KeyRange, direction: Direction) -> Vec<Record> {
    let inside = model.iter().filter(|(k, _)| range.contains(k)).map(|(k, v)| (k.clone(), v.clone()));
    let mut records: Vec<_> = inside.collect();
    if direction == Direction::Backward {
        records.reverse();
    }
    records
}

fn range(start: Vec<u8>, end: Vec<u8>) -> KeyRange {
    KeyRange { start: start.into(), end: end.into() }
}

/// A long prefix makes the index large enough for two levels.
fn long_key(i: u64) -> Vec<u8> {
    [&[b'p'; 1200][..], &filter_hash(&i.to_le_bytes()).to_be_bytes()].concat()
}

fn large_model() -> Model {
    let record = |i: u64| {
        if i.is_multiple_of(7) { (Vec::new(), i, true) } else { (vec![i as u8; 120], i, false) }
    };
    (0..30_000).map(|i| (long_key(i), record(i))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn gets_and_walks_agree_with_a_map(
        model in any_model(1..400), lz4 in any::<bool>(), start in any_key(), end in any_key(), probes in prop::collection::vec(any_key(), 10),
    ) {
        let table = open_model(&model, 1, options(lz4));
        for key in model.keys().chain(&probes) {
            for access in [Access::NoFill, Access::Fill, Access::CacheOnly] {
                prop_assert_eq!(get(&table, key, access).unwrap(), expected(&model, key));
            }
        }
        let empty = Vec::new;
        let ranges = [range(empty(), empty()), range(start.clone(), empty()), range(empty(), end.clone()), range(start, end)];
        for range in &ranges {
            for direction in [Direction::Forward, Direction::Backward] {
                for caching in [Caching::Look, Caching::Bypass] {
                    prop_assert_eq!(walk(&table, range, direction, caching).unwrap(), expected_walk(&model, range, direction));
                }
            }
        }
        let meta = table.sst_meta();
        prop_assert_eq!(meta.records as usize, model.len());
        prop_assert_eq!(meta.tombstones as usize, model.values().filter(|r| r.2).count());
        prop_assert_eq!(Some(meta.min_key.as_ref()), model.keys().next().map(Vec::as_slice));
        prop_assert_eq!(Some(meta.max_key.as_ref()), model.keys().next_back().map(Vec::as_slice));
        prop_assert_eq!(Some(meta.min_seq), model.values().map(|r| r.1).min());
        prop_assert_eq!(Some(meta.max_seq), model.values().map(|r| r.1).max());
    }

    #[test]
    fn a_merge_yields_the_newest_record_of_each_key(
        mut models in prop::collection::vec(any_model(1..60), 1..6), lz4 in any::<bool>(), start in any_key(), end in any_key(), whole in any::<bool>(),
    ) {
        // The first is the newest: its seqs are above those of the others.
        let count = models.len() as u64;
        for (i, model) in models.iter_mut().enumerate() {
            model.values_mut().for_each(|r| r.1 = r.1 % 1000 + 1000 * (count - i as u64));
        }
        let mut newest = Model::new();
        for model in models.iter().rev() {
            newest.extend(model.clone());
        }
        let tables: Vec<_> = models.iter().enumerate().map(|(i, m)| open_model(m, i as u32, options(lz4))).collect();
        let range = if whole { KeyRange::all() } else { range(start, end) };
        for (direction, waits) in [Direction::Forward, Direction::Backward].into_iter().flat_map(|d| [(d, false), (d, true)]) {
            let waiting = |t: &Arc<Table>| TableIter::waiting(t.clone(), range.clone(), direction, Caching::Look, 1 << 16);
            let mut iters: Vec<_> = tables.iter().map(waiting).collect();
            if !waits {
                iters.iter_mut().for_each(|iter| iter.open().unwrap());
            }
            let mut merge = if waits { Merge::of_waiting(iters, direction).unwrap() } else { Merge::new(iters, direction) };
            let mut records = Vec::new();
            while !merge.is_at_end() {
                records.push((merge.key().to_vec(), (merge.value().to_vec(), merge.seq(), merge.is_tombstone())));
                merge.advance().unwrap();
            }
            prop_assert_eq!(records, expected_walk(&newest, &range, direction));
        }
    }

    #[test]
    fn a_changed_byte_gives_the_right_answer_or_an_error(
        model in any_model(1..200), lz4 in any::<bool>(), at in any::<prop::sample::Index>(), mask in 1u8..=255, probe in any_key(),
    ) {
        let (bytes, _) = table_bytes(&model, sst_id(1), options(lz4));
        check_damaged(&model, bytes.clone(), at.index(bytes.len()), mask, &probe);
    }
}

/// Changes one byte and reads everything.
fn check_damaged(model: &Model, mut bytes: Vec<u8>, at: usize, mask: u8, probe: &[u8]) {
    bytes[at] ^= mask;
    let opened = match open_bytes(bytes, sst_id(1), 1 << 20) {
        Ok(opened) => opened,
        Err(e) => return assert_eq!(e.kind, ErrorKind::Corrupt, "{e}"),
    };
    let table = Arc::new(opened.table);
    let mut errors = usize::from(opened.filter_damage.is_some());
    for key in model.keys().map(Vec::as_slice).chain([probe]) {
        match get(&table, key, Access::Fill) {
            Ok(found) => assert_eq!(found, expected(model, key), "byte {at}"),
            Err(e) => {
                errors += 1;
                assert_eq!(e.kind, ErrorKind::Corrupt);
                assert!(e.message.contains(&sst_id(1).to_string()) && e.message.contains("offset"), "{e}");
                assert!(table.is_damaged());
            }
        }
    }
    for direction in [Direction::Forward, Direction::Backward] {
        match walk(&table, &KeyRange::all(), direction, Caching::Bypass) {
            Ok(records) => {
                assert_eq!(records, expected_walk(model, &KeyRange::all(), direction), "byte {at}")
            }
            Err(e) => {
                errors += 1;
                assert_eq!(e.kind, ErrorKind::Corrupt);
            }
        }
    }
    // Every byte is covered by some check.
    assert!(errors > 0, "byte {at} is not checked");
}

#[test]
fn every_single_byte_is_checked() {
    let mut model: Model = (0..20u8).map(|i| (vec![b'k', i], (vec![i; 300], u64::from(i), false))).collect();
    model.insert(b"kz".to_vec(), (Vec::new(), 77, true));
    for lz4 in [false, true] {
        let (bytes, _) = table_bytes(&model, sst_id(1), options(lz4));
        for at in 0..bytes.len() {
            for mask in [0x01, 0xff] {
                check_damaged(&model, bytes.clone(), at, mask, b"absent");
            }
        }
    }
}

#[test]
fn a_cut_or_extended_file_is_refused() {
    let model: Model = (0..50u8).map(|i| (vec![i], (vec![i; 10], 1, false))).collect();
    let (bytes, _) = table_bytes(&model, sst_id(1), options(true));
    for len in 0..bytes.len() {
        assert!(open_bytes(bytes[..len].to_vec(), sst_id(1), 0).is_err(), "{len}");
    }
    assert!(open_bytes([&bytes[..], &[0]].concat(), sst_id(1), 0).is_err());
    assert!(open_bytes([&bytes[..], &bytes[..]].concat(), sst_id(1), 0).is_err());
    let error = open_bytes(bytes, sst_id(2), 0).err().unwrap();
    assert!(error.message.contains("holds SSTable"), "{error}");
}

#[test]
fn a_large_table_has_two_index_levels_and_answers_like_a_map() {
    let model = large_model();
    let table = open_model(&model, 1, options(false));
    assert_eq!(table.trailer().index_levels, 2);
    let mut wide = model.iter().step_by(97).map(|(k, _)| k.clone()).collect::<Vec<_>>();
    wide.extend((100_000..100_200).map(long_key));
    wide.extend([b"a".to_vec(), b"z".to_vec(), vec![b'p'; 1200]]);
    for key in &wide {
        let cold = get(&table, key, Access::CacheOnly).unwrap();
        assert!(cold == Lookup::NeedsDisk || cold == expected(&model, key));
        assert_eq!(get(&table, key, Access::Fill).unwrap(), expected(&model, key));
    }
    for direction in [Direction::Forward, Direction::Backward] {
        let all = KeyRange::all();
        assert!(
            walk(&table, &all, direction, Caching::Look).unwrap() == expected_walk(&model, &all, direction)
        );
        let part = range(wide[100].clone(), wide[103].clone());
        assert_eq!(
            walk(&table, &part, direction, Caching::Look).unwrap(),
            expected_walk(&model, &part, direction)
        );
    }
    // A scan leaves the cache to the point reads, but for leaves of the index.
    assert!(table.cache().used_bytes() <= 1 << 20);
}

#[test]
fn the_largest_records_round_trip() {
    let mut model = Model::new();
    model.insert(vec![b'a'; 16 * 1024], (vec![1; 8 * 1024 * 1024], 5, false));
    model.insert(vec![b'b'; 16 * 1024], (b"small".to_vec(), 6, false));
    model.insert(
        b"c".to_vec(),
        ((0..8 * 1024 * 1024u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect(), 7, false),
    );
    for lz4 in [false, true] {
        let table = open_model(&model, 1, options(lz4));
        for key in model.keys() {
            assert!(get(&table, key, Access::Fill).unwrap() == expected(&model, key));
        }
        assert_eq!(table.meta().data_blocks, 3);
    }
    let file = Arc::new(sextant_simulated::MemoryFile::default());
    let mut writer = TableWriter::new(file, sst_id(1), sextant_common::ids::TableId(1), options(false));
    assert_eq!(writer.add(&[0; 16 * 1024 + 1], 1, Content::Value(b"")).unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(writer.add(b"", 1, Content::Value(b"")).unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(
        writer.add(b"a", 1, Content::Value(&vec![0; 8 * 1024 * 1024 + 1])).unwrap_err().kind,
        ErrorKind::Invalid
    );
    let expiring = Content::Marked(b"value", Marks::until(Tick(1)));
    assert_eq!(writer.add(b"a", 1, expiring).unwrap_err().kind, ErrorKind::Invalid, "not of format 1");
    writer.add(b"b", 1, Content::Value(b"")).unwrap();
    for key in [&b"b"[..], b"a"] {
        assert_eq!(writer.add(key, 1, Content::Value(b"")).unwrap_err().kind, ErrorKind::Invalid);
    }
}

/// Every third record expires, every third one does not, and every third is a tombstone.
fn content(i: u64) -> Content<'static> {
    match i % 3 {
        0 => Content::Marked(&b"0123456789"[..(i % 11) as usize], Marks::until(Tick(1000 + i))),
        1 => Content::Value(b"for ever"),
        _ => Content::Tombstone,
    }
}

fn expiring_table() -> (Vec<u8>, sextant_common::manifest::SstMeta) {
    let origin =
        Origin { lineage: 3, name: "t".into(), generations: Generations::new(1, 4), range: KeyRange::all() };
    let file = Arc::new(sextant_simulated::MemoryFile::default());
    let table = sextant_common::ids::TableId(9);
    let mut writer =
        TableWriter::new(file.clone(), sst_id(1), table, options(true)).with_origin(Some(origin));
    (0..900u64).for_each(|i| writer.add(&i.to_be_bytes(), i, content(i)).unwrap());
    let meta = writer.finish().unwrap();
    let bytes = std::mem::take(&mut *file.0.lock());
    (bytes, meta)
}

#[test]
fn records_are_found_with_their_expiry_in_a_table_of_format_3() {
    let (bytes, meta) = expiring_table();
    assert_eq!(meta.expiring, Expiring { records: 300, first: Tick(1000), last: Tick(1897) });
    let table = Arc::new(open_bytes(bytes, sst_id(1), 1 << 20).unwrap().table);
    assert_eq!((table.trailer().version, table.sst_meta()), (3, meta));
    let mut iters = [Direction::Forward, Direction::Backward]
        .map(|d| TableIter::new(table.clone(), KeyRange::all(), d, Caching::Bypass).unwrap());
    for i in 0..900u64 {
        let Lookup::Found(found) = get(&table, &i.to_be_bytes(), Access::Fill).unwrap() else {
            panic!("{i}")
        };
        let value = (!found.tombstone).then_some(&found.value[..]);
        assert_eq!(Content::new(value, found.marks), content(i));
        for (iter, at) in iters.iter_mut().zip([i, 899 - i]) {
            let value = (!iter.is_tombstone()).then(|| iter.value_ref());
            assert_eq!(Content::new(value, iter.marks()), content(at));
            iter.advance().unwrap();
        }
    }
}

/// Pinned, too, if one of them expires.
#[test]
fn headers_of_objects_make_a_table_of_format_4() {
    for expires_at in [None, Some(Tick(7))] {
        let origin = Origin {
            lineage: 3,
            name: "t".into(),
            generations: Generations::new(1, 4),
            range: KeyRange::all(),
        };
        let file = Arc::new(sextant_simulated::MemoryFile::default());
        let table = sextant_common::ids::TableId(9);
        let mut writer =
            TableWriter::new(file.clone(), sst_id(1), table, options(true)).with_origin(Some(origin));
        let header = Content::Marked(b"header", Marks::new(Kind::Hash, expires_at));
        writer.add(b"a", 1, header).unwrap();
        writer.add(b"b", 2, Content::Value(b"plain")).unwrap();
        let meta = writer.finish().unwrap();
        assert_eq!(meta.expiring.records, u64::from(expires_at.is_some()));
        let bytes = std::mem::take(&mut *file.0.lock());
        if expires_at.is_some() {
            if std::env::var_os("SEXTANT_WRITE_FIXTURES").is_some() {
                std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/table-v4.sst"), &bytes)
                    .unwrap();
                return;
            }
            let golden = include_bytes!("../../fixtures/table-v4.sst");
            assert!(bytes == golden, "the writer's bytes differ from the fixture");
        }
        let table = Arc::new(open_bytes(bytes, sst_id(1), 1 << 20).unwrap().table);
        assert_eq!((table.trailer().version, table.sst_meta()), (4, meta));
        for (key, content) in [(b"a", header), (b"b", Content::Value(b"plain"))] {
            let Lookup::Found(found) = get(&table, key, Access::Fill).unwrap() else { panic!("{key:?}") };
            assert_eq!(Content::new(Some(&found.value), found.marks), content);
        }
    }
}

#[test]
fn the_same_records_give_the_same_bytes() {
    let model = large_model();
    let (first, meta) = table_bytes(&model, sst_id(1), options(true));
    let (second, again) = table_bytes(&model, sst_id(1), options(true));
    assert!(first == second);
    assert_eq!(meta, again);
    assert_eq!(meta.file_bytes, first.len() as u64);
    assert_eq!(meta.checksum, xxhash_rust::xxh3::xxh3_64(&first[..first.len() - footer::UNHASHED_BYTES]));
    assert_ne!(table_bytes(&model, sst_id(2), options(true)).1.checksum, meta.checksum);
}

#[test]
fn tables_that_are_not_named_newest_first_are_noticed() {
    let of = |seq| BTreeMap::from([(b"k".to_vec(), (b"v".to_vec(), seq, false))]);
    let (old, new) = (open_model(&of(1), 1, options(false)), open_model(&of(2), 2, options(false)));
    for (tables, sound) in [([&new, &old], true), ([&old, &new], false)] {
        let direction = Direction::Forward;
        let iters =
            tables.map(|t| TableIter::new(t.clone(), KeyRange::all(), direction, Caching::Look).unwrap());
        assert_eq!(Merge::new(iters.into(), direction).advance().is_ok(), sound);
    }
}

/// Format version 3 too: of a table with records that expire.
#[test]
fn the_format_with_records_that_expire_is_pinned() {
    let (bytes, meta) = expiring_table();
    let golden = include_bytes!("../../fixtures/table-v3.sst");
    if std::env::var_os("SEXTANT_WRITE_FIXTURES").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/table-v3.sst"), &bytes).unwrap();
        return;
    }
    assert!(bytes == golden, "the writer's bytes differ from the fixture");
    let table = open_bytes(golden.to_vec(), sst_id(1), 0).unwrap().table;
    assert_eq!((table.trailer().version, table.sst_meta()), (3, meta));
}

/// All format versions but 3 and 4 must stay readable, and writable to the byte, for ever.
#[test]
fn the_format_is_pinned() {
    let origin = Origin {
        lineage: 0x0123_4567_89ab_cdef,
        name: "users".into(),
        generations: Generations::new(3, 5),
        range: KeyRange::all(),
    };
    let mut model: Model = (0..40u8)
        .map(|i| {
            (
                format!("user:{:03}", i * 3).into_bytes(),
                (vec![b'a' + i % 26; 150], 1000 + u64::from(i), false),
            )
        })
        .collect();
    model.insert(b"user:004".to_vec(), (Vec::new(), 2000, true));
    let of_a_part = Origin { range: KeyRange::new("user:0", "user:2"), ..origin.clone() };
    let prefixed = sextant_common::manifest::TableOptions { filter_prefix: 6, ..options(true) };
    let fixtures: [(&str, &[u8], _, Option<Origin>); 4] = [
        ("table-v1.sst", include_bytes!("../../fixtures/table-v1.sst"), options(true), None),
        ("table-v2.sst", include_bytes!("../../fixtures/table-v2.sst"), options(true), Some(origin.clone())),
        ("table-v5.sst", include_bytes!("../../fixtures/table-v5.sst"), options(true), Some(of_a_part)),
        ("table-v7.sst", include_bytes!("../../fixtures/table-v7.sst"), prefixed, Some(origin)),
    ];
    for (name, golden, options, origin) in fixtures {
        let (bytes, meta) = table_bytes_from(&model, sst_id(7), options.clone(), origin.clone());
        if std::env::var_os("SEXTANT_WRITE_FIXTURES").is_some() {
            std::fs::write(format!("{}/fixtures/{name}", env!("CARGO_MANIFEST_DIR")), &bytes).unwrap();
            continue;
        }
        assert!(bytes == golden, "{name}: the writer's bytes differ from the fixture");
        let opened = open_bytes(golden.to_vec(), sst_id(7), 0).unwrap();
        assert!(opened.filter_damage.is_none());
        let table = Arc::new(opened.table);
        assert_eq!(table.sst_meta(), meta);
        assert_eq!((&table.meta().origin, &table.meta().options), (&origin, &options));
        let filter = table.sealed_filter(Access::Fill).unwrap();
        for (start, is_there) in [("user:1", true), ("user:0", true), ("user:2", false), ("group:", false)] {
            let passes = is_there || options.filter_prefix == 0;
            assert_eq!(filter.part.may_contain_prefix(start.as_bytes()), passes, "{name}: {start}");
        }
        drop(filter);
        let all = KeyRange::all();
        let records = walk(&table, &all, Direction::Forward, Caching::Bypass).unwrap();
        assert_eq!(records, expected_walk(&model, &all, Direction::Forward));
    }
}
