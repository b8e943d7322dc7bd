//! Connecting and listening, behind a trait, and the glue that runs gRPC over it.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{Stream, StreamExt};
use prometheus_client::registry::Registry;

use super::dialing::dial;
use super::handshake::Party;
use super::hangup::Hangup;
use super::identity::Identity;
use super::keep_alive::keep_alive;
use super::names::Names;
use super::unix;
use crate::config::{ClusterConfig, UnixListen, unix_path};
use sextant_common::error::{Error, ErrorKind};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// What a listener is for, and so who may come in where connections are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Door {
    /// Calls between servers of the cluster.
    Members,
    /// Clients, over gRPC.
    Grpc,
    /// Clients, over the Redis protocol.
    Resp,
    /// Operators, over gRPC.
    Admin,
    /// Metrics, health, status.
    Http,
}

impl Door {
    pub const ALL: [Self; 5] = [Self::Members, Self::Grpc, Self::Resp, Self::Admin, Self::Http];

    pub fn name(self) -> &'static str {
        match self {
            Self::Members => "members",
            Self::Grpc => "grpc",
            Self::Resp => "resp",
            Self::Admin => "admin",
            Self::Http => "http",
        }
    }
}

/// Who is to be at the other end of a connection that this side opens, where connections are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// Whoever has a certificate for the host that the address names.
    Host,
    /// A server of this cluster; which one, if that is known. Hosts and addresses may change: its certificate names the server.
    Member(Option<Party>),
}

/// What is left to be done on a connection that was accepted, before anything can be read from it.
pub trait Handshake: Send + Sync + 'static {
    fn perform(&self, connection: Connection) -> BoxFuture<'static, io::Result<Connection>>;
}

/// A byte stream to a peer: TCP, or a Unix socket. Nagle's algorithm is off.
pub struct Connection {
    io: Io,
    pub peer: Option<SocketAddr>,
    /// Who the peer is, by its certificate.
    pub identity: Option<Arc<Identity>>,
    handshake: Option<Arc<dyn Handshake>>,
}

enum Io {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
    Other(Box<dyn ByteStream>),
}

/// A connection that belongs to no runtime: on its way from the thread that accepted it to the one that serves it.
pub struct DetachedConnection {
    io: DetachedStream,
    peer: Option<SocketAddr>,
    identity: Option<Arc<Identity>>,
    handshake: Option<Arc<dyn Handshake>>,
}

enum DetachedStream {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
    Other(Box<dyn ByteStream>),
}

impl Connection {
    pub fn new(io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, peer: Option<SocketAddr>) -> Self {
        Self { io: Io::Other(Box::new(io)), peer, identity: None, handshake: None }
    }

    fn tcp(stream: tokio::net::TcpStream, peer: Option<SocketAddr>) -> Self {
        Self { io: Io::Tcp(stream), peer, identity: None, handshake: None }
    }

    pub(super) fn unix(stream: tokio::net::UnixStream) -> Self {
        Self { io: Io::Unix(stream), peer: None, identity: None, handshake: None }
    }

    /// The same, of a peer that has shown who it is.
    pub fn of(self, identity: Option<Arc<Identity>>) -> Self {
        Self { identity, ..self }
    }

    /// The same, but nothing may be read from it or written to it before [`Self::established`] has returned it.
    pub fn before(self, handshake: Arc<dyn Handshake>) -> Self {
        Self { handshake: Some(handshake), ..self }
    }

    /// Returns when the peer may speak: to be awaited where the connection is served, so that one that takes its time delays nobody
    /// else. Fails if the peer may not come in.
    pub fn established(mut self) -> BoxFuture<'static, io::Result<Connection>> {
        match self.handshake.take() {
            Some(handshake) => handshake.perform(self),
            None => Box::pin(std::future::ready(Ok(self))),
        }
    }

    /// The peer is asked whether it is still there when nothing has come from it for so long (a second or more), and the connection
    /// fails if it does not say so: after the same time again. TCP only.
    pub fn keep_alive(&self, after: Duration) -> io::Result<()> {
        match &self.io {
            Io::Tcp(stream) => keep_alive(stream, after),
            Io::Unix(_) | Io::Other(_) => Ok(()),
        }
    }

    /// Takes a socket off this runtime's reactor, so that another runtime can serve it without waking this one for
    /// every message. Streams of another kind (a simulation's) are passed on as they are.
    pub fn detach(self) -> io::Result<DetachedConnection> {
        let io = match self.io {
            Io::Tcp(stream) => DetachedStream::Tcp(stream.into_std()?),
            Io::Unix(stream) => DetachedStream::Unix(stream.into_std()?),
            Io::Other(io) => DetachedStream::Other(io),
        };
        Ok(DetachedConnection { io, peer: self.peer, identity: self.identity, handshake: self.handshake })
    }

    fn stream(self: Pin<&mut Self>) -> Pin<&mut (dyn ByteStream + '_)> {
        match &mut self.get_mut().io {
            Io::Tcp(stream) => Pin::new(stream),
            Io::Unix(stream) => Pin::new(stream),
            Io::Other(io) => Pin::new(&mut **io),
        }
    }
}

impl DetachedConnection {
    /// Registers the connection with the runtime that this is called in.
    pub fn attach(self) -> io::Result<Connection> {
        let io = match self.io {
            DetachedStream::Tcp(stream) => Io::Tcp(tokio::net::TcpStream::from_std(stream)?),
            DetachedStream::Unix(stream) => Io::Unix(tokio::net::UnixStream::from_std(stream)?),
            DetachedStream::Other(io) => Io::Other(io),
        };
        Ok(Connection { io, peer: self.peer, identity: self.identity, handshake: self.handshake })
    }
}

pub trait Listener: Send + 'static {
    /// The address that was bound (with the port that was chosen, if 0 was asked for).
    fn local_addr(&self) -> io::Result<SocketAddr>;
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Connection>>;
}

/// Why a server cannot listen where its configuration says. What is no address, or forbidden, is for whoever wrote the
/// configuration: `Invalid`. A port that somebody has, an address that this host does not have (yet), a name that nobody tells the
/// address of, may be had later, and so may what fails for a reason that nobody has thought of: `Unavailable`.
pub fn cannot_listen(what: &str, e: &io::Error) -> Error {
    let kind = match e.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied => ErrorKind::Invalid,
        io::ErrorKind::Unsupported | io::ErrorKind::AlreadyExists => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("{what}: {e}"))
}

pub trait Network: Send + Sync + 'static {
    /// `addr` is `host:port`.
    fn bind(&self, addr: String, door: Door) -> BoxFuture<'static, io::Result<Box<dyn Listener>>>;

    /// Listens on a Unix socket, for clients on this machine. Never encrypted: who may come in is said by the file.
    fn bind_unix(&self, _: UnixListen) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        Box::pin(async {
            Err(io::Error::new(io::ErrorKind::Unsupported, "this network has no Unix sockets"))
        })
    }

    /// `addr` is `host:port`, or `unix:` and a path.
    fn connect(&self, addr: String, whom: Whom) -> BoxFuture<'static, io::Result<Connection>>;

    /// Its metrics, if it has any.
    fn register(&self, _: &mut Registry) {}
}

/// Real TCP and Unix sockets; names are resolved again for each connection.
#[derive(Debug, Default)]
pub struct TcpNetwork {
    names: Names,
}

struct TcpAcceptor(tokio::net::TcpListener);

impl Listener for TcpAcceptor {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async move {
            let (stream, peer) = self.0.accept().await?;
            stream.set_nodelay(true)?;
            Ok(Connection::tcp(stream, Some(peer)))
        })
    }
}

impl Network for TcpNetwork {
    fn bind(&self, addr: String, _: Door) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        let names = self.names.clone();
        Box::pin(async move {
            let bound = async { tokio::net::TcpListener::bind(&*names.resolve(&addr).await?).await }.await;
            let listener =
                bound.map_err(|e| io::Error::new(e.kind(), format!("cannot listen on {addr}: {e}")))?;
            Ok(Box::new(TcpAcceptor(listener)) as Box<dyn Listener>)
        })
    }

    fn bind_unix(&self, listen: UnixListen) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        Box::pin(unix::bind(listen.path, listen.mode.0))
    }

    fn connect(&self, addr: String, _: Whom) -> BoxFuture<'static, io::Result<Connection>> {
        let names = self.names.clone();
        Box::pin(async move {
            if let Some(path) = unix_path(&addr) {
                return unix::connect(path).await;
            }
            let stream = dial(&names.resolve(&addr).await?).await?;
            stream.set_nodelay(true)?;
            let peer = stream.peer_addr().ok();
            Ok(Connection::tcp(stream, peer))
        })
    }
}

/// How long a connection attempt may take. A peer that is up answers in a round trip.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// HTTP/2 keep-alive: how soon a silent peer is noticed.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(2);

/// What a peer may send before it is read, in bytes: of one call, and of all calls of a connection.
#[derive(Clone, Copy)]
struct Windows {
    call: u32,
    connection: u32,
}

/// Answers are read as they come.
const READ_AT_ONCE: Windows = Windows { call: 4 * 1024 * 1024, connection: 16 * 1024 * 1024 };
/// What is not read of some streams leaves room for hundreds of others.
const READ_LATER: Windows = Windows { call: 2 * 1024 * 1024, connection: 512 * 2 * 1024 * 1024 };

/// A gRPC channel to `addr` (`host:port`, or `unix:` and a path) that connects when it is first used and again whenever it has to. Deadlines of
/// calls are the caller's.
pub fn grpc_channel(net: &Arc<dyn Network>, addr: &str) -> tonic::transport::Channel {
    channel(net, addr, None, Whom::Host, READ_AT_ONCE)
}

/// The same, for streams that whoever asked may leave unread for as long as it likes. Not for other calls: the fewer bytes a stream may
/// have on the way, the slower a long answer is.
pub fn grpc_stream_channel(net: &Arc<dyn Network>, addr: &str) -> tonic::transport::Channel {
    channel(net, addr, None, Whom::Host, READ_LATER)
}

/// The same, between servers of a cluster: its calls say which one, who calls and who is called, as far as the caller knows
/// ([`super::internal_calls`]).
pub fn cluster_channel(
    net: &Arc<dyn Network>,
    addr: &str,
    cluster: &ClusterConfig,
    from: Party,
    to: Option<Party>,
) -> tonic::transport::Channel {
    let user_agent = super::handshake::user_agent(cluster, from, to);
    channel(net, addr, Some(user_agent), Whom::Member(to), READ_AT_ONCE)
}

fn channel(
    net: &Arc<dyn Network>,
    addr: &str,
    user_agent: Option<String>,
    whom: Whom,
    windows: Windows,
) -> tonic::transport::Channel {
    let net = net.clone();
    let target = addr.to_owned();
    // What a call's `:authority` says; a path is none.
    let uri = unix_path(addr).map_or_else(|| format!("http://{addr}"), |_| "http://localhost".to_owned());
    let endpoint = tonic::transport::Endpoint::from_shared(uri)
        .unwrap_or_else(|_| tonic::transport::Endpoint::from_static("http://invalid.invalid:1"));
    let endpoint = match user_agent {
        // Names and digits are always valid in a header.
        Some(user_agent) => endpoint.clone().user_agent(user_agent).unwrap_or(endpoint),
        None => endpoint,
    };
    let endpoint = endpoint
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(windows.call)
        .initial_connection_window_size(windows.connection)
        // Answers to calls that were given up are no attack: a connection does not end for how many of them come late.
        .http2_max_local_error_reset_streams(None::<usize>)
        .tcp_nodelay(true);
    endpoint.connect_with_connector_lazy(tower::service_fn(move |_: axum::http::Uri| {
        let connecting = net.connect(target.clone(), whom);
        // (Within the connector: whoever asks is told that there was no connection, however that came.)
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, connecting);
        async move {
            let connected = connecting.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            connected.map(hyper_util::rt::TokioIo::new)
        }
    }))
}

/// Handshakes under way at a time, of one listener's connections in one runtime. A slow one is cut off by its own deadline.
pub const HANDSHAKES_MAX: usize = 4096;

/// The connections of a stream when they are [`Connection::established`]; those that are refused are left out.
pub fn established<T: Send + 'static, E: Send + 'static>(
    connections: impl Stream<Item = io::Result<T>> + Send + 'static,
    establish: impl Fn(T) -> BoxFuture<'static, io::Result<E>> + Send + Sync + 'static,
) -> impl Stream<Item = io::Result<E>> + Send + 'static {
    let handshakes = connections.map(move |connection| {
        let established = connection.map(&establish);
        async move {
            match established {
                // Who was refused is logged and counted by who refuses.
                Ok(established) => established.await.ok().map(Ok),
                Err(e) => Some(Err(e)),
            }
        }
    });
    handshakes.buffer_unordered(HANDSHAKES_MAX).filter_map(std::future::ready)
}

/// The accepted connections of a listener as a stream for tonic's `serve_with_incoming`. A failed accept is logged and
/// does not end the server.
pub fn grpc_incoming(
    listener: Box<dyn Listener>,
) -> impl Stream<Item = io::Result<Connection>> + Send + 'static {
    established(accepted(listener), Connection::established)
}

/// The accepted connections of a listener, none of them established. A failed accept is logged and does not end the stream.
pub(crate) fn accepted(
    mut listener: Box<dyn Listener>,
) -> impl Stream<Item = io::Result<Connection>> + Send + 'static {
    let (tx, rx) = tokio::sync::mpsc::channel(16);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok(connection) => {
                        if tx.send(Ok(connection)).await.is_err() {
                            return;
                        }
                    }
                    Err(e) => {
                        tracing::warn!("accept failed: {e}");
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                },
                () = tx.closed() => return,
            }
        }
    });
    tokio_stream::wrappers::ReceiverStream::new(rx)
}

/// As [`grpc_incoming`], for as many runtimes as there are streams, in turn: each stream is to be polled in the runtime that
/// serves its connections, after [`attached`]. Ends when the first of them is dropped.
pub fn grpc_incoming_spread(
    listener: Box<dyn Listener>,
    runtimes: usize,
) -> Vec<tokio_stream::wrappers::ReceiverStream<io::Result<DetachedConnection>>> {
    let (ends, streams): (Vec<_>, Vec<_>) = (0..runtimes).map(|_| tokio::sync::mpsc::channel(16)).unzip();
    tokio::spawn(async move {
        let mut accepted = std::pin::pin!(accepted(listener));
        for end in ends.iter().cycle() {
            let connection = tokio::select! {
                connection = accepted.next() => connection,
                () = end.closed() => return,
            };
            let Some(connection) = connection else { return };
            if end.send(connection.and_then(Connection::detach)).await.is_err() {
                return;
            }
        }
    });
    streams.into_iter().map(tokio_stream::wrappers::ReceiverStream::new).collect()
}

/// The connections of a stream, [attached](DetachedConnection::attach) to the runtime that polls it and [`established`].
pub fn attached(
    detached: impl Stream<Item = io::Result<DetachedConnection>> + Send + 'static,
) -> impl Stream<Item = io::Result<Connection>> + Send + 'static {
    established(detached.map(|connection| connection?.attach()), Connection::established)
}

/// What the handler of a call finds in its extensions.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    pub addr: Option<SocketAddr>,
    /// By its certificate.
    pub identity: Option<Arc<Identity>>,
    /// Of connections that can be ended.
    pub hangup: Option<Hangup>,
}

impl tonic::transport::server::Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Self::ConnectInfo {
        Caller { addr: self.peer, identity: self.identity.clone(), hangup: None }
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.stream().poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Tcp(stream) => stream.is_write_vectored(),
            Io::Unix(stream) => stream.is_write_vectored(),
            Io::Other(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}
