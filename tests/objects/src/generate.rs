//! What is asked: one command, a transaction, or one that goes by what it has read.

use sextant_checker::Command;

use crate::groups::{Group, Kind};

/// Lifetimes, in milliseconds: some end while the group is in use, one never does.
const LIFETIMES_MS: [u64; 5] = [30, 120, 400, 1_500, 3_600_000];
/// A name of a field, a member: so few that clients meet.
const NAMES: u64 = 4;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    One(Command),
    /// Between `MULTI` and `EXEC`.
    Transaction(Vec<Command>),
    /// `WATCH` of a key, a command that reads it, and then a transaction that goes by it.
    Watched(String, Command, Vec<Command>),
}

pub(crate) struct Generator<'r> {
    pub rng: &'r mut fastrand::Rng,
    /// Of values: nobody else has them.
    pub client: u64,
    pub values: &'r mut u64,
}

fn words(text: &str) -> Command {
    text.split(' ').map(str::to_owned).collect()
}

/// Shows all of it.
pub(crate) fn whole(key: &str, kind: Kind) -> Command {
    words(&match kind {
        Kind::Counter => format!("GET {key}"),
        Kind::Hash => format!("HGETALL {key}"),
        Kind::Set => format!("SMEMBERS {key}"),
        Kind::Sorted => format!("ZRANGE {key} 0 -1 WITHSCORES"),
        Kind::List => format!("LRANGE {key} 0 -1"),
    })
}

/// The same, by what `TYPE` has said; None: there is nothing to show.
pub(crate) fn whole_of_type(key: &str, name: &str) -> Option<Command> {
    let kind = match name {
        "string" => Kind::Counter,
        "hash" => Kind::Hash,
        "set" => Kind::Set,
        "zset" => Kind::Sorted,
        "list" => Kind::List,
        _ => return None,
    };
    Some(whole(key, kind))
}

impl Generator<'_> {
    pub fn turn(&mut self, group: &Group) -> Turn {
        let transactions = if group.keys.len() > 1 { 6 } else { 1 };
        match self.rng.u64(0..20) {
            n if n < transactions => {
                let commands = self.rng.u64(2..5);
                Turn::Transaction((0..commands).map(|_| self.command(group)).collect())
            }
            n if n < transactions + 2 => {
                let (key, kind) = self.pick(group);
                let read = if self.rng.bool() { whole(&key, kind) } else { self.read(&key, kind) };
                let mut then = vec![self.write(&key, kind)];
                if self.rng.bool() {
                    then.push(self.command(group));
                }
                Turn::Watched(key, read, then)
            }
            _ => Turn::One(self.command(group)),
        }
    }

    fn pick(&mut self, group: &Group) -> (String, Kind) {
        group.keys[self.rng.usize(0..group.keys.len())].clone()
    }

    fn command(&mut self, group: &Group) -> Command {
        let (key, kind) = self.pick(group);
        match self.rng.u64(0..20) {
            0 => self.end(&key),
            1 if group.keys.len() > 1 => {
                let (other, _) = self.pick(group);
                words(&match self.rng.u64(0..3) {
                    _ if other == key => format!("DEL {key}"),
                    0 => format!("RENAME {key} {other}"),
                    1 => format!("COPY {key} {other} REPLACE"),
                    _ => format!("DEL {key} {other}"),
                })
            }
            2 => whole(&key, kind),
            3..=7 => self.read(&key, kind),
            _ => self.write(&key, kind),
        }
    }

    /// The object as a whole: that it ends, or until when it lives.
    fn end(&mut self, key: &str) -> Command {
        let ms = LIFETIMES_MS[self.rng.usize(0..LIFETIMES_MS.len())];
        words(&match self.rng.u64(0..6) {
            0 | 1 => format!("DEL {key}"),
            2 | 3 => format!("PEXPIRE {key} {ms}"),
            4 => format!("PERSIST {key}"),
            _ => format!("SET {key} {}", self.rng.u64(0..100)),
        })
    }

    fn name(&mut self) -> String {
        format!("f{}", self.rng.u64(0..NAMES))
    }

    /// Of a field that is to go: perhaps the number.
    fn old_name(&mut self) -> String {
        if self.rng.u64(0..4) == 0 { "m".to_owned() } else { self.name() }
    }

    fn value(&mut self) -> String {
        *self.values += 1;
        format!("{}.{}", self.client, self.values)
    }

    fn read(&mut self, key: &str, kind: Kind) -> Command {
        let (name, other) = (self.name(), self.name());
        words(&match (kind, self.rng.u64(0..4)) {
            (Kind::Counter, 0) => format!("EXISTS {key}"),
            (Kind::Counter, _) => format!("GET {key}"),
            (_, 0) if self.rng.u64(0..3) == 0 => format!("TYPE {key}"),
            (_, 0) if self.rng.u64(0..3) == 0 => format!("PTTL {key}"),
            (Kind::Hash, 0) => format!("HMGET {key} {name} {other} m"),
            (Kind::Hash, 1) => format!("HLEN {key}"),
            (Kind::Hash, 2) => format!("HEXISTS {key} {name}"),
            (Kind::Hash, _) => format!("HGET {key} {name}"),
            (Kind::Set, 0 | 1) => format!("SCARD {key}"),
            (Kind::Set, _) => format!("SISMEMBER {key} {name}"),
            (Kind::Sorted, 0 | 1) => format!("ZCARD {key}"),
            (Kind::Sorted, _) => format!("ZSCORE {key} {name}"),
            (Kind::List, 0..=2) => format!("LLEN {key}"),
            (Kind::List, _) => format!("LRANGE {key} 0 -1"),
        })
    }

    fn write(&mut self, key: &str, kind: Kind) -> Command {
        let (name, other) = (self.name(), self.name());
        let by = self.rng.i64(-3..10);
        words(&match (kind, self.rng.u64(0..10)) {
            (Kind::Counter, 0) => format!("GETSET {key} {by}"),
            (Kind::Counter, _) => format!("INCRBY {key} {by}"),
            (Kind::Hash, 0) => format!("HSET {key} {name} {} {other} {}", self.value(), self.value()),
            (Kind::Hash, 1 | 2) => format!("HSET {key} {name} {}", self.value()),
            (Kind::Hash, 3) => format!("HSETNX {key} {name} {}", self.value()),
            (Kind::Hash, 4) => format!("HDEL {key} {} {other}", self.old_name()),
            (Kind::Hash, 5 | 6) => format!("HDEL {key} {}", self.old_name()),
            (Kind::Hash, _) => format!("HINCRBY {key} m {by}"),
            (Kind::Set, 0) => format!("SADD {key} {name} {other}"),
            (Kind::Set, 1..=5) => format!("SADD {key} {name}"),
            (Kind::Set, 6) => format!("SREM {key} {name} {other}"),
            (Kind::Set, _) => format!("SREM {key} {name}"),
            (Kind::Sorted, 0..=2) => format!("ZADD {key} {by} {name}"),
            (Kind::Sorted, 3..=5) => format!("ZINCRBY {key} {by} {name}"),
            (Kind::Sorted, 6) => format!("ZREM {key} {name} {other}"),
            (Kind::Sorted, 7) => format!("ZREM {key} {name}"),
            (Kind::Sorted, _) => format!("ZPOPMIN {key}"),
            (Kind::List, 0) => format!("RPUSH {key} {} {}", self.value(), self.value()),
            (Kind::List, 1 | 2) => format!("RPUSH {key} {}", self.value()),
            (Kind::List, 3 | 4) => format!("LPUSH {key} {}", self.value()),
            (Kind::List, 5) => format!("LMOVE {key} {key} LEFT RIGHT"),
            (Kind::List, 6) => format!("RPOP {key}"),
            (Kind::List, _) => format!("LPOP {key}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::Groups;

    #[test]
    fn every_kind_of_turn_comes_and_names_only_keys_of_its_group() {
        let (groups, mut rng, mut values) = (Groups::new(1), fastrand::Rng::with_seed(2), 0);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..2_000 {
            let (group, _) = groups.pick();
            let turn = Generator { rng: &mut rng, client: 7, values: &mut values }.turn(&group);
            let commands = match turn {
                Turn::One(command) => vec![command],
                Turn::Transaction(commands) => {
                    seen.insert("MULTI".to_owned());
                    commands
                }
                Turn::Watched(key, read, then) => {
                    assert_eq!(read[1], key);
                    seen.insert("WATCH".to_owned());
                    [vec![read], then].concat()
                }
            };
            for command in commands {
                assert!(group.keys.iter().any(|(key, _)| *key == command[1]), "{command:?} in {group:?}");
                seen.insert(command[0].clone());
            }
        }
        for command in
            ["MULTI", "WATCH", "DEL", "RENAME", "COPY", "PEXPIRE", "HINCRBY", "ZPOPMIN", "LMOVE", "SREM"]
        {
            assert!(seen.contains(command), "no {command} in {seen:?}");
        }
    }
}
