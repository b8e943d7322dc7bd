//! The committed log, as an archive reads it: what its entries did.
//!
//! Any replica may answer: what is committed is the same everywhere. A leader knows best what is the newest, and whether something is
//! not in this log at all; another one may have what the leader has purged, or does not know the effects of since it was started again.

use std::collections::BTreeSet;

use sextant_common::archive::{LogAnswer, LogPage, LogTable};
use sextant_common::error::{Error, Result};
use sextant_common::ids::{LogPosition, TableId};
use sextant_raft_log::{Entry, PartitionLog, position_of};
use tokio::sync::oneshot;

use super::{ENTRY_TIMEOUT, check_leads, within};
use crate::partition::effects::{Effect, effect};
use crate::replica::{Event, Handle, KnownLog, body_of};

/// What comes after a position: up to about a megabyte of log, at least one entry. `after` None: only from where on there is any.
/// `having`: this replica need not lead, if its log has that entry of the leader's.
pub async fn read_log(
    handle: &Handle,
    log: &PartitionLog,
    after: Option<LogPosition>,
    having: Option<LogPosition>,
) -> Result<LogAnswer> {
    match having {
        None => check_leads(handle)?,
        Some(entry) if log.has(entry) => {}
        Some(_) => return Err(lags()),
    }
    let (done, answer) = oneshot::channel();
    let _ = handle.events.send(Event::LookAtLog { done });
    let known = within(ENTRY_TIMEOUT, "read the log", answer).await?;
    if known.lineage == 0 {
        return Err(Error::unavailable("the partition is not founded yet"));
    }
    let purged = log.purged().map_or(LogPosition::default(), |id| position_of(&id));
    let first = match known.verdicts.known_after() {
        since if since.index >= purged.index => since,
        _ => purged,
    };
    let gone = LogAnswer::Gone { lineage: known.lineage, first };
    let Some(after) = after else { return Ok(gone) };
    if after.index < first.index {
        return Ok(gone);
    }
    // (What is before the first entry is in every log.)
    if after.index > 0 && after != first && !log.has(after) {
        return match having {
            // A leader has everything that was ever committed in its log.
            None => Ok(gone),
            Some(_) => Err(lags()),
        };
    }
    let entries = match after.index < known.committed {
        true => log.read_piece(after.index + 1, known.committed + 1).await?,
        false => Vec::new(),
    };
    page(after, &entries, &known).map(LogAnswer::Page)
}

fn lags() -> Error {
    Error::unavailable("this replica has not that much of the leader's log")
}

/// Of entries that come one after the other: those of the first one's term.
fn page(after: LogPosition, entries: &[Entry], known: &KnownLog) -> Result<LogPage> {
    let (lineage, now_ms) = (known.lineage, known.now_ms);
    let mut page = LogPage { lineage, after, to: after, now_ms, ..LogPage::default() };
    for entry in entries {
        let at = position_of(&entry.log_id);
        if !page.is_empty() && at.term != page.to.term {
            break;
        }
        page.to = at;
        match effect(at, &body_of(entry), &known.verdicts)? {
            Effect::Nothing => {}
            Effect::Wrote(group) if group.writes.iter().all(|writes| known.table(writes.table).is_some()) => {
                page.groups.push(group);
            }
            // (Of a table that was dropped so long ago that nobody knows its name: the archive ends here already.)
            Effect::Wrote(_) | Effect::Unwritten => {
                page.ends_by_load = true;
                break;
            }
        }
    }
    page.tables = tables(&page, known)?;
    if page.to.index >= known.committed && !page.ends_by_load {
        page.complete_until_ms = known.complete_until_ms;
    }
    Ok(page)
}

fn tables(page: &LogPage, known: &KnownLog) -> Result<Vec<LogTable>> {
    let written: BTreeSet<TableId> =
        page.groups.iter().flat_map(|group| group.writes.iter().map(|writes| writes.table)).collect();
    let described = written.into_iter().map(|id| {
        let table = known.table(id);
        table.ok_or_else(|| Error::internal(format!("the log writes a table {id} that is not there")))
    });
    described.collect()
}

impl KnownLog {
    fn table(&self, id: TableId) -> Option<LogTable> {
        let (name, options) = match (self.manifest.table(id), self.dropped.described(id)) {
            (Some(table), _) => (table.name.clone(), table.options.clone()),
            (None, Some(gone)) => (gone.name.clone(), gone.options.clone()),
            (None, None) => return None,
        };
        Some(LogTable { id, name, options })
    }
}
