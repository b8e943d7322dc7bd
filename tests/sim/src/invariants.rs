//! What must hold at every moment of true time, checked as servers tell what they do.
//!
//! * One leader a term; logs match; what is committed is the same everywhere and never changes.
//! * Nothing is published that a usable lease forbids: neither a group whose bits the holder's filters lack, nor anything at all
//!   in a newer epoch.
//! * The filters of a usable view contain every published bit whose memtable is not in the view's SSTables.
//! * Replicas agree: what a checkpoint, the manifest and the configuration carry is the same at the same place on every server,
//!   whether it came about there or was read from a snapshot.
//! * A p-node and its leader mean the same manifest by a version.
//! * No usable view has a table that was dropped.
//! * A table that a manifest names is durable on as many of the sstable servers as the operator demands.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sextant_common::ids::{Epoch, Generation, PartitionId, SstId, TableId};
use sextant_rules::probe::{Filters, ProbeEvent};

use crate::clock::SimClock;

/// The host that tells of an event, and what can be asked about the world at that moment.
pub struct Teller<'a> {
    pub host: usize,
    pub name: &'a str,
    pub clock: &'a Arc<SimClock>,
    /// Something is broken now.
    pub under_faults: bool,
    /// On how many sstable servers a table would survive a loss of power of all of them.
    pub durable_replicas: &'a dyn Fn(SstId) -> usize,
}

/// What was counted on the way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub leaders: u64,
    pub appended: u64,
    pub published: u64,
    pub truncations: u64,
    /// Snapshots that took the place of a follower's log.
    pub installed: u64,
    pub truncated_groups: u64,
    pub truncated_freezes: u64,
    pub leases: u64,
    pub views: u64,
    /// While a group was on its way into the log.
    pub rings_renewed_over_groups: u64,
    /// Finished while something was broken.
    pub flushes_under_faults: u64,
    pub compactions_under_faults: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    term: u64,
    digest: u64,
}

/// What a p-node uses.
struct View {
    host: usize,
    name: String,
    clock: Arc<SimClock>,
    epoch: Epoch,
    serial: u64,
    lease_until_ns: u64,
    flushed: BTreeMap<TableId, Generation>,
    filters: Filters,
}

#[derive(Default)]
struct Group {
    leaders: BTreeMap<u64, u64>,
    /// By node and index.
    logs: BTreeMap<u64, BTreeMap<u64, Entry>>,
    /// By index and term.
    digests: BTreeMap<(u64, u64), u64>,
    committed: BTreeMap<u64, Entry>,
    /// By node: everything up to it was compared.
    compared: BTreeMap<u64, u64>,
    views: Vec<View>,
    /// By index and term.
    bits: BTreeMap<(u64, u64), Vec<Bit>>,
    /// By table and generation: the hashes.
    published_bits: BTreeMap<(TableId, Generation), Vec<u64>>,
    /// Tables (LSM-trees) that are gone.
    dropped: BTreeSet<TableId>,
    /// Tables that a manifest has named.
    named: BTreeSet<SstId>,
    /// What replicas hold: by name and place, of whom it was first heard, and what.
    held: BTreeMap<(&'static str, Place), (u64, u64)>,
}

/// What a write leaves in the filter of a memtable.
type Bit = (TableId, Generation, u64);
/// Where in a partition's history: two numbers, as the name of what is held says.
type Place = (u64, u64);

pub struct Invariants {
    on: bool,
    /// Clocks keep their promises: what leases promise can be asked for.
    leases: bool,
    groups: BTreeMap<PartitionId, Group>,
    pub seen: Seen,
}

impl Invariants {
    pub fn new(on: bool, leases: bool) -> Self {
        Self { on, leases, groups: BTreeMap::new(), seen: Seen::default() }
    }

    /// A p-node's process is gone, and its views with it.
    pub fn forget_views(&mut self, host: usize) {
        self.groups.values_mut().for_each(|g| g.views.retain(|v| v.host != host));
    }

    /// The violation that an event is, if it is one.
    pub fn event(&mut self, teller: &Teller<'_>, now_ns: u64, event: &ProbeEvent) -> Option<String> {
        self.count(event, teller.under_faults);
        if !self.on {
            return None;
        }
        match *event {
            ProbeEvent::Published { .. } | ProbeEvent::ViewMade { .. } if !self.leases => None,
            ProbeEvent::Led { partition, node, term } => {
                let other = *self.group(partition).leaders.entry(term).or_insert(node);
                (other != node).then(|| {
                    format!("invariant: partition {partition}: nodes {other} and {node} lead term {term}")
                })
            }
            ProbeEvent::Appended { partition, node, index, term, digest } => {
                self.group(partition).appended(partition, node, index, Entry { term, digest })
            }
            ProbeEvent::Truncated { partition, node, first, .. } => {
                self.group(partition).logs.entry(node).or_default().split_off(&first);
                None
            }
            ProbeEvent::Installed { partition, node } => {
                self.group(partition).logs.remove(&node);
                None
            }
            ProbeEvent::Committed { partition, node, index } => {
                self.group(partition).committed(partition, node, index)
            }
            ProbeEvent::BitsLeft { partition, index, term, ref bits } => {
                self.group(partition).bits.insert((index, term), bits.clone());
                None
            }
            ProbeEvent::Published { partition, node, epoch, index, serial } => {
                let group = self.group(partition);
                group
                    .published(partition, now_ns, epoch, index, serial.0)
                    .or_else(|| group.bits_published(partition, node, index, now_ns))
            }
            ProbeEvent::TablesChanged { partition, added, required, .. } => {
                let first_named = added.filter(|id| self.group(partition).named.insert(*id))?;
                let durable = (teller.durable_replicas)(first_named);
                (durable < required).then(|| {
                    format!(
                        "invariant: partition {partition}: the manifest names table {first_named}, which is durable on {durable} \
                         servers, not {required}"
                    )
                })
            }
            ProbeEvent::TableDropped { partition, table } => {
                self.group(partition).table_dropped(partition, table, now_ns)
            }
            ProbeEvent::Held { partition, node, what, at, digest } => {
                let (other, held) = *self.group(partition).held.entry((what, at)).or_insert((node, digest));
                (held != digest).then(|| {
                    format!(
                        "invariant: partition {partition}: at {at:?} node {node} holds another {what} than node {other}"
                    )
                })
            }
            ProbeEvent::WaitsForNothing { partition, node, serial, newest } => Some(format!(
                "invariant: partition {partition}: on node {node} an entry waits for serial {}, and its ring is at {}",
                serial.0, newest.0
            )),
            ProbeEvent::ManifestDiffers { partition, version } => Some(format!(
                "invariant: partition {partition}: a p-node has another manifest {version} than its leader"
            )),
            ProbeEvent::LeaseGranted { .. }
            | ProbeEvent::RingRenewed { .. }
            | ProbeEvent::LoadHeld { .. } => None,
            ProbeEvent::ViewMade {
                partition,
                epoch,
                serial,
                lease_until_ns,
                ref flushed,
                ref filters,
                ..
            } => {
                let view = View {
                    host: teller.host,
                    name: teller.name.to_owned(),
                    clock: teller.clock.clone(),
                    epoch,
                    serial: serial.0,
                    lease_until_ns,
                    flushed: flushed.iter().copied().collect(),
                    filters: filters.clone(),
                };
                let group = self.group(partition);
                let lacks = group.lacking(&view, now_ns).map(|bit| lacking(partition, &view, bit, now_ns));
                let gone = view.flushed.keys().find(|table| group.dropped.contains(*table));
                let has = gone
                    .filter(|_| view.is_usable(now_ns))
                    .map(|table| has_dropped(partition, &view, *table));
                let lacks = lacks.or(has);
                group.views.retain(|v| v.host != teller.host);
                group.views.push(view);
                lacks
            }
        }
    }

    fn group(&mut self, partition: PartitionId) -> &mut Group {
        self.groups.entry(partition).or_default()
    }

    fn count(&mut self, event: &ProbeEvent, faulty: bool) {
        let seen = &mut self.seen;
        match event {
            ProbeEvent::Led { .. } => seen.leaders += 1,
            ProbeEvent::Appended { .. } => seen.appended += 1,
            ProbeEvent::Truncated { groups, freezes, .. } => {
                seen.truncations += 1;
                seen.truncated_groups += groups;
                seen.truncated_freezes += freezes;
            }
            ProbeEvent::TablesChanged { leads: true, flush, .. } if faulty => match flush {
                true => seen.flushes_under_faults += 1,
                false => seen.compactions_under_faults += 1,
            },
            ProbeEvent::Installed { .. } => seen.installed += 1,
            ProbeEvent::RingRenewed { over_group, .. } => {
                seen.rings_renewed_over_groups += u64::from(*over_group)
            }
            ProbeEvent::Held { .. }
            | ProbeEvent::ManifestDiffers { .. }
            | ProbeEvent::WaitsForNothing { .. }
            | ProbeEvent::LoadHeld { .. }
            | ProbeEvent::Committed { .. }
            | ProbeEvent::BitsLeft { .. }
            | ProbeEvent::TableDropped { .. }
            | ProbeEvent::TablesChanged { .. } => {}
            ProbeEvent::Published { .. } => seen.published += 1,
            ProbeEvent::LeaseGranted { .. } => seen.leases += 1,
            ProbeEvent::ViewMade { .. } => seen.views += 1,
        }
    }
}

impl Group {
    fn appended(&mut self, partition: PartitionId, node: u64, index: u64, entry: Entry) -> Option<String> {
        let log = self.logs.entry(node).or_default();
        // A crash may have taken the tail without a word.
        log.split_off(&index);
        log.insert(index, entry);
        let first = *self.digests.entry((index, entry.term)).or_insert(entry.digest);
        if first != entry.digest {
            return Some(format!(
                "invariant: partition {partition}: entry {index} of term {} differs on node {node}",
                entry.term
            ));
        }
        match self.committed.get(&index) {
            Some(committed)
                if self.compared.get(&node).is_some_and(|c| *c >= index) && *committed != entry =>
            {
                Some(format!(
                    "invariant: partition {partition}: node {node} replaces the committed entry {index}"
                ))
            }
            _ => None,
        }
    }

    fn committed(&mut self, partition: PartitionId, node: u64, index: u64) -> Option<String> {
        let from = self.compared.get(&node).map_or(0, |c| c + 1);
        let log = self.logs.entry(node).or_default();
        for (at, entry) in log.range(from..=index.max(from)).filter(|(at, _)| **at <= index) {
            let committed = *self.committed.entry(*at).or_insert(*entry);
            if committed != *entry {
                return Some(format!(
                    "invariant: partition {partition}: node {node} commits entry {at} of term {}, another node committed one \
                     of term {}",
                    entry.term, committed.term
                ));
            }
        }
        let compared = self.compared.entry(node).or_default();
        *compared = (*compared).max(index);
        None
    }

    fn published(
        &mut self,
        partition: PartitionId,
        now_ns: u64,
        epoch: Epoch,
        index: u64,
        serial: u64,
    ) -> Option<String> {
        let forbids = |view: &&View| {
            let lacks = view.epoch < epoch || (view.epoch == epoch && view.serial < serial);
            lacks && view.lease_until_ns > 0 && view.clock.holder_at_ns(now_ns) < view.lease_until_ns
        };
        let view = self.views.iter().find(forbids)?;
        let left_us = (view.lease_until_ns - view.clock.holder_at_ns(now_ns)) / 1000;
        Some(format!(
            "invariant: partition {partition}: entry {index} (epoch {epoch}, serial {serial}) is published at {} us although \
             {} holds a lease of epoch {} at serial {} for another {left_us} us",
            now_ns / 1000,
            view.name,
            view.epoch,
            view.serial
        ))
    }

    /// Nobody uses a view that has it.
    fn table_dropped(&mut self, partition: PartitionId, table: TableId, now_ns: u64) -> Option<String> {
        self.dropped.insert(table);
        self.published_bits.retain(|(of, _), _| *of != table);
        let has = self.views.iter().find(|v| v.flushed.contains_key(&table) && v.is_usable(now_ns));
        has.map(|view| has_dropped(partition, view, table))
    }

    /// The bits of an entry that was just published are in every usable view.
    fn bits_published(
        &mut self,
        partition: PartitionId,
        node: u64,
        index: u64,
        now_ns: u64,
    ) -> Option<String> {
        let term = self.logs.get(&node)?.get(&index)?.term;
        let mut bits = self.bits.get(&(index, term))?.clone();
        bits.retain(|(table, ..)| !self.dropped.contains(table));
        for (table, generation, hash) in &bits {
            self.published_bits.entry((*table, *generation)).or_default().push(*hash);
        }
        let usable = self.views.iter().filter(|v| v.is_usable(now_ns));
        usable
            .filter_map(|v| Some((v, v.first_lacking(bits.iter().copied())?)))
            .next()
            .map(|(v, bit)| format!("{} (entry {index}, just published)", lacking(partition, v, bit, now_ns)))
    }

    /// A published bit that a view lacks.
    fn lacking(&self, view: &View, now_ns: u64) -> Option<Bit> {
        if !view.is_usable(now_ns) {
            return None;
        }
        let unflushed = self.published_bits.iter().filter(|((t, g), _)| !view.has_flushed(*t, *g));
        view.first_lacking(unflushed.flat_map(|((t, g), hashes)| hashes.iter().map(|h| (*t, *g, *h))))
    }
}

impl View {
    fn is_usable(&self, now_ns: u64) -> bool {
        self.lease_until_ns > 0 && self.clock.holder_at_ns(now_ns) < self.lease_until_ns
    }

    fn has_flushed(&self, table: TableId, generation: Generation) -> bool {
        self.flushed.get(&table).is_some_and(|flushed| generation <= *flushed)
    }

    fn first_lacking(&self, mut bits: impl Iterator<Item = Bit>) -> Option<Bit> {
        bits.find(|(table, generation, hash)| {
            !self.has_flushed(*table, *generation) && !self.filters.contains(*table, *hash)
        })
    }
}

fn has_dropped(partition: PartitionId, view: &View, table: TableId) -> String {
    format!(
        "invariant: partition {partition}: {}'s usable view of epoch {} has table {table}, which was dropped",
        view.name, view.epoch
    )
}

fn lacking(partition: PartitionId, view: &View, (table, generation, hash): Bit, now_ns: u64) -> String {
    format!(
        "invariant: partition {partition}: {}'s usable view of epoch {} at serial {} lacks the published bit {hash:016x} of table \
         {table}, memtable {generation}, at {} us",
        view.name,
        view.epoch,
        view.serial,
        now_ns / 1000
    )
}
