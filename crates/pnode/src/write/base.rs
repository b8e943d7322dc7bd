//! What a condition rests on: the record that the SSTables of one manifest version have, if no memtable has the key.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use sextant_common::ids::Seq;
use sextant_common::limits::BATCH_BYTES_MAX;
use sextant_common::marks::Marks;
use sextant_common::operation::{Base, Condition, Effect, ReadMode, needs_value};

use super::prepare::PreparedOp;
use crate::record_cache::{CachedRecord, RecordCache};
use crate::router::{SearchFailed, SstFound, SstSearch, candidates};
use crate::upstream::Deadline;
use crate::view::{PartitionView, ReadKey};

/// Searches of one batch that run at once: what fills a message.
const SEARCHES_MAX: usize = 64;

/// A base, and its value if the operation needs it.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub base: Option<Base>,
    pub value: Option<Bytes>,
}

/// Why there are no bases.
pub(super) enum NoBase {
    Failed(SearchFailed),
    /// The values that a batch changes, or wants to be told, are longer together than a batch may be.
    TooLong,
}

impl From<Option<Base>> for Found {
    fn from(base: Option<Base>) -> Self {
        Self { base, value: None }
    }
}

/// Finds bases.
pub(super) struct Bases {
    pub search: SstSearch,
    pub cache: Arc<RecordCache>,
}

impl Bases {
    /// The bases of all operations, all at the version of `view`. None where none is needed.
    pub async fn of(
        &self,
        view: &PartitionView,
        ops: &[PreparedOp],
        deadline: Deadline,
    ) -> Result<Vec<Found>, NoBase> {
        if ops.iter().all(|op| !op.needs_search()) {
            return Ok(ops.iter().map(|op| base_at_once(view, op).into()).collect());
        }
        let bases = (0..ops.len()).map(|at| self.base(view, &ops[at], deadline));
        let mut bases = futures::stream::iter(bases).buffered(SEARCHES_MAX);
        let (mut found, mut bytes) = (Vec::with_capacity(ops.len()), 0);
        while let Some(base) = bases.next().await {
            let base = base.map_err(NoBase::Failed)?;
            bytes += base.value.as_ref().map_or(0, Bytes::len);
            if bytes > BATCH_BYTES_MAX {
                return Err(NoBase::TooLong);
            }
            found.push(base);
        }
        Ok(found)
    }

    async fn base(
        &self,
        view: &PartitionView,
        op: &PreparedOp,
        deadline: Deadline,
    ) -> Result<Found, SearchFailed> {
        if !op.needs_search() {
            return Ok(base_at_once(view, op).into());
        }
        let at = op.at();
        let found = match self.cache.lookup(&view.manifest, op.table.id, at) {
            Some(cached) => Some(cached),
            None => {
                let candidates = candidates(view, &op.table, at, ReadMode::Bda);
                match self.search.search(&candidates, &op.op.key, op.hash, None, deadline).await? {
                    SstFound::NoEntry => None,
                    SstFound::Tombstone(seq) => Some(CachedRecord::tombstone(seq)),
                    SstFound::Value(record) => Some(record.into()),
                }
            }
        };
        let value = found.as_ref().and_then(|record| record.value.as_ref());
        let base = Base {
            manifest: view.manifest.version,
            present: value.is_some(),
            // Whether that is over, the sequencer says.
            marks: found.as_ref().map_or(Marks::NONE, |record| record.marks),
            seq: found.as_ref().filter(|_| value.is_some()).map_or(Seq(0), |record| record.seq),
            value_matches: match &op.op.condition {
                Condition::ValueEquals(expected) => value == Some(expected),
                _ => false,
            },
        };
        let value = value.filter(|_| needs_value(&op.op.effect, op.op.returns)).cloned();
        Ok(Found { base: Some(base), value })
    }
}

/// A blind put of a key that no SSTable has may be taken for an INSERT, which leaves no bf-log entry: so it says what the
/// filters say, if they rule the key out. It never waits for this.
pub(super) fn base_at_once(view: &PartitionView, op: &PreparedOp) -> Option<Base> {
    if !matches!(op.op.effect, Effect::Put(_)) {
        return None;
    }
    let ReadKey { key, hash, .. } = op.at();
    let table = view.manifest.table(op.table.id);
    let may_be_in_a_table = table.is_some_and(|t| t.answering(key).any(|sst| sst.may_contain(key, hash)));
    let ruled_out = view.manifest_known && !may_be_in_a_table;
    ruled_out.then(|| Base::absent(view.manifest.version))
}
