//! Commands that repeat because others write their objects in between.

use super::memory::MemoryStore;
use super::*;

/// A client whose command has repeated so often, each time because `ZADD` came between, that it is about to write again.
async fn repeating(server: &RespServer, store: &MemoryStore, command: &[u8]) -> Raw {
    let mut others = Raw::connect(server.local_addr()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    store.let_drafts(0);
    let before = store.drafts();
    client.send(command).await;
    for attempt in 1..=3 {
        store.until_drafts(before + attempt).await;
        others.ask(format!("ZADD z 5 between{attempt}\r\n").as_bytes(), b":1\r\n").await;
        store.let_drafts(1);
    }
    store.until_drafts(before + 4).await;
    client
}

async fn started(config: RespConfig) -> (MemoryStore, RespServer) {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), config).await;
    let mut client = Raw::connect(server.local_addr()).await;
    client.ask(b"ZADD z 1 a 2 b 3 c\r\n", b":3\r\n").await;
    (store, server)
}

#[tokio::test]
async fn who_repeats_because_of_writes_by_name_goes_before_those_that_come_then() {
    let (store, server) = started(patient()).await;
    let mut pops = repeating(&server, &store, b"ZPOPMIN z\r\n").await;
    let mut adds = Raw::connect(server.local_addr()).await;
    adds.send(b"ZADD z 0 d\r\n").await;
    store.until_in_line(1).await;
    // (Of one client, in a row.)
    let mut removes = Raw::connect(server.local_addr()).await;
    removes.send(b"ZREM z b\r\nZREM z nobody\r\n").await;
    store.until_in_line(3).await;
    // (The others have a quick way, then as ever.)
    store.let_drafts(1);
    pops.expect(b"*2\r\n$1\r\na\r\n$1\r\n1\r\n").await;
    adds.expect(b":1\r\n").await;
    removes.expect(b":1\r\n:0\r\n").await;
    // Nobody repeats any more.
    store.let_drafts(0);
    adds.ask(b"ZADD z 0 e\r\n", b":1\r\n").await;
    adds.ask(b"ZREM z d\r\n", b":1\r\n").await;
}

#[tokio::test]
async fn writes_by_name_do_not_wait_for_one_that_leads_and_repeats_for_long() {
    let mut config = patient();
    config.patience.let_pass = Duration::from_millis(50);
    let (store, server) = started(config).await;
    let mut pops = repeating(&server, &store, b"ZPOPMIN z\r\n").await;
    let drafts = store.drafts();
    let mut adds = Raw::connect(server.local_addr()).await;
    adds.ask(b"ZADD z 0 d\r\n", b":1\r\n").await;
    adds.ask(b"ZADD z 0 e\r\nZADD z 0 f\r\n", b":1\r\n:1\r\n").await;
    assert_eq!(store.drafts(), drafts, "it repeats still, and nothing else depends on the header");
    store.let_drafts(100);
    pops.expect(b"*2\r\n$1\r\nd\r\n$1\r\n0\r\n").await;
}

#[tokio::test]
async fn writes_by_name_let_a_transaction_pass_that_repeats() {
    let (store, server) = started(patient()).await;
    let transaction = b"MULTI\r\nZPOPMIN z\r\nSET other 1\r\nEXEC\r\n";
    let mut pops = repeating(&server, &store, transaction).await;
    let drafts = store.drafts();
    let mut adds = Raw::connect(server.local_addr()).await;
    adds.send(b"ZADD z 0 d\r\n").await;
    let mut more = Raw::connect(server.local_addr()).await;
    more.send(b"ZADD z 0 e\r\n").await;
    store.until_in_line(2).await;
    assert_eq!(store.drafts(), drafts, "it lets the transaction pass");
    store.let_drafts(100);
    pops.expect(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n+OK\r\n").await;
    adds.expect(b":1\r\n").await;
    more.expect(b":1\r\n").await;
}

#[tokio::test]
async fn who_leads_a_line_lets_a_transaction_pass_that_repeats() {
    let (store, server) = started(patient()).await;
    let transaction = b"MULTI\r\nZPOPMIN z\r\nSET other 1\r\nEXEC\r\n";
    let mut pops = repeating(&server, &store, transaction).await;
    let drafts = store.drafts();
    let mut leads = Raw::connect(server.local_addr()).await;
    leads.send(b"ZPOPMAX z\r\n").await;
    // (One of them leads, and the other one waits.)
    let mut more = Raw::connect(server.local_addr()).await;
    more.send(b"ZPOPMAX z\r\n").await;
    store.until_in_line(1).await;
    assert_eq!(store.drafts(), drafts, "it lets the transaction pass");
    store.let_drafts(100);
    pops.expect(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n+OK\r\n").await;
    for client in [&mut leads, &mut more] {
        client.expect(b"*2\r\n$8\r\nbetween").await;
        client.expect_up_to(b"$1\r\n5\r\n").await;
    }
}

#[tokio::test]
async fn one_that_reads_much_again_and_again_keeps_none_of_the_others_from_taking_effect() {
    const VALUES: usize = 300;
    let store = MemoryStore::new(false);
    let server = start(store.clone(), patient()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let value = "v".repeat(100 * 1024);
    for at in 1..=VALUES {
        let push = format!("*3\r\n$5\r\nRPUSH\r\n$1\r\nl\r\n${}\r\n{value}\r\n", value.len());
        client.ask(push.as_bytes(), format!(":{at}\r\n").as_bytes()).await;
    }
    store.hold_writes(true);
    let mut one = Raw::connect(server.local_addr()).await;
    one.send(b"RPUSH l a\r\n").await;
    store.until_writes(VALUES + 1).await;
    let mut reads = Raw::connect(server.local_addr()).await;
    reads.send(b"LREM l 0 nosuch\r\n").await;
    store.until_in_line(1).await;
    let mut pops = Raw::connect(server.local_addr()).await;
    pops.send(b"RPOP l\r\n").await;
    store.until_in_line(2).await;
    store.disturb("l");
    store.hold_writes(false);
    one.expect(format!(":{}\r\n", VALUES + 1).as_bytes()).await;
    reads.expect(b"-TRYAGAIN nothing took effect: others change the same records too often\r\n").await;
    pops.expect(b"$1\r\na\r\n").await;
}

#[tokio::test]
async fn what_is_taken_from_a_list_is_read_together_however_often_that_is_repeated() {
    const REPEATED: usize = 5;
    let store = MemoryStore::new(false);
    let server = start(store.clone(), patient()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    client.ask(b"RPUSH l a b\r\n", b":2\r\n").await;
    let (drafts, writes, reads) = (store.drafts(), store.writes(), store.element_reads());
    store.let_drafts(REPEATED);
    store.spoil_drafts(true);
    client.send(b"MULTI\r\nLPOP l\r\nLPOP l\r\nEXEC\r\n").await;
    store.until_drafts(drafts + REPEATED + 1).await;
    store.spoil_drafts(false);
    store.let_drafts(1);
    client.expect(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n").await;
    assert_eq!(store.element_reads() - reads, REPEATED as u64 + 1);
    assert_eq!(
        store.writes() - writes,
        REPEATED + 1,
        "the leader, whose answers have a bound, is asked for none"
    );
}

#[tokio::test]
async fn what_is_long_is_not_read_a_hundred_times() {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), patient()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let value = "v".repeat(8_000_000);
    for at in 0..4 {
        let set = format!("*4\r\n$4\r\nHSET\r\n$1\r\nh\r\n$1\r\n{at}\r\n${}\r\n{value}\r\n", value.len());
        client.ask(set.as_bytes(), b":1\r\n").await;
    }
    store.disturb("h");
    client
        .ask(b"HGETALL h\r\n", b"-TRYAGAIN nothing took effect: others change the same records too often\r\n")
        .await;
    let pages = 4 + 1;
    assert!(store.range_reads() <= 6 * pages, "three times, and 64 MiB more: {}", store.range_reads());
}
