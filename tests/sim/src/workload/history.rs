//! One client's page in the history: each call is written down with its answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use sextant_checker::{Call, Pending, Returned};
use sextant_client::{
    Client, Effect, Expected, Operation, ReadMode, Record, Returns, ScanOptions, Told, Update,
};
use sextant_common::error::{Error, ErrorKind};
use sextant_common::operation::parse_integer;

use super::Shared;
use super::increments::Increment;

/// A client with its name in the history. After an unknown outcome it goes on under another.
pub struct Book {
    pub shared: Arc<Shared>,
    id: u64,
    values: u64,
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    Done,
    Refused,
    Unknown,
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

impl Book {
    pub fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: shared.clone(), id: shared.new_client_id(), values: 0 }
    }

    /// A value that nobody else writes, padded to a length.
    pub fn value(&mut self, bytes: usize) -> String {
        self.values += 1;
        let mut value = format!("{}.{}", self.id, self.values);
        while value.len() < bytes {
            value.push('.');
        }
        value
    }

    fn count(&mut self, known: Known) -> Known {
        let tally = &self.shared.tally;
        match known {
            Known::Done => tally.ok.fetch_add(1, Relaxed),
            Known::Refused => tally.failed.fetch_add(1, Relaxed),
            Known::Unknown => {
                self.id = self.shared.new_client_id();
                tally.unknown.fetch_add(1, Relaxed)
            }
        };
        known
    }

    /// Puts that a load makes of its records, begun when it is asked to be seen.
    pub fn loads<'s>(
        &self,
        shared: &'s Shared,
        table: &str,
        records: &BTreeMap<String, String>,
    ) -> Vec<Pending<'s>> {
        let begin = |(key, value): (&String, &String)| {
            self.written(table, key);
            shared.recorder.call(self.id, &name(table, key), Call::Put(value))
        };
        records.iter().map(begin).collect()
    }

    fn written(&self, table: &str, key: &str) {
        self.shared.keys.lock().insert((table.to_owned(), key.to_owned()));
    }

    /// The value. An error: no answer.
    pub async fn get(
        &mut self,
        client: &Client,
        table: &str,
        key: &str,
        mode: ReadMode,
    ) -> Result<Option<String>, Error> {
        Ok(self.look(client, table, key, mode).await?.map(|record| text(&record.value)))
    }

    /// The same with all that is known of the record.
    pub async fn look(
        &mut self,
        client: &Client,
        table: &str,
        key: &str,
        mode: ReadMode,
    ) -> Result<Option<Record>, Error> {
        let shared = self.shared.clone();
        let pending = shared.recorder.call(self.id, &name(table, key), Call::Get);
        let answer = client.with_mode(mode).get(table, key.to_owned()).await;
        match answer {
            Ok(record) => {
                saw(pending, &record);
                self.count(Known::Done);
                Ok(record)
            }
            Err(e) => {
                pending.not_executed();
                self.count(Known::Refused);
                Err(e)
            }
        }
    }

    pub async fn multi_get(
        &mut self,
        client: &Client,
        table: &str,
        keys: &[String],
    ) -> Result<Vec<Option<Record>>, Error> {
        let shared = self.shared.clone();
        let pending: Vec<_> =
            keys.iter().map(|k| shared.recorder.call(self.id, &name(table, k), Call::Get)).collect();
        let asked = keys.iter().map(|k| Bytes::from(k.clone())).collect();
        match client.multi_get(table, asked).await {
            Ok(records) => {
                for (pending, record) in pending.into_iter().zip(&records) {
                    saw(pending, record);
                    self.count(Known::Done);
                }
                Ok(records)
            }
            Err(e) => {
                pending.into_iter().for_each(Pending::not_executed);
                self.count(Known::Refused);
                Err(e)
            }
        }
    }

    /// Scans all keys with a prefix, and writes down what was seen of `keys` as reads. The records seen.
    pub async fn scan(
        &mut self,
        client: &Client,
        table: &str,
        prefix: &str,
        keys: &[String],
        page_records: u32,
        reverse: bool,
    ) -> Result<Vec<(String, String)>, Error> {
        let shared = self.shared.clone();
        let pending: Vec<_> =
            keys.iter().map(|k| shared.recorder.call(self.id, &name(table, k), Call::Get)).collect();
        let options = ScanOptions { page_records, reverse, ..ScanOptions::prefix(prefix.to_owned()) };
        match client.scan(table, options).collect_records().await {
            Ok(records) => {
                for (key, pending) in keys.iter().zip(pending) {
                    let record = records.iter().find(|r| r.key == key.as_bytes());
                    saw(
                        pending,
                        &record.map(|r| Record {
                            value: r.value.clone(),
                            seq: r.seq,
                            expires_at: r.expires_at,
                            kind: r.kind,
                        }),
                    );
                    self.count(Known::Done);
                }
                let mut sorted: Vec<_> = records.iter().map(|r| r.key.clone()).collect();
                sorted.sort();
                sorted.dedup();
                if reverse {
                    sorted.reverse();
                }
                if !sorted.iter().eq(records.iter().map(|r| &r.key)) {
                    shared.world.violation(format!("scan of {table}/{prefix}: keys twice or out of order"));
                }
                Ok(records.iter().map(|r| (text(&r.key), text(&r.value))).collect())
            }
            Err(e) => {
                pending.into_iter().for_each(Pending::not_executed);
                self.count(Known::Refused);
                Err(e)
            }
        }
    }

    pub async fn write(&mut self, client: &Client, table: &str, key: &str, call: Call<'_>) -> Known {
        self.written(table, key);
        let shared = self.shared.clone();
        let pending = shared.recorder.call(self.id, &name(table, key), call);
        let (k, bytes) = (key.to_owned(), |v: &str| Bytes::copy_from_slice(v.as_bytes()));
        let answer = match call {
            Call::Get | Call::Swap(_) => return Known::Refused,
            Call::Put(value) => {
                client.put(table, k, bytes(value)).await.map(|seq| (Returned::Done, Some(seq.0)))
            }
            Call::Insert(value) => client
                .insert(table, k, bytes(value))
                .await
                .map(|o| (Returned::Applied(o.applied), o.applied.then_some(o.seq.0))),
            Call::Delete => client.delete(table, k).await.map(|seq| (Returned::Done, Some(seq.0))),
            Call::Cas { expected, new } => {
                let expected = expected.map_or(Expected::Absent, |v| Expected::Value(bytes(v)));
                let effect = new.map_or(Effect::Delete, |v| Effect::Put(bytes(v)));
                client
                    .compare_and_set(table, k, expected, effect)
                    .await
                    .map(|o| (Returned::Applied(o.applied), o.applied.then_some(o.seq.0)))
            }
        };
        self.answered(vec![pending], answer.map(|a| vec![a]))
    }

    /// A put that tells what it met.
    pub async fn swap(&mut self, client: &Client, table: &str, key: &str, value: &str) -> Known {
        self.written(table, key);
        let shared = self.shared.clone();
        let pending = shared.recorder.call(self.id, &name(table, key), Call::Swap(value));
        let op = Operation::put(table, key.to_owned(), value.to_owned()).returning(Returns::Before);
        match client.batch(vec![op]).await {
            Ok(outcome) => {
                let result = &outcome.results[0];
                let met = match &result.told {
                    Told::Forgotten => Returned::Done,
                    told => Returned::Met(told.value().and_then(|value| std::str::from_utf8(value).ok())),
                };
                pending.returned(met, Some(result.seq.0));
                self.count(Known::Done)
            }
            Err(e) => self.answered(vec![pending], Err(e)),
        }
    }

    /// Adds 1 to a counter. What becomes of it is not in the history, but judged by itself ([`super::increments`]).
    pub async fn increment(&mut self, client: &Client, table: &str, key: &str) {
        let call_ns = self.shared.world.now_ns();
        let op = Operation::update(table, key.to_owned(), Update::Increment(1)).returning(Returns::After);
        let (known, result) = match client.batch(vec![op]).await {
            Ok(outcome) => {
                let number = outcome.results[0].told.value().and_then(|value| parse_integer(value));
                if number.is_none() {
                    let text = format!("an increment of {table}/{key} was answered {outcome:?}");
                    self.shared.world.violation(text);
                }
                (Known::Done, number)
            }
            Err(e) if matches!(e.kind, ErrorKind::OutcomeUnknown | ErrorKind::Internal) => {
                (Known::Unknown, None)
            }
            Err(_) => (Known::Refused, None),
        };
        if known != Known::Refused {
            let made = Increment { call_ns, ret_ns: self.shared.world.now_ns(), result };
            let counter = (table.to_owned(), key.to_owned());
            self.shared.increments.lock().entry(counter).or_default().push(made);
        }
        self.count(known);
    }

    /// A delete that tells whether there was a record.
    pub async fn delete_checked(&mut self, client: &Client, table: &str, key: &str) -> Known {
        self.written(table, key);
        let shared = self.shared.clone();
        let pending = shared.recorder.call(self.id, &name(table, key), Call::Delete);
        let answer = client.delete_checked(table, key.to_owned()).await;
        let answer = answer.map(|o| vec![(Returned::Applied(o.existed), o.applied.then_some(o.seq.0))]);
        self.answered(vec![pending], answer)
    }

    /// Puts the same value under several keys, atomically.
    pub async fn put_all(&mut self, client: &Client, table: &str, keys: &[String], value: &str) -> Known {
        let shared = self.shared.clone();
        let mut pending = Vec::new();
        let mut ops = Vec::new();
        for key in keys {
            self.written(table, key);
            pending.push(shared.recorder.call(self.id, &name(table, key), Call::Put(value)));
            ops.push(Operation::put(table, key.clone(), value.to_owned()));
        }
        let answer = client.batch(ops).await;
        let answer =
            answer.map(|o| o.results.iter().map(|r| (Returned::Done, Some(r.seq.0))).collect::<Vec<_>>());
        self.answered(pending, answer)
    }

    fn answered(
        &mut self,
        pending: Vec<Pending<'_>>,
        answer: Result<Vec<(Returned<'_>, Option<u64>)>, Error>,
    ) -> Known {
        let known = match answer {
            Ok(answers) => {
                for (pending, (outcome, version)) in pending.into_iter().zip(answers) {
                    pending.returned(outcome, version);
                }
                Known::Done
            }
            Err(e) if matches!(e.kind, ErrorKind::OutcomeUnknown | ErrorKind::Internal) => {
                pending.into_iter().for_each(Pending::unknown);
                Known::Unknown
            }
            // Everything else says that nothing happened, and is taken at its word.
            Err(_) => {
                pending.into_iter().for_each(Pending::not_executed);
                Known::Refused
            }
        };
        self.count(known)
    }
}

/// A key's name in the history.
pub fn name(table: &str, key: &str) -> String {
    format!("{table}/{key}")
}

fn saw(pending: Pending<'_>, record: &Option<Record>) {
    match record {
        Some(r) => pending.returned(Returned::Value(Some(&text(&r.value))), Some(r.seq.0)),
        None => pending.returned(Returned::Value(None), None),
    }
}
