//! Error replies: Redis' texts, and the store's errors in terms that Redis clients understand.

use bytes::Bytes;
use sextant_common::database::Database;
use sextant_common::marks::Kind;
use sextant_common::operation::{Misfit, Record};
use sextant_common::{Error, ErrorKind};

use super::{Action, help, is};
use crate::frame::{Command, Reply, parse_integer};

/// How much of the arguments, and of the name, an unknown command's error repeats (Redis' figure).
const QUOTED_BYTES_MAX: usize = 128;

pub(super) const SYNTAX: Reply = Reply::Error(Bytes::from_static(b"ERR syntax error"));
const DATABASE_OUT_OF_RANGE: Reply = Reply::Error(Bytes::from_static(b"ERR DB index is out of range"));
const NO_INT: Reply = Reply::Error(Bytes::from_static(
    b"ERR value is out of range, value must between -2147483648 and 2147483647",
));
pub(super) const NOT_AN_INTEGER: Reply =
    Reply::Error(Bytes::from_static(b"ERR value is not an integer or out of range"));

pub(super) const NOT_A_FLOAT: Reply = Reply::Error(Bytes::from_static(b"ERR value is not a valid float"));
pub(super) const NO_SUCH_KEY: Reply = Reply::Error(Bytes::from_static(b"ERR no such key"));
pub(super) const WRONG_TYPE: Reply =
    Reply::Error(Bytes::from_static(b"WRONGTYPE Operation against a key holding the wrong kind of value"));
pub(super) const TOO_LONG: Reply =
    Reply::Error(Bytes::from_static(b"ERR string exceeds maximum allowed size (proto-max-bulk-len)"));
pub(super) const CROSS_SLOT: Reply = Reply::Error(Bytes::from_static(
    b"CROSSSLOT Keys in request don't hash to the same partition: keys with the same {hash tag} do",
));

/// An argument that says which database is meant.
pub(super) fn database(word: &[u8]) -> Result<Database, Reply> {
    let number = parse_integer(word).ok_or(NOT_AN_INTEGER)?;
    i32::try_from(number).map_err(|_| NO_INT)?;
    Database::new(number).ok_or(DATABASE_OUT_OF_RANGE)
}

/// Why a change does not go with the value that it meets. `is_decimal`: it adds decimal numbers.
pub(super) fn misfit(misfit: Misfit, is_decimal: bool) -> Reply {
    match misfit {
        Misfit::NotAnInteger => NOT_AN_INTEGER,
        Misfit::NotANumber => NOT_A_FLOAT,
        Misfit::Overflow if is_decimal => Reply::error("ERR increment would produce NaN or Infinity"),
        Misfit::Overflow => Reply::error("ERR increment or decrement would overflow"),
        Misfit::TooLong => TOO_LONG,
        Misfit::WrongKind | Misfit::OtherObject => WRONG_TYPE,
    }
}

/// What a command that wants plain bytes answers to a record.
pub(crate) fn value(record: Option<Record>) -> Reply {
    match record {
        Some(Record { kind: Kind::Plain, value, .. }) => Reply::Bulk(value),
        Some(_) => WRONG_TYPE,
        None => Reply::Nil,
    }
}

/// The same, of one of many: what is no plain bytes is no value.
pub(super) fn plain(record: Option<Record>) -> Reply {
    Reply::optional(record.filter(|record| record.kind == Kind::Plain).map(|record| record.value))
}

pub(super) fn wrong_arity(name: &str) -> Reply {
    Reply::error(format!("ERR wrong number of arguments for '{name}' command"))
}

/// What Redis has and a p-node has not. Not `ERR`: some clients take that for an answer like any other, and what they sent is lost
/// without a word.
pub(super) fn unsupported(what: &str, why: &str) -> Reply {
    Reply::error(format!("UNSUPPORTED {what} is not supported: {why}"))
}

/// Subcommands that Redis has, and why there are none.
const REFUSED: [(&str, &str, &str); 8] = [
    ("ACL", "genpass", "passwords are drawn where they are kept"),
    ("ACL", "log", "who was refused what is in the p-nodes' logs"),
    ("ACL", "save", "users are in the cluster, not in a file"),
    ("ACL", "load", "users are in the cluster, not in a file"),
    ("ACL", "dryrun", "ask as that user"),
    ("MEMORY", "malloc-stats", "what is used is in the metrics"),
    ("LATENCY", "graph", "latencies are in the metrics"),
    ("COMMAND", "getkeysandflags", "COMMAND GETKEYS names the keys"),
];

/// Of one that is not there; or what there is, if that is asked. `help`: the command in capitals.
pub(super) fn unknown_subcommand(command: &Command<'_>, help: &str) -> Reply {
    if command.len() == 2
        && is(command.arg(1), "help")
        && let Some(lines) = help::of(help)
    {
        return lines;
    }
    let is_it = |of: &str, name: &str| of == help && is(command.arg(1), name);
    if let Some((_, name, why)) = REFUSED.into_iter().find(|(of, name, _)| is_it(of, name)) {
        return unsupported(&format!("{help} {}", name.to_ascii_uppercase()), why);
    }
    let mut message = b"ERR unknown subcommand '".to_vec();
    message.extend_from_slice(shortened(command.arg(1), QUOTED_BYTES_MAX));
    message.extend_from_slice(format!("'. Try {help} HELP.").as_bytes());
    Reply::Error(message.into())
}

pub(super) fn unknown_command(command: &Command<'_>) -> Action {
    let name = command.arg(0);
    if is(name, "post") || is(name, "host:") {
        // A browser that was made to send HTTP here: what follows is an attacker's.
        tracing::warn!("a connection was closed that speaks HTTP");
        return Action::Close(None);
    }
    let mut quoted = Vec::new();
    for i in 1..command.len() {
        if quoted.len() >= QUOTED_BYTES_MAX {
            break;
        }
        let room = QUOTED_BYTES_MAX - quoted.len();
        quoted.push(b'\'');
        quoted.extend_from_slice(shortened(command.arg(i), room));
        quoted.extend_from_slice(b"' ");
    }
    let mut message = b"ERR unknown command '".to_vec();
    message.extend_from_slice(shortened(name, QUOTED_BYTES_MAX));
    message.extend_from_slice(b"', with args beginning with: ");
    message.extend_from_slice(&quoted);
    Action::Reply(Reply::Error(message.into()))
}

/// Cut as C's `%.*s` cuts: at a zero byte too.
fn shortened(bytes: &[u8], max: usize) -> &[u8] {
    let bytes = &bytes[..bytes.len().min(max)];
    bytes.split(|b| *b == 0).next().unwrap_or(bytes)
}

/// The code tells a client what to do, as far as Redis has a word for it: `TRYAGAIN` and `CLUSTERDOWN` are retried by
/// clients that retry at all, `ERR` and `OUTCOMEUNKNOWN` are not.
pub(crate) fn store_error(error: &Error) -> Reply {
    let code = match error.kind {
        ErrorKind::Retry | ErrorKind::NotLeader | ErrorKind::Overloaded | ErrorKind::Stopping => "TRYAGAIN",
        ErrorKind::Unavailable => "CLUSTERDOWN",
        ErrorKind::OutcomeUnknown => "OUTCOMEUNKNOWN",
        ErrorKind::Corrupt => "CORRUPT",
        ErrorKind::Disk => "MISCONF",
        ErrorKind::Unauthenticated => "NOAUTH",
        ErrorKind::Denied => "NOPERM",
        ErrorKind::Internal => "ERR internal error:",
        ErrorKind::Invalid | ErrorKind::UnknownTable | ErrorKind::UnknownSession | ErrorKind::Outdated => {
            "ERR"
        }
    };
    Reply::error(format!("{code} {}", error.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stores_errors_keep_their_meaning() {
        let text = |kind| match store_error(&Error::new(kind, "why")) {
            Reply::Error(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(text(ErrorKind::Overloaded), "TRYAGAIN why");
        assert_eq!(text(ErrorKind::Unavailable), "CLUSTERDOWN why");
        assert_eq!(text(ErrorKind::OutcomeUnknown), "OUTCOMEUNKNOWN why");
        assert_eq!(text(ErrorKind::Invalid), "ERR why");
        assert_eq!(text(ErrorKind::Internal), "ERR internal error: why");
    }
}
