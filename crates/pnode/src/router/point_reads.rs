//! A point read from its consult to its answer.

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sextant_common::expiry::Ticks;
use sextant_common::ids::{ManifestVersion, NodeId, PartitionId};
use sextant_common::manifest::TableInfo;
use sextant_common::operation::{ReadMode, Record};
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::room::Purse;
use sextant_rules::mutant::{self, Mutant};
use sextant_rules::probe::PausePoint;

use super::consult::{AtOnce, Consult, Glance, found};
use super::plan::{Answer, Found, Progress, Step};
use super::registrar::Registrar;
use super::sst_search::{SearchFailed, SstFound, SstSearch};
use crate::core::{Core, Unanswered};
use crate::filter_copies::Copies;
use crate::metrics::{KeptEvent, ReadPath, WrongTurn};
use crate::record_cache::{CachedRecord, Kept, RecordCache, Said};
use crate::tables::{Tables, check_placed_alike};
use crate::upstream::{
    Backoff, Deadline, LARGE_ANSWER_MAX, LargeReads, MemtableAnswer, MemtableRead, MemtableSays, busy, held,
    more_telling, unhurried,
};
use crate::view::{ReadKey, Registration};

/// How long a leader may take to answer a read before it is asked again: a round of heartbeats and some.
const LEADER_ANSWER_MAX: Duration = unhurried(Duration::from_secs(1));

/// A point read.
pub(super) struct Read<'r> {
    pub table: &'r Arc<TableInfo>,
    pub partition: PartitionId,
    pub key: Bytes,
    /// [`sextant_common::key::filter_hash`] of the key.
    pub hash: u64,
    pub mode: ReadMode,
    /// Of the room for large values, if this is one of several reads.
    pub purse: Option<&'r Purse>,
}

impl Read<'_> {
    fn at(&self) -> ReadKey<'_> {
        ReadKey { partition: self.partition, key: &self.key, hash: self.hash }
    }

    /// `searched`: the version of the SSTables that this read searched, or will search if there is no entry.
    fn of_memtables(&self, searched: ManifestVersion) -> MemtableRead {
        let key = self.key.clone();
        MemtableRead { partition: self.partition, table: self.table.id, key, searched, register: false }
    }
}

/// Why a read has to start again.
enum Setback {
    /// The version that was searched is too old for the memtables.
    Stale(ManifestVersion),
    /// The manifest names tables that are not there, or that cannot be read now.
    Tables(ManifestVersion, Error),
    /// The leader does not know the table yet.
    UnknownTable,
    /// Ask again after a while.
    Wait(Error),
    /// The server that is taken for the leader does not act as one.
    Denied(NodeId, Error),
    /// The request or its answer was lost: ask again, alone.
    Lost(Error),
}

pub(super) struct PointReads {
    pub core: Arc<Core>,
    pub copies: Arc<Copies>,
    pub tables: Arc<Tables>,
    pub search: SstSearch,
    pub cache: Arc<RecordCache>,
    pub registrar: Registrar,
    pub large_reads: Arc<LargeReads>,
}

impl PointReads {
    /// Consults for a pda read: the answer, if it is known without asking anyone; else what [`PointReads::read`] goes on with.
    #[inline]
    pub fn look(&self, table: &TableInfo, at: ReadKey<'_>) -> ControlFlow<Option<Record>, Consult> {
        match self.consult(table, at, ReadMode::Pda).answer_at_once() {
            Break(answer) => Break(self.answer(answer)),
            Continue(consult) => Continue(consult),
        }
    }

    #[inline]
    fn answer(&self, AtOnce { record, path }: AtOnce) -> Option<Record> {
        if path == ReadPath::Cache {
            self.cache.count(true);
        }
        self.core.metrics.count_read(ReadMode::Pda, path);
        record.and_then(CachedRecord::into_record)
    }

    /// The linearization point: the load of the view, then the clock, then the filters.
    #[inline]
    fn consult(&self, table: &TableInfo, at: ReadKey<'_>, mode: ReadMode) -> Consult {
        let view = self.core.views.peek(at.partition);
        Glance::new(&view, &*self.core.env.clock, mode).consult(&self.cache, table, at)
    }

    /// As [`Self::look`], at several keys of one partition: with one view and one look at the clock.
    pub fn look_at_all<'k, K>(
        &self,
        table: &TableInfo,
        partition: PartitionId,
        keys: impl Iterator<Item = (K, ReadKey<'k>)>,
        mut looked: impl FnMut(K, ControlFlow<Option<Record>, Consult>) -> Result<()>,
    ) -> Result<()> {
        let view = self.core.views.peek(partition);
        let glance = Glance::new(&view, &*self.core.env.clock, ReadMode::Pda);
        for (of, key) in keys {
            debug_assert_eq!(key.partition, partition);
            let look = match glance.consult(&self.cache, table, key).answer_at_once() {
                Break(answer) => Break(self.answer(answer)),
                Continue(consult) => Continue(consult),
            };
            looked(of, look)?;
        }
        Ok(())
    }

    /// Reads until there is an answer or the deadline is over. `first`: what the caller's look at the key was told. Every further
    /// start consults anew.
    pub async fn read(
        &self,
        read: &Read<'_>,
        deadline: Deadline,
        mut first: Option<Consult>,
    ) -> Result<Option<Record>> {
        let clock = &*self.core.env.clock;
        let mut backoff = Backoff::default();
        // Whatever broke a stream, it was perhaps the company: a request that was lost travels alone from then on.
        let mut alone = !self.core.coalesces();
        let mut denied = false;
        let mut damage = None;
        for attempt in 0u32.. {
            let setback = match self.read_once(read, first.take(), deadline, alone).await {
                Ok(record) => return Ok(record),
                Err(setback) => setback,
            };
            self.core.check_running()?;
            self.core.metrics.read_retries.inc();
            let leader = self.core.leaders.get(read.partition).node;
            let error = match setback {
                Setback::Stale(searched) => {
                    self.core.metrics.count_wrong_turn(WrongTurn::StaleManifest);
                    let news = self.core.views.peek(read.partition).manifest.version > searched;
                    if news && attempt == 0 {
                        continue;
                    }
                    if !news {
                        // The answer brought no manifest.
                        let _ = self.copies.refresh_manifest(read.partition, searched, deadline).await;
                    }
                    Error::unavailable("flushes outran the read")
                }
                Setback::Tables(searched, error) => {
                    self.core.metrics.count_wrong_turn(WrongTurn::TableGone);
                    let _ = self.copies.refresh_manifest(read.partition, searched, deadline).await;
                    error
                }
                Setback::UnknownTable => {
                    if let Some(other) = self.tables.missing_in(read.table, read.partition, deadline).await? {
                        check_placed_alike(read.table, &other)?;
                        let read = Read { table: &other, key: read.key.clone(), ..*read };
                        return Box::pin(self.read(&read, deadline, None)).await;
                    }
                    Error::new(ErrorKind::UnknownTable, "the table is not in its partition yet")
                }
                Setback::Wait(error) => error,
                Setback::Denied(node, error) => {
                    // Once is a change of leaders. Twice, perhaps the stream leads to the server's predecessor.
                    if std::mem::replace(&mut denied, true)
                        && let Ok(peer) = self.core.memtable(node)
                    {
                        peer.renew_reads();
                    }
                    error
                }
                Setback::Lost(error) => {
                    alone = true;
                    error
                }
            };
            let error = more_telling(&mut damage, error);
            if deadline.is_over(clock)
                || !self.core.wait_to_retry(read.partition, leader, &mut backoff, deadline).await
            {
                return Err(error);
            }
        }
        Err(Error::unavailable("too many attempts"))
    }

    async fn read_once(
        &self,
        read: &Read<'_>,
        consulted: Option<Consult>,
        deadline: Deadline,
        alone: bool,
    ) -> Result<Option<Record>, Setback> {
        let consult = match consulted {
            Some(consult) => consult,
            None => match self.consult(read.table, read.at(), read.mode).answer_at_once() {
                Break(answer) => return Ok(self.answer(answer)),
                Continue(consult) => consult,
            },
        };
        self.cache.count(consult.cached.is_some());
        if consult.lacked_a_lease {
            self.core.metrics.no_lease_reads.inc();
            self.core.metrics.expired_lease_reads.inc_by(u64::from(consult.lease_was_over));
            self.core.metrics.wall_clock_contradictions.inc_by(u64::from(consult.wall_clock_errs));
        }
        self.core.env.pause_point(PausePoint::ReadRouted).await;
        let mut progress = Progress::new(consult.plan);
        let mut value = None;
        // What is known of the time, and what the SSTables have: to be judged by it.
        let mut ticks = consult.ticks;
        let mut of_ssts = consult.cached.clone();
        // What the memtables' "no entry" is kept with: with what the SSTables say, it is the whole answer.
        let mut no_entry = consult.kept.as_ref().map(|kept| kept.registration);
        let mut step = progress.start();
        loop {
            step = match step {
                Step::Done(answer) => {
                    self.core.metrics.count_read(read.mode, path(&progress, &consult));
                    if let Some(registration) = no_entry {
                        let said = match answer {
                            Answer::Value => Said::NoEntry(consult.searched),
                            Answer::Absent => Said::Absent,
                        };
                        if answer == Answer::Absent || consult.kept.is_none() {
                            self.cache.keep(read.table.id, read.at(), &Kept { said, registration });
                        }
                    }
                    return Ok(if answer == Answer::Value { value } else { None });
                }
                Step::AskMemtables => {
                    let (found, registration) =
                        self.ask_memtables(read, &consult, deadline, alone, (&mut value, &mut ticks)).await?;
                    no_entry = registration.filter(|_| found == Found::NoEntry);
                    if found == Found::NoEntry && consult.in_memtable_filter {
                        self.core.metrics.count_wrong_turn(WrongTurn::MemtableFilter);
                    }
                    progress.memtables_said(found)
                }
                Step::AskSstables => {
                    if of_ssts.is_none() {
                        of_ssts = self.ask_sstables(read, &consult, deadline).await?;
                    }
                    let found = of_ssts.as_ref().map_or(Found::NoEntry, |record| found(record, ticks));
                    if found == Found::Value {
                        value = of_ssts.clone().and_then(CachedRecord::into_record);
                    }
                    let next = progress.sstables_said(found);
                    match found {
                        Found::NoEntry => self.core.metrics.count_wrong_turn(WrongTurn::SstableFilter),
                        Found::Tombstone if next == Step::AskMemtables => {
                            self.core.metrics.count_wrong_turn(WrongTurn::Tombstone);
                        }
                        _ => {}
                    }
                    next
                }
            };
        }
    }

    async fn ask_memtables(
        &self,
        read: &Read<'_>,
        consult: &Consult,
        deadline: Deadline,
        alone: bool,
        (value, ticks): (&mut Option<Record>, &mut Ticks),
    ) -> Result<(Found, Option<Registration>), Setback> {
        let searched = consult.searched;
        let mut request = read.of_memtables(searched);
        // Writes wait for whoever registers: not for what could not be kept, or not be used.
        let useful = read.mode == ReadMode::Pda && !consult.lacked_a_lease && self.cache.is_on();
        let was_useful = self.cache.was_worth_keeping(read.table.id, read.at());
        request.register = useful && self.registrar.wants(read.hash, was_useful);
        if request.register {
            self.core.metrics.count_kept(KeptEvent::Asked);
        }
        let asked = self
            .core
            .ask_leader(read.partition, deadline, LEADER_ANSWER_MAX, |peer| peer.read(request, alone));
        let (node, MemtableAnswer { says, registration }) = match asked.await.map_err(unanswered)? {
            (_, MemtableAnswer { says: MemtableSays::Large(bytes), .. }) => {
                Box::pin(self.ask_for_large(read, searched, bytes, deadline)).await?
            }
            answered => answered,
        };
        let registration = self.as_kept(read.partition, registration);
        let keep = |said| {
            if let Some(registration) = registration {
                self.cache.keep(read.table.id, read.at(), &Kept { said, registration });
            }
        };
        match says {
            MemtableSays::Value(record) => {
                keep(Said::Record(record.clone().into()));
                *value = Some(record);
                Ok((Found::Value, registration))
            }
            MemtableSays::Tombstone => {
                keep(Said::Absent);
                Ok((Found::Tombstone, registration))
            }
            MemtableSays::NoEntry(tick) => {
                // (What was known to be published still is.)
                *ticks = Ticks::exactly(tick.max(ticks.published));
                Ok((Found::NoEntry, registration))
            }
            MemtableSays::Stale => Err(Setback::Stale(searched)),
            MemtableSays::NotLeader => {
                self.core.leaders.suspect(read.partition, node);
                Err(Setback::Denied(
                    node,
                    Error::unavailable(format!("no leader of partition {} answers", read.partition)),
                ))
            }
            MemtableSays::NotReady => Err(Setback::Denied(
                node,
                Error::unavailable(format!("the leader of partition {} is not ready", read.partition)),
            )),
            MemtableSays::UnknownTable => Err(Setback::UnknownTable),
            MemtableSays::Large(_) => {
                Err(Setback::Wait(busy("the leader has no room for so large an answer now")))
            }
        }
    }

    /// The leader has a value of `bytes` bytes. It is asked again, alone, when there is room: its newest version then.
    async fn ask_for_large(
        &self,
        read: &Read<'_>,
        searched: ManifestVersion,
        bytes: usize,
        deadline: Deadline,
    ) -> Result<(NodeId, MemtableAnswer), Setback> {
        let leader =
            self.core.leaders.get(read.partition).node.and_then(|node| self.core.memtable(node).ok());
        let leader =
            leader.ok_or_else(|| Setback::Wait(Error::unavailable("the partition's leader is not known")))?;
        let (way, clock) = (&leader.large_on_the_way, &*self.core.env.clock);
        let room = self.large_reads.take(bytes, way, read.purse, clock, deadline).await;
        let (room, _on_the_way) = room.map_err(Setback::Wait)?;
        let request = read.of_memtables(searched);
        let asked =
            self.core.ask_leader(read.partition, deadline, LARGE_ANSWER_MAX, |peer| peer.read_large(request));
        let (node, answer) = asked.await.map_err(unanswered)?;
        let says = match answer.says {
            MemtableSays::Value(record) => {
                MemtableSays::Value(Record { value: held(record.value, room), ..record })
            }
            other => other,
        };
        Ok((node, MemtableAnswer { says, ..answer }))
    }

    /// A registration as it is kept: the read's own, however late it arrives.
    fn as_kept(&self, partition: PartitionId, registration: Option<Registration>) -> Option<Registration> {
        if registration.is_some() && mutant::active(Mutant::KeptAtArrival) {
            let view = self.core.views.peek(partition);
            return view.copies.as_ref().map(|c| Registration { epoch: c.epoch, serial: c.serial });
        }
        registration
    }

    async fn ask_sstables(
        &self,
        read: &Read<'_>,
        consult: &Consult,
        deadline: Deadline,
    ) -> Result<Option<CachedRecord>, Setback> {
        let found = self.search.search(&consult.candidates, &read.key, read.hash, read.purse, deadline).await;
        self.core.env.pause_point(PausePoint::SstablesAnswered).await;
        let record = match found {
            Ok(SstFound::Value(record)) => CachedRecord::from(record),
            Ok(SstFound::Tombstone(seq)) => CachedRecord::tombstone(seq),
            Ok(SstFound::NoEntry) => return Ok(None),
            Err(SearchFailed::Gone) => {
                let error = Error::new(ErrorKind::Unavailable, "an SSTable is on none of its replicas");
                return Err(Setback::Tables(consult.searched, error));
            }
            Err(SearchFailed::NoReplica(error)) if error.kind == ErrorKind::Overloaded => {
                return Err(Setback::Wait(error));
            }
            Err(SearchFailed::NoReplica(error)) => return Err(Setback::Tables(consult.searched, error)),
        };
        // Stamped with what was searched, however long it took to get here.
        self.cache.insert(consult.searched, read.table.id, read.at(), &record);
        Ok(Some(record))
    }
}

fn unanswered(unanswered: Unanswered) -> Setback {
    match unanswered {
        Unanswered::NotSent(e) => Setback::Wait(e),
        // It was refused: whatever company it had, that was not the reason.
        Unanswered::Lost(e) if e.kind == ErrorKind::Overloaded => Setback::Wait(e),
        Unanswered::Lost(e) => Setback::Lost(e),
    }
}

fn path(progress: &Progress, consult: &Consult) -> ReadPath {
    match (progress.asked_memtables(), progress.asked_sstables()) {
        (false, false) => ReadPath::Nobody,
        // What the memtables have not was kept.
        (false, true) if consult.cached.is_some() => ReadPath::Cache,
        (false, true) => ReadPath::Sstable,
        (true, true) if consult.cached.is_none() => ReadPath::Both,
        (true, _) => ReadPath::Memtable,
    }
}
