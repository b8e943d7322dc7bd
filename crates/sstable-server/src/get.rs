//! Batches of gets.
//!
//! What the block cache holds is answered at once, on the caller's task; the rest of a batch goes to the blocking pool
//! in one piece. Large blocks are read in a second turn, when there is room for their values: what was found is in
//! memory until the peer has taken it. Invariant: "no entry" is answered only if every candidate was searched; a
//! candidate that is missing or damaged ends the search with a status that says so, because an older table may hold an
//! older version.

use std::sync::Arc;

use bytes::Bytes;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::SstId;
use sextant_common::key::filter_hash;
use sextant_common::limits::{LARGE_BYTES, check_key};
use sextant_common::marks::Marks;
use sextant_environment::room::Share;
use sextant_environment::vfs::IoKind;

use crate::catalog::Entry;
use crate::store::Store;
use crate::table::reader::{Found, Tally};
use crate::table::writer::BLOCK_BYTES;
use crate::table::{Access, Lookup};

/// More keys in a batch than any coalescer sends.
const BATCH_GETS_MAX: usize = 65_536;
/// Batches up to this size are first tried on the caller's task: longer ones would hold up its other work.
const INLINE_GETS_MAX: usize = 1024;
/// Values in one answer. With one more value of the largest size it stays below the largest message.
const REPLY_BYTES_MAX: usize = 14 * 1024 * 1024;

/// Gets that travel together.
#[derive(Debug, Default)]
pub struct Gets {
    /// Each key, and how many of the `candidates` are its own.
    pub keys: Vec<(Bytes, usize)>,
    /// One get's after the other's; each newest first. (One list, so that a batch takes one.)
    pub candidates: Vec<SstId>,
    /// Longer values are not answered; None: all are, as far as they fit into one answer.
    pub value_bytes_max: Option<usize>,
}

/// What the candidates say of a key. `candidate`: the place of the one that answered, or that is gone or damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GetAnswer {
    Value {
        value: Bytes,
        seq: u64,
        /// Whether that is over is for whoever asks to judge.
        marks: Marks,
        candidate: usize,
    },
    Tombstone {
        seq: u64,
        candidate: usize,
    },
    NoEntry,
    Gone {
        candidate: usize,
    },
    /// It failed a check.
    Corrupt {
        candidate: usize,
        message: String,
    },
    /// The disk refused it.
    Unreadable {
        candidate: usize,
        message: String,
    },
    /// About so many bytes, if that is known (0: it is not): to be asked for again, alone.
    TooLarge {
        bytes: usize,
    },
}

impl GetAnswer {
    fn value_bytes(&self) -> usize {
        if let GetAnswer::Value { value, .. } = self { value.len() } else { 0 }
    }

    /// A small value that was read from disk leaves its block behind: an answer of a thousand of them would hold as many blocks.
    fn detached(mut self) -> Self {
        if let GetAnswer::Value { value, .. } = &mut self
            && value.len() < BLOCK_BYTES / 2
        {
            *value = Bytes::copy_from_slice(value);
        }
        self
    }

    fn bytes(&self) -> usize {
        match self {
            GetAnswer::Corrupt { message, .. } | GetAnswer::Unreadable { message, .. } => message.len(),
            _ => self.value_bytes(),
        }
    }
}

/// A get that needs the disk.
struct Waiting {
    answer: usize,
    key: Bytes,
    hash: u64,
    /// The candidates before this one do not have the key.
    first: usize,
    candidates: Vec<Option<Entry>>,
    /// About how large its answer is, once that is known.
    bytes: usize,
}

/// How far a search has come.
enum Searched {
    Done(GetAnswer),
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
    found: Vec<(usize, GetAnswer)>,
    large: Vec<Waiting>,
}

impl Store {
    /// Answers a batch, one answer for each get, and the room that they take until they have left. `Err`: the request
    /// is malformed.
    pub async fn get_batch(self: &Arc<Self>, gets: Gets) -> Result<(Vec<GetAnswer>, Option<Share>)> {
        check(&gets)?;
        let count = gets.keys.len();
        let access = if count <= INLINE_GETS_MAX { Access::CacheOnly } else { Access::FillSmall };
        let mut tally = Tally::default();
        let (mut answers, mut waiting) = match access {
            Access::CacheOnly => self.search_all(&gets, &mut tally),
            _ => self.defer_all(&gets),
        };
        self.metrics.get_batches.inc();
        self.metrics.gets.inc_by(count as u64);
        self.metrics.add(&tally);
        let mut large = Vec::new();
        if !waiting.is_empty() {
            self.metrics.disk_batches.inc();
            large = self.read_on_disk(std::mem::take(&mut waiting), Access::FillSmall, &mut answers).await;
        }
        let large = limit(&mut answers, large, gets.value_bytes_max.unwrap_or(usize::MAX));
        let room = self.room_for_answer(&mut answers, large).await;
        let too_large = || GetAnswer::TooLarge { bytes: 0 };
        let answers: Vec<_> = answers.into_iter().map(|a| a.unwrap_or_else(too_large)).collect();
        self.count(&answers);
        Ok((answers, room))
    }

    /// Room for the large values of an answer; then reads what is `large`. If there is none, they are to be asked for
    /// again. (Of small ones there are as many as a few messages have: they wait for nothing.)
    async fn room_for_answer(
        self: &Arc<Self>,
        answers: &mut [Option<GetAnswer>],
        large: Vec<Waiting>,
    ) -> Option<Share> {
        let is_large = |answer: &&mut GetAnswer| answer.value_bytes() > LARGE_BYTES;
        let found: usize = answers.iter_mut().flatten().filter(is_large).map(|a| a.value_bytes()).sum();
        let bytes = found + large.iter().map(|get| get.bytes).sum::<usize>();
        if bytes == 0 {
            return None;
        }
        let Ok(room) = self.answers.take(bytes).await else {
            for answer in answers.iter_mut().flatten().filter(is_large) {
                *answer = GetAnswer::TooLarge { bytes: answer.value_bytes() };
            }
            for Waiting { answer, bytes, .. } in large {
                answers[answer] = Some(GetAnswer::TooLarge { bytes });
            }
            return None;
        };
        if !large.is_empty() {
            self.read_on_disk(large, Access::Fill, answers).await;
        }
        Some(room)
    }

    /// Those that are left are large.
    async fn read_on_disk(
        self: &Arc<Self>,
        waiting: Vec<Waiting>,
        access: Access,
        answers: &mut [Option<GetAnswer>],
    ) -> Vec<Waiting> {
        let places: Vec<usize> = waiting.iter().map(|get| get.answer).collect();
        match self.search_on_disk(waiting, access).await {
            Ok(OnDisk { found, large }) => {
                found.into_iter().for_each(|(at, answer)| answers[at] = Some(answer));
                large
            }
            Err(e) => {
                places.into_iter().for_each(|at| answers[at] = Some(failed(0, &e)));
                Vec::new()
            }
        }
    }

    /// Answers what needs no disk; one lookup of the catalog for the whole batch.
    fn search_all(&self, gets: &Gets, tally: &mut Tally) -> (Vec<Option<GetAnswer>>, Vec<Waiting>) {
        let mut answers = Vec::with_capacity(gets.keys.len());
        let mut waiting = Vec::new();
        let tables = self.catalog.tables();
        for (key, own) in gets.each() {
            let hash = filter_hash(key);
            let candidates = own.iter().map(|id| tables.get(id)).enumerate();
            match search(key, hash, candidates, Access::CacheOnly, tally) {
                Searched::Done(answer) => answers.push(Some(answer)),
                // (Nothing is large that was not looked for.)
                Searched::NeedsDisk { candidate } | Searched::Large { candidate, .. } => {
                    let candidates = own.iter().map(|id| tables.get(id).cloned()).collect();
                    let (answer, key) = (answers.len(), key.clone());
                    waiting.push(Waiting { answer, key, hash, first: candidate, candidates, bytes: 0 });
                    answers.push(None);
                }
            }
        }
        (answers, waiting)
    }

    fn defer_all(&self, gets: &Gets) -> (Vec<Option<GetAnswer>>, Vec<Waiting>) {
        let tables = self.catalog.tables();
        let waiting = gets.each().enumerate().map(|(answer, (key, own))| Waiting {
            answer,
            key: key.clone(),
            hash: filter_hash(key),
            first: 0,
            candidates: own.iter().map(|id| tables.get(id).cloned()).collect(),
            bytes: 0,
        });
        let waiting = waiting.collect();
        (vec![None; gets.keys.len()], waiting)
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
                    Searched::Done(answer) => {
                        bytes += answer.value_bytes();
                        on_disk.found.push((get.answer, answer.detached()));
                    }
                    Searched::Large { candidate, bytes } => {
                        (get.first, get.bytes) = (candidate, bytes);
                        on_disk.large.push(get);
                    }
                    Searched::NeedsDisk { .. } => {}
                }
            }
            store.metrics.add(&tally);
            drop(turn);
            Ok(on_disk)
        };
        self.disk(IoKind::Read, work).await
    }

    fn count(&self, answers: &[GetAnswer]) {
        for answer in answers {
            match answer {
                GetAnswer::Gone { .. } => self.metrics.gone.inc(),
                GetAnswer::Corrupt { .. } => self.metrics.corrupt.inc(),
                GetAnswer::Unreadable { .. } => self.metrics.io_errors.inc(),
                _ => continue,
            };
        }
    }
}

impl Gets {
    /// Each key with its candidates.
    fn each(&self) -> impl Iterator<Item = (&Bytes, &[SstId])> {
        let mut rest = self.candidates.as_slice();
        self.keys.iter().map(move |(key, count)| {
            let (own, others) = rest.split_at(*count);
            rest = others;
            (key, own)
        })
    }
}

fn check(gets: &Gets) -> Result<()> {
    let count = gets.keys.len();
    if count > BATCH_GETS_MAX {
        return Err(Error::invalid(format!("batch has {count} gets: the limit is {BATCH_GETS_MAX}")));
    }
    gets.keys.iter().try_for_each(|(key, _)| check_key(key))
}

/// Searches the candidates, newest first.
fn search<'e>(
    key: &[u8],
    hash: u64,
    candidates: impl Iterator<Item = (usize, Option<&'e Entry>)>,
    access: Access,
    tally: &mut Tally,
) -> Searched {
    for (candidate, entry) in candidates {
        let Some(entry) = entry else { return Searched::Done(GetAnswer::Gone { candidate }) };
        let found = entry.table().and_then(|table| table.get(key, hash, access, tally));
        return match found {
            Ok(Lookup::Absent) => continue,
            Ok(Lookup::NeedsDisk) => Searched::NeedsDisk { candidate },
            Ok(Lookup::Large(bytes)) => Searched::Large { candidate, bytes },
            Ok(Lookup::Found(Found { seq, tombstone: true, .. })) => {
                Searched::Done(GetAnswer::Tombstone { seq, candidate })
            }
            Ok(Lookup::Found(Found { seq, value, marks, .. })) => {
                Searched::Done(GetAnswer::Value { value, seq, marks, candidate })
            }
            Err(e) => Searched::Done(failed(candidate, &e)),
        };
    }
    Searched::Done(GetAnswer::NoEntry)
}

fn failed(candidate: usize, e: &Error) -> GetAnswer {
    let message = e.message.to_string();
    match e.kind {
        ErrorKind::Corrupt => GetAnswer::Corrupt { candidate, message },
        _ => GetAnswer::Unreadable { candidate, message },
    }
}

/// Takes out what is longer than the batch allows, and what would make the answer longer than a message may be: the
/// first value always stays. Returns what is to be read of what is `large`.
fn limit(answers: &mut [Option<GetAnswer>], large: Vec<Waiting>, value_bytes_max: usize) -> Vec<Waiting> {
    let mut bytes = 0;
    for answer in answers.iter_mut().flatten() {
        let value_bytes = answer.value_bytes();
        if bytes > REPLY_BYTES_MAX || value_bytes > value_bytes_max {
            *answer = GetAnswer::TooLarge { bytes: value_bytes };
        }
        bytes += answer.bytes();
    }
    let mut read = Vec::new();
    for get in large {
        if bytes > REPLY_BYTES_MAX || get.bytes > value_bytes_max {
            answers[get.answer] = Some(GetAnswer::TooLarge { bytes: get.bytes });
        } else {
            bytes += get.bytes;
            read.push(get);
        }
    }
    read
}
