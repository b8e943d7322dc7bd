//! Mayflies: records that expire, looked at through one p-node and the other while they do.
//!
//! Nobody else writes their keys, so the register checker has nothing to say about them. What has to hold is judged here: nobody is
//! told that a record is there after somebody was told that it, or one of its partition that was to expire no earlier, has expired;
//! and what is inserted over one that has is found from then on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::Mutex;
use sextant_client::{Client, Condition, Lifetime, Operation, ReadMode, Record, ScanOptions, Tick, Update};

use super::{Patience, Shared, connect};
use crate::host::{Host, mix};
use crate::plan::{PNODES, pick};

/// A p-node that is cut off is not waited for: the record is of interest now.
const PATIENCE: Patience = Patience { deadline_ms: 400, attempt_ms: 400 };
/// Tags, each of which puts its keys into one partition.
const TAGS: u64 = 2;
/// So many of a client's records are looked at.
const ALIVE_MAX: usize = 12;

/// A table and a tag: all keys are of one partition.
type Place = (String, u64);
/// When it was said, and which expiry was over.
type Said = Vec<(u64, Tick)>;

/// What was said of the times of partitions.
#[derive(Default)]
pub struct Times(Mutex<BTreeMap<Place, Said>>);

impl Times {
    /// Somebody was told that a record has expired.
    fn over(&self, place: &Place, ret_ns: u64, expiry: Tick) {
        let mut times = self.0.lock();
        let said = times.entry(place.clone()).or_default();
        // Of what says less, later, nothing can follow.
        if said.iter().all(|(ret, at)| *at < expiry || *ret > ret_ns) {
            said.retain(|(ret, at)| *at > expiry || *ret < ret_ns);
            said.push((ret_ns, expiry));
        }
    }

    /// The latest expiry that was said to be over before a call.
    fn over_before(&self, place: &Place, call_ns: u64) -> Option<Tick> {
        let times = self.0.lock();
        let said = times.get(place)?.iter().filter(|(ret_ns, _)| *ret_ns < call_ns);
        said.map(|(_, at)| *at).max()
    }
}

/// How a violation begins that the workload finds by itself: by what was said when, without any version.
pub const OF_A_MAYFLY: &str = "mayfly";

/// A record, as its writer knows it.
struct Fly {
    place: Place,
    key: String,
    value: String,
    /// As it was read; None: not yet, or it does not expire.
    expires_at: Option<Tick>,
    /// It was inserted again, or its expiry was taken from it: it is there for good.
    stays: bool,
    seen_gone: bool,
}

struct Flies<'s> {
    shared: &'s Arc<Shared>,
    clients: Vec<Client>,
    flies: Vec<Fly>,
}

pub async fn mayflies(shared: Arc<Shared>, host: Arc<Host>, number: usize) {
    let mut rng = fastrand::Rng::with_seed(mix(shared.world.seed, 6_000 + number as u64));
    let mut clients = Vec::new();
    for pnode in 0..PNODES {
        clients.push(connect(&host, &[pnode], true, PATIENCE).await);
    }
    shared.load_begins().await;
    let mut flies = Flies { shared: &shared, clients, flies: Vec::new() };
    for round in 0.. {
        if !shared.loading() {
            break;
        }
        flies.hatch(&format!("{number}.{round:04}"), &mut rng).await;
        for _ in 0..rng.u64(1..8) {
            flies.see(&mut rng).await;
            tokio::time::sleep(Duration::from_millis(rng.u64(0..60))).await;
        }
    }
    shared.working.fetch_sub(1, Relaxed);
}

impl Flies<'_> {
    fn client(&self, rng: &mut fastrand::Rng) -> Client {
        let mode = *pick(rng, &[ReadMode::Pda, ReadMode::Pda, ReadMode::Pda, ReadMode::Bda]);
        self.clients[rng.usize(0..PNODES)].clone().with_mode(mode)
    }

    /// A new record.
    async fn hatch(&mut self, name: &str, rng: &mut fastrand::Rng) {
        let tables = &self.shared.plan.tables;
        let place = (tables[rng.usize(0..tables.len())].0.clone(), rng.u64(0..TAGS));
        let key = format!("{}{name}", prefix(&place));
        let value = format!("mayfly {name}");
        let ms = *pick(rng, &[40, 150, 400, 1_000]);
        let put =
            Operation::put(place.0.as_str(), key.clone(), value.clone()).lasting(Lifetime::Milliseconds(ms));
        if self.client(rng).batch(vec![put]).await.is_ok() {
            if self.flies.len() >= ALIVE_MAX {
                self.flies.remove(0);
            }
            self.flies.push(Fly { place, key, value, expires_at: None, stays: false, seen_gone: false });
        }
    }

    async fn see(&mut self, rng: &mut fastrand::Rng) {
        if self.flies.is_empty() {
            return;
        }
        let at = rng.usize(0..self.flies.len());
        match rng.u64(0..8) {
            0 => self.scan(at, rng).await,
            1 => self.touch(at, rng).await,
            _ => self.look(at, rng).await,
        }
        if self.flies.get(at).is_some_and(|fly| fly.seen_gone && !fly.stays) && rng.bool() {
            self.insert(at, rng).await;
        }
    }

    async fn look(&mut self, at: usize, rng: &mut fastrand::Rng) {
        let (client, call_ns) = (self.client(rng), self.shared.world.now_ns());
        let fly = &self.flies[at];
        if let Ok(record) = client.get(&fly.place.0, fly.key.clone()).await {
            self.seen(at, call_ns, record.as_ref());
        }
    }

    /// All of one place, at one instant.
    async fn scan(&mut self, at: usize, rng: &mut fastrand::Rng) {
        let (client, call_ns) = (self.client(rng), self.shared.world.now_ns());
        let place = self.flies[at].place.clone();
        let Ok(records) = client.scan(&place.0, ScanOptions::prefix(prefix(&place))).collect_records().await
        else {
            return;
        };
        let here = |fly: &Fly| fly.place == place;
        let is_gone = |fly: &&Fly| !records.iter().any(|r| r.key == fly.key.as_bytes());
        let over =
            self.flies.iter().filter(|fly| here(fly)).filter(is_gone).filter_map(|fly| fly.expires_at).max();
        for at in 0..self.flies.len() {
            let fly = &self.flies[at];
            if !here(fly) {
                continue;
            }
            let record = records.iter().find(|r| r.key == fly.key.as_bytes());
            let record = record.map(|r| Record {
                value: r.value.clone(),
                seq: r.seq,
                expires_at: r.expires_at,
                kind: r.kind,
            });
            if let (Some(over), Some(alive)) = (over, record.as_ref().and_then(|r| r.expires_at))
                && alive <= over
            {
                let text =
                    format!("a page has {:?} until {alive:?}, and not what expires at {over:?}", fly.key);
                self.shared.world.violation(text);
            }
            self.seen(at, call_ns, record.as_ref());
        }
    }

    /// What a record, or that there is none, says to a call that has just returned.
    fn seen(&mut self, at: usize, call_ns: u64, record: Option<&Record>) {
        let (shared, ret_ns) = (self.shared, self.shared.world.now_ns());
        let fly = &mut self.flies[at];
        let violation = |what: String| shared.world.violation(format!("{OF_A_MAYFLY} {:?}: {what}", fly.key));
        match record {
            Some(record) if record.value != fly.value.as_bytes() => {
                violation(format!("it holds {:?}", record.value))
            }
            Some(record) if fly.stays => {
                if record.expires_at.is_some() {
                    violation(format!("it is to stay, and expires at {:?}", record.expires_at));
                }
            }
            Some(Record { expires_at: None, .. }) => violation("it does not expire".into()),
            Some(Record { expires_at: Some(at), .. }) => {
                let over = shared.mayflies.over_before(&fly.place, call_ns);
                if fly.seen_gone || over.is_some_and(|over| *at <= over) {
                    violation(format!("it is there until {at:?} after {over:?} was over"));
                }
                fly.expires_at = Some(*at);
            }
            None if fly.stays => violation("it is lost".into()),
            None => {
                fly.seen_gone = true;
                if let Some(at) = fly.expires_at {
                    shared.mayflies.over(&fly.place, ret_ns, at);
                    shared.count("mayflies_gone");
                }
            }
        }
    }

    /// Takes its expiry from a record, if it is there: the sequencer says whether.
    async fn touch(&mut self, at: usize, rng: &mut fastrand::Rng) {
        let (client, call_ns) = (self.client(rng), self.shared.world.now_ns());
        let fly = &self.flies[at];
        let touch = Operation::update(fly.place.0.as_str(), fly.key.clone(), Update::Touch);
        let touch = touch.lasting(Lifetime::Unlimited).only_if(Condition::Present).skip_on_failure();
        match client.batch(vec![touch]).await {
            Err(_) => drop(self.flies.remove(at)),
            Ok(outcome) if outcome.results[0].applied => {
                let fly = &self.flies[at];
                let over = self.shared.mayflies.over_before(&fly.place, call_ns);
                if !fly.stays && (fly.seen_gone || fly.expires_at.is_some_and(|at| Some(at) <= over)) {
                    let text = format!("mayfly {:?} was met by a change after {over:?} was over", fly.key);
                    self.shared.world.violation(text);
                }
                self.flies[at].stays = true;
            }
            Ok(_) => self.seen(at, call_ns, None),
        }
    }

    /// Over one that has expired.
    async fn insert(&mut self, at: usize, rng: &mut fastrand::Rng) {
        let client = self.client(rng);
        let fly = &self.flies[at];
        let value = format!("{} again", fly.value);
        match client.insert(&fly.place.0, fly.key.clone(), value.clone()).await {
            Ok(outcome) if outcome.applied => {
                let fly = &mut self.flies[at];
                (fly.value, fly.stays) = (value, true);
                self.shared.count("mayflies_again");
            }
            Ok(outcome) => {
                let text =
                    format!("mayfly {:?} was met by an insert after it had expired: {outcome:?}", fly.key);
                self.shared.world.violation(text);
            }
            Err(_) => drop(self.flies.remove(at)),
        }
    }
}

/// Of all keys of a place.
fn prefix((_, tag): &Place) -> String {
    format!("m{{{tag}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_before_a_call_binds_it() {
        let (times, place, other) = (Times::default(), ("t".to_owned(), 0), ("t".to_owned(), 1));
        times.over(&place, 10, Tick(100));
        times.over(&place, 20, Tick(90));
        times.over(&place, 30, Tick(200));
        times.over(&place, 25, Tick(150));
        let before = |call_ns| times.over_before(&place, call_ns).map(|at| at.0);
        assert_eq!([10, 11, 21, 26, 31].map(before), [None, Some(100), Some(100), Some(150), Some(200)]);
        assert_eq!(times.over_before(&other, 99), None);
    }
}
