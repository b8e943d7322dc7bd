//! Whether a replica has caught up since its server started: it has applied what was committed, as the first leader that it heard
//! said. Until then another server that is stopped may leave the group with one that lacks what it needs.
//!
//! Invariant: once reached it stays so. Whoever lags later is found by metrics.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

#[derive(Debug, Default)]
pub struct CatchUp {
    reached: AtomicBool,
    behind: Mutex<Behind>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Behind {
    pub applied: u64,
    /// None: nobody has said yet what is committed.
    pub committed: Option<u64>,
}

impl CatchUp {
    pub fn is_reached(&self) -> bool {
        self.reached.load(Ordering::Acquire)
    }

    /// None: it has caught up.
    pub fn behind(&self) -> Option<Behind> {
        (!self.is_reached()).then(|| *self.behind.lock())
    }

    /// A leader says what is committed. (It may not know that yet.)
    pub fn heard(&self, committed: Option<u64>) {
        self.update(|behind| behind.committed = behind.committed.or(committed));
    }

    pub fn applied(&self, index: u64) {
        self.update(|behind| behind.applied = behind.applied.max(index));
    }

    /// This node serves as the leader: it has everything.
    pub fn serves(&self) {
        self.reached.store(true, Ordering::Release);
    }

    fn update(&self, change: impl FnOnce(&mut Behind)) {
        if self.is_reached() {
            return;
        }
        let mut behind = self.behind.lock();
        change(&mut behind);
        if behind.committed.is_some_and(|committed| behind.applied >= committed) {
            self.reached.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_has_caught_up_for_good_when_it_has_what_the_first_leader_had_committed() {
        let catch_up = CatchUp::default();
        catch_up.applied(3);
        catch_up.heard(None);
        assert_eq!(catch_up.behind(), Some(Behind { applied: 3, committed: None }), "a leader that is new");
        catch_up.heard(Some(7));
        catch_up.heard(Some(900));
        catch_up.applied(6);
        assert_eq!(catch_up.behind(), Some(Behind { applied: 6, committed: Some(7) }));
        catch_up.applied(7);
        assert_eq!(catch_up.behind(), None);
        catch_up.heard(Some(900));
        assert!(catch_up.is_reached());
    }

    #[test]
    fn what_was_replayed_counts_and_a_leader_waits_for_nobody() {
        let (replayed, alone) = (CatchUp::default(), CatchUp::default());
        replayed.applied(7);
        assert!(!replayed.is_reached());
        replayed.heard(Some(7));
        assert!(replayed.is_reached());
        alone.serves();
        assert!(alone.is_reached());
    }
}
