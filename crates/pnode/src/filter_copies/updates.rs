//! What a pull of any kind does with its reply.

use std::sync::Arc;
use std::time::Duration;

use sextant_common::ids::{NodeId, PartitionId};
use sextant_proto::v1;

use super::copy::{Update, UpdateStatus, Verdict, apply};
use super::whole::spawn_fetch;
use super::wire;
use crate::engine::Engine;
use crate::lease::PullTimes;

/// How soon a partition whose leader cannot grant is asked about again.
const NOT_READY_PAUSE: Duration = Duration::from_millis(20);

/// What a partition's update means for the next pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Pull,
    /// Nothing to acknowledge and nothing to be had at once.
    Pause(Duration),
}

/// Installs what a reply brought for one partition.
pub(super) fn handle_update(engine: &Arc<Engine>, node: NodeId, update: v1::PartitionUpdate, times: PullTimes) -> Next {
    let partition = PartitionId(update.partition);
    if !engine.views.contains(partition) {
        return Next::Pause(NOT_READY_PAUSE);
    }
    let hint = update.leader;
    let update = match wire::update(update) {
        Ok(update) => update,
        Err(e) => {
            tracing::warn!(%node, %partition, "bad reply to a pull: {e}");
            return Next::Pause(NOT_READY_PAUSE);
        }
    };
    if update.status == UpdateStatus::NotLeader {
        engine.memtables.get(&node).into_iter().for_each(|peer| peer.news.not_leader(partition, hint.as_ref()));
    } else if update.epoch.term > 0 {
        engine.leaders.confirm(partition, node, update.epoch.term);
    }
    install(engine, node, partition, update, times)
}

fn install(engine: &Arc<Engine>, node: NodeId, partition: PartitionId, update: Update, times: PullTimes) -> Next {
    if let Some(manifest) = &update.manifest {
        engine.views.tables.learn_all(manifest);
    }
    let entries = update.serial_to.0.saturating_sub(update.serial_from.0);
    let status = update.status;
    let epoch = update.epoch;
    let (verdict, known_epoch, leased) = engine.views.change(partition, |view| {
        let (next, verdict) = apply(view, update, times, engine.drift);
        let now = next.as_ref().unwrap_or(view);
        let result = (verdict, now.copies.as_ref().map(|c| c.epoch), now.lease.is_some());
        (next, result)
    });
    match verdict {
        Verdict::Current => {
            engine.metrics.bf_log_entries.inc_by(entries);
            if leased { Next::Pull } else { Next::Pause(NOT_READY_PAUSE) }
        }
        Verdict::NeedFilters => {
            // A question without filters is always answered so: nothing is missing if ours are of this epoch.
            let asked_without = status == UpdateStatus::NeedFilters && known_epoch == Some(epoch) && times.server_boot == 0;
            if !asked_without {
                spawn_fetch(engine, node, partition);
            }
            Next::Pause(NOT_READY_PAUSE)
        }
        Verdict::Nothing | Verdict::Outdated => Next::Pause(NOT_READY_PAUSE),
    }
}
