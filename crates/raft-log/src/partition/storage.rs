//! openraft's traits. All writes only queue records, but for a vote, which waits until it is durable.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};

use futures::{Stream, stream};
use openraft::storage::{RaftLogReader, RaftLogStorage};
use openraft::{EntryPayload, OptionalSend};
use tokio::sync::oneshot;

use crate::entry_codec::split_entry;
use crate::format::checkpoint::Position;
use crate::format::record::{RECORD_HEADER_BYTES, RecordKind};
use crate::queue::{Completion, Item, Queue};
use crate::shared::Partition;
use crate::state::PartitionState;
use crate::types::{Entry, IoFlushed, LogId, LogState, TypeConfig, Vote};

use super::handle::PartitionLog;
use super::read::PIECE_BYTES;

const CONTROL_BYTES: u64 = RECORD_HEADER_BYTES as u64;

fn payload_len(entry: &Entry) -> u64 {
    match &entry.payload {
        EntryPayload::Blank => 0,
        EntryPayload::Normal(payload) => payload.0.len() as u64,
        EntryPayload::Membership(_) => split_entry(entry).1.len() as u64,
    }
}

fn parts(id: Option<LogId>) -> (bool, Position) {
    (id.is_some(), id.map_or((0, 0), |id| (id.leader_id.term, id.index)))
}

/// `start..end` of a range of indexes.
fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    (start, end)
}

impl Partition {
    /// The record of a new committed position, if there is one: it travels with whatever is queued next.
    fn take_committed(&self, state: &mut PartitionState) -> Option<Item> {
        std::mem::take(&mut state.committed_is_new).then(|| {
            let (some, position) = parts(state.committed);
            Item::control(self.slot, RecordKind::Committed, some, position)
        })
    }

    /// Queues a committed position that has found no record to travel with.
    pub(crate) fn queue_committed(&self, queue: &Queue) -> io::Result<()> {
        let item = self.take_committed(&mut self.state.lock());
        match item {
            Some(item) => queue.push([item].into_iter(), (CONTROL_BYTES, false), None, |_, _| ()),
            None => Ok(()),
        }
    }
}

impl PartitionLog {
    /// Queues one record without a payload.
    fn push_control(
        &self,
        state: &mut PartitionState,
        item: Item,
        completion: Option<Completion>,
    ) -> io::Result<()> {
        let committed = self.partition.take_committed(state);
        let is_new = committed.is_some();
        let bytes = CONTROL_BYTES * (1 + u64::from(is_new));
        let items = committed.into_iter().chain([item]);
        let pushed = self.shared.queue.push(items, (bytes, false), completion, |_, _| ());
        state.committed_is_new = pushed.is_err() && is_new;
        pushed
    }
}

impl PartitionLog {
    /// Removes the entries after `last`. Whether there were any.
    pub(super) fn truncate(&self, state: &mut PartitionState, last: Option<LogId>) -> io::Result<bool> {
        let end = last.map_or(0, |id| id.index.saturating_add(1));
        if state.index.is_empty() || end >= state.index.end() {
            return Ok(false);
        }
        let (some, position) = parts(last);
        let item = Item::control(self.partition.slot, RecordKind::Truncate, some, position);
        self.push_control(state, item, None)?;
        state.index.truncate(end);
        state.recent.truncate(end);
        Ok(true)
    }

    /// Removes the entries up to `upto`, which the log need not have reached.
    pub(super) fn purge_upto(&self, state: &mut PartitionState, upto: LogId) -> io::Result<()> {
        let item = Item::control(self.partition.slot, RecordKind::Purge, true, parts(Some(upto)).1);
        self.push_control(state, item, None)?;
        state.purged = Some(upto);
        state.index.purge(upto.index);
        state.recent.purge(upto.index);
        Ok(())
    }
}

impl RaftLogReader<TypeConfig> for PartitionLog {
    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = Result<Entry, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        use futures::{StreamExt, TryStreamExt};
        let (start, end) = bounds(&range);
        let pieces = stream::try_unfold((self.clone(), start), move |(log, next)| async move {
            let piece = log.read(log.plan(next, end, PIECE_BYTES)).await?;
            let next = piece.last().map(|entry| entry.log_id.index + 1);
            Ok::<_, io::Error>(next.map(|next| (stream::iter(piece).map(Ok), (log, next))))
        });
        Box::pin(pieces.try_flatten())
    }

    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        let (start, end) = bounds(&range);
        self.read(self.plan(start, end, u64::MAX)).await
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.partition.state.lock().vote)
    }

    /// Up to about a megabyte, at least one entry. Empty, for openraft to try again, if `start` was purged meanwhile: entries
    /// after a gap would be taken for those from `start` on.
    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        let entries = self.read(self.plan(start, end, PIECE_BYTES)).await?;
        if entries.first().is_some_and(|entry| entry.log_id.index != start) {
            tracing::warn!(partition = %self.partition.id, start, "entries to be replicated were purged");
            return Ok(Vec::new());
        }
        Ok(entries)
    }
}

impl RaftLogStorage<TypeConfig> for PartitionLog {
    type LogReader = PartitionLog;

    async fn get_log_state(&mut self) -> Result<LogState, io::Error> {
        let state = self.partition.state.lock();
        Ok(LogState { last_purged_log_id: state.purged, last_log_id: state.last_log_id() })
    }

    async fn get_log_reader(&mut self) -> PartitionLog {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let (waiter, durable) = oneshot::channel();
        {
            let mut state = self.partition.state.lock();
            let position = (vote.leader_id.term, vote.leader_id.voted_for);
            let item = Item::control(self.partition.slot, RecordKind::Vote, vote.committed, position);
            self.push_control(&mut state, item, Some(Completion::Signal(waiter)))?;
            state.vote = Some(*vote);
        }
        durable.await.unwrap_or_else(|_| Err(io::Error::other("the log was closed")))
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        let mut state = self.partition.state.lock();
        state.committed_is_new |= state.committed != committed;
        state.committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.partition.state.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IoFlushed) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        self.shared.queue.wait_for_room().await;
        let slot = self.partition.slot;
        {
            let mut state = self.partition.state.lock();
            let state = &mut *state;
            state.check_follows(&entries)?;
            let committed = self.partition.take_committed(state);
            let mut bytes = if committed.is_some() { CONTROL_BYTES } else { 0 };
            state.committed_is_new = committed.is_some();
            for entry in &entries {
                let length = payload_len(entry);
                if length > ENTRY_BYTES_MAX {
                    let what = format!("an entry has {length} bytes: at most {ENTRY_BYTES_MAX}");
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
                }
                bytes += CONTROL_BYTES + length;
            }
            let items = entries.iter().map(|entry| {
                let (detail, payload) = split_entry(entry);
                let (term, index) = (entry.log_id.leader_id.term, entry.log_id.index);
                Item { payload, term, index, slot, kind: RecordKind::Entry, detail }
            });
            let index = &mut state.index;
            let queued = |item: &Item, lsn: u64| {
                if item.kind == RecordKind::Entry {
                    index.push_queued(item.index, item.term, item.payload.len() as u32, lsn);
                }
            };
            let items = committed.into_iter().chain(items);
            let completion = Some(Completion::Flushed(callback));
            self.shared.queue.push(items, (bytes, true), completion, queued)?;
            state.committed_is_new = false;
            for entry in &entries {
                state.recent.push(entry.clone());
            }
            state.evict();
        }
        if let Some(observer) = &*self.partition.observer.read() {
            observer.appended(entries);
        }
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        let truncated = self.truncate(&mut self.partition.state.lock(), last_log_id)?;
        if !truncated {
            return Ok(());
        }
        if let Some(observer) = &*self.partition.observer.read() {
            observer.truncated(last_log_id);
        }
        Ok(())
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        let mut state = self.partition.state.lock();
        if state.purged.is_some_and(|purged| purged.index >= log_id.index) {
            return Ok(());
        }
        self.purge_upto(&mut state, log_id)
    }
}

/// Largest payload of an entry: four times the largest batch of writes. Offsets in a segment have 32 bits.
const ENTRY_BYTES_MAX: u64 = 64 << 20;
