//! From the records, in order, to each partition's state and index.
//!
//! Up to the checkpoint's lsn the records since its floor are replayed without judging gaps: what came before the floor is
//! gone, and what it left behind is dead. There the result must be what the checkpoint states; from there on every entry must
//! follow the one before it.

use std::collections::BTreeMap;
use std::sync::Arc;

use sextant_common::{Error, Result};
use sextant_environment::vfs::VfsFile;

use crate::format::NUMBER_MAX;
use crate::format::checkpoint::{Checkpoint, LogMeta};
use crate::format::record::{RecordHeader, RecordKind, read_records};
use crate::state::index::{Index, Place};

use super::merge::Plan;
use super::scan::DeviceScan;

/// Segments are read ahead in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;

#[derive(Default)]
pub(crate) struct Replayed {
    pub meta: LogMeta,
    pub index: Index,
}

/// By partition id.
pub(crate) type Partitions = BTreeMap<u32, Replayed>;

/// Replays what is planned. `numbers`: of the segments, by device and position in its chain.
pub(crate) fn replay(plan: &Plan, devices: &[DeviceScan], numbers: &[Vec<u32>]) -> Result<Partitions> {
    let mut partitions = Partitions::new();
    let mut readers: Vec<PieceReader> = devices.iter().map(|_| PieceReader::default()).collect();
    let (checkpoint_lsn, floor) =
        plan.checkpoint.as_ref().map_or((0, 0), |(lsn, checkpoint)| (*lsn, checkpoint.floor));
    let mut pending = plan.checkpoint.as_ref().map(|(_, checkpoint)| checkpoint);
    for (device, at) in &plan.batches {
        let scan = &devices[*device];
        let batch = scan.batches[*at];
        let (header, segment) = (batch.header, &scan.chain[batch.segment]);
        if header.first_lsn > checkpoint_lsn
            && let Some(checkpoint) = pending.take()
        {
            install(&mut partitions, checkpoint)?;
        }
        let number = numbers[*device][batch.segment];
        let path = segment.path.display();
        let start = header.body_start();
        let body = readers[*device]
            .read(number, &segment.file, segment.capacity, start, header.length as usize)
            .map_err(|e| Error::corrupt(format!("{path} at offset {start}: {e}")))?;
        let mut lsn = header.first_lsn;
        let mut problem = None;
        let whole = read_records(body, header.records, header.body_crc, scan.identity.salt, |at, record| {
            let place = Place { segment: number, offset: start as u32 + at as u32 };
            if lsn >= floor && problem.is_none() {
                let partition = partitions.entry(record.partition).or_default();
                if let Err(what) = partition.apply(&record, place, pending.is_none()) {
                    problem = Some((place.offset, what));
                }
            }
            lsn += 1;
        });
        if !whole {
            return Err(Error::corrupt(format!(
                "{path} at offset {start}: the batch changed while it was read"
            )));
        }
        if let Some((offset, what)) = problem {
            return Err(Error::corrupt(format!("{path} at offset {offset}: {what}")));
        }
    }
    if let Some(checkpoint) = pending {
        install(&mut partitions, checkpoint)?;
    }
    Ok(partitions)
}

impl Replayed {
    fn apply(&mut self, record: &RecordHeader, place: Place, strict: bool) -> Result<(), String> {
        let RecordHeader { length, kind, detail, term, index, .. } = *record;
        match kind {
            RecordKind::Entry if index > NUMBER_MAX => return Err(format!("an entry with index {index}")),
            RecordKind::Entry => {
                let last = self.index.last().or(self.meta.purged).map(|(_, last)| last);
                if last.is_some_and(|last| last.checked_add(1) != Some(index)) {
                    if strict {
                        let last = last.unwrap_or_default();
                        return Err(format!("entry {index} of partition {} after {last}", record.partition));
                    }
                    self.index.truncate(0);
                }
                self.index.push(index, term, length, place);
            }
            RecordKind::Truncate => {
                self.index.truncate(if detail == 1 { index.saturating_add(1) } else { 0 })
            }
            RecordKind::Purge => self.index.purge(index),
            RecordKind::Vote | RecordKind::Committed => {}
        }
        self.meta.apply(kind, detail, term, index);
        Ok(())
    }
}

/// The state becomes what the checkpoint states; the entries must be there.
fn install(partitions: &mut Partitions, checkpoint: &Checkpoint) -> Result<()> {
    for (id, meta) in &checkpoint.partitions {
        let found = partitions.entry(*id).or_default();
        if let Some((_, index)) = meta.purged {
            found.index.purge(index);
        }
        let entries = found.index.last().map(|last| (found.index.first(), last));
        if entries != meta.entries {
            let what = format!(
                "partition {id}: the checkpoint states entries {:?}, the segments have {entries:?}",
                meta.entries
            );
            return Err(Error::corrupt(what));
        }
        found.meta = meta.clone();
    }
    match partitions.keys().find(|id| !checkpoint.partitions.iter().any(|(known, _)| known == *id)) {
        Some(id) => Err(Error::corrupt(format!("partition {id} has records but is not in the checkpoint"))),
        None => Ok(()),
    }
}

/// Reads one device front to back.
#[derive(Default)]
struct PieceReader {
    segment: Option<u32>,
    start: u64,
    bytes: Vec<u8>,
}

impl PieceReader {
    fn read(
        &mut self,
        segment: u32,
        file: &Arc<dyn VfsFile>,
        file_end: u64,
        offset: u64,
        length: usize,
    ) -> std::io::Result<&[u8]> {
        let end = offset + length as u64;
        if self.segment != Some(segment) || offset < self.start || end > self.start + self.bytes.len() as u64
        {
            let piece = length.max(PIECE_BYTES).min(file_end.max(end).saturating_sub(offset) as usize);
            self.bytes.resize(piece, 0);
            self.segment = None;
            file.read_exact_at(&mut self.bytes, offset)?;
            (self.segment, self.start) = (Some(segment), offset);
        }
        let at = (offset - self.start) as usize;
        Ok(&self.bytes[at..at + length])
    }
}
