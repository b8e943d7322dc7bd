//! Random commands over a few keys, and how their replies are compared.

use std::fmt;

use fastrand::Rng;

use crate::wire::Reply;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    Exactly,
    /// A time, or what is left of one, in so many milliseconds.
    Time(i64),
    /// The order has no meaning.
    Unordered,
    /// Of keys: Redis counts those too that have expired and were not found yet.
    Count,
    /// Nothing yet: a scan of everything comes next.
    Walk,
}

/// A command.
#[derive(Clone, Debug)]
pub struct Said {
    pub words: Vec<Vec<u8>>,
    pub compared: Compared,
    /// It is sent together with the next one, unless that begins something.
    pub goes_on: bool,
    pub begins: bool,
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.words.iter().map(|word| word.escape_ascii().to_string()).collect();
        f.write_str(&words.join(" "))
    }
}

impl Said {
    pub(crate) fn new(words: &[&[u8]], compared: Compared) -> Self {
        let words = words.iter().map(|word| word.to_vec()).collect();
        Self { words, compared, goes_on: false, begins: true }
    }

    pub fn whole_scan(options: &[Vec<u8>]) -> Self {
        let words = [vec![b"SCAN".to_vec(), b"*".to_vec()], options.to_vec()].concat();
        Self { words, compared: Compared::Unordered, goes_on: false, begins: true }
    }

    pub fn name(&self) -> String {
        self.words[0].to_ascii_uppercase().escape_ascii().to_string()
    }

    /// `tolerance_ms`: for times.
    pub fn is_same(&self, ours: &Reply, theirs: &Reply, tolerance_ms: i64) -> bool {
        let near = |ours: &Reply, theirs: &Reply, unit: i64| match (ours.integer(), theirs.integer()) {
            // What is negative has a meaning of its own.
            (Some(a), Some(b)) if a >= 0 && b >= 0 => a.abs_diff(b) <= (tolerance_ms / unit).max(1) as u64,
            _ => ours == theirs,
        };
        match (self.compared, ours, theirs) {
            (Compared::Walk, ..) => true,
            (Compared::Exactly, Reply::Array(ours), Reply::Array(theirs)) => {
                // Times in transactions.
                let same = |(a, b): (&Reply, &Reply)| a == b || near(a, b, 1) && a.integer() > Some(100_000);
                ours.len() == theirs.len() && ours.iter().zip(theirs).all(same)
            }
            (Compared::Exactly, ..) => ours == theirs,
            (Compared::Count, ..) => ours.integer().is_some() && ours.integer() <= theirs.integer(),
            (Compared::Time(unit), ..) => near(ours, theirs, unit),
            (Compared::Unordered, Reply::Array(ours), Reply::Array(theirs)) => {
                let (mut ours, mut theirs) = (ours.clone(), theirs.clone());
                ours.sort();
                theirs.sort();
                ours == theirs
            }
            (Compared::Unordered, ..) => ours == theirs,
        }
    }
}

pub struct Generator {
    pub(crate) rng: Rng,
    /// When it began, since 1970.
    now_ms: i64,
    /// Of the keys: only the first two, so that commands meet what those just before them have left.
    few: bool,
}

/// Of objects, and one that plain commands use too.
pub(crate) const OBJECTS: [&str; 9] =
    ["{o}hash", "{o}hash2", "{o}set", "{o}set2", "{o}sorted", "{o}sorted2", "{o}list", "{o}list2", "a"];
const NAMES: [&str; 8] = ["f", "g", "field", "x1", "x2", "x3", "", "longer name"];

const KEYS: [&str; 8] = ["a", "b", "c", "key:1", "key:2", "key:33", "long-name-of-a-key", "{t}x"];

impl Generator {
    pub fn new(seed: u64, now_ms: u64) -> Self {
        Self { rng: Rng::with_seed(seed), now_ms: now_ms as i64, few: false }
    }

    pub fn keys() -> impl Iterator<Item = Vec<u8>> {
        KEYS.iter().chain(&OBJECTS).chain(&["float", "{o}names"]).map(|key| key.as_bytes().to_vec())
    }

    pub(crate) fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.rng.usize(..of.len())]
    }

    fn key(&mut self) -> Vec<u8> {
        let keys = if self.few { &KEYS[..2] } else { &KEYS[..] };
        self.one(keys).into()
    }

    fn value(&mut self) -> Vec<u8> {
        match self.rng.u8(..8) {
            0 => vec![],
            1 => self.rng.i64(..).to_string().into_bytes(),
            2 => self.rng.i32(-100..100).to_string().into_bytes(),
            3 => format!("{}.{}", self.rng.i32(-1000..1000), self.rng.u8(..100)).into_bytes(),
            4 => self
                .one(&[
                    " 1",
                    "1 ",
                    "+1",
                    "01",
                    "-0",
                    "9223372036854775807",
                    "-9223372036854775808",
                    "1e3",
                    "nan",
                ])
                .into(),
            5 => (0..self.rng.usize(..40)).map(|_| self.rng.u8(..)).collect(),
            _ => self.one(&["hello", "world", "x", "some longer text that is a value"]).into(),
        }
    }

    fn number(&mut self) -> Vec<u8> {
        match self.rng.u8(..12) {
            0 => self.value(),
            1 => {
                self.one(&["9223372036854775807", "-9223372036854775808", "0", "-1", "abc", "1.5", ""]).into()
            }
            _ => self.rng.i32(-60..60).to_string().into_bytes(),
        }
    }

    fn decimal(&mut self) -> Vec<u8> {
        match self.rng.u8(..10) {
            0 => self.one(&["abc", "", "1x", "--1", " 1"]).into(),
            1 => self.rng.i32(-50..50).to_string().into_bytes(),
            // Halves, quarters and eighths: exact in binary too.
            _ => format!("{}", f64::from(self.rng.i32(-4000..4000)) / 8.0).into_bytes(),
        }
    }

    /// So far away that nothing expires while it is compared, or over, or nonsense.
    fn life(&mut self, unit_ms: i64, absolute: bool) -> Vec<u8> {
        match self.rng.u8(..12) {
            0 => {
                self.one(&["0", "-1", "abc", "", "1.5", "9223372036854775807", "-9223372036854775808"]).into()
            }
            1 if absolute => b"1".to_vec(),
            _ => {
                let away = self.rng.i64(1_000_000_000..9_000_000_000);
                ((away + if absolute { self.now_ms } else { 0 }) / unit_ms).to_string().into_bytes()
            }
        }
    }

    fn life_option(&mut self, words: &mut Vec<Vec<u8>>) {
        let (name, unit, absolute) = match self.rng.u8(..4) {
            0 => ("EX", 1000, false),
            1 => ("px", 1, false),
            2 => ("EXAT", 1000, true),
            _ => ("PXAT", 1, true),
        };
        words.push(name.into());
        words.push(self.life(unit, absolute));
    }

    pub fn scan_options(&mut self) -> Vec<Vec<u8>> {
        let mut options: Vec<Vec<u8>> = Vec::new();
        if self.rng.bool() {
            options.extend([b"MATCH".to_vec(), self.pattern()]);
        }
        if self.rng.bool() {
            options.extend([b"COUNT".to_vec(), self.rng.u8(1..20).to_string().into_bytes()]);
        }
        if self.rng.u8(..4) == 0 {
            options.extend([b"TYPE".to_vec(), self.one(&["string", "hash", "String"]).into()]);
        }
        options
    }

    fn pattern(&mut self) -> Vec<u8> {
        self.one(&[
            "*",
            "key:*",
            "key:?",
            "[a-b]",
            "[^a]",
            "*n*",
            "a",
            "nosuch",
            "\\a",
            "{t}*",
            "key:[0-9]*",
            "",
            "k[e",
            "*:3\\3",
        ])
        .into()
    }

    /// So many commands, or a few more: a transaction is not torn.
    pub fn batch(&mut self, commands: usize) -> Vec<Said> {
        let mut all = Vec::new();
        while all.len() < commands {
            match self.rng.u8(..20) {
                0..=2 => self.transaction(&mut all),
                3 if all.len() + 1 >= commands => {
                    all.push(Said {
                        compared: Compared::Walk,
                        ..Said::new(&[b"EXISTS", b"a"], Compared::Exactly)
                    });
                }
                4 if self.rng.bool() => self.selection(&mut all),
                _ => all.push(self.command()),
            }
        }
        all
    }

    /// Of a database, within a pipeline.
    fn selection(&mut self, all: &mut Vec<Said>) {
        let number = self.one(&["0", "0", "0", "1", "2", "15", "16", "-1", "x"]);
        let (before, after) = (self.command(), self.command());
        let select = Said::new(&[b"SELECT", number.as_bytes()], Compared::Exactly);
        all.push(Said { goes_on: true, ..before });
        all.push(Said { begins: false, goes_on: true, ..select });
        all.push(Said { begins: false, ..after });
    }

    fn transaction(&mut self, all: &mut Vec<Said>) {
        let mut these = Vec::new();
        self.few = self.rng.bool();
        if self.rng.u8(..3) == 0 {
            these.push(Said::new(&[b"WATCH", &self.key(), &self.key()], Compared::Exactly));
            if self.rng.u8(..3) == 0 {
                // (Not one that removes what is not there: to Redis that is a change.)
                let (key, value) = (self.key(), self.value());
                these.push(match self.rng.u8(..5) {
                    0 => Said::new(&[b"GET", &key], Compared::Exactly),
                    1 => Said::new(&[b"DEL", &key], Compared::Exactly),
                    2 => Said::new(&[b"PERSIST", &key], Compared::Exactly),
                    3 => Said::new(&[b"GETEX", &key, b"PERSIST"], Compared::Exactly),
                    _ => Said::new(&[b"SET", &key, &value], Compared::Exactly),
                });
            }
        }
        these.push(Said::new(&[b"MULTI"], Compared::Exactly));
        for _ in 0..self.rng.usize(..6) {
            let command = self.command();
            // Redis scans in transactions, and takes other commands there that have an order of their own.
            if !matches!(command.compared, Compared::Unordered | Compared::Count) {
                these.push(command);
            }
        }
        let last: &[u8] = match self.rng.u8(..12) {
            0 => b"DISCARD",
            _ => b"EXEC",
        };
        these.push(Said::new(&[last], Compared::Exactly));
        let many = these.len();
        for (at, said) in these.iter_mut().enumerate() {
            (said.begins, said.goes_on) = (at == 0, at + 1 < many);
        }
        all.extend(these);
        self.few = false;
    }

    fn command(&mut self) -> Said {
        let (key, other, value) = (self.key(), self.key(), self.value());
        let exactly = |words: &[&[u8]]| Said::new(words, Compared::Exactly);
        if self.rng.u8(..3) == 0 {
            return self.of_objects();
        }
        match self.rng.u8(..50) {
            0..=3 => exactly(&[b"GET", &key]),
            4..=8 => self.set(),
            9 => exactly(&[b"SETNX", &key, &value]),
            10 => exactly(&[b"SETEX", &key, &self.life(1000, false), &value]),
            11 => exactly(&[b"PSETEX", &key, &self.life(1, false), &value]),
            12 => {
                let mut words = vec![b"GETEX".to_vec(), key.clone()];
                match self.rng.u8(..4) {
                    0 => {}
                    1 => words.push(b"persist".to_vec()),
                    2 => words.push(b"nonsense".to_vec()),
                    // (An invalid time is refused here also where there is no key.)
                    _ => {
                        words.extend([b"PX".to_vec(), self.rng.u32(1_000_000_000..).to_string().into_bytes()])
                    }
                }
                Said { words, compared: Compared::Exactly, goes_on: false, begins: true }
            }
            13 => exactly(&[b"GETSET", &key, &value]),
            14 => exactly(&[b"GETDEL", &key]),
            15 => exactly(&[b"STRLEN", &key]),
            16 => exactly(&[b"APPEND", &key, &value]),
            17 => exactly(&[b"GETRANGE", &key, &self.number(), &self.number()]),
            18 => exactly(&[b"SUBSTR", &key, &self.number(), &self.number()]),
            19 => exactly(&[b"SETRANGE", &key, &self.rng.i32(-2..60).to_string().into_bytes(), &value]),
            20 | 21 => exactly(&[self.one(&["INCR", "DECR"]).as_bytes(), &key]),
            22 | 23 => exactly(&[self.one(&["INCRBY", "DECRBY"]).as_bytes(), &key, &self.number()]),
            // A key of its own: what others hold is not always exact in both.
            24 => exactly(&[b"INCRBYFLOAT", b"float", &self.decimal()]),
            25 => exactly(&[b"MGET", &key, &other, b"nosuch"]),
            26 => exactly(&[b"MSET", &key, &value, &other, &self.value()]),
            27 => exactly(&[b"MSETNX", &key, &value, &other, &self.value()]),
            28 | 29 => exactly(&[self.one(&["DEL", "UNLINK"]).as_bytes(), &key, &other]),
            30 => exactly(&[self.one(&["EXISTS", "TOUCH"]).as_bytes(), &key, &other, &key]),
            31 => exactly(&[b"TYPE", &key]),
            32..=36 => self.expire(),
            37 => exactly(&[b"PERSIST", &key]),
            38 => Said::new(&[b"TTL", &key], Compared::Time(1000)),
            39 => Said::new(&[b"PTTL", &key], Compared::Time(1)),
            40 => Said::new(&[b"EXPIRETIME", &key], Compared::Time(1000)),
            41 => Said::new(&[b"PEXPIRETIME", &key], Compared::Time(1)),
            42 | 43 => exactly(&[b"RENAME", &key, &other]),
            44 => exactly(&[b"RENAMENX", &key, &other]),
            45 => {
                let mut words = vec![b"COPY".to_vec(), key, other];
                words.extend(
                    (0..self.rng.u8(..2)).map(|_| self.one(&["REPLACE", "replace", "nonsense"]).into()),
                );
                Said { words, compared: Compared::Exactly, goes_on: false, begins: true }
            }
            46 => Said::new(&[b"KEYS", &self.pattern()], Compared::Unordered),
            47 => exactly(&[self.one(&["ECHO", "PING"]).as_bytes(), &value]),
            48 => self.wrong(),
            _ => exactly(&[self.one(&["UNWATCH", "GET a b", "EXEC", "DISCARD"]).as_bytes()]),
        }
    }

    pub(crate) fn name(&mut self) -> Vec<u8> {
        self.one(&NAMES).into()
    }

    fn score(&mut self) -> Vec<u8> {
        match self.rng.u8(..12) {
            0 => self.one(&["inf", "-inf", "+inf", "nan", "abc", "", "1e3"]).into(),
            1..=4 => self.rng.i32(-5..5).to_string().into_bytes(),
            _ => format!("{}", f64::from(self.rng.i32(-400..400)) / 8.0).into_bytes(),
        }
    }

    pub(crate) fn bound(&mut self) -> Vec<u8> {
        let score = self.score();
        if self.rng.bool() { score } else { [b"(", &score[..]].concat() }
    }

    fn name_bound(&mut self) -> Vec<u8> {
        match self.rng.u8(..6) {
            0 => b"-".to_vec(),
            1 => b"+".to_vec(),
            2 => self.name(),
            3 => [b"(", &self.name()[..]].concat(),
            _ => [b"[", &self.name()[..]].concat(),
        }
    }

    pub(crate) fn index(&mut self) -> Vec<u8> {
        match self.rng.u8(..12) {
            0 => self.number(),
            _ => self.rng.i32(-8..8).to_string().into_bytes(),
        }
    }

    fn of_objects(&mut self) -> Said {
        // Mostly of the kind that the name says.
        let of = |generator: &mut Self, kind: &[&'static str]| -> Vec<u8> {
            match generator.rng.u8(..12) {
                0 => generator.one(&OBJECTS).into(),
                _ => generator.one(kind).into(),
            }
        };
        match self.rng.u8(..11) {
            0 | 1 => {
                let key = of(self, &OBJECTS[..2]);
                self.of_hash(&key)
            }
            2 => {
                let (key, other) = (of(self, &OBJECTS[2..4]), of(self, &OBJECTS[2..4]));
                self.of_set(&key, &other)
            }
            3 | 4 => {
                let key = of(self, &OBJECTS[4..6]);
                self.of_sorted(&key)
            }
            5 | 6 => {
                let (key, other) = (of(self, &OBJECTS[6..8]), of(self, &OBJECTS[6..8]));
                self.of_list(&key, &other)
            }
            7..=9 => self.of_several(),
            _ => {
                let (key, other): (Vec<u8>, Vec<u8>) =
                    (self.one(&OBJECTS).into(), self.one(&OBJECTS[..8]).into());
                let exactly = |words: &[&[u8]]| Said::new(words, Compared::Exactly);
                match self.rng.u8(..8) {
                    0 => exactly(&[b"DEL", &key]),
                    1 | 2 => exactly(&[b"TYPE", &key]),
                    3 => exactly(&[b"EXPIRE", &key, &self.life(1000, false)]),
                    4 => Said::new(&[b"TTL", &key], Compared::Time(1000)),
                    5 if key != b"a" => exactly(&[b"RENAME", &key, &other]),
                    6 if key != b"a" => exactly(&[b"COPY", &key, &other, b"REPLACE"]),
                    _ => exactly(&[b"PERSIST", &key]),
                }
            }
        }
    }

    fn of_hash(&mut self, key: &[u8]) -> Said {
        let exactly = |words: &[&[u8]]| Said::new(words, Compared::Exactly);
        let unordered = |words: &[&[u8]]| Said::new(words, Compared::Unordered);
        let (field, other, value) = (self.name(), self.name(), self.value());
        match self.rng.u8(..20) {
            0..=2 => exactly(&[b"HSET", key, &field, &value]),
            3 => exactly(&[b"HSET", key, &field, &value, &other, b"7"]),
            4 => exactly(&[b"HMSET", key, &field, b"1", &other, &value]),
            5 => exactly(&[b"HSETNX", key, &field, &value]),
            6 | 7 => exactly(&[b"HGET", key, &field]),
            8 => exactly(&[b"HMGET", key, &field, &other]),
            9 => unordered(&[b"HGETALL", key]),
            10 => exactly(&[b"HDEL", key, &field, &other]),
            11 => exactly(&[b"HLEN", key]),
            12 => exactly(&[b"HEXISTS", key, &field]),
            13 => unordered(&[b"HKEYS", key]),
            14 => unordered(&[b"HVALS", key]),
            15 | 16 => exactly(&[b"HINCRBY", key, &field, &self.number()]),
            // (A field of its own, whose sums are exact in both.)
            17 => exactly(&[b"HINCRBYFLOAT", key, b"float", &self.decimal()]),
            18 => exactly(&[b"HSTRLEN", key, &field]),
            _ => exactly(&[self.one(&["HSET a", "HGET", "HDEL", "HMGET", "HINCRBY"]).as_bytes(), key]),
        }
    }

    fn of_set(&mut self, key: &[u8], other: &[u8]) -> Said {
        let exactly = |words: &[&[u8]]| Said::new(words, Compared::Exactly);
        let unordered = |words: &[&[u8]]| Said::new(words, Compared::Unordered);
        let (member, more) = (self.name(), self.name());
        match self.rng.u8(..15) {
            0..=2 => exactly(&[b"SADD", key, &member, &more]),
            3 => exactly(&[b"SREM", key, &member, &more]),
            4 => exactly(&[b"SISMEMBER", key, &member]),
            5 => exactly(&[b"SMISMEMBER", key, &member, &more]),
            6 => exactly(&[b"SCARD", key]),
            7 => unordered(&[b"SMEMBERS", key]),
            8 => unordered(&[b"SPOP", key, b"100"]),
            9 => unordered(&[b"SRANDMEMBER", key, b"100"]),
            10 => exactly(&[b"SMOVE", key, other, &member]),
            11 => unordered(&[self.one(&["SINTER", "SUNION", "SDIFF"]).as_bytes(), key, other]),
            12 => exactly(&[
                self.one(&["SINTERSTORE", "SUNIONSTORE", "SDIFFSTORE"]).as_bytes(),
                b"{o}set2",
                key,
                other,
            ]),
            13 => exactly(&[b"SPOP", key, self.one(&["-1", "abc", "0"]).as_bytes()]),
            _ => exactly(&[self.one(&["SADD", "SISMEMBER", "SMOVE", "SPOP a b"]).as_bytes(), key]),
        }
    }

    fn of_sorted(&mut self, key: &[u8]) -> Said {
        let exactly = |words: &[&[u8]]| Said::new(words, Compared::Exactly);
        let (member, more, score) = (self.name(), self.name(), self.score());
        let options = |generator: &mut Self, words: &mut Vec<Vec<u8>>, all: bool| {
            if generator.rng.u8(..3) == 0 {
                words.push(b"WITHSCORES".to_vec());
            }
            if all && generator.rng.u8(..3) == 0 {
                words.extend([b"LIMIT".to_vec(), generator.index(), generator.index()]);
            }
        };
        match self.rng.u8(..26) {
            0..=3 => exactly(&[b"ZADD", key, &score, &member]),
            4 => exactly(&[b"ZADD", key, &score, &member, b"1.5", &more]),
            5 | 6 => {
                let mut words = vec![b"ZADD".to_vec(), key.to_vec()];
                let all = ["NX", "XX", "GT", "LT", "CH", "INCR", "ch"];
                words.extend((0..self.rng.u8(1..3)).map(|_| self.one(&all).into()));
                words.extend([score, member]);
                Said { words, compared: Compared::Exactly, goes_on: false, begins: true }
            }
            7 => exactly(&[b"ZINCRBY", key, &score, &member]),
            8 => exactly(&[b"ZREM", key, &member]),
            9 => exactly(&[b"ZREM", key, &member, &more]),
            10 => exactly(&[b"ZSCORE", key, &member]),
            11 => exactly(&[b"ZMSCORE", key, &member, &more]),
            12 => exactly(&[b"ZCARD", key]),
            13 | 14 => {
                let mut words = vec![b"ZRANGE".to_vec(), key.to_vec()];
                let by: &str = self.one(&["", "BYSCORE", "byscore"]);
                match by {
                    "" => words.extend([self.index(), self.index()]),
                    _ => words.extend([self.bound(), self.bound(), by.into()]),
                }
                if self.rng.bool() {
                    words.push(b"REV".to_vec());
                }
                options(self, &mut words, true);
                Said { words, compared: Compared::Exactly, goes_on: false, begins: true }
            }
            15 => {
                let name = self.one(&["ZRANGEBYSCORE", "ZREVRANGEBYSCORE"]);
                let mut words = vec![name.into(), key.to_vec(), self.bound(), self.bound()];
                options(self, &mut words, true);
                Said { words, compared: Compared::Exactly, goes_on: false, begins: true }
            }
            16 => {
                let mut words = vec![b"ZREVRANGE".to_vec(), key.to_vec(), self.index(), self.index()];
                options(self, &mut words, false);
                Said { words, compared: Compared::Exactly, goes_on: false, begins: true }
            }
            17 => exactly(&[b"ZCOUNT", key, &self.bound(), &self.bound()]),
            // (By names only where all scores are the same: a key of its own.)
            18 => exactly(&[b"ZADD", b"{o}names", b"0", &member]),
            19 => {
                let name = self.one(&["ZRANGEBYLEX", "ZREVRANGEBYLEX", "ZLEXCOUNT", "ZREMRANGEBYLEX"]);
                exactly(&[name.as_bytes(), b"{o}names", &self.name_bound(), &self.name_bound()])
            }
            20 => exactly(&[self.one(&["ZRANK", "ZREVRANK"]).as_bytes(), key, &member]),
            21 => exactly(&[self.one(&["ZPOPMIN", "ZPOPMAX"]).as_bytes(), key]),
            22 => exactly(&[self.one(&["ZPOPMIN", "ZPOPMAX"]).as_bytes(), key, &self.index()]),
            23 => exactly(&[b"ZREMRANGEBYRANK", key, &self.index(), &self.index()]),
            24 => exactly(&[b"ZREMRANGEBYSCORE", key, &self.bound(), &self.bound()]),
            _ => exactly(&[self.one(&["ZADD", "ZSCORE", "ZRANGE", "ZPOPMIN a b"]).as_bytes(), key]),
        }
    }

    fn of_list(&mut self, key: &[u8], other: &[u8]) -> Said {
        let exactly = |words: &[&[u8]]| Said::new(words, Compared::Exactly);
        let (value, more) = (self.name(), self.name());
        match self.rng.u8(..22) {
            0..=2 => exactly(&[self.one(&["LPUSH", "RPUSH"]).as_bytes(), key, &value]),
            3 | 4 => exactly(&[self.one(&["LPUSH", "RPUSH"]).as_bytes(), key, &value, &more, &value]),
            5 => exactly(&[self.one(&["LPUSHX", "RPUSHX"]).as_bytes(), key, &value]),
            6 => exactly(&[self.one(&["LPOP", "RPOP"]).as_bytes(), key]),
            7 => exactly(&[self.one(&["LPOP", "RPOP"]).as_bytes(), key, &self.index()]),
            8..=10 => exactly(&[b"LRANGE", key, &self.index(), &self.index()]),
            11 => exactly(&[b"LLEN", key]),
            12 | 13 => exactly(&[b"LINDEX", key, &self.rng.i32(-8..8).to_string().into_bytes()]),
            14 => exactly(&[b"LSET", key, &self.rng.i32(-8..8).to_string().into_bytes(), &value]),
            15 | 16 => exactly(&[b"LREM", key, &self.rng.i32(-3..4).to_string().into_bytes(), &value]),
            17 => exactly(&[b"LTRIM", key, &self.index(), &self.index()]),
            18 | 19 => exactly(&[
                b"LINSERT",
                key,
                self.one(&["BEFORE", "after", "nonsense"]).as_bytes(),
                &value,
                &more,
            ]),
            20 => exactly(&[
                b"LMOVE",
                key,
                other,
                self.one(&["LEFT", "right"]).as_bytes(),
                self.one(&["LEFT", "RIGHT", "nonsense"]).as_bytes(),
            ]),
            _ => exactly(&[b"RPOPLPUSH", key, other]),
        }
    }

    fn set(&mut self) -> Said {
        let mut words = vec![b"SET".to_vec(), self.key(), self.value()];
        for _ in 0..self.rng.u8(..3) {
            match self.rng.u8(..7) {
                0 => words.push(b"NX".to_vec()),
                1 => words.push(b"xx".to_vec()),
                2 => words.push(b"GET".to_vec()),
                3 => words.push(b"KEEPTTL".to_vec()),
                4 => words.push(self.one(&["NONSENSE", "EX", ""]).into()),
                _ => self.life_option(&mut words),
            }
        }
        Said { words, compared: Compared::Exactly, goes_on: false, begins: true }
    }

    fn expire(&mut self) -> Said {
        let (name, unit, absolute) = match self.rng.u8(..4) {
            0 => ("EXPIRE", 1000, false),
            1 => ("PEXPIRE", 1, false),
            2 => ("EXPIREAT", 1000, true),
            _ => ("PEXPIREAT", 1, true),
        };
        let mut words = vec![name.into(), self.key(), self.life(unit, absolute)];
        words.extend((0..self.rng.u8(..3)).map(|_| self.one(&["NX", "XX", "GT", "LT", "nx", "gt"]).into()));
        Said { words, compared: Compared::Exactly, goes_on: false, begins: true }
    }

    /// A number of arguments that is wrong.
    fn wrong(&mut self) -> Said {
        let name = self.one(&[
            "GET", "SET", "INCR", "EXPIRE", "APPEND", "GETRANGE", "MSET", "RENAME", "COPY", "TTL", "GETEX",
            "SETEX", "KEYS",
        ]);
        let mut words = vec![name.into()];
        words.extend((0..self.rng.usize(..2)).map(|_| self.key()));
        if name == "KEYS" {
            words.truncate(1);
        }
        Said { words, compared: Compared::Exactly, goes_on: false, begins: true }
    }
}
