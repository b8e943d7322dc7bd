//! Writes: conditions, retries, and that nothing takes effect twice.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sextant_common::ErrorKind;
use sextant_common::ids::{PartitionId, Seq, TableId};
use sextant_proto::v1::WriteStatus;

use crate::testing::{Cluster, until};
use crate::{
    Condition, Misfit, OpOutcome, Operation, PNode, ReadOptions, RequestId, Returns, Told, Update,
    WriteOptions, WriteOutcome,
};

async fn write(pnode: &PNode, op: Operation) -> WriteOutcome {
    pnode.write(vec![op], WriteOptions::default()).await.unwrap()
}

async fn read(pnode: &PNode, key: &str) -> Option<Bytes> {
    pnode.get("", key.as_bytes(), ReadOptions::default()).await.unwrap().map(|r| r.value)
}

fn on(condition: Condition, op: Operation) -> Operation {
    Operation { condition, ..op }
}

fn short() -> WriteOptions {
    WriteOptions { deadline: Some(Duration::from_millis(100)), ..WriteOptions::default() }
}

#[tokio::test]
async fn what_is_written_is_read() {
    let cluster = Cluster::start(3).await;
    let (a, b) = (cluster.pnode().await, cluster.pnode().await);
    for i in 0..30 {
        let key = format!("key{i}");
        let outcome = write(&a, Operation::put("", key.clone(), "1")).await;
        assert!(outcome.applied && outcome.results[0].seq.0 > 0);
        assert_eq!(read(&b, &key).await.unwrap(), "1");
        write(&b, Operation::delete("", key.clone())).await;
        assert_eq!(read(&a, &key).await, None);
    }
}

#[tokio::test]
async fn conditions_rest_on_sstables_and_memtables() {
    let mut cluster = Cluster::start(1).await;
    cluster.add_sst(0, &[("old", Some("x"), 7), ("deleted", None, 8)]);
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    let insert = write(&pnode, Operation::insert("", "old", "y")).await;
    assert_eq!((insert.applied, insert.results[0].existed, insert.results[0].seq), (false, true, Seq(7)));
    assert!(write(&pnode, Operation::insert("", "deleted", "y")).await.applied);
    assert!(write(&pnode, Operation::insert("", "new", "y")).await.applied);
    assert!(!write(&pnode, Operation::insert("", "new", "z")).await.applied);
    let put = |value: &'static str| Operation::put("", "old", value);
    assert!(!write(&pnode, on(Condition::ValueEquals("nope".into()), put("y"))).await.applied);
    assert!(!write(&pnode, on(Condition::SeqEquals(Seq(6)), put("y"))).await.applied);
    let by_value = write(&pnode, on(Condition::ValueEquals("x".into()), put("y"))).await;
    assert!(by_value.applied);
    assert!(write(&pnode, on(Condition::SeqEquals(by_value.results[0].seq), put("z"))).await.applied);
    assert!(write(&pnode, on(Condition::SeqEquals(Seq(0)), Operation::put("", "fresh", "1"))).await.applied);
    assert!(!write(&pnode, on(Condition::Present, Operation::put("", "missing", "1"))).await.applied);
    let deleted = write(&pnode, Operation::delete_checked("", "old")).await;
    assert_eq!((deleted.applied, deleted.results[0].existed), (true, true));
    let again = write(&pnode, Operation::delete_checked("", "old")).await;
    assert_eq!((again.applied, again.results[0].applied, again.results[0].existed), (true, false, false));
}

#[tokio::test]
async fn insert_repeated_after_stale_manifest() {
    let mut cluster = Cluster::start(1).await;
    cluster.add_sst(0, &[("a", Some("x"), 1), ("z", Some("x"), 2)]);
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    write(&pnode, Operation::put("", "warm-up", "opens the session")).await;
    let searched = cluster.version(0);
    // The key is written and flushed after the INSERT has searched the SSTables.
    cluster.leader().gate.send_replace(true);
    let insert = tokio::spawn({
        let pnode = pnode.clone();
        async move { write(&pnode, Operation::insert("", "k", "mine")).await }
    });
    until("the insert is under way", || cluster.leader().state.lock().writes.len() == 2).await;
    cluster.leader().with(0, |p| p.put("k", Some("theirs"), false));
    cluster.flush(0);
    cluster.leader().gate.send_replace(false);
    let outcome = insert.await.unwrap();
    assert_eq!((outcome.applied, outcome.results[0].existed), (false, true));
    assert_eq!(read(&pnode, "k").await.unwrap(), "theirs");
    let writes = cluster.leader().state.lock().writes.clone();
    let base = |at: usize| writes[at].ops[0].base.clone().unwrap();
    assert_eq!((base(1).manifest_version, base(1).present), (searched.0, false));
    assert_eq!((base(2).manifest_version, base(2).present), (cluster.version(0).0, true));
    assert_eq!(writes[1].request_no, writes[2].request_no, "it was not executed: the number stays");
}

#[tokio::test]
async fn exists_is_void_after_a_flush_too() {
    let mut cluster = Cluster::start(1).await;
    cluster.add_sst(0, &[("k", Some("x"), 1)]);
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    write(&pnode, Operation::put("", "warm-up", "opens the session")).await;
    cluster.leader().gate.send_replace(true);
    let insert = tokio::spawn({
        let pnode = pnode.clone();
        async move { write(&pnode, Operation::insert("", "k", "mine")).await }
    });
    until("the insert is under way", || cluster.leader().state.lock().writes.len() == 2).await;
    cluster.leader().with(0, |p| p.put("k", None, true));
    cluster.flush(0);
    cluster.leader().gate.send_replace(false);
    assert!(insert.await.unwrap().applied, "the delete came first");
    assert_eq!(read(&pnode, "k").await.unwrap(), "mine");
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_under_the_same_number() {
    let cluster = Cluster::start(1).await;
    let pnode = cluster.pnode().await;
    write(&pnode, Operation::put("", "warm-up", "1")).await;
    cluster.leader().state.lock().lose_answers = 2;
    assert!(write(&pnode, Operation::insert("", "k", "v")).await.applied, "not refused as a second insert");
    let state = cluster.leader().state.lock();
    let numbers: Vec<_> = state.writes[1..].iter().map(|w| (w.session, w.request_no)).collect();
    assert!(numbers.len() == 3 && numbers.iter().all(|n| *n == numbers[0]));
    assert_eq!(state.partitions[&0].writes(), 2, "executed once");
    assert!(pnode.metrics().write_retries() >= 2);
}

#[tokio::test]
async fn a_write_under_way_follows_the_leader() {
    let cluster = Cluster::start(1).await;
    let pnode = cluster.pnode().await;
    write(&pnode, Operation::put("", "warm-up", "1")).await;
    cluster.leader().gate.send_replace(true);
    let under_way = tokio::spawn({
        let pnode = pnode.clone();
        async move { write(&pnode, Operation::put("", "k", "v")).await }
    });
    until("the write is under way", || cluster.leader().state.lock().writes.len() == 2).await;
    cluster.fail_over(0);
    cluster.memtables[0].kill();
    assert!(under_way.await.unwrap().applied);
    assert_eq!(read(&pnode, "k").await.unwrap(), "v");
}

#[tokio::test]
async fn retryable_answers_are_retried_until_the_deadline() {
    let cluster = Cluster::start(1).await;
    let pnode = cluster.pnode().await;
    write(&pnode, Operation::put("", "warm-up", "1")).await;
    let script = [WriteStatus::WriteRetry, WriteStatus::WriteNotLeader, WriteStatus::WriteOverloaded];
    cluster.leader().state.lock().write_script.extend(script);
    assert!(write(&pnode, Operation::put("", "k", "v")).await.applied);
    for (status, kind) in [
        (WriteStatus::WriteRetry, ErrorKind::Unavailable),
        (WriteStatus::WriteOverloaded, ErrorKind::Overloaded),
        (WriteStatus::WriteInvalid, ErrorKind::Invalid),
        (WriteStatus::WriteOutcomeUnknown, ErrorKind::OutcomeUnknown),
        (WriteStatus::WriteRequestTooOld, ErrorKind::OutcomeUnknown),
    ] {
        cluster.leader().state.lock().write_script = std::iter::repeat_n(status, 100_000).collect();
        // A deadline that falls between an attempt and its answer leaves the outcome unknown, and that is then said; most fall
        // into the pause between two attempts.
        let mut told = Vec::new();
        while told.len() < 20 && told.last() != Some(&kind) {
            let error = pnode.write(vec![Operation::put("", "k", "v")], short()).await.unwrap_err();
            assert!(error.kind == kind || error.kind == ErrorKind::OutcomeUnknown, "{status:?}: {error}");
            told.push(error.kind);
        }
        assert_eq!(told.last(), Some(&kind), "{status:?}");
    }
}

#[tokio::test]
async fn an_unknown_own_session_is_replaced_if_nothing_may_have_been_executed() {
    let cluster = Cluster::start(1).await;
    let pnode = cluster.pnode().await;
    write(&pnode, Operation::put("", "a", "1")).await;
    let first = cluster.leader().state.lock().writes[0].session;
    cluster.leader().with(0, |p| p.sessions.clear());
    assert!(write(&pnode, Operation::put("", "b", "1")).await.applied);
    let last = cluster.leader().state.lock().writes.last().unwrap().session;
    assert_ne!(first, last);
    // But not if an earlier attempt may have been: under a new number it could take effect twice.
    cluster.leader().state.lock().write_script.push_back(WriteStatus::WriteOutcomeUnknown);
    cluster.leader().with(0, |p| p.sessions.clear());
    let error = pnode.write(vec![Operation::put("", "c", "1")], WriteOptions::default()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutcomeUnknown);
    assert!(write(&pnode, Operation::put("", "d", "1")).await.applied, "the next write has another session");
}

#[tokio::test]
async fn a_deadline_after_sending_leaves_the_outcome_unknown_and_before_it_does_not() {
    let cluster = Cluster::start(1).await;
    let pnode = cluster.pnode().await;
    write(&pnode, Operation::put("", "warm-up", "1")).await;
    cluster.leader().gate.send_replace(true);
    // Long enough to be sent.
    let sent = WriteOptions { deadline: Some(Duration::from_secs(2)), ..WriteOptions::default() };
    let error = pnode.write(vec![Operation::put("", "k", "v")], sent).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutcomeUnknown);
    let lonely = PNode::start(cluster.env.clone(), {
        let mut config = cluster.library_config();
        config.cluster.memtable.truncate(1);
        config.cluster.memtable[0].addr = "127.0.0.1:1".into();
        config
    });
    let error = lonely.await.unwrap().write(vec![Operation::put("", "k", "v")], short()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable, "nothing was ever sent");
}

#[tokio::test]
async fn a_write_that_has_no_connection_to_leave_by_is_certainly_not_executed() {
    for coalesce in [true, false] {
        let cluster = Cluster::start(1).await;
        let pnode = cluster.pnode().await;
        pnode.core().set_coalesce(coalesce);
        write(&pnode, Operation::put("", "warm-up", "1")).await;
        cluster.memtables.iter().for_each(|memtable| memtable.kill());
        // What is on its way when the connection breaks may have arrived.
        for _ in 0..100 {
            let error = pnode.write(vec![Operation::put("", "k", "v")], short()).await.unwrap_err();
            if error.kind != ErrorKind::OutcomeUnknown {
                break;
            }
        }
        for op in [Operation::put("", "k", "v"), Operation::insert("", "k", "v")] {
            let error = pnode.write(vec![op], short()).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
            assert!(error.message.contains("partition 0, memtable server 1: "), "{error}");
        }
    }
}

#[tokio::test]
async fn writes_that_wait_for_sstables_hold_up_no_others() {
    let mut cluster = Cluster::start(1).await;
    cluster.add_sst(0, &[("cold", Some("v"), 1)]);
    let pnode = Arc::new(cluster.pnode().await);
    cluster.settled(&pnode, 0).await;
    cluster.hold_gets(true);
    // More than numbers that may be under way.
    let waiting: Vec<_> = (0..1100)
        .map(|_| {
            let pnode = pnode.clone();
            tokio::spawn(async move {
                pnode.write(vec![Operation::insert("", "cold", "w")], WriteOptions::default()).await
            })
        })
        .collect();
    until("they ask for it", || cluster.ssts.iter().map(|sst| sst.gets()).sum::<usize>() > 0).await;
    write(&pnode, Operation::put("", "k", "v")).await;
    cluster.hold_gets(false);
    for waited in waiting {
        assert!(!waited.await.unwrap().unwrap().applied);
    }
}

#[tokio::test]
async fn the_callers_own_session_and_number_are_used() {
    let cluster = Cluster::start(2).await;
    let pnode = cluster.pnode().await;
    let session = pnode.open_session(None).await.unwrap();
    for partition in 0..2 {
        assert!(cluster.leader().with(partition, |p| p.sessions.contains(&session)));
    }
    let request = Some(RequestId { session, number: 3, acked_below: 2 });
    let options = WriteOptions { request, ..WriteOptions::default() };
    let first = pnode.write(vec![Operation::insert("", "k", "v")], options).await.unwrap();
    let again = pnode.write(vec![Operation::insert("", "k", "v")], options).await.unwrap();
    assert_eq!(first, again, "the retry is told what the first one did");
    let write = cluster.leader().state.lock().writes[0].clone();
    assert_eq!((write.session, write.request_no, write.acked_below), (session, 3, 2));
    let unknown =
        WriteOptions { request: Some(RequestId { session: 99, number: 1, acked_below: 1 }), ..options };
    let error = pnode.write(vec![Operation::put("", "k", "v")], unknown).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::UnknownSession);
    for (session, number, acked_below) in [(0, 1, 1), (session, 0, 0), (session, 4, 5)] {
        let senseless = WriteOptions { request: Some(RequestId { session, number, acked_below }), ..options };
        let error = pnode.write(vec![Operation::put("", "k", "v")], senseless).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid, "{session} {number} {acked_below}");
    }
}

#[tokio::test]
async fn a_partition_without_a_leader_keeps_no_session_from_the_others() {
    let cluster = Cluster::start(2).await;
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    let lost = cluster.leader().state.lock().partitions.remove(&1).unwrap();
    let session = pnode.open_session(None).await.unwrap();
    assert!(cluster.leader().with(0, |p| p.sessions.contains(&session)));
    let request = Some(RequestId { session, number: 1, acked_below: 1 });
    let options = WriteOptions { request, ..WriteOptions::default() };
    let key = |partition: u32| (0..).map(|i| format!("k{i}")).find(|k| cluster.partition_of(k) == partition);
    let put = |partition| vec![Operation::put("", key(partition).unwrap(), "v")];
    assert!(pnode.write(put(0), options).await.unwrap().applied);
    cluster.leader().state.lock().partitions.insert(1, lost);
    until("it is opened there, too", || cluster.leader().with(1, |p| p.sessions.contains(&session))).await;
    assert!(pnode.write(put(1), options).await.unwrap().applied);
}

#[tokio::test]
async fn a_batch_is_of_one_partition_and_all_or_nothing() {
    let cluster = Cluster::start(4).await;
    let pnode = cluster.pnode().await;
    let spread = (0..20).map(|i| Operation::put("", format!("key{i}"), "1")).collect();
    let error = pnode.write(spread, WriteOptions::default()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert!(error.message.contains("{hash tag}"), "{error}");
    let tagged = |i: u32| format!("{{user}}{i}");
    let ops: Vec<Operation> = (0..20).map(|i| Operation::insert("", tagged(i), "1")).collect();
    let outcome = pnode.write(ops.clone(), WriteOptions::default()).await.unwrap();
    assert!(outcome.applied && outcome.results.iter().all(|r| r.applied));
    let mixed = vec![Operation::put("", tagged(50), "1"), ops[3].clone()];
    let outcome = pnode.write(mixed, WriteOptions::default()).await.unwrap();
    assert!(!outcome.applied && !outcome.results[0].applied && outcome.results[1].existed);
    assert_eq!(read(&pnode, &tagged(50)).await, None);
    let empty = pnode.write(vec![], WriteOptions::default()).await.unwrap();
    assert_eq!(empty, WriteOutcome { applied: true, results: Vec::<OpOutcome>::new() });
}

#[tokio::test]
async fn a_blind_put_says_that_no_sstable_has_the_key() {
    let mut cluster = Cluster::start(1).await;
    cluster.add_sst(0, &[("a", Some("x"), 1), ("z", Some("x"), 2)]);
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    write(&pnode, Operation::put("", "new", "1")).await;
    write(&pnode, Operation::put("", "a", "1")).await;
    write(&pnode, Operation::delete("", "other")).await;
    let state = cluster.leader().state.lock();
    let bases: Vec<_> = state.writes.iter().map(|w| w.ops[0].base.clone()).collect();
    assert_eq!(bases[0].as_ref().unwrap().manifest_version, state.partitions[&0].manifest.version.0);
    assert!(!bases[0].as_ref().unwrap().present);
    assert!(bases[1].is_none() && bases[2].is_none());
}

#[tokio::test]
async fn limits_of_writes_are_checked() {
    let cluster = Cluster::start(1).await;
    let pnode = cluster.pnode().await;
    let huge = Operation::put("", "k", vec![0; sextant_common::limits::VALUE_BYTES_MAX + 1]);
    for op in [Operation::put("", "", "v"), huge, Operation::put("no such name!", "k", "v")] {
        let error = pnode.write(vec![op], WriteOptions::default()).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
    }
    let unknown =
        pnode.write(vec![Operation::put("nope", "k", "v")], WriteOptions::default()).await.unwrap_err();
    assert_eq!(unknown.kind, ErrorKind::UnknownTable);
}

#[tokio::test]
async fn many_writes_at_once_share_messages_and_all_take_effect() {
    let cluster = Cluster::start(2).await;
    let pnode = cluster.pnode().await;
    let writes = (0..2000).map(|i| {
        let pnode = pnode.clone();
        let op = Operation::put("", format!("key{i}"), i.to_string());
        async move { pnode.write(vec![op], WriteOptions::default()).await.unwrap().applied }
    });
    assert!(futures::future::join_all(writes).await.into_iter().all(|applied| applied));
    let (messages, entries) = pnode.metrics().messages(crate::MessageKind::Write);
    assert!(entries >= 2000 && messages < entries / 4, "{messages} messages for {entries} writes");
    let in_partition = |p: &crate::testing::Partition| {
        p.memtables(TableId(1), 1).unwrap().iter().map(|m| m.len()).sum::<usize>()
    };
    let total: usize = (0..2).map(|partition| cluster.leader().with(partition, |p| in_partition(p))).sum();
    assert_eq!(total, 2000);
    let view = pnode.core().views.peek(PartitionId(0));
    assert!(view.manifest.table(TableId(1)).is_some());
}

#[tokio::test]
async fn a_stream_that_outlives_its_server_is_left() {
    let cluster = Cluster::start(1).await;
    let pnode = cluster.pnode().await;
    write(&pnode, Operation::put("", "k", "1")).await;
    assert_eq!(read(&pnode, "k").await.unwrap(), "1");
    cluster.leader().state.lock().incarnation += 1;
    write(&pnode, Operation::put("", "k", "2")).await;
    assert_eq!(read(&pnode, "k").await.unwrap(), "2");
}

#[tokio::test]
async fn an_update_is_made_of_what_is_there_in_either_tier() {
    let mut cluster = Cluster::start(1).await;
    cluster.add_sst(0, &[("n", Some("41"), 1), ("gone", None, 2), ("text", Some("some "), 3)]);
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    let increment =
        |key: &'static str| Operation::update("", key, Update::Increment(1)).returning(Returns::After);
    let told = async |op: Operation| write(&pnode, op).await.results.remove(0).told;
    let value = |text: &'static str| Told::Value(text.into());
    assert_eq!(told(increment("n")).await, value("42"), "from an SSTable");
    assert_eq!(told(increment("n")).await, value("43"), "from the memtable");
    assert_eq!(told(increment("gone")).await, value("1"));
    assert_eq!(told(increment("new")).await, value("1"));
    assert_eq!(told(Operation::update("", "text", Update::Append("more".into()))).await, Told::Length(9));
    // (This leader publishes before its holders have acknowledged.)
    cluster.settled(&pnode, 0).await;
    assert_eq!(read(&pnode, "text").await.unwrap(), "some more");
    assert_eq!(told(increment("text")).await, Told::Misfit(Misfit::NotAnInteger));
    let swap = Operation::put("", "n", "0").returning(Returns::Before);
    assert_eq!(told(swap).await, value("43"));
    cluster.flush(0);
    assert_eq!(told(increment("n")).await, value("1"), "flushed meanwhile");
    cluster.settled(&pnode, 0).await;
    assert_eq!(read(&pnode, "n").await.unwrap(), "1");
}

#[tokio::test]
async fn an_update_whose_answer_is_lost_takes_effect_once_and_tells_the_same() {
    let cluster = Cluster::start(1).await;
    let pnode = cluster.pnode().await;
    write(&pnode, Operation::put("", "n", "1")).await;
    cluster.leader().state.lock().lose_answers = 2;
    let op = Operation::update("", "n", Update::Increment(1)).returning(Returns::After);
    assert_eq!(write(&pnode, op).await.results[0].told, Told::Value("2".into()));
    cluster.settled(&pnode, 0).await;
    assert_eq!(read(&pnode, "n").await.unwrap(), "2");
}
