//! What one user may take, and what is told of its slow commands.

use std::time::Duration;

use prometheus_client::registry::Registry;
use sextant_access::{Allowances, LimitsConfig};
use sextant_environment::Env;
use sextant_environment::room::Room;
use sextant_environment::slow_log::SlowLog;
use sextant_resp::{Common, RespConfig, RespMetrics, RespServer, Store};

use super::gated::GatedStore;
use super::memory::MemoryStore;
use super::{Raw, config};

const KEEPS_ITS_PLACE: &[u8] = b"+PONG\r\n";

struct Watched {
    server: RespServer,
    registry: Registry,
}

impl Watched {
    async fn start<S: Store>(store: S, limits: LimitsConfig, slow_ms: u64) -> Self {
        Self::start_with(config(), store, limits, slow_ms).await
    }

    async fn start_with<S: Store>(config: RespConfig, store: S, limits: LimitsConfig, slow_ms: u64) -> Self {
        limits.validate().unwrap();
        let (env, mut registry) = (Env::real(), Registry::default());
        let common = Common {
            large: Room::new(64 << 20),
            access: None,
            slow: SlowLog::new(env.clock.clone(), slow_ms, &mut registry),
            allowances: Allowances::new(env.clock.clone(), limits, &mut registry),
        };
        let metrics = RespMetrics::register(&mut registry);
        let server = RespServer::start_with(env, config, store, metrics, common).await.unwrap();
        Self { server, registry }
    }

    async fn client(&self) -> Raw {
        Raw::connect(self.server.local_addr()).await
    }

    fn shows(&self, line: &str) -> bool {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text.lines().any(|shown| shown == line)
    }
}

fn user(limits: sextant_access::Limits) -> LimitsConfig {
    LimitsConfig { user: limits, ..LimitsConfig::default() }
}

#[tokio::test]
async fn a_user_has_so_many_connections_and_another_when_one_is_closed() {
    let limits = sextant_access::Limits { connections: 1, ..Default::default() };
    let watched = Watched::start(MemoryStore::new(true), user(limits), 0).await;
    let mut first = watched.client().await;
    first.ask(b"ping\r\n", KEEPS_ITS_PLACE).await;
    let mut second = watched.client().await;
    second.ask(b"get a\r\n", b"-ERR user default may have at most 1 connections at this p-node\r\n").await;
    second.expect_end().await;
    first.ask(b"ping\r\n", KEEPS_ITS_PLACE).await;
    assert!(watched.shows("sextant_access_limit_reached_total{limit=\"connections\"} 1"));
    first.send(b"quit\r\n").await;
    first.expect(b"+OK\r\n").await;
    first.expect_end().await;
    // The place is free as soon as the server has forgotten the connection.
    loop {
        let mut third = watched.client().await;
        third.send(b"ping\r\n").await;
        let mut sign = [0];
        tokio::io::AsyncReadExt::read_exact(&mut third.0, &mut sign).await.unwrap();
        if sign == *b"+" {
            break;
        }
    }
}

#[tokio::test]
async fn whoever_is_one_too_many_is_closed_even_if_it_says_nothing() {
    let limits = sextant_access::Limits { connections: 1, ..Default::default() };
    let limits = LimitsConfig { user: limits, ..LimitsConfig::default() };
    // How often a connection's silence is looked at: half of it.
    let config = RespConfig { idle_timeout_ms: 10_000, ..config() };
    let watched = Watched::start_with(config, MemoryStore::new(true), limits, 0).await;
    let mut first = watched.client().await;
    first.ask(b"ping\r\n", KEEPS_ITS_PLACE).await;
    let mut second = watched.client().await;
    let told = async {
        second.expect(b"-ERR user default may have at most 1 connections at this p-node\r\n").await;
        second.expect_end().await;
    };
    // Meanwhile the first is not idle.
    let busy = async {
        loop {
            first.ask(b"ping\r\n", KEEPS_ITS_PLACE).await;
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = told => {}
        () = busy => {}
    }
}

#[tokio::test]
async fn greetings_and_resets_are_operations_and_to_say_who_one_is_is_none() {
    let limits = sextant_access::Limits { operations_per_s: 50, ..Default::default() };
    let no_protocol = "-ERR Protocol version is not an integer or out of range\r\n";
    for (command, reply, is_counted) in [
        ("reset\r\n", "+RESET\r\n", true),
        ("hello x\r\n", no_protocol, true),
        ("hello x setname auth\r\n", no_protocol, true),
        ("hello x auth default x\r\n", no_protocol, false),
        ("auth default x\r\n", "+OK\r\n", false),
    ] {
        let watched = Watched::start(MemoryStore::new(true), user(limits), 0).await;
        let mut client = watched.client().await;
        client.send(command.repeat(60).as_bytes()).await;
        client.expect(reply.repeat(60).as_bytes()).await;
        let waited = !watched.shows("sextant_access_limit_reached_total{limit=\"operations\"} 0");
        assert_eq!(waited, is_counted, "{command}");
    }
}

#[tokio::test]
async fn a_user_that_wants_more_operations_gets_them_later() {
    let limits = sextant_access::Limits { operations_per_s: 50, ..Default::default() };
    for fast in [true, false] {
        let watched = Watched::start(MemoryStore::new(fast), user(limits), 0).await;
        let mut client = watched.client().await;
        client.send(&b"set a 1\r\nget a\r\n".repeat(30)).await;
        client.expect(&b"+OK\r\n$1\r\n1\r\n".repeat(30)).await;
        assert!(!watched.shows("sextant_access_limit_reached_total{limit=\"operations\"} 0"));
        assert!(watched.shows("sextant_resp_command_seconds_count{command=\"set\"} 30"));
    }
}

#[tokio::test]
async fn a_user_has_so_many_bytes_under_way() {
    let limits = sextant_access::Limits { bytes_in_flight: 1 << 20, ..Default::default() };
    let store = GatedStore::new();
    let watched = Watched::start(store.clone(), user(limits), 0).await;
    let set = |key: &str| {
        let value = vec![b'v'; 600 << 10];
        let head = format!("*3\r\n$3\r\nset\r\n$1\r\n{key}\r\n${}\r\n", value.len());
        [head.as_bytes(), &value, b"\r\n"].concat()
    };
    let (mut first, mut second) = (watched.client().await, watched.client().await);
    first.send(&set("a")).await;
    assert_eq!(store.started(1).await.len(), 1);
    second.send(&set("b")).await;
    while !watched.shows("sextant_access_limit_reached_total{limit=\"bytes\"} 1") {
        tokio::task::yield_now().await;
    }
    let started = store.started(1).await;
    assert_eq!(started.len(), 1, "{started:?}");
    store.finish(&started[0]);
    first.expect(b"+OK\r\n").await;
    let started = store.started(2).await;
    store.finish(&started[1]);
    second.expect(b"+OK\r\n").await;
}

#[tokio::test]
async fn what_a_user_has_queued_is_under_way_until_it_is_done() {
    let limits = sextant_access::Limits { bytes_in_flight: 1 << 20, ..Default::default() };
    let store = GatedStore::new();
    let watched = Watched::start(store.clone(), user(limits), 0).await;
    let set = |key: &str| {
        let value = vec![b'v'; 600 << 10];
        let head = format!("*3\r\n$3\r\nset\r\n$1\r\n{key}\r\n${}\r\n", value.len());
        [head.as_bytes(), &value, b"\r\n"].concat()
    };
    let (mut first, mut second) = (watched.client().await, watched.client().await);
    first.ask(&[b"multi\r\n", &set("a")[..]].concat(), b"+OK\r\n+QUEUED\r\n").await;
    second.send(&set("b")).await;
    while !watched.shows("sextant_access_limit_reached_total{limit=\"bytes\"} 1") {
        tokio::task::yield_now().await;
    }
    first.send(b"exec\r\n").await;
    assert_eq!(store.started(1).await, ["change a"], "what ends it does not wait for itself");
    store.finish("change a");
    first.expect(b"*1\r\n+OK\r\n").await;
    let started = store.started(2).await;
    store.finish(&started[1]);
    second.expect(b"+OK\r\n").await;
    // More than the user may have: it does not wait for itself, and keeps nothing.
    first.ask(&[b"multi\r\n", &set("a")[..]].concat(), b"+OK\r\n+QUEUED\r\n").await;
    let refused =
        b"-TRYAGAIN the user's commands under way, and those that are queued, are too long together\r\n";
    first.ask(&set("c"), refused).await;
    second.send(&set("d")).await;
    let started = store.started(3).await;
    store.finish(&started[2]);
    second.expect(b"+OK\r\n").await;
    first.ask(b"exec\r\n", b"-EXECABORT Transaction discarded because of previous errors.\r\n").await;
}

#[tokio::test]
async fn what_is_slow_and_how_much_of_it_is_kept_is_told_as_a_setting() {
    for (slow_ms, told) in [(0, "$2\r\n-1"), (1, "$4\r\n1000"), (100, "$6\r\n100000")] {
        let watched = Watched::start(MemoryStore::new(true), LimitsConfig::default(), slow_ms).await;
        let mut client = watched.client().await;
        let expected = format!(
            "*4\r\n$23\r\nslowlog-log-slower-than\r\n{told}\r\n$15\r\nslowlog-max-len\r\n$3\r\n128\r\n"
        );
        client.ask(b"config get slowlog-*\r\n", expected.as_bytes()).await;
    }
}

#[tokio::test]
async fn what_was_slow_is_listed_with_where_the_time_went() {
    let store = GatedStore::new();
    let watched = Watched::start(store.clone(), LimitsConfig::default(), 1).await;
    let mut client = watched.client().await;
    for (command, reply) in [(&b"get a\r\n"[..], &b"$1\r\na\r\n"[..]), (b"set b 1\r\n", b"+OK\r\n")] {
        let before = store.started(0).await.len();
        client.send(command).await;
        let started = store.started(before + 1).await;
        // It is slow because the store is.
        tokio::time::sleep(Duration::from_millis(2)).await;
        store.finish(&started[before]);
        client.expect(reply).await;
    }
    client.ask(b"slowlog len\r\n", b":2\r\n").await;
    client.send(b"slowlog get 1\r\n").await;
    client.expect(b"*1\r\n*6\r\n:1\r\n").await;
    let mut rest = vec![0; 4096];
    let read = tokio::io::AsyncReadExt::read(&mut client.0, &mut rest).await.unwrap();
    let text = String::from_utf8_lossy(&rest[..read]).into_owned();
    assert!(text.contains("$3\r\nset\r\n$1\r\nb\r\n") && text.contains("memtables "), "{text}");
    assert!(text.contains("127.0.0.1:") && text.contains("of connection "), "{text}");
    client.ask(b"slowlog get -2\r\n", b"-ERR count should be greater than or equal to -1\r\n").await;
    client.ask(b"slowlog reset\r\nslowlog len\r\n", b"+OK\r\n:0\r\n").await;
}
