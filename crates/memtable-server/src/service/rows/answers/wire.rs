//! What became of a write, as it travels.

use std::borrow::Cow;

use sextant_proto::v1;

use crate::command::group::OpResult;
use crate::partition::evaluate::Refusal;
use crate::replica::WriteOutcome;

/// An outcome as it travels, but for the manifest of a stale one.
pub(super) fn to_wire(id: u64, outcome: WriteOutcome) -> v1::WriteReply {
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
