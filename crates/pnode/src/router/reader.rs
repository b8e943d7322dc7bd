//! Reads as their callers know them: by a table's name and a key, by several keys, by a range.

use std::ops::ControlFlow::{Break, Continue};
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use sextant_common::ids::PartitionId;
use sextant_common::key::filter_hash;
use sextant_common::limits::{BATCH_OPS_MAX, check_key};
use sextant_common::manifest::TableInfo;
use sextant_common::operation::{ReadMode, Record};
use sextant_common::{Error, Result};

use super::consult::Consult;
use super::point_reads::{PointReads, Read};
use super::registrar::Registrar;
use super::scan::Scans;
use super::sst_search::SstSearch;
use crate::api::{ReadOptions, ScanRange, ScanStream};
use crate::core::Core;
use crate::filter_copies::Copies;
use crate::record_cache::RecordCache;
use crate::snapshots::Snapshots;
use crate::tables::Tables;
use crate::upstream::LargeReads;
use crate::view::ReadKey;

/// Values of one multi-get, in bytes: one request must not fill the memory.
const MULTI_GET_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Reads of one multi-get that are under way at once: enough to fill the messages of all servers.
const READS_AT_ONCE: usize = 512;

pub(crate) struct Reader {
    core: Arc<Core>,
    tables: Arc<Tables>,
    large_reads: Arc<LargeReads>,
    points: PointReads,
    scans: Arc<Scans>,
}

/// What a look at a key found out.
pub(crate) enum Look {
    /// The answer.
    Known(Option<Record>),
    /// It is not known without asking.
    Missed(Missed),
}

/// A look that has to be followed by a read, which goes on from here. The default: nobody has looked yet.
#[derive(Default)]
pub(crate) struct Missed(Option<(Arc<TableInfo>, PartitionId, u64, Consult)>);

impl Missed {
    /// Whether a consultation is carried on.
    pub fn was_looked_for(&self) -> bool {
        self.0.is_some()
    }
}

/// Of a multi-get, as far as it has come.
struct Found {
    records: Vec<Option<Record>>,
    /// Of their values.
    bytes: usize,
}

/// Where a key of a multi-get belongs.
#[derive(Clone, Copy)]
struct Place {
    /// Among the keys.
    at: usize,
    partition: PartitionId,
    /// [`filter_hash`] of the key.
    hash: u64,
}

impl Found {
    fn put(&mut self, at: usize, record: Option<Record>) -> Result<()> {
        self.bytes += record.as_ref().map_or(0, |record| record.value.len());
        if self.bytes > MULTI_GET_BYTES_MAX {
            return Err(Error::invalid(format!(
                "the values of one multi-get have more than {MULTI_GET_BYTES_MAX} bytes: ask for fewer keys"
            )));
        }
        self.records[at] = record;
        Ok(())
    }
}

impl Reader {
    pub fn new(
        core: &Arc<Core>,
        copies: &Arc<Copies>,
        tables: &Arc<Tables>,
        search: SstSearch,
        cache: Arc<RecordCache>,
        large_reads: Arc<LargeReads>,
        snapshots: &Arc<Snapshots>,
    ) -> Self {
        let scans = Arc::new(Scans::new(core, copies, tables, &large_reads, snapshots));
        let points = PointReads {
            core: core.clone(),
            copies: copies.clone(),
            tables: tables.clone(),
            search,
            cache,
            registrar: Registrar::new(core.config.register_reads),
            large_reads: large_reads.clone(),
        };
        Self { core: core.clone(), tables: tables.clone(), large_reads, points, scans }
    }

    /// The one consultation of a pda read. Does not await; allocates only if there are SSTables to be asked.
    #[inline]
    pub fn look(&self, table: &str, key: &[u8]) -> Look {
        if key.is_empty() {
            return Look::Missed(Missed::default());
        }
        let Some(table) = self.core.views.tables.get(table) else { return Look::Missed(Missed::default()) };
        let hash = filter_hash(key);
        let partition = self.core.views.slot_map.partition_of(key, &table.options);
        match self.points.look(&table, ReadKey { partition, key, hash }) {
            Break(answer) => Look::Known(answer),
            Continue(consult) => Look::Missed(Missed(Some((table, partition, hash, consult)))),
        }
    }

    /// `missed`: of a look at this key, taken when this read was already wanted.
    pub async fn get(
        &self,
        table: &str,
        key: Bytes,
        options: ReadOptions,
        missed: Missed,
    ) -> Result<Option<Record>> {
        check_key(&key)?;
        self.core.check_running()?;
        let deadline = self.core.deadline(options.deadline);
        let (table, partition, hash, first) = match missed.0 {
            Some((table, partition, hash, consult)) => (table, partition, hash, Some(consult)),
            None => {
                let table = self.tables.get(table, deadline).await?;
                let partition = self.core.views.slot_map.partition_of(&key, &table.options);
                (table, partition, filter_hash(&key), None)
            }
        };
        let read = Read { table: &table, partition, key, hash, mode: options.mode, purse: None };
        self.points.read(&read, deadline, first).await
    }

    /// Several records, in the order of the keys. `first`: of a look at the first key.
    pub async fn multi_get(
        &self,
        table: &str,
        keys: &[Bytes],
        options: ReadOptions,
        first: Missed,
    ) -> Result<Vec<Option<Record>>> {
        if keys.len() > BATCH_OPS_MAX {
            return Err(Error::invalid(format!("{} keys: the limit is {BATCH_OPS_MAX}", keys.len())));
        }
        keys.iter().try_for_each(|key| check_key(key))?;
        let deadline = self.core.deadline(options.deadline);
        let table = self.tables.get(table, deadline).await?;
        let purse = self.large_reads.purse();
        // (Of this very table: its name may have been given to another one since.)
        let mut first = first.0.filter(|(of, ..)| of.id == table.id).map(|(_, _, _, consult)| consult);
        let mut found = Found { records: vec![None; keys.len()], bytes: 0 };
        for (begin, chunk) in (0..).step_by(READS_AT_ONCE).zip(keys.chunks(READS_AT_ONCE)) {
            let missed = self.look_at_all(&table, chunk, options.mode, first.take(), |at, record| {
                found.put(begin + at, record)
            })?;
            let read = |Place { at, partition, hash }| {
                let (key, mode) = (chunk[at].clone(), options.mode);
                (begin + at, Read { table: &table, partition, key, hash, mode, purse: Some(&purse) })
            };
            let mut answers: FuturesUnordered<_> = missed
                .into_iter()
                .map(|(place, consult)| (read(place), consult))
                .map(async |((at, read), consult)| (at, self.points.read(&read, deadline, consult).await))
                .collect();
            while let Some((at, record)) = answers.next().await {
                found.put(at, record?)?;
            }
            if begin + chunk.len() < keys.len() {
                // However many are at hand: others have their turn.
                tokio::task::yield_now().await;
            }
        }
        Ok(found.records)
    }

    /// Looks at some keys, and tells of those that are known without asking. The others, and how far their looks have come.
    fn look_at_all(
        &self,
        table: &Arc<TableInfo>,
        keys: &[Bytes],
        mode: ReadMode,
        first: Option<Consult>,
        mut known: impl FnMut(usize, Option<Record>) -> Result<()>,
    ) -> Result<Vec<(Place, Option<Consult>)>> {
        let place = |(at, key): (usize, &Bytes)| {
            let partition = self.core.views.slot_map.partition_of(key, &table.options);
            Place { at, partition, hash: filter_hash(key) }
        };
        let mut places = keys.iter().enumerate().map(place);
        if mode != ReadMode::Pda {
            return Ok(places.map(|place| (place, None)).collect());
        }
        let mut missed = Vec::new();
        if let Some(consult) = first {
            missed.extend(places.next().map(|place| (place, Some(consult))));
        }
        let mut places: Vec<Place> = places.collect();
        places.sort_unstable_by_key(|place| place.partition);
        for places in places.chunk_by(|a, b| a.partition == b.partition) {
            let partition = places[0].partition;
            let with_key =
                |place: &Place| (*place, ReadKey { partition, key: &keys[place.at], hash: place.hash });
            let keys = places.iter().map(with_key);
            self.points.look_at_all(table, partition, keys, |place, look| match look {
                Break(record) => known(place.at, record),
                Continue(consult) => {
                    missed.push((place, Some(consult)));
                    Ok(())
                }
            })?;
        }
        Ok(missed)
    }

    pub fn scan(&self, table: &str, range: ScanRange) -> ScanStream {
        self.scans.scan(table, range, None)
    }

    /// Whether scans that are under way keep others from beginning, or will soon.
    pub fn scans_are_crowded(&self) -> bool {
        self.scans.is_crowded()
    }

    pub fn scan_snapshot(&self, table: &str, range: ScanRange, snapshot: u64) -> ScanStream {
        self.scans.scan(table, range, Some(snapshot))
    }

    pub fn cache(&self) -> &RecordCache {
        &self.points.cache
    }

    #[cfg(test)]
    pub fn large_bytes_held(&self) -> usize {
        self.large_reads.held_bytes()
    }
}
