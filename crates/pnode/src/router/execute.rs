//! A point read from its consult to its answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sextant_common::ids::{ManifestVersion, NodeId, PartitionId};
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::room::Purse;
use sextant_proto::v1;
use sextant_rules::probe::PausePoint;

use super::consult::{Consult, ReadKey, consult};
use super::plan::{Answer, Found, Progress, Step};
use super::sst_search::{SearchFailed, SstFound};
use crate::api::{ReadMode, Record};
use crate::engine::{Engine, Unanswered};
use crate::metrics::{ReadPath, WrongTurn};
use crate::record_cache::CachedRecord;
use crate::upstream::{Backoff, Deadline, LARGE_ANSWER_MAX, MemtableSays, busy, held, more_telling};
use crate::view::TableInfo;

/// How long a leader may take to answer a read before it is asked again: a round of heartbeats and some.
const LEADER_ANSWER_MAX: Duration = Duration::from_secs(1);

/// A point read.
pub(crate) struct Read<'r> {
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

impl Engine {
    /// Reads until there is an answer or the deadline is over. Every start consults anew.
    pub(crate) async fn read(&self, read: &Read<'_>, deadline: Deadline) -> Result<Option<Record>> {
        let clock = &*self.env.clock;
        let mut backoff = Backoff::default();
        // Whatever broke a stream, it was perhaps the company: a request that was lost travels alone from then on.
        let mut alone = !self.coalesces();
        let mut denied = false;
        let mut damage = None;
        for attempt in 0u32.. {
            let setback = match self.read_once(read, deadline, alone).await {
                Ok(record) => return Ok(record),
                Err(setback) => setback,
            };
            self.check_running()?;
            self.metrics.read_retries.inc();
            let leader = self.leaders.get(read.partition).node;
            let error = match setback {
                Setback::Stale(searched) => {
                    self.metrics.count_wrong_turn(WrongTurn::StaleManifest);
                    let news = self.views.peek(read.partition).manifest.version > searched;
                    if news && attempt == 0 {
                        continue;
                    }
                    if !news {
                        // The answer brought no manifest.
                        let _ = self.refresh_manifest(read.partition, searched, deadline).await;
                    }
                    Error::unavailable("flushes outran the read")
                }
                Setback::Tables(searched, error) => {
                    self.metrics.count_wrong_turn(WrongTurn::TableGone);
                    let _ = self.refresh_manifest(read.partition, searched, deadline).await;
                    error
                }
                Setback::UnknownTable => {
                    self.create_in_partition(read.table, read.partition, deadline).await?;
                    Error::new(ErrorKind::UnknownTable, "the table is not in its partition yet")
                }
                Setback::Wait(error) => error,
                Setback::Denied(node, error) => {
                    // Once is a change of leaders. Twice, perhaps the stream leads to the server's predecessor.
                    if std::mem::replace(&mut denied, true)
                        && let Ok(peer) = self.memtable(node)
                    {
                        peer.reads.renew();
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
                || !self.wait_to_retry(read.partition, leader, &mut backoff, deadline).await
            {
                return Err(error);
            }
        }
        Err(Error::unavailable("too many attempts"))
    }

    async fn read_once(
        &self,
        read: &Read<'_>,
        deadline: Deadline,
        alone: bool,
    ) -> Result<Option<Record>, Setback> {
        // The linearization point: this load, then the clock, then the filters.
        let view = self.views.load(read.partition);
        let consult = consult(&view, &*self.env.clock, &self.cache, read.table, read.at(), read.mode);
        drop(view);
        if consult.lacked_a_lease {
            self.metrics.no_lease_reads.inc();
            self.metrics.expired_lease_reads.inc_by(u64::from(consult.lease_was_over));
            self.metrics.wall_clock_contradictions.inc_by(u64::from(consult.wall_clock_errs));
        }
        self.env.pause_point(PausePoint::ReadRouted).await;
        let mut progress = Progress::new(consult.plan);
        let mut value = None;
        let mut step = progress.start();
        loop {
            step = match step {
                Step::Done(answer) => {
                    self.metrics.count_read(read.mode, path(&progress, &consult));
                    return Ok(if answer == Answer::Value { value } else { None });
                }
                Step::AskMemtables => {
                    let found =
                        self.ask_memtables(read, consult.searched, deadline, alone, &mut value).await?;
                    if found == Found::NoEntry && consult.in_memtable_filter {
                        self.metrics.count_wrong_turn(WrongTurn::MemtableFilter);
                    }
                    progress.memtables_said(found)
                }
                Step::AskSstables => {
                    let found = self.ask_sstables(read, &consult, deadline, &mut value).await?;
                    let next = progress.sstables_said(found);
                    match found {
                        Found::NoEntry => self.metrics.count_wrong_turn(WrongTurn::SstableFilter),
                        Found::Tombstone if next == Step::AskMemtables => {
                            self.metrics.count_wrong_turn(WrongTurn::Tombstone);
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
        searched: ManifestVersion,
        deadline: Deadline,
        alone: bool,
        value: &mut Option<Record>,
    ) -> Result<Found, Setback> {
        let request = v1::ReadRequest {
            partition: read.partition.0,
            table: read.table.id.0,
            key: read.key.clone(),
            // Of the SSTables that this read searched, or will search if there is no entry.
            manifest_version: searched.0,
        };
        let asked = self
            .ask_leader(read.partition, deadline, LEADER_ANSWER_MAX, |peer| async move {
                let says =
                    if alone { peer.reads.ask_alone(request).await } else { peer.reads.ask(request).await };
                says.and_then(|says| says)
            })
            .await;
        let (node, says) = match asked.map_err(unanswered)? {
            (_, MemtableSays::Large(bytes)) => {
                Box::pin(self.ask_for_large(read, searched, bytes, deadline)).await?
            }
            answered => answered,
        };
        match says {
            MemtableSays::Value(record) => {
                *value = Some(record);
                Ok(Found::Value)
            }
            MemtableSays::Tombstone => Ok(Found::Tombstone),
            MemtableSays::NoEntry => Ok(Found::NoEntry),
            MemtableSays::Stale => Err(Setback::Stale(searched)),
            MemtableSays::NotLeader => {
                self.leaders.suspect(read.partition, node);
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
    ) -> Result<(NodeId, MemtableSays), Setback> {
        let leader = self.leaders.get(read.partition).node.and_then(|node| self.memtable(node).ok());
        let leader =
            leader.ok_or_else(|| Setback::Wait(Error::unavailable("the partition's leader is not known")))?;
        let (way, clock) = (&leader.large_on_the_way, &*self.env.clock);
        let room = self.large_reads.take(bytes, way, read.purse, clock, deadline).await;
        let (room, _on_the_way) = room.map_err(Setback::Wait)?;
        let request = v1::ReadRequest {
            partition: read.partition.0,
            table: read.table.id.0,
            key: read.key.clone(),
            manifest_version: searched.0,
        };
        let asked = self.ask_leader(read.partition, deadline, LARGE_ANSWER_MAX, |peer| async move {
            peer.large_reads.ask_alone(request).await.and_then(|says| says)
        });
        let (node, says) = asked.await.map_err(unanswered)?;
        let says = match says {
            MemtableSays::Value(record) => {
                MemtableSays::Value(Record { value: held(record.value, room), seq: record.seq })
            }
            other => other,
        };
        Ok((node, says))
    }

    async fn ask_sstables(
        &self,
        read: &Read<'_>,
        consult: &Consult,
        deadline: Deadline,
        value: &mut Option<Record>,
    ) -> Result<Found, Setback> {
        if let Some(cached) = &consult.cached {
            *value = cached.value.as_ref().map(|v| Record { value: v.clone(), seq: cached.seq });
            return Ok(if value.is_some() { Found::Value } else { Found::Tombstone });
        }
        let found = self.search_ssts(&consult.candidates, &read.key, read.hash, read.purse, deadline).await;
        self.env.pause_point(PausePoint::SstablesAnswered).await;
        let (found, record) = match found {
            Ok(SstFound::Value(record)) => {
                *value = Some(record.clone());
                (Found::Value, CachedRecord { value: Some(record.value), seq: record.seq })
            }
            Ok(SstFound::Tombstone(seq)) => (Found::Tombstone, CachedRecord { value: None, seq }),
            Ok(SstFound::NoEntry) => return Ok(Found::NoEntry),
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
        Ok(found)
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
        (false, true) if consult.cached.is_some() => ReadPath::Cache,
        (false, true) => ReadPath::Sstable,
        (true, true) if consult.cached.is_none() => ReadPath::Both,
        (true, _) => ReadPath::Memtable,
    }
}
