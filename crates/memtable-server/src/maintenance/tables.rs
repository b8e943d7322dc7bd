//! Tables: new ones, changes of them, and their end. Partition 0 allocates a table's id; the others are told it.
//!
//! Invariant: an id is never another table's, and never used again.

use sextant_common::configuration::{Configuration, Feature};
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::{DEFAULT_TABLE, OWN_TABLES, PartitionId, TableId};
use sextant_common::limits;
use sextant_common::manifest::{Manifest, TableOptions};
use sextant_rules::mutant::{self, Mutant};
use tokio::sync::oneshot;

use super::{ENTRY_TIMEOUT, check_leads, loads, within};
use crate::leadership::leadership_changed;
use crate::replica::{Adopted, Event, Handle, TableWish};

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
    /// It was dropped.
    Gone,
    NotLeader,
    /// Not now; why.
    Retry(String),
}

impl NewTable {
    /// Where the log cannot say that it has some, scans will search more: no reason to do without the table if partition 0 has it
    /// already, or if nobody asked for them (it is the database's own).
    fn may_lack_prefixes(&self) -> bool {
        self.id.is_some() || self.name.starts_with(OWN_TABLES)
    }

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

/// An error: the log cannot say so, or it makes no sense.
fn check_options(configuration: &Configuration, options: &TableOptions) -> Result<()> {
    let prefixes = [("filter_prefix", options.filter_prefix), ("partition_prefix", options.partition_prefix)];
    for (name, bytes) in prefixes {
        if bytes as usize > limits::KEY_BYTES_MAX && bytes != TableOptions::BY_INNER_KEY {
            let why = format!("{name} is at most {}, the length of a key", limits::KEY_BYTES_MAX);
            return Err(Error::invalid(why));
        }
    }
    configuration.check_format(options.format())
}

/// An error: what is asked for makes no sense, or cannot be said in the log, or not yet.
pub async fn create(handle: &Handle, mut table: NewTable) -> Result<Created> {
    // (Another one may not know yet what the log may say.)
    if handle.shared.serving().is_none() {
        return Ok(Created::NotLeader);
    }
    let manifest = handle.shared.manifest();
    table.check(handle.shared.id, &manifest)?;
    let configuration = handle.shared.configuration.load_full();
    let existed = manifest.table_by_name(&table.name).is_some();
    if existed || table.may_lack_prefixes() {
        let refused = configuration.check_allows(Feature::FilterPrefix).err();
        if refused.is_some_and(|e| e.kind == ErrorKind::Invalid) {
            table.options.filter_prefix = 0;
        }
    }
    check_options(&configuration, &table.options)?;
    let NewTable { name, options, id } = table;
    let (done, answer) = oneshot::channel();
    let _ = handle.events.send(Event::EnsureTable { name: name.clone(), options, id, done });
    Ok(match within(ENTRY_TIMEOUT, "create table", answer).await {
        Ok(()) => match handle.shared.manifest().table_by_name(&name) {
            Some(t) => Created::Table { id: t.table, options: t.options.clone(), new: !existed },
            None if id.is_none() => Created::Retry("the table was dropped meanwhile".into()),
            None if id.is_some_and(|id| handle.shared.manifest().table(id).is_none()) => Created::Gone,
            None => Created::Taken,
        },
        Err(e) if e.kind == ErrorKind::NotLeader => Created::NotLeader,
        Err(e) => Created::Retry(e.to_string()),
    })
}

/// Drops a table in this partition, or gives it other options; when it returns everybody sees that. Whether it was there, or was
/// otherwise. An error that is not final: it may be tried again.
pub async fn change(handle: &Handle, table: TableId, wanted: TableWish) -> Result<bool> {
    let shared = &handle.shared;
    check_leads(handle)?;
    if table.0 == 0 || table.0 > TABLE_ID_MAX {
        return Err(Error::invalid(format!("there is no table {table}")));
    }
    let manifest = shared.manifest();
    let entry = manifest.table(table);
    let configuration = shared.configuration.load_full();
    configuration.check_allows(Feature::ChangeTable)?;
    match (&wanted, entry) {
        (TableWish::Gone, _) if table == DEFAULT_TABLE => {
            return Err(Error::invalid("the default table is not dropped"));
        }
        (TableWish::Gone, _) => {}
        (TableWish::Altered(_), None) => {
            let why = format!("the partition has no table {table}");
            return Err(Error::new(ErrorKind::UnknownTable, why));
        }
        (TableWish::Altered(change), Some(entry)) => {
            let options = change.applied_to(&entry.options);
            check_options(&configuration, &options)?;
            if options == entry.options {
                return Ok(false);
            }
            // From an empty memtable on all that options say of what is written is true of it, and of what comes.
            loads::may_adopt(handle).await?;
            if !mutant::active(Mutant::OptionsOverMemtable) {
                loads::flush(handle, &entry.name).await?;
            }
        }
    }
    let (done, adopted) = oneshot::channel();
    let _ = handle.events.send(Event::ChangeTable { table, wanted, done });
    // However long it takes: what is in the log nobody can take back.
    match adopted.await {
        Ok(Adopted::Seen) => Ok(entry.is_some()),
        Ok(Adopted::NotNow(e)) => Err(e),
        Err(_) => Err(leadership_changed()),
    }
}

#[cfg(test)]
mod tests {
    use sextant_common::manifest::Compression;
    use sextant_environment::config::LeaseConfig;

    use super::*;
    use crate::command::ConfigurationRules;

    #[test]
    fn options_are_what_the_log_can_say() {
        let configuration =
            |format| Configuration { format, ..Configuration::founding(&LeaseConfig::default(), 1 << 20) };
        let prefix = |bytes| TableOptions { filter_prefix: bytes, ..TableOptions::default() };
        let zstd = TableOptions { compression: Compression::Zstd, ..TableOptions::default() };
        for (options, format) in
            [(prefix(0), 0), (zstd, 1), (prefix(4), 3), (prefix(TableOptions::BY_INNER_KEY), 3)]
        {
            check_options(&configuration(format), &options).unwrap();
            if format > 0 {
                let refused = check_options(&configuration(format - 1), &options).unwrap_err();
                assert!(refused.message.contains("raise-format"), "{refused}");
            }
        }
        let longer = check_options(&configuration(3), &prefix(limits::KEY_BYTES_MAX as u32 + 1));
        assert!(longer.unwrap_err().message.contains("filter_prefix"));
    }

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
