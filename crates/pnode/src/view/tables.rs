//! Names of tables. Partition 0 says which there are; until it has, the others' manifests do, which may still have one that was
//! dropped. Ids are global and never reused.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use sextant_common::ids::{DEFAULT_TABLE, DEFAULT_TABLE_NAME, ManifestVersion};
use sextant_common::manifest::TableInfo;

use super::ManifestView;

#[derive(Default)]
struct Known {
    default: Option<Arc<TableInfo>>,
    by_name: BTreeMap<String, Arc<TableInfo>>,
    /// Partition 0 has said so.
    is_certain: bool,
}

impl Known {
    fn new(by_name: BTreeMap<String, Arc<TableInfo>>, is_certain: bool) -> Self {
        let default = by_name.values().find(|t| t.id == DEFAULT_TABLE).cloned();
        Self { default, by_name, is_certain }
    }
}

#[derive(Default)]
pub(crate) struct TableNames {
    known: ArcSwap<Known>,
    /// Who writes, and the newest manifest of partition 0 that was learned.
    writer: Mutex<ManifestVersion>,
}

impl TableNames {
    /// `name`: "" is the default table.
    pub fn get(&self, name: &str) -> Option<Arc<TableInfo>> {
        let known = self.known.load();
        if name.is_empty() || name == DEFAULT_TABLE_NAME {
            return known.default.clone();
        }
        known.by_name.get(name).cloned()
    }

    pub fn all(&self) -> Vec<Arc<TableInfo>> {
        let mut all: Vec<_> = self.known.load().by_name.values().cloned().collect();
        all.sort_by_key(|t| t.id);
        all
    }

    /// Of two with a name, the later one counts.
    fn learn(&self, info: TableInfo) {
        let _writer = self.writer.lock();
        let known = self.known.load();
        let is_known = known.by_name.get(&info.name).is_some_and(|t| t.id >= info.id);
        if known.is_certain || is_known {
            return;
        }
        let mut by_name = known.by_name.clone();
        by_name.insert(info.name.clone(), Arc::new(info));
        self.known.store(Arc::new(Known::new(by_name, false)));
    }

    /// Of a partition other than 0.
    pub fn learn_of_some(&self, manifest: &ManifestView) {
        if !self.known.load().is_certain {
            manifest.infos().for_each(|info| self.learn(info));
        }
    }

    /// Partition 0's manifest has these, and no others.
    pub fn learn_all(&self, manifest: &ManifestView) {
        let mut newest = self.writer.lock();
        if *newest > manifest.version {
            return;
        }
        *newest = manifest.version;
        let known = self.known.load();
        let is_known = |info: &TableInfo| known.by_name.get(&info.name).is_some_and(|known| **known == *info);
        let infos: Vec<TableInfo> = manifest.infos().collect();
        if known.is_certain && infos.len() == known.by_name.len() && infos.iter().all(is_known) {
            return;
        }
        let by_name = infos.into_iter().map(|info| (info.name.clone(), Arc::new(info))).collect();
        self.known.store(Arc::new(Known::new(by_name, true)));
    }

    /// Whether this is the table that its name means.
    pub fn has(&self, table: &TableInfo) -> bool {
        self.known.load().by_name.get(&table.name).is_some_and(|known| known.id == table.id)
    }
}

#[cfg(test)]
mod tests {
    use sextant_common::ids::{PartitionId, TableId};
    use sextant_common::manifest::{Manifest, TableManifest, TableOptions};

    use super::*;

    fn info(id: u32, name: &str) -> TableInfo {
        TableInfo { id: TableId(id), name: name.into(), options: TableOptions::default() }
    }

    /// A manifest with these tables.
    fn with(tables: &[TableInfo]) -> ManifestView {
        let table = |t: &TableInfo| TableManifest::new(t.id, t.name.clone(), t.options.clone());
        let tables = tables.iter().map(table).collect();
        ManifestView::build(Manifest { tables, ..Manifest::empty(PartitionId(0)) }, &ManifestView::empty())
    }

    #[test]
    fn partition_0_overrules_the_others_and_of_two_tables_with_a_name_the_later_counts() {
        let (names, id) = (TableNames::default(), |names: &TableNames| names.get("t").map(|t| t.id.0));
        names.learn_of_some(&with(&[info(2, "t"), info(3, "u")]));
        names.learn_of_some(&with(&[info(5, "t")]));
        names.learn_of_some(&with(&[info(2, "t")]));
        assert_eq!(id(&names), Some(5));
        let altered = TableOptions { filter_inserts: true, ..TableOptions::default() };
        names.learn_all(&with(&[info(1, "default"), TableInfo { options: altered.clone(), ..info(5, "t") }]));
        assert!(names.get("u").is_none() && names.get("t").unwrap().options == altered);
        names.learn_all(&with(&[info(1, "default")]));
        assert_eq!(id(&names), None, "it was dropped");
        names.learn_of_some(&with(&[info(5, "t")]));
        assert_eq!(id(&names), None, "elsewhere it is not gone yet");
        names.learn_all(&with(&[info(1, "default"), info(7, "t")]));
        assert!(names.has(&info(7, "t")) && !names.has(&info(5, "t")));
        assert_eq!(names.get("").unwrap().id, DEFAULT_TABLE);
    }

    #[test]
    fn the_default_table_has_two_names() {
        let names = TableNames::default();
        assert!(names.get("").is_none());
        names.learn(info(1, "default"));
        names.learn(info(2, "other"));
        names.learn(info(2, "other"));
        assert_eq!(names.get("").unwrap().id, DEFAULT_TABLE);
        assert_eq!(names.get("default").unwrap().id, DEFAULT_TABLE);
        assert_eq!(names.get("other").unwrap().id, TableId(2));
        assert_eq!(names.all().len(), 2);
    }
}
