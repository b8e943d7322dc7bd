use sextant_common::ErrorKind;
use sextant_environment::env::error_of;

use super::*;
use crate::testing::sst_id;

#[tokio::test(flavor = "multi_thread")]
async fn what_was_ingested_is_read_back() {
    let mut node = Node::start().await;
    let (old, new) = (model(300, 1000), model(100, 5000));
    let meta = node.ingest(sst_id(1), &old).await.unwrap();
    assert_eq!((meta.records, meta.tombstones, meta.min_seq, meta.max_seq), (300, 100, 1000, 1299));
    assert_eq!((meta.min_key.to_vec(), meta.max_key.to_vec()), (key(0), key(299)));
    assert!(meta.replicas.is_empty());
    node.ingest(sst_id(2), &new).await.unwrap();
    let tables = [sst_id(2), sst_id(1)];
    for i in 0..300 {
        let reply = node.get(&tables, &key(i)).await;
        let (value, seq, tombstone) = &(if i < 100 { &new } else { &old })[&key(i)];
        let status = if *tombstone { GetStatus::GetTombstone } else { GetStatus::GetValue };
        assert_eq!((reply.status(), reply.value.to_vec(), reply.seq), (status, value.clone(), *seq));
        assert_eq!(reply.candidate, u32::from(i >= 100));
    }
    let mut merged = old.clone();
    merged.extend(new);
    assert_eq!(to_model(node.scan_all(&tables).await.records), merged);
    assert_eq!(node.get(&tables, b"absent").await.status(), GetStatus::GetNoEntry);
    assert_eq!(node.get(&[], &key(1)).await.status(), GetStatus::GetNoEntry);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_candidate_is_gone_unless_a_newer_one_has_the_key() {
    let mut node = Node::start().await;
    node.ingest(sst_id(1), &model(10, 1)).await.unwrap();
    let gone = node.get(&[sst_id(9), sst_id(1)], &key(1)).await;
    assert_eq!((gone.status(), gone.candidate), (GetStatus::GetTableGone, 0));
    assert_eq!(node.get(&[sst_id(1), sst_id(9)], &key(1)).await.status(), GetStatus::GetValue);
    assert_eq!(node.get(&[sst_id(1), sst_id(9)], &key(2)).await.status(), GetStatus::GetTombstone);
    let gone = node.get(&[sst_id(1), sst_id(9)], b"absent").await;
    assert_eq!((gone.status(), gone.candidate), (GetStatus::GetTableGone, 1));
    let scan = node.scan_all(&[sst_id(1), sst_id(9)]).await;
    assert_eq!((scan.status(), scan.complete, scan.records.len()), (GetStatus::GetTableGone, false, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_answers_batches_in_order_from_disk_and_from_memory() {
    let mut node = Node::with(FaultyVfs::new(1), |c| c.block_cache_bytes = Some(64 * 1024)).await;
    let model = model(3000, 1);
    node.ingest(sst_id(1), &model).await.unwrap();
    // Every batch is a mix of blocks that are cached and others.
    let batches: Vec<_> = (0..200u64)
        .map(|batch| {
            let keys = (0..20).map(|i| key((batch * 37 + i * 151) % 3100));
            GetBatch { batch, gets: keys.map(|k| get(&[sst_id(1)], &k)).collect(), ..GetBatch::default() }
        })
        .collect();
    let mut replies =
        node.client.get_stream(futures::stream::iter(batches.clone())).await.unwrap().into_inner();
    for batch in &batches {
        let reply = replies.message().await.unwrap().unwrap();
        assert_eq!(reply.batch, batch.batch);
        assert_eq!(reply.replies.len(), batch.gets.len());
        for (get, reply) in batch.gets.iter().zip(reply.replies) {
            let found = match reply.status() {
                GetStatus::GetValue => Some((reply.value.to_vec(), reply.seq, false)),
                GetStatus::GetTombstone => Some((Vec::new(), reply.seq, true)),
                other => {
                    assert_eq!(other, GetStatus::GetNoEntry);
                    None
                }
            };
            assert_eq!(found.as_ref(), model.get(get.key.as_ref()));
        }
    }
    assert!(replies.message().await.unwrap().is_none());
    // A batch too long to be answered on the connection's task.
    let gets = (0..3100).map(|i| get(&[sst_id(1)], &key(i))).collect();
    let reply =
        node.client.get(GetBatch { batch: 1, gets, ..GetBatch::default() }).await.unwrap().into_inner();
    let values = reply.replies.iter().filter(|r| r.status() == GetStatus::GetValue).count();
    assert_eq!(values, model.values().filter(|r| !r.2).count());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_large_values_is_answered_in_part() {
    let mut node = Node::start().await;
    let large: Model = (0..5).map(|i| (key(i), (vec![i as u8; 7 << 20], 1, false))).collect();
    let mut messages: Vec<_> = to_wire(&large)
        .into_iter()
        .map(|record| IngestRequest { records: vec![record], ..IngestRequest::default() })
        .collect();
    messages.insert(0, header(sst_id(1)));
    messages.push(IngestRequest { finish: true, record_count: 5, ..IngestRequest::default() });
    send(&mut node.client, messages).await.unwrap();
    for warm in [false, true] {
        let gets = (0..5).map(|i| get(&[sst_id(1)], &key(i))).collect();
        let reply =
            node.client.get(GetBatch { batch: 1, gets, ..GetBatch::default() }).await.unwrap().into_inner();
        let statuses: Vec<_> = reply.replies.iter().map(GetReply::status).collect();
        let (value, too_large) = (GetStatus::GetValue, GetStatus::GetTooLarge);
        assert_eq!(statuses, [value, value, too_large, too_large, too_large], "{warm}");
        assert!(reply.replies[1].value == vec![1u8; 7 << 20]);
    }
    let page = node.scan_all(&[sst_id(1)]).await;
    assert_eq!((page.records.len(), page.complete), (1, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn large_values_are_read_for_whoever_wants_them_and_while_there_is_room_for_them() {
    let mut node = Node::start().await;
    let of = |i: u64| if i < 2 { vec![i as u8; 2 << 20] } else { vec![7; 100] };
    let model: Model = (0..3).map(|i| (key(i), (of(i), 1, false))).collect();
    node.ingest(sst_id(1), &model).await.unwrap();
    let store = node.server.as_ref().unwrap().store();
    let batch = |value_bytes_max| GetBatch {
        batch: 1,
        gets: (0..3).map(|i| get(&[sst_id(1)], &key(i))).collect(),
        value_bytes_max,
    };
    let mut client = node.client.clone();
    let mut ask =
        async |value_bytes_max| client.get(batch(value_bytes_max)).await.unwrap().into_inner().replies;
    let statuses = |replies: &[GetReply]| replies.iter().map(GetReply::status).collect::<Vec<_>>();
    let (value, too_large) = (GetStatus::GetValue, GetStatus::GetTooLarge);
    let replies = ask(64 << 10).await;
    assert_eq!(statuses(&replies), [too_large, too_large, value]);
    assert!((2 << 20..3 << 20).contains(&replies[0].bytes), "{}", replies[0].bytes);
    assert_eq!(store.answers.held_bytes(), 0);
    assert_eq!(statuses(&ask(0).await), [value, value, value]);
    // What was taken for the answer is given back when it has left.
    let all = store.answers.take(usize::MAX).await.unwrap();
    assert_eq!(statuses(&ask(0).await), [too_large, too_large, value], "small ones wait for nothing");
    drop(all);
    assert_eq!(statuses(&ask(0).await), [value, value, value]);
    let scan = |first_bytes_max| SstScanRequest {
        tables: vec![sst_id_to_wire(sst_id(1))],
        first_bytes_max,
        ..SstScanRequest::default()
    };
    let page = node.client.scan(scan(64 << 10)).await.unwrap().into_inner();
    assert!(page.status() == too_large && page.bytes > 2 << 20 && page.records.is_empty());
    let all = store.answers.take(usize::MAX).await.unwrap();
    let refused = node.client.scan(scan(0)).await.unwrap_err();
    assert_eq!(error_of(refused).kind, ErrorKind::Overloaded);
    drop(all);
    assert_eq!(node.client.scan(scan(0)).await.unwrap().into_inner().records.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_a_scan_fit_together_in_both_directions() {
    let mut node = Node::start().await;
    let (old, new) = (model(400, 1), model(150, 5000));
    node.ingest(sst_id(1), &old).await.unwrap();
    node.ingest(sst_id(2), &new).await.unwrap();
    let mut merged = old;
    merged.extend(new);
    let (first, end) = (key(20), key(380));
    let inside: Vec<_> =
        merged.range(first.clone()..end.clone()).map(|(k, v)| (k.clone(), v.clone())).collect();
    for (reverse, limit_records, limit_bytes) in
        [(false, 7, 0), (true, 7, 0), (false, 0, 3000), (true, 0, 1), (true, 0, 0)]
    {
        let mut request = SstScanRequest {
            tables: vec![sst_id_to_wire(sst_id(2)), sst_id_to_wire(sst_id(1))],
            start: first.clone().into(),
            end: end.clone().into(),
            reverse,
            limit_records,
            limit_bytes,
            first_bytes_max: 0,
        };
        let mut records = Vec::new();
        loop {
            let page = node.client.scan(request.clone()).await.unwrap().into_inner();
            assert_eq!(page.status(), GetStatus::GetValue);
            assert!(limit_records == 0 || page.records.len() <= limit_records as usize);
            assert!(limit_bytes != 1 || page.records.len() <= 1);
            let last = page.records.last().map(|r| r.key.clone());
            records.extend(page.records);
            match last {
                _ if page.complete => break,
                // The next page starts behind the last record.
                Some(last) if reverse => request.end = last,
                Some(last) => request.start = [&last[..], &[0]].concat().into(),
                None => panic!("a page that is not complete has a record"),
            }
        }
        if reverse {
            records.reverse();
        }
        assert_eq!(to_model(records), inside.iter().cloned().collect::<Model>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_requests_are_refused_and_the_server_goes_on() {
    let mut node = Node::start().await;
    node.ingest(sst_id(1), &model(10, 1)).await.unwrap();
    let bad_id = GetRequest { candidates: vec![Bytes::from_static(b"x")], key: key(1).into() };
    for bad in [bad_id, get(&[sst_id(1)], b""), get(&[sst_id(1)], &[0; 20_000])] {
        let status =
            node.client.get(GetBatch { batch: 1, gets: vec![bad], ..GetBatch::default() }).await.unwrap_err();
        assert_eq!(error_of(status).kind, ErrorKind::Invalid);
    }
    let scan = SstScanRequest { tables: vec![Bytes::new()], ..SstScanRequest::default() };
    assert_eq!(error_of(node.client.scan(scan).await.unwrap_err()).kind, ErrorKind::Invalid);
    assert_eq!(node.get(&[sst_id(1)], &key(1)).await.status(), GetStatus::GetValue);
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_is_by_id_idempotent_and_disturbs_no_reader() {
    let mut node = Node::start().await;
    let model = model(2000, 1);
    for i in 1..=3 {
        node.ingest(sst_id(i), &model).await.unwrap();
    }
    let request = FetchRequest { id: sst_id_to_wire(sst_id(1)), offset: 0 };
    let mut reading = node.client.fetch(request).await.unwrap().into_inner();
    let delete =
        DeleteRequest { ids: vec![sst_id_to_wire(sst_id(1)), sst_id_to_wire(sst_id(7))], lineage: 0 };
    assert_eq!(node.client.delete(delete.clone()).await.unwrap().into_inner().deleted, 1);
    assert_eq!(node.client.delete(delete).await.unwrap().into_inner().deleted, 0);
    // Whoever has the table open reads it to its end.
    let mut bytes = 0;
    while let Some(piece) = reading.message().await.unwrap() {
        bytes += piece.data.len() as u64;
    }
    assert_eq!(bytes, node.inventory().await[0].file_bytes);
    assert_eq!(node.get(&[sst_id(1)], &key(1)).await.status(), GetStatus::GetTableGone);
    node.crash().await;
    assert_eq!(node.files(), [format!("{}.sst", sst_id(2)), format!("{}.sst", sst_id(3))]);
    node.assert_holds(sst_id(2), &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_ends_open_streams_and_frees_the_directory() {
    let mut node = Node::start().await;
    node.ingest(sst_id(1), &model(10, 1)).await.unwrap();
    let mut replies =
        node.client.get_stream(futures::stream::pending::<GetBatch>()).await.unwrap().into_inner();
    node.restart().await;
    assert!(!matches!(replies.message().await, Ok(Some(_))));
    assert_eq!(node.get(&[sst_id(1)], &key(1)).await.status(), GetStatus::GetValue);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_on_a_real_disk_keeps_everything() {
    let dir = tempfile::tempdir().unwrap();
    let mut config =
        SstServerConfig::new(NodeId(1), cluster_config(&["a:1"]), "127.0.0.1:0", dir.path().join("sst"));
    config.http = Some("127.0.0.1:0".into());
    let env = Env::real();
    let model = model(500, 1);
    let server = SstServer::start(env.clone(), config.clone()).await.unwrap();
    let meta =
        send(&mut client(&env, &server.addr().to_string()), messages(sst_id(1), &model)).await.unwrap();
    let in_use = SstServer::start(env.clone(), config.clone()).await.unwrap_err();
    assert!(in_use.message.contains("in use"), "{in_use}");
    server.shutdown().await;

    let server = SstServer::start(env.clone(), config).await.unwrap();
    let mut client = client(&env, &server.addr().to_string());
    let inventory = client
        .inventory(InventoryRequest { partition: 1, order: None, ..Default::default() })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(inventory.node, 1);
    assert_eq!(
        inventory.entries,
        [InventoryEntry {
            id: sst_id_to_wire(meta.id),
            checksum: meta.checksum,
            file_bytes: meta.file_bytes,
            damaged: false,
            lineage: Some(0),
        }]
    );
    let elsewhere = client
        .inventory(InventoryRequest { partition: 2, order: None, ..Default::default() })
        .await
        .unwrap()
        .into_inner();
    assert!(elsewhere.entries.is_empty());
    let reply = client
        .get(GetBatch { batch: 1, gets: vec![get(&[sst_id(1)], &key(0))], ..GetBatch::default() })
        .await
        .unwrap();
    assert_eq!(reply.into_inner().replies[0].value.to_vec(), vec![0; 200]);

    // The same answers by HTTP and by Admin.
    let mut admin = admin_client::AdminClient::new(channel(&env, &server.addr().to_string()));
    let json = admin.status(StatusRequest {}).await.unwrap().into_inner().json;
    let status: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&status["tables"], &status["node"]), (&1.into(), &1.into()));
    assert_eq!(status["done"]["gets"], 1);
    let refused = admin.flush(MaintenanceRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unimplemented);
    let http = server.http_addr().unwrap();
    let metrics = http_get(&env, http, "/metrics").await;
    assert!(metrics.contains("sextant_sst_tables 1"), "{metrics}");
    assert!(metrics.contains("sextant_sst_gets_total 1"), "{metrics}");
    assert!(http_get(&env, http, "/status").await.contains("\"role\""));
    server.shutdown().await;
}
