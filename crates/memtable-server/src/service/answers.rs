//! Answers to writes, on their way out of a stream.
//!
//! Owns how many bytes of them may be on their way ([`Room`]: a share is taken before a write is submitted, travels with its
//! answer, and is given back when the message with the answer is taken by the connection), what goes into one message, and
//! that a manifest travels once a stream and version: a flush voids the conditions of thousands of writes at once, and the
//! worker that says so has no time to convert a manifest for each of them.
//!
//! Invariant: what waits on a stream is never more than its room, however large answers are, and whoever does not read its
//! answers has only its own writes stopped.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use prost::Message as _;
use sextant_common::ids::{ManifestVersion, PartitionId};
use sextant_common::manifest::Manifest;
use sextant_proto::v1;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::command::group::OpResult;
use crate::partition::evaluate::Refusal;
use crate::replica::{Answer, WriteOutcome};

/// Answers that may be on their way on one stream, in bytes: some 64 thousand of small writes.
const STREAM_BYTES_MAX: usize = 32 * 1024 * 1024;
/// What an answer may have beside its results: mostly a reason.
const ANSWER_BYTES: usize = 512;
/// What the result of an operation has at most.
const RESULT_BYTES: usize = 24;
/// Answers that one message carries: the last one may be as large as an answer can be.
const MESSAGE_BYTES: usize = 12 * 1024 * 1024;
/// The same in numbers.
const MESSAGE_ANSWERS: usize = 1024;

/// Room for the answers of one stream. Cheap to clone.
#[derive(Clone)]
pub struct Room(Arc<Semaphore>);

impl Room {
    pub fn of_a_stream() -> Self {
        Self(Arc::new(Semaphore::new(STREAM_BYTES_MAX)))
    }

    /// Waits until there is room for the answer to a write. None: the stream has ended.
    pub async fn take(&self, write: &v1::WriteRequest) -> Option<OwnedSemaphorePermit> {
        let bytes = answer_bytes(write).min(STREAM_BYTES_MAX);
        self.0.clone().acquire_many_owned(bytes as u32).await.ok()
    }

    /// Nobody takes answers any more.
    pub fn close(&self) {
        self.0.close();
    }
}

/// The most that the answer to a write has, a manifest aside.
fn answer_bytes(write: &v1::WriteRequest) -> usize {
    ANSWER_BYTES + write.ops.len().saturating_mul(RESULT_BYTES)
}

/// Whether the answers to all of these can travel in one message.
pub fn fit_one_message(writes: &[v1::WriteRequest]) -> bool {
    writes.iter().map(answer_bytes).fold(0, usize::saturating_add) <= MESSAGE_BYTES
}

/// Answers as they go out, and their room until they are gone.
pub struct Packed {
    pub message: v1::WriteBatchReply,
    _room: Option<OwnedSemaphorePermit>,
}

/// Puts the answers of one stream, or of one unary call, into messages.
#[derive(Default)]
pub struct Packer {
    waiting: VecDeque<Answer>,
    /// Did not fit into the message before.
    next: Option<(v1::WriteReply, Option<OwnedSemaphorePermit>)>,
    /// Manifests that have gone out.
    sent: HashMap<PartitionId, ManifestVersion>,
}

impl Packer {
    /// The next message: what is there, or the first that comes. None: no more answers will come.
    pub async fn next(&mut self, answers: &mut mpsc::UnboundedReceiver<Answer>) -> Option<Packed> {
        if self.is_empty() {
            let mut batch = Vec::new();
            if answers.recv_many(&mut batch, MESSAGE_ANSWERS).await == 0 {
                return None;
            }
            self.waiting.extend(batch);
        }
        Some(self.pack())
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
        let Answer { id, outcome, room } = self.waiting.pop_front()?;
        let stale = match &outcome {
            WriteOutcome::Stale(manifest) if self.is_news(manifest) => Some(manifest.clone()),
            _ => None,
        };
        let mut reply = to_wire(id, outcome);
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

/// An outcome as it travels, but for the manifest of a stale one.
fn to_wire(id: u64, outcome: WriteOutcome) -> v1::WriteReply {
    use v1::WriteStatus as S;
    let mut reply = v1::WriteReply { id, ..Default::default() };
    let (status, message) = match outcome {
        WriteOutcome::Executed(results) => {
            reply.results = results.iter().map(result_to_wire).collect();
            (S::WriteOk, Cow::default())
        }
        WriteOutcome::ConditionFailed(results) => {
            reply.results = results.iter().map(result_to_wire).collect();
            (S::WriteConditionFailed, Cow::default())
        }
        WriteOutcome::NotLeader(leader) => {
            reply.leader = Some(leader.into());
            (S::WriteNotLeader, Cow::default())
        }
        WriteOutcome::Stale(_) | WriteOutcome::Refused(Refusal::StaleManifest) => {
            (S::WriteStaleManifest, Cow::default())
        }
        WriteOutcome::Refused(Refusal::UnknownTable) => {
            (S::WriteUnknownTable, "the partition does not know the table".into())
        }
        WriteOutcome::Refused(Refusal::UnknownSession) => {
            (S::WriteUnknownSession, "the session is not open".into())
        }
        WriteOutcome::Refused(Refusal::TooOld) => {
            (S::WriteRequestTooOld, "the request's result is no longer kept".into())
        }
        WriteOutcome::Refused(Refusal::NeedsBase) => {
            (S::WriteInvalid, "a condition needs the result of a search in the SSTables".into())
        }
        WriteOutcome::UnknownPartition(why) => (S::WriteUnknownPartition, why),
        WriteOutcome::Invalid(why) => (S::WriteInvalid, why),
        WriteOutcome::Overloaded(why) => (S::WriteOverloaded, why),
        WriteOutcome::Retry(why) => (S::WriteRetry, why.into()),
        WriteOutcome::Unknown(why) => (S::WriteOutcomeUnknown, why.into()),
    };
    reply.status = status.into();
    reply.message = message.into_owned();
    reply
}

fn result_to_wire(result: &OpResult) -> v1::OpResult {
    v1::OpResult { applied: result.applied, existed: result.existed, seq: result.seq }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::ReplySink;

    fn results(n: usize) -> Answer {
        let result = OpResult { applied: true, existed: true, failed: false, seq: u64::MAX };
        Answer { id: u64::MAX, outcome: WriteOutcome::Executed(vec![result; n]), room: None }
    }

    fn encoded(answer: Answer) -> v1::WriteReply {
        to_wire(answer.id, answer.outcome)
    }

    fn packed(answers: Vec<Answer>) -> Vec<usize> {
        let mut packer = Packer { waiting: answers.into(), ..Packer::default() };
        let mut sizes = Vec::new();
        while !packer.is_empty() {
            sizes.push(packer.pack().message.replies.len());
        }
        sizes
    }

    #[test]
    fn answers_are_sent_in_messages_that_a_stream_can_carry() {
        let small = || results(0);
        let large = || results(400_000);
        assert!(encoded(large()).encoded_len() > MESSAGE_BYTES / 2);
        assert_eq!(packed((0..1000).map(|_| small()).collect()), [1000]);
        assert_eq!(packed(vec![small(), large(), large(), small()]), [2, 2]);
        let huge = || results(1_200_000);
        assert!(encoded(huge()).encoded_len() > MESSAGE_BYTES);
        assert_eq!(packed(vec![huge(), huge()]), [1, 1], "alone, it still has to go");
    }

    #[test]
    fn an_answer_is_never_larger_than_its_room() {
        let write =
            |ops: usize| v1::WriteRequest { ops: vec![Default::default(); ops], ..Default::default() };
        for ops in [1, 1000] {
            let mut reply = encoded(results(ops));
            reply.status = v1::WriteStatus::WriteOutcomeUnknown.into();
            reply.leader = Some(v1::LeaderHint { partition: u32::MAX, node: u64::MAX, term: u64::MAX });
            reply.message = "x".repeat(300);
            assert!(reply.encoded_len() <= answer_bytes(&write(ops)));
        }
        assert!(fit_one_message(&vec![write(1); 10_000]));
        assert!(!fit_one_message(&vec![write(1000); 1000]));
    }

    #[tokio::test]
    async fn a_manifest_goes_out_once_a_version_whoever_asks() {
        let (to, mut answers) = mpsc::unbounded_channel();
        let stale = |partition: u32, version: u64| {
            let mut manifest = Manifest::empty(PartitionId(partition));
            manifest.version = ManifestVersion(version);
            ReplySink::new(1, to.clone(), None).send(WriteOutcome::Stale(Arc::new(manifest)));
        };
        for (partition, version) in [(0, 3), (0, 3), (1, 3), (0, 4), (0, 3), (1, 3)] {
            stale(partition, version);
        }
        let mut packer = Packer::default();
        let mut versions = Vec::new();
        let first = packer.next(&mut answers).await.unwrap();
        stale(0, 4);
        let second = packer.next(&mut answers).await.unwrap();
        for reply in first.message.replies.iter().chain(&second.message.replies) {
            assert_eq!(reply.status(), v1::WriteStatus::WriteStaleManifest);
            versions.push(reply.manifest.as_ref().map(|m| (m.partition, m.version)));
        }
        let (new, known) = (|partition, version| Some((partition, version)), None);
        assert_eq!(versions, [new(0, 3), known, new(1, 3), new(0, 4), known, known, known]);
    }

    #[tokio::test]
    async fn who_does_not_take_its_answers_gets_no_more_writes_in() {
        let room = Room(Arc::new(Semaphore::new(3 * ANSWER_BYTES)));
        let write = v1::WriteRequest::default();
        let (to, mut answers) = mpsc::unbounded_channel();
        let has_room = || room.0.available_permits() >= answer_bytes(&write);
        while has_room() {
            let share = room.take(&write).await;
            ReplySink::new(1, to.clone(), share).send(WriteOutcome::Executed(Vec::new()));
        }
        let mut packer = Packer::default();
        let message = packer.next(&mut answers).await.unwrap();
        assert_eq!(message.message.replies.len(), 3);
        assert!(!has_room(), "packed is not gone");
        drop(message);
        assert!(has_room());
        room.close();
        assert!(room.take(&write).await.is_none());
    }
}
