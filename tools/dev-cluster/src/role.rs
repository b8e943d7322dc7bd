//! What a server is.

/// The role of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Memtable,
    Sstable,
    PNode,
}

impl Role {
    /// The subcommand that runs it, and the first part of its name.
    pub fn name(self) -> &'static str {
        match self {
            Role::Memtable => "memtable",
            Role::Sstable => "sstable",
            Role::PNode => "pnode",
        }
    }
}
