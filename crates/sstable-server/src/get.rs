//! Batches of gets.
//!
//! What the block cache holds is answered at once, on the caller's task; the rest of a batch goes to the blocking pool in one
//! piece. Invariant: "no entry" is answered only if every candidate was searched; a candidate that is missing or damaged
//! ends the search with a status that says so, because an older table may hold an older version.

use std::sync::Arc;

use bytes::Bytes;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::SstId;
use sextant_common::key::filter_hash;
use sextant_common::limits::check_key;
use sextant_common::vfs::IoKind;
use sextant_proto::convert::sst_id_from_wire;
use sextant_proto::v1::{GetBatch, GetBatchReply, GetReply, GetStatus};

use crate::catalog::Entry;
use crate::store::Store;
use crate::table::reader::Tally;
use crate::table::{Access, Lookup};

/// More keys in a batch than any coalescer sends.
const BATCH_GETS_MAX: usize = 65_536;
/// Batches up to this size are first tried on the caller's task: longer ones would hold up its other work.
const INLINE_GETS_MAX: usize = 1024;
/// Values in one answer. With one more value of the largest size it stays below the largest message.
const REPLY_BYTES_MAX: usize = 14 * 1024 * 1024;

/// A get that needs the disk.
struct Waiting {
    reply: usize,
    key: Bytes,
    hash: u64,
    /// The candidates before this one do not have the key.
    first: usize,
    candidates: Vec<Option<Entry>>,
}

enum Answer {
    Reply(GetReply),
    NeedsDisk { candidate: usize },
}

impl Store {
    /// Answers a batch, one reply for each get. `Err`: the request is malformed.
    pub async fn get_batch(self: &Arc<Self>, batch: GetBatch) -> Result<GetBatchReply> {
        let ids = parse(&batch)?;
        let access = if batch.gets.len() <= INLINE_GETS_MAX { Access::CacheOnly } else { Access::Fill };
        let mut tally = Tally::default();
        let (mut replies, mut waiting) = match access {
            Access::CacheOnly => self.search_all(&batch, &ids, &mut tally),
            _ => self.defer_all(&batch, &ids),
        };
        self.metrics.get_batches.inc();
        self.metrics.gets.inc_by(batch.gets.len() as u64);
        self.metrics.add(&tally);
        if !waiting.is_empty() {
            self.metrics.disk_batches.inc();
            match self.search_on_disk(std::mem::take(&mut waiting)).await {
                Ok(found) => found.into_iter().for_each(|(at, reply)| replies[at] = Some(reply)),
                Err(e) => replies.iter_mut().filter(|r| r.is_none()).for_each(|r| *r = Some(failed(0, &e))),
            }
        }
        let mut replies: Vec<_> = replies.into_iter().map(|r| r.unwrap_or_else(too_large)).collect();
        limit(&mut replies);
        self.count(&replies);
        Ok(GetBatchReply { batch: batch.batch, replies })
    }

    /// Answers what needs no disk; one lookup of the catalog for the whole batch.
    fn search_all(
        &self,
        batch: &GetBatch,
        ids: &[SstId],
        tally: &mut Tally,
    ) -> (Vec<Option<GetReply>>, Vec<Waiting>) {
        let mut replies = Vec::with_capacity(batch.gets.len());
        let mut waiting = Vec::new();
        let tables = self.catalog.tables();
        let mut ids = ids;
        for get in &batch.gets {
            let (own, rest) = ids.split_at(get.candidates.len());
            ids = rest;
            let hash = filter_hash(&get.key);
            let candidates = own.iter().map(|id| tables.get(id)).enumerate();
            match search(&get.key, hash, candidates, Access::CacheOnly, tally) {
                Answer::Reply(reply) => replies.push(Some(reply)),
                Answer::NeedsDisk { candidate } => {
                    let candidates = own.iter().map(|id| tables.get(id).cloned()).collect();
                    let reply = replies.len();
                    waiting.push(Waiting { reply, key: get.key.clone(), hash, first: candidate, candidates });
                    replies.push(None);
                }
            }
        }
        (replies, waiting)
    }

    fn defer_all(&self, batch: &GetBatch, ids: &[SstId]) -> (Vec<Option<GetReply>>, Vec<Waiting>) {
        let tables = self.catalog.tables();
        let mut ids = ids.iter();
        let waiting = batch.gets.iter().enumerate().map(|(reply, get)| Waiting {
            reply,
            key: get.key.clone(),
            hash: filter_hash(&get.key),
            first: 0,
            candidates: ids.by_ref().take(get.candidates.len()).map(|id| tables.get(id).cloned()).collect(),
        });
        (vec![None; batch.gets.len()], waiting.collect())
    }

    async fn search_on_disk(self: &Arc<Self>, waiting: Vec<Waiting>) -> Result<Vec<(usize, GetReply)>> {
        let turn = self.disk_reads.take().await?;
        let store = self.clone();
        let work = move || {
            let mut tally = Tally::default();
            let mut bytes = 0;
            let mut found = Vec::with_capacity(waiting.len());
            for get in waiting {
                if bytes > REPLY_BYTES_MAX {
                    break;
                }
                let candidates = get.candidates.iter().map(Option::as_ref).enumerate().skip(get.first);
                if let Answer::Reply(reply) = search(&get.key, get.hash, candidates, Access::Fill, &mut tally)
                {
                    bytes += reply.value.len();
                    found.push((get.reply, reply));
                }
            }
            store.metrics.add(&tally);
            drop(turn);
            Ok(found)
        };
        self.disk(IoKind::Read, work).await
    }

    fn count(&self, replies: &[GetReply]) {
        for reply in replies {
            match reply.status() {
                GetStatus::GetTableGone => self.metrics.gone.inc(),
                GetStatus::GetCorrupt => self.metrics.corrupt.inc(),
                GetStatus::GetIoError => self.metrics.io_errors.inc(),
                _ => continue,
            };
        }
    }
}

/// All candidates' ids, one get after the other.
fn parse(batch: &GetBatch) -> Result<Vec<SstId>> {
    if batch.gets.len() > BATCH_GETS_MAX {
        return Err(Error::invalid(format!(
            "batch has {} gets: the limit is {BATCH_GETS_MAX}",
            batch.gets.len()
        )));
    }
    let mut ids = Vec::with_capacity(batch.gets.len());
    for get in &batch.gets {
        check_key(&get.key)?;
        for id in &get.candidates {
            ids.push(sst_id_from_wire(id)?);
        }
    }
    Ok(ids)
}

/// Searches the candidates, newest first.
fn search<'e>(
    key: &[u8],
    hash: u64,
    candidates: impl Iterator<Item = (usize, Option<&'e Entry>)>,
    access: Access,
    tally: &mut Tally,
) -> Answer {
    for (at, entry) in candidates {
        let candidate = at as u32;
        let Some(entry) = entry else {
            return Answer::Reply(GetReply {
                status: GetStatus::GetTableGone.into(),
                candidate,
                ..GetReply::default()
            });
        };
        let found = entry.table().and_then(|table| table.get(key, hash, access, tally));
        return Answer::Reply(match found {
            Ok(Lookup::Absent) => continue,
            Ok(Lookup::NeedsDisk) => return Answer::NeedsDisk { candidate: at },
            Ok(Lookup::Found(found)) => {
                let status = if found.tombstone { GetStatus::GetTombstone } else { GetStatus::GetValue };
                GetReply {
                    status: status.into(),
                    value: found.value,
                    seq: found.seq,
                    candidate,
                    message: String::new(),
                }
            }
            Err(e) => failed(candidate, &e),
        });
    }
    Answer::Reply(GetReply { status: GetStatus::GetNoEntry.into(), ..GetReply::default() })
}

fn failed(candidate: u32, e: &Error) -> GetReply {
    let status = if e.kind == ErrorKind::Corrupt { GetStatus::GetCorrupt } else { GetStatus::GetIoError };
    GetReply { status: status.into(), candidate, message: e.message.to_string(), ..GetReply::default() }
}

fn too_large() -> GetReply {
    GetReply { status: GetStatus::GetTooLarge.into(), ..GetReply::default() }
}

/// Takes out what would make the answer longer than a message may be. The first value always stays.
fn limit(replies: &mut [GetReply]) {
    let mut bytes = 0;
    for reply in replies {
        if bytes > REPLY_BYTES_MAX {
            *reply = too_large();
        }
        bytes += reply.value.len() + reply.message.len();
    }
}
