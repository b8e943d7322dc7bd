//! The end of a connection.

use std::time::Duration;

use bytes::BytesMut;
use sextant_environment::env;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long the input of a closed connection is thrown away, so that the last reply is not lost to a reset.
const LINGER: Duration = Duration::from_millis(500);
/// And how much of it.
const LINGER_BYTES: usize = 16 * 1024 * 1024;
/// Thrown away at a time.
const PIECE_BYTES: usize = 16 * 1024;

/// Closing with unread input makes the kernel reset the connection, and the client may lose the last reply.
pub(super) async fn linger(io: &mut env::Connection) {
    let _ = tokio::time::timeout(LINGER, async {
        io.shutdown().await?;
        let (mut input, mut thrown_away) = (BytesMut::new(), 0);
        while thrown_away < LINGER_BYTES {
            input.clear();
            input.reserve(PIECE_BYTES);
            match io.read_buf(&mut input).await? {
                0 => break,
                read => thrown_away += read,
            }
        }
        std::io::Result::Ok(())
    })
    .await;
}
