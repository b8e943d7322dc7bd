//! Sorted sets: members with scores. The index by score is walked by ranges; ranks count what comes before.

use std::collections::HashSet;

use bytes::Bytes;
use sextant_common::marks::Kind;
use sextant_common::object::{
    Bounds, Cut, Header, Tag, element_key, element_of, element_range, from_sortable, places_range, sortable,
};

use super::super::draft::{Carried, Draft, Nearer, after};
use super::set::{Drawn, sample};
use crate::frame::Reply;
use crate::store::{ElementRange, Store};

#[derive(Debug)]
pub(super) enum Sorted {
    Add(Add),
    Remove(Vec<Bytes>),
    Score(Bytes),
    Scores(Vec<Bytes>),
    Length,
    Range(Range, Shown),
    RemoveRange(Range),
    /// Under the first key what the second one has.
    Store(Range),
    Count(Range),
    /// Whether from the end.
    Rank(Bytes, bool),
    /// Whether the highest; how many.
    Pop(bool, Option<u64>),
    Random(Option<i64>, bool),
}

/// `ZADD` and `ZINCRBY`.
#[derive(Debug, Default)]
pub(super) struct Add {
    pub members: Vec<(f64, Bytes)>,
    pub rule: Rule,
    /// It says how many have changed, not how many are new.
    pub counts_changed: bool,
    /// The scores are added; the new one is told.
    pub increments: bool,
}

/// Which members an [`Add`] leaves alone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rule {
    pub only_new: bool,
    pub only_there: bool,
    pub only_greater: bool,
    pub only_less: bool,
}

#[derive(Debug)]
pub(super) struct Range {
    pub by: By,
    pub reverse: bool,
    /// How many are left out first, and how many come then; negative: all.
    pub limit: Option<(i64, i64)>,
}

#[derive(Debug)]
pub(super) enum By {
    Index(i64, i64),
    /// The least and the highest.
    Score(Bound<f64>, Bound<f64>),
    Name(Bound<Option<Bytes>>, Bound<Option<Bytes>>),
}

/// A bound, and whether it is outside. Of names: None: none.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bound<T> {
    pub at: T,
    pub excluded: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    Members,
    WithScores,
}

const KIND: Kind = Kind::SortedSet;
const NOT_A_NUMBER: &str = "ERR resulting score is not a number (NaN)";

/// What becomes of a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Placed {
    /// It stays as it is, because it has this score or because a rule says so.
    Stays,
    Ruled,
    At(f64),
}

impl Add {
    /// `before`: its score. Err: the sum is no number.
    pub fn place(&self, before: Option<f64>, score: f64) -> Result<Placed, Reply> {
        let Rule { only_new, only_there, only_greater, only_less } = self.rule;
        let Some(before) = before else {
            return Ok(if only_there { Placed::Ruled } else { Placed::At(score) });
        };
        if only_new {
            return Ok(Placed::Ruled);
        }
        let score = if self.increments { before + score } else { score };
        if score.is_nan() {
            return Err(Reply::error(NOT_A_NUMBER));
        }
        Ok(if only_greater && score <= before || only_less && score >= before {
            Placed::Ruled
        } else if score == before {
            Placed::Stays
        } else {
            Placed::At(score)
        })
    }

    /// The reply, if the members stay as they are with these scores; None: something is to be changed.
    pub fn unchanged(&self, before: &[Option<Bytes>]) -> Option<Reply> {
        let mut last = None;
        for ((score, _), before) in self.members.iter().zip(before) {
            let before = before.as_deref().and_then(score_of);
            match self.place(before, *score) {
                Ok(Placed::At(_)) => return None,
                Ok(placed) => last = Some((placed, before)),
                Err(reply) => return Some(reply),
            }
        }
        Some(self.reply((0, 0), last))
    }

    /// `placed`: what became of the last member, and its score before.
    pub fn reply(&self, (added, changed): (i64, i64), last: Option<(Placed, Option<f64>)>) -> Reply {
        match (self.increments, last) {
            (false, _) => Reply::Integer(if self.counts_changed { added + changed } else { added }),
            (true, Some((Placed::At(score), _) | (Placed::Stays, Some(score)))) => Reply::Double(score),
            (true, _) => Reply::Nil,
        }
    }
}

pub(super) fn score_of(value: &[u8]) -> Option<f64> {
    Some(f64::from_le_bytes(value.try_into().ok()?))
}

pub(super) fn by_score(key: &[u8], header: &Header, score: f64, member: &[u8]) -> Bytes {
    element_key(key, header.version, Tag::ByScore, &[&sortable(score), member].concat())
}

impl Sorted {
    pub async fn carry_out<S: Store>(&self, keys: &[Bytes], draft: &mut Draft<'_, S>) -> Carried<Reply> {
        let key = &keys[0];
        if let Sorted::Store(range) = self {
            let from = &keys[1];
            let members = match draft.object(from, KIND)? {
                Some(header) => in_range(draft, from, &header, range, Goes::ByHeader).await?,
                None => vec![],
            };
            return Ok(store(draft, key, &members)?);
        }
        let found = draft.object(key, KIND)?;
        Ok(match self {
            Sorted::Add(add) => {
                let mut header = draft.object_or_new(key, KIND)?;
                let names: Vec<&Bytes> = add.members.iter().map(|(_, member)| member).collect();
                draft.elements(key, &header, Tag::Score, &names).await?;
                let (mut counts, mut last) = ((0, 0), None);
                for (score, member) in &add.members {
                    let before = draft.element(key, &header, Tag::Score, member).await?;
                    let before = before.as_deref().and_then(score_of);
                    let placed = add.place(before, *score)?;
                    last = Some((placed, before));
                    let Placed::At(score) = placed else { continue };
                    if let Some(before) = before {
                        draft.remove(by_score(key, &header, before, member))?;
                        counts.1 += 1;
                    } else {
                        header.count += 1;
                        counts.0 += 1;
                    }
                    header.bounds = header.bounds.and(Cut::of(score, member));
                    draft.put(by_score(key, &header, score, member), Bytes::new())?;
                    let value = Bytes::copy_from_slice(&(score + 0.0).to_le_bytes());
                    draft.put(element_key(key, header.version, Tag::Score, member), value)?;
                }
                if counts != (0, 0) {
                    draft.leave_object(key, KIND, header);
                }
                add.reply(counts, last)
            }
            Sorted::Remove(members) => {
                let Some(mut header) = found else { return Ok(Reply::Integer(0)) };
                draft.elements(key, &header, Tag::Score, members).await?;
                let (mut removed, mut named) = (Vec::new(), HashSet::new());
                for member in members {
                    let score = draft.element(key, &header, Tag::Score, member).await?;
                    if let Some(score) = score.as_deref().and_then(score_of)
                        && named.insert(member)
                    {
                        removed.push((score, member.clone()));
                    }
                }
                let bounds = header.bounds;
                remove(draft, key, &mut header, &removed, bounds)?;
                Reply::Integer(removed.len() as i64)
            }
            Sorted::Score(member) => {
                let score = match found {
                    Some(header) => draft.element(key, &header, Tag::Score, member).await?,
                    None => None,
                };
                score.as_deref().and_then(score_of).map_or(Reply::Nil, Reply::Double)
            }
            Sorted::Scores(members) => {
                let scores = match found {
                    Some(header) => draft.elements_once(key, &header, Tag::Score, members).await?,
                    None => vec![None; members.len()],
                };
                let reply = |score: Option<Bytes>| {
                    score.as_deref().and_then(score_of).map_or(Reply::Nil, Reply::Double)
                };
                Reply::Array(scores.into_iter().map(reply).collect())
            }
            Sorted::Length => Reply::Integer(found.map_or(0, |header| header.count as i64)),
            Sorted::Range(range, shown) => {
                let members = match found {
                    Some(header) => in_range(draft, key, &header, range, Goes::ByElements).await?,
                    None => vec![],
                };
                show(members, *shown)
            }
            Sorted::RemoveRange(range) => {
                let Some(mut header) = found else { return Ok(Reply::Integer(0)) };
                let members = in_range(draft, key, &header, range, Goes::ByHeader).await?;
                let bounds = without(&header, range, &members);
                remove(draft, key, &mut header, &members, bounds)?;
                Reply::Integer(members.len() as i64)
            }
            Sorted::Count(range) => {
                let Some(header) = found else { return Ok(Reply::Integer(0)) };
                Reply::Integer(in_range(draft, key, &header, range, Goes::ByElements).await?.len() as i64)
            }
            Sorted::Rank(member, reverse) => {
                let Some(header) = found else { return Ok(Reply::Nil) };
                let score = draft.element(key, &header, Tag::Score, member).await?;
                let Some(score) = score.as_deref().and_then(score_of) else { return Ok(Reply::Nil) };
                draft.rests_on_header();
                let (start, end) = places_range(key, header.version, &draft.bounds(key, &header));
                let here = by_score(key, &header, score, member);
                let behind = (after(&here), end);
                let others = header.count.saturating_sub(1);
                let (before, behind) = match draft.nearer(&header, [(start, here), behind]).await? {
                    Nearer::Before(count) => (count, others.saturating_sub(count)),
                    Nearer::Behind(count) => (others.saturating_sub(count), count),
                };
                Reply::Integer(if *reverse { behind } else { before } as i64)
            }
            Sorted::Pop(highest, count) => {
                let Some(mut header) = found else { return Ok(Reply::Array(vec![])) };
                let members = pop(draft, key, &mut header, *highest, count.unwrap_or(1)).await?;
                match count {
                    Some(_) => show(members, Shown::WithScores),
                    None => {
                        let flat = members.into_iter().take(1);
                        let flat = flat.flat_map(|(score, m)| [Reply::Bulk(m), Reply::Double(score)]);
                        Reply::Array(flat.collect())
                    }
                }
            }
            Sorted::Random(count, with_scores) => {
                let none = || if count.is_some() { Reply::Array(vec![]) } else { Reply::Nil };
                let Some(header) = found else { return Ok(none()) };
                let drawn = Drawn { tag: Tag::Score, with_values: true };
                let chosen = sample(draft, key, &header, drawn, *count).await?;
                let chosen = chosen.into_iter().map(|(name, value)| {
                    (score_of(&value).unwrap_or_default(), name.slice_ref(element_of(&name, key)))
                });
                let chosen: Vec<(f64, Bytes)> = chosen.collect();
                match (count, with_scores) {
                    (None, _) => chosen.into_iter().next().map_or(Reply::Nil, |(_, m)| Reply::Bulk(m)),
                    (Some(_), false) => show(chosen, Shown::Members),
                    (Some(_), true) => show(chosen, Shown::WithScores),
                }
            }
            Sorted::Store(_) => Reply::Nil,
        })
    }
}

/// Members that differ, in place of whatever is there; how many they are.
pub(super) fn store<S: Store>(
    draft: &mut Draft<'_, S>,
    key: &Bytes,
    members: &[(f64, Bytes)],
) -> sextant_common::Result<Reply> {
    let bytes = members.iter().map(|(_, member)| 2 * member.len()).sum();
    if let Some(refusal) = Draft::<S>::too_many(key, members.len(), 2, bytes) {
        return Ok(refusal);
    }
    let header = Header::new(draft.fresh_version(), members.len() as u64);
    for (score, member) in members {
        draft.put(by_score(key, &header, *score, member), Bytes::new())?;
        let value = Bytes::copy_from_slice(&(score + 0.0).to_le_bytes());
        draft.put(element_key(key, header.version, Tag::Score, member), value)?;
    }
    draft.replace_object(key, KIND, header);
    Ok(Reply::Integer(members.len() as i64))
}

/// Up to so many members from one end.
pub(super) async fn pop<S: Store>(
    draft: &mut Draft<'_, S>,
    key: &Bytes,
    header: &mut Header,
    highest: bool,
    count: u64,
) -> Carried<Vec<(f64, Bytes)>> {
    let last = i64::try_from(count.min(header.count)).unwrap_or(i64::MAX) - 1;
    if last < 0 {
        return Ok(vec![]);
    }
    let range = Range { by: By::Index(0, last), reverse: highest, limit: None };
    let members = in_range(draft, key, header, &range, Goes::ByHeader).await?;
    let bounds = without(header, &range, &members);
    remove(draft, key, header, &members, bounds)?;
    Ok(members)
}

pub(super) fn show(members: Vec<(f64, Bytes)>, shown: Shown) -> Reply {
    match shown {
        Shown::Members => Reply::Array(members.into_iter().map(|(_, member)| Reply::Bulk(member)).collect()),
        Shown::WithScores => {
            let pair = |(score, member)| (Reply::Bulk(member), Reply::Double(score));
            Reply::Pairs(members.into_iter().map(pair).collect())
        }
    }
}

/// Members that are there, once each, and within which those are that are left.
fn remove<S: Store>(
    draft: &mut Draft<'_, S>,
    key: &Bytes,
    header: &mut Header,
    members: &[(f64, Bytes)],
    bounds: Bounds,
) -> sextant_common::Result<()> {
    header.bounds = bounds;
    for (score, member) in members {
        draft.remove(by_score(key, header, *score, member))?;
        draft.remove(element_key(key, header.version, Tag::Score, member))?;
        header.count = header.count.saturating_sub(1);
    }
    if !members.is_empty() {
        draft.leave_object(key, KIND, *header);
    }
    Ok(())
}

/// Within which members are once these have gone, which are all of a range, in its order: what was before the first one, and is gone, is
/// not passed over again.
fn without(header: &Header, range: &Range, members: &[(f64, Bytes)]) -> Bounds {
    let bounds = header.bounds;
    let (Some(first), Some(last)) = (members.first(), members.last()) else { return bounds };
    let (first, last) = if range.reverse { (last, first) } else { (first, last) };
    let place = |(score, member): &(f64, Bytes)| Cut::of(*score, member);
    let (from_lowest, to_highest) = match &range.by {
        By::Index(start, stop) => {
            let (from, to) = indices(*start, *stop, header.count);
            let ends = (from == 0, to == header.count as i64 - 1);
            if range.reverse { (ends.1, ends.0) } else { ends }
        }
        By::Score(least, highest) => {
            let [start, end] = numbers(least, highest).map(u64::to_be_bytes);
            let is_least = *least == Bound { at: f64::NEG_INFINITY, excluded: false };
            let is_highest = *highest == Bound { at: f64::INFINITY, excluded: false };
            let before_all = start[..] <= *bounds.low.as_bytes();
            let behind_all = bounds.high.is_some_and(|high| *high.as_bytes() < end[..]);
            (is_least || before_all, is_highest || behind_all)
        }
        By::Name(..) => (false, false),
    };
    Bounds {
        low: if from_lowest { bounds.low.max(place(last)) } else { bounds.low },
        high: if to_highest { Some(place(first)) } else { bounds.high },
    }
}

/// The indices of the first and the last one of so many; of none, if the first is behind the last.
fn indices(start: i64, stop: i64, count: u64) -> (i64, i64) {
    let count = count as i64;
    let from_start = |at: i64| if at < 0 { at.saturating_add(count) } else { at };
    (from_start(start).max(0), from_start(stop).min(count - 1))
}

/// Scores, so that numbers sort as they do: of the first one, and right behind the last one.
fn numbers(least: &Bound<f64>, highest: &Bound<f64>) -> [u64; 2] {
    let number = |bound: &Bound<f64>| u64::from_be_bytes(sortable(bound.at));
    [number(least) + u64::from(least.excluded), number(highest) + u64::from(!highest.excluded)]
}

/// On what it rests what a range has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goes {
    /// The command writes, or counts: it is carried out again if the header is another version.
    ByHeader,
    /// It only reads: others may write meanwhile, as long as it is the same object.
    ByElements,
}

/// The members of a range, in its order.
async fn in_range<S: Store>(
    draft: &mut Draft<'_, S>,
    key: &Bytes,
    header: &Header,
    range: &Range,
    goes: Goes,
) -> Carried<Vec<(f64, Bytes)>> {
    let (mut skip, mut limit) = match range.limit {
        Some((offset, _)) if offset < 0 => return Ok(vec![]),
        Some((offset, count)) => (offset as u64, u64::try_from(count).unwrap_or(u64::MAX)),
        None => (0, u64::MAX),
    };
    let mut reverse = range.reverse;
    // From the other end, and turned round in the end.
    let mut turned = false;
    let place = |number: u64| element_key(key, header.version, Tag::ByScore, &number.to_be_bytes());
    let (start, end) = match &range.by {
        By::Index(start, stop) => {
            draft.rests_on_header();
            let count = header.count as i64;
            let (from, to) = indices(*start, *stop, header.count);
            if from > to {
                return Ok(vec![]);
            }
            (skip, limit) = (from as u64, (to - from) as u64 + 1);
            if from > count - 1 - to {
                (reverse, turned, skip) = (!reverse, true, (count - 1 - to) as u64);
            }
            places_range(key, header.version, &draft.bounds(key, header))
        }
        By::Score(least, highest) => {
            let [start, end] = numbers(least, highest);
            if start >= end {
                return Ok(vec![]);
            }
            let (start, end) = (place(start), place(end));
            let (first, last) = places_range(key, header.version, &draft.bounds(key, header));
            let (inner_start, inner_end) = (first.max(start.clone()), last.min(end.clone()));
            // Bounds are of the header. (Whoever is disturbed does without in the end: then what is found is of one moment by itself.)
            let as_wide = (&inner_start, &inner_end) == (&start, &end);
            let was_disturbed = match goes {
                Goes::ByElements => draft.is_repeated(),
                Goes::ByHeader => draft.is_of_leader(),
            };
            if as_wide || was_disturbed {
                (start, end)
            } else {
                draft.rests_on_header();
                (inner_start, inner_end)
            }
        }
        By::Name(least, highest) => {
            let (first, last) = element_range(key, header.version, Tag::Score);
            let name = |name: &Bytes| element_key(key, header.version, Tag::Score, name);
            let start = match &least.at {
                None if least.excluded => return Ok(vec![]),
                None => first,
                Some(at) if least.excluded => after(&name(at)),
                Some(at) => name(at),
            };
            let end = match &highest.at {
                None if highest.excluded => return Ok(vec![]),
                None => last,
                Some(at) if highest.excluded => name(at),
                Some(at) => after(&name(at)),
            };
            (start, end)
        }
    };
    let by_name = matches!(range.by, By::Name(..));
    let limit = limit.saturating_add(skip);
    let wanted = ElementRange { start, end, reverse, limit };
    let found = match by_name {
        true => draft.range(header, wanted).await?,
        false => draft.range_of_names(header, wanted).await?,
    };
    let found = found.into_iter().skip(usize::try_from(skip).unwrap_or(usize::MAX));
    let member = |(name, value): (Bytes, Bytes)| {
        let element = element_of(&name, key);
        if by_name {
            return (score_of(&value).unwrap_or_default(), name.slice_ref(element));
        }
        let (score, member) = element.split_first_chunk::<8>().unwrap_or((&[0; 8], element));
        (from_sortable(*score), name.slice_ref(member))
    };
    let mut members: Vec<(f64, Bytes)> = found.map(member).collect();
    if turned {
        members.reverse();
    }
    Ok(members)
}
