//! What a pull of any kind does with its reply.

use std::sync::Arc;
use std::time::Duration;

use sextant_common::ids::{NodeId, PartitionId};

use super::copy::{Update, UpdateStatus, Verdict, apply};
use super::whole::WholeFetches;
use super::wire::PartitionReply;
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
    whole: &Arc<WholeFetches>,
    node: NodeId,
    asked: Asked,
    reply: PartitionReply,
    times: PullTimes,
) -> Next {
    let core = &whole.core;
    let PartitionReply { partition, hint, update } = reply;
    if !core.views.contains(partition) {
        return Next::Pause(NOTHING_TO_RENEW_PAUSE);
    }
    let update = match update {
        Ok(update) => update,
        Err(e) => {
            tracing::warn!(%node, %partition, "bad reply to a pull: {e}");
            return Next::Pause(NOTHING_TO_RENEW_PAUSE);
        }
    };
    if update.status == UpdateStatus::NotLeader {
        if let Some(peer) = core.memtables.get(&node) {
            peer.news.not_leader(partition, hint);
        }
    } else if update.epoch.term > 0 {
        core.leaders.confirm(partition, node, update.epoch.term);
    }
    install(whole, node, partition, asked, update, times)
}

fn install(
    whole: &Arc<WholeFetches>,
    node: NodeId,
    partition: PartitionId,
    asked: Asked,
    update: Update,
    times: PullTimes,
) -> Next {
    let core = &whole.core;
    if let Some(manifest) = &update.manifest {
        core.views.tables.learn_all(manifest);
    }
    let entries = update.serial_to.0.saturating_sub(update.serial_from.0);
    let cannot_grant = update.status == UpdateStatus::Ok && update.grant.is_none();
    let epoch = update.epoch;
    let (verdict, ours, leased, usable) = core.views.change(partition, |view| {
        let (next, verdict) = apply(view, update, times, core.drift);
        let now = next.as_ref().unwrap_or(view);
        let usable = now.leased_copies(&*core.env.clock).is_some();
        let result = (verdict, now.copies.as_ref().map(|c| c.epoch), now.lease.is_some(), usable);
        (next, result)
    });
    match verdict {
        Verdict::Current => {
            core.metrics.bf_log_entries.inc_by(entries);
            if cannot_grant && !usable {
                // Perhaps its peers do not hear it any more, and have elected another: they are asked too.
                core.leaders.suspect(partition, node);
            }
            // Without a lease there is nothing to renew; but what has arrived is acknowledged at once.
            if leased || entries > 0 { Next::Pull } else { Next::Pause(NOTHING_TO_RENEW_PAUSE) }
        }
        Verdict::NeedFilters if asked == Asked::Question && ours == Some(epoch) => Next::Pull,
        Verdict::NeedFilters => {
            whole.spawn(node, partition);
            Next::Pause(NOTHING_TO_RENEW_PAUSE)
        }
        Verdict::Nothing | Verdict::Outdated => Next::Pause(NOTHING_TO_RENEW_PAUSE),
    }
}
