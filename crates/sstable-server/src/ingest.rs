//! Receiving a table: a stream of sorted records becomes a durable file.
//!
//! One message is written while the next one arrives, so an ingest holds two messages and the writer's buffers; it has room for
//! that before it reads the first one ([`crate::memory`]).
//! Whatever goes wrong before the file has its name, the file is removed and nobody was told that the table is here.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::manifest::SstMeta;
use sextant_common::sstable::{IngestOrder, RecordVersion};
use sextant_environment::vfs::IoKind;

use crate::catalog::Replace;
use crate::data_dir::Temporary;
use crate::store::{Store, recorded};
use crate::table::{Content, TableWriter};

/// How long the sender may be silent. It streams from memory: silence means that it is gone.
const MESSAGE_WAIT_MAX: Duration = Duration::from_secs(20);

/// A piece of an ingest.
#[derive(Debug, Default)]
pub struct IngestPiece {
    /// With the first piece.
    pub order: Option<IngestOrder>,
    pub records: Vec<RecordVersion>,
    /// With the last one: the number of records sent.
    pub finish: Option<u64>,
}

struct Incoming {
    writer: TableWriter,
    /// Vanishes with this, unless it becomes a table.
    temporary: Temporary,
}

impl Store {
    /// Returns when the table is durable, or was here already with the same contents.
    pub async fn ingest(
        self: &Arc<Self>,
        stream: impl Stream<Item = Result<IngestPiece>> + Unpin,
    ) -> Result<SstMeta> {
        recorded(self, &self.metrics.ingest, |meta: &SstMeta| meta.file_bytes, self.receive(stream)).await
    }

    async fn receive(
        self: &Arc<Self>,
        mut stream: impl Stream<Item = Result<IngestPiece>> + Unpin,
    ) -> Result<SstMeta> {
        let _turn = self.ingests.take().await?;
        let _room = self.jobs.ingest().await?;
        let mut piece = next(&mut stream).await?;
        let order = piece.order.take();
        let order = order.ok_or_else(|| Error::invalid("the first message of an ingest has the header"))?;
        let mut incoming = self.begin(order).await?;
        loop {
            if piece.order.is_some() {
                return Err(Error::invalid("an ingest has one header"));
            }
            let IngestPiece { records, finish, .. } = piece;
            let write = self.disk(IoKind::Write, move || incoming.write(records));
            if let Some(record_count) = finish {
                return self.seal(write.await?, record_count).await;
            }
            let (written, received) = futures::join!(write, next(&mut stream));
            // What the disk says comes first: it may be why the sender gave up.
            incoming = written?;
            piece = received?;
        }
    }

    async fn begin(self: &Arc<Self>, order: IngestOrder) -> Result<Incoming> {
        let IngestOrder { id, table, options, origin } = order;
        let catalog = self.catalog.clone();
        let begin = move || {
            let temporary = catalog.create_temporary(id)?;
            let writer = TableWriter::new(temporary.file().clone(), id, table, options).with_origin(origin);
            Ok(Incoming { writer, temporary })
        };
        self.disk(IoKind::Write, begin).await
    }

    async fn seal(self: &Arc<Self>, incoming: Incoming, record_count: u64) -> Result<SstMeta> {
        let records = incoming.writer.records();
        if records != record_count {
            return Err(Error::invalid(format!("{records} records arrived, {record_count} were sent")));
        }
        let catalog = self.catalog.clone();
        let seal = move || {
            let Incoming { writer, temporary } = incoming;
            writer.finish()?;
            catalog.install(temporary, Replace::Refuse)
        };
        self.disk(IoKind::Sync, seal).await
    }
}

impl Incoming {
    fn write(mut self, records: Vec<RecordVersion>) -> Result<Self> {
        for RecordVersion { key, seq, value, marks } in records {
            self.writer.add(&key, seq.0, Content::new(value.as_deref(), marks))?;
        }
        Ok(self)
    }
}

async fn next(stream: &mut (impl Stream<Item = Result<IngestPiece>> + Unpin)) -> Result<IngestPiece> {
    match tokio::time::timeout(MESSAGE_WAIT_MAX, stream.next()).await {
        Ok(Some(piece)) => piece,
        Ok(None) => Err(Error::invalid("the stream ended before its `finish`")),
        Err(_) => Err(Error::new(ErrorKind::Unavailable, format!("no message for {MESSAGE_WAIT_MAX:?}"))),
    }
}
