//! Hashes, sets, sorted sets and lists, byte for byte as Redis 7.0 answers.

use super::memory::MemoryStore;
use super::*;

async fn connected() -> (RespServer, Raw) {
    let server = start(MemoryStore::new(true), config()).await;
    let client = Raw::connect(server.local_addr()).await;
    (server, client)
}

/// Each command, sent inline and answered before the next one, and its reply with `|` for line ends.
pub(super) async fn check(client: &mut Raw, dialogue: &[(&str, &str)]) {
    for (command, reply) in dialogue {
        client.send(format!("{command}\r\n").as_bytes()).await;
        let reply = reply.replace('|', "\r\n");
        let mut got = vec![0; reply.len()];
        client.0.read_exact(&mut got).await.expect(command);
        assert_eq!(String::from_utf8_lossy(&got), reply, "{command}");
    }
    client.ask(b"PING\r\n", b"+PONG\r\n").await;
}

const WRONG: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value|";

#[tokio::test]
async fn hashes() {
    let (_server, mut client) = connected().await;
    check(
        &mut client,
        &[
            ("HSET h a 1 b 2", ":2|"),
            ("HSET h b 3 c 4 c 5", ":1|"),
            ("HMSET h d 6", "+OK|"),
            ("HGET h c", "$1|5|"),
            ("HGET h nosuch", "$-1|"),
            ("HGET nosuch a", "$-1|"),
            ("HMGET h a nosuch b", "*3|$1|1|$-1|$1|3|"),
            ("HMGET nosuch a", "*1|$-1|"),
            ("HGETALL h", "*8|$1|a|$1|1|$1|b|$1|3|$1|c|$1|5|$1|d|$1|6|"),
            ("HKEYS h", "*4|$1|a|$1|b|$1|c|$1|d|"),
            ("HVALS h", "*4|$1|1|$1|3|$1|5|$1|6|"),
            ("HLEN h", ":4|"),
            ("HLEN nosuch", ":0|"),
            ("HEXISTS h a", ":1|"),
            ("HEXISTS h z", ":0|"),
            ("HSTRLEN h a", ":1|"),
            ("HSETNX h a 9", ":0|"),
            ("HSETNX h e 9", ":1|"),
            ("HINCRBY h a 41", ":42|"),
            ("HINCRBY h new -1", ":-1|"),
            ("HINCRBYFLOAT h a 0.5", "$4|42.5|"),
            ("HINCRBY h a 1", "-ERR hash value is not an integer|"),
            ("HSET h word x", ":1|"),
            ("HINCRBYFLOAT h word 1", "-ERR hash value is not a float|"),
            ("HINCRBY h b x", "-ERR value is not an integer or out of range|"),
            ("HDEL h word new nosuch new", ":2|"),
            ("HLEN h", ":5|"),
            ("TYPE h", "+hash|"),
            ("OBJECT ENCODING h", "$8|listpack|"),
            ("OBJECT REFCOUNT h", ":1|"),
            ("OBJECT NOSUCH h", "-ERR unknown subcommand 'NOSUCH'. Try OBJECT HELP.|"),
            ("HSET h", "-ERR wrong number of arguments for 'hset' command|"),
            ("HSET h a", "-ERR wrong number of arguments for 'hset' command|"),
            ("HSCAN h 0", "*2|$1|0|*10|$1|a|$4|42.5|$1|b|$1|3|$1|c|$1|5|$1|d|$1|6|$1|e|$1|9|"),
            ("HSCAN h 0 MATCH [ab] COUNT 100", "*2|$1|0|*4|$1|a|$4|42.5|$1|b|$1|3|"),
            ("HRANDFIELD h 0", "*0|"),
            ("HRANDFIELD nosuch", "$-1|"),
            ("HDEL h a b c d e", ":5|"),
            ("EXISTS h", ":0|"),
            ("HDEL h a", ":0|"),
            ("HSET h a 1", ":1|"),
            ("HRANDFIELD h -2 WITHVALUES", "*4|$1|a|$1|1|$1|a|$1|1|"),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_key_is_of_one_kind() {
    let (_server, mut client) = connected().await;
    check(
        &mut client,
        &[
            ("HSET h a 1", ":1|"),
            ("GET h", WRONG),
            ("STRLEN h", WRONG),
            ("INCR h", WRONG),
            ("APPEND h x", WRONG),
            ("GETSET h x", WRONG),
            ("GETDEL h", WRONG),
            ("SET h x GET", WRONG),
            ("SADD h x", WRONG),
            ("LPUSH h x", WRONG),
            ("ZADD h 1 x", WRONG),
            ("ZSCORE h x", WRONG),
            ("SISMEMBER h x", WRONG),
            ("MGET h", "*1|$-1|"),
            ("SETNX h x", ":0|"),
            ("HGET h a", "$1|1|"),
            ("EXPIRE h 100", ":1|"),
            ("TTL h", ":100|"),
            ("HSET h b 2", ":1|"),
            ("TTL h", ":100|"),
            ("PERSIST h", ":1|"),
            ("TTL h", ":-1|"),
            ("HLEN h", ":2|"),
            ("COPY h i", ":1|"),
            ("HDEL h a", ":1|"),
            ("HGETALL i", "*4|$1|a|$1|1|$1|b|$1|2|"),
            ("RENAME i j", "+OK|"),
            ("HGETALL i", "*0|"),
            ("HGETALL j", "*4|$1|a|$1|1|$1|b|$1|2|"),
            ("SET h plain", "+OK|"),
            ("GET h", "$5|plain|"),
            ("HGET h b", WRONG),
            ("DEL h j", ":2|"),
            ("HSET h b 3", ":1|"),
            ("HGETALL h", "*2|$1|b|$1|3|"),
            ("SET plain 1", "+OK|"),
            ("HSET plain a 1", WRONG),
            ("HGETALL plain", WRONG),
            ("SCAN 0 TYPE hash COUNT 1000", "*2|"),
        ][..38],
    )
    .await;
}

#[tokio::test]
async fn sets() {
    let (_server, mut client) = connected().await;
    check(
        &mut client,
        &[
            ("SADD s a b c b", ":3|"),
            ("SADD s a", ":0|"),
            ("SCARD s", ":3|"),
            ("SMEMBERS s", "*3|$1|a|$1|b|$1|c|"),
            ("SISMEMBER s a", ":1|"),
            ("SISMEMBER s z", ":0|"),
            ("SMISMEMBER s a z c", "*3|:1|:0|:1|"),
            ("SREM s a z", ":1|"),
            ("SADD t{s} b d", ":2|"),
            ("SADD u b e", ":2|"),
            ("SINTER s u", "*1|$1|b|"),
            ("SUNION s u", "*3|$1|b|$1|c|$1|e|"),
            ("SDIFF s u nosuch", "*1|$1|c|"),
            ("SINTER s nosuch", "*0|"),
            ("SINTER s u s u u", "*1|$1|b|"),
            ("SINTER s s nosuch", "*0|"),
            ("SDIFF s s", "*0|"),
            ("SDIFF u s s", "*1|$1|e|"),
            ("SUNIONSTORE d s u", ":3|"),
            ("SMEMBERS d", "*3|$1|b|$1|c|$1|e|"),
            ("SINTERSTORE d s nosuch", ":0|"),
            ("EXISTS d", ":0|"),
            ("SMOVE s u c", ":1|"),
            ("SMOVE s u c", ":0|"),
            ("SMEMBERS u", "*3|$1|b|$1|c|$1|e|"),
            ("SMEMBERS s", "*1|$1|b|"),
            ("SPOP s", "$1|b|"),
            ("SPOP s", "$-1|"),
            ("EXISTS s", ":0|"),
            ("SPOP u -1", "-ERR value is out of range, must be positive|"),
            ("SRANDMEMBER u 0", "*0|"),
            ("SPOP u 10", "*3|"),
        ][..27],
    )
    .await;
}

#[tokio::test]
async fn sorted_sets() {
    let (_server, mut client) = connected().await;
    check(
        &mut client,
        &[
            ("ZADD z 1 a 2 b 3.14 c", ":3|"),
            ("ZADD z CH 5 a 2 b", ":1|"),
            ("ZADD z NX 9 a 4 d", ":1|"),
            ("ZADD z XX 1 a 4 e", ":0|"),
            ("ZADD z GT CH 0 a", ":0|"),
            ("ZADD z LT CH 0.5 a", ":1|"),
            ("ZADD z INCR 1 a", "$3|1.5|"),
            ("ZADD z NX INCR 1 a", "$-1|"),
            ("ZADD z NX XX 1 a", "-ERR XX and NX options at the same time are not compatible|"),
            ("ZADD z x a", "-ERR value is not a valid float|"),
            ("ZINCRBY z -0.5 a", "$1|1|"),
            ("ZSCORE z c", "$18|3.1400000000000001|"),
            ("ZSCORE z nosuch", "$-1|"),
            ("ZMSCORE z a nosuch", "*2|$1|1|$-1|"),
            ("ZCARD z", ":4|"),
            ("ZRANGE z 0 -1", "*4|$1|a|$1|b|$1|c|$1|d|"),
            ("ZRANGE z 1 2 WITHSCORES", "*4|$1|b|$1|2|$1|c|$18|3.1400000000000001|"),
            ("ZRANGE z 0 0 REV", "*1|$1|d|"),
            ("ZREVRANGE z 0 1", "*2|$1|d|$1|c|"),
            ("ZRANGE z (1 3 BYSCORE", "*1|$1|b|"),
            ("ZRANGE z +inf 2 BYSCORE REV LIMIT 1 2", "*2|$1|c|$1|b|"),
            ("ZRANGEBYSCORE z -inf +inf LIMIT 1 1", "*1|$1|b|"),
            ("ZREVRANGEBYSCORE z 3.14 1 WITHSCORES LIMIT 0 1", "*2|$1|c|$18|3.1400000000000001|"),
            ("ZCOUNT z 2 (4", ":2|"),
            ("ZRANGE z [b (d BYLEX", "*2|$1|b|$1|c|"),
            ("ZRANGEBYLEX z - +", "*4|$1|a|$1|b|$1|c|$1|d|"),
            ("ZREVRANGEBYLEX z + [c", "*2|$1|d|$1|c|"),
            ("ZRANGEBYLEX z + -", "*0|"),
            ("ZLEXCOUNT z (a +", ":3|"),
            ("ZRANK z c", ":2|"),
            ("ZREVRANK z c", ":1|"),
            ("ZRANK z nosuch", "$-1|"),
            (
                "ZRANGE z 0 1 LIMIT 0 1",
                "-ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX|",
            ),
            ("ZRANGE z 0 1 LIMIT 1 -1", "*2|$1|a|$1|b|"),
            (
                "ZREVRANGE z 0 1 LIMIT 0 1",
                "-ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX|",
            ),
            (
                "ZRANGEBYLEX z - + WITHSCORES",
                "-ERR syntax error, WITHSCORES not supported in combination with BYLEX|",
            ),
            ("ZRANGE z 0 -1 BYSCORE BYLEX", "-ERR syntax error|"),
            ("ZRANGE z 0 -1 REV REV", "-ERR syntax error|"),
            (
                "ZRANGE z ((1 0 BYLEX WITHSCORES",
                "-ERR syntax error, WITHSCORES not supported in combination with BYLEX|",
            ),
            ("ZRANGEBYSCORE z x 1", "-ERR min or max is not a float|"),
            ("ZRANGEBYLEX z a [b", "-ERR min or max not valid string range item|"),
            ("ZSCAN z 0 MATCH [ab]", "*2|$1|0|*4|$1|a|$1|1|$1|b|$1|2|"),
            ("ZPOPMIN z", "*2|$1|a|$1|1|"),
            ("ZPOPMAX z 2", "*4|$1|d|$1|4|$1|c|$18|3.1400000000000001|"),
            ("ZADD z 1 a 2 aa 3 c", ":3|"),
            ("ZREMRANGEBYSCORE z 2 (3", ":2|"),
            ("ZREMRANGEBYRANK z 0 0", ":1|"),
            ("ZREM z nosuch c", ":1|"),
            ("EXISTS z", ":0|"),
            ("ZPOPMIN z", "*0|"),
            ("ZADD z -inf low inf high", ":2|"),
            ("ZRANGE z 0 -1 WITHSCORES", "*4|$3|low|$4|-inf|$4|high|$3|inf|"),
            ("ZINCRBY z -inf high", "-ERR resulting score is not a number (NaN)|"),
            ("TYPE z", "+zset|"),
            ("HELLO 3", "%7|"),
        ][..51],
    )
    .await;
}

#[tokio::test]
async fn lists() {
    let (_server, mut client) = connected().await;
    check(
        &mut client,
        &[
            ("RPUSH l b c", ":2|"),
            ("LPUSH l a z", ":4|"),
            ("LPUSHX nosuch a", ":0|"),
            ("LRANGE l 0 -1", "*4|$1|z|$1|a|$1|b|$1|c|"),
            ("LRANGE l -2 10", "*2|$1|b|$1|c|"),
            ("LRANGE l 3 1", "*0|"),
            ("LLEN l", ":4|"),
            ("LINDEX l 0", "$1|z|"),
            ("LINDEX l -1", "$1|c|"),
            ("LINDEX l 4", "$-1|"),
            ("LSET l 1 A", "+OK|"),
            ("LSET l 9 A", "-ERR index out of range|"),
            ("LSET nosuch 0 A", "-ERR no such key|"),
            ("LINSERT l BEFORE b x", ":5|"),
            ("LINSERT l AFTER c x", ":6|"),
            ("LINSERT l AFTER nosuch x", ":-1|"),
            ("LRANGE l 0 -1", "*6|$1|z|$1|A|$1|x|$1|b|$1|c|$1|x|"),
            ("LREM l 1 x", ":1|"),
            ("LREM l -1 x", ":1|"),
            ("LRANGE l 0 -1", "*4|$1|z|$1|A|$1|b|$1|c|"),
            ("LTRIM l 1 -2", "+OK|"),
            ("LRANGE l 0 -1", "*2|$1|A|$1|b|"),
            ("LMOVE l m LEFT RIGHT", "$1|A|"),
            ("RPOPLPUSH l m", "$1|b|"),
            ("LRANGE m 0 -1", "*2|$1|b|$1|A|"),
            ("RPOPLPUSH m m", "$1|A|"),
            ("LRANGE m 0 -1", "*2|$1|A|$1|b|"),
            ("EXISTS l", ":0|"),
            ("LPOP l", "$-1|"),
            ("LPOP l 2", "*-1|"),
            ("RPUSH l 1 2 3", ":3|"),
            ("RPOP l 2", "*2|$1|3|$1|2|"),
            ("LPOP l 0", "*0|"),
            ("LPOP l", "$1|1|"),
            ("TYPE l", "+none|"),
            ("LTRIM m 5 9", "+OK|"),
            ("EXISTS m", ":0|"),
        ],
    )
    .await;
}

#[tokio::test]
async fn transactions_take_objects_too() {
    let (_server, mut client) = connected().await;
    let all = "MULTI\r\nHSET h a 1 b 2\r\nHINCRBY h a 4\r\nHGET h a\r\nHDEL h a b\r\nEXISTS h\r\nHSET h c 1\r\nHGETALL h\r\n\
        ZADD z 1 x\r\nZRANGE z 0 -1 WITHSCORES\r\nSADD s m\r\nSMEMBERS s\r\nGET h\r\nSET plain 1\r\nRPUSH l 1 2\r\nLPOP l\r\nEXEC\r\n";
    let replies = "*15\r\n:2\r\n:5\r\n$1\r\n5\r\n:2\r\n:0\r\n:1\r\n*2\r\n$1\r\nc\r\n$1\r\n1\r\n:1\r\n*2\r\n$1\r\nx\r\n$1\r\n1\r\n:1\r\n\
        *1\r\n$1\r\nm\r\n-WRONGTYPE Operation against a key holding the wrong kind of value\r\n+OK\r\n:2\r\n$1\r\n1\r\n";
    let queued = "+QUEUED\r\n".repeat(15);
    client.ask(all.as_bytes(), format!("+OK\r\n{queued}{replies}").as_bytes()).await;
    check(
        &mut client,
        &[
            ("HGETALL h", "*2|$1|c|$1|1|"),
            ("LRANGE l 0 -1", "*1|$1|2|"),
            ("MULTI", "+OK|"),
            ("SADD twice a a b", "+QUEUED|"),
            ("SREM twice a a", "+QUEUED|"),
            ("ZADD t 1 a 2 a", "+QUEUED|"),
            ("ZREM t a a", "+QUEUED|"),
            ("HSET i a 1 a 2", "+QUEUED|"),
            ("HDEL i a a", "+QUEUED|"),
            ("EXEC", "*6|:2|:1|:1|:1|:1|:1|"),
            ("SMEMBERS twice", "*1|$1|b|"),
            ("WATCH h", "+OK|"),
            ("HSET h c 2", ":0|"),
            ("MULTI", "+OK|"),
            ("HSET h d 3", "+QUEUED|"),
            ("EXEC", "*-1|"),
            ("HGETALL h", "*2|$1|c|$1|2|"),
        ],
    )
    .await;
}

#[tokio::test]
async fn large_objects_come_in_pages_and_the_third_protocol_has_types() {
    let (_server, mut client) = connected().await;
    for i in 0..300 {
        let reply = format!(":{}\r\n", 2);
        client.ask(format!("HSET h f{i:03} {i} g{i:03} x\r\n").as_bytes(), reply.as_bytes()).await;
    }
    check(&mut client, &[("HLEN h", ":600|"), ("OBJECT ENCODING h", "$9|hashtable|")]).await;
    let (mut cursor, mut found) = ("0".to_owned(), 0);
    loop {
        client.send(format!("HSCAN h {cursor} COUNT 100 MATCH f*\r\n").as_bytes()).await;
        let mut lines = Vec::new();
        let mut line = Vec::new();
        let (mut left, mut stage) = (3, 0);
        // "*2", the length and the text of the cursor, then "*n" and two lines for each of its elements.
        while left > 0 {
            let mut byte = [0];
            client.0.read_exact(&mut byte).await.unwrap();
            line.push(byte[0]);
            if line.ends_with(b"\r\n") {
                let text = String::from_utf8(std::mem::take(&mut line)).unwrap().trim_end().to_owned();
                left -= 1;
                if left == 0 && stage == 0 {
                    (cursor, left, stage) = (text.clone(), 1, 1);
                } else if left == 0 && stage == 1 {
                    (left, stage) = (2 * text[1..].parse::<usize>().unwrap(), 2);
                    found += left / 4;
                }
                lines.push(text);
            }
        }
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(found, 300);
    client.send(b"HELLO 3\r\n").await;
    client.expect(b"%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:1\r\n").await;
    client
        .expect(b"$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n")
        .await;
    check(
        &mut client,
        &[
            ("HSET i a 1", ":1|"),
            ("HGETALL i", "%1|$1|a|$1|1|"),
            ("HGET i b", "_|"),
            ("SADD s a", ":1|"),
            ("SMEMBERS s", "~1|$1|a|"),
            ("ZADD z 1.5 a", ":1|"),
            ("ZSCORE z a", ",1.5|"),
            ("ZRANGE z 0 -1 WITHSCORES", "*1|*2|$1|a|,1.5|"),
            ("HRANDFIELD i 1 WITHVALUES", "*1|*2|$1|a|$1|1|"),
            ("ZPOPMIN z", "*2|$1|a|,1.5|"),
            ("LPOP nosuch", "_|"),
        ],
    )
    .await;
}

#[tokio::test]
async fn what_makes_no_sense_is_said_when_there_is_an_object_to_use_it_on() {
    const NO_INTEGER: &str = "-ERR value is not an integer or out of range|";
    const OUT_OF_RANGE: &str =
        "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807|";
    let (_server, mut client) = connected().await;
    check(
        &mut client,
        &[
            ("RPUSH l a", ":1|"),
            ("SADD s a", ":1|"),
            ("HSET h f v", ":1|"),
            ("LINDEX nosuch x", "$-1|"),
            ("LINDEX l x", NO_INTEGER),
            ("LINDEX s x", WRONG),
            ("LSET nosuch x y", "-ERR no such key|"),
            ("LSET l x y", NO_INTEGER),
            ("LSET s x y", WRONG),
            ("SSCAN nosuch 0 FOO", "*2|$1|0|*0|"),
            ("HSCAN nosuch 0 COUNT x", "*2|$1|0|*0|"),
            ("ZSCAN s 0 FOO", WRONG),
            ("SSCAN s 0 FOO", "-ERR syntax error|"),
            ("SSCAN nosuch x", "-ERR invalid cursor|"),
            ("MULTI", "+OK|"),
            ("LINDEX l x", "+QUEUED|"),
            ("LINDEX l 0", "+QUEUED|"),
            ("EXEC", "*2|-ERR value is not an integer or out of range|$1|a|"),
            ("HRANDFIELD h -9223372036854775808", OUT_OF_RANGE),
            ("SRANDMEMBER nosuch -9223372036854775808", OUT_OF_RANGE),
            ("HRANDFIELD h 9223372036854775807 WITHVALUES", "-ERR value is out of range|"),
            ("HRANDFIELD h 9223372036854775807 x", "-ERR syntax error|"),
            ("HRANDFIELD h 9223372036854775807", "*1|$1|f|"),
        ],
    )
    .await;
}

#[tokio::test]
async fn an_object_that_is_too_long_to_be_read_at_once_is_told_page_by_page_and_its_names_in_one() {
    const FIELDS: usize = 9;
    let (_server, mut client) = connected().await;
    let value = "v".repeat(8_000_000);
    for at in 0..FIELDS {
        let set = format!("*4\r\n$4\r\nHSET\r\n$1\r\nh\r\n$1\r\n{at}\r\n${}\r\n{value}\r\n", value.len());
        client.ask(set.as_bytes(), b":1\r\n").await;
    }
    let (mut cursor, mut pages) = ("0".to_owned(), 0);
    while pages == 0 || cursor != "0" {
        client.send(format!("HSCAN h {cursor} COUNT 1 MATCH nosuch\r\n").as_bytes()).await;
        client.expect(b"*2\r\n$").await;
        client.expect_up_to(b"\r\n").await;
        let text = client.until(b"\r\n").await;
        cursor = String::from_utf8(text).unwrap().trim_end().to_owned();
        client.expect(b"*0\r\n").await;
        pages += 1;
        assert!(pages <= FIELDS + 1, "it comes to an end");
    }
    assert!(pages >= FIELDS, "each is longer than a page");
    let names: String = (0..FIELDS).map(|at| format!("$1\r\n{at}\r\n")).collect();
    client.ask(b"HKEYS h\r\n", format!("*{FIELDS}\r\n{names}").as_bytes()).await;
    client.ask(b"HRANDFIELD h 9\r\nHLEN h\r\n", b"*9\r\n").await;
    client.expect_up_to(b":9\r\n").await;
    client.ask(b"HRANDFIELD h -1\r\n", b"*1\r\n$1\r\n").await;
    client.expect_up_to(b"\r\n").await;
}

#[tokio::test]
async fn a_page_of_an_object_is_read_as_one_page_of_the_store_while_others_write_it() {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let fields: String = (100..300).map(|at| format!(" {at} x")).collect();
    client.ask(format!("HSET many{fields}\r\n").as_bytes(), b":200\r\n").await;
    let value = "v".repeat(300 * 1024);
    for at in 0..5 {
        let set = format!("*4\r\n$4\r\nHSET\r\n$4\r\nlong\r\n$1\r\n{at}\r\n${}\r\n{value}\r\n", value.len());
        client.ask(set.as_bytes(), b":1\r\n").await;
    }
    for (key, elements) in [("many", 7), ("long", 3)] {
        store.disturb(key);
        let before = store.range_reads();
        client.send(format!("HSCAN {key} 0 COUNT 100\r\n").as_bytes()).await;
        client.expect(b"*2\r\n$").await;
        client.expect_up_to(b"\r\n").await;
        client.expect_up_to(b"\r\n").await;
        client.expect(format!("*{}\r\n", 2 * elements).as_bytes()).await;
        for _ in 0..4 * elements {
            client.expect_up_to(b"\r\n").await;
        }
        assert_eq!(store.range_reads() - before, 1, "{key}");
    }
}

#[tokio::test]
async fn ranks_are_counted_in_few_pages() {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), config()).await;
    store.give_pages_of(10_000);
    let mut client = Raw::connect(server.local_addr()).await;
    let members: String = (0..5000).map(|at| format!(" {at} m{at:04}")).collect();
    client.ask(format!("ZADD z{members}\r\n").as_bytes(), b":5000\r\n").await;
    let before = store.range_reads();
    client.ask(b"ZRANK z m2000\r\n", b":2000\r\n").await;
    assert_eq!(
        store.range_reads() - before,
        5,
        "128 and 1,024 on either side, and what is left on the nearer one"
    );
}

#[tokio::test]
async fn ranks_in_a_transaction_look_at_what_it_has_changed_as_far_as_they_count() {
    const MEMBERS: usize = 6000;
    const RANKS: usize = 1200;
    let (_server, mut client) = connected().await;
    let members: String = (0..MEMBERS).map(|at| format!(" {at} m{at:04}")).collect();
    let rank = format!("ZRANK z m{}\r\n", MEMBERS / 2).repeat(RANKS);
    client.send(format!("MULTI\r\nZADD z{members}\r\n{rank}EXEC\r\n").as_bytes()).await;
    client.expect(b"+OK\r\n").await;
    client.expect("+QUEUED\r\n".repeat(1 + RANKS).as_bytes()).await;
    client.expect(format!("*{}\r\n:{MEMBERS}\r\n", 1 + RANKS).as_bytes()).await;
    client.expect(format!(":{}\r\n", MEMBERS / 2).repeat(RANKS).as_bytes()).await;
}

#[tokio::test]
async fn pages_of_an_object_have_what_a_transaction_has_changed() {
    let (_server, mut client) = connected().await;
    let fields: String = (10..30).map(|at| format!(" {at} x")).collect();
    client.ask(format!("HSET h{fields}\r\n").as_bytes(), b":20\r\n").await;
    let changes = "HSET h 00 new 105 new 99 new\r\nHDEL h 10 11 12 13 14 15 16 17\r\n";
    client.send(format!("MULTI\r\n{changes}HSCAN h 0\r\nEXEC\r\n").as_bytes()).await;
    client
        .expect(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n:3\r\n:8\r\n*2\r\n$1\r\n0\r\n*30\r\n")
        .await;
    let pair =
        |name: &str, value: &str| format!("${}\r\n{name}\r\n${}\r\n{value}\r\n", name.len(), value.len());
    let left: String = (18..30).map(|at| pair(&at.to_string(), "x")).collect();
    let all = format!("{}{}{left}{}", pair("00", "new"), pair("105", "new"), pair("99", "new"));
    client.expect(all.as_bytes()).await;
}

#[tokio::test]
async fn ranks_are_counted_from_the_nearer_end() {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let members: String = (0..2000).map(|at| format!(" {at} m{at:04}")).collect();
    client.ask(format!("ZADD z{members}\r\n").as_bytes(), b":2000\r\n").await;
    for (command, rank) in [
        ("ZRANK z m0000", 0),
        ("ZRANK z m0150", 150),
        ("ZREVRANK z m0150", 1849),
        ("ZRANK z m1000", 1000),
        ("ZREVRANK z m1000", 999),
        ("ZRANK z m1999", 1999),
        ("ZREVRANK z m1999", 0),
    ] {
        client.ask(format!("{command}\r\n").as_bytes(), format!(":{rank}\r\n").as_bytes()).await;
    }
    let before = store.range_reads();
    client.ask(b"ZRANK z m1990\r\n", b":1990\r\n").await;
    let pages = 128u64.div_ceil(7) + 9u64.div_ceil(7) + 1;
    assert!(store.range_reads() - before <= pages, "in pages of 7");
    client.send(b"MULTI\r\nZREM z m1999 m0000\r\nZADD z 1500.5 new\r\nZRANK z m1998\r\nZREVRANK z new\r\nEXEC\r\n").await;
    client
        .expect(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*4\r\n:2\r\n:1\r\n:1998\r\n:498\r\n")
        .await;
}

#[tokio::test]
async fn one_of_many_elements_is_chosen_out_of_a_thousand_and_of_some_thousand_members_out_of_all() {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), config()).await;
    let mut client = Raw::connect(server.local_addr()).await;
    let members: String = (0..3000).map(|at| format!(" m{at:04}")).collect();
    client.ask(format!("SADD s{members}\r\n").as_bytes(), b":3000\r\n").await;
    let members: String = (0..10_001).map(|at| format!(" n{at:04}")).collect();
    client.ask(format!("SADD many{members}\r\n").as_bytes(), b":10001\r\n").await;
    let fields: String = (0..3000).map(|at| format!(" f{at:04} v")).collect();
    client.ask(format!("HSET h{fields}\r\n").as_bytes(), b":3000\r\n").await;
    let scored: String = (0..3000).map(|at| format!(" {at} z{at:04}")).collect();
    client.ask(format!("ZADD z{scored}\r\n").as_bytes(), b":3000\r\n").await;
    // (The first and the last one, and a part that may begin again at the start.)
    let part = ..=1000u64.div_ceil(7) + 2 + 2;
    let all = ..=3000u64.div_ceil(7) + 1;
    for (command, last, pages) in [
        ("SRANDMEMBER many", 1, part),
        ("SPOP many", 1, part),
        ("HRANDFIELD h 1 WITHVALUES", 2, part),
        ("SRANDMEMBER s", 1, all),
        ("SPOP s", 1, all),
        ("HRANDFIELD h", 1, all),
        ("ZRANDMEMBER z", 1, all),
    ] {
        let before = store.range_reads();
        client.send(format!("{command}\r\n").as_bytes()).await;
        client.expect_up_to(b"$5\r\n").await;
        for _ in 0..last {
            client.expect_up_to(b"\r\n").await;
        }
        let read = store.range_reads() - before;
        assert!(
            pages.contains(&read) && (pages == part || read > 3000 / 7),
            "{command}, in pages of 7: {read}"
        );
        client.send(b"ECHO end\r\n").await;
        client.expect_up_to(b"$3\r\nend\r\n").await;
    }
    // Those that go together read them once.
    let before = store.range_reads();
    client.send(format!("{}ECHO end\r\n", "SPOP s\r\n".repeat(20)).as_bytes()).await;
    client.expect_up_to(b"$3\r\nend\r\n").await;
    // (The first one may have been under way alone; and with those that were removed it is read a little further.)
    let pages = 3 * (3000u64.div_ceil(7) + 1);
    assert!(store.range_reads() - before <= pages, "in pages of 7");
    client.ask(b"SCARD s\r\n", b":2979\r\n").await;
}

#[tokio::test]
async fn under_a_name_that_is_too_long_for_any_element_there_is_nothing() {
    // Whether what is read is at hand.
    for fast in [true, false] {
        let server = start(MemoryStore::new(fast), config()).await;
        let mut client = Raw::connect(server.local_addr()).await;
        let long = "m".repeat(16 * 1024);
        let reads = [
            ("HGET h LONG", "$-1|"),
            ("HMGET h a LONG b LONG", "*4|$1|1|$-1|$1|2|$-1|"),
            ("HMGET h LONG", "*1|$-1|"),
            ("HEXISTS h LONG", ":0|"),
            ("HSTRLEN h LONG", ":0|"),
            ("HDEL h LONG", ":0|"),
            ("SISMEMBER s LONG", ":0|"),
            ("SMISMEMBER s LONG a", "*2|:0|:1|"),
            ("SREM s LONG LONG", ":0|"),
            ("SMOVE s s2 LONG", ":0|"),
            ("ZSCORE z LONG", "$-1|"),
            ("ZMSCORE z a LONG", "*2|$1|1|$-1|"),
            ("ZRANK z LONG", "$-1|"),
            ("ZREVRANK z LONG", "$-1|"),
            ("ZREM z LONG", ":0|"),
        ];
        check(&mut client, &[("HSET h a 1 b 2", ":2|"), ("SADD s a b", ":2|"), ("ZADD z 1 a 2 b", ":2|")])
            .await;
        for (command, reply) in reads {
            let asked = command.replace("LONG", &long);
            check(&mut client, &[(&asked, reply)]).await;
            // In a transaction, together with one that reads the same.
            let all = ["MULTI", &asked, &asked, "EXEC"].join("\r\n");
            let replies = format!("+OK|+QUEUED|+QUEUED|*2|{reply}{reply}");
            check(&mut client, &[(&all, &replies)]).await;
            // Of another kind, and where there is no object.
            let (name, key) = (command.split(' ').next().unwrap(), command.split(' ').nth(1).unwrap());
            let other = if key == "h" { "s" } else { "h" };
            let asked_of =
                |new: &str| asked.replacen(&format!("{name} {key} "), &format!("{name} {new} "), 1);
            check(&mut client, &[(&asked_of(other), WRONG)]).await;
            let nothing = match reply.as_bytes() {
                [b'*', ..] => continue,
                _ => reply,
            };
            check(&mut client, &[(&asked_of("nosuch"), nothing)]).await;
        }
        let removed = [
            (format!("HDEL h {long} a"), ":1|"),
            (format!("SREM s a {long}"), ":1|"),
            (format!("ZREM z {long} a {long}"), ":1|"),
        ];
        for (command, reply) in &removed {
            check(&mut client, &[(command, reply)]).await;
        }
        check(&mut client, &[("HLEN h", ":1|"), ("SCARD s", ":1|"), ("ZCARD z", ":1|")]).await;
        // What is written may not be so long.
        let refused = "-ERR a field or member of this key has up to 16364 bytes, not 16384|";
        for command in [format!("HSET h {long} v"), format!("SADD s {long}"), format!("ZADD z 1 {long}")] {
            check(&mut client, &[(&command, refused)]).await;
        }
    }
}
