//! The servers of the cluster: how many, and their names.

use sextant_dev_cluster::Role;

pub const MEMTABLE_SERVERS: usize = 3;
pub const SSTABLE_SERVERS: usize = 3;
pub const PNODES: usize = 2;

/// A server of the cluster. Ordered: memtable servers, sstable servers, p-nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    pub role: Role,
    /// From 0.
    pub index: usize,
}

impl Id {
    pub fn new(role: Role, index: usize) -> Self {
        Self { role, index }
    }

    /// All servers.
    pub fn all() -> Vec<Id> {
        [Role::Memtable, Role::Sstable, Role::PNode].into_iter().flat_map(Id::tier).collect()
    }

    /// All servers of a tier.
    pub fn tier(role: Role) -> Vec<Id> {
        let count = match role {
            Role::Memtable => MEMTABLE_SERVERS,
            Role::Sstable => SSTABLE_SERVERS,
            Role::PNode => PNODES,
        };
        (0..count).map(|index| Id { role, index }).collect()
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.role.name(), self.index + 1)
    }
}
