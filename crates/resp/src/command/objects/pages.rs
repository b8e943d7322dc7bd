//! `HSCAN`, `SSCAN`, `ZSCAN`: an object page by page.

use std::sync::Arc;

use bytes::Bytes;
use sextant_common::marks::Kind;
use sextant_common::object::{Tag, element_of, element_range};
use sextant_environment::Env;

use super::super::draft::{Carried, Draft};
use super::super::scan::STEPS;
use super::sorted::score_of;
use crate::cursors::Cursors;
use crate::frame::{Reply, double_text};
use crate::glob::Glob;
use crate::store::{ElementRange, Position, Store};

/// An object with no more elements comes in one page, whatever is asked for, as in Redis: if they are short.
const SMALL: u64 = 128;
/// More are not short: half a page of the store, which ends before 1 MiB. (It may end sooner, because of elements that are removed.)
const SHORT_BYTES: usize = 512 * 1024;

#[derive(Debug)]
pub(super) struct Page {
    pub kind: Kind,
    pub pattern: Option<Glob>,
    pub count: u64,
    pub position: Position,
    pub cursors: Arc<Cursors>,
    pub env: Env,
}

fn reply(cursor: u64, elements: Vec<Reply>) -> Reply {
    Reply::Array(vec![Reply::Bulk(Bytes::from(cursor.to_string())), Reply::Array(elements)])
}

/// Of an object that is not there.
pub(super) fn no_page() -> Reply {
    reply(0, vec![])
}

impl Page {
    pub async fn carry_out<S: Store>(&self, key: &Bytes, draft: &mut Draft<'_, S>) -> Carried<Reply> {
        let Some(header) = draft.object(key, self.kind)? else { return Ok(no_page()) };
        let tag = match self.kind {
            Kind::Hash => Tag::Field,
            Kind::Set => Tag::Member,
            _ => Tag::Score,
        };
        let (start, end) = element_range(key, header.version, tag);
        // (Of another object that has taken its place, all is new.)
        let is_of_it = start <= self.position.from && self.position.from < end;
        let start = if is_of_it { self.position.from.clone() } else { start };
        // Otherwise one page of the store, whatever it has: that is so at one moment. (What it takes several for might never be, where
        // many write.)
        let is_small = header.count <= SMALL;
        let limit = if is_small { SMALL } else { self.count };
        let enough_bytes = (is_small && !draft.is_repeated()).then_some(SHORT_BYTES);
        let range = ElementRange { start, end, reverse: false, limit };
        let page = draft.page(&header, range, enough_bytes).await?;
        let next =
            page.rest.map_or(0, |rest| self.cursors.give(Position { part: 0, from: rest.start }, &self.env));
        let (mut elements, mut steps) = (Vec::new(), 0);
        for (name, value) in page.elements {
            let element = name.slice_ref(element_of(&name, key));
            let matches = self.pattern.as_ref().is_none_or(|pattern| pattern.matches(&element, &mut steps));
            if steps > STEPS {
                steps = 0;
                tokio::task::yield_now().await;
            }
            if !matches {
                continue;
            }
            elements.push(Reply::Bulk(element));
            match self.kind {
                Kind::Hash => elements.push(Reply::Bulk(value)),
                Kind::SortedSet => {
                    let score = score_of(&value).unwrap_or_default();
                    elements.push(Reply::Bulk(Bytes::from(double_text(score))));
                }
                _ => {}
            }
        }
        Ok(reply(next, elements))
    }
}
