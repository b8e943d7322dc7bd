//! Receiving a table: a stream of sorted records becomes a durable file.
//!
//! One message is written while the next one arrives, so an ingest holds two messages and the writer's buffers. Whatever
//! goes wrong before the file has its name, the file is removed and nobody was told that the table is here.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::TableId;
use sextant_common::manifest::SstMeta;
use sextant_environment::env::error_of;
use sextant_environment::vfs::IoKind;
use sextant_proto::convert::sst_id_from_wire;
use sextant_proto::v1::{IngestHeader, IngestRequest, ScanRecord};
use tonic::Status;

use crate::catalog::Replace;
use crate::data_dir::Temporary;
use crate::store::{Store, recorded};
use crate::table::TableWriter;

/// How long the sender may be silent. It streams from memory: silence means that it is gone.
const MESSAGE_WAIT_MAX: Duration = Duration::from_secs(20);

struct Incoming {
    writer: TableWriter,
    /// Vanishes with this, unless it becomes a table.
    temporary: Temporary,
}

impl Store {
    /// Returns when the table is durable, or was here already with the same contents.
    pub async fn ingest(
        self: &Arc<Self>,
        stream: impl Stream<Item = Result<IngestRequest, Status>> + Unpin,
    ) -> Result<SstMeta> {
        recorded(self, &self.metrics.ingest, |meta: &SstMeta| meta.file_bytes, self.receive(stream)).await
    }

    async fn receive(
        self: &Arc<Self>,
        mut stream: impl Stream<Item = Result<IngestRequest, Status>> + Unpin,
    ) -> Result<SstMeta> {
        let _turn = self.ingests.take().await?;
        let mut message = next(&mut stream).await?;
        let header = message.header.take();
        let header = header.ok_or_else(|| Error::invalid("the first message of an ingest has the header"))?;
        let mut incoming = self.begin(header).await?;
        loop {
            if message.header.is_some() {
                return Err(Error::invalid("an ingest has one header"));
            }
            let (finish, record_count) = (message.finish, message.record_count);
            let records = std::mem::take(&mut message.records);
            let write = self.disk(IoKind::Write, move || incoming.write(records));
            if finish {
                return self.seal(write.await?, record_count).await;
            }
            let (written, received) = futures::join!(write, next(&mut stream));
            // What the disk says comes first: it may be why the sender gave up.
            incoming = written?;
            message = received?;
        }
    }

    async fn begin(self: &Arc<Self>, header: IngestHeader) -> Result<Incoming> {
        let id = sst_id_from_wire(&header.id)?;
        let options = header.options.unwrap_or_default().try_into()?;
        let origin = header.origin.map(TryInto::try_into).transpose()?;
        let catalog = self.catalog.clone();
        let begin = move || {
            let temporary = catalog.create_temporary(id)?;
            let writer = TableWriter::new(temporary.file().clone(), id, TableId(header.table), options)
                .with_origin(origin);
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
    fn write(mut self, records: Vec<ScanRecord>) -> Result<Self> {
        for record in records {
            self.writer.add(&record.key, &record.value, record.seq, record.tombstone)?;
        }
        Ok(self)
    }
}

async fn next(
    stream: &mut (impl Stream<Item = Result<IngestRequest, Status>> + Unpin),
) -> Result<IngestRequest> {
    match tokio::time::timeout(MESSAGE_WAIT_MAX, stream.next()).await {
        Ok(Some(Ok(message))) => Ok(message),
        Ok(Some(Err(status))) => Err(error_of(status)),
        Ok(None) => Err(Error::invalid("the stream ended before its `finish`")),
        Err(_) => Err(Error::new(ErrorKind::Unavailable, format!("no message for {MESSAGE_WAIT_MAX:?}"))),
    }
}
