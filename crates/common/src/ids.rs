//! Names of things, each a type of its own.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(/** A partition of the keyspace: one Raft group. */ PartitionId(u32));
id!(/** A table (LSM-tree). Allocated by partition 0, never reused. */ TableId(u32));
id!(/** A server, unique in its tier. */ NodeId(u64));
id!(/** A record version: unique and rising per partition. 0: no version. */ Seq(u64));
id!(/** Counter of changes to a partition's set of SSTables. */ ManifestVersion(u64));
id!(/** Counter of a table's memtables within a partition: the first is 1. */ Generation(u64));
id!(/** A bf-log position within an epoch. */ Serial(u64));
id!(/** A bulk load: drawn by whoever loads, so that a commit that is sent again takes effect once. 0: none. */ LoadId(u64));

/// The partition of a page whose records come from several partitions.
pub const MANY_PARTITIONS: PartitionId = PartitionId(u32::MAX);

/// The table that exists in every cluster and that RESP clients use.
pub const DEFAULT_TABLE: TableId = TableId(1);
/// Its name.
pub const DEFAULT_TABLE_NAME: &str = "default";
/// Tables of the database's own begin with this: no client reads, writes, alters or drops them.
pub const OWN_TABLES: &str = "sextant.";

/// The (Raft term, ring incarnation) of the leader that granted a lease. Serials count within one epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch {
    pub term: u64,
    pub incarnation: u64,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.incarnation)
    }
}

/// A position in a partition's Raft log. One leader a term, so the term names the leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogPosition {
    pub term: u64,
    pub index: u64,
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.term, self.index)
    }
}

/// The id of an SSTable: never given twice, so that a sealed table is never replaced by another attempt at it.
///
/// 36 bytes on the wire, little-endian: partition u32, plan term u64, plan index u64, epoch term u64, epoch incarnation
/// u32 (its low 32 bits), counter u32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SstId {
    pub partition: PartitionId,
    /// Log position of the freeze that is flushed, or of the manifest change that a compaction was planned on.
    pub plan: LogPosition,
    /// Epoch of the leader that asked for the table.
    pub epoch: Epoch,
    /// Counts the attempts within the epoch.
    pub counter: u32,
}

impl SstId {
    pub const BYTES: usize = 36;

    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..4].copy_from_slice(&self.partition.0.to_le_bytes());
        out[4..12].copy_from_slice(&self.plan.term.to_le_bytes());
        out[12..20].copy_from_slice(&self.plan.index.to_le_bytes());
        out[20..28].copy_from_slice(&self.epoch.term.to_le_bytes());
        out[28..32].copy_from_slice(&(self.epoch.incarnation as u32).to_le_bytes());
        out[32..36].copy_from_slice(&self.counter.to_le_bytes());
        out
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        Some(Self {
            partition: PartitionId(u32_at(0)),
            plan: LogPosition { term: u64_at(4), index: u64_at(12) },
            epoch: Epoch { term: u64_at(20), incarnation: u64::from(u32_at(28)) },
            counter: u32_at(32),
        })
    }
}

/// `p<partition>-<plan term>-<plan index>-<epoch term>.<incarnation>-<counter>`: also the stem of the file's name.
impl fmt::Display for SstId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}-{}-{}-{}", self.partition, self.plan, self.epoch, self.counter)
    }
}

impl std::str::FromStr for SstId {
    type Err = crate::Error;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let bad = || crate::Error::invalid(format!("bad SSTable id {s:?}"));
        let rest = s.strip_prefix('p').ok_or_else(bad)?;
        let parts: Vec<&str> = rest.split('-').collect();
        let [partition, term, index, epoch, counter] = parts[..] else { return Err(bad()) };
        let (epoch_term, incarnation) = epoch.split_once('.').ok_or_else(bad)?;
        let id = Self {
            partition: PartitionId(partition.parse().map_err(|_| bad())?),
            plan: LogPosition {
                term: term.parse().map_err(|_| bad())?,
                index: index.parse().map_err(|_| bad())?,
            },
            epoch: Epoch {
                term: epoch_term.parse().map_err(|_| bad())?,
                incarnation: u64::from(incarnation.parse::<u32>().map_err(|_| bad())?),
            },
            counter: counter.parse().map_err(|_| bad())?,
        };
        // Numbers may be written in several ways (`01`, `+1`); an id has one name, or two files could be the same table.
        if id.to_string() == s { Ok(id) } else { Err(bad()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sst_id_round_trips_as_bytes_and_as_a_name() {
        let id = SstId {
            partition: PartitionId(3),
            plan: LogPosition { term: 7, index: 1 << 40 },
            epoch: Epoch { term: 9, incarnation: 2 },
            counter: 17,
        };
        assert_eq!(SstId::from_bytes(&id.to_bytes()), Some(id));
        assert_eq!(id.to_string().parse::<SstId>().unwrap(), id);
        assert_eq!(SstId::from_bytes(&[0; 35]), None);
        assert!("p1-2-3-4-5".parse::<SstId>().is_err());
    }

    #[test]
    fn an_sst_id_has_one_name() {
        assert!("p1-2-3-4.5-6".parse::<SstId>().is_ok());
        for other in ["p01-2-3-4.5-6", "p+1-2-3-4.5-6", "p1-2-3-4.05-6", "p1-2-3-4.5-+6", "P1-2-3-4.5-6"] {
            assert!(other.parse::<SstId>().is_err(), "{other}");
        }
    }
}
