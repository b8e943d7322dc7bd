//! Who leads which partition, as far as is known.
//!
//! Learned from servers that answer as leaders, from hints of others, and from failures. Only a routing aid: a server that
//! is asked for a partition that it does not lead says so.

use sextant_common::ids::{NodeId, PartitionId};
use sextant_proto::v1;
use tokio::sync::watch;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leader {
    pub node: Option<NodeId>,
    pub term: u64,
    /// It did not answer, or denied it: others are asked too.
    pub suspect: bool,
}

impl Leader {
    pub fn is_certain(&self) -> bool {
        self.node.is_some() && !self.suspect
    }
}

/// Who leads, as another server believes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hint {
    pub node: NodeId,
    pub term: u64,
}

impl From<&v1::LeaderHint> for Hint {
    fn from(hint: &v1::LeaderHint) -> Self {
        Self { node: NodeId(hint.node), term: hint.term }
    }
}

pub(crate) struct Leaders {
    partitions: Vec<watch::Sender<Leader>>,
    /// Counts all changes.
    changes: watch::Sender<u64>,
}

impl Leaders {
    pub fn new(partitions: u32) -> Self {
        let partitions = (0..partitions).map(|_| watch::Sender::new(Leader::default())).collect();
        Self { partitions, changes: watch::Sender::new(0) }
    }

    pub fn get(&self, partition: PartitionId) -> Leader {
        *self.partitions[partition.0 as usize].borrow()
    }

    /// `node` itself answered as leader in `term`.
    pub fn confirm(&self, partition: PartitionId, node: NodeId, term: u64) {
        self.change(partition, |now| {
            if term > now.term || now.node.is_none() || term == now.term && now.node == Some(node) {
                *now = Leader { node: Some(node), term, suspect: false };
            }
        });
    }

    /// Another server believes so.
    pub fn hint(&self, partition: PartitionId, node: NodeId, term: u64) {
        if node.0 == 0 {
            return;
        }
        self.change(partition, |now| {
            if term > now.term || now.node.is_none() && term == now.term {
                *now = Leader { node: Some(node), term, suspect: false };
            }
        });
    }

    /// `node` failed to answer, or denied that it leads.
    pub fn suspect(&self, partition: PartitionId, node: NodeId) {
        self.change(partition, |now| {
            if now.node == Some(node) {
                now.suspect = true;
            }
        });
    }

    /// `node` cannot be reached: whatever it leads may have moved.
    pub fn suspect_all_of(&self, node: NodeId) {
        for partition in 0..self.partitions.len() as u32 {
            self.suspect(PartitionId(partition), node);
        }
    }

    pub fn watch(&self, partition: PartitionId) -> watch::Receiver<Leader> {
        self.partitions[partition.0 as usize].subscribe()
    }

    pub fn watch_all(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Partitions about which `node` has to be asked: those that it leads, and those whose leader is not certain.
    pub fn asked_of(&self, node: NodeId) -> Vec<PartitionId> {
        let concerns = |l: &Leader| l.node == Some(node) || !l.is_certain();
        let all = self.partitions.iter().enumerate();
        all.filter(|(_, p)| concerns(&p.borrow())).map(|(at, _)| PartitionId(at as u32)).collect()
    }

    fn change(&self, partition: PartitionId, change: impl FnOnce(&mut Leader)) {
        let Some(sender) = self.partitions.get(partition.0 as usize) else { return };
        let changed = sender.send_if_modified(|now| {
            let before = *now;
            change(now);
            *now != before
        });
        if changed {
            self.changes.send_modify(|n| *n += 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PartitionId = PartitionId(0);
    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);

    #[test]
    fn a_higher_term_wins_and_an_older_one_changes_nothing() {
        let leaders = Leaders::new(1);
        leaders.confirm(P, A, 5);
        leaders.hint(P, B, 4);
        leaders.confirm(P, B, 3);
        assert_eq!(leaders.get(P), Leader { node: Some(A), term: 5, suspect: false });
        leaders.hint(P, B, 6);
        assert_eq!(leaders.get(P).node, Some(B));
        leaders.hint(P, NodeId(0), 9);
        assert_eq!(leaders.get(P).node, Some(B), "0: no idea");
    }

    #[test]
    fn a_suspect_is_asked_along_with_the_others_until_it_confirms() {
        let leaders = Leaders::new(2);
        leaders.confirm(P, A, 5);
        leaders.confirm(PartitionId(1), A, 5);
        assert!(leaders.asked_of(B).is_empty());
        leaders.suspect(P, B);
        assert!(leaders.asked_of(B).is_empty(), "only the leader itself can be suspected");
        leaders.suspect(P, A);
        assert_eq!(leaders.asked_of(B), [P]);
        assert_eq!(leaders.asked_of(A), [P, PartitionId(1)]);
        leaders.hint(P, A, 5);
        assert!(leaders.get(P).suspect, "hearsay about the same term clears nobody");
        leaders.confirm(P, A, 5);
        assert!(leaders.get(P).is_certain());
    }

    #[test]
    fn waiters_see_changes() {
        let leaders = Leaders::new(1);
        let mut watch = leaders.watch(P);
        leaders.confirm(P, A, 1);
        assert!(watch.has_changed().unwrap());
        watch.mark_unchanged();
        leaders.confirm(P, A, 1);
        assert!(!watch.has_changed().unwrap());
    }
}
