//! What all connections of a server share.

use std::net::SocketAddr;
use std::sync::Arc;

use sextant_access::Desk;
use sextant_environment::Env;
use sextant_environment::room::Room;

use crate::clients::Clients;
use crate::config::RespConfig;
use crate::connection::Turns;
use crate::metrics::Metrics;
use crate::replies::Replies;

pub(crate) struct Shared<S> {
    pub env: Env,
    pub config: RespConfig,
    pub store: S,
    pub metrics: Arc<Metrics>,
    pub clients: Clients,
    pub local_addr: SocketAddr,
    pub started_ns: u64,
    /// Keys of pipelines are hashed with it, so that clients cannot aim at collisions.
    pub key_seed: u64,
    /// For long requests.
    pub large: Room,
    pub turns: Turns,
    pub replies: Replies,
    /// None: everybody may do everything.
    pub access: Option<Arc<Desk>>,
}

impl<S> Shared<S> {
    pub fn now_ns(&self) -> u64 {
        self.env.clock.holder_ns()
    }
}
