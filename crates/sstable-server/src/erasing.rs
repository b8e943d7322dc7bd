//! Bytes of deleted tables go at a pace: a device that is told of many at once may be slow to everybody for a while.
//!
//! Invariant: what is deleted faster than that goes faster, so that space does not run out for it.

use std::sync::Arc;
use std::time::Duration;

use sextant_environment::vfs::IoKind;

use crate::store::Store;

/// Whatever waits is gone after about this time; and what could not be erased is tried again.
const GONE_AFTER: Duration = Duration::from_secs(10);

impl Store {
    /// Gives them back, one file after the other. Ends when the server stops.
    pub async fn erase_deleted(self: Arc<Self>) {
        let mut shutdown = self.shutdown.clone();
        let erasing = async {
            loop {
                let deleted = Arc::new(self.catalog.deleted().next().await);
                let wait =
                    pause(deleted.bytes, self.catalog.deleted().bytes(), self.config.delete_bytes_per_s);
                let (catalog, erased) = (self.catalog.clone(), deleted.clone());
                let wait = match self.disk(IoKind::Write, move || catalog.erase(&erased)).await {
                    Ok(()) => wait,
                    Err(e) => {
                        tracing::warn!("the bytes of a deleted table cannot be given back yet: {e}");
                        if let Some(deleted) = Arc::into_inner(deleted) {
                            self.catalog.deleted().put_back(deleted);
                        }
                        GONE_AFTER
                    }
                };
                tokio::time::sleep(wait).await;
            }
        };
        tokio::select! {
            () = erasing => {}
            () = shutdown.wait() => {}
        }
    }
}

/// After a file of so many bytes; `waiting`: with all that come after it.
fn pause(bytes: u64, waiting: u64, pace: u64) -> Duration {
    if pace == 0 || waiting == 0 {
        return Duration::ZERO;
    }
    let share = GONE_AFTER.as_secs_f64() * bytes as f64 / waiting as f64;
    Duration::from_secs_f64(share.clamp(0.0, bytes as f64 / pace as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_pause_is_as_long_as_the_pace_says_and_shorter_when_much_waits() {
        assert_eq!(pause(128 * MIB, 128 * MIB, 256 * MIB), Duration::from_millis(500));
        assert_eq!(pause(128 * MIB, 2560 * MIB, 256 * MIB), Duration::from_millis(500));
        assert_eq!(pause(128 * MIB, 12_800 * MIB, 256 * MIB), Duration::from_millis(100), "a hundred files");
        assert_eq!(pause(u64::MAX, u64::MAX, 1), GONE_AFTER);
        assert_eq!(pause(128 * MIB, 128 * MIB, 0), Duration::ZERO, "at once");
        assert_eq!(pause(0, 0, MIB), Duration::ZERO, "nobody knows how large it was");
    }
}
