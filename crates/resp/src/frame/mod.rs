//! Framing: bytes to commands, replies to bytes. Pure; no I/O.
//!
//! Requests
//! ```text
//! *<count>\r\n  then count times  $<length>\r\n<bytes>\r\n        a command
//! word "quoted \x41\n" 'quoted'\r\n                               an inline command (the \r is optional)
//! ```
//! A count of 0 or less and an empty inline line are skipped. Numbers are decimal without sign, spaces or leading zeros.
//!
//! Invariant: how the input is split into pieces makes no difference to the commands or to the error that ends them, and
//! nothing is allocated for what is only announced.

mod error;
mod inline;
mod parser;
mod reply;

pub use error::ProtocolError;
pub use parser::{Command, Parser};
pub use reply::{Protocol, Reply};

/// Most arguments of a command, the name included (Redis' limit of old).
pub const ARGS_MAX: usize = 1024 * 1024;
/// Longest inline request, and longest line that holds a count.
pub const LINE_BYTES_MAX: usize = 64 * 1024;

/// A decimal number as Redis reads it: an optional minus, no plus, no leading zeros.
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        all => (false, all),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] => {}
        _ => return None,
    }
    // Summed up below zero, where there is room for i64::MIN.
    let mut value = 0i64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_sub(i64::from(digit - b'0'))?;
    }
    if negative { Some(value) } else { value.checked_neg() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_redis_does() {
        for (text, value) in [("0", 0), ("7", 7), ("-1", -1), ("1048576", 1_048_576), ("-42", -42)] {
            assert_eq!(parse_integer(text.as_bytes()), Some(value), "{text}");
        }
        assert_eq!(parse_integer(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(parse_integer(b"-9223372036854775808"), Some(i64::MIN));
        for text in ["", "-", "+1", "01", "-0", " 1", "1 ", "abc", "1a", "9223372036854775808", "--1"] {
            assert_eq!(parse_integer(text.as_bytes()), None, "{text}");
        }
    }
}
