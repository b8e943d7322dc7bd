//! The keys in use: groups, each judged by itself, until they have been used often enough.

use parking_lot::Mutex;

/// Groups in use at a time.
const IN_USE: usize = 4;
/// Operations on a group until another takes its place, at the least and at the most: what the checker can decide.
const OPERATIONS: std::ops::Range<u64> = 30..100;
/// Operations of unknown outcome on a group until another takes its place: each doubles what the checker may have to try.
const UNKNOWN_MAX: u64 = 6;
/// A look at an earlier group instead, once in so many times: its records are in other tiers by now.
const LOOK_BACK: u64 = 25;

/// What is kept under a key, unless others have put something else there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Hash,
    Set,
    Sorted,
    List,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Counter, Kind::Hash, Kind::Set, Kind::Sorted, Kind::List];

    fn letter(self) -> char {
        ['n', 'h', 's', 'z', 'l'][self as usize]
    }
}

/// Keys that are judged together: one, or some of one partition that transactions use together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub name: String,
    pub(crate) keys: Vec<(String, Kind)>,
}

impl Group {
    fn new(number: u64, rng: &mut fastrand::Rng) -> Self {
        let kind = |rng: &mut fastrand::Rng| Kind::ALL[rng.usize(0..Kind::ALL.len())];
        if rng.u64(0..5) < 3 {
            let kind = kind(rng);
            let name = format!("object{number}{}", kind.letter());
            return Self { keys: vec![(name.clone(), kind)], name };
        }
        let name = format!("{{objects{number}}}");
        let key = |at: usize| {
            let kind = kind(rng);
            (format!("{name}{at}{}", kind.letter()), kind)
        };
        Self { keys: (0..3).map(key).collect(), name }
    }
}

/// All groups so far.
pub struct Groups(Mutex<Inner>);

struct Inner {
    rng: fastrand::Rng,
    all: Vec<Group>,
    in_use: Vec<InUse>,
}

struct InUse {
    group: usize,
    /// How often it still is to be used.
    left: u64,
    /// How many operations on it still may have an unknown outcome.
    unknown_left: u64,
}

impl Groups {
    pub fn new(seed: u64) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        Self(Mutex::new(Inner { rng, all: Vec::new(), in_use: Vec::new() }))
    }

    pub fn all(&self) -> Vec<Group> {
        self.0.lock().all.clone()
    }

    /// The group of the next operation. Whether it is only to be looked at.
    pub(crate) fn pick(&self) -> (Group, bool) {
        let mut inner = self.0.lock();
        let Inner { rng, all, in_use } = &mut *inner;
        if all.len() > IN_USE && rng.u64(0..LOOK_BACK) == 0 {
            return (all[rng.usize(0..all.len())].clone(), true);
        }
        while in_use.len() < IN_USE {
            let left = rng.u64(OPERATIONS);
            in_use.push(InUse { group: all.len(), left, unknown_left: UNKNOWN_MAX });
            all.push(Group::new(all.len() as u64, rng));
        }
        let at = rng.usize(0..IN_USE);
        let used = &mut in_use[at];
        let group = all[used.group].clone();
        used.left -= 1;
        if used.left == 0 {
            in_use.remove(at);
        }
        (group, false)
    }

    /// The outcome of an operation on it is unknown.
    pub(crate) fn note_unknown(&self, group: &Group) {
        let mut inner = self.0.lock();
        let Inner { all, in_use, .. } = &mut *inner;
        in_use.retain_mut(|used| {
            if all[used.group] == *group {
                used.unknown_left -= 1;
            }
            used.unknown_left > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_used_for_a_while_and_looked_at_later() {
        let groups = Groups::new(1);
        let picked: Vec<(Group, bool)> = (0..1000).map(|_| groups.pick()).collect();
        let all = groups.all();
        assert!(all.len() > 1000 / OPERATIONS.end as usize, "{} groups", all.len());
        assert!(picked.iter().any(|(_, looks)| *looks));
        let (group, _) = groups.pick();
        (0..UNKNOWN_MAX).for_each(|_| groups.note_unknown(&group));
        assert!((0..1000).all(|_| {
            let (picked, looks) = groups.pick();
            looks || picked != group
        }));
        for group in &all {
            let used = picked.iter().filter(|(picked, looks)| picked == group && !looks).count() as u64;
            assert!(used < OPERATIONS.end, "{group:?} was used {used} times");
            assert!(group.keys.iter().all(|(key, _)| key.starts_with(&group.name)));
        }
    }
}
