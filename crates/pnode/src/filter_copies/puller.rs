//! The pull loop: one per memtable server, one request outstanding.
//!
//! The loops run on a thread of their own: an acknowledgement that waits behind a busy runtime would hold up every write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sextant_common::ids::{NodeId, PartitionId};
use sextant_common::{Error, Result};
use sextant_environment::config::LeaseMode;
use sextant_environment::env::Party;
use sextant_environment::shutdown::Shutdown;
use sextant_rules::probe::PausePoint;

use super::copy::UpdateStatus;
use super::prober::run_prober;
use super::updates::{Asked, Next, handle_update};
use super::whole::WholeFetches;
use super::wire::{Position, Pull, PullReply, PullStream};
use crate::core::Core;
use crate::lease::{ClockWatch, Contradiction, Drift, PullTimes};
use crate::upstream::{Backoff, Leases, connect_leases};

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
pub(super) async fn run_pull_loops(core: Arc<Core>, whole: Arc<WholeFetches>, shutdown: Shutdown) {
    let servers = core.config.cluster.memtable.iter().map(|server| {
        let me = Party::pnode(core.config.id);
        let leases = connect_leases(&core.env, &server.addr, &core.config.cluster, me, server.id);
        let puller = Puller {
            core: core.clone(),
            whole: whole.clone(),
            node: server.id,
            leases: leases.clone(),
            paused: BTreeMap::new(),
            pull: 0,
            watch: ClockWatch::default(),
            drift: core.drift,
            doubtful_until_ns: 0,
            silent_until_ns: 0,
        };
        let prober = run_prober(core.clone(), whole.clone(), server.id, leases);
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
    core: Arc<Core>,
    whole: Arc<WholeFetches>,
    node: NodeId,
    leases: Leases,
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

impl Puller {
    async fn run(mut self) {
        let mut backoff = Backoff::up_to(RECONNECT_WAIT_MAX);
        loop {
            let pulls_before = self.pull;
            let error = self.run_stream().await;
            tracing::debug!(node = %self.node, "pull stream ended: {error}");
            self.core.metrics.pulls_failed.inc();
            // Whoever leads there may have gone: the probers ask everybody.
            self.core.leaders.suspect_all_of(self.node);
            if self.pull > pulls_before + 1 {
                backoff.reset();
            }
            tokio::time::sleep(backoff.step(&*self.core.env.rng)).await;
        }
    }

    /// Pulls until something fails.
    async fn run_stream(&mut self) -> Error {
        let mut stream = None;
        loop {
            let positions = self.positions_when_there_are_any().await;
            self.pull += 1;
            let pull = Pull {
                holder: self.core.holder.clone(),
                number: self.pull,
                positions,
                no_wait: false,
                no_leases: self.core.env.clock.holder_ns() < self.doubtful_until_ns,
            };
            // Before the request leaves: an earlier instant only shortens the lease.
            let sent_ns = self.core.env.clock.holder_ns();
            let reply = match self.exchange(&mut stream, pull).await {
                Ok(reply) => reply,
                Err(e) => return e,
            };
            // When the reply was here; what holds it up from now on makes nothing longer.
            let received_ns = self.core.env.clock.holder_ns();
            self.core.env.pause_point(PausePoint::PullAnswered).await;
            self.install(sent_ns, received_ns, reply);
            self.wait_for_the_end_of_timed_leases().await;
        }
    }

    /// Timed leases are short and the server parks no pull for them: see [`pause_between_pulls`].
    async fn wait_for_the_end_of_timed_leases(&self) {
        let clock = &*self.core.env.clock;
        let led = self.core.views.partitions().filter(|p| self.core.leaders.get(*p).node == Some(self.node));
        let leases =
            led.filter_map(|p| self.core.views.peek(p).lease.as_ref().map(|l| (l.mode, l.left_ns(clock))));
        let wait = pause_between_pulls(leases);
        if wait >= Duration::from_millis(1) {
            tokio::time::sleep(wait).await;
        }
    }

    async fn exchange(&mut self, stream: &mut Option<PullStream>, pull: Pull) -> Result<PullReply> {
        let half_lease = self.core.config.cluster.lease.lease() / 2;
        let limit = PARKED_MAX.max(half_lease) + REPLY_SLACK;
        let number = pull.number;
        let answered = async {
            let open = match stream {
                Some(open) => {
                    open.send(pull).await?;
                    open
                }
                None => stream.insert(PullStream::open(&mut self.leases, pull).await?),
            };
            loop {
                match open.next().await? {
                    reply if reply.number == number => return Ok(reply),
                    // Of a pull that was given up.
                    _ => {}
                }
            }
        };
        let answer = tokio::time::timeout(limit, answered).await;
        answer.unwrap_or_else(|_| Err(Error::unavailable("no reply to a pull in time")))
    }

    fn install(&mut self, sent_ns: u64, received_ns: u64, reply: PullReply) {
        let core = self.core.clone();
        let clock = &core.env.clock;
        let times = PullTimes {
            sent_ns,
            received_ns,
            parked_ns: reply.parked_ns,
            server_mono_ns: reply.server_mono_ns,
            server_boot: reply.server_boot,
        };
        let updates = reply.partitions.iter().filter_map(|p| p.update.as_ref().ok());
        for grant in updates.filter_map(|u| u.grant.as_ref()) {
            self.drift = self.drift.or_more(grant.drift_ppm);
        }
        let doubtful = self.in_doubt(times);
        for mut reply in reply.partitions {
            let partition = reply.partition;
            if doubtful {
                if let Ok(update) = &mut reply.update {
                    // As if the server would not grant any.
                    update.grant = None;
                    if update.status == UpdateStatus::Ok {
                        update.status = UpdateStatus::Throttled;
                    }
                }
                core.views.give_up_lease(partition);
            }
            match handle_update(&self.whole, self.node, Asked::Position, reply, times) {
                Next::Pull => {
                    self.paused.remove(&partition);
                }
                Next::Pause(pause) => {
                    let until = clock.holder_ns().saturating_add(pause.as_nanos() as u64);
                    self.paused.insert(partition, until);
                }
            }
        }
        let metrics = &core.metrics;
        metrics.pulls.inc();
        let took_ns = clock.holder_ns().saturating_sub(sent_ns).saturating_sub(reply.parked_ns);
        metrics.pull_seconds.observe(took_ns as f64 / 1e9);
    }

    /// Whether our clock may be too slow for this server's leases. Reads go on without them.
    fn in_doubt(&mut self, times: PullTimes) -> bool {
        if let Some(found) = self.watch.see(times, self.drift) {
            self.core.metrics.clock_contradictions.inc();
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
                self.core.views.partitions().for_each(|p| self.core.views.give_up_lease(p));
            }
        }
        times.received_ns < self.doubtful_until_ns
    }

    /// Positions of the partitions that this server leads and of which we have filters.
    async fn positions_when_there_are_any(&mut self) -> Vec<Position> {
        loop {
            // Subscribed before looking: no change is missed.
            let mut leaders = self.core.leaders.watch_all();
            let mut fetches = self.whole.watch();
            leaders.mark_unchanged();
            fetches.mark_unchanged();
            let now_ns = self.core.env.clock.holder_ns();
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

    fn positions(&self) -> Vec<Position> {
        let core = &self.core;
        let led = core.views.partitions().filter(|p| {
            let leader = core.leaders.get(*p);
            leader.is_certain()
                && leader.node == Some(self.node)
                && !self.paused.contains_key(p)
                && !self.whole.is_running(*p)
        });
        led.filter_map(|p| {
            let view = core.views.peek(p);
            view.copies.is_some().then(|| Position::in_use(p, &view, &*core.env.clock))
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
