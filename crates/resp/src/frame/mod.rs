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
pub use sextant_common::operation::parse_integer;

pub use parser::{Command, Parser};
pub(crate) use reply::double_text;
pub use reply::{Protocol, Reply};

/// Most arguments of a command, the name included (Redis' limit of old).
pub const ARGS_MAX: usize = 1024 * 1024;
/// Longest inline request, and longest line that holds a count.
pub const LINE_BYTES_MAX: usize = 64 * 1024;

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
