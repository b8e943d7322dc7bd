//! Elements of objects: read as they are stored, and as the commands so far would leave them.

use std::cmp::Ordering;

use bytes::Bytes;
use sextant_common::limits::{self, BATCH_BYTES_MAX};
use sextant_common::object::{ELEMENTS_TABLE, ElementKeys, Header, Tag, element_range};
use sextant_common::operation::{Condition, Lane, Operation, Returns, Told};
use sextant_common::{Error, Result};

use super::{Carried, Draft, MADE_BYTES_MAX, READ_BYTES_MAX};
use crate::command::execution::CHUNK_KEYS;
use crate::frame::Reply;
use crate::store::{ElementRange, Store};

/// Most elements that are read together.
const ELEMENTS_MAX: usize = 1_000_000;
/// Most elements that are looked at together, whether they are read for it or were at hand.
const LOOKED_MAX: usize = 16 * ELEMENTS_MAX;
/// What is passed over in memory takes less time, by this factor.
const PASSED_OVER: usize = 16;
/// After so many of them others have their turn.
const TURN_ELEMENTS: usize = 4096;
/// What an element takes beside its bytes.
const ELEMENT_BYTES: usize = 64;
/// Elements that are asked for at once.
const PAGE_ELEMENTS: u64 = 10_000;
/// The same by their names, in bytes of their keys: each has the key of its object in it.
const CHUNK_BYTES: usize = 256 * 1024;

/// Ranges that are remembered, if several commands go together; and how many more of their elements are read when one of them is asked
/// for again.
const FETCHED_MAX: usize = 16;
const AHEAD_ELEMENTS: u64 = 64;
const AHEAD_ELEMENTS_MAX: u64 = 4096;
/// Names of which is remembered whether they are there, in bytes.
const KNOWN_BYTES_MAX: usize = 1024 * 1024;

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

impl<'s, S: Store> Draft<'s, S> {
    /// Whether what is asked for together is asked of the leader.
    pub fn is_of_leader(&self) -> bool {
        self.of_leader
    }

    pub async fn element(
        &mut self,
        key: &[u8],
        header: &Header,
        tag: Tag,
        name: &[u8],
    ) -> Carried<Option<Bytes>> {
        Ok(self.elements(key, header, tag, &[name]).await?.pop().flatten())
    }

    /// Elements that the commands may come back to.
    pub async fn elements<N: AsRef<[u8]>>(
        &mut self,
        key: &[u8],
        header: &Header,
        tag: Tag,
        names: &[N],
    ) -> Carried<Vec<Option<Bytes>>> {
        self.elements_kept(key, header, tag, names, true).await
    }

    /// Elements that the command does not ask for again: others may.
    pub async fn elements_once<N: AsRef<[u8]>>(
        &mut self,
        key: &[u8],
        header: &Header,
        tag: Tag,
        names: &[N],
    ) -> Carried<Vec<Option<Bytes>>> {
        self.elements_kept(key, header, tag, names, self.is_of_one_moment).await
    }

    async fn elements_kept<N: AsRef<[u8]>>(
        &mut self,
        key: &[u8],
        header: &Header,
        tag: Tag,
        names: &[N],
        kept: bool,
    ) -> Carried<Vec<Option<Bytes>>> {
        let element_keys = ElementKeys::new(key, header.version, tag);
        let mut values: Vec<Option<Bytes>> = Vec::with_capacity(names.len());
        let (mut missing, mut keys, mut missing_bytes) = (Vec::new(), Vec::new(), 0);
        self.look(names.len())?;
        for (at, name) in names.iter().enumerate() {
            if at > 0 && at.is_multiple_of(TURN_ELEMENTS) {
                tokio::task::yield_now().await;
            }
            let element = element_keys.of(name.as_ref());
            let value = self.at_hand(header, tag, name.as_ref(), &element);
            if value.is_none() {
                missing_bytes += element.len();
                missing.push(at);
                keys.push(element);
            }
            values.push(value.flatten());
            // (No more keys at once than are asked for at once.)
            if missing.len() >= CHUNK_KEYS || missing_bytes >= CHUNK_BYTES {
                let found = self.read_elements(std::mem::take(&mut keys), missing_bytes).await?;
                if kept {
                    self.keep(header, tag, names, &missing, &found);
                }
                self.note(names, &missing, found, &mut values)?;
                missing.clear();
                missing_bytes = 0;
            }
        }
        if !missing.is_empty() {
            let found = self.read_elements(keys, missing_bytes).await?;
            if kept {
                self.keep(header, tag, names, &missing, &found);
            }
            self.note(names, &missing, found, &mut values)?;
        }
        Ok(values)
    }

    /// What is known of an element, which `element` is the key of; None: it has to be asked for.
    fn at_hand(&self, header: &Header, tag: Tag, name: &[u8], element: &Bytes) -> Option<Option<Bytes>> {
        let known = || self.known.get(&(header.version, tag))?.get(name);
        let value = self.elements.get(element).or_else(known).cloned();
        value.or_else(|| self.fresh.contains(&header.version).then_some(None))
    }

    async fn read_elements(&mut self, keys: Vec<Bytes>, bytes: usize) -> Carried<Vec<Option<Bytes>>> {
        self.make_room(bytes)?;
        let several = keys.len() > 1;
        let _turn = self.turns.turn(keys.len() as u64).await?;
        if self.of_leader && several {
            return self.elements_at_one_moment(keys).await;
        }
        self.read.moments += if several { 2 } else { 1 };
        let records = self.store.elements(keys).await?;
        Ok(records.into_iter().map(|record| record.map(|record| record.value)).collect())
    }

    /// So that it is at hand when it is asked for again.
    fn keep<N: AsRef<[u8]>>(
        &mut self,
        header: &Header,
        tag: Tag,
        names: &[N],
        missing: &[usize],
        found: &[Option<Bytes>],
    ) {
        let names = missing.iter().map(|at| Bytes::copy_from_slice(names[*at].as_ref()));
        let known = self.known.entry((header.version, tag)).or_default();
        known.extend(names.zip(found.iter().cloned()));
    }

    /// What was found of stored elements.
    fn note<N: AsRef<[u8]>>(
        &mut self,
        names: &[N],
        missing: &[usize],
        found: Vec<Option<Bytes>>,
        values: &mut [Option<Bytes>],
    ) -> Result<()> {
        let mut bytes = 0;
        for (at, value) in missing.iter().zip(found) {
            self.read.rests_on_header |= value.is_none();
            bytes += names[*at].as_ref().len() + value.as_ref().map_or(0, Bytes::len);
            values[*at] = value;
        }
        self.count_read(missing.len(), bytes)
    }

    /// Whether elements are there. Their values, which may be long, are not read.
    pub async fn exist<N: AsRef<[u8]>>(
        &mut self,
        key: &[u8],
        header: &Header,
        tag: Tag,
        names: &[N],
    ) -> Carried<Vec<bool>> {
        let mut exist = Vec::with_capacity(names.len());
        let (mut missing, mut missing_bytes) = (Vec::new(), 0);
        let element_keys = ElementKeys::new(key, header.version, tag);
        for (at, name) in names.iter().enumerate() {
            let element = element_keys.of(name.as_ref());
            let was_asked = || self.known_to_exist.get(&(header.version, tag))?.get(name.as_ref()).copied();
            let is_there = match self.at_hand(header, tag, name.as_ref(), &element) {
                None if was_asked().is_some() => was_asked(),
                None => self.store.look_element(&element).transpose()?.map(|record| {
                    self.read.moments += 1;
                    self.read.rests_on_header = true;
                    record.is_some()
                }),
                known => known.map(|value| value.is_some()),
            };
            exist.push(is_there.unwrap_or_default());
            if is_there.is_none() {
                missing_bytes += element.len();
                missing.push((at, element));
            }
            if missing.len() >= CHUNK_KEYS || missing_bytes >= CHUNK_BYTES {
                self.ask_whether_they_exist(&mut missing, missing_bytes, &mut exist).await?;
                missing_bytes = 0;
            }
        }
        self.ask_whether_they_exist(&mut missing, missing_bytes, &mut exist).await?;
        if self.is_of_one_moment {
            self.keep_existence((header.version, tag), names, &exist);
        }
        Ok(exist)
    }

    /// As far as there is room: they are asked for again otherwise.
    fn keep_existence<N: AsRef<[u8]>>(&mut self, of: (u64, Tag), names: &[N], exist: &[bool]) {
        let known = self.known_to_exist.entry(of).or_default();
        for (name, is_there) in names.iter().zip(exist) {
            let name = name.as_ref();
            self.known_bytes += name.len() + ELEMENT_BYTES;
            if self.known_bytes > KNOWN_BYTES_MAX {
                return;
            }
            known.insert(Bytes::copy_from_slice(name), *is_there);
        }
    }

    async fn ask_whether_they_exist(
        &mut self,
        missing: &mut Vec<(usize, Bytes)>,
        bytes: usize,
        exist: &mut [bool],
    ) -> Result<()> {
        if missing.is_empty() {
            return Ok(());
        }
        self.make_room(bytes)?;
        let is_there = |element: &Bytes| {
            let check = Operation::check_only(ELEMENTS_TABLE, element.clone());
            check.only_if(Condition::Present).skip_on_failure()
        };
        let _turn = self.turns.turn(missing.len() as u64).await?;
        let ops = missing.iter().map(|(_, element)| is_there(element)).collect();
        let outcome = self.store.execute(ops, Lane::Single).await?;
        self.read.moments += 1;
        self.read.rests_on_header = true;
        for ((at, _), result) in missing.drain(..).zip(outcome.results) {
            exist[at] = result.applied;
        }
        Ok(())
    }

    /// The leader is asked, which says what all of them are when it has come to the request.
    async fn elements_at_one_moment(&mut self, keys: Vec<Bytes>) -> Carried<Vec<Option<Bytes>>> {
        let peek = |key| Operation::check_only(ELEMENTS_TABLE, key).returning(Returns::Before);
        let outcome = self.store.execute(keys.into_iter().map(peek).collect(), Lane::Single).await?;
        self.read.moments += 1;
        self.read.rests_on_header = true;
        let value = |told: Told| match told {
            Told::Value(value) => Ok(Some(value)),
            Told::Nothing => Ok(None),
            Told::Length(_) | Told::Forgotten | Told::Misfit(_) => {
                Err(Error::invalid("the elements are longer together than an answer may be").into())
            }
        };
        outcome.results.into_iter().map(|result| value(result.told)).collect()
    }

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

    /// The reply goes by the header too, not only by elements: they have to be of the same moment.
    pub fn rests_on_header(&mut self) {
        self.read.moments += 2;
        self.read.rests_on_header = true;
    }

    /// For what was read and made, and so many bytes more.
    pub(super) fn make_room(&mut self, more_bytes: usize) -> Result<()> {
        let beside = self.read.elements * ELEMENT_BYTES;
        self.gathered.make_room(self.read.bytes + beside + self.made + more_bytes)
    }

    /// What costs no read costs time: it is bounded all the same.
    fn look(&mut self, elements: usize) -> Result<()> {
        self.looked += elements;
        if self.looked > LOOKED_MAX {
            return Err(Error::invalid(format!(
                "nothing took effect: it looks at more than {LOOKED_MAX} elements"
            )));
        }
        Ok(())
    }

    fn count_read(&mut self, elements: usize, bytes: usize) -> Result<()> {
        self.read.elements += elements;
        self.read.bytes += bytes;
        self.make_room(0)?;
        if self.read.elements > ELEMENTS_MAX || self.read.bytes > READ_BYTES_MAX {
            return Err(Error::invalid(format!(
                "nothing took effect: it reads more than {ELEMENTS_MAX} elements, or {READ_BYTES_MAX} bytes"
            )));
        }
        Ok(())
    }

    /// Why an object under `key` cannot get so many elements, each with so many records, of so many bytes in all beside the key: no
    /// batch carries them.
    pub fn too_many(key: &Bytes, elements: usize, records: usize, bytes: usize) -> Option<Reply> {
        let records = elements.saturating_mul(records);
        let bytes = records.saturating_mul(key.len()).saturating_add(bytes);
        (records > limits::BATCH_OPS_MAX || bytes > BATCH_BYTES_MAX).then(|| {
            Reply::error(format!(
                "ERR nothing took effect: it writes more than {} records, or {} bytes",
                limits::BATCH_OPS_MAX,
                BATCH_BYTES_MAX
            ))
        })
    }

    pub fn put(&mut self, element: Bytes, value: Bytes) -> Result<()> {
        self.made += element.len() + value.len();
        self.elements.insert(element, Some(value));
        self.check_made()
    }

    pub fn remove(&mut self, element: Bytes) -> Result<()> {
        self.made += element.len();
        self.elements.insert(element, None);
        self.check_made()
    }

    pub(super) fn check_made(&mut self) -> Result<()> {
        if self.made > MADE_BYTES_MAX {
            return Err(Error::invalid(format!(
                "nothing took effect: the values that it makes are longer than {MADE_BYTES_MAX} bytes"
            )));
        }
        self.make_room(0)
    }

    /// Whether something was refused because there is no room for what others and it read and make.
    pub fn lacks_room(&self) -> bool {
        self.gathered.lacks_room()
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
