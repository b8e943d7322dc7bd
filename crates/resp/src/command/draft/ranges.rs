//! Ranges of elements, as they are stored and as the commands so far would leave them. Of those that commands which go together may come
//! back to, what was read is remembered.

use std::cmp::Ordering;

use bytes::Bytes;
use sextant_common::Result;
use sextant_common::object::{Header, Tag, element_range};

use super::elements::TURN_ELEMENTS;
use super::{Carried, Draft};
use crate::store::{ElementRange, ElementStep, STEP_TIME_MAX, Store};

/// What is passed over in memory takes less time, by this factor.
const PASSED_OVER: usize = 16;
/// Elements that are asked for at once.
const PAGE_ELEMENTS: u64 = 10_000;

/// So many are counted first on either side of a place, then so many times more, up to a page.
const COUNTED_FIRST: u64 = 128;
const COUNTED_MORE: u64 = 8;

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

/// What is kept of what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    All,
    /// Also for those that come back to it. (Elements without values.)
    Remembered,
    /// The values, which may be long, are of no use.
    Names,
    /// It is only counted.
    Nothing,
}

/// How much of a range is read, if it has that.
#[derive(Clone, Copy, Debug)]
struct Enough {
    bytes: usize,
    /// Whatever was found, it is enough behind elements that are gone. None: however long that takes.
    until_ns: Option<u64>,
    /// What is found has to be so at one moment, and not with what is missing before it.
    is_one_page: bool,
}

impl Enough {
    /// All up to its limit.
    const ALL: Self = Self { bytes: usize::MAX, until_ns: None, is_one_page: false };
    /// What comes together.
    const SOME: Self = Self { bytes: 1, ..Self::ALL };
}

#[derive(Default)]
struct Stored {
    elements: Vec<(Bytes, Bytes)>,
    /// There are no more.
    is_whole: bool,
    /// Where it goes on, if that is not right behind the last one.
    goes_on: Option<Bytes>,
}

/// The first elements of a range.
#[derive(Default)]
pub(in crate::command) struct Page {
    pub elements: Vec<(Bytes, Bytes)>,
    /// The range that is left, if it may have elements.
    pub rest: Option<ElementRange>,
}

/// On which side of a place the fewer elements are, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::command) enum Nearer {
    Before(u64),
    Behind(u64),
}

/// The key right behind this one.
pub(in crate::command) fn after(key: &[u8]) -> Bytes {
    Bytes::from([key, b"\0"].concat())
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
        self.range_read(header, range, Kept::All).await
    }

    /// The same of elements without values, which commands that go together may come back to: they are remembered, and some more are
    /// read then for those behind.
    pub async fn range_of_names(
        &mut self,
        header: &Header,
        range: ElementRange,
    ) -> Carried<Vec<(Bytes, Bytes)>> {
        self.range_read(header, range, Kept::Remembered).await
    }

    /// Whether others come who may ask for what was read.
    pub fn remembers(&self) -> bool {
        self.is_of_one_moment
    }

    /// The same of elements whose values are of no use: they come without.
    pub async fn range_without_values(
        &mut self,
        header: &Header,
        range: ElementRange,
    ) -> Carried<Vec<(Bytes, Bytes)>> {
        self.range_read(header, range, Kept::Names).await
    }

    /// A step over a range: its first elements from its start on, up to its limit; so many bytes of them are enough. None: one page of
    /// the store. (Those are bounded: what it takes several for is not so at one moment.) Where others were removed it may end with
    /// few elements, or none, and says how far it has come.
    pub async fn page(
        &mut self,
        header: &Header,
        range: ElementRange,
        enough_bytes: Option<usize>,
    ) -> Carried<Page> {
        let until_ns = self.env.clock.holder_ns().saturating_add(STEP_TIME_MAX.as_nanos() as u64);
        let enough = Enough {
            bytes: enough_bytes.unwrap_or(1),
            until_ns: Some(until_ns),
            is_one_page: enough_bytes.is_none(),
        };
        self.page_read(header, range, Kept::All, enough).await
    }

    /// Of two ranges before and behind a place, the one that has fewer elements, and how many. Both are read in turns, until one ends.
    pub async fn nearer(&mut self, header: &Header, ranges: [(Bytes, Bytes); 2]) -> Carried<Nearer> {
        let mut left = ranges.map(|(start, end)| ElementRange { start, end, reverse: false, limit: 0 });
        let (mut counts, mut limit) = ([0, 0], COUNTED_FIRST);
        loop {
            for (at, nearer) in [Nearer::Before, Nearer::Behind].into_iter().enumerate() {
                let range = ElementRange { limit, ..left[at].clone() };
                let page = self.page_read(header, range, Kept::Nothing, Enough::SOME).await?;
                counts[at] += page.elements.len() as u64;
                match page.rest {
                    Some(rest) => left[at] = rest,
                    None => return Ok(nearer(counts[at])),
                }
            }
            limit = (COUNTED_MORE * limit).min(PAGE_ELEMENTS);
        }
    }

    async fn page_read(
        &mut self,
        header: &Header,
        range: ElementRange,
        kept: Kept,
        enough: Enough,
    ) -> Carried<Page> {
        if range.start >= range.end || range.limit == 0 {
            return Ok(Page::default());
        }
        let stored = match self.fresh.contains(&header.version) {
            true => Stored { is_whole: true, ..Stored::default() },
            false => self.stored(header, range.clone(), kept, enough).await?,
        };
        let Stored { elements: stored, is_whole, goes_on } = stored;
        let behind_last = || stored.last().map(|(key, _)| after(key));
        let mut goes_on = goes_on.or_else(behind_last).filter(|_| !is_whole);
        let until = goes_on.as_ref().unwrap_or(&range.end);
        let most = usize::try_from(range.limit).unwrap_or(usize::MAX);
        // (No further than what says that there are more.)
        let mut walked = 0;
        let changed = self.elements.range::<Bytes, _>(&range.start..until).inspect(|_| walked += 1);
        let changed = changed.map(|(key, value)| (key.clone(), value.clone()));
        let mut elements = merged(stored, changed, most.saturating_add(1), |a, b| a.cmp(b));
        if walked > 0 {
            self.look(elements.len() + walked / PASSED_OVER)?;
            if elements.len().max(walked / PASSED_OVER) > TURN_ELEMENTS {
                tokio::task::yield_now().await;
            }
        }
        if elements.len() > most {
            elements.truncate(most);
            goes_on = elements.last().map(|(key, _)| after(key));
        }
        let rest = goes_on.map(|start| ElementRange { start, ..range });
        Ok(Page { elements, rest })
    }

    async fn range_read(
        &mut self,
        header: &Header,
        range: ElementRange,
        kept: Kept,
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
            false => self.stored(header, wanted, kept, Enough::ALL).await?.elements,
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
        kept: Kept,
        enough: Enough,
    ) -> Carried<Stored> {
        let most = usize::try_from(wanted.limit).unwrap_or(usize::MAX);
        let before = self.fetched.iter().position(|fetched| fetched.is_of(&wanted));
        if let Some(fetched) = before.map(|at| &self.fetched[at])
            && (fetched.is_whole || fetched.elements.len() >= most)
        {
            let is_whole = fetched.is_whole && fetched.elements.len() <= most;
            let found: Vec<_> = fetched.elements.iter().take(most).cloned().collect();
            let turn = self.looked / TURN_ELEMENTS;
            self.look(found.len())?;
            if self.looked / TURN_ELEMENTS > turn {
                tokio::task::yield_now().await;
            }
            return Ok(Stored { elements: found, is_whole, goes_on: None });
        }
        let more = match before {
            Some(_) => wanted.limit.clamp(AHEAD_ELEMENTS, AHEAD_ELEMENTS_MAX),
            None => 0,
        };
        let mut left = wanted.limit.saturating_add(more);
        let mut found: Vec<(Bytes, Bytes)> = Vec::new();
        let (mut last_page_bytes, mut read_bytes, mut is_whole, mut is_over) = (0, 0, false, false);
        let (mut from, mut to) = (wanted.start.clone(), wanted.end.clone());
        while left > 0 && !is_whole && !is_over && read_bytes < enough.bytes {
            let page = ElementRange {
                start: from.clone(),
                end: to.clone(),
                reverse: wanted.reverse,
                limit: left.min(PAGE_ELEMENTS),
            };
            // (The next one may be as long as the last one.)
            self.make_room(last_page_bytes)?;
            let turn = self.turns.turn(page.limit.min(header.count)).await?;
            let step = self.store.element_step(page).await?;
            // (Others have theirs while it crosses what is gone.)
            drop(turn);
            self.read.rests_on_header = true;
            let page = match step {
                ElementStep::Found(page) => page,
                ElementStep::Searched(rest) => {
                    self.read.moments += 1;
                    is_whole = rest.start >= rest.end;
                    is_over = enough.until_ns.is_some();
                    (from, to) = (rest.start, rest.end);
                    continue;
                }
            };
            self.read.moments += if page.took_several && !enough.is_one_page { 2 } else { 1 };
            let is_late = enough.until_ns.is_some_and(|until_ns| self.env.clock.holder_ns() >= until_ns);
            is_over = page.took_several && is_late;
            last_page_bytes = self.count_page(&page.elements, kept)?;
            read_bytes += last_page_bytes;
            left = left.saturating_sub(page.elements.len() as u64);
            match page.elements.last() {
                Some((last, _)) if wanted.reverse => to = last.clone(),
                Some((last, _)) => from = after(last),
                None => {}
            }
            is_whole = !page.has_more || page.elements.is_empty();
            match kept {
                // (Copies: a key may hold on to the values that have come with it.)
                Kept::Names | Kept::Nothing => {
                    let names = page.elements.iter().map(|(key, _)| Bytes::copy_from_slice(key));
                    found.extend(names.map(|name| (name, Bytes::new())));
                }
                Kept::All | Kept::Remembered => found.extend(page.elements),
            }
        }
        if self.remembers() && kept == Kept::Remembered {
            let fetched = Fetched { of: wanted, elements: found.clone(), is_whole };
            match before {
                Some(at) => self.fetched[at] = fetched,
                None if self.fetched.len() < FETCHED_MAX => self.fetched.push(fetched),
                None => {}
            }
        }
        let is_cut = found.len() > most;
        found.truncate(most);
        let goes_on = (is_over && !is_cut).then_some(from);
        Ok(Stored { elements: found, is_whole: is_whole && !is_cut, goes_on })
    }

    /// The bytes of a page that was read.
    fn count_page(&mut self, elements: &[(Bytes, Bytes)], kept: Kept) -> Result<usize> {
        let names: usize = elements.iter().map(|(key, _)| key.len()).sum();
        let values: usize = elements.iter().map(|(_, value)| value.len()).sum();
        match kept {
            Kept::All | Kept::Remembered => self.count_read(elements.len(), names + values)?,
            Kept::Names => {
                self.count_read(elements.len(), names)?;
                self.drop_read(values)?;
            }
            Kept::Nothing => {
                self.look(elements.len())?;
                self.drop_read(names + values)?;
            }
        }
        Ok(names + values)
    }

    /// The names of all elements of one tag, in their order.
    pub async fn all_without_values(
        &mut self,
        key: &[u8],
        header: &Header,
        tag: Tag,
    ) -> Carried<Vec<(Bytes, Bytes)>> {
        let (start, end) = element_range(key, header.version, tag);
        let all = ElementRange { start, end, reverse: false, limit: u64::MAX };
        self.range_without_values(header, all).await
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
