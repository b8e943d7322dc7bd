//! Single faults: a table of them, and who is hit.
//!
//! Owns which fault comes how often, and the choice between a single fault, a scene and lost memory. Whom it hits and for how
//! long is drawn before the fault itself, so every fault finds the same choice of victims.

mod disks;
mod links;
mod machines;

use super::due::MS;
use super::means::Nemesis;
use super::table::{Entry, Weight, draw};
use crate::cluster::{Cluster, Tier};
use crate::plan::{Scene, pick};

/// Of ten faults of a run with a theme, so many are its scene; where there is one partition only, a scene hits it every time,
/// and there is room for more of them.
const THEME_OF_TEN: u64 = 6;
const THEME_OF_TEN_ALONE: u64 = 9;
/// One fault of so many is a scene, whatever the theme.
const SCENE_ONE_OF: u64 = 8;
/// One fault of so many is lost memory, in runs that have such.
const WIPE_ONE_OF: u64 = 4;

/// Out of 100.
const FAULTS: [Entry<Fault>; 18] = [
    Entry { name: "kill", weight: Weight::of(8), act: machines::kill },
    Entry { name: "power_loss", weight: Weight::of(8), act: machines::power_loss },
    Entry { name: "power_loss_of_majority", weight: Weight::of(3), act: machines::power_loss_of_majority },
    Entry { name: "power_loss_of_tier", weight: Weight::of(5), act: machines::power_loss_of_tier },
    Entry { name: "restart", weight: Weight::of(3), act: machines::restart },
    Entry { name: "apart_from_peers", weight: Weight::of(6), act: links::apart_from_peers },
    Entry { name: "cut_off", weight: Weight::of(6), act: links::cut_off },
    Entry { name: "one_way", weight: Weight::of(3), act: links::one_way },
    Entry { name: "late_answers", weight: Weight::of(6), act: links::late_answers },
    Entry { name: "split", weight: Weight::of(3), act: links::split },
    Entry { name: "tier_from_tier", weight: Weight::of(3), act: links::tier_from_tier },
    Entry { name: "pnode_alone", weight: Weight::of(4), act: links::pnode_alone },
    Entry { name: "slow_links", weight: Weight::of(6), act: links::slow_links },
    Entry { name: "hold", weight: Weight::of(6), act: links::hold },
    Entry { name: "pause", weight: Weight::of(10), act: machines::pause },
    Entry { name: "clock_frozen", weight: Weight::by_clocks(0, 1), act: machines::clock_frozen },
    Entry { name: "wall_clock_set", weight: Weight::by_clocks(4, 3), act: machines::wall_clock_set },
    // Counted under what happens to it: a table of its own.
    Entry { name: "disk", weight: Weight::of(16), act: disks::one_of_them },
];

type Fault = fn(&mut Nemesis, &mut Blow<'_>, Victims);

/// Where and when a fault is done, and under which name.
struct Blow<'a> {
    sim: &'a mut turmoil::Sim<'static>,
    cluster: &'a Cluster,
    name: &'static str,
    now_ns: u64,
}

impl Blow<'_> {
    /// So many milliseconds from now.
    fn in_ms(&self, ms: u64) -> u64 {
        self.now_ns + ms * MS
    }
}

/// Who may be hit, and for how long.
struct Victims {
    any: String,
    /// Often one that leads.
    memtable: String,
    sstable: String,
    pnode: String,
    all: Vec<String>,
    /// Of a fault that ends by itself.
    ms: u64,
    /// Of a server that is started again.
    down_ms: u64,
}

impl Victims {
    fn new(nemesis: &mut Nemesis, cluster: &Cluster) -> Self {
        let ms = nemesis.for_ms();
        let any = nemesis.one_of(cluster, None);
        let memtable = match nemesis.world.a_leader(nemesis.rng.u64(..)) {
            // Whoever leads has most to lose.
            Some(leader) if nemesis.rng.bool() => leader,
            _ => nemesis.one_of(cluster, Some(Tier::Memtable)),
        };
        let sstable = nemesis.one_of(cluster, Some(Tier::Sstable));
        let pnode = nemesis.one_of(cluster, Some(Tier::PNode));
        let all = cluster.hosts.keys().cloned().collect();
        let down_ms = nemesis.rng.u64(1..2_500);
        Self { any, memtable, sstable, pnode, all, ms, down_ms }
    }
}

impl Nemesis {
    /// Something goes wrong.
    pub(super) fn fault(&mut self, sim: &mut turmoil::Sim<'static>, cluster: &Cluster, now_ns: u64) {
        if self.plan.wipes && self.rng.u64(0..WIPE_ONE_OF) == 0 {
            return self.wipe(sim, cluster, now_ns);
        }
        let share = if self.plan.partitions == 1 { THEME_OF_TEN_ALONE } else { THEME_OF_TEN };
        let themed = self.plan.theme.filter(|_| self.rng.u64(0..10) < share);
        let now_and_then =
            if self.rng.u64(0..SCENE_ONE_OF) == 0 { Some(*pick(&mut self.rng, &Scene::ALL)) } else { None };
        if let Some(scene) = themed.or(now_and_then) {
            return self.scene(cluster, scene, now_ns);
        }
        let victims = Victims::new(self, cluster);
        let fault = draw(&mut self.rng, &FAULTS, self.plan.profile);
        (fault.act)(self, &mut Blow { sim, cluster, name: fault.name, now_ns }, victims);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::plan::Profile;

    #[test]
    fn weights_are_parts_of_a_hundred_in_every_profile() {
        for (name, profile) in Profile::ALL {
            let sum: u64 = FAULTS.iter().map(|fault| fault.weight.in_profile(profile)).sum();
            assert_eq!(sum, 100, "{name}");
        }
    }

    #[test]
    fn no_two_faults_are_counted_as_one() {
        let names: BTreeSet<_> = FAULTS.iter().map(|fault| fault.name).collect();
        assert_eq!(names.len(), FAULTS.len());
    }
}
