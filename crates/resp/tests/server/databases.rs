//! Several databases at one server, byte for byte as Redis 7.0 answers; and what is not as there.

use super::gated::GatedStore;
use super::memory::MemoryStore;
use super::*;

async fn connected(fast: bool) -> (RespServer, Raw) {
    let server = start(MemoryStore::new(fast), config()).await;
    let client = Raw::connect(server.local_addr()).await;
    (server, client)
}

/// Inline commands, all sent at once, and what comes back.
async fn check(client: &mut Raw, commands: &[&str], replies: &str) {
    let lines: Vec<u8> = commands.iter().flat_map(|command| format!("{command}\r\n").into_bytes()).collect();
    client.ask(&lines, replies.replace('|', "\r\n").as_bytes()).await;
}

#[tokio::test]
async fn a_key_is_another_one_in_each_database() {
    for fast in [true, false] {
        let (_server, mut client) = connected(fast).await;
        let commands =
            ["SET k zero", "HSET h f 1", "SELECT 3", "GET k", "EXISTS h", "SET k three", "HSET h g 2"];
        check(&mut client, &commands, "+OK|:1|+OK|$-1|:0|+OK|:1|").await;
        check(&mut client, &["SELECT 0", "GET k", "HGETALL h"], "+OK|$4|zero|*2|$1|f|$1|1|").await;
        check(&mut client, &["select 3", "GET k", "HGETALL h"], "+OK|$5|three|*2|$1|g|$1|2|").await;
        check(&mut client, &["DEL h", "DBSIZE", "SELECT 0", "DBSIZE"], ":1|:1|+OK|:2|").await;
        check(&mut client, &["KEYS h*", "SELECT 15", "KEYS *"], "*1|$1|h|+OK|*0|").await;
        check(&mut client, &["SELECT 16", "SELECT -1"], &"-ERR DB index is out of range|".repeat(2)).await;
    }
}

#[tokio::test]
async fn another_connection_is_where_it_was() {
    let (server, mut one) = connected(true).await;
    let mut other = Raw::connect(server.local_addr()).await;
    check(&mut one, &["SELECT 1", "SET k one"], "+OK|+OK|").await;
    check(&mut other, &["GET k", "SET k zero"], "$-1|+OK|").await;
    check(&mut one, &["GET k"], "$3|one|").await;
    one.send(b"CLIENT INFO\r\n").await;
    one.expect_up_to(b" db=1 ").await;
    one.expect_up_to(b"\r\n").await;
    check(&mut one, &["RESET", "GET k"], "+RESET|$4|zero|").await;
}

#[tokio::test]
async fn what_came_before_is_done_in_the_database_of_that_time() {
    let store = GatedStore::new();
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    client.send(b"GET a\r\nSELECT 1\r\nGET b\r\n").await;
    assert_eq!(store.started(1).await, ["get a"]);
    store.finish("get a");
    assert_eq!(store.started(2).await, ["get a", "get b"]);
    store.finish("get b");
    client.expect(b"$1\r\na\r\n+OK\r\n$1\r\nb\r\n").await;
}

#[tokio::test]
async fn commands_in_a_row_on_one_key_are_cut_where_another_database_begins() {
    for fast in [true, false] {
        let (_server, mut client) = connected(fast).await;
        let round =
            ["INCR n", "INCR n", "SELECT 1", "INCR n", "SELECT 2", "INCR n", "INCR n", "INCR n", "SELECT 0"];
        check(&mut client, &round, ":1|:2|+OK|:1|+OK|:1|:2|:3|+OK|").await;
        check(&mut client, &round, ":3|:4|+OK|:2|+OK|:4|:5|:6|+OK|").await;
        let lists =
            ["RPUSH l a", "RPUSH l b", "SELECT 1", "RPUSH l c", "LRANGE l 0 -1", "SELECT 0", "LLEN l"];
        check(&mut client, &lists, ":1|:2|+OK|:1|*1|$1|c|+OK|:2|").await;
    }
}

#[tokio::test]
async fn one_is_emptied_or_all_are() {
    let (_server, mut client) = connected(true).await;
    let fill = ["SELECT 0", "SET a 1", "SADD s x", "SELECT 5", "SET a 1", "SADD s y"];
    check(&mut client, &fill, "+OK|+OK|:1|+OK|+OK|:1|").await;
    check(&mut client, &["FLUSHDB", "DBSIZE", "SELECT 0", "DBSIZE"], "+OK|:0|+OK|:2|").await;
    check(&mut client, &fill, "+OK|+OK|:0|+OK|+OK|:1|").await;
    check(&mut client, &["FLUSHALL", "DBSIZE", "SELECT 0", "DBSIZE"], "+OK|:0|+OK|:0|").await;
}

#[tokio::test]
async fn a_transaction_is_of_one_database() {
    const ABORTED: &str = "-EXECABORT Transaction discarded because of previous errors.|";
    let (_server, mut client) = connected(true).await;
    check(
        &mut client,
        &["SELECT 2", "MULTI", "SELECT 2", "SET k v", "EXEC"],
        "+OK|+OK|+QUEUED|+QUEUED|*2|+OK|+OK|",
    )
    .await;
    let refused = "-ERR Command not allowed inside a transaction|";
    let replies = format!("+OK|+QUEUED|{refused}{ABORTED}$1|v|");
    check(&mut client, &["MULTI", "DEL k", "SELECT 0", "EXEC", "GET k"], &replies).await;
    let refused = "-UNSUPPORTED SELECT of another database is not supported: keys of this one are watched|";
    let replies = format!("+OK|{refused}+OK|+OK|+OK|$-1|");
    check(&mut client, &["WATCH k", "SELECT 0", "SELECT 2", "UNWATCH", "SELECT 0", "GET k"], &replies).await;
    let commands = ["SET k 0", "WATCH k", "MULTI", "INCR k", "EXEC", "SELECT 2", "GET k"];
    check(&mut client, &commands, "+OK|+OK|+OK|+QUEUED|*1|:1|+OK|$1|v|").await;
}

#[tokio::test]
async fn who_waits_for_an_element_waits_for_it_in_its_database() {
    for fast in [true, false] {
        let (server, mut waits) = connected(fast).await;
        let mut other = Raw::connect(server.local_addr()).await;
        waits.send(b"SELECT 1\r\nBLPOP l 0\r\n").await;
        waits.expect(b"+OK\r\n").await;
        loop {
            other.send(b"INFO clients\r\n").await;
            let info = String::from_utf8(other.until(b"maxclients:").await).unwrap();
            other.expect_up_to(b"\r\n\r\n").await;
            if info.contains("blocked_clients:1") {
                break;
            }
        }
        check(&mut other, &["RPUSH l zero", "SELECT 1", "RPUSH l one", "LLEN l"], ":1|+OK|:1|").await;
        waits.expect(b"*2\r\n$1\r\nl\r\n$3\r\none\r\n").await;
        other.expect_up_to(b"\r\n").await;
        check(&mut other, &["SELECT 0", "LLEN l"], "+OK|:1|").await;
    }
}

#[tokio::test]
async fn nothing_goes_from_one_database_to_another() {
    let (_server, mut client) = connected(true).await;
    check(&mut client, &["SELECT 4", "SET k v", "COPY k l DB 4", "GET l"], "+OK|+OK|:1|$1|v|").await;
    check(&mut client, &["COPY k l DB 99"], "-ERR DB index is out of range|").await;
    let why = "nothing goes from one database to another";
    let refused =
        [("COPY k l DB 0", "COPY into another database"), ("MOVE k 1", "MOVE"), ("SWAPDB 0 1", "SWAPDB")];
    for (command, name) in refused {
        check(&mut client, &[command], &format!("-UNSUPPORTED {name} is not supported: {why}|")).await;
    }
}
