//! A bound on client connections: beyond it, some wait here at each listener (those whose handshakes it
//! does at a time), and all others in the kernel's queue.
//!
//! Whoever has not shown yet who it is, where that is asked, has no place; whoever makes no call loses it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use sextant_environment::env::{Caller, Connection, Hangup, Listener, established};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Sleep;
use tokio_stream::wrappers::ReceiverStream;

/// Pause after a failed accept (no file descriptors left, usually).
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Connections accepted and not yet taken over by the server.
const HANDOVER_MAX: usize = 16;
/// How long a connection may be there without a call. (Afterwards it may rest.)
const FIRST_CALL_MAX: Duration = Duration::from_secs(30);

/// A connection and its place.
pub(crate) struct Counted {
    connection: Connection,
    hangup: Hangup,
    /// Until the first call.
    first_call_due: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

/// The accepted connections of a listener, each with one of these places, which several listeners may share.
pub(crate) fn counted(
    listener: Box<dyn Listener>,
    places: Arc<Semaphore>,
) -> impl Stream<Item = io::Result<Counted>> + Send + 'static {
    established(accepted(listener), move |connection: Connection| {
        let places = places.clone();
        Box::pin(async move {
            let connection = connection.established().await?;
            let place = places.acquire_owned().await.map_err(io::Error::other)?;
            Ok(Counted::new(connection, place))
        })
    })
}

fn accepted(mut listener: Box<dyn Listener>) -> ReceiverStream<io::Result<Connection>> {
    let (accepted, incoming) = mpsc::channel(HANDOVER_MAX);
    tokio::spawn(async move {
        let accept = async {
            loop {
                match listener.accept().await {
                    Ok(connection) => {
                        if accepted.send(Ok(connection)).await.is_err() {
                            return;
                        }
                    }
                    Err(e) => {
                        tracing::warn!("accept failed: {e}");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accept => {}
            () = accepted.closed() => {}
        }
    });
    ReceiverStream::new(incoming)
}

impl Counted {
    fn new(connection: Connection, place: OwnedSemaphorePermit) -> Self {
        let first_call_due = Some(Box::pin(tokio::time::sleep(FIRST_CALL_MAX)));
        Self { connection, hangup: Hangup::default(), first_call_due, _place: place }
    }

    /// Whether it is to end; if not, the task is woken when it is.
    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        if self.first_call_due.is_some() && self.hangup.has_called() {
            self.first_call_due = None;
        }
        if self.first_call_due.as_mut().is_some_and(|due| due.as_mut().poll(cx).is_ready()) {
            // For good, also if a call comes now.
            self.first_call_due = None;
            self.hangup.hang_up();
        }
        self.hangup.poll_over(cx)
    }

    /// Looked at wherever the connection waits: while its client takes nothing, it is written to and not read.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.is_over(cx) { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }

    fn wrote(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.hangup.wrote(*bytes);
        }
        written
    }
}

impl tonic::transport::server::Connected for Counted {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Self::ConnectInfo {
        Caller { hangup: Some(self.hangup.clone()), ..self.connection.connect_info() }
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let before = buf.filled().len();
        let read = Pin::new(&mut self.connection).poll_read(cx, buf);
        self.hangup.read(buf.filled().len() - before);
        read
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let written = Pin::new(&mut self.connection).poll_write(cx, buf);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let written = Pin::new(&mut self.connection).poll_write_vectored(cx, bufs);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use sextant_environment::Env;
    use sextant_environment::env::{Door, Whom};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_listener_to_which_nobody_comes_keeps_no_place_from_the_others() {
        let (net, places) = (Env::real().net, Arc::new(Semaphore::new(1)));
        let mut streams = Vec::new();
        for _ in 0..2 {
            let listener = net.bind("127.0.0.1:0".into(), Door::Grpc).await.unwrap();
            let addr = listener.local_addr().unwrap().to_string();
            streams.push((addr, Box::pin(counted(listener, places.clone()))));
        }
        // Whoever comes first, wherever.
        for _ in 0..2 {
            for (addr, incoming) in &mut streams {
                let mut client = net.connect(addr.clone(), Whom::Host).await.unwrap();
                client.write_all(b"x").await.unwrap();
                let taken = incoming.next().await.unwrap().unwrap();
                assert_eq!(places.available_permits(), 0);
                drop(taken);
            }
        }
    }

    /// A connection whose client takes one byte, and the client's end.
    async fn stuck() -> (Counted, tokio::io::DuplexStream) {
        let place = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        let (near, far) = tokio::io::duplex(1);
        let mut counted = Counted::new(Connection::new(near, None), place);
        counted.write_all(b"x").await.unwrap();
        (counted, far)
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_and_what_leaves_is_counted() {
        let (mut counted, mut far) = stuck().await;
        for received in 1..=3 {
            far.write_all(b"y").await.unwrap();
            assert_eq!(counted.read_u8().await.unwrap(), b'y');
            assert_eq!((counted.hangup.received_bytes(), counted.hangup.sent_bytes()), (received, 1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_makes_no_call_in_time_loses_its_place_also_while_it_takes_nothing() {
        let (mut counted, _far) = stuck().await;
        let aborted = |e: io::Error| e.kind() == io::ErrorKind::ConnectionAborted;
        assert!(counted.write_all(b"y").await.is_err_and(aborted));
        // For good.
        counted.hangup.called();
        assert!(counted.hangup.is_over() && counted.hangup.sent_bytes() == 1);
        assert!(counted.flush().await.is_err_and(aborted));
        assert!(counted.shutdown().await.is_err_and(aborted));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_ended_ends_also_while_it_is_written_to() {
        let (mut counted, _far) = stuck().await;
        let hangup = counted.hangup.clone();
        hangup.called();
        let mut writes = Box::pin(counted.write_all(b"y"));
        assert!(tokio::time::timeout(2 * FIRST_CALL_MAX, &mut writes).await.is_err(), "it may take its time");
        tokio::spawn(async move {
            tokio::time::sleep(FIRST_CALL_MAX).await;
            hangup.hang_up();
        });
        assert_eq!(writes.await.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }
}
