//! The ring of the newest bf-log entries (precise data access, section 3.4).
//!
//! A serial is a position within an epoch. Each hash takes one serial, each freeze (bf-change) takes one, each registration slot
//! that is invalidated, and each tick. A holder that asks for more than the ring holds gets whole filters.

use std::collections::VecDeque;

use sextant_common::expiry::Tick;
use sextant_common::ids::{Generation, Serial, TableId};

/// Serials kept if nothing else is said: 8 bytes each, so 4 MiB. A p-node that lags further takes whole filters, which are not much
/// larger.
pub const SERIALS_MAX: u64 = 512 * 1024;

/// What comes in small pieces is kept in runs of so many serials: each takes some 50 bytes besides.
const SHORT_SERIALS: u64 = 512;
/// But a full ring has so many runs at least: it forgets whole ones.
const RUNS_MIN: u64 = 16;

/// Entries of one kind, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Run {
    /// Keys of a memtable, by their hashes.
    Bits { table: TableId, generation: Generation, hashes: Vec<u64> },
    /// The memtable `generation` begins.
    Freeze { table: TableId, generation: Generation },
    /// What was kept of reads that were registered in these slots is over.
    Invalidated { slots: Vec<u32> },
    /// So many ticks. Of those before the newest nobody needs to know: to hear of a later one early costs questions, and nothing else.
    Ticks { newest: Tick, entries: u64 },
}

impl Run {
    pub fn serials(&self) -> u64 {
        match self {
            Run::Bits { hashes, .. } => hashes.len() as u64,
            Run::Freeze { .. } => 1,
            Run::Invalidated { slots } => slots.len() as u64,
            Run::Ticks { entries, .. } => *entries,
        }
    }

    /// Without its first entries.
    fn after(&self, skip: usize) -> Self {
        match self {
            Run::Bits { table, generation, hashes } => {
                Run::Bits { table: *table, generation: *generation, hashes: hashes[skip..].to_vec() }
            }
            Run::Freeze { .. } => self.clone(),
            Run::Invalidated { slots } => Run::Invalidated { slots: slots[skip..].to_vec() },
            Run::Ticks { newest, entries } => {
                Run::Ticks { newest: *newest, entries: entries.saturating_sub(skip as u64) }
            }
        }
    }

    /// Puts `next` behind it, if both are of one kind and of one memtable.
    fn append(&mut self, next: Run) -> Option<Run> {
        match (self, next) {
            (
                Run::Bits { table, generation, hashes },
                Run::Bits { table: next_table, generation: next_generation, hashes: mut more },
            ) if (*table, *generation) == (next_table, next_generation) => {
                hashes.append(&mut more);
                None
            }
            (Run::Invalidated { slots }, Run::Invalidated { slots: mut more }) => {
                slots.append(&mut more);
                None
            }
            (Run::Ticks { newest, entries }, Run::Ticks { newest: next, entries: more }) => {
                (*newest, *entries) = ((*newest).max(next), *entries + more);
                None
            }
            (_, next) => Some(next),
        }
    }
}

#[derive(Debug)]
pub struct Ring {
    /// (serial before the run, run), rising.
    runs: VecDeque<(u64, Run)>,
    last: u64,
    serials_max: u64,
}

impl Default for Ring {
    fn default() -> Self {
        Self::of(SERIALS_MAX)
    }
}

impl Ring {
    /// It keeps so many serials, and the rest of the run in which the oldest of them is.
    pub fn of(serials_max: u64) -> Self {
        Self { runs: VecDeque::new(), last: 0, serials_max }
    }

    /// The serial of the newest entry.
    pub fn serial(&self) -> Serial {
        Serial(self.last)
    }

    pub fn push(&mut self, run: Run) {
        let serials = run.serials();
        if serials == 0 {
            return;
        }
        let before = self.last;
        self.last += serials;
        let short = (self.serials_max / RUNS_MIN).clamp(1, SHORT_SERIALS);
        let rest = match self.runs.back_mut() {
            Some((_, last)) if last.serials() + serials <= short => last.append(run),
            _ => Some(run),
        };
        self.runs.extend(rest.map(|run| (before, run)));
        while let Some((_, first)) = self.runs.front()
            && self.runs.len() > 1
            && self.last - self.first() - first.serials() >= self.serials_max
        {
            self.runs.pop_front();
        }
    }

    /// The serial before the oldest entry that is kept.
    fn first(&self) -> u64 {
        self.runs.front().map_or(self.last, |(before, _)| *before)
    }

    /// Everything after a serial. None: some of it is gone (or never was): whole filters are needed.
    pub fn since(&self, after: Serial) -> Option<Vec<Run>> {
        if after.0 < self.first() || after.0 > self.last {
            return None;
        }
        let start = self.runs.partition_point(|(before, run)| before + run.serials() <= after.0);
        let mut out: Vec<Run> = Vec::new();
        for (before, run) in self.runs.iter().skip(start) {
            let part = run.after(after.0.saturating_sub(*before) as usize);
            let rest = match out.last_mut() {
                Some(last) => last.append(part),
                None => Some(part),
            };
            out.extend(rest);
        }
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits(generation: u64, hashes: &[u64]) -> Run {
        Run::Bits { table: TableId(1), generation: Generation(generation), hashes: hashes.to_vec() }
    }

    fn freeze(generation: u64) -> Run {
        Run::Freeze { table: TableId(1), generation: Generation(generation) }
    }

    fn invalidated(slots: &[u32]) -> Run {
        Run::Invalidated { slots: slots.to_vec() }
    }

    #[test]
    fn a_holder_gets_exactly_what_it_lacks() {
        let mut ring = Ring::default();
        ring.push(bits(1, &[10, 11, 12]));
        ring.push(freeze(2));
        ring.push(bits(2, &[13]));
        assert_eq!(ring.serial(), Serial(5));
        assert_eq!(ring.since(Serial(5)), Some(vec![]));
        assert_eq!(ring.since(Serial(4)), Some(vec![bits(2, &[13])]));
        assert_eq!(ring.since(Serial(3)), Some(vec![freeze(2), bits(2, &[13])]));
        assert_eq!(ring.since(Serial(2)), Some(vec![bits(1, &[12]), freeze(2), bits(2, &[13])]));
        assert_eq!(ring.since(Serial(6)), None);
    }

    #[test]
    fn entries_of_one_kind_travel_together_and_keep_their_places() {
        let mut ring = Ring::default();
        ring.push(invalidated(&[7, 8]));
        ring.push(invalidated(&[9]));
        ring.push(bits(1, &[10]));
        ring.push(invalidated(&[7]));
        assert_eq!(ring.serial(), Serial(5));
        let all = vec![invalidated(&[7, 8, 9]), bits(1, &[10]), invalidated(&[7])];
        assert_eq!(ring.since(Serial(0)), Some(all));
        assert_eq!(ring.since(Serial(1)).unwrap()[0], invalidated(&[8, 9]));
        assert_eq!(ring.since(Serial(4)), Some(vec![invalidated(&[7])]));
    }

    #[test]
    fn small_pieces_share_runs() {
        let mut ring = Ring::default();
        for slot in 0..10_000 {
            ring.push(invalidated(&[slot]));
        }
        assert_eq!(ring.runs.len(), 10_000_usize.div_ceil(SHORT_SERIALS as usize));
        assert_eq!(ring.since(Serial(9_998)), Some(vec![invalidated(&[9_998, 9_999])]));
    }

    #[test]
    fn what_has_left_the_ring_means_whole_filters() {
        let mut ring = Ring::of(100);
        for i in 0..20 {
            ring.push(bits(1, &[i; 10]));
        }
        assert_eq!(ring.since(Serial(0)), None);
        assert!(ring.since(Serial(ring.last - 100)).is_some());
        assert!(ring.last - ring.first() <= 110);
    }

    /// Its entries, one by one.
    fn entries(run: Run) -> Vec<(u32, u64)> {
        match run {
            Run::Bits { table, hashes, .. } => hashes.into_iter().map(|h| (table.0, h)).collect(),
            Run::Freeze { table, .. } => vec![(table.0, 0)],
            Run::Invalidated { slots } => slots.into_iter().map(|s| (0, u64::from(s))).collect(),
            Run::Ticks { entries, .. } => (0..entries).map(|_| (u32::MAX, 0)).collect(),
        }
    }

    proptest! {
        #[test]
        fn any_split_of_pulls_gives_the_same_entries(
            sizes in prop::collection::vec((0u32..4, 0usize..5, any::<bool>()), 1..20),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4)
        ) {
            let mut ring = Ring::default();
            let (mut all, mut next) = (Vec::new(), 0u64);
            for (table, n, freeze) in sizes {
                let hashes: Vec<u64> = (0..n).map(|_| { next += 1; next }).collect();
                let (table, generation) = (TableId(table), Generation(1));
                let run = match (table.0, freeze) {
                    (0, _) => Run::Invalidated { slots: hashes.iter().map(|h| *h as u32).collect() },
                    (3, _) => Run::Ticks { newest: Tick(next), entries: n as u64 },
                    (_, true) => Run::Freeze { table, generation },
                    (_, false) => Run::Bits { table, generation, hashes },
                };
                all.extend(entries(run.clone()));
                ring.push(run);
            }
            prop_assert_eq!(ring.serial().0, all.len() as u64);
            let mut at: Vec<u64> = cuts.iter().map(|c| c.index(all.len() + 1) as u64).collect();
            at.push(0);
            for from in at {
                let got: Vec<_> = ring.since(Serial(from)).unwrap().into_iter().flat_map(entries).collect();
                prop_assert_eq!(&got[..], &all[from as usize..]);
            }
        }
    }
}
