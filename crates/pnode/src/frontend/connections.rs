//! A bound on client connections: beyond it, one waits here at each listener, and all others in the kernel's queue.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use sextant_environment::env::{Caller, Connection, Listener, established};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;

/// Pause after a failed accept (no file descriptors left, usually).
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Connections accepted and not yet taken over by the server.
const HANDOVER_MAX: usize = 16;

/// A connection and its place.
pub(crate) struct Counted {
    connection: Connection,
    _place: OwnedSemaphorePermit,
}

/// The accepted connections of a listener, each with one of these places, which several listeners may share.
pub(crate) fn counted(
    listener: Box<dyn Listener>,
    places: Arc<Semaphore>,
) -> impl Stream<Item = io::Result<Counted>> + Send + 'static {
    established(accepted(listener, places), |counted: Counted| Box::pin(counted.established()))
}

fn accepted(mut listener: Box<dyn Listener>, places: Arc<Semaphore>) -> ReceiverStream<io::Result<Counted>> {
    let (accepted, incoming) = mpsc::channel(HANDOVER_MAX);
    tokio::spawn(async move {
        let accept = async {
            loop {
                // First who comes, then its place: a listener to which nobody comes keeps none from the others.
                match listener.accept().await {
                    Ok(connection) => {
                        let Ok(place) = places.clone().acquire_owned().await else { return };
                        if accepted.send(Ok(Counted { connection, _place: place })).await.is_err() {
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
    async fn established(self) -> io::Result<Self> {
        Ok(Self { connection: self.connection.established().await?, ..self })
    }
}

impl tonic::transport::server::Connected for Counted {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.connection.connect_info()
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use sextant_environment::Env;
    use sextant_environment::env::{Door, Whom};
    use tokio::io::AsyncWriteExt;

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
}
