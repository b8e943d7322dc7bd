//! A list whose copies share what they have in common: a change of a few places of a long list copies a few hundred elements
//! at most, and pointers to the rest.

use std::iter::FlatMap;
use std::ops::Index;
use std::slice;
use std::sync::Arc;

/// Elements that one chunk has at most. A change copies one or two chunks, and a pointer to each: for 10,000 elements about as
/// much of both.
const CHUNK_MAX: usize = 128;

#[derive(Clone, Debug)]
pub struct SharedList<T> {
    /// None is empty.
    chunks: Vec<Arc<Vec<T>>>,
    len: usize,
}

type ChunkIter<'l, T> = fn(&'l Arc<Vec<T>>) -> slice::Iter<'l, T>;
pub type Iter<'l, T> = FlatMap<slice::Iter<'l, Arc<Vec<T>>>, slice::Iter<'l, T>, ChunkIter<'l, T>>;

impl<T> SharedList<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn iter(&self) -> Iter<'_, T> {
        let elements: ChunkIter<'_, T> = |chunk| chunk.iter();
        self.chunks.iter().flat_map(elements)
    }

    /// From a place on.
    pub fn iter_from(&self, place: usize) -> impl Iterator<Item = &T> {
        let (chunk, at) = self.find(place);
        self.chunks[chunk.min(self.chunks.len())..].iter().flat_map(|chunk| chunk.iter()).skip(at)
    }

    pub fn first(&self) -> Option<&T> {
        self.chunks.first()?.first()
    }

    pub fn last(&self) -> Option<&T> {
        self.chunks.last()?.last()
    }

    pub fn get(&self, place: usize) -> Option<&T> {
        let (chunk, at) = self.find(place);
        self.chunks.get(chunk)?.get(at)
    }

    /// How many elements come before the first for which `is_before` is not true; it is of no later one.
    pub fn partition_point(&self, is_before: impl Fn(&T) -> bool) -> usize {
        let chunk = self.chunks.partition_point(|chunk| chunk.last().is_some_and(&is_before));
        let before: usize = self.chunks[..chunk].iter().map(|chunk| chunk.len()).sum();
        before + self.chunks.get(chunk).map_or(0, |chunk| chunk.partition_point(is_before))
    }

    /// The last element for which `is_before` is true; it is of all that come before.
    #[inline]
    pub fn last_before(&self, is_before: impl Fn(&T) -> bool) -> Option<&T> {
        let chunk =
            self.chunks.partition_point(|chunk| chunk.first().is_some_and(&is_before)).checked_sub(1)?;
        let chunk = &self.chunks[chunk];
        chunk.get(chunk.partition_point(is_before).checked_sub(1)?)
    }

    /// The chunk of a place, and where in it; of the end: one that there is not.
    fn find(&self, place: usize) -> (usize, usize) {
        let mut at = place;
        for (chunk, elements) in self.chunks.iter().enumerate() {
            if at < elements.len() {
                return (chunk, at);
            }
            at -= elements.len();
        }
        (self.chunks.len(), at)
    }

    /// The parts in which two lists differ, by their places: what lies between is one and the same memory. An upper bound: lists
    /// that were made one from the other share nearly everything.
    pub fn differing<'l>(&'l self, other: &'l Self) -> Vec<Differing<'l, T>> {
        let places: std::collections::HashMap<*const Vec<T>, usize> =
            other.chunks.iter().enumerate().map(|(at, chunk)| (Arc::as_ptr(chunk), at)).collect();
        let mut parts = Vec::new();
        let (mut from, mut other_from) = (0, 0);
        let mut place = 0;
        for at in 0..=self.chunks.len() {
            let shared = match self.chunks.get(at) {
                Some(chunk) => places.get(&Arc::as_ptr(chunk)).copied(),
                None => Some(other.chunks.len()),
            };
            // (A chunk that comes earlier in the other list has moved: it counts as different.)
            let Some(shared) = shared.filter(|shared| *shared >= other_from) else { continue };
            let (mine, others) = (&self.chunks[from..at], &other.chunks[other_from..shared]);
            if !(mine.is_empty() && others.is_empty()) {
                parts.push(Differing { place, mine: flat(mine), others: flat(others) });
            }
            place += mine.iter().map(|chunk| chunk.len()).sum::<usize>();
            place += self.chunks.get(at).map_or(0, |chunk| chunk.len());
            (from, other_from) = (at + 1, shared + 1);
        }
        parts
    }
}

/// What two lists have between parts that they share.
pub struct Differing<'l, T> {
    /// Where, in the first one.
    pub place: usize,
    pub mine: Vec<&'l T>,
    pub others: Vec<&'l T>,
}

fn flat<T>(chunks: &[Arc<Vec<T>>]) -> Vec<&T> {
    chunks.iter().flat_map(|chunk| chunk.iter()).collect()
}

impl<T: Clone> SharedList<T> {
    /// Puts `added` in the place of as many elements. Places beyond the end are the end.
    pub fn splice(&mut self, place: usize, removed: usize, added: impl IntoIterator<Item = T>) {
        let place = place.min(self.len);
        let removed = removed.min(self.len - place);
        let ((mut first, before), (mut last, after)) = (self.find(place), self.find(place + removed));
        let mut elements: Vec<T> = Vec::new();
        // A chunk that would be short is joined with the one before it.
        if first > 0 && (first == self.chunks.len() || self.chunks[first].len() < CHUNK_MAX / 4) {
            first -= 1;
            elements.extend_from_slice(&self.chunks[first]);
            let own = if place == self.len { &[][..] } else { &self.chunks[first + 1][..before] };
            elements.extend_from_slice(own);
        } else if let Some(chunk) = self.chunks.get(first) {
            elements.extend_from_slice(&chunk[..before]);
        }
        let kept = elements.len();
        elements.extend(added);
        self.len = self.len - removed + (elements.len() - kept);
        if let Some(chunk) = self.chunks.get(last) {
            elements.extend_from_slice(&chunk[after..]);
            last += 1;
        }
        self.chunks.splice(first..last, chunked(elements));
    }
}

/// Chunks of about one length.
fn chunked<T>(elements: Vec<T>) -> Vec<Arc<Vec<T>>> {
    let pieces = elements.len().div_ceil(CHUNK_MAX);
    let length = elements.len().div_ceil(pieces.max(1)).max(1);
    let mut elements = elements.into_iter();
    (0..pieces)
        .map(|_| Arc::new(elements.by_ref().take(length).collect::<Vec<T>>()))
        .filter(|c| !c.is_empty())
        .collect()
}

impl<T> Default for SharedList<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<T> FromIterator<T> for SharedList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let elements: Vec<T> = elements.into_iter().collect();
        Self { len: elements.len(), chunks: chunked(elements) }
    }
}

impl<T> Index<usize> for SharedList<T> {
    type Output = T;

    fn index(&self, place: usize) -> &T {
        let (chunk, at) = self.find(place);
        &self.chunks[chunk][at]
    }
}

impl<'l, T> IntoIterator for &'l SharedList<T> {
    type Item = &'l T;
    type IntoIter = Iter<'l, T>;

    fn into_iter(self) -> Iter<'l, T> {
        self.iter()
    }
}

impl<T: PartialEq> PartialEq for SharedList<T> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other)
    }
}

impl<T: Eq> Eq for SharedList<T> {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_splices() -> impl Strategy<Value = Vec<(usize, usize, usize)>> {
        prop::collection::vec((0usize..2000, 0usize..300, 0usize..300), 1..20)
    }

    proptest! {
        #[test]
        fn a_list_is_what_a_vector_is(splices in any_splices()) {
            let (mut list, mut plain) = (SharedList::default(), Vec::new());
            let mut next = 0u32;
            for (place, removed, added) in splices {
                let place = place % (plain.len() + 1);
                let end = (place + removed).min(plain.len());
                let new: Vec<u32> = (next..next + added as u32).collect();
                next += added as u32;
                let before = list.clone();
                list.splice(place, removed, new.iter().copied());
                let old = plain.clone();
                plain.splice(place..end, new);
                prop_assert!(list.iter().eq(&plain));
                prop_assert!(before.iter().eq(&old), "the other copy is as it was");
                prop_assert_eq!(list.len(), plain.len());
                prop_assert!(list.chunks.iter().all(|c| !c.is_empty() && c.len() <= CHUNK_MAX));
                for at in [0, place, end, plain.len()] {
                    prop_assert_eq!(list.get(at), plain.get(at));
                    prop_assert!(list.iter_from(at).eq(&plain[at.min(plain.len())..]));
                }
                let mut rebuilt = old.clone();
                for part in before.differing(&list).into_iter().rev() {
                    let others = part.others.into_iter().copied();
                    rebuilt.splice(part.place..part.place + part.mine.len(), others);
                }
                prop_assert_eq!(&rebuilt, &plain);
            }
        }

        #[test]
        fn places_in_an_order_are_found(length in 0u32..1000, bound in 0u32..1000) {
            let list: SharedList<u32> = (0..length).collect();
            prop_assert_eq!(list.partition_point(|e| *e < bound), bound.min(length) as usize);
            prop_assert_eq!(list.last_before(|e| *e < bound).copied(), bound.min(length).checked_sub(1));
        }
    }

    #[test]
    fn a_change_of_a_long_list_copies_little_of_it() {
        let list: SharedList<u32> = (0..10_000).collect();
        let mut changed = list.clone();
        changed.splice(0, 0, [1]);
        changed.splice(5000, 3, [2]);
        let parts = list.differing(&changed);
        assert!(parts.iter().map(|part| part.mine.len()).sum::<usize>() <= 4 * CHUNK_MAX);
    }
}
