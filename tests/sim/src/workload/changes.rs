//! Changes of tables: a client that gives other options to the tables that all clients use, and makes, fills and drops one of its own,
//! again and again.
//!
//! What the others see is judged by their histories. What of its own table has to hold is judged here: who asks after a drop has
//! returned finds nothing of what was there, through any p-node, and what is written to the table that was made then is found.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sextant_client::{Client, Compression, ErrorKind, OptionsChange, TableOptions};

use super::{Patience, Shared, connect};
use crate::host::{Host, mix};
use crate::plan::{PNODES, pick};

/// A p-node that is cut off is not waited for.
const PATIENCE: Patience = Patience { deadline_ms: 1_000, attempt_ms: 1_000 };
const KEYS: u64 = 12;
/// How long a change is tried at a time.
const CHANGE_MAX: Duration = Duration::from_secs(4);

/// What is known of a key of the own table.
#[derive(Clone, Debug)]
enum Known {
    Value(String),
    /// One of these, or nothing: outcomes that nobody knows.
    OneOf(Vec<String>),
}

struct Changes<'s> {
    shared: &'s Arc<Shared>,
    clients: Vec<Client>,
    table: String,
    known: BTreeMap<String, Known>,
    /// Writes of which nobody knows what became of them: they may still come, also to a later table of the name.
    adrift: Vec<String>,
    values: u64,
    /// Nobody knows what became of an attempt to make it.
    may_come_late: bool,
}

pub async fn changes(shared: Arc<Shared>, host: Arc<Host>, number: usize) {
    let mut rng = fastrand::Rng::with_seed(mix(shared.world.seed, 9_500 + number as u64));
    let mut clients = Vec::new();
    for pnode in 0..PNODES {
        clients.push(connect(&host, &[pnode], true, PATIENCE).await);
    }
    let mut own = Changes {
        shared: &shared,
        clients,
        table: format!("own{number}"),
        known: BTreeMap::new(),
        adrift: Vec::new(),
        values: 0,
        may_come_late: false,
    };
    shared.load_begins().await;
    while shared.loading() {
        if rng.bool() {
            own.alter(&mut rng).await;
        } else {
            own.make(&mut rng).await;
            own.fill(&mut rng).await;
            own.drop_it(&mut rng).await;
        }
        tokio::time::sleep(Duration::from_millis(rng.u64(0..300))).await;
    }
    shared.working.fetch_sub(1, Relaxed);
}

impl Changes<'_> {
    fn client(&self, rng: &mut fastrand::Rng) -> Client {
        self.clients[rng.usize(0..PNODES)].clone()
    }

    fn violation(&self, what: String) {
        self.shared.world.violation(format!("table {:?}: {what}", self.table));
    }

    fn is_adrift(&self, value: &[u8]) -> bool {
        self.adrift.iter().any(|adrift| adrift.as_bytes() == value)
    }

    async fn alter(&mut self, rng: &mut fastrand::Rng) {
        let tables = &self.shared.plan.tables;
        let table = tables[rng.usize(0..tables.len())].0.clone();
        let change = OptionsChange {
            filter_inserts: (rng.u64(0..4) > 0).then(|| rng.bool()),
            compression: (rng.u64(0..4) == 0).then(|| *pick(rng, &[Compression::Lz4, Compression::Zstd])),
            filter_prefix: (rng.u64(0..2) == 0).then(|| rng.u32(0..4)),
        };
        let client = self.client(rng);
        if let Ok(Ok(_)) = tokio::time::timeout(CHANGE_MAX, client.alter_table(&table, &change)).await {
            self.shared.count("tables_altered");
        }
    }

    /// Until it is there. Nothing is in it but what is adrift.
    async fn make(&mut self, rng: &mut fastrand::Rng) {
        while self.shared.loading() {
            let options = TableOptions { filter_inserts: rng.bool(), ..TableOptions::default() };
            let client = self.client(rng);
            match client.create_table(&self.table, &options).await {
                Ok(_) => break,
                Err(_) => {
                    // It may still come, also after a drop.
                    self.may_come_late = true;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        self.look(rng, "of a table that was made anew").await;
    }

    async fn fill(&mut self, rng: &mut fastrand::Rng) {
        for _ in 0..rng.u64(4..30) {
            let key = format!("k{}", rng.u64(0..KEYS));
            self.values += 1;
            let value = format!("{key}.{}", self.values);
            let written = self.client(rng).put(&self.table, key.clone(), value.clone()).await;
            match written {
                Ok(_) => drop(self.known.insert(key, Known::Value(value))),
                Err(e) if e.kind == ErrorKind::OutcomeUnknown => {
                    self.adrift.push(value.clone());
                    let maybe = match self.known.remove(&key) {
                        Some(Known::Value(before)) => vec![before, value],
                        Some(Known::OneOf(mut all)) => {
                            all.push(value);
                            all
                        }
                        None => vec![value],
                    };
                    self.known.insert(key, Known::OneOf(maybe));
                }
                Err(_) => {}
            }
            if rng.u64(0..4) == 0 {
                self.look(rng, "while it is filled").await;
            }
            tokio::time::sleep(Duration::from_millis(rng.u64(0..15))).await;
        }
    }

    /// Every key, through one p-node or the other. (That there is no such table says nothing here: it is being made or dropped.)
    async fn look(&mut self, rng: &mut fastrand::Rng, when: &str) {
        for n in 0..KEYS {
            let key = format!("k{n}");
            let Ok(found) = self.client(rng).get(&self.table, key.clone()).await else { continue };
            let found = found.map(|record| String::from_utf8_lossy(&record.value).into_owned());
            let is_adrift = found.as_ref().is_some_and(|found| self.adrift.contains(found));
            let fits = match (self.known.get(&key), &found) {
                (None, None) | (Some(Known::OneOf(_)), None) => true,
                (Some(Known::Value(value)), Some(found)) => value == found,
                (Some(Known::OneOf(all)), Some(found)) => all.contains(found),
                (Some(Known::Value(_)), None) => self.may_come_late,
                (None, Some(_)) => false,
            };
            if !fits && !is_adrift {
                self.violation(format!("{key} is {found:?} {when}, and {:?} is known", self.known.get(&key)));
            }
            self.shared.count("looks_at_own_tables");
        }
    }

    /// Until it is gone: whoever asks after that finds nothing of it.
    async fn drop_it(&mut self, rng: &mut fastrand::Rng) {
        loop {
            let client = self.client(rng);
            match tokio::time::timeout(CHANGE_MAX, client.drop_table(&self.table)).await {
                Ok(Ok(_)) => break,
                _ if !self.shared.loading() => return,
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
        self.shared.count("tables_dropped");
        self.known.clear();
        for pnode in 0..PNODES {
            let key = format!("k{}", rng.u64(0..KEYS));
            if let Ok(found) = self.clients[pnode].get(&self.table, key.clone()).await
                && !(self.may_come_late && found.is_none())
                && !found.as_ref().is_some_and(|found| self.is_adrift(&found.value))
            {
                self.violation(format!(
                    "p-node {} answers {key} with {found:?} after it was dropped",
                    pnode + 1
                ));
            }
        }
    }
}
