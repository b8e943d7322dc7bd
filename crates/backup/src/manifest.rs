//! What a backup has: its manifest. Bytes: magic, version u32, message, xxh3_64 of all before (docs/formats/backup.md).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use prost::Message;
use sextant_common::cut::{Cut, CutTable};
use sextant_common::error::{Error, Result};
use sextant_common::ids::{OWN_TABLES, PartitionId, SstId, TableId};
use sextant_proto::v1;

use crate::framing::{framed, unframed};

const MAGIC: [u8; 8] = *b"\xa5sextBAK";
const VERSION: u32 = 1;
const NAME_BYTES_MAX: usize = 128;

/// A backup: a cut of each partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    pub name: String,
    /// In milliseconds since 1970.
    pub created_ms: u64,
    pub cuts: BTreeMap<PartitionId, Cut>,
    /// It has chosen tables only: of others the log after it is no use.
    pub is_part: bool,
}

/// The file of an SSTable in a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct File {
    pub id: SstId,
    pub checksum: u64,
    pub bytes: u64,
}

impl File {
    /// Two clusters may have SSTables of one id; not with one checksum.
    pub fn name(&self) -> String {
        format!("{}-{:016x}", self.id, self.checksum)
    }
}

impl Backup {
    /// By the clocks of the partitions' leaders, in milliseconds since 1970: the last of them was begun then. Before it nothing is one
    /// state of all of them.
    pub fn as_of_ms(&self) -> u64 {
        self.cuts.values().map(|cut| cut.opened_ms).max().unwrap_or(self.created_ms)
    }

    /// Of which cluster it is: clusters draw these numbers when they are founded. 0: a version made it that did not say it.
    pub fn lineage(&self) -> u64 {
        self.cuts.get(&PartitionId(0)).map_or(0, |cut| cut.lineage)
    }

    /// Each once.
    pub fn files(&self) -> Vec<File> {
        let ssts = self.cuts.values().flat_map(Cut::ssts);
        let mut files: Vec<File> =
            ssts.map(|sst| File { id: sst.id, checksum: sst.checksum, bytes: sst.file_bytes }).collect();
        files.sort();
        files.dedup();
        files
    }
}

#[derive(Clone, PartialEq, Message)]
struct WireBackup {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint64, tag = "2")]
    created_ms: u64,
    #[prost(message, repeated, tag = "3")]
    cuts: Vec<WireCut>,
    #[prost(bool, tag = "4")]
    is_part: bool,
}

#[derive(Clone, PartialEq, Message)]
struct WireCut {
    #[prost(uint32, tag = "1")]
    partition: u32,
    #[prost(message, optional, tag = "2")]
    cut: Option<v1::Cut>,
}

pub fn encode(backup: &Backup) -> Vec<u8> {
    let cut =
        |(partition, cut): (&PartitionId, &Cut)| WireCut { partition: partition.0, cut: Some(cut.into()) };
    let cuts = backup.cuts.iter().map(cut).collect();
    let (name, created_ms, is_part) = (backup.name.clone(), backup.created_ms, backup.is_part);
    framed(MAGIC, VERSION, &WireBackup { name, created_ms, cuts, is_part })
}

pub fn decode(name: &str, bytes: &Bytes) -> Result<Backup> {
    let bad = |what: String| Error::corrupt(format!("backup {name}: its manifest {what}"));
    let mut message: WireBackup = unframed(MAGIC, VERSION, bytes).map_err(bad)?;
    if message.name != name {
        return Err(bad(format!("is of backup {:?}", message.name)));
    }
    let mut cuts = BTreeMap::new();
    for WireCut { partition, cut } in std::mem::take(&mut message.cuts) {
        let cut = Cut::try_from(cut.unwrap_or_default()).map_err(|e| bad(format!("has no cut: {e}")))?;
        if !cut.is_complete() || cuts.insert(PartitionId(partition), cut).is_some() {
            return Err(bad(format!("has no whole cut of partition {partition}, or two")));
        }
    }
    let WireBackup { name, created_ms, is_part, .. } = message;
    let mut backup = Backup { name, created_ms, cuts, is_part };
    backup.leave_out_replaced();
    Ok(backup)
}

impl Backup {
    /// The cuts are of different moments: one may have a table that was dropped and made anew before another. The latest one of a name
    /// counts.
    fn leave_out_replaced(&mut self) {
        let all = self.cuts.values().flat_map(|cut| &cut.tables);
        let mut latest: BTreeMap<String, TableId> = BTreeMap::new();
        for table in all {
            let id = latest.entry(table.name.clone()).or_insert(table.table);
            *id = table.table.max(*id);
        }
        let counts = |table: &CutTable| latest.get(&table.name) == Some(&table.table);
        self.cuts.values_mut().for_each(|cut| cut.tables.retain(counts));
    }

    /// Of the tables of clients, sorted.
    pub fn table_names(&self) -> Vec<&str> {
        let all = self.cuts.values().flat_map(|cut| &cut.tables).map(|table| table.name.as_str());
        let names: BTreeSet<&str> = all.filter(|name| !name.starts_with(OWN_TABLES)).collect();
        names.into_iter().collect()
    }

    /// The id of the table of this name, if it has one.
    pub fn table(&self, name: &str) -> Option<TableId> {
        let mut all = self.cuts.values().flat_map(|cut| &cut.tables);
        all.find(|table| table.name == name).map(|table| table.table)
    }
}

/// A backup's name is a part of a path.
pub fn check_name(name: &str) -> Result<()> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.starts_with('.') || !name.chars().all(is_good) {
        return Err(Error::invalid(format!(
            "{name:?} is no name of a backup: letters, digits, '-', '_' and '.', {NAME_BYTES_MAX} at the most"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sextant_common::expiry::Tick;
    use sextant_common::ids::{Generation, Seq, TableId};
    use sextant_common::manifest::SstList;

    use super::*;

    fn backup() -> Backup {
        let table = CutTable {
            table: TableId(1),
            name: "t".into(),
            options: Default::default(),
            generation: Generation(3),
            ssts: Some(SstList::default()),
        };
        let cut = Cut {
            id: 7,
            at: 9,
            seq: Seq(8),
            tick: Tick(5),
            opened_ms: 1,
            lease_ms: 2,
            tables: vec![table],
            term: 0,
            lineage: 0,
        };
        let cuts = BTreeMap::from([(PartitionId(2), cut)]);
        Backup { name: "b".into(), created_ms: 4, cuts, is_part: false }
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written_and_not_if_a_bit_of_it_is_another() {
        let bytes = encode(&backup());
        assert_eq!(decode("b", &bytes.clone().into()).unwrap(), backup());
        assert!(decode("c", &bytes.clone().into()).is_err(), "of another backup");
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(decode("b", &damaged.into()).is_err(), "byte {at}");
            assert!(decode("b", &bytes[..at].to_vec().into()).is_err(), "{at} bytes");
        }
    }

    #[test]
    fn a_table_that_was_dropped_and_made_anew_between_two_cuts_is_the_new_one() {
        let mut backup = backup();
        let mut later = backup.cuts[&PartitionId(2)].clone();
        later.tables[0].table = TableId(4);
        later.tables[0].options.partition_prefix = 3;
        backup.cuts.insert(PartitionId(0), later);
        let read = decode("b", &encode(&backup).into()).unwrap();
        assert_eq!(read.table("t"), Some(TableId(4)));
        assert!(read.cuts[&PartitionId(2)].tables.is_empty());
        assert_eq!(read.cuts[&PartitionId(0)], backup.cuts[&PartitionId(0)]);
    }

    #[test]
    fn the_bytes_of_a_manifest_stay_what_they_are() {
        let hex: String = encode(&backup()).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, include_str!("manifest.hex").trim());
    }

    #[test]
    fn names_are_parts_of_paths() {
        for good in ["20261124T230000Z", "a", "a.b-c_d"] {
            check_name(good).unwrap();
        }
        for bad in ["", ".", "..", ".a", "a/b", "a b", "ä"] {
            check_name(bad).unwrap_err();
        }
        check_name(&"a".repeat(NAME_BYTES_MAX + 1)).unwrap_err();
    }
}
