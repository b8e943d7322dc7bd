//! Which names: one, those that begin alike, or all.

use std::fmt;

use sextant_common::key::prefix_end;
use sextant_common::{Error, Result};

/// `name`, `prefix*`, `*`. (Redis' patterns with `?`, `[` or a `*` before the end are refused: whether a range is covered could not be
/// told.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    literal: Vec<u8>,
    is_prefix: bool,
}

impl Pattern {
    pub fn parse(text: &str) -> Result<Self> {
        let (literal, is_prefix) = match text.strip_suffix('*') {
            Some(prefix) => (prefix, true),
            None => (text, false),
        };
        if literal.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(Error::invalid("a pattern has no spaces and no control characters"));
        }
        if literal.contains(['*', '?', '[', ']', '\\']) || (literal.is_empty() && !is_prefix) {
            return Err(Error::invalid(format!("pattern {text:?}: a name, or a prefix and *")));
        }
        Ok(Self { literal: literal.as_bytes().to_vec(), is_prefix })
    }

    pub fn all() -> Self {
        Self { literal: Vec::new(), is_prefix: true }
    }

    pub fn exactly(name: &str) -> Self {
        Self { literal: name.as_bytes().to_vec(), is_prefix: false }
    }

    pub fn covers(&self, name: &[u8]) -> bool {
        if self.is_prefix { name.starts_with(&self.literal) } else { name == self.literal }
    }

    /// Whether all names from `start` to `end` (exclusive; empty: to the last) are covered.
    pub fn covers_range(&self, start: &[u8], end: &[u8]) -> bool {
        if !self.is_prefix {
            // The range of this one name, which ends at the next.
            return start == self.literal && end.split_last() == Some((&0, &self.literal));
        }
        let limit = prefix_end(&self.literal);
        let ends_within = limit.is_empty() || (!end.is_empty() && end <= &*limit);
        start.starts_with(&self.literal) && ends_within
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.literal))?;
        if self.is_prefix { f.write_str("*") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).unwrap()
    }

    #[test]
    fn names_are_covered_exactly_or_by_their_beginning() {
        assert!(pattern("a").covers(b"a") && !pattern("a").covers(b"ab") && !pattern("a").covers(b""));
        assert!(pattern("a*").covers(b"a") && pattern("a*").covers(b"ab") && !pattern("a*").covers(b"b"));
        assert!(pattern("*").covers(b"") && pattern("*").covers(b"\xff"));
        for text in ["*", "a", "app:*"] {
            assert_eq!(pattern(text).to_string(), text);
        }
    }

    #[test]
    fn a_range_is_covered_as_a_whole_or_not() {
        assert!(pattern("*").covers_range(b"", b""));
        assert!(pattern("a*").covers_range(b"a", b"b"));
        assert!(pattern("a*").covers_range(b"ab", b"abc"));
        assert!(!pattern("a*").covers_range(b"a", b""));
        assert!(!pattern("a*").covers_range(b"", b"b"));
        assert!(!pattern("a*").covers_range(b"a", b"b\0"));
        assert!(pattern("a").covers_range(b"a", b"a\0"));
        assert!(!pattern("a").covers_range(b"a", b"ab"));
    }

    #[test]
    fn what_cannot_be_decided_for_ranges_is_refused() {
        for text in ["", "a*b", "a?", "[a]*", "**", "\\*"] {
            assert!(Pattern::parse(text).is_err(), "{text}");
        }
    }
}
