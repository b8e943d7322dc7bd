//! What servers tell each other about their memory, before a group is founded or a partition is rebuilt.

/// What a memtable server remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Log entries or a snapshot of the partition.
    pub partition: bool,
    /// ... of any partition.
    pub any: bool,
    /// The newest term that it has heard of in the partition.
    pub term: u64,
    /// It was told that it is not the member that the partition's group means: so there was a group.
    pub lost: bool,
}
