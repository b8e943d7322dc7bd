//! Giving tables and filters to others.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, Stream};
use sextant_common::error::{Error, Result};
use sextant_common::ids::SstId;
use sextant_environment::vfs::IoKind;

use super::{PIECE_BYTES, Piece};
use crate::store::Store;

impl Store {
    /// The file of a table from `offset` on, in order. A table that is known to be damaged is not given away.
    pub async fn fetch(
        self: &Arc<Self>,
        id: SstId,
        offset: u64,
    ) -> Result<impl Stream<Item = Result<Piece>> + Send + 'static> {
        let table = self.table(id)?;
        if table.is_damaged() {
            return Err(Error::corrupt(format!("SSTable {id} is damaged here")));
        }
        let bytes = table.trailer().file_bytes;
        if offset > bytes {
            return Err(Error::invalid(format!("SSTable {id} has {bytes} bytes: none from {offset} on")));
        }
        let turn = self.fetches.take().await?;
        let start = (self.clone(), turn, offset);
        Ok(stream::try_unfold(start, move |(store, turn, offset)| {
            let table = table.clone();
            async move {
                let left = table.trailer().file_bytes - offset;
                if left == 0 {
                    return Ok(None);
                }
                let read = move || {
                    let mut piece = vec![0; left.min(PIECE_BYTES as u64) as usize];
                    table.file().read_exact_at(&mut piece, offset)?;
                    Ok(Bytes::from(piece))
                };
                let data = store.disk(IoKind::Read, read).await?;
                let next = offset + data.len() as u64;
                Ok(Some((Piece { offset, data }, (store, turn, next))))
            }
        }))
    }

    /// The filter section's payload in pieces; it has been checked. Takes the room of an answer until the last one has left.
    pub async fn fetch_filter(
        self: &Arc<Self>,
        id: SstId,
    ) -> Result<impl Stream<Item = Bytes> + Send + 'static> {
        let table = self.table(id)?;
        let room = self.answers.take(table.trailer().filter.bytes as usize).await?;
        let turn = self.disk_reads.take().await?;
        let read = move || {
            let filter = table.filter_bytes()?;
            drop(turn);
            filter.ok_or_else(|| Error::corrupt(format!("the filter of SSTable {id} is damaged")))
        };
        let bytes = Bytes::from(self.disk(IoKind::Read, read).await?);
        let pieces = (0..bytes.len()).step_by(PIECE_BYTES);
        Ok(stream::iter(pieces.map(move |at| {
            let _room = &room;
            bytes.slice(at..bytes.len().min(at + PIECE_BYTES))
        })))
    }
}
