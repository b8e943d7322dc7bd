//! The pull loop: one per memtable server, one request outstanding.
//!
//! The loops run on a thread of their own: an acknowledgement that waits behind a busy runtime would hold up every write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sextant_common::ids::{NodeId, PartitionId};
use sextant_common::{Error, Result};
use sextant_environment::config::LeaseMode;
use sextant_environment::env::{Party, cluster_channel, error_of};
use sextant_environment::shutdown::Shutdown;
use sextant_proto::MESSAGE_BYTES_MAX;
use sextant_proto::v1;
use sextant_proto::v1::lease_client::LeaseClient;
use sextant_rules::probe::PausePoint;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use super::prober::run_prober;
use super::updates::{Asked, Next, handle_update};
use super::wire;
use crate::engine::Engine;
use crate::lease::{ClockWatch, Contradiction, Drift, PullTimes};
use crate::upstream::Backoff;

/// A server parks a pull for about so long, or half a lease if that is longer.
const PARKED_MAX: Duration = Duration::from_millis(100);
/// What a reply may take beyond that, on a busy machine.
const REPLY_SLACK: Duration = Duration::from_millis(400);
/// How long before the end of a timed lease the next one is asked for.
const TIMED_MARGIN: Duration = Duration::from_millis(2);
/// Longest wait between pulls if some of the server's partitions are not timed.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_millis(3);
/// Longest wait between attempts to reach a server.
const RECONNECT_WAIT_MAX: Duration = Duration::from_millis(250);
/// How long to wait for something to pull if nobody wakes the loop: only a safety net.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// How long leases are not used after clocks have contradicted each other.
const DOUBT_NS: u64 = 60_000_000_000;

/// Runs the pull loops and probers of all memtable servers until shutdown.
pub(crate) async fn run_pull_loops(engine: Arc<Engine>, shutdown: Shutdown) {
    let servers = engine.config.cluster.memtable.iter().map(|server| {
        let (me, to) = (Party::pnode(engine.config.id), Party::memtable(server.id));
        let channel = cluster_channel(&engine.env.net, &server.addr, &engine.config.cluster, me, Some(to));
        let client = LeaseClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let puller = Puller {
            engine: engine.clone(),
            node: server.id,
            client: client.clone(),
            paused: BTreeMap::new(),
            pull: 0,
            watch: ClockWatch::default(),
            drift: engine.drift,
            doubtful_until_ns: 0,
            silent_until_ns: 0,
        };
        let prober = run_prober(engine.clone(), server.id, client);
        let mut shutdown = shutdown.clone();
        async move {
            tokio::select! {
                () = shutdown.wait() => {}
                ((), ()) = async { tokio::join!(puller.run(), prober) } => {}
            }
        }
    });
    futures::future::join_all(servers).await;
}

struct Puller {
    engine: Arc<Engine>,
    node: NodeId,
    client: LeaseClient<Channel>,
    /// Partitions to leave out, until when.
    paused: BTreeMap<PartitionId, u64>,
    pull: u64,
    watch: ClockWatch,
    /// The larger of our drift bound and the server's.
    drift: Drift,
    /// Our clock has been caught going slow against this server's: none of its leases is used before.
    doubtful_until_ns: u64,
    /// No word in the log about clocks before.
    silent_until_ns: u64,
}

struct Exchange {
    requests: mpsc::Sender<v1::PullRequest>,
    replies: Streaming<v1::PullReply>,
}

impl Puller {
    async fn run(mut self) {
        let mut backoff = Backoff::up_to(RECONNECT_WAIT_MAX);
        loop {
            let pulls_before = self.pull;
            let error = self.run_stream().await;
            tracing::debug!(node = %self.node, "pull stream ended: {error}");
            self.engine.metrics.pulls_failed.inc();
            // Whoever leads there may have gone: the probers ask everybody.
            self.engine.leaders.suspect_all_of(self.node);
            if self.pull > pulls_before + 1 {
                backoff.reset();
            }
            tokio::time::sleep(backoff.step(&*self.engine.env.rng)).await;
        }
    }

    /// Pulls until something fails.
    async fn run_stream(&mut self) -> Error {
        let mut exchange = None;
        loop {
            let positions = self.positions_when_there_are_any().await;
            self.pull += 1;
            let request = v1::PullRequest {
                holder: self.engine.holder.clone(),
                pull: self.pull,
                positions,
                no_wait: false,
                no_leases: self.engine.env.clock.holder_ns() < self.doubtful_until_ns,
            };
            // Before the request leaves: an earlier instant only shortens the lease.
            let sent_ns = self.engine.env.clock.holder_ns();
            let reply = match self.exchange(&mut exchange, request).await {
                Ok(reply) => reply,
                Err(e) => return e,
            };
            // When the reply was here; what holds it up from now on makes nothing longer.
            let received_ns = self.engine.env.clock.holder_ns();
            self.engine.env.pause_point(PausePoint::PullAnswered).await;
            self.install(sent_ns, received_ns, reply);
            self.wait_for_the_end_of_timed_leases().await;
        }
    }

    /// Timed leases are short and the server parks no pull for them: see [`pause_between_pulls`].
    async fn wait_for_the_end_of_timed_leases(&self) {
        let clock = &*self.engine.env.clock;
        let led =
            self.engine.views.partitions().filter(|p| self.engine.leaders.get(*p).node == Some(self.node));
        let leases =
            led.filter_map(|p| self.engine.views.peek(p).lease.as_ref().map(|l| (l.mode, l.left_ns(clock))));
        let wait = pause_between_pulls(leases);
        if wait >= Duration::from_millis(1) {
            tokio::time::sleep(wait).await;
        }
    }

    async fn exchange(
        &mut self,
        exchange: &mut Option<Exchange>,
        request: v1::PullRequest,
    ) -> Result<v1::PullReply> {
        let half_lease = self.engine.config.cluster.lease.lease() / 2;
        let limit = PARKED_MAX.max(half_lease) + REPLY_SLACK;
        let pull = request.pull;
        let answered = async {
            let open = match exchange {
                Some(open) => {
                    open.requests
                        .send(request)
                        .await
                        .map_err(|_| Error::unavailable("the stream is closed"))?;
                    open
                }
                None => exchange.insert(open_with(&mut self.client, request).await?),
            };
            loop {
                let reply = open.replies.message().await.map_err(error_of)?;
                match reply.ok_or_else(|| Error::unavailable("the server closed the stream"))? {
                    reply if reply.pull == pull => return Ok(reply),
                    // Of a pull that was given up.
                    _ => {}
                }
            }
        };
        let answer = tokio::time::timeout(limit, answered).await;
        answer.unwrap_or_else(|_| Err(Error::unavailable("no reply to a pull in time")))
    }

    fn install(&mut self, sent_ns: u64, received_ns: u64, reply: v1::PullReply) {
        let engine = self.engine.clone();
        let clock = &engine.env.clock;
        let times = PullTimes {
            sent_ns,
            received_ns,
            parked_ns: reply.parked_ns,
            server_mono_ns: reply.server_mono_ns,
            server_boot: reply.server_boot,
        };
        for lease in reply.updates.iter().filter_map(|u| u.lease.as_ref()) {
            self.drift = self.drift.or_more(lease.drift_ppm);
        }
        let doubtful = self.in_doubt(times);
        for mut update in reply.updates {
            let partition = PartitionId(update.partition);
            if doubtful {
                // As if the server would not grant any.
                update.lease = None;
                if update.status() == v1::PartitionStatus::PartitionOk {
                    update.status = v1::PartitionStatus::PartitionThrottled.into();
                }
                self.engine.views.give_up_lease(partition);
            }
            match handle_update(&self.engine, self.node, Asked::Position, update, times) {
                Next::Pull => {
                    self.paused.remove(&partition);
                }
                Next::Pause(pause) => {
                    let until = clock.holder_ns().saturating_add(pause.as_nanos() as u64);
                    self.paused.insert(partition, until);
                }
            }
        }
        let metrics = &self.engine.metrics;
        metrics.pulls.inc();
        let took_ns = clock.holder_ns().saturating_sub(sent_ns).saturating_sub(reply.parked_ns);
        metrics.pull_seconds.observe(took_ns as f64 / 1e9);
    }

    /// Whether our clock may be too slow for this server's leases. Reads go on without them.
    fn in_doubt(&mut self, times: PullTimes) -> bool {
        if let Some(found) = self.watch.see(times, self.drift) {
            self.engine.metrics.clock_contradictions.inc();
            // Once a minute: it is in every reply while it lasts.
            if times.received_ns >= self.silent_until_ns {
                self.silent_until_ns = times.received_ns.saturating_add(DOUBT_NS);
                tracing::error!(
                    node = %self.node, ?found,
                    "this machine's clock and the memtable server's drift apart by more than the configured bound"
                );
            }
            if found == Contradiction::OursIsSlow {
                self.doubtful_until_ns = times.received_ns.saturating_add(DOUBT_NS);
                // It is our clock: whoever else's leases are good will be renewed.
                self.engine.views.partitions().for_each(|p| self.engine.views.give_up_lease(p));
            }
        }
        times.received_ns < self.doubtful_until_ns
    }

    /// Positions of the partitions that this server leads and of which we have filters.
    async fn positions_when_there_are_any(&mut self) -> Vec<v1::PartitionPosition> {
        loop {
            // Subscribed before looking: no change is missed.
            let mut leaders = self.engine.leaders.watch_all();
            let mut fetches = self.engine.whole_fetches.watch();
            leaders.mark_unchanged();
            fetches.mark_unchanged();
            let now_ns = self.engine.env.clock.holder_ns();
            self.paused.retain(|_, until| *until > now_ns);
            let positions = self.positions();
            if !positions.is_empty() {
                return positions;
            }
            let resume_ns = self.paused.values().min().map(|until| until.saturating_sub(now_ns));
            let idle = resume_ns.map_or(IDLE_MAX, |ns| Duration::from_nanos(ns).min(IDLE_MAX));
            tokio::select! {
                _ = leaders.changed() => {}
                _ = fetches.changed() => {}
                () = tokio::time::sleep(idle) => {}
            }
        }
    }

    fn positions(&self) -> Vec<v1::PartitionPosition> {
        let engine = &self.engine;
        let led = engine.views.partitions().filter(|p| {
            let leader = engine.leaders.get(*p);
            leader.is_certain()
                && leader.node == Some(self.node)
                && !self.paused.contains_key(p)
                && !engine.whole_fetches.is_running(*p)
        });
        led.filter_map(|p| {
            let view = engine.views.peek(p);
            view.copies.is_some().then(|| wire::position(p, &view, &*engine.env.clock))
        })
        .collect()
    }
}

/// How long the next pull waits, given the leases of a server's partitions and what is left of them, in nanoseconds. Timed leases
/// are renewed a little before the first one ends (the paper: 400 us; a timer here is a millisecond coarse). Whoever grants the
/// others waits for what a pull acknowledges, so they are never kept waiting long: partitions are in different modes while a change
/// of the mode goes through them.
fn pause_between_pulls(leases: impl Iterator<Item = (LeaseMode, u64)>) -> Duration {
    let (mut timed_left_ns, mut waited_for) = (None, false);
    for (mode, left_ns) in leases {
        match mode {
            LeaseMode::Timed => {
                timed_left_ns = Some(timed_left_ns.map_or(left_ns, |least: u64| least.min(left_ns)));
            }
            LeaseMode::Ack => waited_for = true,
        }
    }
    let pause = Duration::from_nanos(timed_left_ns.unwrap_or(0)).saturating_sub(TIMED_MARGIN);
    if waited_for { pause.min(ACKNOWLEDGED_WITHIN) } else { pause }
}

/// Opens a stream with its first request, which need not wait for the server's headers.
async fn open_with(client: &mut LeaseClient<Channel>, request: v1::PullRequest) -> Result<Exchange> {
    let (requests, outbound) = mpsc::channel(1);
    let _ = requests.try_send(request);
    let replies = client.pull(ReceiverStream::new(outbound)).await.map_err(error_of)?.into_inner();
    Ok(Exchange { requests, replies })
}

/// One pull on a stream of its own.
pub(super) async fn pull_once(
    client: &mut LeaseClient<Channel>,
    request: v1::PullRequest,
    limit: Duration,
) -> Result<v1::PullReply> {
    let answered = async {
        let mut exchange = open_with(client, request).await?;
        let reply = exchange.replies.message().await.map_err(error_of)?;
        reply.ok_or_else(|| Error::unavailable("the server closed the stream"))
    };
    tokio::time::timeout(limit, answered)
        .await
        .unwrap_or_else(|_| Err(Error::unavailable("no reply to a pull in time")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn pulls_pause_for_timed_leases_only_and_hold_up_no_acknowledgement() {
        let pause = |leases: &[(LeaseMode, u64)]| pause_between_pulls(leases.iter().copied());
        use LeaseMode::{Ack, Timed};
        assert_eq!(pause(&[]), Duration::ZERO);
        assert_eq!(pause(&[(Ack, 300 * MS), (Ack, 200 * MS)]), Duration::ZERO);
        assert_eq!(pause(&[(Timed, 12 * MS), (Timed, 22 * MS)]), Duration::from_millis(10));
        assert_eq!(pause(&[(Timed, 12 * MS), (Timed, 0)]), Duration::ZERO, "one is over");
        assert_eq!(pause(&[(Timed, 12 * MS), (Ack, 300 * MS)]), ACKNOWLEDGED_WITHIN);
        assert_eq!(pause(&[(Timed, 4 * MS), (Ack, 300 * MS)]), Duration::from_millis(2));
    }
}
