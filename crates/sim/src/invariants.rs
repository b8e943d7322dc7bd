//! What must hold at every moment of true time, checked as servers tell what they do.
//!
//! * One leader a term; logs match; what is committed is the same everywhere and never changes.
//! * Nothing is published that a usable lease forbids: neither a group whose bits the holder's filters lack, nor anything at all
//!   in a newer epoch.

use std::collections::BTreeMap;

use sextant_common::env::ProbeEvent;
use sextant_common::ids::{Epoch, PartitionId};

use crate::host::Host;

/// What was counted on the way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub leaders: u64,
    pub appended: u64,
    pub published: u64,
    pub truncations: u64,
    pub truncated_entries: u64,
    pub truncated_freezes: u64,
    pub leases: u64,
    pub views: u64,
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
    clock: std::sync::Arc<crate::host::SimClock>,
    epoch: Epoch,
    serial: u64,
    lease_until_ns: u64,
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
}

pub struct Invariants {
    on: bool,
    groups: BTreeMap<PartitionId, Group>,
    pub seen: Seen,
}

impl Invariants {
    pub fn new(on: bool) -> Self {
        Self { on, groups: BTreeMap::new(), seen: Seen::default() }
    }

    /// A p-node's process is gone, and its views with it.
    pub fn forget_views(&mut self, host: usize) {
        self.groups.values_mut().for_each(|g| g.views.retain(|v| v.host != host));
    }

    /// The violation that an event is, if it is one.
    pub fn event(&mut self, host: &Host, now_ns: u64, event: &ProbeEvent) -> Option<String> {
        self.count(event);
        if !self.on {
            return None;
        }
        match *event {
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
            ProbeEvent::Published { partition, epoch, index, serial, .. } => {
                self.group(partition).published(partition, now_ns, epoch, index, serial.0)
            }
            ProbeEvent::LeaseGranted { .. } => None,
            ProbeEvent::ViewMade { partition, epoch, serial, lease_until_ns, .. } => {
                let view = View {
                    host: host.index,
                    name: host.name.clone(),
                    clock: host.clock.clone(),
                    epoch,
                    serial: serial.0,
                    lease_until_ns,
                };
                let group = self.group(partition);
                group.views.retain(|v| v.host != host.index);
                group.views.push(view);
                None
            }
        }
    }

    fn group(&mut self, partition: PartitionId) -> &mut Group {
        self.groups.entry(partition).or_default()
    }

    fn count(&mut self, event: &ProbeEvent) {
        let seen = &mut self.seen;
        match event {
            ProbeEvent::Led { .. } => seen.leaders += 1,
            ProbeEvent::Appended { .. } => seen.appended += 1,
            ProbeEvent::Truncated { partition, node, first, freezes } => {
                seen.truncations += 1;
                seen.truncated_freezes += u64::from(*freezes);
                let log = self.groups.get(partition).and_then(|g| g.logs.get(node));
                seen.truncated_entries += log.map_or(0, |l| l.range(first..).count() as u64);
            }
            ProbeEvent::Installed { .. } | ProbeEvent::Committed { .. } => {}
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
}
