//! The tables by id, and those of each partition: every leader asks once a second for its own.

use std::collections::{BTreeSet, HashMap};

use sextant_common::ids::{PartitionId, SstId};

use super::Entry;

#[derive(Debug, Default)]
pub struct Tables {
    all: HashMap<SstId, Entry>,
    /// No empty ones.
    by_partition: HashMap<PartitionId, BTreeSet<SstId>>,
}

impl Tables {
    pub fn get(&self, id: &SstId) -> Option<&Entry> {
        self.all.get(id)
    }

    pub fn contains_key(&self, id: &SstId) -> bool {
        self.all.contains_key(id)
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn keys(&self) -> impl Iterator<Item = &SstId> {
        self.all.keys()
    }

    pub fn values(&self) -> impl Iterator<Item = &Entry> {
        self.all.values()
    }

    /// A partition's, by id.
    pub fn of_partition(&self, partition: PartitionId) -> impl Iterator<Item = (&SstId, &Entry)> {
        let ids = self.by_partition.get(&partition).into_iter().flatten();
        ids.filter_map(|id| self.all.get_key_value(id))
    }

    pub fn count_of(&self, partition: PartitionId) -> usize {
        self.by_partition.get(&partition).map_or(0, BTreeSet::len)
    }

    pub fn insert(&mut self, id: SstId, entry: Entry) {
        self.by_partition.entry(id.partition).or_default().insert(id);
        self.all.insert(id, entry);
    }

    pub fn remove(&mut self, id: &SstId) -> Option<Entry> {
        if let Some(ids) = self.by_partition.get_mut(&id.partition) {
            ids.remove(id);
            if ids.is_empty() {
                self.by_partition.remove(&id.partition);
            }
        }
        self.all.remove(id)
    }
}

#[cfg(test)]
mod tests {
    use sextant_common::error::Error;
    use sextant_common::ids::LogPosition;

    use super::*;

    fn id(partition: u32, index: u64) -> SstId {
        let plan = LogPosition { term: 1, index };
        SstId { partition: PartitionId(partition), plan, epoch: Default::default(), counter: 0 }
    }

    fn entry() -> Entry {
        Entry::Unreadable { error: Error::corrupt("a test's"), file_bytes: 1 }
    }

    fn of(tables: &Tables, partition: u32) -> Vec<SstId> {
        tables.of_partition(PartitionId(partition)).map(|(id, _)| *id).collect()
    }

    #[test]
    fn the_tables_of_a_partition_are_those_that_are_there_in_order() {
        let mut tables = Tables::default();
        for index in [7, 3, 5] {
            tables.insert(id(2, index), entry());
            tables.insert(id(1, index), entry());
        }
        tables.insert(id(2, 5), entry());
        assert_eq!(of(&tables, 2), [id(2, 3), id(2, 5), id(2, 7)]);
        assert_eq!((tables.count_of(PartitionId(2)), tables.len()), (3, 6));
        assert!(tables.remove(&id(2, 5)).is_some() && tables.remove(&id(2, 5)).is_none());
        assert_eq!(of(&tables, 2), [id(2, 3), id(2, 7)]);
        assert!(of(&tables, 3).is_empty() && tables.remove(&id(3, 1)).is_none());
        for index in [3, 7] {
            tables.remove(&id(2, index));
        }
        assert!(of(&tables, 2).is_empty() && tables.by_partition.len() == 1);
        assert_eq!(of(&tables, 1).len(), 3);
    }
}
