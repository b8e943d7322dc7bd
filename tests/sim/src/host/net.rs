//! The network of a host: turmoil's TCP behind our trait, with a gate that stops a paused host's bytes, and the trace.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::future::BoxFuture;
use sextant_environment::env::{Connection, Door, Listener, Network, Whom};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use turmoil::net::{TcpListener, TcpStream};

use super::Host;

pub struct SimNetwork(pub Arc<Host>);

struct SimListener {
    inner: TcpListener,
    host: Arc<Host>,
}

/// A TCP stream that stands still while its host is paused.
struct Gated {
    io: TcpStream,
    host: Arc<Host>,
}

impl Network for SimNetwork {
    fn bind(&self, addr: String, _: Door) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        let host = self.0.clone();
        Box::pin(async move {
            let inner = TcpListener::bind(addr).await?;
            Ok(Box::new(SimListener { inner, host }) as Box<dyn Listener>)
        })
    }

    fn connect(&self, addr: String, _: Whom) -> BoxFuture<'static, io::Result<Connection>> {
        let host = self.0.clone();
        Box::pin(async move {
            let io = match TcpStream::connect(addr).await {
                Ok(io) => io,
                Err(e) => {
                    // Turmoil refuses at once also what a cut link swallows; a real peer may be refused or hear nothing.
                    let silence = host.refusal_delay();
                    host.trace("is refused", &(silence.as_millis() as u64).to_le_bytes());
                    tokio::time::sleep(silence).await;
                    return Err(e);
                }
            };
            let peer = io.peer_addr().ok();
            Ok(Connection::new(Gated { io, host }, peer))
        })
    }
}

impl Listener for SimListener {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async move {
            let (io, peer) = self.inner.accept().await?;
            Ok(Connection::new(Gated { io, host: self.host.clone() }, Some(peer)))
        })
    }
}

impl AsyncRead for Gated {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.host.poll_gate(cx))?;
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        self.host.trace("reads", &buf.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Gated {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.host.poll_gate(cx))?;
        let written = ready!(Pin::new(&mut self.io).poll_write(cx, buf))?;
        self.host.trace("writes", &buf[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
