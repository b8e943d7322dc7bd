//! Clients that read and write hot and cold keys through the p-nodes and write down what they asked and were told.
//!
//! Keys change with time, so that none gets more operations than the checker can decide. A key's epoch is in its name; cold
//! keys of earlier epochs are still read now and then: that is where lost data shows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use parking_lot::Mutex;
use sextant_checker::{Call, Pending, Recorder, Returned};
use sextant_client::{Client, Effect, Expected, ReadMode, Record};
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_environment::Env;
use sextant_environment::rng::{Rng, SeededRng};
use sextant_objects::Groups;

/// Keys that everybody fights over.
const HOT_KEYS: u64 = 6;
/// Keys that are seldom met.
const COLD_KEYS: u64 = 300;
/// How long a set of keys is in use.
const EPOCH_NS: u64 = 15_000_000_000;
/// Keys of one multi-get.
const MULTI_GET: usize = 4;
/// Longest pause between two operations of a client: the machine is shared with eight servers.
const THINK_US: u64 = 4_000;

/// What became of the operations of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub ok: u64,
    /// Certainly not executed, or a read without an answer.
    pub failed: u64,
    pub unknown: u64,
}

/// By operation and kind of failure: how often, and one of the messages.
type Reasons = BTreeMap<(&'static str, String), (u64, String)>;

/// What all clients share.
pub struct Load {
    pub(crate) env: Env,
    pub recorder: Recorder,
    /// Objects, for clients of the Redis protocol.
    pub(crate) groups: Groups,
    stop: AtomicBool,
    started_ns: u64,
    next_client: AtomicU64,
    tallies: Mutex<BTreeMap<&'static str, Tally>>,
    /// The last reason for each kind of error: for whoever wonders why operations fail.
    reasons: Mutex<Reasons>,
}

impl Load {
    pub fn new(env: Env, recorder: Recorder) -> Self {
        Self {
            started_ns: env.clock.holder_ns(),
            groups: Groups::new(env.rng.next_u64()),
            env,
            recorder,
            stop: AtomicBool::new(false),
            next_client: AtomicU64::new(1),
            tallies: Mutex::default(),
            reasons: Mutex::default(),
        }
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    pub(crate) fn client_id(&self) -> u64 {
        self.next_client.fetch_add(1, Ordering::SeqCst)
    }

    pub fn tallies(&self) -> BTreeMap<&'static str, Tally> {
        self.tallies.lock().clone()
    }

    /// Operations that were answered.
    pub fn answered(&self) -> u64 {
        self.tallies.lock().values().map(|t| t.ok).sum()
    }

    /// Why operations failed: kind of operation, kind of error, how often, the last message.
    pub fn reasons(&self) -> Vec<(&'static str, String, u64, String)> {
        let reasons = self.reasons.lock();
        reasons.iter().map(|((op, kind), (n, last))| (*op, kind.clone(), *n, last.clone())).collect()
    }

    pub(crate) fn count(&self, op: &'static str, what: impl Fn(&mut Tally) -> &mut u64) {
        *what(self.tallies.lock().entry(op).or_default()) += 1;
    }

    fn epoch(&self) -> u64 {
        (self.env.clock.holder_ns() - self.started_ns) / EPOCH_NS
    }

    /// All keys that were in use so far.
    pub fn keys(&self) -> Vec<String> {
        (0..=self.epoch())
            .flat_map(|epoch| {
                let of = |kind, count| (0..count).map(move |i| format!("{kind}{epoch}.{i}"));
                of("hot", HOT_KEYS).chain(of("cold", COLD_KEYS))
            })
            .collect()
    }

    fn pick(&self, rng: &Arc<dyn Rng>) -> String {
        let epoch = self.epoch();
        match rng.below(10) {
            0..=3 => format!("hot{epoch}.{}", rng.below(HOT_KEYS)),
            4..=8 => format!("cold{epoch}.{}", rng.below(COLD_KEYS)),
            _ => format!("cold{}.{}", rng.below(epoch + 1), rng.below(COLD_KEYS)),
        }
    }

    fn failed(&self, op: &'static str, e: &Error) {
        self.note(op, &format!("{:?}", e.kind), e.message.clone().into_owned());
    }

    pub(crate) fn note(&self, op: &'static str, kind: &str, why: String) {
        let mut reasons = self.reasons.lock();
        let reason = reasons.entry((op, kind.to_owned())).or_default();
        reason.0 += 1;
        reason.1 = why;
    }
}

fn mode(rng: &Arc<dyn Rng>) -> ReadMode {
    match rng.below(10) {
        0..=7 => ReadMode::Pda,
        8 => ReadMode::Bda,
        _ => ReadMode::Nda,
    }
}

fn text(record: &Option<Record>) -> Option<String> {
    record.as_ref().map(|r| String::from_utf8_lossy(&r.value).into_owned())
}

/// A get returned.
fn saw(pending: Pending<'_>, record: &Option<Record>) {
    pending.returned(Returned::Value(text(record).as_deref()), record.as_ref().map(|r| r.seq.0));
}

/// One client: operations one after the other until the load stops. After an unknown outcome it goes on as another client.
pub async fn run_client(load: Arc<Load>, client: Client, seed: u64) {
    let rng: Arc<dyn Rng> = Arc::new(SeededRng::new(seed));
    let mut id = load.client_id();
    let mut n = 0;
    while !load.is_over() {
        n += 1;
        if !operate(&load, &client, &rng, id, &format!("{id}.{n}")).await {
            id = load.client_id();
        }
        tokio::time::sleep(Duration::from_micros(rng.below(THINK_US))).await;
    }
}

/// One operation. False: nobody knows what became of it.
async fn operate(load: &Load, client: &Client, rng: &Arc<dyn Rng>, id: u64, value: &str) -> bool {
    let reader = client.with_mode(mode(rng));
    let key = load.pick(rng);
    match rng.below(20) {
        0..=7 => {
            get(load, &reader, id, "get", &key).await;
            true
        }
        8 | 9 => {
            multi_get(load, &reader, id, (0..MULTI_GET).map(|_| load.pick(rng)).collect()).await;
            true
        }
        10..=13 => {
            let put = client.put("", key.clone(), value.to_owned()).map(done);
            write(load, id, "put", &key, Call::Put(value), put).await
        }
        14 | 15 => {
            let insert = client.insert("", key.clone(), value.to_owned());
            let applied =
                insert.map(|r| r.map(|o| (Returned::Applied(o.applied), o.applied.then_some(o.seq.0))));
            write(load, id, "insert", &key, Call::Insert(value), applied).await
        }
        16 | 17 => {
            write(load, id, "delete", &key, Call::Delete, client.delete("", key.clone()).map(done)).await
        }
        _ => {
            // What it expects is what it just read.
            let Some(seen) = get(load, &reader, id, "get", &key).await else { return true };
            let expected = match &seen {
                Some(text) => Expected::Value(Bytes::copy_from_slice(text.as_bytes())),
                None => Expected::Absent,
            };
            let effect = Effect::Put(Bytes::copy_from_slice(value.as_bytes()));
            let call = Call::Cas { expected: seen.as_deref(), new: Some(value) };
            let cas = client.compare_and_set("", key.clone(), expected, effect);
            let applied =
                cas.map(|r| r.map(|o| (Returned::Applied(o.applied), o.applied.then_some(o.seq.0))));
            write(load, id, "cas", &key, call, applied).await
        }
    }
}

fn done(result: Result<sextant_common::ids::Seq>) -> Result<(Returned<'static>, Option<u64>)> {
    result.map(|seq| (Returned::Done, Some(seq.0)))
}

/// A recorded get; what it saw, if it was answered.
pub async fn get(
    load: &Load,
    client: &Client,
    id: u64,
    op: &'static str,
    key: &str,
) -> Option<Option<String>> {
    let pending = load.recorder.call(id, key, Call::Get);
    match client.get("", key.to_owned()).await {
        Ok(record) => {
            let seen = text(&record);
            saw(pending, &record);
            load.count(op, |t| &mut t.ok);
            Some(seen)
        }
        Err(e) => {
            // A read without an answer has no effect.
            pending.not_executed();
            load.failed(op, &e);
            load.count(op, |t| &mut t.failed);
            None
        }
    }
}

/// Linearizable for each key by itself: so many gets that began and ended together.
async fn multi_get(load: &Load, client: &Client, id: u64, keys: Vec<String>) {
    let pending: Vec<_> = keys.iter().map(|key| load.recorder.call(id, key, Call::Get)).collect();
    match client.multi_get("", keys.into_iter().map(Bytes::from).collect()).await {
        Ok(records) => {
            pending.into_iter().zip(&records).for_each(|(pending, record)| saw(pending, record));
            load.count("multi-get", |t| &mut t.ok);
        }
        Err(e) => {
            pending.into_iter().for_each(Pending::not_executed);
            load.failed("multi-get", &e);
            load.count("multi-get", |t| &mut t.failed);
        }
    }
}

async fn write(
    load: &Load,
    id: u64,
    op: &'static str,
    key: &str,
    call: Call<'_>,
    sent: impl Future<Output = Result<(Returned<'static>, Option<u64>)>>,
) -> bool {
    let pending = load.recorder.call(id, key, call);
    match sent.await {
        Ok((outcome, version)) => {
            pending.returned(outcome, version);
            load.count(op, |t| &mut t.ok);
            true
        }
        Err(e) => {
            load.failed(op, &e);
            // The client promises that any other error means "not executed"; the checker holds it to that.
            let unknown = matches!(e.kind, ErrorKind::OutcomeUnknown | ErrorKind::Internal);
            if unknown {
                pending.unknown();
                load.count(op, |t| &mut t.unknown);
            } else {
                pending.not_executed();
                load.count(op, |t| &mut t.failed);
            }
            !unknown
        }
    }
}
