//! The client against servers that refuse, hang, lose answers and forget sessions.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use parking_lot::Mutex;
use sextant_client::{BatchOp, Client, ClientOptions, Effect, Expected, OpCondition, ScanOptions};
use sextant_common::ids::Seq;
use sextant_common::manifest::TableOptions;
use sextant_common::{Error, ErrorKind};
use sextant_environment::Env;
use sextant_environment::env::{free_addrs, grpc_incoming, status_of};
use sextant_proto::v1;
use sextant_proto::v1::kv_server::{Kv, KvServer};
use tonic::{Request, Response, Status};

/// What a server does with the next request instead of answering it.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Answers an error without executing.
    Refuse(ErrorKind),
    /// Executes, and never answers.
    LoseReply,
    /// Does nothing, for ever.
    Hang,
    /// Ends a scan with an error after this many pages.
    BreakScan(usize),
}

/// The cluster behind all servers.
#[derive(Default)]
struct Store {
    records: BTreeMap<Bytes, (Bytes, u64)>,
    seq: u64,
    sessions_opened: u64,
    /// (session, number) -> reply.
    seen: BTreeMap<(u64, u64), v1::KvWriteReply>,
    known_sessions: Vec<u64>,
    requests: Vec<v1::RequestId>,
    executed: u64,
}

#[derive(Clone, Default)]
struct FakeServer {
    store: Arc<Mutex<Store>>,
    faults: Arc<Mutex<VecDeque<Fault>>>,
}

impl FakeServer {
    fn fail_next(&self, faults: impl IntoIterator<Item = Fault>) {
        self.faults.lock().extend(faults);
    }

    fn fault(&self) -> Option<Fault> {
        self.faults.lock().pop_front()
    }

    async fn write(
        &self,
        id: Option<v1::RequestId>,
        apply: impl FnOnce(&mut Store) -> v1::KvWriteReply + Send,
    ) -> Result<Response<v1::KvWriteReply>, Status> {
        let fault = self.fault();
        match fault {
            Some(Fault::Refuse(kind)) => return Err(status_of(Error::new(kind, "refused"))),
            Some(Fault::Hang) => return std::future::pending().await,
            _ => {}
        }
        let reply = self.execute(id, apply)?;
        if let Some(Fault::LoseReply) = fault {
            return std::future::pending().await;
        }
        Ok(Response::new(reply))
    }

    fn execute(
        &self,
        id: Option<v1::RequestId>,
        apply: impl FnOnce(&mut Store) -> v1::KvWriteReply,
    ) -> Result<v1::KvWriteReply, Status> {
        let mut store = self.store.lock();
        let Some(id) = id else {
            store.executed += 1;
            return Ok(apply(&mut store));
        };
        store.requests.push(id);
        if !store.known_sessions.contains(&id.session) {
            return Err(status_of(Error::new(ErrorKind::UnknownSession, "no such session")));
        }
        if let Some(reply) = store.seen.get(&(id.session, id.number)) {
            return Ok(reply.clone());
        }
        store.executed += 1;
        let reply = apply(&mut store);
        store.seen.insert((id.session, id.number), reply.clone());
        Ok(reply)
    }
}

impl Store {
    fn put(&mut self, key: Bytes, value: Option<Bytes>, only_if_absent: bool) -> v1::KvWriteReply {
        let existed = self.records.get(&key).map(|(_, seq)| *seq);
        let applied = !(only_if_absent && existed.is_some());
        let mut seq = existed.unwrap_or(0);
        if applied {
            self.seq += 1;
            seq = self.seq;
            match value {
                Some(value) => self.records.insert(key, (value, seq)),
                None => self.records.remove(&key),
            };
        }
        let result = v1::OpResult { applied, existed: existed.is_some(), seq };
        v1::KvWriteReply { applied, results: vec![result] }
    }
}

#[tonic::async_trait]
impl Kv for FakeServer {
    type ScanStream = futures::stream::BoxStream<'static, Result<v1::KvScanPage, Status>>;

    async fn get(&self, request: Request<v1::KvGetRequest>) -> Result<Response<v1::KvGetReply>, Status> {
        match self.fault() {
            Some(Fault::Refuse(kind)) => return Err(status_of(Error::new(kind, "refused"))),
            Some(_) => return std::future::pending().await,
            None => {}
        }
        let store = self.store.lock();
        Ok(Response::new(match store.records.get(&request.get_ref().key) {
            Some((value, seq)) => v1::KvGetReply { found: true, value: value.clone(), seq: *seq },
            None => v1::KvGetReply::default(),
        }))
    }

    async fn multi_get(
        &self,
        request: Request<v1::KvMultiGetRequest>,
    ) -> Result<Response<v1::KvMultiGetReply>, Status> {
        let mut replies = Vec::new();
        for key in request.into_inner().keys {
            let get = v1::KvGetRequest { key, ..Default::default() };
            replies.push(self.get(Request::new(get)).await?.into_inner());
        }
        Ok(Response::new(v1::KvMultiGetReply { replies }))
    }

    async fn put(&self, request: Request<v1::KvPutRequest>) -> Result<Response<v1::KvWriteReply>, Status> {
        let r = request.into_inner();
        self.write(r.request, |store| store.put(r.key, Some(r.value), false)).await
    }

    async fn insert(&self, request: Request<v1::KvPutRequest>) -> Result<Response<v1::KvWriteReply>, Status> {
        let r = request.into_inner();
        self.write(r.request, |store| store.put(r.key, Some(r.value), true)).await
    }

    async fn delete(
        &self,
        request: Request<v1::KvDeleteRequest>,
    ) -> Result<Response<v1::KvWriteReply>, Status> {
        let r = request.into_inner();
        self.write(r.request, |store| store.put(r.key, None, false)).await
    }

    async fn compare_and_set(
        &self,
        request: Request<v1::KvCompareAndSetRequest>,
    ) -> Result<Response<v1::KvWriteReply>, Status> {
        use v1::kv_compare_and_set_request as wire;
        let r = request.into_inner();
        self.write(r.request, |store| {
            let found = store.records.get(&r.key).cloned();
            let holds = match r.expected {
                Some(wire::Expected::Value(value)) => found.as_ref().is_some_and(|(v, _)| *v == value),
                Some(wire::Expected::Seq(seq)) => found.as_ref().map_or(0, |(_, s)| *s) == seq,
                None => false,
            };
            if !holds {
                let seq = found.map_or(0, |(_, s)| s);
                let result = v1::OpResult { applied: false, existed: seq > 0, seq };
                return v1::KvWriteReply { applied: false, results: vec![result] };
            }
            match r.effect {
                Some(wire::Effect::NewValue(value)) => store.put(r.key, Some(value), false),
                _ => store.put(r.key, None, false),
            }
        })
        .await
    }

    async fn batch(
        &self,
        request: Request<v1::KvBatchRequest>,
    ) -> Result<Response<v1::KvWriteReply>, Status> {
        let r = request.into_inner();
        self.write(r.request, |store| {
            let results = r
                .ops
                .into_iter()
                .flat_map(|op| {
                    let absent = op.condition() == v1::Condition::Absent;
                    let value = (op.kind() == v1::WriteKind::WritePut).then_some(op.value);
                    store.put(op.key, value, absent).results
                })
                .collect();
            v1::KvWriteReply { applied: true, results }
        })
        .await
    }

    async fn scan(&self, request: Request<v1::KvScanRequest>) -> Result<Response<Self::ScanStream>, Status> {
        let r = request.into_inner();
        let break_after = match self.fault() {
            Some(Fault::BreakScan(pages)) => Some(pages),
            Some(Fault::Refuse(kind)) => return Err(status_of(Error::new(kind, "refused"))),
            _ => None,
        };
        let end = if r.end.is_empty() { Bound::Unbounded } else { Bound::Excluded(r.end.clone()) };
        let empty = !r.end.is_empty() && r.start >= r.end;
        let mut records: Vec<v1::KvRecord> = if empty {
            Vec::new()
        } else {
            let store = self.store.lock();
            let range = store.records.range((Bound::Included(r.start), end));
            range.map(|(k, (v, s))| v1::KvRecord { key: k.clone(), value: v.clone(), seq: *s }).collect()
        };
        if r.reverse {
            records.reverse();
        }
        if r.limit > 0 {
            records.truncate(r.limit as usize);
        }
        let page = |records: &[v1::KvRecord]| v1::KvScanPage {
            partition: u32::MAX,
            snapshot_seq: 0,
            records: records.to_vec(),
        };
        let mut pages: Vec<Result<_, Status>> =
            records.chunks(r.page_records.max(1) as usize).map(|chunk| Ok(page(chunk))).collect();
        if let Some(at) = break_after {
            pages.truncate(at);
            pages.push(Err(status_of(Error::new(ErrorKind::Stopping, "going away"))));
        }
        Ok(Response::new(futures::stream::iter(pages).boxed()))
    }

    async fn create_table(
        &self,
        _: Request<v1::KvCreateTableRequest>,
    ) -> Result<Response<v1::KvCreateTableReply>, Status> {
        Ok(Response::new(v1::KvCreateTableReply { id: 2, created: true }))
    }

    async fn list_tables(
        &self,
        _: Request<v1::KvListTablesRequest>,
    ) -> Result<Response<v1::KvListTablesReply>, Status> {
        Ok(Response::new(v1::KvListTablesReply::default()))
    }

    async fn open_session(
        &self,
        _: Request<v1::KvOpenSessionRequest>,
    ) -> Result<Response<v1::KvOpenSessionReply>, Status> {
        let mut store = self.store.lock();
        store.sessions_opened += 1;
        let session = store.sessions_opened;
        store.known_sessions.push(session);
        Ok(Response::new(v1::KvOpenSessionReply { session }))
    }
}

/// Two servers of one store, and a client of both.
struct Cluster {
    first: FakeServer,
    second: FakeServer,
    client: Client,
}

async fn serve(env: &Env, server: FakeServer) -> String {
    let listener = env.net.bind("127.0.0.1:0".into()).await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let routes = tonic::transport::Server::builder().add_service(KvServer::new(server));
    tokio::spawn(routes.serve_with_incoming(grpc_incoming(listener)));
    addr
}

async fn cluster(options: ClientOptions) -> Cluster {
    let env = Env::real();
    let first = FakeServer::default();
    let second = FakeServer { store: first.store.clone(), ..FakeServer::default() };
    let addrs = vec![serve(&env, first.clone()).await, serve(&env, second.clone()).await];
    let client = Client::connect(env, addrs, options).await.unwrap();
    Cluster { first, second, client }
}

fn impatient() -> ClientOptions {
    ClientOptions { attempt_timeout: Duration::from_millis(50), ..ClientOptions::default() }
}

#[tokio::test]
async fn all_operations_reach_the_store() {
    let Cluster { client, first, .. } = cluster(ClientOptions::default()).await;
    let seq = client.put("", "a", "1").await.unwrap();
    assert_eq!(client.get("", "a").await.unwrap().unwrap().seq, seq);
    assert_eq!(client.get("", "b").await.unwrap(), None);
    assert!(!client.insert("", "a", "2").await.unwrap().applied);
    assert!(client.insert("", "b", "2").await.unwrap().applied);
    let found = client.multi_get("", vec!["a".into(), "x".into(), "b".into()]).await.unwrap();
    let values: Vec<_> = found.into_iter().map(|r| r.map(|r| r.value)).collect();
    assert_eq!(values, [Some("1".into()), None, Some("2".into())]);
    let put = |value: &'static str| Effect::Put(value.into());
    assert!(client.cas("", "a", Expected::Value("1".into()), put("3")).await.unwrap().applied);
    assert!(!client.cas("", "a", Expected::Value("1".into()), put("4")).await.unwrap().applied);
    assert!(!client.cas("", "a", Expected::Absent, put("4")).await.unwrap().applied);
    let seq = client.get("", "a").await.unwrap().unwrap().seq;
    assert!(client.cas("", "a", Expected::Seq(seq), Effect::Delete).await.unwrap().applied);
    let batch = vec![
        BatchOp::put("c", "5"),
        BatchOp::put("b", "6").only_if(OpCondition::Absent).skip_on_failure(),
        BatchOp::delete("b"),
    ];
    let outcome = client.batch(batch).await.unwrap();
    assert_eq!(outcome.results.iter().map(|r| r.applied).collect::<Vec<_>>(), [true, false, true]);
    assert!(client.delete("", "c").await.unwrap() > Seq(0));
    assert!(first.store.lock().records.is_empty());
    assert_eq!(first.store.lock().sessions_opened, 1, "one session served all writes");
}

#[tokio::test]
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

#[tokio::test]
async fn without_sessions_a_lost_answer_is_an_unknown_outcome() {
    let options = ClientOptions { sessions: false, ..impatient() };
    let Cluster { client, first, .. } = cluster(options).await;
    first.fail_next([Fault::LoseReply]);
    assert_eq!(client.put("", "k", "v").await.unwrap_err().kind, ErrorKind::OutcomeUnknown);
    assert_eq!(first.store.lock().executed, 1);
}

#[tokio::test]
async fn a_forgotten_session_is_replaced_before_anything_was_executed() {
    let Cluster { client, first, .. } = cluster(impatient()).await;
    client.put("", "a", "1").await.unwrap();
    first.store.lock().known_sessions.clear();
    client.put("", "a", "2").await.unwrap();
    client.put("", "a", "3").await.unwrap();
    let store = first.store.lock();
    assert_eq!((store.sessions_opened, store.executed), (2, 3));
}

#[tokio::test]
async fn a_session_forgotten_after_a_lost_answer_leaves_the_outcome_unknown() {
    let Cluster { client, first, second } = cluster(impatient()).await;
    client.put("", "a", "1").await.unwrap();
    first.fail_next([Fault::LoseReply]);
    second.fail_next([Fault::Refuse(ErrorKind::UnknownSession)]);
    let error = client.put("", "a", "2").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutcomeUnknown);
    assert_eq!(first.store.lock().executed, 2, "executed once, and not again in a new session");
}

#[tokio::test]
async fn acknowledged_numbers_rise_with_the_answers() {
    let Cluster { client, first, .. } = cluster(ClientOptions::default()).await;
    for _ in 0..3 {
        client.put("", "a", "1").await.unwrap();
    }
    let store = first.store.lock();
    let ids: Vec<_> = store.requests.iter().map(|r| (r.number, r.acked_below)).collect();
    assert_eq!(ids, [(1, 1), (2, 2), (3, 3)]);
}

#[tokio::test]
async fn reads_go_to_another_server_if_one_hangs_refuses_or_is_gone() {
    let Cluster { client, first, second } = cluster(impatient()).await;
    client.put("", "k", "v").await.unwrap();
    first.fail_next([Fault::Hang, Fault::Refuse(ErrorKind::NotLeader)]);
    second.fail_next([Fault::Refuse(ErrorKind::Stopping)]);
    for _ in 0..3 {
        assert_eq!(client.get("", "k").await.unwrap().unwrap().value, "v");
    }

    let env = Env::real();
    let dead = free_addrs(&env, 1).await.unwrap().remove(0);
    let alive = serve(&env, first.clone()).await;
    let client = Client::connect(env, vec![dead, alive], ClientOptions::default()).await.unwrap();
    assert_eq!(client.get("", "k").await.unwrap().unwrap().value, "v");
    client.put("", "k", "w").await.unwrap();
}

#[tokio::test]
async fn nobody_there_is_unavailable_within_the_deadline() {
    let env = Env::real();
    let addr = free_addrs(&env, 1).await.unwrap().remove(0);
    let options = ClientOptions { deadline: Duration::from_millis(200), ..ClientOptions::default() };
    let client = Client::connect(env, vec![addr], options).await.unwrap();
    let error = client.get("", "k").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(error.message.contains("refused"), "{error}");
    assert_eq!(client.put("", "k", "v").await.unwrap_err().kind, ErrorKind::Unavailable, "never sent");
}

#[tokio::test]
async fn faults_of_the_request_are_found_here() {
    let Cluster { client, first, .. } = cluster(ClientOptions::default()).await;
    for error in [
        client.get("", "").await.unwrap_err(),
        client.put("", vec![0; 16 * 1024 + 1], "v").await.unwrap_err(),
        client.put("", "k", vec![0; 8 * 1024 * 1024 + 1]).await.unwrap_err(),
        client.create_table("bad name", &Default::default()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind, ErrorKind::Invalid);
    }
    first.fail_next([Fault::Refuse(ErrorKind::UnknownTable)]);
    assert_eq!(client.put("t", "k", "v").await.unwrap_err().kind, ErrorKind::UnknownTable);
}

#[tokio::test]
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

/// Applications spawn these: a future that is not `Send` breaks their build.
#[test]
fn all_futures_are_send() {
    fn check(_: impl Send) {}
    fn never(client: &Client, options: &TableOptions) {
        check(client.get("", "k"));
        check(client.multi_get("", vec![]));
        check(client.put("", "k", "v"));
        check(client.insert("", "k", "v"));
        check(client.delete("", "k"));
        check(client.delete_checked("", "k"));
        check(client.cas("", "k", Expected::Absent, Effect::Delete));
        check(client.batch(vec![]));
        check(client.scan("", ScanOptions::default()).collect_records());
        check(client.create_table("t", options));
        check(client.list_tables());
        check(client.status());
        check(client.flush(None));
    }
    let _: fn(&Client, &TableOptions) = never;
}
