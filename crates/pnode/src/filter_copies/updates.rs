//! What a pull of any kind does with its reply.

use std::sync::Arc;
use std::time::Duration;

use sextant_common::ids::{ManifestVersion, NodeId, PartitionId};
use sextant_proto::convert::manifest_change::ToldOfManifest;

use super::copy::{Update, UpdateStatus, Verdict, apply};
use super::whole::WholeFetches;
use super::wire::PartitionReply;
use crate::lease::PullTimes;
use crate::view::PartitionView;

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

/// What a view has after a leader has told of its manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Current,
    /// The view is too far behind for changes, or they would not fit a message.
    Behind,
    /// The changes were for what the view has, and led to something else.
    Differs,
}

impl Standing {
    fn of(before: ManifestVersion, now: &PartitionView, told: &ToldOfManifest) -> Self {
        match now.lacks(told) {
            false => Standing::Current,
            true if told.changes.iter().any(|change| change.from == before) => Standing::Differs,
            true => Standing::Behind,
        }
    }
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
    let told = update.told.clone();
    let entries = update.serial_to.0.saturating_sub(update.serial_from.0);
    let cannot_grant = update.status == UpdateStatus::Ok && update.grant.is_none();
    let epoch = update.epoch;
    let (verdict, ours, leased, usable, standing) = core.views.change(partition, |view| {
        let before = view.manifest.version;
        let (next, verdict) = apply(view, update, times, core.drift);
        let now = next.as_ref().unwrap_or(view);
        let standing = told.as_ref().map_or(Standing::Current, |told| Standing::of(before, now, told));
        let usable = now.leased_copies(&*core.env.clock).is_some();
        let result = (verdict, now.copies.as_ref().map(|c| c.epoch), now.lease.is_some(), usable, standing);
        (next, result)
    });
    if standing == Standing::Differs {
        core.manifest_differs(partition, node);
    }
    if standing != Standing::Current {
        whole.spawn_manifest(node, partition);
    }
    match verdict {
        Verdict::Current => {
            core.metrics.bf_log_entries.inc_by(entries);
            if cannot_grant && !usable {
                // Perhaps its peers do not hear it any more, and have elected another: they are asked too.
                core.leaders.suspect(partition, node);
            }
            if standing != Standing::Current {
                // Until it is here the leader has news for us at once, whenever it is asked.
                return Next::Pause(NOTHING_TO_RENEW_PAUSE);
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
