//! Cuts, as who reads them asks for them.

use std::sync::Arc;

use sextant_common::cut::{Cut, STUCK_MAX, WantedCut};
use sextant_common::error::{Error, ErrorKind, Result};
use tokio::sync::oneshot;

use super::{DATA_TIMEOUT, ENTRY_TIMEOUT, check_leads, within};
use crate::leadership::leadership_changed;
use crate::partition::cuts::unknown_cut;
use crate::replica::{Event, Handle};

fn find(cuts: &[Arc<Cut>], id: u64) -> Option<&Arc<Cut>> {
    cuts.iter().find(|cut| cut.id == id)
}

/// Returns when all that it has is in SSTables. Asked again, of this leader or of the next, it is the same one.
pub async fn open_cut(handle: &Handle, wanted: WantedCut) -> Result<Arc<Cut>> {
    let id = wanted.id;
    let mut cuts = handle.shared.cuts.subscribe();
    let (done, answer) = oneshot::channel();
    let _ = handle.events.send(Event::OpenCut { wanted, done });
    within(ENTRY_TIMEOUT, "open a snapshot", answer).await?;
    let mut was_there = false;
    let complete = cuts.wait_for(|cuts| match find(cuts, id) {
        Some(cut) => {
            was_there = true;
            cut.is_complete()
        }
        None => was_there,
    });
    match tokio::time::timeout(DATA_TIMEOUT, complete).await {
        // (Whoever asks again would open another one: this is final.)
        Ok(Ok(cuts)) => {
            find(&cuts, id).cloned().ok_or_else(|| Error::new(ErrorKind::Overloaded, not_completed()))
        }
        Ok(Err(_)) => Err(Error::retry("the server is stopping")),
        Err(_) => Err(Error::unavailable("open a snapshot: its memtables were not flushed in time")),
    }
}

fn not_completed() -> String {
    format!(
        "the snapshot ended before it was complete: what is in memory was not flushed for {STUCK_MAX:?}, one of its tables \
         was dropped, or somebody has closed it"
    )
}

/// It is held for its lease from now on.
pub async fn renew_cut(handle: &Handle, id: u64) -> Result<Arc<Cut>> {
    let (done, answer) = oneshot::channel();
    let _ = handle.events.send(Event::RenewCut { id, done });
    let term = within(ENTRY_TIMEOUT, "renew a snapshot", answer).await?;
    // A leader after this one counts from its own beginning, which is later.
    if handle.shared.serving() != Some(term) {
        return Err(leadership_changed());
    }
    find(&handle.shared.view.load().cuts, id).cloned().ok_or_else(|| unknown_cut(id))
}

pub fn look_at_cut(handle: &Handle, id: u64) -> Result<Arc<Cut>> {
    check_leads(handle)?;
    find(&handle.shared.view.load().cuts, id).cloned().ok_or_else(|| unknown_cut(id))
}

/// Idempotent.
pub async fn end_cut(handle: &Handle, id: u64) -> Result<()> {
    let (done, answer) = oneshot::channel();
    let _ = handle.events.send(Event::EndCut { id, done });
    within(ENTRY_TIMEOUT, "end a snapshot", answer).await
}
