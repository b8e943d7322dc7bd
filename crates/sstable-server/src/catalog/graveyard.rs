//! Files of tables that were deleted: they have lost their name, and their bytes go at a pace that leaves the disk to others.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A file without a table.
#[derive(Debug, PartialEq, Eq)]
pub struct Deleted {
    pub(super) path: PathBuf,
    pub bytes: u64,
}

/// Those that wait, oldest first. What is in here when the server ends is erased when it starts again.
#[derive(Debug, Default)]
pub struct Graveyard {
    waiting: Mutex<VecDeque<Deleted>>,
    /// Of all whose bytes are there, also of the one that is being erased.
    bytes: AtomicU64,
    news: Notify,
}

impl Graveyard {
    /// (Whether its new name is durable does not matter: without it, it is a table again after a crash, and deleted again.)
    pub(super) fn add(&self, deleted: Deleted) {
        self.bytes.fetch_add(deleted.bytes, Ordering::Relaxed);
        self.waiting.lock().push_back(deleted);
        self.news.notify_one();
    }

    /// The next one is to be taken again later.
    pub fn put_back(&self, deleted: Deleted) {
        self.waiting.lock().push_back(deleted);
        self.news.notify_one();
    }

    pub(super) fn erased(&self, deleted: &Deleted) {
        self.bytes.fetch_sub(deleted.bytes, Ordering::Relaxed);
    }

    /// For one caller.
    pub async fn next(&self) -> Deleted {
        loop {
            if let Some(next) = self.waiting.lock().pop_front() {
                return next;
            }
            self.news.notified().await;
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
