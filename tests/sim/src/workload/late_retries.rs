//! Late retries: the same request once more, seconds after it was answered, whatever has happened meanwhile (other leaders,
//! restarts, snapshots sent to followers). It has to be answered as it was; and it must have no second effect: the key is deleted
//! in between, and looked at afterwards. Then it is sent a third time, when the client has said that it needs its answer no
//! more: it may be refused as too old. That its session is unknown is never true: a run is shorter than a session lives.
//!
//! The requests are written out here, because [`sextant_client::Client`] never repeats what was answered.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use sextant_checker::{Call, Returned};
use sextant_client::ReadMode;
use sextant_common::error::ErrorKind;
use sextant_environment::env::{error_of, grpc_channel};
use sextant_proto::v1;
use sextant_proto::v1::kv_client::KvClient;
use tonic::Status;
use tonic::transport::Channel;

use super::history::{Known, name};
use super::{Book, Patience, Shared, connect};
use crate::cluster::pnode_addr;
use crate::host::{Host, mix};
use crate::plan::PNODES;

const PATIENCE: Duration = Duration::from_secs(2);
/// Requests of a session that wait for their repetition.
const WAITING_MAX: usize = 24;

/// A request that was answered.
struct Answered {
    table: String,
    key: String,
    request: v1::KvPutRequest,
    answer: v1::KvWriteReply,
    /// When it is repeated, in nanoseconds of true time.
    due_ns: u64,
    /// How often memtable servers had started, and installed snapshots, when it was answered.
    lives: (u64, u64),
}

pub async fn late_retries(shared: Arc<Shared>, host: Arc<Host>, number: usize) {
    let mut rng = fastrand::Rng::with_seed(mix(shared.world.seed, 6_000 + number as u64));
    let env = host.boot();
    let pnodes: Vec<Channel> = (0..PNODES).map(|i| grpc_channel(&env.net, &pnode_addr(i))).collect();
    let other = connect(&host, &[number % PNODES], true, Patience::default()).await;
    shared.load_begins().await;
    let mut book = Book::new(&shared);
    let (mut session, mut next) = (0, 1);
    // Those that wait for their repetition, and those that the client has said to be done with.
    let (mut waiting, mut settled) = (Vec::new(), Vec::new());
    for round in 0.. {
        if !shared.loading() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(rng.u64(5..80))).await;
        let pnode = pnodes[rng.usize(0..PNODES)].clone();
        if session == 0 {
            let mut kv = KvClient::new(pnode);
            let opened = kv.open_session(v1::KvOpenSessionRequest {});
            match tokio::time::timeout(PATIENCE, opened).await {
                Ok(Ok(reply)) => (session, next) = (reply.into_inner().session, 1),
                _ => continue,
            }
            continue;
        }
        let now_ns = shared.world.now_ns();
        if let Some(at) = waiting.iter().position(|a: &Answered| a.due_ns <= now_ns) {
            let mut answered = waiting.remove(at);
            again(&shared, &mut book, &other, pnode, &answered).await;
            answered.due_ns = shared.world.now_ns() + rng.u64(100..4_000) * 1_000_000;
            settled.push(answered);
            continue;
        }
        if let Some(at) = settled.iter().position(|a: &Answered| a.due_ns <= now_ns) {
            let answered = settled.remove(at);
            again(&shared, &mut book, &other, pnode, &answered).await;
            continue;
        }
        if waiting.len() >= WAITING_MAX {
            continue;
        }
        let table = shared.plan.tables[rng.usize(0..shared.plan.tables.len())].0.clone();
        let key = format!("retry{number}.{round:04}");
        let value = book.value(0);
        let acked_below = waiting.iter().filter_map(|a| Some(a.request.request.as_ref()?.number)).min();
        let request = v1::KvPutRequest {
            table: table.clone(),
            key: Bytes::from(key.clone()),
            value: Bytes::from(value.clone()),
            request: Some(v1::RequestId { session, number: next, acked_below: acked_below.unwrap_or(next) }),
            lifetime: None,
        };
        next += 1;
        shared.keys.lock().insert((table.clone(), key.clone()));
        let client_id = shared.new_client_id();
        let pending = shared.recorder.call(client_id, &name(&table, &key), Call::Insert(&value));
        let sent = tokio::time::timeout(PATIENCE, KvClient::new(pnode).insert(request.clone())).await;
        let Ok(Ok(reply)) = sent else {
            // Perhaps it took effect. Nobody asks again.
            pending.unknown();
            shared.tally.unknown.fetch_add(1, Relaxed);
            if let Ok(Err(ref status)) = sent {
                judge(&shared, &table, &key, status);
            }
            continue;
        };
        let answer = reply.into_inner();
        let seq = answer.results.first().map(|r| r.seq);
        pending.returned(Returned::Applied(answer.applied), seq.filter(|_| answer.applied));
        shared.tally.ok.fetch_add(1, Relaxed);
        // Gone: a second effect would bring it back.
        if book.write(&other, &table, &key, Call::Delete).await != Known::Done {
            continue;
        }
        let due_ns = shared.world.now_ns() + rng.u64(200..8_000) * 1_000_000;
        let lives = shared.world.memtable_lives();
        waiting.push(Answered { table, key, request, answer, due_ns, lives });
    }
    shared.working.fetch_sub(1, Relaxed);
}

/// Repeats a request.
async fn again(
    shared: &Arc<Shared>,
    book: &mut Book,
    other: &sextant_client::Client,
    pnode: Channel,
    answered: &Answered,
) {
    let Answered { table, key, request, answer, .. } = answered;
    let lives = shared.world.memtable_lives();
    let sent = tokio::time::timeout(PATIENCE, KvClient::new(pnode).insert(request.clone())).await;
    match sent {
        Ok(Ok(reply)) => {
            let reply = reply.into_inner();
            if reply != *answer {
                shared.world.violation(format!(
                    "a retry of the insert of {table}/{key} was answered {reply:?}, and before: {answer:?}"
                ));
            }
            shared.count("late_retries_answered");
            if lives.0 > answered.lives.0 {
                shared.count("late_retries_over_restarts");
            }
            if lives.1 > answered.lives.1 {
                shared.count("late_retries_over_snapshots");
            }
        }
        Ok(Err(status)) => {
            judge(shared, table, key, &status);
            shared.count("late_retries_refused");
        }
        Err(_) => {}
    }
    let _ = book.get(other, table, key, ReadMode::Pda).await;
}

/// A refusal must not say that the session is unknown.
fn judge(shared: &Shared, table: &str, key: &str, status: &Status) {
    if error_of(status.clone()).kind == ErrorKind::UnknownSession {
        shared.world.violation(format!("the session of the insert of {table}/{key} is forgotten: {status}"));
    }
}
