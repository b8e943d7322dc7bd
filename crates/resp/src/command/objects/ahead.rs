//! What commands that go together read of their objects, asked for together: one by one, each would wait for its own.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use sextant_common::marks::Kind;
use sextant_common::object::Tag;

use super::super::draft::{Carried, Draft};
use super::super::request::Request;
use super::super::transaction::Queued;
use super::hash::Hash;
use super::list;
use super::set::Set;
use super::sorted::Sorted;
use super::{Command, Object};
use crate::store::Store;

/// Most elements of a list that are asked for together because commands that go together take them one by one.
const TAKEN_MAX: u64 = 256;
/// Most elements of an object that are asked for together by their names.
const NAMES_MAX: usize = 4096;

/// Elements that a command looks at by their names.
struct Named<'c> {
    kind: Kind,
    tag: Tag,
    /// Whether they are there is all that it asks.
    existence: bool,
    names: Vec<&'c Bytes>,
}

/// What several commands look at.
#[derive(Default)]
struct Group<'c> {
    commands: usize,
    names: Vec<&'c Bytes>,
    known: HashSet<&'c Bytes>,
}

fn all(names: &[Bytes]) -> Vec<&Bytes> {
    names.iter().collect()
}

impl Object {
    fn named(&self) -> Option<Named<'_>> {
        let one = |name| vec![name];
        let (kind, tag, existence, names) = match &self.command {
            Command::Hash(Hash::Set(pairs, _)) => {
                (Kind::Hash, Tag::Field, true, pairs.iter().map(|(field, _)| field).collect())
            }
            Command::Hash(Hash::Delete(names)) => (Kind::Hash, Tag::Field, true, all(names)),
            Command::Hash(Hash::GetMany(names)) => (Kind::Hash, Tag::Field, false, all(names)),
            Command::Hash(
                Hash::SetNew(name, _)
                | Hash::Increment(name, _)
                | Hash::IncrementDecimal(name, _)
                | Hash::Get(name)
                | Hash::Exists(name)
                | Hash::ValueLength(name),
            ) => (Kind::Hash, Tag::Field, false, one(name)),
            Command::Set(Set::Add(names) | Set::Remove(names) | Set::AreMembers(names)) => {
                (Kind::Set, Tag::Member, false, all(names))
            }
            Command::Set(Set::IsMember(name)) => (Kind::Set, Tag::Member, false, one(name)),
            Command::Sorted(Sorted::Add(add)) => {
                (Kind::SortedSet, Tag::Score, false, add.members.iter().map(|(_, name)| name).collect())
            }
            Command::Sorted(Sorted::Remove(names) | Sorted::Scores(names)) => {
                (Kind::SortedSet, Tag::Score, false, all(names))
            }
            Command::Sorted(Sorted::Score(name) | Sorted::Rank(name, _)) => {
                (Kind::SortedSet, Tag::Score, false, one(name))
            }
            _ => return None,
        };
        Some(Named { kind, tag, existence, names })
    }
}

/// Has it at hand when they come to it.
pub(in crate::command) async fn read_ahead<S: Store>(
    commands: &[Queued],
    draft: &mut Draft<'_, S>,
) -> Carried<()> {
    let mut taken: BTreeMap<&Bytes, (u64, u64)> = BTreeMap::new();
    let (mut groups, mut places) = (Vec::new(), HashMap::new());
    for command in commands {
        let Queued::Ask(Request::Object(object)) = command else { continue };
        let [key, ..] = &object.keys[..] else { continue };
        if let Some((left, right)) = object.takes() {
            let all = taken.entry(key).or_default();
            *all = (all.0.saturating_add(left), all.1.saturating_add(right));
        }
        let Some(Named { kind, tag, existence, names }) = object.named() else { continue };
        let place = *places.entry((key, tag, existence)).or_insert_with(|| {
            groups.push((key, kind, tag, existence, Group::default()));
            groups.len() - 1
        });
        let group = &mut groups[place].4;
        group.commands += 1;
        for name in names {
            if group.names.len() < NAMES_MAX && group.known.insert(name) {
                group.names.push(name);
            }
        }
    }
    for (key, (left, right)) in taken {
        if (2..=TAKEN_MAX).contains(&left.saturating_add(right)) {
            list::read_ahead(draft, key, (left, right)).await?;
        }
    }
    for (key, kind, tag, existence, Group { commands, names, .. }) in groups {
        // (One alone asks for all of its own together.)
        if commands < 2 || names.len() < 2 {
            continue;
        }
        let Ok(Some(header)) = draft.object(key, kind) else { continue };
        match existence {
            true => drop(draft.exist(key, &header, tag, &names).await?),
            false => drop(draft.elements(key, &header, tag, &names).await?),
        }
    }
    Ok(())
}
