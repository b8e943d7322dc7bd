//! The network, encrypted.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::future::BoxFuture;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use rustls::pki_types::{ServerName, UnixTime};
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_environment::Env;
use sextant_environment::clock::Clock;
use sextant_environment::config::{ClientCertificates, TlsConfig, UnixListen, unix_path};
use sextant_environment::env::{
    Connection, Door, Handshake, Holder, Identity, Listener, Network, Party, Whom,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::certificate::identity_of;
use crate::files::{ClientFiles, Contents, Files};
use crate::handshakes::{Handshakes, Share};
use crate::material::Material;
use crate::refusals::Refusals;

/// A handshake is two round trips: who needs longer than this has something else in mind.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon new files are noticed.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// TLS over another network.
pub struct TlsNetwork {
    env: Env,
    shared: Arc<Shared>,
}

struct Shared {
    cluster: String,
    clock: Arc<dyn Clock>,
    files: Files,
    /// Of a server.
    clients: Option<ClientCertificates>,
    current: ArcSwap<Material>,
    refusals: Refusals,
    /// Seconds since 1970; 0: no certificate.
    expires: Gauge,
    reloads_failed: Gauge,
}

/// What a look at the files has found.
struct Seen {
    contents: Result<Contents, String>,
    /// They are not good at this time: they may be later, as they are.
    is_untimely: bool,
}

impl TlsNetwork {
    /// Of the server `me` of the cluster. `Invalid` if a file is missing or wrong, or if the certificate is not this server's;
    /// `Unavailable` if it is not valid now, as by a clock that is not set yet.
    pub fn server(env: Env, config: &TlsConfig, cluster: &str, me: Party) -> Result<Self> {
        let net = Self::new(env, Files::from(config), cluster, Some(config.clients))?;
        let mine = Identity::server(cluster, me);
        let material = net.shared.current.load();
        if material.identity.as_ref() != Some(&mine) {
            let named = material.identity.as_ref().map_or("nobody".to_owned(), Identity::to_string);
            let cert = config.cert.display();
            return Err(Error::invalid(format!(
                "tls: {cert}: this is {mine}, the certificate names {named}"
            )));
        }
        drop(material);
        Ok(net)
    }

    /// Of a client of the cluster, which connects only.
    pub fn client(env: Env, files: ClientFiles, cluster: &str) -> Result<Self> {
        Self::new(env, files.into(), cluster, None)
    }

    fn new(env: Env, files: Files, cluster: &str, clients: Option<ClientCertificates>) -> Result<Self> {
        let material = Material::new(&files, &files.read()?, clients, now(&*env.clock))?;
        let shared = Shared {
            cluster: cluster.to_owned(),
            clock: env.clock.clone(),
            files,
            clients,
            current: ArcSwap::from_pointee(material),
            refusals: Refusals::new(env.clock.clone()),
            expires: Gauge::default(),
            reloads_failed: Gauge::default(),
        };
        shared.tell_expiry();
        Ok(Self { env, shared: Arc::new(shared) })
    }

    /// When the first certificate of the chain expires, in seconds since 1970; 0: there is none.
    pub fn expires_s(&self) -> u64 {
        self.shared.current.load().expires.unwrap_or(0)
    }

    /// Looks after the files, until it is dropped: new ones are for handshakes from then on; connections that are there stay.
    pub fn watch(&self) -> impl Future<Output = ()> + Send + 'static {
        let (env, shared) = (self.env.clone(), self.shared.clone());
        async move {
            let mut seen = None;
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let looking = shared.clone();
                let before = seen.take();
                seen = env.blocking(move || looking.look(before)).await;
            }
        }
    }

    /// Reads the files again. The ones before stay in use if these are not good.
    #[cfg(test)]
    pub(crate) fn reload(&self) -> Result<()> {
        self.shared.take(&self.shared.files.read()?)
    }
}

impl Shared {
    /// Takes contents that are new, or that the time may have made good.
    fn look(&self, before: Option<Seen>) -> Seen {
        let is_first = before.is_none();
        let contents = self.files.read().map_err(|e| e.to_string());
        let same = before.filter(|before| before.contents == contents);
        let is_new = match same {
            Some(same) if !same.is_untimely => return same,
            same => same.is_none(),
        };
        let read = contents.as_ref().map_err(|why| Error::invalid(why.clone()));
        let taken = read.and_then(|contents| self.take(contents));
        self.reloads_failed.set(i64::from(taken.is_err()));
        let is_untimely = taken.as_ref().is_err_and(|e| e.kind == ErrorKind::Unavailable);
        match taken {
            Ok(()) if is_first => {}
            Ok(()) => tracing::info!(
                "the certificates were read again: valid until {} (seconds since 1970)",
                self.expires.get()
            ),
            Err(e) if is_new => tracing::error!("{e}: the certificates read before stay in use"),
            // That was told.
            Err(_) => {}
        }
        Seen { contents, is_untimely }
    }

    fn take(&self, contents: &Contents) -> Result<()> {
        let material = Material::new(&self.files, contents, self.clients, now(&*self.clock))?;
        if material.identity != self.current.load().identity {
            let cert = self.files.cert().display();
            return Err(Error::invalid(format!("tls: {cert}: it names somebody else than before")));
        }
        self.current.store(Arc::new(material));
        self.tell_expiry();
        Ok(())
    }

    fn tell_expiry(&self) {
        let expires = self.current.load().expires.unwrap_or(0);
        self.expires.set(i64::try_from(expires).unwrap_or(i64::MAX));
    }

    /// Whether who has shown `identity` may come in by `door`.
    fn admit(&self, door: Door, identity: Option<Identity>) -> io::Result<Option<Identity>> {
        match identity {
            Some(shown) if shown.cluster != self.cluster => {
                Err(denied(format!("{shown} is of another cluster")))
            }
            Some(shown) if door == Door::Members && !matches!(shown.holder, Holder::Server(_)) => {
                Err(denied(format!("{shown} is no server")))
            }
            Some(shown) => Ok(Some(shown)),
            None if door == Door::Members => {
                Err(denied("the certificate names no server of a cluster".into()))
            }
            None => Ok(None),
        }
    }

    async fn accept(&self, connection: Connection, door: Door) -> io::Result<Connection> {
        let config = self.current.load().door(door).map_err(|e| io::Error::other(e.to_string()))?;
        let peer = connection.peer;
        let stream = TlsAcceptor::from(config).accept(connection).await?;
        let identity = match stream.get_ref().1.peer_certificates() {
            Some([shown, ..]) => match identity_of(shown) {
                Some(identity) => Some(identity),
                None => return Err(denied("the certificate names nobody of a cluster".into())),
            },
            _ => None,
        };
        let identity = self.admit(door, identity)?;
        Ok(Connection::new(stream, peer).of(identity.map(Arc::new)))
    }

    async fn connect(&self, connection: Connection, addr: &str, whom: Whom) -> io::Result<Connection> {
        let (config, name) = {
            let current = self.current.load();
            match whom {
                Whom::Host => (current.hosts.clone(), server_name(addr)?),
                // Nobody looks at the name.
                Whom::Member(_) => (current.members.clone(), ServerName::from(std::net::Ipv4Addr::LOCALHOST)),
            }
        };
        let peer = connection.peer;
        let stream = TlsConnector::from(config).connect(name, connection).await.map_err(explained)?;
        let identity = match stream.get_ref().1.peer_certificates() {
            Some([shown, ..]) => identity_of(shown),
            _ => None,
        };
        if let Whom::Member(meant) = whom {
            let is_member = identity.as_ref().is_some_and(|shown| match &shown.holder {
                Holder::Server(party) => {
                    shown.cluster == self.cluster && meant.is_none_or(|meant| meant == *party)
                }
                Holder::User(_) => false,
            });
            if !is_member {
                let shown = identity.map_or("nobody of a cluster".to_owned(), |shown| shown.to_string());
                let meant = meant.map_or("a server".to_owned(), |meant| meant.to_string());
                let cluster = &self.cluster;
                return Err(denied(format!(
                    "{addr}: its certificate names {shown}, not {meant} of {cluster}"
                )));
            }
        }
        Ok(Connection::new(stream, peer).of(identity.map(Arc::new)))
    }
}

impl Network for TlsNetwork {
    fn bind(&self, addr: String, door: Door) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        let (bound, shared) = (self.env.net.bind(addr, door), self.shared.clone());
        Box::pin(async move {
            let inner = bound.await?;
            let handshakes = Arc::default();
            Ok(Box::new(TlsListener { inner, shared, door, handshakes }) as Box<dyn Listener>)
        })
    }

    /// As it is: there is no network that anybody could listen to, and the file says who may come in.
    fn bind_unix(&self, listen: UnixListen) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        self.env.net.bind_unix(listen)
    }

    fn connect(&self, addr: String, whom: Whom) -> BoxFuture<'static, io::Result<Connection>> {
        let (connecting, shared) = (self.env.net.connect(addr.clone(), whom), self.shared.clone());
        Box::pin(async move {
            let connection = connecting.await?;
            if unix_path(&addr).is_some() {
                return match whom {
                    Whom::Host => Ok(connection),
                    Whom::Member(_) => Err(denied("a member of a cluster has no Unix socket".into())),
                };
            }
            in_time(shared.connect(connection, &addr, whom)).await
        })
    }

    fn register(&self, registry: &mut Registry) {
        self.shared.refusals.register(registry);
        let expires = "When the first certificate of this server's chain expires, in seconds since 1970";
        registry.register("sextant_tls_certificate_expires_seconds", expires, self.shared.expires.clone());
        let failed =
            "1 if the certificates' files have changed and cannot be used; those read before stay in use";
        registry.register("sextant_tls_reload_failed", failed, self.shared.reloads_failed.clone());
    }
}

struct TlsListener {
    inner: Box<dyn Listener>,
    shared: Arc<Shared>,
    door: Door,
    handshakes: Arc<Handshakes>,
}

/// Of one connection.
struct Accepting {
    shared: Arc<Shared>,
    door: Door,
    share: Arc<Share>,
}

impl Listener for TlsListener {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async move {
            let connection = self.inner.accept().await?;
            let share = self.handshakes.begin(connection.peer, self.shared.clock.holder_ns());
            let (shared, door, share) = (self.shared.clone(), self.door, Arc::new(share));
            Ok(connection.before(Arc::new(Accepting { shared, door, share })))
        })
    }
}

impl Handshake for Accepting {
    fn perform(&self, connection: Connection) -> BoxFuture<'static, io::Result<Connection>> {
        let (shared, door, share) = (self.shared.clone(), self.door, self.share.clone());
        Box::pin(async move {
            let peer = connection.peer;
            let accepted = tokio::select! {
                accepted = in_time(shared.accept(connection, door)) => accepted,
                () = share.lost() => {
                    let why = "too many handshakes of its address are under way, and it took long";
                    Err(io::Error::new(io::ErrorKind::QuotaExceeded, why))
                }
            };
            drop(share);
            match &accepted {
                Ok(_) => shared.refusals.let_in(door.name()),
                Err(e) => shared.refusals.refused(door.name(), &shown(peer), e),
            }
            accepted
        })
    }
}

/// For logs.
fn shown(peer: Option<SocketAddr>) -> String {
    peer.map_or_else(|| "an unknown address".to_owned(), |peer| peer.to_string())
}

/// As certificates say when they are good.
fn now(clock: &dyn Clock) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_nanos(clock.wall_guess_ns()))
}

async fn in_time(handshake: impl Future<Output = io::Result<Connection>>) -> io::Result<Connection> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long");
    tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await.unwrap_or_else(|_| Err(late()))
}

/// Whoever answers with something else than TLS listens without it.
fn explained(e: io::Error) -> io::Error {
    let cause = e.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidMessage(_)) => io::Error::new(
            e.kind(),
            "what answers there speaks no TLS: the port is not encrypted (or another program's)",
        ),
        None if e.kind() == io::ErrorKind::UnexpectedEof => io::Error::new(
            e.kind(),
            "the connection ended during the handshake: the port is not encrypted, or does not take the certificate",
        ),
        _ => e,
    }
}

/// The host of `host:port`.
fn server_name(addr: &str) -> io::Result<ServerName<'static>> {
    let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let named = ServerName::try_from(host);
    named.map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, format!("{addr}: {e}")))
}

fn denied(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}
