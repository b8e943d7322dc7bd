//! Reading entries back.
//!
//! The newest entries come from memory. Older ones are read from their segments on the blocking pool, not on the caller's
//! thread: a follower that has fallen behind may need pages that the kernel has evicted, and one cold read on a runtime
//! thread would hold up the heartbeats of every group there; the hop costs some microseconds for up to a megabyte.

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use sextant_common::ids::LogPosition;
use sextant_common::{Error, Result};
use sextant_environment::vfs::IoKind;

use crate::entry_codec::join_entry;
use crate::format::record::{RECORD_HEADER_BYTES, RecordHeader, RecordKind};
use crate::shared::{Segment, Shared};
use crate::state::index::IndexedEntry;
use crate::types::Entry;

use super::handle::PartitionLog;

/// Entries are read and replicated in pieces of about this size.
pub(super) const PIECE_BYTES: u64 = 1 << 20;
/// Reading across this much of other partitions' records is cheaper than another call.
const GAP_BYTES_MAX: u64 = 16 << 10;

/// One read of one segment.
struct Span {
    segment: Arc<Segment>,
    offset: u64,
    end: u64,
    entries: Vec<(IndexedEntry, u64)>,
}

/// What is to be read: some entries from disk, the ones after them from memory.
pub(super) struct Plan {
    partition: u32,
    spans: Vec<Span>,
    recent: Vec<Entry>,
}

impl PartitionLog {
    /// Calls `f` for the entries from `from_index` (or the first there is) to the last, in order, in pieces of about a
    /// megabyte. Blocks. Returns the first error of `f`; [`sextant_common::ErrorKind::Corrupt`] with file and offset if a
    /// record fails its check.
    pub fn replay(&self, from_index: u64, f: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()> {
        let mut next = from_index;
        loop {
            let piece = self.plan(next, u64::MAX, PIECE_BYTES).read(&self.shared)?;
            if piece.is_empty() {
                return Ok(());
            }
            for entry in piece {
                next = entry.log_id.index + 1;
                f(entry)?;
            }
        }
    }

    /// The entries of `start..end` that are there, from `start` on: about a megabyte, at least one. None: `start` is not there.
    pub async fn read_piece(&self, start: u64, end: u64) -> Result<Vec<Entry>> {
        let read = self.read(self.plan(start, end, PIECE_BYTES)).await;
        let mut entries = read.map_err(|e| Error::new(Error::from(e).kind, "the log cannot be read"))?;
        if entries.first().is_some_and(|first| first.log_id.index != start) {
            entries.clear();
        }
        Ok(entries)
    }

    /// Plans to read the entries of `start..end` that exist: as many as have `bytes_max`, but at least one.
    pub(super) fn plan(&self, start: u64, end: u64, bytes_max: u64) -> Plan {
        let state = self.partition.state.lock();
        let mut plan = Plan { partition: self.partition.id.0, spans: Vec::new(), recent: Vec::new() };
        let mut bytes = 0;
        let (mut next, end) = (start.max(state.index.first()), end.min(state.index.end()));
        while next < end {
            let Some(entry) = state.index.get(next) else { break };
            bytes += entry.record_bytes();
            if bytes > bytes_max && bytes > entry.record_bytes() {
                break;
            }
            if let Some(recent) = state.recent.get(next) {
                plan.recent.push(recent.clone());
            } else if let Some(place) = entry.place {
                // In the table for as long as the partition's lock is held: see `Shared::segment`.
                let Some(segment) = self.shared.segment(place.segment) else { break };
                plan.add(entry, u64::from(place.offset), segment);
            }
            next += 1;
        }
        plan
    }

    /// Reads as planned; from disk on the blocking pool.
    pub(super) async fn read(&self, plan: Plan) -> io::Result<Vec<Entry>> {
        if plan.spans.is_empty() {
            return Ok(plan.recent);
        }
        self.shared.delay(IoKind::Read).await;
        let shared = self.shared.clone();
        let read = self.shared.env.blocking(move || plan.read(&shared)).await;
        let stopped = || Err(Error::new(sextant_common::ErrorKind::Stopping, "the runtime is stopping"));
        read.unwrap_or_else(stopped).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }
}

impl Plan {
    fn add(&mut self, entry: IndexedEntry, offset: u64, segment: Arc<Segment>) {
        let end = offset + entry.record_bytes();
        if let Some(span) = self.spans.last_mut()
            && Arc::ptr_eq(&span.segment, &segment)
            && (span.end..=span.end + GAP_BYTES_MAX).contains(&offset)
            && end - span.offset <= 2 * PIECE_BYTES
        {
            span.end = end;
            span.entries.push((entry, offset));
        } else {
            self.spans.push(Span { segment, offset, end, entries: vec![(entry, offset)] });
        }
    }

    /// Reads on this thread.
    pub fn read(self, shared: &Shared) -> Result<Vec<Entry>> {
        let disk: usize = self.spans.iter().map(|span| span.entries.len()).sum();
        let mut out = Vec::with_capacity(disk + self.recent.len());
        for span in &self.spans {
            let mut buf = BytesMut::zeroed((span.end - span.offset) as usize);
            let path = span.segment.path.display();
            let read = span.segment.file.read_exact_at(&mut buf, span.offset);
            read.map_err(|e| {
                let what = format!("reading {path} at offset {}: {e}", span.offset);
                Error::new(Error::from(e).kind, what)
            })?;
            let buf = buf.freeze();
            for (entry, offset) in &span.entries {
                let record = buf.slice((offset - span.offset) as usize..);
                let salt = shared.salts[span.segment.device];
                let found = check(record, entry, self.partition, salt).map_err(|e| {
                    let generation = span.segment.generation;
                    Error::corrupt(format!("{path} (generation {generation}) at offset {offset}: {e}"))
                })?;
                out.push(found);
            }
        }
        out.extend(self.recent);
        Ok(out)
    }
}

/// The entry in a record, if it is the one that the index means.
fn check(record: Bytes, entry: &IndexedEntry, partition: u32, salt: u32) -> Result<Entry> {
    let bytes = record.get(..entry.record_bytes() as usize).unwrap_or_default();
    let Some((header, _)) = RecordHeader::read(bytes, salt) else {
        return Err(Error::corrupt("the record's checksum does not match"));
    };
    let expected = RecordHeader {
        length: entry.length,
        partition,
        kind: RecordKind::Entry,
        detail: header.detail,
        term: entry.term,
        index: entry.index,
    };
    if header != expected {
        return Err(Error::corrupt("another record is there"));
    }
    let position = LogPosition { term: entry.term, index: entry.index };
    join_entry(position, header.detail, record.slice(RECORD_HEADER_BYTES..bytes.len()))
}
