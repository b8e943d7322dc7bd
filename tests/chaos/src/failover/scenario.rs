//! One run of one fault: wait until all is well, break, hold, heal; the silences in between.

use std::collections::BTreeMap;
use std::time::Duration;

use sextant_common::error::{Error, Result};
use sextant_common::ids::{NodeId, PartitionId};
use sextant_dev_cluster::Role;

use super::probe::{Kind, Probes, Stream};
use super::silence;
use crate::fault::{self, Fault};
use crate::host::capability::Capability;
use crate::injection;
use crate::server::{Id, PNODES};
use crate::testbed::{PARTITIONS, Testbed};

/// All streams have this many successes before a fault: nothing of the run before is left.
const STEADY: usize = 40;
/// How long a fault is held at least; then until service is back.
const HOLD: Duration = Duration::from_millis(2_500);
/// ... and this many successes later.
const BACK: usize = 10;
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const LEADERS_WITHIN: Duration = Duration::from_secs(60);

/// A fault whose silences are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scenario {
    /// No fault: what the probes and the machine's own noise make of it.
    Nothing,
    LeaderKilled,
    LeaderPaused,
    LeaderCutOff,
    LeaderDiskHung,
    Transfer,
    FollowerKilled,
    SstableKilled,
    PNodeKilled,
}

impl Scenario {
    pub const ALL: [Scenario; 9] = [
        Scenario::Nothing,
        Scenario::LeaderKilled,
        Scenario::LeaderPaused,
        Scenario::LeaderCutOff,
        Scenario::LeaderDiskHung,
        Scenario::Transfer,
        Scenario::FollowerKilled,
        Scenario::SstableKilled,
        Scenario::PNodeKilled,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Scenario::Nothing => "nothing",
            Scenario::LeaderKilled => "leader-killed",
            Scenario::LeaderPaused => "leader-paused",
            Scenario::LeaderCutOff => "leader-cut-off",
            Scenario::LeaderDiskHung => "leader-disk-hung",
            Scenario::Transfer => "transfer",
            Scenario::FollowerKilled => "follower-killed",
            Scenario::SstableKilled => "sstable-killed",
            Scenario::PNodeKilled => "pnode-killed",
        }
    }

    pub fn needs(self) -> &'static [Capability] {
        match self {
            Scenario::LeaderCutOff => &[Capability::Netns, Capability::Nft],
            Scenario::LeaderDiskHung => &[Capability::Shim],
            _ => &[],
        }
    }
}

/// By p-node (from 0) and kind: the longest silence in nanoseconds, over the partitions that the fault is about.
pub type Silences = BTreeMap<(usize, Kind), u64>;

/// What is broken, and which partitions are looked at.
struct Broken {
    faults: Vec<Fault>,
    partitions: Vec<u32>,
    transfer_to: Option<(PartitionId, NodeId)>,
}

pub async fn once(bed: &mut Testbed, probes: &Probes, scenario: Scenario) -> Result<Silences> {
    let everything: Vec<Stream> = probes.streams().collect();
    probes.forget();
    probes.alive(&everything, 0, STEADY).await?;
    let broken = choose(bed, scenario).await?;
    let of_pnode = |pnode: usize| scenario != Scenario::PNodeKilled || pnode > 0;
    let looked_at: Vec<Stream> = everything
        .iter()
        .copied()
        .filter(|s| of_pnode(s.pnode) && broken.partitions.contains(&s.partition))
        .collect();

    let fault_ns = probes.now();
    injection::apply(bed, &broken.faults).await?;
    if let Some((partition, to)) = broken.transfer_to {
        let led = probes.clients[0].transfer(partition, to).await?;
        if led != to {
            println!("  the transfer went to server {led} and not to {to}");
        }
    }
    if scenario == Scenario::LeaderDiskHung {
        until_moved(bed, &broken).await;
    }
    tokio::time::sleep(HOLD).await;
    probes.alive(&looked_at, probes.now(), BACK).await?;
    let until_ns = probes.now();
    injection::heal(bed, &broken.faults).await?;

    let mut silences = Silences::new();
    for stream in looked_at {
        let silence = silence::longest(&probes.done(stream), fault_ns, until_ns);
        let worst = silences.entry((stream.pnode, stream.kind)).or_insert(0);
        *worst = silence.max(*worst);
    }
    Ok(silences)
}

async fn choose(bed: &Testbed, scenario: Scenario) -> Result<Broken> {
    let leaders = leaders(bed).await?;
    let leader = leaders.get(&0).copied().ok_or_else(|| Error::unavailable("partition 0 has no leader"))?;
    let led_by =
        |id: Id| leaders.iter().filter(|(_, l)| **l == id).map(|(p, _)| *p as u32).collect::<Vec<_>>();
    let everywhere: Vec<u32> = (0..PARTITIONS).collect();
    let of_leader =
        |fault: Fault| Broken { faults: vec![fault], partitions: led_by(leader), transfer_to: None };
    let kill = |server: Id| Fault::Kill { kind: fault::Kind::Kill, servers: vec![server] };
    Ok(match scenario {
        Scenario::Nothing => Broken { faults: vec![], partitions: everywhere, transfer_to: None },
        Scenario::LeaderKilled => of_leader(kill(leader)),
        Scenario::LeaderPaused => of_leader(Fault::Pause { server: leader }),
        Scenario::LeaderCutOff => of_leader(Fault::Isolate { server: leader }),
        Scenario::LeaderDiskHung => of_leader(Fault::DiskHung { server: leader }),
        Scenario::Transfer => {
            let next = Id::new(Role::Memtable, (leader.index + 1) % Id::tier(Role::Memtable).len());
            let to = (PartitionId(0), NodeId(next.index as u64 + 1));
            Broken { faults: vec![], partitions: vec![0], transfer_to: Some(to) }
        }
        Scenario::FollowerKilled => {
            // One that leads as little as possible: its own partitions are not looked at.
            let follower = Id::tier(Role::Memtable)
                .into_iter()
                .filter(|id| *id != leader)
                .min_by_key(|id| led_by(*id).len())
                .ok_or_else(|| Error::invalid("no follower"))?;
            let own = led_by(follower);
            let partitions = everywhere.into_iter().filter(|p| !own.contains(p)).collect();
            Broken { faults: vec![kill(follower)], partitions, transfer_to: None }
        }
        Scenario::SstableKilled => {
            let server = Id::new(Role::Sstable, 0);
            Broken { faults: vec![kill(server)], partitions: everywhere, transfer_to: None }
        }
        Scenario::PNodeKilled => {
            let server = Id::new(Role::PNode, 0);
            const { assert!(PNODES > 1) };
            Broken { faults: vec![kill(server)], partitions: everywhere, transfer_to: None }
        }
    })
}

/// A hung disk is noticed after a while only: waits until the partitions are led by others.
async fn until_moved(bed: &Testbed, broken: &Broken) {
    let hung: Vec<Id> = broken.faults.iter().flat_map(Fault::servers).collect();
    let moved = async {
        loop {
            let leaders = bed.leaders().await;
            let elsewhere = |p: &u32| leaders.get(&u64::from(*p)).is_some_and(|l| !hung.contains(l));
            if broken.partitions.iter().all(elsewhere) {
                return;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    if tokio::time::timeout(LEADERS_WITHIN, moved).await.is_err() {
        println!("  the leader whose disk hangs did not hand over within {LEADERS_WITHIN:?}");
    }
}

/// Waits until every partition has one.
async fn leaders(bed: &Testbed) -> Result<BTreeMap<u64, Id>> {
    let all = async {
        loop {
            let leaders = bed.leaders().await;
            if leaders.len() == PARTITIONS as usize {
                return leaders;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    let found = tokio::time::timeout(LEADERS_WITHIN, all).await;
    found.map_err(|_| Error::unavailable("not every partition has a leader"))
}
