//! Random commands that say how many keys they name, that wait, and those on all keys.

use crate::commands::{Compared, Generator, OBJECTS, Said};

/// A wrong option is said of a key that is not there: Redis looks at keys before options, and Sextant after them.
const NOBODY: &[u8] = b"nobody";

impl Generator {
    pub(crate) fn of_several(&mut self) -> Said {
        match self.rng.u8(..16) {
            0..=3 => self.combined(),
            4 => self.counted(),
            5 | 6 => self.first(),
            7..=9 => self.waiting(),
            10 | 11 => self.find(),
            12 => self.stored_range(),
            13 => self.random(),
            14 => Said::new(&[b"DBSIZE"], Compared::Count),
            _ if self.rng.u8(..20) == 0 => {
                let name = self.one(&["FLUSHDB", "FLUSHALL"]);
                Said::new(
                    &[name.as_bytes(), self.one(&["SYNC", "async", "nonsense"]).as_bytes()],
                    Compared::Unordered,
                )
            }
            _ => Said::new(
                &[b"LATENCY", self.one(&["LATEST", "RESET", "NONSENSE"]).as_bytes()],
                Compared::Exactly,
            ),
        }
    }

    /// To which something may come.
    fn list(&mut self) -> Vec<u8> {
        self.one(&OBJECTS[6..8]).into()
    }

    fn of_kinds(&mut self, kinds: std::ops::Range<usize>) -> Vec<u8> {
        match self.rng.u8(..12) {
            0 => self.one(&OBJECTS).into(),
            1 => NOBODY.to_vec(),
            _ => self.one(&OBJECTS[kinds]).into(),
        }
    }

    fn some(&mut self, kinds: std::ops::Range<usize>) -> Vec<Vec<u8>> {
        (0..self.rng.u8(1..4)).map(|_| self.of_kinds(kinds.clone())).collect()
    }

    /// The number of the keys, and the keys; now and then the number is wrong.
    fn numbered(&mut self, keys: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        if self.rng.u8(..20) == 0 {
            let count = self.one(&["0", "-1", "9", "x", "9223372036854775807"]);
            return vec![count.into(), NOBODY.to_vec()];
        }
        [vec![keys.len().to_string().into_bytes()], keys].concat()
    }

    fn exactly(words: Vec<Vec<u8>>) -> Said {
        Said { words, compared: Compared::Exactly, goes_on: false, begins: true }
    }

    fn combined(&mut self) -> Said {
        let name = self.one(&[
            "ZUNION",
            "ZINTER",
            "ZDIFF",
            "ZINTERCARD",
            "ZUNIONSTORE",
            "ZINTERSTORE",
            "ZDIFFSTORE",
        ]);
        let mut words: Vec<Vec<u8>> = vec![name.into()];
        if name.ends_with("STORE") {
            words.push(self.one(&["{o}sorted", "{o}sorted2", "{o}set"]).into());
        }
        if self.rng.u8(..12) == 0 {
            let wrong = self.one(&[
                "WEIGHTS x",
                "WEIGHTS",
                "AGGREGATE no",
                "LIMIT",
                "LIMIT -1",
                "nonsense",
                "WITHSCORES",
            ]);
            words.extend([b"1".to_vec(), NOBODY.to_vec()]);
            words.extend(wrong.split(' ').map(|word| word.as_bytes().to_vec()));
            return Self::exactly(words);
        }
        let keys = self.some(2..6);
        let count = keys.len();
        let numbered = self.numbered(keys);
        let is_right = numbered.len() == count + 1;
        words.extend(numbered);
        if !is_right {
            return Self::exactly(words);
        }
        let weighs = !name.starts_with("ZDIFF") && name != "ZINTERCARD";
        if weighs && self.rng.bool() {
            words.push(b"WEIGHTS".to_vec());
            words.extend((0..count).map(|_| self.one(&["1", "2", "0.5", "3", "inf", "1e2"]).into()));
        }
        if weighs && self.rng.bool() {
            words.extend([b"aggregate".to_vec(), self.one(&["SUM", "min", "MAX"]).into()]);
        }
        if ["ZUNION", "ZINTER", "ZDIFF"].contains(&name) && self.rng.bool() {
            words.push(b"WITHSCORES".to_vec());
        }
        if name == "ZINTERCARD" && self.rng.bool() {
            words.extend([b"LIMIT".to_vec(), self.one(&["0", "1", "2"]).into()]);
        }
        Self::exactly(words)
    }

    fn counted(&mut self) -> Said {
        let keys = self.some(2..4);
        let mut words = vec![b"SINTERCARD".to_vec()];
        words.extend(self.numbered(keys));
        if self.rng.bool() {
            words.extend([b"LIMIT".to_vec(), self.one(&["0", "1", "2", "-1", "x"]).into()]);
        }
        Self::exactly(words)
    }

    /// `numkeys key .. where [COUNT n]`.
    fn first_words(&mut self, is_list: bool) -> Vec<Vec<u8>> {
        let keys = self.some(if is_list { 6..8 } else { 4..6 });
        let mut words = self.numbered(keys);
        let place: &[&str] =
            if is_list { &["LEFT", "right", "LEFT", "MIN"] } else { &["MIN", "max", "MIN", "LEFT"] };
        words.push(self.one(place).into());
        if self.rng.bool() {
            words.extend([b"COUNT".to_vec(), self.one(&["1", "2", "10", "0", "x"]).into()]);
        }
        words
    }

    fn first(&mut self) -> Said {
        let is_list = self.rng.bool();
        let name: &[u8] = if is_list { b"LMPOP" } else { b"ZMPOP" };
        let words = self.first_words(is_list);
        Self::exactly([vec![name.to_vec()], words].concat())
    }

    /// So briefly that it makes no difference whether it waits.
    fn timeout(&mut self) -> Vec<u8> {
        self.one(&["0.001", "0.002", "1e-3", "0.001", "-1", "x", "nan", ""]).into()
    }

    fn waiting(&mut self) -> Said {
        let time = self.timeout();
        let pops = |name: &str, keys: Vec<Vec<u8>>| {
            Self::exactly([vec![name.into()], keys, vec![time.clone()]].concat())
        };
        match self.rng.u8(..8) {
            0..=2 => pops(self.one(&["BLPOP", "BRPOP"]), self.some(6..8)),
            3 | 4 => pops(self.one(&["BZPOPMIN", "BZPOPMAX"]), self.some(4..6)),
            5 => {
                let is_list = self.rng.bool();
                let name: &[u8] = if is_list { b"BLMPOP" } else { b"BZMPOP" };
                let words = self.first_words(is_list);
                Self::exactly([vec![name.to_vec(), time], words].concat())
            }
            6 => pops("BRPOPLPUSH", vec![self.of_kinds(6..8), self.list()]),
            _ => {
                let (from, to) = (self.of_kinds(6..8), self.list());
                let ends = ["LEFT", "right", "RIGHT", "nonsense"];
                pops("BLMOVE", vec![from, to, self.one(&ends).into(), self.one(&ends).into()])
            }
        }
    }

    fn find(&mut self) -> Said {
        let mut words = vec![b"LPOS".to_vec(), self.of_kinds(6..8), self.name()];
        if self.rng.bool() {
            words.extend([b"RANK".to_vec(), self.one(&["1", "2", "-1", "-2", "0", "x"]).into()]);
        }
        if self.rng.bool() {
            words.extend([b"count".to_vec(), self.one(&["0", "1", "2", "-1"]).into()]);
        }
        if self.rng.bool() {
            words.extend([b"MAXLEN".to_vec(), self.one(&["0", "1", "3", "-1"]).into()]);
        }
        if self.rng.u8(..12) == 0 {
            words.push(b"nonsense".to_vec());
        }
        Self::exactly(words)
    }

    fn stored_range(&mut self) -> Said {
        let mut words = vec![b"ZRANGESTORE".to_vec(), self.one(&["{o}sorted", "{o}sorted2"]).into()];
        words.push(self.of_kinds(4..6));
        match self.rng.bool() {
            true => words.extend([self.index(), self.index()]),
            false => words.extend([self.bound(), self.bound(), b"BYSCORE".to_vec()]),
        }
        words.extend((0..self.rng.u8(..2)).map(|_| self.one(&["REV", "WITHSCORES", "rev"]).into()));
        Self::exactly(words)
    }

    fn random(&mut self) -> Said {
        let (name, kinds) = match self.rng.u8(..2) {
            0 => ("HRANDFIELD", 0..2),
            _ => ("ZRANDMEMBER", 4..6),
        };
        let key = self.of_kinds(kinds);
        Said::new(&[name.as_bytes(), &key, b"100"], Compared::Unordered)
    }
}
