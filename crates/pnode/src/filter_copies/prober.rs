//! Finding leaders: asks a server about the partitions whose leader is not certain, and about those that it leads but of
//! which no filters are here. Apart from the pull loop, which is parked most of the time and must not be hurried.

use std::sync::Arc;
use std::time::Duration;

use sextant_common::ids::NodeId;
use sextant_environment::env::shown_cluster;

use super::updates::{Asked, handle_update};
use super::whole::WholeFetches;
use super::wire::{Position, Pull, pull_once};
use crate::core::Core;
use crate::lease::PullTimes;
use crate::upstream::{Backoff, Leases};

/// How long a question may take: a server that is up answers at once.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// Longest pause between questions: an election takes several times as long.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How long to wait if nobody wakes the prober: only a safety net.
const IDLE_MAX: Duration = Duration::from_secs(1);

pub(super) async fn run_prober(core: Arc<Core>, whole: Arc<WholeFetches>, node: NodeId, mut leases: Leases) {
    let mut backoff = Backoff::up_to(PAUSE_MAX);
    loop {
        let mut leaders = core.leaders.watch_all();
        let mut fetches = whole.watch();
        leaders.mark_unchanged();
        fetches.mark_unchanged();
        let questions = questions(&core, &whole, node);
        if questions.is_empty() {
            backoff.reset();
            tokio::select! {
                _ = leaders.changed() => {}
                _ = fetches.changed() => {}
                () = tokio::time::sleep(IDLE_MAX) => {}
            }
            continue;
        }
        let pull = Pull {
            holder: core.holder.clone(),
            number: 1,
            positions: questions,
            no_wait: true,
            no_leases: false,
        };
        let sent_ns = core.env.clock.holder_ns();
        match pull_once(&mut leases, pull, ANSWER_MAX).await {
            Ok(reply) => {
                if core.refusals.is_over(node) {
                    tracing::info!("memtable server {node} answers this p-node");
                }
                let times = PullTimes {
                    sent_ns,
                    received_ns: core.env.clock.holder_ns(),
                    parked_ns: reply.parked_ns,
                    server_mono_ns: reply.server_mono_ns,
                    server_boot: reply.server_boot,
                };
                for reply in reply.partitions {
                    handle_update(&whole, node, Asked::Question, reply, times);
                }
            }
            Err(e) => {
                // Whoever was only hinted at, and does not answer, is looked for elsewhere.
                tracing::debug!(%node, "probe failed: {e}");
                if core.refusals.is_news(node, &e) {
                    let ours = shown_cluster(&core.config.cluster);
                    tracing::warn!(
                        "memtable server {node} refuses this p-node, which is of {ours}: {}",
                        e.message
                    );
                }
                core.leaders.suspect_all_of(node);
            }
        }
        tokio::time::sleep(backoff.step(&*core.env.rng)).await;
    }
}

fn questions(core: &Core, whole: &WholeFetches, node: NodeId) -> Vec<Position> {
    let asked = core.leaders.asked_of(node).into_iter().filter(|p| !whole.is_running(*p));
    asked
        .filter_map(|p| {
            let view = core.views.peek(p);
            let open = !core.leaders.get(p).is_certain() || view.copies.is_none();
            open.then(|| Position::question(p, &view))
        })
        .collect()
}
