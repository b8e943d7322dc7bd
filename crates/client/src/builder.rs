//! How an application says where the cluster is, who it is, and how long it waits.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sextant_common::error::{Error, Result};
use sextant_common::operation::ReadMode;
use sextant_environment::Env;
use sextant_tls::{ClientFiles, TlsNetwork};

use crate::client::{Background, Client};
use crate::options::{ClientOptions, Credentials};

/// Addresses of p-nodes, each `host:port`, or `unix:/path/of/a/socket` of one on this machine. The first is preferred, the others are for failover.
///
/// Made from one address, from several with commas between them, or from a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses(Vec<String>);

impl From<&str> for Addresses {
    fn from(addresses: &str) -> Self {
        Self(addresses.split(',').map(|addr| addr.trim().to_owned()).collect())
    }
}

impl From<String> for Addresses {
    fn from(addresses: String) -> Self {
        addresses.as_str().into()
    }
}

impl From<&String> for Addresses {
    fn from(addresses: &String) -> Self {
        addresses.as_str().into()
    }
}

impl<S: Into<String>> From<Vec<S>> for Addresses {
    fn from(addresses: Vec<S>) -> Self {
        Self(addresses.into_iter().map(Into::into).collect())
    }
}

impl<S: Into<String>, const N: usize> From<[S; N]> for Addresses {
    fn from(addresses: [S; N]) -> Self {
        Self(addresses.map(Into::into).into())
    }
}

/// Settings of a [`Client`].
///
/// ```no_run
/// # async fn run() -> sextant_client::Result<()> {
/// use std::time::Duration;
/// use sextant_client::Client;
///
/// let client = Client::builder(["pnode-1:7400", "pnode-2:7400"])
///     .tls("ca.pem")
///     .user("app", "secret")
///     .deadline(Duration::from_secs(2))
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it does nothing until it connects"]
pub struct ClientBuilder {
    addresses: Addresses,
    options: ClientOptions,
    ca: Option<PathBuf>,
    certificate: Option<(PathBuf, PathBuf)>,
}

impl ClientBuilder {
    pub(crate) fn new(addresses: Addresses) -> Self {
        Self { addresses, options: ClientOptions::default(), ca: None, certificate: None }
    }

    /// Encrypts connections, to servers whose certificates an authority in this PEM file has issued. The file is read
    /// again when it changes.
    pub fn tls(mut self, ca: impl Into<PathBuf>) -> Self {
        self.ca = Some(ca.into());
        self
    }

    /// Shows a certificate (PEM files of it and of its key); needs [`Self::tls`]. Where the cluster has users, it names
    /// one.
    pub fn certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.certificate = Some((certificate.into(), key.into()));
        self
    }

    /// Says who the client is with each call, by name and password. Without [`Self::tls`] whoever is on the network can
    /// read them.
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.options.credentials = Some(Credentials { user: name.into(), password: password.into() });
        self
    }

    /// How long an operation may take, retries and failover included. Default: 5 s.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.options.deadline = deadline;
        self
    }

    /// How long the first p-node that is asked may be silent before another is asked. Default: 1 s.
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.options.attempt_timeout = timeout;
        self
    }

    /// How gets find the tier that has a record. All modes are linearizable; the default is the fastest.
    pub fn read_mode(mut self, mode: ReadMode) -> Self {
        self.options.mode = mode;
        self
    }

    /// Whether writes carry a session and a number, so that they can be sent again. Default: true. Without, a write whose
    /// answer is lost ends as [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown) at once.
    pub fn sessions(mut self, sessions: bool) -> Self {
        self.options.sessions = sessions;
        self
    }

    /// HTTP/2 connections to each p-node, used in turn; scans have as many of their own. Default: 1, which carries thousands of calls
    /// at a time.
    pub fn connections(mut self, connections: usize) -> Self {
        self.options.connections = connections;
        self
    }

    /// The client. To be called in a tokio runtime.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if an address, a file or a setting is bad. Whether anybody
    /// listens is seen when the client is first used.
    pub async fn connect(self) -> Result<Client> {
        let Addresses(addresses) = self.addresses;
        let env = Env::real();
        let (net, watch) = match (self.ca, self.certificate) {
            (None, None) => return Client::new(env, addresses, self.options, None),
            (None, Some(_)) => {
                return Err(Error::invalid("a certificate without tls: which authority is the servers'?"));
            }
            (Some(ca), shown) => {
                let net = TlsNetwork::client(env.clone(), ClientFiles { ca, shown }, "")?;
                let watch = Background::spawn(net.watch());
                (Arc::new(net), watch)
            }
        };
        Client::new(Env { net, ..env }, addresses, self.options, Some(watch))
    }
}

#[cfg(test)]
mod tests {
    use sextant_common::ErrorKind;

    use super::*;

    #[test]
    fn addresses_are_one_or_several() {
        let both = Addresses(vec!["a:1".into(), "b:2".into()]);
        assert_eq!(Addresses::from("a:1, b:2"), both);
        assert_eq!(Addresses::from(["a:1", "b:2"]), both);
        assert_eq!(Addresses::from(vec!["a:1".to_owned(), "b:2".to_owned()]), both);
        assert_eq!(Addresses::from("a:1"), Addresses(vec!["a:1".into()]));
    }

    #[tokio::test]
    async fn what_cannot_be_meant_is_refused_before_anything_is_sent() {
        let refused = async |builder: ClientBuilder| {
            let error = builder.connect().await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
            error.message.into_owned()
        };
        for addresses in ["", "a", "a:0", "a:1,,b:2", "http://a:1"] {
            assert!(refused(Client::builder(addresses)).await.contains("bad address"), "{addresses}");
        }
        refused(Client::builder(Vec::<String>::new())).await;
        refused(Client::builder("a:1").deadline(Duration::ZERO)).await;
        refused(Client::builder("a:1").connections(0)).await;
        refused(Client::builder("a:1").user("a:b", "c")).await;
        assert!(refused(Client::builder("a:1").certificate("c", "k")).await.contains("which authority"));
        assert!(refused(Client::builder("a:1").tls("/nowhere/ca.pem")).await.contains("/nowhere/ca.pem"));
        // Nobody is asked yet.
        Client::connect("nobody.invalid:1").await.unwrap();
    }
}
