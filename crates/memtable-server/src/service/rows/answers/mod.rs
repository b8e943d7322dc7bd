//! Answers to writes, on their way out of a stream.
//!
//! Owns how many bytes of them may be on their way ([`Room`]: a share is taken before a write is submitted, travels with its
//! answer, and is given back when the message with the answer is taken by the connection), what goes into one message, and
//! that a manifest travels once a stream and version: a flush voids the conditions of thousands of writes at once, and the
//! worker that says so has no time to convert a manifest for each of them.
//!
//! Invariant: what waits on a stream is never more than its room, however large answers are, and whoever does not read its
//! answers has only its own writes stopped.

mod room;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use prost::Message as _;
use sextant_common::ids::{ManifestVersion, PartitionId};
use sextant_common::manifest::Manifest;
use sextant_environment::Clock;
use sextant_environment::latency::Latencies;
use sextant_proto::v1;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::replica::{Answer, WriteFate};
pub use room::{Room, fit_one_message};
use wire::to_wire;

/// Answers that one message carries: the last one may be as large as an answer can be.
const MESSAGE_BYTES: usize = 12 * 1024 * 1024;
/// The same in numbers.
const MESSAGE_ANSWERS: usize = 1024;

/// Answers as they go out, and their room until they are gone.
pub struct Packed {
    pub message: v1::WriteBatchReply,
    _room: Option<OwnedSemaphorePermit>,
}

/// Puts the answers of one stream, or of one unary call, into messages.
#[derive(Default)]
pub struct Packer {
    /// How long writes took until they are here.
    took: Option<(Arc<dyn Clock>, Latencies)>,
    waiting: VecDeque<Answer>,
    /// Did not fit into the message before.
    next: Option<(v1::WriteReply, Option<OwnedSemaphorePermit>)>,
    /// Manifests that have gone out.
    sent: HashMap<PartitionId, ManifestVersion>,
}

impl Packer {
    pub fn timed(clock: Arc<dyn Clock>, took: Latencies) -> Self {
        Self { took: Some((clock, took)), ..Self::default() }
    }

    /// The next message: what is there, or the first that comes. None: no more answers will come.
    pub async fn next(&mut self, answers: &mut mpsc::UnboundedReceiver<Answer>) -> Option<Packed> {
        if self.is_empty() {
            let mut batch = Vec::new();
            if answers.recv_many(&mut batch, MESSAGE_ANSWERS).await == 0 {
                return None;
            }
            self.observe(&batch);
            self.waiting.extend(batch);
        }
        Some(self.pack())
    }

    fn observe(&self, batch: &[Answer]) {
        if let Some((clock, took)) = &self.took {
            let now_ns = clock.holder_ns();
            batch.iter().for_each(|answer| took.observe_ns(now_ns.saturating_sub(answer.since_ns)));
        }
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.next.is_none()
    }

    /// As many of the waiting answers as fit, at least one.
    fn pack(&mut self) -> Packed {
        let (mut replies, mut bytes) = (Vec::new(), 0);
        let mut room: Option<OwnedSemaphorePermit> = None;
        while let Some((reply, share)) = self.next.take().or_else(|| self.convert_next()) {
            bytes += reply.encoded_len();
            if bytes > MESSAGE_BYTES && !replies.is_empty() {
                self.next = Some((reply, share));
                break;
            }
            replies.push(reply);
            match (&mut room, share) {
                (Some(all), Some(one)) => all.merge(one),
                (none, one) => *none = one,
            }
        }
        Packed { message: v1::WriteBatchReply { replies }, _room: room }
    }

    fn convert_next(&mut self) -> Option<(v1::WriteReply, Option<OwnedSemaphorePermit>)> {
        let Answer { id, fate, room, .. } = self.waiting.pop_front()?;
        let stale = match &fate {
            WriteFate::Stale(manifest) if self.is_news(manifest) => Some(manifest.clone()),
            _ => None,
        };
        let mut reply = to_wire(id, fate);
        reply.manifest = stale.map(|manifest| manifest.as_ref().into());
        Some((reply, room))
    }

    fn is_news(&mut self, manifest: &Manifest) -> bool {
        let sent = self.sent.get(&manifest.partition);
        let is_news = sent.is_none_or(|sent| *sent < manifest.version);
        if is_news {
            self.sent.insert(manifest.partition, manifest.version);
        }
        is_news
    }
}
