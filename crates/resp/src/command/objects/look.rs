//! Reads of few elements by their names, of what is at hand: as cheap as reads of as many records.
//!
//! The header says which object it is, then its elements are looked at. One that is there was so while the object was; that one is not
//! there, or how several are, counts if the header is still the same.

use bytes::Bytes;
use sextant_common::marks::Kind;
use sextant_common::object::{Header, Tag, element_key};
use sextant_common::operation::Record;

use super::super::errors::WRONG_TYPE;
use super::hash::Hash;
use super::list::List;
use super::set::Set;
use super::sorted::{Sorted, score_of};
use super::{Command, Object};
use crate::frame::Reply;
use crate::replies::SHORT_BYTES;
use crate::store::{Look, Store};

/// Most elements that are looked at in place: other connections wait meanwhile.
const ELEMENTS_MAX: usize = 64;

/// What is read of an object.
struct Read<'n> {
    kind: Kind,
    tag: Tag,
    /// None: only its header.
    names: &'n [Bytes],
}

impl Object {
    fn read(&self) -> Option<Read<'_>> {
        let one = std::slice::from_ref::<Bytes>;
        let (kind, tag, names) = match &self.command {
            Command::Hash(Hash::Get(name) | Hash::Exists(name) | Hash::ValueLength(name)) => {
                (Kind::Hash, Tag::Field, one(name))
            }
            Command::Hash(Hash::GetMany(names)) => (Kind::Hash, Tag::Field, &names[..]),
            Command::Hash(Hash::Length) => (Kind::Hash, Tag::Field, &[][..]),
            Command::Set(Set::IsMember(name)) => (Kind::Set, Tag::Member, one(name)),
            Command::Set(Set::AreMembers(names)) => (Kind::Set, Tag::Member, &names[..]),
            Command::Set(Set::Length) => (Kind::Set, Tag::Member, &[][..]),
            Command::Sorted(Sorted::Score(name)) => (Kind::SortedSet, Tag::Score, one(name)),
            Command::Sorted(Sorted::Scores(names)) => (Kind::SortedSet, Tag::Score, &names[..]),
            Command::Sorted(Sorted::Length) => (Kind::SortedSet, Tag::Score, &[][..]),
            Command::List(List::Length) => (Kind::List, Tag::Position, &[][..]),
            _ => return None,
        };
        (names.len() <= ELEMENTS_MAX).then_some(Read { kind, tag, names })
    }

    /// The reply, if all that it takes is at hand.
    pub fn look<S: Store>(&self, store: &S) -> Option<Reply> {
        let read = self.read()?;
        let key = &self.keys[0];
        let header = || match store.look(key) {
            Look::Known(Ok(record)) => Some(record),
            _ => None,
        };
        let Some(record) = header()? else { return Some(self.answer(0, vec![None; read.names.len()])) };
        if record.kind != read.kind {
            return Some(WRONG_TYPE);
        }
        let Header { version, count, .. } = Header::decode(&record.value)?;
        let (mut values, mut bytes) = (Vec::with_capacity(read.names.len()), 0);
        for name in read.names {
            let found = store.look_element(&element_key(key, version, read.tag, name))?.ok()?;
            bytes += found.as_ref().map_or(0, |record| record.value.len());
            values.push(found.map(|record| record.value));
        }
        if bytes > SHORT_BYTES {
            return None;
        }
        let stands = match &values[..] {
            [] | [Some(_)] => true,
            [None] => header()?.is_some_and(|now| is_of(&now, version)),
            _ => header()?.is_some_and(|now| now.seq == record.seq),
        };
        stands.then(|| self.answer(count, values))
    }

    /// `values`: of the elements that are named.
    fn answer(&self, count: u64, values: Vec<Option<Bytes>>) -> Reply {
        let score =
            |value: Option<Bytes>| value.as_deref().and_then(score_of).map_or(Reply::Nil, Reply::Double);
        let number = |value: &Option<Bytes>| Reply::Integer(i64::from(value.is_some()));
        let mut all = values.into_iter();
        match &self.command {
            Command::Hash(Hash::Get(_)) => Reply::optional(all.next().flatten()),
            Command::Hash(Hash::GetMany(_)) => Reply::Array(all.map(Reply::optional).collect()),
            Command::Hash(Hash::ValueLength(_)) => {
                Reply::Integer(all.next().flatten().map_or(0, |value| value.len() as i64))
            }
            Command::Hash(Hash::Exists(_)) | Command::Set(Set::IsMember(_)) => number(&all.next().flatten()),
            Command::Set(Set::AreMembers(_)) => Reply::Array(all.map(|value| number(&value)).collect()),
            Command::Sorted(Sorted::Score(_)) => score(all.next().flatten()),
            Command::Sorted(Sorted::Scores(_)) => Reply::Array(all.map(score).collect()),
            _ => Reply::Integer(count as i64),
        }
    }
}

fn is_of(record: &Record, version: u64) -> bool {
    Header::decode(&record.value).is_some_and(|header| header.version == version)
}
