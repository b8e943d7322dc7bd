//! Which tables this server has.
//!
//! Owns the map from id to open table, and every change to it: opening at start, installing a new file, deleting. Does not
//! own what *should* exist (the manifest does).
//!
//! Invariant: a table is in the map only while its file has its name, durably; a file that holds other contents never takes
//! the place of a sound one except by an explicit copy. Readers hold an `Arc` of the table, so that a deletion closes nothing
//! under them. Changes block and are made one at a time; lookups never wait for a disk.

mod fences;
mod graveyard;
mod heal;
mod open;
mod tables;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::{PartitionId, SstId};
use sextant_common::manifest::SstMeta;
use sextant_common::sstable::OrderNumber;

use self::fences::Fences;
use self::graveyard::{Deleted, Graveyard};
use self::tables::Tables;
use crate::data_dir::{DataDir, Taken, Temporary};
use crate::table::block_cache::BlockCache;
use crate::table::{Opened, Table};

/// Repairs that are remembered for whoever looks at the status.
const REPAIRS_REMEMBERED: usize = 32;

/// A table that was damaged and is sound again.
#[derive(Clone, Debug)]
pub struct Repair {
    pub id: SstId,
    /// What was found.
    pub damage: String,
}

/// The newest repairs, oldest first, and how many there were since the start.
#[derive(Clone, Debug, Default)]
pub struct Repairs {
    pub newest: VecDeque<Repair>,
    pub count: u64,
}

/// A table of this server.
#[derive(Clone, Debug)]
pub enum Entry {
    Open(Arc<Table>),
    /// Its trailer, index or meta section failed a check: it answers nothing and waits to be replaced.
    Unreadable {
        error: Error,
        file_bytes: u64,
    },
}

impl Entry {
    /// The table, or why it cannot be read.
    pub fn table(&self) -> Result<&Arc<Table>> {
        match self {
            Entry::Open(table) => Ok(table),
            Entry::Unreadable { error, .. } => Err(error.clone()),
        }
    }

    pub fn is_damaged(&self) -> bool {
        self.damage().is_some()
    }

    /// What is wrong with it.
    pub fn damage(&self) -> Option<&str> {
        match self {
            Entry::Open(table) => table.damage(),
            Entry::Unreadable { error, .. } => Some(&error.message),
        }
    }

    pub fn file_bytes(&self) -> u64 {
        match self {
            Entry::Open(table) => table.trailer().file_bytes,
            Entry::Unreadable { file_bytes, .. } => *file_bytes,
        }
    }

    /// The history that it belongs to; None if that cannot be read. (0: written before tables said so.)
    pub fn lineage(&self) -> Option<u64> {
        match self {
            Entry::Open(table) => Some(lineage_of(table)),
            Entry::Unreadable { .. } => None,
        }
    }

    /// Checksum of the file as its trailer states it; 0 if that cannot be read.
    pub fn checksum(&self) -> u64 {
        match self {
            Entry::Open(table) => table.trailer().file_checksum,
            Entry::Unreadable { .. } => 0,
        }
    }
}

/// Whether a new file may take the place of a sound table with other contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    Refuse,
    /// A copy: the file must have this checksum, which the manifest states, and then may replace anything.
    With {
        checksum: u64,
    },
}

fn lineage_of(table: &Table) -> u64 {
    table.meta().origin.as_ref().map_or(0, |o| o.lineage)
}

#[derive(Debug)]
pub struct Catalog {
    dir: DataDir,
    cache: Arc<BlockCache>,
    tables: RwLock<Tables>,
    /// Held while the set of tables changes; true: the server has stopped, nothing changes any more.
    changes: Mutex<bool>,
    fences: Fences,
    next_number: AtomicU64,
    repairs: Mutex<Repairs>,
    deleted: Graveyard,
}

impl Catalog {
    /// An empty catalog; [`Catalog::load`] opens what the directory holds.
    pub fn new(dir: DataDir, cache: Arc<BlockCache>) -> Result<Self> {
        let fences = Fences::read(&dir)?;
        let (tables, changes) = (RwLock::new(Tables::default()), Mutex::new(false));
        let (next_number, repairs) = (AtomicU64::new(1), Mutex::default());
        let deleted = Graveyard::default();
        Ok(Self { dir, cache, tables, changes, fences, next_number, repairs, deleted })
    }

    /// The map, for lookups that do not block.
    pub fn tables(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read()
    }

    pub fn get(&self, id: SstId) -> Option<Entry> {
        self.tables.read().get(&id).cloned()
    }

    pub fn ids(&self) -> Vec<SstId> {
        let mut ids: Vec<_> = self.tables.read().keys().copied().collect();
        ids.sort();
        ids
    }

    /// Whether the directory has not had yet what is to be in it.
    pub fn is_filling(&self) -> bool {
        self.dir.is_filling()
    }

    /// It has had it. Blocks.
    pub fn filled(&self) -> Result<()> {
        let stopped = self.changes.lock();
        if *stopped { Ok(()) } else { self.dir.filled() }
    }

    /// The tables of a partition, by id.
    pub fn inventory(&self, partition: PartitionId) -> Vec<(SstId, Entry)> {
        let tables = self.tables.read();
        tables.of_partition(partition).map(|(id, entry)| (*id, entry.clone())).collect()
    }

    pub fn cache(&self) -> &Arc<BlockCache> {
        &self.cache
    }

    /// Whether the disk takes and keeps anything, or says that it is full.
    pub fn disk_answers(&self, id: SstId) -> std::io::Result<()> {
        self.dir.answers(id)
    }

    pub fn create_temporary(&self, id: SstId) -> Result<Temporary> {
        self.dir.create_temporary(id)
    }

    /// Opens a complete, synced file as it will be served, checks it, and gives it its name, durably. If a sound table with
    /// the same contents is there already, the file is dropped.
    pub fn install(&self, temporary: Temporary, replace: Replace) -> Result<SstMeta> {
        let id = temporary.id();
        let Opened { table, filter_damage } =
            Table::open(temporary.file().clone(), id, self.next_number(), self.cache.clone())?;
        if let Some(error) = filter_damage {
            return Err(error);
        }
        let meta = table.sst_meta();
        if let Replace::With { checksum } = replace
            && meta.checksum != checksum
        {
            return Err(Error::corrupt(format!("SSTable {id}: the file is not the one that was asked for")));
        }
        let stopped = self.changes.lock();
        if *stopped {
            return Err(Error::new(ErrorKind::Stopping, "the server is stopping"));
        }
        let present = self.get(id);
        if let Some(Entry::Open(present)) = &present {
            if present.trailer().file_checksum == meta.checksum {
                if !present.is_damaged() {
                    return Ok(meta);
                }
            } else if replace == Replace::Refuse {
                return Err(Error::invalid(format!("SSTable {id} exists with other contents")));
            } else if lineage_of(&table) != lineage_of(present) {
                // Two foundings of a partition that gave the same id: neither's table is the other's to replace.
                return Err(Error::invalid(format!("SSTable {id} exists, and is of another lineage")));
            }
        }
        self.dir.publish(temporary)?;
        if let Err(e) = self.dir.sync() {
            // Whether the name will survive a crash is not known: nobody may count on this replica.
            self.tables.write().remove(&id);
            let _ = self.dir.remove_table(id);
            return Err(e);
        }
        self.tables.write().insert(id, Entry::Open(Arc::new(table)));
        drop(stopped);
        if let Some(damage) = present.as_ref().and_then(Entry::damage) {
            self.repaired(id, damage);
        }
        if let Some(Entry::Open(present)) = present {
            self.cache.forget(&HashSet::from([present.number()]));
        }
        Ok(meta)
    }

    /// Deletes tables on behalf of a group of this lineage; returns how many there were, and how many are not its own and stay.
    /// Durable when it returns.
    pub fn delete(&self, ids: &[SstId], lineage: u64) -> Result<(u32, u32)> {
        self.remove(ids, lineage, |_| Ok(()))
    }

    /// The same for tables that a manifest names, but not on this server any more: never for an order that is older than what this
    /// server has heard since.
    pub fn release(&self, ids: &[SstId], lineage: u64, order: OrderNumber) -> Result<(u32, u32)> {
        self.remove(ids, lineage, |id| match self.fences.forbid(id.partition, order) {
            true => Err(Error::retry(format!(
                "an order older than others for partition {}: refused",
                id.partition
            ))),
            false => Ok(()),
        })
    }

    /// Whoever leads a partition is about to count on what this server has of it: its older orders, and those of leaders before it,
    /// release nothing any more. Durable when it returns, and before anything that is done on its behalf.
    pub fn ordered(&self, partition: PartitionId, order: OrderNumber) -> Result<()> {
        // A release that is under way ends first.
        let _unchanged = self.changes.lock();
        self.fences.ordered(&self.dir, partition, order)
    }

    /// The same for a question. Whether [`Catalog::ordered`] has to follow: whoever asks is new.
    pub fn asked(&self, partition: PartitionId, order: OrderNumber) -> bool {
        self.fences.asked(partition, order)
    }

    /// `may`: asked of each while nothing else changes.
    fn remove(&self, ids: &[SstId], lineage: u64, may: impl Fn(&SstId) -> Result<()>) -> Result<(u32, u32)> {
        let stopped = self.changes.lock();
        if *stopped {
            return Err(Error::new(ErrorKind::Stopping, "the server is stopping"));
        }
        ids.iter().try_for_each(may)?;
        let (mut deleted, mut refused, mut numbers) = (0, 0, HashSet::new());
        for id in ids {
            if !self.may_delete(*id, lineage) {
                refused += 1;
                continue;
            }
            let taken = self.dir.take_table(*id)?;
            let entry = self.tables.write().remove(id);
            deleted += u32::from(taken != Taken::Nothing || entry.is_some());
            if let Taken::Aside(path) = taken {
                self.deleted.add(Deleted { path, bytes: entry.as_ref().map_or(0, Entry::file_bytes) });
            }
            if let Some(Entry::Open(table)) = entry {
                numbers.insert(table.number());
            }
        }
        self.dir.sync()?;
        drop(stopped);
        self.cache.forget(&numbers);
        Ok((deleted, refused))
    }

    /// Files whose bytes are still there.
    pub fn deleted(&self) -> &Graveyard {
        &self.deleted
    }

    /// Gives their bytes back; nothing if the server has stopped, since somebody else may have the directory.
    pub fn erase(&self, deleted: &Deleted) -> Result<()> {
        let stopped = self.changes.lock();
        if !*stopped {
            self.dir.erase(&deleted.path)?;
        }
        self.deleted.erased(deleted);
        Ok(())
    }

    /// Only a group with the table's own history can know that nobody needs the table any more. A group that was founded anew
    /// knows nothing of what was there before it, and would take all of that for orphans.
    fn may_delete(&self, id: SstId, lineage: u64) -> bool {
        let tables = self.tables.read();
        match tables.get(&id).map(Entry::lineage) {
            None => true,
            Some(Some(of_table)) => of_table == lineage,
            // Not readable: it is the group's if everything is that can be read of the partition.
            Some(None) => {
                let of_partition = tables.of_partition(id.partition);
                let mut lineages = of_partition.filter_map(|(_, entry)| entry.lineage()).peekable();
                lineages.peek().is_some() && lineages.all(|l| l == lineage)
            }
        }
    }

    /// How many tables there are: of the partition, and in all.
    pub fn count(&self, partition: PartitionId) -> (u64, u64) {
        let tables = self.tables.read();
        (tables.count_of(partition) as u64, tables.len() as u64)
    }

    /// Nothing changes on the disk from now on, and somebody else may open the directory.
    pub fn close(&self) {
        *self.changes.lock() = true;
        self.dir.release();
    }

    /// Whether the table's file has lost its name (somebody removed it), although the table is in the catalog.
    pub fn has_lost_its_file(&self, id: SstId) -> bool {
        // Under the lock, so that a deletion half done is not taken for a loss.
        let _unchanged = self.changes.lock();
        self.tables.read().contains_key(&id) && !self.dir.has_table(id)
    }

    pub fn repairs(&self) -> Repairs {
        self.repairs.lock().clone()
    }

    fn repaired(&self, id: SstId, damage: &str) {
        tracing::info!("SSTable {id} is sound again; found before: {damage}");
        let mut repairs = self.repairs.lock();
        repairs.count += 1;
        repairs.newest.push_back(Repair { id, damage: damage.to_owned() });
        if repairs.newest.len() > REPAIRS_REMEMBERED {
            repairs.newest.pop_front();
        }
    }

    fn next_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }
}
