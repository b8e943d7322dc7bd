//! What every fault is made of: a kill and a start, a link, a pause, a disk that is well again.
//!
//! Owns the state of machines and links, and the random numbers. Does not own what is done when.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sextant_simulated::CrashMode;

use super::due::{Due, MS};
use super::memory::Wipes;
use super::network::{NetFault, Network};
use crate::cluster::{Cluster, Tier};
use crate::host::Host;
use crate::plan::{Plan, SSTABLE_SERVERS, pick};
use crate::world::World;

/// A fault of a disk may show this much later: in a start, or when a write that hung is given up.
pub(super) const EXCUSED_AFTER_NS: u64 = 5_000 * MS;

pub struct Nemesis {
    pub(super) world: Arc<World>,
    pub(super) rng: fastrand::Rng,
    pub(super) plan: Plan,
    pub(super) network: Network,
    pub(super) due: Vec<(u64, Due)>,
    pub(super) next_fault_ns: u64,
    /// Hosts whose software is not running.
    pub(super) down: BTreeSet<String>,
    pub(super) healing: bool,
    /// The load's end was drawn: what happens then, and whether it has begun.
    pub(super) finale: Option<bool>,
    /// The one sstable server whose disk rots: two rotten replicas of three would be a loss that nobody promised to survive.
    pub(super) rots: String,
    pub(super) wipes: Wipes,
    /// Until when (true time) it may be a fault of its disk that a server ends.
    pub(super) excused: BTreeMap<String, u64>,
    pub injected: BTreeMap<&'static str, u64>,
    /// Why servers ended.
    pub ends: Vec<String>,
}

impl Nemesis {
    pub fn new(world: &Arc<World>, plan: &Plan, hosts: Vec<String>, mut rng: fastrand::Rng) -> Self {
        let rots = format!("s{}", rng.usize(1..=SSTABLE_SERVERS));
        Self {
            world: world.clone(),
            network: Network::new(hosts, Duration::from_micros(plan.latency_us.1)),
            plan: plan.clone(),
            rng,
            due: Vec::new(),
            next_fault_ns: 0,
            down: BTreeSet::new(),
            healing: false,
            finale: None,
            rots,
            wipes: Wipes::default(),
            excused: BTreeMap::new(),
            injected: BTreeMap::new(),
            ends: Vec::new(),
        }
    }

    pub(super) fn count(&mut self, what: &'static str, detail: &str) {
        *self.injected.entry(what).or_default() += 1;
        self.world.note(&format!("fault {what}: {detail}"));
    }

    pub(super) fn mend_disk(&self, host: &Host) {
        host.disk.clear_faults();
        host.disk.set_capacity(None);
        let speed = self.plan.disk;
        host.set_disk_speed(|s| *s = speed);
    }

    pub(super) fn start(&mut self, sim: &mut turmoil::Sim<'static>, cluster: &Cluster, name: &str) {
        self.world.note(&format!("{name} starts"));
        let host = cluster.host(name);
        host.pause(false);
        sim.bounce(name);
    }

    /// Kills a host's software. `power`: what was not fsynced is lost.
    pub(super) fn kill(
        &mut self,
        sim: &mut turmoil::Sim<'static>,
        cluster: &Cluster,
        names: &[String],
        power: bool,
        now_ns: u64,
        down_ms: u64,
    ) {
        // Silently: no peer hears that its connections are closed.
        let silent = power || self.rng.bool();
        let names: Vec<String> = names.iter().filter(|n| !self.down.contains(*n)).cloned().collect();
        let cut = silent.then(|| {
            let to = self.network.others(&names);
            self.network.begin(sim, NetFault::Cut { from: names.clone(), to, both: true })
        });
        for name in &names {
            let host = cluster.host(name);
            host.pause(false);
            sim.crash(name.as_str());
            self.world.invariants.lock().forget_views(host.index);
            let _ = (host.take_death(), host.take_ended());
            if power {
                let modes = [CrashMode::LoseAll, CrashMode::TearWrites, CrashMode::TearAll];
                // Where nobody is left who remembers, the disks have to.
                let mode =
                    if names.len() > 1 && self.rng.bool() { modes[0] } else { *pick(&mut self.rng, &modes) };
                host.disk.set_crash_mode(mode);
                host.disk.crash();
                host.clock.reboot(self.rng.u64(1_000_000_000..1 << 50));
            } else {
                host.disk.kill();
            }
            self.down.insert(name.clone());
            let again_ms = down_ms / 2 + self.rng.u64(0..=down_ms);
            self.due.push((now_ns + again_ms * MS, Due::Start(name.clone())));
        }
        if let Some(cut) = cut {
            self.due.push((now_ns + self.rng.u64(1..20) * MS, Due::EndNet(cut)));
        }
    }

    pub(super) fn one_of(&mut self, cluster: &Cluster, tier: Option<Tier>) -> String {
        let names: Vec<String> = match tier {
            Some(tier) => cluster.tier(tier),
            None => cluster.hosts.keys().cloned().collect(),
        };
        pick(&mut self.rng, &names).clone()
    }

    /// How long a fault of the network or a pause lasts: often about a lease, sometimes much more.
    pub(super) fn for_ms(&mut self) -> u64 {
        let lease = self.plan.lease.leader_lease_ms;
        match self.rng.u64(0..4) {
            0 => self.rng.u64(1..lease),
            1 | 2 => self.rng.u64(lease / 2..lease * 3),
            _ => self.rng.u64(lease * 2..lease * 12),
        }
    }

    pub(super) fn net(&mut self, sim: &mut turmoil::Sim<'static>, fault: NetFault, now_ns: u64, ms: u64) {
        let number = self.network.begin(sim, fault);
        self.due.push((now_ns + ms * MS, Due::EndNet(number)));
    }

    pub(super) fn stop_for(&mut self, cluster: &Cluster, name: String, now_ns: u64, ms: u64) {
        if !self.down.contains(&name) {
            cluster.host(&name).pause(true);
            self.due.push((now_ns + ms * MS, Due::Resume(name)));
        }
    }
}
