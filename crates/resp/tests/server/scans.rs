//! Walks over the keys.

use std::collections::BTreeSet;

use super::gated::GatedStore;
use super::memory::MemoryStore;
use super::real_client::connect;
use super::*;

/// All keys that a scan with these options finds, and in how many steps.
async fn scan(
    connection: &mut redis::aio::MultiplexedConnection,
    options: &[&str],
) -> (BTreeSet<String>, usize) {
    let (mut cursor, mut found, mut steps) = ("0".to_owned(), BTreeSet::new(), 0);
    loop {
        let (next, keys): (String, Vec<String>) =
            redis::cmd("SCAN").arg(&cursor).arg(options).query_async(connection).await.expect("a step");
        steps += 1;
        for key in keys {
            assert!(found.insert(key.clone()), "{key} comes twice");
        }
        if next == "0" {
            return (found, steps);
        }
        cursor = next;
    }
}

#[tokio::test]
async fn a_scan_finds_every_key_that_its_pattern_takes_once() {
    let server = start(MemoryStore::new(true), config()).await;
    let mut connection = connect(&server, "resp2").await;
    let all: BTreeSet<String> =
        (0..500).map(|n| format!("user:{n}")).chain((0..300).map(|n| format!("job:{n}"))).collect();
    for key in &all {
        let _: () = redis::cmd("SET").arg(key).arg(1).query_async(&mut connection).await.expect("set");
    }
    let (found, steps) = scan(&mut connection, &[]).await;
    assert_eq!(found, all);
    assert!(steps > 64, "{steps}");
    let of = |prefix: &str, ends: &str| -> BTreeSet<String> {
        all.iter().filter(|key| key.starts_with(prefix) && key.ends_with(ends)).cloned().collect()
    };
    assert_eq!(scan(&mut connection, &["MATCH", "user:*7", "COUNT", "1000"]).await.0, of("user:", "7"));
    assert_eq!(scan(&mut connection, &["match", "job:12", "type", "STRING"]).await.0, of("job:12", ":12"));
    assert!(scan(&mut connection, &["TYPE", "hash"]).await.0.is_empty());
    let keys = redis::cmd("KEYS").arg("j?b:*").query_async::<BTreeSet<String>>(&mut connection).await;
    assert_eq!(keys.expect("keys"), of("job:", ""));
    // A step can be taken again.
    let first: (String, Vec<String>) =
        redis::cmd("SCAN").arg(0).arg("COUNT").arg(3).query_async(&mut connection).await.expect("a step");
    for _ in 0..2 {
        let again =
            redis::cmd("SCAN").arg(&first.0).query_async::<(String, Vec<String>)>(&mut connection).await;
        assert!(again.expect("a step").1.iter().all(|key| !first.1.contains(key)));
    }
}

#[tokio::test]
async fn a_scan_that_makes_no_sense_is_refused_as_redis_does() {
    let server = start(MemoryStore::new(true), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    for (request, reply) in [
        ("SCAN x", "-ERR invalid cursor"),
        ("SCAN -1", "-ERR invalid cursor"),
        ("SCAN 17", "-ERR invalid cursor"),
        ("SCAN 0 COUNT", "-ERR syntax error"),
        ("SCAN 0 COUNT 0", "-ERR syntax error"),
        ("SCAN 0 COUNT many", "-ERR value is not an integer or out of range"),
        ("SCAN 0 NONSENSE 1", "-ERR syntax error"),
        ("KEYS nosuch*", "*0"),
    ] {
        client.ask(format!("{request}\r\n").as_bytes(), format!("{reply}\r\n").as_bytes()).await;
    }
}

#[tokio::test]
async fn no_store_is_asked_for_keys_that_begin_with_more_than_a_key_may_have() {
    let store = GatedStore::new();
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let asks = |len: usize| {
        let pattern = format!("${len}\r\n{}*\r\n", "a".repeat(len - 1));
        let scan = "*4\r\n$4\r\nSCAN\r\n$1\r\n0\r\n$5\r\nMATCH\r\n";
        format!("*2\r\n$4\r\nKEYS\r\n{pattern}{scan}{pattern}").into_bytes()
    };
    client.ask(&asks(sextant_common::limits::KEY_BYTES_MAX + 2), b"*0\r\n*2\r\n$1\r\n0\r\n*0\r\n").await;
    assert_eq!(store.started(0).await, [""; 0]);
    client.send(&asks(sextant_common::limits::KEY_BYTES_MAX + 1)).await;
    assert_eq!(store.started(1).await, ["walk"]);
}
