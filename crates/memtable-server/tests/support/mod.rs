//! What the tests with real servers share.

pub mod sstable;

use std::time::Duration;

/// Far more than anything here takes: a busy machine is no error.
const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until the condition gives something; fails when it never does.
pub async fn eventually<T>(mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(value) = condition().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("the condition never held")
}
