//! What a replica says of itself: numbers for /status and metrics, refreshed by its worker.

/// Numbers for /status and metrics.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    pub leading: bool,
    pub last_index: u64,
    pub committed_index: u64,
    pub published_index: u64,
    pub persisted_index: u64,
    /// The log begins after it. None: it has everything.
    pub purged_index: Option<u64>,
    pub unflushed_bytes: usize,
    /// Limit of `unflushed_bytes`: this partition's share of the server's memory.
    pub memory_bytes: usize,
    pub writes: Writes,
    /// Why writes are slowed or refused.
    pub writes_why: Option<String>,
    pub members: Members,
    pub tables: Vec<TableNumbers>,
    pub groups: u64,
    pub group_writes: u64,
    pub waiting_requests: usize,
    pub sessions: usize,
    pub replayed_writes: u64,
    pub replay_skipped_writes: u64,
}

/// Who is in the partition's Raft group, by the newest membership in this replica's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Of both sets while they change.
    pub voters: Vec<u64>,
    /// Have the log, do not vote.
    pub learners: Vec<u64>,
}

#[derive(Clone, Debug, Default)]
pub struct TableNumbers {
    pub table: u32,
    pub generation: u64,
    pub active_entries: usize,
    pub active_bytes: usize,
    pub frozen: usize,
    pub frozen_bytes: usize,
    /// Why the last flush failed, until one succeeds.
    pub flush_error: Option<String>,
}

/// What becomes of writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writes {
    /// This replica does not lead.
    #[default]
    NotHere,
    Taken,
    Slowed,
    Refused,
}

impl Writes {
    pub fn name(self) -> &'static str {
        match self {
            Writes::NotHere => "not here",
            Writes::Taken => "taken",
            Writes::Slowed => "slowed",
            Writes::Refused => "refused",
        }
    }
}
