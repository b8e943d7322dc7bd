//! New tables. Partition 0 allocates a table's id; the others are told it.
//!
//! Invariant: an id is never another table's, and never used again.

use sextant_common::configuration::Feature;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::{PartitionId, TableId};
use sextant_common::limits;
use sextant_common::manifest::{Compression, Manifest, TableOptions};
use tokio::sync::oneshot;

use super::{ENTRY_TIMEOUT, within};
use crate::replica::{Event, Handle};

/// Ids are never reused; this leaves room for ever.
const TABLE_ID_MAX: u32 = u32::MAX / 2;

/// What is asked for. There is nothing to be done if it exists.
#[derive(Clone, Debug)]
pub struct NewTable {
    pub name: String,
    pub options: TableOptions,
    /// None: to be allocated.
    pub id: Option<TableId>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Created {
    /// It is there; `new`: it was not before.
    Table {
        id: TableId,
        options: TableOptions,
        new: bool,
    },
    /// The id is another table's.
    Taken,
    NotLeader,
    /// Not now; why.
    Retry(String),
}

impl NewTable {
    /// Whether a partition with this manifest may have it.
    fn check(&self, partition: PartitionId, manifest: &Manifest) -> Result<()> {
        if partition.0 != 0 && self.id.is_none() {
            return Err(Error::invalid("table ids are allocated in partition 0"));
        }
        if self.id.is_some_and(|id| id.0 > TABLE_ID_MAX) {
            return Err(Error::invalid(format!("table ids go up to {TABLE_ID_MAX}")));
        }
        if manifest.tables.len() >= limits::TABLES_MAX && manifest.table_by_name(&self.name).is_none() {
            return Err(Error::invalid(format!("there are {} tables already", limits::TABLES_MAX)));
        }
        Ok(())
    }
}

/// An error: what is asked for makes no sense.
pub async fn create(handle: &Handle, table: NewTable) -> Result<Created> {
    let manifest = handle.shared.manifest();
    table.check(handle.shared.id, &manifest)?;
    if table.options.compression == Compression::Zstd {
        handle.shared.configuration.load().check_allows(Feature::Zstd)?;
    }
    let existed = manifest.table_by_name(&table.name).is_some();
    let NewTable { name, options, id } = table;
    let (done, answer) = oneshot::channel();
    let _ = handle.events.send(Event::EnsureTable { name: name.clone(), options, id, done });
    Ok(match within(ENTRY_TIMEOUT, "create table", answer).await {
        Ok(()) => match handle.shared.manifest().table_by_name(&name) {
            Some(t) => Created::Table { id: t.table, options: t.options.clone(), new: !existed },
            None => Created::Taken,
        },
        Err(e) if e.kind == ErrorKind::NotLeader => Created::NotLeader,
        Err(e) => Created::Retry(e.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_0_allocates_ids_and_the_others_are_told_them() {
        let table = |id: u32| NewTable {
            name: "t".into(),
            options: TableOptions::default(),
            id: (id != 0).then_some(TableId(id)),
        };
        let check = |partition: u32, id: u32| {
            let partition = PartitionId(partition);
            table(id).check(partition, &Manifest::empty(partition))
        };
        check(0, 0).unwrap();
        check(0, 7).unwrap();
        check(3, 7).unwrap();
        assert!(check(3, 0).unwrap_err().message.contains("partition 0"));
        check(3, TABLE_ID_MAX).unwrap();
        assert!(check(0, TABLE_ID_MAX + 1).unwrap_err().message.contains("go up to"));
    }
}
