//! Commands on one object that come while another one on it is under way.

use super::memory::MemoryStore;
use super::*;

/// A client whose command is under way, and waits for its batch.
async fn first(server: &RespServer, store: &MemoryStore, command: &[u8]) -> Raw {
    store.hold_writes(true);
    let mut client = Raw::connect(server.local_addr()).await;
    client.send(command).await;
    store.until_writes(1).await;
    client
}

/// One whose command waits for others on its key, with which it makes so many.
async fn behind(server: &RespServer, store: &MemoryStore, command: &[u8], count: usize) -> Raw {
    let mut client = Raw::connect(server.local_addr()).await;
    client.send(command).await;
    store.until_in_line(count).await;
    client
}

#[tokio::test]
async fn those_that_wait_for_others_are_refused_when_the_owner_of_the_key_has_enough_of_them() {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), patient()).await;
    store.let_in_line(2);
    let mut one = first(&server, &store, b"RPUSH k a\r\n").await;
    let mut two = behind(&server, &store, b"RPUSH k b\r\n", 1).await;
    let mut three = behind(&server, &store, b"RPUSH k c\r\n", 2).await;
    let mut four = Raw::connect(server.local_addr()).await;
    four.ask(b"RPUSH k d\r\n", b"-TRYAGAIN many wait already\r\n").await;
    store.hold_writes(false);
    one.expect(b":1\r\n").await;
    two.expect(b":2\r\n").await;
    three.expect(b":3\r\n").await;
}

#[tokio::test]
async fn what_they_take_from_a_list_one_by_one_is_read_once() {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), patient()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    client.ask(b"RPUSH l a b c d e f\r\n", b":6\r\n").await;
    store.hold_writes(true);
    let mut one = Raw::connect(server.local_addr()).await;
    one.send(b"LPOP l\r\n").await;
    store.until_writes(2).await;
    let mut two = behind(&server, &store, b"LPOP l\r\n", 1).await;
    let mut three = behind(&server, &store, b"RPOP l 2\r\n", 2).await;
    let mut four = behind(&server, &store, b"RPUSH l g\r\n", 3).await;
    let mut five = behind(&server, &store, b"RPOP l\r\n", 4).await;
    let mut six = behind(&server, &store, b"LMPOP 1 l LEFT\r\n", 5).await;
    let mut seven = behind(&server, &store, b"LPOP l\r\n", 6).await;
    let mut eight = behind(&server, &store, b"LPOP l\r\n", 7).await;
    let before = store.element_reads();
    store.hold_writes(false);
    one.expect(b"$1\r\na\r\n").await;
    two.expect(b"$1\r\nb\r\n").await;
    three.expect(b"*2\r\n$1\r\nf\r\n$1\r\ne\r\n").await;
    four.expect(b":3\r\n").await;
    five.expect(b"$1\r\ng\r\n").await;
    six.expect(b"*2\r\n$1\r\nl\r\n*1\r\n$1\r\nc\r\n").await;
    seven.expect(b"$1\r\nd\r\n").await;
    eight.expect(b"$-1\r\n").await;
    assert_eq!(store.element_reads() - before, 1);
    client.ask(b"EXISTS l\r\n", b":0\r\n").await;
}

#[tokio::test]
async fn one_that_finds_no_room_keeps_none_of_the_others_from_taking_effect() {
    let config = RespConfig { max_gathered_bytes: 300 * 1024, ..patient() };
    let store = MemoryStore::new(false);
    let server = start(store.clone(), config).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let value = "v".repeat(100 * 1024);
    for at in 0..8 {
        let push = format!("*3\r\n$5\r\nRPUSH\r\n$1\r\nl\r\n${}\r\n{value}\r\n", value.len());
        client.ask(push.as_bytes(), format!(":{}\r\n", at + 1).as_bytes()).await;
    }
    store.hold_writes(true);
    let mut one = Raw::connect(server.local_addr()).await;
    one.send(b"RPUSH l a\r\n").await;
    store.until_writes(9).await;
    let mut two = behind(&server, &store, b"RPUSH l b\r\n", 1).await;
    let mut greedy = behind(&server, &store, b"LPOP l 8\r\n", 2).await;
    let mut three = behind(&server, &store, b"RPUSH l c\r\n", 3).await;
    store.hold_writes(false);
    one.expect(b":9\r\n").await;
    two.expect(b":10\r\n").await;
    let refused = "-TRYAGAIN nothing took effect: others read or make so much at the moment that there is no room for this\r\n";
    greedy.expect(refused.as_bytes()).await;
    three.expect(b":11\r\n").await;
}

#[tokio::test]
async fn hundreds_of_them_are_one_batch() {
    const BEHIND: usize = 400;
    let store = MemoryStore::new(false);
    let server = start(store.clone(), patient()).await;
    let mut one = first(&server, &store, b"RPUSH k a\r\n").await;
    let mut others = Vec::new();
    for count in 1..=BEHIND {
        others.push(behind(&server, &store, b"RPUSH k b\r\n", count).await);
    }
    store.hold_writes(false);
    one.expect(b":1\r\n").await;
    for (other, length) in others.iter_mut().zip(2..) {
        other.expect(format!(":{length}\r\n").as_bytes()).await;
    }
    assert_eq!(store.writes(), 2);
}

#[tokio::test]
async fn hundreds_that_take_one_element_each_read_them_together() {
    const BEHIND: usize = 400;
    let store = MemoryStore::new(false);
    let server = start(store.clone(), patient()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    for count in 1..=BEHIND {
        client.ask(format!("RPUSH l {count}\r\n").as_bytes(), format!(":{count}\r\n").as_bytes()).await;
    }
    store.hold_writes(true);
    let mut one = Raw::connect(server.local_addr()).await;
    one.send(b"RPUSH l last\r\n").await;
    store.until_writes(BEHIND + 1).await;
    let mut others = Vec::new();
    for count in 1..=BEHIND {
        others.push(behind(&server, &store, b"LPOP l\r\n", count).await);
    }
    let before = store.element_reads();
    store.hold_writes(false);
    for (other, value) in others.iter_mut().zip(1..) {
        let value = value.to_string();
        other.expect(format!("${}\r\n{value}\r\n", value.len()).as_bytes()).await;
    }
    // (256 at a time.)
    assert_eq!(store.element_reads() - before, 2);
    client.ask(b"LRANGE l 0 -1\r\n", b"*1\r\n$4\r\nlast\r\n").await;
}
