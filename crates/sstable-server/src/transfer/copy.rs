//! Pulling a table from another server.

use std::sync::Arc;

use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::sstable::CopyOrder;
use sextant_environment::vfs::IoKind;

use super::arriving::{Arriving, Wanted};
use crate::catalog::{Entry, Replace};
use crate::progress::Progress;
use crate::store::{Store, recorded};
use crate::table::footer::TRAILER_BYTES;
use crate::upstream;

/// Most addresses in one request: every server of a large tier.
const SOURCES_MAX: usize = 64;

/// A file on its way here. Given up half-way, for whatever reason, it is kept for the next order.
struct Unfinished<'s> {
    store: &'s Store,
    file: Option<Arc<Arriving>>,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.store.broken_off.keep(file, self.store.env.clock.holder_ns());
        }
    }
}

/// What no other source would do better.
fn is_of_this_server(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Disk | ErrorKind::Stopping)
}

impl Store {
    /// Returns when the table is here, durable and as asked for. Does nothing if it is here already and sound.
    /// `progress`: of it, for whoever waits.
    pub async fn copy(self: &Arc<Self>, order: CopyOrder, progress: &Progress) -> Result<()> {
        let CopyOrder { id, checksum, file_bytes, sources, order } = order;
        let wanted = Wanted { id, checksum, file_bytes };
        if sources.len() > SOURCES_MAX || wanted.file_bytes < TRAILER_BYTES as u64 {
            return Err(Error::invalid("a copy has up to 64 sources and the length of a table file"));
        }
        if let Some(order) = order {
            let catalog = self.catalog.clone();
            self.disk(IoKind::Sync, move || catalog.ordered(id.partition, order)).await?;
        }
        if self.has(&wanted) {
            return Ok(());
        }
        let pull = self.pull(wanted, &sources, progress);
        recorded(self, &self.metrics.copy, |_| wanted.file_bytes, pull).await
    }

    fn has(&self, wanted: &Wanted) -> bool {
        match self.catalog.get(wanted.id) {
            Some(Entry::Open(table)) => {
                !table.is_damaged()
                    && table.trailer().file_checksum == wanted.checksum
                    && table.trailer().file_bytes == wanted.file_bytes
            }
            _ => false,
        }
    }

    async fn pull(self: &Arc<Self>, wanted: Wanted, sources: &[String], progress: &Progress) -> Result<()> {
        let _turn = self.copies.take().await?;
        let _room = self.jobs.copy().await?;
        let mut unfinished = Unfinished { store: self, file: self.broken_off.take(wanted) };
        let mut failures = Vec::new();
        for source in sources {
            // Another copy may have finished while this one waited.
            if self.has(&wanted) {
                unfinished.file = None;
                return Ok(());
            }
            match self.pull_from(wanted, source, &mut unfinished.file, progress).await {
                Ok(()) => return Ok(()),
                Err(e) if is_of_this_server(&e) => {
                    unfinished.file = None;
                    return Err(e);
                }
                Err(e) => failures.push(format!("{source}: {e}")),
            }
        }
        let id = wanted.id;
        Err(Error::unavailable(format!("no source could give SSTable {id}: [{}]", failures.join("; "))))
    }

    /// `file`: what is here of it; None afterwards: it is complete, or was no good.
    async fn pull_from(
        self: &Arc<Self>,
        wanted: Wanted,
        source: &str,
        file: &mut Option<Arc<Arriving>>,
        progress: &Progress,
    ) -> Result<()> {
        let went_on = file.is_some();
        match self.pull_rest(wanted, source, file, progress).await {
            // Perhaps what was here was no good, and this source is.
            Err(e) if went_on && file.is_none() && !is_of_this_server(&e) => {
                self.pull_rest(wanted, source, file, progress).await
            }
            done => done,
        }
    }

    async fn pull_rest(
        self: &Arc<Self>,
        wanted: Wanted,
        source: &str,
        file: &mut Option<Arc<Arriving>>,
        progress: &Progress,
    ) -> Result<()> {
        let offset = file.as_ref().map_or(0, |file| file.bytes());
        let mut pieces = upstream::fetch(&self.env.net, &self.config, source, wanted.id, offset).await?;
        let mut next = pieces.next().await?;
        // (An older server begins at the beginning.)
        let goes_on = offset > 0 && next.as_ref().is_none_or(|piece| piece.offset == offset);
        let arriving = match file.take().filter(|_| goes_on) {
            Some(file) => {
                self.metrics.copies_resumed.inc();
                file
            }
            None => {
                let catalog = self.catalog.clone();
                let begin = move || Ok(Arriving::new(wanted, catalog.create_temporary(wanted.id)?));
                self.disk(IoKind::Write, begin).await?
            }
        };
        *file = Some(arriving.clone());
        while let Some(piece) = next {
            let arriving = arriving.clone();
            let write = self.disk(IoKind::Write, move || arriving.write(&piece));
            let (written, received) = futures::join!(write, pieces.next());
            match written {
                Ok(bytes) => progress.reached(bytes),
                Err(e) => {
                    *file = None;
                    return Err(e);
                }
            }
            next = received?;
        }
        *file = None;
        let catalog = self.catalog.clone();
        self.disk(IoKind::Sync, move || {
            let temporary = arriving.complete()?;
            catalog.install(temporary, Replace::With { checksum: wanted.checksum }).map(drop)
        })
        .await
    }
}
