//! Connecting and listening, behind a trait, and the glue that runs gRPC over it.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;

use super::handshake::Party;
use crate::config::ClusterConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A byte stream to a peer. Nagle's algorithm is off.
pub struct Connection {
    io: Stream,
    pub peer: Option<SocketAddr>,
}

enum Stream {
    Tcp(tokio::net::TcpStream),
    Other(Box<dyn Io>),
}

/// A connection that belongs to no runtime: on its way from the thread that accepted it to the one that serves it.
pub struct DetachedConnection {
    io: DetachedStream,
    peer: Option<SocketAddr>,
}

enum DetachedStream {
    Tcp(std::net::TcpStream),
    Other(Box<dyn Io>),
}

impl Connection {
    pub fn new(io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, peer: Option<SocketAddr>) -> Self {
        Self { io: Stream::Other(Box::new(io)), peer }
    }

    fn tcp(stream: tokio::net::TcpStream, peer: Option<SocketAddr>) -> Self {
        Self { io: Stream::Tcp(stream), peer }
    }

    /// Takes a TCP socket off this runtime's reactor, so that another runtime can serve it without waking this one for
    /// every message. Streams of another kind (a simulation's) are passed on as they are.
    pub fn detach(self) -> io::Result<DetachedConnection> {
        let io = match self.io {
            Stream::Tcp(stream) => DetachedStream::Tcp(stream.into_std()?),
            Stream::Other(io) => DetachedStream::Other(io),
        };
        Ok(DetachedConnection { io, peer: self.peer })
    }

    fn stream(self: Pin<&mut Self>) -> Pin<&mut (dyn Io + '_)> {
        match &mut self.get_mut().io {
            Stream::Tcp(stream) => Pin::new(stream),
            Stream::Other(io) => Pin::new(&mut **io),
        }
    }
}

impl DetachedConnection {
    /// Registers the connection with the runtime that this is called in.
    pub fn attach(self) -> io::Result<Connection> {
        let io = match self.io {
            DetachedStream::Tcp(stream) => Stream::Tcp(tokio::net::TcpStream::from_std(stream)?),
            DetachedStream::Other(io) => Stream::Other(io),
        };
        Ok(Connection { io, peer: self.peer })
    }
}

pub trait Listener: Send + 'static {
    /// The address that was bound (with the port that was chosen, if 0 was asked for).
    fn local_addr(&self) -> io::Result<SocketAddr>;
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Connection>>;
}

pub trait Network: Send + Sync + 'static {
    /// `addr` is `host:port`.
    fn bind(&self, addr: String) -> BoxFuture<'static, io::Result<Box<dyn Listener>>>;
    fn connect(&self, addr: String) -> BoxFuture<'static, io::Result<Connection>>;
}

/// Real TCP.
#[derive(Debug, Default)]
pub struct TcpNetwork;

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
    fn bind(&self, addr: String) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let listener = tokio::net::TcpListener::bind(&addr)
                .await
                .map_err(|e| io::Error::new(e.kind(), format!("cannot listen on {addr}: {e}")))?;
            Ok(Box::new(TcpAcceptor(listener)) as Box<dyn Listener>)
        })
    }

    fn connect(&self, addr: String) -> BoxFuture<'static, io::Result<Connection>> {
        Box::pin(async move {
            let stream = tokio::net::TcpStream::connect(&addr).await?;
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

/// A gRPC channel to `addr` (`host:port`) that connects when it is first used and again whenever it has to. Deadlines of
/// calls are the caller's.
pub fn grpc_channel(net: &Arc<dyn Network>, addr: &str) -> tonic::transport::Channel {
    channel(net, addr, None)
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
    channel(net, addr, Some(super::handshake::user_agent(cluster, from, to)))
}

fn channel(net: &Arc<dyn Network>, addr: &str, user_agent: Option<String>) -> tonic::transport::Channel {
    let net = net.clone();
    let target = addr.to_owned();
    let uri = format!("http://{addr}");
    let endpoint = tonic::transport::Endpoint::from_shared(uri)
        .unwrap_or_else(|_| tonic::transport::Endpoint::from_static("http://invalid.invalid:1"));
    let endpoint = match user_agent {
        // Names and digits are always valid in a header.
        Some(user_agent) => endpoint.clone().user_agent(user_agent).unwrap_or(endpoint),
        None => endpoint,
    };
    let endpoint = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(Some(4 * 1024 * 1024))
        .initial_connection_window_size(Some(16 * 1024 * 1024))
        .tcp_nodelay(true);
    endpoint.connect_with_connector_lazy(tower::service_fn(move |_: axum::http::Uri| {
        let connecting = net.connect(target.clone());
        async move { connecting.await.map(hyper_util::rt::TokioIo::new) }
    }))
}

/// The accepted connections of a listener as a stream for tonic's `serve_with_incoming`. A failed accept is logged and
/// does not end the server.
pub fn grpc_incoming(
    mut listener: Box<dyn Listener>,
) -> impl tokio_stream::Stream<Item = io::Result<Connection>> + Send + 'static {
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
/// serves its connections. Ends when the first of them is dropped.
pub fn grpc_incoming_spread(
    listener: Box<dyn Listener>,
    runtimes: usize,
) -> Vec<tokio_stream::wrappers::ReceiverStream<io::Result<DetachedConnection>>> {
    let (ends, streams): (Vec<_>, Vec<_>) = (0..runtimes).map(|_| tokio::sync::mpsc::channel(16)).unzip();
    tokio::spawn(async move {
        let mut accepted = std::pin::pin!(grpc_incoming(listener));
        for end in ends.iter().cycle() {
            let connection = tokio::select! {
                connection = tokio_stream::StreamExt::next(&mut accepted) => connection,
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

impl tonic::transport::server::Connected for Connection {
    type ConnectInfo = Option<SocketAddr>;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.peer
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
            Stream::Tcp(stream) => stream.is_write_vectored(),
            Stream::Other(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}
