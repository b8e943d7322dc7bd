//! Writes are numbered within a session: however often one is sent, it takes effect once, or its outcome is said to be unknown.

use futures::future::join_all;
use sextant_client::{Client, ClientOptions};
use sextant_common::ErrorKind;

use super::server::Fault;
use super::{Cluster, cluster, impatient};

#[tokio::test(start_paused = true)]
async fn a_write_whose_answer_is_lost_takes_effect_once() {
    let Cluster { client, first, second, .. } = cluster(impatient()).await;
    first.fail_next([Fault::LoseReply]);
    second.fail_next([Fault::LoseReply]);
    let outcome = client.insert("", "k", "v").await.unwrap();
    assert!(outcome.applied, "the retry got the answer of the first attempt, not \"exists\"");
    let store = first.store.lock();
    assert_eq!(store.executed, 1);
    assert!(store.requests.len() >= 3);
    assert!(
        store.requests.iter().all(|r| (r.session, r.number, r.acked_below) == (1, 1, 1)),
        "{:?}",
        store.requests
    );
}

#[tokio::test(start_paused = true)]
async fn without_sessions_a_lost_answer_is_an_unknown_outcome() {
    let options = ClientOptions { sessions: false, ..impatient() };
    let Cluster { client, first, .. } = cluster(options).await;
    first.fail_next([Fault::LoseReply]);
    assert_eq!(client.put("", "k", "v").await.unwrap_err().kind, ErrorKind::OutcomeUnknown);
    assert_eq!(first.store.lock().executed, 1);
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_session_is_replaced_before_anything_was_executed() {
    let Cluster { client, first, .. } = cluster(impatient()).await;
    client.put("", "a", "1").await.unwrap();
    first.store.lock().known_sessions.clear();
    client.put("", "a", "2").await.unwrap();
    client.put("", "a", "3").await.unwrap();
    let store = first.store.lock();
    assert_eq!((store.sessions_opened, store.executed), (2, 3));
}

#[tokio::test(start_paused = true)]
async fn a_session_forgotten_after_a_lost_answer_leaves_the_outcome_unknown() {
    let Cluster { client, first, second } = cluster(impatient()).await;
    client.put("", "a", "1").await.unwrap();
    first.fail_next([Fault::LoseReply]);
    second.fail_next([Fault::Refuse(ErrorKind::UnknownSession)]);
    let error = client.put("", "a", "2").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutcomeUnknown);
    assert_eq!(first.store.lock().executed, 2, "executed once, and not again in a new session");
}

/// So many at a time need five sessions.
const WRITERS: usize = 1100;

async fn write_all(client: &Client) {
    for result in join_all((0..WRITERS).map(|_| client.put("", "k", "v"))).await {
        result.unwrap();
    }
}

/// With a client that has several sessions, none of which the servers know any more.
async fn rested() -> Cluster {
    let cluster = cluster(impatient()).await;
    // Nobody is answered before all are under way.
    cluster.first.fail_next(vec![Fault::Hang; WRITERS]);
    write_all(&cluster.client).await;
    assert_eq!(cluster.first.store.lock().sessions_opened, 5);
    cluster.first.store.lock().known_sessions.clear();
    cluster
}

#[tokio::test(start_paused = true)]
async fn a_write_after_a_rest_needs_one_new_session_however_many_have_expired() {
    let Cluster { client, first, .. } = rested().await;
    client.put("", "k", "v").await.unwrap();
    assert_eq!(first.store.lock().sessions_opened, 6);
}

#[tokio::test(start_paused = true)]
async fn many_writes_after_a_rest_all_take_effect_once() {
    let Cluster { client, first, .. } = rested().await;
    write_all(&client).await;
    assert_eq!(first.store.lock().executed, 2 * WRITERS as u64);
}

#[tokio::test(start_paused = true)]
async fn acknowledged_numbers_rise_with_the_answers() {
    let Cluster { client, first, .. } = cluster(ClientOptions::default()).await;
    for _ in 0..3 {
        client.put("", "a", "1").await.unwrap();
    }
    let store = first.store.lock();
    let ids: Vec<_> = store.requests.iter().map(|r| (r.number, r.acked_below)).collect();
    assert_eq!(ids, [(1, 1), (2, 2), (3, 3)]);
}
