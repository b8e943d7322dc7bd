//! Appends, and what is answered to them.

use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendError, StreamAppendResult};
use sextant_common::error::{Error, Result};
use sextant_common::ids::LogPosition;
use sextant_proto::{MESSAGE_BYTES_MAX, v1};
use sextant_raft_log::{LogId, TypeConfig, decode_entry, encode_entry};

use super::{
    Address, leaders_vote_from_wire, log_id_from_wire, position_to_wire, vote_from_wire, vote_to_wire,
};

/// What a message has beside the only entry that it carries: who sends it to whom, votes, positions.
const FRAMING_BYTES: usize = 64 * 1024;

/// The longest payload of an entry, in bytes: a follower gets it in one message. (A log takes longer ones, and with one of those no
/// follower would ever get any further.)
pub const ENTRY_BYTES_MAX: usize = MESSAGE_BYTES_MAX - FRAMING_BYTES;

/// To be asked before an entry is proposed.
pub fn check_entry(bytes: usize) -> Result<()> {
    if bytes <= ENTRY_BYTES_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "an entry of the log would have {bytes} bytes: at most {ENTRY_BYTES_MAX}, what a message to another server carries"
    )))
}

pub fn append_to_wire(
    address: &Address,
    request: AppendEntriesRequest<TypeConfig>,
    abstention_ns: u64,
    acknowledged: u64,
) -> v1::AppendEntriesRequest {
    v1::AppendEntriesRequest {
        partition: address.partition,
        from: address.from,
        to: address.to,
        cluster: address.cluster.clone(),
        vote: Some(vote_to_wire(&request.vote)),
        prev: request.prev_log_id.as_ref().map(position_to_wire),
        leader_commit: request.leader_commit.as_ref().map(position_to_wire),
        entries: request
            .entries
            .iter()
            .map(|e| v1::RaftEntry { position: Some(position_to_wire(&e.log_id)), data: encode_entry(e) })
            .collect(),
        abstention_ns,
        to_incarnation: address.to_incarnation,
        acknowledged,
    }
}

/// openraft takes for granted that entries follow each other without a hole; that is checked here.
pub fn append_from_wire(request: v1::AppendEntriesRequest) -> Result<AppendEntriesRequest<TypeConfig>> {
    let mut before: Option<LogPosition> = request.prev.map(Into::into);
    let entries = request.entries.into_iter().map(|e| {
        let position = e.position.ok_or_else(|| Error::invalid("a Raft entry without a position"))?;
        let position = LogPosition::from(position);
        if before.is_none() && position.index != 0 {
            return Err(Error::invalid(format!("Raft entry {position} after nothing")));
        }
        if let Some(before) = before
            && (before.index.checked_add(1) != Some(position.index) || position.term < before.term)
        {
            return Err(Error::invalid(format!("Raft entry {position} after {before}")));
        }
        before = Some(position);
        decode_entry(position, e.data)
    });
    Ok(AppendEntriesRequest {
        vote: leaders_vote_from_wire(request.vote)?,
        prev_log_id: request.prev.map(log_id_from_wire),
        leader_commit: request.leader_commit.map(log_id_from_wire),
        entries: entries.collect::<Result<_>>()?,
    })
}

pub fn append_reply_to_wire(reply: AppendEntriesResponse<TypeConfig>) -> v1::AppendEntriesResponse {
    use v1::append_entries_response::Outcome;
    let mut out = v1::AppendEntriesResponse::default();
    let outcome = match reply {
        AppendEntriesResponse::Success => Outcome::Success,
        AppendEntriesResponse::PartialSuccess(matching) => {
            out.matching = matching.as_ref().map(position_to_wire);
            Outcome::PartialSuccess
        }
        AppendEntriesResponse::Conflict => Outcome::Conflict,
        AppendEntriesResponse::HigherVote(vote) => {
            out.vote = Some(vote_to_wire(&vote));
            Outcome::HigherVote
        }
    };
    out.outcome = outcome.into();
    out
}

pub fn append_reply_from_wire(reply: v1::AppendEntriesResponse) -> Result<AppendEntriesResponse<TypeConfig>> {
    use v1::append_entries_response::Outcome;
    Ok(match Outcome::try_from(reply.outcome) {
        Ok(Outcome::Success) => AppendEntriesResponse::Success,
        Ok(Outcome::PartialSuccess) => {
            AppendEntriesResponse::PartialSuccess(reply.matching.map(log_id_from_wire))
        }
        Ok(Outcome::Conflict) => AppendEntriesResponse::Conflict,
        Ok(Outcome::HigherVote) => AppendEntriesResponse::HigherVote(vote_from_wire(reply.vote)?),
        Ok(Outcome::Failed) => return Err(Error::unavailable(reply.error)),
        // prost's accessor would take it for success: an acknowledgement that nobody gave.
        Err(_) => return Err(Error::invalid(format!("unknown outcome {} of an append", reply.outcome))),
    })
}

/// The last entry that an append names, and the one before its first.
pub fn append_range(request: &AppendEntriesRequest<TypeConfig>) -> (Option<LogId>, Option<LogId>) {
    let last = request.entries.last().map(|e| e.log_id).or(request.prev_log_id);
    (request.prev_log_id, last)
}

pub fn stream_result_to_wire(result: StreamAppendResult<TypeConfig>) -> v1::AppendEntriesResponse {
    use v1::append_entries_response::Outcome;
    let mut out = v1::AppendEntriesResponse::default();
    let outcome = match result {
        Ok(matching) => {
            out.matching = matching.as_ref().map(position_to_wire);
            Outcome::PartialSuccess
        }
        Err(StreamAppendError::Conflict(_)) => Outcome::Conflict,
        Err(StreamAppendError::HigherVote(vote)) => {
            out.vote = Some(vote_to_wire(&vote));
            Outcome::HigherVote
        }
    };
    out.outcome = outcome.into();
    out
}

/// A reply on an append stream; `range` is that of the request it answers.
pub fn stream_result_from_wire(
    reply: v1::AppendEntriesResponse,
    range: (Option<LogId>, Option<LogId>),
) -> Result<StreamAppendResult<TypeConfig>> {
    let conflict = range.0.ok_or_else(|| Error::invalid("a conflict before the first entry"));
    Ok(match append_reply_from_wire(reply)? {
        AppendEntriesResponse::Success => Ok(range.1),
        // openraft would count the follower for entries that nobody has.
        AppendEntriesResponse::PartialSuccess(matching) if matching > range.1 => {
            return Err(Error::invalid("more entries are acknowledged than were sent"));
        }
        AppendEntriesResponse::PartialSuccess(matching) => Ok(matching),
        AppendEntriesResponse::Conflict => Err(StreamAppendError::Conflict(conflict?)),
        AppendEntriesResponse::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote)),
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use sextant_common::error::ErrorKind;
    use sextant_raft_log::log_id_at;

    use super::*;

    fn position(term: u64, index: u64) -> v1::LogPosition {
        v1::LogPosition { term, index }
    }

    #[test]
    fn an_append_with_a_hole_is_refused_before_openraft_sees_it() {
        let append = |prev: Option<v1::LogPosition>, entries: &[(u64, u64)]| {
            let entry = |(term, index): &(u64, u64)| v1::RaftEntry {
                position: Some(position(*term, *index)),
                data: Bytes::from_static(&[0]),
            };
            append_from_wire(v1::AppendEntriesRequest {
                vote: Some(v1::RaftVote { term: 9, node: 1, committed: true }),
                prev,
                entries: entries.iter().map(entry).collect(),
                ..Default::default()
            })
        };
        append(None, &[(1, 0), (1, 1), (2, 2)]).unwrap();
        append(Some(position(1, 6)), &[(1, 7), (2, 8)]).unwrap();
        for (prev, entries) in [
            (Some(position(1, 6)), &[(1, 8)][..]),
            (Some(position(1, 6)), &[(1, 6)]),
            (Some(position(1, 6)), &[(1, 7), (1, 9)]),
            (Some(position(2, 6)), &[(1, 7)]),
            (Some(position(1, u64::MAX)), &[(1, 0)]),
            (None, &[(1, 5), (1, 6)]),
            (None, &[(1, 0), (1, 0)]),
        ] {
            let error = append(prev, entries).unwrap_err();
            assert!(error.message.contains("after"), "{error}");
        }
    }

    #[test]
    fn the_longest_entry_fits_into_a_message_and_a_longer_one_is_refused_before_it_is_proposed() {
        check_entry(ENTRY_BYTES_MAX).unwrap();
        let error = check_entry(ENTRY_BYTES_MAX + 1).unwrap_err();
        assert!(error.kind == ErrorKind::Invalid && error.message.contains(&ENTRY_BYTES_MAX.to_string()));

        let far = LogPosition { term: u64::MAX / 2, index: u64::MAX / 2 };
        let before = LogPosition { index: far.index - 1, ..far };
        let payload = sextant_raft_log::Payload(vec![0; ENTRY_BYTES_MAX].into());
        let request = AppendEntriesRequest {
            vote: sextant_raft_log::Vote::new_committed(far.term, u64::MAX),
            prev_log_id: Some(log_id_at(before)),
            leader_commit: Some(log_id_at(before)),
            entries: vec![openraft::Entry {
                log_id: log_id_at(far),
                payload: openraft::EntryPayload::Normal(payload),
            }],
        };
        let address = Address {
            partition: u32::MAX,
            from: u64::MAX,
            to: u64::MAX,
            cluster: vec![b'c'; 4096].into(),
            to_incarnation: u64::MAX,
        };
        let message = append_to_wire(&address, request, u64::MAX, u64::MAX);
        assert!(prost::Message::encoded_len(&message) <= MESSAGE_BYTES_MAX);
    }

    #[test]
    fn an_unknown_outcome_is_not_success() {
        let reply = v1::AppendEntriesResponse { outcome: 77, ..Default::default() };
        assert!(append_reply_from_wire(reply.clone()).unwrap_err().message.contains("77"));
        assert!(stream_result_from_wire(reply, (None, Some(log_id_at(LogPosition::default())))).is_err());
    }

    #[test]
    fn nobody_acknowledges_more_than_was_sent() {
        let reply = |index| v1::AppendEntriesResponse {
            outcome: v1::append_entries_response::Outcome::PartialSuccess.into(),
            matching: Some(position(2, index)),
            ..Default::default()
        };
        let range = (Some(log_id_from_wire(position(2, 4))), Some(log_id_from_wire(position(2, 7))));
        for honest in [4, 7] {
            stream_result_from_wire(reply(honest), range).unwrap().unwrap();
        }
        for lie in [8, u64::MAX] {
            let error = stream_result_from_wire(reply(lie), range).unwrap_err();
            assert!(error.message.contains("more entries"), "{error}");
        }
    }
}
