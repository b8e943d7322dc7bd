//! What a condition rests on: the record that the SSTables of one manifest version have, if no memtable has the key.

use futures::{StreamExt, TryStreamExt};
use sextant_proto::v1;

use super::execute::PreparedOp;
use crate::api::{OpCondition, OpKind, ReadMode};
use crate::engine::Engine;
use crate::record_cache::CachedRecord;
use crate::router::{SearchFailed, SstFound, candidates};
use crate::upstream::Deadline;
use crate::view::{PartitionView, ReadKey};

/// Searches of one batch that run at once: what fills a message.
const SEARCHES_MAX: usize = 64;

impl Engine {
    /// The bases of all operations, all at the version of `view`. None where none is needed.
    pub(super) async fn bases(
        &self,
        view: &PartitionView,
        ops: &[PreparedOp],
        deadline: Deadline,
    ) -> Result<Vec<Option<v1::Base>>, SearchFailed> {
        if ops.iter().all(|op| !op.needs_search()) {
            return Ok(ops.iter().map(|op| self.base_at_once(view, op)).collect());
        }
        let bases = (0..ops.len()).map(|at| self.base(view, &ops[at], deadline));
        futures::stream::iter(bases).buffered(SEARCHES_MAX).try_collect().await
    }

    async fn base(
        &self,
        view: &PartitionView,
        op: &PreparedOp,
        deadline: Deadline,
    ) -> Result<Option<v1::Base>, SearchFailed> {
        if !op.needs_search() {
            return Ok(self.base_at_once(view, op));
        }
        let version = view.manifest.version;
        let at = op.at();
        let found = match self.cache.lookup(&view.manifest, op.table.id, at) {
            Some(cached) => Some(cached),
            None => {
                let candidates = candidates(view, &op.table, at, ReadMode::Bda);
                match self.search_ssts(&candidates, &op.op.key, op.hash, None, deadline).await? {
                    SstFound::NoEntry => None,
                    SstFound::Tombstone(seq) => Some(CachedRecord { value: None, seq }),
                    SstFound::Value(record) => {
                        Some(CachedRecord { value: Some(record.value), seq: record.seq })
                    }
                }
            }
        };
        let value = found.as_ref().and_then(|record| record.value.as_ref());
        Ok(Some(v1::Base {
            manifest_version: version.0,
            present: value.is_some(),
            seq: if value.is_some() { found.as_ref().map_or(0, |record| record.seq.0) } else { 0 },
            value_matches: match &op.op.condition {
                OpCondition::ValueEquals(expected) => value == Some(expected),
                _ => false,
            },
        }))
    }

    /// A blind put of a key that no SSTable has may be taken for an INSERT, which leaves no bf-log entry: so it says what the
    /// filters say, if they rule the key out. It never waits for this.
    fn base_at_once(&self, view: &PartitionView, op: &PreparedOp) -> Option<v1::Base> {
        if !matches!(op.op.kind, OpKind::Put(_)) {
            return None;
        }
        let ReadKey { key, hash, .. } = op.at();
        let ssts = view.manifest.table(op.table.id).map_or(&[][..], |t| &t.ssts);
        let ruled_out = view.manifest_known && !ssts.iter().any(|sst| sst.may_contain(key, hash));
        ruled_out.then(|| v1::Base {
            manifest_version: view.manifest.version.0,
            present: false,
            seq: 0,
            value_matches: false,
        })
    }
}
