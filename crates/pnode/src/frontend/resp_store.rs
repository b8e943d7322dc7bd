//! Tables as what the RESP front end serves: each of its databases is one, with the elements of its objects beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use sextant_common::configuration::is_of_new_partition;
use sextant_common::database::Database;
use sextant_common::ids::{DEFAULT_TABLE_NAME, PartitionId};
use sextant_common::manifest::TableOptions;
use sextant_common::object::{ELEMENTS_TABLE, elements_options, inner_key};
use sextant_common::operation::{Lane, OpOutcome, Operation, Put, ReadMode, Record, WriteOutcome};
use sextant_common::{Error, ErrorKind, Result};
use sextant_resp::{
    ElementPage, ElementRange, ElementStep, InLine, Look, Named, Position, STEP_TIME_MAX, SetCondition,
    SetDone, Store, Walk, between, one_by_one,
};

use super::shares::{Place, Shares};
use super::sweeper::Sweeper;
use crate::api::{ReadOptions, ScanRange, WriteOptions};
use crate::metrics::ReadPath;
use crate::pnode::PNode;
use crate::router;
use crate::write::check_is_batch;

/// Partitions that one step of a walk over the keys asks, one after the other.
const PARTITIONS_A_STEP: usize = 16;
/// Records that servers are asked for at once, at least, where fewer elements are wanted.
const ELEMENTS_AT_LEAST: u64 = 256;
/// Partitions that one command writes to at once.
const WRITES_AT_ONCE: usize = 32;

#[derive(Clone)]
pub(crate) struct RespStore {
    pnode: PNode,
    database: Database,
    shares: Arc<Shares>,
    /// None: what objects leave behind is others' business.
    sweeper: Option<Sweeper>,
}

impl RespStore {
    pub fn new(pnode: PNode, commands_max: usize) -> Self {
        let partitions = pnode.core().views.partitions().count() as u32;
        let shares = Arc::new(Shares::new(partitions, commands_max));
        Self { pnode, database: Database::FIRST, shares, sweeper: None }
    }

    pub fn swept_by(self, sweeper: Sweeper) -> Self {
        Self { sweeper: Some(sweeper), ..self }
    }

    fn table(&self) -> &'static str {
        self.database.table()
    }

    /// None: the table is not known yet.
    fn partition_of(&self, key: &[u8]) -> Option<PartitionId> {
        let views = &self.pnode.core().views;
        views.tables.get(self.table()).map(|table| views.slot_map.partition_of(key, &table.options))
    }

    /// Operations of the front end, which knows two tables, with the names of this database's.
    fn in_tables(&self, mut ops: Vec<Operation>) -> Vec<Operation> {
        if self.database != Database::FIRST {
            for op in &mut ops {
                let table = if op.table == ELEMENTS_TABLE { self.database.elements() } else { self.table() };
                op.table = table.to_owned();
            }
        }
        ops
    }

    /// A place among a partition's commands, for as long as one is under way.
    fn place_in(&self, partition: PartitionId) -> Result<Place> {
        self.shares.enter(partition, self.pnode.core().leaders.get(partition).is_certain())
    }

    fn enter(&self, key: &[u8]) -> Result<Option<Place>> {
        self.partition_of(key).map(|partition| self.place_in(partition)).transpose()
    }

    /// One for each partition of these keys.
    fn enter_all(&self, keys: &[Bytes]) -> Result<Vec<Place>> {
        let partitions: BTreeSet<PartitionId> =
            keys.iter().filter_map(|key| self.partition_of(key)).collect();
        partitions.into_iter().map(|partition| self.place_in(partition)).collect()
    }

    /// For elements of the object that this is one of.
    fn enter_by_element(&self, element_key: &[u8]) -> Result<Option<Place>> {
        inner_key(element_key).map_or(Ok(None), |key| self.enter(key))
    }

    /// The table of elements, which nobody has needed so far.
    async fn create_elements(&self, name: &str) -> Result<()> {
        match self.pnode.create_table(name, elements_options()).await {
            // The cluster is new, and a member has not said yet that it knows prefixes: it may be away for long.
            Err(e) if is_of_new_partition(&e) => {
                let options = TableOptions { filter_prefix: 0, ..elements_options() };
                self.pnode.create_table(name, options).await.map(drop)
            }
            created => created.map(drop),
        }
    }

    /// Of a range of one partition.
    async fn first_key(&self, range: ScanRange) -> Result<Option<Bytes>> {
        let mut pages = self.pnode.scan(self.table(), range);
        while let Some(page) = pages.next_page().await {
            if let Some((key, _)) = page?.records.first() {
                // (A copy, or it would hold the whole page.)
                return Ok(Some(Bytes::copy_from_slice(key)));
            }
        }
        Ok(None)
    }

    /// One batch for each partition: atomic there, not across them. The results of all operations, in no order.
    async fn write_by_partition(&self, ops: Vec<Operation>, lane: Lane) -> Result<Vec<OpOutcome>> {
        let core = self.pnode.core();
        let table = self.pnode.tables_by_name().get(self.table(), core.deadline(None)).await?;
        let mut batches: BTreeMap<PartitionId, Vec<Operation>> = BTreeMap::new();
        for op in ops {
            let partition = core.views.slot_map.partition_of(&op.key, &table.options);
            batches.entry(partition).or_default().push(op);
        }
        // Before any of them is sent: one that is refused later would leave the others written.
        batches.values().try_for_each(|ops| check_is_batch(ops))?;
        let mut _places = Vec::with_capacity(batches.len());
        for partition in batches.keys() {
            _places.push(self.place_in(*partition)?);
        }
        let writes = batches.into_values().map(|ops| self.pnode.write(ops, in_lane(lane)));
        // All of them end: what was sent takes effect whether or not somebody waits for it.
        let outcomes: Vec<_> = futures::stream::iter(writes).buffer_unordered(WRITES_AT_ONCE).collect().await;
        whole(outcomes)
    }
}

/// Of the parts of a command over several partitions. Whoever is told that it was not done may do it again: so not if any part was, or
/// may have been.
fn whole(parts: Vec<Result<WriteOutcome>>) -> Result<Vec<OpOutcome>> {
    let some_took_effect = parts.iter().any(Result::is_ok);
    let mut all = Vec::new();
    let mut failed: Option<Error> = None;
    for part in parts {
        match part {
            Ok(done) => all.extend(done.results),
            Err(e) if failed.is_none() || e.kind == ErrorKind::OutcomeUnknown => failed = Some(e),
            Err(_) => {}
        }
    }
    match failed {
        None => Ok(all),
        Some(e) if some_took_effect => {
            Err(Error::new(ErrorKind::OutcomeUnknown, format!("only a part of the keys was written: {e}")))
        }
        Some(e) => Err(e),
    }
}

fn in_lane(lane: Lane) -> WriteOptions {
    WriteOptions { lane, ..WriteOptions::default() }
}

fn without_outcomes(done: Vec<(usize, Result<WriteOutcome>)>) -> SetDone {
    done.into_iter().map(|(at, outcome)| (at, outcome.map(drop))).collect()
}

impl Store for RespStore {
    type Missed = router::Missed;

    fn database(&self, database: Database) -> Self {
        Self { database, ..self.clone() }
    }

    fn open(&self, makes: bool) -> impl Future<Output = Result<bool>> + Send + 'static {
        let store = self.clone();
        async move {
            let is_known = || store.pnode.core().views.tables.get(store.table()).is_some();
            if store.database == Database::FIRST || is_known() {
                return Ok(true);
            }
            store.pnode.tables_by_name().look(store.pnode.core().deadline(None)).await?;
            if !is_known() && makes {
                store.pnode.create_table(store.table(), TableOptions::default()).await?;
            }
            Ok(makes || is_known())
        }
    }

    async fn databases(&self) -> Result<Vec<Database>> {
        self.pnode.tables_by_name().look(self.pnode.core().deadline(None)).await?;
        let tables = &self.pnode.core().views.tables;
        let is_there =
            |database: &Database| *database == Database::FIRST || tables.get(database.table()).is_some();
        Ok(Database::all().filter(is_there).collect())
    }

    fn look(&self, key: &[u8]) -> Look<router::Missed> {
        match self.pnode.look(self.table(), key) {
            router::Look::Known(record) => Look::Known(Ok(record)),
            router::Look::Missed(missed) => Look::Missed(missed),
        }
    }

    fn look_element(&self, key: &[u8]) -> Option<Result<Option<Record>>> {
        match self.pnode.look(self.database.elements(), key) {
            router::Look::Known(record) => Some(Ok(record)),
            router::Look::Missed(_) => None,
        }
    }

    fn loaded(&self, key: &[u8]) -> u64 {
        let views = &self.pnode.core().views;
        self.partition_of(key).map_or(0, |partition| views.peek(partition).manifest.version.0)
    }

    async fn get(&self, key: Bytes, missed: router::Missed) -> Result<Option<Record>> {
        let _place = self.enter(&key)?;
        let options = ReadOptions::default();
        match missed.was_looked_for() {
            true => self.pnode.get_after(missed, self.table(), key, options).await,
            false => self.pnode.get_bytes(self.table(), key, options).await,
        }
    }

    async fn multi_get(&self, keys: Vec<Bytes>, first: router::Missed) -> Result<Vec<Option<Record>>> {
        let _places = self.enter_all(&keys)?;
        self.pnode.multi_get_after(first, self.table(), &keys, ReadOptions::default()).await
    }

    async fn set(&self, put: Put, condition: SetCondition, lane: Lane) -> Result<bool> {
        let Put { key, value, lifetime } = put;
        let _place = self.enter(&key)?;
        let op = Operation::put(self.table(), key, value).lasting(lifetime).only_if(condition.into());
        Ok(self.pnode.write(vec![op], in_lane(lane)).await?.applied)
    }

    fn set_each(&self, puts: Vec<Put>, lane: Lane) -> impl Stream<Item = SetDone> + Send + 'static {
        let (mut places, mut refused, mut taken) = (Vec::with_capacity(puts.len()), Vec::new(), Vec::new());
        let mut entered = Vec::with_capacity(puts.len());
        for (at, put) in puts.into_iter().enumerate() {
            match self.enter(&put.key) {
                Ok(place) => {
                    places.push(place);
                    taken.push(at);
                    entered.push(put);
                }
                Err(e) => refused.push((at, Err(e))),
            }
        }
        let under_way = match self.pnode.puts(self.table(), &entered, lane) {
            Some(writes) => writes.map(without_outcomes).left_stream(),
            None => {
                // Each takes a place of its own.
                places.iter_mut().for_each(|place| drop(place.take()));
                one_by_one(self, entered, lane).right_stream()
            }
        };
        let under_way = under_way.map(move |mut done| {
            for (at, _) in &mut done {
                drop(places[*at].take());
                *at = taken[*at];
            }
            done
        });
        let refused = (!refused.is_empty()).then_some(refused);
        futures::stream::iter(refused).chain(under_way)
    }

    async fn multi_set(&self, pairs: Vec<(Bytes, Bytes)>, lane: Lane) -> Result<()> {
        let ops = pairs.into_iter().map(|(key, value)| Operation::put(self.table(), key, value)).collect();
        self.write_by_partition(ops, lane).await.map(|_| ())
    }

    async fn delete(&self, keys: Vec<Bytes>, lane: Lane) -> Result<u64> {
        let ops = keys.into_iter().map(|key| Operation::delete_checked(self.table(), key)).collect();
        let results = self.write_by_partition(ops, lane).await?;
        Ok(results.iter().filter(|r| r.applied).count() as u64)
    }

    async fn exists(&self, keys: Vec<Bytes>, first: router::Missed) -> Result<u64> {
        let _places = self.enter_all(&keys)?;
        let records = self.pnode.multi_get_after(first, self.table(), &keys, ReadOptions::default()).await?;
        Ok(records.iter().filter(|r| r.is_some()).count() as u64)
    }

    async fn elements(&self, keys: Vec<Bytes>) -> Result<Vec<Option<Record>>> {
        let _place = keys.first().map(|key| self.enter_by_element(key)).transpose()?;
        match self.pnode.multi_get(self.database.elements(), &keys, ReadOptions::default()).await {
            // Nobody has made an object yet.
            Err(e) if e.kind == ErrorKind::UnknownTable => Ok(vec![None; keys.len()]),
            answer => answer,
        }
    }

    async fn element_page(&self, mut range: ElementRange) -> Result<ElementPage> {
        let mut took_several = false;
        loop {
            match self.element_step(range).await? {
                ElementStep::Found(page) => {
                    took_several |= page.took_several;
                    return Ok(ElementPage { took_several, ..page });
                }
                ElementStep::Searched(rest) => (range, took_several) = (rest, true),
            }
        }
    }

    async fn element_step(&self, range: ElementRange) -> Result<ElementStep> {
        let ElementRange { start, end, reverse, limit } = range;
        let _place = self.enter_by_element(&start)?;
        let partition = self.pnode.core().views.slot_map.partition_of(&start, &elements_options());
        let range = ScanRange {
            start: start.clone(),
            end: end.clone(),
            reverse,
            limit,
            // (Deleted elements count: they are passed over in fewer steps.)
            page_records: u32::try_from(limit.max(ELEMENTS_AT_LEAST)).unwrap_or(u32::MAX),
            partition: Some(partition),
            first_page: true,
            silence_max: Some(STEP_TIME_MAX),
        };
        let nothing = || Ok(ElementStep::Found(ElementPage::default()));
        let page = match self.pnode.scan(self.database.elements(), range).next_page().await {
            None => return nothing(),
            Some(Err(e)) if e.kind == ErrorKind::UnknownTable => return nothing(),
            Some(page) => page?,
        };
        if let Some(at) = page.goes_on_at.filter(|_| page.records.is_empty()) {
            // (A copy, or it would hold the whole page.)
            let at = Bytes::copy_from_slice(&at);
            let (start, end) = if reverse { (start, at) } else { (at, end) };
            return Ok(ElementStep::Searched(ElementRange { start, end, reverse, limit }));
        }
        // (A scan is over at its limit; the range is not.)
        let has_more = page.has_more || page.records.len() as u64 >= limit;
        let elements = page.records.into_iter().map(|(key, record)| (key, record.value)).collect();
        Ok(ElementStep::Found(ElementPage { elements, has_more, took_several: page.passed_over }))
    }

    fn is_garbage(&self, key: &[u8]) {
        if let Some(sweeper) = &self.sweeper {
            sweeper.tell(self.database, key);
        }
    }

    async fn walk(&self, walk: Walk) -> Result<(Vec<Named>, Option<Position>)> {
        let Walk { start, end, position: Position { part, mut from }, limit } = walk;
        let partitions = self.pnode.partitions_of(self.table(), &start, &end).await?;
        let (mut keys, mut part) = (Vec::<Named>::new(), part as usize);
        let last = part.saturating_add(PARTITIONS_A_STEP);
        let clock = &*self.pnode.core().env.clock;
        let until_ns = clock.holder_ns().saturating_add(STEP_TIME_MAX.as_nanos() as u64);
        let mut goes_on = true;
        while goes_on && (keys.len() as u64) < limit {
            let Some(partition) = partitions.get(part) else { return Ok((keys, None)) };
            let first = from.clone().max(start.clone());
            let left = limit - keys.len() as u64;
            let range = ScanRange {
                start: first,
                end: end.clone(),
                limit: left,
                page_records: left as u32,
                partition: Some(*partition),
                silence_max: Some(STEP_TIME_MAX),
                ..ScanRange::default()
            };
            let before = keys.len();
            let mut pages = self.pnode.scan(self.table(), range);
            while let Some(page) = pages.next_page().await {
                let page = page?;
                // (Copies, or they would hold the whole page.)
                let named = |(key, record): &(Bytes, Record)| (Bytes::copy_from_slice(key), record.kind);
                keys.extend(page.records.iter().map(named));
                let is_long = page.records.is_empty() || clock.holder_ns() >= until_ns;
                if let Some(from) = page.goes_on_at.filter(|_| is_long) {
                    return Ok((keys, Some(Position { part: part as u32, from })));
                }
            }
            if (keys.len() - before) as u64 == left {
                from =
                    keys.last().map_or_else(Bytes::new, |(last, _)| Bytes::from([&last[..], b"\0"].concat()));
            } else {
                (part, from) = (part + 1, Bytes::new());
            }
            goes_on = part < last && clock.holder_ns() < until_ns;
        }
        let more = part < partitions.len();
        Ok((keys, more.then_some(Position { part: part as u32, from })))
    }

    async fn any_key(&self, random: u64) -> Result<Option<Bytes>> {
        let partitions = self.pnode.partitions_of(self.table(), b"", b"").await?;
        let from = (random % partitions.len().max(1) as u64) as usize;
        for partition in partitions[from..].iter().chain(&partitions[..from]) {
            let all = ScanRange { limit: 1, page_records: 1, partition: Some(*partition), ..<_>::default() };
            let (first, last) = (self.first_key(all.clone()), ScanRange { reverse: true, ..all.clone() });
            let (Some(first), Some(last)) = (first.await?, self.first_key(last).await?) else { continue };
            let start = between(&first, &last, |below| random % below.max(1));
            // (Whatever was at the end may be gone by now.)
            let found = self.first_key(ScanRange { start, ..all }).await?;
            return Ok(Some(found.unwrap_or(last)));
        }
        Ok(None)
    }

    fn copies(&self) -> u32 {
        (self.pnode.core().config.cluster.memtable.len() / 2) as u32
    }

    fn are_together<'k>(&self, keys: impl IntoIterator<Item = &'k [u8]>) -> bool {
        let views = &self.pnode.core().views;
        // (While the table is not known yet, its leader says it.)
        let Some(table) = views.tables.get(self.table()) else { return true };
        let mut partitions = keys.into_iter().map(|key| views.slot_map.partition_of(key, &table.options));
        let first = partitions.next();
        partitions.all(|partition| Some(partition) == first)
    }

    fn owner(&self, key: &[u8]) -> u32 {
        self.partition_of(key).map_or(0, |partition| partition.0)
    }

    async fn execute(&self, ops: Vec<Operation>, lane: Lane) -> Result<WriteOutcome> {
        let core = self.pnode.core();
        let elements = self.database.elements();
        let has_elements = ops.iter().any(|op| op.table == ELEMENTS_TABLE);
        if has_elements && core.views.tables.get(elements).is_none() {
            self.create_elements(elements).await?;
        }
        let of_keys = ops.iter().find(|op| op.table.is_empty());
        let inner = || inner_key(&ops.first()?.key);
        let key = of_keys.map(|op| &op.key[..]).or_else(inner);
        let _place = key.map(|key| self.enter(key)).transpose()?;
        self.pnode.write(self.in_tables(ops), in_lane(lane)).await
    }

    fn stand_in_line(&self, key: &[u8]) -> Result<Option<InLine>> {
        Ok(self.enter(key)?.map(|place| Box::new(place) as InLine))
    }

    fn now_ms(&self) -> u64 {
        self.pnode.core().env.clock.wall_guess_ns() / 1_000_000
    }

    fn info(&self) -> Vec<(&'static str, Vec<(String, String)>)> {
        let core = self.pnode.core();
        let metrics = self.pnode.metrics();
        let table = if self.database == Database::FIRST { DEFAULT_TABLE_NAME } else { self.table() };
        let pairs =
            |pairs: &[(&str, String)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
        let leased =
            core.views.partitions().filter(|p| core.views.peek(*p).leased_copies(&*core.env.clock).is_some());
        let (entries, bytes) = self.pnode.cache().size();
        let by_path = |path: ReadPath| metrics.reads(ReadMode::Pda, path).to_string();
        vec![
            (
                "Sextant",
                pairs(&[
                    ("cluster_id", core.config.cluster.id.clone()),
                    ("table", table.to_owned()),
                    ("partitions", core.config.cluster.partitions.to_string()),
                    ("partitions_leased", leased.count().to_string()),
                    ("record_cache_entries", entries.to_string()),
                    ("record_cache_bytes", bytes.to_string()),
                ]),
            ),
            (
                "Reads",
                pairs(&[
                    ("reads_from_cache", by_path(ReadPath::Cache)),
                    ("reads_from_kept", by_path(ReadPath::Kept)),
                    ("reads_from_nobody", by_path(ReadPath::Nobody)),
                    ("reads_from_memtable", by_path(ReadPath::Memtable)),
                    ("reads_from_sstable", by_path(ReadPath::Sstable)),
                    ("reads_from_both", by_path(ReadPath::Both)),
                    ("reads_without_lease", metrics.no_lease_reads().to_string()),
                ]),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_not_said_to_be_undone_if_any_of_its_parts_may_have_been_done() {
        let part = |kind| Err(Error::new(kind, "a part"));
        let told = |parts| whole(parts).map(|all| all.len()).map_err(|e| e.kind);
        let done = || Ok(WriteOutcome { applied: true, results: Vec::new() });
        use ErrorKind::{OutcomeUnknown, Overloaded, Unavailable};
        assert_eq!(told(vec![done(), done()]), Ok(0));
        assert_eq!(told(vec![part(Overloaded), part(OutcomeUnknown)]), Err(OutcomeUnknown));
        assert_eq!(told(vec![part(OutcomeUnknown), part(Unavailable)]), Err(OutcomeUnknown));
        assert_eq!(told(vec![part(Overloaded), done()]), Err(OutcomeUnknown));
        assert_eq!(told(vec![part(Overloaded), part(Unavailable)]), Err(Overloaded), "nothing was done");
    }
}
