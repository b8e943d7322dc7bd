//! A connection that can be ended by those who serve its calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Context;

use futures::task::AtomicWaker;

/// Ends a connection, and with it all of its calls. Clones are of the same connection.
#[derive(Clone, Debug, Default)]
pub struct Hangup(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_over: AtomicBool,
    has_called: AtomicBool,
    /// Of laden answers that the connection has and has not sent.
    unsent_bytes: AtomicUsize,
    /// That its socket has taken, of whatever.
    sent_bytes: AtomicU64,
    /// That have been read from it, of whatever.
    received_bytes: AtomicU64,
    served: AtomicWaker,
}

impl Hangup {
    pub fn hang_up(&self) {
        self.0.is_over.store(true, Ordering::Release);
        self.0.served.wake();
    }

    /// A call has come.
    pub fn called(&self) {
        // (Seldom written: many calls share it.)
        if !self.has_called() {
            self.0.has_called.store(true, Ordering::Release);
        }
    }

    pub fn has_called(&self) -> bool {
        self.0.has_called.load(Ordering::Acquire)
    }

    /// Of laden answers that the connection has and has not sent: one waits for all of them.
    pub fn unsent_bytes(&self) -> usize {
        self.0.unsent_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn has_more_to_send(&self, bytes: usize) {
        self.0.unsent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn has_sent(&self, bytes: usize) {
        self.0.unsent_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Of whatever, since the connection is there.
    pub fn sent_bytes(&self) -> u64 {
        self.0.sent_bytes.load(Ordering::Relaxed)
    }

    /// Its socket has taken so many bytes more.
    pub fn wrote(&self, bytes: usize) {
        self.0.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Of whatever, since the connection is there.
    pub fn received_bytes(&self) -> u64 {
        self.0.received_bytes.load(Ordering::Relaxed)
    }

    /// So many bytes more have been read from its socket.
    pub fn read(&self, bytes: usize) {
        self.0.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn is_over(&self) -> bool {
        self.0.is_over.load(Ordering::Acquire)
    }

    /// Whether the connection is to end; if not, the task is woken when it is.
    pub fn poll_over(&self, cx: &Context<'_>) -> bool {
        self.0.served.register(cx.waker());
        self.is_over()
    }
}
