//! When the SSTables of a table are compacted, and who waits for that. (Which: [`choice`](super::choice).)

use std::collections::{HashMap, HashSet};

use sextant_common::error::Result;
use sextant_common::expiry::Tick;
use sextant_common::ids::TableId;
use sextant_common::manifest::{Manifest, TableManifest};
use tokio::sync::oneshot;

use super::choice::choose;

type Done = oneshot::Sender<Result<()>>;

#[derive(Default)]
pub(in crate::worker) struct Compactions {
    /// One a table, until its command is committed; and whether it takes all SSTables.
    under_way: HashMap<TableId, bool>,
    /// Somebody waits for all SSTables of these to become one, after what is under way.
    wanted: HashSet<TableId>,
    waiters: HashMap<TableId, Vec<Done>>,
    retry_at_ns: HashMap<TableId, u64>,
}

impl Compactions {
    /// The tables of which some SSTables are [to become one](choose), with no compaction under way. `trigger` 0: never.
    pub fn due(&self, manifest: &Manifest, trigger: usize, expired_by: Tick, now_ns: u64) -> Vec<TableId> {
        let is_chosen = |t: &&TableManifest| {
            self.wanted.contains(&t.table) || trigger > 0 && choose(t, trigger, expired_by).is_some()
        };
        let crowded = manifest.tables.iter().filter(is_chosen).map(|t| t.table);
        let is_due =
            |t: &TableId| !self.is_under_way(*t) && self.retry_at_ns.get(t).is_none_or(|at| *at <= now_ns);
        crowded.filter(is_due).collect()
    }

    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    pub fn is_under_way(&self, table: TableId) -> bool {
        self.under_way.contains_key(&table)
    }

    /// False: there is one already. `all`: it takes all SSTables.
    pub fn begin(&mut self, table: TableId, all: bool) -> bool {
        if self.is_under_way(table) {
            return false;
        }
        if all {
            self.wanted.remove(&table);
        }
        self.under_way.insert(table, all);
        true
    }

    pub fn is_wanted(&self, table: TableId) -> bool {
        self.wanted.contains(&table)
    }

    /// Whoever asks during a compaction of all waits for that one; during another one, for one of all after it.
    pub fn wait(&mut self, table: TableId, done: Option<Done>) {
        self.waiters.entry(table).or_default().extend(done);
    }

    /// The table's compaction is over.
    pub fn end(&mut self, table: TableId, result: &Result<()>) {
        let took_all = self.under_way.remove(&table).unwrap_or(true);
        if !took_all && self.waiters.contains_key(&table) {
            self.wanted.insert(table);
            return;
        }
        for waiter in self.waiters.remove(&table).unwrap_or_default() {
            let _ = waiter.send(result.clone());
        }
    }

    pub fn retry_at(&mut self, table: TableId, at_ns: u64) {
        self.retry_at_ns.insert(table, at_ns);
    }

    /// Leadership ends. (What is wanted is wanted of the next leader, by who asks it.)
    pub fn end_all(&mut self, result: &Result<()>) {
        for waiter in self.waiters.drain().flat_map(|(_, waiters)| waiters) {
            let _ = waiter.send(result.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use sextant_common::error::Error;
    use sextant_common::ids::{Generation, ManifestVersion, PartitionId};
    use sextant_common::manifest::{Generations, SstMeta, TableOptions};

    use super::*;
    use crate::partition::testing::sst;

    const T: TableId = TableId(1);
    const U: TableId = TableId(2);

    /// A table with so many SSTables of one size, one a memtable.
    fn flushed(table: TableId, times: u64) -> TableManifest {
        let sst = |g| SstMeta { table, generations: Generations::new(g, g), ..sst(g as u32) };
        TableManifest {
            table,
            name: table.to_string(),
            options: TableOptions::default(),
            flushed_generation: Generation(times),
            last_flush_version: ManifestVersion(times),
            persisted: Default::default(),
            ssts: (1..=times).rev().map(sst).collect(),
        }
    }

    fn manifest(tables: Vec<TableManifest>) -> Manifest {
        Manifest { tables, ..Manifest::empty(PartitionId(0)) }
    }

    #[test]
    fn a_table_is_due_when_it_has_as_many_ssts_as_the_trigger_says() {
        let compactions = Compactions::default();
        let manifest = manifest(vec![flushed(T, 3), flushed(U, 6)]);
        assert_eq!(compactions.due(&manifest, 3, Tick(0), 0), [T, U]);
        assert_eq!(compactions.due(&manifest, 4, Tick(0), 0), [U], "each table for itself");
        assert_eq!(compactions.due(&manifest, 6, Tick(0), 0), [U]);
        assert!(compactions.due(&manifest, 7, Tick(0), 0).is_empty());
        assert!(compactions.due(&manifest, 0, Tick(0), 0).is_empty(), "0: never by itself");
    }

    #[test]
    fn one_sst_alone_is_never_due() {
        let compactions = Compactions::default();
        for trigger in 0..3 {
            let manifest = manifest(vec![flushed(T, 0), flushed(U, 1)]);
            assert!(compactions.due(&manifest, trigger, Tick(0), 0).is_empty(), "trigger {trigger}");
        }
        assert_eq!(compactions.due(&manifest(vec![flushed(T, 2)]), 1, Tick(0), 0), [T], "as if it were 2");
    }

    #[test]
    fn a_table_is_compacted_once_at_a_time_and_not_soon_again_after_a_failure() {
        let mut compactions = Compactions::default();
        let manifest = manifest(vec![flushed(T, 4), flushed(U, 4)]);
        assert!(compactions.begin(T, true) && !compactions.begin(T, false));
        assert_eq!(compactions.due(&manifest, 4, Tick(0), 0), [U]);
        compactions.end(T, &Err(Error::retry("no server has room")));
        compactions.retry_at(T, 500);
        assert_eq!(compactions.due(&manifest, 4, Tick(0), 499), [U]);
        assert_eq!(compactions.due(&manifest, 4, Tick(0), 500), [T, U]);
    }

    #[test]
    fn whoever_asks_during_a_compaction_is_told_what_came_of_it() {
        let mut compactions = Compactions::default();
        let ask = |compactions: &mut Compactions, table| {
            let (done, told) = oneshot::channel();
            compactions.wait(table, Some(done));
            told
        };
        let (mut first, mut second) = (ask(&mut compactions, T), ask(&mut compactions, T));
        let mut other = ask(&mut compactions, U);
        compactions.wait(T, None);
        assert!(compactions.begin(T, true));
        compactions.end(T, &Ok(()));
        assert!(first.try_recv().unwrap().is_ok());
        assert!(second.try_recv().unwrap().is_ok());
        assert!(other.try_recv().is_err(), "its own goes on");
        assert!(!compactions.is_under_way(T));
        compactions.end_all(&Err(Error::retry("leadership changed")));
        assert!(other.try_recv().unwrap().is_err());
    }

    #[test]
    fn whoever_asks_during_a_compaction_of_some_waits_for_one_of_all() {
        let mut compactions = Compactions::default();
        let manifest = manifest(vec![flushed(T, 1)]);
        assert!(compactions.begin(T, false));
        let (done, mut told) = oneshot::channel();
        compactions.wait(T, Some(done));
        compactions.end(T, &Ok(()));
        assert!(told.try_recv().is_err() && compactions.is_wanted(T));
        assert_eq!(compactions.due(&manifest, 4, Tick(0), 0), [T]);
        assert!(compactions.begin(T, true) && !compactions.is_wanted(T));
        compactions.end(T, &Ok(()));
        assert!(told.try_recv().unwrap().is_ok());
        assert!(compactions.due(&manifest, 4, Tick(0), 0).is_empty() && compactions.is_idle());
    }
}
