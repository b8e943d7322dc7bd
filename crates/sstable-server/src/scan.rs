//! Pages of scans: the named tables merged, the newest record of each key, tombstones included.

use std::sync::Arc;

use bytes::Bytes;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::{Seq, SstId};
use sextant_common::limits::LARGE_BYTES;
use sextant_common::sstable::RecordVersion;
use sextant_environment::room::Share;
use sextant_environment::vfs::IoKind;

use crate::memory::SCANS_BYTES;
use crate::store::{SCANS_MAX, Store};
use crate::table::iter::{SCAN_FIRST_BYTES, SCAN_MOST_BYTES};
use crate::table::{Caching, Direction, KeyRange, Merge, Table, TableIter};

/// Most tables of one scan: more than a partition has.
const SCAN_TABLES_MAX: usize = 4096;
/// Used if the request states no limit, or a larger one.
const PAGE_RECORDS_MAX: usize = 100_000;
const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Read of files for one page: what older tables have under deleted records is read, too, and p-nodes wait some seconds for a page.
const PAGE_READ_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// What a record costs in the message beyond key and value.
const RECORD_OVERHEAD_BYTES: usize = 32;
/// What a walk over a table holds beside its piece: a block and places from the index.
const TABLE_BYTES: u64 = 8 * 1024;

/// A page that is asked for.
#[derive(Debug)]
pub struct PageRequest {
    pub tables: Vec<SstId>,
    pub range: KeyRange,
    pub direction: Direction,
    /// None: as much as a page may have.
    pub records_max: Option<usize>,
    pub bytes_max: Option<usize>,
    /// A longer first record is not answered, but its length; None: any is.
    pub first_bytes_max: Option<usize>,
}

/// What the tables have of a range.
#[derive(Debug)]
pub enum PageAnswer {
    /// Tombstones included.
    Records {
        records: Vec<RecordVersion>,
        complete: bool,
    },
    /// Of the first record, in bytes.
    TooLarge(usize),
    /// A table is not here; why.
    Gone(String),
    Corrupt(String),
    /// The disk refused a table.
    Unreadable(String),
}

struct Page {
    tables: Vec<Arc<Table>>,
    /// Of each table, that are read ahead.
    piece_bytes: u64,
    range: KeyRange,
    direction: Direction,
    records_max: usize,
    bytes_max: usize,
    /// Of the first record.
    first_bytes_max: usize,
    /// Of files.
    read_bytes_max: u64,
}

impl Store {
    /// Reads one page; also the room that it takes until it has left. `Err`: the request is malformed, or there is no
    /// room; what is missing or damaged is an answer.
    pub async fn scan_page(self: &Arc<Self>, request: PageRequest) -> Result<(PageAnswer, Option<Share>)> {
        if request.tables.len() > SCAN_TABLES_MAX {
            return Err(Error::invalid(format!(
                "scan names {} tables: the limit is {SCAN_TABLES_MAX}",
                request.tables.len()
            )));
        }
        self.metrics.scans.inc();
        let tables = match self.tables_of(&request.tables) {
            Ok(tables) => tables,
            Err(answer) => return Ok((answer, None)),
        };
        let at_most = |asked: Option<usize>, most: usize| asked.map_or(most, |asked| most.min(asked));
        let (pieces_bytes, piece_bytes) = pieces(tables.len() as u64);
        let page = Page {
            tables,
            piece_bytes,
            range: request.range,
            direction: request.direction,
            records_max: at_most(request.records_max, PAGE_RECORDS_MAX),
            bytes_max: at_most(request.bytes_max, PAGE_BYTES_MAX),
            first_bytes_max: at_most(request.first_bytes_max, usize::MAX),
            read_bytes_max: PAGE_READ_BYTES_MAX,
        };
        // Held until there is room for the page: so few pages are in memory without.
        let _scan = self.scans.take().await?;
        let room = self.pieces.take(pieces_bytes as usize).await;
        let turn = self.disk_reads.take().await?;
        let store = self.clone();
        let work = move || {
            let read = page.read();
            drop((turn, room));
            let (answer, disk_bytes) = read?;
            store.metrics.scanned_records.inc_by(answer.records().len() as u64);
            store.metrics.disk_bytes.inc_by(disk_bytes);
            Ok(answer)
        };
        let answer = match self.disk(IoKind::Read, work).await {
            Err(e) if e.kind == ErrorKind::Corrupt => PageAnswer::Corrupt(e.message.into()),
            Err(e) if e.kind == ErrorKind::Disk => PageAnswer::Unreadable(e.message.into()),
            result => result?,
        };
        let record_bytes =
            |r: &RecordVersion| r.key.len() + r.value.as_ref().map_or(0, Bytes::len) + RECORD_OVERHEAD_BYTES;
        let bytes: usize = answer.records().iter().map(record_bytes).sum();
        let room = if bytes > LARGE_BYTES { Some(self.answers.take(bytes).await?) } else { None };
        Ok((answer, room))
    }

    fn tables_of(&self, ids: &[SstId]) -> Result<Vec<Arc<Table>>, PageAnswer> {
        let tables = self.catalog.tables();
        let find = |id: &SstId| match tables.get(id).map(|entry| entry.table()) {
            Some(Ok(table)) => Ok(table.clone()),
            Some(Err(e)) => Err(PageAnswer::Corrupt(e.message.into())),
            None => Err(PageAnswer::Gone(crate::store::gone(*id).message.into())),
        };
        ids.iter().map(find).collect()
    }
}

/// What the pieces and blocks of so many tables take, and how long a piece is: shorter if there are many, so that as many scans as
/// may run have room.
fn pieces(tables: u64) -> (u64, u64) {
    let piece =
        (SCANS_BYTES / (SCANS_MAX as u64 + 1) / tables.max(1)).clamp(SCAN_FIRST_BYTES, SCAN_MOST_BYTES);
    (tables * (piece + TABLE_BYTES), piece)
}

impl PageAnswer {
    fn records(&self) -> &[RecordVersion] {
        if let PageAnswer::Records { records, .. } = self { records } else { &[] }
    }
}

impl Page {
    /// The page, and how many bytes of files it took.
    fn read(self) -> Result<(PageAnswer, u64)> {
        let (direction, look) = (self.direction, Caching::Look);
        let waiting =
            |table| TableIter::waiting(table, self.range.clone(), direction, look, self.piece_bytes);
        let iters = self.tables.into_iter().map(waiting).collect();
        let mut merge = Merge::of_waiting(iters, direction)?;
        // (As much again as it took to come to the first record, at least: what is read anew for each page pays. Tables that it
        // comes to later are what it was to read.)
        let read_bytes_max = self.read_bytes_max.max(2 * merge.disk_bytes());
        let mut records = Vec::new();
        let mut bytes = 0;
        while !merge.is_at_end() && records.len() < self.records_max {
            let more = merge.key().len() + merge.value_ref().len() + RECORD_OVERHEAD_BYTES;
            if records.is_empty() && more > self.first_bytes_max {
                return Ok((PageAnswer::TooLarge(more), merge.disk_bytes()));
            }
            bytes += more;
            // One record always fits: a page makes progress.
            let is_enough = bytes > self.bytes_max || merge.disk_bytes() > read_bytes_max;
            if is_enough && !records.is_empty() {
                break;
            }
            records.push(RecordVersion {
                key: Bytes::copy_from_slice(merge.key()),
                value: (!merge.is_tombstone()).then(|| merge.value()),
                seq: Seq(merge.seq()),
                marks: merge.marks(),
            });
            merge.advance()?;
        }
        let complete = merge.is_at_end();
        let disk_bytes = merge.disk_bytes();
        Ok((PageAnswer::Records { records, complete }, disk_bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;
    use crate::testing::{Model, open_bytes, open_model, options, sst_id, table_bytes};

    /// The first page of all keys, without limits.
    fn page_of(tables: &[Arc<Table>], direction: Direction) -> Page {
        Page {
            tables: tables.to_vec(),
            piece_bytes: SCAN_FIRST_BYTES,
            range: KeyRange::all(),
            direction,
            records_max: PAGE_RECORDS_MAX,
            bytes_max: PAGE_BYTES_MAX,
            first_bytes_max: usize::MAX,
            read_bytes_max: u64::MAX,
        }
    }

    /// Keys of all pages over these tables, in their order, and how many pages there are.
    fn walk(tables: &[Arc<Table>], direction: Direction, read_bytes_max: u64) -> (Vec<Bytes>, usize) {
        let (mut keys, mut pages) = (Vec::<Bytes>::new(), 0);
        let mut range = KeyRange::all();
        loop {
            let page = Page { range: range.clone(), read_bytes_max, ..page_of(tables, direction) };
            let (answer, _) = page.read().unwrap();
            let PageAnswer::Records { records, complete } = answer else { panic!("{answer:?}") };
            keys.extend(records.into_iter().map(|record| record.key));
            pages += 1;
            if complete {
                return (keys, pages);
            }
            let last = keys.last().unwrap();
            match direction {
                Direction::Forward => range.start = [last, &b"\0"[..]].concat().into(),
                Direction::Backward => range.end = last.clone(),
            }
        }
    }

    #[test]
    fn a_page_ends_when_much_was_read_for_few_records() {
        let keys: Vec<Vec<u8>> = (0..100).map(|i| format!("key{i:03}").into_bytes()).collect();
        let older: Model = keys.iter().map(|key| (key.clone(), (vec![7; 4000], 1, false))).collect();
        let newer: Model = keys.iter().map(|key| (key.clone(), (Vec::new(), 2, true))).collect();
        let tables = [open_model(&newer, 2, options(false)), open_model(&older, 1, options(false))];
        for direction in [Direction::Forward, Direction::Backward] {
            let (all, pages) = walk(&tables, direction, u64::MAX);
            assert_eq!((all.len(), pages), (keys.len(), 1));
            let (found, pages) = walk(&tables, direction, 4 * SCAN_FIRST_BYTES);
            assert_eq!(found, all);
            assert!((4..=keys.len()).contains(&pages), "{pages} pages");
            let (found, pages) = walk(&tables, direction, 0);
            assert!(
                found == all && (2..keys.len()).contains(&pages),
                "opening the tables is not all: {pages}"
            );
        }
    }

    /// Ten keys of each of so many neighbours.
    fn keys_of(tables: std::ops::Range<u32>) -> impl Iterator<Item = Vec<u8>> {
        tables.flat_map(|table| (0..10).map(move |i| format!("key{table:02}{i}").into_bytes()))
    }

    /// Tables without a key in common; the first block of one of them is damaged, if one is named.
    fn neighbours(tables: u32, damaged: Option<u32>) -> Vec<Arc<Table>> {
        let open = |table: u32| {
            let keys = keys_of(table..table + 1);
            let model: Model = keys.map(|key| (key, (vec![7; 4000], 2, false))).collect();
            let (mut bytes, _) = table_bytes(&model, sst_id(table), options(false));
            bytes[100] ^= u8::from(damaged == Some(table));
            Arc::new(open_bytes(bytes, sst_id(table), 1 << 20).unwrap().table)
        };
        (0..tables).map(open).collect()
    }

    #[test]
    fn a_page_reads_only_tables_that_it_comes_to() {
        let tables = neighbours(20, None);
        let newer: Model = keys_of(0..20).step_by(3).map(|key| (key, (Vec::new(), 3, true))).collect();
        let older: Model = keys_of(0..20).step_by(2).map(|key| (key, (vec![8; 50], 1, false))).collect();
        let (newer, older) = (open_model(&newer, 90, options(false)), open_model(&older, 91, options(false)));
        let between = |tables: &[Arc<Table>]| [from_ref(&newer), tables, from_ref(&older)].concat();
        for (direction, reached) in [(Direction::Forward, 0..2), (Direction::Backward, 18..20)] {
            let read = |tables: &[Arc<Table>]| {
                let (answer, bytes) = Page { records_max: 15, ..page_of(tables, direction) }.read().unwrap();
                (answer.records().to_vec(), bytes)
            };
            let of_one_level = read(&tables);
            assert_eq!(of_one_level.0.len(), 15);
            assert_eq!(of_one_level, read(&tables[reached.clone()]));
            let of_three = read(&between(&tables));
            assert!(of_three.0.iter().any(|record| record.value.is_none()));
            assert_eq!(of_three, read(&between(&tables[reached])));
        }
    }

    #[test]
    fn damage_is_an_error_of_pages_that_come_to_it() {
        for direction in [Direction::Forward, Direction::Backward] {
            let tables = neighbours(3, Some(1));
            let (answer, _) = Page { records_max: 9, ..page_of(&tables, direction) }.read().unwrap();
            assert!(answer.records().len() == 9 && !tables[1].is_damaged());
            let error = page_of(&tables, direction).read().unwrap_err();
            assert!(error.kind == ErrorKind::Corrupt && tables[1].is_damaged(), "{error}");
        }
    }

    #[test]
    fn tables_that_a_page_comes_to_later_count_as_what_it_reads() {
        let newer: Model = keys_of(0..40).map(|key| (key, (Vec::new(), 3, true))).collect();
        let mut tables = neighbours(40, None);
        tables.insert(0, open_model(&newer, 90, options(false)));
        for direction in [Direction::Forward, Direction::Backward] {
            let (found, pages) = walk(&tables, direction, 4 * SCAN_FIRST_BYTES);
            let mut keys: Vec<_> = found.iter().map(|key| key.to_vec()).collect();
            keys.sort();
            assert!(keys.into_iter().eq(keys_of(0..40)) && (10..100).contains(&pages), "{pages} pages");
        }
    }
}
