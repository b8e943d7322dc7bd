//! How answers are packed, and how much room they take.

use std::sync::Arc;

use sextant_common::ids::Seq;
use sextant_common::operation::RecordedOutcome;
use tokio::sync::Semaphore;

use super::room::{ANSWER_BYTES, answer_bytes};
use super::*;
use crate::replica::ReplySink;

fn results(n: usize) -> Answer {
    let seq = Seq(u64::MAX);
    let result = RecordedOutcome { applied: true, existed: true, failed: false, seq, told: None };
    Answer { id: u64::MAX, since_ns: 0, fate: WriteFate::Executed(vec![result; n]), room: None }
}

fn encoded(answer: Answer) -> v1::WriteReply {
    to_wire(answer.id, answer.fate)
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
    let write = |ops: usize| v1::WriteRequest { ops: vec![Default::default(); ops], ..Default::default() };
    for ops in [1, 1000] {
        let mut reply = encoded(results(ops));
        reply.status = v1::WriteStatus::WriteOutcomeUnknown.into();
        reply.leader = Some(v1::LeaderHint { partition: u32::MAX, node: u64::MAX, term: u64::MAX });
        reply.message = "x".repeat(300);
        assert!(reply.encoded_len() <= answer_bytes(&write(ops)));
    }
    assert!(fit_one_message(&vec![write(1); 10_000]));
    assert!(!fit_one_message(&vec![write(1000); 1000]));
    assert!(fit_one_message(&[write(300_000)]) && !fit_one_message(&[write(300_000), write(1)]));
}

#[tokio::test]
async fn a_manifest_goes_out_once_a_version_whoever_asks() {
    let (to, mut answers) = mpsc::unbounded_channel();
    let stale = |partition: u32, version: u64| {
        let mut manifest = Manifest::empty(PartitionId(partition));
        manifest.version = ManifestVersion(version);
        ReplySink::new(1, 0, to.clone(), None)
            .send(WriteFate::Stale(Arc::new(manifest).into(), ManifestVersion(0)));
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
        ReplySink::new(1, 0, to.clone(), share).send(WriteFate::Executed(Vec::new()));
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
