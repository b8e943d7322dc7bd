//! Doors for the fuzz targets. Not part of the interface.

use std::sync::Arc;

use prometheus_client::registry::Registry;
use sextant_access::Allowances;
use sextant_environment::room::Room;
use sextant_environment::{Env, env, shutdown};

use crate::clients::Clients;
use crate::element_turns::ElementTurns;
use sextant_environment::slow_log::SlowLog;

use crate::connection::{Connection, Turns};
use crate::queued::QueuedRoom;
use crate::remembered::Remembered;
use crate::replies::Replies;
use crate::shared::{Server, Shared};
use crate::waiters::Waiters;
use crate::{RespConfig, RespMetrics, Store};

/// Serves one connection as a server that has no other would, until it ends.
pub async fn serve<S: Store>(env: Env, config: RespConfig, store: S, io: env::Connection) {
    let local_addr = std::net::SocketAddr::from(([127, 0, 0, 1], 6379));
    let server = Server {
        allowances: Allowances::none(env.clock.clone()),
        slow: SlowLog::off(env.clock.clone()),
        clients: Clients::new(local_addr),
        started_ns: env.clock.holder_ns(),
        key_seed: env.rng.next_u64(),
        large: Room::new(config.max_large_bytes),
        ahead: Room::new(config.max_large_bytes),
        queued: QueuedRoom::new(config.max_large_bytes),
        cursors: Arc::default(),
        keys_turns: Arc::default(),
        turns: Turns::new(config.max_commands),
        gathering: Room::new(config.max_gathered_bytes),
        elements: ElementTurns::default(),
        waiters: Waiters::new(config.max_large_bytes),
        replies: Replies::new(config.max_reply_bytes, config.patience.reply),
        remembered: Remembered::new(config.max_remembered_bytes),
        access: None,
        metrics: RespMetrics::register(&mut Registry::default()).0,
        env,
        config,
        local_addr,
    };
    let (_running, shutdown) = shutdown::channel();
    let had_its_turn = Arc::default();
    Connection::new(Shared::databases(server, &store), io, had_its_turn).run(shutdown).await;
}
