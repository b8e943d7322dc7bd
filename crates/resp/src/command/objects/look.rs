//! Reads of few elements by their names, of what is at hand: as cheap as reads of as many records. And writes that change nothing, since
//! what is at hand is already as they would have it (a member is added that is there, with its score; one is removed that is not).
//!
//! The header says which object it is, then its elements are looked at. One that is there was so while the object was; that one is not
//! there, or how several are, counts if the header is still the same.

use bytes::Bytes;
use sextant_common::Result;
use sextant_common::marks::Kind;
use sextant_common::object::{Header, Tag, element_bytes_max, element_key};
use sextant_common::operation::{Lane, Record};

use super::super::errors::WRONG_TYPE;
use super::super::request::Request;
use super::super::transaction::Queued;
use super::hash::Hash;
use super::list::List;
use super::set::Set;
use super::sorted::{Sorted, score_of};
use super::{Command, Object, alone};
use crate::frame::Reply;
use crate::replies::SHORT_BYTES;
use crate::shared::Shared;
use crate::store::{Look, Store};

/// Most elements that are looked at in place: other connections wait meanwhile.
const ELEMENTS_MAX: usize = 64;

/// What is read of an object.
struct Read<'n> {
    kind: Kind,
    tag: Tag,
    names: Names<'n>,
}

/// Of elements; without any, only the header is read.
#[derive(Clone, Copy)]
enum Names<'n> {
    Of(&'n [Bytes]),
    /// Those of members that come with scores.
    Scored(&'n [(f64, Bytes)]),
}

impl<'n> Names<'n> {
    fn len(self) -> usize {
        match self {
            Names::Of(names) => names.len(),
            Names::Scored(members) => members.len(),
        }
    }

    fn iter(self) -> impl Iterator<Item = &'n Bytes> {
        let (names, members) = match self {
            Names::Of(names) => (names, &[][..]),
            Names::Scored(members) => (&[][..], members),
        };
        names.iter().chain(members.iter().map(|(_, name)| name))
    }
}

impl Command {
    /// Whether its reply depends on nothing but the object, and takes more than a look at a few of its elements.
    pub(super) fn is_worth_remembering(&self) -> bool {
        matches!(
            self,
            Command::Hash(Hash::All(_))
                | Command::Set(Set::Members)
                | Command::List(List::Range(..) | List::Index(_) | List::Find(_))
                | Command::Sorted(Sorted::Range(..) | Sorted::Count(_) | Sorted::Rank(..))
        )
    }
}

impl Object {
    fn read(&self) -> Option<Read<'_>> {
        let one = |name| Names::Of(std::slice::from_ref::<Bytes>(name));
        let (all, none) = (Names::Of, Names::Of(&[]));
        let (kind, tag, names) = match &self.command {
            Command::Hash(
                Hash::Get(name) | Hash::Exists(name) | Hash::ValueLength(name) | Hash::SetNew(name, _),
            ) => (Kind::Hash, Tag::Field, one(name)),
            Command::Hash(Hash::GetMany(names) | Hash::Delete(names)) => (Kind::Hash, Tag::Field, all(names)),
            Command::Hash(Hash::Length) => (Kind::Hash, Tag::Field, none),
            Command::Set(Set::IsMember(name)) => (Kind::Set, Tag::Member, one(name)),
            Command::Set(Set::AreMembers(names) | Set::Add(names) | Set::Remove(names)) => {
                (Kind::Set, Tag::Member, all(names))
            }
            Command::Set(Set::Length) => (Kind::Set, Tag::Member, none),
            Command::Sorted(Sorted::Score(name)) => (Kind::SortedSet, Tag::Score, one(name)),
            Command::Sorted(Sorted::Scores(names) | Sorted::Remove(names)) => {
                (Kind::SortedSet, Tag::Score, all(names))
            }
            Command::Sorted(Sorted::Add(add)) => (Kind::SortedSet, Tag::Score, Names::Scored(&add.members)),
            Command::Sorted(Sorted::Length) => (Kind::SortedSet, Tag::Score, none),
            Command::List(List::Length) => (Kind::List, Tag::Position, none),
            _ => return None,
        };
        (names.len() <= ELEMENTS_MAX).then_some(Read { kind, tag, names })
    }

    /// Whether it may turn out to change nothing ([`Object::look`]).
    pub fn may_change_nothing(&self) -> bool {
        self.writes && self.read().is_some()
    }

    /// The reply, if all that it takes is at hand, and nothing is to be changed.
    pub fn look<S: Store>(&self, store: &S) -> Option<Reply> {
        let read = self.read()?;
        let key = &self.keys[0];
        let header = || match store.look(key) {
            Look::Known(Ok(record)) => Some(record),
            _ => None,
        };
        let Some(record) = header()? else { return self.answer_without(read.names.len()) };
        if record.kind != read.kind {
            return Some(WRONG_TYPE);
        }
        let Header { version, count, .. } = Header::decode(&record.value)?;
        let (mut values, mut bytes) = (Vec::with_capacity(read.names.len()), 0);
        for name in read.names.iter() {
            let found = match name.len() > element_bytes_max(key) {
                true => None,
                false => store.look_element(&element_key(key, version, read.tag, name))?.ok()?,
            };
            bytes += found.as_ref().map_or(0, |record| record.value.len());
            if self.changes(found.is_some()) {
                return None;
            }
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
        if stands { self.answer(count, values) } else { None }
    }

    /// The reply that it had while the object was as it is now.
    pub fn remember<S: Store>(&self, shared: &Shared<S>) -> Option<Reply> {
        let store = &shared.store;
        let loaded = || store.loaded(&self.keys[0]);
        shared.remembered.find(self.asked.as_ref()?, || self.header_at_hand(store), loaded)
    }

    fn header_at_hand<S: Store>(&self, store: &S) -> Option<Record> {
        match store.look(&self.keys[0]) {
            Look::Known(Ok(record)) => record,
            _ => None,
        }
    }

    /// The reply is remembered if the object was the same before and after.
    pub(super) async fn run_and_note<S: Store>(
        mut self: Box<Self>,
        shared: &Shared<S>,
        lane: Lane,
    ) -> Result<Reply> {
        let (asked, key) = (self.asked.take(), self.keys[0].clone());
        let loaded = shared.store.loaded(&key);
        let before = self.header_at_hand(&shared.store);
        let reply = alone(Queued::Ask(Request::Object(self)), shared, lane).await?;
        if let (Some(asked), Some(before)) = (asked, before)
            && let Look::Known(Ok(Some(after))) = shared.store.look(&key)
            && (after.seq, &after.value) == (before.seq, &before.value)
            && shared.store.loaded(&key) == loaded
        {
            shared.remembered.note(asked, &before, loaded, &reply);
        }
        Ok(reply)
    }

    /// Whether something is to be changed for certain, as this is how it is with one of the elements.
    fn changes(&self, is_there: bool) -> bool {
        match &self.command {
            Command::Hash(Hash::SetNew(..)) | Command::Set(Set::Add(_)) => !is_there,
            Command::Hash(Hash::Delete(_))
            | Command::Set(Set::Remove(_))
            | Command::Sorted(Sorted::Remove(_)) => is_there,
            Command::Sorted(Sorted::Add(add)) => !is_there && !add.rule.only_there,
            _ => false,
        }
    }

    /// There is no object.
    fn answer_without(&self, names: usize) -> Option<Reply> {
        let makes_one = match &self.command {
            Command::Hash(Hash::SetNew(..)) | Command::Set(Set::Add(_)) => true,
            Command::Sorted(Sorted::Add(add)) => !add.rule.only_there,
            _ => false,
        };
        if makes_one { None } else { self.answer(0, vec![None; names]) }
    }

    /// `values`: of the elements that are named. None: something is to be changed.
    fn answer(&self, count: u64, values: Vec<Option<Bytes>>) -> Option<Reply> {
        let score =
            |value: Option<Bytes>| value.as_deref().and_then(score_of).map_or(Reply::Nil, Reply::Double);
        let number = |value: &Option<Bytes>| Reply::Integer(i64::from(value.is_some()));
        match &self.command {
            Command::Sorted(Sorted::Add(add)) => return add.unchanged(&values),
            // (None of them changes anything, or it would not have come so far.)
            _ if self.writes => return Some(Reply::Integer(0)),
            _ => {}
        }
        let mut all = values.into_iter();
        Some(match &self.command {
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
        })
    }
}

fn is_of(record: &Record, version: u64) -> bool {
    Header::decode(&record.value).is_some_and(|header| header.version == version)
}
