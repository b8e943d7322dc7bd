//! Scenes: several faults and commands that only together lead somewhere.

use std::time::Duration;

use sextant_rules::probe::PausePoint;

use super::network::NetFault;
use super::{Due, MS, Nemesis};
use crate::cluster::{Cluster, Tier};
use crate::plan::{Scene, pick};
use crate::world::Wanted;

/// Who plays in a scene.
struct Cast {
    /// A memtable server, of some partition the leader.
    leader: String,
    /// The other memtable servers.
    peers: Vec<String>,
    memtables: Vec<String>,
    sstables: Vec<String>,
    pnode: String,
    other_pnodes: Vec<String>,
}

impl Cast {
    fn new(nemesis: &mut Nemesis, cluster: &Cluster) -> Self {
        let memtables = cluster.tier(Tier::Memtable);
        let leader = nemesis.world.a_leader(nemesis.rng.u64(..));
        let leader = leader.unwrap_or_else(|| pick(&mut nemesis.rng, &memtables).clone());
        let mut pnodes = cluster.tier(Tier::PNode);
        let pnode = pnodes.remove(nemesis.rng.usize(0..pnodes.len()));
        Self {
            peers: memtables.iter().filter(|m| **m != leader).cloned().collect(),
            leader,
            memtables,
            sstables: cluster.tier(Tier::Sstable),
            pnode,
            other_pnodes: pnodes,
        }
    }

    /// The p-node is not heard by the memtable servers, nor hears them, for a while.
    fn without_pnode(&self) -> NetFault {
        NetFault::Hold { a: vec![self.pnode.clone()], b: self.memtables.clone() }
    }

    /// The same for the leader among its peers. (Held, not cut: connections that lost something take seconds to be given up.)
    fn without_leader(&self) -> NetFault {
        NetFault::Hold { a: vec![self.leader.clone()], b: self.peers.clone() }
    }

    /// The leader and the p-node here, the other memtable servers and p-nodes there. Clients and sstable servers reach both.
    fn two_worlds(&self) -> NetFault {
        let there: Vec<String> = self.peers.iter().chain(&self.other_pnodes).cloned().collect();
        cut(&[self.leader.clone(), self.pnode.clone()], &there)
    }
}

fn cut(from: &[String], to: &[String]) -> NetFault {
    NetFault::Cut { from: from.to_vec(), to: to.to_vec(), both: true }
}

/// The number of a memtable server, from its name.
fn id(name: &str) -> u64 {
    name[1..].parse().unwrap_or(1)
}

impl Nemesis {
    pub(super) fn scene(&mut self, cluster: &Cluster, scene: Scene, now_ns: u64) {
        let cast = Cast::new(self, cluster);
        let (lease_ms, leader_ms) = (self.plan.lease.lease_ms, self.plan.lease.leader_lease_ms);
        self.count(scene.name(), &format!("{} and {}", cast.leader, cast.pnode));
        let mut steps: Vec<(u64, Due)> = Vec::new();
        let rng = &mut self.rng;
        match scene {
            // Which servers may be wiped is judged by who votes now.
            Scene::AloneBySentence if self.plan.wipes => return,
            Scene::Asleep => {
                let asleep = leader_ms + rng.u64(200..700);
                steps.push((0, Due::Pause(cast.leader.clone(), asleep)));
                steps.push((rng.u64(3..20), Due::BeginNet(cast.two_worlds(), asleep + leader_ms * 2)));
            }
            Scene::OldWorld => {
                let ms = leader_ms * 3 + rng.u64(0..leader_ms * 4);
                steps.push((0, Due::BeginNet(cast.two_worlds(), ms)));
            }
            Scene::Laggard => {
                let (behind, lag_ms) = (rng.usize(0..cast.peers.len()), rng.u64(500..3_000));
                let laggard = std::slice::from_ref(&cast.peers[behind]);
                let others: Vec<String> =
                    cast.memtables.iter().filter(|m| **m != laggard[0]).cloned().collect();
                steps.push((0, Due::BeginNet(cut(laggard, &others), lag_ms)));
                let latency = Duration::from_millis(rng.u64(5..80));
                let slow = NetFault::Slow { a: laggard.to_vec(), b: others, latency };
                steps.push((lag_ms, Due::BeginNet(slow, 3_000)));
                let gone_ms = leader_ms * 4;
                let down = rng.bool();
                steps.push((
                    lag_ms,
                    match down {
                        true => Due::Kill(vec![cast.leader.clone()], gone_ms),
                        false => Due::BeginNet(
                            cut(
                                std::slice::from_ref(&cast.leader),
                                &self.network.others(std::slice::from_ref(&cast.leader)),
                            ),
                            gone_ms,
                        ),
                    },
                ));
            }
            Scene::ThereAndBack => {
                let apart = leader_ms * 2 + rng.u64(150..500);
                steps.push((0, Due::BeginNet(cast.without_leader(), apart)));
                let back = rng.u64(1_000..2_500);
                let pnode = std::slice::from_ref(&cast.pnode);
                steps.push((0, Due::BeginNet(cut(pnode, &cast.peers), apart + back)));
                let to = id(&cast.leader);
                for again in 0..5 {
                    steps.push((apart + 30 + again * 150, Due::Want(Wanted::Transfer { to })));
                }
            }
            Scene::LateCopies => {
                let held = NetFault::Hold { a: vec![cast.pnode.clone()], b: cast.memtables.clone() };
                steps.push((0, Due::BeginNet(held, rng.u64(150..1_200))));
            }
            Scene::RefusedProposals => {
                steps.push((0, Due::Want(Wanted::LongLeases)));
                let begins = rng.u64(800..1_200);
                let lapses = leader_ms + rng.u64(20..250);
                steps.push((begins, Due::BeginNet(cast.without_leader(), lapses)));
                steps.push((begins + rng.u64(0..leader_ms), Due::BeginNet(cast.without_pnode(), 1_000)));
            }
            Scene::FlushUnderLease => {
                steps.push((0, Due::BeginNet(cast.without_pnode(), lease_ms + rng.u64(0..300))));
                for _ in 0..2 {
                    steps.push((rng.u64(0..lease_ms / 2), Due::Want(Wanted::Flush)));
                }
            }
            Scene::HandoverUnderLease => {
                let to = id(pick::<String>(rng, &cast.peers));
                steps.push((0, Due::Want(Wanted::Transfer { to })));
                let at = rng.u64(leader_ms / 2..leader_ms * 5 / 2);
                steps.push((at, Due::BeginNet(cast.without_pnode(), lease_ms + rng.u64(0..300))));
                if rng.bool() {
                    let to = id(&cast.leader);
                    steps.push((at + rng.u64(0..lease_ms), Due::Want(Wanted::Transfer { to })));
                }
            }
            Scene::HungUnderLease => {
                let stall_ms = self.plan.tuning.disk_stall_ms;
                steps.push((0, Due::HangSyncs(cast.leader.clone(), stall_ms + rng.u64(200..800))));
                let before = stall_ms.saturating_sub(rng.u64(20..lease_ms / 3));
                steps.push((before, Due::BeginNet(cast.without_pnode(), lease_ms + rng.u64(0..300))));
                // Reads that it takes as a leader, and looks at as nobody.
                let begins = stall_ms.saturating_sub(rng.u64(0..60));
                let lasts = rng.u64(lease_ms / 4..lease_ms / 2);
                steps.push((begins, Due::HoldAt(cast.leader.clone(), PausePoint::MemtablesRead, lasts)));
            }
            Scene::LateSstables => {
                let held = NetFault::Hold { a: vec![cast.pnode.clone()], b: cast.sstables.clone() };
                let ms = rng.u64(200..900);
                steps.push((0, Due::BeginNet(held, ms)));
                for _ in 0..2 {
                    steps.push((rng.u64(10..ms), Due::Want(Wanted::Flush)));
                }
            }
            Scene::ModeInFlight => {
                // Groups stop between their bits and their proposal, for longer than it takes to commit the change: what this
                // finds then is on its way. One change only: the next would put right what this one left.
                let (within, each) = (1_500, rng.u64(60..150));
                for memtable in &cast.memtables {
                    steps.push((0, Due::SlowAt(memtable.clone(), PausePoint::BitsOut, within, each)));
                }
                steps.push((rng.u64(150..400), Due::Want(Wanted::OtherMode)));
            }
            Scene::LateConfirmation => {
                let behind = rng.usize(0..cast.peers.len());
                let (candidate, follower) = (&cast.peers[1 - behind], &cast.peers[behind]);
                let (leader, candidate) =
                    (std::slice::from_ref(&cast.leader), std::slice::from_ref(candidate));
                let follower = std::slice::from_ref(follower);
                // Until the guards open, the candidate does not hear the leader; what the leader sends on its old connections
                // is not heard for a while longer.
                let deaf = leader_ms.saturating_sub(rng.u64(0..80));
                let cut_forth = NetFault::Cut { from: leader.to_vec(), to: candidate.to_vec(), both: false };
                steps.push((0, Due::BeginNet(cut_forth, deaf)));
                // The follower hears the leader late, and nobody else.
                let held = leader_ms + rng.u64(20..320);
                let hold = NetFault::Hold { a: leader.to_vec(), b: follower.to_vec() };
                steps.push((0, Due::BeginNet(hold, held)));
                steps.push((0, Due::BeginNet(cut(follower, candidate), held + leader_ms * 2)));
                // One p-node stays with the leader, the other ones look for the next.
                let pnode = std::slice::from_ref(&cast.pnode);
                steps.push((0, Due::BeginNet(cut(pnode, &cast.peers), leader_ms * 5)));
                steps.push((0, Due::BeginNet(cut(leader, &cast.other_pnodes), leader_ms * 5)));
                // Its worker stands still: it learns late that it leads no more.
                steps.push((0, Due::HoldAt(cast.leader.clone(), PausePoint::BitsOut, leader_ms * 4)));
            }
            Scene::AloneBySentence => {
                let ms = leader_ms * 3 + rng.u64(0..leader_ms * 4);
                steps.push((0, Due::BeginNet(cast.two_worlds(), ms)));
                let node = id(&cast.leader);
                for again in 0..3 {
                    steps.push((rng.u64(1..8) + again * 40, Due::Want(Wanted::Alone { node })));
                }
            }
            Scene::SlowPNode => {
                let latency = Duration::from_millis(rng.u64(lease_ms / 2..lease_ms * 4));
                let (a, b) = (vec![cast.pnode.clone()], cast.memtables.clone());
                steps.push((0, Due::BeginNet(NetFault::Slow { a, b, latency }, lease_ms * 20)));
            }
        }
        self.begin(steps, now_ns);
    }

    fn begin(&mut self, steps: Vec<(u64, Due)>, now_ns: u64) {
        // Begun in the next step of the simulation.
        self.due.extend(steps.into_iter().map(|(ms, due)| (now_ns + ms * MS, due)));
    }
}
