//! Files of tables that were deleted: they have lost their name, and their bytes go at a pace that leaves the disk to others.

use std::collections::VecDeque;
use std::path::PathBuf;

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
    news: Notify,
}

impl Graveyard {
    pub(super) fn add(&self, deleted: Option<Deleted>) {
        self.waiting.lock().extend(deleted);
    }

    /// What was added is deleted durably.
    pub(super) fn tell(&self) {
        self.news.notify_one();
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
        self.waiting.lock().iter().map(|deleted| deleted.bytes).sum()
    }
}
