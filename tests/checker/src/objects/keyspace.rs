//! The sequential specification: a small Redis.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::{Command, Expiry, Reply};

/// What is under a key. Never empty: what has no element left is not there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Value {
    Text(String),
    Hash(BTreeMap<String, String>),
    Set(BTreeSet<String>),
    /// Scores are whole numbers.
    Sorted(BTreeMap<String, i64>),
    List(VecDeque<String>),
}

/// When something that expires is gone: perhaps from here on, certainly after there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ends {
    from_ns: u64,
    to_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Thing {
    value: Value,
    ends: Option<Ends>,
}

/// The keys of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Keyspace(BTreeMap<String, Arc<Thing>>);

/// When a command was called and had returned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct During {
    pub call_ns: u64,
    /// `u64::MAX`: nobody knows.
    pub ret_ns: u64,
}

/// The command has no sense here: the histories' writer does not send it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotUnderstood;

type Done = Result<Reply, NotUnderstood>;

fn int(n: usize) -> Reply {
    Reply::Int(n as i64)
}

fn number(text: &str) -> Result<i64, NotUnderstood> {
    text.parse().map_err(|_| NotUnderstood)
}

fn sum(a: i64, b: &str) -> Result<i64, NotUnderstood> {
    a.checked_add(number(b)?).ok_or(NotUnderstood)
}

fn optional(text: Option<String>) -> Reply {
    text.map_or(Reply::Nil, Reply::Text)
}

/// Whether it is the wrong kind: its reply.
macro_rules! of_kind {
    ($value:expr, $kind:ident) => {
        match $value {
            Value::$kind(value) => value,
            _ => return Ok(Reply::error("WRONGTYPE")),
        }
    };
}

impl Keyspace {
    /// Those of these keys that may have expired by then.
    pub fn mortal<'k>(&self, keys: impl Iterator<Item = &'k String>, during: During) -> Vec<&'k String> {
        let is_mortal = |key: &&String| {
            let ends = self.0.get(*key).and_then(|thing| thing.ends);
            ends.is_some_and(|ends| ends.from_ns <= during.ret_ns)
        };
        let mortal: BTreeSet<&String> = keys.filter(is_mortal).collect();
        mortal.into_iter().collect()
    }

    /// Whether something is there that expired for certain before the call.
    pub fn has_outlived<'k>(&self, mut keys: impl Iterator<Item = &'k String>, during: During) -> bool {
        keys.any(|key| {
            let ends = self.0.get(key).and_then(|thing| thing.ends);
            ends.is_some_and(|ends| ends.to_ns < during.call_ns)
        })
    }

    pub fn expire(&mut self, key: &str) {
        self.0.remove(key);
    }

    pub fn execute(&mut self, command: &Command, during: During, expiry: Expiry) -> Done {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        match words[..] {
            ["DEL", ref keys @ ..] => {
                Ok(int(keys.iter().filter(|key| self.0.remove(**key).is_some()).count()))
            }
            ["EXISTS", key] => Ok(int(usize::from(self.0.contains_key(key)))),
            ["TYPE", key] => Ok(Reply::text(self.0.get(key).map_or("none", |thing| thing.value.name()))),
            ["PEXPIRE", key, ms] => {
                let lasts_ns = number(ms)?.unsigned_abs().saturating_mul(1_000_000);
                let ends = Ends {
                    from_ns: during.call_ns.saturating_add(lasts_ns).saturating_sub(expiry.early_ns),
                    to_ns: during.ret_ns.saturating_add(lasts_ns).saturating_add(expiry.late_ns),
                };
                Ok(int(usize::from(self.end(key, Some(ends)).is_some())))
            }
            ["PERSIST", key] => Ok(int(usize::from(self.end(key, None).flatten().is_some()))),
            ["PTTL", key] => Ok(match self.0.get(key) {
                None => Reply::Int(-2),
                Some(thing) if thing.ends.is_none() => Reply::Int(-1),
                Some(_) => Reply::text("some"),
            }),
            ["SET", key, text] => {
                self.put(key, Value::Text(text.to_owned()), None);
                Ok(Reply::text("OK"))
            }
            ["RENAME", from, to] => Ok(match self.0.remove(from) {
                None => Reply::error("ERR"),
                Some(thing) => {
                    self.0.insert(to.to_owned(), thing);
                    Reply::text("OK")
                }
            }),
            ["COPY", from, to, "REPLACE"] => Ok(match self.0.get(from).cloned() {
                None => Reply::Int(0),
                Some(thing) => {
                    self.0.insert(to.to_owned(), thing);
                    Reply::Int(1)
                }
            }),
            [name, key, ref arguments @ ..] => match name.bytes().next() {
                Some(b'H') => self.of_a_hash(name, key, arguments),
                Some(b'S') => self.of_a_set(name, key, arguments),
                Some(b'Z') => self.of_a_sorted_set(name, key, arguments),
                Some(b'L' | b'R') => self.of_a_list(name, key, arguments),
                _ => self.of_a_text(name, key, arguments),
            },
            _ => Err(NotUnderstood),
        }
    }

    fn put(&mut self, key: &str, value: Value, ends: Option<Ends>) {
        if value.is_empty() {
            self.0.remove(key);
        } else {
            self.0.insert(key.to_owned(), Arc::new(Thing { value, ends }));
        }
    }

    /// What ended it before; None: it is not there.
    fn end(&mut self, key: &str, ends: Option<Ends>) -> Option<Option<Ends>> {
        let thing = Arc::make_mut(self.0.get_mut(key)?);
        Some(std::mem::replace(&mut thing.ends, ends))
    }

    /// What is there, or `empty`.
    fn take(&self, key: &str, empty: impl FnOnce() -> Value) -> (Value, Option<Ends>) {
        match self.0.get(key) {
            Some(thing) => (thing.value.clone(), thing.ends),
            None => (empty(), None),
        }
    }

    fn of_a_text(&mut self, name: &str, key: &str, arguments: &[&str]) -> Done {
        let (value, ends) = self.take(key, || Value::Text(String::new()));
        let text = of_kind!(value, Text);
        match (name, arguments) {
            ("GET", []) => Ok(optional((!text.is_empty()).then_some(text))),
            ("INCRBY", [by]) => {
                let sum = sum(if text.is_empty() { 0 } else { number(&text)? }, by)?;
                self.put(key, Value::Text(sum.to_string()), ends);
                Ok(Reply::Int(sum))
            }
            ("GETSET", [new]) => {
                self.put(key, Value::Text((*new).to_owned()), None);
                Ok(optional((!text.is_empty()).then_some(text)))
            }
            _ => Err(NotUnderstood),
        }
    }

    fn of_a_hash(&mut self, name: &str, key: &str, arguments: &[&str]) -> Done {
        let (value, ends) = self.take(key, || Value::Hash(BTreeMap::new()));
        let mut hash = of_kind!(value, Hash);
        let owned = |text: &&str| (**text).to_owned();
        let reply = match (name, arguments) {
            ("HGET", [field]) => return Ok(optional(hash.remove(*field))),
            ("HMGET", fields) => {
                let values = fields.iter().map(|field| optional(hash.get(*field).cloned()));
                return Ok(Reply::List(values.collect()));
            }
            ("HEXISTS", [field]) => return Ok(int(usize::from(hash.contains_key(*field)))),
            ("HLEN", []) => return Ok(int(hash.len())),
            ("HGETALL", []) => {
                return Ok(Reply::List(
                    hash.into_iter().flat_map(|(field, value)| [field, value]).map(Reply::Text).collect(),
                ));
            }
            ("HSET", pairs) => {
                let set = |pair: &&[&str]| hash.insert(owned(&pair[0]), owned(&pair[1])).is_none();
                int(pairs.chunks_exact(2).filter(set).count())
            }
            ("HSETNX", [field, value]) => {
                let is_new = !hash.contains_key(*field);
                hash.entry(owned(field)).or_insert_with(|| owned(value));
                int(usize::from(is_new))
            }
            ("HDEL", fields) => int(fields.iter().filter(|field| hash.remove(**field).is_some()).count()),
            ("HINCRBY", [field, by]) => {
                let sum = sum(hash.get(*field).map_or(Ok(0), |text| number(text))?, by)?;
                hash.insert(owned(field), sum.to_string());
                Reply::Int(sum)
            }
            _ => return Err(NotUnderstood),
        };
        self.put(key, Value::Hash(hash), ends);
        Ok(reply)
    }

    fn of_a_set(&mut self, name: &str, key: &str, arguments: &[&str]) -> Done {
        let (value, ends) = self.take(key, || Value::Set(BTreeSet::new()));
        let mut set = of_kind!(value, Set);
        let reply = match (name, arguments) {
            ("SISMEMBER", [member]) => return Ok(int(usize::from(set.contains(*member)))),
            ("SCARD", []) => return Ok(int(set.len())),
            ("SMEMBERS", []) => return Ok(Reply::List(set.into_iter().map(Reply::Text).collect())),
            ("SADD", members) => int(members.iter().filter(|m| set.insert((**m).to_owned())).count()),
            ("SREM", members) => int(members.iter().filter(|m| set.remove(**m)).count()),
            _ => return Err(NotUnderstood),
        };
        self.put(key, Value::Set(set), ends);
        Ok(reply)
    }

    fn of_a_sorted_set(&mut self, name: &str, key: &str, arguments: &[&str]) -> Done {
        let (value, ends) = self.take(key, || Value::Sorted(BTreeMap::new()));
        let mut sorted = of_kind!(value, Sorted);
        let with_score =
            |(member, score): (String, i64)| [Reply::Text(member), Reply::text(score.to_string())];
        let reply = match (name, arguments) {
            ("ZSCORE", [member]) => return Ok(optional(sorted.get(*member).map(i64::to_string))),
            ("ZCARD", []) => return Ok(int(sorted.len())),
            ("ZRANGE", ["0", "-1", "WITHSCORES"]) => {
                let mut all: Vec<(String, i64)> = sorted.into_iter().collect();
                all.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
                return Ok(Reply::List(all.into_iter().flat_map(with_score).collect()));
            }
            ("ZADD", [score, member]) => {
                int(usize::from(sorted.insert((*member).to_owned(), number(score)?).is_none()))
            }
            ("ZINCRBY", [by, member]) => {
                let score = sum(sorted.get(*member).copied().unwrap_or(0), by)?;
                sorted.insert((*member).to_owned(), score);
                Reply::text(score.to_string())
            }
            ("ZREM", members) => int(members.iter().filter(|m| sorted.remove(**m).is_some()).count()),
            ("ZPOPMIN", []) => {
                let least = sorted.iter().map(|(member, score)| (*score, member.clone())).min();
                least.map_or(Reply::List(vec![]), |(score, member)| {
                    sorted.remove(&member);
                    Reply::List(with_score((member, score)).into())
                })
            }
            _ => return Err(NotUnderstood),
        };
        self.put(key, Value::Sorted(sorted), ends);
        Ok(reply)
    }

    fn of_a_list(&mut self, name: &str, key: &str, arguments: &[&str]) -> Done {
        let (value, ends) = self.take(key, || Value::List(VecDeque::new()));
        let mut list = of_kind!(value, List);
        let reply = match (name, arguments) {
            ("LLEN", []) => return Ok(int(list.len())),
            ("LRANGE", ["0", "-1"]) => return Ok(Reply::List(list.into_iter().map(Reply::Text).collect())),
            ("LPUSH", elements) => {
                elements.iter().for_each(|element| list.push_front((*element).to_owned()));
                int(list.len())
            }
            ("RPUSH", elements) => {
                elements.iter().for_each(|element| list.push_back((*element).to_owned()));
                int(list.len())
            }
            ("LPOP", []) => optional(list.pop_front()),
            ("RPOP", []) => optional(list.pop_back()),
            ("LMOVE", [to, "LEFT", "RIGHT"]) if *to == key => {
                list.rotate_left(usize::from(!list.is_empty()));
                optional(list.back().cloned())
            }
            _ => return Err(NotUnderstood),
        };
        self.put(key, Value::List(list), ends);
        Ok(reply)
    }
}

impl Value {
    fn is_empty(&self) -> bool {
        match self {
            // (There is none that is empty.)
            Value::Text(_) => false,
            Value::Hash(hash) => hash.is_empty(),
            Value::Set(set) => set.is_empty(),
            Value::Sorted(sorted) => sorted.is_empty(),
            Value::List(list) => list.is_empty(),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Value::Text(_) => "string",
            Value::Hash(_) => "hash",
            Value::Set(_) => "set",
            Value::Sorted(_) => "zset",
            Value::List(_) => "list",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: During = During { call_ns: 10, ret_ns: 20 };

    fn replies(commands: &[(&str, &str)]) {
        let mut keys = Keyspace::default();
        for (command, reply) in commands {
            let words: Command = command.split(' ').map(str::to_owned).collect();
            let done = keys.execute(&words, NOW, Expiry::default()).unwrap();
            assert_eq!(done.to_string(), *reply, "{command}");
        }
    }

    #[test]
    fn commands_do_what_redis_says() {
        replies(&[
            ("INCRBY n 3", "3"),
            ("INCRBY n -5", "-2"),
            ("GETSET n 7", "-2"),
            ("HGET n f", "-WRONGTYPE"),
            ("DEL n m", "1"),
            ("GET n", "nil"),
            ("HSET h f 1 g 2", "2"),
            ("HSET h f 3", "0"),
            ("HSETNX h f 4", "0"),
            ("HINCRBY h f 5", "8"),
            ("HGETALL h", "[f 8 g 2]"),
            ("HMGET h g x", "[2 nil]"),
            ("HDEL h g x", "1"),
            ("HLEN h", "1"),
            ("HDEL h f", "1"),
            ("TYPE h", "none"),
            ("SADD s b a b", "2"),
            ("SREM s c b", "1"),
            ("SMEMBERS s", "[a]"),
            ("ZADD z 2 a", "1"),
            ("ZINCRBY z -3 b", "-3"),
            ("ZRANGE z 0 -1 WITHSCORES", "[b -3 a 2]"),
            ("ZPOPMIN z", "[b -3]"),
            ("ZREM z a", "1"),
            ("ZPOPMIN z", "[]"),
            ("RPUSH l a b c", "3"),
            ("LPUSH l z", "4"),
            ("LMOVE l l LEFT RIGHT", "z"),
            ("LRANGE l 0 -1", "[a b c z]"),
            ("RENAME l k", "OK"),
            ("RENAME l k", "-ERR"),
            ("COPY k l REPLACE", "1"),
            ("LPOP l", "a"),
            ("RPOP k", "z"),
            ("LLEN l", "3"),
        ]);
    }

    #[test]
    fn a_lifetime_belongs_to_what_is_there() {
        replies(&[
            ("PEXPIRE l 5", "0"),
            ("RPUSH l a", "1"),
            ("PTTL l", "-1"),
            ("PEXPIRE l 5", "1"),
            ("RPUSH l b", "2"),
            ("PTTL l", "some"),
            ("PERSIST l", "1"),
            ("PERSIST l", "0"),
            ("PEXPIRE l 5", "1"),
            ("RENAME l k", "OK"),
            ("PTTL k", "some"),
            ("SET k v", "OK"),
            ("PTTL k", "-1"),
            ("PTTL l", "-2"),
        ]);
    }

    #[test]
    fn what_expires_may_be_gone_from_one_moment_and_must_be_from_another() {
        let mut keys = Keyspace::default();
        let run = |keys: &mut Keyspace, command: &str| {
            let words: Command = command.split(' ').map(str::to_owned).collect();
            keys.execute(&words, NOW, Expiry { early_ns: 300_000, late_ns: 500_000 }).unwrap();
        };
        run(&mut keys, "SET k v");
        run(&mut keys, "PEXPIRE k 1");
        let key = "k".to_owned();
        let at = |call_ns, ret_ns| During { call_ns, ret_ns };
        assert!(keys.mortal([&key].into_iter(), at(0, 700_009)).is_empty());
        assert_eq!(keys.mortal([&key].into_iter(), at(0, 700_010)), [&key]);
        assert!(!keys.has_outlived([&key].into_iter(), at(1_500_020, u64::MAX)));
        assert!(keys.has_outlived([&key].into_iter(), at(1_500_021, u64::MAX)));
    }

    #[test]
    fn what_is_no_command_is_not_understood() {
        for command in ["FLUSHALL", "GET", "HGET h", "INCRBY n x", "LMOVE l k LEFT RIGHT", "ZADD z x a"] {
            let words: Command = command.split(' ').map(str::to_owned).collect();
            let done = Keyspace::default().execute(&words, NOW, Expiry::default());
            assert_eq!(done, Err(NotUnderstood), "{command}");
        }
    }
}
