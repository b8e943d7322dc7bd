//! Which commands exist. Below everything else: metrics count by it, `command` decodes by it.

/// One command. The order is that of [`COMMANDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Id {
    Get,
    Set,
    Mget,
    Mset,
    Setnx,
    Del,
    Unlink,
    Exists,
    Strlen,
    Getrange,
    Substr,
    Type,
    Touch,
    Ttl,
    Pttl,
    Expiretime,
    Pexpiretime,
    Incr,
    Decr,
    Incrby,
    Decrby,
    Incrbyfloat,
    Append,
    Setrange,
    Getset,
    Getdel,
    Msetnx,
    Persist,
    Expire,
    Pexpire,
    Expireat,
    Pexpireat,
    Setex,
    Psetex,
    Getex,
    Rename,
    Renamenx,
    Copy,
    Scan,
    Keys,
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
    Ping,
    Echo,
    Quit,
    Select,
    Reset,
    Hello,
    Auth,
    Client,
    Command,
    Config,
    Info,
    Time,
    Role,
    Dbsize,
    Acl,
    Slowlog,
}

/// What a command does to its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// What `COMMAND INFO` says about a command.
#[derive(Debug)]
pub(crate) struct Spec {
    pub id: Id,
    /// In small letters.
    pub name: &'static str,
    /// Number of arguments with the name; negative: at least so many.
    pub arity: i64,
    pub flags: &'static [&'static str],
    /// First key, last key (negative: from the end), step.
    pub keys: (i64, i64, i64),
}

const NO_KEYS: (i64, i64, i64) = (0, 0, 0);

#[rustfmt::skip]
pub(crate) static COMMANDS: [Spec; 61] = [
    Spec { id: Id::Get, name: "get", arity: 2, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Set, name: "set", arity: -3, flags: &["write", "denyoom"], keys: (1, 1, 1) },
    Spec { id: Id::Mget, name: "mget", arity: -2, flags: &["readonly", "fast"], keys: (1, -1, 1) },
    Spec { id: Id::Mset, name: "mset", arity: -3, flags: &["write", "denyoom"], keys: (1, -1, 2) },
    Spec { id: Id::Setnx, name: "setnx", arity: 3, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Del, name: "del", arity: -2, flags: &["write"], keys: (1, -1, 1) },
    Spec { id: Id::Unlink, name: "unlink", arity: -2, flags: &["write", "fast"], keys: (1, -1, 1) },
    Spec { id: Id::Exists, name: "exists", arity: -2, flags: &["readonly", "fast"], keys: (1, -1, 1) },
    Spec { id: Id::Strlen, name: "strlen", arity: 2, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Getrange, name: "getrange", arity: 4, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Substr, name: "substr", arity: 4, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Type, name: "type", arity: 2, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Touch, name: "touch", arity: -2, flags: &["readonly", "fast"], keys: (1, -1, 1) },
    Spec { id: Id::Ttl, name: "ttl", arity: 2, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Pttl, name: "pttl", arity: 2, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Expiretime, name: "expiretime", arity: 2, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Pexpiretime, name: "pexpiretime", arity: 2, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Incr, name: "incr", arity: 2, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Decr, name: "decr", arity: 2, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Incrby, name: "incrby", arity: 3, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Decrby, name: "decrby", arity: 3, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Incrbyfloat, name: "incrbyfloat", arity: 3, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Append, name: "append", arity: 3, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Setrange, name: "setrange", arity: 4, flags: &["write", "denyoom"], keys: (1, 1, 1) },
    Spec { id: Id::Getset, name: "getset", arity: 3, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Getdel, name: "getdel", arity: 2, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Msetnx, name: "msetnx", arity: -3, flags: &["write", "denyoom"], keys: (1, -1, 2) },
    Spec { id: Id::Persist, name: "persist", arity: 2, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Expire, name: "expire", arity: -3, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Pexpire, name: "pexpire", arity: -3, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Expireat, name: "expireat", arity: -3, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Pexpireat, name: "pexpireat", arity: -3, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Setex, name: "setex", arity: 4, flags: &["write", "denyoom"], keys: (1, 1, 1) },
    Spec { id: Id::Psetex, name: "psetex", arity: 4, flags: &["write", "denyoom"], keys: (1, 1, 1) },
    Spec { id: Id::Getex, name: "getex", arity: -2, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Rename, name: "rename", arity: 3, flags: &["write"], keys: (1, 2, 1) },
    Spec { id: Id::Renamenx, name: "renamenx", arity: 3, flags: &["write", "fast"], keys: (1, 2, 1) },
    Spec { id: Id::Copy, name: "copy", arity: -3, flags: &["write", "denyoom"], keys: (1, 2, 1) },
    Spec { id: Id::Scan, name: "scan", arity: -2, flags: &["readonly"], keys: NO_KEYS },
    Spec { id: Id::Keys, name: "keys", arity: 2, flags: &["readonly"], keys: NO_KEYS },
    Spec { id: Id::Multi, name: "multi", arity: 1, flags: &["fast"], keys: NO_KEYS },
    Spec { id: Id::Exec, name: "exec", arity: 1, flags: &[], keys: NO_KEYS },
    Spec { id: Id::Discard, name: "discard", arity: 1, flags: &["fast"], keys: NO_KEYS },
    Spec { id: Id::Watch, name: "watch", arity: -2, flags: &["readonly", "fast"], keys: (1, -1, 1) },
    Spec { id: Id::Unwatch, name: "unwatch", arity: 1, flags: &["fast"], keys: NO_KEYS },
    Spec { id: Id::Ping, name: "ping", arity: -1, flags: &["fast"], keys: NO_KEYS },
    Spec { id: Id::Echo, name: "echo", arity: 2, flags: &["fast"], keys: NO_KEYS },
    Spec { id: Id::Quit, name: "quit", arity: -1, flags: &["fast", "no_auth"], keys: NO_KEYS },
    Spec { id: Id::Select, name: "select", arity: 2, flags: &["fast"], keys: NO_KEYS },
    Spec { id: Id::Reset, name: "reset", arity: 1, flags: &["fast", "no_auth"], keys: NO_KEYS },
    Spec { id: Id::Hello, name: "hello", arity: -1, flags: &["fast", "no_auth"], keys: NO_KEYS },
    Spec { id: Id::Auth, name: "auth", arity: -2, flags: &["fast", "no_auth"], keys: NO_KEYS },
    Spec { id: Id::Client, name: "client", arity: -2, flags: &[], keys: NO_KEYS },
    Spec { id: Id::Command, name: "command", arity: -1, flags: &[], keys: NO_KEYS },
    Spec { id: Id::Config, name: "config", arity: -2, flags: &["admin"], keys: NO_KEYS },
    Spec { id: Id::Info, name: "info", arity: -1, flags: &[], keys: NO_KEYS },
    Spec { id: Id::Time, name: "time", arity: 1, flags: &["fast"], keys: NO_KEYS },
    Spec { id: Id::Role, name: "role", arity: 1, flags: &["fast"], keys: NO_KEYS },
    Spec { id: Id::Dbsize, name: "dbsize", arity: 1, flags: &["fast"], keys: NO_KEYS },
    Spec { id: Id::Acl, name: "acl", arity: -2, flags: &[], keys: NO_KEYS },
    Spec { id: Id::Slowlog, name: "slowlog", arity: -2, flags: &["admin"], keys: NO_KEYS },
];

impl Spec {
    pub fn accepts(&self, args: usize) -> bool {
        let args = args as i64;
        if self.arity >= 0 { args == self.arity } else { args >= -self.arity }
    }
}

/// Names are not case sensitive.
pub(crate) fn find(name: &[u8]) -> Option<&'static Spec> {
    COMMANDS
        .iter()
        .find(|spec| spec.name.len() == name.len() && name.eq_ignore_ascii_case(spec.name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_ids() {
        for (i, spec) in COMMANDS.iter().enumerate() {
            assert_eq!(spec.id as usize, i, "{}", spec.name);
            assert_eq!(find(spec.name.to_ascii_uppercase().as_bytes()).map(|s| s.id), Some(spec.id));
        }
        assert!(find(b"nosuch").is_none());
        assert!(find(b"").is_none());
    }
}
