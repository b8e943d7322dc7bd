//! Bulk loads: SSTables of a table are written from sorted records ([`receive`]), and seen when whoever loads says so ([`end`]).
//!
//! Owns what of a load is kept until then, and what becomes of its tables if it comes to nothing. When it may be seen is the worker's
//! to say.
//!
//! Invariant: tables that the log may name are not deleted by whoever proposed that; if it is not known what came of it, whoever leads
//! finds out by the manifest.

use std::time::Duration;

use futures::{Stream, StreamExt};
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::{LoadId, PartitionId};
use sextant_common::key::SlotMap;
use sextant_common::limits::{check_key, check_value};
use sextant_common::manifest::TableOptions;
use sextant_common::sstable::RecordVersion;
use tokio::sync::oneshot;

use super::{DATA_TIMEOUT, ENTRY_TIMEOUT, check_leads, memtables, within};
use crate::flush::{Arriving, Background, LoadPiece};
use crate::leadership::leadership_changed;
use crate::replica::{Adopted, Event, Handle, LoadJob, Phase, Written};

/// How long whoever loads may be silent: its sstable servers wait a little longer.
const PIECE_WAIT_MAX: Duration = Duration::from_secs(15);
/// How often a load is looked at that waits for its end.
const LOOK: Duration = Duration::from_secs(5);
/// Flushes before the last one, which holds writes back: what it has left is what came during the one before.
const FLUSHES: usize = 2;

/// What is known of a load.
#[derive(Clone, Debug)]
pub enum Load {
    Unknown,
    Written(Written),
    Committed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Keep,
    Commit,
    Abort,
}

/// The place of a load is given back, whatever happens.
struct Place {
    handle: Handle,
    count: u64,
    keep: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.keep {
            self.handle.shared.load.leave(self.count);
        }
    }
}

/// Takes the records of a load, in one piece after the other. In a task of its own, so that it ends in order if whoever loads is gone;
/// and not on the partition's thread, which has its leases to see to.
pub async fn receive(
    handle: &Handle,
    background: &Background,
    slots: SlotMap,
    (id, table): (LoadId, String),
    pieces: impl Stream<Item = Result<LoadPiece>> + Send + Unpin + 'static,
) -> Result<Load> {
    if id.0 == 0 {
        return Err(Error::invalid("a load has an id that is not 0"));
    }
    check_leads(handle)?;
    if has_loaded(handle, id).await? {
        return Ok(Load::Committed);
    }
    let (done, answer) = oneshot::channel();
    let _ = handle.events.send(Event::BeginLoad { table, id, done });
    let job = within(ENTRY_TIMEOUT, "load", answer).await?;
    let (handle, background, runtime) = (handle.clone(), background.clone(), &background.runtime);
    let receiving = runtime.spawn(async move { arrive(&handle, &background, &slots, id, job, pieces).await });
    receiving.await.unwrap_or_else(|e| Err(Error::internal(format!("load: {e}")))).map(Load::Written)
}

async fn arrive(
    handle: &Handle,
    background: &Background,
    slots: &SlotMap,
    id: LoadId,
    job: LoadJob,
    mut pieces: impl Stream<Item = Result<LoadPiece>> + Unpin,
) -> Result<Written> {
    let shared = &handle.shared;
    let (now_ns, count) = (|| shared.env.clock.grantor_ns(), job.count);
    if let Some(before) = shared.load.enter(id, count, job.term, now_ns())? {
        background.give_up(before.ids());
    }
    let mut place = Place { handle: handle.clone(), count, keep: false };
    let mut arriving = Arriving::new(background, job.clone());
    let record_count = loop {
        let next = tokio::time::timeout(PIECE_WAIT_MAX, pieces.next()).await;
        let piece = match next {
            Ok(Some(piece)) => piece?,
            Ok(None) => return Err(Error::invalid("the load ended before its `finish`")),
            Err(_) => return Err(Error::unavailable(format!("no records for {PIECE_WAIT_MAX:?}"))),
        };
        check(&piece.records, slots, shared.id, &job.options)?;
        arriving.take(piece.records).await?;
        if let Some(record_count) = piece.finish {
            break record_count;
        }
    };
    let ssts = arriving.finish(record_count).await?;
    let LoadJob { term, table, name, first, seq, .. } = job;
    let written = Written { id, term, table, name, first, seq, ssts };
    place.keep = true;
    shared.load.set(count, Phase::Written(written.clone()), now_ns());
    background.spawn(forget_in_time(handle.clone(), background.clone(), count));
    Ok(written)
}

/// Records as clients may write them, all of this partition.
fn check(
    records: &[RecordVersion],
    slots: &SlotMap,
    partition: PartitionId,
    options: &TableOptions,
) -> Result<()> {
    for RecordVersion { key, value, .. } in records {
        check_key(key)?;
        let value = value.as_ref().ok_or_else(|| Error::invalid("a load has no tombstones"))?;
        check_value(value)?;
        let of = slots.partition_of(key, options);
        if of != partition {
            return Err(Error::invalid(format!("a key of partition {of} was sent to partition {partition}")));
        }
    }
    Ok(())
}

/// As long as this load waits for its end.
async fn forget_in_time(handle: Handle, background: Background, count: u64) {
    let shared = &handle.shared;
    while shared.load.has(count) {
        tokio::time::sleep(LOOK).await;
        if let Some(forgotten) = shared.load.forget(count, shared.serving(), shared.env.clock.grantor_ns()) {
            tracing::info!(partition = %shared.id, load = %forgotten.id, "a load is forgotten: nobody spoke of it, or the leader changed");
            background.give_up(forgotten.ids());
        }
    }
}

/// Ends a load, or only says how it is.
pub async fn end(handle: &Handle, background: &Background, id: LoadId, end: End) -> Result<Load> {
    let shared = &handle.shared;
    let term = shared.serving().ok_or_else(crate::leadership::not_leading)?;
    let now_ns = shared.env.clock.grantor_ns();
    let written = shared.load.heard(id, term, now_ns)?;
    let Some(written) = written else {
        return Ok(if has_loaded(handle, id).await? { Load::Committed } else { Load::Unknown });
    };
    if end == End::Keep {
        return Ok(Load::Written(written));
    }
    let Some((written, count)) = shared.load.end(id, term) else { return Ok(Load::Unknown) };
    if end == End::Abort {
        shared.load.leave(count);
        background.give_up(written.ids());
        return Ok(Load::Unknown);
    }
    // In a task of its own: whoever asked may give up meanwhile.
    let (handle, background, runtime) = (handle.clone(), background.clone(), &background.runtime);
    let committing = runtime.spawn(async move { commit(&handle, &background, written, count).await });
    committing.await.unwrap_or_else(|e| Err(Error::internal(format!("load: {e}"))))
}

async fn commit(handle: &Handle, background: &Background, written: Written, count: u64) -> Result<Load> {
    let shared = &handle.shared;
    let flushed = async {
        may_adopt(handle).await?;
        flush(handle, &written.name).await
    };
    let adopted = match flushed.await {
        Ok(()) => {
            let (done, adopted) = oneshot::channel();
            let _ = handle.events.send(Event::Adopt { load: written.clone(), done });
            // However long it takes: once it is in the log nobody can take it back.
            adopted.await.map_err(|_| leadership_changed())
        }
        Err(e) => Ok(Adopted::NotNow(e)),
    };
    match adopted {
        Ok(Adopted::Seen) => {
            shared.load.leave(count);
            Ok(Load::Committed)
        }
        Ok(Adopted::NotNow(e)) => {
            shared.load.set(count, Phase::Written(written), shared.env.clock.grantor_ns());
            Err(e)
        }
        Err(e) => {
            // The log may name its tables, here or elsewhere: what they are is told by the manifest.
            background.forget_pending(&written.ids());
            shared.load.leave(count);
            Err(e)
        }
    }
}

pub(super) async fn flush(handle: &Handle, table: &str) -> Result<()> {
    for _ in 0..FLUSHES {
        tokio::time::timeout(DATA_TIMEOUT, memtables::flush(handle, table))
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, "flush: not done in time")))?;
    }
    Ok(())
}

/// Whether something may be adopted now, as far as can be said. Else flushes would be for nothing.
pub(super) async fn may_adopt(handle: &Handle) -> Result<()> {
    let (done, answer) = oneshot::channel();
    let _ = handle.events.send(Event::MayAdopt { done });
    within(ENTRY_TIMEOUT, "load", answer).await
}

async fn has_loaded(handle: &Handle, id: LoadId) -> Result<bool> {
    let (done, answer) = oneshot::channel();
    let _ = handle.events.send(Event::HasLoaded { id, done });
    within(ENTRY_TIMEOUT, "load", answer).await
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use sextant_common::ids::Seq;
    use sextant_common::marks::Marks;

    use super::*;

    #[test]
    fn only_values_of_this_partition_within_the_limits_are_loaded() {
        let slots = SlotMap::even(2);
        let options = TableOptions::default();
        let record = |key: &'static str, value: Option<&'static str>| RecordVersion {
            key: Bytes::from_static(key.as_bytes()),
            seq: Seq(0),
            value: value.map(|v| Bytes::from_static(v.as_bytes())),
            marks: Marks::NONE,
        };
        let here = slots.partition_of(b"k", &options);
        let there = PartitionId(1 - here.0);
        let of = |partition, record| check(&[record], &slots, partition, &options);
        of(here, record("k", Some("v"))).unwrap();
        for (partition, record, why) in [
            (there, record("k", Some("v")), "was sent to partition"),
            (here, record("k", None), "no tombstones"),
            (here, record("", Some("v")), "key"),
        ] {
            let e = of(partition, record).unwrap_err();
            assert!(e.kind == ErrorKind::Invalid && e.message.contains(why), "{e}");
        }
    }
}
