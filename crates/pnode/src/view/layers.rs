//! Which SSTables of a table may have a key: found by where their keys lie, since a large table has thousands of them. Pure.
//!
//! The tables stand in layers. Those of one layer have no key in common, and of two that have, the newer one is in a higher layer: so
//! a key's tables are at most one a layer, found by bisection, the newest first. There are about as many layers as tables that answer
//! for one key. Layers are shared between versions: a table more or less copies a small part of one of them.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use sextant_common::key_range::KeyRange;
use sextant_common::manifest::SstMeta;
use sextant_common::shared_list::SharedList;

use super::Sst;

/// Between the ranks of two neighbours in a list that is put together anew: room for what comes between them.
const RANKS_APART: u64 = 1 << 32;

/// An SSTable in a table's list.
#[derive(Clone)]
pub(crate) struct Placed {
    pub sst: Arc<Sst>,
    /// Falls along the list.
    rank: u64,
    /// None: it has no key for which it answers.
    layer: Option<usize>,
}

impl Deref for Placed {
    type Target = Sst;

    fn deref(&self) -> &Sst {
        &self.sst
    }
}

/// A table's SSTables: the list, newest first for every key, and the layers.
#[derive(Clone, Default)]
pub(crate) struct Layers {
    list: SharedList<Placed>,
    /// The lowest first; each by rising keys.
    layers: Vec<SharedList<Placed>>,
}

/// The first key that a table can answer with.
fn first(sst: &SstMeta) -> &Bytes {
    (&sst.min_key).max(&sst.range.start)
}

/// Whether it can answer with no key from here on.
fn ends_before(sst: &SstMeta, key: &[u8]) -> bool {
    sst.max_key.as_ref() < key || !sst.range.end.is_empty() && sst.range.end.as_ref() <= key
}

/// The key that comes after all of its own.
fn end(sst: &SstMeta) -> Bytes {
    if !sst.range.end.is_empty() && sst.range.end <= sst.max_key {
        return sst.range.end.clone();
    }
    let mut end = sst.max_key.to_vec();
    end.push(0);
    end.into()
}

fn have_a_key_in_common(a: &SstMeta, b: &SstMeta) -> bool {
    !ends_before(a, first(b)) && !ends_before(b, first(a))
}

impl Layers {
    /// Of a list, newest first for every key.
    pub fn new(ssts: impl DoubleEndedIterator<Item = Arc<Sst>>) -> Self {
        let mut layers: Vec<BTreeMap<Bytes, Placed>> = Vec::new();
        let mut list = Vec::new();
        for (sst, at) in ssts.rev().zip(1u64..) {
            let start = first(&sst.meta);
            let mut placed = Placed { rank: at.saturating_mul(RANKS_APART), layer: None, sst: sst.clone() };
            if !ends_before(&sst.meta, start) {
                let meets = |layer: &BTreeMap<Bytes, Placed>| {
                    let before = layer.range(..=start.clone()).next_back();
                    let after = layer.range(start.clone()..).next();
                    let either = [before, after].into_iter().flatten();
                    either.into_iter().any(|(_, other)| have_a_key_in_common(&other.meta, &sst.meta))
                };
                let layer = layers.iter().rposition(meets).map_or(0, |below| below + 1);
                if layer == layers.len() {
                    layers.push(BTreeMap::new());
                }
                placed.layer = Some(layer);
                layers[layer].insert(start.clone(), placed.clone());
            }
            list.push(placed);
        }
        let layers = layers.into_iter().map(|layer| layer.into_values().collect());
        Self { list: list.into_iter().rev().collect(), layers: layers.collect() }
    }

    /// Newest first for every key.
    pub fn list(&self) -> &SharedList<Placed> {
        &self.list
    }

    /// The tables that may have a key, newest first.
    #[inline]
    pub fn of(&self, key: &[u8]) -> impl Iterator<Item = &Arc<Sst>> {
        self.layers.iter().rev().filter_map(move |layer| {
            let placed = layer.last_before(|placed| first(&placed.meta).as_ref() <= key)?;
            (!ends_before(&placed.meta, key)).then_some(&placed.sst)
        })
    }

    /// Those that may have a key of a range, newest first for every key.
    pub fn within<'l>(&'l self, range: &'l KeyRange) -> impl Iterator<Item = &'l Arc<Sst>> {
        self.layers.iter().rev().flat_map(|layer| within_from(layer, 0, range)).map(|placed| &placed.sst)
    }

    /// Whether this is one of them.
    pub fn has(&self, sst: &Arc<Sst>) -> bool {
        match ends_before(&sst.meta, first(&sst.meta)) {
            false => self.layers.iter().any(|layer| place(layer, sst).is_some()),
            true => self.list.iter().any(|placed| Arc::ptr_eq(&placed.sst, sst)),
        }
    }

    /// Puts others in the place of some, as [`SharedList::splice`].
    pub fn splice(&mut self, place: usize, removed: usize, mut added: Vec<Arc<Sst>>) {
        let gone: Vec<Placed> = self.list.iter_from(place).take(removed).cloned().collect();
        gone.iter().for_each(|placed| self.take_out(placed));
        self.list.splice(place, gone.len(), []);
        // The oldest first, as they lie.
        let ranks = self.ranks_at(place, added.len() as u64);
        for rank in ranks.unwrap_or_default() {
            match added.pop() {
                Some(sst) if self.insert(place, &sst, rank) => {}
                left => {
                    added.extend(left);
                    break;
                }
            }
        }
        if !added.is_empty() {
            // No rank, or no layer, is free there.
            let mut list: Vec<Arc<Sst>> = self.list.iter().map(|placed| placed.sst.clone()).collect();
            list.splice(place..place, added);
            *self = Self::new(list.into_iter());
        }
        while self.layers.last().is_some_and(SharedList::is_empty) {
            self.layers.pop();
        }
    }

    fn take_out(&mut self, placed: &Placed) {
        let Some(layer) = placed.layer.and_then(|at| self.layers.get_mut(at)) else { return };
        if let Some(at) = place(layer, &placed.sst) {
            layer.splice(at, 1, []);
        }
    }

    /// False: there is no place for it.
    fn insert(&mut self, place: usize, sst: &Arc<Sst>, rank: u64) -> bool {
        let mut placed = Placed { sst: sst.clone(), rank, layer: None };
        let start = first(&sst.meta);
        if !ends_before(&sst.meta, start) {
            let Some(layer) = self.layer_for(&placed) else { return false };
            if layer == self.layers.len() {
                self.layers.push(SharedList::default());
            }
            placed.layer = Some(layer);
            let layer = &mut self.layers[layer];
            let at = layer.partition_point(|other| first(&other.meta) < start);
            layer.splice(at, 0, [placed.clone()]);
        }
        self.list.splice(place, 0, [placed]);
        true
    }

    /// So many, rising, between those of the neighbours.
    fn ranks_at(&self, place: usize, count: u64) -> Option<Vec<u64>> {
        let older = self.list.get(place).map_or(0, |placed| placed.rank);
        let apart = match place.checked_sub(1).and_then(|newer| self.list.get(newer)) {
            Some(newer) => (newer.rank - older) / (count + 1),
            None => RANKS_APART,
        };
        older.checked_add(apart.checked_mul(count)?)?;
        (apart > 0).then(|| (1..=count).map(|at| older + apart * at).collect())
    }

    /// The lowest one above all that is older, if that is below all that is newer.
    fn layer_for(&self, new: &Placed) -> Option<usize> {
        let (mut above, mut below) = (0, self.layers.len() + 1);
        let is_newest = self.list.first().is_none_or(|first| first.rank < new.rank);
        for (at, layer) in self.layers.iter().enumerate().rev() {
            let ends = |other: &Placed| ends_before(&other.meta, first(&new.meta));
            let from = layer.partition_point(ends);
            let met = layer.iter_from(from).take_while(|other| !ends_before(&new.meta, first(&other.meta)));
            for other in met {
                if is_newest {
                    return Some(at + 1);
                }
                if other.rank > new.rank {
                    below = at;
                } else {
                    above = above.max(at + 1);
                }
            }
        }
        (above < below).then_some(above)
    }

    /// The beginning of a range, in the direction of a walk, in which no more than `most` tables have keys; or as far as the next bound
    /// of one, if there are more right there.
    pub fn window(&self, range: &KeyRange, reverse: bool, most: usize) -> KeyRange {
        // More than these of a layer cannot be in it.
        let met = |layer| -> Vec<(Bytes, Bytes)> {
            let from = if reverse { last_place(layer, range).saturating_sub(most + 1) } else { 0 };
            let spans = within_from(layer, from, range)
                .map(|placed| (first(&placed.meta).clone(), end(&placed.meta)));
            spans.take(most + 1).collect()
        };
        let mut spans: Vec<(Bytes, Bytes)> = self.layers.iter().flat_map(met).collect();
        let mut window = range.clone();
        if reverse {
            spans.sort_unstable_by(|a, b| b.1.cmp(&a.1));
            let is_there = |span: &(Bytes, Bytes)| !range.end.is_empty() && span.1 >= range.end;
            let cut = match spans.iter().filter(|span| is_there(span)).count() > most {
                true => spans.iter().flat_map(|(first, end)| [first, end]).filter(|b| **b < range.end).max(),
                false => spans.get(most).map(|(_, end)| end),
            };
            window.start = cut.max(Some(&range.start)).cloned().unwrap_or_default();
        } else {
            spans.sort_unstable_by(|a, b| a.0.cmp(&b.0));
            let is_there = |span: &(Bytes, Bytes)| span.0 <= range.start;
            let cut = match spans.iter().filter(|span| is_there(span)).count() > most {
                true => {
                    spans.iter().flat_map(|(first, end)| [first, end]).filter(|b| **b > range.start).min()
                }
                false => spans.get(most).map(|(first, _)| first),
            };
            if let Some(cut) = cut.filter(|cut| range.end.is_empty() || **cut < range.end) {
                window.end = cut.clone();
            }
        }
        window
    }
}

/// Where a table stands in a layer.
fn place(layer: &SharedList<Placed>, sst: &Arc<Sst>) -> Option<usize> {
    let at = layer.partition_point(|other| first(&other.meta) < first(&sst.meta));
    layer.get(at).filter(|placed| Arc::ptr_eq(&placed.sst, sst)).map(|_| at)
}

/// Those of a layer that may have a key of a range, from a place on.
fn within_from<'l>(
    layer: &'l SharedList<Placed>,
    from: usize,
    range: &'l KeyRange,
) -> impl Iterator<Item = &'l Placed> {
    let begins = layer.partition_point(|placed| ends_before(&placed.meta, &range.start));
    let is_in = |placed: &&Placed| range.end.is_empty() || *first(&placed.meta) < range.end;
    layer.iter_from(begins.max(from)).take_while(is_in)
}

/// After the last one of a layer that may have a key of a range.
fn last_place(layer: &SharedList<Placed>, range: &KeyRange) -> usize {
    layer.partition_point(|placed| range.end.is_empty() || *first(&placed.meta) < range.end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::sst_meta;

    /// Keys are short, so that bounds meet.
    fn any_key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0u8..4, 0..3)
    }

    fn any_range() -> impl Strategy<Value = KeyRange> {
        (any_key(), any_key()).prop_map(|(a, b)| KeyRange::new(a, b)).prop_filter("empty", |r| !r.is_empty())
    }

    fn any_sst() -> impl Strategy<Value = Arc<Sst>> {
        (any_key(), any_key(), any_range()).prop_map(|(a, b, range)| {
            let (min_key, max_key) = if a <= b { (a, b) } else { (b, a) };
            Arc::new(Sst::new(SstMeta {
                min_key: min_key.into(),
                max_key: max_key.into(),
                range,
                ..sst_meta(1, b"", b"")
            }))
        })
    }

    /// What happens to a list: place, how many go, which come.
    type Splice = (usize, usize, Vec<Arc<Sst>>);

    fn any_splices() -> impl Strategy<Value = Vec<Splice>> {
        let any_splice = (0usize..12, 0usize..4, prop::collection::vec(any_sst(), 0..3));
        prop::collection::vec(any_splice, 1..12)
    }

    fn is_sound(layers: &Layers) -> bool {
        let ranks = layers.list.iter().zip(layers.list.iter().skip(1));
        let apart = |layer: &SharedList<Placed>| {
            layer.iter().zip(layer.iter().skip(1)).all(|(a, b)| ends_before(&a.meta, first(&b.meta)))
        };
        ranks.into_iter().all(|(newer, older)| newer.rank > older.rank) && layers.layers.iter().all(apart)
    }

    fn same<'s>(
        found: impl Iterator<Item = &'s Arc<Sst>>,
        expected: impl Iterator<Item = &'s Arc<Sst>>,
    ) -> bool {
        found.map(Arc::as_ptr).eq(expected.map(Arc::as_ptr))
    }

    proptest! {
        #[test]
        fn the_tables_of_a_key_are_those_that_cover_it(
            ssts in prop::collection::vec(any_sst(), 0..12),
            splices in any_splices(),
            keys in prop::collection::vec(any_key(), 1..8),
        ) {
            let mut plain = ssts.clone();
            let mut layers = Layers::new(ssts.into_iter());
            for (place, removed, added) in splices {
                let place = place.min(plain.len());
                let end = (place + removed).min(plain.len());
                plain.splice(place..end, added.iter().cloned());
                layers.splice(place, removed, added);
                prop_assert!(is_sound(&layers));
                prop_assert!(same(layers.list().iter().map(|p| &p.sst), plain.iter()));
                for key in &keys {
                    prop_assert!(same(layers.of(key), plain.iter().filter(|sst| sst.meta.covers(key))));
                }
            }
        }

        #[test]
        fn windows_of_few_tables_make_a_range(
            ssts in prop::collection::vec(any_sst(), 0..12),
            range in any_range(),
            reverse: bool,
            most in 1usize..6,
        ) {
            let layers = Layers::new(ssts.into_iter());
            let (mut left, mut parts) = (range.clone(), Vec::new());
            loop {
                let window = layers.window(&left, reverse, most);
                prop_assert!(!window.is_empty() && left.covers(&window));
                let tables = layers.within(&window).count();
                let layered = layers.layers.iter().flat_map(|layer| layer.iter());
                let bounds = layered.flat_map(|sst| [first(&sst.meta).clone(), end(&sst.meta)]);
                prop_assert!(tables <= most || !bounds.into_iter().any(|b| window.is_cut_by(&b)));
                parts.push(window.clone());
                prop_assert!(parts.len() < 60);
                let is_whole = if reverse { window.start == left.start } else { window.end == left.end };
                if is_whole {
                    break;
                }
                if reverse { left.end = window.start } else { left.start = window.end }
            }
            if reverse {
                parts.reverse();
            }
            prop_assert!(range.is_made_of(&parts), "{:?}", parts);
        }
    }

    fn of(counter: u32, keys: std::ops::Range<u32>) -> Arc<Sst> {
        let key = |n: u32| Bytes::from(n.to_be_bytes().to_vec());
        let (min_key, max_key) = (key(keys.start), key(keys.end - 1));
        Arc::new(Sst::new(SstMeta { min_key, max_key, ..sst_meta(counter, b"", b"") }))
    }

    #[test]
    fn as_many_tables_as_a_load_has_find_room_between_two_others() {
        let mut layers = Layers::new((0..4).map(|n| of(n, 0..20_000)));
        let ranks = |layers: &Layers| [0, 1].map(|place| layers.list.get(place).unwrap().rank);
        let before = ranks(&layers);
        // Where all have a layer to themselves: rather below, as if a flush had come meanwhile.
        layers.splice(2, 2, vec![]);
        layers.splice(2, 0, (0..1024).rev().map(|n| of(10 + n, n * 10..n * 10 + 10)).collect());
        assert_eq!(ranks(&layers), before, "nothing was put together anew");
        assert!(is_sound(&layers));
        assert_eq!(layers.list.len(), 1026);
        assert_eq!(layers.of(&1234u32.to_be_bytes()).count(), 3);
    }

    #[test]
    fn tables_one_after_the_other_are_one_layer_and_a_flush_is_one_more() {
        let mut layers = Layers::new((0..1000).map(|n| of(n, n * 10..n * 10 + 10)));
        assert_eq!(layers.layers.len(), 1);
        for flush in 0..3 {
            layers.splice(0, 0, vec![of(2000 + flush, 0..10_000)]);
        }
        assert_eq!(layers.layers.len(), 4);
        assert_eq!(layers.of(&1234u32.to_be_bytes()).count(), 4);
        layers.splice(0, 3, vec![]);
        assert_eq!(layers.layers.len(), 1);
    }
}
