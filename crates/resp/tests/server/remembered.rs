//! Replies that are given again.

use crate::memory::MemoryStore;
use crate::transactions::{check, lines};
use crate::{Raw, config, start};

#[tokio::test]
async fn a_reply_is_given_again_while_its_object_is_the_same() {
    let store = MemoryStore::new(true);
    let server = start(store.clone(), config()).await;
    let [mut one, mut other] =
        [Raw::connect(server.local_addr()).await, Raw::connect(server.local_addr()).await];
    let made = &["RPUSH l a b", "HSET h f 1", "SADD s m", "ZADD z 1 a 2 b", "SELECT 1", "RPUSH l z"];
    check(&mut other, made, &[":2\r\n:1\r\n:1\r\n:2\r\n+OK\r\n:1\r\n"]).await;
    check(&mut other, &["SELECT 0"], &["+OK\r\n"]).await;
    let reads = || store.element_reads() + store.range_reads();
    // What is asked, how it is answered, what changes then, and what it is answered by that.
    let asked = [
        ("LRANGE l 0 -1", "*2\r\n$1\r\na\r\n$1\r\nb\r\n", "LSET l 1 c", "*2\r\n$1\r\na\r\n$1\r\nc\r\n"),
        ("LRANGE l 0 0", "*1\r\n$1\r\na\r\n", "LPUSH l b", "*1\r\n$1\r\nb\r\n"),
        ("LINDEX l 0", "$1\r\nb\r\n", "LPOP l", "$1\r\na\r\n"),
        ("LPOS l c", ":1\r\n", "LREM l 0 a", ":0\r\n"),
        ("HGETALL h", "*2\r\n$1\r\nf\r\n$1\r\n1\r\n", "HSET h f 2", "*2\r\n$1\r\nf\r\n$1\r\n2\r\n"),
        ("HVALS h", "*1\r\n$1\r\n2\r\n", "HINCRBY h f 1", "*1\r\n$1\r\n3\r\n"),
        ("HKEYS h", "*1\r\n$1\r\nf\r\n", "DEL h", "*0\r\n"),
        ("SMEMBERS s", "*1\r\n$1\r\nm\r\n", "SREM s m", "*0\r\n"),
        ("ZRANGE z 0 0", "*1\r\n$1\r\na\r\n", "ZADD z 3 a", "*1\r\n$1\r\nb\r\n"),
        ("ZCOUNT z 2 2", ":1\r\n", "ZINCRBY z 1 b", ":0\r\n"),
        ("ZRANK z b", ":1\r\n", "ZREM z a", ":0\r\n"),
    ];
    for (ask, answer, change, then) in asked {
        check(&mut one, &[ask], &[answer]).await;
        let before = reads();
        check(&mut one, &[ask, ask], &[answer, answer]).await;
        check(&mut other, &[ask], &[answer]).await;
        assert_eq!(reads(), before, "{ask}: nothing is read again");
        other.send(&lines(&[change, "ECHO changed"])).await;
        other.expect_up_to(b"$7\r\nchanged\r\n").await;
        check(&mut one, &[ask, ask], &[then, then]).await;
    }
    // Other arguments, another database and another protocol are other questions.
    check(&mut one, &["RPUSH l d", "LRANGE l 0 -1"], &[":2\r\n", "*2\r\n$1\r\nc\r\n$1\r\nd\r\n"]).await;
    check(&mut one, &["LRANGE l -1 -1", "SELECT 1"], &["*1\r\n$1\r\nd\r\n", "+OK\r\n"]).await;
    check(&mut one, &["LRANGE l 0 -1"], &["*1\r\n$1\r\nz\r\n"]).await;
    check(&mut one, &["SELECT 0", "SADD s m", "SMEMBERS s"], &["+OK\r\n:1\r\n*1\r\n$1\r\nm\r\n"]).await;
    one.send(&lines(&["HELLO 3", "ECHO greeted"])).await;
    one.expect_up_to(b"$7\r\ngreeted\r\n").await;
    check(&mut one, &["SMEMBERS s", "SMEMBERS s"], &["~1\r\n$1\r\nm\r\n~1\r\n$1\r\nm\r\n"]).await;
    check(&mut other, &["SMEMBERS s"], &["*1\r\n$1\r\nm\r\n"]).await;
    // What another object that has the name now has in common with it is the name.
    let again = ["DEL l", "RPUSH l c d", "LSET l 0 x", "LRANGE l 0 -1"];
    check(&mut one, &again, &[":1\r\n:2\r\n+OK\r\n*2\r\n$1\r\nx\r\n$1\r\nd\r\n"]).await;
}

#[tokio::test]
async fn a_reply_that_a_change_has_overtaken_is_not_given_again() {
    let store = MemoryStore::new(true);
    let server = start(store.clone(), config()).await;
    let [mut one, mut other] =
        [Raw::connect(server.local_addr()).await, Raw::connect(server.local_addr()).await];
    check(&mut one, &["RPUSH l a b"], &[":2\r\n"]).await;
    store.hold_next_read();
    one.send(b"LRANGE l 0 -1\r\n").await;
    store.until_read_is_held().await;
    check(&mut other, &["LSET l 1 c"], &["+OK\r\n"]).await;
    store.let_read_go();
    one.send(b"ECHO asked\r\n").await;
    let said = one.until(b"$5\r\nasked\r\n").await;
    // Either is right: the change came while it was asked.
    let either = ["b", "c"].map(|last| format!("*2\r\n$1\r\na\r\n$1\r\n{last}\r\n$5\r\nasked\r\n"));
    assert!(either.iter().any(|one| one.as_bytes() == said), "{}", said.escape_ascii());
    check(&mut one, &["LRANGE l 0 -1"], &["*2\r\n$1\r\na\r\n$1\r\nc\r\n"]).await;
    check(&mut other, &["LRANGE l 0 -1"], &["*2\r\n$1\r\na\r\n$1\r\nc\r\n"]).await;
}
