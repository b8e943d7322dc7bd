//! One page of one partition: a snapshot.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use sextant_common::expiry::{Life, Tick, Ticks, judge};
use sextant_common::ids::{NodeId, PartitionId, Seq, SstId};
use sextant_common::key::{filter_hash, filter_prefix, prefix_hash};
use sextant_common::limits::LARGE_BYTES;
use sextant_common::manifest::TableInfo;
use sextant_common::operation::Record;
use sextant_common::sstable::RecordVersion;
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::Clock;
use sextant_environment::room::{Purse, Share};
use sextant_rules::mutant::{self, Mutant};

use super::PAGE_RECORDS_MAX;
use super::rest::Rest;
use super::silence::Silence;
use crate::core::Core;
use crate::filter_copies::Copies;
use crate::router::merge::{MergedPage, merge_page};
use crate::router::range::common_prefix;
use crate::snapshots::{OfPartition, Snapshot, Snapshots};
use crate::tables::Tables;
use crate::upstream::{
    Backoff, Deadline, LargeReads, MemtablePageSays, Page, PageRequest, SstPageSays, held, more_telling,
};
use crate::view::{PartitionView, Sst};

/// How long a server may take for a page before it is asked again, or another one is.
const PAGE_ANSWER_MAX: Duration = Duration::from_secs(3);

/// How much to ask of a partition at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageSize {
    pub records: u32,
    pub bytes: u32,
}

impl PageSize {
    /// One record of any size.
    const ONE_OF_ANY_SIZE: PageSize = PageSize { records: 1, bytes: u32::MAX };

    /// After a page in which there was nothing. Deleted records count for a page, so whoever asks for few would come to the next
    /// record in many small steps.
    fn after_nothing(self) -> Self {
        let wider = self.records.saturating_mul(EMPTY_PAGE_GROWTH).clamp(AFTER_NOTHING_MIN, PAGE_RECORDS_MAX);
        Self { records: wider.max(self.records), ..self }
    }

    fn of(self, rest: &Rest) -> PageRequest {
        PageRequest {
            start: rest.start.clone(),
            end: rest.end.clone(),
            reverse: rest.reverse,
            records_max: self.records,
            bytes_max: self.bytes,
            first_bytes_max: self.first_bytes_max(),
        }
    }

    /// Longer records come alone, when there is room for them.
    fn first_bytes_max(self) -> u32 {
        if self.bytes == u32::MAX { 0 } else { self.bytes }
    }
}

/// The room of a page is held as long as any of its large values.
fn hold(page: &mut MergedPage, room: Option<Share>) {
    let Some(room) = room.map(Arc::new) else { return };
    for (_, record) in page.records.iter_mut().filter(|(_, r)| r.value.len() > LARGE_BYTES) {
        record.value = held(std::mem::take(&mut record.value), room.clone());
    }
}

/// Takes off what was not asked for, and gives the last key that is left of a page that had more.
fn shorten(page: &mut MergedPage, records: usize) -> Option<Bytes> {
    let is_longer = page.records.len() > records;
    page.records.truncate(records);
    page.records.last().filter(|_| is_longer).map(|(last, _)| last.clone())
}

/// One partition's page: no more records than were asked for. Without any it is the last one, or says only how far the search has come.
pub(super) struct PartitionPage {
    pub snapshot_seq: Seq,
    pub records: Vec<(Bytes, Record)>,
    pub rest: Option<Rest>,
    /// Pages in which there was nothing came before this one, each of a moment of its own.
    pub passed_over: bool,
}

/// A page of a window of what is left.
struct PageOnce {
    snapshot_seq: Seq,
    merged: MergedPage,
    window: Rest,
    /// What each source began with, of a page of one record: the key, and about how long it is.
    firsts: Vec<(Bytes, usize)>,
}

/// Of a record, beside its key and value.
const RECORD_OVERHEAD_BYTES: usize = 64;

impl PageOnce {
    fn of(
        snapshot_seq: Seq,
        tick: Tick,
        sides: Vec<Page>,
        size: PageSize,
        window: Rest,
    ) -> Result<Self, NoPage> {
        let length = |r: &RecordVersion| r.key.len() + r.value.as_ref().map_or(0, Bytes::len);
        let first = |side: &Page| side.records.first().map(|r| (r.key.clone(), length(r)));
        let firsts = if size.records == 1 { sides.iter().filter_map(first).collect() } else { vec![] };
        let merged = merge_page(sides, window.reverse, tick).map_err(Redo)?;
        Ok(Self { snapshot_seq, merged, window, firsts })
    }

    /// Beyond this page, the next record that a source begins with and that comes in no page of so many bytes: others come before it.
    fn large_ahead(&self, bytes: u32) -> Option<Bytes> {
        let covered_to = self.merged.covered_to.as_ref()?;
        let reverse = self.window.reverse;
        let is_ahead = |key: &Bytes| if reverse { key < covered_to } else { key > covered_to };
        let is_large = |length: usize| length + RECORD_OVERHEAD_BYTES > bytes as usize;
        let large = self.firsts.iter().filter(|(key, length)| is_ahead(key) && is_large(*length));
        let keys = large.map(|(key, _)| key);
        if reverse { keys.max() } else { keys.min() }.cloned()
    }
}

/// By how much more is asked for after a page in which there was nothing.
const EMPTY_PAGE_GROWTH: u32 = 4;
/// And at least so many: a client that goes on with another scan begins with few each time.
const AFTER_NOTHING_MIN: u32 = 256;

/// Most SSTables of one page: each is opened, and a block of it read. A page goes no further than so many answer for.
const TABLES_MAX: usize = 64;

/// Tables that one server is asked for.
type ServerGroup<'s> = (NodeId, Vec<&'s Arc<Sst>>);

/// Tables that one message asks for, and of which keys: a file that has more than its table answers for is asked alone.
fn messages<'s>(group: ServerGroup<'s>, from: &Rest) -> Vec<(NodeId, Vec<&'s Arc<Sst>>, Rest)> {
    let (node, ssts) = group;
    let (clamped, whole): (Vec<_>, Vec<_>) = ssts.into_iter().partition(|sst| sst.meta.is_clamped());
    let alone = clamped.into_iter().map(|sst| {
        let part = from.of(from.range().intersection(&sst.meta.range));
        (node, vec![sst], part)
    });
    let together = (!whole.is_empty()).then(|| (node, whole, from.clone()));
    together.into_iter().chain(alone).collect()
}

/// As the manifest has them, newest first, whatever groups they come from.
fn in_order(ssts: &mut [&Arc<Sst>], all: &[&Arc<Sst>]) {
    ssts.sort_by_key(|sst| all.iter().position(|one| Arc::ptr_eq(one, sst)));
}

/// Why there is no page.
enum NoPage {
    /// It has to be done again.
    Redo(Error),
    /// It would begin with records that are longer than pages are; so many bytes of them.
    Large(usize),
}

use NoPage::Redo;

/// No memtable has a key of the range.
struct RuledOut {
    /// What is known of the time.
    ticks: Ticks,
    /// The newest seq of a record that the SSTables in the range have.
    newest: Seq,
}

/// Whether the memtables need not be asked: under a lease no filter has the prefix of all keys of the range. Looks at the clock, then
/// at the filters, as point reads do.
fn memtables_ruled_out(
    view: &PartitionView,
    clock: &dyn Clock,
    table: &TableInfo,
    from: &Rest,
) -> Option<RuledOut> {
    let known = view.manifest.table(table.id)?;
    let prefix = filter_prefix(common_prefix(&from.start, &from.end), known.filter_prefix)?;
    let ticks = view.ticks();
    let unleased = if mutant::active(Mutant::PrefixWithoutLease) { view.copies.as_ref() } else { None };
    let copies = view.leased_copies(clock).or(unleased)?;
    if copies.contains(table.id, prefix_hash(prefix)) {
        return None;
    }
    let range = from.range();
    let newest = known.layers().within(&range).map(|sst| sst.meta.max_seq).max();
    Some(RuledOut { ticks, newest: Seq(newest.unwrap_or(0)) })
}

/// Whether only the leader knows of a record if it has expired.
fn is_undecided(side: &Page, ticks: Ticks) -> bool {
    side.records.iter().any(|record| judge(record.marks.expires_at(), ticks) == Life::Unknown)
}

/// A snapshot that is scanned.
#[derive(Clone)]
pub(super) struct OfSnapshot {
    pub snapshot: Arc<Snapshot>,
    pub all: Arc<Snapshots>,
}

/// Gets pages of partitions.
pub(super) struct Pages {
    /// None: of what there is.
    of: Option<OfSnapshot>,
    core: Arc<Core>,
    copies: Arc<Copies>,
    tables: Arc<Tables>,
    large_reads: Arc<LargeReads>,
}

impl Pages {
    pub fn new(
        core: &Arc<Core>,
        copies: &Arc<Copies>,
        tables: &Arc<Tables>,
        large_reads: &Arc<LargeReads>,
    ) -> Self {
        Self {
            of: None,
            core: core.clone(),
            copies: copies.clone(),
            tables: tables.clone(),
            large_reads: large_reads.clone(),
        }
    }

    /// The same, of what a snapshot has.
    pub fn of_snapshot(&self, of: OfSnapshot) -> Self {
        let large_reads = &self.large_reads;
        Self { of: Some(of), ..Self::new(&self.core, &self.copies, &self.tables, large_reads) }
    }

    /// One page of one partition; done again until it is a snapshot. Pages without a live record are passed over, as long as
    /// `silence_max` allows it (None: however many there are).
    pub async fn page(
        &self,
        table: &Arc<TableInfo>,
        partition: PartitionId,
        mut from: Rest,
        size: PageSize,
        silence_max: Option<Duration>,
        purse: &Purse,
    ) -> Result<PartitionPage> {
        let clock = &*self.core.env.clock;
        let mut silence = Silence::begin(silence_max, clock.holder_ns());
        let mut deadline = self.core.deadline(None);
        // For the next page, which begins with a record that is longer than pages are.
        let mut room: Option<Share> = None;
        let mut backoff = Backoff::default();
        let (mut damage, mut passed_over) = (None, false);
        // (Of this search; what was found ends it.)
        let ask_at_least = std::mem::take(&mut from.ask_at_least);
        let mut wanted = PageSize { records: size.records.max(ask_at_least), ..size };
        loop {
            self.core.check_running()?;
            let leader = self.core.leaders.get(partition).node;
            let size_now = if room.is_some() { PageSize::ONE_OF_ANY_SIZE } else { wanted };
            match self.page_once(table, partition, &from.before_large(), size_now, deadline).await {
                Ok(once) => {
                    from.large_at = once.large_ahead(size.bytes).or(from.large_at);
                    let PageOnce { snapshot_seq, mut merged, window, .. } = once;
                    self.core.metrics.scan_pages.inc();
                    let cut = shorten(&mut merged, size.records as usize);
                    let rest = match (&cut, &merged.covered_to) {
                        (Some(last), _) | (None, Some(last)) => from.after(Some(last)),
                        (None, None) => from.after_window(&window),
                    };
                    hold(&mut merged, room.take());
                    match rest {
                        Some(rest) if merged.records.is_empty() => {
                            // Progress: the deadline is a page's.
                            deadline = self.core.deadline(None);
                            backoff.reset();
                            passed_over = true;
                            wanted = wanted.after_nothing();
                            from = rest;
                            if silence.goes_on(clock.holder_ns()) {
                                from.ask_at_least = wanted.records;
                                let (records, rest) = (Vec::new(), Some(from));
                                return Ok(PartitionPage { snapshot_seq, records, rest, passed_over });
                            }
                        }
                        rest => {
                            let records = merged.records;
                            return Ok(PartitionPage { snapshot_seq, records, rest, passed_over });
                        }
                    }
                }
                Err(NoPage::Large(bytes)) => {
                    room = Some(self.large_reads.take_for_page(bytes, purse, clock, deadline).await?);
                    // Waiting for room was no attempt.
                    deadline = self.core.deadline(None);
                }
                Err(Redo(error)) => {
                    self.core.metrics.scan_pages_redone.inc();
                    let mut error = more_telling(&mut damage, error);
                    if let Some(OfSnapshot { snapshot, all }) = &self.of {
                        error = all.why(snapshot.id, partition, error).await;
                    }
                    if matches!(error.kind, ErrorKind::Invalid | ErrorKind::UnknownTable)
                        || error.kind == ErrorKind::Corrupt && self.is_half_over(deadline)
                        || !self.core.wait_to_retry(partition, leader, &mut backoff, deadline).await
                    {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Whoever waits is told of damage in time: a client's own deadline may be as long as this one.
    fn is_half_over(&self, deadline: Deadline) -> bool {
        let clock = &*self.core.env.clock;
        deadline.left(clock) < self.core.deadline(None).left(clock) / 2
    }

    async fn page_once(
        &self,
        table: &Arc<TableInfo>,
        partition: PartitionId,
        from: &Rest,
        size: PageSize,
        deadline: Deadline,
    ) -> Result<PageOnce, NoPage> {
        if let Some(OfSnapshot { snapshot, .. }) = &self.of {
            return self
                .page_of_cut(table, snapshot.of(partition).map_err(Redo)?, from, size, deadline)
                .await;
        }
        // One view: the SSTables of the version that the memtables' page names.
        let view = self.core.views.load(partition);
        let window = match view.manifest.table(table.id) {
            Some(t) => from.of(t.layers().window(&from.range(), from.reverse, TABLES_MAX)),
            None => from.clone(),
        };
        let from = &window;
        // The page's moment: what the SSTables say never changes, whenever they are asked.
        let ruled_out = memtables_ruled_out(&view, &*self.core.env.clock, table, from);
        let ask_leader = || self.memtable_page(table, partition, &view, from, size, deadline);
        let memtables = async {
            match ruled_out {
                Some(_) => Ok(None),
                None => ask_leader().await.map(Some),
            }
        };
        let ssts = self.sst_pages(table, &view, from, size, deadline);
        let (memtables, ssts) = tokio::join!(memtables, ssts);
        let large = |side: Option<&NoPage>| if let Some(NoPage::Large(bytes)) = side { *bytes } else { 0 };
        let large = large(memtables.as_ref().err()) + large(ssts.as_ref().err());
        if large > 0 {
            return Err(NoPage::Large(large));
        }
        let memtables = memtables?;
        let ssts = match ssts {
            Ok(ssts) => ssts,
            Err(NoPage::Large(bytes)) => return Err(NoPage::Large(bytes)),
            Err(Redo(error)) if error.kind == ErrorKind::Overloaded => return Err(Redo(error)),
            Err(Redo(error)) => {
                let _ = self.copies.refresh_manifest(partition, view.manifest.version, deadline).await;
                return Err(Redo(error));
            }
        };
        let (snapshot_seq, tick, memtables) = match (memtables, ruled_out) {
            (Some(page), _) => page,
            (None, Some(RuledOut { ticks, newest }))
                if !ssts.iter().any(|side| is_undecided(side, ticks)) =>
            {
                self.core.metrics.scan_pages_without_leader.inc();
                (newest, ticks.published, Page { records: Vec::new(), complete: true })
            }
            (None, _) => ask_leader().await?,
        };
        let sides = std::iter::once(memtables).chain(ssts).collect();
        PageOnce::of(snapshot_seq, tick, sides, size, window)
    }

    /// All that a cut has is in its SSTables.
    async fn page_of_cut(
        &self,
        table: &TableInfo,
        of: &OfPartition,
        from: &Rest,
        size: PageSize,
        deadline: Deadline,
    ) -> Result<PageOnce, NoPage> {
        let window = match of.view.manifest.table(table.id) {
            Some(t) => from.of(t.layers().window(&from.range(), from.reverse, TABLES_MAX)),
            None => from.clone(),
        };
        let sides = self.sst_pages(table, &of.view, &window, size, deadline).await?;
        PageOnce::of(of.cut.seq, of.cut.tick, sides, size, window)
    }

    async fn memtable_page(
        &self,
        table: &Arc<TableInfo>,
        partition: PartitionId,
        view: &PartitionView,
        from: &Rest,
        size: PageSize,
        deadline: Deadline,
    ) -> Result<(Seq, Tick, Page), NoPage> {
        let searched = view.manifest.version;
        let wanted = size.of(from);
        let asked = self.core.ask_leader(partition, deadline, PAGE_ANSWER_MAX, |peer| {
            peer.page(partition, table.id, searched, wanted)
        });
        let (_, says) = asked.await.map_err(|e| Redo(e.into_error()))?;
        let error = match says {
            MemtablePageSays::Page(snapshot_seq, tick, page) => return Ok((snapshot_seq, tick, page)),
            MemtablePageSays::Large(bytes) => return Err(NoPage::Large(bytes)),
            MemtablePageSays::Stale { installed } => {
                if !installed {
                    let _ = self.copies.refresh_manifest(partition, searched, deadline).await;
                }
                Error::unavailable("flushes outran the scan")
            }
            MemtablePageSays::NotLeader => {
                Error::unavailable(format!("no leader of partition {partition} answers"))
            }
            MemtablePageSays::UnknownTable => {
                match self.tables.missing_in(table, partition, deadline).await.map_err(Redo)? {
                    None => Error::unavailable("the table is not in its partition yet"),
                    Some(_) => Error::new(
                        ErrorKind::UnknownTable,
                        "the table was dropped, and made anew: scan again",
                    ),
                }
            }
            MemtablePageSays::NotReady => {
                Error::unavailable(format!("the leader of partition {partition} is not ready"))
            }
        };
        Err(Redo(error))
    }

    /// What the SSTables of the view have of the range: one side for each group of tables that share a server.
    async fn sst_pages(
        &self,
        table: &TableInfo,
        view: &PartitionView,
        from: &Rest,
        size: PageSize,
        deadline: Deadline,
    ) -> Result<Vec<Page>, NoPage> {
        let range = from.range();
        let within = view.manifest.table(table.id).map(|t| t.layers().within(&range));
        let start = common_prefix(&range.start, &range.end);
        let (all, passed_over): (Vec<&Arc<Sst>>, Vec<_>) =
            within.into_iter().flatten().partition(|sst| sst.may_contain_prefix(start));
        self.core.metrics.scan_tables_searched.inc_by(all.len() as u64);
        self.core.metrics.scan_tables_passed_over.inc_by(passed_over.len() as u64);
        let mut left = all.clone();
        let mut failed: Vec<(SstId, NodeId)> = Vec::new();
        // By where the page begins, and the partition: each page has its turn.
        let partition = all.first().map_or(&[][..], |sst| &sst.wire_id);
        let turn = [from.front(), partition].concat();
        let mut sides = Vec::new();
        let mut damage: Option<Error> = None;
        while !left.is_empty() {
            let groups = self.group_by_server(&left, &failed, &turn);
            let groups = groups.map_err(|e| Redo(damage.take().unwrap_or(e)))?;
            let groups: Vec<_> = groups.into_iter().flat_map(|group| messages(group, from)).collect();
            let scans =
                groups.iter().map(|(node, ssts, part)| self.sst_page(*node, ssts, part, size, deadline));
            let results = join_all(scans).await;
            left.clear();
            let large = results.iter().map(|r| if let Err(NoPage::Large(bytes)) = r { *bytes } else { 0 });
            let large: usize = large.sum();
            if large > 0 {
                return Err(NoPage::Large(large));
            }
            for ((node, ssts, _), result) in groups.into_iter().zip(results) {
                match result {
                    Ok(side) => sides.push(side),
                    Err(NoPage::Large(bytes)) => return Err(NoPage::Large(bytes)),
                    // It is busy; the others are too, or will be.
                    Err(Redo(e)) if e.kind == ErrorKind::Overloaded => return Err(Redo(e)),
                    Err(Redo(e)) => {
                        tracing::debug!(%node, "scan of SSTables: {e}");
                        if e.kind == ErrorKind::Corrupt {
                            damage = Some(e);
                        }
                        failed.extend(ssts.iter().map(|sst| (sst.meta.id, node)));
                        left.extend(ssts);
                    }
                }
            }
            in_order(&mut left, &all);
        }
        Ok(sides)
    }

    /// Each table with a server that holds it, as few servers as a greedy choice finds; of those that are as good one that depends on
    /// `turn`.
    fn group_by_server<'s>(
        &self,
        ssts: &[&'s Arc<Sst>],
        failed: &[(SstId, NodeId)],
        turn: &[u8],
    ) -> Result<Vec<ServerGroup<'s>>> {
        let now_ns = self.core.env.clock.holder_ns();
        let usable = |sst: &Sst, node: NodeId| {
            sst.meta.replicas.contains(&node) && !failed.contains(&(sst.meta.id, node))
        };
        let mut left = ssts.to_vec();
        let mut groups = Vec::new();
        while !left.is_empty() {
            let weigh = |node: NodeId| {
                let held: Vec<_> = left.iter().filter(|sst| usable(sst, node)).collect();
                let avoided = held.iter().any(|sst| self.core.health.is_avoided(node, sst.meta.id, now_ns));
                (!held.is_empty() && !avoided, held.len())
            };
            let turn = |node: NodeId| filter_hash(&[turn, &node.0.to_le_bytes()].concat());
            let best = self.core.sstables.keys().copied().max_by_key(|node| (weigh(*node), turn(*node)));
            let node = best.filter(|node| weigh(*node).1 > 0);
            let node = node.ok_or_else(|| Error::unavailable("no replica of an SSTable can be scanned"))?;
            let (here, elsewhere) = left.into_iter().partition(|sst| usable(sst, node));
            left = elsewhere;
            groups.push((node, here));
        }
        Ok(groups)
    }

    async fn sst_page(
        &self,
        node: NodeId,
        ssts: &[&Arc<Sst>],
        from: &Rest,
        size: PageSize,
        deadline: Deadline,
    ) -> Result<Page, NoPage> {
        let peer = self.core.sstable(node).map_err(Redo)?;
        let asked = peer.page(ssts.iter().map(|sst| sst.wire_id.clone()).collect(), size.of(from));
        let now_ns = self.core.env.clock.holder_ns();
        let says = match deadline.limit(&*self.core.env.clock, PAGE_ANSWER_MAX, asked).await {
            Ok(says) => says,
            Err(e) => {
                if e.kind != ErrorKind::Overloaded {
                    let clock = &*self.core.env.clock;
                    self.core.health.server_failed(node, now_ns, clock.holder_ns(), deadline.is_over(clock));
                }
                return Err(Redo(e));
            }
        };
        let why = |message| format!("sstable server {node} cannot scan: {message}");
        let error = match says {
            SstPageSays::Page(page) => {
                self.core.health.server_answered(node, now_ns);
                return Ok(page);
            }
            SstPageSays::Large(bytes) => return Err(NoPage::Large(bytes)),
            SstPageSays::Damaged(message) => Error::corrupt(why(message)),
            SstPageSays::Unable(message) => Error::unavailable(why(message)),
        };
        ssts.iter().for_each(|sst| self.core.health.replica_failed(node, sst.meta.id, now_ns));
        Err(Redo(error))
    }
}
