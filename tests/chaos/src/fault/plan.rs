//! Which fault comes next, for how long, and how long nothing follows. Pure: the same seed gives the same plan.

use std::sync::Arc;
use std::time::Duration;

use sextant_dev_cluster::Role;
use sextant_environment::rng::{Rng, SeededRng};

use super::{Fault, Kind};
use crate::server::Id;

/// A lease of a p-node, which pauses are measured by.
const LEASE_MS: u64 = 300;

/// Faults that are in force together, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// One, or two on different servers.
    pub faults: Vec<Fault>,
    pub hold: Duration,
    pub calm: Duration,
}

/// A source of steps.
pub struct Plan {
    rng: Arc<dyn Rng>,
    kinds: Vec<Kind>,
}

impl Plan {
    /// `kinds`: those that can be done here; at least one.
    pub fn new(seed: u64, kinds: Vec<Kind>) -> Self {
        Self { rng: Arc::new(SeededRng::new(seed)), kinds }
    }

    pub fn next_step(&mut self) -> Step {
        let first = self.fault();
        let mut faults = vec![first];
        if self.rng.below(4) == 0 {
            let second = self.fault();
            let busy = faults[0].servers();
            // That directories were set back can be noticed only by a leader in office: nothing else is done to one then.
            let older = [&faults[0], &second].iter().any(|fault| fault.kind() == Kind::OlderCopy);
            if !older && second.servers().iter().all(|id| !busy.contains(id)) {
                faults.push(second);
            }
        }
        let hold_ms = faults.iter().map(|f| self.hold_ms(f)).max().unwrap_or(0);
        Step {
            faults,
            hold: Duration::from_millis(hold_ms),
            calm: Duration::from_millis(200 + self.rng.below(2_500)),
        }
    }

    fn pick<T: Copy>(&self, from: &[T]) -> T {
        from[self.rng.below(from.len() as u64) as usize]
    }

    /// Memtable servers are the most interesting.
    fn server(&self) -> Id {
        let tier = self.pick(&[Role::Memtable, Role::Memtable, Role::Memtable, Role::Sstable, Role::PNode]);
        self.pick(&Id::tier(tier))
    }

    /// One with a disk.
    fn keeper(&self) -> Id {
        self.pick(&Id::tier(self.pick(&[Role::Memtable, Role::Memtable, Role::Sstable])))
    }

    fn fault(&self) -> Fault {
        match self.pick(&self.kinds) {
            Kind::Kill => Fault::Kill { kind: Kind::Kill, servers: vec![self.server()] },
            Kind::KillTier => {
                let role = self.pick(&[Role::Memtable, Role::Memtable, Role::Sstable, Role::PNode]);
                let mut servers = Id::tier(role);
                // All of a tier, or a majority.
                if self.rng.below(2) == 0 {
                    servers.remove(self.rng.below(servers.len() as u64) as usize);
                }
                Fault::Kill { kind: Kind::KillTier, servers }
            }
            Kind::Pause => Fault::Pause { server: self.server() },
            Kind::Isolate => Fault::Isolate { server: self.server() },
            Kind::Split => {
                let (from, to) = self.sides();
                Fault::Cut { kind: Kind::Split, from, to, one_way: false }
            }
            Kind::OneWay => {
                let (from, to) = self.sides();
                let (from, to) = if self.rng.below(2) == 0 { (from, to) } else { (to, from) };
                Fault::Cut { kind: Kind::OneWay, from, to, one_way: true }
            }
            Kind::Loss => Fault::Loss { server: self.server(), percent: 5 + self.rng.below(50) as u8 },
            Kind::LinkDown => Fault::LinkDown { server: self.server() },
            Kind::SlowLink => {
                Fault::SlowLink { server: self.server(), kilobits: self.pick(&[100, 400, 2_000]) }
            }
            Kind::DiskFull => Fault::DiskFull { server: self.keeper() },
            Kind::DiskHung => Fault::DiskHung { server: self.keeper() },
            Kind::DiskFrozen => Fault::DiskFrozen { server: self.keeper() },
            Kind::DiskSlow => Fault::DiskSlow { server: self.keeper(), ms: self.pick(&[5, 30, 120]) },
            Kind::DiskThrottled => {
                Fault::DiskThrottled { server: self.keeper(), bytes: self.pick(&[64 << 10, 512 << 10]) }
            }
            Kind::FsyncFails => Fault::FsyncFails { server: self.keeper() },
            Kind::Clocks => Fault::Clocks { server: self.server() },
            kind @ (Kind::Wipe | Kind::WipeLog | Kind::WipeData | Kind::OlderCopy) => {
                Fault::Wipe { kind, server: self.pick(&Id::tier(Role::Memtable)) }
            }
        }
    }

    /// Two groups that are to be cut off from each other.
    fn sides(&self) -> (Vec<Id>, Vec<Id>) {
        let (memtable, sstable, pnodes) =
            (Id::tier(Role::Memtable), Id::tier(Role::Sstable), Id::tier(Role::PNode));
        match self.rng.below(6) {
            // One memtable server from its peers: it still hears p-nodes.
            0 | 1 => {
                let one = self.pick(&memtable);
                (vec![one], memtable.into_iter().filter(|id| *id != one).collect())
            }
            // Two that do not hear each other, with a third that hears both.
            2 => {
                let third = self.pick(&memtable);
                let mut two = memtable.into_iter().filter(|id| *id != third);
                (two.next().into_iter().collect(), two.collect())
            }
            3 => (vec![self.pick(&pnodes)], memtable),
            4 => (vec![self.pick(&pnodes)], vec![self.pick(&memtable)]),
            _ => (memtable, sstable),
        }
    }

    fn hold_ms(&self, fault: &Fault) -> u64 {
        match fault {
            // Shorter than a lease, about as long, well over.
            Fault::Pause { .. } => match self.rng.below(3) {
                0 => 20 + self.rng.below(LEASE_MS / 2),
                1 => LEASE_MS - 60 + self.rng.below(200),
                _ => 2 * LEASE_MS + self.rng.below(3_000),
            },
            Fault::Kill { .. } | Fault::Clocks { .. } | Fault::Wipe { .. } => self.rng.below(2_000),
            Fault::DiskFull { .. } | Fault::DiskThrottled { .. } => 2_000 + self.rng.below(5_000),
            Fault::FsyncFails { .. } => 300 + self.rng.below(2_000),
            _ => 300 + self.rng.below(4_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_is_a_plan_and_every_kind_comes() {
        let steps = |seed| {
            let mut plan = Plan::new(seed, [&Kind::ALL[..], &Kind::WIPES].concat());
            (0..800).map(|_| plan.next_step()).collect::<Vec<_>>()
        };
        assert_eq!(steps(7), steps(7));
        let all = steps(8);
        let seen: BTreeSet<Kind> = all.iter().flat_map(|s| &s.faults).map(Fault::kind).collect();
        assert_eq!(seen.len(), Kind::ALL.len() + Kind::WIPES.len());
        for step in all {
            assert!(step.hold <= Duration::from_secs(8) && step.calm <= Duration::from_secs(3));
            let servers: Vec<Id> = step.faults.iter().flat_map(Fault::servers).collect();
            let different: BTreeSet<Id> = servers.iter().copied().collect();
            assert_eq!(different.len(), servers.len(), "{:?}", step.faults);
        }
    }

    #[test]
    fn only_what_is_offered_is_done() {
        let mut plan = Plan::new(1, vec![Kind::Pause]);
        assert!((0..50).all(|_| plan.next_step().faults.iter().all(|f| f.kind() == Kind::Pause)));
    }
}
