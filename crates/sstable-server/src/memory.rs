//! What the process's memory is for.
//!
//! Parts: the *cache* (blocks, indexes, filters: `table::budget`); *jobs*, which take all the room that they need before they
//! begin, and wait for it; requests under way; and the program itself. Ingests, copies and compactions have rooms of their own:
//! a flush does not wait for a compaction, which may take minutes, nor for a copy whose source is silent. Whoever has room of a
//! job waits for no other room of jobs, on no server: so all of them end.
//!
//! What a job holds: an ingest [`INGEST_BYTES`], a copy [`COPY_BYTES`], a compaction what [`compaction_bytes`] says. What
//! scrubbing, healing and the giving of tables hold is small, and part of the program's share.

use std::time::Duration;

use sextant_common::error::{Error, ErrorKind, Result};
use sextant_environment::room::{Room, Share};

use crate::table::iter::BYPASS_BYTES;

const MIB: u64 = 1024 * 1024;

/// The program, its threads and connections; a piece for each table that others fetch, and one for scrubbing.
const PROCESS_BYTES: u64 = 64 * MIB;
/// Pieces and blocks of the tables that scans are reading.
pub const SCANS_BYTES: u64 = 32 * MIB;
/// Large answers (values of gets, pages of scans, filters) that may be in memory at a time, until their peers have taken them:
/// one part in so many of all, but at least two of the largest values and at most eight. They are there twice while they are
/// encoded.
const ANSWERS_PART: u64 = 16;
const ANSWERS_BYTES: [u64; 2] = [16 * MIB, 64 * MIB];
/// Jobs have half of the rest, within these: a small one has room for one of each, a large one for as many as may run.
const JOBS_BYTES: [u64; 2] = [96 * MIB, 512 * MIB];
/// Of that, one part in so many is for copies, up to four of them. Ingests and compactions have a half each of what is left, ingests
/// at least what one needs.
const COPIES_PART: u64 = 6;
const COPIES_MAX: u64 = 4;
/// If only `block_cache_bytes` is stated. (Indexes and filters, which had no bound when such files were written, have half as much
/// beside it.)
const JOBS_BYTES_BESIDE: u64 = 384 * MIB;
/// If nothing is stated.
const MEMORY_BYTES: u64 = 1024 * MIB;
pub const MEMORY_BYTES_MIN: u64 = 256 * MIB;

/// Two messages of the longest kind, what connection and writer have in buffers, and a million records' hashes; once all messages
/// are written, their place is taken by what builds the filter (30 bytes a record).
pub const INGEST_BYTES: u64 = 60_000_000;
/// Two pieces, and what the connection has in buffers.
pub const COPY_BYTES: u64 = 8 * MIB;
/// Of a compaction: its writer, with the blocks from which a dictionary is made.
const WRITER_BYTES: u64 = 10 * MIB;
/// Beside a piece, for each input: places from its index, a dictionary, a block.
const INPUT_BYTES: u64 = 128 * 1024;
/// For each record of an output, or prefix in its filter: its hash, and what builds the filter.
const RECORD_BYTES: u64 = 38;
/// Shorter pieces would make a disk seek too often.
const PIECE_BYTES_MIN: u64 = 64 * 1024;

/// How long a job waits for its turn, and for its room. Longer than any turn but that of a compaction takes on a disk that works.
pub const JOB_WAIT_MAX: Duration = Duration::from_secs(10);

/// The parts, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    pub cache: u64,
    pub jobs: u64,
    pub answers: u64,
}

impl Memory {
    /// `total`, `cache`: what is configured ([`Memory::check`]).
    pub fn of(total: Option<u64>, cache: Option<u64>) -> Self {
        let answers = |total: u64| (total / ANSWERS_PART).clamp(ANSWERS_BYTES[0], ANSWERS_BYTES[1]);
        let taken = |answers: u64| PROCESS_BYTES + SCANS_BYTES + 2 * answers;
        match (total, cache) {
            (None, Some(blocks)) => {
                let cache = blocks.saturating_add(blocks / 2);
                let answers = answers(cache.saturating_add(JOBS_BYTES_BESIDE));
                let beside = taken(answers) + JOBS_BYTES_BESIDE;
                Self { total: cache.saturating_add(beside), cache, jobs: JOBS_BYTES_BESIDE, answers }
            }
            (total, cache) => {
                let total = total.unwrap_or(MEMORY_BYTES);
                let answers = answers(total);
                let rest = total.saturating_sub(taken(answers));
                let jobs = match cache {
                    Some(cache) => rest.saturating_sub(cache),
                    None => (rest / 2).clamp(JOBS_BYTES[0], JOBS_BYTES[1]).min(rest),
                };
                Self { total, cache: rest - jobs, jobs, answers }
            }
        }
    }

    pub fn check(total: Option<u64>, cache: Option<u64>) -> Result<()> {
        let Some(stated) = total else { return Ok(()) };
        if stated < MEMORY_BYTES_MIN {
            return Err(Error::invalid(format!("memory_bytes is {stated}: at least {MEMORY_BYTES_MIN}")));
        }
        let Memory { cache, jobs, .. } = Self::of(total, cache);
        if jobs < JOBS_BYTES[0] {
            let most = (cache + jobs).saturating_sub(JOBS_BYTES[0]);
            return Err(Error::invalid(format!(
                "block_cache_bytes may be {most} at most with memory_bytes = {stated}: the rest is for jobs and requests"
            )));
        }
        Ok(())
    }
}

/// Room for jobs.
#[derive(Debug)]
pub struct Jobs {
    ingesting: Room,
    copying: Room,
    compacting: Room,
    compacting_bytes: u64,
    pub bytes_max: u64,
}

impl Jobs {
    pub fn new(bytes: u64) -> Self {
        let copying_bytes = (bytes / COPIES_PART).min(COPIES_MAX * COPY_BYTES);
        let rest = bytes - copying_bytes;
        let ingesting_bytes = (rest / 2).max(INGEST_BYTES).min(rest);
        let compacting_bytes = rest - ingesting_bytes;
        let room = |bytes: u64| Room::new(usize::try_from(bytes).unwrap_or(usize::MAX));
        Self {
            ingesting: room(ingesting_bytes),
            copying: room(copying_bytes),
            compacting: room(compacting_bytes),
            compacting_bytes,
            bytes_max: bytes,
        }
    }

    pub async fn ingest(&self) -> Result<Share> {
        take(&self.ingesting, INGEST_BYTES, "ingest").await
    }

    pub async fn copy(&self) -> Result<Share> {
        take(&self.copying, COPY_BYTES, "copy").await
    }

    /// Room for a compaction, and how long the pieces may be that it reads.
    pub async fn compaction(&self, inputs: usize, records: u64) -> Result<(Share, u64)> {
        let (bytes, piece_bytes) = compaction_bytes(inputs as u64, records, self.compacting_bytes);
        Ok((take(&self.compacting, bytes, "compaction").await?, piece_bytes))
    }

    pub fn held_bytes(&self) -> usize {
        self.ingesting.held_bytes() + self.copying.held_bytes() + self.compacting.held_bytes()
    }
}

/// What a compaction holds whose outputs have up to so many records, and how long its pieces are: shorter if many inputs' would
/// need more room than there is.
fn compaction_bytes(inputs: u64, records: u64, room: u64) -> (u64, u64) {
    let beside = records.saturating_mul(RECORD_BYTES).saturating_add(WRITER_BYTES + inputs * INPUT_BYTES);
    let piece = room.saturating_sub(beside) / inputs.max(1);
    let piece = piece.clamp(PIECE_BYTES_MIN, BYPASS_BYTES);
    (beside.saturating_add(inputs * piece), piece)
}

async fn take(room: &Room, bytes: u64, what: &str) -> Result<Share> {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    tokio::time::timeout(JOB_WAIT_MAX, room.take(bytes)).await.map_err(|_| {
        Error::new(
            ErrorKind::Overloaded,
            format!("no memory for another {what} within {JOB_WAIT_MAX:?}: others are running"),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    fn parts(memory: Memory) -> u64 {
        memory.cache + memory.jobs + 2 * memory.answers + PROCESS_BYTES + SCANS_BYTES
    }

    #[test]
    fn the_parts_are_the_whole() {
        for total in [256 * MIB, 300 * MIB, 512 * MIB, 1024 * MIB, 64 << 30] {
            Memory::check(Some(total), None).unwrap();
            let memory = Memory::of(Some(total), None);
            assert_eq!((memory.total, parts(memory)), (total, total));
            assert!(memory.jobs >= JOBS_BYTES[0], "{memory:?}");
        }
        assert_eq!(Memory::of(None, None), Memory::of(Some(MEMORY_BYTES), None));
    }

    #[test]
    fn a_file_that_states_the_cache_only_is_good_with_any() {
        for cache in [0, 1, 256 * MIB, 64 << 30, u64::MAX] {
            Memory::check(None, Some(cache)).unwrap();
            let memory = Memory::of(None, Some(cache));
            assert_eq!(memory.jobs, JOBS_BYTES_BESIDE);
            assert_eq!(memory.cache, cache.saturating_add(cache / 2));
            assert!(memory.total > memory.cache || cache == u64::MAX);
        }
    }

    #[test]
    fn a_cache_that_leaves_too_little_is_refused_with_what_is_possible() {
        let refused = Memory::check(Some(1024 * MIB), Some(1024 * MIB)).unwrap_err();
        let most: u64 = refused.message.split(' ').nth(3).unwrap().parse().unwrap();
        Memory::check(Some(1024 * MIB), Some(most)).unwrap();
        assert_eq!(parts(Memory::of(Some(1024 * MIB), Some(most))), 1024 * MIB);
        assert!(Memory::check(Some(1024 * MIB), Some(most + 1)).is_err());
    }

    #[test]
    fn a_compaction_of_many_inputs_reads_shorter_pieces() {
        let room = 128 * MIB;
        let (few, many) = (compaction_bytes(8, 1_000_000, room), compaction_bytes(256, 1_000_000, room));
        assert_eq!(few.1, BYPASS_BYTES);
        assert!(many.1 < few.1 && many.1 >= PIECE_BYTES_MIN);
        assert!(few.0 <= room && many.0 <= room, "{few:?} {many:?}");
    }

    #[tokio::test]
    async fn by_default_two_compactions_of_large_outputs_have_room_at_once() {
        let jobs = Jobs::new(Memory::of(None, None).jobs);
        // An output of 192 MiB, at 110 bytes a record.
        let large = || jobs.compaction(10, 1_800_000);
        let (one, other) = (large().await.unwrap(), large().await.unwrap());
        assert!(jobs.held_bytes() as u64 <= jobs.bytes_max);
        drop((one, other));
    }

    #[tokio::test]
    async fn a_job_waits_for_room_of_its_kind() {
        let jobs = Jobs::new(JOBS_BYTES[0]);
        let copy = jobs.copy().await.unwrap();
        let ingest = jobs.ingest().await.unwrap();
        let compaction = jobs.compaction(256, u64::MAX).await.unwrap();
        assert!(jobs.held_bytes() as u64 <= jobs.bytes_max);
        let (mut second_ingest, mut second_compaction) = (pin!(jobs.ingest()), pin!(jobs.compaction(1, 1)));
        assert!(futures::poll!(second_ingest.as_mut()).is_pending());
        assert!(futures::poll!(second_compaction.as_mut()).is_pending());
        drop(compaction);
        assert!(futures::poll!(second_compaction.as_mut()).is_ready());
        assert!(futures::poll!(second_ingest.as_mut()).is_pending(), "that was room of others");
        drop((ingest, copy));
        second_ingest.await.unwrap();
        assert_eq!(jobs.held_bytes(), 0);
    }
}
