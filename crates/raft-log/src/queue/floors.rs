//! Below which lsn nothing matters any more.
//!
//! A floor is computed from the partitions, which run ahead of what was taken for a device; it may be stated only by a
//! checkpoint that speaks for at least what the partitions may have shown. A segment may be used again once a checkpoint is
//! durable that states a floor above its records, and so is everything that this checkpoint speaks for: every recovery will
//! find it usable. The segment that holds this checkpoint stays, whatever its records are, until another one is found: the
//! first checkpoint of the next segment may speak for records that another device loses.
//!
//! Pure. Invariant: `durable <= stated <= current`, and none of them ever falls.

/// A checkpoint that is durable itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    /// It speaks for the records up to this one.
    pub lsn: u64,
    pub floor: u64,
    /// The number of the segment that it is in.
    pub segment: u32,
}

#[derive(Debug, Default)]
pub(super) struct Floors {
    /// Entries were purged since somebody began to compute the floor.
    stale: bool,
    /// The lsn up to which records must have been taken before a checkpoint may state a floor, and the floor.
    candidate: Option<(u64, u64)>,
    /// May be stated by a checkpoint.
    current: u64,
    /// Was stated by one that is at least on its way.
    stated: u64,
    /// Checkpoints that speak for records that are not durable yet.
    pending: Vec<Written>,
    /// Stated by a checkpoint that every recovery will find.
    durable: u64,
    /// The newest such checkpoint. None: the one that the run began with, which every device has. A device gives up its copy
    /// only for a newer one before all records of its own; the oldest of these speaks for nothing that is not durable.
    holder: Option<Written>,
}

impl Floors {
    /// `floor`: stated by the checkpoint that the run began with.
    pub fn new(floor: u64) -> Self {
        Self { current: floor, stated: floor, durable: floor, ..Self::default() }
    }

    pub fn purged(&mut self) {
        self.stale = true;
    }

    /// Whether the caller is to compute a floor, now. What is purged from here on makes another one wanted: the caller may not
    /// see it.
    pub fn begin(&mut self) -> bool {
        self.candidate.is_none() && std::mem::take(&mut self.stale)
    }

    /// A floor that was computed; the partitions may have shown records up to `shown_lsn`. Two may be computed at a time: both
    /// are true, and the higher one counts.
    pub fn offer(&mut self, floor: u64, shown_lsn: u64) {
        let (other_lsn, other) = self.candidate.unwrap_or_default();
        self.candidate = Some((shown_lsn.max(other_lsn), floor.max(other)));
    }

    /// Records were taken up to `lsn`.
    pub fn taken(&mut self, lsn: u64) {
        if let Some((_, floor)) = self.candidate.take_if(|(shown_lsn, _)| *shown_lsn <= lsn) {
            self.current = self.current.max(floor);
        }
    }

    /// The floor for a checkpoint that is being made.
    pub fn state(&mut self) -> u64 {
        self.stated = self.current;
        self.stated
    }

    /// Whether a checkpoint made now would free a segment with this last lsn, and none before it did.
    pub fn would_free(&self, last_lsn: u64) -> bool {
        last_lsn < self.current && last_lsn >= self.stated
    }

    pub fn wrote(&mut self, checkpoint: Written) {
        self.pending.push(checkpoint);
    }

    /// All records up to `lsn` are durable. Returns whether segments may be used again that were needed before.
    pub fn settle(&mut self, lsn: u64) -> bool {
        let mut is_newer = false;
        for found in self.pending.extract_if(.., |checkpoint| checkpoint.lsn <= lsn) {
            if self.holder.is_none_or(|held| (held.lsn, held.floor) <= (found.lsn, found.floor)) {
                self.durable = self.durable.max(found.floor);
                self.holder = Some(found);
                is_newer = true;
            }
        }
        is_newer
    }

    /// Whether a segment with this number and last lsn may be used again.
    pub fn may_retire(&self, segment: u32, last_lsn: u64) -> bool {
        last_lsn < self.durable && self.holder.is_none_or(|held| held.segment != segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_waits_for_what_it_was_computed_from_and_for_its_checkpoint() {
        let mut floors = Floors::new(10);
        assert!(!floors.begin());
        floors.purged();
        assert!(floors.begin());
        floors.offer(50, 70);
        assert!(!floors.begin());
        // A checkpoint made now must not state it: the purge may get lost.
        floors.taken(69);
        assert_eq!((floors.state(), floors.would_free(20)), (10, false));
        floors.taken(70);
        assert!(
            floors.would_free(20) && floors.would_free(49) && !floors.would_free(50) && !floors.would_free(9)
        );
        assert_eq!(floors.state(), 50);
        assert!(!floors.would_free(20), "once is enough");
        // Durable, but it speaks for records up to 72.
        floors.wrote(Written { lsn: 72, floor: 50, segment: 3 });
        assert!(!floors.settle(71));
        assert!(floors.may_retire(1, 9) && !floors.may_retire(1, 10));
        assert!(floors.settle(72));
        assert!(floors.may_retire(1, 49) && !floors.may_retire(1, 50));
        floors.offer(40, 72);
        floors.taken(80);
        assert_eq!(floors.state(), 50, "a floor never falls");
    }

    #[test]
    fn a_purge_while_a_floor_is_computed_makes_another_one_wanted() {
        let mut floors = Floors::new(10);
        floors.purged();
        assert!(floors.begin() && !floors.begin(), "one is enough for it");
        floors.purged();
        floors.offer(50, 70);
        assert!(!floors.begin(), "not before the first one is of use");
        floors.taken(70);
        assert!(floors.begin());
    }

    #[test]
    fn of_two_floors_that_are_computed_at_a_time_the_higher_one_counts() {
        let mut floors = Floors::new(10);
        floors.offer(60, 80);
        floors.offer(50, 81);
        floors.taken(80);
        assert_eq!(floors.state(), 10, "it waits for what either of them may have been shown");
        floors.taken(81);
        assert_eq!(floors.state(), 60);
    }

    #[test]
    fn the_checkpoint_that_recovery_needs_keeps_its_segment() {
        let mut floors = Floors::new(10);
        floors.wrote(Written { lsn: 30, floor: 25, segment: 3 });
        assert!(floors.settle(30));
        assert!(
            floors.may_retire(2, 20) && !floors.may_retire(3, 20),
            "its records are not needed, but it is"
        );
        // The next segment is durable, but another device has yet to write record 31.
        floors.wrote(Written { lsn: 31, floor: 25, segment: 4 });
        assert!(!floors.settle(30));
        assert!(!floors.may_retire(3, 20));
        assert!(floors.settle(31), "the floor is the same, but segment 3 is free");
        assert!(floors.may_retire(3, 20) && !floors.may_retire(4, 20));
        // Two become usable at a time: the newer one is what recovery chooses.
        floors.wrote(Written { lsn: 40, floor: 36, segment: 6 });
        floors.wrote(Written { lsn: 35, floor: 33, segment: 5 });
        assert!(floors.settle(40));
        assert!(floors.may_retire(5, 34) && !floors.may_retire(6, 34));
    }

    #[test]
    fn every_device_has_the_first_checkpoint_of_a_run() {
        let floors = Floors::new(10);
        assert!(floors.may_retire(1, 9) && floors.may_retire(2, 9) && !floors.may_retire(1, 10));
    }
}
