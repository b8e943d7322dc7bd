//! What became of a write, as it travels.

use std::borrow::Cow;

use sextant_common::operation::{OpOutcome, RecordedOutcome, WriteStatus};
use sextant_proto::v1;

use crate::partition::evaluate::Refusal;
use crate::replica::WriteFate;

/// A fate as it travels, but for the manifest of a stale one.
pub(super) fn to_wire(id: u64, fate: WriteFate) -> v1::WriteReply {
    use WriteStatus as S;
    let mut reply = v1::WriteReply { id, ..Default::default() };
    let (status, message) = match fate {
        WriteFate::Executed(results) => {
            reply.results = results.into_iter().map(result_to_wire).collect();
            (S::Ok, Cow::default())
        }
        WriteFate::ConditionFailed(results) => {
            reply.results = results.into_iter().map(result_to_wire).collect();
            (S::ConditionFailed, Cow::default())
        }
        WriteFate::NotLeader(leader) => {
            reply.leader = Some(leader.into());
            (S::NotLeader, Cow::default())
        }
        WriteFate::Stale(..) | WriteFate::Refused(Refusal::StaleManifest) => {
            (S::StaleManifest, Cow::default())
        }
        WriteFate::Refused(Refusal::UnknownTable) => {
            (S::UnknownTable, "the partition does not know the table".into())
        }
        WriteFate::Refused(Refusal::UnknownSession) => (S::UnknownSession, "the session is not open".into()),
        WriteFate::Refused(Refusal::TooOld) => {
            (S::RequestTooOld, "the request's result is no longer kept".into())
        }
        WriteFate::Refused(Refusal::NeedsBase) => {
            (S::Invalid, "a condition needs the result of a search in the SSTables".into())
        }
        WriteFate::UnknownPartition(why) => (S::UnknownPartition, why),
        WriteFate::Invalid(why) => (S::Invalid, why),
        WriteFate::Overloaded(why) => (S::Overloaded, why),
        WriteFate::Retry(why) => (S::Retry, why.into()),
        WriteFate::Unknown(why) => (S::OutcomeUnknown, why.into()),
    };
    reply.status = v1::WriteStatus::from(status).into();
    reply.message = message.into_owned();
    reply
}

fn result_to_wire(result: RecordedOutcome) -> v1::OpResult {
    OpOutcome::from(result).into()
}
