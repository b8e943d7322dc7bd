//! Faults: which, when, for how long, by the seed; and their end.
//!
//! Owns the schedule of a run's faults and the state of machines and links. Acts between two steps of the simulation. Every
//! fault ends by itself; [`Nemesis::heal`] ends all of them at once, after which there are none.

mod network;
mod scenes;
mod wipes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sextant_environment::vfs::{IoKind, OpenMode, Vfs};
use sextant_rules::probe::PausePoint;
use sextant_simulated::{CrashMode, Fault};

use self::network::{NetFault, Network, some};
use self::wipes::Wipes;
use crate::cluster::{Cluster, Tier};
use crate::host::{Host, Pauses};
use crate::plan::{Intensity, Plan, Profile, Scene, pick};
use crate::world::{Wanted, World};

const MS: u64 = 1_000_000;
/// A server that cannot start is tried again; after so many ends it is not for this run that it will be well.
const ENDS_MAX: usize = 60;

/// A fault of a disk may show this much later: in a start, or when a write that hung is given up.
const EXCUSED_AFTER_NS: u64 = 5_000 * MS;

/// How long before the end of the load it begins.
const FINALE_MS: u64 = 1_000;

/// A run with a theme is not a calm one.
const THEME_GAP_MS: u64 = 1_500;

/// What ends a fault, or follows from it.
enum Due {
    EndNet(u64),
    Start(String),
    Resume(String),
    DiskWell(String),
    /// For so many milliseconds.
    BeginNet(NetFault, u64),
    /// For so many milliseconds.
    Pause(String, u64),
    /// They lose power, for about so many milliseconds.
    Kill(Vec<String>, u64),
    Want(Wanted),
    /// Its fsyncs hang for so many milliseconds.
    HangSyncs(String, u64),
    /// Its tasks stop at a point for so many milliseconds.
    HoldAt(String, PausePoint, u64),
    /// Its tasks stop at a point within so many milliseconds, each time for so many.
    SlowAt(String, PausePoint, u64, u64),
    /// It has room for so many bytes more.
    FillDisk(String, u64),
    /// It loses its memory, and starts again after about so many milliseconds.
    Wipe(String, u64),
}

pub struct Nemesis {
    world: Arc<World>,
    rng: fastrand::Rng,
    plan: Plan,
    network: Network,
    due: Vec<(u64, Due)>,
    next_fault_ns: u64,
    /// Hosts whose software is not running.
    down: BTreeSet<String>,
    healing: bool,
    /// The load's end was drawn: what happens then, and whether it has begun.
    finale: Option<bool>,
    /// The one sstable server whose disk rots: two rotten replicas of three would be a loss that nobody promised to survive.
    rots: String,
    wipes: Wipes,
    /// Until when (true time) it may be a fault of its disk that a server ends.
    excused: BTreeMap<String, u64>,
    pub injected: BTreeMap<&'static str, u64>,
    /// Why servers ended.
    pub ends: Vec<String>,
}

impl Nemesis {
    pub fn new(world: &Arc<World>, plan: &Plan, hosts: Vec<String>, mut rng: fastrand::Rng) -> Self {
        let rots = format!("s{}", rng.usize(1..=3));
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
        self.keep_calm(sim, cluster, now_ns);
        if !faults
            || self.wipes.is_calm()
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

    fn count(&mut self, what: &'static str, detail: &str) {
        *self.injected.entry(what).or_default() += 1;
        self.world.note(&format!("fault {what}: {detail}"));
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
                self.excused.insert(name, now_ns + EXCUSED_AFTER_NS);
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
            Due::HoldAt(name, point, ms) => cluster.host(&name).hold_at(point, ms),
            Due::SlowAt(name, point, within_ms, each_ms) => {
                cluster.host(&name).slow_at(point, within_ms, each_ms);
            }
            Due::HangSyncs(name, ms) => {
                cluster.host(&name).set_disk_speed(|s| s.syncs_hang_until_ns = now_ns + ms * MS);
            }
        }
    }

    fn mend_disk(&self, host: &Host) {
        host.disk.clear_faults();
        host.disk.set_capacity(None);
        let speed = self.plan.disk;
        host.set_disk_speed(|s| *s = speed);
    }

    fn start(&mut self, sim: &mut turmoil::Sim<'static>, cluster: &Cluster, name: &str) {
        self.world.note(&format!("{name} starts"));
        let host = cluster.host(name);
        host.pause(false);
        sim.bounce(name);
    }

    /// Kills a host's software. `power`: what was not fsynced is lost.
    fn kill(
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

    fn one_of(&mut self, cluster: &Cluster, tier: Option<Tier>) -> String {
        let names: Vec<String> = match tier {
            Some(tier) => cluster.tier(tier),
            None => cluster.hosts.keys().cloned().collect(),
        };
        pick(&mut self.rng, &names).clone()
    }

    /// How long a fault of the network or a pause lasts: often about a lease, sometimes much more.
    fn for_ms(&mut self) -> u64 {
        let lease = self.plan.lease.leader_lease_ms;
        match self.rng.u64(0..4) {
            0 => self.rng.u64(1..lease),
            1 | 2 => self.rng.u64(lease / 2..lease * 3),
            _ => self.rng.u64(lease * 2..lease * 12),
        }
    }

    fn net(&mut self, sim: &mut turmoil::Sim<'static>, fault: NetFault, now_ns: u64, ms: u64) {
        let number = self.network.begin(sim, fault);
        self.due.push((now_ns + ms * MS, Due::EndNet(number)));
    }

    fn stop_for(&mut self, cluster: &Cluster, name: String, now_ns: u64, ms: u64) {
        if !self.down.contains(&name) {
            cluster.host(&name).pause(true);
            self.due.push((now_ns + ms * MS, Due::Resume(name)));
        }
    }

    fn fault(&mut self, sim: &mut turmoil::Sim<'static>, cluster: &Cluster, now_ns: u64) {
        if self.plan.wipes && self.rng.u64(0..4) == 0 {
            return self.wipe(sim, cluster, now_ns);
        }
        // Where there is one partition only, a scene hits it every time, and there is room for more of them.
        let share = if self.plan.partitions == 1 { 9 } else { 6 };
        let themed = self.plan.theme.filter(|_| self.rng.u64(0..10) < share);
        let now_and_then =
            if self.rng.u64(0..8) == 0 { Some(*pick(&mut self.rng, &Scene::ALL)) } else { None };
        if let Some(scene) = themed.or(now_and_then) {
            return self.scene(cluster, scene, now_ns);
        }
        let ms = self.for_ms();
        let any = self.one_of(cluster, None);
        let memtable = match self.world.a_leader(self.rng.u64(..)) {
            // Whoever leads has most to lose.
            Some(leader) if self.rng.bool() => leader,
            _ => self.one_of(cluster, Some(Tier::Memtable)),
        };
        let sstable = self.one_of(cluster, Some(Tier::Sstable));
        let pnode = self.one_of(cluster, Some(Tier::PNode));
        let all: Vec<String> = cluster.hosts.keys().cloned().collect();
        let down_ms = self.rng.u64(1..2_500);
        match self.rng.u64(0..100) {
            0..=7 => {
                self.count("kill", &any);
                self.kill(sim, cluster, &[any], false, now_ns, down_ms);
            }
            8..=15 => {
                self.count("power_loss", &any);
                self.kill(sim, cluster, &[any], true, now_ns, down_ms);
            }
            16..=18 => {
                let tier = *pick(&mut self.rng, &[Tier::Memtable, Tier::Memtable, Tier::Sstable]);
                let mut names = cluster.tier(tier);
                self.rng.shuffle(&mut names);
                names.truncate(2);
                self.count("power_loss_of_majority", &names.join(" "));
                self.kill(sim, cluster, &names, true, now_ns, down_ms);
            }
            19..=23 => {
                let tiers = [Tier::Memtable, Tier::Memtable, Tier::Memtable, Tier::Sstable, Tier::PNode];
                let tier = *pick(&mut self.rng, &tiers);
                let names = cluster.tier(tier);
                self.count("power_loss_of_tier", &names.join(" "));
                self.kill(sim, cluster, &names, true, now_ns, down_ms);
            }
            24..=26 => {
                self.count("restart", &any);
                if !self.down.contains(&any) {
                    cluster.host(&any).stop.notify_one();
                }
            }
            27..=32 => {
                // Clients and p-nodes still reach it: what it takes in comes to nothing.
                self.count("apart_from_peers", &memtable);
                if self.rng.bool() {
                    self.world.want(Wanted::Freeze);
                }
                let to: Vec<String> =
                    cluster.tier(Tier::Memtable).into_iter().filter(|m| *m != memtable).collect();
                let both = self.rng.u64(0..4) > 0;
                self.net(sim, NetFault::Cut { from: vec![memtable], to, both }, now_ns, ms);
            }
            33..=38 => {
                let alone = if self.rng.u64(0..3) > 0 { memtable } else { any };
                self.count("cut_off", &alone);
                let to = self.network.others(std::slice::from_ref(&alone));
                self.net(sim, NetFault::Cut { from: vec![alone], to, both: true }, now_ns, ms);
            }
            39..=41 => {
                let from = vec![if self.rng.bool() { memtable } else { any }];
                let to = match self.rng.bool() {
                    true => self.network.others(&from),
                    false => some(&mut self.rng, &self.network.others(&from)),
                };
                let (from, to) = if self.rng.bool() { (from, to) } else { (to, from) };
                self.count("one_way", &format!("{} to {}", from.join(" "), to.join(" ")));
                self.net(sim, NetFault::Cut { from, to, both: false }, now_ns, ms);
            }
            42..=47 => {
                // A leader is not heard any more, and hears late answers to what it sent before.
                let leader = self.world.a_leader(self.rng.u64(..)).unwrap_or(memtable);
                self.count("late_answers", &leader);
                let mut peers = cluster.tier(Tier::Memtable);
                peers.retain(|name| *name != leader);
                let lease_ms = self.plan.lease.leader_lease_ms;
                let latency = Duration::from_millis(self.rng.u64(lease_ms / 2..lease_ms * 3));
                let leader = vec![leader];
                self.net(sim, NetFault::Slow { a: leader.clone(), b: peers.clone(), latency }, now_ns, ms);
                let cut = NetFault::Cut { from: leader, to: peers.clone(), both: false };
                self.net(sim, cut, now_ns, ms + lease_ms * 2);
                let cut = NetFault::Cut { from: vec![pnode], to: peers, both: true };
                self.net(sim, cut, now_ns, ms + lease_ms * 2);
            }
            48..=50 => {
                let from = some(&mut self.rng, &all);
                let to = self.network.others(&from);
                self.count("split", &from.join(" "));
                self.net(sim, NetFault::Cut { from, to, both: true }, now_ns, ms);
            }
            51..=53 => {
                let tiers = *pick(
                    &mut self.rng,
                    &[
                        (Tier::Memtable, Tier::Sstable),
                        (Tier::PNode, Tier::Sstable),
                        (Tier::PNode, Tier::Memtable),
                    ],
                );
                let (from, to) = (cluster.tier(tiers.0), cluster.tier(tiers.1));
                self.count("tier_from_tier", &format!("{} from {}", from.join(" "), to.join(" ")));
                self.net(sim, NetFault::Cut { from, to, both: true }, now_ns, ms);
            }
            54..=57 => {
                let from = vec![pnode];
                let to = cluster.tier(Tier::Memtable);
                let to = if self.rng.bool() { to } else { some(&mut self.rng, &to) };
                self.count("pnode_alone", &from[0]);
                let both = self.rng.bool();
                self.net(sim, NetFault::Cut { from, to, both }, now_ns, ms);
            }
            58..=63 => {
                let a = some(&mut self.rng, &all);
                let b = self.network.others(&a);
                let latency = Duration::from_millis(self.rng.u64(10..self.plan.lease.leader_lease_ms * 2));
                self.count("slow_links", &format!("{} by up to {latency:?}", a.join(" ")));
                self.net(sim, NetFault::Slow { a, b, latency }, now_ns, ms);
            }
            64..=69 => {
                let a = vec![if self.rng.bool() { memtable } else { any }];
                let b = self.network.others(&a);
                let b = if self.rng.bool() { b } else { some(&mut self.rng, &b) };
                self.count("hold", &format!("{} and {}", a.join(" "), b.join(" ")));
                self.net(sim, NetFault::Hold { a, b }, now_ns, ms);
            }
            70..=79 => {
                let who = match self.rng.u64(0..4) {
                    0 => any,
                    1 => pnode,
                    _ => memtable,
                };
                self.count("pause", &format!("{who} for {ms} ms"));
                self.stop_for(cluster, who, now_ns, ms);
            }
            80 if self.plan.profile == Profile::LyingClocks => {
                // Only its clocks: what a virtual machine that is moved may see.
                self.count("clock_frozen", &format!("{any} for {ms} ms"));
                cluster.host(&any).clock.freeze(true);
                self.due.push((now_ns + ms * MS, Due::Resume(any)));
            }
            80..=83 => {
                let by_ms = self.rng.i64(-2_000..2_000);
                self.count("wall_clock_set", &format!("{any} by {by_ms} ms"));
                cluster.host(&any).clock.jump_wall(by_ms * MS as i64);
            }
            _ => self.disk_fault(cluster, &memtable, &sstable, now_ns, ms),
        }
    }

    fn disk_fault(&mut self, cluster: &Cluster, memtable: &str, sstable: &str, now_ns: u64, ms: u64) {
        let name = if self.rng.bool() { memtable } else { sstable }.to_owned();
        let host = cluster.host(&name).clone();
        for name in [name.as_str(), sstable] {
            self.excused.insert(name.to_owned(), now_ns + ms * MS + EXCUSED_AFTER_NS);
        }
        match self.rng.u64(0..8) {
            0 => {
                self.count("slow_disk", &name);
                let factor = self.rng.u64(5..100);
                host.set_disk_speed(|s| {
                    s.sync_us *= factor;
                    s.write_us *= factor;
                });
            }
            1 => {
                self.count("hung_disk", &name);
                let until = now_ns + self.rng.u64(100..3_000) * MS;
                host.set_disk_speed(|s| s.hangs_until_ns = until);
            }
            2 => {
                self.count("failed_sync", &name);
                host.disk.fail_next(IoKind::Sync, 1, Fault::Io, |_| true);
            }
            3 => {
                self.count("failed_write", &name);
                let fault = *pick(&mut self.rng, &[Fault::Io, Fault::NoSpace]);
                host.disk.fail_next(IoKind::Write, 1, fault, |_| true);
            }
            4 => {
                // Reads of the log at the start are not meant: a server whose disk cannot be read does not start, which is right.
                self.count("failed_reads", sstable);
                let count = self.rng.u64(1..5);
                cluster.host(sstable).disk.fail_next(IoKind::Read, count, Fault::Io, |_| true);
                self.due.push((now_ns + ms * MS, Due::DiskWell(sstable.to_owned())));
            }
            5 => {
                self.count("disk_full", &name);
                let room = self.rng.u64(0..64 << 10);
                host.disk.set_capacity(Some(host.disk.used_bytes() + room));
            }
            _ => {
                self.rot(cluster);
                return;
            }
        }
        self.due.push((now_ns + ms * MS, Due::DiskWell(name)));
    }

    /// Bits of SSTables flip, for good.
    fn rot(&mut self, cluster: &Cluster) {
        let name = self.rots.clone();
        let disk = &cluster.host(&name).disk;
        let mut files = disk.list("/disk".as_ref()).unwrap_or_default();
        files.retain(|f| f.extension().is_some_and(|e| e == "sst"));
        if files.is_empty() {
            return;
        }
        self.rng.shuffle(&mut files);
        for file in files.into_iter().take(self.rng.usize(1..=8)) {
            let length = disk.open(&file, OpenMode::Existing).and_then(|f| f.len()).unwrap_or(0);
            // Anywhere: records, index, filter, trailer.
            let offset = self.rng.u64(0..length.max(1));
            if disk.flip_bit(&file, offset, self.rng.u8(0..8)).is_ok() {
                self.count("bit_rot", &format!("{name} {}", file.display()));
            }
        }
    }
}
