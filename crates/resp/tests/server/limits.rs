//! What a client can make the server do: no more than the limits say.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sextant_common::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use sextant_environment::Clock;
use sextant_environment::clock::WallInterval;

use super::memory::MemoryStore;
use super::*;

#[tokio::test]
async fn a_key_beyond_the_limit_is_an_error() {
    let server = start(MemoryStore::new(true), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let long_key = "k".repeat(KEY_BYTES_MAX + 1);
    let expected = format!("-ERR key has {} bytes: the limit is 16384 bytes (16 KiB)\r\n", long_key.len());
    for request in ["get KEY\r\n", "set KEY v\r\n", "del a KEY\r\n", "mget KEY\r\n", "mset a b KEY v\r\n"] {
        client.ask(request.replace("KEY", &long_key).as_bytes(), expected.as_bytes()).await;
    }
    client.ask(b"get \"\"\r\n", b"-ERR key is empty: a key has 1 byte to 16 KiB\r\n").await;
}

/// A `SET` of one byte too many: what comes before that, and the answer.
fn too_long() -> (Vec<u8>, String) {
    let len = VALUE_BYTES_MAX + 1;
    let head = format!("*5\r\n$3\r\nset\r\n$1\r\nk\r\n${len}\r\n").into_bytes();
    (head, format!("-ERR value has {len} bytes: the limit is 8388608 bytes (8 MiB)\r\n"))
}

/// The rest of it.
fn too_long_rest() -> Vec<u8> {
    [&vec![b'v'; VALUE_BYTES_MAX + 1][..], b"\r\n$2\r\nEX\r\n$1\r\n9\r\n"].concat()
}

#[tokio::test]
async fn a_value_beyond_the_limit_is_refused_when_it_is_announced_and_the_connection_goes_on() {
    // (There is no room for a long command: it takes none.)
    let server = start(MemoryStore::new(true), RespConfig { max_large_bytes: 1 << 20, ..config() }).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let (head, refused) = too_long();
    client.ask(&head, refused.as_bytes()).await;
    client.send(&too_long_rest()).await;
    client.ask(b"get k\r\n", b"$-1\r\n").await;
    // Behind others, each at its place; and it is said once of a command.
    client.send(&[b"set a 1\r\n", &head[..]].concat()).await;
    client.send(&too_long_rest()).await;
    let len = VALUE_BYTES_MAX + 1;
    client.send(format!("*3\r\n$4\r\nmget\r\n${len}\r\n").as_bytes()).await;
    client.send(&vec![b'k'; len]).await;
    client.send(format!("\r\n${len}\r\n").as_bytes()).await;
    client.send(&vec![b'k'; len]).await;
    client.send(b"\r\nget a\r\n").await;
    client.expect(&[b"+OK\r\n", refused.as_bytes(), refused.as_bytes(), b"$1\r\n1\r\n"].concat()).await;
    // In a transaction: there is none then.
    client.send(&[b"multi\r\nset a 2\r\n", &head[..]].concat()).await;
    client.send(&too_long_rest()).await;
    client.send(b"exec\r\nget a\r\n").await;
    let aborted = b"-EXECABORT Transaction discarded because of previous errors.\r\n$1\r\n1\r\n";
    client.expect(&[b"+OK\r\n+QUEUED\r\n", refused.as_bytes(), aborted].concat()).await;
}

#[tokio::test]
async fn a_command_that_is_dropped_may_not_be_longer_than_any_other() {
    let max_request_bytes = 2 * VALUE_BYTES_MAX;
    let server = start(MemoryStore::new(true), RespConfig { max_request_bytes, ..config() }).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let (head, refused) = too_long();
    client.ask(&head, refused.as_bytes()).await;
    client.send(&vec![b'v'; VALUE_BYTES_MAX + 1]).await;
    client.send(format!("\r\n${VALUE_BYTES_MAX}\r\n").as_bytes()).await;
    client.expect(b"-ERR Protocol error: request is longer than 16777216 bytes\r\n").await;
    client.expect_end().await;
}

#[tokio::test]
async fn the_largest_value_makes_the_round_trip() {
    for fast in [false, true] {
        let server = start(MemoryStore::new(fast), config()).await;
        let mut client = Raw::connect(server.local_addr()).await;
        let mut bulk = format!("${VALUE_BYTES_MAX}\r\n").into_bytes();
        bulk.resize(bulk.len() + VALUE_BYTES_MAX, b'v');
        bulk.extend_from_slice(b"\r\n");
        client.ask(&[&b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n"[..], &bulk].concat(), b"+OK\r\n").await;
        // More replies than may wait to be written at once, and something small behind them.
        client.send(b"get k\r\nget k\r\nget k\r\nping\r\n").await;
        client.expect(&[bulk.repeat(3), b"+PONG\r\n".to_vec()].concat()).await;
    }
}

#[tokio::test]
async fn records_whose_values_are_too_long_to_be_read_at_once_are_counted_in_parts() {
    let store = MemoryStore::new(false);
    store.reads_at_most(25);
    let server = start(store, config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let keys: Vec<String> = (0..11).map(|n| format!("k{n}")).collect();
    for (n, key) in keys.iter().enumerate() {
        client.ask(format!("set {key} {n:010}\r\n").as_bytes(), b"+OK\r\n").await;
    }
    let exists = format!("exists {} none\r\n", keys.join(" "));
    client.ask(exists.as_bytes(), b":11\r\n").await;
}

#[tokio::test]
async fn what_is_answered_at_length_is_asked_for_in_small_numbers() {
    let server = start(MemoryStore::new(true), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let many = |what: &str, word: &str, count: usize| format!("{what} {}\r\n", vec![word; count].join(" "));
    client.ask(many("config get", "x", 128).as_bytes(), b"*0\r\n").await;
    let expected = b"-ERR CONFIG GET takes up to 128 patterns\r\n";
    client.ask(many("config get", "x", 129).as_bytes(), expected).await;
    let expected = b"-ERR COMMAND INFO takes up to 1024 names\r\n";
    client.ask(many("command info", "x", 1025).as_bytes(), expected).await;
}

#[tokio::test]
async fn a_request_that_is_too_long_ends_the_connection() {
    let server = start(MemoryStore::new(true), RespConfig { max_request_bytes: 100_000, ..config() }).await;
    let mut client = Raw::connect(server.local_addr()).await;
    client.send(b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$100000\r\n").await;
    client.expect(b"-ERR Protocol error: request is longer than 100000 bytes\r\n").await;
    client.expect_end().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_are_told_so() {
    let server = start(MemoryStore::new(true), RespConfig { max_connections: 2, ..config() }).await;
    let mut first = Raw::connect(server.local_addr()).await;
    first.ask(b"ping\r\n", b"+PONG\r\n").await;
    let mut second = Raw::connect(server.local_addr()).await;
    second.ask(b"ping\r\n", b"+PONG\r\n").await;
    let mut third = Raw::connect(server.local_addr()).await;
    third.expect(b"-ERR max number of clients reached\r\n").await;
    third.expect_end().await;
    // A place that becomes free is given away again.
    second.ask(b"quit\r\n", b"+OK\r\n").await;
    second.expect_end().await;
    drop(second);
    loop {
        let mut again = Raw::connect(server.local_addr()).await;
        again.send(b"ping\r\n").await;
        let mut got = [0; 1];
        if again.0.read(&mut got).await.is_ok_and(|n| n == 1) && got[0] == b'+' {
            break;
        }
    }
}

#[tokio::test]
async fn a_pipeline_longer_than_the_limit_is_answered_in_full() {
    for fast in [false, true] {
        let server = start(MemoryStore::new(fast), RespConfig { max_pipeline: 4, ..config() }).await;
        let mut client = Raw::connect(server.local_addr()).await;
        let requests: String =
            (0..5000).map(|i| format!("set k{} v{i}\r\nget k{}\r\n", i % 7, i % 7)).collect();
        let replies: String =
            (0..5000).map(|i| format!("+OK\r\n${}\r\nv{i}\r\n", 1 + i.to_string().len())).collect();
        let Raw(stream) = &mut client;
        let (reader, mut writer) = stream.split();
        let sending = async {
            writer.write_all(requests.as_bytes()).await.unwrap();
        };
        let mut got = vec![0; replies.len()];
        let mut reader = reader;
        let receiving = async {
            reader.read_exact(&mut got).await.unwrap();
        };
        tokio::time::timeout(DEADLINE, async { tokio::join!(sending, receiving) }).await.unwrap();
        assert!(got == replies.as_bytes());
    }
}

/// As many clients do with a pipeline. (Sockets hold some megabytes of it, so both ways there are more.)
async fn write_first(server: &RespServer, gets: usize) -> (Raw, String) {
    let (key, value) = ("k".repeat(400), "v".repeat(1000));
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_send_buffer_size(64 * 1024).unwrap();
    socket.set_recv_buffer_size(64 * 1024).unwrap();
    let mut client = Raw(socket.connect(server.local_addr()).await.unwrap());
    client.ask(format!("set {key} {value}\r\n").as_bytes(), b"+OK\r\n").await;
    let requests = format!("get {key}\r\n").repeat(gets);
    tokio::time::timeout(DEADLINE, client.0.write_all(requests.as_bytes())).await.unwrap().unwrap();
    (client, format!("$1000\r\n{value}\r\n").repeat(gets))
}

#[tokio::test]
async fn whoever_writes_all_of_a_pipeline_before_it_reads_gets_all_replies() {
    // There is room for one at a time, which grows.
    let server = start(MemoryStore::new(true), RespConfig { max_large_bytes: 24 << 20, ..config() }).await;
    for _ in 0..3 {
        let (mut client, expected) = write_first(&server, 30_000).await;
        client.expect(expected.as_bytes()).await;
        client.ask(b"ping\r\n", b"+PONG\r\n").await;
    }
    // What was read ahead is executed, though nothing more will be sent.
    let (mut client, expected) = write_first(&server, 30_000).await;
    client.0.shutdown().await.unwrap();
    client.expect(expected.as_bytes()).await;
    client.expect_end().await;
}

#[tokio::test]
async fn whoever_waits_for_something_gives_back_the_room_of_what_was_read_ahead() {
    // For one, and next to nothing for another.
    let server = start(MemoryStore::new(true), RespConfig { max_large_bytes: 17 << 20, ..config() }).await;
    let (mut first, expected) = write_first(&server, 30_000).await;
    first.send(b"blpop none 0\r\n").await;
    first.expect(expected.as_bytes()).await;
    let (mut second, expected) = write_first(&server, 30_000).await;
    second.expect(expected.as_bytes()).await;
    second.ask(b"rpush none a\r\n", b":1\r\n").await;
    first.expect(b"*2\r\n$4\r\nnone\r\n$1\r\na\r\n").await;
}

/// Nanoseconds that a test says.
struct Said(AtomicU64);

impl Clock for Said {
    fn wall(&self) -> WallInterval {
        WallInterval::UNSYNCHRONISED
    }

    fn wall_guess_ns(&self) -> u64 {
        0
    }

    fn holder_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn grantor_ns(&self) -> u64 {
        self.holder_ns()
    }
}

#[tokio::test]
async fn how_long_a_client_reads_nothing_is_not_how_long_its_commands_took() {
    const PAUSE_US: u64 = 100_000_000;
    let clock = Arc::new(Said(AtomicU64::new(0)));
    let env = Env { clock: clock.clone(), ..Env::real() };
    let metrics = RespMetrics::register(&mut Registry::default());
    let server = RespServer::start(env, config(), MemoryStore::new(true), metrics).await.unwrap();
    let (mut client, expected) = write_first(&server, 30_000).await;
    let mut other = Raw::connect(server.local_addr()).await;
    while bytes_read(&mut other).await < 30_000 * "get \r\n".len() + 30_000 * 400 {}
    clock.0.store(PAUSE_US * 1000, Ordering::Relaxed);
    client.expect(expected.as_bytes()).await;
    other.send(b"info commandstats\r\necho end\r\n").await;
    let said = String::from_utf8(other.until(b"$3\r\nend\r\n").await).unwrap();
    let (_, took) = said.split_once("cmdstat_get:calls=30000,usec=").unwrap();
    let took_us: u64 = took.split_once(',').unwrap().0.parse().unwrap();
    // (Those that are begun in this moment may have taken so long.)
    assert!(took_us / PAUSE_US < 3000, "{took_us}");
}

#[tokio::test]
async fn a_half_closed_connection_gets_its_replies() {
    let server = start(MemoryStore::new(false), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    client.send(b"set a 1\r\nget a\r\nget unfinished").await;
    client.0.shutdown().await.unwrap();
    client.expect(b"+OK\r\n$1\r\n1\r\n").await;
    client.expect_end().await;
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let server = start(MemoryStore::new(true), RespConfig { idle_timeout_ms: 1_000, ..config() }).await;
    let mut client = Raw::connect(server.local_addr()).await;
    client.ask(b"ping\r\n", b"+PONG\r\n").await;
    client.expect_end().await;
}

#[tokio::test]
async fn a_connection_that_leaves_is_forgotten() {
    let server = start(MemoryStore::new(true), RespConfig { threads: 2, ..config() }).await;
    let mut clients = Vec::new();
    for i in 0..5 {
        let mut client = Raw::connect(server.local_addr()).await;
        client.ask(format!("client setname c{i}\r\n").as_bytes(), b"+OK\r\n").await;
        clients.push(client);
    }
    let mut last = clients.pop().unwrap();
    last.ask(b"client id\r\n", b":5\r\n").await;
    for mut client in clients {
        client.ask(b"quit\r\n", b"+OK\r\n").await;
        client.expect_end().await;
    }
    // The others are gone once their tasks have ended.
    loop {
        last.send(b"client list\r\n").await;
        last.expect(b"$").await;
        let mut reply = vec![0; 4096];
        let n = last.0.read(&mut reply).await.unwrap();
        let reply = String::from_utf8_lossy(&reply[..n]).into_owned();
        assert!(reply.contains("name=c4"), "{reply}");
        if reply.matches("id=").count() == 1 {
            break;
        }
    }
}

/// How many bytes the server has read, where nobody was told of an error.
async fn bytes_read(client: &mut Raw) -> usize {
    client.send(b"info stats\r\n").await;
    let said = String::from_utf8(client.until(b"total_error_replies:0\r\n").await).unwrap();
    client.expect(b"\r\n").await;
    let (_, read) = said.split_once("total_net_input_bytes:").unwrap();
    read.split_once("\r\n").unwrap().0.parse().unwrap()
}

/// Two clients have begun long commands: one has all the room, the other what one may have beyond it. They send nothing more.
async fn without_room() -> (RespServer, Vec<Raw>) {
    // (Longer than the time after which one of those who wait has more than there is.)
    let config = RespConfig { max_large_bytes: 1 << 20, large_patience_ms: 600, ..config() };
    let server = start(MemoryStore::new(true), config).await;
    let mut holders = Vec::new();
    for so_far in 1..=2 {
        let mut holder = Raw::connect(server.local_addr()).await;
        holder.send(b"*3\r\n$3\r\nset\r\n$1\r\nh\r\n$1000000\r\n").await;
        holder.send(&[b'h'; 100_000]).await;
        holders.push(holder);
        let mut other = Raw::connect(server.local_addr()).await;
        while bytes_read(&mut other).await <= so_far * 100_000 {}
    }
    (server, holders)
}

const LONG_SET: &[u8] = b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$1000000\r\n";
const NO_ROOM: &[u8] = b"-OOM the command was not executed: there is no room for its 1000032 bytes\r\n";

#[tokio::test]
async fn a_long_command_that_finds_no_room_in_time_is_refused_and_the_connection_goes_on() {
    let (server, mut holders) = without_room().await;
    // Nobody is told before the rest of it is here, and it can be sent all the same.
    let mut client = Raw::connect(server.local_addr()).await;
    client.ask(LONG_SET, NO_ROOM).await;
    client.send(&vec![b'v'; 1_000_000]).await;
    client.ask(b"\r\nget k\r\n", b"$-1\r\n").await;
    // Behind others, each at its place.
    client.send(b"set a 1\r\n").await;
    client.send(LONG_SET).await;
    client.send(&vec![b'v'; 1_000_000]).await;
    client.ask(b"\r\nget a\r\n", &[b"+OK\r\n", NO_ROOM, b"$1\r\n1\r\n"].concat()).await;
    // In a transaction: there is none then.
    client.send(b"multi\r\nset a 2\r\n").await;
    client.send(LONG_SET).await;
    client.send(&vec![b'v'; 1_000_000]).await;
    client.send(b"\r\nexec\r\nget a\r\n").await;
    let aborted = b"-EXECABORT Transaction discarded because of previous errors.\r\n$1\r\n1\r\n";
    client.expect(&[b"+OK\r\n+QUEUED\r\n", NO_ROOM, aborted].concat()).await;
    // Who holds the room has lost nothing, and others have it then.
    for holder in &mut holders {
        holder.send(&vec![b'h'; 900_000]).await;
        holder.ask(b"\r\n", b"+OK\r\n").await;
    }
    client.send(LONG_SET).await;
    client.send(&vec![b'v'; 1_000_000]).await;
    client.ask(b"\r\nstrlen k\r\n", b"+OK\r\n:1000000\r\n").await;
}

#[tokio::test]
async fn many_that_are_gone_do_not_hold_up_who_comes_after_them() {
    let (server, holders) = without_room().await;
    for _ in 0..200 {
        let mut gone = Raw::connect(server.local_addr()).await;
        gone.send(LONG_SET).await;
    }
    drop(holders);
    let mut client = Raw::connect(server.local_addr()).await;
    // They had room before it, one after the other, or were refused: it is refused itself, at most.
    loop {
        client.send(LONG_SET).await;
        client.send(&vec![b'v'; 1_000_000]).await;
        client.send(b"\r\n").await;
        if client.until(b"\r\n").await == b"+OK\r\n" {
            break;
        }
    }
}
