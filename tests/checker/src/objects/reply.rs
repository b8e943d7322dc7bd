//! What commands are answered.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A reply, as far as it is compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Reply {
    Nil,
    Int(i64),
    Text(String),
    List(Vec<Reply>),
    /// Its first word.
    Error {
        error: String,
    },
}

impl Reply {
    pub fn text(text: impl Into<String>) -> Self {
        Reply::Text(text.into())
    }

    pub fn error(word: &str) -> Self {
        Reply::Error { error: word.to_owned() }
    }

    /// As it is compared: what has no order has one, and what is left of a lifetime is only said to be something.
    pub(crate) fn canonical(self, command: &str) -> Self {
        match (command, self) {
            ("SMEMBERS", Reply::List(mut members)) => {
                members.sort();
                Reply::List(members)
            }
            ("HGETALL", Reply::List(flat)) => {
                let mut pairs: Vec<&[Reply]> = flat.chunks(2).collect();
                pairs.sort();
                Reply::List(pairs.concat())
            }
            ("PTTL", Reply::Int(0..)) => Reply::text("some"),
            (_, reply) => reply,
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Nil => f.write_str("nil"),
            Reply::Int(n) => write!(f, "{n}"),
            Reply::Text(text) => f.write_str(text),
            Reply::List(replies) => {
                f.write_str("[")?;
                for (at, reply) in replies.iter().enumerate() {
                    write!(f, "{}{reply}", if at > 0 { " " } else { "" })?;
                }
                f.write_str("]")
            }
            Reply::Error { error } => write!(f, "-{error}"),
        }
    }
}
