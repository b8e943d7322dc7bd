//! What is appended and not yet published, in log order, and the rule by which it leaves: strictly in order, when Raft has
//! committed it and the leases allow it. Pure: the worker asks, and answers the clients.

use std::collections::VecDeque;

use sextant_common::expiry::Tick;
use sextant_common::ids::Serial;

use super::Permission;

/// What the log has come to with an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The newest seq.
    pub seq: u64,
    /// The newest tick.
    pub tick: Tick,
}

/// An appended entry. `T`: whoever waits for its publication.
#[derive(Debug)]
pub struct Appended<T> {
    pub index: u64,
    /// After this entry.
    pub position: Position,
    /// Of the group's last bf-log entry; 0: it has none and needs no acknowledgement, but still waits for its predecessors.
    pub serial: Serial,
    pub waiting: T,
}

#[derive(Debug)]
pub struct PublishQueue<T> {
    entries: VecDeque<Appended<T>>,
    published_index: u64,
}

/// What can be done next.
#[derive(Debug)]
pub enum Next<T> {
    Publish(Appended<T>),
    /// The leases forbid it until an acknowledgement, or this time.
    WaitUntil(u64),
    /// Nothing that is committed is left.
    Idle,
}

impl<T> PublishQueue<T> {
    pub fn new(published_index: u64) -> Self {
        Self { entries: VecDeque::new(), published_index }
    }

    pub fn push(&mut self, entry: Appended<T>) {
        debug_assert!(self.entries.back().is_none_or(|last| last.index < entry.index));
        self.entries.push_back(entry);
    }

    /// Takes the next entry that may be published. `permit` is asked about serials only, and only in log order.
    pub fn next(&mut self, committed_index: u64, mut permit: impl FnMut(Serial) -> Permission) -> Next<T> {
        let Some((index, serial)) = self.entries.front().map(|e| (e.index, e.serial)) else {
            return Next::Idle;
        };
        if index > committed_index {
            return Next::Idle;
        }
        if let Permission::WaitUntil(at) = permit(serial) {
            return Next::WaitUntil(at);
        }
        match self.entries.pop_front() {
            Some(entry) => {
                self.published_index = entry.index;
                Next::Publish(entry)
            }
            None => Next::Idle,
        }
    }

    /// Takes back what was truncated, the newest first.
    pub fn truncate_from(&mut self, first: u64) -> Vec<Appended<T>> {
        let mut gone = Vec::new();
        while self.entries.back().is_some_and(|e| e.index >= first) {
            gone.extend(self.entries.pop_back());
        }
        gone
    }

    pub fn published_index(&self) -> u64 {
        self.published_index
    }

    /// Whether an entry is published. A fresh leader answers no memtable read before its own first entry is: until then, what
    /// the leader before it had published may not be visible here.
    pub fn has_published(&self, index: u64) -> bool {
        self.published_index >= index
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Appended and not yet committed, the newest first.
    pub fn uncommitted(&self, committed_index: u64) -> impl Iterator<Item = &Appended<T>> {
        self.entries.iter().rev().take_while(move |e| e.index > committed_index)
    }

    /// How many there are of these.
    pub fn in_flight(&self, committed_index: u64) -> usize {
        self.uncommitted(committed_index).count()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Appended<T>> {
        self.entries.iter()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Appended<T>> {
        self.entries.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(index: u64, serial: u64) -> Appended<()> {
        let position = Position { seq: index * 10, tick: Tick(0) };
        Appended { index, position, serial: Serial(serial), waiting: () }
    }

    fn granted(_: Serial) -> Permission {
        Permission::Granted
    }

    #[test]
    fn a_group_without_bits_still_waits_for_its_predecessor() {
        // Rule `publication-is-in-log-order`.
        let mut q = PublishQueue::new(0);
        q.push(entry(1, 5));
        q.push(entry(2, 0));
        let lease = |s: Serial| if s.0 > 0 { Permission::WaitUntil(77) } else { Permission::Granted };
        assert!(matches!(q.next(2, lease), Next::WaitUntil(77)));
        assert_eq!(q.published_index(), 0);
        assert!(matches!(q.next(2, granted), Next::Publish(e) if e.index == 1));
        assert!(matches!(q.next(2, lease), Next::Publish(e) if e.index == 2));
    }

    #[test]
    fn what_is_not_committed_is_not_published_and_truncation_takes_it_back() {
        let mut q = PublishQueue::new(0);
        (1..=4).for_each(|i| q.push(entry(i, 0)));
        assert!(matches!(q.next(1, granted), Next::Publish(_)));
        assert!(matches!(q.next(1, granted), Next::Idle));
        assert_eq!(q.in_flight(1), 3);
        let gone: Vec<u64> = q.truncate_from(3).into_iter().map(|e| e.index).collect();
        assert_eq!(gone, [4, 3]);
        assert!(matches!(q.next(9, granted), Next::Publish(e) if e.index == 2));
        assert!(q.is_empty());
    }

    #[test]
    fn a_fresh_leader_serves_only_when_its_own_first_entry_is_published() {
        // Rule `a-fresh-leader-waits-to-serve`: entries 1 and 2 are its predecessor's, and
        // published there; 3 is its own first.
        let mut q = PublishQueue::new(0);
        (1..=3).for_each(|i| q.push(entry(i, 0)));
        for _ in 0..2 {
            assert!(matches!(q.next(3, granted), Next::Publish(_)));
            assert!(!q.has_published(3));
        }
        assert!(matches!(q.next(3, granted), Next::Publish(_)));
        assert!(q.has_published(3));
    }

    proptest! {
        #[test]
        fn the_order_is_the_logs_whatever_the_leases_say(serials in prop::collection::vec(0u64..4, 1..30), allowed in prop::collection::vec(0u64..4, 1..60)) {
            let mut q = PublishQueue::new(0);
            for (i, serial) in serials.iter().enumerate() {
                q.push(entry(i as u64 + 1, *serial));
            }
            let mut published = Vec::new();
            for limit in allowed {
                let permit = |s: Serial| if s.0 <= limit { Permission::Granted } else { Permission::WaitUntil(1) };
                if let Next::Publish(e) = q.next(serials.len() as u64 / 2, permit) {
                    published.push(e.index);
                }
            }
            prop_assert!(published.iter().copied().eq(1..=published.len() as u64));
            prop_assert!(published.len() <= serials.len() / 2);
        }
    }
}
