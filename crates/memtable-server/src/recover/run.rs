//! `sextant admin recover`: asks everybody, plans, and founds partitions anew from what their tables say.
//!
//! Run by the one server that founds groups (the lowest id). It takes the rebuilt snapshot as from a leader that nobody can be, and
//! is then a member like any other: it campaigns, and sends the snapshot to the rest. Until it has the snapshot durably nothing has
//! happened, and the command can be given again; from then on the partition is founded, and the command leaves it alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::NodeId;
use sextant_proto::convert::sst_id_from_wire;
use sextant_proto::v1;
use sextant_proto::v1::recovered_partition::Outcome;
use sextant_raft_log::{Member, Vote};

use super::gate::{Gate, Memory};
use super::plan::{Chosen, Contents, Found, Plan, plan};
use super::snapshot::{Catalogue, Rebuilt, catalogue, term};
use crate::raft::snapshot_store::{SnapshotData, meta_of};
use crate::service::Context;

/// A leader of the term before the first: no server has this id.
const NOBODY: u64 = 0;

/// What is to become of a partition.
enum Step {
    /// It has a group. Its tables count for the catalogue.
    Founded(Option<Plan>),
    Rebuild(Plan),
    Refuse(String),
}

pub async fn run(context: &Arc<Context>, request: v1::RecoverRequest) -> Result<v1::RecoverReply> {
    let founder = context.cluster.memtable.iter().map(|s| s.id).min();
    if founder != Some(context.node) {
        let founder = founder.unwrap_or_default();
        return Err(Error::new(
            ErrorKind::NotLeader,
            format!("memtable server {founder} founds groups: ask that one, or a p-node"),
        ));
    }
    let mut gates: Vec<&Gate> = context.gates.values().collect();
    gates.sort_by_key(|gate| gate.shared.id);
    let mut steps = Vec::new();
    for gate in gates {
        steps.push((gate, step(gate, &request).await));
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
    let mut reply = v1::RecoverReply::default();
    for (gate, (step, remembered)) in steps {
        let mut partition =
            v1::RecoveredPartition { partition: gate.shared.id.0, ..v1::RecoveredPartition::default() };
        let outcome = match step {
            Step::Founded(_) => {
                partition.message = "has a group: nothing to be done".into();
                Outcome::Founded
            }
            Step::Refuse(why) => {
                partition.message = why;
                Outcome::Refused
            }
            Step::Rebuild(plan) => {
                partition.found = plan.notes.clone();
                partition.losses = plan.losses.clone();
                // All or nothing, as far as can be known before: a table may be known to one partition only.
                if request.dry_run || refused || failed {
                    Outcome::Planned
                } else {
                    match rebuild(context, gate, &plan, &catalogue, remembered).await {
                        Ok(()) => Outcome::Recovered,
                        Err(e) => {
                            partition.message = e.to_string();
                            failed = true;
                            Outcome::Refused
                        }
                    }
                }
            }
        };
        partition.outcome = outcome.into();
        reply.partitions.push(partition);
    }
    reply.partitions.sort_by_key(|p| p.partition);
    Ok(reply)
}

/// What to do with a partition, and the newest term that a memtable server has heard of there.
async fn step(gate: &Gate, request: &v1::RecoverRequest) -> (Step, u64) {
    let remembered = match all_empty(gate).await {
        Ok(Some(term)) => term,
        Ok(None) => {
            let found = gather(gate, &request.without).await;
            return (Step::Founded(found.and_then(|found| plan(gate.shared.id, &found)).ok()), 0);
        }
        Err(e) => return (Step::Refuse(e.message.into_owned()), 0),
    };
    let step = match gather(gate, &request.without).await.and_then(|found| plan(gate.shared.id, &found)) {
        Ok(plan) if !plan.losses.is_empty() && !request.dry_run && !request.accept_loss => {
            Step::Refuse(format!(
                "flushed records are missing, which has to be accepted (--accept-loss): {}",
                plan.losses.join("; ")
            ))
        }
        Ok(mut plan) => {
            if plan.tables.is_empty() {
                plan.notes.push("no table: it begins empty".into());
            }
            let id = gate.shared.id;
            let gone =
                request.without.iter().map(|n| format!("partition {id}: sstable server {n} was not asked"));
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
async fn gather(gate: &Gate, without: &[u64]) -> Result<Vec<Found>> {
    let id = gate.shared.id;
    let asked = gate.servers.all().iter().filter(|s| !without.contains(&s.id.0));
    let asked = asked.map(|server| async move {
        let holdings = server.holdings(id).await.map_err(|e| {
            Error::unavailable(format!(
                "sstable server {}: {e}: bring it back, or give it up (--without-sstable {}), with what only it has",
                server.id, server.id
            ))
        })?;
        holdings.into_iter().map(|h| found(server.id, h)).collect::<Result<Vec<_>>>()
    });
    let all = futures::future::try_join_all(asked).await?;
    Ok(all.into_iter().flatten().collect())
}

fn found(server: NodeId, holding: v1::Holding) -> Result<Found> {
    let contents = match holding.meta {
        None => None,
        Some(meta) => Some(Contents {
            meta: meta.try_into()?,
            options: holding.options.unwrap_or_default().try_into()?,
            origin: holding.origin.map(TryInto::try_into).transpose()?,
        }),
    };
    Ok(Found { server, id: sst_id_from_wire(&holding.id)?, damaged: holding.damaged, contents })
}

async fn rebuild(
    context: &Arc<Context>,
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
    let raft = context.rafts.get(&id).ok_or_else(|| Error::unavailable("the server is starting"))?;
    let wall_s = context.env.clock.wall_guess_ns() / 1_000_000_000;
    let rebuilt = Rebuilt {
        partition: id,
        plan,
        catalogue,
        term: term(plan, remembered, wall_s),
        new_lineage: context.env.rng.nonzero_u64(),
        founding: &gate.founding,
        members: members(context, gate).await?,
    };
    let snapshot = rebuilt.snapshot(|chosen| replicas(gate, chosen))?;
    let vote = Vote::new_committed(rebuilt.term, NOBODY);
    let data = SnapshotData(snapshot.encode(id).into());
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
async fn members(context: &Context, gate: &Gate) -> Result<BTreeMap<u64, Member>> {
    let said = gate.network.introductions(gate.network.others(), 0).await;
    let own = gate.shared.incarnation.id();
    let member = |id: u64, addr: &str| {
        let incarnation = if id == context.node.0 { Some(own) } else { said.get(&id).map(|i| i.incarnation) };
        let silent = || Error::unavailable(format!("memtable server {id} does not answer"));
        Ok((id, Member::new(addr, incarnation.ok_or_else(silent)?)))
    };
    context.cluster.memtable.iter().map(|s| member(s.id.0, &s.addr)).collect()
}

/// Who is to hold a table: those that have it, and then those that a new table with this id would go to.
fn replicas(gate: &Gate, chosen: &Chosen) -> Vec<NodeId> {
    let mut all = chosen.holders.clone();
    let preferred = gate.servers.choose(chosen.meta.id, gate.servers.all().len());
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
