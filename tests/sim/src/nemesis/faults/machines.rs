//! Machines and processes: gone, restarted, stopped, or with clocks that jump.

use super::{Blow, Victims};
use crate::cluster::Tier;
use crate::nemesis::due::{Due, MS};
use crate::nemesis::means::Nemesis;
use crate::plan::pick;

pub(super) fn kill(n: &mut Nemesis, blow: &mut Blow<'_>, v: Victims) {
    n.count(blow.name, &v.any);
    n.kill(blow.sim, blow.cluster, &[v.any], false, blow.now_ns, v.down_ms);
}

pub(super) fn power_loss(n: &mut Nemesis, blow: &mut Blow<'_>, v: Victims) {
    n.count(blow.name, &v.any);
    n.kill(blow.sim, blow.cluster, &[v.any], true, blow.now_ns, v.down_ms);
}

pub(super) fn power_loss_of_majority(n: &mut Nemesis, blow: &mut Blow<'_>, v: Victims) {
    let tier = *pick(&mut n.rng, &[Tier::Memtable, Tier::Memtable, Tier::Sstable]);
    let mut names = blow.cluster.tier(tier);
    n.rng.shuffle(&mut names);
    names.truncate(2);
    n.count(blow.name, &names.join(" "));
    n.kill(blow.sim, blow.cluster, &names, true, blow.now_ns, v.down_ms);
}

pub(super) fn power_loss_of_tier(n: &mut Nemesis, blow: &mut Blow<'_>, v: Victims) {
    let tiers = [Tier::Memtable, Tier::Memtable, Tier::Memtable, Tier::Sstable, Tier::PNode];
    let tier = *pick(&mut n.rng, &tiers);
    let names = blow.cluster.tier(tier);
    n.count(blow.name, &names.join(" "));
    n.kill(blow.sim, blow.cluster, &names, true, blow.now_ns, v.down_ms);
}

/// In order: it may drain first.
pub(super) fn restart(n: &mut Nemesis, blow: &mut Blow<'_>, v: Victims) {
    n.count(blow.name, &v.any);
    if !n.down.contains(&v.any) {
        blow.cluster.host(&v.any).stop.notify_one();
    }
}

pub(super) fn pause(n: &mut Nemesis, blow: &mut Blow<'_>, v: Victims) {
    let who = match n.rng.u64(0..4) {
        0 => v.any,
        1 => v.pnode,
        _ => v.memtable,
    };
    n.count(blow.name, &format!("{who} for {} ms", v.ms));
    n.stop_for(blow.cluster, who, blow.now_ns, v.ms);
}

/// Only its clocks: what a virtual machine that is moved may see.
pub(super) fn clock_frozen(n: &mut Nemesis, blow: &mut Blow<'_>, v: Victims) {
    n.count(blow.name, &format!("{} for {} ms", v.any, v.ms));
    blow.cluster.host(&v.any).clock.freeze(true);
    n.due.push((blow.in_ms(v.ms), Due::Resume(v.any)));
}

pub(super) fn wall_clock_set(n: &mut Nemesis, blow: &mut Blow<'_>, v: Victims) {
    let by_ms = n.rng.i64(-2_000..2_000);
    n.count(blow.name, &format!("{} by {by_ms} ms", v.any));
    blow.cluster.host(&v.any).clock.jump_wall(by_ms * MS as i64);
}
