//! `HELP` of commands that have subcommands.

use crate::frame::Reply;

const CLIENT: &[&str] = &[
    "GETNAME, SETNAME <name>: of this connection",
    "ID, INFO: of this connection",
    "KILL <ip:port> | <option> <value> ..: ID, TYPE, USER, ADDR, LADDR, SKIPME (yes|no)",
    "LIST [TYPE <type>] [ID <id> [<id> ..]]: the connections of this p-node",
    "NO-EVICT (ON|OFF), NO-TOUCH (ON|OFF): without effect, as nothing is evicted",
    "ORDER (KEYS|PIPELINE): whether commands on different keys of a pipeline may go side by side",
    "REPLY (ON|OFF|SKIP): which replies are wanted",
    "SETINFO (LIB-NAME|LIB-VER) <value>: what the client says of itself",
    "UNBLOCK <id> [TIMEOUT|ERROR]: ends the waiting of one",
];
const COMMAND: &[&str] = &[
    "(none), INFO [<command> ..]: what is known of the commands",
    "COUNT: how many there are",
    "DOCS [<command> ..]: nothing",
    "GETKEYS <command> [<arg> ..]: the keys among its arguments",
    "LIST [FILTERBY MODULE <name>|ACLCAT <category>|PATTERN <pattern>]: their names",
];
const CONFIG: &[&str] = &["GET <pattern> [<pattern> ..]: what clients may want to know of the settings"];
const LATENCY: &[&str] = &[
    "DOCTOR: where latencies are",
    "HISTOGRAM [<command> ..], HISTORY <event>, LATEST: nothing",
    "RESET [<event> ..]: 0",
];
const MEMORY: &[&str] = &[
    "DOCTOR: where figures of memory are",
    "PURGE, STATS: nothing",
    "USAGE <key> [SAMPLES <count>]: an estimate of the bytes that a key takes",
];
const SLOWLOG: &[&str] = &[
    "GET [<count>]: the newest entries (10; -1: all), with where the time went",
    "LEN: how many there are",
    "RESET: forgets them",
];

/// `name`: in capitals. None: it has none, or one of its own.
pub(super) fn of(name: &str) -> Option<Reply> {
    let subcommands = match name {
        "CLIENT" => CLIENT,
        "COMMAND" => COMMAND,
        "CONFIG" => CONFIG,
        "LATENCY" => LATENCY,
        "MEMORY" => MEMORY,
        "SLOWLOG" => SLOWLOG,
        _ => return None,
    };
    let head = Reply::Text(format!("{name} <subcommand> [<arg> ...]. Subcommands are:"));
    Some(Reply::Array([head].into_iter().chain(subcommands.iter().map(|line| Reply::Simple(line))).collect()))
}
