//! What servers remember, and what the explorer knows besides.

pub const SERVERS: usize = 3;

/// A server's part in a membership, by its incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Member {
    None,
    Learner(u8),
    Voter(u8),
}

pub type Membership = [Member; SERVERS];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// A leader's own first entry.
    First,
    Write(u8),
    Membership(Membership),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    pub term: u8,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    Follower,
    /// Who has granted it its vote: a set.
    Candidate {
        granted: u8,
    },
    Leader {
        /// What each server has acknowledged: its incarnation, and how many entries.
        acknowledged: [(u8, u8); SERVERS],
        committed: u8,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    pub incarnation: u8,
    pub term: u8,
    /// 1 + the server for which it has voted in that term; 0: nobody.
    pub voted: u8,
    pub log: Vec<Entry>,
    /// Lost when the process ends; a process that ends is one that is not heard any more.
    pub role: Role,
}

impl Server {
    /// As it is with empty directories.
    pub fn empty(incarnation: u8) -> Self {
        Self { incarnation, term: 0, voted: 0, log: Vec::new(), role: Role::Follower }
    }

    /// It has neither promised nor stored anything.
    pub fn is_blank(&self) -> bool {
        self.term == 0 && self.voted == 0 && self.log.is_empty()
    }

    /// The newest membership in its log, committed or not, and its place.
    pub fn membership(&self) -> Option<(usize, Membership)> {
        self.log.iter().enumerate().rev().find_map(|(at, entry)| match entry.what {
            What::Membership(membership) => Some((at, membership)),
            _ => None,
        })
    }

    /// What logs are compared by: the term of the last entry, then the length.
    pub fn last(&self) -> (u8, usize) {
        (self.log.last().map_or(0, |e| e.term), self.log.len())
    }

    pub fn has_write(&self, write: u8) -> bool {
        self.log.iter().any(|e| e.what == What::Write(write))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub servers: [Server; SERVERS],
    pub writes: u8,
    pub wipes: u8,
    pub campaigns: u8,
    pub changes: u8,
    /// By write: 1 + the term in which it was acknowledged; 0: it was not.
    pub acknowledged: [u8; 4],
    /// Nobody's knowledge: the newest membership that is committed. None: no group was founded.
    pub committed: Option<Membership>,
}

impl State {
    pub fn new() -> Self {
        Self {
            servers: std::array::from_fn(|_| Server::empty(0)),
            writes: 0,
            wipes: 0,
            campaigns: 0,
            changes: 0,
            acknowledged: [0; 4],
            committed: None,
        }
    }

    /// Whether a server is a voter that has its memory.
    pub fn is_sound(&self, server: usize) -> bool {
        self.committed.is_some_and(|m| m[server] == Member::Voter(self.servers[server].incarnation))
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

pub fn voters(membership: &Membership) -> usize {
    membership.iter().filter(|m| matches!(m, Member::Voter(_))).count()
}

pub fn is_majority(count: usize, membership: &Membership) -> bool {
    2 * count > voters(membership)
}
