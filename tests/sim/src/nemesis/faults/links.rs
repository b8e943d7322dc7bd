//! Links: cut, one way or both, held, or slow.

use std::time::Duration;

use super::{Blow, Victims};
use crate::cluster::Tier;
use crate::nemesis::means::Nemesis;
use crate::nemesis::network::{NetFault, some};
use crate::plan::pick;
use crate::world::Wanted;

/// Clients and p-nodes still reach it: what it takes in comes to nothing.
pub(super) fn apart_from_peers(n: &mut Nemesis, blow: &mut Blow<'_>, v: Victims) {
    n.count(blow.name, &v.memtable);
    if n.rng.bool() {
        n.world.want(Wanted::Freeze);
    }
    let mut to = blow.cluster.tier(Tier::Memtable);
    to.retain(|m| *m != v.memtable);
    let both = n.rng.u64(0..4) > 0;
    n.net(blow.sim, NetFault::Cut { from: vec![v.memtable], to, both }, blow.now_ns, v.ms);
}

pub(super) fn cut_off(n: &mut Nemesis, blow: &mut Blow<'_>, v: Victims) {
    let alone = if n.rng.u64(0..3) > 0 { v.memtable } else { v.any };
    n.count(blow.name, &alone);
    let to = n.network.others(std::slice::from_ref(&alone));
    n.net(blow.sim, NetFault::Cut { from: vec![alone], to, both: true }, blow.now_ns, v.ms);
}

pub(super) fn one_way(n: &mut Nemesis, blow: &mut Blow<'_>, v: Victims) {
    let from = vec![if n.rng.bool() { v.memtable } else { v.any }];
    let to = match n.rng.bool() {
        true => n.network.others(&from),
        false => some(&mut n.rng, &n.network.others(&from)),
    };
    let (from, to) = if n.rng.bool() { (from, to) } else { (to, from) };
    n.count(blow.name, &format!("{} to {}", from.join(" "), to.join(" ")));
    n.net(blow.sim, NetFault::Cut { from, to, both: false }, blow.now_ns, v.ms);
}

/// A leader is not heard any more, and hears late answers to what it sent before.
pub(super) fn late_answers(n: &mut Nemesis, blow: &mut Blow<'_>, v: Victims) {
    let leader = n.world.a_leader(n.rng.u64(..)).unwrap_or(v.memtable);
    n.count(blow.name, &leader);
    let mut peers = blow.cluster.tier(Tier::Memtable);
    peers.retain(|name| *name != leader);
    let lease_ms = n.plan.lease.leader_lease_ms;
    let latency = Duration::from_millis(n.rng.u64(lease_ms / 2..lease_ms * 3));
    let leader = vec![leader];
    let slow = NetFault::Slow { a: leader.clone(), b: peers.clone(), latency };
    n.net(blow.sim, slow, blow.now_ns, v.ms);
    let cut = NetFault::Cut { from: leader, to: peers.clone(), both: false };
    n.net(blow.sim, cut, blow.now_ns, v.ms + lease_ms * 2);
    let cut = NetFault::Cut { from: vec![v.pnode], to: peers, both: true };
    n.net(blow.sim, cut, blow.now_ns, v.ms + lease_ms * 2);
}

pub(super) fn split(n: &mut Nemesis, blow: &mut Blow<'_>, v: Victims) {
    let from = some(&mut n.rng, &v.all);
    let to = n.network.others(&from);
    n.count(blow.name, &from.join(" "));
    n.net(blow.sim, NetFault::Cut { from, to, both: true }, blow.now_ns, v.ms);
}

pub(super) fn tier_from_tier(n: &mut Nemesis, blow: &mut Blow<'_>, v: Victims) {
    let pairs =
        [(Tier::Memtable, Tier::Sstable), (Tier::PNode, Tier::Sstable), (Tier::PNode, Tier::Memtable)];
    let tiers = *pick(&mut n.rng, &pairs);
    let (from, to) = (blow.cluster.tier(tiers.0), blow.cluster.tier(tiers.1));
    n.count(blow.name, &format!("{} from {}", from.join(" "), to.join(" ")));
    n.net(blow.sim, NetFault::Cut { from, to, both: true }, blow.now_ns, v.ms);
}

pub(super) fn pnode_alone(n: &mut Nemesis, blow: &mut Blow<'_>, v: Victims) {
    let from = vec![v.pnode];
    let to = blow.cluster.tier(Tier::Memtable);
    let to = if n.rng.bool() { to } else { some(&mut n.rng, &to) };
    n.count(blow.name, &from[0]);
    let both = n.rng.bool();
    n.net(blow.sim, NetFault::Cut { from, to, both }, blow.now_ns, v.ms);
}

pub(super) fn slow_links(n: &mut Nemesis, blow: &mut Blow<'_>, v: Victims) {
    let a = some(&mut n.rng, &v.all);
    let b = n.network.others(&a);
    let latency = Duration::from_millis(n.rng.u64(10..n.plan.lease.leader_lease_ms * 2));
    n.count(blow.name, &format!("{} by up to {latency:?}", a.join(" ")));
    n.net(blow.sim, NetFault::Slow { a, b, latency }, blow.now_ns, v.ms);
}

pub(super) fn hold(n: &mut Nemesis, blow: &mut Blow<'_>, v: Victims) {
    let a = vec![if n.rng.bool() { v.memtable } else { v.any }];
    let b = n.network.others(&a);
    let b = if n.rng.bool() { b } else { some(&mut n.rng, &b) };
    n.count(blow.name, &format!("{} and {}", a.join(" "), b.join(" ")));
    n.net(blow.sim, NetFault::Hold { a, b }, blow.now_ns, v.ms);
}
