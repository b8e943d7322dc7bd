//! Reading one device: which files are segments, which batches in them are whole, and where they end.
//!
//! The segments form a chain: each header names the segment before it and where that one's batches end. Only the last one may
//! end in a torn write. The first batch that is not whole is the end, unless a later header of the segment states that the
//! bytes there were durable: then they are damaged.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::Env;
use sextant_environment::vfs::{OpenMode, Vfs, VfsFile, read_file, write_file_atomically};

use crate::format::batch::{BATCH_ALIGN, BatchHeader, BatchKind};
use crate::format::checkpoint::Checkpoint;
use crate::format::identity::Identity;
use crate::format::record::read_records;
use crate::format::segment::{FoundHeader, SEGMENT_HEADER_BYTES, SegmentHeader, file_number};

pub(crate) struct ScannedSegment {
    pub header: SegmentHeader,
    pub path: PathBuf,
    pub file: Arc<dyn VfsFile>,
    pub capacity: u64,
    /// Where its whole batches end.
    pub end: u64,
    /// The whole batches prove that everything before it was durable.
    pub durable: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchRef {
    /// Position in [`DeviceScan::chain`].
    pub segment: usize,
    pub header: BatchHeader,
}

pub(crate) struct FoundCheckpoint {
    /// It speaks for the records up to this one.
    pub lsn: u64,
    pub run: u32,
    pub checkpoint: Checkpoint,
}

/// A file that holds nothing needed.
pub(crate) struct SpareFile {
    pub path: PathBuf,
    pub capacity: u64,
}

pub(crate) struct DeviceScan {
    pub identity: Identity,
    pub dir: PathBuf,
    /// Oldest first.
    pub chain: Vec<ScannedSegment>,
    /// In the order of their places.
    pub batches: Vec<BatchRef>,
    pub checkpoints: Vec<FoundCheckpoint>,
    pub spares: Vec<SpareFile>,
    /// A segment that the oldest one names but that is not there, and why. If its records are needed, they are lost; if not,
    /// it may have been in use again, even with its old header still there.
    pub missing: Option<String>,
    /// Files whose header cannot be read, for the error message if something is lost.
    pub unreadable: Vec<PathBuf>,
    /// Highest lsn that any header states to be durable on all devices.
    pub durable_lsn: u64,
    pub max_run: u32,
    pub next_generation: u64,
    pub next_number: u64,
    pub torn_bytes: u64,
}

impl DeviceScan {
    /// File and offset where the whole batches end, for messages.
    pub fn end_place(&self) -> String {
        match self.chain.last() {
            Some(last) => format!("{} at offset {}", last.path.display(), last.end),
            None => format!("{} (no segment)", self.dir.display()),
        }
    }
}

struct Candidate {
    path: PathBuf,
    file: Arc<dyn VfsFile>,
    capacity: u64,
    header: FoundHeader,
}

fn corrupt(path: &Path, offset: u64, what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("{} at offset {offset}: {what}", path.display()))
}

fn named<T>(path: &Path, result: std::io::Result<T>) -> Result<T> {
    result.map_err(|e| {
        let text = format!("{}: {e}", path.display());
        Error::new(Error::from(e).kind, text)
    })
}

/// Checks that the directory is this server's, or makes it so if it is empty. The salt comes from the directory.
pub(crate) fn identify(env: &Env, dir: &Path, expected: Identity) -> Result<Identity> {
    let vfs = &*env.vfs;
    let path = dir.join("IDENTITY");
    if vfs.exists(&path) {
        let bytes = named(&path, read_file(vfs, &path))?;
        let found = Identity::decode(&bytes).map_err(|what| {
            let kind = if what.contains("version") { ErrorKind::Invalid } else { ErrorKind::Corrupt };
            Error::new(kind, format!("{}: {what}", path.display()))
        })?;
        if !found.is_same_place(&expected) {
            let what = format!("{} holds the log of {found}; this server is {expected}", dir.display());
            return Err(Error::invalid(what));
        }
        return Ok(found);
    }
    if holds_records(vfs, dir)? {
        return Err(Error::corrupt(format!("{} is missing, but there are segments", path.display())));
    }
    let salt = env.rng.next_u64() as u32;
    let identity = Identity { salt, ..expected };
    named(&path, write_file_atomically(vfs, &path, &identity.encode()))?;
    Ok(identity)
}

/// Whether a device's directory has a segment that was ever in use. (A log that was opened once has one.)
pub fn holds_records(vfs: &dyn Vfs, dir: &Path) -> Result<bool> {
    for file in segment_files(vfs, dir)? {
        let opened = named(&file, vfs.open(&file, OpenMode::Existing))?;
        let mut head = [0; 8];
        let read = named(&file, opened.read_at(&mut head, 0))?;
        if head[..read].iter().any(|b| *b != 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn segment_files(vfs: &dyn Vfs, dir: &Path) -> Result<Vec<PathBuf>> {
    let files = named(dir, vfs.list(dir))?;
    Ok(files.into_iter().filter(|path| file_number(path).is_some()).collect())
}

/// Reads all segments of a device that may be needed.
pub(crate) fn scan(env: &Env, dir: &Path, identity: Identity) -> Result<DeviceScan> {
    let vfs = &*env.vfs;
    let mut candidates = Vec::new();
    let mut next_number = 1;
    for path in segment_files(vfs, dir)? {
        next_number = next_number.max(file_number(&path).unwrap_or(0) + 1);
        let file = named(&path, vfs.open(&path, OpenMode::Existing))?;
        let capacity = named(&path, file.len())?;
        let mut page = vec![0; SEGMENT_HEADER_BYTES.min(capacity) as usize];
        named(&path, file.read_exact_at(&mut page, 0))?;
        let header = SegmentHeader::decode(&page, identity.salt);
        if let FoundHeader::OtherVersion(version) = header {
            let what = format!("{}: format version {version} is not known", path.display());
            return Err(Error::invalid(what));
        }
        candidates.push(Candidate { path, file, capacity, header });
    }
    let mut scan = DeviceScan {
        identity,
        dir: dir.to_owned(),
        chain: Vec::new(),
        batches: Vec::new(),
        checkpoints: Vec::new(),
        spares: Vec::new(),
        missing: None,
        unreadable: Vec::new(),
        durable_lsn: 0,
        max_run: 0,
        next_generation: 1,
        next_number,
        torn_bytes: 0,
    };
    scan.read_chain(&mut candidates)?;
    scan.check_others(candidates)?;
    Ok(scan)
}

impl DeviceScan {
    /// Follows the chain of segments from the newest one back.
    fn read_chain(&mut self, candidates: &mut Vec<Candidate>) -> Result<()> {
        let mut by_generation = HashMap::new();
        for (at, candidate) in candidates.iter().enumerate() {
            if let FoundHeader::Valid(header) = &candidate.header {
                if !header.identity.is_same_place(&self.identity) {
                    let what = format!("{} belongs to {}", candidate.path.display(), header.identity);
                    return Err(Error::invalid(what));
                }
                if by_generation.insert(header.generation, at).is_some() {
                    let what = format!("generation {} is there twice", header.generation);
                    return Err(corrupt(&candidate.path, 0, what));
                }
                self.next_generation = self.next_generation.max(header.generation + 1);
            }
        }
        let mut used = Vec::new();
        // The newest segment's generation, and where the batches of a segment before it end.
        let mut next = by_generation.keys().max().map(|newest| (*newest, None));
        let (mut segments, mut batches) = (Vec::new(), Vec::new());
        while let Some((generation, end)) = next {
            let Some(at) = by_generation.get(&generation).copied() else {
                let dir = self.dir.display();
                self.missing = Some(format!("segment generation {generation} is not in {dir}"));
                break;
            };
            let Some((segment, found)) = self.read_segment(&candidates[at], end)? else { break };
            let header = &segment.header;
            next = (header.previous_generation != 0)
                .then_some((header.previous_generation, Some(u64::from(header.previous_end))));
            // With one device every whole checkpoint counts, so what lies below its floor need not be read.
            let floor = self.checkpoints.iter().map(|found| found.checkpoint.floor).max().unwrap_or(0);
            if self.identity.devices == 1 && header.previous_last_lsn < floor {
                next = None;
            }
            segments.push(segment);
            batches.push(found);
            used.push(at);
        }
        self.chain = segments;
        self.chain.reverse();
        for (segment, found) in batches.into_iter().rev().enumerate() {
            self.batches.extend(found.into_iter().map(|header| BatchRef { segment, header }));
        }
        used.sort_unstable();
        for at in used.into_iter().rev() {
            candidates.swap_remove(at);
        }
        Ok(())
    }

    /// Reads the batches of a segment. `end`: where they end, if a later segment says so. None if they do not.
    fn read_segment(
        &mut self,
        candidate: &Candidate,
        end: Option<u64>,
    ) -> Result<Option<(ScannedSegment, Vec<BatchHeader>)>> {
        let FoundHeader::Valid(header) = &candidate.header else {
            return Err(Error::internal("a segment without a header in the chain"));
        };
        let path = &candidate.path;
        let mut bytes = vec![0; candidate.capacity as usize];
        named(path, candidate.file.read_exact_at(&mut bytes, 0))?;
        let mut walk = Walk::new(&bytes, self.identity.salt, header);
        while end.is_none_or(|end| walk.at < end) && walk.step() {}
        let Walk { at, run, durable, batches, checkpoints, .. } = walk;
        match end {
            Some(end) if at != end => {
                self.missing = Some(corrupt(path, at, "a batch is damaged").message.into_owned());
                return Ok(None);
            }
            Some(_) => {}
            None => self.check_tail(path, &bytes, header.generation, at, run)?,
        }
        for batch in &batches {
            self.durable_lsn = self.durable_lsn.max(batch.durable_lsn);
            self.max_run = self.max_run.max(batch.run);
        }
        self.checkpoints.extend(checkpoints);
        let segment = ScannedSegment {
            header: header.clone(),
            path: path.clone(),
            file: candidate.file.clone(),
            capacity: candidate.capacity,
            end: at,
            durable,
        };
        Ok(Some((segment, batches)))
    }

    /// Looks at what lies beyond the last whole batch: the rest of a torn write, or proof of damage.
    fn check_tail(&mut self, path: &Path, bytes: &[u8], generation: u64, cut: u64, run: u32) -> Result<()> {
        let mut torn_end = cut;
        for header in headers(bytes, self.identity.salt, cut) {
            self.max_run = self.max_run.max(header.run);
            // What an earlier run left there proves nothing: it was cut before.
            if header.generation != generation || header.run < run {
                continue;
            }
            if u64::from(header.durable_before) > cut {
                let what = format!(
                    "a batch is damaged: the one at offset {} was written when it was durable",
                    header.offset
                );
                return Err(corrupt(path, cut, what));
            }
            self.durable_lsn = self.durable_lsn.max(header.durable_lsn);
            torn_end = torn_end.max(header.end().min(bytes.len() as u64));
        }
        self.torn_bytes += torn_end - cut;
        Ok(())
    }

    /// Files outside the chain must not hold anything newer than it that was durable.
    fn check_others(&mut self, candidates: Vec<Candidate>) -> Result<()> {
        let newest = self.chain.last().map_or(0, |segment| segment.header.generation);
        for candidate in candidates {
            let Candidate { path, file, capacity, header } = candidate;
            let unreadable = matches!(header, FoundHeader::Unreadable);
            // If only the header is lost, the first batches tell; if more is lost, any may.
            let length = if unreadable { capacity } else { capacity.min(SEGMENT_HEADER_BYTES + PROBE_BYTES) };
            let mut bytes = vec![0; length as usize];
            named(&path, file.read_exact_at(&mut bytes, 0))?;
            for batch in headers(&bytes, self.identity.salt, SEGMENT_HEADER_BYTES) {
                if batch.generation <= newest {
                    continue;
                }
                self.next_generation = self.next_generation.max(batch.generation + 1);
                self.max_run = self.max_run.max(batch.run);
                if batch.durable_before > 0 {
                    let what = format!("the header of segment generation {} is damaged", batch.generation);
                    return Err(corrupt(&path, 0, what));
                }
            }
            if unreadable {
                self.unreadable.push(path.clone());
            }
            self.spares.push(SpareFile { path, capacity });
        }
        Ok(())
    }
}

/// How much of a file with a good or an empty header is looked at for batches of a newer use.
const PROBE_BYTES: u64 = 1 << 20;

/// All batch headers from `start` on, whatever their bodies are.
fn headers(bytes: &[u8], salt: u32, start: u64) -> impl Iterator<Item = BatchHeader> + '_ {
    let first = start.next_multiple_of(BATCH_ALIGN) as usize;
    let places = (first..bytes.len()).step_by(BATCH_ALIGN as usize);
    places.filter_map(move |at| BatchHeader::decode(&bytes[at..], salt, at as u64))
}

/// Goes from batch to batch while they are whole.
struct Walk<'a> {
    bytes: &'a [u8],
    salt: u32,
    generation: u64,
    /// No batch of the segment begins before it: what is needed no more is judged by it.
    first_lsn: u64,
    at: u64,
    run: u32,
    /// Within the run lsns do not decrease.
    lsn_min: u64,
    durable: u64,
    batches: Vec<BatchHeader>,
    checkpoints: Vec<FoundCheckpoint>,
}

impl<'a> Walk<'a> {
    fn new(bytes: &'a [u8], salt: u32, segment: &SegmentHeader) -> Self {
        Self {
            bytes,
            salt,
            generation: segment.generation,
            first_lsn: segment.first_lsn,
            at: SEGMENT_HEADER_BYTES,
            run: 0,
            lsn_min: 0,
            durable: 0,
            batches: Vec::new(),
            checkpoints: Vec::new(),
        }
    }

    fn step(&mut self) -> bool {
        self.try_step().is_some()
    }

    fn try_step(&mut self) -> Option<()> {
        let bytes = self.bytes.get(self.at as usize..)?;
        let header = BatchHeader::decode(bytes, self.salt, self.at)?;
        if header.generation != self.generation || header.run < self.run || header.first_lsn < self.first_lsn
        {
            return None;
        }
        let is_new_run = header.run > self.run;
        if !is_new_run && header.first_lsn < self.lsn_min {
            return None;
        }
        let body_end = header.body_start() + u64::from(header.length);
        let body = self.bytes.get(header.body_start() as usize..body_end as usize)?;
        match header.kind {
            BatchKind::Checkpoint => {
                if crc32c::crc32c_append(self.salt, body) != header.body_crc {
                    return None;
                }
                let checkpoint = Checkpoint::decode(body)?;
                let (lsn, run) = (header.first_lsn.checked_sub(1)?, header.run);
                self.checkpoints.push(FoundCheckpoint { lsn, run, checkpoint });
            }
            // A run begins with a checkpoint, and so does a segment.
            BatchKind::Records if is_new_run => return None,
            BatchKind::Records => {
                if !read_records(body, header.records, header.body_crc, self.salt, |_, _| ()) {
                    return None;
                }
            }
        }
        self.run = header.run;
        self.lsn_min = header.next_lsn();
        self.durable = self.durable.max(u64::from(header.durable_before));
        self.batches.push(header);
        self.at = header.end();
        Some(())
    }
}
