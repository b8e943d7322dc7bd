//! Bytes of deleted tables go at a pace: a device that is told of many at once may be slow to everybody for a while.

use std::sync::Arc;
use std::time::Duration;

use sextant_environment::vfs::IoKind;

use crate::store::Store;

/// Whatever a file had, the next one goes after this time.
const PAUSE_MAX: Duration = Duration::from_secs(60);

impl Store {
    /// Gives them back, one file after the other. Ends when the server stops.
    pub async fn erase_deleted(self: Arc<Self>) {
        let mut shutdown = self.shutdown.clone();
        let erasing = async {
            loop {
                let deleted = self.catalog.deleted().next().await;
                let (catalog, bytes) = (self.catalog.clone(), deleted.bytes);
                // (Until the server starts again the space is lost: nobody is to run out of it for that.)
                if let Err(e) = self.disk(IoKind::Write, move || catalog.erase(&deleted)).await {
                    tracing::warn!(
                        "the bytes of a deleted table stay until this server is started again: {e}"
                    );
                }
                tokio::time::sleep(pause(bytes, self.config.delete_bytes_per_s)).await;
            }
        };
        tokio::select! {
            () = erasing => {}
            () = shutdown.wait() => {}
        }
    }
}

fn pause(bytes: u64, pace: u64) -> Duration {
    let ns = u128::from(bytes) * 1_000_000_000;
    let ns = ns.checked_div(pace.into()).unwrap_or_default();
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_as_long_as_the_pace_says_and_there_is_none_without() {
        assert_eq!(pause(128 << 20, 256 << 20), Duration::from_millis(500));
        assert_eq!(pause(128 << 20, 0), Duration::ZERO);
        assert_eq!(pause(u64::MAX, 1), PAUSE_MAX);
    }
}
