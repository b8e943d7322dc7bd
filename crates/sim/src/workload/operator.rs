//! The operator: freezes, flushes and compactions on demand, at any time.

use std::sync::Arc;
use std::time::Duration;

use sextant_common::env::grpc_channel;
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;

use super::Shared;
use crate::cluster::memtable_addrs;
use crate::host::{Host, mix};
use crate::plan::pick;

/// How long a command may take before it is given up.
const PATIENCE: Duration = Duration::from_secs(2);

pub async fn operate(shared: Arc<Shared>, host: Arc<Host>) {
    let mut rng = fastrand::Rng::with_seed(mix(shared.world.seed, 3_000));
    let env = host.boot();
    let channels: Vec<_> = memtable_addrs().iter().map(|addr| grpc_channel(&env.net, addr)).collect();
    shared.load_begins().await;
    while shared.loading() {
        tokio::time::sleep(Duration::from_millis(rng.u64(50..1_500))).await;
        let what = *pick(&mut rng, &["freeze", "flush", "flush", "compact"]);
        let table = match rng.u64(0..3) {
            0 => String::new(),
            _ => shared.plan.tables[rng.usize(0..shared.plan.tables.len())].0.clone(),
        };
        for channel in &channels {
            let request = v1::MaintenanceRequest { table: table.clone(), partitions: Vec::new() };
            let mut admin = AdminClient::new(channel.clone());
            let call = async {
                match what {
                    "freeze" => admin.freeze(request).await,
                    "flush" => admin.flush(request).await,
                    _ => admin.compact(request).await,
                }
            };
            if let Ok(Ok(reply)) = tokio::time::timeout(PATIENCE, call).await
                && !reply.into_inner().done.is_empty()
            {
                shared.count(what);
            }
        }
    }
}
