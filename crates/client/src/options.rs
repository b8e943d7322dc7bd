//! What an application may choose. Plain data with documented defaults.

use std::time::Duration;

use sextant_common::error::{Error, Result};
use sextant_common::operation::ReadMode;

/// Options of a [`crate::Client`], in one place; applications set them with a [`crate::ClientBuilder`].
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// How long an operation may take, retries and failover included. Default: 5 s.
    pub deadline: Duration,
    /// How long the first p-node that is asked may be silent before another is asked. Doubles with every silence within
    /// one operation, so that a large value over a slow network gets through. Default: 1 s.
    pub attempt_timeout: Duration,
    /// Read mode of gets. Default: pda.
    pub mode: ReadMode,
    /// Whether writes carry a session and a request number. Without, a write whose answer is lost is not retried and
    /// ends as `OutcomeUnknown`. Default: true.
    pub sessions: bool,
    /// Who the client is, where the cluster has users; none: who its certificate says, if it shows one.
    pub credentials: Option<Credentials>,
    /// HTTP/2 connections to each p-node, used in turn; scans have as many of their own. Default: 1.
    pub connections: usize,
}

/// Name and password of a user. Travels with each call: over TLS, unless nobody else is on the network.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Without a colon.
    pub user: String,
    /// Is not shown by `Debug`.
    pub password: String,
}

/// Without the password.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(5),
            attempt_timeout: Duration::from_secs(1),
            mode: ReadMode::Pda,
            sessions: true,
            credentials: None,
            connections: 1,
        }
    }
}

impl ClientOptions {
    pub(crate) fn validate(&self) -> Result<()> {
        if self.deadline.is_zero() || self.attempt_timeout.is_zero() {
            return Err(Error::invalid("deadline and attempt_timeout must be longer than 0"));
        }
        if self.connections == 0 || self.connections > CONNECTIONS_MAX {
            return Err(Error::invalid(format!("connections: 1 to {CONNECTIONS_MAX}")));
        }
        Ok(())
    }
}

/// More connections than this to one p-node help nobody: a connection carries thousands of concurrent calls.
const CONNECTIONS_MAX: usize = 64;
