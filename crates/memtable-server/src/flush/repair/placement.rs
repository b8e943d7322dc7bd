//! Which sstable servers should have which tables: what is copied where, and which copies nobody needs. Pure.
//!
//! A server that is lost (it has not answered for very long) or draining (an operator wants it empty) is replaced, in each table,
//! by one that answers; a server that is to have a table and lacks it copies it. Most endangered first: what is sound on the fewest
//! servers. When all is well, tables move until each is in as many zones as can be, and then from the fullest servers to the
//! emptiest until they are about even, as long as that leaves no zone with more copies of a table than it must have.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use sextant_common::command::Relocation;
use sextant_common::ids::{NodeId, SstId};
use sextant_common::manifest::{Manifest, SstMeta};
use sextant_environment::config::Zone;

use crate::upstream::Held;

/// Servers are even if their bytes (of this partition) differ by no more than this, or a quarter of what they have on average.
const UNEVEN_BYTES: u64 = 64 * 1024 * 1024;
/// Between so many pairs of servers a table to move is looked for, those that differ most.
const PAIRS_MAX: usize = 16;

/// An sstable server, as a round found it.
#[derive(Clone, Copy)]
pub struct Found<'h> {
    pub id: NodeId,
    pub zone: Zone<'h>,
    /// None: it did not answer.
    pub held: Option<&'h [Held]>,
    /// It has not answered for so long that nobody waits for it any more.
    pub is_lost: bool,
    pub is_draining: bool,
    /// It could not do what it was asked, lately: others come first.
    pub is_failing: bool,
}

/// What a copy is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// The manifest names the server already.
    Named,
    Added,
    InsteadOf(NodeId),
}

/// A table that a server is to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copying<'m> {
    pub sst: &'m SstMeta,
    pub to: NodeId,
    pub naming: Naming,
}

/// Whether a server has a table as the manifest means it. `held`: by rising id.
pub fn is_sound(held: &[Held], sst: &SstMeta) -> bool {
    let at = held.partition_point(|h| h.id < sst.id);
    held.get(at).is_some_and(|h| h.id == sst.id && h.checksum == sst.checksum && !h.damaged)
}

impl Found<'_> {
    fn has(&self, sst: &SstMeta) -> bool {
        self.held.is_some_and(|held| is_sound(held, sst))
    }

    /// Whether it may be given tables.
    fn is_good(&self) -> bool {
        self.held.is_some() && self.stays()
    }

    /// Whether what it has counts for the time to come.
    fn stays(&self) -> bool {
        !self.is_lost && !self.is_draining
    }
}

/// How many of the servers that a table is to stay on are in a zone.
fn crowd(sst: &SstMeta, servers: &[Found<'_>], zone: Zone<'_>) -> usize {
    servers.iter().filter(|s| s.zone == zone && s.stays() && sst.replicas.contains(&s.id)).count()
}

/// Finds moves of tables that leave fewer copies in one zone.
struct Spread<'s> {
    by_id: BTreeMap<NodeId, &'s Found<'s>>,
    /// Those to which tables may go, by zone.
    good: BTreeMap<Zone<'s>, Vec<&'s Found<'s>>>,
}

impl<'s> Spread<'s> {
    fn over(servers: &'s [Found<'s>]) -> Self {
        let mut good: BTreeMap<Zone<'s>, Vec<&Found<'s>>> = BTreeMap::new();
        for server in servers.iter().filter(|s| s.is_good() && !s.is_failing) {
            good.entry(server.zone).or_default().push(server);
        }
        Self { by_id: servers.iter().map(|s| (s.id, s)).collect(), good }
    }

    /// From the zone that has most, there from the fullest; to the one that has fewest, there to the emptiest.
    fn of(&self, sst: &SstMeta, load: impl Fn(NodeId) -> u64) -> Option<(NodeId, NodeId)> {
        let on: Vec<&Found<'_>> =
            sst.replicas.iter().filter_map(|id| self.by_id.get(id).copied()).filter(|s| s.stays()).collect();
        let crowd = |zone: Zone<'_>| on.iter().filter(|s| s.zone == zone).count();
        let from = on.iter().filter(|s| s.is_good());
        let from = from.max_by_key(|s| (crowd(s.zone), load(s.id), Reverse(s.id)))?;
        let most = crowd(from.zone);
        if most < 2 {
            return None;
        }
        let zones = self.good.iter().filter(|(zone, _)| crowd(**zone) + 2 <= most);
        let free = zones.flat_map(|(_, good)| good).filter(|s| !sst.replicas.contains(&s.id));
        let to = free.min_by_key(|s| (crowd(s.zone), load(s.id), s.id))?;
        Some((from.id, to.id))
    }
}

/// How many tables could be in more zones than they are.
pub fn crowded(manifest: &Manifest, servers: &[Found<'_>]) -> usize {
    let spread = Spread::over(servers);
    manifest.all_ssts().filter(|sst| spread.of(sst, |_| 0).is_some()).count()
}

/// What is to be copied, most endangered first. `replicas`: that a table should have.
pub fn copies<'m>(manifest: &'m Manifest, servers: &[Found<'_>], replicas: usize) -> Vec<Copying<'m>> {
    let mut loads = loads(manifest, servers);
    let mut endangered: Vec<(usize, &SstMeta)> = Vec::new();
    let mut seen = BTreeSet::new();
    for sst in manifest.all_ssts() {
        // Of whom a copy is to be had, and who is there to stay.
        let safe =
            servers.iter().filter(|s| s.has(sst) && s.is_good() && sst.replicas.contains(&s.id)).count();
        let has_source = servers.iter().any(|s| s.has(sst));
        if has_source && safe < replicas.max(sst.replicas.len()) && seen.insert(sst.id) {
            endangered.push((safe, sst));
        }
    }
    endangered.sort_by_key(|(safe, sst)| (*safe, sst.id));
    let mut copies = Vec::new();
    for (safe, sst) in endangered {
        copies_of(sst, safe, servers, replicas, &mut loads, &mut copies);
    }
    // As long as somebody does not answer, nobody is asked for what need not be. (Who cannot copy does not hold others up.)
    let is_failing = |id: NodeId| servers.iter().any(|s| s.id == id && s.is_failing);
    let is_calm = !servers.iter().any(|s| s.held.is_none() && !s.is_lost);
    if is_calm && copies.iter().all(|c| is_failing(c.to)) {
        let before = copies.len();
        copies.extend(spreading(manifest, servers, &mut loads));
        if copies.len() == before {
            copies.extend(evening(manifest, servers, &loads));
        }
    }
    copies
}

fn spreading<'m>(
    manifest: &'m Manifest,
    servers: &[Found<'_>],
    loads: &mut BTreeMap<NodeId, u64>,
) -> Vec<Copying<'m>> {
    let (mut copies, mut seen) = (Vec::new(), BTreeSet::new());
    let spread = Spread::over(servers);
    for sst in manifest.all_ssts().filter(|sst| seen.insert(sst.id)) {
        let load = |id| loads.get(&id).copied().unwrap_or(0);
        let Some((from, to)) = spread.of(sst, load) else { continue };
        *loads.entry(to).or_default() += sst.file_bytes;
        if let Some(load) = loads.get_mut(&from) {
            *load = load.saturating_sub(sst.file_bytes);
        }
        copies.push(Copying { sst, to, naming: Naming::InsteadOf(from) });
    }
    copies
}

/// `safe`: how many copies of the table there are that will stay.
fn copies_of<'m>(
    sst: &'m SstMeta,
    safe: usize,
    servers: &[Found<'_>],
    replicas: usize,
    loads: &mut BTreeMap<NodeId, u64>,
    copies: &mut Vec<Copying<'m>>,
) {
    let found = |id: &NodeId| servers.iter().find(|s| s.id == *id);
    // (A server that the configuration does not name any more is lost.)
    let is_leaving = |id: &&NodeId| found(id).is_none_or(|s| s.is_lost || s.is_draining);
    let mut leaving: Vec<NodeId> = sst.replicas.iter().filter(is_leaving).copied().collect();
    // Who has no copy goes first.
    leaving.sort_by_key(|id| found(id).is_some_and(|s| s.has(sst)));
    let staying = sst.replicas.len() - leaving.len();
    let mut leaving = leaving.into_iter();
    // What is before is of other tables.
    let first = copies.len();
    for to in sst.replicas.iter().filter_map(found).filter(|s| s.is_good() && !s.has(sst)) {
        *loads.entry(to.id).or_default() += sst.file_bytes;
        copies.push(Copying { sst, to: to.id, naming: Naming::Named });
    }
    for _ in staying..replicas {
        let others = servers.iter().filter(|s| s.is_good() && !sst.replicas.contains(&s.id));
        let added = &copies[first..];
        let others = others.filter(|s| !added.iter().any(|c| c.to == s.id));
        let crowd = |zone| {
            let added = added.iter().filter(|c| c.naming != Naming::Named);
            let added = added.filter(|c| servers.iter().any(|s| s.id == c.to && s.zone == zone));
            crowd(sst, servers, zone) + added.count()
        };
        // In the zone that has fewest (when a second copy is there, wherever that is); one that has it already, then the emptiest.
        let load = |id| loads.get(&id).copied().unwrap_or(0);
        let is_urgent = |s: &&Found<'_>| safe < 2 && !s.has(sst);
        let best =
            others.min_by_key(|s| (s.is_failing, is_urgent(s), crowd(s.zone), !s.has(sst), load(s.id), s.id));
        let Some(to) = best else { return };
        if !to.has(sst) {
            *loads.entry(to.id).or_default() += sst.file_bytes;
        }
        let naming = leaving.next().map_or(Naming::Added, Naming::InsteadOf);
        copies.push(Copying { sst, to: to.id, naming });
    }
}

/// What each server that answers is to hold, in bytes. (Not what it does: what it is to release counts for nothing.)
fn loads(manifest: &Manifest, servers: &[Found<'_>]) -> BTreeMap<NodeId, u64> {
    let answering = servers.iter().filter(|s| s.held.is_some());
    let mut loads: BTreeMap<NodeId, u64> = answering.map(|s| (s.id, 0)).collect();
    let mut seen = BTreeSet::new();
    for sst in manifest.all_ssts().filter(|sst| seen.insert(sst.id)) {
        for replica in &sst.replicas {
            if let Some(load) = loads.get_mut(replica) {
                *load += sst.file_bytes;
            }
        }
    }
    loads
}

/// Servers that are to leave, of tables that have enough others: nothing has to be copied for that.
pub fn departures(manifest: &Manifest, servers: &[Found<'_>], replicas: usize) -> Vec<Relocation> {
    let mut seen = BTreeSet::new();
    let mut departures = Vec::new();
    for sst in manifest.all_ssts().filter(|sst| sst.replicas.len() > replicas && seen.insert(sst.id)) {
        let stays = |id: &NodeId| servers.iter().any(|s| s.id == *id && s.is_good() && s.has(sst));
        let is_leaving =
            |id: &&NodeId| servers.iter().find(|s| s.id == **id).is_none_or(|s| s.is_lost || s.is_draining);
        if sst.replicas.iter().filter(|id| stays(id)).count() >= replicas {
            let leaving = sst.replicas.iter().filter(is_leaving);
            departures.extend(leaving.map(|id| Relocation { id: sst.id, add: None, remove: Some(*id) }));
        }
    }
    departures
}

/// One table from a full server to an emptier one, if that makes them more even and no zone more crowded: the largest that can move
/// between the two that differ most.
fn evening<'m>(
    manifest: &'m Manifest,
    servers: &[Found<'_>],
    loads: &BTreeMap<NodeId, u64>,
) -> Option<Copying<'m>> {
    let good = || servers.iter().filter(|s| s.is_good()).map(|s| (loads.get(&s.id).copied().unwrap_or(0), s));
    let mean = good().map(|(load, _)| load).sum::<u64>() / good().count().max(1) as u64;
    let bound = UNEVEN_BYTES.max(mean / 4);
    let differ = good().flat_map(|(full, from)| {
        let emptier = good().filter(move |(load, to)| !to.is_failing && full.saturating_sub(*load) > bound);
        emptier.map(move |(load, to)| (full - load, from, to))
    });
    let mut differ: Vec<(u64, &Found<'_>, &Found<'_>)> = differ.collect();
    differ.sort_by_key(|(more, from, to)| (Reverse(*more), Reverse(from.id), to.id));
    differ.into_iter().take(PAIRS_MAX).find_map(|(more, from, to)| {
        let movable = manifest.all_ssts().filter(|sst| {
            sst.replicas.contains(&from.id)
                && !sst.replicas.contains(&to.id)
                && 2 * sst.file_bytes <= more
                && (from.zone == to.zone || crowd(sst, servers, to.zone) < crowd(sst, servers, from.zone))
        });
        let sst = movable.max_by_key(|sst| (sst.file_bytes, Reverse(sst.id)))?;
        Some(Copying { sst, to: to.id, naming: Naming::InsteadOf(from.id) })
    })
}

/// Copies of tables that the manifest names on servers that it does not name for them, while all that it does name and that
/// answer have theirs, and as many as a new table needs. `in_use`: copies that somebody may still need here, or that a change
/// under way may name.
pub fn surplus(
    manifest: &Manifest,
    servers: &[Found<'_>],
    required: usize,
    in_use: impl Fn(NodeId, SstId) -> bool,
) -> Vec<(NodeId, SstId)> {
    let by_id: BTreeMap<SstId, &SstMeta> = manifest.all_ssts().map(|sst| (sst.id, sst)).collect();
    let is_safe = |sst: &SstMeta| {
        let named = || servers.iter().filter(|s| s.held.is_some() && sst.replicas.contains(&s.id));
        named().all(|s| s.has(sst)) && named().count() >= required.min(sst.replicas.len()).max(1)
    };
    let mut surplus = Vec::new();
    for server in servers {
        for held in server.held.unwrap_or_default() {
            let Some(sst) = by_id.get(&held.id) else { continue };
            if !sst.replicas.contains(&server.id) && !in_use(server.id, held.id) && is_safe(sst) {
                surplus.push((server.id, held.id));
            }
        }
    }
    surplus
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flush::repair::tests::{held, manifest, sst};

    const MIB: u64 = 1024 * 1024;

    fn server(id: u64, held: &[Held]) -> Found<'_> {
        let id = NodeId(id);
        Found {
            id,
            zone: Zone::Own(id),
            held: Some(held),
            is_lost: false,
            is_draining: false,
            is_failing: false,
        }
    }

    fn told(copies: &[Copying<'_>]) -> Vec<(u32, u64, Naming)> {
        copies.iter().map(|c| (c.sst.id.counter, c.to.0, c.naming)).collect()
    }

    #[test]
    fn who_lacks_a_table_copies_it_and_nothing_else_happens() {
        let manifest = manifest(vec![sst(1, &[1, 2, 3]), sst(2, &[1, 2, 3])]);
        let all: Vec<Held> = manifest.all_ssts().map(held).collect();
        let one = &all[..1];
        let servers = [server(1, &all), server(2, &all), server(3, one), server(4, &[])];
        assert_eq!(told(&copies(&manifest, &servers, 3)), [(2, 3, Naming::Named)]);
        let silent =
            [server(1, &all), server(2, &all), Found { held: None, ..server(3, &[]) }, server(4, &[])];
        assert_eq!(told(&copies(&manifest, &silent, 3)), [], "it may come back");
    }

    #[test]
    fn a_lost_server_is_replaced_most_endangered_tables_first() {
        let manifest = manifest(vec![sst(1, &[1, 2, 3]), sst(2, &[1, 3, 5])]);
        let (first, second) = (held(&sst(1, &[])), held(&sst(2, &[])));
        let lost = Found { held: None, is_lost: true, ..server(3, &[]) };
        let both = [first.clone(), second.clone()];
        // Server 5 has lost its disk.
        let servers =
            [server(1, &both), server(2, std::slice::from_ref(&first)), lost, server(4, &[]), server(5, &[])];
        let copies = copies(&manifest, &servers, 3);
        let instead = Naming::InsteadOf(NodeId(3));
        assert_eq!(told(&copies), [(2, 5, Naming::Named), (2, 4, instead), (1, 4, instead)]);
    }

    #[test]
    fn a_draining_server_is_replaced_while_there_is_somebody_to_replace_it() {
        let manifest = manifest(vec![sst(1, &[1, 2, 3])]);
        let one = [held(&sst(1, &[]))];
        let draining = Found { is_draining: true, ..server(2, &one) };
        let three = [server(1, &one), draining, server(3, &one)];
        assert_eq!(told(&copies(&manifest, &three, 3)), []);
        let four = [&three[..], &[server(4, &[])]].concat();
        assert_eq!(told(&copies(&manifest, &four, 3)), [(1, 4, Naming::InsteadOf(NodeId(2)))]);
        // Not onto another one that is to be empty, and not from nobody.
        let two = [&three[..], &[Found { is_draining: true, ..server(4, &[]) }]].concat();
        assert_eq!(told(&copies(&manifest, &two, 3)), []);
        let nobody = [server(1, &[]), Found { is_draining: true, ..server(2, &[]) }, server(4, &[])];
        assert_eq!(told(&copies(&manifest, &nobody, 3)), []);
    }

    #[test]
    fn a_table_with_too_few_servers_gets_more_when_there_are_more() {
        let manifest = manifest(vec![sst(1, &[1, 2])]);
        let one = [held(&sst(1, &[]))];
        assert_eq!(told(&copies(&manifest, &[server(1, &one), server(2, &one)], 3)), []);
        let three = [server(1, &one), server(2, &one), server(3, &[])];
        assert_eq!(told(&copies(&manifest, &three, 3)), [(1, 3, Naming::Added)]);
    }

    #[test]
    fn a_server_that_leaves_a_table_with_enough_others_is_not_named_any_more() {
        let manifest = manifest(vec![sst(1, &[1, 2, 3])]);
        let one = [held(&sst(1, &[]))];
        let draining = Found { is_draining: true, ..server(3, &one) };
        let servers = [server(1, &one), server(2, &one), draining];
        let id = sst(1, &[]).id;
        let leaves = Relocation { id, add: None, remove: Some(NodeId(3)) };
        assert_eq!(departures(&manifest, &servers, 2), [leaves]);
        assert_eq!(departures(&manifest, &servers, 3), []);
        assert_eq!(
            departures(&manifest, &[server(1, &one), server(2, &[]), draining], 2),
            [],
            "too few have it"
        );
        assert_eq!(departures(&manifest, &[server(1, &one), server(2, &one), server(3, &one)], 2), []);
    }

    #[test]
    fn an_empty_server_fills_until_all_are_about_even() {
        let mut manifest = manifest((1..=12).map(|n| sst(n, &[1, 2, 3])).collect());
        manifest.tables[0].ssts.edit(|all| all.iter_mut().for_each(|sst| sst.file_bytes = 50 * MIB));
        for _ in 0..100 {
            let on = |id: u64| -> Vec<Held> {
                manifest.all_ssts().filter(|sst| sst.replicas.contains(&NodeId(id))).map(held).collect()
            };
            let all = [on(1), on(2), on(3), on(4)];
            let servers: Vec<Found<'_>> = (1..).zip(&all).map(|(id, held)| server(id, held)).collect();
            let Some(Copying { sst, to, naming }) = copies(&manifest, &servers, 3).first().copied() else {
                break;
            };
            let (id, to) = (sst.id, to);
            let Naming::InsteadOf(from) = naming else { panic!("{naming:?}") };
            manifest.tables[0].ssts.edit(|all| {
                let moved = all.iter_mut().find(|sst| sst.id == id).unwrap();
                moved.replicas.retain(|r| *r != from);
                moved.replicas.push(to);
            });
        }
        let count = |id| manifest.all_ssts().filter(|sst| sst.replicas.contains(&NodeId(id))).count();
        let counts: Vec<usize> = (1..=4).map(count).collect();
        assert!(counts.iter().all(|count| (8..=10).contains(count)), "{counts:?}");
    }

    /// Servers 1, 2, .. in these zones, with what the manifest names on them.
    fn in_zones<T>(manifest: &Manifest, zones: &str, look: impl FnOnce(&[Found<'_>]) -> T) -> T {
        let on = |id: NodeId| manifest.all_ssts().filter(move |sst| sst.replicas.contains(&id)).map(held);
        let held: Vec<Vec<Held>> = (1..).take(zones.len()).map(|id| on(NodeId(id)).collect()).collect();
        let servers = (1..)
            .zip(&held)
            .enumerate()
            .map(|(at, (id, held))| Found { zone: Zone::Named(&zones[at..at + 1]), ..server(id, held) });
        look(&servers.collect::<Vec<_>>())
    }

    /// Copies and renames until nothing is to be done. How many moved, and on which servers each table is then.
    fn settled(manifest: &mut Manifest, zones: &str) -> (usize, Vec<Vec<u64>>) {
        for moved in 0..100 {
            let next = in_zones(manifest, zones, |servers| {
                copies(manifest, servers, 3).first().map(|c| (c.sst.id, c.to, c.naming))
            });
            let Some((id, to, naming)) = next else {
                let sorted = |sst: &SstMeta| {
                    let mut on: Vec<u64> = sst.replicas.iter().map(|id| id.0).collect();
                    on.sort();
                    on
                };
                return (moved, manifest.all_ssts().map(sorted).collect());
            };
            let Naming::InsteadOf(from) = naming else { panic!("{naming:?}") };
            manifest.tables[0].ssts.edit(|all| {
                let moved = all.iter_mut().find(|sst| sst.id == id).unwrap();
                moved.replicas.retain(|r| *r != from);
                moved.replicas.push(to);
            });
        }
        panic!("tables move for ever")
    }

    #[test]
    fn a_lost_server_is_replaced_in_the_zone_that_has_fewest_copies() {
        let manifest = manifest(vec![sst(1, &[1, 2, 3]), sst(2, &[1, 2, 3])]);
        in_zones(&manifest, "abcac", |servers| {
            let mut servers = servers.to_vec();
            servers[2] = Found { held: None, is_lost: true, ..servers[2] };
            let instead = Naming::InsteadOf(NodeId(3));
            assert_eq!(told(&copies(&manifest, &servers, 3)), [(1, 5, instead), (2, 5, instead)]);
            // If nobody is left there, wherever it can be.
            servers[4] = Found { held: None, ..servers[4] };
            assert_eq!(told(&copies(&manifest, &servers, 3)), [(1, 4, instead), (2, 4, instead)]);
        });
    }

    #[test]
    fn who_cannot_copy_does_not_keep_tables_from_others() {
        let manifest = manifest(vec![sst(1, &[1, 2, 3]), sst(2, &[1, 4, 5])]);
        in_zones(&manifest, "aabbbc", |servers| {
            let mut servers = servers.to_vec();
            servers[2] = Found { held: None, is_lost: true, ..servers[2] };
            servers[5].is_failing = true;
            // Zone c would be better, if it could.
            let instead = Naming::InsteadOf(NodeId(3));
            assert_eq!(told(&copies(&manifest, &servers, 3)), [(1, 4, instead)]);
            servers[5].is_failing = false;
            assert_eq!(told(&copies(&manifest, &servers, 3)), [(1, 6, instead)]);
        });
        // One that lacks its own and cannot copy holds up nobody else.
        let both = [held(&sst(1, &[])), held(&sst(2, &[]))];
        let lacking = Found { is_failing: true, ..server(3, &[]) };
        let in_a = |id, held| Found { zone: Zone::Named("a"), ..server(id, held) };
        let servers = [
            server(1, &both),
            server(2, &both[..1]),
            lacking,
            in_a(4, &both),
            in_a(5, &both),
            server(6, &[]),
        ];
        let moves = [(1, 3, Naming::Named), (2, 6, Naming::InsteadOf(NodeId(4)))];
        assert_eq!(told(&copies(&manifest, &servers, 3)), moves);
    }

    #[test]
    fn two_lost_servers_are_not_replaced_in_one_zone() {
        let manifest = manifest(vec![sst(1, &[1, 2, 3])]);
        in_zones(&manifest, "abcbbc", |servers| {
            let mut servers = servers.to_vec();
            servers[1] = Found { held: None, is_lost: true, ..servers[1] };
            servers[2] = Found { held: None, is_lost: true, ..servers[2] };
            let to: Vec<u64> = copies(&manifest, &servers, 3).iter().map(|c| c.to.0).collect();
            assert_eq!(to, [4, 6]);
        });
    }

    #[test]
    fn tables_move_into_zones_that_have_none_of_their_copies() {
        let mut manifest = manifest((1..=4).map(|n| sst(n, &[1, 2, 3])).collect());
        in_zones(&manifest, "aabcc", |servers| {
            assert_eq!(crowded(&manifest, servers), 4);
            assert_eq!(copies(&manifest, servers, 3).len(), 4);
            let away = Found { held: None, ..servers[1] };
            let servers = [&servers[..1], &[away], &servers[2..]].concat();
            assert_eq!(told(&copies(&manifest, &servers, 3)), [], "it may come back");
        });
        let (moved, on) = settled(&mut manifest, "aabcc");
        assert_eq!(moved, 4);
        for on in on {
            assert!(on[0] <= 2 && on[1] == 3 && on[2] >= 4, "one of each zone: {on:?}");
        }
        assert_eq!(in_zones(&manifest, "aabcc", |servers| crowded(&manifest, servers)), 0);
        // One zone has to have two, if there are but two.
        assert_eq!(settled(&mut manifest, "aabbb").0, 0);
    }

    #[test]
    fn servers_become_even_within_what_zones_allow() {
        let mut manifest = manifest((1..=12).map(|n| sst(n, &[1, 2, 3])).collect());
        manifest.tables[0].ssts.edit(|all| all.iter_mut().for_each(|sst| sst.file_bytes = 50 * MIB));
        let (_, on) = settled(&mut manifest, "abcc");
        assert!(on.iter().all(|on| on[..2] == [1, 2]), "zones a and b have one server each: {on:?}");
        let on_third = on.iter().filter(|on| on[2] == 3).count();
        assert!((5..=7).contains(&on_third), "{on_third}");
    }

    #[test]
    fn copies_that_nobody_names_are_surplus_when_all_that_are_named_are_there() {
        let manifest = manifest(vec![sst(1, &[1, 2, 3])]);
        let one = [held(&sst(1, &[]))];
        let judged = |servers: &[Found<'_>]| surplus(&manifest, servers, 2, |_, _| false).len();
        let full = || [server(1, &one), server(2, &one), server(3, &one)];
        assert_eq!(judged(&[&full()[..], &[server(4, &one)]].concat()), 1);
        assert_eq!(judged(&[server(1, &one), server(2, &one), server(3, &[]), server(4, &one)]), 0);
        let silent = Found { held: None, ..server(3, &[]) };
        assert_eq!(judged(&[server(1, &one), server(2, &one), silent, server(4, &one)]), 1);
        assert_eq!(judged(&[server(1, &one), silent, server(4, &one)]), 0, "too few");
    }

    #[test]
    fn nothing_is_released_that_a_change_under_way_may_name() {
        let manifest = manifest(vec![sst(1, &[1, 2])]);
        let one = [held(&sst(1, &[]))];
        let servers = [server(1, &one), server(2, &one), server(4, &one)];
        let id = sst(1, &[]).id;
        let under_way = [(NodeId(4), id)];
        assert_eq!(surplus(&manifest, &servers, 2, |server, id| under_way.contains(&(server, id))), []);
        assert_eq!(surplus(&manifest, &servers, 2, |_, _| false), [(NodeId(4), id)]);
    }
}
