//! What can be done to the cluster. A fault is drawn at random from a seed ([`plan`]); several can be in force at once, on
//! different servers. Pure: [`injection`](crate::injection) does it.

mod plan;

use std::collections::BTreeMap;
use std::fmt;

pub use plan::{Plan, Step};

use sextant_dev_cluster::Role;

use crate::host::capability::Capability;
use crate::host::rules::{Direction, Rule};
use crate::server::Id;

/// A kind of fault, as it is counted and named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Kill,
    KillTier,
    Pause,
    Isolate,
    Split,
    OneWay,
    Loss,
    LinkDown,
    SlowLink,
    DiskFull,
    DiskHung,
    DiskFrozen,
    DiskSlow,
    DiskThrottled,
    FsyncFails,
    Clocks,
    Wipe,
    WipeLog,
    WipeData,
    OlderCopy,
}

impl Kind {
    /// Not with `--no-wipes`.
    pub const WIPES: [Kind; 4] = [Kind::Wipe, Kind::WipeLog, Kind::WipeData, Kind::OlderCopy];

    pub const ALL: [Kind; 16] = [
        Kind::Kill,
        Kind::KillTier,
        Kind::Pause,
        Kind::Isolate,
        Kind::Split,
        Kind::OneWay,
        Kind::Loss,
        Kind::LinkDown,
        Kind::SlowLink,
        Kind::DiskFull,
        Kind::DiskHung,
        Kind::DiskFrozen,
        Kind::DiskSlow,
        Kind::DiskThrottled,
        Kind::FsyncFails,
        Kind::Clocks,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Kill => "kill",
            Kind::KillTier => "kill-tier",
            Kind::Pause => "pause",
            Kind::Isolate => "isolate",
            Kind::Split => "split",
            Kind::OneWay => "one-way",
            Kind::Loss => "loss",
            Kind::LinkDown => "link-down",
            Kind::SlowLink => "slow-link",
            Kind::DiskFull => "disk-full",
            Kind::DiskHung => "disk-hung",
            Kind::DiskFrozen => "disk-frozen",
            Kind::DiskSlow => "disk-slow",
            Kind::DiskThrottled => "disk-throttled",
            Kind::FsyncFails => "fsync-fails",
            Kind::Clocks => "clocks",
            Kind::Wipe => "wipe",
            Kind::WipeLog => "wipe-log",
            Kind::WipeData => "wipe-data",
            Kind::OlderCopy => "older-copy",
        }
    }

    /// What the machine must be able to do for it.
    pub fn needs(self) -> &'static [Capability] {
        match self {
            Kind::Kill | Kind::KillTier | Kind::Pause => &[],
            Kind::Wipe | Kind::WipeLog | Kind::WipeData | Kind::OlderCopy => &[],
            Kind::Isolate | Kind::Split | Kind::OneWay | Kind::Loss => &[Capability::Netns, Capability::Nft],
            Kind::LinkDown => &[Capability::Netns],
            Kind::SlowLink => &[Capability::Netns, Capability::Tbf],
            Kind::DiskFull | Kind::DiskFrozen => &[Capability::Loop],
            Kind::DiskThrottled => &[Capability::Loop, Capability::Blkio],
            Kind::DiskHung | Kind::DiskSlow | Kind::FsyncFails | Kind::Clocks => &[Capability::Shim],
        }
    }
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL; started again when it is healed.
    Kill {
        kind: Kind,
        servers: Vec<Id>,
    },
    /// SIGSTOP, SIGCONT.
    Pause {
        server: Id,
    },
    /// Packets between the two groups are dropped, in both directions or (`one_way`) from the first to the second only.
    Cut {
        kind: Kind,
        from: Vec<Id>,
        to: Vec<Id>,
        one_way: bool,
    },
    /// From everybody, the load included.
    Isolate {
        server: Id,
    },
    Loss {
        server: Id,
        percent: u8,
    },
    LinkDown {
        server: Id,
    },
    SlowLink {
        server: Id,
        kilobits: u32,
    },
    DiskFull {
        server: Id,
    },
    /// fsyncs do not return.
    DiskHung {
        server: Id,
    },
    /// Writes do not return.
    DiskFrozen {
        server: Id,
    },
    DiskSlow {
        server: Id,
        ms: u64,
    },
    DiskThrottled {
        server: Id,
        bytes: u64,
    },
    /// A memtable server ends by itself, and is started again when it is healed; an sstable server gives up what it writes.
    FsyncFails {
        server: Id,
    },
    /// Started again with other clocks.
    Clocks {
        server: Id,
    },
    /// Killed, and started again with what the kind leaves of its directories.
    Wipe {
        kind: Kind,
        server: Id,
    },
}

impl Fault {
    pub fn kind(&self) -> Kind {
        match self {
            Fault::Kill { kind, .. } | Fault::Cut { kind, .. } | Fault::Wipe { kind, .. } => *kind,
            Fault::Pause { .. } => Kind::Pause,
            Fault::Isolate { .. } => Kind::Isolate,
            Fault::Loss { .. } => Kind::Loss,
            Fault::LinkDown { .. } => Kind::LinkDown,
            Fault::SlowLink { .. } => Kind::SlowLink,
            Fault::DiskFull { .. } => Kind::DiskFull,
            Fault::DiskHung { .. } => Kind::DiskHung,
            Fault::DiskFrozen { .. } => Kind::DiskFrozen,
            Fault::DiskSlow { .. } => Kind::DiskSlow,
            Fault::DiskThrottled { .. } => Kind::DiskThrottled,
            Fault::FsyncFails { .. } => Kind::FsyncFails,
            Fault::Clocks { .. } => Kind::Clocks,
        }
    }

    /// The servers that are broken.
    pub fn servers(&self) -> Vec<Id> {
        match self {
            Fault::Kill { servers, .. } => servers.clone(),
            Fault::Cut { from, to, .. } => from.iter().chain(to).copied().collect(),
            Fault::Pause { server }
            | Fault::Isolate { server }
            | Fault::Loss { server, .. }
            | Fault::LinkDown { server }
            | Fault::SlowLink { server, .. }
            | Fault::DiskFull { server }
            | Fault::DiskHung { server }
            | Fault::DiskFrozen { server }
            | Fault::DiskSlow { server, .. }
            | Fault::DiskThrottled { server, .. }
            | Fault::FsyncFails { server }
            | Fault::Clocks { server }
            | Fault::Wipe { server, .. } => vec![*server],
        }
    }

    /// Whether the servers are expected to end by themselves.
    pub fn ends_servers(&self) -> bool {
        matches!(self, Fault::FsyncFails { server } if server.role == Role::Memtable)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |ids: &[Id]| ids.iter().map(Id::to_string).collect::<Vec<_>>().join(" ");
        write!(f, "{} ", self.kind().name())?;
        match self {
            Fault::Cut { from, to, one_way, .. } => {
                write!(f, "{} {} {}", list(from), if *one_way { "->" } else { "<->" }, list(to))
            }
            Fault::Loss { server, percent } => write!(f, "{server} {percent} %"),
            Fault::SlowLink { server, kilobits } => write!(f, "{server} {kilobits} kbit/s"),
            Fault::DiskSlow { server, ms } => write!(f, "{server} {ms} ms a fsync"),
            Fault::DiskThrottled { server, bytes } => write!(f, "{server} {bytes} B/s"),
            other => f.write_str(&list(&other.servers())),
        }
    }
}

/// The packet filters of faults that are in force together.
pub fn filters(faults: &[&Fault], address: impl Fn(Id) -> String) -> BTreeMap<Id, Vec<Rule>> {
    let mut filters: BTreeMap<Id, Vec<Rule>> = BTreeMap::new();
    let mut add = |id: Id, rule: Rule| filters.entry(id).or_default().push(rule);
    for fault in faults {
        match fault {
            Fault::Isolate { server } => {
                add(*server, Rule::loss(Direction::In, 100));
                add(*server, Rule::loss(Direction::Out, 100));
            }
            Fault::Loss { server, percent } => {
                add(*server, Rule::loss(Direction::In, *percent));
                add(*server, Rule::loss(Direction::Out, *percent));
            }
            Fault::Cut { from, to, one_way, .. } => {
                for (a, b) in from.iter().flat_map(|a| to.iter().map(move |b| (*a, *b))) {
                    add(b, Rule::cut(Direction::In, &address(a)));
                    if !one_way {
                        add(b, Rule::cut(Direction::Out, &address(a)));
                    }
                }
            }
            _ => {}
        }
    }
    filters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_of_several_faults_are_put_together() {
        let id = |index| Id::new(Role::Memtable, index);
        let cut = Fault::Cut { kind: Kind::OneWay, from: vec![id(0)], to: vec![id(1)], one_way: true };
        let loss = Fault::Loss { server: id(1), percent: 20 };
        let filters = filters(&[&cut, &loss], |id| format!("10.0.0.{}", id.index));
        assert_eq!(filters.len(), 1);
        let expected = [
            Rule::cut(Direction::In, "10.0.0.0"),
            Rule::loss(Direction::In, 20),
            Rule::loss(Direction::Out, 20),
        ];
        assert_eq!(filters[&id(1)], expected);
        assert_eq!(cut.to_string(), "one-way memtable-1 -> memtable-2");
    }
}
