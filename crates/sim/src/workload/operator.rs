//! The operator: on errands for the faults (a freeze just now, leadership there), and of its own accord: freezes, flushes and compactions on demand, transfers of leadership, other lease lengths, other voters; at any
//! time. At the end of the load every server is to be a voter again.

use std::sync::Arc;
use std::time::Duration;

use sextant_common::env::grpc_channel;
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;
use tonic::Status;
use tonic::transport::Channel;

use super::Shared;
use crate::cluster::memtable_addrs;
use crate::host::{Host, mix};
use crate::plan::{MEMTABLE_SERVERS, Scene, pick};
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
}

impl Command {
    /// Flushes more often than the rest.
    const ALL: [Command; 10] = [
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
        }
    }
}

pub async fn operate(shared: Arc<Shared>, host: Arc<Host>) {
    let mut rng = fastrand::Rng::with_seed(mix(shared.world.seed, 3_000));
    let env = host.boot();
    let channels: Vec<_> = memtable_addrs().iter().map(|addr| grpc_channel(&env.net, addr)).collect();
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
    let channels: Vec<_> = memtable_addrs().iter().map(|addr| grpc_channel(&env.net, addr)).collect();
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
    voters: Vec<u64>,
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
                command => command,
            },
            lease_ms,
            leader_lease_ms: lease_ms + pick(rng, &LEADERS_LEASES_LONGER_MS),
            voters: {
                // Often all of them, so that there is something to take away.
                let mut all: Vec<u64> = (1..=MEMTABLE_SERVERS as u64).collect();
                rng.shuffle(&mut all);
                all.truncate(*pick(rng, &[1, 2, 2, 3, 3, 3]));
                all
            },
        }
    }

    /// One for all partitions, or one for each.
    fn wanted(wanted: Wanted, partitions: u32) -> Vec<Self> {
        let (command, to) = match wanted {
            Wanted::Freeze => (Command::Freeze, 0),
            Wanted::Flush => (Command::Flush, 0),
            Wanted::Transfer { to } => (Command::Transfer, to),
            Wanted::LongLeases => (Command::Configure, 0),
        };
        let each = !matches!(command, Command::Freeze | Command::Flush);
        let orders = (0..if each { partitions } else { 1 }).map(|partition| Self {
            command,
            table: String::new(),
            partition,
            to,
            lease_ms: LONG_LEASE_MS,
            leader_lease_ms: LONG_LEASE_MS + LONG_LEASE_MS / 2,
            voters: Vec::new(),
        });
        orders.collect()
    }

    /// Counted if it is done in time.
    async fn see_done(&self, shared: &Shared, channel: Channel) {
        if let Ok(Ok(true)) = tokio::time::timeout(PATIENCE, self.give(channel)).await {
            shared.count(self.command.name());
        }
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
