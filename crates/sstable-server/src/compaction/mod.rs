//! Compaction: several tables become one, or several that share their range of keys.
//!
//! Owns running a compaction that somebody else has planned; does not own the plan (the leader's), nor what becomes of
//! the inputs. Each compaction runs on a thread of its own, in slices, so that it can be throttled and given up between
//! them. Invariant: outputs are durable before the answer, and a function of the inputs (and of the origin and the time that the
//! plan names) alone.

mod job;
mod plan;

use std::sync::Arc;

use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::limits::{COMPACTION_INPUTS_MAX, COMPACTION_OUTPUTS_MAX};
use sextant_common::manifest::SstMeta;
use sextant_common::sstable::CompactionOrder;
use tokio::sync::oneshot;

use self::job::Job;
use self::plan::Plan;
use crate::progress::Progress;
use crate::store::{Store, recorded};

impl Store {
    /// Returns the outputs, durable, by rising range; none if no record was left. Dropping the future gives the compaction up; what is
    /// written already stays, for whoever ordered it to delete.
    /// `progress`: of it, for whoever waits.
    pub async fn compact(
        self: &Arc<Self>,
        order: CompactionOrder,
        progress: &Progress,
    ) -> Result<Vec<SstMeta>> {
        let written = |outputs: &Vec<SstMeta>| outputs.iter().map(|m| m.file_bytes).sum();
        recorded(self, &self.metrics.compact, written, self.run(order, progress.clone())).await
    }

    async fn run(self: &Arc<Self>, order: CompactionOrder, progress: Progress) -> Result<Vec<SstMeta>> {
        self.check(&order)?;
        let turn = self.compactions.take().await?;
        // Only now: what waits for its turn, or does not get one, leaves nothing behind. (A copy has room of its own, and nobody
        // holds room while it waits for other.)
        for missing in &order.gather {
            self.copy(missing.clone(), &progress).await?;
        }
        let plan = self.plan(order)?;
        let (room, piece_bytes) = self.jobs.compaction(plan.inputs.len(), plan.output_hashes()).await?;
        let (answer, answered) = oneshot::channel();
        let store = self.clone();
        self.env.dedicated("compaction", async move {
            let mut answer = answer;
            store.env.workers.give_way(store.config.compaction_nice);
            let result = Job::new(store, plan, progress, piece_bytes).run(&mut answer).await;
            drop((turn, room));
            let _ = answer.send(result);
        });
        answered.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Stopping, "the server is stopping")))
    }

    fn check(&self, CompactionOrder { inputs: ids, outputs, gather, .. }: &CompactionOrder) -> Result<()> {
        if ids.is_empty() || ids.len() > COMPACTION_INPUTS_MAX {
            return Err(Error::invalid(format!(
                "a compaction has 1 to {COMPACTION_INPUTS_MAX} inputs, not {}",
                ids.len()
            )));
        }
        if outputs.is_empty() || outputs.len() > COMPACTION_OUTPUTS_MAX {
            return Err(Error::invalid(format!(
                "a compaction has 1 to {COMPACTION_OUTPUTS_MAX} outputs, not {}",
                outputs.len()
            )));
        }
        if let Some(other) = gather.iter().find(|copy| !ids.contains(&copy.id)) {
            return Err(Error::invalid(format!("{} is to be copied, and is no input", other.id)));
        }
        Ok(())
    }

    fn plan(&self, order: CompactionOrder) -> Result<Plan> {
        let CompactionOrder { inputs: mut ids, outputs, cuts, output_bytes, table, mut options, .. } = order;
        let inputs = ids.iter().map(|id| self.table(*id)).collect::<Result<Vec<_>>>()?;
        if let Some(foreign) = inputs.iter().find(|input| input.trailer().table != table) {
            return Err(Error::invalid(format!(
                "input {} belongs to table {}, not to {table}",
                foreign.id(),
                foreign.trailer().table
            )));
        }
        ids.extend(&outputs);
        ids.sort();
        if ids.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid("inputs and outputs of a compaction are different tables"));
        }
        let CompactionOrder { drop_tombstones, expired_by, origin, .. } = order;
        if origin.is_none() {
            // (The format of such tables is older than prefixes.)
            options.filter_prefix = 0;
        }
        let plan =
            Plan { inputs, outputs, cuts, output_bytes, table, options, drop_tombstones, expired_by, origin };
        let range = plan.range();
        let rise = plan.cuts.windows(2).all(|pair| pair[0] < pair[1]);
        if !rise || !plan.cuts.iter().all(|cut| range.is_cut_by(cut)) {
            return Err(Error::invalid("the cuts of a compaction rise, and lie in its range"));
        }
        if plan.origin.is_none() && (plan.output_bytes > 0 || !plan.cuts.is_empty()) {
            return Err(Error::invalid("a compaction without an origin has one output"));
        }
        Ok(plan)
    }
}
