//! Which links are cut, held or slow: the sum of all faults that are under way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A fault of the network. Names of hosts.
#[derive(Clone, Debug)]
pub enum NetFault {
    /// Nothing passes from the first to the second; `both`: nor back.
    Cut {
        from: Vec<String>,
        to: Vec<String>,
        both: bool,
    },
    /// What is sent waits until the fault ends.
    Hold {
        a: Vec<String>,
        b: Vec<String>,
    },
    Slow {
        a: Vec<String>,
        b: Vec<String>,
        latency: Duration,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Link {
    cut_forth: bool,
    cut_back: bool,
    held: bool,
    slow: Option<Duration>,
}

pub struct Network {
    hosts: Vec<String>,
    latency: Duration,
    faults: BTreeMap<u64, NetFault>,
    next: u64,
    links: BTreeMap<(usize, usize), Link>,
}

impl Network {
    pub fn new(hosts: Vec<String>, latency: Duration) -> Self {
        Self { hosts, latency, faults: BTreeMap::new(), next: 0, links: BTreeMap::new() }
    }

    /// Begins a fault; its number ends it.
    pub fn begin(&mut self, sim: &mut turmoil::Sim<'static>, fault: NetFault) -> u64 {
        self.next += 1;
        self.faults.insert(self.next, fault);
        self.apply(sim);
        self.next
    }

    pub fn end(&mut self, sim: &mut turmoil::Sim<'static>, fault: u64) {
        self.faults.remove(&fault);
        self.apply(sim);
    }

    pub fn end_all(&mut self, sim: &mut turmoil::Sim<'static>) {
        self.faults.clear();
        self.apply(sim);
    }

    /// Everybody but these.
    pub fn others(&self, of: &[String]) -> Vec<String> {
        self.hosts.iter().filter(|h| !of.contains(h)).cloned().collect()
    }

    fn wanted(&self, a: usize, b: usize) -> Link {
        let mut link = Link::default();
        let joins = |x: &[String], y: &[String]| x.contains(&self.hosts[a]) && y.contains(&self.hosts[b]);
        for fault in self.faults.values() {
            match fault {
                NetFault::Cut { from, to, both } => {
                    link.cut_forth |= joins(from, to) || (*both && joins(to, from));
                    link.cut_back |= joins(to, from) || (*both && joins(from, to));
                }
                NetFault::Hold { a, b } => link.held |= joins(a, b) || joins(b, a),
                NetFault::Slow { a, b, latency } if joins(a, b) || joins(b, a) => {
                    link.slow = link.slow.max(Some(*latency));
                }
                NetFault::Slow { .. } => {}
            }
        }
        link
    }

    fn apply(&mut self, sim: &mut turmoil::Sim<'static>) {
        for a in 0..self.hosts.len() {
            for b in a + 1..self.hosts.len() {
                let wanted = self.wanted(a, b);
                let had = self.links.insert((a, b), wanted).unwrap_or_default();
                if had == wanted {
                    continue;
                }
                let (x, y) = (self.hosts[a].as_str(), self.hosts[b].as_str());
                if had.held && !wanted.held {
                    sim.release(x, y);
                }
                sim.repair(x, y);
                if wanted.held {
                    sim.hold(x, y);
                } else {
                    if wanted.cut_forth {
                        sim.partition_oneway(x, y);
                    }
                    if wanted.cut_back {
                        sim.partition_oneway(y, x);
                    }
                }
                if had.slow != wanted.slow {
                    sim.set_link_max_message_latency(x, y, wanted.slow.unwrap_or(self.latency));
                }
            }
        }
    }
}

/// A random half (or so) of the hosts.
pub fn some(rng: &mut fastrand::Rng, hosts: &[String]) -> Vec<String> {
    let mut chosen: BTreeSet<String> = hosts.iter().filter(|_| rng.bool()).cloned().collect();
    if chosen.is_empty() || chosen.len() == hosts.len() {
        chosen = BTreeSet::from([hosts[rng.usize(0..hosts.len())].clone()]);
    }
    chosen.into_iter().collect()
}
