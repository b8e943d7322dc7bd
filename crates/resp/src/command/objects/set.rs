//! Sets: members.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use bytes::Bytes;
use sextant_common::marks::Kind;
use sextant_common::object::{Header, Tag, element_key, element_of, element_range};
use sextant_common::{Error, Result};

use super::super::draft::{Carried, Draft};
use crate::frame::Reply;
use crate::store::{ElementRange, Store, between};

#[derive(Debug)]
pub(super) enum Set {
    Add(Vec<Bytes>),
    Remove(Vec<Bytes>),
    IsMember(Bytes),
    AreMembers(Vec<Bytes>),
    Length,
    Members,
    Pop(Option<u64>),
    /// How many, negative: also several times; None: one.
    Random(Option<i64>),
    /// From the first key to the second one.
    Move(Bytes),
    /// Whether it is stored under the first key.
    Combine(Combination, bool),
    /// Up to so many; 0: all.
    CountCommon(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Combination {
    /// In all of them.
    Common,
    /// In any of them.
    All,
    /// In the first one, and in no other.
    Difference,
}

const KIND: Kind = Kind::Set;
/// (Their values are empty.)
const MEMBERS: Drawn = Drawn { tag: Tag::Member, with_values: true };
/// Of an object with more elements, a few are chosen out of a part of it.
const SAMPLED_MAX: u64 = 10 * PART;
/// The same of fields with their values, which may be long.
const SAMPLED_WITH_VALUES_MAX: u64 = 2 * PART;
/// The least such part.
const PART: u64 = 1000;
/// Most elements that are chosen at once.
pub(super) const CHOSEN_MAX: u64 = 1_000_000;

impl Set {
    pub async fn carry_out<S: Store>(&self, keys: &[Bytes], draft: &mut Draft<'_, S>) -> Carried<Reply> {
        let key = &keys[0];
        let number = |is: bool| Reply::Integer(i64::from(is));
        match self {
            Set::Combine(combination, false) => {
                let members = combine(draft, keys, *combination).await?;
                return Ok(Reply::Set(members.into_iter().map(Reply::Bulk).collect()));
            }
            Set::Combine(combination, true) => {
                let members = combine(draft, &keys[1..], *combination).await?;
                let bytes = members.iter().map(Bytes::len).sum();
                if let Some(refusal) = Draft::<S>::too_many(key, members.len(), 1, bytes) {
                    return Ok(refusal);
                }
                let header = Header::new(draft.fresh_version(), members.len() as u64);
                for member in &members {
                    draft.put(element_key(key, header.version, Tag::Member, member), Bytes::new())?;
                }
                draft.replace_object(key, KIND, header);
                return Ok(Reply::Integer(members.len() as i64));
            }
            Set::CountCommon(most) => {
                let count = combine(draft, keys, Combination::Common).await?.len() as u64;
                return Ok(Reply::Integer(up_to(count, *most)));
            }
            _ => {}
        }
        let found = draft.object(key, KIND)?;
        Ok(match self {
            Set::Add(members) => {
                let mut header = draft.object_or_new(key, KIND)?;
                let mut added = 0;
                draft.elements(key, &header, Tag::Member, members).await?;
                for member in members {
                    // (One that is named twice is there the second time.)
                    if draft.element(key, &header, Tag::Member, member).await?.is_none() {
                        draft.put(element_key(key, header.version, Tag::Member, member), Bytes::new())?;
                        header.count += 1;
                        added += 1;
                    }
                }
                if added > 0 {
                    draft.leave_object(key, KIND, header);
                }
                Reply::Integer(added)
            }
            Set::Remove(members) => {
                let Some(mut header) = found else { return Ok(Reply::Integer(0)) };
                let here = draft.elements(key, &header, Tag::Member, members).await?;
                let here = members.iter().zip(here).filter(|(_, here)| here.is_some());
                let here: HashSet<&Bytes> = here.map(|(member, _)| member).collect();
                remove(draft, key, &mut header, here.iter().copied())?;
                Reply::Integer(here.len() as i64)
            }
            Set::IsMember(member) => match found {
                Some(header) => number(draft.element(key, &header, Tag::Member, member).await?.is_some()),
                None => Reply::Integer(0),
            },
            Set::AreMembers(members) => {
                let here = match found {
                    Some(header) => draft.elements_once(key, &header, Tag::Member, members).await?,
                    None => vec![None; members.len()],
                };
                Reply::Array(here.iter().map(|member| number(member.is_some())).collect())
            }
            Set::Length => Reply::Integer(found.map_or(0, |header| header.count as i64)),
            Set::Members => {
                let members = match found {
                    Some(header) => all(draft, key, &header).await?,
                    None => vec![],
                };
                Reply::Set(members.into_iter().map(Reply::Bulk).collect())
            }
            Set::Pop(count) => {
                let none = || if count.is_some() { Reply::Set(vec![]) } else { Reply::Nil };
                let Some(mut header) = found else { return Ok(none()) };
                let wanted = count.unwrap_or(1).min(header.count);
                let chosen = sample(draft, key, &header, MEMBERS, Some(wanted as i64)).await?;
                let chosen: Vec<Bytes> = chosen.iter().map(|(name, _)| member_of(name, key)).collect();
                if !chosen.is_empty() {
                    remove(draft, key, &mut header, &chosen)?;
                }
                let mut chosen = chosen.into_iter().map(Reply::Bulk);
                match count {
                    Some(_) => Reply::Set(chosen.collect()),
                    None => chosen.next().unwrap_or(Reply::Nil),
                }
            }
            Set::Random(count) => {
                let none = || if count.is_some() { Reply::Array(vec![]) } else { Reply::Nil };
                let Some(header) = found else { return Ok(none()) };
                let chosen = sample(draft, key, &header, MEMBERS, *count).await?;
                let mut chosen = chosen.iter().map(|(name, _)| Reply::Bulk(member_of(name, key)));
                match count {
                    Some(_) => Reply::Array(chosen.collect()),
                    None => chosen.next().unwrap_or(Reply::Nil),
                }
            }
            Set::Move(member) => {
                let to = &keys[1];
                let Some(mut header) = found else { return Ok(Reply::Integer(0)) };
                draft.object(to, KIND)?;
                if draft.element(key, &header, Tag::Member, member).await?.is_none() {
                    return Ok(Reply::Integer(0));
                }
                if key != to {
                    remove(draft, key, &mut header, [member])?;
                    let mut header = draft.object_or_new(to, KIND)?;
                    if draft.element(to, &header, Tag::Member, member).await?.is_none() {
                        draft.put(element_key(to, header.version, Tag::Member, member), Bytes::new())?;
                        header.count += 1;
                        draft.leave_object(to, KIND, header);
                    }
                }
                Reply::Integer(1)
            }
            Set::Combine(..) | Set::CountCommon(_) => Reply::Nil,
        })
    }
}

/// `most`: 0: no limit.
pub(super) fn up_to(count: u64, most: u64) -> i64 {
    if most == 0 { count as i64 } else { count.min(most) as i64 }
}

fn member_of(element: &Bytes, key: &[u8]) -> Bytes {
    element.slice_ref(element_of(element, key))
}

/// Members that are there.
fn remove<'m, S: Store>(
    draft: &mut Draft<'_, S>,
    key: &Bytes,
    header: &mut Header,
    members: impl IntoIterator<Item = &'m Bytes>,
) -> Result<()> {
    let mut removed = HashSet::new();
    for member in members {
        if removed.insert(member) {
            draft.remove(element_key(key, header.version, Tag::Member, member))?;
            header.count = header.count.saturating_sub(1);
        }
    }
    if !removed.is_empty() {
        draft.leave_object(key, KIND, *header);
    }
    Ok(())
}

async fn all<S: Store>(draft: &mut Draft<'_, S>, key: &Bytes, header: &Header) -> Carried<Vec<Bytes>> {
    let members = draft.all(key, header, Tag::Member).await?;
    Ok(members.iter().map(|(name, _)| member_of(name, key)).collect())
}

async fn combine<S: Store>(
    draft: &mut Draft<'_, S>,
    keys: &[Bytes],
    combination: Combination,
) -> Carried<BTreeSet<Bytes>> {
    let mut sets = Vec::with_capacity(keys.len());
    for key in named_once(keys, combination) {
        sets.push((key, draft.object(key, KIND)?));
    }
    if combination == Combination::Common {
        // The smallest one is read, and looked for in the others.
        sets.sort_by_key(|(_, header)| header.map_or(0, |header| header.count));
    }
    let mut sets = sets.into_iter();
    let mut members = BTreeSet::new();
    if let Some((key, Some(header))) = sets.next() {
        members.extend(all(draft, key, &header).await?);
    }
    for (key, header) in sets {
        match (combination, header) {
            (Combination::All, Some(header)) => members.extend(all(draft, key, &header).await?),
            (Combination::All | Combination::Difference, None) => {}
            (Combination::Common, None) => members.clear(),
            (Combination::Common | Combination::Difference, Some(header)) => {
                let names: Vec<&Bytes> = members.iter().collect();
                let here = draft.elements(key, &header, Tag::Member, &names).await?;
                let stays = here.iter().map(|here| here.is_some() == (combination == Combination::Common));
                let stays: Vec<bool> = stays.collect();
                let mut stays = stays.into_iter();
                members.retain(|_| stays.next().unwrap_or(false));
            }
        }
    }
    Ok(members)
}

/// A set that is named again changes nothing. (But what is taken away from the first may be the first itself.)
fn named_once(keys: &[Bytes], combination: Combination) -> impl Iterator<Item = &Bytes> {
    let mut named = HashSet::new();
    keys.iter().enumerate().filter_map(move |(at, key)| {
        let is_first = at == 0 && combination == Combination::Difference;
        (is_first || named.insert(key)).then_some(key)
    })
}

/// What is drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drawn {
    pub tag: Tag,
    pub with_values: bool,
}

impl Drawn {
    async fn of<S: Store>(
        self,
        range: ElementRange,
        header: &Header,
        draft: &mut Draft<'_, S>,
    ) -> Carried<Vec<(Bytes, Bytes)>> {
        match self.tag {
            Tag::Member => draft.range_of_names(header, range).await,
            _ => self.once_of(range, header, draft).await,
        }
    }

    /// (Nobody comes back to a range that begins by chance.)
    async fn once_of<S: Store>(
        self,
        range: ElementRange,
        header: &Header,
        draft: &mut Draft<'_, S>,
    ) -> Carried<Vec<(Bytes, Bytes)>> {
        match self.with_values {
            true => draft.range(header, range).await,
            false => draft.range_without_values(header, range).await,
        }
    }
}

/// Elements by chance. Of an object with many, and not all wanted, out of a part that begins by chance.
pub(super) async fn sample<S: Store>(
    draft: &mut Draft<'_, S>,
    key: &Bytes,
    header: &Header,
    drawn: Drawn,
    count: Option<i64>,
) -> Carried<Vec<(Bytes, Bytes)>> {
    let count = count.unwrap_or(1);
    let wanted = count.unsigned_abs();
    if count < 0 && wanted > CHOSEN_MAX {
        return Err(Error::invalid(format!("up to {CHOSEN_MAX} elements are chosen at once")).into());
    }
    if wanted == 0 {
        return Ok(vec![]);
    }
    let sampled_max = match drawn {
        Drawn { tag: Tag::Field, with_values: true } => SAMPLED_WITH_VALUES_MAX,
        _ => SAMPLED_MAX,
    };
    let is_large = header.count > sampled_max && wanted < header.count;
    let pool = match is_large {
        false => {
            let (start, end) = element_range(key, header.version, drawn.tag);
            let all = ElementRange { start, end, reverse: false, limit: u64::MAX };
            drawn.of(all, header, draft).await?
        }
        true => {
            let (start, end) = element_range(key, header.version, drawn.tag);
            let limit = wanted.max(PART);
            let end_of = |reverse| ElementRange { start: start.clone(), end: end.clone(), reverse, limit: 1 };
            let first = drawn.of(end_of(false), header, draft).await?;
            let last = drawn.of(end_of(true), header, draft).await?;
            let (Some((first, _)), Some((last, _))) = (first.first(), last.first()) else {
                return Ok(vec![]);
            };
            let from = between(first, last, |n| draft.random_below(n));
            let range = ElementRange { start: from.clone(), end, reverse: false, limit };
            let part = drawn.once_of(range, header, draft).await?;
            let mut part: BTreeMap<Bytes, Bytes> = part.into_iter().collect();
            if (part.len() as u64) < limit {
                let left = limit - part.len() as u64;
                let range = ElementRange { start, end: from, reverse: false, limit: left };
                part.extend(drawn.once_of(range, header, draft).await?);
            }
            part.into_iter().collect()
        }
    };
    if pool.is_empty() {
        return Ok(vec![]);
    }
    if count < 0 {
        let chosen = (0..wanted).map(|_| pool[draft.random_below(pool.len() as u64) as usize].clone());
        return Ok(chosen.collect());
    }
    let mut pool = pool;
    let wanted = (wanted as usize).min(pool.len());
    for at in 0..wanted {
        let other = at + draft.random_below((pool.len() - at) as u64) as usize;
        pool.swap(at, other);
    }
    pool.truncate(wanted);
    Ok(pool)
}
