//! Patterns for keys, as `KEYS` and `SCAN MATCH` have them: `?` any byte, `*` any bytes, `[abc]`, `[a-z]`, `[^a]` one of these bytes
//! or none of them, `\x` the byte x. What is not closed ends with the pattern, as in Redis.
//!
//! Pure. Takes at most pattern times key steps, whatever the pattern, and counts them.

use bytes::Bytes;

/// Longest pattern, after the bytes that it begins with and that stand for themselves.
pub(crate) const PATTERN_BYTES_MAX: usize = 1024;

/// A pattern.
#[derive(Debug)]
pub(crate) struct Glob {
    /// With what every key begins that goes with it.
    prefix: Bytes,
    rest: Vec<Token>,
}

#[derive(Debug, PartialEq)]
enum Token {
    Byte(u8),
    /// Of 256: whether it is one of them.
    Class(Box<[bool; 256]>),
    Any,
    /// Any bytes, or none.
    Star,
}

impl Token {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Token::Byte(this) => *this == byte,
            Token::Class(holds) => holds[usize::from(byte)],
            Token::Any => true,
            Token::Star => false,
        }
    }
}

impl Glob {
    /// None: it is [too long](PATTERN_BYTES_MAX).
    pub fn new(pattern: &[u8]) -> Option<Self> {
        let prefix = literal_prefix(pattern);
        let mut left = &pattern[prefix.len()..];
        if left.len() > PATTERN_BYTES_MAX {
            return None;
        }
        let mut rest = Vec::new();
        while !left.is_empty() {
            let (token, len) = first(left);
            // (Two stars are one.)
            if token != Token::Star || rest.last() != Some(&Token::Star) {
                rest.push(token);
            }
            left = &left[len..];
        }
        Some(Self { prefix: Bytes::copy_from_slice(prefix), rest })
    }

    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Whether there is just one key that goes with it: the prefix.
    pub fn is_literal(&self) -> bool {
        self.rest.is_empty()
    }

    /// Whether a key goes with it. Adds to `steps` what that took.
    pub fn matches(&self, key: &[u8], steps: &mut usize) -> bool {
        let Some(key) = key.strip_prefix(&self.prefix[..]) else { return false };
        let (mut p, mut k) = (0, 0);
        // After the last `*`: where the pattern goes on, and how much of the key it has taken.
        let mut star: Option<(usize, usize)> = None;
        loop {
            *steps += 1;
            match self.rest.get(p) {
                Some(Token::Star) if p + 1 == self.rest.len() => return true,
                Some(Token::Star) => {
                    p += 1;
                    star = Some((p, k));
                    continue;
                }
                token if k == key.len() => return token.is_none(),
                Some(token) if token.takes(key[k]) => {
                    (p, k) = (p + 1, k + 1);
                    continue;
                }
                _ => {}
            }
            // The last `*` takes one byte more. (What it could take less has been tried.)
            match &mut star {
                Some((after, from)) => {
                    *from += 1;
                    (p, k) = (*after, *from);
                }
                None => return false,
            }
        }
    }
}

/// The first token of a pattern that is not empty, and its length.
fn first(pattern: &[u8]) -> (Token, usize) {
    match pattern {
        [b'*', ..] => (Token::Star, 1),
        [b'?', ..] => (Token::Any, 1),
        [b'[', class @ ..] => {
            let len = in_class(class, 0).1;
            let holds = std::array::from_fn(|byte| in_class(&class[..len], byte as u8).0);
            (Token::Class(Box::new(holds)), 1 + len)
        }
        [b'\\', literal, ..] => (Token::Byte(*literal), 2),
        [literal, ..] => (Token::Byte(*literal), 1),
        [] => (Token::Any, 0),
    }
}

/// Whether the byte is of the class, and how long that is, with its bracket.
fn in_class(class: &[u8], byte: u8) -> (bool, usize) {
    let negated = class.first() == Some(&b'^');
    let (mut at, mut found) = (usize::from(negated), false);
    loop {
        match &class[at..] {
            [b'\\', literal, ..] => {
                found |= *literal == byte;
                at += 2;
            }
            [b']', ..] => return (found != negated, at + 1),
            [] => return (found != negated, at),
            [from, b'-', to, ..] => {
                found |= (*from.min(to)..=*from.max(to)).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                found |= *literal == byte;
                at += 1;
            }
        }
    }
}

/// With what every key begins that goes with the pattern.
fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().position(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'));
    &pattern[..end.unwrap_or(pattern.len())]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &[u8], key: &[u8]) -> bool {
        Glob::new(pattern).expect("it is short").matches(key, &mut 0)
    }

    #[test]
    fn patterns_are_those_of_redis() {
        for (pattern, yes, no) in [
            ("h?llo", &["hello", "hallo"][..], &["hllo", "heello"][..]),
            ("h*llo", &["hllo", "heeeello"], &["hello!", "ello"]),
            ("h[ae]llo", &["hello", "hallo"], &["hillo", "h[ae]llo"]),
            ("h[^e]llo", &["hallo", "h^llo"], &["hello"]),
            ("h[a-b]llo", &["hallo", "hbllo"], &["hcllo", "h-llo"]),
            ("h[b-a]llo", &["hallo", "hbllo"], &["hcllo"]),
            ("\\*\\[a]", &["*[a]"], &["\\*\\[a]", "x[a]"]),
            ("[\\]-]", &["]", "-"], &["\\"]),
            ("[]", &[], &["", "]", "[]"]),
            ("[^]", &["x"], &["", "xy"]),
            ("[abc", &["a", "c"], &["d", "[abc"]),
            ("a\\", &["a\\"], &["a"]),
            ("*", &["", "anything"], &[]),
            ("", &[""], &["x"]),
            ("a**b*c", &["abc", "axxbyyc"], &["ab", "acb"]),
            ("*aab", &["aaab"], &["aaba"]),
        ] {
            for key in yes {
                assert!(matches(pattern.as_bytes(), key.as_bytes()), "{pattern} {key}");
            }
            for key in no {
                assert!(!matches(pattern.as_bytes(), key.as_bytes()), "{pattern} {key}");
            }
        }
    }

    #[test]
    fn what_a_pattern_takes_is_bounded_and_counted() {
        let key = "a".repeat(16_000);
        for pattern in ["*a".repeat(500) + "b", "*".to_owned() + &"[a-z]".repeat(204), "*".repeat(1024) + "b"]
        {
            let (glob, mut steps) = (Glob::new(pattern.as_bytes()), 0);
            let long = glob.is_none();
            assert_eq!(long, pattern.len() > PATTERN_BYTES_MAX);
            if let Some(glob) = glob {
                glob.matches(key.as_bytes(), &mut steps);
                assert!((key.len()..key.len() * PATTERN_BYTES_MAX).contains(&steps), "{pattern}: {steps}");
            }
        }
        let mut steps = 0;
        assert!(Glob::new(key.as_bytes()).unwrap().matches(key.as_bytes(), &mut steps));
        assert!(Glob::new(b"a*").unwrap().matches(key.as_bytes(), &mut steps));
        assert_eq!(steps, 2, "what stands for itself is compared, and what comes last takes all");
    }

    /// The same by trying everything.
    fn tried(pattern: &[u8], key: &[u8]) -> bool {
        match pattern {
            [] => key.is_empty(),
            [b'*', rest @ ..] => (0..=key.len()).any(|taken| tried(rest, &key[taken..])),
            _ => key.split_first().is_some_and(|(byte, key)| {
                let (token, taken) = first(pattern);
                token.takes(*byte) && tried(&pattern[taken..], key)
            }),
        }
    }

    proptest! {
        #[test]
        fn nothing_that_could_match_is_missed(pattern in "[ab*?\\[\\]^\\\\-]{0,8}", key in "[ab]{0,8}") {
            let (pattern, key) = (pattern.as_bytes(), key.as_bytes());
            prop_assert_eq!(matches(pattern, key), tried(pattern, key));
            prop_assert!(!matches(pattern, key) || key.starts_with(literal_prefix(pattern)));
        }
    }
}
