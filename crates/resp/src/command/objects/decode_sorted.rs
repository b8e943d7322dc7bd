//! Arguments to commands on sorted sets.

use bytes::Bytes;

use super::super::data::integer;
use super::super::errors::{NOT_A_FLOAT, SYNTAX};
use super::super::is;
use super::decode::{Decoded, asked, chosen, element, positive, removed};
use super::sorted::{Add, Bound, By, Range, Rule, Shown, Sorted};
use crate::command_table::Id;
use crate::frame::{Command, Reply};

const NOT_A_BOUND: Reply = Reply::Error(Bytes::from_static(b"ERR min or max is not a float"));
const NOT_A_NAME: Reply = Reply::Error(Bytes::from_static(b"ERR min or max not valid string range item"));

/// As `strtod` reads it, but for hexadecimal numbers: what is too large is infinite, what is too small is 0.
pub(in super::super) fn number(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// Neither too large nor too small.
pub(in super::super) fn score(text: &[u8]) -> Option<f64> {
    let score = number(text)?;
    let says_infinite = || text.to_ascii_lowercase().windows(3).any(|w| w == b"inf");
    let fits = if score == 0.0 { says_zero(text) } else { score.is_finite() || says_infinite() };
    fits.then_some(score)
}

/// Whether a number is 0 however many digits are counted with.
pub(in super::super) fn says_zero(text: &[u8]) -> bool {
    text.iter().take_while(|c| !matches!(c, b'e' | b'E')).all(|c| !matches!(c, b'1'..=b'9' | b'i' | b'I'))
}

pub(super) fn sorted(id: Id, command: &Command<'_>) -> Decoded<Sorted> {
    let by_score = |least: usize, highest: usize| {
        let bound = |at: usize| {
            let text = command.arg(at);
            let (text, excluded) = text.strip_prefix(b"(").map_or((text, false), |text| (text, true));
            // (Redis takes nothing for 0 here.)
            let at = if text.is_empty() { Some(0.0) } else { number(text) };
            Ok::<_, Reply>(Bound { at: at.ok_or(NOT_A_BOUND)?, excluded })
        };
        Ok::<_, Reply>(By::Score(bound(least)?, bound(highest)?))
    };
    let by_name = |least: usize, highest: usize| {
        let bound = |at: usize, is_highest: bool| {
            let text = command.bytes(at);
            Ok::<_, Reply>(match &text[..] {
                b"-" => Bound { at: None, excluded: is_highest },
                b"+" => Bound { at: None, excluded: !is_highest },
                [b'[', ..] => Bound { at: Some(text.slice(1..)), excluded: false },
                [b'(', ..] => Bound { at: Some(text.slice(1..)), excluded: true },
                _ => return Err(NOT_A_NAME),
            })
        };
        Ok::<_, Reply>(By::Name(bound(least, false)?, bound(highest, true)?))
    };
    let by_index_at = |at| Ok::<_, Reply>(By::Index(integer(command, at)?, integer(command, at + 1)?));
    let by_index = || by_index_at(2);
    let all = |by| Range { by, reverse: false, limit: None };
    Ok(match id {
        Id::Zadd => Sorted::Add(add(command)?),
        Id::Zincrby => {
            let by = score(command.arg(2)).ok_or(NOT_A_FLOAT)?;
            let members = vec![(by, element(command, 3)?)];
            Sorted::Add(Add { members, increments: true, ..Add::default() })
        }
        Id::Zrem => Sorted::Remove(removed(command)),
        Id::Zscore => Sorted::Score(command.bytes(2)),
        Id::Zmscore => Sorted::Scores(asked(command)),
        Id::Zrange | Id::Zrangestore => {
            let stores = id == Id::Zrangestore;
            let first = if stores { 3 } else { 2 };
            let mut options = Options::read(command, first + 2, Some(stores))?;
            match options.by_name {
                true => options.check_names()?,
                false if !options.by_score => options = options.of_indexes()?,
                false => {}
            }
            let (least, highest) = if options.reverse { (first + 1, first) } else { (first, first + 1) };
            let by = match (options.by_score, options.by_name) {
                (true, _) => by_score(least, highest)?,
                (_, true) => by_name(least, highest)?,
                _ => by_index_at(first)?,
            };
            match options.range(by)? {
                Sorted::Range(range, _) if stores => Sorted::Store(range),
                shown => shown,
            }
        }
        Id::Zrangebyscore => Options::read(command, 4, None)?.range(by_score(2, 3)?)?,
        Id::Zrevrangebyscore => Options::read(command, 4, None)?.reversed().range(by_score(3, 2)?)?,
        Id::Zrangebylex | Id::Zrevrangebylex => {
            let options = Options::read(command, 4, None)?;
            options.check_names()?;
            match id {
                Id::Zrangebylex => options.range(by_name(2, 3)?)?,
                _ => options.reversed().range(by_name(3, 2)?)?,
            }
        }
        Id::Zrevrange => Options::read(command, 4, None)?.of_indexes()?.reversed().range(by_index()?)?,
        Id::Zcount => Sorted::Count(all(by_score(2, 3)?)),
        Id::Zlexcount => Sorted::Count(all(by_name(2, 3)?)),
        Id::Zrank => Sorted::Rank(command.bytes(2), false),
        Id::Zrevrank => Sorted::Rank(command.bytes(2), true),
        Id::Zpopmin => Sorted::Pop(false, positive(command, SYNTAX)?),
        Id::Zpopmax => Sorted::Pop(true, positive(command, SYNTAX)?),
        Id::Zremrangebyrank => Sorted::RemoveRange(all(by_index()?)),
        Id::Zremrangebyscore => Sorted::RemoveRange(all(by_score(2, 3)?)),
        Id::Zremrangebylex => Sorted::RemoveRange(all(by_name(2, 3)?)),
        Id::Zrandmember => {
            let (count, with_scores) = chosen(command, "withscores")?;
            Sorted::Random(count, with_scores)
        }
        _ => Sorted::Length,
    })
}

fn add(command: &Command<'_>) -> Decoded<Add> {
    let mut add = Add::default();
    let Rule { only_new, only_there, only_greater, only_less } = &mut add.rule;
    let mut at = 2;
    while at < command.len() {
        let options = [
            ("nx", &mut *only_new),
            ("xx", &mut *only_there),
            ("gt", &mut *only_greater),
            ("lt", &mut *only_less),
            ("ch", &mut add.counts_changed),
            ("incr", &mut add.increments),
        ];
        let Some((_, option)) = options.into_iter().find(|(name, _)| is(command.arg(at), name)) else {
            break;
        };
        *option = true;
        at += 1;
    }
    let pairs = command.len() - at;
    if pairs == 0 || !pairs.is_multiple_of(2) {
        return Err(SYNTAX);
    }
    if *only_new && *only_there {
        return Err(Reply::error("ERR XX and NX options at the same time are not compatible"));
    }
    if *only_new && (*only_greater || *only_less) || *only_greater && *only_less {
        return Err(Reply::error("ERR GT, LT, and/or NX options at the same time are not compatible"));
    }
    if add.increments && pairs > 2 {
        return Err(Reply::error("ERR INCR option supports a single increment-element pair"));
    }
    let pair = |at| Ok((score(command.arg(at)).ok_or(NOT_A_FLOAT)?, element(command, at + 1)?));
    add.members = (at..command.len()).step_by(2).map(pair).collect::<Decoded<_>>()?;
    Ok(add)
}

/// Of `ZRANGE` and its like.
#[derive(Default)]
struct Options {
    by_score: bool,
    by_name: bool,
    reverse: bool,
    with_scores: bool,
    limit: Option<(i64, i64)>,
}

impl Options {
    /// `newer`: also those that the older commands do not have; and whether it is for a command that stores.
    fn read(command: &Command<'_>, from: usize, newer: Option<bool>) -> Decoded<Self> {
        let (all, stores) = (newer.is_some(), newer == Some(true));
        let mut options = Self::default();
        let mut at = from;
        while at < command.len() {
            let option = command.arg(at);
            if !stores && is(option, "withscores") {
                options.with_scores = true;
            } else if is(option, "limit") && at + 2 < command.len() {
                options.limit = Some((integer(command, at + 1)?, integer(command, at + 2)?));
                at += 2;
            } else if all && !options.says_by() && is(option, "byscore") {
                options.by_score = true;
            } else if all && !options.says_by() && is(option, "bylex") {
                options.by_name = true;
            } else if all && !options.reverse && is(option, "rev") {
                options.reverse = true;
            } else {
                return Err(SYNTAX);
            }
            at += 1;
        }
        Ok(options)
    }

    fn says_by(&self) -> bool {
        self.by_score || self.by_name
    }

    /// Of a range of names.
    fn check_names(&self) -> Decoded<()> {
        match self.with_scores {
            true => Err(Reply::error("ERR syntax error, WITHSCORES not supported in combination with BYLEX")),
            false => Ok(()),
        }
    }

    /// Of a range by index. (A limit that leaves nothing out is passed over, its offset too: as in Redis.)
    fn of_indexes(mut self) -> Decoded<Self> {
        match self.limit.take() {
            None | Some((_, -1)) => Ok(self),
            Some(_) => Err(Reply::error(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            )),
        }
    }

    fn reversed(self) -> Self {
        Self { reverse: true, ..self }
    }

    fn range(self, by: By) -> Decoded<Sorted> {
        let shown = if self.with_scores { Shown::WithScores } else { Shown::Members };
        Ok(Sorted::Range(Range { by, reverse: self.reverse, limit: self.limit }, shown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_neither_overflow_nor_vanish_and_bounds_may() {
        for (text, is_score) in
            [("1e-400", false), ("-1e-400", false), ("1e999", false), ("0e-400", true), ("-0.0", true)]
        {
            assert_eq!(score(text.as_bytes()).is_some(), is_score, "{text}");
            assert!(number(text.as_bytes()).is_some(), "{text}");
        }
        for (text, is) in
            [("+inf", f64::INFINITY), ("-Infinity", f64::NEG_INFINITY), (".5", 0.5), ("5.", 5.0)]
        {
            assert_eq!(score(text.as_bytes()), Some(is), "{text}");
        }
        for text in ["", "nan", "1_0", "1e", "e1", " 1"] {
            assert_eq!((score(text.as_bytes()), number(text.as_bytes())), (None, None), "{text:?}");
        }
        assert_eq!(number(b"1e999"), Some(f64::INFINITY));
    }
}
