//! What calls share is a connection: what one of them does there is not to end or hold up the others, nor to be taken for an answer.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use sextant_client::{Client, ClientOptions, ScanOptions};
use sextant_common::ErrorKind;

use super::raw::{self, Manner};
use super::{Cluster, cluster, network};

/// So that all that can happen by itself has happened.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Each has more than a connection takes for one call before it is read, and all of them more than it takes together.
#[tokio::test(start_paused = true)]
async fn scans_that_are_not_read_hold_up_nobody() {
    const SCANS: usize = 5;
    const RECORDS: u8 = 6;
    let Cluster { client, first, .. } = cluster(ClientOptions::default()).await;
    let value = Bytes::from(vec![7u8; 1024 * 1024]);
    for key in 0..RECORDS {
        first.store.lock().records.insert(vec![key].into(), (value.clone(), 1));
    }
    let options = ScanOptions { page_records: 1, ..ScanOptions::default() };
    let mut scans: Vec<_> = (0..SCANS).map(|_| client.scan("", options.clone()).records()).collect();
    for scan in &mut scans {
        scan.next_record().await.unwrap().unwrap();
        settle().await;
    }
    client.put("", "k", "v").await.unwrap();
    assert_eq!(client.get("", "k").await.unwrap().unwrap().value, "v");
    for scan in scans {
        let rest: Vec<_> = scan.map(Result::unwrap).collect().await;
        assert_eq!(rest.len(), RECORDS as usize - 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_the_transport_broke_off_was_perhaps_done_whatever_the_status() {
    let env = network::env();
    let addr = raw::serve(&env, Manner::Resets).await.addr;
    let options = ClientOptions { sessions: false, ..ClientOptions::default() };
    let client = Client::connect_in(env, vec![addr], options).await.unwrap();
    let error = client.increment("", "n", 1).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutcomeUnknown, "{error}");
    assert!(error.message.contains("excessive load"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn answers_that_come_too_late_do_not_end_the_connection() {
    // HTTP/2's library would put up with 1024 of those that it has forgotten, and remembers 50.
    const CALLS: usize = 1200;
    let env = network::env();
    let server = raw::serve(&env, Manner::Late).await;
    let patience = Duration::from_millis(50);
    let options = ClientOptions { deadline: patience, attempt_timeout: patience, ..ClientOptions::default() };
    let client = Client::connect_in(env, vec![server.addr], options).await.unwrap();
    for result in join_all((0..CALLS).map(|_| client.get("", "k"))).await {
        assert_eq!(result.unwrap_err().kind, ErrorKind::Unavailable);
    }
    settle().await;
    client.get("", "k").await.unwrap_err();
    assert_eq!(server.connections.load(Relaxed), 1);
}
