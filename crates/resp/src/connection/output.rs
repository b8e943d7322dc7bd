//! Replies on their way to the client, as bytes, and the room that the long ones have until they are written.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use sextant_environment::env;
use sextant_environment::room::Share;
use tokio::io::AsyncWrite;

use crate::frame::{Protocol, Reply};

/// A buffer that has grown beyond this is given back once it is empty.
pub(super) const BUFFER_KEPT_BYTES: usize = 256 * 1024;

#[derive(Default)]
pub(super) struct Output {
    bytes: BytesMut,
    /// By the number of the byte that ends the reply.
    rooms: VecDeque<(u64, Share)>,
    /// Bytes that were written to the client in all.
    written: u64,
    /// A part of them may be in the session that encrypts them: nobody but a flush moves it on.
    unflushed: bool,
}

/// What a write came to.
pub(super) struct Written {
    pub bytes: u64,
    /// The peer is gone.
    pub failed: bool,
}

impl Output {
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// How many bytes the client has taken so far.
    pub fn taken(&self) -> u64 {
        self.written
    }

    /// Whether all of it has gone.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && !self.unflushed
    }

    /// Whether it holds room that others may wait for.
    pub fn holds_room(&self) -> bool {
        !self.rooms.is_empty()
    }

    pub fn put(&mut self, reply: &Reply, protocol: Protocol, room: Option<Share>) {
        if protocol == Protocol::Silent {
            return;
        }
        reply.encode(protocol, &mut self.bytes);
        let end = self.written + self.bytes.len() as u64;
        self.rooms.extend(room.map(|room| (end, room)));
    }

    /// Nobody reads it any more.
    pub fn discard(&mut self) {
        self.bytes.clear();
        self.rooms.clear();
        self.unflushed = false;
    }

    /// Writes as much as the client takes now. If something is left, the task is woken when it takes more.
    pub fn write(&mut self, io: &mut env::Connection, cx: &mut Context<'_>) -> Written {
        let before = self.written;
        while !self.bytes.is_empty() {
            match Pin::new(&mut *io).poll_write(cx, &self.bytes) {
                Poll::Ready(Ok(written)) if written > 0 => {
                    self.unflushed = true;
                    self.bytes.advance(written);
                    self.written += written as u64;
                    // Others wait for the room of what has gone, also while there is more to be written.
                    while self.rooms.front().is_some_and(|(end, _)| *end <= self.written) {
                        self.rooms.pop_front();
                    }
                }
                Poll::Ready(_) => return Written { bytes: self.written - before, failed: true },
                Poll::Pending => return Written { bytes: self.written - before, failed: false },
            }
        }
        if self.written > before {
            if self.bytes.capacity() > BUFFER_KEPT_BYTES {
                self.bytes = BytesMut::new();
            } else {
                // Back to the start of the allocation.
                self.bytes.clear();
            }
        }
        let flushed = if self.unflushed { Pin::new(io).poll_flush(cx) } else { Poll::Ready(Ok(())) };
        self.unflushed = flushed.is_pending();
        Written { bytes: self.written - before, failed: matches!(flushed, Poll::Ready(Err(_))) }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::io::{AsyncRead, ReadBuf};

    use super::*;

    /// Takes everything, as a TLS session does, and lets it go when it is flushed and the peer reads.
    struct Session {
        peer_reads: Arc<AtomicBool>,
    }

    impl AsyncRead for Session {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Session {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            if self.peer_reads.load(Ordering::Relaxed) { Poll::Ready(Ok(())) } else { Poll::Pending }
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn what_is_still_in_a_session_has_not_gone() {
        let peer_reads = Arc::new(AtomicBool::new(false));
        let mut io = env::Connection::new(Session { peer_reads: peer_reads.clone() }, None);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut output = Output::default();
        output.put(&Reply::OK, Protocol::default(), None);
        let first = output.write(&mut io, &mut cx);
        assert!(first.bytes > 0 && !first.failed && !output.is_empty());
        assert_eq!(output.len(), 0);
        let second = output.write(&mut io, &mut cx);
        assert!(second.bytes == 0 && !second.failed && !output.is_empty());
        peer_reads.store(true, Ordering::Relaxed);
        assert!(!output.write(&mut io, &mut cx).failed);
        assert!(output.is_empty());
    }
}
