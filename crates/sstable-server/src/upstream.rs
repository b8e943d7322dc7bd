//! Another sstable server, as this one asks it for a table. Messages to it end here.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sextant_common::error::{Error, Result};
use sextant_common::ids::SstId;
use sextant_environment::env::{Network, Party, cluster_channel, error_of};
use sextant_proto::MESSAGE_BYTES_MAX;
use sextant_proto::convert::sst_id_to_wire;
use sextant_proto::v1::sst_client::SstClient;
use sextant_proto::v1::{FetchRequest, FileChunk};
use tonic::Streaming;

use crate::config::SstServerConfig;
use crate::transfer::Piece;

/// How long a source may take for its answer or for the next piece. Beyond it the next source is asked.
const PIECE_WAIT_MAX: Duration = Duration::from_secs(15);

/// A table's file on its way here.
pub struct Pieces(Streaming<FileChunk>);

impl Pieces {
    /// In the file's order; None: that was the last one.
    pub async fn next(&mut self) -> Result<Option<Piece>> {
        let chunk = in_time(self.0.message()).await?;
        Ok(chunk.map(|chunk| Piece { offset: chunk.offset, data: chunk.data }))
    }
}

/// Asks the server at `source` for a table's file, from `offset` on.
pub async fn fetch(
    net: &Arc<dyn Network>,
    config: &SstServerConfig,
    source: &str,
    id: SstId,
    offset: u64,
) -> Result<Pieces> {
    let (cluster, me) = (&config.cluster, Party::sstable(config.id));
    // A source is named by its address; in another server's file it may have another one than here.
    let known = cluster.sstable.iter().find(|server| server.addr == source);
    let to = known.map(|server| Party::sstable(server.id));
    let mut client = SstClient::new(cluster_channel(net, source, cluster, me, to))
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let request = FetchRequest { id: sst_id_to_wire(id), offset };
    Ok(Pieces(in_time(client.fetch(request)).await?.into_inner()))
}

async fn in_time<T>(call: impl Future<Output = Result<T, tonic::Status>>) -> Result<T> {
    match tokio::time::timeout(PIECE_WAIT_MAX, call).await {
        // An error of the source's disk is not one of ours.
        Ok(answer) => answer.map_err(|status| Error::unavailable(error_of(status).message)),
        Err(_) => Err(Error::unavailable(format!("no answer for {PIECE_WAIT_MAX:?}"))),
    }
}
