//! The columns of a table: the ranges for which its SSTables answer, as a tree. Pure.
//!
//! Outputs are cut at bounds of what lies below them and nowhere else, and what lies above was there first: so of two ranges that
//! overlap the newer one has all keys of the older one, and the ranges are a tree, coarse and new above, fine and old below. A rebuilt
//! manifest is cut so that this holds, too (`recover/plan.rs`).

use std::cmp::Ordering;
use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;
use sextant_common::key_range::KeyRange;
use sextant_common::manifest::{SstList, SstMeta};

#[derive(Debug)]
struct Column<'t> {
    range: &'t KeyRange,
    /// Places in the list, newest first.
    places: Vec<usize>,
    /// The column that it is a part of.
    above: Option<usize>,
    /// The columns that it is cut into, by rising range.
    below: Vec<usize>,
    /// How many columns of it are not cut.
    lowest: usize,
}

/// By rising start, the wider ones first.
#[derive(Debug)]
pub(super) struct Columns<'t> {
    ssts: Vec<&'t SstMeta>,
    all: Vec<Column<'t>>,
}

fn by_start_and_width(a: &KeyRange, b: &KeyRange) -> Ordering {
    let ends = match (a.end.is_empty(), b.end.is_empty()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        (false, false) => b.end.cmp(&a.end),
    };
    a.start.cmp(&b.start).then(ends)
}

impl<'t> Columns<'t> {
    pub fn new(ssts: &'t SstList) -> Self {
        let ssts: Vec<&'t SstMeta> = ssts.iter().collect();
        let mut by_range: HashMap<&KeyRange, Vec<usize>> = HashMap::new();
        for (place, sst) in ssts.iter().enumerate() {
            by_range.entry(&sst.range).or_default().push(place);
        }
        let column = |(range, places)| Column { range, places, above: None, below: Vec::new(), lowest: 1 };
        let mut all: Vec<Column<'t>> = by_range.into_iter().map(column).collect();
        all.sort_by(|a, b| by_start_and_width(a.range, b.range));
        let mut open: Vec<usize> = Vec::new();
        for at in 0..all.len() {
            while open.last().is_some_and(|above| !all[*above].range.covers(all[at].range)) {
                open.pop();
            }
            if let Some(above) = open.last().copied() {
                all[at].above = Some(above);
                all[above].below.push(at);
            }
            open.push(at);
        }
        for at in (0..all.len()).rev() {
            if !all[at].below.is_empty() {
                all[at].lowest = all[at].below.iter().map(|below| all[*below].lowest).sum();
            }
        }
        Self { ssts, all }
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Of a column, newest first.
    pub fn ssts(&self, column: usize) -> impl Iterator<Item = &'t SstMeta> {
        self.all[column].places.iter().map(|place| self.ssts[*place])
    }

    /// Of all columns that it is cut into.
    pub fn below(&self, column: usize) -> impl Iterator<Item = &'t SstMeta> {
        let mut next: Vec<usize> = self.all[column].below.clone();
        let below = std::iter::from_fn(move || {
            let column = next.pop()?;
            next.extend(&self.all[column].below);
            Some(self.ssts(column))
        });
        below.flatten()
    }

    /// The columns that it is a part of, from below.
    pub fn above(&self, column: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(self.all[column].above, |above| self.all[*above].above)
    }

    /// Whether nothing lies below it.
    pub fn is_lowest(&self, column: usize) -> bool {
        self.all[column].below.is_empty()
    }

    /// Where what goes down from a column is cut: around each column below that is cut itself, and of those that are not around
    /// groups of as many as make about `fan_out` of all of them.
    pub fn cuts(&self, column: usize, fan_out: usize) -> Vec<Bytes> {
        let Column { range, below, lowest, .. } = &self.all[column];
        let group = lowest.div_ceil(fan_out).max(1);
        let mut bounds: Vec<&Bytes> = Vec::new();
        let (mut grouped, mut last_end) = (0, None);
        for at in below {
            let Column { range, below, .. } = &self.all[*at];
            let goes_on = below.is_empty() && (1..group).contains(&grouped) && last_end == Some(&range.start);
            if goes_on {
                grouped += 1;
            } else {
                bounds.extend(last_end);
                bounds.push(&range.start);
                grouped = if below.is_empty() { 1 } else { group };
            }
            last_end = Some(&range.end);
        }
        bounds.extend(last_end);
        let mut cuts: Vec<Bytes> = bounds.into_iter().filter(|b| range.is_cut_by(b)).cloned().collect();
        cuts.sort();
        cuts.dedup();
        cuts
    }

    /// Whether these of a column, counted from the newest one, have nothing of another column between them that overlaps it; and, if
    /// they are to reach the oldest, nothing below.
    pub fn are_neighbours(&self, column: usize, inputs: Range<usize>, reach_the_oldest: bool) -> bool {
        let Column { range, places, .. } = &self.all[column];
        let Some((first, last)) = places[inputs].split_first() else { return false };
        let end = if reach_the_oldest { self.ssts.len() } else { *last.last().unwrap_or(first) };
        let others = self.ssts[*first..end].iter().filter(|sst| sst.range != **range);
        others.into_iter().all(|sst| !sst.range.overlaps(range))
    }
}
