//! Counts what expires, and knows what will next. One writer, any number of readers of the counts.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use sextant_common::expiry::Tick;
use sextant_common::manifest::Expiring;

#[derive(Debug, Default)]
pub(super) struct AtomicExpiring {
    records: AtomicU64,
    first: AtomicU64,
    last: AtomicU64,
    /// Up to there all that there was had expired once, so time rested.
    passed: AtomicU64,
    /// The first that expires after that; 0: none does.
    first_after: AtomicU64,
}

impl AtomicExpiring {
    #[inline]
    pub fn add(&self, expires_at: Option<Tick>) {
        if let Some(at) = expires_at {
            let mut all = self.get();
            all.add(expires_at);
            // Whoever reads in between sees a range that is too small by what is just being written, which nobody has heard of.
            self.first.store(all.first.0, Relaxed);
            self.last.store(all.last.0, Relaxed);
            self.records.store(all.records, Relaxed);
            let first_after = self.first_after.load(Relaxed);
            if at.0 > self.passed.load(Relaxed) && (first_after == 0 || at.0 < first_after) {
                self.first_after.store(at.0, Relaxed);
            }
        }
    }

    pub fn get(&self) -> Expiring {
        Expiring {
            records: self.records.load(Relaxed),
            first: Tick(self.first.load(Relaxed)),
            last: Tick(self.last.load(Relaxed)),
        }
    }

    /// The earliest time after `now` at which a record may expire; None: all have. (For the writer.)
    ///
    /// It remembers when all had: what is written then is not mixed up with what expired long ago, and time can go straight to it.
    pub fn next_after(&self, now: Tick) -> Option<Tick> {
        if now.0 < self.passed.load(Relaxed) {
            // That time was taken back, with the entry that said so.
            self.passed.store(0, Relaxed);
            self.first_after.store(self.first.load(Relaxed), Relaxed);
        }
        let next = self.get().next_after(now);
        if next.is_none() {
            self.passed.store(now.0, Relaxed);
            self.first_after.store(0, Relaxed);
        }
        next.map(|next| next.max(Tick(self.first_after.load(Relaxed))))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_written_after_a_rest_is_not_mixed_up_with_what_expired_before() {
        let expiring = AtomicExpiring::default();
        let add = |at| expiring.add(Some(Tick(at)));
        let next = |now| expiring.next_after(Tick(now)).map(|tick| tick.0);
        assert_eq!(next(0), None);
        add(300);
        add(200);
        assert_eq!([0, 199, 200, 299, 300].map(next), [Some(200), Some(200), Some(201), Some(300), None]);
        add(22_400);
        assert_eq!(next(300), Some(22_400));
        add(22_900);
        add(150);
        assert_eq!(next(300), Some(22_400), "what had expired when it was written does not count");
        assert_eq!(next(22_400), Some(22_401));
        assert_eq!(expiring.get(), Expiring { records: 5, first: Tick(150), last: Tick(22_900) });
    }

    #[test]
    fn a_time_that_is_taken_back_is_still_to_come() {
        let expiring = AtomicExpiring::default();
        expiring.add(Some(Tick(300)));
        assert_eq!(expiring.next_after(Tick(500)), None);
        expiring.add(Some(Tick(900)));
        assert_eq!(expiring.next_after(Tick(500)), Some(Tick(900)));
        assert_eq!(expiring.next_after(Tick(100)), Some(Tick(300)));
    }

    proptest! {
        /// Records are written, time goes on (or back), and it is asked: nothing that is still to come comes before what is said.
        #[test]
        fn nothing_expires_before_what_is_said_to_be_next(
            steps in prop::collection::vec((prop::option::of(1u64..60), 0u64..60), 0..40),
        ) {
            let (expiring, mut all) = (AtomicExpiring::default(), Vec::new());
            for (written, now) in steps {
                expiring.add(written.map(Tick));
                all.extend(written);
                let first = all.iter().copied().filter(|at| *at > now).min();
                let said = expiring.next_after(Tick(now)).map(|tick| tick.0);
                prop_assert_eq!(said.is_some(), first.is_some());
                prop_assert!(said <= first && said.is_none_or(|said| said > now));
            }
        }
    }
}
