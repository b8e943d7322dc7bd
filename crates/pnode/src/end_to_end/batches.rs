//! Puts that come together: each is a write of its own, whatever becomes of the others.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use sextant_common::operation::{Lane, Lifetime, Put, WriteOutcome};
use sextant_common::{ErrorKind, Result};
use sextant_proto::v1::WriteStatus;

use crate::testing::{Cluster, until};
use crate::{Operation, PNode, ReadOptions, WriteOptions};

fn puts(keys: impl IntoIterator<Item = String>) -> Vec<Put> {
    let put =
        |key| Put { key: Bytes::from(key), value: Bytes::from_static(b"v"), lifetime: Lifetime::Unlimited };
    keys.into_iter().map(put).collect()
}

fn numbered(count: usize) -> Vec<Put> {
    puts((0..count).map(|i| format!("key{i}")))
}

/// All outcomes, by their places; each is told of once.
async fn outcomes(pnode: &PNode, puts: &[Put]) -> Vec<Result<WriteOutcome>> {
    let mut writes = pnode.puts("", puts, Lane::Pipelined).unwrap();
    let mut outcomes: Vec<Option<Result<WriteOutcome>>> = puts.iter().map(|_| None).collect();
    while let Some(done) = writes.next().await {
        for (at, outcome) in done {
            assert!(outcomes[at].replace(outcome).is_none(), "{at} twice");
        }
    }
    outcomes.into_iter().map(Option::unwrap).collect()
}

/// A p-node with a session in every partition.
async fn warm(cluster: &Cluster) -> PNode {
    let pnode = cluster.pnode().await;
    for i in 0..20 {
        let op = Operation::put("", format!("warm-up{i}"), "1");
        pnode.write(vec![op], WriteOptions::default()).await.unwrap();
    }
    cluster.leader().state.lock().writes.clear();
    pnode
}

async fn read(pnode: &PNode, key: &Bytes) -> Option<Bytes> {
    pnode.get("", key, ReadOptions::default()).await.unwrap().map(|r| r.value)
}

#[tokio::test]
async fn a_batch_travels_together_over_all_partitions_under_numbers_of_their_own() {
    let cluster = Cluster::start(3).await;
    let pnode = warm(&cluster).await;
    let before = pnode.metrics().messages(crate::MessageKind::Write).0;
    let puts = numbered(100);
    for outcome in outcomes(&pnode, &puts).await {
        assert!(outcome.unwrap().applied);
    }
    for Put { key, value, .. } in &puts {
        assert_eq!(read(&pnode, key).await.as_ref(), Some(value));
    }
    let messages = pnode.metrics().messages(crate::MessageKind::Write).0 - before;
    assert!(messages <= 3, "{messages}");
    let writes = cluster.leader().state.lock().writes.clone();
    let numbers: BTreeSet<_> = writes.iter().map(|w| (w.partition, w.session, w.request_no)).collect();
    assert_eq!((writes.len(), numbers.len()), (100, 100));
    let first_of = |partition| writes.iter().filter(|w| w.partition == partition).map(|w| w.request_no).min();
    for write in &writes {
        assert!(write.ops.len() == 1 && write.acked_below <= first_of(write.partition).unwrap());
    }
}

#[tokio::test]
async fn without_a_session_one_is_opened_and_all_are_written() {
    let cluster = Cluster::start(2).await;
    let pnode = cluster.pnode().await;
    assert!(outcomes(&pnode, &numbered(50)).await.into_iter().all(|outcome| outcome.unwrap().applied));
    let sessions = cluster.leader().state.lock().writes.iter().map(|w| w.session).collect::<BTreeSet<_>>();
    assert_eq!(sessions.len(), 2, "one a partition");
}

#[tokio::test]
async fn more_than_may_be_under_way_are_written_as_numbers_become_free() {
    let cluster = Cluster::start(1).await;
    let pnode = warm(&cluster).await;
    assert!(outcomes(&pnode, &numbered(3_000)).await.into_iter().all(|outcome| outcome.unwrap().applied));
    assert_eq!(cluster.leader().with_quietly(0, |p| p.writes()), 3_020, "each once");
}

#[tokio::test]
async fn whatever_becomes_of_one_says_nothing_about_the_others() {
    let cluster = Cluster::start(1).await;
    let pnode = warm(&cluster).await;
    let script = [WriteStatus::WriteInvalid, WriteStatus::WriteRetry, WriteStatus::WriteRequestTooOld];
    cluster.leader().state.lock().write_script.extend(script);
    let kinds: Vec<_> =
        outcomes(&pnode, &numbered(5)).await.into_iter().map(|o| o.map_err(|e| e.kind)).collect();
    assert_eq!(kinds[0], Err(ErrorKind::Invalid));
    assert!(kinds[1].as_ref().is_ok_and(|o| o.applied), "sent again");
    assert_eq!(kinds[2], Err(ErrorKind::OutcomeUnknown));
    assert!(kinds[3..].iter().all(|o| o.as_ref().is_ok_and(|o| o.applied)));
}

#[tokio::test]
async fn lost_answers_are_asked_for_again_under_the_same_numbers() {
    let cluster = Cluster::start(1).await;
    let pnode = warm(&cluster).await;
    cluster.leader().state.lock().lose_answers = 1;
    let before = cluster.leader().with_quietly(0, |p| p.writes());
    assert!(outcomes(&pnode, &numbered(40)).await.into_iter().all(|outcome| outcome.unwrap().applied));
    assert_eq!(cluster.leader().with_quietly(0, |p| p.writes()) - before, 40, "each once");
    let writes = cluster.leader().state.lock().writes.clone();
    let numbers: BTreeSet<_> = writes.iter().map(|w| w.request_no).collect();
    assert!(writes.len() > 40 && numbers.len() == 40);
}

#[tokio::test]
async fn a_batch_under_way_follows_the_leader() {
    let cluster = Cluster::start(1).await;
    let pnode = warm(&cluster).await;
    cluster.leader().gate.send_replace(true);
    let under_way = tokio::spawn({
        let pnode = pnode.clone();
        async move { outcomes(&pnode, &numbered(10)).await }
    });
    until("the batch is under way", || !cluster.leader().state.lock().writes.is_empty()).await;
    cluster.fail_over(0);
    cluster.memtables[0].kill();
    assert!(under_way.await.unwrap().into_iter().all(|outcome| outcome.unwrap().applied));
    for Put { key, value, .. } in numbered(10) {
        assert_eq!(read(&pnode, &key).await, Some(value));
    }
}

#[tokio::test]
async fn what_was_not_sent_in_time_was_certainly_not_executed() {
    let cluster = Cluster::start(1).await;
    let pnode = warm(&cluster).await;
    cluster.leader().gate.send_replace(true);
    // As many as may be under way, and more.
    let deadline = Some(Duration::from_secs(2));
    let many = numbered(1_500);
    let mut writes = pnode.writer().puts("", &many, Lane::Pipelined, deadline).unwrap();
    let mut refused = 0;
    while let Some(done) = writes.next().await {
        for (_, outcome) in done {
            match outcome.unwrap_err().kind {
                // (It says the latter if the deadline was over before there was a look at the line.)
                ErrorKind::Overloaded | ErrorKind::Unavailable => refused += 1,
                ErrorKind::OutcomeUnknown => {}
                kind => panic!("{kind:?}"),
            }
        }
    }
    assert!(refused >= 1_500 - 1_024, "{refused}");
    // Those that wait when a batch is dropped leave the line.
    let mut dropped = pnode.writer().puts("", &many, Lane::Pipelined, None).unwrap();
    assert!(futures::poll!(dropped.next()).is_pending());
    drop(dropped);
    cluster.leader().gate.send_replace(false);
    assert!(outcomes(&pnode, &numbered(10)).await.into_iter().all(|outcome| outcome.unwrap().applied));
}
