//! Opening the tables that the directory holds.

use std::sync::Arc;

use sextant_common::error::{Error, Result};
use sextant_common::ids::SstId;

use super::{Catalog, Entry};
use crate::table::{Opened, Table};

impl Catalog {
    /// The tables whose files the directory holds: what [`Catalog::load`] is to be called for.
    pub fn stored(&self) -> Result<Vec<SstId>> {
        self.dir.tables()
    }

    /// Opens some of the stored tables. A damaged one is entered as such; a damaged filter is rebuilt. Fails only if the
    /// directory itself does not work (no file descriptors left, no permission): going on would report sound tables lost.
    pub fn load(&self, ids: &[SstId]) -> Result<()> {
        for id in ids {
            let file = self.dir.open_table(*id)?;
            let file_bytes = file.len()?;
            let entry = match Table::open(file, *id, self.next_number(), self.cache.clone()) {
                Ok(opened) => Entry::Open(self.with_filter(opened)),
                Err(error) => {
                    tracing::error!("a table cannot be read and waits for its repair: {error}");
                    let error = Error::corrupt(error.message);
                    Entry::Unreadable { error, file_bytes }
                }
            };
            self.tables.write().insert(*id, entry);
        }
        Ok(())
    }

    /// The table with a filter: rebuilt if its own is damaged, and then, if possible, written anew.
    fn with_filter(&self, opened: Opened) -> Arc<Table> {
        let table = Arc::new(opened.table);
        let Some(damage) = opened.filter_damage else { return table };
        table.mark_damaged(&damage.message);
        match self.heal_filter(&table) {
            Ok(healed) => {
                self.repaired(table.id(), &damage.message);
                healed
            }
            Err(e) => {
                tracing::error!("the file of a table with a damaged filter was not repaired: {e}");
                table
            }
        }
    }
}
