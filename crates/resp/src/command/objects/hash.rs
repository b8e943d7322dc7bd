//! Hashes: fields with values.

use std::collections::HashSet;

use bytes::Bytes;
use sextant_common::marks::Kind;
use sextant_common::object::{Header, Tag, element_key, element_of};
use sextant_common::operation::{Misfit, Update};

use super::super::draft::{Carried, Draft};
use super::super::errors;
use super::set::{Drawn, sample};
use crate::frame::Reply;
use crate::store::Store;

#[derive(Debug)]
pub(super) enum Hash {
    /// Fields with their values; whether it says how many are new.
    Set(Vec<(Bytes, Bytes)>, bool),
    SetNew(Bytes, Bytes),
    Get(Bytes),
    GetMany(Vec<Bytes>),
    All(Part),
    Delete(Vec<Bytes>),
    Length,
    Exists(Bytes),
    ValueLength(Bytes),
    Increment(Bytes, i64),
    /// An update that adds a decimal number.
    IncrementDecimal(Bytes, Update),
    /// How many, negative: also several times; None: one. And whether with values.
    Random(Option<i64>, bool),
}

/// What is told of all fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Fields,
    Values,
    Both,
}

const KIND: Kind = Kind::Hash;

/// Why a value of a hash cannot be added to.
pub(super) fn misfit(misfit: Misfit, is_decimal: bool) -> Reply {
    match misfit {
        Misfit::NotAnInteger => Reply::error("ERR hash value is not an integer"),
        Misfit::NotANumber => Reply::error("ERR hash value is not a float"),
        other => errors::misfit(other, is_decimal),
    }
}

impl Hash {
    pub async fn carry_out<S: Store>(&self, key: &Bytes, draft: &mut Draft<'_, S>) -> Carried<Reply> {
        let found = draft.object(key, KIND)?;
        Ok(match self {
            Hash::Set(pairs, counts) => {
                let mut header = draft.object_or_new(key, KIND)?;
                let fields: Vec<&Bytes> = pairs.iter().map(|(field, _)| field).collect();
                let were_there = draft.exist(key, &header, Tag::Field, &fields).await?;
                let mut added = HashSet::new();
                for ((field, value), was_there) in pairs.iter().zip(were_there) {
                    draft.put(element_key(key, header.version, Tag::Field, field), value.clone())?;
                    if !was_there {
                        added.insert(field);
                    }
                }
                header.count += added.len() as u64;
                draft.leave_object(key, KIND, header);
                if *counts { Reply::Integer(added.len() as i64) } else { Reply::OK }
            }
            Hash::SetNew(field, value) => {
                let mut header = draft.object_or_new(key, KIND)?;
                if draft.exist(key, &header, Tag::Field, &[field]).await? == [true] {
                    return Ok(Reply::Integer(0));
                }
                draft.put(element_key(key, header.version, Tag::Field, field), value.clone())?;
                header.count += 1;
                draft.leave_object(key, KIND, header);
                Reply::Integer(1)
            }
            Hash::Get(field) => Reply::optional(get(draft, key, found.as_ref(), field).await?),
            Hash::GetMany(fields) => {
                let values = match found {
                    Some(header) => draft.elements_once(key, &header, Tag::Field, fields).await?,
                    None => vec![None; fields.len()],
                };
                Reply::Array(values.into_iter().map(Reply::optional).collect())
            }
            Hash::All(part) => {
                let all = match found {
                    Some(header) if *part == Part::Fields => {
                        draft.all_without_values(key, &header, Tag::Field).await?
                    }
                    Some(header) => draft.all(key, &header, Tag::Field).await?,
                    None => vec![],
                };
                let pairs = all.into_iter().map(|(name, value)| (field_of(&name, key), value));
                match part {
                    Part::Fields => Reply::Array(pairs.map(|(field, _)| Reply::Bulk(field)).collect()),
                    Part::Values => Reply::Array(pairs.map(|(_, value)| Reply::Bulk(value)).collect()),
                    Part::Both => {
                        Reply::Map(pairs.map(|(f, value)| (Reply::Bulk(f), Reply::Bulk(value))).collect())
                    }
                }
            }
            Hash::Delete(fields) => {
                let Some(mut header) = found else { return Ok(Reply::Integer(0)) };
                let are_there = draft.exist(key, &header, Tag::Field, fields).await?;
                let are_there = fields.iter().zip(are_there).filter(|(_, is_there)| *is_there);
                let removed: HashSet<&Bytes> = are_there.map(|(field, _)| field).collect();
                for field in &removed {
                    draft.remove(element_key(key, header.version, Tag::Field, field))?;
                }
                header.count = header.count.saturating_sub(removed.len() as u64);
                if !removed.is_empty() {
                    draft.leave_object(key, KIND, header);
                }
                Reply::Integer(removed.len() as i64)
            }
            Hash::Length => Reply::Integer(found.map_or(0, |header| header.count as i64)),
            Hash::Exists(field) => {
                Reply::Integer(i64::from(get(draft, key, found.as_ref(), field).await?.is_some()))
            }
            Hash::ValueLength(field) => {
                let value = get(draft, key, found.as_ref(), field).await?;
                Reply::Integer(value.map_or(0, |value| value.len() as i64))
            }
            Hash::Increment(field, by) => {
                let sum = update(draft, key, field, Update::Increment(*by), false).await?;
                let number = std::str::from_utf8(&sum).ok().and_then(|text| text.parse().ok());
                Reply::Integer(number.unwrap_or_default())
            }
            Hash::IncrementDecimal(field, by) => {
                Reply::Bulk(update(draft, key, field, by.clone(), true).await?)
            }
            Hash::Random(count, with_values) => {
                let none = || if count.is_some() { Reply::Array(vec![]) } else { Reply::Nil };
                let Some(header) = found else { return Ok(none()) };
                let drawn = Drawn { tag: Tag::Field, with_values: *with_values };
                let chosen = sample(draft, key, &header, drawn, *count).await?;
                let mut pairs = chosen.into_iter().map(|(name, value)| (field_of(&name, key), value));
                match (count, with_values) {
                    (None, _) => pairs.next().map_or(Reply::Nil, |(field, _)| Reply::Bulk(field)),
                    (Some(_), false) => Reply::Array(pairs.map(|(field, _)| Reply::Bulk(field)).collect()),
                    (Some(_), true) => {
                        Reply::Pairs(pairs.map(|(f, value)| (Reply::Bulk(f), Reply::Bulk(value))).collect())
                    }
                }
            }
        })
    }
}

fn field_of(element: &Bytes, key: &[u8]) -> Bytes {
    element.slice_ref(element_of(element, key))
}

async fn get<S: Store>(
    draft: &mut Draft<'_, S>,
    key: &Bytes,
    header: Option<&Header>,
    field: &Bytes,
) -> Carried<Option<Bytes>> {
    match header {
        Some(header) => draft.element(key, header, Tag::Field, field).await,
        None => Ok(None),
    }
}

/// Whether the field is new.
async fn put<S: Store>(
    draft: &mut Draft<'_, S>,
    key: &Bytes,
    header: &mut Header,
    field: &Bytes,
    value: Bytes,
) -> Carried<bool> {
    let is_new = draft.element(key, header, Tag::Field, field).await?.is_none();
    draft.put(element_key(key, header.version, Tag::Field, field), value)?;
    header.count += u64::from(is_new);
    Ok(is_new)
}

/// What it leaves.
async fn update<S: Store>(
    draft: &mut Draft<'_, S>,
    key: &Bytes,
    field: &Bytes,
    update: Update,
    is_decimal: bool,
) -> Carried<Bytes> {
    let mut header = draft.object_or_new(key, KIND)?;
    let before = draft.element(key, &header, Tag::Field, field).await?;
    let after = update.apply(before.as_deref()).map_err(|why| misfit(why, is_decimal))?;
    let after = after.unwrap_or_default();
    put(draft, key, &mut header, field, after.clone()).await?;
    draft.leave_object(key, KIND, header);
    Ok(after)
}
