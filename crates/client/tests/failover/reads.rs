//! Reads and scans go on at another server.

use std::time::Duration;

use bytes::Bytes;
use sextant_client::{Client, ClientOptions, ScanOptions};
use sextant_common::ErrorKind;

use super::server::Fault;
use super::{Cluster, cluster, impatient, network, serve};

/// Where nothing listens.
const NOBODY: &str = "127.0.0.1:1";

#[tokio::test(start_paused = true)]
async fn reads_go_to_another_server_if_one_hangs_refuses_or_is_gone() {
    let Cluster { client, first, second } = cluster(impatient()).await;
    client.put("", "k", "v").await.unwrap();
    first.fail_next([Fault::Hang, Fault::Refuse(ErrorKind::NotLeader)]);
    second.fail_next([Fault::Refuse(ErrorKind::Stopping)]);
    for _ in 0..3 {
        assert_eq!(client.get("", "k").await.unwrap().unwrap().value, "v");
    }

    let env = network::env();
    let dead = NOBODY.to_owned();
    let alive = serve(&env, first.clone()).await;
    let client = Client::connect_in(env, vec![dead, alive], ClientOptions::default()).await.unwrap();
    assert_eq!(client.get("", "k").await.unwrap().unwrap().value, "v");
    client.put("", "k", "w").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nobody_there_is_unavailable_within_the_deadline() {
    let env = network::env();
    let options = ClientOptions { deadline: Duration::from_millis(200), ..ClientOptions::default() };
    let client = Client::connect_in(env.clone(), vec![NOBODY.to_owned()], options).await.unwrap();
    let begun_ns = env.clock.holder_ns();
    let error = client.get("", "k").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(error.message.contains("refused"), "{error}");
    assert!(env.clock.holder_ns() - begun_ns <= 200_000_000, "the deadline is kept");
    assert_eq!(client.put("", "k", "v").await.unwrap_err().kind, ErrorKind::Unavailable, "never sent");
}

#[tokio::test(start_paused = true)]
async fn a_scan_goes_on_where_it_broke_off() {
    let Cluster { client, first, second } = cluster(ClientOptions::default()).await;
    let keys: Vec<Bytes> = (0..20).map(|i| Bytes::from(format!("k{i:02}"))).collect();
    for key in &keys {
        client.put("", key.clone(), key.clone()).await.unwrap();
    }
    for (reverse, limit) in [(false, 0), (true, 0), (false, 11), (true, 11), (false, 6)] {
        first.faults.lock().clear();
        second.faults.lock().clear();
        first.fail_next([Fault::BreakScan(2), Fault::Refuse(ErrorKind::Retry)]);
        second.fail_next([Fault::BreakScan(1), Fault::Refuse(ErrorKind::Retry)]);
        let options = ScanOptions { reverse, limit, page_records: 3, ..ScanOptions::default() };
        let found: Vec<Bytes> =
            client.scan("", options).collect_records().await.unwrap().into_iter().map(|r| r.key).collect();
        let mut expected = keys.clone();
        if reverse {
            expected.reverse();
        }
        if limit > 0 {
            expected.truncate(limit as usize);
        }
        assert_eq!(found, expected, "reverse {reverse}, limit {limit}");
    }
    let prefix: Vec<_> = client.scan("", ScanOptions::prefix("k1")).collect_records().await.unwrap();
    assert_eq!(prefix.len(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_scan_that_finds_nothing_within_the_deadline_goes_on_where_it_has_come_to() {
    let Cluster { client, first, .. } = cluster(ClientOptions::default()).await;
    let keys: Vec<Bytes> = (0..20).map(|i| Bytes::from(format!("k{i:02}"))).collect();
    for key in &keys {
        client.put("", key.clone(), key.clone()).await.unwrap();
    }
    // (What is passed over is there: so it is seen where the scan goes on. The third one has not come as far as the one before it.)
    for (reverse, limit, passed_over) in [
        (false, 0, ["k05", "k12", "k08"]),
        (false, 4, ["k05", "k12", "k08"]),
        (true, 0, ["k15", "k08", "k12"]),
        (true, 4, ["k15", "k08", "k12"]),
    ] {
        let mut expected: Vec<Bytes> = match reverse {
            false => keys[12..].to_vec(),
            true => keys[..8].iter().rev().cloned().collect(),
        };
        if limit > 0 {
            expected.truncate(limit as usize);
        }
        first.fail_next(passed_over.map(Fault::PassOver));
        let options = ScanOptions { reverse, limit, page_records: 3, ..ScanOptions::default() };
        let (mut found, mut came_to) = (Vec::new(), Vec::new());
        let mut pages = client.scan("", options);
        while let Some(page) = pages.next_page().await {
            let page = page.unwrap();
            assert_eq!(page.goes_on_at.is_some(), page.records.is_empty());
            came_to.extend(page.goes_on_at);
            found.extend(page.records.into_iter().map(|record| record.key));
        }
        assert_eq!(found, expected, "reverse {reverse}, limit {limit}");
        assert_eq!(came_to, passed_over);
    }
}
