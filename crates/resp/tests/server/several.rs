//! Commands on several objects, and on all keys, byte for byte as Redis 7.0 answers.

use super::memory::MemoryStore;
use super::objects::check;
use super::*;

async fn connected() -> (RespServer, Raw) {
    let server = start(MemoryStore::new(true), config()).await;
    let client = Raw::connect(server.local_addr()).await;
    (server, client)
}

#[tokio::test]
async fn sorted_sets_are_combined() {
    let (_server, mut client) = connected().await;
    check(
        &mut client,
        &[
            ("ZADD a 1 x 2 y 3 z", ":3|"),
            ("ZADD b 10 y 20 z 30 w", ":3|"),
            ("SADD s x w", ":2|"),
            ("ZUNION 2 a b WITHSCORES", "*8|$1|x|$1|1|$1|y|$2|12|$1|z|$2|23|$1|w|$2|30|"),
            ("ZUNION 2 a s", "*4|$1|w|$1|x|$1|y|$1|z|"),
            ("ZINTER 2 a b WITHSCORES WEIGHTS 2 1", "*4|$1|y|$2|14|$1|z|$2|26|"),
            ("ZINTER 2 a b AGGREGATE MAX WITHSCORES", "*4|$1|y|$2|10|$1|z|$2|20|"),
            ("ZINTER 2 a nosuch", "*0|"),
            ("ZDIFF 2 a b WITHSCORES", "*2|$1|x|$1|1|"),
            ("ZDIFF 3 a s b", "*0|"),
            ("ZINTERCARD 2 a b", ":2|"),
            ("ZINTERCARD 2 a b LIMIT 1", ":1|"),
            ("ZUNIONSTORE u 2 a b WEIGHTS 1 0.5 AGGREGATE MIN", ":4|"),
            ("ZRANGE u 0 -1 WITHSCORES", "*8|$1|x|$1|1|$1|y|$1|2|$1|z|$1|3|$1|w|$2|15|"),
            ("ZINTERSTORE u 2 nosuch a", ":0|"),
            ("EXISTS u", ":0|"),
            ("ZDIFFSTORE u 2 a b", ":1|"),
            ("ZSCORE u x", "$1|1|"),
            ("ZRANGESTORE u a 1 -1", ":2|"),
            ("ZRANGE u 0 -1", "*2|$1|y|$1|z|"),
            ("ZRANGESTORE u a (1 +inf BYSCORE LIMIT 1 5", ":1|"),
            ("ZRANGE u 0 -1", "*1|$1|z|"),
            ("ZRANGESTORE u a 0 -1 WITHSCORES", "-ERR syntax error|"),
            ("ZRANGESTORE u nosuch 0 -1", ":0|"),
            ("EXISTS u", ":0|"),
            ("ZUNION 0 a", "-ERR at least 1 input key is needed for 'zunion' command|"),
            ("ZUNION 2 a", "-ERR syntax error|"),
            ("ZUNION x a", "-ERR value is not an integer or out of range|"),
            ("ZUNION 1 a WEIGHTS x", "-ERR weight value is not a float|"),
            ("ZINTERCARD 1 a LIMIT -1", "-ERR LIMIT can't be negative|"),
            ("ZDIFF 1 a WEIGHTS 1", "-ERR syntax error|"),
            ("SET plain 1", "+OK|"),
            ("ZUNION 2 a plain", "-WRONGTYPE Operation against a key holding the wrong kind of value|"),
            ("ZUNIONSTORE plain 1 a", ":3|"),
            ("TYPE plain", "+zset|"),
            ("ZUNION 2 a apart", "-CROSSSLOT Keys in request don't hash to the same partition: keys with the same {hash tag} do|"),
        ],
    )
    .await;
}

#[tokio::test]
async fn sets_are_counted_together() {
    let (_server, mut client) = connected().await;
    check(
        &mut client,
        &[
            ("SADD a 1 2 3", ":3|"),
            ("SADD b 2 3 4", ":3|"),
            ("SINTERCARD 2 a b", ":2|"),
            ("SINTERCARD 2 a b LIMIT 1", ":1|"),
            ("SINTERCARD 2 a b LIMIT 0", ":2|"),
            ("SINTERCARD 1 nosuch", ":0|"),
            ("SINTERCARD 0 a", "-ERR numkeys should be greater than 0|"),
            ("SINTERCARD 3 a b", "-ERR Number of keys can't be greater than number of args|"),
            ("SINTERCARD 2 a b LIMIT -1", "-ERR LIMIT can't be negative|"),
            ("SINTERCARD 2 a b LIMIT", "-ERR syntax error|"),
        ],
    )
    .await;
}

#[tokio::test]
async fn the_first_that_has_something_is_popped() {
    let (_server, mut client) = connected().await;
    check(
        &mut client,
        &[
            ("RPUSH l a b c", ":3|"),
            ("LMPOP 2 nosuch l LEFT", "*2|$1|l|*1|$1|a|"),
            ("LMPOP 2 nosuch l RIGHT COUNT 10", "*2|$1|l|*2|$1|c|$1|b|"),
            ("LMPOP 2 nosuch l RIGHT", "*-1|"),
            ("ZADD z 1 a 2 b 3 c", ":3|"),
            ("ZMPOP 1 z MIN", "*2|$1|z|*1|*2|$1|a|$1|1|"),
            ("ZMPOP 2 nosuch z MAX COUNT 5", "*2|$1|z|*2|*2|$1|c|$1|3|*2|$1|b|$1|2|"),
            ("ZMPOP 1 z MAX", "*-1|"),
            ("LMPOP 0 l LEFT", "-ERR numkeys should be greater than 0|"),
            ("LMPOP 1 l UP", "-ERR syntax error|"),
            ("LMPOP 9 l LEFT", "-ERR syntax error|"),
            ("LMPOP 1 l LEFT COUNT 0", "-ERR count should be greater than 0|"),
            ("SET plain 1", "+OK|"),
            ("LMPOP 1 plain LEFT", "-WRONGTYPE Operation against a key holding the wrong kind of value|"),
        ],
    )
    .await;
}

#[tokio::test]
async fn elements_of_lists_are_found() {
    let (_server, mut client) = connected().await;
    check(
        &mut client,
        &[
            ("RPUSH l a b c 1 2 3 c c", ":8|"),
            ("LPOS l c", ":2|"),
            ("LPOS l c RANK 2", ":6|"),
            ("LPOS l c RANK -1", ":7|"),
            ("LPOS l c COUNT 2", "*2|:2|:6|"),
            ("LPOS l c RANK -1 COUNT 2", "*2|:7|:6|"),
            ("LPOS l c COUNT 0", "*3|:2|:6|:7|"),
            ("LPOS l c MAXLEN 2", "$-1|"),
            ("LPOS l c COUNT 0 MAXLEN 7", "*2|:2|:6|"),
            ("LPOS l nosuch", "$-1|"),
            ("LPOS nosuch c COUNT 0", "*0|"),
            (
                "LPOS l c RANK 0",
                "-ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to \
                 start from the end of the list|",
            ),
            ("LPOS l c COUNT -1", "-ERR COUNT can't be negative|"),
        ],
    )
    .await;
}

#[tokio::test]
async fn all_keys_are_counted_and_deleted() {
    let (_server, mut client) = connected().await;
    check(
        &mut client,
        &[
            ("DBSIZE", ":0|"),
            ("RANDOMKEY", "$-1|"),
            ("SET a 1", "+OK|"),
            ("RANDOMKEY", "$1|a|"),
            ("HSET h f v", ":1|"),
            ("DBSIZE", ":2|"),
            ("FLUSHDB NONSENSE", "-ERR syntax error|"),
            ("FLUSHALL ASYNC", "+OK|"),
            ("DBSIZE", ":0|"),
            ("HSET h g v", ":1|"),
            ("HGETALL h", "*2|$1|g|$1|v|"),
            ("FLUSHDB", "+OK|"),
            ("EXISTS h", ":0|"),
            ("MULTI", "+OK|"),
            ("FLUSHDB", "-ERR Command not allowed inside a transaction|"),
            ("DISCARD", "+OK|"),
        ],
    )
    .await;
}

#[tokio::test]
async fn what_is_not_there_says_why() {
    let (_server, mut client) = connected().await;
    check(
        &mut client,
        &[
            (
                "SUBSCRIBE a",
                "-UNSUPPORTED SUBSCRIBE is not supported: there are no channels: p-nodes tell each other nothing|",
            ),
            (
                "EVAL 'return 1' 0",
                "-UNSUPPORTED EVAL is not supported: there are no scripts: a transaction (MULTI, WATCH) does what they would|",
            ),
            // What Redis does not have either.
            ("EVALX 'return 1' 0", "-ERR unknown command 'EVALX', with args beginning with: 'return 1' '0' |"),
            ("WAIT 0 100", ":0|"),
            ("WAIT x 100", "-ERR value is not an integer or out of range|"),
            ("LATENCY LATEST", "*0|"),
            ("LATENCY RESET", ":0|"),
            ("MEMORY USAGE nosuch", "$-1|"),
            ("MEMORY USAGE nosuch SAMPLES 0", "$-1|"),
            ("MEMORY USAGE nosuch SAMPLES -1", "-ERR syntax error|"),
            ("MEMORY USAGE nosuch SAMPLES x", "-ERR value is not an integer or out of range|"),
            ("SET a 123", "+OK|"),
            ("MEMORY USAGE a", ":67|"),
            ("OBJECT FREQ nosuch", "$-1|"),
        ],
    )
    .await;
}

#[tokio::test]
async fn what_finds_no_room_to_gather_is_refused_and_changes_nothing() {
    let config = RespConfig { max_gathered_bytes: 300 * 1024, ..config() };
    let server = start(MemoryStore::new(true), config).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let value = "v".repeat(100 * 1024);
    for at in 0..8 {
        let push = format!("*3\r\n$5\r\nRPUSH\r\n$1\r\nl\r\n${}\r\n{value}\r\n", value.len());
        client.send(push.as_bytes()).await;
        client.expect(format!(":{}\r\n", at + 1).as_bytes()).await;
    }
    let refused = "-TRYAGAIN nothing took effect: others read or make so much at the moment that there is no room for this\r\n";
    client.ask(b"LPOP l 8\r\n", refused.as_bytes()).await;
    client.ask(b"LLEN l\r\n", b":8\r\n").await;
    client.ask(b"LTRIM l 7 -1\r\n", b"+OK\r\n").await;
    client.ask(b"LLEN l\r\n", b":1\r\n").await;
}

#[tokio::test]
async fn whoever_deletes_all_keys_lets_others_look_at_them_between_two_steps() {
    let store = MemoryStore::new(true);
    let server = start(store.clone(), config()).await;
    store.let_walk(0);
    let mut flushing = Vec::new();
    for at in 1..=2 {
        let mut client = Raw::connect(server.local_addr()).await;
        client.send(b"FLUSHDB\r\n").await;
        store.until_walks(at).await;
        flushing.push(client);
    }
    let mut client = Raw::connect(server.local_addr()).await;
    // (What is answered was looked at together with what comes after it.)
    client.ask(b"PING\r\nKEYS *\r\n", b"+PONG\r\n").await;
    // Each of them has 65 steps to take.
    store.let_walk(150);
    client.expect(b"*0\r\n").await;
    store.let_walk(1000);
    for mut client in flushing {
        client.expect(b"+OK\r\n").await;
    }
}

/// A key of that length, which all keys of its object's elements have in them.
fn long_key() -> String {
    "k".repeat(16_000)
}

#[tokio::test]
async fn elements_of_an_object_with_a_long_key_are_asked_for_in_bounded_steps() {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let key = long_key();
    let ask = |name: &str, members: usize| {
        let mut ask = format!("*{}\r\n${}\r\n{name}\r\n${}\r\n{key}\r\n", members + 2, name.len(), key.len());
        for at in 0..members {
            let member = at.to_string();
            ask += &format!("${}\r\n{member}\r\n", member.len());
        }
        ask
    };
    client.ask(ask("SADD", 1).as_bytes(), b":1\r\n").await;
    client.send(ask("SMISMEMBER", 5000).as_bytes()).await;
    client.expect(b"*5000\r\n:1\r\n").await;
    client.expect(b":0\r\n".repeat(4999).as_slice()).await;
    let asked = store.asked_bytes_max();
    assert!(asked < 300 * 1024, "{asked}");
}

#[tokio::test]
async fn what_makes_too_many_keys_of_elements_is_refused_before_they_are_made() {
    let config = RespConfig { max_gathered_bytes: 1024 * 1024, ..config() };
    let store = MemoryStore::new(true);
    let server = start(store.clone(), config).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let members: String = (0..2000).map(|at| format!(" {at}")).collect();
    client.ask(format!("SADD s{members}\r\n").as_bytes(), b":2000\r\n").await;
    let too_many = b"-ERR nothing took effect: it writes more than 100000 records, or 16777216 bytes\r\n";
    client.ask(format!("COPY s {}\r\n", long_key()).as_bytes(), too_many).await;
    let members: String = (0..1000).map(|at| format!(" {at}")).collect();
    store.hold_writes(true);
    let add = format!("SADD {}{members}\r\n", long_key());
    client.send(add.as_bytes()).await;
    store.until_writes(2).await;
    let mut other = Raw::connect(server.local_addr()).await;
    let refused = "-TRYAGAIN nothing took effect: others read or make so much at the moment that there is no room for this\r\n";
    other.ask(add.as_bytes(), refused.as_bytes()).await;
    store.hold_writes(false);
    client.expect(b":1000\r\n").await;
}

#[tokio::test]
async fn fields_that_are_set_or_deleted_in_a_transaction_are_not_read() {
    let config = RespConfig { max_gathered_bytes: 300 * 1024, ..config() };
    for fast in [true, false] {
        let server = start(MemoryStore::new(fast), config.clone()).await;
        let mut client = Raw::connect(server.local_addr()).await;
        let value = "v".repeat(100 * 1024);
        for at in 0..8 {
            let set = format!("*4\r\n$4\r\nHSET\r\n$1\r\nh\r\n$1\r\n{at}\r\n${}\r\n{value}\r\n", value.len());
            client.ask(set.as_bytes(), b":1\r\n").await;
        }
        let queued = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n";
        client
            .ask(b"MULTI\r\nHSET h 0 a 1 b 2 c 3 d x e x f\r\nHDEL h 2 3 4 4 y\r\nHLEN h\r\n", queued)
            .await;
        client.ask(b"EXEC\r\n", b"*3\r\n:1\r\n:3\r\n:6\r\n").await;
        client.ask(b"HMGET h 0 2 x\r\n", b"*3\r\n$1\r\na\r\n$-1\r\n$1\r\nf\r\n").await;
    }
}

#[tokio::test]
async fn a_pipeline_of_ranges_asks_for_so_many_elements_at_a_time_as_are_answered_in_time() {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let elements: String = (0..100).map(|at| format!(" {}", at % 10)).collect();
    client.ask(format!("RPUSH l{elements}\r\n").as_bytes(), b":100\r\n").await;
    client.send(b"LRANGE l 0 -1\r\n".repeat(200).as_slice()).await;
    let all: String = (0..100).map(|at| format!("$1\r\n{}\r\n", at % 10)).collect();
    client.expect(format!("*100\r\n{all}").repeat(200).as_bytes()).await;
    assert!((200..=2048).contains(&store.asked_max()), "{}", store.asked_max());
}

#[tokio::test]
async fn a_zero_less_than_none_is_told_as_redis_tells_it() {
    let server = start(MemoryStore::new(true), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    client.ask(b"ZADD b 0 b\r\n", b":1\r\n").await;
    client.ask(b"ZADD a -0 a\r\n", b":1\r\n").await;
    client.ask(b"ZSCORE a a\r\n", b"$1\r\n0\r\n").await;
    client.ask(b"ZINCRBY n -0 x\r\n", b"$2\r\n-0\r\n").await;
    client.ask(b"ZINCRBY n -0 x\r\n", b"$1\r\n0\r\n").await;
    client.ask(b"ZINTER 1 b WEIGHTS -1 WITHSCORES\r\n", b"*2\r\n$1\r\nb\r\n$2\r\n-0\r\n").await;
    // Both are equal: names decide.
    let two = b"*4\r\n$1\r\na\r\n$1\r\n0\r\n$1\r\nb\r\n$2\r\n-0\r\n";
    client.ask(b"ZUNION 2 b a WEIGHTS -1 1 WITHSCORES\r\n", two).await;
    client.ask(b"ZUNIONSTORE s 1 b WEIGHTS -1\r\n", b":1\r\n").await;
    client.ask(b"ZSCORE s b\r\n", b"$1\r\n0\r\n").await;
    // Of the smaller set, which comes first.
    client.ask(b"ZADD c 0 b 1 c\r\n", b":2\r\n").await;
    for aggregate in ["MIN", "MAX"] {
        for (weights, zero) in [("1 -1", "$2\r\n-0"), ("-1 1", "$1\r\n0")] {
            let ask = format!("ZINTER 2 c b WEIGHTS {weights} AGGREGATE {aggregate} WITHSCORES\r\n");
            client.ask(ask.as_bytes(), format!("*2\r\n$1\r\nb\r\n{zero}\r\n").as_bytes()).await;
        }
    }
    client.send(b"HELLO 3\r\n").await;
    client.expect_up_to(b"modules\r\n*0\r\n").await;
    client.ask(b"ZINTER 1 b WEIGHTS -1 WITHSCORES\r\n", b"*1\r\n*2\r\n$1\r\nb\r\n,-0\r\n").await;
}
