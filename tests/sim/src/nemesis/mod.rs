//! Faults: which, when, for how long, by the seed; and their end.
//!
//! Owns the schedule of a run's faults. Acts between two steps of the simulation. Every fault ends by itself; [`Nemesis::heal`]
//! ends all of them at once, after which there are none.
//!
//! What may be drawn stands in tables, each entry with its weight: single faults (`faults`, and within them the faults of disks),
//! scenes (`scenes`) and lost memory (`wipes`). They are made of `means`; what follows later is `due`.
//!
//! Invariant: a seed says the same for ever. The order of the draws, and of the entries of a table, is part of that.

mod due;
mod faults;
mod means;
mod memory;
mod network;
mod scenes;
mod table;
mod wipes;

use crate::cluster::{Cluster, Tier};
use crate::host::Pauses;
use crate::plan::{Intensity, Scene};

use self::due::{Due, MS};
pub use self::means::Nemesis;

/// A server that cannot start is tried again; after so many ends it is not for this run that it will be well.
const ENDS_MAX: usize = 60;

/// How long before the end of the load it begins.
const FINALE_MS: u64 = 1_000;

/// A run with a theme is not a calm one.
const THEME_GAP_MS: u64 = 1_500;

impl Nemesis {
    /// Between two steps. `faults`: new ones may begin.
    pub fn act(&mut self, sim: &mut turmoil::Sim<'static>, cluster: &Cluster, now_ns: u64, faults: bool) {
        self.bury(sim, cluster, now_ns);
        self.note_survivors();
        let (due, later) = std::mem::take(&mut self.due).into_iter().partition(|(at, _)| *at <= now_ns);
        self.due = later;
        for (_, due) in due as Vec<(u64, Due)> {
            self.follow(sim, cluster, due, now_ns);
        }
        self.world.set_faulty(!self.due.is_empty());
        self.world.set_sstables_down(self.down.iter().filter(|name| name.starts_with('s')).count() as u64);
        self.keep_calm(sim, cluster, now_ns);
        self.watch_a_laggard(cluster, now_ns);
        if !faults
            || self.wipes.is_calm()
            || self.wipes.full.is_some()
            || self.plan.intensity == Intensity::Quiet
            || self.finale == Some(true)
        {
            return;
        }
        if self.next_fault_ns == 0 {
            self.next_fault_ns = now_ns + self.gap_ns();
            for (_, host) in cluster.hosts.values() {
                host.set_pauses(self.plan.pauses);
            }
        }
        if now_ns >= self.next_fault_ns {
            self.next_fault_ns = now_ns + self.gap_ns();
            self.fault(sim, cluster, now_ns);
        }
    }

    /// The last seconds of some runs: no fault any more, but a change of the leases' mode while groups are on their way into the
    /// log. What stands still then shows when all is healed, because no new leader comes to its help.
    pub fn finale(&mut self, cluster: &Cluster, now_ns: u64, load_ends_ns: u64) {
        if self.finale == Some(true) || now_ns + FINALE_MS * MS < load_ends_ns {
            return;
        }
        if self.finale.is_none() {
            let themed = self.plan.theme == Some(Scene::ModeInFlight);
            let due = self.plan.modes && (themed || self.rng.u64(0..6) == 0);
            self.finale = Some(due && self.plan.intensity != Intensity::Quiet);
            if self.finale == Some(true) {
                self.scene(cluster, Scene::ModeInFlight, now_ns);
            }
        }
    }

    /// The last fault of a run, often: whole tiers lose power at once, and with it everything that was not made durable.
    /// What was acknowledged must be there afterwards.
    pub fn last_blow(&mut self, sim: &mut turmoil::Sim<'static>, cluster: &Cluster, now_ns: u64) {
        let spared = self.finale == Some(true) || self.wipes.is_calm();
        if self.plan.intensity == Intensity::Quiet || spared || self.rng.bool() {
            return;
        }
        let mut names = cluster.tier(Tier::Memtable);
        if self.rng.u64(0..3) == 0 {
            names.extend(cluster.tier(Tier::Sstable));
        }
        self.count("last_blow", &names.join(" "));
        self.kill(sim, cluster, &names, true, now_ns, 0);
    }

    /// Ends all faults, for good.
    pub fn heal(&mut self, sim: &mut turmoil::Sim<'static>, cluster: &Cluster) {
        self.healing = true;
        self.network.end_all(sim);
        self.due.clear();
        self.wipes.full = None;
        for (_, host) in cluster.hosts.values() {
            host.pause(false);
            host.set_pauses(Pauses::default());
            self.mend_disk(host);
        }
        for name in std::mem::take(&mut self.down) {
            self.start(sim, cluster, &name);
        }
    }

    fn gap_ns(&mut self) -> u64 {
        let mean_ms = match self.plan.intensity {
            Intensity::Quiet | Intensity::Light => 4_000,
            Intensity::Normal => 1_500,
            Intensity::Heavy => 600,
        };
        let mean_ms = match self.plan.theme {
            // Its leaders have to be in office for a while.
            Some(Scene::HungUnderLease) => THEME_GAP_MS * 4 / 3,
            Some(_) => mean_ms.min(THEME_GAP_MS),
            None => mean_ms,
        };
        self.rng.u64(mean_ms / 4..mean_ms * 2) * MS
    }

    /// Takes down what died or ended by itself, and brings it back after a while.
    fn bury(&mut self, sim: &mut turmoil::Sim<'static>, cluster: &Cluster, now_ns: u64) {
        for (name, (_, host)) in &cluster.hosts {
            let end = match (host.take_death(), host.take_ended()) {
                (Some(why), _) => format!("{name} died: {why}"),
                (None, Some(Err(why))) => why,
                (None, Some(Ok(()))) => String::new(),
                (None, None) => continue,
            };
            sim.crash(name.as_str());
            self.world.invariants.lock().forget_views(host.index);
            host.disk.kill();
            self.down.insert(name.clone());
            if !end.is_empty() {
                self.world.note(&end);
                let excused = self.excused.get(name).is_some_and(|until| *until >= now_ns);
                let expected = self.refuses_what_is_left(cluster, name, &end)
                    || self.notices_an_older_copy(name, &end, now_ns);
                if !expected && !excused {
                    self.world.violation(format!("a server ended although nothing ended it: {end}"));
                }
                self.ends.push(format!("{} ms: {end}", now_ns / MS));
                if self.ends.len() > ENDS_MAX {
                    self.world.violation(format!("servers end again and again: {end}"));
                }
            }
            let wait_ms = if self.healing { 500 } else { self.rng.u64(100..2_000) };
            self.due.push((now_ns + wait_ms * MS, Due::Start(name.clone())));
        }
    }

    fn follow(&mut self, sim: &mut turmoil::Sim<'static>, cluster: &Cluster, due: Due, now_ns: u64) {
        match due {
            Due::EndNet(fault) => self.network.end(sim, fault),
            Due::Start(name) => {
                if self.down.remove(&name) {
                    self.start(sim, cluster, &name);
                }
            }
            Due::Resume(name) => {
                self.world.note(&format!("{name} goes on"));
                cluster.host(&name).pause(false);
            }
            Due::DiskWell(name) => {
                self.mend_disk(cluster.host(&name));
                self.excused.insert(name, now_ns + means::EXCUSED_AFTER_NS);
            }
            Due::Wipe(name, down_ms) => self.lose_memory(sim, cluster, &name, down_ms, now_ns),
            Due::FillDisk(name, room) => {
                let disk = &cluster.host(&name).disk;
                disk.set_capacity(Some(disk.used_bytes() + room));
                self.excused.insert(name, u64::MAX);
            }
            Due::BeginNet(fault, ms) => self.net(sim, fault, now_ns, ms),
            Due::Pause(name, ms) => self.stop_for(cluster, name, now_ns, ms),
            Due::Kill(names, down_ms) => self.kill(sim, cluster, &names, true, now_ns, down_ms),
            Due::Want(what) => self.world.want(what),
            Due::CommitLoads => self.world.commit_loads(),
            Due::BeginNetAtLoad(fault, within_ms, ms) => {
                let (after, until_ns) = (self.world.loads_held(), now_ns + within_ms * MS);
                self.due.push((now_ns, Due::AwaitLoad { fault, ms, after, until_ns }));
            }
            Due::AwaitLoad { fault, ms, after, .. } if self.world.loads_held() > after => {
                self.net(sim, fault, now_ns, ms);
            }
            Due::AwaitLoad { until_ns, .. } if now_ns >= until_ns => {}
            Due::AwaitLoad { .. } => self.due.push((now_ns, due)),
            Due::HoldAt(name, point, ms) => cluster.host(&name).hold_at(point, ms),
            Due::SlowAt(name, point, within_ms, each_ms) => {
                cluster.host(&name).slow_at(point, within_ms, each_ms);
            }
            Due::HangSyncs(name, ms) => {
                cluster.host(&name).set_disk_speed(|s| s.syncs_hang_until_ns = now_ns + ms * MS);
            }
        }
    }
}
