use std::sync::Barrier;
use std::sync::atomic::AtomicU32;

use proptest::prelude::*;
use sextant_common::filter::SealedFilter;
use sextant_common::key::filter_hash;
use sextant_common::{ErrorKind, Result};
use sextant_environment::vfs::VfsFile;
use sextant_simulated::MemoryFile;

use super::*;
use crate::table::block_cache::BlockCache;
use crate::table::reader::Tally;
use crate::table::{Access, Caching, Direction, KeyRange, Lookup, Table, TableIter};
use crate::testing::{Model, any_model, options, sst_id, table_bytes};

/// A file in memory of which a part cannot be read.
struct File {
    inner: MemoryFile,
    refused: Mutex<std::ops::Range<u64>>,
}

impl VfsFile for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let refused = self.refused.lock().clone();
        if offset < refused.end && refused.start < offset + buf.len() as u64 {
            return Err(std::io::Error::other("injected"));
        }
        self.inner.read_at(buf, offset)
    }
    fn write_all_at(&self, buf: &[u8], offset: u64) -> std::io::Result<()> {
        self.inner.write_all_at(buf, offset)
    }
    fn sync_data(&self) -> std::io::Result<()> {
        self.inner.sync_data()
    }
    fn len(&self) -> std::io::Result<u64> {
        self.inner.len()
    }
    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.inner.set_len(len)
    }
}

fn open_file(model: &Model, number: u32, cache: &Arc<BlockCache>) -> (Arc<Table>, Arc<File>) {
    let (bytes, _) = table_bytes(model, sst_id(number), options(true));
    let file = Arc::new(File { inner: MemoryFile(Mutex::new(bytes)), refused: Mutex::new(0..0) });
    let opened = Table::open(file.clone(), sst_id(number), u64::from(number), cache.clone()).unwrap();
    assert!(opened.filter_damage.is_none());
    (Arc::new(opened.table), file)
}

fn open(model: &Model, number: u32, cache: &Arc<BlockCache>) -> Arc<Table> {
    open_file(model, number, cache).0
}

fn key(i: u64) -> Vec<u8> {
    format!("key{i:06}").into_bytes()
}

/// Of a block or so for each ten records.
fn model(records: u64, seed: u64) -> Model {
    let value = |i: u64| {
        (0..50u64).flat_map(move |j| filter_hash(&(seed * 7 + i * 99 + j).to_le_bytes()).to_le_bytes())
    };
    (0..records).map(|i| (key(i), (value(i).collect(), i + 1, false))).collect()
}

fn get(table: &Table, key: &[u8], access: Access) -> Result<Lookup> {
    table.get(key, filter_hash(key), access, &mut Tally::default())
}

fn assert_has(table: &Table, model: &Model, key: &[u8]) {
    match (get(table, key, Access::Fill).unwrap(), model.get(key)) {
        (Lookup::Found(found), Some((value, seq, tombstone))) => {
            assert_eq!((&found.value[..], found.seq, found.tombstone), (&value[..], *seq, *tombstone));
        }
        (Lookup::Absent, None) => {}
        other => panic!("{other:?}"),
    }
}

fn assert_walks(table: &Arc<Table>, model: &Model, direction: Direction, caching: Caching) {
    let mut iter = TableIter::new(table.clone(), KeyRange::all(), direction, caching).unwrap();
    let mut keys = Vec::new();
    while !iter.is_at_end() {
        assert_eq!(iter.value_ref(), &model[iter.key()].0[..]);
        keys.push(iter.key().to_vec());
        iter.advance().unwrap();
    }
    if direction == Direction::Backward {
        keys.reverse();
    }
    assert!(keys.iter().eq(model.keys()));
}

fn assert_within(cache: &BlockCache) {
    let (budget, blocks) = cache.budget();
    let used = budget.used_now(blocks);
    assert!(used <= cache.capacity_bytes(), "{used} of {}", cache.capacity_bytes());
}

fn drop_sections(table: &Table) {
    table.sections().top.clear();
    table.sections().filter.clear();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Budgets of nothing, of less than one section, of some, of all.
    #[test]
    fn whatever_the_budget_reads_are_right_and_it_is_kept(
        models in prop::collection::vec(any_model(1..200), 1..12),
        capacity in prop_oneof![Just(0u64), 1u64..3000, 3000u64..60_000, Just(4_000_000)],
        steps in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0u8..12), 1..120),
    ) {
        let cache = Arc::new(BlockCache::new(capacity));
        let mut tables: Vec<_> = models.iter().zip(1..).map(|(m, number)| open(m, number, &cache)).collect();
        assert_within(&cache);
        for (which, at, what) in steps {
            let which = which.index(tables.len());
            let (table, model) = (&tables[which], &models[which]);
            let key = model.keys().nth(at.index(model.len())).unwrap().clone();
            match what {
                0 => assert_walks(table, model, Direction::Forward, Caching::Look),
                1 => assert_walks(table, model, Direction::Backward, Caching::Bypass),
                2 => assert_has(table, model, &[&key[..], b"x"].concat()),
                3 => drop_sections(table),
                4 => tables[which] = open(model, which as u32 + 100, &cache),
                _ => assert_has(table, model, &key),
            }
            assert_within(&cache);
        }
        drop(tables);
        prop_assert_eq!(Kind::ALL.map(|kind| cache.section_bytes(kind)), [0; 4]);
    }
}

#[test]
fn what_every_table_keeps_is_small_and_counted() {
    let cache = Arc::new(BlockCache::new(1 << 20));
    let model = model(20, 1);
    let tables: Vec<_> = (0..1000).map(|number| open(&model, number, &cache)).collect();
    let stated: u64 = tables.iter().map(|table| table.pinned_bytes()).sum();
    assert_eq!(cache.section_bytes(Kind::Table), stated);
    assert!(stated <= 1000 * 2100, "{stated}");
    // That is more than the budget: everything else is read each time, and right.
    tables.iter().for_each(|table| assert_has(table, &model, &key(7)));
    assert_within(&cache);
}

#[test]
fn threads_that_want_more_than_there_is_all_go_on() {
    let models: Vec<_> = (0..12).map(|seed| model(60 + seed * 10, seed)).collect();
    for capacity in [0, 2000, 30_000, 60_000] {
        let cache = Arc::new(BlockCache::new(capacity));
        let tables: Vec<_> = models.iter().zip(0..).map(|(m, number)| open(m, number, &cache)).collect();
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let (tables, models, cache) = (&tables, &models, &cache);
                scope.spawn(move || {
                    for i in 0..300u64 {
                        let hash = filter_hash(&(thread * 1000 + i).to_le_bytes());
                        let which = hash as usize % tables.len();
                        if i % 50 == thread {
                            assert_walks(&tables[which], &models[which], Direction::Forward, Caching::Look);
                        }
                        assert_has(&tables[which], &models[which], &key((hash >> 32) % 180));
                        assert_within(cache);
                    }
                });
            }
        });
    }
}

#[test]
fn those_who_want_the_same_section_read_it_once() {
    let cache = Arc::new(BlockCache::new(1 << 20));
    let model = model(100, 1);
    let table = open(&model, 1, &cache);
    let loads = || [Kind::Index, Kind::Filter].map(|kind| cache.loads(kind));
    for round in 2..20 {
        drop_sections(&table);
        let begin = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    begin.wait();
                    assert_has(&table, &model, &key(50));
                });
            }
        });
        assert_eq!(loads(), [round; 2]);
    }
}

#[test]
fn those_who_want_the_same_leaf_read_it_once() {
    let cache = Arc::new(BlockCache::new(1 << 20));
    let reads = AtomicU32::new(0);
    let block = || {
        reads.fetch_add(1, Ordering::Relaxed);
        let mut builder = crate::table::block::BlockBuilder::new(1);
        builder.add(b"k", 1, crate::table::Content::Value(b"v"));
        Ok(crate::table::block::Block::parse(builder.finish().to_vec().into()).unwrap())
    };
    // Whoever fails leaves it to the next one.
    let failed = cache.get_or_read(1, 0, || Err(sextant_common::Error::unavailable("injected")));
    assert!(failed.is_err());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(cache.get_or_read(1, 0, block).is_ok()));
        }
    });
    assert_eq!(reads.load(Ordering::Relaxed), 1);
}

#[test]
fn a_section_that_cannot_be_read_is_an_error_of_that_read() {
    let cache = Arc::new(BlockCache::new(1 << 20));
    let model = model(100, 1);
    let (table, file) = open_file(&model, 1, &cache);
    for (name, at) in [("index", table.trailer().index), ("filter", table.trailer().filter)] {
        drop_sections(&table);
        *file.refused.lock() = at.offset..at.end();
        assert_eq!(get(&table, &key(5), Access::CacheOnly).unwrap(), Lookup::NeedsDisk);
        let refused = get(&table, &key(5), Access::Fill).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Disk);
        let place = format!("SSTable {}: offset {}: {name}", table.id(), at.offset);
        assert!(refused.message.contains(&place), "{refused}");
        assert!(!table.is_damaged());
        *file.refused.lock() = 0..0;
        assert_has(&table, &model, &key(5));
    }
    assert_within(&cache);
}

#[test]
fn a_section_that_was_damaged_since_marks_the_table() {
    for name in ["index", "filter"] {
        let cache = Arc::new(BlockCache::new(1 << 20));
        let model = model(100, 1);
        let (table, file) = open_file(&model, 1, &cache);
        let at = if name == "index" { table.trailer().index } else { table.trailer().filter };
        file.inner.0.lock()[at.offset as usize + 30] ^= 1;
        assert_has(&table, &model, &key(5));
        drop_sections(&table);
        let place = format!("SSTable {}: offset {}: {name}: checksum", table.id(), at.offset);
        for _ in 0..2 {
            if name == "filter" {
                assert_has(&table, &model, &key(5));
            } else {
                let refused = get(&table, &key(5), Access::Fill).unwrap_err();
                assert!(refused.kind == ErrorKind::Corrupt && refused.message.contains(&place), "{refused}");
            }
            assert!(table.damage().is_some_and(|damage| damage.contains(&place)), "{:?}", table.damage());
        }
        let walk = TableIter::new(table.clone(), KeyRange::all(), Direction::Forward, Caching::Look);
        assert_eq!(walk.is_err(), name == "index", "a walk needs no filter");
    }
}

#[test]
fn an_index_may_go_while_a_walk_is_under_way() {
    let cache = Arc::new(BlockCache::new(1 << 20));
    let model = model(2000, 1);
    let table = open(&model, 1, &cache);
    for (direction, caching) in [(Direction::Forward, Caching::Look), (Direction::Backward, Caching::Bypass)]
    {
        let before = cache.loads(Kind::Index);
        let mut iter = TableIter::new(table.clone(), KeyRange::all(), direction, caching).unwrap();
        let mut passed = 0;
        while !iter.is_at_end() {
            drop_sections(&table);
            assert_eq!(cache.section_bytes(Kind::Index), 0, "the walk holds nothing of it");
            iter.advance().unwrap();
            passed += 1;
        }
        assert_eq!(passed, model.len());
        // (A job takes so many places at a time that it comes back for no more here.)
        assert!(cache.loads(Kind::Index) > before + 2 || caching == Caching::Bypass);
    }
}

#[test]
fn sections_that_nobody_uses_go_for_blocks_and_others_stay() {
    let cache = Arc::new(BlockCache::new(400_000));
    let model = model(2000, 1);
    let (idle, busy) = (open(&model, 1, &cache), open(&model, 2, &cache));
    let is_here = |table: &Table| table.sections().filter.get().is_some();
    assert!(is_here(&idle) && is_here(&busy));
    for _ in 0..3 {
        for i in 0..2000 {
            assert_has(&busy, &model, &key(i));
            assert_within(&cache);
        }
    }
    assert!(busy.sections().top.get().is_some() && is_here(&busy));
    // (Looking is a use: so this comes last.)
    assert!(!is_here(&idle));
    assert!(cache.block_bytes() > cache.capacity_bytes() * 3 / 4, "{}", cache.block_bytes());
}

#[test]
fn a_rebuilt_filter_stays() {
    let cache = Arc::new(BlockCache::new(100_000));
    let model = model(100, 1);
    let (bytes, _) = table_bytes(&model, sst_id(1), options(true));
    let filter_at = open(&model, 2, &cache).trailer().filter.offset as usize;
    let mut damaged = bytes;
    damaged[filter_at + 30] ^= 1;
    let file = Arc::new(MemoryFile(Mutex::new(damaged)));
    let opened = Table::open(file, sst_id(1), 1, cache.clone()).unwrap();
    assert!(opened.filter_damage.is_some());
    let table = opened.table;
    assert_eq!(table.filter_bytes().unwrap(), None);
    assert_has(&table, &model, b"key000007x");
    let before = cache.section_bytes(Kind::Table);
    let mut hashes: Vec<_> = model.keys().map(|key| filter_hash(key)).collect();
    let filter = SealedFilter::build(&mut hashes);
    let bytes = filter.memory_bytes() as u64;
    table.set_rebuilt_filter(filter);
    assert_eq!(cache.section_bytes(Kind::Table), before + bytes);
    drop_sections(&table);
    assert_has(&table, &model, &key(7));
    assert!(table.filter_bytes().unwrap().is_some());
}
