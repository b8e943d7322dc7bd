//! The first of several lists, or sorted sets, that has something, and some of it: `LMPOP`, `ZMPOP`, `BLPOP` and their like.

use bytes::Bytes;
use sextant_common::marks::Kind;

use super::super::draft::{Carried, Draft};
use super::list::{self, End};
use super::sorted;
use crate::frame::Reply;
use crate::store::Store;

#[derive(Clone, Copy, Debug)]
pub(super) struct First {
    pub from: From,
    /// None: one, without a list around it.
    pub count: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    List(End),
    /// Whether the highest.
    Sorted(bool),
}

impl From {
    pub fn kind(self) -> Kind {
        match self {
            Self::List(_) => Kind::List,
            Self::Sorted(_) => Kind::SortedSet,
        }
    }
}

impl First {
    pub async fn carry_out<S: Store>(&self, keys: &[Bytes], draft: &mut Draft<'_, S>) -> Carried<Reply> {
        for key in keys {
            let Some(mut header) = draft.object(key, self.from.kind())? else { continue };
            let count = self.count.unwrap_or(1);
            let name = Reply::Bulk(key.clone());
            let popped: Vec<Reply> = match self.from {
                From::List(end) => {
                    let values = list::pop(draft, key, &mut header, end, count).await?;
                    values.into_iter().map(Reply::Bulk).collect()
                }
                From::Sorted(highest) => {
                    let members = sorted::pop(draft, key, &mut header, highest, count).await?;
                    let pair = |(score, member)| [Reply::Bulk(member), Reply::Double(score)];
                    match self.count {
                        None => members.into_iter().flat_map(pair).collect(),
                        Some(_) => members.into_iter().map(|m| Reply::Array(pair(m).into())).collect(),
                    }
                }
            };
            return Ok(Reply::Array(match self.count {
                None => [name].into_iter().chain(popped).collect(),
                Some(_) => vec![name, Reply::Array(popped)],
            }));
        }
        Ok(Reply::NilArray)
    }
}
