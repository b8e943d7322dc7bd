//! Pulling a table from another server.

use std::sync::Arc;

use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::SstId;
use sextant_common::sstable::CopyOrder;
use sextant_environment::vfs::IoKind;
use xxhash_rust::xxh3::Xxh3;

use super::Piece;
use crate::catalog::{Entry, Replace};
use crate::data_dir::Temporary;
use crate::progress::Progress;
use crate::store::{Store, recorded};
use crate::table::footer::{TRAILER_BYTES, UNHASHED_BYTES};
use crate::upstream;

/// Most addresses in one request: every server of a large tier.
const SOURCES_MAX: usize = 64;

/// What the file must be.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    id: SstId,
    checksum: u64,
    file_bytes: u64,
}

/// A file that is arriving.
struct Incoming {
    wanted: Wanted,
    temporary: Temporary,
    hasher: Xxh3,
    received: u64,
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
        let mut failures = Vec::new();
        for source in sources {
            // Another copy may have finished while this one waited.
            if self.has(&wanted) {
                return Ok(());
            }
            match self.pull_from(wanted, source, progress).await {
                Ok(()) => return Ok(()),
                // This server's disk will not like another source better.
                Err(e) if matches!(e.kind, ErrorKind::Disk | ErrorKind::Stopping) => return Err(e),
                Err(e) => failures.push(format!("{source}: {e}")),
            }
        }
        let id = wanted.id;
        Err(Error::unavailable(format!("no source could give SSTable {id}: [{}]", failures.join("; "))))
    }

    async fn pull_from(self: &Arc<Self>, wanted: Wanted, source: &str, progress: &Progress) -> Result<()> {
        let mut pieces = upstream::fetch(&self.env.net, &self.config, source, wanted.id).await?;
        let catalog = self.catalog.clone();
        let begin = move || {
            let temporary = catalog.create_temporary(wanted.id)?;
            Ok(Incoming { wanted, temporary, hasher: Xxh3::new(), received: 0 })
        };
        let mut incoming = self.disk(IoKind::Write, begin).await?;
        let mut next = pieces.next().await?;
        while let Some(piece) = next {
            let write = self.disk(IoKind::Write, move || incoming.write(&piece));
            let (written, received) = futures::join!(write, pieces.next());
            incoming = written?;
            progress.reached(incoming.received);
            next = received?;
        }
        let catalog = self.catalog.clone();
        self.disk(IoKind::Sync, move || {
            let temporary = incoming.complete()?;
            catalog.install(temporary, Replace::With { checksum: wanted.checksum }).map(drop)
        })
        .await
    }
}

impl Incoming {
    fn write(mut self, piece: &Piece) -> Result<Self> {
        let end = self.received.saturating_add(piece.data.len() as u64);
        if piece.offset != self.received || end > self.wanted.file_bytes {
            return Err(Error::corrupt("the source sent other bytes than were asked for"));
        }
        let hashed = self.wanted.file_bytes - UNHASHED_BYTES as u64;
        let of_hashed = hashed.saturating_sub(self.received).min(piece.data.len() as u64);
        self.hasher.update(&piece.data[..of_hashed as usize]);
        self.temporary.file().write_all_at(&piece.data, self.received)?;
        self.received = end;
        Ok(self)
    }

    /// The file, verified and synced.
    fn complete(self) -> Result<Temporary> {
        let Wanted { id, checksum, file_bytes } = self.wanted;
        if self.received != file_bytes {
            return Err(Error::corrupt(format!(
                "the source has {} bytes, expected {file_bytes}",
                self.received
            )));
        }
        let got = self.hasher.digest();
        if got != checksum {
            return Err(Error::corrupt(format!(
                "SSTable {id}: checksum {got:#018x}, expected {checksum:#018x}"
            )));
        }
        self.temporary.file().sync_data()?;
        Ok(self.temporary)
    }
}
