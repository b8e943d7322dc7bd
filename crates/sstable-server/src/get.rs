//! Batches of gets.
//!
//! What the block cache holds is answered at once, on the caller's task; the rest of a batch goes to the blocking pool in one
//! piece. Large blocks are read in a second turn, when there is room for their values: what was found is in memory until the peer
//! has taken it. Invariant: "no entry" is answered only if every candidate was searched; a candidate that is missing or damaged
//! ends the search with a status that says so, because an older table may hold an older version.

use std::sync::Arc;

use bytes::Bytes;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::SstId;
use sextant_common::key::filter_hash;
use sextant_common::limits::{LARGE_BYTES, check_key};
use sextant_environment::room::Share;
use sextant_environment::vfs::IoKind;
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
    /// About how large its answer is, once that is known.
    bytes: usize,
}

enum Answer {
    Reply(GetReply),
    NeedsDisk {
        candidate: usize,
    },
    /// A large block has to be read.
    Large {
        candidate: usize,
        bytes: usize,
    },
}

/// What the disk had for a batch.
#[derive(Default)]
struct OnDisk {
    found: Vec<(usize, GetReply)>,
    large: Vec<Waiting>,
}

impl Store {
    /// Answers a batch, one reply for each get, and the room that the answer takes until it has left. `Err`: the request is
    /// malformed.
    pub async fn get_batch(self: &Arc<Self>, batch: GetBatch) -> Result<(GetBatchReply, Option<Share>)> {
        let ids = parse(&batch)?;
        let access = if batch.gets.len() <= INLINE_GETS_MAX { Access::CacheOnly } else { Access::FillSmall };
        let mut tally = Tally::default();
        let (mut replies, mut waiting) = match access {
            Access::CacheOnly => self.search_all(&batch, &ids, &mut tally),
            _ => self.defer_all(&batch, &ids),
        };
        self.metrics.get_batches.inc();
        self.metrics.gets.inc_by(batch.gets.len() as u64);
        self.metrics.add(&tally);
        let mut large = Vec::new();
        if !waiting.is_empty() {
            self.metrics.disk_batches.inc();
            large = self.read_on_disk(std::mem::take(&mut waiting), Access::FillSmall, &mut replies).await;
        }
        let value_bytes_max = match batch.value_bytes_max {
            0 => usize::MAX,
            max => max as usize,
        };
        let large = limit(&mut replies, large, value_bytes_max);
        let room = self.room_for_answer(&mut replies, large).await;
        let replies: Vec<_> = replies.into_iter().map(|r| r.unwrap_or_else(|| too_large(0))).collect();
        self.count(&replies);
        Ok((GetBatchReply { batch: batch.batch, replies }, room))
    }

    /// Room for the large values of an answer; then reads what is `large`. If there is none, they are to be asked for again. (Of small
    /// ones there are as many as a few messages have: they wait for nothing.)
    async fn room_for_answer(
        self: &Arc<Self>,
        replies: &mut [Option<GetReply>],
        large: Vec<Waiting>,
    ) -> Option<Share> {
        let is_large = |reply: &&mut GetReply| reply.value.len() > LARGE_BYTES;
        let found: usize = replies.iter_mut().flatten().filter(is_large).map(|r| r.value.len()).sum();
        let bytes = found + large.iter().map(|get| get.bytes).sum::<usize>();
        if bytes == 0 {
            return None;
        }
        let Ok(room) = self.answers.take(bytes).await else {
            for reply in replies.iter_mut().flatten().filter(is_large) {
                *reply = too_large(reply.value.len());
            }
            large.into_iter().for_each(|get| replies[get.reply] = Some(too_large(get.bytes)));
            return None;
        };
        if !large.is_empty() {
            self.read_on_disk(large, Access::Fill, replies).await;
        }
        Some(room)
    }

    /// Those that are left are large.
    async fn read_on_disk(
        self: &Arc<Self>,
        waiting: Vec<Waiting>,
        access: Access,
        replies: &mut [Option<GetReply>],
    ) -> Vec<Waiting> {
        let places: Vec<usize> = waiting.iter().map(|get| get.reply).collect();
        match self.search_on_disk(waiting, access).await {
            Ok(OnDisk { found, large }) => {
                found.into_iter().for_each(|(at, reply)| replies[at] = Some(reply));
                large
            }
            Err(e) => {
                places.into_iter().for_each(|at| replies[at] = Some(failed(0, &e)));
                Vec::new()
            }
        }
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
                // (Nothing is large that was not looked for.)
                Answer::NeedsDisk { candidate } | Answer::Large { candidate, .. } => {
                    let candidates = own.iter().map(|id| tables.get(id).cloned()).collect();
                    let reply = replies.len();
                    waiting.push(Waiting {
                        reply,
                        key: get.key.clone(),
                        hash,
                        first: candidate,
                        candidates,
                        bytes: 0,
                    });
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
            bytes: 0,
        });
        (vec![None; batch.gets.len()], waiting.collect())
    }

    async fn search_on_disk(self: &Arc<Self>, waiting: Vec<Waiting>, access: Access) -> Result<OnDisk> {
        let turn = self.disk_reads.take().await?;
        let store = self.clone();
        let work = move || {
            let mut tally = Tally::default();
            let mut bytes = 0;
            let mut on_disk = OnDisk::default();
            for mut get in waiting {
                if bytes > REPLY_BYTES_MAX {
                    break;
                }
                let candidates = get.candidates.iter().map(Option::as_ref).enumerate().skip(get.first);
                match search(&get.key, get.hash, candidates, access, &mut tally) {
                    Answer::Reply(reply) => {
                        bytes += reply.value.len();
                        on_disk.found.push((get.reply, reply));
                    }
                    Answer::Large { candidate, bytes } => {
                        (get.first, get.bytes) = (candidate, bytes);
                        on_disk.large.push(get);
                    }
                    Answer::NeedsDisk { .. } => {}
                }
            }
            store.metrics.add(&tally);
            drop(turn);
            Ok(on_disk)
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
            Ok(Lookup::Large(bytes)) => return Answer::Large { candidate: at, bytes },
            Ok(Lookup::Found(found)) => {
                let status = if found.tombstone { GetStatus::GetTombstone } else { GetStatus::GetValue };
                GetReply {
                    status: status.into(),
                    value: found.value,
                    seq: found.seq,
                    candidate,
                    ..GetReply::default()
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

fn too_large(bytes: usize) -> GetReply {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    GetReply { status: GetStatus::GetTooLarge.into(), bytes, ..GetReply::default() }
}

/// Takes out what is longer than the batch allows, and what would make the answer longer than a message may be: the first value
/// always stays. Returns what is to be read of what is `large`.
fn limit(replies: &mut [Option<GetReply>], large: Vec<Waiting>, value_bytes_max: usize) -> Vec<Waiting> {
    let mut bytes = 0;
    for reply in replies.iter_mut().flatten() {
        if bytes > REPLY_BYTES_MAX || reply.value.len() > value_bytes_max {
            *reply = too_large(reply.value.len());
        }
        bytes += reply.value.len() + reply.message.len();
    }
    let mut read = Vec::new();
    for get in large {
        if bytes > REPLY_BYTES_MAX || get.bytes > value_bytes_max {
            replies[get.reply] = Some(too_large(get.bytes));
        } else {
            bytes += get.bytes;
            read.push(get);
        }
    }
    read
}
