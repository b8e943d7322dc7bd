//! Commands of Redis that are not there, and why not.

use super::errors::unsupported;
use super::is;
use crate::frame::{Command, Reply};

const CHANNELS: &str = "there are no channels: p-nodes tell each other nothing";
const SCRIPTS: &str = "there are no scripts: a transaction (MULTI, WATCH) does what they would";
pub(super) const DATABASES: &str = "nothing goes from one database to another";
const CLUSTER: &str =
    "a p-node is no node of a Redis cluster, and has no replicas: it sends commands where they belong";
/// As a Redis says it that is no node of a cluster, as clients may look for that.
const NO_CLUSTER: &str =
    "ERR This instance has cluster support disabled: a p-node sends commands where they belong";
const OF_CLUSTERS: [&str; 4] = ["asking", "cluster", "readonly", "readwrite"];
const DUMPS: &str = "there is no dump of a key";
const STREAMS: &str = "there are no streams";
const GEO: &str = "there are no places: a sorted set can hold their numbers";
const BITS: &str = "there are no operations on bits";
const LOGS: &str = "there is no HyperLogLog";
const OPERATIONS: &str = "the program sextant operates servers";
const OTHERS: &str = "it is not there";

/// Commands, and why each of them is not there.
const REFUSED: [(&str, &[&str]); 11] = [
    (
        CHANNELS,
        &[
            "publish",
            "subscribe",
            "unsubscribe",
            "psubscribe",
            "punsubscribe",
            "pubsub",
            "spublish",
            "ssubscribe",
            "sunsubscribe",
        ],
    ),
    (SCRIPTS, &["eval", "eval_ro", "evalsha", "evalsha_ro", "script", "fcall", "fcall_ro", "function"]),
    (DATABASES, &["swapdb", "move"]),
    (
        CLUSTER,
        &[
            "asking",
            "cluster",
            "readonly",
            "readwrite",
            "failover",
            "psync",
            "replconf",
            "replicaof",
            "slaveof",
            "sync",
        ],
    ),
    (DUMPS, &["dump", "restore", "restore-asking", "migrate"]),
    (
        STREAMS,
        &[
            "xack",
            "xadd",
            "xautoclaim",
            "xclaim",
            "xdel",
            "xgroup",
            "xinfo",
            "xlen",
            "xpending",
            "xrange",
            "xread",
            "xreadgroup",
            "xrevrange",
            "xsetid",
            "xtrim",
        ],
    ),
    (
        GEO,
        &[
            "geoadd",
            "geodist",
            "geohash",
            "geopos",
            "georadius",
            "georadius_ro",
            "georadiusbymember",
            "georadiusbymember_ro",
            "geosearch",
            "geosearchstore",
        ],
    ),
    (BITS, &["bitcount", "bitfield", "bitfield_ro", "bitop", "bitpos", "getbit", "setbit"]),
    (LOGS, &["pfadd", "pfcount", "pfdebug", "pfmerge", "pfselftest"]),
    (OPERATIONS, &["bgrewriteaof", "bgsave", "debug", "lastsave", "module", "monitor", "save", "shutdown"]),
    (OTHERS, &["lcs", "lolwut", "sort", "sort_ro"]),
];

/// What is said to one of them; None: it is no command of Redis.
pub(super) fn refusal(command: &Command<'_>) -> Option<Reply> {
    if OF_CLUSTERS.iter().any(|name| is(command.arg(0), name)) {
        return Some(Reply::error(NO_CLUSTER));
    }
    let (why, names) = REFUSED.iter().find(|(_, names)| names.iter().any(|name| is(command.arg(0), name)))?;
    let name = names.iter().find(|name| is(command.arg(0), name))?.to_ascii_uppercase();
    Some(unsupported(&name, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_table::find;

    #[test]
    fn what_is_refused_is_not_there() {
        let mut names: Vec<&str> = REFUSED.iter().flat_map(|(_, names)| *names).copied().collect();
        assert!(names.iter().all(|name| find(name.as_bytes()).is_none()));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "named once");
    }

    /// `COMMAND LIST` of redis-server 7.0.
    #[test]
    fn every_command_of_redis_is_there_or_refused() {
        let all = include_str!("redis_commands.txt");
        let missing: Vec<&str> = all
            .lines()
            .filter(|name| find(name.as_bytes()).is_none())
            .filter(|name| !REFUSED.iter().any(|(_, names)| names.contains(name)))
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
