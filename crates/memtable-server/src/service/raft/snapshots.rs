//! Snapshots from the wire: put together from pieces, bounded in bytes and in time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::Stream;
use sextant_environment::env::status_of;
use sextant_proto::v1;
use sextant_raft_log::decode_membership;
use tokio_stream::StreamExt;
use tonic::{Status, Streaming};

use super::{RaftShell, status_of_refusal};
use crate::raft::acceptor::Offered;
use crate::raft::snapshot_store::Meta;
use crate::raft::wire;

/// A sender that is gone without a word is not waited for.
const PIECE_TIMEOUT: Duration = Duration::from_secs(20);
/// Largest snapshot that is taken: it is put together in memory.
const SNAPSHOT_BYTES_MAX: u64 = 4 << 30;

impl RaftShell {
    pub(super) async fn install(
        &self,
        mut messages: Streaming<v1::InstallSnapshotRequest>,
    ) -> Result<v1::InstallSnapshotResponse, Status> {
        let first = in_time(messages.next()).await?.transpose()?;
        let request = first.ok_or_else(|| Status::invalid_argument("a snapshot without a first message"))?;
        let acceptor = self.acceptor(request.partition, request.to, &request.cluster)?;
        acceptor.admit_snapshot(request.to_incarnation).map_err(status_of_refusal)?;
        let offered = Offered {
            vote: wire::leaders_vote_from_wire(request.vote).map_err(status_of)?,
            meta: Meta {
                last_log_id: request.last_log.map(wire::log_id_from_wire),
                last_membership: decode_membership(&request.membership).map_err(status_of)?,
            },
            asked_ns: request.abstention_ns,
        };
        acceptor.check_offer(&offered).map_err(status_of_refusal)?;
        let data = whole_snapshot(request.data, request.data_bytes, &mut messages).await?;
        let vote = acceptor.install(offered, data).await.map_err(status_of_refusal)?;
        Ok(v1::InstallSnapshotResponse { vote: Some(wire::vote_to_wire(&vote)) })
    }
}

async fn in_time<T>(piece: impl Future<Output = T>) -> Result<T, Status> {
    let late = |_| Status::deadline_exceeded("the next piece of a snapshot did not come");
    tokio::time::timeout(PIECE_TIMEOUT, piece).await.map_err(late)
}

/// Puts a snapshot of `bytes` bytes together; no byte more is kept than were announced.
async fn whole_snapshot(
    first: Bytes,
    bytes: u64,
    messages: &mut (impl Stream<Item = Result<v1::InstallSnapshotRequest, Status>> + Unpin),
) -> Result<Bytes, Status> {
    if bytes > SNAPSHOT_BYTES_MAX {
        let text = format!("a snapshot of {bytes} bytes: at most {SNAPSHOT_BYTES_MAX}");
        return Err(Status::resource_exhausted(text));
    }
    if first.len() as u64 == bytes {
        return Ok(first);
    }
    // It grows with what has come: an announcement costs nothing.
    let mut data = BytesMut::from(first);
    while (data.len() as u64) < bytes {
        let piece = in_time(messages.next()).await?;
        let piece = piece.ok_or_else(|| Status::invalid_argument("a snapshot ends early"))??;
        if piece.data.is_empty() {
            return Err(Status::invalid_argument("a snapshot in pieces of nothing"));
        }
        data.extend_from_slice(&piece.data);
    }
    if data.len() as u64 > bytes {
        return Err(Status::invalid_argument("a snapshot that is longer than announced"));
    }
    Ok(data.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn put_together(announced: u64, pieces: &[&'static [u8]]) -> Result<Bytes, Status> {
        let first = Bytes::from_static(pieces[0]);
        let rest = pieces[1..].iter().map(|piece| {
            Ok(v1::InstallSnapshotRequest { data: Bytes::from_static(piece), ..Default::default() })
        });
        whole_snapshot(first, announced, &mut tokio_stream::iter(rest)).await
    }

    #[tokio::test]
    async fn a_snapshot_comes_in_any_number_of_pieces_and_not_a_byte_more() {
        assert_eq!(put_together(6, &[b"abc", b"de", b"f"]).await.unwrap(), "abcdef");
        assert_eq!(put_together(6, &[b"", b"abcdef"]).await.unwrap(), "abcdef");
        assert_eq!(put_together(3, &[b"abc"]).await.unwrap(), "abc");
        assert_eq!(put_together(0, &[b""]).await.unwrap(), "");
        for (announced, pieces, why) in [
            (6, &[&b"abc"[..], b"de"][..], "ends early"),
            (6, &[b"abc", b"", b"def"], "pieces of nothing"),
            (4, &[b"abc", b"de"], "longer than announced"),
            (2, &[b"abc"], "longer than announced"),
            (u64::MAX, &[b"abc"], "at most"),
        ] {
            let status = put_together(announced, pieces).await.unwrap_err();
            assert!(status.message().contains(why), "{status:?}");
        }
    }
}
