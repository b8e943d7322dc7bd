//! What a replica remembers of memberships beyond its leaderships.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(super) struct Standing {
    /// Index of the newest membership that was appended; 0: none that this worker has seen. Raft's metrics may lag behind it.
    pub appended: u64,
    /// What Raft was asked for in a term whose leadership has ended here. Should it come back in that term, it still counts.
    left_behind: Option<(u64, BTreeSet<u64>)>,
    pub rejoining: Rejoining,
}

/// What this node remembers of its attempts, over its leaderships.
#[derive(Default)]
pub(super) struct Rejoining {
    /// Which strangers were reported: node -> what it is now.
    pub(super) reported: BTreeMap<u64, u64>,
    /// The same for those whose id a member has.
    pub(super) doubled: BTreeMap<u64, u64>,
    pub(super) next_ns: u64,
}

impl Standing {
    /// A membership came into the log.
    pub fn membership_appended(&mut self, index: u64) {
        self.appended = index;
    }

    /// The log was cut.
    pub fn membership_truncated(&mut self, first: u64) {
        if self.appended >= first {
            self.appended = 0;
        }
    }

    /// The leadership of a term ends, in which Raft was asked for these voters.
    pub fn leave_behind(&mut self, term: u64, target: BTreeSet<u64>) {
        self.left_behind = Some((term, target));
    }

    /// What Raft was asked for in this term, before its leadership ended here.
    pub fn left_behind(&self, term: u64) -> Option<&BTreeSet<u64>> {
        self.left_behind.as_ref().filter(|(of, _)| *of == term).map(|(_, target)| target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_membership_that_is_cut_from_the_log_is_not_waited_for() {
        let mut standing = Standing::default();
        standing.membership_appended(9);
        standing.membership_truncated(10);
        assert_eq!(standing.appended, 9);
        standing.membership_truncated(9);
        assert_eq!(standing.appended, 0);
    }
}
