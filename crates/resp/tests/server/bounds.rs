//! Sorted sets that are queues: what was removed at an end is not passed over again, and nothing is missed for that.

use std::collections::BTreeMap;

use bytes::Bytes;
use sextant_common::key::prefix_end;
use sextant_common::object::{element_of, sortable};
use sextant_environment::rng::{Rng, SeededRng};

use super::memory::MemoryStore;
use super::objects::check;
use super::*;

async fn connected() -> (RespServer, Raw, MemoryStore) {
    let store = MemoryStore::new(false);
    let server = start(store.clone(), config()).await;
    let client = Raw::connect(server.local_addr()).await;
    (server, client, store)
}

/// Between which places of this sorted set was read last: from, and to.
fn read(store: &MemoryStore, key: &str) -> (Vec<u8>, Vec<u8>) {
    let range = store.range_read();
    let place = |at: &[u8]| element_of(at, key.as_bytes()).to_vec();
    (place(&range.start), place(&range.end))
}

fn place(score: f64, member: &str) -> Vec<u8> {
    [&sortable(score)[..], member.as_bytes()].concat()
}

/// Right behind all that begin so.
fn behind(score: f64, member: &str) -> Vec<u8> {
    prefix_end(&Bytes::from(place(score, member))).to_vec()
}

#[tokio::test]
async fn what_was_popped_is_not_passed_over_again() {
    let (_server, mut client, store) = connected().await;
    check(
        &mut client,
        &[("ZADD q 1 a 2 b 3 c 4 d 5 e 6 f 7 g 8 h 9 i", ":9|"), ("ZPOPMIN q", "*2|$1|a|$1|1|")],
    )
    .await;
    assert_eq!(read(&store, "q").0, b"", "nothing was known");
    check(&mut client, &[("ZPOPMIN q 2", "*4|$1|b|$1|2|$1|c|$1|3|")]).await;
    assert_eq!(read(&store, "q").0, place(1.0, "a"));
    check(&mut client, &[("ZRANGE q 0 0", "*1|$1|d|")]).await;
    assert_eq!(read(&store, "q").0, place(3.0, "c"));
    check(&mut client, &[("ZRANGEBYSCORE q -inf 4", "*1|$1|d|")]).await;
    assert_eq!(read(&store, "q").0, place(3.0, "c"));
    check(&mut client, &[("ZCOUNT q (3.5 4", ":1|")]).await;
    assert!(read(&store, "q").0 > place(3.5, ""), "where it was asked for");
    check(&mut client, &[("ZPOPMAX q", "*2|$1|i|$1|9|"), ("ZPOPMAX q", "*2|$1|h|$1|8|")]).await;
    assert_eq!(read(&store, "q"), (place(3.0, "c"), behind(9.0, "i")));
    check(&mut client, &[("ZRANGEBYSCORE q 7 +inf", "*1|$1|g|")]).await;
    assert_eq!(read(&store, "q").1, behind(8.0, "h"));
    check(&mut client, &[("ZREVRANK q g", ":0|"), ("ZREMRANGEBYSCORE q -inf (6", ":2|")]).await;
    check(&mut client, &[("ZPOPMIN q", "*2|$1|f|$1|6|")]).await;
    assert_eq!(read(&store, "q").0, place(5.0, "e"));
    check(&mut client, &[("ZADD q 20 x 21 y 22 z", ":3|"), ("ZREMRANGEBYRANK q 2 -1", ":2|")]).await;
    check(&mut client, &[("ZPOPMAX q", "*2|$1|x|$2|20|"), ("ZPOPMAX q", "*2|$1|g|$1|7|")]).await;
    check(&mut client, &[("EXISTS q", ":0|"), ("ZADD q 0 new", ":1|"), ("ZPOPMAX q", "*2|$3|new|$1|0|")])
        .await;
}

#[tokio::test]
async fn what_is_added_before_the_first_or_behind_the_last_is_found() {
    let (_server, mut client, _) = connected().await;
    for add in ["ZADD", "ZINCRBY", "MULTI"] {
        let added = |score: &str, member: &str| match add {
            "ZADD" => vec![(format!("ZADD q {score} {member}"), ":1|".to_owned())],
            "ZINCRBY" => vec![(format!("ZINCRBY q {score} {member}"), format!("${}|{score}|", score.len()))],
            // The long way.
            _ => vec![(
                format!("MULTI\r\nZADD q {score} {member}\r\nZCARD q\r\nEXEC"),
                "+OK|+QUEUED|+QUEUED|*2|:1|:4|".into(),
            )],
        };
        check(&mut client, &[("DEL q", if add == "ZADD" { ":0|" } else { ":1|" })]).await;
        check(&mut client, &[("ZADD q 1 a 2 b 3 c 4 d 5 e", ":5|")]).await;
        check(&mut client, &[("ZPOPMIN q", "*2|$1|a|$1|1|"), ("ZPOPMAX q", "*2|$1|e|$1|5|")]).await;
        for (score, member, first, last) in [
            ("-1", "low", "*1|$3|low|", "*1|$1|d|"),
            ("9", "high", "*1|$1|b|", "*1|$4|high|"),
            ("-inf", "lowest", "*1|$6|lowest|", "*1|$1|d|"),
            ("inf", "highest", "*1|$1|b|", "*1|$7|highest|"),
        ] {
            for (command, reply) in added(score, member) {
                check_one(&mut client, &command, &reply).await;
            }
            let rank = if first.contains(member) { ":0|" } else { ":3|" };
            check(&mut client, &[("ZRANGE q 0 0", first), ("ZRANGEBYSCORE q -inf +inf LIMIT 0 1", first)])
                .await;
            check(
                &mut client,
                &[("ZREVRANGE q 0 0", last), ("ZREVRANGEBYSCORE q +inf -inf LIMIT 0 1", last)],
            )
            .await;
            check_one(&mut client, &format!("ZRANK q {member}"), rank).await;
            let popped = format!("*2|${}|{member}|${}|{score}|", member.len(), score.len());
            check_one(&mut client, if rank == ":0|" { "ZPOPMIN q" } else { "ZPOPMAX q" }, &popped).await;
        }
    }
}

async fn check_one(client: &mut Raw, command: &str, reply: &str) {
    check(client, &[(command, reply)]).await;
}

#[tokio::test]
async fn a_read_between_bounds_that_others_disturb_is_of_one_moment() {
    let (_server, mut client, store) = connected().await;
    check(&mut client, &[("ZADD q 1 a 2 b 3 c", ":3|"), ("ZPOPMIN q", "*2|$1|a|$1|1|")]).await;
    store.disturb("q");
    check(&mut client, &[("ZRANGEBYSCORE q -inf +inf", "*2|$1|b|$1|c|")]).await;
    // Its bounds are of another version of the header, always: it does without them.
    assert_eq!(read(&store, "q").0, place(f64::NEG_INFINITY, ""));
}

#[tokio::test]
async fn what_removes_nothing_between_bounds_says_so_of_one_moment() {
    let (_server, mut client, store) = connected().await;
    check(&mut client, &[("ZADD q 5 a 7 b 9 c", ":3|"), ("ZPOPMIN q", "*2|$1|a|$1|5|")]).await;
    // While it reads others may move members to where there were none: it may not go by bounds that are no longer so.
    store.disturb("q");
    check(&mut client, &[("ZREMRANGEBYSCORE q -inf 6", ":0|")]).await;
    assert_eq!(read(&store, "q").0, place(f64::NEG_INFINITY, ""));
    check(&mut client, &[("ZCARD q", ":2|")]).await;
}

/// What a sorted set has, by names: the index of scores, and so the bounds, has no part in that.
async fn by_names(client: &mut Raw) -> BTreeMap<String, i64> {
    let names = lines(client, "ZRANGEBYLEX q - +").await;
    let mut all = BTreeMap::new();
    for name in names {
        let score = lines(client, &format!("ZMSCORE q {name}")).await.pop().unwrap();
        all.insert(name, score.parse().unwrap());
    }
    all
}

/// The elements of an array of texts.
async fn lines(client: &mut Raw, command: &str) -> Vec<String> {
    client.send(format!("{command}\r\n").as_bytes()).await;
    let line = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim_end().to_owned();
    let count: usize = line(client.until(b"\r\n").await)[1..].parse().unwrap();
    let mut all = Vec::new();
    for _ in 0..count {
        client.until(b"\r\n").await;
        all.push(line(client.until(b"\r\n").await));
    }
    all
}

#[tokio::test]
async fn whatever_is_done_the_order_of_scores_has_all_that_there_is() {
    let (_server, mut client, _) = connected().await;
    let random = SeededRng::new(7);
    let below = |n: u64| random.next_u64() % n;
    for step in 0..1500 {
        let (score, other) = (below(20), below(20));
        let (low, high) = (score.min(other), score.max(other));
        let command = match below(12) {
            0..=3 => format!("ZADD q {score} m{} {other} m{}", below(8), below(8)),
            4 => format!("ZADD q {score} m{}{}", "long".repeat(8), below(8)),
            5 => format!("ZINCRBY q -{} m{}", below(9), below(8)),
            6 => format!("ZREM q m{} m{}", below(8), below(8)),
            7 => format!("ZREMRANGEBYSCORE q {} {high}", ["-inf".into(), low.to_string()][below(2) as usize]),
            8 => format!("ZREMRANGEBYSCORE q {low} {}", ["+inf".into(), high.to_string()][below(2) as usize]),
            9 => format!("ZREMRANGEBYRANK q {} {}", below(3) as i64 - 1, below(4) as i64 - 2),
            10 => format!("ZPOPMAX q {}", below(3)),
            _ => format!("ZPOPMIN q {}", below(3)),
        };
        client.send(format!("MULTI\r\n{command}\r\n").as_bytes()).await;
        // Together with another one, alone, or not at all in a transaction.
        match below(3) {
            0 => {
                client
                    .send(format!("ZADD q {other} both\r\nZPOPMIN q\r\nEXEC\r\nECHO end\r\n").as_bytes())
                    .await
            }
            1 => client.send(b"EXEC\r\nECHO end\r\n").await,
            _ => client.send(format!("DISCARD\r\n{command}\r\nECHO end\r\n").as_bytes()).await,
        }
        client.expect_up_to(b"$3\r\nend\r\n").await;
        let there = by_names(&mut client).await;
        let mut in_order: Vec<(i64, String)> = there.into_iter().map(|(name, score)| (score, name)).collect();
        in_order.sort();
        let names: Vec<String> = in_order.iter().map(|(_, name)| name.clone()).collect();
        for all in ["ZRANGE q 0 -1", "ZRANGEBYSCORE q -inf +inf", "ZRANGEBYSCORE q -100 100"] {
            assert_eq!(lines(&mut client, all).await, names, "{step}: {command}, {all}");
        }
        let mut first = lines(&mut client, "ZRANGE q 0 1").await;
        first.extend(lines(&mut client, "ZREVRANGE q 0 1").await);
        let expected = names.iter().take(2).chain(names.iter().rev().take(2)).cloned();
        assert_eq!(first, expected.collect::<Vec<_>>(), "{step}: {command}");
    }
}
