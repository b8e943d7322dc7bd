//! Commands between `MULTI` and `EXEC`, byte for byte as Redis 7.0 answers.

use sextant_common::ErrorKind;

use super::gated::GatedStore;
use super::memory::{BEGAN_MS, MemoryStore};
use super::*;

async fn connected() -> (RespServer, Raw) {
    let server = start(MemoryStore::new(true), config()).await;
    let client = Raw::connect(server.local_addr()).await;
    (server, client)
}

/// Each line is sent as an inline command; all of them at once.
pub fn lines(commands: &[&str]) -> Vec<u8> {
    commands.iter().flat_map(|command| format!("{command}\r\n").into_bytes()).collect()
}

const QUEUED: &str = "+QUEUED\r\n";
const CROSSED: &str =
    "-CROSSSLOT Keys in request don't hash to the same partition: keys with the same {hash tag} do\r\n";
const ABORTED: &str = "-EXECABORT Transaction discarded because of previous errors.\r\n";

pub async fn check(client: &mut Raw, commands: &[&str], replies: &[&str]) {
    client.ask(&lines(commands), replies.concat().as_bytes()).await;
}

#[tokio::test]
async fn what_changes_nothing_is_answered_only_if_what_is_watched_was_the_same_when_elements_were_read() {
    // Whether the element that is asked for is there or not.
    for member in ["nosuch", "a"] {
        let store = MemoryStore::new(false);
        let server = start(store.clone(), config()).await;
        let [mut one, mut other] =
            [Raw::connect(server.local_addr()).await, Raw::connect(server.local_addr()).await];
        check(&mut one, &["SADD s a b", "WATCH s"], &[":2\r\n+OK\r\n"]).await;
        store.hold_next_read();
        one.send(&lines(&["MULTI", &format!("SISMEMBER s {member}"), "EXEC"])).await;
        store.until_read_is_held().await;
        check(&mut other, &["SADD s c"], &[":1\r\n"]).await;
        store.let_read_go();
        one.expect(format!("+OK\r\n{QUEUED}*-1\r\n").as_bytes()).await;
        // And nothing comes between.
        check(
            &mut one,
            &["WATCH s", "MULTI", &format!("SISMEMBER s {member}"), "EXEC"],
            &["+OK\r\n+OK\r\n", QUEUED, if member == "a" { "*1\r\n:1\r\n" } else { "*1\r\n:0\r\n" }],
        )
        .await;
    }
}

#[tokio::test]
async fn what_changes_nothing_is_of_one_moment_also_where_one_command_goes_by_the_header_and_another_by_an_element()
 {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), config()).await;
    let [mut one, mut other] =
        [Raw::connect(server.local_addr()).await, Raw::connect(server.local_addr()).await];
    check(&mut one, &["SADD s a b"], &[":2\r\n"]).await;
    store.hold_next_read();
    one.send(&lines(&["MULTI", "SCARD s", "SISMEMBER s c", "EXEC"])).await;
    store.until_read_is_held().await;
    check(&mut other, &["SADD s c"], &[":1\r\n"]).await;
    store.let_read_go();
    one.expect(format!("+OK\r\n{}*2\r\n:3\r\n:1\r\n", QUEUED.repeat(2)).as_bytes()).await;
}

#[tokio::test]
async fn what_is_queued_takes_effect_together_and_in_its_order() {
    let (_server, mut client) = connected().await;
    check(
        &mut client,
        &[
            "MULTI",
            "SET a 1",
            "INCR a",
            "GET a",
            "GET b",
            "EXPIRE a 10",
            "APPEND a 0",
            "PING",
            "EXEC",
            "GET a",
        ],
        &[
            "+OK\r\n",
            &QUEUED.repeat(7),
            "*7\r\n+OK\r\n:2\r\n$1\r\n2\r\n$-1\r\n:1\r\n:2\r\n+PONG\r\n$2\r\n20\r\n",
        ],
    )
    .await;
    check(
        &mut client,
        &[
            "MULTI",
            "MSET x 1 y 2",
            "MGET x z y",
            "EXISTS x x z",
            "DEL x z",
            "STRLEN y",
            "SET y 3 NX",
            "SETNX z 4",
            "EXEC",
        ],
        &[
            "+OK\r\n",
            &QUEUED.repeat(7),
            "*7\r\n+OK\r\n*3\r\n$1\r\n1\r\n$-1\r\n$1\r\n2\r\n:2\r\n:1\r\n:1\r\n$-1\r\n:1\r\n",
        ],
    )
    .await;
    check(
        &mut client,
        &["MULTI", "EXEC", "MULTI", "PING", "EXEC"],
        &["+OK\r\n*0\r\n+OK\r\n+QUEUED\r\n*1\r\n+PONG\r\n"],
    )
    .await;
}

#[tokio::test]
async fn a_command_that_does_not_go_with_its_value_keeps_nothing_else_from_taking_effect() {
    let (_server, mut client) = connected().await;
    check(
        &mut client,
        &["SET a text", "MULTI", "SET b 1", "INCR a", "INCR b", "SET c", "SET d 1 EX nonsense", "EXEC"],
        &[
            "+OK\r\n+OK\r\n",
            &QUEUED.repeat(3),
            "-ERR wrong number of arguments for 'set' command\r\n",
            QUEUED,
            ABORTED,
        ],
    )
    .await;
    check(
        &mut client,
        &[
            "MULTI",
            "SET b 1",
            "INCR a",
            "INCR b",
            "SET d 1 EX nonsense",
            "MSETNX b 2 e 3",
            "MSETNX e 4 f 5",
            "EXEC",
            "GET e",
        ],
        &[
            "+OK\r\n",
            &QUEUED.repeat(6),
            "*6\r\n+OK\r\n-ERR value is not an integer or out of range\r\n:2\r\n\
             -ERR value is not an integer or out of range\r\n:0\r\n:1\r\n$1\r\n4\r\n",
        ],
    )
    .await;
}

#[tokio::test]
async fn what_is_wrong_while_queueing_undoes_the_transaction() {
    let (_server, mut client) = connected().await;
    check(&mut client, &["EXEC", "DISCARD"], &["-ERR EXEC without MULTI\r\n-ERR DISCARD without MULTI\r\n"])
        .await;
    check(
        &mut client,
        &["MULTI", "SET a 1", "NOSUCH", "SET b 2", "EXEC", "GET a"],
        &[
            "+OK\r\n",
            QUEUED,
            "-ERR unknown command 'NOSUCH', with args beginning with: \r\n",
            QUEUED,
            ABORTED,
            "$-1\r\n",
        ],
    )
    .await;
    check(
        &mut client,
        &["MULTI", "MULTI", "WATCH a", "SET a 1", "EXEC"],
        &[
            "+OK\r\n-ERR MULTI calls can not be nested\r\n-ERR WATCH inside MULTI is not allowed\r\n",
            QUEUED,
            "*1\r\n+OK\r\n",
        ],
    )
    .await;
    check(
        &mut client,
        &["MULTI", "SET a 2", "DISCARD", "GET a", "MULTI", "SET a 3", "RESET", "GET a", "EXEC"],
        &[
            "+OK\r\n",
            QUEUED,
            "+OK\r\n$1\r\n1\r\n+OK\r\n",
            QUEUED,
            "+RESET\r\n$1\r\n1\r\n-ERR EXEC without MULTI\r\n",
        ],
    )
    .await;
    check(
        &mut client,
        &["SET a 1", "WATCH a", "EXEC", "SET a 2", "MULTI", "GET a", "EXEC"],
        &["+OK\r\n+OK\r\n-ERR EXEC without MULTI\r\n+OK\r\n+OK\r\n", QUEUED, "*-1\r\n"],
    )
    .await;
    check(
        &mut client,
        &["MULTI", "AUTH secret", "EXEC"],
        &["+OK\r\n-ERR Command not allowed inside a transaction\r\n", ABORTED],
    )
    .await;
}

#[tokio::test]
async fn a_command_on_a_key_of_another_partition_is_refused_at_once_and_undoes_the_transaction() {
    let (_server, mut client) = connected().await;
    for (before, apart) in [
        (&["SET a 1"][..], "SET apart 2"),
        (&["PING", "SET a 1", "SET b 1"], "GET apart"),
        (&["GET a"], "MGET b apart"),
        (&[], "MGET b apart"),
        (&[], "BLPOP b apart 0"),
        (&["TTL a"], "RENAME b apart"),
        (&["SET a 1"], "SUNIONSTORE b apart"),
        (&["SET a 1"], "ZUNION 2 b apart"),
    ] {
        check(&mut client, &["MULTI"], &["+OK\r\n"]).await;
        check(&mut client, before, &[&QUEUED.repeat(before.len())]).await;
        check(
            &mut client,
            &[apart, "SET c 3", apart, "EXEC", "MGET a apart c"],
            &[CROSSED, &QUEUED.repeat(2), ABORTED, "*3\r\n$-1\r\n$-1\r\n$-1\r\n"],
        )
        .await;
    }
    // Those of one go on, whatever is between them; what makes no sense names no key.
    check(
        &mut client,
        &["MULTI", "PING", "SET a 1", "INFO nosuch", "SET apart 1 EX x", "GET a", "EXEC", "RENAME a apart"],
        &[
            "+OK\r\n",
            &QUEUED.repeat(5),
            "*5\r\n+PONG\r\n+OK\r\n$0\r\n\r\n-ERR value is not an integer or out of range\r\n$1\r\n1\r\n",
            CROSSED,
        ],
    )
    .await;
}

#[tokio::test]
async fn a_command_on_a_key_of_another_partition_than_what_is_watched_is_refused_at_once() {
    let (_server, mut client) = connected().await;
    for watches in [&["WATCH apart"][..], &["WATCH a", "WATCH apart"], &["WATCH a apart"]] {
        check(&mut client, watches, &[&"+OK\r\n".repeat(watches.len())]).await;
        check(
            &mut client,
            &["MULTI", "PING", "SET a 1", "EXEC", "GET a", "MULTI", "SET a 1", "EXEC", "DEL a"],
            &["+OK\r\n", QUEUED, CROSSED, ABORTED, "$-1\r\n+OK\r\n", QUEUED, "*1\r\n+OK\r\n:1\r\n"],
        )
        .await;
        // What is not watched any more does not count.
        check(&mut client, watches, &[&"+OK\r\n".repeat(watches.len())]).await;
        let unwatched = ["UNWATCH", "MULTI", "SET a 1", "EXEC", "DEL a"];
        check(&mut client, &unwatched, &["+OK\r\n+OK\r\n", QUEUED, "*1\r\n+OK\r\n:1\r\n"]).await;
    }
    // Without a command that names a key it is said in the end.
    let none = ["WATCH a apart", "MULTI", "PING", "EXEC"];
    check(&mut client, &none, &["+OK\r\n+OK\r\n", QUEUED, CROSSED]).await;
}

#[tokio::test]
async fn a_key_that_was_watched_when_it_was_absent_must_not_have_been_met_since() {
    // What another client makes and takes away again, what this one asks in between, and how it is answered.
    const NOTHING_MET: &str = "*1\r\n+OK\r\n";
    let kinds = [
        ("SET k 1", "GET k", "$1\r\n1\r\n"),
        ("SET k 1", "MGET k nosuch", "*2\r\n$1\r\n1\r\n$-1\r\n"),
        ("SET k 1", "EXISTS k nosuch", ":1\r\n"),
        ("SET k 1", "INCR k", ":2\r\n"),
        ("SET k 1", "DEL k", ":1\r\n"),
        ("SET k 1", "SADD k a", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
        ("RPUSH k a", "LLEN k", ":1\r\n"),
        ("RPUSH k a", "TYPE k", "+list\r\n"),
        ("HSET k a 1", "HGET k a", "$1\r\n1\r\n"),
        ("ZADD k 1 a", "ZRANGE k 0 -1", "*1\r\n$1\r\na\r\n"),
    ];
    let server = start(MemoryStore::new(true), config()).await;
    let [mut one, mut other] =
        [Raw::connect(server.local_addr()).await, Raw::connect(server.local_addr()).await];
    for (made, asked, answer) in kinds {
        check(&mut one, &["WATCH nosuch k"], &["+OK\r\n"]).await;
        other.send(&lines(&[made, "ECHO made"])).await;
        other.expect_up_to(b"$4\r\nmade\r\n").await;
        check(&mut one, &[asked], &[answer]).await;
        other.send(&lines(&["DEL k", "ECHO gone"])).await;
        other.expect_up_to(b"$4\r\ngone\r\n").await;
        check(&mut one, &["MULTI", "SET other 1", "EXEC"], &["+OK\r\n", QUEUED, "*-1\r\n"]).await;
        // That was of this transaction: the next one may.
        check(&mut one, &["MULTI", "SET other 1", "EXEC"], &["+OK\r\n", QUEUED, NOTHING_MET]).await;
    }
    // What it makes and takes away itself, also behind each other.
    let own = ["WATCH k", "SET k 1", "DEL k", "MULTI", "SET other 1", "EXEC"];
    check(&mut one, &own, &["+OK\r\n+OK\r\n:1\r\n+OK\r\n", QUEUED, "*-1\r\n"]).await;
    // What finds nothing is no change, nor is a key that is not watched (any more).
    let quiet = ["WATCH k", "GET k", "DEL k", "HLEN k", "LPUSHX k a", "MULTI", "SET other 1", "EXEC"];
    let found_nothing = "+OK\r\n$-1\r\n:0\r\n:0\r\n:0\r\n+OK\r\n";
    check(&mut one, &quiet, &[found_nothing, QUEUED, NOTHING_MET]).await;
    let unwatched = ["WATCH k", "SET k 1", "DEL k", "UNWATCH", "MULTI", "SET other 1", "EXEC"];
    let done = "+OK\r\n+OK\r\n:1\r\n+OK\r\n+OK\r\n";
    check(&mut one, &unwatched, &[done, QUEUED, NOTHING_MET]).await;
}

#[tokio::test]
async fn a_watched_key_that_has_changed_undoes_the_transaction() {
    let server = start(MemoryStore::new(true), config()).await;
    let (mut one, mut two) =
        (Raw::connect(server.local_addr()).await, Raw::connect(server.local_addr()).await);
    for (first, change, last) in [
        ("SET k 1", "SET k 1", "*-1\r\n"),
        ("SET k 1", "GET k", "*2\r\n+OK\r\n:3\r\n"),
        ("SET k 1", "DEL k", "*-1\r\n"),
        ("DEL k", "SET k 1", "*-1\r\n"),
        ("SET k 1", "EXPIRE k 100", "*-1\r\n"),
    ] {
        one.send(&lines(&[first, "WATCH k nosuch", "PING"])).await;
        // (What was to be deleted is already.)
        let done = if first.starts_with("SET") { "+OK\r\n" } else { ":0\r\n" };
        one.expect(format!("{done}+OK\r\n+PONG\r\n").as_bytes()).await;
        two.send(&lines(&[change, "ECHO done"])).await;
        two.expect_up_to(b"$4\r\ndone\r\n").await;
        check(&mut one, &["MULTI", "SET k 2", "INCR k", "EXEC"], &["+OK\r\n", &QUEUED.repeat(2), last]).await;
    }
    // What is not watched any more does not count; nor does what a transaction or `UNWATCH` has ended.
    check(
        &mut one,
        &["SET k 1", "WATCH k", "UNWATCH", "SET k 2", "MULTI", "GET k", "EXEC"],
        &["+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n", QUEUED, "*1\r\n$1\r\n2\r\n"],
    )
    .await;
    // Of the connection's own pipeline.
    check(
        &mut one,
        &["WATCH k", "SET k 3", "MULTI", "GET k", "EXEC", "MULTI", "TTL k", "EXEC"],
        &["+OK\r\n+OK\r\n+OK\r\n", QUEUED, "*-1\r\n+OK\r\n", QUEUED, "*1\r\n:-1\r\n"],
    )
    .await;
    // (The greeting is a map that says who the server is: read up to the answer after it.)
    one.send(&lines(&["HELLO 3", "ECHO greeted"])).await;
    one.expect_up_to(b"$7\r\ngreeted\r\n").await;
    check(
        &mut one,
        &["WATCH k", "SET k 3", "MULTI", "GET k", "EXEC"],
        &["+OK\r\n+OK\r\n+OK\r\n", QUEUED, "_\r\n"],
    )
    .await;
}

#[tokio::test]
async fn records_that_get_another_name_keep_value_and_lifetime() {
    let (_server, mut client) = connected().await;
    let until = BEGAN_MS + 5_000;
    check(
        &mut client,
        &[
            &format!("SET a 1 PXAT {until}"),
            "RENAME a b",
            "GET a",
            "PEXPIRETIME b",
            "RENAME a b",
            "COPY b c",
            "COPY b c",
            "COPY b c REPLACE DB 0",
            "PTTL c",
            "RENAMENX b c",
            "RENAMENX b d",
            "RENAME d d",
            "RENAMENX d d",
            "COPY d d",
            "COPY nosuch d",
            "COPY d e DB 1",
            "COPY d e NONSENSE",
            "EXISTS a b c d e",
        ],
        &[
            "+OK\r\n+OK\r\n$-1\r\n",
            &format!(":{until}\r\n"),
            "-ERR no such key\r\n:1\r\n:0\r\n:1\r\n:5000\r\n:0\r\n:1\r\n+OK\r\n:0\r\n",
            "-ERR source and destination objects are the same\r\n:0\r\n-UNSUPPORTED COPY into another database is not supported: nothing goes from one database to another\r\n-ERR syntax error\r\n:2\r\n",
        ],
    )
    .await;
    check(
        &mut client,
        &["MULTI", "SET x 7 PX 400", "RENAME x y", "PTTL y", "PERSIST y", "COPY y z", "RENAME x y", "TTL z", "EXEC", "MGET x y z"],
        &[
            "+OK\r\n",
            &QUEUED.repeat(7),
            "*7\r\n+OK\r\n+OK\r\n:400\r\n:1\r\n:1\r\n-ERR no such key\r\n:-1\r\n*3\r\n$-1\r\n$1\r\n7\r\n$1\r\n7\r\n",
        ],
    )
    .await;
}

#[tokio::test]
async fn a_skipped_command_tells_what_its_transaction_has_written() {
    let (_server, mut client) = connected().await;
    let batch = ["MULTI", "SET k v", "GETEX k PERSIST", "SET k w NX GET", "SET k x XX GET", "EXEC"];
    check(
        &mut client,
        &batch,
        &["+OK\r\n", &QUEUED.repeat(4), "*4\r\n+OK\r\n$1\r\nv\r\n$1\r\nv\r\n$1\r\nv\r\n"],
    )
    .await;
}

#[tokio::test]
async fn what_watches_too_much_is_discarded() {
    let (_server, mut client) = connected().await;
    let key = "k".repeat(16_000);
    let mut asks = Vec::new();
    let mut answers = Vec::new();
    for at in 0..66 {
        asks.extend(format!("*2\r\n$5\r\nWATCH\r\n$16003\r\n{at:03}{key}\r\n").into_bytes());
        let refused =
            "-ERR a connection watches up to 1048576 bytes: the next transaction will be discarded\r\n";
        answers.push(if at == 64 { refused } else { "+OK\r\n" });
    }
    client.ask(&asks, answers.concat().as_bytes()).await;
    check(
        &mut client,
        &["MULTI", "SET a 1", "EXEC", "GET a", "MULTI", "SET a 1", "EXEC"],
        &[
            "+OK\r\n",
            QUEUED,
            "-EXECABORT Transaction discarded: not everything could be watched.\r\n$-1\r\n+OK\r\n",
            QUEUED,
            "*1\r\n+OK\r\n",
        ],
    )
    .await;
}

#[tokio::test]
async fn what_a_transaction_makes_and_answers_is_bounded() {
    let (_server, mut client) = connected().await;
    let megabyte = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1048576\r\n{}\r\n", "v".repeat(1 << 20));
    client.ask(megabyte.as_bytes(), b"+OK\r\n").await;
    for (command, why) in [("GET k", "answers"), ("APPEND k x", "values that it makes")] {
        // (`TTL` is no operation of the leader: the long way.)
        let queued = 70;
        let mut asks = lines(&["MULTI", "SET other 1", "TTL k"]);
        asks.extend(lines(&[command]).repeat(queued - 2));
        asks.extend(lines(&["EXEC", "EXISTS other"]));
        let refused = format!("-ERR nothing took effect: the {why} are longer than 67108864 bytes\r\n:0\r\n");
        client.ask(&asks, ["+OK\r\n", &QUEUED.repeat(queued), &refused].concat().as_bytes()).await;
    }
}

#[tokio::test]
async fn what_is_queued_has_bounds() {
    // (Half of it for what is large.)
    let config = RespConfig { max_large_bytes: 512 * 1024, ..config() };
    let server = start(MemoryStore::new(true), config).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let long = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$50000\r\n{}\r\n", "v".repeat(50_000));
    client.ask(b"MULTI\r\n", b"+OK\r\n").await;
    for _ in 0..5 {
        client.ask(long.as_bytes(), b"+QUEUED\r\n").await;
    }
    client.ask(long.as_bytes(), b"-TRYAGAIN too many bytes are queued in transactions\r\n").await;
    // What is refused keeps no room from others.
    let mut other = Raw::connect(server.local_addr()).await;
    other
        .ask(&[b"MULTI\r\n", long.as_bytes(), b"EXEC\r\n"].concat(), b"+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n")
        .await;
    client.ask(b"PING\r\nEXEC\r\n", [QUEUED, ABORTED].concat().as_bytes()).await;
    client
        .ask(&[b"MULTI\r\n", long.as_bytes(), b"EXEC\r\n"].concat(), b"+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n")
        .await;
}

#[tokio::test]
async fn what_is_too_long_for_one_batch_goes_the_long_way() {
    let store = GatedStore::new();
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    client.send(&lines(&["MULTI", "GET a", "GET b", "SET d 1", "EXEC"])).await;
    assert_eq!(store.started(1).await, ["change a b d"]);
    store.fail("change a b d", ErrorKind::Invalid);
    assert_eq!(store.started(2).await[1..], ["mget a b"]);
    store.finish("mget a b");
    assert_eq!(store.started(3).await[2..], ["change a b d"]);
    store.finish("change a b d");
    client
        .expect(["+OK\r\n", &QUEUED.repeat(3), "*3\r\n$1\r\na\r\n$1\r\nb\r\n+OK\r\n"].concat().as_bytes())
        .await;
}

#[tokio::test]
async fn long_values_are_watched_few_at_a_time_and_not_read_again() {
    let store = GatedStore::new();
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    client.send(&lines(&["WATCH a b c"])).await;
    assert_eq!(store.started(1).await, ["mget a b c"]);
    store.fail("mget a b c", ErrorKind::Invalid);
    for (at, asked) in ["mget a", "mget b", "mget c"].into_iter().enumerate() {
        assert_eq!(store.started(2 + at).await[1 + at], asked);
        store.finish(asked);
    }
    client.expect(b"+OK\r\n").await;
    // (`TTL` is no operation of the leader: the long way.)
    client.send(&lines(&["MULTI", "TTL d", "EXEC"])).await;
    assert_eq!(store.started(5).await[4], "mget d");
    store.finish("mget d");
    assert_eq!(store.started(6).await[5], "change a b c d", "what is watched is compared, not read");
    store.finish("change a b c d");
    client.expect(["+OK\r\n", QUEUED, "*1\r\n:-1\r\n"].concat().as_bytes()).await;
}

#[tokio::test]
async fn what_is_only_watched_undoes_a_transaction_that_goes_the_long_way() {
    let server = start(MemoryStore::new(true), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    check(
        &mut client,
        &["SET k 1", "WATCH k", "SET k 2", "MULTI", "SET d 1 EX 100", "TTL d", "EXEC", "GET d"],
        &["+OK\r\n+OK\r\n+OK\r\n+OK\r\n", &QUEUED.repeat(2), "*-1\r\n$-1\r\n"],
    )
    .await;
    check(
        &mut client,
        &["WATCH k nosuch", "MULTI", "SET d 1 EX 100", "TTL d", "EXEC", "WATCH k", "MULTI", "PING", "EXEC"],
        &[
            "+OK\r\n+OK\r\n",
            &QUEUED.repeat(2),
            "*2\r\n+OK\r\n:100\r\n+OK\r\n+OK\r\n",
            QUEUED,
            "*1\r\n+PONG\r\n",
        ],
    )
    .await;
}

#[tokio::test]
async fn a_transaction_that_names_too_many_keys_is_refused_before_anything_is_read() {
    let store = GatedStore::new();
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let mut exists = b"*100001\r\n$6\r\nEXISTS\r\n".to_vec();
    (0..100_000).for_each(|at| exists.extend(format!("$6\r\n{at:06}\r\n").into_bytes()));
    let asks = [&lines(&["MULTI", "TTL x"]), &exists, &lines(&["EXEC"])].map(|part| &part[..]).concat();
    let refused = "-ERR nothing took effect: it names 100001 keys: the limit is 100000\r\n";
    client.ask(&asks, ["+OK\r\n", &QUEUED.repeat(2), refused].concat().as_bytes()).await;
    assert_eq!(store.started(0).await, [""; 0]);
}
