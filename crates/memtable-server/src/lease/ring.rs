//! The ring of the newest bf-log entries (precise data access, section 3.4).
//!
//! A serial is a position within an epoch. Each hash takes one serial, each freeze (bf-change) takes one. A holder that asks
//! for more than the ring holds gets whole filters.

use std::collections::VecDeque;

use sextant_common::ids::{Generation, Serial, TableId};

/// Most serials kept: 8 bytes each, so 4 MiB. A p-node that lags further takes whole filters, which are not much larger.
pub const SERIALS_MAX: u64 = 512 * 1024;

/// Entries of one memtable, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub table: TableId,
    /// With `freeze`: the generation that begins.
    pub generation: Generation,
    pub freeze: bool,
    pub hashes: Vec<u64>,
}

impl Run {
    fn serials(&self) -> u64 {
        self.hashes.len() as u64 + u64::from(self.freeze)
    }
}

#[derive(Debug, Default)]
pub struct Ring {
    /// (serial before the run, run), rising.
    runs: VecDeque<(u64, Run)>,
    last: u64,
}

impl Ring {
    /// The serial of the newest entry.
    pub fn serial(&self) -> Serial {
        Serial(self.last)
    }

    pub fn push(&mut self, run: Run) {
        let serials = run.serials();
        if serials == 0 {
            return;
        }
        self.runs.push_back((self.last, run));
        self.last += serials;
        while let Some((_, first)) = self.runs.front()
            && self.runs.len() > 1
            && self.last - self.first() - first.serials() >= SERIALS_MAX
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
            let skip = after.0.saturating_sub(*before) as usize;
            let mut part = run.clone();
            if skip > 0 {
                // A freeze comes before the hashes of its run.
                let hashes_to_skip = skip - usize::from(part.freeze);
                part.freeze = false;
                part.hashes.drain(..hashes_to_skip);
            }
            match out.last_mut() {
                // A freeze stays a run of its own: what follows it belongs to the filter that it begins.
                Some(last)
                    if !part.freeze
                        && !last.freeze
                        && last.table == part.table
                        && last.generation == part.generation =>
                {
                    last.hashes.append(&mut part.hashes);
                }
                _ => out.push(part),
            }
        }
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(table: u32, generation: u64, freeze: bool, hashes: &[u64]) -> Run {
        Run { table: TableId(table), generation: Generation(generation), freeze, hashes: hashes.to_vec() }
    }

    #[test]
    fn a_holder_gets_exactly_what_it_lacks() {
        let mut ring = Ring::default();
        ring.push(run(1, 1, false, &[10, 11, 12]));
        ring.push(run(1, 2, true, &[]));
        ring.push(run(1, 2, false, &[13]));
        assert_eq!(ring.serial(), Serial(5));
        assert_eq!(ring.since(Serial(5)), Some(vec![]));
        assert_eq!(ring.since(Serial(4)), Some(vec![run(1, 2, false, &[13])]));
        assert_eq!(ring.since(Serial(3)), Some(vec![run(1, 2, true, &[]), run(1, 2, false, &[13])]));
        assert_eq!(
            ring.since(Serial(2)),
            Some(vec![run(1, 1, false, &[12]), run(1, 2, true, &[]), run(1, 2, false, &[13])])
        );
        assert_eq!(ring.since(Serial(6)), None);
    }

    #[test]
    fn what_has_left_the_ring_means_whole_filters() {
        let mut ring = Ring::default();
        for i in 0..SERIALS_MAX / 1024 + 3 {
            ring.push(run(1, 1, false, &vec![i; 1024]));
        }
        assert_eq!(ring.since(Serial(0)), None);
        assert!(ring.since(Serial(ring.last - SERIALS_MAX)).is_some());
        assert!(ring.last - ring.first() <= SERIALS_MAX + 1024);
    }

    proptest! {
        #[test]
        fn any_split_of_pulls_gives_the_same_entries(
            sizes in prop::collection::vec((1u32..3, 0usize..5, any::<bool>()), 1..20), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4)
        ) {
            let mut ring = Ring::default();
            let (mut all, mut next) = (Vec::new(), 0u64);
            for (table, n, freeze) in &sizes {
                let hashes: Vec<u64> = (0..*n).map(|_| { next += 1; next }).collect();
                if *freeze { all.push((*table, 0)); }
                all.extend(hashes.iter().map(|h| (*table, *h)));
                ring.push(run(*table, 1, *freeze, &hashes));
            }
            prop_assert_eq!(ring.serial().0, all.len() as u64);
            let mut at: Vec<u64> = cuts.iter().map(|c| c.index(all.len() + 1) as u64).collect();
            at.push(0);
            for from in at {
                let got: Vec<(u32, u64)> = ring.since(Serial(from)).unwrap().into_iter().flat_map(|r| {
                    r.freeze.then_some((r.table.0, 0)).into_iter().chain(r.hashes.into_iter().map(move |h| (r.table.0, h))).collect::<Vec<_>>()
                }).collect();
                prop_assert_eq!(&got[..], &all[from as usize..]);
            }
        }
    }
}
