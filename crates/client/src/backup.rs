//! What a backup asks of the administration: cuts, files of SSTables, records as they are, checks. For `sextant-backup`.

use std::time::Duration;

use bytes::Bytes;
use sextant_common::archive::LogAnswer;
use sextant_common::cut::Cut;
use sextant_common::error::{Error, Result};
use sextant_common::ids::{LogPosition, PartitionId, SstId};
use sextant_common::manifest::TableOptions;
use sextant_environment::env::error_of;
use sextant_proto::convert::sst_id_to_wire;
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;

use crate::client::Client;
use crate::retry::timed;
use crate::wire::Wire;

/// All that the cluster has is read.
const VERIFY_DEADLINE: Duration = Duration::from_secs(24 * 3600);
/// A restore goes no faster than flushes do.
const IMPORT_DEADLINE: Duration = Duration::from_secs(300);
/// Until the next page of a log: a p-node looks once a second, and searches for a leader for a while.
const PAGE_MAX: Duration = Duration::from_secs(60);
/// Until the next piece of a file.
const PIECE_MAX: Duration = Duration::from_secs(30);

/// The file of an SSTable, as it comes.
#[derive(Debug)]
pub struct FetchedTable(tonic::Streaming<v1::FileChunk>);

impl FetchedTable {
    /// The next piece: where it belongs, and its bytes. `None`: that was all.
    pub async fn next(&mut self) -> Result<Option<(u64, Bytes)>> {
        match tokio::time::timeout(PIECE_MAX, self.0.message()).await {
            Ok(Ok(piece)) => Ok(piece.map(|piece| (piece.offset, piece.data))),
            Ok(Err(status)) => Err(error_of(status)),
            Err(_) => Err(Error::unavailable("no piece of the SSTable in time")),
        }
    }
}

/// A partition's log, as it grows.
#[derive(Debug)]
pub struct FollowedLog(tonic::Streaming<v1::LogPage>);

impl FollowedLog {
    /// The next page, which may have no entries: so it is known how late it is. After an answer that says that it is gone, or an error,
    /// nothing comes any more.
    pub async fn next(&mut self) -> Result<LogAnswer> {
        match tokio::time::timeout(PAGE_MAX, self.0.message()).await {
            Ok(Ok(Some(page))) => page.try_into(),
            Ok(Ok(None)) => Err(Error::unavailable("the log's pages ended")),
            Ok(Err(status)) => Err(error_of(status)),
            Err(_) => Err(Error::unavailable("no page of the log in time")),
        }
    }
}

/// Reads the logs of partitions over one connection to a p-node's administration. Clones share it. One log that is not read holds up
/// no other.
#[derive(Clone, Debug)]
pub struct LogReader(AdminClient<Wire>);

impl LogReader {
    /// What committed entries of a partition's log did, those after a position; None: only from where on there are any.
    pub async fn follow(&self, partition: PartitionId, after: Option<LogPosition>) -> Result<FollowedLog> {
        let request =
            v1::ReadLogRequest { partition: partition.0, after: after.map(Into::into), having: None };
        let mut admin = self.0.clone();
        // (It goes on and on; every page has a limit.)
        match tokio::time::timeout(PAGE_MAX, admin.read_log(request)).await {
            Ok(Ok(pages)) => Ok(FollowedLog(pages.into_inner())),
            Ok(Err(status)) => Err(error_of(status)),
            Err(_) => Err(Error::unavailable("the log was not opened in time")),
        }
    }
}

impl Client {
    /// Finds a p-node to read logs from. If it fails, another one is found by asking again.
    pub async fn log_reader(&self) -> Result<LogReader> {
        Ok(LogReader(self.administration_for_streams().await?))
    }

    /// What a snapshot has in a partition.
    pub async fn cut(&self, partition: PartitionId, id: u64) -> Result<Cut> {
        let action = v1::cut_request::Action::Look.into();
        let request = v1::CutRequest { partition: partition.0, id, action, lease_ms: 0, privileged: true };
        let reply = self
            .administer(self.deadline(), async |mut admin, limit| {
                Ok(admin.cut(timed(request, limit)).await?.into_inner())
            })
            .await?;
        reply.cut.ok_or_else(|| Error::internal("no cut"))?.try_into()
    }

    /// The file of an SSTable that a snapshot has.
    pub async fn fetch_table(
        &self,
        partition: PartitionId,
        snapshot: u64,
        id: SstId,
    ) -> Result<FetchedTable> {
        let request = v1::FetchTableRequest { partition: partition.0, cut: snapshot, id: sst_id_to_wire(id) };
        let pieces = self
            .administer(self.deadline(), async |mut admin, _limit| {
                // (It takes as long as the file is; every piece has a limit.)
                Ok(admin.fetch_table(request.clone()).await?.into_inner())
            })
            .await?;
        Ok(FetchedTable(pieces))
    }

    /// Creates a table, of the database's own too.
    pub async fn ensure_table(&self, name: &str, options: &TableOptions) -> Result<()> {
        let options = Some(options.into());
        let request = v1::EnsureTableRequest { name: name.to_owned(), options, ..Default::default() };
        self.administer(self.deadline(), async |mut admin, limit| {
            Ok(admin.ensure_table(timed(request.clone(), limit)).await?.into_inner())
        })
        .await?;
        Ok(())
    }

    /// Writes records as they are: with their kinds and expiries; tombstones delete. Repeated, it does the same.
    pub async fn import(&self, table: &str, records: Vec<v1::ScanRecord>) -> Result<u64> {
        let request = v1::ImportRequest { table: table.to_owned(), records };
        // One long attempt: writes may be slowed, and another one would only be in their way.
        let deadline = self.deadline().max(IMPORT_DEADLINE);
        let reply = self
            .with_attempt_timeout(deadline)
            .administer(deadline, async |admin, limit| {
                let mut admin = admin.max_encoding_message_size(sextant_proto::MESSAGE_BYTES_MAX);
                Ok(admin.import(timed(request.clone(), limit)).await?.into_inner())
            })
            .await?;
        Ok(reply.written)
    }

    /// Has the sstable servers read all that they have.
    pub async fn verify_tables(&self) -> Result<v1::VerifyTablesReply> {
        let patient = self.with_attempt_timeout(VERIFY_DEADLINE);
        patient
            .administer(VERIFY_DEADLINE, async |mut admin, limit| {
                let request = v1::VerifyTablesRequest::default();
                Ok(admin.verify_tables(timed(request, limit)).await?.into_inner())
            })
            .await
    }
}
