//! Names of tables. Learned from manifests of any partition: ids are global and never reused.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use sextant_common::ids::{DEFAULT_TABLE, DEFAULT_TABLE_NAME};
use sextant_common::manifest::TableInfo;

use super::ManifestView;

#[derive(Default)]
struct Known {
    default: Option<Arc<TableInfo>>,
    by_name: BTreeMap<String, Arc<TableInfo>>,
}

#[derive(Default)]
pub(crate) struct TableNames {
    known: ArcSwap<Known>,
    writer: Mutex<()>,
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

    pub fn learn(&self, info: TableInfo) {
        let known = self.known.load();
        if known.by_name.get(&info.name).is_some_and(|t| t.id == info.id) {
            return;
        }
        drop(known);
        let _writer = self.writer.lock();
        let mut next = Known { default: None, by_name: self.known.load().by_name.clone() };
        next.by_name.insert(info.name.clone(), Arc::new(info));
        next.default = next.by_name.values().find(|t| t.id == DEFAULT_TABLE).cloned();
        self.known.store(Arc::new(next));
    }

    pub fn learn_all(&self, manifest: &ManifestView) {
        if !self.has_seen(manifest) {
            manifest.infos().for_each(|info| self.learn(info));
        }
    }

    /// Whether all tables of a manifest are known, which is nearly always so.
    fn has_seen(&self, manifest: &ManifestView) -> bool {
        let known = self.known.load();
        manifest.names().all(|(id, name)| known.by_name.get(name).is_some_and(|known| known.id == id))
    }
}

#[cfg(test)]
mod tests {
    use sextant_common::ids::TableId;
    use sextant_common::manifest::TableOptions;

    use super::*;

    #[test]
    fn the_default_table_has_two_names() {
        let names = TableNames::default();
        assert!(names.get("").is_none());
        let info = |id, name: &str| TableInfo {
            id: TableId(id),
            name: name.into(),
            options: TableOptions::default(),
        };
        names.learn(info(1, "default"));
        names.learn(info(2, "other"));
        names.learn(info(2, "other"));
        assert_eq!(names.get("").unwrap().id, DEFAULT_TABLE);
        assert_eq!(names.get("default").unwrap().id, DEFAULT_TABLE);
        assert_eq!(names.get("other").unwrap().id, TableId(2));
        assert_eq!(names.all().len(), 2);
    }
}
