//! What is wrong with a request that cannot be read any further.

use bytes::Bytes;
use sextant_common::limits;

/// Ends the connection after a reply with [`ProtocolError::message`], but for [`ProtocolError::TooBigArgument`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    InvalidMultibulkLength,
    InvalidBulkLength,
    ExpectedDollar(u8),
    TooBigCountString,
    TooBigBulkCountString,
    TooBigInlineRequest,
    UnbalancedQuotes,
    /// The bytes of an argument are not followed by `\r\n`. (Redis skips two bytes, whatever they are.)
    MissingTerminator,
    /// An argument of so many bytes is announced: no value may have as many. Its command is dropped as it comes.
    TooBigArgument(usize),
    /// The request is longer than so many bytes. (Redis closes without a word.)
    TooBigRequest(usize),
}

impl ProtocolError {
    /// The error reply, in Redis' words where it has some. The byte after `got` is the client's, whatever it was.
    pub fn message(self) -> Bytes {
        let text: &'static str = match self {
            Self::InvalidMultibulkLength => "ERR Protocol error: invalid multibulk length",
            Self::InvalidBulkLength => "ERR Protocol error: invalid bulk length",
            Self::TooBigCountString => "ERR Protocol error: too big mbulk count string",
            Self::TooBigBulkCountString => "ERR Protocol error: too big bulk count string",
            Self::TooBigInlineRequest => "ERR Protocol error: too big inline request",
            Self::UnbalancedQuotes => "ERR Protocol error: unbalanced quotes in request",
            Self::MissingTerminator => "ERR Protocol error: expected CRLF after an argument",
            Self::ExpectedDollar(got) => {
                let mut message = b"ERR Protocol error: expected '$', got '".to_vec();
                message.extend_from_slice(&[got, b'\'']);
                return Bytes::from(message);
            }
            Self::TooBigArgument(bytes) => {
                let limit = limits::VALUE_BYTES_MAX;
                let message = format!("ERR value has {bytes} bytes: the limit is {limit} bytes (8 MiB)");
                return Bytes::from(message);
            }
            Self::TooBigRequest(limit) => {
                return Bytes::from(format!("ERR Protocol error: request is longer than {limit} bytes"));
            }
        };
        Bytes::from_static(text.as_bytes())
    }
}
