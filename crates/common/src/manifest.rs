//! The manifest: which SSTables exist. One per partition, part of its replicated state; p-nodes hold copies.
//!
//! What travels of it is mostly *changes* ([`ManifestChange`]) from one version to the next, and both sides compare digests.
//! Copies share what they have in common: one more costs little, whatever the number of SSTables.
//!
//! Pure data. What may change it, and when, is the memtable server's business.

mod change;
mod digest;
mod history;
mod list;

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::configuration::Feature;
use crate::expiry::Tick;
use crate::ids::{Generation, LogPosition, ManifestVersion, NodeId, PartitionId, SstId, TableId};
use crate::key_range::KeyRange;

pub use change::{ListEdit, ManifestChange, Mismatch, TableChange};
pub use digest::ManifestDigest;
pub use history::{News, Versions};
pub use list::SstList;

/// How a table's blocks are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    None,
    #[default]
    Lz4,
    /// LZ4; but what a compaction writes where nothing older lies below, where most of a table is, with Zstd and a dictionary.
    Zstd,
}

/// Options of a table. Where its keys are is fixed when it is created; the rest can be changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TableOptions {
    /// Every write of a new key leaves a bit in B_m: then "in no filter" means absent without asking a server. Costs 8
    /// bytes a new key and p-node; workloads that look for missing keys want it.
    pub filter_inserts: bool,
    /// If not 0: the first so many bytes of a key decide its partition. [`TableOptions::BY_INNER_KEY`]: see there.
    pub partition_prefix: u32,
    pub compression: Compression,
    /// If not 0: the filters of SSTables also hold the first so many bytes of each key that has them, so that a scan of keys that
    /// begin alike passes over tables that have none of them. [`TableOptions::BY_INNER_KEY`]: the inner key and the eight bytes after
    /// it. SSTables that were written under another option keep theirs.
    #[serde(skip_serializing_if = "is_zero")]
    pub filter_prefix: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A hash in the filter of an SSTable weighs as much as so many bytes of the file: the filter is built in memory, which takes 38 bytes
/// for each.
pub const HASH_WEIGHT_BYTES: u64 = 64;

/// What an SSTable of so many bytes weighs, whose filter has so many hashes: one of tiny records is as large to whoever writes it as
/// one of many bytes. By this the leader chooses what is compacted, and the sstable server cuts what it writes.
pub fn weight(bytes: u64, hashes: u64) -> u64 {
    bytes.max(hashes.saturating_mul(HASH_WEIGHT_BYTES))
}

/// What an output may weigh that is cut at about `output_bytes`: with it goes what is too little for another one.
pub fn large(output_bytes: u64) -> u64 {
    output_bytes.saturating_add(output_bytes / 2)
}

impl TableOptions {
    /// Most hashes in the filter of an SSTable with so many records: each may have a prefix of its own beside its key.
    pub fn hashes_max(&self, records: u64) -> u64 {
        if self.filter_prefix == 0 { records } else { records.saturating_mul(2) }
    }

    /// As a prefix: keys begin with the length of another key (u16, big-endian) and that key, and are placed where a table without
    /// options has it. For elements of objects ([`crate::object`]).
    pub const BY_INNER_KEY: u32 = u32::MAX;

    /// The format of a partition from which on a table may have them.
    pub fn format(&self) -> u32 {
        let zstd = (self.compression == Compression::Zstd).then(|| Feature::Zstd.format());
        let prefixes = (self.filter_prefix > 0).then(|| Feature::FilterPrefix.format());
        zstd.max(prefixes).unwrap_or(0)
    }
}

/// What is to be changed of them; None: as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OptionsChange {
    pub filter_inserts: Option<bool>,
    pub compression: Option<Compression>,
    pub filter_prefix: Option<u32>,
}

impl OptionsChange {
    pub fn applied_to(&self, options: &TableOptions) -> TableOptions {
        TableOptions {
            filter_inserts: self.filter_inserts.unwrap_or(options.filter_inserts),
            compression: self.compression.unwrap_or(options.compression),
            partition_prefix: options.partition_prefix,
            filter_prefix: self.filter_prefix.unwrap_or(options.filter_prefix),
        }
    }
}

/// The memtables of a table (by generation, both ends included) whose records an SSTable holds: for a compaction's
/// output, of all inputs. Memtables in between that were empty when they were flushed count too, so that the SSTables
/// of a manifest follow each other without a gap down to generation 1. `0..=0`: not known (written before tables said
/// so).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Generations {
    pub first: Generation,
    pub last: Generation,
}

impl Generations {
    pub fn new(first: u64, last: u64) -> Self {
        Self { first: Generation(first), last: Generation(last) }
    }

    pub fn are_known(&self) -> bool {
        self.first.0 > 0 && self.first <= self.last
    }

    pub fn contains(&self, other: &Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }
}

/// Where an SSTable comes from: written into the table itself, so that a manifest can be rebuilt from tables alone, and
/// so that who deletes one can tell whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Random, drawn when the partition was founded: tables of one lineage are one history. 0: of a partition that was
    /// founded before lineages were drawn.
    pub lineage: u64,
    /// The name of the table (LSM-tree).
    pub name: String,
    pub generations: Generations,
    /// For which keys it has the records of those memtables. (A manifest may let it answer for fewer.)
    pub range: KeyRange,
}

/// The records of an SSTable, or of a memtable, that expire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expiring {
    pub records: u64,
    /// When the first of them does, and the last; 0: there are none.
    pub first: Tick,
    pub last: Tick,
}

impl Expiring {
    /// One more, if it expires.
    pub fn add(&mut self, expires_at: Option<Tick>) {
        let Some(at) = expires_at else { return };
        self.first = if self.records == 0 { at } else { self.first.min(at) };
        self.last = self.last.max(at);
        self.records += 1;
    }

    /// The earliest time after `now` at which one of them may expire; None: all have.
    pub fn next_after(&self, now: Tick) -> Option<Tick> {
        (self.records > 0 && self.last > now).then(|| self.first.max(Tick(now.0.saturating_add(1))))
    }
}

/// One sealed SSTable, and for which keys it answers. An SSTable may stand in a manifest several times, with ranges that are
/// apart: an entry is named by id and range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SstMeta {
    pub id: SstId,
    pub table: TableId,
    /// Records, tombstones included.
    pub records: u64,
    pub tombstones: u64,
    pub min_key: Bytes,
    pub max_key: Bytes,
    pub min_seq: u64,
    pub max_seq: u64,
    pub file_bytes: u64,
    /// The checksum in the file's trailer: xxh3_64 of every byte before it (`docs/formats/table.md`).
    pub checksum: u64,
    pub generations: Generations,
    /// For these keys it has the newest record of `generations`, and no other keys are looked for in it: what the file has of
    /// others may be older than what was deleted since.
    pub range: KeyRange,
    pub expiring: Expiring,
    /// The servers that are to hold it.
    pub replicas: Vec<NodeId>,
}

impl SstMeta {
    /// Whether the table answers for the key, and may have it.
    #[inline]
    pub fn covers(&self, key: &[u8]) -> bool {
        self.min_key.as_ref() <= key && key <= self.max_key.as_ref() && self.range.contains(key)
    }

    /// Whether the file has records of keys for which it does not answer.
    pub fn is_clamped(&self) -> bool {
        !(self.range.contains(&self.min_key) && self.range.contains(&self.max_key))
    }
}

/// The part of the manifest that belongs to one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableManifest {
    pub table: TableId,
    pub name: String,
    pub options: TableOptions,
    /// The last memtable whose flush flag was applied: writes of it and of older ones are skipped in replay.
    pub flushed_generation: Generation,
    /// The version that the last flush of this table made.
    pub last_flush_version: ManifestVersion,
    /// Log position of the last flushed freeze: the local persistence point (PASV, section 5.2).
    pub persisted: LogPosition,
    /// Newest first for every key: of two whose ranges overlap, the first is the newer one.
    pub ssts: SstList,
}

impl TableManifest {
    /// Without SSTables.
    pub fn new(table: TableId, name: String, options: TableOptions) -> Self {
        Self {
            table,
            name,
            options,
            flushed_generation: Generation(0),
            last_flush_version: ManifestVersion(0),
            persisted: LogPosition::default(),
            ssts: SstList::default(),
        }
    }

    /// How many ranges of keys its SSTables cut it into, and how many of them answer for the key that most do for.
    pub fn columns(&self) -> (usize, usize) {
        let mut at: BTreeMap<&[u8], (usize, usize)> = BTreeMap::from([(&[][..], (0, 0))]);
        for KeyRange { start, end } in self.ssts.iter().map(|sst| &sst.range) {
            at.entry(start.as_ref()).or_default().0 += 1;
            if !end.is_empty() {
                at.entry(end.as_ref()).or_default().1 += 1;
            }
        }
        let (mut open, mut most) = (0, 0);
        for (begin, end) in at.values() {
            open = open + begin - end;
            most = most.max(open);
        }
        (if self.ssts.is_empty() { 0 } else { at.len() }, most)
    }
}

/// A flush, remembered for a while so that a cache can be carried over it after a compaction swallowed its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushRecord {
    pub version: ManifestVersion,
    pub table: TableId,
    /// None: the frozen memtable was empty.
    pub id: Option<SstId>,
}

/// How many flushes a manifest remembers. A p-node that missed more drops what it cached before.
pub const FLUSH_RECORDS_MAX: usize = 64;

/// A table (LSM-tree) as whoever routes its keys knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableInfo {
    pub id: TableId,
    pub name: String,
    pub options: TableOptions,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    pub partition: PartitionId,
    pub version: ManifestVersion,
    /// By rising table id.
    pub tables: Vec<TableManifest>,
    /// Oldest first.
    pub recent_flushes: Vec<FlushRecord>,
    /// Every flush after this version is in `recent_flushes`.
    pub flushes_known_after: ManifestVersion,
}

impl Manifest {
    pub fn empty(partition: PartitionId) -> Self {
        Self {
            partition,
            version: ManifestVersion(0),
            tables: Vec::new(),
            recent_flushes: Vec::new(),
            flushes_known_after: ManifestVersion(0),
        }
    }

    pub fn table(&self, id: TableId) -> Option<&TableManifest> {
        self.tables.binary_search_by_key(&id, |t| t.table).ok().map(|at| &self.tables[at])
    }

    pub fn table_mut(&mut self, id: TableId) -> Option<&mut TableManifest> {
        let at = self.tables.binary_search_by_key(&id, |t| t.table).ok()?;
        Some(&mut self.tables[at])
    }

    pub fn table_by_name(&self, name: &str) -> Option<&TableManifest> {
        self.tables.iter().find(|t| t.name == name)
    }

    /// All SSTables of all tables.
    pub fn all_ssts(&self) -> impl Iterator<Item = &SstMeta> {
        self.tables.iter().flat_map(|t| t.ssts.iter())
    }

    /// Remembers a flush, forgetting the oldest beyond [`FLUSH_RECORDS_MAX`].
    pub fn remember_flush(&mut self, record: FlushRecord) {
        self.recent_flushes.push(record);
        while self.recent_flushes.len() > FLUSH_RECORDS_MAX {
            let gone = self.recent_flushes.remove(0);
            self.flushes_known_after = gone.version;
        }
    }
}
