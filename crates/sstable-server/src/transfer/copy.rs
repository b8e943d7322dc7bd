//! Pulling a table from another server.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::SstId;
use sextant_environment::env::{Party, cluster_channel, error_of};
use sextant_environment::vfs::IoKind;
use sextant_proto::MESSAGE_BYTES_MAX;
use sextant_proto::convert::{sst_id_from_wire, sst_id_to_wire};
use sextant_proto::v1::sst_client::SstClient;
use sextant_proto::v1::{CopyRequest, FetchRequest, FileChunk};
use xxhash_rust::xxh3::Xxh3;

use crate::catalog::{Entry, Replace};
use crate::data_dir::Temporary;
use crate::store::{Store, recorded};
use crate::table::footer::{TRAILER_BYTES, UNHASHED_BYTES};

/// Most addresses in one request: every server of a large tier.
const SOURCES_MAX: usize = 64;
/// How long a source may take for its answer or for the next piece. Beyond it the next source is asked.
const PIECE_WAIT_MAX: Duration = Duration::from_secs(15);

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
    pub async fn copy(self: &Arc<Self>, request: CopyRequest) -> Result<()> {
        let wanted = Wanted {
            id: sst_id_from_wire(&request.id)?,
            checksum: request.checksum,
            file_bytes: request.file_bytes,
        };
        if request.sources.len() > SOURCES_MAX || wanted.file_bytes < TRAILER_BYTES as u64 {
            return Err(Error::invalid("a copy has up to 64 sources and the length of a table file"));
        }
        if self.has(&wanted) {
            return Ok(());
        }
        recorded(self, &self.metrics.copy, |_| wanted.file_bytes, self.pull(wanted, &request.sources)).await
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

    async fn pull(self: &Arc<Self>, wanted: Wanted, sources: &[String]) -> Result<()> {
        let _turn = self.copies.take().await?;
        let mut failures = Vec::new();
        for source in sources {
            // Another copy may have finished while this one waited.
            if self.has(&wanted) {
                return Ok(());
            }
            match self.pull_from(wanted, source).await {
                Ok(()) => return Ok(()),
                // This server's disk will not like another source better.
                Err(e) if matches!(e.kind, ErrorKind::Disk | ErrorKind::Stopping) => return Err(e),
                Err(e) => failures.push(format!("{source}: {e}")),
            }
        }
        let id = wanted.id;
        Err(Error::unavailable(format!("no source could give SSTable {id}: [{}]", failures.join("; "))))
    }

    async fn pull_from(self: &Arc<Self>, wanted: Wanted, source: &str) -> Result<()> {
        let (cluster, me) = (&self.config.cluster, Party::sstable(self.config.id));
        // A source is named by its address; in another server's file it may have another one than here.
        let known = cluster.sstable.iter().find(|server| server.addr == source);
        let to = known.map(|server| Party::sstable(server.id));
        let mut client = SstClient::new(cluster_channel(&self.env.net, source, cluster, me, to))
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        let request = FetchRequest { id: sst_id_to_wire(wanted.id) };
        let mut pieces = in_time(client.fetch(request)).await?.into_inner();
        let catalog = self.catalog.clone();
        let begin = move || {
            let temporary = catalog.create_temporary(wanted.id)?;
            Ok(Incoming { wanted, temporary, hasher: Xxh3::new(), received: 0 })
        };
        let mut incoming = self.disk(IoKind::Write, begin).await?;
        let mut next = in_time(pieces.message()).await?;
        while let Some(piece) = next {
            let write = self.disk(IoKind::Write, move || incoming.write(&piece));
            let (written, received) = futures::join!(write, in_time(pieces.message()));
            incoming = written?;
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

async fn in_time<T>(call: impl Future<Output = Result<T, tonic::Status>>) -> Result<T> {
    match tokio::time::timeout(PIECE_WAIT_MAX, call).await {
        // An error of the source's disk is not one of ours.
        Ok(answer) => answer.map_err(|status| Error::unavailable(error_of(status).message)),
        Err(_) => Err(Error::unavailable(format!("no answer for {PIECE_WAIT_MAX:?}"))),
    }
}

impl Incoming {
    fn write(mut self, piece: &FileChunk) -> Result<Self> {
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
