//! Scenes: several faults and commands that only together lead somewhere.
//!
//! Owns a table of them: when each can be played, and its script. A script draws lengths and pauses, and says what happens when;
//! nothing happens yet while it is written. Which scene it is to be is drawn among all alike, or is the run's theme.

use std::time::Duration;

use sextant_rules::probe::PausePoint;

use super::due::{Due, MS};
use super::means::Nemesis;
use super::network::NetFault;
use crate::cluster::{Cluster, Tier};
use crate::plan::{Plan, Scene, pick};
use crate::world::Wanted;

/// So long a load that is to be committed may take to flush its table first.
const LOAD_WITHIN_MS: u64 = 1_500;

/// What happens, and so many milliseconds from now.
type Steps = Vec<(u64, Due)>;

type Script = fn(&Cast, &mut fastrand::Rng, &mut Steps);

struct Entry {
    scene: Scene,
    playable: fn(&Plan) -> bool,
    script: Script,
}

/// As in [`Scene::ALL`].
const SCENES: [Entry; Scene::ALL.len()] = [
    Entry { scene: Scene::Asleep, playable: always, script: asleep },
    Entry { scene: Scene::OldWorld, playable: always, script: old_world },
    Entry { scene: Scene::Laggard, playable: always, script: laggard },
    Entry { scene: Scene::ThereAndBack, playable: always, script: there_and_back },
    Entry { scene: Scene::LateCopies, playable: always, script: late_copies },
    Entry { scene: Scene::RefusedProposals, playable: always, script: refused_proposals },
    Entry { scene: Scene::FlushUnderLease, playable: always, script: flush_under_lease },
    Entry { scene: Scene::HandoverUnderLease, playable: always, script: handover_under_lease },
    Entry { scene: Scene::HungUnderLease, playable: always, script: hung_under_lease },
    Entry { scene: Scene::LateSstables, playable: always, script: late_sstables },
    Entry { scene: Scene::SlowPNode, playable: always, script: slow_pnode },
    Entry { scene: Scene::ModeInFlight, playable: always, script: mode_in_flight },
    Entry { scene: Scene::LateConfirmation, playable: always, script: late_confirmation },
    // Which servers may be wiped is judged by who votes now.
    Entry { scene: Scene::AloneBySentence, playable: |plan| !plan.wipes, script: alone_by_sentence },
    Entry { scene: Scene::SlowAnswers, playable: always, script: slow_answers },
    Entry { scene: Scene::LoadUnderLease, playable: loads, script: load_under_lease },
    Entry { scene: Scene::LoadInterrupted, playable: loads, script: load_interrupted },
];

fn always(_: &Plan) -> bool {
    true
}

fn loads(plan: &Plan) -> bool {
    plan.loads > 0
}

/// Who plays in a scene, and how long leases are there.
struct Cast {
    /// A memtable server, of some partition the leader.
    leader: String,
    /// The other memtable servers.
    peers: Vec<String>,
    memtables: Vec<String>,
    sstables: Vec<String>,
    pnode: String,
    other_pnodes: Vec<String>,
    /// All hosts but the leader.
    others: Vec<String>,
    lease_ms: u64,
    leader_ms: u64,
    /// After which a log device counts as hung.
    stall_ms: u64,
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
            others: nemesis.network.others(std::slice::from_ref(&leader)),
            leader,
            memtables,
            sstables: cluster.tier(Tier::Sstable),
            pnode,
            other_pnodes: pnodes,
            lease_ms: nemesis.plan.lease.lease_ms,
            leader_ms: nemesis.plan.lease.leader_lease_ms,
            stall_ms: nemesis.plan.tuning.disk_stall_ms,
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
        self.count(scene.name(), &format!("{} and {}", cast.leader, cast.pnode));
        let mut steps = Steps::new();
        if let Some(entry) = SCENES.iter().find(|entry| entry.scene == scene)
            && (entry.playable)(&self.plan)
        {
            (entry.script)(&cast, &mut self.rng, &mut steps);
        }
        // Begun in the next step of the simulation.
        self.due.extend(steps.into_iter().map(|(ms, due)| (now_ns + ms * MS, due)));
    }
}

fn asleep(cast: &Cast, rng: &mut fastrand::Rng, steps: &mut Steps) {
    let asleep = cast.leader_ms + rng.u64(200..700);
    steps.push((0, Due::Pause(cast.leader.clone(), asleep)));
    steps.push((rng.u64(3..20), Due::BeginNet(cast.two_worlds(), asleep + cast.leader_ms * 2)));
}

fn old_world(cast: &Cast, rng: &mut fastrand::Rng, steps: &mut Steps) {
    let ms = cast.leader_ms * 3 + rng.u64(0..cast.leader_ms * 4);
    steps.push((0, Due::BeginNet(cast.two_worlds(), ms)));
}

fn laggard(cast: &Cast, rng: &mut fastrand::Rng, steps: &mut Steps) {
    let (behind, lag_ms) = (rng.usize(0..cast.peers.len()), rng.u64(500..3_000));
    let laggard = std::slice::from_ref(&cast.peers[behind]);
    let others: Vec<String> = cast.memtables.iter().filter(|m| **m != laggard[0]).cloned().collect();
    steps.push((0, Due::BeginNet(cut(laggard, &others), lag_ms)));
    let latency = Duration::from_millis(rng.u64(5..80));
    let slow = NetFault::Slow { a: laggard.to_vec(), b: others, latency };
    steps.push((lag_ms, Due::BeginNet(slow, 3_000)));
    let gone_ms = cast.leader_ms * 4;
    let down = rng.bool();
    steps.push((
        lag_ms,
        match down {
            true => Due::Kill(vec![cast.leader.clone()], gone_ms),
            false => Due::BeginNet(cut(std::slice::from_ref(&cast.leader), &cast.others), gone_ms),
        },
    ));
}

fn there_and_back(cast: &Cast, rng: &mut fastrand::Rng, steps: &mut Steps) {
    let apart = cast.leader_ms * 2 + rng.u64(150..500);
    steps.push((0, Due::BeginNet(cast.without_leader(), apart)));
    let back = rng.u64(1_000..2_500);
    let pnode = std::slice::from_ref(&cast.pnode);
    steps.push((0, Due::BeginNet(cut(pnode, &cast.peers), apart + back)));
    let to = id(&cast.leader);
    for again in 0..5 {
        steps.push((apart + 30 + again * 150, Due::Want(Wanted::Transfer { to })));
    }
}

fn late_copies(cast: &Cast, rng: &mut fastrand::Rng, steps: &mut Steps) {
    let held = NetFault::Hold { a: vec![cast.pnode.clone()], b: cast.memtables.clone() };
    steps.push((0, Due::BeginNet(held, rng.u64(150..1_200))));
}

fn refused_proposals(cast: &Cast, rng: &mut fastrand::Rng, steps: &mut Steps) {
    steps.push((0, Due::Want(Wanted::LongLeases)));
    let begins = rng.u64(800..1_200);
    let lapses = cast.leader_ms + rng.u64(20..250);
    steps.push((begins, Due::BeginNet(cast.without_leader(), lapses)));
    steps.push((begins + rng.u64(0..cast.leader_ms), Due::BeginNet(cast.without_pnode(), 1_000)));
}

fn flush_under_lease(cast: &Cast, rng: &mut fastrand::Rng, steps: &mut Steps) {
    steps.push((0, Due::BeginNet(cast.without_pnode(), cast.lease_ms + rng.u64(0..300))));
    for _ in 0..2 {
        steps.push((rng.u64(0..cast.lease_ms / 2), Due::Want(Wanted::Flush)));
    }
}

fn handover_under_lease(cast: &Cast, rng: &mut fastrand::Rng, steps: &mut Steps) {
    let to = id(pick::<String>(rng, &cast.peers));
    steps.push((0, Due::Want(Wanted::Transfer { to })));
    let at = rng.u64(cast.leader_ms / 2..cast.leader_ms * 5 / 2);
    steps.push((at, Due::BeginNet(cast.without_pnode(), cast.lease_ms + rng.u64(0..300))));
    if rng.bool() {
        let to = id(&cast.leader);
        steps.push((at + rng.u64(0..cast.lease_ms), Due::Want(Wanted::Transfer { to })));
    }
}

fn hung_under_lease(cast: &Cast, rng: &mut fastrand::Rng, steps: &mut Steps) {
    let stall_ms = cast.stall_ms;
    steps.push((0, Due::HangSyncs(cast.leader.clone(), stall_ms + rng.u64(200..800))));
    let before = stall_ms.saturating_sub(rng.u64(20..cast.lease_ms / 3));
    steps.push((before, Due::BeginNet(cast.without_pnode(), cast.lease_ms + rng.u64(0..300))));
    // Reads that it takes as a leader, and looks at as nobody.
    let begins = stall_ms.saturating_sub(rng.u64(0..60));
    let lasts = rng.u64(cast.lease_ms / 4..cast.lease_ms / 2);
    steps.push((begins, Due::HoldAt(cast.leader.clone(), PausePoint::MemtablesRead, lasts)));
}

fn late_sstables(cast: &Cast, rng: &mut fastrand::Rng, steps: &mut Steps) {
    let held = NetFault::Hold { a: vec![cast.pnode.clone()], b: cast.sstables.clone() };
    let ms = rng.u64(200..900);
    steps.push((0, Due::BeginNet(held, ms)));
    for _ in 0..2 {
        steps.push((rng.u64(10..ms), Due::Want(Wanted::Flush)));
    }
}

fn slow_pnode(cast: &Cast, rng: &mut fastrand::Rng, steps: &mut Steps) {
    let latency = Duration::from_millis(rng.u64(cast.lease_ms / 2..cast.lease_ms * 4));
    let (a, b) = (vec![cast.pnode.clone()], cast.memtables.clone());
    steps.push((0, Due::BeginNet(NetFault::Slow { a, b, latency }, cast.lease_ms * 20)));
}

fn mode_in_flight(cast: &Cast, rng: &mut fastrand::Rng, steps: &mut Steps) {
    // Groups stop between their bits and their proposal, for longer than it takes to commit the change: what this
    // finds then is on its way. One change only: the next would put right what this one left.
    let (within, each) = (1_500, rng.u64(60..150));
    for memtable in &cast.memtables {
        steps.push((0, Due::SlowAt(memtable.clone(), PausePoint::BitsOut, within, each)));
    }
    steps.push((rng.u64(150..400), Due::Want(Wanted::OtherMode)));
}

fn late_confirmation(cast: &Cast, rng: &mut fastrand::Rng, steps: &mut Steps) {
    let behind = rng.usize(0..cast.peers.len());
    let (candidate, follower) = (&cast.peers[1 - behind], &cast.peers[behind]);
    let (leader, candidate) = (std::slice::from_ref(&cast.leader), std::slice::from_ref(candidate));
    let follower = std::slice::from_ref(follower);
    // Until the guards open, the candidate does not hear the leader; what the leader sends on its old connections
    // is not heard for a while longer.
    let deaf = cast.leader_ms.saturating_sub(rng.u64(0..80));
    let cut_forth = NetFault::Cut { from: leader.to_vec(), to: candidate.to_vec(), both: false };
    steps.push((0, Due::BeginNet(cut_forth, deaf)));
    // The follower hears the leader late, and nobody else.
    let held = cast.leader_ms + rng.u64(20..320);
    let hold = NetFault::Hold { a: leader.to_vec(), b: follower.to_vec() };
    steps.push((0, Due::BeginNet(hold, held)));
    steps.push((0, Due::BeginNet(cut(follower, candidate), held + cast.leader_ms * 2)));
    // One p-node stays with the leader, the other ones look for the next.
    let pnode = std::slice::from_ref(&cast.pnode);
    steps.push((0, Due::BeginNet(cut(pnode, &cast.peers), cast.leader_ms * 5)));
    steps.push((0, Due::BeginNet(cut(leader, &cast.other_pnodes), cast.leader_ms * 5)));
    // Its worker stands still: it learns late that it leads no more.
    steps.push((0, Due::HoldAt(cast.leader.clone(), PausePoint::BitsOut, cast.leader_ms * 4)));
}

fn alone_by_sentence(cast: &Cast, rng: &mut fastrand::Rng, steps: &mut Steps) {
    let ms = cast.leader_ms * 3 + rng.u64(0..cast.leader_ms * 4);
    steps.push((0, Due::BeginNet(cast.two_worlds(), ms)));
    let node = id(&cast.leader);
    for again in 0..3 {
        steps.push((rng.u64(1..8) + again * 40, Due::Want(Wanted::Alone { node })));
    }
}

fn slow_answers(cast: &Cast, rng: &mut fastrand::Rng, steps: &mut Steps) {
    // Shorter than a client waits, and often longer than it takes the leases of the old ring to end.
    let (within, each) = (1_500, rng.u64(15..cast.lease_ms * 4));
    for memtable in &cast.memtables {
        steps.push((0, Due::SlowAt(memtable.clone(), PausePoint::MemtablesRead, within, each)));
    }
    if rng.bool() {
        steps.push((rng.u64(50..400), Due::Want(Wanted::OtherMode)));
    }
}

fn load_under_lease(cast: &Cast, rng: &mut fastrand::Rng, steps: &mut Steps) {
    let unheard = cast.lease_ms + rng.u64(0..900);
    // Flushes come first: by the time that leases count those of before have run out. So mostly when leases begin to count.
    let cut_off = match rng.u64(0..3) {
        0 => (rng.u64(0..cast.lease_ms * 2), Due::BeginNet(cast.without_pnode(), unheard)),
        _ => (0, Due::BeginNetAtLoad(cast.without_pnode(), LOAD_WITHIN_MS, unheard)),
    };
    steps.push(cut_off);
    steps.push((0, Due::CommitLoads));
}

fn load_interrupted(cast: &Cast, rng: &mut fastrand::Rng, steps: &mut Steps) {
    steps.push((0, Due::CommitLoads));
    let leader = std::slice::from_ref(&cast.leader);
    let (at, gone_ms) = (rng.u64(1..500), cast.leader_ms * 4);
    let loss = match rng.u64(0..6) {
        0 => Due::Kill(leader.to_vec(), gone_ms),
        1 => Due::Kill(cast.memtables.clone(), gone_ms),
        2 => Due::BeginNet(cut(leader, &cast.others), gone_ms),
        3 => Due::Pause(cast.leader.clone(), cast.leader_ms + rng.u64(50..600)),
        4 => Due::Want(Wanted::Transfer { to: id(pick::<String>(rng, &cast.peers)) }),
        _ => Due::BeginNet(cast.without_leader(), gone_ms),
    };
    steps.push((at, loss));
    if rng.u64(0..3) == 0 {
        steps.push((rng.u64(1..500), Due::Kill(vec![pick(rng, &cast.sstables).clone()], 1_500)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scene_has_a_script() {
        for scene in Scene::ALL {
            assert_eq!(SCENES.iter().filter(|entry| entry.scene == scene).count(), 1, "{}", scene.name());
        }
    }
}
