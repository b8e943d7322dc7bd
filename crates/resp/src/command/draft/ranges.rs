//! Ranges of elements, as they are stored and as the commands so far would leave them. Of those that commands which go together may come
//! back to, what was read is remembered.

use std::cmp::Ordering;

use bytes::Bytes;
use sextant_common::object::{Header, Tag, element_range};

use super::elements::TURN_ELEMENTS;
use super::{Carried, Draft};
use crate::store::{ElementRange, Store};

/// What is passed over in memory takes less time, by this factor.
const PASSED_OVER: usize = 16;
/// Elements that are asked for at once.
const PAGE_ELEMENTS: u64 = 10_000;

/// Ranges that are remembered, if several commands go together; and how many more of their elements are read when one of them is asked
/// for again.
const FETCHED_MAX: usize = 16;
const AHEAD_ELEMENTS: u64 = 64;
const AHEAD_ELEMENTS_MAX: u64 = 4096;
/// The first elements of a range, as they are stored.
pub(super) struct Fetched {
    of: ElementRange,
    elements: Vec<(Bytes, Bytes)>,
    /// All of them.
    is_whole: bool,
}

impl Fetched {
    fn is_of(&self, range: &ElementRange) -> bool {
        (&self.of.start, &self.of.end, self.of.reverse) == (&range.start, &range.end, range.reverse)
    }
}

/// What is stored, as changes leave it; both in one order, the first so many.
fn merged(
    stored: Vec<(Bytes, Bytes)>,
    changed: impl Iterator<Item = (Bytes, Option<Bytes>)>,
    most: usize,
    order: impl Fn(&Bytes, &Bytes) -> Ordering,
) -> Vec<(Bytes, Bytes)> {
    let (mut stored, mut changed) = (stored.into_iter().peekable(), changed.peekable());
    let mut all = Vec::new();
    while all.len() < most {
        let next = match (stored.peek(), changed.peek()) {
            (None, None) => break,
            (Some(_), None) => Ordering::Greater,
            (None, Some(_)) => Ordering::Less,
            (Some((at, _)), Some((change, _))) => order(change, at),
        };
        match next {
            Ordering::Greater => all.extend(stored.next()),
            Ordering::Equal => drop(stored.next()),
            Ordering::Less => {
                all.extend(changed.next().and_then(|(key, value)| Some((key, value?))));
            }
        }
    }
    all
}

impl<S: Store> Draft<'_, S> {
    /// The first elements of a range, of one tag.
    pub async fn range(&mut self, header: &Header, range: ElementRange) -> Carried<Vec<(Bytes, Bytes)>> {
        self.range_read(header, range, false).await
    }

    /// The same of elements without values, which commands that go together may come back to: they are remembered, and some more are
    /// read then for those behind.
    pub async fn range_of_names(
        &mut self,
        header: &Header,
        range: ElementRange,
    ) -> Carried<Vec<(Bytes, Bytes)>> {
        self.range_read(header, range, true).await
    }

    async fn range_read(
        &mut self,
        header: &Header,
        range: ElementRange,
        ahead: bool,
    ) -> Carried<Vec<(Bytes, Bytes)>> {
        let ElementRange { start, end, reverse, limit } = range;
        if start >= end || limit == 0 {
            return Ok(vec![]);
        }
        let changed = || self.elements.range::<Bytes, _>(&start..&end);
        let gone = changed().filter(|(_, value)| value.is_none()).count() as u64;
        let wanted = ElementRange {
            start: start.clone(),
            end: end.clone(),
            reverse,
            limit: limit.saturating_add(gone),
        };
        let mut found = match self.fresh.contains(&header.version) {
            true => vec![],
            false => self.stored(header, wanted, ahead).await?,
        };
        let changed = self.elements.range::<Bytes, _>(&start..&end);
        let passed_over = changed.clone().count();
        if passed_over > 0 {
            let changed = changed.map(|(key, value)| (key.clone(), value.clone()));
            let most = usize::try_from(limit).unwrap_or(usize::MAX);
            found = if reverse {
                merged(found, changed.rev(), most, |a, b| b.cmp(a))
            } else {
                merged(found, changed, most, |a, b| a.cmp(b))
            };
            self.look(found.len() + passed_over / PASSED_OVER)?;
            if found.len().max(passed_over / PASSED_OVER) > TURN_ELEMENTS {
                tokio::task::yield_now().await;
            }
        }
        found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(found)
    }

    /// The first stored elements of a range.
    async fn stored(
        &mut self,
        header: &Header,
        wanted: ElementRange,
        ahead: bool,
    ) -> Carried<Vec<(Bytes, Bytes)>> {
        let most = usize::try_from(wanted.limit).unwrap_or(usize::MAX);
        let before = self.fetched.iter().position(|fetched| fetched.is_of(&wanted));
        if let Some(fetched) = before.map(|at| &self.fetched[at])
            && (fetched.is_whole || fetched.elements.len() >= most)
        {
            let found: Vec<_> = fetched.elements.iter().take(most).cloned().collect();
            let turn = self.looked / TURN_ELEMENTS;
            self.look(found.len())?;
            if self.looked / TURN_ELEMENTS > turn {
                tokio::task::yield_now().await;
            }
            return Ok(found);
        }
        let more = match before {
            Some(_) => wanted.limit.clamp(AHEAD_ELEMENTS, AHEAD_ELEMENTS_MAX),
            None => 0,
        };
        let mut left = wanted.limit.saturating_add(more);
        let mut found: Vec<(Bytes, Bytes)> = Vec::new();
        let (mut last_page_bytes, mut is_whole) = (0, false);
        let (mut from, mut to) = (wanted.start.clone(), wanted.end.clone());
        while left > 0 && !is_whole {
            let page = ElementRange {
                start: from.clone(),
                end: to.clone(),
                reverse: wanted.reverse,
                limit: left.min(PAGE_ELEMENTS),
            };
            // (The next one may be as long as the last one.)
            self.make_room(last_page_bytes)?;
            let before = self.read.bytes;
            let turn = self.turns.turn(page.limit.min(header.count)).await?;
            let page = self.store.element_page(page).await?;
            drop(turn);
            self.read.moments += if page.took_several { 2 } else { 1 };
            self.read.rests_on_header = true;
            let bytes = page.elements.iter().map(|(key, value)| key.len() + value.len()).sum();
            self.count_read(page.elements.len(), bytes)?;
            last_page_bytes = self.read.bytes - before;
            left = left.saturating_sub(page.elements.len() as u64);
            match page.elements.last() {
                Some((last, _)) if wanted.reverse => to = last.clone(),
                Some((last, _)) => from = Bytes::from([&last[..], b"\0"].concat()),
                None => {}
            }
            is_whole = !page.has_more || page.elements.is_empty();
            found.extend(page.elements);
        }
        if self.is_of_one_moment && ahead {
            let fetched = Fetched { of: wanted, elements: found.clone(), is_whole };
            match before {
                Some(at) => self.fetched[at] = fetched,
                None if self.fetched.len() < FETCHED_MAX => self.fetched.push(fetched),
                None => {}
            }
        }
        found.truncate(most);
        Ok(found)
    }

    /// All elements of one tag, in their order.
    pub async fn all(&mut self, key: &[u8], header: &Header, tag: Tag) -> Carried<Vec<(Bytes, Bytes)>> {
        let (start, end) = element_range(key, header.version, tag);
        self.range(header, ElementRange { start, end, reverse: false, limit: u64::MAX }).await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn changes_over_what_is_stored_are_what_a_map_would_have(
            stored in prop::collection::btree_map(0u8..40, 0u8..5, 0..20),
            changed in prop::collection::btree_map(0u8..40, prop::option::of(5u8..9), 0..20),
            most in 0usize..30,
            reverse in any::<bool>(),
        ) {
            let bytes = |n: u8| Bytes::from(vec![n]);
            let mut map: BTreeMap<u8, u8> = stored.clone();
            for (key, value) in &changed {
                match value {
                    Some(value) => drop(map.insert(*key, *value)),
                    None => drop(map.remove(key)),
                }
            }
            let mut expected: Vec<_> = map.into_iter().map(|(k, v)| (bytes(k), bytes(v))).collect();
            let mut stored: Vec<_> = stored.into_iter().map(|(k, v)| (bytes(k), bytes(v))).collect();
            let changed = changed.into_iter().map(|(k, v)| (bytes(k), v.map(bytes)));
            let found = if reverse {
                expected.reverse();
                stored.reverse();
                merged(stored, changed.rev(), most, |a, b| b.cmp(a))
            } else {
                merged(stored, changed, most, |a, b| a.cmp(b))
            };
            expected.truncate(most);
            prop_assert_eq!(found, expected);
        }
    }
}
