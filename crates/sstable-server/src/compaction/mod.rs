//! Compaction: several tables become one.
//!
//! Owns running a compaction that somebody else has planned; does not own the plan (the leader's), nor what becomes of
//! the inputs. Each compaction runs on a thread of its own, in slices, so that it can be throttled and given up between
//! them. Invariant: the output is durable before the answer, and a function of the inputs (and of the origin and the time that the
//! plan names) alone.

mod job;
mod plan;

use std::sync::Arc;

use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::limits::COMPACTION_INPUTS_MAX;
use sextant_common::manifest::SstMeta;
use sextant_common::sstable::CompactionOrder;
use tokio::sync::oneshot;

use self::job::Job;
use self::plan::Plan;
use crate::store::{Store, recorded};

impl Store {
    /// Returns the output, durable; none if no record was left. Dropping the future gives the compaction up.
    pub async fn compact(self: &Arc<Self>, order: CompactionOrder) -> Result<Option<SstMeta>> {
        let written = |meta: &Option<SstMeta>| meta.as_ref().map_or(0, |m| m.file_bytes);
        recorded(self, &self.metrics.compact, written, self.run(order)).await
    }

    async fn run(self: &Arc<Self>, order: CompactionOrder) -> Result<Option<SstMeta>> {
        let plan = self.plan(order)?;
        let turn = self.compactions.take().await?;
        let (answer, answered) = oneshot::channel();
        let store = self.clone();
        self.env.dedicated("compaction", async move {
            let mut answer = answer;
            let result = Job::new(store, plan).run(&mut answer).await;
            drop(turn);
            let _ = answer.send(result);
        });
        answered.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Stopping, "the server is stopping")))
    }

    fn plan(&self, order: CompactionOrder) -> Result<Plan> {
        let CompactionOrder { inputs: mut ids, output, table, options, drop_tombstones, expired_by, origin } =
            order;
        if ids.is_empty() || ids.len() > COMPACTION_INPUTS_MAX {
            return Err(Error::invalid(format!(
                "a compaction has 1 to {COMPACTION_INPUTS_MAX} inputs, not {}",
                ids.len()
            )));
        }
        let inputs = ids.iter().map(|id| self.table(*id)).collect::<Result<Vec<_>>>()?;
        if let Some(foreign) = inputs.iter().find(|input| input.trailer().table != table) {
            return Err(Error::invalid(format!(
                "input {} belongs to table {}, not to {table}",
                foreign.id(),
                foreign.trailer().table
            )));
        }
        ids.push(output);
        ids.sort();
        if ids.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid("inputs and output of a compaction are different tables"));
        }
        Ok(Plan { inputs, output, table, options, drop_tombstones, expired_by, origin })
    }
}
