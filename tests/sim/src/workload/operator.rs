//! The operator: on errands for the faults (a freeze just now, leadership there), and of its own accord: freezes, flushes and compactions on demand, transfers of leadership, other lease lengths, other voters; at any
//! time. At the end of the load every server is to be a voter again.

use std::sync::Arc;
use std::time::Duration;

use sextant_environment::Env;
use sextant_environment::config::{LeaseMode, Server};
use sextant_environment::env::{Party, cluster_channel};
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;
use tonic::Status;
use tonic::transport::Channel;

use super::Shared;
use crate::cluster;
use crate::host::{Host, mix};
use crate::plan::{MEMTABLE_SERVERS, SSTABLE_SERVERS, Scene, pick};
use crate::world::Wanted;

/// How long a command may take before it is given up.
const PATIENCE: Duration = Duration::from_secs(2);
/// Leases last so long, and the leader's so much longer.
const LEASES_MS: [u64; 4] = [100, 150, 200, 300];
/// Longer than those that servers start with.
const LONG_LEASE_MS: u64 = 500;
const LEADERS_LEASES_LONGER_MS: [u64; 3] = [60, 100, 200];

#[derive(Clone, Copy)]
enum Command {
    Freeze,
    Flush,
    Compact,
    Transfer,
    Configure,
    Voters,
    /// The mode of leases, or the bound on drift.
    Mode,
    /// An sstable server is to be empty, or none is.
    Drain,
}

impl Command {
    /// Flushes more often than the rest.
    const ALL: [Command; 12] = [
        Command::Freeze,
        Command::Flush,
        Command::Flush,
        Command::Compact,
        Command::Compact,
        Command::Transfer,
        Command::Transfer,
        Command::Configure,
        Command::Voters,
        Command::Voters,
        Command::Drain,
        Command::Drain,
    ];

    /// Under what it is counted.
    fn name(self) -> &'static str {
        match self {
            Command::Freeze => "freezes_on_demand",
            Command::Flush => "flushes_on_demand",
            Command::Compact => "compactions_on_demand",
            Command::Transfer => "transfers",
            Command::Configure => "lease_lengths_changed",
            Command::Voters => "voters_changed",
            Command::Mode => "modes_changed",
            Command::Drain => "drains",
        }
    }
}

/// To all memtable servers, which answer nobody who does not name their cluster.
pub(super) fn channels(shared: &Shared, env: &Env) -> Vec<Channel> {
    let config = cluster::config(&shared.plan);
    let channel = |server: &Server| cluster_channel(&env.net, &server.addr, &config, Party::TOOL, None);
    config.memtable.iter().map(channel).collect()
}

pub async fn operate(shared: Arc<Shared>, host: Arc<Host>) {
    let mut rng = fastrand::Rng::with_seed(mix(shared.world.seed, 3_000));
    let env = host.boot();
    let channels: Vec<_> = channels(&shared, &env);
    shared.load_begins().await;
    while shared.loading() {
        let pause = Duration::from_millis(rng.u64(50..1_500));
        tokio::time::sleep(pause).await;
        let order = Order::new(&shared, &mut rng);
        // Whoever leads does it; the others refuse.
        for channel in &channels {
            order.see_done(&shared, channel.clone()).await;
        }
    }
}

/// What faults want done at that very moment: nothing waits for anything.
pub async fn run_errands(shared: Arc<Shared>, host: Arc<Host>) {
    let env = host.boot();
    let channels: Vec<_> = channels(&shared, &env);
    loop {
        let wanted = shared.world.wanted().await;
        for order in Order::wanted(wanted, shared.plan.partitions) {
            for channel in channels.clone() {
                let (shared, order) = (shared.clone(), order.clone());
                tokio::spawn(async move { order.see_done(&shared, channel).await });
            }
        }
    }
}

/// A command with its particulars.
#[derive(Clone)]
struct Order {
    command: Command,
    table: String,
    partition: u32,
    to: u64,
    lease_ms: u64,
    leader_lease_ms: u64,
    mode: v1::LeaseMode,
    /// At least what clocks really do. None: as it is.
    drift_ppm: Option<u64>,
    voters: Vec<u64>,
    draining: Vec<u64>,
}

impl Order {
    fn new(shared: &Shared, rng: &mut fastrand::Rng) -> Self {
        let plan = &shared.plan;
        let lease_ms = *pick(rng, &LEASES_MS);
        Self {
            table: match rng.u64(0..3) {
                0 => String::new(),
                _ => plan.tables[rng.usize(0..plan.tables.len())].0.clone(),
            },
            partition: rng.u32(0..plan.partitions),
            to: rng.u64(1..=MEMTABLE_SERVERS as u64),
            command: match *pick(rng, &Command::ALL) {
                // Two voters of two commit nothing while the log of one hangs.
                Command::Voters if plan.theme == Some(Scene::HungUnderLease) => Command::Flush,
                // Which servers may be wiped is judged by who votes now.
                Command::Voters if plan.wipes => Command::Flush,
                Command::Configure | Command::Compact if plan.modes && rng.bool() => Command::Mode,
                command => command,
            },
            lease_ms,
            leader_lease_ms: lease_ms + pick(rng, &LEADERS_LEASES_LONGER_MS),
            mode: if rng.bool() { v1::LeaseMode::Ack } else { v1::LeaseMode::Timed },
            drift_ppm: Some(plan.lease.drift_ppm * rng.u64(1..=3)),
            voters: {
                // Often all of them, so that there is something to take away.
                let mut all: Vec<u64> = (1..=MEMTABLE_SERVERS as u64).collect();
                rng.shuffle(&mut all);
                all.truncate(*pick(rng, &[1, 2, 2, 3, 3, 3]));
                all
            },
            draining: match rng.u64(0..3) {
                0 => Vec::new(),
                _ => vec![rng.u64(1..=SSTABLE_SERVERS as u64)],
            },
        }
    }

    /// One for all partitions, or one for each.
    fn wanted(wanted: Wanted, partitions: u32) -> Vec<Self> {
        if wanted == Wanted::OtherMode {
            // Nobody knows which one it is: one of the two changes something.
            let one = Self::all_wanted(Command::Mode, 0, v1::LeaseMode::Ack, Vec::new(), partitions);
            let other = Self::all_wanted(Command::Mode, 0, v1::LeaseMode::Timed, Vec::new(), partitions);
            return one.into_iter().chain(other).collect();
        }
        let (command, to, voters) = match wanted {
            Wanted::Freeze => (Command::Freeze, 0, Vec::new()),
            Wanted::Flush => (Command::Flush, 0, Vec::new()),
            Wanted::Transfer { to } => (Command::Transfer, to, Vec::new()),
            Wanted::Alone { node } => (Command::Voters, 0, vec![node]),
            Wanted::LongLeases | Wanted::OtherMode => (Command::Configure, 0, Vec::new()),
        };
        Self::all_wanted(command, to, v1::LeaseMode::Ack, voters, partitions)
    }

    fn all_wanted(
        command: Command,
        to: u64,
        mode: v1::LeaseMode,
        voters: Vec<u64>,
        partitions: u32,
    ) -> Vec<Self> {
        let each = !matches!(command, Command::Freeze | Command::Flush);
        let orders = (0..if each { partitions } else { 1 }).map(|partition| Self {
            command,
            table: String::new(),
            partition,
            to,
            lease_ms: LONG_LEASE_MS,
            leader_lease_ms: LONG_LEASE_MS + LONG_LEASE_MS / 2,
            mode,
            drift_ppm: None,
            voters: voters.clone(),
            draining: Vec::new(),
        });
        orders.collect()
    }

    /// Counted if it is done in time.
    async fn see_done(&self, shared: &Shared, channel: Channel) {
        if let Ok(Ok(true)) = tokio::time::timeout(PATIENCE, self.give(channel)).await {
            match self.command {
                Command::Mode => self.count_changes(shared),
                command => shared.count(command.name()),
            }
        }
    }

    /// What was asked for may have been so already.
    fn count_changes(&self, shared: &Shared) {
        let first = {
            let timed = shared.plan.lease.mode == LeaseMode::Timed;
            (if timed { v1::LeaseMode::Timed } else { v1::LeaseMode::Ack }, shared.plan.lease.drift_ppm)
        };
        let mut modes = shared.modes.lock();
        let (mode, drift_ppm) = modes.entry(self.partition).or_insert(first);
        let (mode_before, drift_before) = (*mode, *drift_ppm);
        (*mode, *drift_ppm) = (self.mode, self.drift_ppm.unwrap_or(drift_before));
        let changed =
            [(mode_before != *mode, "modes_changed"), (drift_before != *drift_ppm, "drifts_changed")];
        drop(modes);
        changed.iter().filter(|(changed, _)| *changed).for_each(|(_, what)| shared.count(what));
    }

    /// Whether anything was done.
    async fn give(&self, to: Channel) -> Result<bool, Status> {
        let mut admin = AdminClient::new(to);
        let work = v1::MaintenanceRequest { table: self.table.clone(), partitions: Vec::new() };
        let reply = match self.command {
            Command::Freeze => admin.freeze(work).await?,
            Command::Flush => admin.flush(work).await?,
            Command::Compact => admin.compact(work).await?,
            Command::Transfer => {
                let request = v1::TransferRequest { partition: self.partition, to: self.to };
                let reply = admin.transfer(request).await?;
                return Ok(reply.into_inner().leader == self.to);
            }
            Command::Configure => {
                let request = v1::ConfigureRequest {
                    partitions: vec![self.partition],
                    lease_ms: Some(self.lease_ms),
                    leader_lease_ms: Some(self.leader_lease_ms),
                    ..Default::default()
                };
                admin.configure(request).await?
            }
            Command::Mode => {
                let request = v1::ConfigureRequest {
                    partitions: vec![self.partition],
                    lease_mode: Some(self.mode.into()),
                    drift_ppm: self.drift_ppm,
                    ..Default::default()
                };
                admin.configure(request).await?
            }
            Command::Drain => {
                let draining = Some(v1::Draining { nodes: self.draining.clone() });
                admin.configure(v1::ConfigureRequest { draining, ..Default::default() }).await?
            }
            Command::Voters => {
                let request =
                    v1::ChangeVotersRequest { partition: self.partition, voters: self.voters.clone() };
                admin.change_voters(request).await?;
                return Ok(true);
            }
        };
        Ok(!reply.into_inner().done.is_empty())
    }
}
