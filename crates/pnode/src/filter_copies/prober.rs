//! Finding leaders: asks a server about the partitions whose leader is not certain, and about those that it leads but of
//! which no filters are here. Apart from the pull loop, which is parked most of the time and must not be hurried.

use std::sync::Arc;
use std::time::Duration;

use sextant_common::ids::NodeId;
use sextant_proto::v1;
use sextant_proto::v1::lease_client::LeaseClient;
use tonic::transport::Channel;

use super::puller::pull_once;
use super::updates::{Asked, handle_update};
use super::wire;
use crate::engine::Engine;
use crate::lease::PullTimes;
use crate::upstream::Backoff;

/// How long a question may take: a server that is up answers at once.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// Longest pause between questions: an election takes several times as long.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How long to wait if nobody wakes the prober: only a safety net.
const IDLE_MAX: Duration = Duration::from_secs(1);

pub(super) async fn run_prober(engine: Arc<Engine>, node: NodeId, mut client: LeaseClient<Channel>) {
    let mut backoff = Backoff::up_to(PAUSE_MAX);
    loop {
        let mut leaders = engine.leaders.watch_all();
        let mut fetches = engine.whole_fetches.watch();
        leaders.mark_unchanged();
        fetches.mark_unchanged();
        let questions = questions(&engine, node);
        if questions.is_empty() {
            backoff.reset();
            tokio::select! {
                _ = leaders.changed() => {}
                _ = fetches.changed() => {}
                () = tokio::time::sleep(IDLE_MAX) => {}
            }
            continue;
        }
        let request = v1::PullRequest {
            holder: engine.holder.clone(),
            pull: 1,
            positions: questions,
            no_wait: true,
            no_leases: false,
        };
        let sent_ns = engine.env.clock.holder_ns();
        match pull_once(&mut client, request, ANSWER_MAX).await {
            Ok(reply) => {
                let times = PullTimes {
                    sent_ns,
                    received_ns: engine.env.clock.holder_ns(),
                    parked_ns: reply.parked_ns,
                    server_mono_ns: reply.server_mono_ns,
                    server_boot: reply.server_boot,
                };
                for update in reply.updates {
                    handle_update(&engine, node, Asked::Question, update, times);
                }
            }
            Err(e) => {
                // Whoever was only hinted at, and does not answer, is looked for elsewhere.
                tracing::debug!(%node, "probe failed: {e}");
                engine.leaders.suspect_all_of(node);
            }
        }
        tokio::time::sleep(backoff.step(&*engine.env.rng)).await;
    }
}

fn questions(engine: &Engine, node: NodeId) -> Vec<v1::PartitionPosition> {
    let asked = engine.leaders.asked_of(node).into_iter().filter(|p| !engine.whole_fetches.is_running(*p));
    asked
        .filter_map(|p| {
            let view = engine.views.peek(p);
            let open = !engine.leaders.get(p).is_certain() || view.copies.is_none();
            open.then(|| wire::question(p, &view))
        })
        .collect()
}
