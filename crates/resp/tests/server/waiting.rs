//! Commands that wait until there is something to take.

use futures::FutureExt;

use super::memory::MemoryStore;
use super::*;

const BLPOP: &[u8] = b"BLPOP k l 0\r\n";
const STOPS: &[u8] =
    b"-UNBLOCKED force unblock from blocking operation, the server stops: ask another one\r\n";

/// Whether so many commands wait at this server.
async fn are_waiting(server: &RespServer, count: usize) -> bool {
    let mut client = Raw::connect(server.local_addr()).await;
    client.send(b"INFO clients\r\nECHO end\r\n").await;
    let said = String::from_utf8(client.until(b"$3\r\nend\r\n").await).unwrap();
    said.contains(&format!("blocked_clients:{count}\r\n"))
}

/// Until they do.
async fn until_waiting(server: &RespServer, count: usize) {
    let waits = async { while !are_waiting(server, count).await {} };
    tokio::time::timeout(DEADLINE, waits).await.expect("they wait");
}

/// One whose time is over while it waits for its turn to take `a` of a list, beside so many that wait; its id, and its list.
async fn one_whose_time_is_over(server: &RespServer, others: usize) -> (Raw, u64, String) {
    let mut pusher = Raw::connect(server.local_addr()).await;
    // (The next one waits longer, if this machine was slower than the first.)
    for (round, ms) in (0..).zip((0..).map(|doubled| 300 << doubled)) {
        let mut late = Raw::connect(server.local_addr()).await;
        late.send(b"CLIENT ID\r\n").await;
        let id = String::from_utf8(late.until(b"\r\n").await).unwrap();
        let id = id.trim_end().trim_start_matches(':').parse().unwrap();
        let list = format!("apart1-late{round}");
        late.send(format!("BLPOP {list} {}\r\n", f64::from(ms) / 1000.0).as_bytes()).await;
        let answered = async |late: &Raw| late.0.peek(&mut [0]).now_or_never().is_some();
        while !are_waiting(server, others + 1).await && !answered(&late).await {}
        if !answered(&late).await {
            pusher.ask(format!("RPUSH {list} a\r\n").as_bytes(), b":1\r\n").await;
            let_pass(server, &(f64::from(2 * ms) / 1000.0).to_string()).await;
        }
        if !answered(&late).await {
            return (late, id, list);
        }
        late.expect(b"*-1\r\n").await;
    }
    unreachable!("a round that is long enough")
}

async fn waiting(server: &RespServer, command: &[u8], count: usize) -> Raw {
    let mut client = Raw::connect(server.local_addr()).await;
    client.send(command).await;
    until_waiting(server, count).await;
    client
}

#[tokio::test]
async fn what_is_there_is_taken_at_once() {
    let server = start(MemoryStore::new(true), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    client.ask(b"RPUSH l a b\r\n", b":2\r\n").await;
    client.ask(BLPOP, b"*2\r\n$1\r\nl\r\n$1\r\na\r\n").await;
    client.ask(b"BRPOP k l 0\r\n", b"*2\r\n$1\r\nl\r\n$1\r\nb\r\n").await;
    client.ask(b"ZADD z 1 a 2 b 3 c\r\n", b":3\r\n").await;
    client.ask(b"BZPOPMIN k z 0\r\n", b"*3\r\n$1\r\nz\r\n$1\r\na\r\n$1\r\n1\r\n").await;
    client.ask(b"BZPOPMAX k z 0\r\n", b"*3\r\n$1\r\nz\r\n$1\r\nc\r\n$1\r\n3\r\n").await;
    client.ask(b"BZMPOP 0 1 z MIN\r\n", b"*2\r\n$1\r\nz\r\n*1\r\n*2\r\n$1\r\nb\r\n$1\r\n2\r\n").await;
    client.ask(b"RPUSH l a b c\r\n", b":3\r\n").await;
    client.ask(b"BLMPOP 0 2 k l LEFT COUNT 2\r\n", b"*2\r\n$1\r\nl\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n").await;
    client.ask(b"BLMOVE l m LEFT RIGHT 0\r\n", b"$1\r\nc\r\n").await;
    client.ask(b"BRPOPLPUSH m l 0\r\n", b"$1\r\nc\r\n").await;
    client.ask(b"LRANGE l 0 -1\r\n", b"*1\r\n$1\r\nc\r\n").await;
    client.ask(b"BLPOP h 0.01\r\n", b"*-1\r\n").await;
    client.ask(b"BLMOVE h l LEFT LEFT 0.01\r\n", b"*-1\r\n").await;
    client.ask(b"BLPOP l x\r\n", b"-ERR timeout is not a float or out of range\r\n").await;
    client.ask(b"SET p 1\r\n", b"+OK\r\n").await;
    let wrong = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
    client.ask(b"BLPOP p l 0\r\n", wrong).await;
}

#[tokio::test]
async fn who_waits_is_served_in_turn_by_pushes_through_the_same_server() {
    let server = start(MemoryStore::new(true), config()).await;
    let mut first = waiting(&server, BLPOP, 1).await;
    let mut second = waiting(&server, b"BRPOP l 0\r\nPING\r\n", 2).await;
    let mut third = waiting(&server, b"BLMOVE l m LEFT LEFT 0\r\n", 3).await;
    let mut pusher = Raw::connect(server.local_addr()).await;
    pusher.ask(b"RPUSH l a b c d\r\n", b":4\r\n").await;
    first.expect(b"*2\r\n$1\r\nl\r\n$1\r\na\r\n").await;
    second.expect(b"*2\r\n$1\r\nl\r\n$1\r\nd\r\n+PONG\r\n").await;
    third.expect(b"$1\r\nb\r\n").await;
    until_waiting(&server, 0).await;
    pusher.ask(b"LRANGE l 0 -1\r\n", b"*1\r\n$1\r\nc\r\n").await;
    pusher.ask(b"LRANGE m 0 -1\r\n", b"*1\r\n$1\r\nb\r\n").await;
}

#[tokio::test]
async fn pushes_through_another_server_are_seen() {
    let store = MemoryStore::new(true);
    let (here, there) = (start(store.clone(), config()).await, start(store, config()).await);
    let mut list = waiting(&here, BLPOP, 1).await;
    let mut sorted = waiting(&here, b"BZPOPMAX k 0\r\n", 2).await;
    let mut pusher = Raw::connect(there.local_addr()).await;
    pusher.ask(b"RPUSH l a\r\n", b":1\r\n").await;
    list.expect(b"*2\r\n$1\r\nl\r\n$1\r\na\r\n").await;
    pusher.ask(b"ZADD k 1.5 m\r\n", b":1\r\n").await;
    sorted.expect(b"*3\r\n$1\r\nk\r\n$1\r\nm\r\n$3\r\n1.5\r\n").await;
    pusher.ask(b"EXISTS k l\r\n", b":0\r\n").await;
}

#[tokio::test]
async fn a_move_wakes_who_waits_for_where_it_goes_and_so_do_transactions_and_renames() {
    let server = start(MemoryStore::new(true), config()).await;
    let mut last = waiting(&server, b"BLPOP {t}b 0\r\n", 1).await;
    let mut between = waiting(&server, b"BLMOVE {t}a {t}b LEFT LEFT 0\r\n", 2).await;
    let mut pusher = Raw::connect(server.local_addr()).await;
    pusher.send(b"MULTI\r\nLPUSH {t}a x\r\nEXEC\r\n").await;
    pusher.expect(b"+OK\r\n+QUEUED\r\n*1\r\n:1\r\n").await;
    between.expect(b"$1\r\nx\r\n").await;
    last.expect(b"*2\r\n$4\r\n{t}b\r\n$1\r\nx\r\n").await;
    let mut renamed = waiting(&server, b"BLPOP {t}c 0\r\n", 1).await;
    pusher.ask(b"LPUSH {t}d y\r\n", b":1\r\n").await;
    pusher.ask(b"RENAME {t}d {t}c\r\n", b"+OK\r\n").await;
    renamed.expect(b"*2\r\n$4\r\n{t}c\r\n$1\r\ny\r\n").await;
}

#[tokio::test]
async fn in_transactions_nothing_waits() {
    let server = start(MemoryStore::new(true), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    client.send(b"MULTI\r\nBLPOP k 0\r\nBLMOVE k l LEFT LEFT 0\r\nRPUSH k a\r\nBLPOP k 0\r\nEXEC\r\n").await;
    client.expect(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n").await;
    client.expect(b"*4\r\n*-1\r\n$-1\r\n:1\r\n*2\r\n$1\r\nk\r\n$1\r\na\r\n").await;
}

#[tokio::test]
async fn a_client_that_goes_leaves_the_line() {
    let server = start(MemoryStore::new(true), config()).await;
    let gone = waiting(&server, BLPOP, 1).await;
    let mut stays = waiting(&server, b"BLPOP k 0\r\n", 2).await;
    drop(gone);
    until_waiting(&server, 1).await;
    let mut pusher = Raw::connect(server.local_addr()).await;
    pusher.ask(b"RPUSH k a\r\n", b":1\r\n").await;
    stays.expect(b"*2\r\n$1\r\nk\r\n$1\r\na\r\n").await;
}

#[tokio::test]
async fn operators_and_a_server_that_stops_release_who_waits() {
    let server = start(MemoryStore::new(true), config()).await;
    let mut first = Raw::connect(server.local_addr()).await;
    first.ask(b"CLIENT ID\r\n", b":1\r\n").await;
    first.send(BLPOP).await;
    until_waiting(&server, 1).await;
    let mut operator = Raw::connect(server.local_addr()).await;
    operator.ask(b"CLIENT UNBLOCK 1 ERROR\r\n", b":1\r\n").await;
    first.expect(b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n").await;
    operator.ask(b"CLIENT UNBLOCK 1\r\n", b":0\r\n").await;
    first.send(BLPOP).await;
    until_waiting(&server, 1).await;
    server.shutdown().await;
    first.expect(STOPS).await;
}

#[tokio::test]
async fn who_sends_much_after_a_command_that_waits_does_not_wait_any_more() {
    let server = start(MemoryStore::new(true), config()).await;
    let mut client = waiting(&server, BLPOP, 1).await;
    let many = b"PING\r\n".repeat(20_000);
    let (sent, ()) = tokio::join!(client.0.write_all(&many), tokio::task::yield_now());
    sent.expect("it is read");
    client.expect(b"-UNBLOCKED too many bytes have come after a command that waits\r\n+PONG\r\n").await;
}

#[tokio::test]
async fn what_many_clients_push_and_pop_is_all_there_once() {
    const CLIENTS: usize = 20;
    const EACH: usize = 100;
    let server = start(MemoryStore::new(true), config()).await;
    let addr = server.local_addr();
    let push = |client: usize| async move {
        let mut raw = Raw::connect(addr).await;
        for at in 0..EACH {
            raw.send(format!("RPUSH q {client}-{at}\r\n").as_bytes()).await;
            raw.expect_up_to(b"\r\n").await;
        }
    };
    let pop = |_: usize| async move {
        let mut raw = Raw::connect(addr).await;
        let mut popped = Vec::new();
        for _ in 0..EACH {
            raw.send(b"BLPOP q 0\r\n").await;
            raw.expect(b"*2\r\n$1\r\nq\r\n$").await;
            let mut said = String::new();
            while said.matches("\r\n").count() < 2 {
                let mut byte = [0];
                raw.0.read_exact(&mut byte).await.expect("an answer");
                said.push(char::from(byte[0]));
            }
            popped.push(said.lines().nth(1).expect("an element").to_owned());
        }
        popped
    };
    let pushes = futures::future::join_all((0..CLIENTS).map(push));
    let pops = futures::future::join_all((0..CLIENTS).map(pop));
    let (_, popped) = tokio::join!(pushes, pops);
    let mut popped: Vec<String> = popped.concat();
    popped.sort();
    let mut all: Vec<String> =
        (0..CLIENTS).flat_map(|client| (0..EACH).map(move |at| format!("{client}-{at}"))).collect();
    all.sort();
    assert_eq!(popped, all);
}

#[tokio::test]
async fn a_command_that_comes_to_wait_while_the_server_stops_is_not_told_that_its_time_is_over() {
    let store = MemoryStore::new(true);
    let server = start(store.clone(), config()).await;
    store.hold_writes(true);
    let mut client = Raw::connect(server.local_addr()).await;
    client.send(b"EXPIRE k 100\r\nBLPOP k 0\r\n").await;
    store.until_writes(1).await;
    let mut stopping = std::pin::pin!(server.shutdown());
    assert!(futures::poll!(stopping.as_mut()).is_pending());
    store.hold_writes(false);
    stopping.await;
    client.expect(b":0\r\n").await;
    client.expect(STOPS).await;
}

#[tokio::test]
async fn a_key_whose_owner_cannot_be_reached_keeps_nobody_from_the_others() {
    for says_so in [true, false] {
        let store = MemoryStore::new(true);
        let server = start(store.clone(), config()).await;
        let mut client = Raw::connect(server.local_addr()).await;
        client.ask(b"RPUSH apart2 a\r\n", b":1\r\n").await;
        store.lose("apart1", says_so);
        client.ask(b"BLPOP apart1 apart2 0\r\n", b"*2\r\n$6\r\napart2\r\n$1\r\na\r\n").await;
        let mut waits = waiting(&server, b"BLPOP apart1 apart2 0\r\n", 1).await;
        client.ask(b"RPUSH apart2 b\r\n", b":1\r\n").await;
        waits.expect(b"*2\r\n$6\r\napart2\r\n$1\r\nb\r\n").await;
        // (Something is known of one of them.)
        client.ask(b"BLPOP apart1 apart2 0.01\r\n", b"*-1\r\n").await;
    }
}

#[tokio::test]
async fn the_first_key_that_has_something_is_taken_from_also_of_keys_that_are_apart() {
    let server = start(MemoryStore::new(true), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    client.ask(b"RPUSH apart3 c\r\n", b":1\r\n").await;
    client.ask(b"RPUSH apart2 b\r\n", b":1\r\n").await;
    client.ask(b"SET apart4 1\r\n", b"+OK\r\n").await;
    let three = b"BLPOP apart1 apart2 apart3 apart4 0\r\n";
    client.ask(three, b"*2\r\n$6\r\napart2\r\n$1\r\nb\r\n").await;
    client.ask(three, b"*2\r\n$6\r\napart3\r\n$1\r\nc\r\n").await;
    client.ask(three, b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n").await;
}

#[tokio::test]
async fn who_could_read_nothing_is_not_told_that_there_was_nothing() {
    let store = MemoryStore::new(true);
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    for key in ["k", "apart1", "apart2"] {
        store.lose(key, true);
    }
    client.ask(b"BLPOP k 0.01\r\n", b"-CLUSTERDOWN no leader\r\n").await;
    client.ask(b"BLPOP apart1 apart2 0.01\r\n", b"-CLUSTERDOWN no leader\r\n").await;
    let mut waits = waiting(&server, b"BLPOP k 0\r\n", 1).await;
    store.find("k");
    client.ask(b"RPUSH k a\r\n", b":1\r\n").await;
    waits.expect(b"*2\r\n$1\r\nk\r\n$1\r\na\r\n").await;
}

#[tokio::test]
async fn what_has_come_when_the_time_is_over_is_taken() {
    let store = MemoryStore::new(false);
    let (here, there) = (start(store.clone(), config()).await, start(store.clone(), config()).await);
    let mut pusher = Raw::connect(there.local_addr()).await;
    for (command, reply) in [
        ("BLPOP k 0.001\r\n", "*2\r\n$1\r\nk\r\n$1\r\na\r\n"),
        ("BLMOVE k l LEFT LEFT 0.001\r\n", "$1\r\na\r\n"),
    ] {
        store.hold_next_answer();
        let mut waits = Raw::connect(here.local_addr()).await;
        waits.send(command.as_bytes()).await;
        store.until_read_is_held().await;
        // (Longer than it waits: nothing is looked at before its time is over.)
        pusher.ask(b"RPUSH k a\r\n", b":1\r\n").await;
        pusher.ask(b"BLPOP nothing 0.05\r\n", b"*-1\r\n").await;
        store.let_read_go();
        waits.expect(reply.as_bytes()).await;
    }
    pusher.ask(b"BLPOP k 0.001\r\n", b"*-1\r\n").await;
}

/// A client that waits and is told what comes, then.
fn of(key: &str, element: &str) -> Vec<u8> {
    format!("*2\r\n${}\r\n{key}\r\n${}\r\n{element}\r\n", key.len(), element.len()).into_bytes()
}

/// Long enough for whoever waits so long.
async fn let_pass(server: &RespServer, seconds: &str) {
    let mut client = Raw::connect(server.local_addr()).await;
    client.ask(format!("BLPOP nothing {seconds}\r\n").as_bytes(), b"*-1\r\n").await;
}

#[tokio::test]
async fn who_found_something_and_could_not_take_it_is_not_told_that_there_was_nothing() {
    let store = MemoryStore::new(true);
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    client.ask(b"ZADD z 1 a\r\n", b":1\r\n").await;
    store.spoil_drafts(true);
    let often = b"-TRYAGAIN nothing took effect: others change the same records too often\r\n";
    client.ask(b"BZPOPMIN z 0.01\r\n", often).await;
    store.spoil_drafts(false);
    client.ask(b"BZPOPMIN z 0.01\r\n", b"*3\r\n$1\r\nz\r\n$1\r\na\r\n$1\r\n1\r\n").await;
}

#[tokio::test]
async fn while_one_takes_something_of_one_key_the_next_takes_of_another() {
    let store = MemoryStore::new(true);
    let server = start(store.clone(), config()).await;
    let mut first = waiting(&server, b"BLPOP k l 0\r\n", 1).await;
    let mut second = waiting(&server, b"BLPOP l 0\r\n", 2).await;
    store.hold_removals(Some("k"));
    let mut pusher = Raw::connect(server.local_addr()).await;
    pusher.ask(b"RPUSH k a\r\n", b":1\r\n").await;
    store.until_removals_wait(1).await;
    pusher.ask(b"RPUSH l b\r\n", b":1\r\n").await;
    second.expect(&of("l", "b")).await;
    store.hold_removals(None);
    first.expect(&of("k", "a")).await;
}

#[tokio::test]
async fn who_is_released_while_it_waits_for_its_turn_takes_nothing() {
    const TURNS: usize = 16;
    let store = MemoryStore::new(true);
    let server = start(store.clone(), patient()).await;
    let mut all = Vec::new();
    for at in 0..TURNS {
        all.push(waiting(&server, format!("BLPOP apart1-{at} 0\r\n").as_bytes(), at + 1).await);
    }
    store.hold_removals(Some("apart1"));
    let mut pusher = Raw::connect(server.local_addr()).await;
    for at in 0..TURNS {
        pusher.ask(format!("RPUSH apart1-{at} a\r\n").as_bytes(), b":1\r\n").await;
    }
    store.until_removals_wait(TURNS).await;
    let (mut late, id, list) = one_whose_time_is_over(&server, TURNS).await;
    pusher.ask(format!("CLIENT UNBLOCK {id} ERROR\r\n").as_bytes(), b":1\r\n").await;
    late.expect(b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n").await;
    store.hold_removals(None);
    for (at, client) in all.iter_mut().enumerate() {
        client.expect(&of(&format!("apart1-{at}"), "a")).await;
    }
    pusher.ask(format!("LLEN {list}\r\n").as_bytes(), b":1\r\n").await;
}

#[tokio::test]
async fn those_that_take_of_an_owner_that_does_not_answer_keep_nobody_from_taking_of_another() {
    const MANY: usize = 64;
    let store = MemoryStore::new(true);
    let server = start(store.clone(), patient()).await;
    let mut all = Vec::new();
    for at in 0..MANY {
        all.push(waiting(&server, format!("BLPOP apart1-{at} 0\r\n").as_bytes(), at + 1).await);
    }
    let mut other = waiting(&server, b"BLPOP k 0\r\n", MANY + 1).await;
    store.hold_removals(Some("apart1"));
    let mut pusher = Raw::connect(server.local_addr()).await;
    for at in 0..MANY {
        pusher.ask(format!("RPUSH apart1-{at} a\r\n").as_bytes(), b":1\r\n").await;
    }
    store.until_removals_wait(16).await;
    let_pass(&server, "0.2").await;
    pusher.ask(b"RPUSH k b\r\n", b":1\r\n").await;
    other.expect(&of("k", "b")).await;
    // Whose time is over while it waits for its turn is told what there was.
    let (mut late, _, list) = one_whose_time_is_over(&server, MANY).await;
    store.hold_removals(None);
    late.expect(&of(&list, "a")).await;
    for (at, client) in all.iter_mut().enumerate() {
        client.expect(&of(&format!("apart1-{at}"), "a")).await;
    }
}
