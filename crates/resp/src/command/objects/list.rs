//! Lists: elements by their positions, without gaps, so that an index is a position. What is put into the middle, or taken out of it,
//! moves all elements on its shorter side.

use bytes::Bytes;
use sextant_common::limits::BATCH_OPS_MAX;
use sextant_common::marks::Kind;
use sextant_common::object::{Header, LIST_MIDDLE, Tag, element_key};
use sextant_common::{Error, Result};

use super::super::draft::{Carried, Draft};
use super::super::errors::NO_SUCH_KEY;
use crate::frame::Reply;
use crate::store::{ElementRange, Store};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Left,
    Right,
}

#[derive(Debug)]
pub(super) enum List {
    /// Whether a new one is made.
    Push(End, Vec<Bytes>, bool),
    Pop(End, Option<u64>),
    Range(i64, i64),
    Length,
    Index(i64),
    Set(i64, Bytes),
    /// How many, negative: from the end; 0: all.
    Remove(i64, Bytes),
    Trim(i64, i64),
    /// Whether before; beside which one; what.
    Insert(bool, Bytes, Bytes),
    /// From the first key to the second one.
    Move(End, End),
    Find(Find),
}

/// `LPOS`.
#[derive(Debug)]
pub(super) struct Find {
    pub value: Bytes,
    /// The first of them that counts; negative: from the end.
    pub rank: i64,
    /// How many, 0: all; None: one, told as a number.
    pub count: Option<u64>,
    /// How many elements are compared; 0: all.
    pub at_most: u64,
}

const KIND: Kind = Kind::List;
/// So many elements are read one by one, as they may be at hand here, and not as a range.
pub(super) const POINTS_MAX: u64 = 256;
/// The same of `LRANGE`, which others ask for again; and bytes of their keys.
const RANGE_POINTS_MAX: u64 = 1024;
const POINTS_BYTES_MAX: usize = 128 * 1024;

fn ends(header: &Header) -> (u64, u64) {
    header.ends.unwrap_or((LIST_MIDDLE, LIST_MIDDLE))
}

fn element_at(key: &[u8], header: &Header, position: u64) -> Bytes {
    element_key(key, header.version, Tag::Position, &position.to_be_bytes())
}

/// From and up to, of so many; None: nothing.
fn cut(start: i64, stop: i64, count: u64) -> Option<(u64, u64)> {
    let count = count as i64;
    let place = |at: i64| if at < 0 { at.saturating_add(count) } else { at };
    let (start, stop) = (place(start).max(0), place(stop).min(count - 1));
    (start <= stop).then(|| (start as u64, stop as u64 + 1))
}

impl List {
    pub async fn carry_out<S: Store>(&self, keys: &[Bytes], draft: &mut Draft<'_, S>) -> Carried<Reply> {
        let key = &keys[0];
        let found = draft.object(key, KIND)?;
        Ok(match self {
            List::Push(end, values, makes) => {
                if found.is_none() && !makes {
                    return Ok(Reply::Integer(0));
                }
                let mut header = draft.object_or_new(key, KIND)?;
                for value in values {
                    push(draft, key, &mut header, *end, value.clone())?;
                }
                draft.leave_object(key, KIND, header);
                Reply::Integer(header.count as i64)
            }
            List::Pop(end, count) => {
                let none = || if count.is_some() { Reply::NilArray } else { Reply::Nil };
                let Some(mut header) = found else { return Ok(none()) };
                let popped = pop(draft, key, &mut header, *end, count.unwrap_or(1)).await?;
                let mut popped = popped.into_iter().map(Reply::Bulk);
                match count {
                    Some(_) => Reply::Array(popped.collect()),
                    None => popped.next().unwrap_or(Reply::Nil),
                }
            }
            List::Range(start, stop) => {
                let Some(header) = found else { return Ok(Reply::Array(vec![])) };
                let values = match cut(*start, *stop, header.count) {
                    Some((from, to)) => {
                        let points_max = RANGE_POINTS_MAX.min((POINTS_BYTES_MAX / key.len()) as u64);
                        read_up_to(draft, key, &header, (from, to), points_max.max(POINTS_MAX)).await?
                    }
                    None => vec![],
                };
                Reply::Array(values.into_iter().map(Reply::Bulk).collect())
            }
            List::Length => Reply::Integer(found.map_or(0, |header| header.count as i64)),
            List::Index(index) => {
                let place = found.and_then(|header| Some((header, cut(*index, *index, header.count)?.0)));
                let Some((header, at)) = place.filter(|(h, _)| is_inside(*index, h.count)) else {
                    return Ok(Reply::Nil);
                };
                read(draft, key, &header, at, at + 1).await?.pop().map_or(Reply::Nil, Reply::Bulk)
            }
            List::Set(index, value) => {
                let Some(header) = found else { return Ok(NO_SUCH_KEY) };
                if !is_inside(*index, header.count) {
                    return Ok(Reply::error("ERR index out of range"));
                }
                let at = if *index < 0 { header.count - index.unsigned_abs() } else { *index as u64 };
                draft.put(element_at(key, &header, ends(&header).0 + at), value.clone())?;
                draft.leave_object(key, KIND, header);
                Reply::OK
            }
            List::Remove(count, value) => {
                let Some(header) = found else { return Ok(Reply::Integer(0)) };
                let all = read(draft, key, &header, 0, header.count).await?;
                let mut left = if *count == 0 { u64::MAX } else { count.unsigned_abs() };
                let mut stays = vec![true; all.len()];
                let mut look = |at: usize| {
                    if left > 0 && all[at] == *value {
                        (stays[at], left) = (false, left - 1);
                    }
                };
                match *count < 0 {
                    true => (0..all.len()).rev().for_each(&mut look),
                    false => (0..all.len()).for_each(&mut look),
                }
                let removed = stays.iter().filter(|stays| !**stays).count();
                if removed > 0 {
                    let stay = all.iter().zip(&stays).filter(|(_, stays)| **stays);
                    let after: Vec<Bytes> = stay.map(|(value, _)| value.clone()).collect();
                    rewrite(draft, key, header, &all, &after)?;
                }
                Reply::Integer(removed as i64)
            }
            List::Trim(start, stop) => {
                let Some(mut header) = found else { return Ok(Reply::OK) };
                let (from, to) = cut(*start, *stop, header.count).unwrap_or((0, 0));
                if (from, to) == (0, header.count) {
                    return Ok(Reply::OK);
                }
                let (first, end) = ends(&header);
                let gone = if to > from { header.count - (to - from) } else { 0 };
                if gone > BATCH_OPS_MAX as u64 {
                    return Err(Error::invalid(format!(
                        "nothing took effect: it would remove {gone} elements: the limit is {BATCH_OPS_MAX}"
                    ))
                    .into());
                }
                if to > from {
                    for position in (first..first + from).chain(first + to..end) {
                        draft.remove(element_at(key, &header, position))?;
                    }
                }
                (header.ends, header.count) = (Some((first + from, first + to)), to - from);
                draft.leave_object(key, KIND, header);
                Reply::OK
            }
            List::Insert(before, pivot, value) => {
                let Some(header) = found else { return Ok(Reply::Integer(0)) };
                let all = read(draft, key, &header, 0, header.count).await?;
                let Some(at) = all.iter().position(|other| other == pivot) else {
                    return Ok(Reply::Integer(-1));
                };
                let mut after = all.clone();
                after.insert(if *before { at } else { at + 1 }, value.clone());
                rewrite(draft, key, header, &all, &after)?;
                Reply::Integer(after.len() as i64)
            }
            List::Move(from_end, to_end) => {
                let to = &keys[1];
                let Some(mut header) = found else { return Ok(Reply::Nil) };
                draft.object(to, KIND)?;
                if key == to && header.count == 1 {
                    // (It is not gone in between.)
                    let only = read(draft, key, &header, 0, 1).await?;
                    return Ok(only.into_iter().next().map_or(Reply::Nil, Reply::Bulk));
                }
                let Some(value) = pop(draft, key, &mut header, *from_end, 1).await?.pop() else {
                    return Ok(Reply::Nil);
                };
                let mut header = draft.object_or_new(to, KIND)?;
                push(draft, to, &mut header, *to_end, value.clone())?;
                draft.leave_object(to, KIND, header);
                Reply::Bulk(value)
            }
            List::Find(find) => {
                let places = match found {
                    Some(header) => find.places(draft, key, &header).await?,
                    None => vec![],
                };
                let mut places = places.into_iter().map(|at| Reply::Integer(at as i64));
                match find.count {
                    Some(_) => Reply::Array(places.collect()),
                    None => places.next().unwrap_or(Reply::Nil),
                }
            }
        })
    }
}

impl Find {
    /// Read in parts: what is wanted may be near.
    async fn places<S: Store>(
        &self,
        draft: &mut Draft<'_, S>,
        key: &Bytes,
        header: &Header,
    ) -> Carried<Vec<u64>> {
        const PART: u64 = 1000;
        let most = match self.at_most {
            0 => header.count,
            most => most.min(header.count),
        };
        let wanted = match self.count {
            None => 1,
            Some(0) => u64::MAX,
            Some(count) => count,
        };
        let (mut places, mut passed_by, mut compared) = (Vec::new(), self.rank.unsigned_abs() - 1, 0);
        while compared < most && (places.len() as u64) < wanted {
            let part = PART.min(most - compared);
            let from = if self.rank < 0 { header.count - compared - part } else { compared };
            let mut values: Vec<(u64, Bytes)> =
                (from..).zip(read(draft, key, header, from, from + part).await?).collect();
            if self.rank < 0 {
                values.reverse();
            }
            for (at, _) in values.into_iter().filter(|(_, value)| *value == self.value) {
                match passed_by {
                    0 if (places.len() as u64) < wanted => places.push(at),
                    0 => break,
                    _ => passed_by -= 1,
                }
            }
            compared += part;
        }
        Ok(places)
    }
}

fn is_inside(index: i64, count: u64) -> bool {
    if index < 0 { index.unsigned_abs() <= count } else { (index as u64) < count }
}

fn push<S: Store>(
    draft: &mut Draft<'_, S>,
    key: &Bytes,
    header: &mut Header,
    end: End,
    value: Bytes,
) -> Result<()> {
    let (first, last) = ends(header);
    let position = if end == End::Left { first - 1 } else { last };
    draft.put(element_at(key, header, position), value)?;
    header.ends = Some(if end == End::Left { (first - 1, last) } else { (first, last + 1) });
    header.count += 1;
    Ok(())
}

/// Those from one index up to another, which the list has.
async fn read<S: Store>(
    draft: &mut Draft<'_, S>,
    key: &Bytes,
    header: &Header,
    from: u64,
    to: u64,
) -> Carried<Vec<Bytes>> {
    read_up_to(draft, key, header, (from, to), POINTS_MAX).await
}

/// `points_max`: with more of them it is a range.
async fn read_up_to<S: Store>(
    draft: &mut Draft<'_, S>,
    key: &Bytes,
    header: &Header,
    (from, to): (u64, u64),
    points_max: u64,
) -> Carried<Vec<Bytes>> {
    let first = ends(header).0;
    draft.rests_on_header();
    if to == from + 1 {
        let name = (first + from).to_be_bytes();
        let value = draft.element(key, header, Tag::Position, &name).await?;
        return Ok(value.into_iter().collect());
    }
    if to <= from {
        return Ok(vec![]);
    }
    if to - from <= points_max && !draft.is_of_leader() {
        let names: Vec<_> = (first + from..first + to).map(u64::to_be_bytes).collect();
        let values = draft.elements_once(key, header, Tag::Position, &names).await?;
        return Ok(values.into_iter().flatten().collect());
    }
    let (start, end) = (element_at(key, header, first + from), element_at(key, header, first + to));
    let found = draft.range(header, ElementRange { start, end, reverse: false, limit: to - from }).await?;
    Ok(found.into_iter().map(|(_, value)| value).collect())
}

/// Has at hand what is going to be taken from the ends, so many elements from each: asked for together.
pub(super) async fn read_ahead<S: Store>(
    draft: &mut Draft<'_, S>,
    key: &[u8],
    (left, right): (u64, u64),
) -> Carried<()> {
    let Ok(Some(header)) = draft.object(key, KIND) else { return Ok(()) };
    let (first, last) = ends(&header);
    let left = left.min(header.count);
    let right = right.min(header.count - left);
    let names: Vec<_> = (first..first + left).chain(last - right..last).map(u64::to_be_bytes).collect();
    draft.elements_apart(key, &header, Tag::Position, &names).await.map(drop)
}

pub(super) async fn pop<S: Store>(
    draft: &mut Draft<'_, S>,
    key: &Bytes,
    header: &mut Header,
    end: End,
    count: u64,
) -> Carried<Vec<Bytes>> {
    let count = count.min(header.count);
    if count == 0 {
        return Ok(vec![]);
    }
    let from = if end == End::Left { 0 } else { header.count - count };
    let mut values = read(draft, key, header, from, from + count).await?;
    let (first, last) = ends(header);
    for position in first + from..first + from + count {
        draft.remove(element_at(key, header, position))?;
    }
    header.ends = Some(if end == End::Left { (first + count, last) } else { (first, last - count) });
    header.count -= count;
    draft.leave_object(key, KIND, *header);
    if end == End::Right {
        values.reverse();
    }
    Ok(values)
}

/// Writes what differs; the longer of the two ends stays where it is.
fn rewrite<S: Store>(
    draft: &mut Draft<'_, S>,
    key: &Bytes,
    mut header: Header,
    before: &[Bytes],
    after: &[Bytes],
) -> Result<()> {
    let (first, last) = ends(&header);
    let same_at_start = before.iter().zip(after).take_while(|(a, b)| a == b).count();
    let same_at_end = before.iter().rev().zip(after.iter().rev()).take_while(|(a, b)| a == b).count();
    let new_first = if same_at_start >= same_at_end { first } else { last - after.len() as u64 };
    let new_last = new_first + after.len() as u64;
    for (at, value) in after.iter().enumerate() {
        let position = new_first + at as u64;
        let old = position.checked_sub(first).and_then(|at| before.get(usize::try_from(at).ok()?));
        if old != Some(value) {
            draft.put(element_at(key, &header, position), value.clone())?;
        }
    }
    for position in (first..last).filter(|position| !(new_first..new_last).contains(position)) {
        draft.remove(element_at(key, &header, position))?;
    }
    (header.ends, header.count) = (Some((new_first, new_last)), after.len() as u64);
    draft.leave_object(key, KIND, header);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_cut_as_redis_cuts_them() {
        for (start, stop, count, what) in [
            (0, -1, 3, Some((0, 3))),
            (-2, -1, 3, Some((1, 3))),
            (-100, 100, 3, Some((0, 3))),
            (2, 1, 3, None),
            (3, 5, 3, None),
            (0, -4, 3, None),
            (0, -1, 0, None),
            (i64::MIN, i64::MAX, 1, Some((0, 1))),
        ] {
            assert_eq!(cut(start, stop, count), what, "{start} {stop} {count}");
        }
        assert!(is_inside(-3, 3) && !is_inside(-4, 3) && !is_inside(3, 3) && is_inside(2, 3));
    }
}
