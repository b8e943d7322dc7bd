//! Records that get another name, with their elements.

use bytes::Bytes;
use sextant_common::Error;
use sextant_common::marks::Kind;
use sextant_common::object::{Header, Tag, element_bytes_max, element_key, element_of};
use sextant_common::operation::{Lifetime, Record};

use super::{Carried, Draft, damaged, header_of};
use crate::command::errors::NO_SUCH_KEY;
use crate::command::execution::set_reply;
use crate::command::request::{Move, SetReply};
use crate::frame::Reply;
use crate::store::Store;

impl<S: Store> Draft<'_, S> {
    pub(super) async fn carry_over(&mut self, moved: &Move) -> Carried<Reply> {
        let Move { from, to, copies, replaces, reply } = moved;
        let Some(cell) = self.cells.get(from) else { return Ok(NO_SUCH_KEY) };
        let Some(record) = cell.record.clone() else {
            return Ok(if *copies { Reply::Integer(0) } else { NO_SUCH_KEY });
        };
        let lifetime = match cell.lifetime {
            Lifetime::Kept => record.expires_at.map_or(Lifetime::Unlimited, Lifetime::Until),
            lifetime => lifetime,
        };
        if !replaces && self.record(to).is_some() {
            return Ok(set_reply(false, SetReply::Number));
        }
        if from != to {
            let record = match record.kind {
                Kind::Plain => record,
                _ => self.copy_elements(from, to, record).await?,
            };
            self.leave(to, Some(record), lifetime);
            if !copies {
                self.leave(from, None, Lifetime::Unlimited);
            }
        }
        Ok(set_reply(true, *reply))
    }

    /// Elements are found by the key of their object: so under another name there have to be others.
    async fn copy_elements(&mut self, from: &Bytes, to: &Bytes, record: Record) -> Carried<Record> {
        let Some(header) = header_of(&record) else { return Err(damaged().into()) };
        let copy = Header { version: self.fresh_version(), ..header };
        let records = if record.kind == Kind::SortedSet { 2 } else { 1 };
        let elements = usize::try_from(header.count).unwrap_or(usize::MAX);
        if let Some(refusal) = Self::too_many(to, elements, records, 0) {
            return Err(refusal.into());
        }
        for tag in Tag::ALL {
            for (key, value) in self.all(from, &header, tag).await? {
                let element = element_of(&key, from);
                if element.len() > element_bytes_max(to) {
                    return Err(Error::invalid("an element is too long for an object of that name").into());
                }
                self.put(element_key(to, copy.version, tag, element), value)?;
            }
        }
        Ok(Record { value: copy.encode(), ..record })
    }
}
