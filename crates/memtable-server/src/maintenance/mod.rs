//! What an operator asks of the partitions that a server leads.
//!
//! Owns what each request means, whom it is for, and how long it is waited for: [`memtables`] (freeze, flush), [`cuts`], [`tables`] (new
//! ones, changes, their end), [`members`] (the voters, the leader), [`formats`] (what the log may say), [`log`] (what it
//! did, for an archive). Does not own how it is
//! done: that is the worker's.
//!
//! Invariant: a request that is not answered in time goes on; nobody is told that it failed.

mod cuts;
mod formats;
pub mod loads;
mod log;
mod members;
mod memtables;
mod tables;

use std::time::Duration;

use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::{PartitionId, TableId};
use tokio::sync::oneshot;

use crate::command::configuration::ConfigurationChange;
use crate::leadership::leadership_changed;
use crate::replica::{Event, Handle};

pub use cuts::{end_cut, look_at_cut, open_cut, renew_cut};
pub use formats::{ask_formats, raise_formats};
pub use log::read_log;
pub use members::{check_leads, choose_voters, transfer, voters_of};
pub use tables::{Created, NewTable, change, create};

/// A freeze, and the creation of a table, are Raft entries.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(10);
/// A flush or a compaction moves data.
const DATA_TIMEOUT: Duration = Duration::from_secs(600);

async fn within<T>(limit: Duration, what: &str, answer: oneshot::Receiver<Result<T>>) -> Result<T> {
    match tokio::time::timeout(limit, answer).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(leadership_changed()),
        Err(_) => Err(Error::unavailable(format!("{what}: not done within {limit:?}"))),
    }
}

/// What is to be done in partitions. An empty name means all tables.
#[derive(Clone, Copy, Debug)]
pub enum Work<'r> {
    Freeze(&'r str),
    Flush(&'r str),
    Compact(&'r str),
    Configure(&'r ConfigurationChange),
}

/// Does it in each of these partitions that this server leads; none named: in all. What came of it, in their order.
pub async fn everywhere<'h>(
    all: impl Iterator<Item = &'h Handle>,
    named: &[u32],
    work: Work<'_>,
) -> Vec<(PartitionId, Result<()>)> {
    let partitions = led(all, named).into_iter().map(|handle| async move {
        let done = match work {
            Work::Freeze(table) => memtables::freeze(handle, table).await.map(drop),
            Work::Flush(table) => memtables::flush(handle, table).await,
            Work::Compact(table) => memtables::compact(handle, table).await,
            Work::Configure(change) => configure(handle, change.clone()).await,
        };
        (handle.shared.id, done)
    });
    futures::future::join_all(partitions).await
}

fn led<'h>(all: impl Iterator<Item = &'h Handle>, named: &[u32]) -> Vec<&'h Handle> {
    let mut handles: Vec<_> = all
        .filter(|h| named.is_empty() || named.contains(&h.shared.id.0))
        .filter(|h| h.shared.serving().is_some())
        .collect();
    handles.sort_by_key(|h| h.shared.id);
    handles
}

/// None: all tables.
fn table(handle: &Handle, name: &str) -> Result<Option<TableId>> {
    if name.is_empty() {
        return Ok(None);
    }
    let manifest = handle.shared.manifest();
    let table = manifest.table_by_name(name);
    table
        .map(|t| Some(t.table))
        .ok_or_else(|| Error::new(ErrorKind::UnknownTable, format!("no table {name:?}")))
}

/// Changes the partition's configuration.
async fn configure(handle: &Handle, change: ConfigurationChange) -> Result<()> {
    let (done, answer) = oneshot::channel();
    // A shorter lease is lived first, for as long as the longer one lasts.
    let lives_on = Duration::from_nanos(handle.shared.guard.abstention_ns());
    let _ = handle.events.send(Event::Configure { change, done });
    within(ENTRY_TIMEOUT + lives_on, "configure", answer).await
}
