//! The snapshot with which a rebuilt partition begins: everything that counts goes on above whatever was given before the loss, also
//! what no table tells of, because clients and p-nodes may still know it.

use std::collections::BTreeMap;

use bytes::Bytes;
use sextant_common::error::{Error, Result};
use sextant_common::expiry::Tick;
use sextant_common::ids::{Generation, LogPosition, ManifestVersion, NodeId, PartitionId, TableId};
use sextant_common::load::flushed_when_rebuilt;
use sextant_common::manifest::{Manifest, SstMeta, TableManifest, TableOptions};
use sextant_common::snapshot::HeldCuts;
use sextant_raft_log::{Member, Membership, StoredMembership, encode_membership, log_id_at};

use super::plan::{Chosen, Plan, PlannedTable};
use crate::command::Configuration;
use crate::partition::Checkpoint;
use crate::partition::sessions::DuplicateTable;
use crate::partition::snapshot::Snapshot;

/// Between the newest term that a table names and the first of the rebuilt partition: elections without a flush in between.
const TERMS_BEYOND: u64 = 1 << 20;
/// Seqs that may have been given to writes that were never flushed: more than memory holds.
const SEQS_BEYOND: u64 = 1 << 32;
/// Memtables that may have been frozen and not flushed.
const GENERATIONS_BEYOND: u64 = 1 << 20;
/// A manifest version begins with the term, so that it is above all of earlier terms; this leaves room for changes.
const VERSION_BITS: u32 = 20;
/// No clock shows a time from which terms could not go on being counted, and loads be numbered (`common::load`). (It lasts until 2038;
/// voters that remember nothing believe no term above 2^32.)
const TERM_OF_CLOCK_MAX: u64 = 1 << 31;

/// All tables of the cluster: a partition that has nothing of one knows it all the same.
pub type Catalogue = BTreeMap<TableId, (String, TableOptions)>;

/// Ids of tables that may have been made since anything was flushed, or dropped since.
const TABLES_BEYOND: u32 = 1 << 20;

/// The catalogue that the plans of all partitions make. Options may have been changed, in some partitions earlier than files say: the
/// first one's count. Of several tables with a name the latest does: the others were dropped, and their files are not gone yet.
pub fn catalogue<'p>(plans: impl IntoIterator<Item = &'p Plan>) -> Result<Catalogue> {
    let mut all = Catalogue::new();
    for PlannedTable { table, name, options, .. } in plans.into_iter().flat_map(|p| &p.tables) {
        let known = all.entry(*table).or_insert_with(|| (name.clone(), options.clone()));
        if known.0 != *name || known.1.partition_prefix != options.partition_prefix {
            return Err(Error::corrupt(format!(
                "table {table} is {:?} in one partition and {name:?} in another, or has another partition prefix",
                known.0
            )));
        }
    }
    let latest: BTreeMap<String, TableId> = all.iter().map(|(id, (name, _))| (name.clone(), *id)).collect();
    all.retain(|id, (name, _)| latest.get(name) == Some(id));
    Ok(all)
}

/// The term of the snapshot: above every term that a p-node may have heard of. The seconds of the wall clock see to that if a
/// partition is lost again before it has flushed anything. (A clock that is wrong costs no more than that.)
pub fn term(plan: &Plan, remembered: u64, wall_s: u64) -> u64 {
    let beyond = plan.newest_term.max(remembered).saturating_add(TERMS_BEYOND);
    beyond.max(wall_s.min(TERM_OF_CLOCK_MAX))
}

pub struct Rebuilt<'p> {
    pub partition: PartitionId,
    pub plan: &'p Plan,
    pub catalogue: &'p Catalogue,
    pub term: u64,
    /// The time that everybody goes on from, by the clock of the server that rebuilds. By ticks it would be the earliest expiry that
    /// any table tells of and go on in steps from there, for hours: what had expired would be read again, and new records outlive
    /// their time.
    pub time: Tick,
    /// For a partition without tables.
    pub new_lineage: u64,
    pub founding: &'p Configuration,
    pub members: BTreeMap<u64, Member>,
}

impl Rebuilt<'_> {
    /// `replicas`: the servers that are to hold a table.
    pub fn snapshot(&self, replicas: impl Fn(&Chosen) -> Vec<NodeId>) -> Result<Snapshot> {
        let at = LogPosition { term: self.term, index: self.plan.newest_index.saturating_add(1) };
        let version = ManifestVersion(self.term << VERSION_BITS);
        // Behind whatever was loaded, and in no load's numbers: what is flushed from here on tells of none.
        let begins = flushed_when_rebuilt(self.term).unwrap_or_default();
        let tables = self.catalogue.iter().map(|(id, (name, options))| {
            let planned = self.plan.tables.iter().find(|t| t.table == *id);
            let newest = planned.map_or(0, |t| t.newest.0);
            let ssts = planned.map_or(&[][..], |t| &t.ssts);
            let meta = |chosen: &Chosen| SstMeta { replicas: replicas(chosen), ..chosen.meta.clone() };
            TableManifest {
                table: *id,
                name: name.clone(),
                options: options.clone(),
                flushed_generation: Generation(newest.saturating_add(GENERATIONS_BEYOND)).max(begins),
                // What anybody knows of an earlier version is void.
                last_flush_version: version,
                persisted: at,
                ssts: ssts.iter().map(meta).collect(),
            }
        });
        let manifest = Manifest {
            partition: self.partition,
            version,
            tables: tables.collect(),
            recent_flushes: Vec::new(),
            flushes_known_after: version,
        };
        let next = |t: &TableManifest| (t.table, Generation(t.flushed_generation.0 + 1));
        let voters = self.members.keys().copied().collect();
        let membership = Membership::new(vec![voters], self.members.clone())
            .map_err(|e| Error::internal(format!("the first membership: {e}")))?;
        let membership = encode_membership(&StoredMembership::new(Some(log_id_at(at)), membership));
        let lineage = self.plan.lineage.unwrap_or(self.new_lineage);
        let formats = self.catalogue.values().map(|(_, options)| options.format());
        let format = formats.max().unwrap_or(0).max(self.founding.format);
        let highest = self.catalogue.keys().next_back().map_or(0, |id| id.0);
        Ok(Snapshot {
            checkpoint: Checkpoint {
                at,
                next_seq: self.plan.newest_seq.saturating_add(SEQS_BEYOND),
                time_ms: 0,
                tick: self.time,
                generations: manifest.tables.iter().map(next).collect(),
                sessions: DuplicateTable::default(),
                membership: Bytes::from(membership.to_vec()),
            },
            manifest,
            // Tables that were never flushed are forgotten, but their ids may be known: none is given again.
            next_table: highest.saturating_add(TABLES_BEYOND),
            // What follows is written by these options: whoever does not know them may not take part.
            configuration: Some((Configuration { lineage, format, ..self.founding.clone() }, at.index)),
            // Nobody can hold what nobody knows of.
            cuts: HeldCuts::default(),
            loads: Vec::new(),
            dropped: Default::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use sextant_common::load::{LoadNumber, first_generation};
    use sextant_environment::config::LeaseConfig;

    use super::*;
    use crate::command::ConfigurationRules;
    use crate::partition::snapshot;

    fn planned(table: u32, name: &str) -> PlannedTable {
        PlannedTable {
            table: TableId(table),
            name: name.into(),
            options: TableOptions::default(),
            ssts: Vec::new(),
            newest: Generation(4),
        }
    }

    fn plan(tables: Vec<PlannedTable>) -> Plan {
        Plan {
            lineage: Some(7),
            tables,
            newest_seq: 100,
            newest_term: 5,
            newest_index: 60,
            ..Plan::default()
        }
    }

    #[test]
    fn a_term_is_above_whatever_was_heard_of_even_if_nothing_was_flushed_since_the_last_loss() {
        let plan = plan(vec![]);
        let first = term(&plan, 0, 1_700_000_000);
        assert!(first > plan.newest_term + 1000);
        // The same tables a day later.
        assert!(term(&plan, 0, 1_700_086_400) > first + 1000);
        assert!(term(&plan, first, 0) > first, "a clock that is wrong");
        assert!(term(&plan, 0, u64::MAX) < 1 << 32, "voters that remember nothing believe it");
    }

    #[test]
    fn everything_goes_on_above_what_was_and_a_partition_knows_tables_that_it_has_nothing_of() {
        let (one, two) =
            (plan(vec![planned(1, "default")]), plan(vec![planned(1, "default"), planned(9, "t")]));
        let catalogue = catalogue([&one, &two]).unwrap();
        let founding = Configuration::founding(&LeaseConfig::default(), 1 << 20);
        let rebuilt = Rebuilt {
            partition: PartitionId(3),
            plan: &one,
            catalogue: &catalogue,
            term: 1 << 21,
            time: Tick(1_790_000_000_000),
            new_lineage: 99,
            founding: &founding,
            members: (1..=3).map(|id| (id, Member::new("a:1", 10 * id))).collect(),
        };
        let snapshot = rebuilt.snapshot(|_| vec![]).unwrap();
        // As it travels and is stored.
        let snapshot =
            snapshot::decode(&snapshot::encode(&snapshot, PartitionId(3)), PartitionId(3)).unwrap();
        assert!(snapshot.checkpoint.next_seq > 100 + (1 << 30));
        assert_eq!(snapshot.checkpoint.tick, Tick(1_790_000_000_000), "what has expired stays so");
        assert_eq!(snapshot.checkpoint.at, LogPosition { term: 1 << 21, index: 61 });
        assert!(snapshot.next_table > 9 + 1024);
        assert_eq!(snapshot.configuration.unwrap().0.lineage, 7);
        let manifest = snapshot.manifest;
        assert_eq!(manifest.tables.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["default", "t"]);
        assert!(manifest.version.0 > 1 << 40 && manifest.flushes_known_after == manifest.version);
        assert!(manifest.tables.iter().all(|t| t.last_flush_version == manifest.version));
        assert!(manifest.tables[0].flushed_generation.0 > 4);
        assert_eq!(
            snapshot.checkpoint.generations[&TableId(1)].0,
            manifest.tables[0].flushed_generation.0 + 1
        );
    }

    #[test]
    fn a_rebuilt_partition_takes_loads_and_its_flushes_tell_of_none() {
        let mut one = plan(vec![planned(1, "default")]);
        let loaded = first_generation(5, 1, Generation(1)).unwrap();
        one.tables[0].newest = loaded;
        let catalogue = catalogue([&one]).unwrap();
        let founding = Configuration::founding(&LeaseConfig::default(), 1 << 20);
        let term = term(&one, 0, 1_790_000_000);
        let members = BTreeMap::from([(1, Member::new("a:1", 10))]);
        let (plan, catalogue, founding) = (&one, &catalogue, &founding);
        let partition = PartitionId(3);
        let time = Tick::default();
        let rebuilt = Rebuilt { partition, plan, catalogue, term, time, new_lineage: 99, founding, members };
        let current = rebuilt.snapshot(|_| vec![]).unwrap().checkpoint.generations[&TableId(1)];
        assert!(current > loaded);
        assert_eq!(LoadNumber::of(current), None);
        assert!(first_generation(term, 1, current).is_some());
    }

    #[test]
    fn tables_that_contradict_each_other_are_refused() {
        let one = plan(vec![planned(1, "default")]);
        assert!(catalogue([&one, &plan(vec![planned(1, "other")])]).is_err());
        let mut placed = planned(1, "default");
        placed.options.partition_prefix = 3;
        assert!(catalogue([&one, &plan(vec![placed])]).is_err());
    }

    #[test]
    fn options_may_have_been_changed_and_of_tables_with_a_name_the_latest_counts() {
        let mut altered = planned(4, "t");
        altered.options.filter_inserts = true;
        let (one, two) = (plan(vec![planned(2, "t"), planned(3, "u"), altered]), plan(vec![planned(4, "t")]));
        let all = catalogue([&one, &two]).unwrap();
        assert_eq!(all.keys().map(|id| id.0).collect::<Vec<_>>(), [3, 4]);
        assert!(all[&TableId(4)].1.filter_inserts);
    }
}
