//! Sorted sets, and sets, as one sorted set: `ZUNION`, `ZINTER`, `ZDIFF` and their like.

use std::cmp::Ordering;
use std::collections::HashMap;

use bytes::Bytes;
use sextant_common::Error;
use sextant_common::marks::Kind;
use sextant_common::object::{Header, Tag, element_bytes_max, element_of};

use super::super::draft::{Carried, Draft};
use super::super::errors::WRONG_TYPE;
use super::set::{Combination, up_to};
use super::sorted::{Shown, score_of, show, store};
use crate::frame::Reply;
use crate::store::Store;

#[derive(Debug)]
pub(super) struct Combined {
    pub combination: Combination,
    /// One for each key; none: 1.
    pub weights: Vec<f64>,
    pub aggregate: Aggregate,
    pub told: Told,
}

/// What becomes of the scores of a member that several have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Aggregate {
    #[default]
    Sum,
    Least,
    Highest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Members(Shown),
    /// Up to so many; 0: all.
    Count(u64),
    /// They are stored under the first key.
    Stored,
}

/// A key with its object, and what its scores count.
struct Source<'k> {
    key: &'k Bytes,
    object: Option<(Header, Tag)>,
    weight: f64,
}

impl Source<'_> {
    fn count(&self) -> u64 {
        self.object.map_or(0, |(header, _)| header.count)
    }

    fn weighed(&self, score: f64) -> f64 {
        // (0 times infinity.)
        let score = self.weight * score;
        if score.is_nan() { 0.0 } else { score }
    }
}

fn score_in(tag: Tag, value: &[u8]) -> f64 {
    if tag == Tag::Member { 1.0 } else { score_of(value).unwrap_or_default() }
}

/// -0 is 0, though it is told as it is. (There is no NaN.)
fn in_order(a: f64, b: f64) -> Ordering {
    (a + 0.0).total_cmp(&(b + 0.0))
}

impl Aggregate {
    fn of(self, a: f64, b: f64) -> f64 {
        match self {
            // (Of an infinity and its opposite.)
            Self::Sum => Some(a + b).filter(|sum| !sum.is_nan()).unwrap_or(0.0),
            // (Of 0 and -0, which are equal, the first one stays.)
            Self::Least => {
                if b < a {
                    b
                } else {
                    a
                }
            }
            Self::Highest => {
                if b > a {
                    b
                } else {
                    a
                }
            }
        }
    }
}

impl Combined {
    pub async fn carry_out<S: Store>(&self, keys: &[Bytes], draft: &mut Draft<'_, S>) -> Carried<Reply> {
        let stored = self.told == Told::Stored;
        let (to, from) = keys.split_at(usize::from(stored));
        let mut members: Vec<(f64, Bytes)> = self.members(from, draft).await?.into_iter().collect();
        Ok(match self.told {
            Told::Count(most) => Reply::Integer(up_to(members.len() as u64, most)),
            Told::Members(shown) => {
                members.sort_unstable_by(|a, b| in_order(a.0, b.0).then_with(|| a.1.cmp(&b.1)));
                show(members, shown)
            }
            Told::Stored => {
                let most = element_bytes_max(&to[0]);
                if members.iter().any(|(_, member)| member.len() > most) {
                    return Err(Error::invalid("a member is too long for an object of that name").into());
                }
                store(draft, &to[0], &members)?
            }
        })
    }

    async fn members<S: Store>(
        &self,
        keys: &[Bytes],
        draft: &mut Draft<'_, S>,
    ) -> Carried<Vec<(f64, Bytes)>> {
        let mut sources = Vec::with_capacity(keys.len());
        for (at, key) in keys.iter().enumerate() {
            let object = match draft.object_of_any(key)? {
                None => None,
                Some((Kind::Set, header)) => Some((header, Tag::Member)),
                Some((Kind::SortedSet, header)) => Some((header, Tag::Score)),
                Some(_) => return Err(WRONG_TYPE.into()),
            };
            sources.push(Source { key, object, weight: self.weights.get(at).copied().unwrap_or(1.0) });
        }
        if self.combination != Combination::Difference {
            // In Redis' order: sums of infinities depend on it.
            sources.sort_by_key(Source::count);
        }
        let is_common = self.combination == Combination::Common;
        let mut members: HashMap<Bytes, f64> = HashMap::new();
        for (at, source) in sources.iter().enumerate() {
            let Some((header, tag)) = source.object else {
                if is_common {
                    return Ok(vec![]);
                }
                continue;
            };
            if at == 0 || self.combination == Combination::All {
                for (name, value) in draft.all(source.key, &header, tag).await? {
                    let member = name.slice_ref(element_of(&name, source.key));
                    let score = source.weighed(score_in(tag, &value));
                    let sum = members.entry(member);
                    sum.and_modify(|sum| *sum = self.aggregate.of(*sum, score)).or_insert(score);
                }
                continue;
            }
            let names: Vec<Bytes> = members.keys().cloned().collect();
            let here = draft.elements(source.key, &header, tag, &names).await?;
            for (name, value) in names.iter().zip(here) {
                match (value, members.get_mut(name)) {
                    (Some(value), Some(sum)) if is_common => {
                        *sum = self.aggregate.of(*sum, source.weighed(score_in(tag, &value)));
                    }
                    (None, _) if !is_common => {}
                    _ => drop(members.remove(name)),
                }
            }
        }
        Ok(members.into_iter().map(|(member, score)| (score, member)).collect())
    }
}
