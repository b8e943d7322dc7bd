//! Writes: validated, handed to their partitions' workers, and answered.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use sextant_common::error::Error;
use sextant_environment::env::status_of;
use sextant_proto::v1;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tonic::{Status, Streaming};

use super::answers::{Packer, Room, fit_one_message};
use super::{Replies, RowsShell, write_from_wire};
use crate::replica::{Answer, ReplySink, WriteFate};

/// A write without a deadline of its own waits this long.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);

/// Room that is closed with this.
struct OnDrop(Room);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl RowsShell {
    /// The writes of a stream, and the stream of their answers.
    pub(super) fn write_all(self, mut batches: Streaming<v1::WriteBatch>) -> Replies<v1::WriteBatchReply> {
        // Unbounded, but never more than the stream has room for.
        let (to, answered) = mpsc::unbounded_channel();
        let room = Room::of_a_stream();
        let packer = self.packer();
        let takes_changes = packer.takes_changes.clone();
        let admitted = room.clone();
        tokio::spawn(async move {
            let mut shutdown = self.context.shutdown.clone();
            loop {
                let message = tokio::select! {
                    message = batches.next() => message,
                    () = shutdown.wait() => return,
                };
                let Some(Ok(batch)) = message else { return };
                self.context.metrics.write_messages.inc();
                takes_changes.store(batch.takes_changes, Ordering::Relaxed);
                for write in batch.writes {
                    let Some(share) = admitted.take(&write).await else { return };
                    self.submit(write, &to, Some(share));
                }
            }
        });
        // Room is given back when a message is taken: as much as the connection takes is sent. When nobody takes any more, nor is anything
        // submitted.
        let open = OnDrop(room);
        let messages =
            futures::stream::unfold((packer, answered, open), |(mut packer, mut answered, open)| async {
                let packed = packer.next(&mut answered).await?;
                Some((Ok(packed.message), (packer, answered, open)))
            });
        Box::pin(messages)
    }

    pub(super) async fn write_one(&self, batch: v1::WriteBatch) -> Result<v1::WriteBatchReply, Status> {
        self.context.metrics.write_messages.inc();
        if !fit_one_message(&batch.writes) {
            let what =
                "the answers to so many writes do not fit into one message: send fewer, or use the stream";
            return Err(status_of(Error::invalid(what)));
        }
        let (to, mut answered) = mpsc::unbounded_channel();
        let mut replies = Vec::with_capacity(batch.writes.len());
        for write in batch.writes {
            self.submit(write, &to, None);
        }
        drop(to);
        let mut packer = self.packer();
        packer.takes_changes.store(batch.takes_changes, Ordering::Relaxed);
        while let Some(packed) = packer.next(&mut answered).await {
            replies.extend(packed.message.replies);
        }
        Ok(v1::WriteBatchReply { replies })
    }

    fn packer(&self) -> Packer {
        Packer::timed(self.context.env.clock.clone(), self.context.metrics.write_seconds.clone())
    }

    /// Hands a write to its partition's worker, or refuses it.
    fn submit(
        &self,
        request: v1::WriteRequest,
        to: &mpsc::UnboundedSender<Answer>,
        room: Option<OwnedSemaphorePermit>,
    ) {
        self.context.metrics.write_requests.inc();
        let now_ns = self.context.env.clock.holder_ns();
        let reply = ReplySink::new(request.id, now_ns, to.clone(), room);
        let handle = match self.context.partition(request.partition) {
            Ok(handle) => handle,
            Err(e) => return reply.send(WriteFate::UnknownPartition(e.message)),
        };
        let wait = match request.deadline_ms {
            0 => WRITE_DEADLINE,
            ms => Duration::from_millis(u64::from(ms)),
        };
        let deadline_ns = now_ns + wait.as_nanos() as u64;
        let (request, bytes) = match write_from_wire(request) {
            Ok(converted) => converted,
            Err(e) => return reply.send(WriteFate::Invalid(e.message)),
        };
        if handle.submit(request, bytes, deadline_ns, reply).is_err() {
            self.context.metrics.overloaded.inc();
        }
    }
}
