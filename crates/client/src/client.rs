//! The handle.

use std::sync::Arc;
use std::time::Duration;

use sextant_common::error::Result;
use sextant_common::operation::ReadMode;
use sextant_environment::Env;
use sextant_proto::MESSAGE_BYTES_MAX;
use sextant_proto::v1::kv_client::KvClient;

use crate::endpoints::Endpoints;
use crate::options::ClientOptions;
use crate::sessions::SessionPool;
use crate::wire::{Says, Wire};

/// A client of a cluster. Cheap to clone; clones share connections and sessions, but have read mode and deadline of
/// their own.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
    mode: ReadMode,
    deadline: Duration,
    attempt_timeout: Duration,
}

pub(crate) struct Inner {
    pub env: Env,
    pub endpoints: Endpoints,
    pub sessions: SessionPool,
    use_sessions: bool,
}

impl Client {
    /// A client of the p-nodes at `addrs` (each `host:port`; the first is preferred, the others are for failover).
    ///
    /// Connects when it is first used: a client may be started before the servers. `Invalid` if an address or an option
    /// is bad.
    pub async fn connect(env: Env, addrs: Vec<String>, options: ClientOptions) -> Result<Client> {
        options.validate()?;
        let endpoints =
            Endpoints::new(&env.net, &addrs, options.connections, Says::new(options.credentials.as_ref())?)?;
        let inner = Inner { env, endpoints, sessions: SessionPool::new(), use_sessions: options.sessions };
        Ok(Client {
            inner: Arc::new(inner),
            mode: options.mode,
            deadline: options.deadline,
            attempt_timeout: options.attempt_timeout,
        })
    }

    /// The same client with another read mode.
    pub fn with_mode(&self, mode: ReadMode) -> Client {
        Client { mode, ..self.clone() }
    }

    /// The same client with another deadline for each operation.
    pub fn with_deadline(&self, deadline: Duration) -> Client {
        Client { deadline, ..self.clone() }
    }

    pub fn mode(&self) -> ReadMode {
        self.mode
    }

    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    pub(crate) fn with_attempt_timeout(&self, attempt_timeout: Duration) -> Client {
        Client { attempt_timeout, ..self.clone() }
    }

    pub(crate) fn attempt_timeout(&self) -> Duration {
        self.attempt_timeout
    }

    pub(crate) fn uses_sessions(&self) -> bool {
        self.inner.use_sessions
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("mode", &self.mode)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

pub(crate) fn kv(channel: Wire) -> KvClient<Wire> {
    KvClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}
