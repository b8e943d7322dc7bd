//! What the integration tests share: whole clusters of real sockets ([`cluster`]) and a workload of registers whose history
//! is checked ([`workload`]).
//!
//! Every server has an environment of its own, so a test may take the power from one disk and leave the others alone.

pub mod cluster;
pub mod workload;

use std::time::Duration;

/// Far more than anybody has to wait: a busy machine is no error, but a test that hangs is a test that fails.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Waits for a condition.
pub async fn eventually<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(value) = condition().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    match tokio::time::timeout(PATIENCE, wait).await {
        Ok(value) => value,
        Err(_) => panic!("never came true: {what}"),
    }
}
