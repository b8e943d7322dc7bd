//! Freezes, flushes and compactions on demand. An empty name means all tables.

use sextant_common::error::{Error, Result};
use sextant_common::ids::{Generation, TableId};
use tokio::sync::oneshot;

use super::{DATA_TIMEOUT, ENTRY_TIMEOUT, table, within};
use crate::replica::{Event, Handle};

/// Which generations were frozen.
pub async fn freeze(handle: &Handle, name: &str) -> Result<Vec<(TableId, Generation)>> {
    let table = table(handle, name)?;
    let (done, answer) = oneshot::channel();
    let _ = handle.events.send(Event::Freeze { table, done });
    within(ENTRY_TIMEOUT, "freeze", answer).await
}

/// Returns when everything that was there is in SSTables.
pub async fn flush(handle: &Handle, name: &str) -> Result<()> {
    let targets = freeze(handle, name).await?;
    let mut version = handle.shared.manifest_version.subscribe();
    let flushed = async {
        loop {
            let manifest = handle.shared.manifest();
            let done = |(table, generation): &(TableId, Generation)| {
                // (A table that was dropped has nothing to flush.)
                manifest.table(*table).is_none_or(|t| t.flushed_generation >= *generation)
            };
            if targets.iter().all(done) {
                return Ok(());
            }
            if version.changed().await.is_err() {
                return Err(Error::retry("the server is stopping"));
            }
        }
    };
    tokio::time::timeout(DATA_TIMEOUT, flushed)
        .await
        .unwrap_or_else(|_| Err(Error::unavailable("flush: not done in time")))
}

pub async fn compact(handle: &Handle, name: &str) -> Result<()> {
    let tables = match table(handle, name)? {
        Some(id) => vec![id],
        None => handle.shared.manifest().tables.iter().map(|t| t.table).collect(),
    };
    for table in tables {
        let (done, answer) = oneshot::channel();
        let _ = handle.events.send(Event::Compact { table, done: Some(done) });
        within(DATA_TIMEOUT, "compact", answer).await?;
    }
    Ok(())
}
