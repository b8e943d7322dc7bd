//! Writes of one key that stand directly behind each other in a pipeline.

use proptest::prelude::*;
use sextant_common::ErrorKind;

use super::gated::GatedStore;
use super::memory::MemoryStore;
use super::*;

#[tokio::test]
async fn of_sets_in_a_row_the_last_is_written_and_all_are_told_what_became_of_it() {
    let store = GatedStore::new();
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    client.send(b"set a 1\r\nset b 1\r\nset a 2\r\nset a 3\r\nget a\r\nset a 4\r\nset a 5\r\n").await;
    assert_eq!(store.started(2).await, ["set a 3", "set b 1"]);
    assert_eq!(store.batches(), [2]);
    store.fail("set a 3", ErrorKind::Unavailable);
    store.finish("set b 1");
    client.expect(b"-CLUSTERDOWN told to\r\n+OK\r\n-CLUSTERDOWN told to\r\n-CLUSTERDOWN told to\r\n").await;
    assert_eq!(store.started(3).await[2..], ["get a"], "it comes between");
    store.finish("get a");
    assert_eq!(store.started(4).await[3..], ["set a 5"]);
    store.finish("set a 5");
    client.expect(b"$1\r\na\r\n+OK\r\n+OK\r\n").await;
}

#[tokio::test]
async fn what_has_waited_for_another_turns_command_goes_together() {
    let store = GatedStore::new();
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    client.send(b"set a 1\r\n").await;
    store.started(1).await;
    client.send(b"set a 2\r\nset a 3\r\nget z\r\n").await;
    assert_eq!(store.started(2).await[1..], ["get z"]);
    store.finish("set a 1");
    assert_eq!(store.started(3).await[2..], ["set a 3"]);
    store.finish("get z");
    store.finish("set a 3");
    client.expect(b"+OK\r\n+OK\r\n+OK\r\n$1\r\nz\r\n").await;
}

#[tokio::test]
async fn changes_of_one_key_are_one_batch_with_a_reply_for_each() {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let before = store.writes();
    client
        .ask(
            b"incr n\r\nincrby n 5\r\nset n 7\r\nincr n\r\nappend n x\r\ngetset n 1\r\nsetnx n 2\r\ndel n\r\nincr n\r\n",
            b":1\r\n:6\r\n+OK\r\n:8\r\n:2\r\n$2\r\n8x\r\n:0\r\n:1\r\n:1\r\n",
        )
        .await;
    assert_eq!(store.writes() - before, 1);
    client.ask(b"get n\r\n", b"$1\r\n1\r\n").await;
}

#[tokio::test]
async fn increments_of_one_number_are_one_change_and_each_is_told_what_it_left() {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let before = store.writes();
    client.ask(b"incr n\r\nincrby n 5\r\nincr n\r\nincrby n 0\r\n", b":1\r\n:6\r\n:7\r\n:7\r\n").await;
    client.ask(b"decr n\r\ndecrby n 10\r\ndecr n\r\n", b":6\r\n:-4\r\n:-5\r\n").await;
    assert_eq!(store.writes() - before, 2);
    client.ask(b"incr n\r\ndecrby n 2\r\nincr n\r\n", b":-4\r\n:-6\r\n:-5\r\n").await;
    assert_eq!(store.writes() - before, 3, "to and fro: as they are");
    // As far as each of them goes.
    let far = i64::MAX - 2;
    client.ask(format!("set n {far}\r\n").as_bytes(), b"+OK\r\n").await;
    let overflow = "-ERR increment or decrement would overflow\r\n";
    let expected = format!(":{}\r\n:{}\r\n{overflow}{overflow}", far + 1, far + 2);
    client.ask(b"incr n\r\nincr n\r\nincr n\r\nincr n\r\n", expected.as_bytes()).await;
    let most = i64::MAX.to_string();
    let asked = format!("set n -1\r\nget n\r\nincrby n {most}\r\nincrby n 1\r\nincrby n 1\r\n");
    let expected = format!("+OK\r\n$2\r\n-1\r\n:{}\r\n:{most}\r\n{overflow}", i64::MAX - 1);
    client.ask(asked.as_bytes(), expected.as_bytes()).await;
    // What they keep, and what they do not go with.
    client.ask(b"set n 1 ex 100\r\n", b"+OK\r\n").await;
    client.ask(b"incr n\r\nincr n\r\nttl n\r\n", b":2\r\n:3\r\n:100\r\n").await;
    let no_number = "-ERR value is not an integer or out of range\r\n";
    client.ask(b"set n x\r\n", b"+OK\r\n").await;
    client.ask(b"incr n\r\nincr n\r\n", no_number.repeat(2).as_bytes()).await;
}

#[tokio::test]
async fn one_that_does_not_go_with_what_is_there_keeps_no_other_from_taking_effect() {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    client
        .ask(
            b"set n x\r\nincr n\r\nset n 1\r\nincr n\r\nexpire n 100\r\nincr n\r\n",
            b"+OK\r\n-ERR value is not an integer or out of range\r\n+OK\r\n:2\r\n:1\r\n:3\r\n",
        )
        .await;
    client
        .ask(
            b"hset h f x\r\nhset h f 1 g 1\r\nhset h f x\r\nhincrby h f 1\r\nhincrby h g 1\r\ndel h\r\n",
            b":1\r\n:1\r\n:0\r\n-ERR hash value is not an integer\r\n:2\r\n:1\r\n",
        )
        .await;
    // Of two kinds: neither row goes on beyond its end.
    client
        .ask(
            b"del n\r\nlpush n a\r\nlpush n b\r\nincr n\r\nrpush n c\r\nlpop n\r\n",
            b":1\r\n:1\r\n:2\r\n-WRONGTYPE Operation against a key holding the wrong kind of value\r\n:3\r\n$1\r\nb\r\n",
        )
        .await;
    client.ask(b"lrange n 0 -1\r\n", b"*2\r\n$1\r\na\r\n$1\r\nc\r\n").await;
}

#[tokio::test]
async fn commands_on_one_list_are_one_batch_also_with_those_of_others() {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let before = store.writes();
    client
        .ask(
            b"rpush l a\r\nrpush l b c\r\nlpop l\r\nlpush l d\r\nrpop l\r\n",
            b":1\r\n:3\r\n$1\r\na\r\n:3\r\n$1\r\nc\r\n",
        )
        .await;
    assert_eq!(store.writes() - before, 1);
    store.hold_writes(true);
    let mut one = Raw::connect(server.local_addr()).await;
    one.send(b"rpush l e\r\nrpush l f\r\n").await;
    store.until_writes(before + 2).await;
    client.send(b"rpush l g\r\nrpush l h\r\nrpush l i\r\n").await;
    store.until_in_line(3).await;
    store.hold_writes(false);
    one.expect(b":3\r\n:4\r\n").await;
    client.expect(b":5\r\n:6\r\n:7\r\n").await;
    assert_eq!(store.writes() - before, 3);
}

#[tokio::test]
async fn elements_of_one_object_are_one_batch_and_each_command_is_told_of_its_own() {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    for (pipeline, replies) in [
        ("hset h f 1\r\nhset h f 2 g 3\r\nhsetnx h g 4\r\nhincrby h f 5\r\n", ":1\r\n:1\r\n:0\r\n:7\r\n"),
        ("sadd s a b\r\nsadd s b c\r\nsadd s c\r\n", ":2\r\n:1\r\n:0\r\n"),
        ("srem s a d\r\nsrem s a b\r\n", ":1\r\n:1\r\n"),
        ("hdel h f\r\nhdel h f g\r\n", ":1\r\n:1\r\n"),
        (
            "zadd z 1 m 2 n\r\nzadd z 3 m 3 m\r\nzadd z ch 4 m 1 o\r\nzincrby z 2 n\r\nzadd z nx 9 m\r\nzadd z incr inf o\r\n\
             zincrby z -inf o\r\nzadd z ch gt 1 m 5 n\r\n",
            ":2\r\n:0\r\n:2\r\n$1\r\n4\r\n:0\r\n$3\r\ninf\r\n-ERR resulting score is not a number (NaN)\r\n:1\r\n",
        ),
        (
            "zadd z xx 6 m 7 nosuch\r\nzadd z xx incr 1 m\r\nzadd z xx incr 1 nosuch\r\n",
            ":0\r\n$1\r\n7\r\n$-1\r\n",
        ),
    ] {
        let before = store.writes();
        client.ask(pipeline.as_bytes(), replies.as_bytes()).await;
        assert_eq!(store.writes() - before, 1, "{pipeline}");
    }
    client.ask(b"exists h\r\nscard s\r\nzcard z\r\n", b":0\r\n:1\r\n:3\r\n").await;
    client
        .ask(
            b"zrange z 0 -1 withscores\r\n",
            b"*6\r\n$1\r\nn\r\n$1\r\n5\r\n$1\r\nm\r\n$1\r\n7\r\n$1\r\no\r\n$3\r\ninf\r\n",
        )
        .await;
}

#[tokio::test]
async fn commands_of_different_quick_ways_are_one_batch_too() {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    for (pipeline, replies) in [
        ("zadd z 1 a 2 b 3 c\r\nzrem z a\r\nzrem z a b\r\nzadd z 5 d 6 c\r\n", ":3\r\n:1\r\n:1\r\n:1\r\n"),
        ("zrem z c\r\nzrem z c d\r\nzrem z d\r\n", ":1\r\n:1\r\n:0\r\n"),
        ("sadd s a\r\nsrem s a\r\nsadd s b\r\nsrem s b c\r\nsadd s d\r\n", ":1\r\n:1\r\n:1\r\n:1\r\n:1\r\n"),
        ("hset h f 1 g 2\r\nhdel h f\r\nhincrby h f 4\r\nhsetnx h g 3\r\n", ":2\r\n:1\r\n:4\r\n:0\r\n"),
    ] {
        let before = store.writes();
        client.ask(pipeline.as_bytes(), replies.as_bytes()).await;
        assert_eq!(store.writes() - before, 1, "{pipeline}");
    }
    client.ask(b"exists z\r\nsmembers s\r\nhget h f\r\n", b":0\r\n*1\r\n$1\r\nd\r\n$1\r\n4\r\n").await;
    // What is gone in between takes its lifetime along.
    client.ask(b"expire s 100\r\n", b":1\r\n").await;
    client.ask(b"sadd s e\r\nsrem s e d\r\nsadd s f\r\nttl s\r\n", b":1\r\n:2\r\n:1\r\n:-1\r\n").await;
    // Many of one way go it without the others.
    let many: String = (0..20).map(|at| format!("sadd m {at}\r\n")).collect();
    let before = store.writes();
    client
        .ask(
            format!("{many}srem m 1 2 99\r\nscard m\r\n").as_bytes(),
            &[&b":1\r\n".repeat(20)[..], b":2\r\n:18\r\n"].concat(),
        )
        .await;
    assert_eq!(store.writes() - before, 2);
}

#[tokio::test]
async fn commands_that_go_together_read_together() {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let members: String = (0..60).map(|at| format!(" {at} m{at:02}")).collect();
    client.ask(format!("zadd z{members}\r\nsadd s{members}\r\n").as_bytes(), b":60\r\n:120\r\n").await;
    let (before, writes) = (store.range_reads(), store.writes());
    let pipeline = "zpopmin z\r\nzpopmax z\r\nzremrangebyrank z 0 0\r\n".repeat(5);
    client.send(format!("{pipeline}echo end\r\n").as_bytes()).await;
    let said = String::from_utf8(client.until(END).await).unwrap();
    let popped = |at: usize| format!("*2\r\n$3\r\nm{at:02}\r\n${}\r\n{at}\r\n", at.to_string().len());
    let expected: String = (0..5).map(|at| popped(2 * at) + &popped(59 - at) + ":1\r\n").collect();
    assert_eq!(said.strip_suffix("$3\r\nend\r\n"), Some(&expected[..]));
    assert_eq!(store.writes() - writes, 1);
    let pages = 60u64.div_ceil(7);
    assert!(store.range_reads() - before <= 2 * (1 + pages), "from either end twice, in pages of 7");
    client.ask(b"zcard z\r\n", b":45\r\n").await;
    let (before, writes) = (store.range_reads(), store.writes());
    client.send(format!("{}echo end\r\n", "spop s\r\n".repeat(40)).as_bytes()).await;
    let said = String::from_utf8(client.until(END).await).unwrap();
    let popped: std::collections::HashSet<&str> = said.lines().filter(|l| !l.starts_with('$')).collect();
    assert_eq!((popped.len(), store.writes() - writes, store.range_reads() - before), (41, 1, 18));
    client.ask(b"scard s\r\n", b":80\r\n").await;
    // In transactions too.
    let before = store.element_reads();
    client.send(b"multi\r\nsadd s a\r\nsismember s b\r\nsrem s c a\r\nzincrby z 1 m20\r\nzscore z m21\r\nexec\r\n").await;
    let replies = "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*5\r\n:1\r\n:0\r\n:1\r\n$2\r\n21\r\n$2\r\n21\r\n";
    client.expect(replies.as_bytes()).await;
    assert_eq!(store.element_reads() - before, 2, "of each object once");
    // What a command has said need not be read, and what another one makes of the object is not known ahead.
    client.ask(b"hset h f 1 g 2 i 3\r\n", b":3\r\n").await;
    let before = store.element_reads();
    client.send(b"multi\r\nhset h f 4\r\nhset h g 5\r\nhget h f\r\nhget h g\r\ndel h\r\nhget h i\r\nhget h f\r\nexec\r\n").await;
    let queued = "+QUEUED\r\n".repeat(7);
    let replies = ":0\r\n:0\r\n$1\r\n4\r\n$1\r\n5\r\n:1\r\n$-1\r\n$-1\r\n";
    client.expect(format!("+OK\r\n{queued}*7\r\n{replies}").as_bytes()).await;
    assert_eq!(store.element_reads() - before, 0);
}

#[tokio::test]
async fn what_would_change_nothing_writes_nothing() {
    for at_hand in [true, false] {
        let store = MemoryStore::new(at_hand);
        let server = start(store.clone(), config()).await;
        let mut client = Raw::connect(server.local_addr()).await;
        client
            .ask(b"hset h f 1\r\nsadd s a b\r\nzadd z 1 a 2 b\r\nset x 1\r\n", b":1\r\n:2\r\n:2\r\n+OK\r\n")
            .await;
        let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
        for (command, reply, writes) in [
            ("zadd z 1 a", ":0\r\n", false),
            ("zadd z ch 1 a 2 b 1 a", ":0\r\n", !at_hand),
            ("zadd z nx 5 a 6 b", ":0\r\n", !at_hand),
            ("zadd z gt ch 0 a 2 b", ":0\r\n", !at_hand),
            ("zadd z xx 5 nosuch", ":0\r\n", false),
            ("zadd z nx incr 5 a", "$-1\r\n", false),
            ("zincrby z 0 b", "$1\r\n2\r\n", false),
            ("zadd nosuch xx 1 a", ":0\r\n", false),
            ("zadd x 1 a", wrong, false),
            ("zadd z 1 a 3 b", ":0\r\n", true),
            ("zadd z nx 1 a 3 c", ":1\r\n", true),
            ("sadd s a b", ":0\r\n", !at_hand),
            ("sadd s a c", ":1\r\n", true),
            ("srem s nosuch none", ":0\r\n", !at_hand),
            ("srem nosuch a", ":0\r\n", false),
            ("srem s c", ":1\r\n", true),
            ("zrem z nosuch", ":0\r\n", false),
            ("hsetnx h f 2", ":0\r\n", !at_hand),
            ("hsetnx h g 2", ":1\r\n", true),
            ("hdel h nosuch", ":0\r\n", !at_hand),
            ("hdel h nosuch f g", ":2\r\n", true),
        ] {
            let before = store.writes();
            client.ask(format!("{command}\r\n").as_bytes(), reply.as_bytes()).await;
            assert_eq!(store.writes() > before, writes, "{command}, at hand: {at_hand}");
        }
        client
            .ask(
                b"smembers s\r\nexists h\r\nzscore z c\r\n",
                b"*2\r\n$1\r\na\r\n$1\r\nb\r\n:0\r\n$1\r\n3\r\n",
            )
            .await;
    }
}

#[tokio::test]
async fn what_comes_behind_a_write_of_its_key_is_not_looked_up_before_it() {
    let store = MemoryStore::new(true);
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    client.ask(b"sadd s a b\r\nzadd z 1 a 2 b\r\n", b":2\r\n:2\r\n").await;
    let before = store.writes();
    store.hold_writes(true);
    client.send(b"srem s a\r\nsadd s a\r\nzrem z a\r\nzadd z 1 a\r\n").await;
    store.until_writes(before + 2).await;
    store.hold_writes(false);
    client.expect(b":1\r\n:1\r\n:1\r\n:1\r\n").await;
}

#[tokio::test]
async fn who_has_no_place_in_line_is_refused_and_those_behind_it_are_not_answered_before() {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), config()).await;
    store.let_in_line(1);
    store.hold_writes(true);
    let mut one = Raw::connect(server.local_addr()).await;
    one.send(b"rpush l a\r\n").await;
    store.until_writes(1).await;
    let mut two = Raw::connect(server.local_addr()).await;
    two.send(b"rpush l b\r\nrpush l c\r\n").await;
    store.until_in_line(1).await;
    store.hold_writes(false);
    one.expect(b":1\r\n").await;
    two.expect(b":2\r\n-TRYAGAIN many wait already\r\n").await;
}

/// Clients that do not read what they are told, until all room for long replies is taken.
async fn hogs(server: &RespServer) -> Vec<Raw> {
    let mut hogs = Vec::new();
    loop {
        let mut hog = Raw::connect(server.local_addr()).await;
        hog.send(&b"get long\r\n".repeat(4)).await;
        hogs.push(hog);
        let mut other = Raw::connect(server.local_addr()).await;
        other.send(b"get short\r\n").await;
        let mut first = [0];
        other.0.read_exact(&mut first).await.expect("an answer");
        if first == *b"-" {
            return hogs;
        }
    }
}

#[tokio::test]
async fn whoever_waits_for_room_for_its_answer_keeps_nobody_in_line_waiting() {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), RespConfig { max_reply_bytes: 1 << 20, ..patient() }).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let bulk = |bytes: usize| format!("${bytes}\r\n{}\r\n", "v".repeat(bytes));
    for (key, bytes) in [("long", 8_000_000), ("short", 100_000)] {
        let set = format!("*3\r\n$3\r\nset\r\n${}\r\n{key}\r\n{}", key.len(), bulk(bytes));
        client.ask(set.as_bytes(), b"+OK\r\n").await;
    }
    let push = |bytes: usize| format!("*3\r\n$5\r\nrpush\r\n$1\r\nl\r\n{}", bulk(bytes));
    client.ask(push(100_000).as_bytes(), b":1\r\n").await;
    let hogs = hogs(&server).await;
    let before = store.writes();
    store.hold_writes(true);
    client.send(b"rpush l a\r\n").await;
    store.until_writes(before + 1).await;
    // (With what pops no more than goes together: what stands behind that leads then.)
    let mut long = Raw::connect(server.local_addr()).await;
    long.send(push((1 << 20) - 1000).as_bytes()).await;
    store.until_in_line(1).await;
    let mut row = Raw::connect(server.local_addr()).await;
    row.send(format!("lpop l\r\n{}", push(2000)).as_bytes()).await;
    store.until_in_line(3).await;
    store.hold_writes(false);
    client.expect(b":2\r\n").await;
    long.expect(b":3\r\n").await;
    client.ask(b"rpush l b\r\n", b":4\r\n").await;
    drop(hogs);
    row.expect(format!("{}:3\r\n", bulk(100_000)).as_bytes()).await;
}

/// What comes when all is answered.
const END: &[u8] = b"$3\r\nend\r\n";

/// Those of one kind come together: others are refused while it is there.
const KINDS: [&str; 5] = [
    "set a 1; set a x; set a 2 ex 100; set a 3 nx; set a 4 keepttl; incr a; append a 0; getset a 5; getdel a; persist a; \
     get a; strlen a; set b 1; incr b; get b; mset a 1 b 2; setnx a 9; decrby a 2; incrbyfloat a 0.5; expire a 100",
    "lpush a x; rpush a y z; lpop a; rpop a 2; llen a; lrange a 0 -1; lpush b x; lpop b; lset a 0 w; lrem a 0 x; ltrim a 0 2",
    "hset a f 1; hset a f x; hset a f 2 g 3; hsetnx a f 4; hincrby a f 2; hincrbyfloat a f 1.5; hdel a f; hdel a f g; \
     hlen a; hmget a f g; hset a h 1; hset b f 1",
    "sadd a m; sadd a m n; srem a m; srem a m n; scard a; smismember a m n; sadd a o; sadd b m",
    "zadd a 1 m; zincrby a 2 m; zrem a m; zpopmin a; zadd a 3 n; zcard a; zscore a m; zadd a ch 1 m 2 n 1 m; zadd a nx 4 n 5 o; \
     zadd a gt 2 m; zadd a xx ch 6 o; zadd a incr 1 o; zadd b 1 m; zmscore a m n o",
];

fn commands() -> impl Strategy<Value = Vec<&'static str>> {
    let any = "del a; del a b; rename a b; type a; exists a b; incr a; lpush a x; hset a f 1; sadd a m; zadd a 1 m; set a 1";
    let some = |kind: &'static str| {
        prop::collection::vec(prop::sample::select(kind.split("; ").collect::<Vec<_>>()), 1..9)
    };
    let of_kinds = prop::sample::select(KINDS.to_vec()).prop_flat_map(some);
    let pieces = prop_oneof![3 => of_kinds, 2 => some(any).prop_map(|all| all[..1].to_vec())];
    prop::collection::vec(pieces, 1..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_pipeline_is_answered_as_its_commands_are_one_by_one(commands in commands()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = start(MemoryStore::new(false), config()).await;
            let mut client = Raw::connect(server.local_addr()).await;
            let mut one_by_one = Vec::new();
            for command in &commands {
                client.send(format!("{command}\r\necho end\r\n").as_bytes()).await;
                let said = client.until(END).await;
                one_by_one.extend(&said[..said.len() - END.len()]);
            }
            one_by_one.extend(END);
            let server = start(MemoryStore::new(true), config()).await;
            let mut client = Raw::connect(server.local_addr()).await;
            let pipeline: String = commands.iter().map(|command| format!("{command}\r\n")).collect();
            client.send(format!("{pipeline}echo end\r\n").as_bytes()).await;
            let pipelined = client.until(END).await;
            prop_assert_eq!(String::from_utf8_lossy(&pipelined), String::from_utf8_lossy(&one_by_one));
            Ok(())
        })?;
    }
}
