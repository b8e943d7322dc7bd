//! Registers: clients that put, insert, delete, compare-and-set and get hot and cold keys through several p-nodes, and write
//! down what they asked and were told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use sextant_checker::{Call, Recorder, Returned};
use sextant_common::error::ErrorKind;
use sextant_common::ids::Seq;
use sextant_environment::rng::{Rng, SeededRng};
use sextant_pnode::{
    Condition, Effect, Operation, PNode, ReadMode, ReadOptions, Record, Returns, Told, WriteOptions,
};

/// Shape of a run.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Keys that everybody fights over.
    pub hot_keys: u64,
    /// Keys that are seldom met: lost data shows here.
    pub cold_keys: u64,
    /// Of each client, at least.
    pub operations: u64,
    pub mode: ReadMode,
}

/// Counts what happened.
#[derive(Debug, Default)]
pub struct Tally {
    pub done: AtomicU64,
    pub unknown: AtomicU64,
    pub refused: AtomicU64,
}

static NEXT_CLIENT: AtomicU64 = AtomicU64::new(1);

/// One client: operations one after the other, until it has done its share and it is `enough`. After an unknown outcome it goes on as
/// another client.
pub async fn client(
    pnode: PNode,
    recorder: Arc<Recorder>,
    table: &'static str,
    shape: Shape,
    seed: u64,
    tally: Arc<Tally>,
    enough: Arc<AtomicBool>,
) {
    let rng: Arc<dyn Rng> = Arc::new(SeededRng::new(seed));
    let mut id = NEXT_CLIENT.fetch_add(1, Ordering::Relaxed);
    for n in 0.. {
        if n >= shape.operations && enough.load(Ordering::Relaxed) {
            return;
        }
        let key = if rng.below(4) > 0 {
            format!("{table}/hot{}", rng.below(shape.hot_keys))
        } else {
            format!("{table}/cold{}", rng.below(shape.cold_keys))
        };
        let value = format!("{id}.{n}");
        let known = match rng.below(11) {
            0..=3 => get(&pnode, &recorder, id, table, &key, shape.mode).await,
            4 | 5 => write(&pnode, &recorder, id, table, &key, Call::Put(&value)).await,
            6 => write(&pnode, &recorder, id, table, &key, Call::Insert(&value)).await,
            7 => write(&pnode, &recorder, id, table, &key, Call::Delete).await,
            8 => write(&pnode, &recorder, id, table, &key, Call::Swap(&value)).await,
            _ => {
                // What it expects is what it just read.
                let seen = pnode.get(table, key.as_bytes(), read_options(shape.mode)).await.ok().flatten();
                let seen = seen.map(|r| String::from_utf8_lossy(&r.value).into_owned());
                let call = Call::Cas { expected: seen.as_deref(), new: Some(&value) };
                write(&pnode, &recorder, id, table, &key, call).await
            }
        };
        let counter = match known {
            Known::Done => &tally.done,
            Known::Refused => &tally.refused,
            Known::Unknown => {
                id = NEXT_CLIENT.fetch_add(1, Ordering::Relaxed);
                &tally.unknown
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

enum Known {
    Done,
    Refused,
    Unknown,
}

fn read_options(mode: ReadMode) -> ReadOptions {
    ReadOptions { mode, deadline: None }
}

async fn get(pnode: &PNode, recorder: &Recorder, id: u64, table: &str, key: &str, mode: ReadMode) -> Known {
    let pending = recorder.call(id, key, Call::Get);
    match pnode.get(table, key.as_bytes(), read_options(mode)).await {
        Ok(Some(Record { value, seq, .. })) => {
            pending.returned(Returned::Value(Some(&String::from_utf8_lossy(&value))), Some(seq.0));
            Known::Done
        }
        Ok(None) => {
            pending.returned(Returned::Value(None), None);
            Known::Done
        }
        Err(_) => {
            // A read without an answer has no effect.
            pending.not_executed();
            Known::Refused
        }
    }
}

async fn write(pnode: &PNode, recorder: &Recorder, id: u64, table: &str, key: &str, call: Call<'_>) -> Known {
    let put = |v: &str| Effect::Put(Bytes::copy_from_slice(v.as_bytes()));
    let (effect, condition) = match call {
        Call::Put(value) | Call::Swap(value) => (put(value), Condition::None),
        Call::Insert(value) => (put(value), Condition::Absent),
        Call::Delete => (Effect::Delete, Condition::None),
        Call::Cas { expected, new } => {
            let condition = match expected {
                Some(value) => Condition::ValueEquals(Bytes::copy_from_slice(value.as_bytes())),
                None => Condition::SeqEquals(Seq(0)),
            };
            (new.map_or(Effect::Delete, put), condition)
        }
        Call::Get => return Known::Refused,
    };
    let returns = if matches!(call, Call::Swap(_)) { Returns::Before } else { Returns::Nothing };
    let op = Operation::new(table, key.to_owned(), effect).only_if(condition).returning(returns);
    let pending = recorder.call(id, key, call);
    match pnode.write(vec![op], WriteOptions::default()).await {
        Ok(outcome) => {
            let version = outcome.results.first().filter(|_| outcome.applied).map(|r| r.seq.0);
            match call {
                Call::Insert(_) | Call::Cas { .. } => {
                    pending.returned(Returned::Applied(outcome.applied), version)
                }
                Call::Swap(_) => match &outcome.results[0].told {
                    Told::Forgotten => pending.returned(Returned::Done, version),
                    told => {
                        let met = told.value().map(|value| String::from_utf8_lossy(value).into_owned());
                        pending.returned(Returned::Met(met.as_deref()), version);
                    }
                },
                _ => pending.returned(Returned::Done, version),
            }
            Known::Done
        }
        Err(e) => match e.kind {
            ErrorKind::Retry
            | ErrorKind::NotLeader
            | ErrorKind::Overloaded
            | ErrorKind::Invalid
            | ErrorKind::UnknownTable
            | ErrorKind::UnknownSession => {
                pending.not_executed();
                Known::Refused
            }
            _ => {
                pending.unknown();
                Known::Unknown
            }
        },
    }
}

/// Checks a history; panics with the explanation if it is not linearizable.
pub fn assert_linearizable(history: &[u8]) {
    let report = sextant_checker::check_reader(history, &sextant_checker::Options::default())
        .expect("the history is readable");
    assert!(report.passed(), "{report}");
}
