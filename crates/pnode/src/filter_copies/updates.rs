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

/// How soon a partition is pulled again that has no lease to renew: its leader cannot grant, or not to us.
const NOTHING_TO_RENEW_PAUSE: Duration = Duration::from_millis(20);

/// What a partition's update means for the next pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Pull,
    /// Nothing to acknowledge and nothing to be had at once: leave the partition out for a while.
    Pause(Duration),
}

/// How a partition was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// With the position in use.
    Position,
    /// Only who leads: a leader always answers that filters are needed.
    Question,
}

/// Installs what a reply brought for one partition.
pub(super) fn handle_update(
    engine: &Arc<Engine>,
    node: NodeId,
    asked: Asked,
    update: v1::PartitionUpdate,
    times: PullTimes,
) -> Next {
    let partition = PartitionId(update.partition);
    if !engine.views.contains(partition) {
        return Next::Pause(NOTHING_TO_RENEW_PAUSE);
    }
    let hint = update.leader;
    let update = match wire::update(update) {
        Ok(update) => update,
        Err(e) => {
            tracing::warn!(%node, %partition, "bad reply to a pull: {e}");
            return Next::Pause(NOTHING_TO_RENEW_PAUSE);
        }
    };
    if update.status == UpdateStatus::NotLeader {
        if let Some(peer) = engine.memtables.get(&node) {
            peer.news.not_leader(partition, hint.as_ref());
        }
    } else if update.epoch.term > 0 {
        engine.leaders.confirm(partition, node, update.epoch.term);
    }
    install(engine, node, partition, asked, update, times)
}

fn install(
    engine: &Arc<Engine>,
    node: NodeId,
    partition: PartitionId,
    asked: Asked,
    update: Update,
    times: PullTimes,
) -> Next {
    if let Some(manifest) = &update.manifest {
        engine.views.tables.learn_all(manifest);
    }
    let entries = update.serial_to.0.saturating_sub(update.serial_from.0);
    let cannot_grant = update.status == UpdateStatus::Ok && update.grant.is_none();
    let epoch = update.epoch;
    let (verdict, ours, leased, usable) = engine.views.change(partition, |view| {
        let (next, verdict) = apply(view, update, times, engine.drift);
        let now = next.as_ref().unwrap_or(view);
        let usable = now.leased_copies(&*engine.env.clock).is_some();
        let result = (verdict, now.copies.as_ref().map(|c| c.epoch), now.lease.is_some(), usable);
        (next, result)
    });
    match verdict {
        Verdict::Current => {
            engine.metrics.bf_log_entries.inc_by(entries);
            if cannot_grant && !usable {
                // Perhaps its peers do not hear it any more, and have elected another: they are asked too.
                engine.leaders.suspect(partition, node);
            }
            // Without a lease there is nothing to renew; but what has arrived is acknowledged at once.
            if leased || entries > 0 { Next::Pull } else { Next::Pause(NOTHING_TO_RENEW_PAUSE) }
        }
        Verdict::NeedFilters if asked == Asked::Question && ours == Some(epoch) => Next::Pull,
        Verdict::NeedFilters => {
            spawn_fetch(engine, node, partition);
            Next::Pause(NOTHING_TO_RENEW_PAUSE)
        }
        Verdict::Nothing | Verdict::Outdated => Next::Pause(NOTHING_TO_RENEW_PAUSE),
    }
}
