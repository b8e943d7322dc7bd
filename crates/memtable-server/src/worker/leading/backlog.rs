//! Writes that wait for their turn at the sequencer.
//!
//! Small and large ones wait in lines of their own, and the lines take turns: a small write waits for at most one large group
//! before it, however many large ones came earlier. Within a line the order is that of arrival; between requests that are
//! under way at the same time nobody was promised one. Pure.

use std::collections::VecDeque;

use sextant_common::limits::LARGE_BYTES;

/// What waits: its size.
pub(super) trait Weighed {
    fn bytes(&self) -> usize;
}

#[derive(Debug)]
pub(super) struct Backlog<W> {
    small: VecDeque<W>,
    large: VecDeque<W>,
    /// The last group had a large one.
    small_ones_turn: bool,
}

impl<W> Default for Backlog<W> {
    fn default() -> Self {
        Self { small: VecDeque::new(), large: VecDeque::new(), small_ones_turn: false }
    }
}

impl<W: Weighed> Backlog<W> {
    pub fn len(&self) -> usize {
        self.small.len() + self.large.len()
    }

    pub fn is_empty(&self) -> bool {
        self.small.is_empty() && self.large.is_empty()
    }

    pub fn push(&mut self, write: W) {
        self.line(&write).push_back(write);
    }

    /// For one that had its turn in vain.
    pub fn push_front(&mut self, write: W) {
        self.line(&write).push_front(write);
    }

    /// For one that turned out to be large: it carries little, and makes much of what is there.
    pub fn push_front_large(&mut self, write: W) {
        self.large.push_front(write);
    }

    fn line(&mut self, write: &W) -> &mut VecDeque<W> {
        if write.bytes() > LARGE_BYTES { &mut self.large } else { &mut self.small }
    }

    /// How large the next large one is.
    pub fn next_large_bytes(&self) -> Option<usize> {
        self.large.front().map(W::bytes)
    }

    pub fn pop_large(&mut self) -> Option<W> {
        self.large.pop_front()
    }

    pub fn drain(&mut self) -> impl Iterator<Item = W> + '_ {
        self.small.drain(..).chain(self.large.drain(..))
    }

    /// Takes out whatever `is_late`.
    pub fn take_late(&mut self, is_late: impl Fn(&W) -> bool) -> Vec<W> {
        if !self.small.iter().chain(&self.large).any(&is_late) {
            return Vec::new();
        }
        let (late, kept) = self.drain().partition::<Vec<_>, _>(is_late);
        kept.into_iter().for_each(|write| self.push(write));
        late
    }

    /// The writes of the next group: as many as have `bytes_max`, at least one. `is_late` ones do not count.
    pub fn next_group(&mut self, bytes_max: usize, is_late: impl Fn(&W) -> bool) -> Vec<W> {
        let mut group = Vec::new();
        let mut bytes = 0;
        let large_first = !self.large.is_empty() && (!self.small_ones_turn || self.small.is_empty());
        if large_first {
            take(&mut self.large, &mut group, &mut bytes, bytes_max, &is_late);
        }
        self.small_ones_turn = large_first;
        take(&mut self.small, &mut group, &mut bytes, bytes_max, &is_late);
        group
    }
}

fn take<W: Weighed>(
    line: &mut VecDeque<W>,
    group: &mut Vec<W>,
    bytes: &mut usize,
    bytes_max: usize,
    is_late: &impl Fn(&W) -> bool,
) {
    while let Some(write) = line.front() {
        let more = if is_late(write) { 0 } else { write.bytes() };
        if *bytes > 0 && *bytes + more > bytes_max {
            return;
        }
        *bytes += more;
        group.extend(line.pop_front());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Weighed for (usize, usize) {
        fn bytes(&self) -> usize {
            self.1
        }
    }

    fn numbers(group: Vec<(usize, usize)>) -> Vec<usize> {
        group.into_iter().map(|(number, _)| number).collect()
    }

    #[test]
    fn a_small_write_waits_for_one_large_group_at_the_most() {
        let mut backlog = Backlog::default();
        (0..5).for_each(|n| backlog.push((n, 8 << 20)));
        (10..13).for_each(|n| backlog.push((n, 100)));
        let next = |backlog: &mut Backlog<_>| numbers(backlog.next_group(4 << 20, |_| false));
        assert_eq!(next(&mut backlog), [0]);
        assert_eq!(next(&mut backlog), [10, 11, 12]);
        assert_eq!(next(&mut backlog), [1]);
        backlog.push((13, 100));
        assert_eq!(next(&mut backlog), [13]);
        assert_eq!(next(&mut backlog), [2]);
        assert_eq!(next(&mut backlog), [3], "large ones follow each other while no small one waits");
        assert_eq!(backlog.len(), 1);
    }

    #[test]
    fn small_writes_fill_a_group_that_a_large_one_began() {
        let mut backlog = Backlog::default();
        backlog.push((0, 1 << 20));
        (1..4).for_each(|n| backlog.push((n, 100)));
        assert_eq!(numbers(backlog.next_group(4 << 20, |_| false)), [0, 1, 2, 3]);
        assert!(backlog.is_empty());
    }

    #[test]
    fn large_ones_can_be_taken_out_and_the_small_ones_stay() {
        let mut backlog = Backlog::default();
        backlog.push((0, 100));
        (1..3).for_each(|n| backlog.push((n, n << 20)));
        assert_eq!((backlog.next_large_bytes(), backlog.pop_large()), (Some(1 << 20), Some((1, 1 << 20))));
        assert_eq!((backlog.pop_large(), backlog.next_large_bytes()), (Some((2, 2 << 20)), None));
        assert_eq!(numbers(backlog.next_group(4 << 20, |_| false)), [0]);
    }

    #[test]
    fn late_ones_take_no_room_and_can_be_taken_out() {
        let mut backlog = Backlog::default();
        (0..3).for_each(|n| backlog.push((n, 3 << 20)));
        let group = backlog.next_group(4 << 20, |write| write.0 == 0);
        assert_eq!(numbers(group), [0, 1], "the late one is there to be refused");
        backlog.push((7, 10));
        assert_eq!(numbers(backlog.take_late(|write| write.0 == 7)), [7]);
        assert_eq!(numbers(backlog.drain().collect()), [2]);
    }
}
