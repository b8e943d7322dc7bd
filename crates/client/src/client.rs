//! The handle.

use std::sync::Arc;
use std::time::Duration;

use sextant_common::error::Result;
use sextant_common::operation::ReadMode;
use sextant_environment::Env;
use sextant_proto::MESSAGE_BYTES_MAX;
use sextant_proto::v1::kv_client::KvClient;

use crate::builder::{Addresses, ClientBuilder};
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
    _watch: Option<Background>,
}

/// A task that ends with whoever holds this.
pub(crate) struct Background(tokio::task::JoinHandle<()>);

impl Background {
    pub fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Client {
    /// A client of the p-nodes at `addresses`, with defaults for everything else; [`Client::builder`] has the rest.
    ///
    /// Connects when it is first used: a client may be started before the servers.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if an address is bad.
    ///
    /// ```no_run
    /// # async fn run() -> sextant_client::Result<()> {
    /// use sextant_client::Client;
    ///
    /// let client = Client::connect("127.0.0.1:7401").await?;
    /// client.put("", "greeting", "hello").await?;
    /// let record = client.get("", "greeting").await?;
    /// assert_eq!(record.unwrap().value, "hello");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(addresses: impl Into<Addresses>) -> Result<Client> {
        Self::builder(addresses).connect().await
    }

    /// A client with settings of its own: TLS, a user, deadlines.
    pub fn builder(addresses: impl Into<Addresses>) -> ClientBuilder {
        ClientBuilder::new(addresses.into())
    }

    /// A client in an environment of the caller's: for simulations, and for tools that have one.
    #[doc(hidden)]
    pub async fn connect_in(env: Env, addrs: Vec<String>, options: ClientOptions) -> Result<Client> {
        Self::new(env, addrs, options, None)
    }

    /// `watch` goes on for as long as there is a client.
    pub(crate) fn new(
        env: Env,
        addrs: Vec<String>,
        options: ClientOptions,
        watch: Option<Background>,
    ) -> Result<Client> {
        options.validate()?;
        let says = Says::new(options.credentials.as_ref())?;
        let endpoints = Endpoints::new(&env.net, &addrs, options.connections, says)?;
        let sessions = SessionPool::new();
        let inner = Inner { env, endpoints, sessions, use_sessions: options.sessions, _watch: watch };
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

    /// How its gets find the tier that has a record.
    pub fn mode(&self) -> ReadMode {
        self.mode
    }

    /// How long each of its operations may take.
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
