//! Which commands exist. Below everything else: metrics count by it, `command` decodes by it.

use crate::frame::{Command, parse_integer};

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
    Object,
    Hset,
    Hmset,
    Hsetnx,
    Hget,
    Hmget,
    Hgetall,
    Hdel,
    Hlen,
    Hexists,
    Hkeys,
    Hvals,
    Hincrby,
    Hincrbyfloat,
    Hstrlen,
    Hrandfield,
    Hscan,
    Sadd,
    Srem,
    Sismember,
    Smismember,
    Scard,
    Smembers,
    Spop,
    Srandmember,
    Smove,
    Sinter,
    Sunion,
    Sdiff,
    Sinterstore,
    Sunionstore,
    Sdiffstore,
    Sscan,
    Zadd,
    Zincrby,
    Zrem,
    Zscore,
    Zmscore,
    Zcard,
    Zrange,
    Zrangebyscore,
    Zrevrange,
    Zrevrangebyscore,
    Zrangebylex,
    Zrevrangebylex,
    Zcount,
    Zlexcount,
    Zrank,
    Zrevrank,
    Zpopmin,
    Zpopmax,
    Zremrangebyrank,
    Zremrangebyscore,
    Zremrangebylex,
    Zrandmember,
    Zscan,
    Lpush,
    Rpush,
    Lpushx,
    Rpushx,
    Lpop,
    Rpop,
    Lrange,
    Llen,
    Lindex,
    Lset,
    Lrem,
    Ltrim,
    Linsert,
    Lmove,
    Rpoplpush,
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
    Lpos,
    Lmpop,
    Blpop,
    Brpop,
    Blmove,
    Brpoplpush,
    Blmpop,
    Sintercard,
    Zunion,
    Zinter,
    Zdiff,
    Zintercard,
    Zunionstore,
    Zinterstore,
    Zdiffstore,
    Zrangestore,
    Zmpop,
    Bzpopmin,
    Bzpopmax,
    Bzmpop,
    Randomkey,
    Flushdb,
    Flushall,
    Wait,
    Latency,
    Memory,
}

/// What a command does to its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// What a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Records, whatever they are, and plain values.
    Record,
    Hash,
    Set,
    Sorted,
    List,
    /// The server, the connection, or all keys.
    Server,
}

use Family::{Hash, List, Record, Server, Set, Sorted};

/// What `COMMAND INFO` says about a command.
#[derive(Debug)]
pub(crate) struct Spec {
    pub id: Id,
    /// In small letters.
    pub name: &'static str,
    pub of: Family,
    /// Number of arguments with the name; negative: at least so many.
    pub arity: i64,
    pub flags: &'static [&'static str],
    /// First key, last key (negative: from the end), step.
    pub keys: (i64, i64, i64),
}

const NO_KEYS: (i64, i64, i64) = (0, 0, 0);

#[rustfmt::skip]
pub(crate) static COMMANDS: [Spec; 158] = [
    Spec { id: Id::Get, name: "get", of: Record, arity: 2, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Set, name: "set", of: Record, arity: -3, flags: &["write", "denyoom"], keys: (1, 1, 1) },
    Spec { id: Id::Mget, name: "mget", of: Record, arity: -2, flags: &["readonly", "fast"], keys: (1, -1, 1) },
    Spec { id: Id::Mset, name: "mset", of: Record, arity: -3, flags: &["write", "denyoom"], keys: (1, -1, 2) },
    Spec { id: Id::Setnx, name: "setnx", of: Record, arity: 3, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Del, name: "del", of: Record, arity: -2, flags: &["write"], keys: (1, -1, 1) },
    Spec { id: Id::Unlink, name: "unlink", of: Record, arity: -2, flags: &["write", "fast"], keys: (1, -1, 1) },
    Spec { id: Id::Exists, name: "exists", of: Record, arity: -2, flags: &["readonly", "fast"], keys: (1, -1, 1) },
    Spec { id: Id::Strlen, name: "strlen", of: Record, arity: 2, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Getrange, name: "getrange", of: Record, arity: 4, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Substr, name: "substr", of: Record, arity: 4, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Type, name: "type", of: Record, arity: 2, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Touch, name: "touch", of: Record, arity: -2, flags: &["readonly", "fast"], keys: (1, -1, 1) },
    Spec { id: Id::Ttl, name: "ttl", of: Record, arity: 2, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Pttl, name: "pttl", of: Record, arity: 2, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Expiretime, name: "expiretime", of: Record, arity: 2, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Pexpiretime, name: "pexpiretime", of: Record, arity: 2, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Incr, name: "incr", of: Record, arity: 2, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Decr, name: "decr", of: Record, arity: 2, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Incrby, name: "incrby", of: Record, arity: 3, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Decrby, name: "decrby", of: Record, arity: 3, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Incrbyfloat, name: "incrbyfloat", of: Record, arity: 3, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Append, name: "append", of: Record, arity: 3, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Setrange, name: "setrange", of: Record, arity: 4, flags: &["write", "denyoom"], keys: (1, 1, 1) },
    Spec { id: Id::Getset, name: "getset", of: Record, arity: 3, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Getdel, name: "getdel", of: Record, arity: 2, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Msetnx, name: "msetnx", of: Record, arity: -3, flags: &["write", "denyoom"], keys: (1, -1, 2) },
    Spec { id: Id::Persist, name: "persist", of: Record, arity: 2, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Expire, name: "expire", of: Record, arity: -3, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Pexpire, name: "pexpire", of: Record, arity: -3, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Expireat, name: "expireat", of: Record, arity: -3, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Pexpireat, name: "pexpireat", of: Record, arity: -3, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Setex, name: "setex", of: Record, arity: 4, flags: &["write", "denyoom"], keys: (1, 1, 1) },
    Spec { id: Id::Psetex, name: "psetex", of: Record, arity: 4, flags: &["write", "denyoom"], keys: (1, 1, 1) },
    Spec { id: Id::Getex, name: "getex", of: Record, arity: -2, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Rename, name: "rename", of: Record, arity: 3, flags: &["write"], keys: (1, 2, 1) },
    Spec { id: Id::Renamenx, name: "renamenx", of: Record, arity: 3, flags: &["write", "fast"], keys: (1, 2, 1) },
    Spec { id: Id::Copy, name: "copy", of: Record, arity: -3, flags: &["write", "denyoom"], keys: (1, 2, 1) },
    Spec { id: Id::Object, name: "object", of: Record, arity: -2, flags: &["readonly"], keys: (2, 2, 1) },
    Spec { id: Id::Hset, name: "hset", of: Hash, arity: -4, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Hmset, name: "hmset", of: Hash, arity: -4, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Hsetnx, name: "hsetnx", of: Hash, arity: 4, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Hget, name: "hget", of: Hash, arity: 3, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Hmget, name: "hmget", of: Hash, arity: -3, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Hgetall, name: "hgetall", of: Hash, arity: 2, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Hdel, name: "hdel", of: Hash, arity: -3, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Hlen, name: "hlen", of: Hash, arity: 2, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Hexists, name: "hexists", of: Hash, arity: 3, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Hkeys, name: "hkeys", of: Hash, arity: 2, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Hvals, name: "hvals", of: Hash, arity: 2, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Hincrby, name: "hincrby", of: Hash, arity: 4, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Hincrbyfloat, name: "hincrbyfloat", of: Hash, arity: 4, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Hstrlen, name: "hstrlen", of: Hash, arity: 3, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Hrandfield, name: "hrandfield", of: Hash, arity: -2, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Hscan, name: "hscan", of: Hash, arity: -3, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Sadd, name: "sadd", of: Set, arity: -3, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Srem, name: "srem", of: Set, arity: -3, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Sismember, name: "sismember", of: Set, arity: 3, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Smismember, name: "smismember", of: Set, arity: -3, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Scard, name: "scard", of: Set, arity: 2, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Smembers, name: "smembers", of: Set, arity: 2, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Spop, name: "spop", of: Set, arity: -2, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Srandmember, name: "srandmember", of: Set, arity: -2, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Smove, name: "smove", of: Set, arity: 4, flags: &["write", "fast"], keys: (1, 2, 1) },
    Spec { id: Id::Sinter, name: "sinter", of: Set, arity: -2, flags: &["readonly"], keys: (1, -1, 1) },
    Spec { id: Id::Sunion, name: "sunion", of: Set, arity: -2, flags: &["readonly"], keys: (1, -1, 1) },
    Spec { id: Id::Sdiff, name: "sdiff", of: Set, arity: -2, flags: &["readonly"], keys: (1, -1, 1) },
    Spec { id: Id::Sinterstore, name: "sinterstore", of: Set, arity: -3, flags: &["write", "denyoom"], keys: (1, -1, 1) },
    Spec { id: Id::Sunionstore, name: "sunionstore", of: Set, arity: -3, flags: &["write", "denyoom"], keys: (1, -1, 1) },
    Spec { id: Id::Sdiffstore, name: "sdiffstore", of: Set, arity: -3, flags: &["write", "denyoom"], keys: (1, -1, 1) },
    Spec { id: Id::Sscan, name: "sscan", of: Set, arity: -3, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Zadd, name: "zadd", of: Sorted, arity: -4, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Zincrby, name: "zincrby", of: Sorted, arity: 4, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Zrem, name: "zrem", of: Sorted, arity: -3, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Zscore, name: "zscore", of: Sorted, arity: 3, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Zmscore, name: "zmscore", of: Sorted, arity: -3, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Zcard, name: "zcard", of: Sorted, arity: 2, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Zrange, name: "zrange", of: Sorted, arity: -4, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Zrangebyscore, name: "zrangebyscore", of: Sorted, arity: -4, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Zrevrange, name: "zrevrange", of: Sorted, arity: -4, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Zrevrangebyscore, name: "zrevrangebyscore", of: Sorted, arity: -4, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Zrangebylex, name: "zrangebylex", of: Sorted, arity: -4, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Zrevrangebylex, name: "zrevrangebylex", of: Sorted, arity: -4, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Zcount, name: "zcount", of: Sorted, arity: 4, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Zlexcount, name: "zlexcount", of: Sorted, arity: 4, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Zrank, name: "zrank", of: Sorted, arity: 3, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Zrevrank, name: "zrevrank", of: Sorted, arity: 3, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Zpopmin, name: "zpopmin", of: Sorted, arity: -2, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Zpopmax, name: "zpopmax", of: Sorted, arity: -2, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Zremrangebyrank, name: "zremrangebyrank", of: Sorted, arity: 4, flags: &["write"], keys: (1, 1, 1) },
    Spec { id: Id::Zremrangebyscore, name: "zremrangebyscore", of: Sorted, arity: 4, flags: &["write"], keys: (1, 1, 1) },
    Spec { id: Id::Zremrangebylex, name: "zremrangebylex", of: Sorted, arity: 4, flags: &["write"], keys: (1, 1, 1) },
    Spec { id: Id::Zrandmember, name: "zrandmember", of: Sorted, arity: -2, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Zscan, name: "zscan", of: Sorted, arity: -3, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Lpush, name: "lpush", of: List, arity: -3, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Rpush, name: "rpush", of: List, arity: -3, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Lpushx, name: "lpushx", of: List, arity: -3, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Rpushx, name: "rpushx", of: List, arity: -3, flags: &["write", "denyoom", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Lpop, name: "lpop", of: List, arity: -2, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Rpop, name: "rpop", of: List, arity: -2, flags: &["write", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Lrange, name: "lrange", of: List, arity: 4, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Llen, name: "llen", of: List, arity: 2, flags: &["readonly", "fast"], keys: (1, 1, 1) },
    Spec { id: Id::Lindex, name: "lindex", of: List, arity: 3, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Lset, name: "lset", of: List, arity: 4, flags: &["write", "denyoom"], keys: (1, 1, 1) },
    Spec { id: Id::Lrem, name: "lrem", of: List, arity: 4, flags: &["write"], keys: (1, 1, 1) },
    Spec { id: Id::Ltrim, name: "ltrim", of: List, arity: 4, flags: &["write"], keys: (1, 1, 1) },
    Spec { id: Id::Linsert, name: "linsert", of: List, arity: 5, flags: &["write", "denyoom"], keys: (1, 1, 1) },
    Spec { id: Id::Lmove, name: "lmove", of: List, arity: 5, flags: &["write", "denyoom"], keys: (1, 2, 1) },
    Spec { id: Id::Rpoplpush, name: "rpoplpush", of: List, arity: 3, flags: &["write", "denyoom"], keys: (1, 2, 1) },
    Spec { id: Id::Scan, name: "scan", of: Server, arity: -2, flags: &["readonly"], keys: NO_KEYS },
    Spec { id: Id::Keys, name: "keys", of: Server, arity: 2, flags: &["readonly"], keys: NO_KEYS },
    Spec { id: Id::Multi, name: "multi", of: Server, arity: 1, flags: &["fast"], keys: NO_KEYS },
    Spec { id: Id::Exec, name: "exec", of: Server, arity: 1, flags: &[], keys: NO_KEYS },
    Spec { id: Id::Discard, name: "discard", of: Server, arity: 1, flags: &["fast"], keys: NO_KEYS },
    Spec { id: Id::Watch, name: "watch", of: Server, arity: -2, flags: &["readonly", "fast"], keys: (1, -1, 1) },
    Spec { id: Id::Unwatch, name: "unwatch", of: Server, arity: 1, flags: &["fast"], keys: NO_KEYS },
    Spec { id: Id::Ping, name: "ping", of: Server, arity: -1, flags: &["fast"], keys: NO_KEYS },
    Spec { id: Id::Echo, name: "echo", of: Server, arity: 2, flags: &["fast"], keys: NO_KEYS },
    Spec { id: Id::Quit, name: "quit", of: Server, arity: -1, flags: &["fast", "no_auth"], keys: NO_KEYS },
    Spec { id: Id::Select, name: "select", of: Server, arity: 2, flags: &["fast"], keys: NO_KEYS },
    Spec { id: Id::Reset, name: "reset", of: Server, arity: 1, flags: &["fast", "no_auth"], keys: NO_KEYS },
    Spec { id: Id::Hello, name: "hello", of: Server, arity: -1, flags: &["fast", "no_auth"], keys: NO_KEYS },
    Spec { id: Id::Auth, name: "auth", of: Server, arity: -2, flags: &["fast", "no_auth"], keys: NO_KEYS },
    Spec { id: Id::Client, name: "client", of: Server, arity: -2, flags: &[], keys: NO_KEYS },
    Spec { id: Id::Command, name: "command", of: Server, arity: -1, flags: &[], keys: NO_KEYS },
    Spec { id: Id::Config, name: "config", of: Server, arity: -2, flags: &["admin"], keys: NO_KEYS },
    Spec { id: Id::Info, name: "info", of: Server, arity: -1, flags: &[], keys: NO_KEYS },
    Spec { id: Id::Time, name: "time", of: Server, arity: 1, flags: &["fast"], keys: NO_KEYS },
    Spec { id: Id::Role, name: "role", of: Server, arity: 1, flags: &["fast"], keys: NO_KEYS },
    Spec { id: Id::Dbsize, name: "dbsize", of: Server, arity: 1, flags: &["readonly", "fast"], keys: NO_KEYS },
    Spec { id: Id::Acl, name: "acl", of: Server, arity: -2, flags: &[], keys: NO_KEYS },
    Spec { id: Id::Slowlog, name: "slowlog", of: Server, arity: -2, flags: &["admin"], keys: NO_KEYS },
    Spec { id: Id::Lpos, name: "lpos", of: List, arity: -3, flags: &["readonly"], keys: (1, 1, 1) },
    Spec { id: Id::Lmpop, name: "lmpop", of: List, arity: -4, flags: &["write", "movablekeys"], keys: NO_KEYS },
    Spec { id: Id::Blpop, name: "blpop", of: List, arity: -3, flags: &["write", "blocking"], keys: (1, -2, 1) },
    Spec { id: Id::Brpop, name: "brpop", of: List, arity: -3, flags: &["write", "blocking"], keys: (1, -2, 1) },
    Spec { id: Id::Blmove, name: "blmove", of: List, arity: 6, flags: &["write", "denyoom", "blocking"], keys: (1, 2, 1) },
    Spec { id: Id::Brpoplpush, name: "brpoplpush", of: List, arity: 4, flags: &["write", "denyoom", "blocking"], keys: (1, 2, 1) },
    Spec { id: Id::Blmpop, name: "blmpop", of: List, arity: -5, flags: &["write", "blocking", "movablekeys"], keys: NO_KEYS },
    Spec { id: Id::Sintercard, name: "sintercard", of: Set, arity: -3, flags: &["readonly", "movablekeys"], keys: NO_KEYS },
    Spec { id: Id::Zunion, name: "zunion", of: Sorted, arity: -3, flags: &["readonly", "movablekeys"], keys: NO_KEYS },
    Spec { id: Id::Zinter, name: "zinter", of: Sorted, arity: -3, flags: &["readonly", "movablekeys"], keys: NO_KEYS },
    Spec { id: Id::Zdiff, name: "zdiff", of: Sorted, arity: -3, flags: &["readonly", "movablekeys"], keys: NO_KEYS },
    Spec { id: Id::Zintercard, name: "zintercard", of: Sorted, arity: -3, flags: &["readonly", "movablekeys"], keys: NO_KEYS },
    Spec { id: Id::Zunionstore, name: "zunionstore", of: Sorted, arity: -4, flags: &["write", "denyoom", "movablekeys"], keys: (1, 1, 1) },
    Spec { id: Id::Zinterstore, name: "zinterstore", of: Sorted, arity: -4, flags: &["write", "denyoom", "movablekeys"], keys: (1, 1, 1) },
    Spec { id: Id::Zdiffstore, name: "zdiffstore", of: Sorted, arity: -4, flags: &["write", "denyoom", "movablekeys"], keys: (1, 1, 1) },
    Spec { id: Id::Zrangestore, name: "zrangestore", of: Sorted, arity: -5, flags: &["write", "denyoom"], keys: (1, 2, 1) },
    Spec { id: Id::Zmpop, name: "zmpop", of: Sorted, arity: -4, flags: &["write", "movablekeys"], keys: NO_KEYS },
    Spec { id: Id::Bzpopmin, name: "bzpopmin", of: Sorted, arity: -3, flags: &["write", "fast", "blocking"], keys: (1, -2, 1) },
    Spec { id: Id::Bzpopmax, name: "bzpopmax", of: Sorted, arity: -3, flags: &["write", "fast", "blocking"], keys: (1, -2, 1) },
    Spec { id: Id::Bzmpop, name: "bzmpop", of: Sorted, arity: -5, flags: &["write", "blocking", "movablekeys"], keys: NO_KEYS },
    Spec { id: Id::Randomkey, name: "randomkey", of: Server, arity: 1, flags: &["readonly"], keys: NO_KEYS },
    Spec { id: Id::Flushdb, name: "flushdb", of: Server, arity: -1, flags: &["dangerous"], keys: NO_KEYS },
    Spec { id: Id::Flushall, name: "flushall", of: Server, arity: -1, flags: &["dangerous"], keys: NO_KEYS },
    Spec { id: Id::Wait, name: "wait", of: Server, arity: 3, flags: &[], keys: NO_KEYS },
    Spec { id: Id::Latency, name: "latency", of: Server, arity: -2, flags: &["admin"], keys: NO_KEYS },
    Spec { id: Id::Memory, name: "memory", of: Record, arity: -2, flags: &["readonly"], keys: (2, 2, 1) },
];

impl Spec {
    /// Where the command says how many keys come next, if it does.
    pub fn counted_keys_at(&self) -> Option<usize> {
        match self.id {
            Id::Lmpop | Id::Sintercard | Id::Zunion | Id::Zinter | Id::Zdiff | Id::Zintercard | Id::Zmpop => {
                Some(1)
            }
            Id::Blmpop | Id::Bzmpop | Id::Zunionstore | Id::Zinterstore | Id::Zdiffstore => Some(2),
            _ => None,
        }
    }

    /// Where the keys of a command stand, the one that is written first.
    pub fn key_places(&self, command: &Command<'_>) -> Vec<usize> {
        let (first, last, step) = self.keys;
        let len = command.len() as i64;
        let last = if last < 0 { len + last } else { last.min(len - 1) };
        let mut places = Vec::new();
        let mut at = first;
        while at > 0 && at <= last {
            places.push(at as usize);
            at += step;
        }
        if let Some(at) = self.counted_keys_at().filter(|at| *at < command.len()) {
            let count = parse_integer(command.arg(at)).and_then(|count| usize::try_from(count).ok());
            places.extend((at + 1..command.len()).take(count.unwrap_or_default()));
        }
        places
    }

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
