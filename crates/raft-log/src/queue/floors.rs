//! Below which lsn nothing matters any more.
//!
//! A floor is computed from the partitions, which run ahead of what was taken for a device; it may be stated only by a
//! checkpoint that speaks for at least what the partitions may have shown. A segment may be used again once a checkpoint is
//! durable that states a floor above its records, and so is everything that this checkpoint speaks for: every recovery will
//! find it usable.
//!
//! Pure. Invariant: `durable <= stated <= current`, and none of them ever falls.

#[derive(Debug, Default)]
pub(super) struct Floors {
    /// Entries were purged since the floor was computed last.
    stale: bool,
    /// The lsn up to which records must have been taken before a checkpoint may state a floor, and the floor.
    candidate: Option<(u64, u64)>,
    /// May be stated by a checkpoint.
    current: u64,
    /// Was stated by one that is at least on its way.
    stated: u64,
    /// Stated by checkpoints that are durable themselves, but that speak for records that are not yet: (lsn, floor).
    pending: Vec<(u64, u64)>,
    /// Stated by a checkpoint that every recovery will find.
    durable: u64,
}

impl Floors {
    /// `floor`: stated by the checkpoint that the run began with.
    pub fn new(floor: u64) -> Self {
        Self { current: floor, stated: floor, durable: floor, ..Self::default() }
    }

    pub fn purged(&mut self) {
        self.stale = true;
    }

    /// Whether a floor should be computed.
    pub fn is_wanted(&self) -> bool {
        self.stale && self.candidate.is_none()
    }

    /// A floor that was computed; the partitions may have shown records up to `shown_lsn`.
    pub fn offer(&mut self, floor: u64, shown_lsn: u64) {
        self.stale = false;
        self.candidate = Some((shown_lsn, floor));
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

    /// A checkpoint is durable that speaks for the records up to `lsn`.
    pub fn wrote(&mut self, lsn: u64, floor: u64) {
        self.pending.push((lsn, floor));
    }

    /// All records up to `lsn` are durable. Returns whether the durable floor rose.
    pub fn settle(&mut self, lsn: u64) -> bool {
        let before = self.durable;
        for (_, floor) in self.pending.extract_if(.., |(spoken_for, _)| *spoken_for <= lsn) {
            self.durable = self.durable.max(floor);
        }
        self.durable > before
    }

    pub fn durable(&self) -> u64 {
        self.durable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_waits_for_what_it_was_computed_from_and_for_its_checkpoint() {
        let mut floors = Floors::new(10);
        assert!(!floors.is_wanted());
        floors.purged();
        assert!(floors.is_wanted());
        floors.offer(50, 70);
        assert!(!floors.is_wanted());
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
        floors.wrote(72, 50);
        assert!(!floors.settle(71));
        assert_eq!(floors.durable(), 10);
        assert!(floors.settle(72));
        assert_eq!(floors.durable(), 50);
        floors.offer(40, 72);
        floors.taken(80);
        assert_eq!(floors.state(), 50, "a floor never falls");
    }
}
