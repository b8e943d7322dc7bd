//! Bulk loads: a client that loads records into a partition, again and again, while others read and write there.
//!
//! A load has the keys of a *set*, which nobody else writes, and *loose* keys, which others write as well: hot and cold ones of the
//! registers, and fresh ones that readers have looked for in vain. All of them are registers in the history, and the load a put of
//! each. What concerns more than one key is judged here: of a set nobody sees one load at one key and an earlier one at another that
//! is read later, or at once; what came to nothing is never seen.

mod sets;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use sextant_checker::{Call, Pending, Returned};
use sextant_client::{
    Client, EndLoad, Error, ErrorKind, LoadId, LoadPart, LoadRecord, LoadState, PartitionId, ReadMode,
    Record, ScanOptions,
};
use sextant_common::key::SlotMap;

use super::{Book, Patience, Shared, connect};
use crate::host::{Host, mix};
use crate::plan::{PNODES, Plan, Scene, pick};

use sets::Set;
pub use sets::Sets;

/// A p-node that is cut off is not waited for: the load is of interest now.
const PATIENCE: Patience = Patience { deadline_ms: 400, attempt_ms: 400 };
/// Writes are held back for a load.
const WRITERS_PATIENCE: Patience = Patience { deadline_ms: 1_200, attempt_ms: 600 };
const SEND_MAX: Duration = Duration::from_secs(4);
const COMMIT_MAX: Duration = Duration::from_secs(5);
const OPEN_MAX: Duration = Duration::from_secs(1);
const SNAPSHOT_LEASE: Duration = Duration::from_secs(2);
/// How often a load is tried.
const ATTEMPTS: usize = 6;
/// How long one that is written waits for a scene that is about it.
const SCENE_MAX_MS: u64 = 2_500;
const READERS: usize = 2;
/// Keys of the registers in a load.
const REGISTERS_MAX: usize = 8;
/// Loads of a set, at most.
const ROUNDS: u64 = 6;

/// What became of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Committed,
    Nothing,
    Unknown,
}

/// What is wrong with the records of a load that has to be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Order,
    Source,
    Partition,
}

struct Loader<'s> {
    shared: &'s Arc<Shared>,
    number: usize,
    loaders: Vec<Client>,
    readers: Vec<Client>,
    writers: Vec<Client>,
    /// What was committed, newest last.
    earlier: RefCell<Vec<LoadPart>>,
}

/// A load, and what is read and written meanwhile.
struct Round {
    set: Set,
    /// Of the load, among those of its set.
    n: u64,
    records: BTreeMap<String, String>,
    /// Keys that others write too, whether they are loaded or not.
    loose: Vec<String>,
    over: Cell<bool>,
}

pub async fn loads(shared: Arc<Shared>, host: Arc<Host>, number: usize) {
    let mut rng = fastrand::Rng::with_seed(mix(shared.world.seed, 9_000 + number as u64));
    let (mut loaders, mut readers, mut writers) = (Vec::new(), Vec::new(), Vec::new());
    for pnode in 0..PNODES {
        loaders.push(connect(&host, &[pnode], true, Patience::default()).await);
        readers.push(connect(&host, &[pnode], true, PATIENCE).await);
        writers.push(connect(&host, &[pnode], true, WRITERS_PATIENCE).await);
    }
    let loader = Loader { shared: &shared, number, loaders, readers, writers, earlier: RefCell::default() };
    shared.load_begins().await;
    let mut set: Option<Set> = None;
    for made in 0.. {
        if !shared.loading() {
            break;
        }
        let of = match set.take() {
            Some(set) => set,
            None => loader.new_set(made, &mut rng),
        };
        if loader.round(&of, &mut rng).await != Outcome::Unknown && of.last(&shared.loads) < ROUNDS {
            set = Some(of);
        }
        loader.ask_again(&mut rng).await;
        tokio::time::sleep(Duration::from_millis(rng.u64(0..1_200))).await;
    }
    shared.working.fetch_sub(1, Relaxed);
}

fn partition_of(plan: &Plan, table: usize, key: &str) -> PartitionId {
    SlotMap::even(plan.partitions).partition_of(key.as_bytes(), &plan.tables[table].1)
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

impl Loader<'_> {
    fn new_set(&self, made: usize, rng: &mut fastrand::Rng) -> Set {
        let table = rng.usize(0..self.shared.plan.tables.len());
        let tag = format!("{{load{}.{made}}}", self.number);
        let keys = (0..rng.usize(2..9)).map(|n| format!("{tag}s{n}")).collect();
        self.shared.loads.begin(Set {
            table,
            name: self.shared.plan.tables[table].0.clone(),
            partition: partition_of(&self.shared.plan, table, &tag),
            tag,
            keys,
        })
    }

    async fn round(&self, set: &Set, rng: &mut fastrand::Rng) -> Outcome {
        let round = self.new_round(set, rng);
        // Absence, too, is looked up before, and kept.
        let mut book = Book::new(self.shared);
        for _ in 0..rng.usize(0..3) {
            for client in &self.readers {
                let key = pick(rng, &round.loose).clone();
                let _ = book.get(client, &set.name, &key, ReadMode::Pda).await;
                self.look_at_one(&round, client, &mut book, rng).await;
            }
        }
        let reading = futures::future::join_all((0..READERS).map(|at| self.watch(&round, at, rng.fork())));
        let (first, second) = (rng.fork(), rng.fork());
        let loading = async {
            let outcome = self.load(&round, first).await;
            round.over.set(true);
            outcome
        };
        let (outcome, ..) = tokio::join!(loading, reading, self.write(&round, second));
        outcome
    }

    fn new_round(&self, set: &Set, rng: &mut fastrand::Rng) -> Round {
        let plan = &self.shared.plan;
        let mut book = Book::new(self.shared);
        let n = set.next(&self.shared.loads);
        let bytes = rng.usize(0..=plan.value_bytes);
        let mut records: BTreeMap<String, String> = BTreeMap::new();
        for key in &set.keys {
            let mut value = format!("{n}.");
            value.extend(std::iter::repeat_n('.', bytes));
            records.insert(key.clone(), value);
        }
        // Neighbours that are not loaded, keys that were loaded before, fresh ones, and those of the registers.
        let mut loose: Vec<String> = (0..2).map(|i| format!("{}s{i}n", set.tag)).collect();
        loose.extend((0..rng.u64(0..3)).map(|i| format!("{}x{}.{i}", set.tag, n.saturating_sub(1))));
        let mut loaded: Vec<String> = (0..rng.u64(1..6)).map(|i| format!("{}x{n}.{i}", set.tag)).collect();
        let hot = (0..plan.hot_keys).map(|n| format!("h{n}"));
        let mut registers: Vec<String> = hot.chain((0..plan.cold_keys).map(|n| format!("c{n:03}"))).collect();
        registers.retain(|key| partition_of(plan, set.table, key) == set.partition && rng.u64(0..3) == 0);
        rng.shuffle(&mut registers);
        loaded.extend(registers.into_iter().take(REGISTERS_MAX));
        for key in &loaded {
            records.insert(key.clone(), book.value(bytes));
        }
        loose.extend(loaded);
        Round { set: set.clone(), n, records, loose, over: Cell::new(false) }
    }

    /// What becomes of a load is what its loader is told, however often it asks.
    async fn load(&self, round: &Round, mut rng: fastrand::Rng) -> Outcome {
        let (shared, sets) = (self.shared, &self.shared.loads);
        let part = LoadPart {
            partition: round.set.partition,
            table: round.set.name.clone(),
            id: LoadId(rng.u64(1..)),
        };
        if rng.u64(0..10) == 0 {
            self.load_wrongly(round, &part, &mut rng).await;
            return Outcome::Nothing;
        }
        let book = Book::new(shared);
        let elections = shared.world.elections(part.partition);
        let (mut asked, mut lingers, mut sstables_down) = (None, false, false);
        let abandons = rng.u64(0..12) == 0;
        let mut outcome = None;
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(Duration::from_millis(rng.u64(50..600))).await;
                if !shared.loading() {
                    break;
                }
            }
            sstables_down |= shared.world.sstables_down() > 0;
            let state = match attempt {
                0 => LoadState::Unknown,
                _ => match self.end(&part, EndLoad::Keep, &mut rng).await {
                    Some(state) => state,
                    None => continue,
                },
            };
            let state = match state {
                LoadState::Unknown => match self.send(round, &part, None, &mut rng).await {
                    Ok(state) => state,
                    Err(may_arrive) => {
                        lingers |= may_arrive;
                        continue;
                    }
                },
                state => state,
            };
            match state {
                LoadState::Committed if asked.is_some() => {
                    outcome = Some(Outcome::Committed);
                    break;
                }
                LoadState::Written { records, .. } if records == round.records.len() as u64 => {}
                state => shared.world.violation(format!(
                    "load {} of {}/{} has {} records, and is {state:?}",
                    round.n,
                    round.set.name,
                    round.set.tag,
                    round.records.len()
                )),
            }
            self.wait_for_a_scene(&mut rng).await;
            if abandons && asked.is_none() {
                if rng.u64(0..6) > 0 {
                    let _ = self.end(&part, EndLoad::Abort, &mut rng).await;
                }
                shared.count("loads_abandoned");
                break;
            }
            asked.get_or_insert_with(|| {
                round.set.asked(sets, round.n);
                book.loads(shared, &round.set.name, &round.records)
            });
            let done = self.end(&part, EndLoad::Commit, &mut rng).await;
            sstables_down |= shared.world.sstables_down() > 0;
            match done {
                Some(LoadState::Committed) => {
                    outcome = Some(Outcome::Committed);
                    break;
                }
                Some(LoadState::Unknown) => shared.count("loads_forgotten"),
                Some(LoadState::Written { .. }) | None => shared.count("loads_not_committed_at_once"),
            }
        }
        let outcome = match (outcome, &asked) {
            (Some(outcome), _) => outcome,
            (None, None) => Outcome::Nothing,
            (None, Some(_)) if rng.u64(0..4) == 0 => Outcome::Unknown,
            (None, Some(_)) => self.settle(&part, lingers, &mut rng).await,
        };
        // When it was told: what was still on its way may have taken effect while it was settled.
        let ret_ns = shared.world.now_ns();
        if outcome == Outcome::Committed {
            round.set.committed(sets, round.n);
            self.earlier.borrow_mut().push(part.clone());
            shared.count("loads_committed");
            if shared.world.elections(part.partition) > elections {
                shared.count("loads_over_elections");
            }
            if sstables_down {
                shared.count("loads_without_sstable_server");
            }
        }
        self.record(round, asked.unwrap_or_default(), outcome, ret_ns).await;
        outcome
    }

    /// Writes down what became of it.
    async fn record(&self, round: &Round, puts: Vec<Pending<'_>>, outcome: Outcome, ret_ns: u64) {
        let (shared, sets) = (self.shared, &self.shared.loads);
        match outcome {
            Outcome::Committed => {
                let mut book = Book::new(shared);
                for client in &self.readers {
                    if round.set.seq(sets, round.n).is_none() {
                        self.look_at(round, client, &mut book, &round.set.keys[0]).await;
                    }
                }
                let seq = round.set.seq(sets, round.n);
                puts.into_iter().for_each(|put| put.returned_at(ret_ns, Returned::Done, seq));
            }
            Outcome::Nothing => {
                shared.count("loads_of_nothing");
                round.set.came_to_nothing(sets, round.n);
                puts.into_iter().for_each(Pending::not_executed);
            }
            Outcome::Unknown => {
                shared.count("loads_unknown");
                puts.into_iter().for_each(Pending::unknown);
            }
        }
    }

    /// It is given up although it may be seen: a leader that knows nothing of it once it was told so says that it is not, and it never
    /// will be, unless records or the wish are still on their way.
    async fn settle(&self, part: &LoadPart, lingers: bool, rng: &mut fastrand::Rng) -> Outcome {
        for _ in 0..3 {
            match self.end(part, EndLoad::Abort, rng).await {
                Some(LoadState::Committed) => return Outcome::Committed,
                Some(LoadState::Unknown) if !lingers => return Outcome::Nothing,
                Some(_) => return Outcome::Unknown,
                None => tokio::time::sleep(Duration::from_millis(rng.u64(50..600))).await,
            }
        }
        Outcome::Unknown
    }

    /// What is asked for again was done, whatever has happened since.
    async fn ask_again(&self, rng: &mut fastrand::Rng) {
        let earlier = self.earlier.borrow().clone();
        if earlier.is_empty() || rng.u64(0..3) > 0 {
            return;
        }
        let part = pick(rng, &earlier);
        if let Some(state) = self.end(part, EndLoad::Commit, rng).await {
            self.shared.count("loads_asked_for_again");
            if state != LoadState::Committed {
                self.shared.world.violation(format!("a load that was committed is {state:?}: {part:?}"));
            }
        }
    }

    /// One that has to be refused, whatever else happens.
    async fn load_wrongly(&self, round: &Round, part: &LoadPart, rng: &mut fastrand::Rng) {
        let wrong = *pick(rng, &[Wrong::Order, Wrong::Source, Wrong::Partition]);
        let world = &self.shared.world;
        if wrong == Wrong::Partition && self.shared.plan.partitions == 1 {
            return round.set.came_to_nothing(&self.shared.loads, round.n);
        }
        round.set.came_to_nothing(&self.shared.loads, round.n);
        match self.send(round, part, Some(wrong), rng).await {
            Ok(state) => world.violation(format!("a load with {wrong:?} wrong was taken: {state:?}")),
            Err(_) => self.shared.count("loads_refused"),
        }
        let state = self.end(part, EndLoad::Commit, rng).await;
        if state.is_some_and(|state| state != LoadState::Unknown) {
            world.violation(format!("a load with {wrong:?} wrong is there: {state:?}"));
        }
    }

    /// How it is then. Err: it was not taken, or nobody said so; whether it may arrive all the same.
    async fn send(
        &self,
        round: &Round,
        part: &LoadPart,
        wrong: Option<Wrong>,
        rng: &mut fastrand::Rng,
    ) -> Result<LoadState, bool> {
        let client = &self.loaders[rng.usize(0..PNODES)];
        let records = self.pieces(round, wrong, rng);
        match tokio::time::timeout(SEND_MAX, client.send_load(part, records)).await {
            Ok(Ok(state)) => Ok(state),
            Ok(Err(e)) => {
                self.shared.count("loads_not_sent");
                self.shared.world.note(&format!("a load is not taken: {e}"));
                Err(!matches!(e.kind, ErrorKind::Overloaded | ErrorKind::Invalid))
            }
            Err(_) => {
                self.shared.count("loads_not_sent");
                Err(true)
            }
        }
    }

    fn pieces(
        &self,
        round: &Round,
        wrong: Option<Wrong>,
        rng: &mut fastrand::Rng,
    ) -> BoxStream<'static, Result<Vec<LoadRecord>, Error>> {
        let record = |(key, value): (&String, &String)| LoadRecord::new(key.clone(), value.clone(), None);
        let mut records: Vec<LoadRecord> = round.records.iter().map(record).collect();
        match wrong {
            Some(Wrong::Order) => records.reverse(),
            Some(Wrong::Partition) => {
                let plan = &self.shared.plan;
                let foreign = |key: &String| partition_of(plan, round.set.table, key) != round.set.partition;
                let key = (0..).map(|n| format!("~{n}")).find(foreign).unwrap_or_default();
                records.push(LoadRecord::new(key, "", None));
            }
            Some(Wrong::Source) | None => {}
        }
        let mut pieces = Vec::new();
        while !records.is_empty() {
            let rest = records.split_off(rng.usize(1..9).min(records.len()));
            let pause_ms = if rng.u64(0..4) == 0 { rng.u64(0..150) } else { 0 };
            pieces.push((pause_ms, Ok(std::mem::replace(&mut records, rest))));
        }
        if wrong == Some(Wrong::Source) {
            pieces.push((0, Err(Error::invalid("the source is at its end"))));
        }
        let paused = |(pause_ms, piece)| async move {
            if pause_ms > 0 {
                tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            }
            piece
        };
        stream::iter(pieces).then(paused).boxed()
    }

    /// None: no answer.
    async fn end(&self, part: &LoadPart, end: EndLoad, rng: &mut fastrand::Rng) -> Option<LoadState> {
        let client = &self.loaders[rng.usize(0..PNODES)];
        let told = tokio::time::timeout(COMMIT_MAX, client.end_load(part, end)).await;
        let told = told.ok()?;
        told.inspect_err(|e| self.shared.world.note(&format!("{end:?} of a load: {e}"))).ok()
    }

    async fn wait_for_a_scene(&self, rng: &mut fastrand::Rng) {
        let themed = self.shared.plan.theme.is_some_and(Scene::loads);
        let most_ms = match rng.u64(0..4) {
            _ if themed => SCENE_MAX_MS,
            0 => rng.u64(0..SCENE_MAX_MS),
            _ => return,
        };
        let scene = self.shared.world.commits_wanted();
        if tokio::time::timeout(Duration::from_millis(most_ms), scene).await.is_ok() {
            self.shared.count("loads_in_scenes");
        }
    }

    /// Looks until the load is over, and a little longer.
    async fn watch(&self, round: &Round, at: usize, mut rng: fastrand::Rng) {
        let mut book = Book::new(self.shared);
        let mut left = 2 * PNODES;
        for turn in at.. {
            if round.over.get() {
                left -= 1;
            }
            if left == 0 {
                return;
            }
            let client = &self.readers[turn % PNODES];
            match rng.u64(0..60) {
                0..=24 => self.look_at_one(round, client, &mut book, &mut rng).await,
                25..=44 => {
                    let key = pick(&mut rng, &round.loose).clone();
                    let _ = book.get(client, &round.set.name, &key, ReadMode::Pda).await;
                }
                45..=50 => self.look_at_many(round, client, &mut book).await,
                51..=58 => {
                    let _ = look_at_all(self.shared, &round.set, &round.loose, client, &mut book).await;
                }
                _ => self.look_at_a_snapshot(round, client).await,
            }
            tokio::time::sleep(Duration::from_millis(rng.u64(0..12))).await;
        }
    }

    async fn look_at_one(&self, round: &Round, client: &Client, book: &mut Book, rng: &mut fastrand::Rng) {
        let key = pick(rng, &round.set.keys).clone();
        self.look_at(round, client, book, &key).await;
    }

    async fn look_at(&self, round: &Round, client: &Client, book: &mut Book, key: &str) {
        let least = round.set.least(&self.shared.loads);
        if let Ok(record) = book.look(client, &round.set.name, key, ReadMode::Pda).await {
            round.set.saw(self.shared, least, &[record], false);
        }
    }

    async fn look_at_many(&self, round: &Round, client: &Client, book: &mut Book) {
        let least = round.set.least(&self.shared.loads);
        if let Ok(records) = book.multi_get(client, &round.set.name, &round.set.keys).await {
            round.set.saw(self.shared, least, &records, false);
        }
    }

    async fn look_at_a_snapshot(&self, round: &Round, client: &Client) {
        let set = &round.set;
        let least = set.least(&self.shared.loads);
        let opened = tokio::time::timeout(OPEN_MAX, client.open_snapshot(SNAPSHOT_LEASE)).await;
        let Ok(Ok(snapshot)) = opened else { return };
        let mut first = None;
        for client in &self.readers {
            let scan = client.scan_snapshot(snapshot.id, &set.name, ScanOptions::prefix(set.tag.clone()));
            let Ok(records) = scan.collect_records().await else { continue };
            let found = |key: &String| {
                let record = records.iter().find(|record| record.key == key.as_bytes())?;
                Some(Record {
                    value: record.value.clone(),
                    seq: record.seq,
                    expires_at: record.expires_at,
                    kind: record.kind,
                })
            };
            let seen: Vec<_> = set.keys.iter().map(found).collect();
            set.saw(self.shared, least, &seen, true);
            self.shared.count("loads_in_snapshots");
            if *first.get_or_insert_with(|| seen.clone()) != seen {
                self.shared.world.violation(format!("a snapshot of {}/{} has changed", set.name, set.tag));
            }
        }
        let _ = client.close_snapshot(snapshot.id).await;
    }

    /// Others write what is loaded, and what lies between.
    async fn write(&self, round: &Round, mut rng: fastrand::Rng) {
        let mut book = Book::new(self.shared);
        let table = &round.set.name;
        while !round.over.get() {
            tokio::time::sleep(Duration::from_millis(rng.u64(2..80))).await;
            let client = &self.writers[rng.usize(0..PNODES)];
            let key = pick(&mut rng, &round.loose);
            let value = book.value(rng.usize(0..=self.shared.plan.value_bytes));
            match rng.u64(0..8) {
                0 | 1 => book.write(client, table, key, Call::Put(&value)).await,
                2..=4 => book.write(client, table, key, Call::Insert(&value)).await,
                5 => book.write(client, table, key, Call::Delete).await,
                6 => book.delete_checked(client, table, key).await,
                _ => book.swap(client, table, key, &value).await,
            };
        }
        // Over what was loaded.
        for key in round.records.keys().filter(|key| key.contains('x')).take(2) {
            let value = book.value(0);
            let client = &self.writers[rng.usize(0..PNODES)];
            book.write(client, table, key, Call::Insert(&value)).await;
        }
    }
}

/// A page of one partition: of one moment.
pub(super) async fn look_at_all(
    shared: &Shared,
    set: &Set,
    loose: &[String],
    client: &Client,
    book: &mut Book,
) -> Result<(), Error> {
    let least = set.least(&shared.loads);
    let mut keys = set.keys.clone();
    keys.extend(loose.iter().filter(|key| key.starts_with(&set.tag)).cloned());
    let records = book.scan(client, &set.name, &set.tag, &keys, 0, false).await?;
    let found = |key: &String| records.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str());
    set.saw_values(shared, least, &set.keys.iter().map(found).collect::<Vec<_>>(), true);
    Ok(())
}
