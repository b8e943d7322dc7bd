//! Replies and their two encodings.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};

/// The version that a connection speaks; `HELLO` chooses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    #[default]
    Resp2,
    Resp3,
    /// The client wants no reply.
    Silent,
}

/// A reply, not yet encoded.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Simple(&'static str),
    /// Starts with the code (`ERR`, `TRYAGAIN`, ..). Line breaks in it are sent as spaces.
    Error(Bytes),
    Integer(i64),
    Bulk(Bytes),
    /// `$-1` or `_`.
    Nil,
    /// Where there could be an array: `*-1` or `_`.
    NilArray,
    Array(Vec<Reply>),
    /// `%` in RESP3, a flat array in RESP2.
    Map(Vec<(Reply, Reply)>),
    /// `~` in RESP3, an array in RESP2.
    Set(Vec<Reply>),
    /// A list of pairs in RESP3, a flat array in RESP2.
    Pairs(Vec<(Reply, Reply)>),
    /// `,` in RESP3, a bulk string in RESP2.
    Double(f64),
    /// Text for people: `=txt:` in RESP3, a bulk string in RESP2.
    Text(String),
    /// For the protocol that the connection speaks, already.
    Encoded(Bytes),
}

impl Reply {
    pub const OK: Reply = Reply::Simple("OK");

    pub fn error(message: impl Into<Cow<'static, str>>) -> Self {
        Self::Error(match message.into() {
            Cow::Borrowed(text) => Bytes::from_static(text.as_bytes()),
            Cow::Owned(text) => Bytes::from(text),
        })
    }

    /// A short constant string as a bulk.
    pub fn bulk(text: &'static str) -> Self {
        Self::Bulk(Bytes::from_static(text.as_bytes()))
    }

    /// A value, or nil.
    pub fn optional(value: Option<Bytes>) -> Self {
        value.map_or(Self::Nil, Self::Bulk)
    }

    pub fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// Roughly how many bytes it holds.
    pub fn size(&self) -> usize {
        const FRAMING: usize = 16;
        FRAMING
            + match self {
                Self::Simple(text) => text.len(),
                Self::Error(bytes) | Self::Bulk(bytes) | Self::Encoded(bytes) => bytes.len(),
                Self::Integer(_) | Self::Double(_) | Self::Nil | Self::NilArray => 0,
                Self::Array(items) | Self::Set(items) => items.iter().map(Self::size).sum(),
                Self::Map(pairs) | Self::Pairs(pairs) => pairs.iter().map(|(k, v)| k.size() + v.size()).sum(),
                Self::Text(text) => text.len(),
            }
    }

    pub fn encode(&self, protocol: Protocol, out: &mut BytesMut) {
        let resp3 = protocol == Protocol::Resp3;
        match self {
            Self::Simple(text) => {
                out.put_u8(b'+');
                out.put_slice(text.as_bytes());
                out.put_slice(b"\r\n");
            }
            Self::Error(message) => {
                out.reserve(message.len() + 3);
                out.put_u8(b'-');
                for byte in message {
                    out.put_u8(if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte });
                }
                out.put_slice(b"\r\n");
            }
            Self::Integer(value) => header(b':', *value, out),
            Self::Encoded(bytes) => out.put_slice(bytes),
            Self::Bulk(bytes) => {
                out.reserve(bytes.len() + 24);
                header(b'$', bytes.len() as i64, out);
                out.put_slice(bytes);
                out.put_slice(b"\r\n");
            }
            Self::Nil => out.put_slice(if resp3 { b"_\r\n" } else { b"$-1\r\n" }),
            Self::NilArray => out.put_slice(if resp3 { b"_\r\n" } else { b"*-1\r\n" }),
            Self::Array(items) => sequence(b'*', items, protocol, out),
            Self::Set(items) => sequence(if resp3 { b'~' } else { b'*' }, items, protocol, out),
            Self::Map(pairs) => {
                if resp3 {
                    header(b'%', pairs.len() as i64, out);
                } else {
                    header(b'*', pairs.len() as i64 * 2, out);
                }
                for (key, value) in pairs {
                    key.encode(protocol, out);
                    value.encode(protocol, out);
                }
            }
            Self::Pairs(pairs) => {
                header(b'*', pairs.len() as i64 * if resp3 { 1 } else { 2 }, out);
                for (first, second) in pairs {
                    if resp3 {
                        out.put_slice(b"*2\r\n");
                    }
                    first.encode(protocol, out);
                    second.encode(protocol, out);
                }
            }
            Self::Double(number) => {
                let text = double_text(*number);
                match resp3 {
                    true => out.put_u8(b','),
                    false => header(b'$', text.len() as i64, out),
                }
                out.put_slice(text.as_bytes());
                out.put_slice(b"\r\n");
            }
            Self::Text(text) => {
                if resp3 {
                    header(b'=', text.len() as i64 + 4, out);
                    out.put_slice(b"txt:");
                } else {
                    header(b'$', text.len() as i64, out);
                }
                out.put_slice(text.as_bytes());
                out.put_slice(b"\r\n");
            }
        }
    }
}

/// As C's `%.17g` writes it, which is what Redis does.
pub(crate) fn double_text(number: f64) -> String {
    const DIGITS: i32 = 17;
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let text = format!("{number:.*e}", DIGITS as usize - 1);
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let without_zeros = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if !(-4..DIGITS).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", without_zeros(digits), exponent.abs());
    }
    without_zeros(&format!("{number:.*}", (DIGITS - 1 - exponent) as usize))
}

fn header(kind: u8, number: i64, out: &mut BytesMut) {
    out.put_u8(kind);
    out.put_slice(itoa::Buffer::new().format(number).as_bytes());
    out.put_slice(b"\r\n");
}

fn sequence(kind: u8, items: &[Reply], protocol: Protocol, out: &mut BytesMut) {
    header(kind, items.len() as i64, out);
    for item in items {
        item.encode(protocol, out);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use redis::Value;

    use super::*;

    fn encoded(reply: &Reply, protocol: Protocol) -> Vec<u8> {
        let mut out = BytesMut::new();
        reply.encode(protocol, &mut out);
        out.to_vec()
    }

    #[test]
    fn both_encodings() {
        let map = Reply::Map(vec![(Reply::bulk("proto"), Reply::Integer(3)), (Reply::bulk("x"), Reply::Nil)]);
        assert_eq!(encoded(&map, Protocol::Resp2), b"*4\r\n$5\r\nproto\r\n:3\r\n$1\r\nx\r\n$-1\r\n");
        assert_eq!(encoded(&map, Protocol::Resp3), b"%2\r\n$5\r\nproto\r\n:3\r\n$1\r\nx\r\n_\r\n");
        let set = Reply::Set(vec![Reply::Simple("fast")]);
        assert_eq!(encoded(&set, Protocol::Resp2), b"*1\r\n+fast\r\n");
        assert_eq!(encoded(&set, Protocol::Resp3), b"~1\r\n+fast\r\n");
        let text = Reply::Text("a:1".into());
        assert_eq!(encoded(&text, Protocol::Resp2), b"$3\r\na:1\r\n");
        assert_eq!(encoded(&text, Protocol::Resp3), b"=7\r\ntxt:a:1\r\n");
    }

    #[test]
    fn doubles_are_written_as_redis_writes_them() {
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (2.3, "2.2999999999999998"),
            (-2.5, "-2.5"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (1.5e300, "1.5000000000000001e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1.0000000000000001e-05"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(double_text(number), text);
        }
        let pairs = Reply::Pairs(vec![(Reply::bulk("a"), Reply::Double(1.5))]);
        assert_eq!(encoded(&pairs, Protocol::Resp2), b"*2\r\n$1\r\na\r\n$3\r\n1.5\r\n");
        assert_eq!(encoded(&pairs, Protocol::Resp3), b"*1\r\n*2\r\n$1\r\na\r\n,1.5\r\n");
    }

    #[test]
    fn an_error_stays_on_its_line() {
        let error = Reply::error("ERR unknown command 'a\r\n+OK'");
        assert_eq!(encoded(&error, Protocol::Resp2), b"-ERR unknown command 'a  +OK'\r\n");
    }

    fn reply() -> impl Strategy<Value = Reply> {
        let leaf = prop_oneof![
            Just(Reply::OK),
            Just(Reply::Nil),
            Just(Reply::NilArray),
            any::<i64>().prop_map(Reply::Integer),
            prop::collection::vec(any::<u8>(), 0..20).prop_map(|b| Reply::Bulk(b.into())),
            "[a-z ]{0,10}".prop_map(Reply::Text),
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Reply::Array),
                prop::collection::vec(inner.clone(), 0..4).prop_map(Reply::Set),
                prop::collection::vec((inner.clone(), inner), 0..4).prop_map(Reply::Map),
            ]
        })
    }

    /// What a client's parser must make of it.
    fn decoded(reply: &Reply, protocol: Protocol) -> Value {
        let resp3 = protocol == Protocol::Resp3;
        let all = |items: &[Reply]| items.iter().map(|i| decoded(i, protocol)).collect::<Vec<_>>();
        match reply {
            Reply::Simple("OK") => Value::Okay,
            Reply::Simple(text) => Value::SimpleString((*text).into()),
            Reply::Error(_) => unreachable!("not generated"),
            Reply::Integer(value) => Value::Int(*value),
            Reply::Bulk(bytes) => Value::BulkString(bytes.to_vec()),
            Reply::Nil | Reply::NilArray => Value::Nil,
            Reply::Array(items) => Value::Array(all(items)),
            Reply::Set(items) if resp3 => Value::Set(all(items)),
            Reply::Set(items) => Value::Array(all(items)),
            Reply::Map(pairs) if resp3 => {
                Value::Map(pairs.iter().map(|(k, v)| (decoded(k, protocol), decoded(v, protocol))).collect())
            }
            Reply::Map(pairs) => Value::Array(
                pairs.iter().flat_map(|(k, v)| [decoded(k, protocol), decoded(v, protocol)]).collect(),
            ),
            Reply::Pairs(_) | Reply::Double(_) | Reply::Encoded(_) => unreachable!("not generated"),
            Reply::Text(text) if resp3 => {
                Value::VerbatimString { format: redis::VerbatimFormat::Text, text: text.clone() }
            }
            Reply::Text(text) => Value::BulkString(text.clone().into_bytes()),
        }
    }

    proptest! {
        #[test]
        fn a_client_reads_what_was_encoded(reply in reply()) {
            for protocol in [Protocol::Resp2, Protocol::Resp3] {
                let value = redis::parse_redis_value(&encoded(&reply, protocol)).unwrap();
                prop_assert_eq!(value, decoded(&reply, protocol));
            }
        }
    }
}
