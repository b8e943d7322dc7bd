//! Answers to writes, on their way out of a stream.
//!
//! Owns how many bytes of them may be on their way ([`Room`]: a share is taken before a write is submitted, travels with its
//! answer, and is given back when the message with the answer is taken by the connection), what goes into one message, and
//! that what is new of a manifest travels once a stream and version: a flush voids the conditions of thousands of writes at once, and the
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
use std::sync::atomic::{AtomicBool, Ordering};

use prost::Message as _;
use sextant_common::ids::{ManifestVersion, PartitionId};
use sextant_common::manifest::{Manifest, Versions};
use sextant_environment::Clock;
use sextant_environment::latency::Latencies;
use sextant_proto::convert::manifest_change::news;
use sextant_proto::v1;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::CHANGES_BYTES_MAX;
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
    /// Whoever is answered takes changes of manifests.
    pub takes_changes: Arc<AtomicBool>,
    /// Versions of manifests that have gone out.
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
            WriteFate::Stale(versions, searched) => {
                self.held(versions, *searched).map(|h| (versions.clone(), h))
            }
            _ => None,
        };
        let mut reply = to_wire(id, fate);
        match stale {
            Some((versions, held)) if self.takes_changes.load(Ordering::Relaxed) => {
                reply.manifest_news = Some(news(&versions, held, None, CHANGES_BYTES_MAX));
            }
            Some((versions, _)) => reply.manifest = Some(versions.newest.as_ref().into()),
            None => {}
        }
        Some((reply, room))
    }

    /// If this version is new to who is answered: the one that it has.
    fn held(&mut self, versions: &Versions, searched: ManifestVersion) -> Option<ManifestVersion> {
        let Manifest { partition, version, .. } = *versions.newest;
        let sent = self.sent.get(&partition).copied().unwrap_or_default();
        if sent >= version {
            return None;
        }
        self.sent.insert(partition, version);
        Some(sent.max(searched))
    }
}
