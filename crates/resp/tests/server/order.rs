//! The order of a connection's commands, and what happens to those under way when either side leaves.

use sextant_common::ErrorKind;
use sextant_resp::Order;

use super::gated::GatedStore;
use super::*;

async fn connected(config: RespConfig) -> (GatedStore, RespServer, Raw) {
    let store = GatedStore::new();
    let server = start(store.clone(), config).await;
    let client = Raw::connect(server.local_addr()).await;
    (store, server, client)
}

#[tokio::test]
async fn commands_on_one_key_keep_their_order_and_others_do_not_wait() {
    let (store, _server, mut client) = connected(config()).await;
    client.send(b"set a 1\r\nget a\r\nset b 2\r\nmget a c\r\nget d\r\nset a 3\r\nget hot\r\nping\r\n").await;
    // Commands are looked at in their order: once `get d` has started, `get a` and `mget a c` were held back.
    // What is set without a condition goes to the store when the input is empty, together.
    assert_eq!(store.started(3).await, ["get d", "set a 1", "set b 2"]);
    store.finish("get d");
    store.finish("set a 1");
    client.expect(b"+OK\r\n").await;
    assert_eq!(store.started(5).await[3..], ["get a", "mget a c"]);
    store.finish("mget a c");
    store.finish("get a");
    client.expect(b"$1\r\na\r\n").await;
    assert_eq!(store.started(6).await[5..], ["set a 3"]);
    store.finish("set a 3");
    store.finish("set b 2");
    client.expect(b"+OK\r\n*2\r\n$1\r\na\r\n$1\r\nc\r\n$1\r\nd\r\n+OK\r\n$3\r\nhot\r\n+PONG\r\n").await;
}

#[tokio::test]
async fn a_connection_may_ask_for_the_order_of_its_pipeline() {
    let by_default = RespConfig { order: Order::Pipeline, ..config() };
    for (config, asks) in [(config(), "client order pipeline\r\n"), (by_default, "ping\r\n")] {
        let (store, _server, mut client) = connected(config).await;
        client
            .send(format!("{asks}set a 1\r\nset b 2\r\nget hot\r\nget c\r\nmget a hot\r\n").as_bytes())
            .await;
        client.send(b"client order keys\r\nget d\r\nset e 1\r\n").await;
        // (What comes after the order was given back waits for nothing.)
        let operations = ["set a 1", "set b 2", "get hot", "get c", "mget a hot"];
        for (done, operation) in operations.into_iter().enumerate() {
            let started = store.started(3 + done).await;
            let in_order: Vec<_> =
                started.iter().filter(|o| !["get d", "set e 1"].contains(&o.as_str())).collect();
            assert_eq!(in_order.last().map(|o| o.as_str()), Some(operation));
            assert_eq!(in_order.len(), done + 1);
            store.finish(operation);
        }
        let first: &[u8] = if asks.starts_with("ping") { b"+PONG\r\n" } else { b"+OK\r\n" };
        client.expect(&[first, b"+OK\r\n+OK\r\n$3\r\nhot\r\n$1\r\nc\r\n"].concat()).await;
    }
}

#[tokio::test]
async fn the_first_command_in_the_order_of_the_pipeline_waits_for_those_before_it() {
    let (store, _server, mut client) = connected(config()).await;
    client.send(b"get a\r\nset b 1\r\nclient order pipeline\r\nget c\r\nget d\r\n").await;
    assert_eq!(store.started(2).await, ["get a", "set b 1"]);
    store.finish("set b 1");
    store.finish("get a");
    assert_eq!(store.started(3).await[2..], ["get c"]);
    store.finish("get c");
    assert_eq!(store.started(4).await[3..], ["get d"]);
}

#[tokio::test]
async fn no_read_overtakes_the_first_command_in_the_order_of_the_pipeline() {
    for (first, writes, then) in [
        ("set hot 2", "set hot 2", "ping"),
        ("multi\r\nset hot 2\r\nexec", "change hot", "ping"),
        // Also once the order is given back.
        ("set hot 2", "set hot 2", "client order keys"),
        ("set hot 2", "set hot 2", "reset"),
        ("multi\r\nset hot 2\r\nexec", "change hot", "client order keys"),
    ] {
        let (store, _server, mut client) = connected(config()).await;
        client.send(b"set x 1\r\nclient order pipeline\r\n").await;
        client.send(format!("{first}\r\n{then}\r\nget hot\r\nmget hot hot1\r\n").as_bytes()).await;
        assert_eq!(store.started(1).await, ["set x 1"]);
        store.finish("set x 1");
        assert_eq!(store.started(2).await[1..], [writes]);
        store.finish(writes);
        assert_eq!(store.started(3).await[2], "get hot", "{first}, {then}");
        store.finish("get hot");
        assert_eq!(store.started(4).await[3], "mget hot hot1", "{first}, {then}");
        assert_eq!(store.looked(), [""; 0], "{first}, {then}");
    }
}

#[tokio::test]
async fn in_the_order_of_the_pipeline_a_read_waits_for_a_scan() {
    let (store, _server, mut client) = connected(config()).await;
    client.send(b"client order pipeline\r\nscan 0\r\nget hot\r\n").await;
    assert_eq!(store.started(1).await, ["walk"]);
    store.finish("walk");
    assert_eq!(store.started(2).await[1..], ["get hot"]);
    assert_eq!(store.looked(), [""; 0]);
}

#[tokio::test]
async fn what_is_read_after_a_watch_is_no_older_than_what_is_watched() {
    let (store, _server, mut client) = connected(config()).await;
    client.send(b"watch a hot\r\nget a\r\nget hot\r\nget z\r\n").await;
    assert_eq!(store.started(2).await, ["mget a hot", "get z"]);
    store.finish("mget a hot");
    assert_eq!(store.started(4).await[2..], ["get a", "get hot"]);
}

#[tokio::test]
async fn a_read_at_hand_does_not_overtake_a_write_of_its_key() {
    let (store, _server, mut client) = connected(config()).await;
    client.send(b"set hot 1\r\nget hot\r\nstrlen hot\r\nget z\r\n").await;
    assert_eq!(store.started(2).await, ["get z", "set hot 1"]);
    store.finish("set hot 1");
    // Both are asked of the store itself now.
    assert_eq!(store.started(4).await[2..], ["get hot", "get hot"]);
}

#[tokio::test]
async fn a_key_is_looked_at_once_and_the_read_that_asks_goes_on_from_there() {
    let (store, _server, mut client) = connected(config()).await;
    client.send(b"get a\r\n").await;
    assert_eq!(store.started(1).await, ["get a"]);
    assert_eq!(store.looked(), ["a"]);
    client.send(b"strlen b\r\nmget hot1 c hot2\r\nexists hot3 hot4 d\r\n").await;
    // What was at hand is not asked for again, and nothing after a miss is looked at in vain.
    assert_eq!(store.started(4).await[1..], ["get b", "mget c hot2", "exists d"]);
    assert_eq!(store.looked()[1..], ["b", "hot1", "c", "hot3", "hot4", "d"]);
    for operation in ["get a", "get b", "mget c hot2", "exists d"] {
        store.finish(operation);
    }
    client.expect(b"$1\r\na\r\n:1\r\n*3\r\n$4\r\nhot1\r\n$1\r\nc\r\n$4\r\nhot2\r\n:3\r\n").await;
}

#[tokio::test]
async fn a_read_that_waits_for_a_write_is_not_told_what_was_there_before() {
    let (store, _server, mut client) = connected(config()).await;
    client.send(b"set a 1\r\nget a\r\nget z\r\n").await;
    assert_eq!(store.started(2).await, ["get z", "set a 1"]);
    assert_eq!(store.looked(), ["z"]);
}

#[tokio::test]
async fn sets_that_come_together_go_to_the_store_together_and_are_answered_each_on_its_own() {
    let (store, _server, mut client) = connected(config()).await;
    // One with a condition, or of several keys, goes its own way.
    client.send(b"set a 1\r\nset b 1\r\nsetnx c 1\r\nmset d 1 e 1\r\nset f 1\r\n").await;
    assert_eq!(store.started(5).await, ["mset d e", "set c 1", "set a 1", "set b 1", "set f 1"]);
    assert_eq!(store.batches(), [3]);
    store.finish("set f 1");
    store.fail("set a 1", ErrorKind::Unavailable);
    for operation in ["set b 1", "set c 1", "mset d e"] {
        store.finish(operation);
    }
    client.expect(b"-CLUSTERDOWN told to\r\n+OK\r\n:1\r\n+OK\r\n+OK\r\n").await;
}

#[tokio::test]
async fn input_is_read_while_commands_are_under_way() {
    let (store, _server, mut client) = connected(config()).await;
    client.send(b"get a\r\n").await;
    store.started(1).await;
    client.send(b"get b\r\n").await;
    store.started(2).await;
    store.finish("get b");
    store.finish("get a");
    client.expect(b"$1\r\na\r\n$1\r\nb\r\n").await;
}

#[tokio::test]
async fn the_pipeline_is_bounded() {
    let (store, _server, mut client) = connected(RespConfig { max_pipeline: 2, ..config() }).await;
    client.send(b"get a\r\nget b\r\nget c\r\n").await;
    assert_eq!(store.started(2).await, ["get a", "get b"]);
    store.finish("get b");
    store.finish("get a");
    assert_eq!(store.started(3).await[2..], ["get c"]);
    store.finish("get c");
    client.expect(b"$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n").await;
}

#[tokio::test]
async fn long_values_at_hand_do_not_wait_for_the_rest_of_their_command() {
    let (store, _server, mut client) = connected(config()).await;
    client.send(b"mget hotlong1 c\r\nmget hotlong1 hotlong2 d\r\n").await;
    // One is held meanwhile; two are too much, so that all is asked for under the store's own limit.
    assert_eq!(store.started(2).await, ["mget c", "mget hotlong1 hotlong2 d"]);
    store.finish("mget hotlong1 hotlong2 d");
    store.finish("mget c");
}

#[tokio::test]
async fn a_failed_command_fails_alone() {
    let (store, _server, mut client) = connected(config()).await;
    client.send(b"set a 1\r\nset b 1\r\nget a\r\n").await;
    store.started(2).await;
    store.fail("set a 1", ErrorKind::OutcomeUnknown);
    store.finish("set b 1");
    store.started(3).await;
    store.fail("get a", ErrorKind::Unavailable);
    client.expect(b"-OUTCOMEUNKNOWN told to\r\n+OK\r\n-CLUSTERDOWN told to\r\n").await;
}

#[tokio::test]
async fn shutdown_finishes_what_was_received() {
    for threads in [0, 1, 3] {
        let (store, server, mut client) = connected(RespConfig { threads, ..config() }).await;
        let mut idle = Raw::connect(server.local_addr()).await;
        client.send(b"set a 1\r\nget a\r\n").await;
        store.started(1).await;
        let stopping = tokio::spawn(server.shutdown());
        idle.expect_end().await;
        assert!(!stopping.is_finished());
        store.finish("set a 1");
        store.started(2).await;
        store.finish("get a");
        client.expect(b"+OK\r\n$1\r\na\r\n").await;
        client.expect_end().await;
        tokio::time::timeout(DEADLINE, stopping).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_client_that_leaves_does_not_take_back_what_it_sent() {
    let (store, _server, mut client) = connected(config()).await;
    client.send(b"set a 1\r\nget a\r\nset a 2\r\n").await;
    store.started(1).await;
    drop(client);
    store.finish("set a 1");
    store.started(2).await;
    store.finish("get a");
    assert_eq!(store.started(3).await, ["set a 1", "get a", "set a 2"]);
    store.finish("set a 2");
}

#[tokio::test]
async fn after_quit_nothing_is_started() {
    let (store, _server, mut client) = connected(config()).await;
    client.send(b"get a\r\nquit\r\nset b 1\r\n").await;
    store.started(1).await;
    store.finish("get a");
    client.expect(b"$1\r\na\r\n+OK\r\n").await;
    client.expect_end().await;
    assert_eq!(store.started(1).await, ["get a"]);
}
