//! `sextant admin recover`: asks everybody, plans, and founds partitions anew from what their tables say.
//!
//! Run by the one server that founds groups (the lowest id). It takes the rebuilt snapshot as from a leader that nobody can be, and
//! is then a member like any other: it campaigns, and sends the snapshot to the rest. Until it has the snapshot durably nothing has
//! happened, and the command can be given again; from then on the partition is founded, and the command leaves it alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::expiry::Tick;
use sextant_common::ids::{NodeId, PartitionId};
use sextant_common::recovery::{RecoveredPartition, RecoveryOrder, RecoveryOutcome};
use sextant_environment::Env;
use sextant_environment::config::ClusterConfig;
use sextant_raft_log::{Member, Vote};

use super::gate::Gate;
use super::plan::{Chosen, Found, Plan, Word, plan};
use super::snapshot::{Catalogue, Rebuilt, catalogue, term};
use crate::incarnation::Memory;
use crate::partition::snapshot::encode;
use crate::raft::Raft;
use crate::raft::snapshot_store::{SnapshotData, meta_of};

/// A leader of the term before the first: no server has this id.
const NOBODY: u64 = 0;

/// What is to become of a partition.
enum Step {
    /// It has a group. Its tables count for the catalogue.
    Founded(Option<Plan>),
    Rebuild(Plan),
    Refuse(String),
}

/// The server that runs it, with what it needs of its partitions.
pub struct Rebuilding {
    pub env: Env,
    pub node: NodeId,
    pub cluster: ClusterConfig,
    /// Before the founding of each partition.
    pub gates: HashMap<PartitionId, Gate>,
    pub rafts: Arc<HashMap<PartitionId, Raft>>,
}

impl Rebuilding {
    /// What became of each partition, in their order.
    pub async fn run(&self, order: &RecoveryOrder) -> Result<Vec<RecoveredPartition>> {
        run(self, order).await
    }
}

async fn run(here: &Rebuilding, order: &RecoveryOrder) -> Result<Vec<RecoveredPartition>> {
    let founder = here.cluster.memtable.iter().map(|s| s.id).min();
    if founder != Some(here.node) {
        let founder = founder.unwrap_or_default();
        return Err(Error::new(
            ErrorKind::NotLeader,
            format!("memtable server {founder} founds groups: ask that one, or a p-node"),
        ));
    }
    let mut named = order.with_loads.iter().chain(&order.without_loads);
    if let Some(unknown) = named.find(|load| !here.gates.contains_key(&load.partition)) {
        return Err(Error::invalid(format!("load {unknown}: there is no such partition")));
    }
    if let Some(twice) = order.with_loads.iter().find(|load| order.without_loads.contains(load)) {
        return Err(Error::invalid(format!("load {twice} cannot count and be left out")));
    }
    let mut gates: Vec<&Gate> = here.gates.values().collect();
    gates.sort_by_key(|gate| gate.shared.id);
    let mut steps = Vec::new();
    for gate in gates {
        steps.push((gate, step(gate, order).await));
    }
    let plans = steps.iter().filter_map(|(_, (step, _))| match step {
        Step::Rebuild(plan) | Step::Founded(Some(plan)) => Some(plan),
        _ => None,
    });
    let catalogue = catalogue(plans)?;
    let refused = steps.iter().any(|(_, (step, _))| matches!(step, Step::Refuse(_)));
    // Those without a table first: nothing of their own keeps them from being founded as new ones, once any partition is there.
    steps.sort_by_key(|(_, (step, _))| matches!(step, Step::Rebuild(plan) if !plan.tables.is_empty()));
    let mut failed = false;
    let mut all = Vec::new();
    for (gate, (step, remembered)) in steps {
        let mut recovered = RecoveredPartition {
            partition: gate.shared.id,
            outcome: RecoveryOutcome::Founded,
            message: String::new(),
            found: Vec::new(),
            losses: Vec::new(),
            undecided: Vec::new(),
        };
        recovered.outcome = match step {
            Step::Founded(_) => {
                recovered.message = "has a group: nothing to be done".into();
                RecoveryOutcome::Founded
            }
            Step::Refuse(why) => {
                recovered.message = why;
                RecoveryOutcome::Refused
            }
            Step::Rebuild(plan) => {
                recovered.found =
                    plan.notes.iter().cloned().chain(told_of_time(&plan, wall_ms(here))).collect();
                recovered.losses = plan.losses.clone();
                recovered.undecided = plan.undecided.clone();
                // All or nothing, as far as can be known before: a table may be known to one partition only.
                if order.dry_run || refused || failed {
                    RecoveryOutcome::Planned
                } else {
                    match rebuild(here, gate, &plan, &catalogue, remembered).await {
                        Ok(()) => RecoveryOutcome::Recovered,
                        Err(e) => {
                            recovered.message = e.to_string();
                            failed = true;
                            RecoveryOutcome::Refused
                        }
                    }
                }
            }
        };
        all.push(recovered);
    }
    all.sort_by_key(|recovered| recovered.partition);
    Ok(all)
}

/// What to do with a partition, and the newest term that a memtable server has heard of there.
async fn step(gate: &Gate, order: &RecoveryOrder) -> (Step, u64) {
    let remembered = match all_empty(gate).await {
        Ok(Some(term)) => term,
        Ok(None) => {
            // (Loads that were spoken of are the partition's by now, or gone.)
            let found = gather(gate, &order.without).await;
            return (
                Step::Founded(found.and_then(|found| plan(gate.shared.id, &found, &Word::default())).ok()),
                0,
            );
        }
        Err(e) => return (Step::Refuse(e.message.into_owned()), 0),
    };
    let word = Word::of(order, gate.shared.id);
    let planned = gather(gate, &order.without).await.and_then(|found| plan(gate.shared.id, &found, &word));
    let planned = planned.map(|mut plan| {
        if !order.without.is_empty() {
            // What those had may have been all that there was.
            plan.losses.append(&mut plan.doubts);
        }
        plan
    });
    let step = match planned {
        Ok(plan) if !plan.losses.is_empty() && !order.dry_run && !order.accept_loss => Step::Refuse(format!(
            "flushed records are missing, which has to be accepted (--accept-loss): {}",
            plan.losses.join("; ")
        )),
        Ok(plan) if !plan.undecided.is_empty() && !order.dry_run => {
            let loads: Vec<String> = plan.undecided.iter().map(ToString::to_string).collect();
            Step::Refuse(format!(
                "nothing tells whether these were committed, so it has to be said (--with-load, --without-load): {}",
                loads.join("; ")
            ))
        }
        Ok(mut plan) => {
            plan.notes.append(&mut plan.doubts);
            if plan.tables.is_empty() {
                plan.notes.push("no table: it begins empty".into());
            }
            let id = gate.shared.id;
            let gone =
                order.without.iter().map(|n| format!("partition {id}: sstable server {n} was not asked"));
            plan.notes.extend(gone);
            Step::Rebuild(plan)
        }
        Err(e) => Step::Refuse(e.message.into_owned()),
    };
    (step, remembered)
}

/// The newest term that any memtable server has heard of, if all are up and none remembers the partition. None: this server does.
async fn all_empty(gate: &Gate) -> Result<Option<u64>> {
    newest_term(NodeId(gate.shared.node), &gate.memories().await)
}

fn newest_term(own: NodeId, memories: &[(NodeId, Option<Memory>)]) -> Result<Option<u64>> {
    if memories.iter().any(|(node, memory)| *node == own && memory.is_some_and(|m| m.partition)) {
        return Ok(None);
    }
    let mut newest = 0;
    for (node, memory) in memories {
        match memory {
            None => {
                return Err(Error::unavailable(format!(
                    "memtable server {node} does not answer: all have to be up, and empty"
                )));
            }
            Some(memory) if memory.partition => {
                return Err(Error::invalid(format!(
                    "memtable server {node} remembers the partition: it is not lost, bring a majority of its servers back"
                )));
            }
            Some(memory) => newest = newest.max(memory.term),
        }
    }
    Ok(Some(newest))
}

/// What the sstable servers hold. Every one that is not given up has to answer.
async fn gather(gate: &Gate, without: &[NodeId]) -> Result<Vec<Found>> {
    let id = gate.shared.id;
    let asked = gate.servers.all().iter().filter(|s| !without.contains(&s.id));
    let asked = asked.map(|server| async move {
        let holdings = server.holdings(id).await.map_err(|e| {
            Error::unavailable(format!(
                "sstable server {}: {e}: bring it back, or give it up (--without-sstable {}), with what only it has",
                server.id, server.id
            ))
        })?;
        holdings.map(|holding| Ok(Found { server: server.id, holding: holding? })).collect::<Result<Vec<_>>>()
    });
    let all = futures::future::try_join_all(asked).await?;
    Ok(all.into_iter().flatten().collect())
}

fn wall_ms(here: &Rebuilding) -> u64 {
    here.env.clock.wall_guess_ns() / 1_000_000
}

/// By which clock everything is going to expire: if it is far ahead, that is at once and for good.
fn told_of_time(plan: &Plan, wall_ms: u64) -> Option<String> {
    let mut ssts = plan.tables.iter().flat_map(|table| &table.ssts);
    ssts.any(|chosen| chosen.meta.expiring.records > 0).then(|| {
        let wall_s = wall_ms / 1000;
        format!(
            "records expire by this server's clock, which shows {wall_s} s since 1970: `date -d @{wall_s}`"
        )
    })
}

async fn rebuild(
    here: &Rebuilding,
    gate: &Gate,
    plan: &Plan,
    catalogue: &Catalogue,
    remembered: u64,
) -> Result<()> {
    let id = gate.shared.id;
    let mut founded = gate.founder.lock().await;
    if *founded || all_empty(gate).await?.is_none() {
        return Err(Error::retry("the partition was founded meanwhile: ask again"));
    }
    let raft = here.rafts.get(&id).ok_or_else(|| Error::unavailable("the server is starting"))?;
    let wall_ms = wall_ms(here);
    let rebuilt = Rebuilt {
        partition: id,
        plan,
        catalogue,
        term: term(plan, remembered, wall_ms / 1000),
        time: Tick(wall_ms),
        new_lineage: here.env.rng.nonzero_u64(),
        founding: &gate.founding,
        members: members(here, gate).await?,
    };
    let snapshot = rebuilt.snapshot(|chosen| replicas(gate, chosen))?;
    let vote = Vote::new_committed(rebuilt.term, NOBODY);
    let data = SnapshotData(encode(&snapshot, id).into());
    let whole = openraft::Snapshot { meta: meta_of(&snapshot)?, snapshot: data };
    let answer = raft.install_full_snapshot(vote, whole).await;
    let answer =
        answer.map_err(|e| Error::unavailable(format!("Raft did not take the rebuilt partition: {e}")))?;
    if answer.vote != vote {
        return Err(Error::retry("somebody was elected meanwhile: ask again"));
    }
    *founded = true;
    tracing::warn!(partition = %id, term = rebuilt.term, "was rebuilt from the sstable servers' tables");
    Ok(())
}

/// The members of the rebuilt group: all memtable servers, as what they are now.
async fn members(here: &Rebuilding, gate: &Gate) -> Result<BTreeMap<u64, Member>> {
    let said = gate.network.introductions(gate.network.others(), 0).await;
    let own = gate.shared.incarnation.id();
    let member = |id: u64, addr: &str| {
        let incarnation = if id == here.node.0 { Some(own) } else { said.get(&id).map(|i| i.incarnation) };
        let silent = || Error::unavailable(format!("memtable server {id} does not answer"));
        Ok((id, Member::new(addr, incarnation.ok_or_else(silent)?)))
    };
    here.cluster.memtable.iter().map(|s| member(s.id.0, &s.addr)).collect()
}

/// Who is to hold a table: those that have it, and then those that a new table with this id would go to.
fn replicas(gate: &Gate, chosen: &Chosen) -> Vec<NodeId> {
    let mut all = chosen.holders.clone();
    let preferred = gate.servers.choose(chosen.meta.id, gate.servers.all().len(), &BTreeSet::new());
    let more: Vec<NodeId> = preferred.iter().map(|s| s.id).filter(|id| !all.contains(id)).collect();
    all.extend(more);
    all.truncate(gate.sst_replicas);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_all_servers_have_forgotten_is_rebuilt() {
        let empty = |term| Some(Memory { any: true, term, ..Memory::default() });
        let full = Some(Memory { partition: true, any: true, term: 9, lost: false });
        let asked = |own, two, three| {
            newest_term(NodeId(1), &[(NodeId(1), own), (NodeId(2), two), (NodeId(3), three)])
        };
        assert_eq!(
            asked(empty(0), empty(4), empty(2)).unwrap(),
            Some(4),
            "votes that were cast for nothing count"
        );
        assert_eq!(asked(full, None, empty(0)).unwrap(), None, "it goes on by itself");
        let refused = |two, three, words: &str| {
            let error = asked(empty(0), two, three).unwrap_err();
            assert!(error.message.contains(words), "{error}");
        };
        refused(full, empty(0), "server 2 remembers");
        refused(empty(0), None, "server 3 does not answer");
    }
}
