//! Digests: whether two servers mean the same by a version of a manifest.
//!
//! An entry hashes to a number; a list, to the sum of what each two neighbours (and each end) hash to together. No entry is twice
//! in a list, so the neighbours say which are there and in which order, and a change of a few entries changes a few summands. The
//! digest of a manifest is a hash of its lists' sums and of all that is short in it. It guards against mistakes, not against malice.

use std::fmt;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::{Expiring, FlushRecord, Generations, Manifest, SstMeta, TableManifest, TableOptions};
use crate::ids::{LogPosition, SstId};
use crate::key_range::KeyRange;

/// Of a whole manifest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManifestDigest(pub u64);

impl fmt::Display for ManifestDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Manifest {
    /// As fast for a long manifest as for a short one.
    pub fn digest(&self) -> ManifestDigest {
        let Manifest { partition, version, tables, recent_flushes, flushes_known_after } = self;
        let mut all = Fields::default();
        all.numbers([u64::from(partition.0), version.0, flushes_known_after.0, tables.len() as u64]);
        for table in tables {
            let TableManifest {
                table,
                name,
                options: TableOptions { filter_inserts, partition_prefix, compression, filter_prefix },
                flushed_generation,
                last_flush_version,
                persisted: LogPosition { term, index },
                ssts,
            } = table;
            all.bytes(name.as_bytes());
            // (Who does not know the option has a digest of its own only of tables that use it.)
            let filters = u64::from(*filter_inserts) | u64::from(*filter_prefix) << 32;
            all.numbers([u64::from(table.0), filters, u64::from(*partition_prefix)]);
            all.numbers([*compression as u64, flushed_generation.0, last_flush_version.0, *term, *index]);
            all.numbers([ssts.len() as u64, ssts.digest()]);
        }
        for FlushRecord { version, table, id } in recent_flushes {
            all.numbers([version.0, u64::from(table.0)]);
            all.id(*id);
        }
        ManifestDigest(all.hash())
    }
}

/// Not 0.
pub(super) fn of_entry(sst: &SstMeta) -> u64 {
    let SstMeta {
        id,
        table,
        records,
        tombstones,
        min_key,
        max_key,
        min_seq,
        max_seq,
        file_bytes,
        checksum,
        generations: Generations { first, last },
        range: KeyRange { start, end },
        expiring: Expiring { records: expiring, first: first_expiry, last: last_expiry },
        replicas,
    } = sst;
    let mut all = Fields::default();
    all.id(Some(*id));
    all.numbers([u64::from(table.0), *records, *tombstones, *min_seq, *max_seq, *file_bytes, *checksum]);
    all.numbers([first.0, last.0, *expiring, first_expiry.0, last_expiry.0]);
    [min_key, max_key, start, end].into_iter().for_each(|key: &Bytes| all.bytes(key));
    all.numbers([replicas.len() as u64]);
    all.numbers(replicas.iter().map(|replica| replica.0));
    all.hash().max(1)
}

/// The sum for entries between two others; 0: an end of the list.
pub(super) fn links(before: u64, entries: impl IntoIterator<Item = u64>, after: u64) -> u64 {
    let (mut sum, mut last) = (0u64, before);
    let mut link = |next: u64| {
        let mut both = [0; 16];
        both[..8].copy_from_slice(&last.to_le_bytes());
        both[8..].copy_from_slice(&next.to_le_bytes());
        sum = sum.wrapping_add(xxh3_64(&both));
        last = next;
    };
    entries.into_iter().for_each(&mut link);
    link(after);
    sum
}

/// Fields, one after the other.
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn numbers(&mut self, numbers: impl IntoIterator<Item = u64>) {
        numbers.into_iter().for_each(|number| self.0.extend_from_slice(&number.to_le_bytes()));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.numbers([bytes.len() as u64]);
        self.0.extend_from_slice(bytes);
    }

    fn id(&mut self, id: Option<SstId>) {
        match id {
            Some(id) => self.0.extend_from_slice(&id.to_bytes()),
            None => self.0.push(0),
        }
    }

    fn hash(&self) -> u64 {
        xxh3_64(&self.0)
    }
}
