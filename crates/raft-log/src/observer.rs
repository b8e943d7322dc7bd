//! Who else wants to know what is in the log.

use crate::types::{Entry, LogId};

/// One per partition; called in log order, synchronously from `append` and `truncate_after`, before they return and without
/// waiting for durability. Implementations only push to a queue: Raft waits for them.
pub trait LogObserver: Send + Sync + 'static {
    /// The payloads' bytes are shared, not copied.
    fn appended(&self, entries: Vec<Entry>);
    /// All entries after this one are gone; None: all.
    fn truncated(&self, after: Option<LogId>);
}
