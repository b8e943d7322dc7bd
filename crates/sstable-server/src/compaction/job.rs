//! One compaction, on its own thread.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::expiry::is_expired;
use sextant_common::ids::{SstId, TableId};
use sextant_common::key_range::KeyRange;
use sextant_common::manifest::{Origin, SstMeta, TableOptions, large, weight};
use sextant_environment::vfs::IoKind;
use tokio::sync::oneshot;

use super::plan::Plan;
use crate::catalog::Replace;
use crate::data_dir::Temporary;
use crate::progress::Progress;
use crate::store::Store;
use crate::table::index::lower_bound;
use crate::table::{Caching, Content, Direction, Merge, TableIter, TableWriter};

/// Between slices a compaction looks whether it is still wanted, and waits if it is too fast. 4 MiB take some ten milliseconds.
const SLICE_BYTES: u64 = 4 * 1024 * 1024;

/// How often a compaction that waits says so.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Job {
    store: Arc<Store>,
    plan: Plan,
    progress: Progress,
    /// Of each input, that are read at a time.
    piece_bytes: u64,
}

/// The outputs, one after the other. An output begins at a cut, or where the one before has become large enough, and answers for
/// everything up to the next one: together they answer for the whole range, whatever records are left.
struct Outputs {
    store: Arc<Store>,
    ids: std::vec::IntoIter<SstId>,
    table: TableId,
    options: TableOptions,
    at_the_bottom: bool,
    /// Of all of them.
    origin: Option<Origin>,
    cuts: std::iter::Peekable<std::vec::IntoIter<Bytes>>,
    /// What an output is to weigh; 0: it does not matter. And what its hashes are, which is more if there are few ids.
    output_bytes: u64,
    output_hash_weight: u64,
    /// The one that is being written. It has no name yet: where it ends is known when the next one begins.
    open: Option<Open>,
    /// Where the next one begins.
    start: Bytes,
    last_key: Vec<u8>,
    done: Vec<SstMeta>,
    done_weight: u64,
}

struct Open {
    temporary: Temporary,
    writer: TableWriter,
}

impl Outputs {
    fn is_empty(&self) -> bool {
        self.open.is_none() && self.done.is_empty()
    }

    fn written_bytes(&self) -> u64 {
        let open = self.open.as_ref().map_or(0, |open| open.writer.bytes());
        self.done.iter().map(|meta| meta.file_bytes).sum::<u64>() + open
    }

    /// A key that is larger than all before it. `left`: how many records are still to come, and how many have passed.
    fn add(&mut self, key: &[u8], seq: u64, content: Content<'_>, left: (u64, u64)) -> Result<()> {
        let mut cut = None;
        while let Some(at) = self.cuts.next_if(|at| at.as_ref() <= key) {
            cut = Some(at);
        }
        if let Some(open) = &self.open
            && self.ids.len() > 0
        {
            let here = || Bytes::copy_from_slice(lower_bound(&self.last_key, key));
            let at = cut.or_else(|| self.is_large(&open.writer, left).then(here));
            if let Some(at) = at {
                self.finish(at)?;
            }
        }
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.begin()?,
        };
        open.writer.add(key, seq, content)?;
        self.open = Some(open);
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        Ok(())
    }

    /// Whether what is open ends here, for its size.
    fn is_large(&self, open: &TableWriter, (to_come, passed): (u64, u64)) -> bool {
        if self.output_bytes == 0 {
            return false;
        }
        let of_hashes = weight(0, open.hashes());
        // (For more of them there is no memory: see `Plan::output_hashes`.)
        if of_hashes >= large(self.output_hash_weight) {
            return true;
        }
        let is_large = of_hashes >= self.output_hash_weight
            || open.bytes() >= self.output_bytes && self.has_ids_to_spare(to_come);
        // (What is left over would be small: it stays with the others.)
        let is_worth_it = || {
            let written = self.done_weight + weight(open.bytes(), open.hashes());
            let expected = u128::from(written) * u128::from(to_come) / u128::from(passed.max(1));
            expected >= u128::from(self.output_bytes / 2)
        };
        is_large && is_worth_it()
    }

    /// Whether there are more ids than the hashes to come may need. (How many bytes are to come nobody knows, if inputs were compressed in
    /// another way: then the last output has more of them.)
    fn has_ids_to_spare(&self, to_come: u64) -> bool {
        let of_hashes = weight(0, self.options.hashes_max(to_come));
        self.ids.len() as u64 > of_hashes / self.output_hash_weight.max(1) + self.cuts.len() as u64
    }

    fn begin(&mut self) -> Result<Open> {
        let id = self.ids.next().ok_or_else(|| Error::internal("a compaction has more outputs than ids"))?;
        let temporary = self.store.catalog.create_temporary(id)?;
        let writer = TableWriter::new(temporary.file().clone(), id, self.table, self.options.clone());
        // (Its own part of the range is known when it ends.)
        let writer = writer.with_origin(self.origin.clone());
        let writer = if self.at_the_bottom { writer.at_the_bottom() } else { writer };
        Ok(Open { temporary, writer })
    }

    /// Seals the open one; it ends before `end`, where the next one begins.
    fn finish(&mut self, end: Bytes) -> Result<()> {
        let Some(Open { temporary, writer }) = self.open.take() else { return Ok(()) };
        let range = KeyRange { start: std::mem::replace(&mut self.start, end.clone()), end };
        let origin = self.origin.clone().map(|origin| Origin { range, ..origin });
        self.done_weight += weight(writer.bytes(), writer.hashes());
        writer.with_origin(origin).finish()?;
        self.done.push(self.store.catalog.install(temporary, Replace::Refuse)?);
        Ok(())
    }
}

impl Job {
    pub(super) fn new(store: Arc<Store>, plan: Plan, progress: Progress, piece_bytes: u64) -> Self {
        Self { store, plan, progress, piece_bytes }
    }

    pub(super) async fn run(
        self,
        answer: &mut oneshot::Sender<Result<Vec<SstMeta>>>,
    ) -> Result<Vec<SstMeta>> {
        let range = self.plan.range();
        let output_hash_weight = self.plan.output_hash_weight();
        let Plan { inputs, outputs, cuts, output_bytes, table, options, drop_tombstones, expired_by, origin } =
            self.plan;
        let keeps_proof = origin.is_some();
        let (store, progress) = (self.store, self.progress);
        // (An input may have records of keys for which it no longer answers.)
        let (forward, bypass) = (Direction::Forward, Caching::Bypass);
        let open = |table| TableIter::with_pieces(table, range.clone(), forward, bypass, self.piece_bytes);
        let records: u64 = inputs.iter().map(|input| input.meta().records).sum();
        let iters = inputs.into_iter().map(open).collect::<Result<Vec<_>>>()?;
        let mut merge = Merge::new(iters, Direction::Forward);
        let mut outputs = Outputs {
            store: store.clone(),
            ids: outputs.into_iter(),
            table,
            options,
            at_the_bottom: drop_tombstones,
            origin,
            cuts: cuts.into_iter().peekable(),
            output_bytes,
            output_hash_weight,
            open: None,
            start: range.start.clone(),
            last_key: Vec::new(),
            done: Vec::new(),
            done_weight: 0,
        };
        let started_ns = store.env.clock.holder_ns();
        let (mut slice_end, mut merged_bytes) = (SLICE_BYTES, 0);
        // The newest of the tombstones that were dropped.
        let mut dropped: Option<(Vec<u8>, u64)> = None;
        while !merge.is_at_end() {
            // What has expired hides older records first, like any tombstone.
            let has_expired = is_expired(merge.marks().expires_at(), expired_by);
            let is_tombstone = merge.is_tombstone() || has_expired;
            if drop_tombstones && is_tombstone {
                if keeps_proof
                    && outputs.is_empty()
                    && dropped.as_ref().is_none_or(|(_, seq)| *seq < merge.seq())
                {
                    dropped = Some((merge.key().to_vec(), merge.seq()));
                }
            } else {
                let value = (!is_tombstone).then(|| merge.value_ref());
                let left = (records.saturating_sub(merge.passed()), merge.passed());
                outputs.add(merge.key(), merge.seq(), Content::new(value, merge.marks()), left)?;
            }
            merged_bytes += (merge.key().len() + merge.value_ref().len()) as u64;
            merge.advance()?;
            if merged_bytes >= slice_end {
                slice_end = merged_bytes + SLICE_BYTES;
                progress.reached(merged_bytes);
                store.disk_delay(IoKind::Write).await;
                let moved = (merge.disk_bytes(), outputs.written_bytes());
                rest(&store, &progress, answer, || throttle(&store, started_ns, moved)).await;
                if answer.is_closed() {
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        "nobody waits for this compaction any more",
                    ));
                }
                if store.shutdown.is_triggered() {
                    return Err(Error::new(ErrorKind::Stopping, "the server is stopping"));
                }
            }
        }
        if outputs.is_empty() {
            // One tombstone is kept: without a table that says so, nothing would show that the inputs are superseded, and one that
            // was forgotten on a server could bring deleted records back when a manifest is rebuilt.
            let Some((key, seq)) = dropped else { return Ok(Vec::new()) };
            outputs.add(&key, seq, Content::Tombstone, (0, 0))?;
        }
        store.disk_delay(IoKind::Sync).await;
        outputs.finish(range.end)?;
        Ok(outputs.done)
    }
}

/// Waits as long as there is something to wait for, and says so; not if nobody wants it any more.
async fn rest(
    store: &Store,
    progress: &Progress,
    answer: &mut oneshot::Sender<Result<Vec<SstMeta>>>,
    left: impl Fn() -> Duration,
) {
    let mut shutdown = store.shutdown.clone();
    loop {
        let wait = left();
        tokio::select! {
            () = tokio::time::sleep(wait.min(PAUSE)) => {}
            () = answer.closed() => return,
            () = shutdown.wait() => return,
        }
        if wait <= PAUSE {
            return;
        }
        progress.pauses();
    }
}

/// How long to wait so that having read and written so many bytes since the start is not too fast.
fn throttle(store: &Store, started_ns: u64, (read, written): (u64, u64)) -> Duration {
    let due_ns = |bytes: u64, pace: u64| {
        let ns = (u128::from(bytes) * 1_000_000_000).checked_div(pace.into()).unwrap_or_default();
        u64::try_from(ns).unwrap_or(u64::MAX)
    };
    let (reads, writes) = (store.config.compaction_bytes_per_s, store.config.compaction_write_bytes_per_s);
    let due_ns = due_ns(read, reads).max(due_ns(written, writes));
    Duration::from_nanos(due_ns.saturating_sub(store.elapsed_ns(started_ns)))
}
