//! A store in memory, for tests and for measuring the front end alone.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;
use sextant_common::database::Database;
use sextant_common::expiry::{Tick, is_expired};
use sextant_common::ids::Seq;
use sextant_common::object::ELEMENTS_TABLE;
use sextant_common::operation::{Change, Condition, Effect, Lane, Operation, Put, Record, WriteOutcome};
use sextant_common::{Error, ErrorKind, Result};
use sextant_resp::{ElementPage, ElementRange, InLine, Look, Named, Position, SetCondition, Store, Walk};
use tokio::sync::{Semaphore, watch};

type Shard = RwLock<HashMap<Box<[u8]>, Record>>;

const SHARDS: usize = 64;

#[derive(Clone)]
pub struct MemoryStore {
    all: Arc<[Data; Database::COUNT]>,
    database: Database,
    hasher: std::hash::RandomState,
    /// Whether reads are answered by the fast path.
    fast: bool,
    now_ms: Arc<AtomicU64>,
    /// Of the newest version.
    seq: Arc<AtomicU64>,
    told: Arc<Told>,
}

/// Of a database.
struct Data {
    shards: [Shard; SHARDS],
    /// Of objects.
    elements: RwLock<BTreeMap<Bytes, Record>>,
    /// Whether somebody has selected it.
    is_there: AtomicBool,
}

impl Data {
    fn new(at: usize) -> Self {
        let shards = std::array::from_fn(|_| Shard::default());
        Self { shards, elements: RwLock::default(), is_there: AtomicBool::new(at == 0) }
    }
}

/// What a test tells the store, and sees of it.
struct Told {
    /// Batches wait.
    holds_writes: watch::Sender<bool>,
    /// How many have come.
    writes: watch::Sender<usize>,
    /// How many commands have begun to wait for others on their key, and how many may.
    in_line: watch::Sender<usize>,
    in_line_max: AtomicU64,
    /// Keys whose owner cannot be reached; whether it says so, or nothing at all.
    lost: RwLock<HashMap<Bytes, bool>>,
    has_lost: AtomicBool,
    /// Steps of walks that may be taken, and how many were asked for.
    steps: Semaphore,
    walks: watch::Sender<usize>,
    /// The most bytes of keys of elements that were asked for at once.
    asked_bytes_max: AtomicU64,
    /// How many times elements were asked for by their names.
    element_reads: AtomicU64,
    /// The same of ranges of elements.
    range_reads: AtomicU64,
    /// The newest of them.
    range_read: RwLock<ElementRange>,
    /// The next time that they are waits; whether one does.
    holds_read: AtomicBool,
    held_read: watch::Sender<bool>,
    /// The next answer about several records waits, as it was.
    holds_answer: AtomicBool,
    /// Elements that are asked for by their names, and the most that were.
    asked: AtomicU64,
    asked_max: AtomicU64,
    /// Values that are longer together are not read at once.
    read_bytes_max: AtomicU64,
    /// Drafts (batches on the condition that a record is of some version) that may be written, and how many have come.
    drafts: Semaphore,
    drafts_come: watch::Sender<usize>,
    /// Drafts find that others have written their records.
    spoils_drafts: AtomicBool,
    /// Batches wait that remove a record whose key begins so; how many have.
    holds_removals: watch::Sender<Option<&'static str>>,
    removals: watch::Sender<usize>,
    /// An object that is written whenever a range of elements is read.
    disturbed: RwLock<Option<Bytes>>,
    /// Most elements that a page has.
    page_max: AtomicU64,
}

/// Where its time begins, in milliseconds since 1970.
pub const BEGAN_MS: u64 = 1_700_000_000_000;

impl MemoryStore {
    pub fn new(fast: bool) -> Self {
        Self {
            all: Arc::new(std::array::from_fn(Data::new)),
            database: Database::FIRST,
            hasher: Default::default(),
            fast,
            now_ms: Arc::new(BEGAN_MS.into()),
            seq: Arc::default(),
            told: Arc::new(Told {
                holds_writes: watch::Sender::new(false),
                writes: watch::Sender::new(0),
                in_line: watch::Sender::new(0),
                in_line_max: AtomicU64::new(u64::MAX),
                read_bytes_max: AtomicU64::new(u64::MAX),
                drafts: Semaphore::new(Semaphore::MAX_PERMITS),
                drafts_come: watch::Sender::new(0),
                spoils_drafts: AtomicBool::new(false),
                holds_removals: watch::Sender::new(None),
                removals: watch::Sender::new(0),
                disturbed: RwLock::default(),
                // Short ones, so that there are several.
                page_max: 7.into(),
                lost: RwLock::default(),
                has_lost: AtomicBool::new(false),
                steps: Semaphore::new(Semaphore::MAX_PERMITS),
                walks: watch::Sender::new(0),
                asked_bytes_max: AtomicU64::new(0),
                element_reads: AtomicU64::new(0),
                range_reads: AtomicU64::new(0),
                range_read: RwLock::default(),
                holds_read: AtomicBool::new(false),
                held_read: watch::Sender::new(false),
                holds_answer: AtomicBool::new(false),
                asked: AtomicU64::new(0),
                asked_max: AtomicU64::new(0),
            }),
        }
    }

    /// Lets time go on.
    #[allow(dead_code, reason = "the measurement of the front end alone has no use for it")]
    pub fn advance(&self, ms: u64) {
        self.now_ms.fetch_add(ms, Ordering::Relaxed);
    }

    fn is_lost(&self, key: &[u8]) -> Option<bool> {
        if !self.told.has_lost.load(Ordering::Relaxed) {
            return None;
        }
        self.told.lost.read().get(key).copied()
    }

    fn now(&self) -> Tick {
        Tick(self.now_ms.load(Ordering::Relaxed))
    }

    async fn hold_read(&self) {
        self.told.held_read.send_replace(true);
        let _ = self.told.held_read.subscribe().wait_for(|held| !held).await;
    }

    fn data(&self) -> &Data {
        &self.all[usize::from(self.database.number())]
    }

    fn shard(&self, key: &[u8]) -> &Shard {
        &self.data().shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    fn read(&self, key: &[u8]) -> Option<Record> {
        self.shard(key).read().get(key).filter(|record| !is_expired(record.expires_at, self.now())).cloned()
    }
}

/// For tests; the measurement of the front end alone has no use for it.
#[allow(dead_code, reason = "the measurement of the front end alone has no use for it")]
impl MemoryStore {
    /// Values that are longer together are not read at once.
    pub fn reads_at_most(&self, bytes: u64) {
        self.told.read_bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// Lets batches wait, or go on.
    pub fn hold_writes(&self, held: bool) {
        self.told.holds_writes.send_replace(held);
    }

    /// How many batches have come.
    pub fn writes(&self) -> usize {
        *self.told.writes.borrow()
    }

    /// Until so many have.
    pub async fn until_writes(&self, count: usize) {
        until(&self.told.writes, count).await;
    }

    /// The next time that elements are asked for by their names waits, until it is let go.
    pub fn hold_next_read(&self) {
        self.told.holds_read.store(true, Ordering::SeqCst);
    }

    /// The next answer about several records waits, though others write them, until reads are let go.
    pub fn hold_next_answer(&self) {
        self.told.holds_answer.store(true, Ordering::SeqCst);
    }

    pub async fn until_read_is_held(&self) {
        let mut held = self.told.held_read.subscribe();
        let waits = tokio::time::timeout(std::time::Duration::from_secs(120), held.wait_for(|held| *held));
        drop(waits.await.expect("it comes to that").expect("the store is there"));
    }

    pub fn let_read_go(&self) {
        self.told.held_read.send_replace(false);
    }

    /// Lets only so many drafts be written; others wait.
    pub fn let_drafts(&self, count: usize) {
        self.told.drafts.forget_permits(Semaphore::MAX_PERMITS);
        self.told.drafts.add_permits(count);
    }

    /// How many drafts have come.
    pub fn drafts(&self) -> usize {
        *self.told.drafts_come.borrow()
    }

    /// Until so many have.
    pub async fn until_drafts(&self, count: usize) {
        until(&self.told.drafts_come, count).await;
    }

    /// Drafts find that others have written their records.
    pub fn spoil_drafts(&self, spoils: bool) {
        self.told.spoils_drafts.store(spoils, Ordering::SeqCst);
    }

    /// Lets batches wait that remove a record whose key begins so, or go on.
    pub fn hold_removals(&self, of: Option<&'static str>) {
        self.told.holds_removals.send_replace(of);
    }

    /// Until so many have waited.
    pub async fn until_removals_wait(&self, count: usize) {
        until(&self.told.removals, count).await;
    }

    /// From now on this object is written whenever a range of elements is read.
    pub fn disturb(&self, key: &'static str) {
        *self.told.disturbed.write() = Some(Bytes::from_static(key.as_bytes()));
    }

    /// From now on pages have up to so many elements.
    pub fn give_pages_of(&self, elements: u64) {
        self.told.page_max.store(elements, Ordering::Relaxed);
    }

    /// Until so many commands have begun to wait for others on their key.
    pub async fn until_in_line(&self, count: usize) {
        until(&self.told.in_line, count).await;
    }

    /// How many may.
    pub fn let_in_line(&self, most: u64) {
        self.told.in_line_max.store(most, Ordering::Relaxed);
    }

    /// The owner of the key cannot be reached, and either says so or nothing.
    pub fn lose(&self, key: &'static str, says_so: bool) {
        self.told.lost.write().insert(Bytes::from_static(key.as_bytes()), says_so);
        self.told.has_lost.store(true, Ordering::Relaxed);
    }

    pub fn find(&self, key: &'static str) {
        self.told.lost.write().remove(key.as_bytes());
    }

    /// Lets only so many steps of walks be taken.
    pub fn let_walk(&self, steps: usize) {
        self.told.steps.forget_permits(Semaphore::MAX_PERMITS);
        self.told.steps.add_permits(steps);
    }

    /// Until so many steps of walks were asked for.
    pub async fn until_walks(&self, count: usize) {
        until(&self.told.walks, count).await;
    }

    /// How many times elements were asked for by their names.
    pub fn element_reads(&self) -> u64 {
        self.told.element_reads.load(Ordering::SeqCst)
    }

    /// How many times ranges of elements were asked for.
    #[allow(dead_code, reason = "the measurement of the front end alone has no use for it")]
    pub fn range_reads(&self) -> u64 {
        self.told.range_reads.load(Ordering::SeqCst)
    }

    /// The range of elements that was asked for last.
    #[allow(dead_code, reason = "the measurement of the front end alone has no use for it")]
    pub fn range_read(&self) -> ElementRange {
        self.told.range_read.read().clone()
    }

    /// The most elements that were asked for by their names at a time.
    pub fn asked_max(&self) -> u64 {
        self.told.asked_max.load(Ordering::Relaxed)
    }

    pub fn asked_bytes_max(&self) -> u64 {
        self.told.asked_bytes_max.load(Ordering::Relaxed)
    }
}

async fn until(counted: &watch::Sender<usize>, count: usize) {
    let mut counted = counted.subscribe();
    let reached = counted.wait_for(|counted| *counted >= count);
    let reached = tokio::time::timeout(std::time::Duration::from_secs(120), reached).await;
    drop(reached.expect("it comes to that").expect("the store is there"));
}

impl MemoryStore {
    /// Whether the batch may be written, when what a test has said of it lets it.
    async fn pass(&self, ops: &[Operation]) -> bool {
        let of_records = || ops.iter().filter(|op| op.table.is_empty());
        let removes = |held: &Option<&str>| {
            let is_held = |op: &Operation| held.is_some_and(|held| op.key.starts_with(held.as_bytes()));
            of_records().any(|op| matches!(op.effect, Effect::Delete) && is_held(op))
        };
        let is_held = removes(&self.told.holds_removals.borrow());
        if is_held {
            self.told.removals.send_modify(|count| *count += 1);
            let mut held = self.told.holds_removals.subscribe();
            let _ = held.wait_for(|held| !removes(held)).await;
        }
        if !of_records().any(|op| matches!(op.condition, Condition::SeqEquals(_))) {
            return true;
        }
        self.told.drafts_come.send_modify(|count| *count += 1);
        if let Ok(may) = self.told.drafts.acquire().await {
            may.forget();
        }
        !self.told.spoils_drafts.load(Ordering::SeqCst)
    }

    /// Another version of the object that is to be disturbed.
    fn write_disturbed(&self) {
        if let Some(key) = &*self.told.disturbed.read()
            && let Some(record) = self.shard(key).write().get_mut(&**key)
        {
            record.seq = Seq(self.seq.fetch_add(1, Ordering::Relaxed) + 1);
        }
    }
}

impl Store for MemoryStore {
    type Missed = ();

    fn database(&self, database: Database) -> Self {
        Self { database, ..self.clone() }
    }

    fn open(&self, _: bool) -> impl Future<Output = Result<bool>> + Send + 'static {
        self.data().is_there.store(true, Ordering::SeqCst);
        std::future::ready(Ok(true))
    }

    async fn databases(&self) -> Result<Vec<Database>> {
        let is_there =
            |database: &Database| self.all[usize::from(database.number())].is_there.load(Ordering::SeqCst);
        Ok(Database::all().filter(is_there).collect())
    }

    fn look(&self, key: &[u8]) -> Look<()> {
        if self.fast && self.is_lost(key).is_none() {
            Look::Known(Ok(self.read(key)))
        } else {
            Look::Missed(())
        }
    }

    fn look_element(&self, key: &[u8]) -> Option<Result<Option<Record>>> {
        self.fast.then(|| Ok(self.data().elements.read().get(key).cloned()))
    }

    async fn get(&self, key: Bytes, (): ()) -> Result<Option<Record>> {
        match self.is_lost(&key) {
            None => Ok(self.read(&key)),
            Some(true) => Err(Error::new(ErrorKind::Unavailable, "no leader")),
            Some(false) => std::future::pending().await,
        }
    }

    async fn multi_get(&self, keys: Vec<Bytes>, (): ()) -> Result<Vec<Option<Record>>> {
        for key in keys.iter().filter(|key| self.is_lost(key).is_some()) {
            self.get(key.clone(), ()).await?;
        }
        let records: Vec<_> = keys.iter().map(|key| self.read(key)).collect();
        if self.told.holds_answer.swap(false, Ordering::SeqCst) {
            self.hold_read().await;
        }
        let bytes: usize = records.iter().flatten().map(|record| record.value.len()).sum();
        if bytes as u64 > self.told.read_bytes_max.load(Ordering::Relaxed) {
            return Err(Error::invalid("the values of one multi-get have too many bytes"));
        }
        Ok(records)
    }

    async fn set(&self, put: Put, condition: SetCondition, lane: Lane) -> Result<bool> {
        let Put { key, value, lifetime } = put;
        let put = Operation::put("", key, value).lasting(lifetime).only_if(condition.into());
        Ok(self.execute(vec![put], lane).await?.applied)
    }

    async fn multi_set(&self, pairs: Vec<(Bytes, Bytes)>, _: Lane) -> Result<()> {
        for (key, value) in pairs {
            self.execute(vec![Operation::put("", key, value)], Lane::Single).await?;
        }
        Ok(())
    }

    async fn delete(&self, keys: Vec<Bytes>, _: Lane) -> Result<u64> {
        let delete = |key: &&Bytes| {
            let existed = self.read(key).is_some();
            self.shard(key).write().remove(&***key);
            existed
        };
        Ok(keys.iter().filter(delete).count() as u64)
    }

    async fn exists(&self, keys: Vec<Bytes>, (): ()) -> Result<u64> {
        Ok(self.multi_get(keys, ()).await?.iter().flatten().count() as u64)
    }

    async fn elements(&self, keys: Vec<Bytes>) -> Result<Vec<Option<Record>>> {
        let bytes: usize = keys.iter().map(Bytes::len).sum();
        self.told.asked_bytes_max.fetch_max(bytes as u64, Ordering::Relaxed);
        self.told.element_reads.fetch_add(1, Ordering::SeqCst);
        if self.told.holds_read.swap(false, Ordering::SeqCst) {
            self.hold_read().await;
        }
        if !self.fast {
            let asked = self.told.asked.fetch_add(keys.len() as u64, Ordering::Relaxed) + keys.len() as u64;
            self.told.asked_max.fetch_max(asked, Ordering::Relaxed);
            // (Others ask meanwhile.)
            tokio::task::yield_now().await;
            self.told.asked.fetch_sub(keys.len() as u64, Ordering::Relaxed);
        }
        let elements = self.data().elements.read();
        Ok(keys.iter().map(|key| elements.get(key).cloned()).collect())
    }

    async fn element_page(&self, range: ElementRange) -> Result<ElementPage> {
        self.told.range_reads.fetch_add(1, Ordering::SeqCst);
        *self.told.range_read.write() = range.clone();
        let page_max = self.told.page_max.load(Ordering::Relaxed);
        const PAGE_BYTES: usize = 1024 * 1024;
        let ElementRange { start, end, reverse, limit } = range;
        let elements = self.data().elements.read();
        let all = elements.range(start..end).map(|(key, record)| (key.clone(), record.value.clone()));
        let most = limit.min(page_max) as usize;
        let mut in_order: Box<dyn Iterator<Item = _>> =
            if reverse { Box::new(all.rev()) } else { Box::new(all) };
        let (mut page, mut bytes, mut is_full) = (Vec::new(), 0, false);
        while page.len() < most
            && !is_full
            && let Some((key, value)) = in_order.next()
        {
            bytes += key.len() + value.len();
            // (Before its bound, with one at least.)
            is_full = bytes > PAGE_BYTES && !page.is_empty();
            page.extend((!is_full).then_some((key, value)));
        }
        let has_more = page.len() == most || is_full;
        self.write_disturbed();
        Ok(ElementPage { has_more, elements: page, took_several: false })
    }

    async fn walk(&self, walk: Walk) -> Result<(Vec<Named>, Option<Position>)> {
        self.told.walks.send_modify(|count| *count += 1);
        if let Ok(step) = self.told.steps.acquire().await {
            step.forget();
        }
        let Walk { start, end, position, limit } = walk;
        let Some(shard) = self.data().shards.get(position.part as usize) else { return Ok((vec![], None)) };
        let next = |from: &[u8], part| Position { part, from: Bytes::copy_from_slice(from) };
        let in_range =
            |key: &[u8]| key >= &position.from[..] && key >= &start[..] && (end.is_empty() || key < &end[..]);
        let shard = shard.read();
        let keys = shard.iter().filter(|(key, _)| in_range(key));
        let mut keys: Vec<Named> =
            keys.map(|(key, record)| (Bytes::copy_from_slice(key), record.kind)).collect();
        keys.sort_unstable();
        Ok(match keys.get(limit as usize).cloned() {
            Some((more, _)) => (keys.drain(..limit as usize).collect(), Some(next(&more, position.part))),
            None => (keys, Some(next(b"", position.part + 1))),
        })
    }

    async fn any_key(&self, random: u64) -> Result<Option<Bytes>> {
        let keys: Vec<Bytes> = self
            .data()
            .shards
            .iter()
            .flat_map(|shard| shard.read().keys().map(|key| Bytes::copy_from_slice(key)).collect::<Vec<_>>())
            .filter(|key| self.read(key).is_some())
            .collect();
        Ok(keys.get((random % keys.len().max(1) as u64) as usize).cloned())
    }

    fn are_together<'k>(&self, keys: impl IntoIterator<Item = &'k [u8]>) -> bool {
        let keys: Vec<&[u8]> = keys.into_iter().collect();
        // As if keys were apart that begin with "apart".
        keys.len() < 2 || !keys.iter().any(|key| key.starts_with(b"apart"))
    }

    /// One after the other, which is all that a single client can tell.
    async fn execute(&self, ops: Vec<Operation>, _: Lane) -> Result<WriteOutcome> {
        self.told.writes.send_modify(|count| *count += 1);
        if *self.told.holds_writes.borrow() {
            let _ = self.told.holds_writes.subscribe().wait_for(|held| !held).await;
        }
        if !self.pass(&ops).await {
            return Ok(WriteOutcome { applied: false, results: vec![] });
        }
        let before = |op: &Operation| match op.table == ELEMENTS_TABLE {
            true => self.data().elements.read().get(&op.key).cloned(),
            false => self.read(&op.key),
        };
        let (changes, outcome) = Operation::execute_batch(&ops, before, self.now());
        for (op, (change, expires_at)) in ops.iter().zip(changes) {
            if op.table == ELEMENTS_TABLE {
                let mut elements = self.data().elements.write();
                match change {
                    Change::To(value, kind) => {
                        let seq = Seq(self.seq.fetch_add(1, Ordering::Relaxed) + 1);
                        let (key, value) = (Bytes::copy_from_slice(&op.key), Bytes::copy_from_slice(&value));
                        elements.insert(key, Record { value, seq, expires_at, kind });
                    }
                    Change::Removed => drop(elements.remove(&op.key)),
                    Change::None => {}
                }
                continue;
            }
            let mut shard = self.shard(&op.key).write();
            match change {
                Change::To(value, kind) => {
                    let seq = Seq(self.seq.fetch_add(1, Ordering::Relaxed) + 1);
                    let record = Record { value: Bytes::copy_from_slice(&value), seq, expires_at, kind };
                    match shard.get_mut(&*op.key) {
                        Some(old) => *old = record,
                        None => drop(shard.insert(Box::from(&*op.key), record)),
                    }
                }
                Change::Removed => drop(shard.remove(&*op.key)),
                Change::None => {}
            }
        }
        Ok(outcome)
    }

    /// Keys that are apart have owners by what stands behind that.
    fn owner(&self, key: &[u8]) -> u32 {
        key.strip_prefix(b"apart").and_then(|rest| rest.first()).map_or(0, |byte| u32::from(*byte))
    }

    fn stand_in_line(&self, _: &[u8]) -> Result<Option<InLine>> {
        if *self.told.in_line.borrow() as u64 >= self.told.in_line_max.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Overloaded, "many wait already"));
        }
        self.told.in_line.send_modify(|count| *count += 1);
        Ok(None)
    }

    fn now_ms(&self) -> u64 {
        self.now().0
    }

    fn info(&self) -> Vec<(&'static str, Vec<(String, String)>)> {
        vec![("Memory store", vec![("shards".into(), SHARDS.to_string())])]
    }
}
