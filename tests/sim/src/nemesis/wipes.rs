//! Memtable servers that lose their memory: directories that are emptied, or put back as they were earlier. And a follower that
//! needs a snapshot when its disk is full. Only with [`crate::plan::Plan::wipes`].
//!
//! Never a majority of the voters at once: a server is wiped only while every other one says, just now, that it is a voter of
//! every partition; and one that was wiped counts as lost until it says so again.
//!
//! All directories of a server set back together can be noticed only by the leaders in office (docs/operations.md says so). So an
//! older copy is put back in a *calm*: no fault begins before the leaders have had the time to notice it.

use std::path::Path;

use sextant_environment::vfs::{OpenMode, Vfs, read_file};
use sextant_simulated::FaultyVfs;

use super::due::{Due, MS};
use super::means::Nemesis;
use super::memory::{Calm, Contents, FullLaggard};
use super::network::NetFault;
use super::table::{Entry, Weight, draw};
use crate::cluster::{Cluster, Tier};
use crate::host::Pauses;
use crate::plan::pick;
use crate::world::Wanted;

const DATA_DIR: &str = "/disk";
const LOG_DIR: &str = "/disk/log";
/// What a server said longer ago than this says nothing about now.
const FRESH_NS: u64 = 1_000 * MS;
/// A copy that was made a shorter time ago is hardly older.
const OLDER_NS: u64 = 300 * MS;
/// So long nothing was wrong before an older copy is put back, and the same servers led.
const CALM_BEFORE_NS: u64 = 1_500 * MS;
/// So long nothing is wrong after a server has started with an older copy: many heartbeats, and retries of a connection.
const CALM_AFTER_NS: u64 = 3_000 * MS;
/// A calm is given up, if what is asked for does not come about.
const CALM_NS: u64 = 8_000 * MS;

/// No snapshot has room in so many bytes. (One that replaces another is written beside it first.)
const ROOM_BYTES: u64 = 1 << 10;
/// So long a follower whose disk is full is waited for: its leader has to reach it again, and to notice what it lacks.
const REFUSES_MS: u64 = 4_000;

/// What is done to a server, or around it.
type Wipe = fn(&mut Nemesis, &mut turmoil::Sim<'static>, &Cluster, &str, u64);

const WIPES: [Entry<Wipe>; 4] = [
    Entry { name: "calm", weight: Weight::of(1), act: |n, _, cluster, _, now_ns| n.calm(cluster, now_ns) },
    Entry {
        name: "full_laggard",
        weight: Weight::of(2),
        act: |n, _, cluster, name, now_ns| n.fill_a_laggard(cluster, name, now_ns),
    },
    Entry {
        name: "leader_lost_after_wipe",
        weight: Weight::of(3),
        act: |n, _, cluster, name, now_ns| n.lose_a_majority_of_memories(cluster, name, now_ns),
    },
    Entry {
        name: "wipe",
        weight: Weight::of(3),
        act: |n, sim, cluster, name, now_ns| {
            let down_ms = n.rng.u64(1..2_000);
            n.lose_memory(sim, cluster, name, down_ms, now_ns);
        },
    },
];

/// What a server finds when it starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    /// Its log is empty: snapshots and the rest are there. It must refuse to start.
    DataOnly,
    /// Its data directory is empty.
    LogOnly,
}

impl Nemesis {
    /// One of these faults, if the servers allow it now.
    pub(super) fn wipe(&mut self, sim: &mut turmoil::Sim<'static>, cluster: &Cluster, now_ns: u64) {
        let memtables = cluster.tier(Tier::Memtable);
        let name = match self.world.a_leader(self.rng.u64(..)) {
            Some(leader) if self.rng.u64(0..3) == 0 => leader,
            _ => pick(&mut self.rng, &memtables).clone(),
        };
        for name in &memtables {
            if !self.wipes.copies.contains_key(name) || self.rng.u64(0..3) == 0 {
                self.copy(cluster, name, now_ns);
            }
        }
        let wipe = draw(&mut self.rng, &WIPES, self.plan.profile);
        (wipe.act)(self, sim, cluster, &name, now_ns);
    }

    /// No fault begins until an older copy has been put back and noticed.
    fn calm(&mut self, cluster: &Cluster, now_ns: u64) {
        self.wipes.calm = Some(Calm { since_ns: now_ns, leaders: (now_ns, Vec::new()), put_back: None });
        self.world.note("calm");
        for (_, host) in cluster.hosts.values() {
            host.set_pauses(Pauses::default());
        }
    }

    /// Who has an entry, beside the leader, forgets it; then the leader is gone, and who never had it asks for votes.
    fn lose_a_majority_of_memories(&mut self, cluster: &Cluster, leader: &str, now_ns: u64) {
        let mut peers: Vec<String> =
            cluster.tier(Tier::Memtable).into_iter().filter(|m| m != leader).collect();
        let laggard = peers.remove(self.rng.usize(0..peers.len()));
        let others = vec![leader.to_owned(), peers[0].clone()];
        self.count("leader_lost_after_wipe", leader);
        let lag_ms = self.rng.u64(200..1_500);
        let cut = NetFault::Cut { from: vec![laggard], to: others, both: true };
        let gone_ms = self.plan.lease.leader_lease_ms * 6;
        let steps = [
            (0, Due::BeginNet(cut, lag_ms + 20)),
            (lag_ms, Due::Wipe(peers.remove(0), 2)),
            (lag_ms, Due::Kill(vec![leader.to_owned()], gone_ms)),
        ];
        self.due.extend(steps.into_iter().map(|(ms, due)| (now_ns + ms * MS, due)));
    }

    /// Whether nobody is without its memory, and all others said just now that they vote.
    fn others_stand(&self, cluster: &Cluster, name: &str, now_ns: u64) -> bool {
        let standing = |other: &String| {
            !self.down.contains(other) && self.world.stands(other).is_some_and(|at| at + FRESH_NS >= now_ns)
        };
        let memtables = cluster.tier(Tier::Memtable);
        self.wipes.lost.is_empty() && memtables.iter().filter(|m| *m != name).all(standing)
    }

    /// A server is wiped, if the others stand.
    pub(super) fn lose_memory(
        &mut self,
        sim: &mut turmoil::Sim<'static>,
        cluster: &Cluster,
        name: &str,
        down_ms: u64,
        now_ns: u64,
    ) {
        let name = name.to_owned();
        if !self.others_stand(cluster, &name, now_ns) {
            return;
        }
        let left = *pick(
            &mut self.rng,
            &[Left::Nothing, Left::Nothing, Left::Nothing, Left::Nothing, Left::DataOnly, Left::LogOnly],
        );
        let what = match left {
            Left::DataOnly => "wipe_of_log",
            Left::LogOnly => "wipe_of_data",
            Left::Nothing => "wipe",
        };
        self.count(what, &name);
        self.wipes.lost.insert(name.clone(), now_ns);
        self.kill(sim, cluster, std::slice::from_ref(&name), true, now_ns, down_ms);
        let host = cluster.host(&name).clone();
        self.mend_disk(&host);
        // Its process is gone, and nothing fails: whatever does not succeed here is the simulation's own mistake.
        let done = match left {
            Left::DataOnly => empty(&host.disk, &[LOG_DIR]),
            Left::LogOnly => empty(&host.disk, &[DATA_DIR]),
            Left::Nothing => empty(&host.disk, &[LOG_DIR, DATA_DIR]),
        };
        if let Err(e) = done {
            self.world.violation(format!("the simulation cannot wipe {name}: {e}"));
        }
        if matches!(left, Left::DataOnly | Left::LogOnly) {
            self.wipes.partly.insert(name);
        }
    }

    /// Goes on with a calm, if there is one. Faults that are under way end by themselves.
    pub(super) fn keep_calm(&mut self, sim: &mut turmoil::Sim<'static>, cluster: &Cluster, now_ns: u64) {
        let Some(calm) = &mut self.wipes.calm else { return };
        let over = match &calm.put_back {
            Some((name, since)) => {
                let stands = self.world.stands(name).is_some_and(|at| at > *since);
                now_ns >= since + CALM_NS || (stands && now_ns >= since + CALM_AFTER_NS)
            }
            None => now_ns >= calm.since_ns + CALM_NS,
        };
        if over {
            self.wipes.calm = None;
            self.wipes.older.clear();
            // Nothing is slow any more while all is healed.
            let pauses = if self.healing { Pauses::default() } else { self.plan.pauses };
            for (_, host) in cluster.hosts.values() {
                host.set_pauses(pauses);
            }
            return;
        }
        let leaders = self.world.leaders_in_office(now_ns.saturating_sub(FRESH_NS / 2));
        if calm.leaders.1 != leaders || !self.due.is_empty() {
            calm.leaders = (now_ns, leaders);
        }
        let (since_ns, leaders) = &calm.leaders;
        if calm.put_back.is_some() || now_ns < since_ns + CALM_BEFORE_NS {
            return;
        }
        let memtables = cluster.tier(Tier::Memtable);
        let stands = |name: &String| self.world.stands(name).is_some_and(|at| at + FRESH_NS >= now_ns);
        let older =
            |name: &&String| self.wipes.copies.get(*name).is_some_and(|(at, _)| at + OLDER_NS <= now_ns);
        // A leader's own last entries are acknowledged to nobody.
        let follows = |name: &&String| leaders.iter().all(|leader| **name != format!("m{leader}"));
        if leaders.len() < self.plan.partitions as usize
            || !self.wipes.lost.is_empty()
            || !memtables.iter().all(stands)
        {
            return;
        }
        let followers: Vec<String> = memtables.iter().filter(older).filter(follows).cloned().collect();
        if followers.is_empty() {
            return;
        }
        let name = pick(&mut self.rng, &followers).clone();
        if let Some((_, copy)) = self.wipes.copies.remove(&name) {
            self.set_back(sim, cluster, &name, &copy, now_ns);
        }
    }

    /// A server starts with its directories as they were earlier.
    fn set_back(
        &mut self,
        sim: &mut turmoil::Sim<'static>,
        cluster: &Cluster,
        name: &str,
        copy: &Contents,
        now_ns: u64,
    ) {
        self.count("wipe_to_older_copy", name);
        if let Some(calm) = &mut self.wipes.calm {
            calm.put_back = Some((name.to_owned(), now_ns));
        }
        self.wipes.lost.insert(name.to_owned(), now_ns);
        self.wipes.older.insert(name.to_owned());
        let down_ms = self.rng.u64(1..200);
        self.kill(sim, cluster, &[name.to_owned()], true, now_ns, down_ms);
        let host = cluster.host(name).clone();
        self.mend_disk(&host);
        let done = empty(&host.disk, &[LOG_DIR, DATA_DIR]).and_then(|()| put_back(&host.disk, copy));
        if let Err(e) = done {
            self.world.violation(format!("the simulation cannot set {name} back: {e}"));
        }
    }

    /// A server ended by itself. Whether that is because it found that its directories are an older copy; it starts as a new one.
    pub(super) fn notices_an_older_copy(&mut self, name: &str, end: &str, now_ns: u64) -> bool {
        if !end.contains("an older copy") || !self.wipes.older.remove(name) {
            return false;
        }
        self.count("older_copy_noticed", name);
        // What it said since its start was said by what it is no more.
        self.wipes.lost.insert(name.to_owned(), now_ns);
        if let Some(calm) = &mut self.wipes.calm {
            calm.put_back = Some((name.to_owned(), now_ns));
        }
        true
    }

    /// A server ended by itself. Whether that is because its directories do not belong together; then an operator empties
    /// the rest.
    pub(super) fn refuses_what_is_left(&mut self, cluster: &Cluster, name: &str, end: &str) -> bool {
        if !end.contains("does not start") || !self.wipes.partly.remove(name) {
            return false;
        }
        self.count("partial_wipe_refused", name);
        let host = cluster.host(name).clone();
        self.mend_disk(&host);
        if let Err(e) = empty(&host.disk, &[LOG_DIR, DATA_DIR]) {
            self.world.violation(format!("the simulation cannot empty {name}: {e}"));
        }
        true
    }

    /// Servers that were wiped and are voters of everything again.
    pub(super) fn note_survivors(&mut self) {
        let world = &self.world;
        let back: Vec<String> = self
            .wipes
            .lost
            .iter()
            .filter(|(name, _)| !self.wipes.older.contains(*name))
            .filter(|(name, since)| world.stands(name).is_some_and(|at| at > **since))
            .map(|(name, _)| name.clone())
            .collect();
        for name in back {
            self.wipes.lost.remove(&name);
            self.wipes.partly.remove(&name);
            self.count("wipe_survived", &name);
        }
    }

    /// A copy of a server's directories while it runs, as a snapshot of the volume makes it.
    fn copy(&mut self, cluster: &Cluster, name: &str, now_ns: u64) {
        // (What a wipe has left would be refused whenever it is put back.)
        if self.down.contains(name) || self.wipes.partly.contains(name) {
            return;
        }
        let disk = &cluster.host(name).disk;
        if let Ok(copy) = files(disk, &[DATA_DIR, LOG_DIR]) {
            self.wipes.copies.insert(name.to_owned(), (now_ns, copy));
        }
    }

    /// A follower falls behind what is purged, and then has no room for what it is sent. Nothing else goes wrong until it has said
    /// so: without the others nothing is purged, and without its memory it is sent nothing for a long time.
    fn fill_a_laggard(&mut self, cluster: &Cluster, name: &str, now_ns: u64) {
        if !self.others_stand(cluster, name, now_ns) {
            return;
        }
        self.count("full_laggard", name);
        let others: Vec<String> = cluster.tier(Tier::Memtable).into_iter().filter(|m| m != name).collect();
        let lag_ms = self.rng.u64(1_000..3_000);
        let cut = NetFault::Cut { from: vec![name.to_owned()], to: others, both: true };
        let mut steps = vec![(0, Due::BeginNet(cut, lag_ms))];
        steps.extend((1..4).map(|n| (lag_ms * n / 4, Due::Want(Wanted::Flush))));
        steps.push((lag_ms - 10, Due::FillDisk(name.to_owned(), self.rng.u64(0..ROOM_BYTES))));
        let until_ms = lag_ms + REFUSES_MS;
        steps.push((until_ms, Due::DiskWell(name.to_owned())));
        self.due.extend(steps.into_iter().map(|(ms, due)| (now_ns + ms * MS, due)));
        self.wipes.full = Some(FullLaggard {
            name: name.to_owned(),
            until_ns: now_ns + until_ms * MS,
            refused_before: cluster.counters.snapshots_refused(),
            well_ms: self.rng.u64(500..3_000),
        });
    }

    /// Goes on with a follower whose disk is full, if there is one. Once it has refused a snapshot, it has room after a while.
    pub(super) fn watch_a_laggard(&mut self, cluster: &Cluster, now_ns: u64) {
        let refused = cluster.counters.snapshots_refused();
        let over = |full: &mut FullLaggard| refused > full.refused_before || now_ns >= full.until_ns;
        let Some(full) = self.wipes.full.take_if(over) else { return };
        let well_ns = now_ns + full.well_ms * MS;
        for (at, due) in &mut self.due {
            if matches!(due, Due::DiskWell(name) if *name == full.name) {
                *at = well_ns.min(*at);
            }
        }
    }
}

fn files(disk: &FaultyVfs, dirs: &[&str]) -> std::io::Result<Contents> {
    let mut copy = Contents::new();
    for dir in dirs {
        for path in disk.list(dir.as_ref())? {
            let bytes = read_file(disk, &path)?;
            copy.push((path, bytes));
        }
    }
    Ok(copy)
}

/// Durably.
fn empty(disk: &FaultyVfs, dirs: &[&str]) -> std::io::Result<()> {
    for dir in dirs.iter().map(Path::new).filter(|dir| disk.exists(dir)) {
        for path in disk.list(dir)? {
            disk.remove_file(&path)?;
        }
        disk.sync_dir(dir)?;
    }
    Ok(())
}

fn put_back(disk: &FaultyVfs, copy: &Contents) -> std::io::Result<()> {
    for (path, bytes) in copy {
        let file = disk.open(path, OpenMode::CreateNew)?;
        file.write_all_at(bytes, 0)?;
        file.sync_data()?;
    }
    [LOG_DIR, DATA_DIR].iter().try_for_each(|dir| disk.sync_dir(dir.as_ref()))
}
