//! The p-node as a server: gRPC, RESP, HTTP.

use bytes::Bytes;
use sextant_common::ErrorKind;
use sextant_common::ids::NodeId;
use sextant_common::key::prefix_end;
use sextant_common::limits::KEY_BYTES_MAX;
use sextant_environment::env::{Whom, error_of, grpc_channel};
use sextant_proto::v1::admin_client::AdminClient;
use sextant_proto::v1::kv_client::KvClient;
use sextant_proto::{MESSAGE_BYTES_MAX, v1};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::transport::Channel;

use crate::testing::{Cluster, PATIENCE_MS, until};
use crate::{PNodeConfig, PNodeServer};

async fn server(cluster: &Cluster) -> (PNodeServer, KvClient<Channel>, AdminClient<Channel>) {
    let config = PNodeConfig {
        resp: Some("127.0.0.1:0".into()),
        http: Some("127.0.0.1:0".into()),
        default_deadline_ms: PATIENCE_MS,
        ..PNodeConfig::new(NodeId(1), cluster.config.clone(), "127.0.0.1:0")
    };
    let server = PNodeServer::start(cluster.env.clone(), config).await.unwrap();
    let channel = grpc_channel(&cluster.env.net, &server.grpc_addr().to_string());
    let admin = grpc_channel(&cluster.env.net, &server.admin_addr().to_string());
    (server, KvClient::new(channel), AdminClient::new(admin))
}

async fn exchange(cluster: &Cluster, addr: std::net::SocketAddr, request: &str, enough: &str) -> String {
    let mut connection = cluster.env.net.connect(addr.to_string(), Whom::Host).await.unwrap();
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !String::from_utf8_lossy(&answer).contains(enough) {
        if connection.read_buf(&mut answer).await.unwrap() == 0 {
            break;
        }
    }
    String::from_utf8(answer).unwrap()
}

fn put(key: &'static str, value: &'static str) -> v1::KvPutRequest {
    v1::KvPutRequest { key: key.into(), value: value.into(), ..Default::default() }
}

/// There is room for one of them at a time: each gives its own back.
#[tokio::test]
async fn long_answers_of_short_values_hold_room_until_they_have_left() {
    let cluster = Cluster::start(1).await;
    let config = PNodeConfig {
        reply_bytes_max: 1,
        default_deadline_ms: PATIENCE_MS,
        ..PNodeConfig::new(NodeId(1), cluster.config.clone(), "127.0.0.1:0")
    };
    let server = PNodeServer::start(cluster.env.clone(), config).await.unwrap();
    let channel = grpc_channel(&cluster.env.net, &server.grpc_addr().to_string());
    let mut kv = KvClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let value = Bytes::from(vec![7; 60_000]);
    let put = v1::KvPutRequest { key: "k".into(), value: value.clone(), ..Default::default() };
    kv.put(put).await.unwrap();
    let ask = v1::KvMultiGetRequest { keys: vec!["k".into(); 220], ..Default::default() };
    for _ in 0..4 {
        let (mut a, mut b) = (kv.clone(), kv.clone());
        let (one, other) = tokio::join!(a.multi_get(ask.clone()), b.multi_get(ask.clone()));
        for answer in [one, other] {
            let replies = answer.unwrap().into_inner().replies;
            assert!(replies.len() == 220 && replies.iter().all(|reply| reply.value == value));
        }
    }
    server.shutdown().await;
}

#[tokio::test]
async fn grpc_serves_every_operation() {
    let cluster = Cluster::start(2).await;
    let (server, mut kv, _) = server(&cluster).await;
    let reply = kv.put(put("k", "1")).await.unwrap().into_inner();
    assert!(reply.applied && reply.results[0].seq > 0);
    let get = v1::KvGetRequest { key: "k".into(), ..Default::default() };
    let got = kv.get(get.clone()).await.unwrap().into_inner();
    assert_eq!((got.found, got.value, got.seq), (true, Bytes::from("1"), reply.results[0].seq));
    assert!(!kv.insert(put("k", "2")).await.unwrap().into_inner().applied);
    let cas = v1::KvCompareAndSetRequest {
        key: "k".into(),
        expected: Some(v1::kv_compare_and_set_request::Expected::Value("1".into())),
        effect: Some(v1::kv_compare_and_set_request::Effect::NewValue("2".into())),
        ..Default::default()
    };
    assert!(kv.compare_and_set(cas.clone()).await.unwrap().into_inner().applied);
    assert!(!kv.compare_and_set(cas).await.unwrap().into_inner().applied);
    let many = v1::KvMultiGetRequest { keys: vec!["k".into(), "none".into()], ..Default::default() };
    let replies = kv.multi_get(many).await.unwrap().into_inner().replies;
    assert_eq!((replies[0].found, replies[1].found), (true, false));
    let batch = v1::KvBatchRequest {
        ops: vec![v1::KvBatchOp { key: "{t}1".into(), value: "x".into(), ..Default::default() }; 2],
        request: None,
    };
    assert_eq!(kv.batch(batch).await.unwrap().into_inner().results.len(), 2);
    let scan = v1::KvScanRequest { prefix: "{t}".into(), ..Default::default() };
    let mut pages = kv.scan(scan).await.unwrap().into_inner();
    let page = pages.message().await.unwrap().unwrap();
    assert_eq!(page.records[0].key, "{t}1");
    assert!(page.snapshot_seq > 0);
    assert!(pages.message().await.unwrap().is_none());
    let table = v1::KvCreateTableRequest { name: "other".into(), options: None };
    assert!(kv.create_table(table).await.unwrap().into_inner().created);
    let tables = kv.list_tables(v1::KvListTablesRequest {}).await.unwrap().into_inner().tables;
    assert_eq!(tables.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["default", "other"]);
    let session = kv.open_session(v1::KvOpenSessionRequest {}).await.unwrap().into_inner().session;
    let request = Some(v1::RequestId { session, number: 1, acked_below: 1 });
    let delete = v1::KvDeleteRequest { key: "k".into(), check_exists: true, request, ..Default::default() };
    for _ in 0..2 {
        let reply = kv.delete(delete.clone()).await.unwrap().into_inner();
        assert!(reply.results[0].existed, "the retry is told the same");
    }
    assert!(!kv.get(get).await.unwrap().into_inner().found);
    server.shutdown().await;
}

#[tokio::test]
async fn a_scan_of_deleted_records_is_taken_up_again_where_it_has_come_to() {
    let cluster = Cluster::start(2).await;
    let (server, mut kv, _) = server(&cluster).await;
    cluster.leader().with(cluster.partition_of("{t}z"), |p| {
        for i in 0..200 {
            p.put(&format!("{{t}}{i:03}"), None, true);
        }
        p.put("{t}z", Some("v"), true);
    });
    cluster.leader().state.lock().page_records = Some(1);
    let mut scan = v1::KvScanRequest { prefix: "{t}".into(), ..Default::default() };
    let mut places = Vec::new();
    // Each call is given up after its first page, as at a deadline.
    let found = loop {
        let page = kv.scan(scan).await.unwrap().into_inner().message().await.unwrap().unwrap();
        if !page.records.is_empty() {
            break page;
        }
        places.push(page.goes_on_at.clone());
        let (start, end) = (page.goes_on_at, prefix_end(b"{t}"));
        scan = v1::KvScanRequest { start, end, ..Default::default() };
    };
    assert_eq!((found.records.len(), &found.records[0].key[..]), (1, &b"{t}z"[..]));
    assert!(found.goes_on_at.is_empty(), "nothing is behind it");
    assert!(places.len() >= 3 && places.is_sorted_by(|a, b| a < b), "{places:?}");
    server.shutdown().await;
}

#[tokio::test]
async fn errors_keep_their_kind_over_grpc() {
    let cluster = Cluster::start(1).await;
    let (server, mut kv, mut admin) = server(&cluster).await;
    let kind = |status: tonic::Status| error_of(status).kind;
    let get = |table: &str, key: &'static str, mode| v1::KvGetRequest {
        table: table.into(),
        key: key.into(),
        mode,
    };
    assert_eq!(kind(kv.get(get("", "", 0)).await.unwrap_err()), ErrorKind::Invalid);
    assert_eq!(kind(kv.get(get("", "k", 9)).await.unwrap_err()), ErrorKind::Invalid);
    assert_eq!(kind(kv.get(get("nope", "k", 0)).await.unwrap_err()), ErrorKind::UnknownTable);
    let bound = |end| v1::KvScanRequest { end: vec![1; end].into(), ..Default::default() };
    assert_eq!(kind(kv.scan(bound(KEY_BYTES_MAX + 2)).await.unwrap_err()), ErrorKind::Invalid);
    assert!(kv.scan(bound(KEY_BYTES_MAX + 1)).await.is_ok());
    let nothing = v1::KvCompareAndSetRequest { key: "k".into(), ..Default::default() };
    assert_eq!(kind(kv.compare_and_set(nothing).await.unwrap_err()), ErrorKind::Invalid);
    kv.put(put("warm-up", "1")).await.unwrap();
    cluster.leader().state.lock().write_script.push_back(v1::WriteStatus::WriteRequestTooOld);
    assert_eq!(kind(kv.put(put("k", "1")).await.unwrap_err()), ErrorKind::OutcomeUnknown);
    // A deadline that ends when it is sent: the same. (gRPC's own may end first, and says less.)
    cluster.leader().gate.send_replace(true);
    let mut told = ErrorKind::Unavailable;
    for _ in 0..5 {
        let mut late = tonic::Request::new(put("k", "1"));
        late.set_timeout(std::time::Duration::from_secs(2));
        told = kind(kv.put(late).await.unwrap_err());
        if told != ErrorKind::Unavailable {
            break;
        }
    }
    assert_eq!(told, ErrorKind::OutcomeUnknown);
    cluster.leader().gate.send_replace(false);
    let ensure = v1::EnsureTableRequest { name: "t".into(), id: 7, ..Default::default() };
    assert_eq!(kind(admin.ensure_table(ensure).await.unwrap_err()), ErrorKind::Invalid);
    drop(server);
}

#[tokio::test]
async fn administration_reaches_all_leaders() {
    let cluster = Cluster::start(4).await;
    cluster.fail_over(1);
    cluster.fail_over(2);
    let (server, _kv, mut admin) = server(&cluster).await;
    let all = v1::MaintenanceRequest { table: "default".into(), partitions: vec![] };
    let reply = admin.flush(all).await.unwrap().into_inner();
    assert_eq!(reply.done, [0, 1, 2, 3]);
    assert!(reply.errors.is_empty(), "{:?}", reply.errors);
    let some = v1::MaintenanceRequest { table: String::new(), partitions: vec![2] };
    assert_eq!(admin.compact(some.clone()).await.unwrap().into_inner().done, [2]);
    assert_eq!(admin.freeze(some).await.unwrap().into_inner().done, [2]);
    assert_eq!(cluster.memtables[1].state.lock().maintenance[0].1.table, "default");
    let none = v1::MaintenanceRequest { table: String::new(), partitions: vec![9] };
    let reply = admin.flush(none).await.unwrap().into_inner();
    assert!(reply.done.is_empty());
    assert_eq!(reply.errors, ["partition 9: not done by any leader"]);
    // What names only partitions that are not there is asked of nobody: none named would be all.
    let nowhere = v1::RaiseFormatRequest { partitions: vec![9], to: 0, dry_run: false };
    assert_eq!(error_of(admin.raise_format(nowhere).await.unwrap_err()).kind, ErrorKind::Invalid);
    let json = admin.status(v1::StatusRequest {}).await.unwrap().into_inner().json;
    let status: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(status["memtable"][1]["status"]["node"], 2);
    assert!(status["sstable"][0]["error"].is_string(), "the fake has no such service");
    assert_eq!(status["pnode"]["partitions"].as_array().unwrap().len(), 4);
    drop(server);
}

#[tokio::test]
async fn resp_serves_the_default_table() {
    let cluster = Cluster::start(4).await;
    let (server, _, _) = server(&cluster).await;
    let addr = server.resp_addr().unwrap();
    let commands = "SET a 1\r\nGET a\r\nSET a 2 NX\r\nMSET b 2 c 3 d 4\r\nMGET a b c d e\r\nEXISTS a b x\r\nDEL a b x\r\nGET a\r\nPING\r\n";
    let answer = exchange(&cluster, addr, commands, "+PONG\r\n").await;
    let expected = "+OK\r\n$1\r\n1\r\n$-1\r\n+OK\r\n*5\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n4\r\n$-1\r\n:2\r\n:2\r\n$-1\r\n+PONG\r\n";
    assert_eq!(answer, expected);
    let changes = "INCR n\r\nINCRBY n 9\r\nAPPEND n 0\r\nGETSET n x\r\nINCR n\r\nGETDEL n\r\nGETDEL n\r\nMSETNX {t}1 a {t}2 b\r\n\
                   MSETNX {t}2 c {t}3 d\r\nMSETNX p q r s t u v w\r\nPING\r\n";
    let answer = exchange(&cluster, addr, changes, "+PONG\r\n").await;
    let expected = "\
        :1\r\n:10\r\n:3\r\n$3\r\n100\r\n-ERR value is not an integer or out of range\r\n$1\r\nx\r\n$-1\r\n:1\r\n:0\r\n\
        -CROSSSLOT Keys in request don't hash to the same partition: keys with the same {hash tag} do\r\n+PONG\r\n";
    assert_eq!(answer, expected);
    let info = exchange(&cluster, addr, "INFO\r\n", "reads_without_lease").await;
    assert!(info.contains("partitions:4"), "{info}");
    server.shutdown().await;
}

/// The elements of an object as steps over it find them, and how many steps found none.
async fn steps(cluster: &Cluster, addr: std::net::SocketAddr, command: &str) -> (Vec<String>, usize) {
    let (mut cursor, mut found, mut in_vain) = ("0".to_owned(), Vec::new(), 0);
    for _ in 0..1000 {
        let asked = format!("{command} {cursor}\r\nPING\r\n");
        let answer = exchange(cluster, addr, &asked, "+PONG\r\n").await;
        let lines: Vec<&str> = answer.split("\r\n").collect();
        let ["*2", _, next, count, elements @ ..] = &lines[..] else {
            panic!("{command}: {answer}");
        };
        in_vain += usize::from(*count == "*0");
        let is_text = |line: &&&str| line.starts_with(char::is_alphanumeric);
        found.extend(elements.iter().filter(is_text).map(|line| (*line).to_owned()));
        if *next == "0" {
            return (found, in_vain);
        }
        cursor = (*next).to_owned();
    }
    panic!("{command}: it comes to no end")
}

#[tokio::test]
async fn a_scan_of_an_object_gets_behind_removed_elements_step_by_step_and_other_reads_at_once() {
    let cluster = Cluster::start(1).await;
    let (server, _, _) = server(&cluster).await;
    let addr = server.resp_addr().unwrap();
    let names: Vec<String> = (0..150).map(|at| format!("b{at:03}")).collect();
    let removed = names.join(" ");
    let fields: String = names.iter().map(|name| format!(" {name} v")).collect();
    let members: String = names.iter().map(|name| format!(" 1 {name}")).collect();
    for (put, remove) in [
        (format!("HSET h a v{fields} z v"), format!("HDEL h {removed}")),
        (format!("SADD s a {removed} z"), format!("SREM s {removed}")),
        (format!("ZADD q 1 a{members} 1 z"), format!("ZREM q {removed}")),
    ] {
        // (Together they would leave nothing of what goes.)
        for (command, count) in [(put, 152), (remove, 150)] {
            let answer = exchange(&cluster, addr, &format!("{command}\r\nPING\r\n"), "+PONG\r\n").await;
            assert_eq!(answer, format!(":{count}\r\n+PONG\r\n"), "{command}");
            cluster.settled(server.local(), 0).await;
        }
    }
    cluster.leader().state.lock().page_records = Some(1);
    for (command, expected) in [
        ("HSCAN h", &["a", "v", "z", "v"][..]),
        ("SSCAN s", &["a", "z"][..]),
        ("ZSCAN q", &["a", "1", "z", "1"][..]),
    ] {
        let (found, in_vain) = steps(&cluster, addr, command).await;
        assert_eq!(found, expected, "{command}");
        assert!(in_vain >= 1, "{command}");
    }
    let reads = "HGETALL h\r\nSMEMBERS s\r\nZRANGE q 0 -1\r\nZRANK q z\r\nPING\r\n";
    let answer = exchange(&cluster, addr, reads, "+PONG\r\n").await;
    let members = "*2\r\n$1\r\na\r\n$1\r\nz\r\n";
    let fields = "*4\r\n$1\r\na\r\n$1\r\nv\r\n$1\r\nz\r\n$1\r\nv\r\n";
    assert_eq!(answer, format!("{fields}{members}{members}:1\r\n+PONG\r\n"));
    server.shutdown().await;
}

#[tokio::test]
async fn a_hot_list_of_a_partition_without_a_leader_takes_no_more_turns_than_its_share() {
    let cluster = Cluster::start(2).await;
    // Nobody leads the second.
    cluster.memtables[0].state.lock().partitions.remove(&1);
    cluster.memtables[1].state.lock().hints.remove(&1);
    let key = |partition: u32| {
        let mut names = (0..).map(|at| format!("key{at}"));
        names.find(|name| cluster.partition_of(name) == partition).unwrap()
    };
    let config = PNodeConfig {
        resp: Some("127.0.0.1:0".into()),
        commands_max: 4,
        default_deadline_ms: 3_600_000,
        ..PNodeConfig::new(NodeId(1), cluster.config.clone(), "127.0.0.1:0")
    };
    let server = PNodeServer::start(cluster.env.clone(), config).await.unwrap();
    let addr = server.resp_addr().unwrap();
    let led = format!("SET {} 1\r\n", key(0));
    assert_eq!(exchange(&cluster, addr, &led, "\r\n").await, "+OK\r\n");
    let push = format!("RPUSH {} a\r\n", key(1));
    let pushes: Vec<_> = (0..4).map(|_| Box::pin(exchange(&cluster, addr, &push, "\r\n"))).collect();
    let (refused, _, others) = futures::future::select_all(pushes).await;
    assert!(refused.starts_with("-TRYAGAIN partition 1 has no leader, and many commands wait"), "{refused}");
    let (refused, _, _others) = futures::future::select_all(others).await;
    assert!(refused.starts_with("-TRYAGAIN partition 1 has no leader, and many commands wait"), "{refused}");
    assert_eq!(exchange(&cluster, addr, &led, "\r\n").await, "+OK\r\n");
}

#[tokio::test]
async fn http_tells_whether_routing_works() {
    let mut cluster = Cluster::start(1).await;
    let partition = cluster.memtables[0].state.lock().partitions.remove(&0).unwrap();
    cluster.memtables[1].state.lock().hints.clear();
    let (server, _, _) = server(&cluster).await;
    let addr = server.http_addr().unwrap();
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let not_ready = exchange(&cluster, addr, &get("/health/ready"), "\r\n\r\n").await;
    assert!(not_ready.starts_with("HTTP/1.1 503"), "{not_ready}");
    cluster.memtables[0].state.lock().partitions.insert(0, partition);
    until("readiness", || server.local().check_ready().is_ok()).await;
    let ready = exchange(&cluster, addr, &get("/health/ready"), "\r\n\r\n").await;
    assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
    cluster.add_sst(0, &[("k", Some("v"), 1)]);
    server.local().get("", b"k", crate::ReadOptions::default()).await.unwrap();
    let metrics = exchange(&cluster, addr, &get("/metrics"), "# EOF").await;
    assert!(metrics.contains("sextant_pnode_reads_total{mode=\"pda\""), "{metrics}");
    let status = exchange(&cluster, addr, &get("/status"), "(the end)").await;
    assert!(status.contains("\"role\":\"pnode\""), "{status}");
    server.shutdown().await;
}
