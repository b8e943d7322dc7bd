//! What commands that go together read of their objects, asked for together: one by one, each would wait for its own.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use sextant_common::key::filter_hash;
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

/// Most elements of a list that are asked for together because commands that go together take them one by one. What is beyond is
/// asked for by those that take it.
const TAKEN_MAX: u64 = 1024;
/// Most elements that are asked for together by their names.
const NAMES_MAX: usize = 4096;
/// After so many commands others have their turn.
const TURN_COMMANDS: usize = 256;

/// Elements that a command looks at by their names.
struct Named<'c> {
    kind: Kind,
    tag: Tag,
    /// Whether they are there is all that it asks.
    existence: bool,
    names: Vec<&'c Bytes>,
}

/// What several commands look at.
struct Group<'c> {
    key: &'c Bytes,
    kind: Kind,
    tag: Tag,
    existence: bool,
    commands: usize,
    names: Vec<&'c Bytes>,
}

/// What is wanted ahead, as the commands are gone through.
#[derive(Default)]
struct Gathering<'c> {
    groups: Vec<Group<'c>>,
    places: HashMap<(&'c Bytes, Tag, bool), usize>,
    /// What is asked for, or is known when a command comes to it because one before it says what it is.
    named: HashSet<(&'c Bytes, Tag, &'c Bytes)>,
    /// Hashes of keys that other commands are about, which may say what they are, or that they are gone: nothing is looked at behind them.
    settled: HashSet<u64>,
    names: usize,
}

impl<'c> Gathering<'c> {
    fn take(&mut self, command: &'c Queued) {
        let Queued::Ask(request) = command else { return };
        let Request::Object(object) = request else {
            request.for_each_key(&mut |key| {
                let _ = self.settled.insert(filter_hash(key));
            });
            return;
        };
        let [key] = &object.keys[..] else {
            self.settled.extend(object.keys.iter().map(|key| filter_hash(key)));
            return;
        };
        if self.settled.contains(&filter_hash(key)) || self.names >= NAMES_MAX {
            return;
        }
        let Some(Named { kind, tag, existence, names }) = object.named() else { return };
        let place = *self.places.entry((key, tag, existence)).or_insert_with(|| {
            self.groups.push(Group { key, kind, tag, existence, commands: 0, names: vec![] });
            self.groups.len() - 1
        });
        let group = &mut self.groups[place];
        group.commands += 1;
        for name in names {
            if self.names < NAMES_MAX && self.named.insert((key, tag, name)) {
                self.names += 1;
                group.names.push(name);
            }
        }
    }
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
            Command::Hash(Hash::SetNew(name, _)) => (Kind::Hash, Tag::Field, true, one(name)),
            Command::Hash(Hash::Delete(names)) => (Kind::Hash, Tag::Field, true, all(names)),
            Command::Hash(Hash::GetMany(names)) => (Kind::Hash, Tag::Field, false, all(names)),
            Command::Hash(
                Hash::Increment(name, _)
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
    let mut gathering = Gathering::default();
    for (at, command) in commands.iter().enumerate() {
        if at > 0 && at.is_multiple_of(TURN_COMMANDS) {
            tokio::task::yield_now().await;
        }
        if let Queued::Ask(Request::Object(object)) = command
            && let Some((left, right)) = object.takes()
            && left + right <= list::POINTS_MAX
        {
            let all = taken.entry(&object.keys[0]).or_default();
            *all = (all.0 + left, all.1 + right);
        }
        gathering.take(command);
    }
    for (key, (left, right)) in taken {
        let left = left.min(TAKEN_MAX);
        let right = right.min(TAKEN_MAX - left);
        if left + right > 1 {
            list::read_ahead(draft, key, (left, right)).await?;
        }
    }
    for Group { key, kind, tag, existence, commands, names } in gathering.groups {
        // (One alone asks for all of its own together; and what is long is not asked of the leader together.)
        let may_be_long = tag == Tag::Field && !existence;
        if commands < 2 || names.len() < 2 || may_be_long && draft.is_of_leader() {
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
