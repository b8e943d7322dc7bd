//! What became of one attempt at a write. Pure.

use sextant_common::operation::{OpOutcome, WriteOutcome, WriteStatus};
use sextant_common::{Error, ErrorKind};

use crate::upstream::WriteSays;

/// What became of one attempt.
pub(super) enum Attempt {
    Done(WriteOutcome),
    /// Not to be tried again. Not executed, unless the error says that this is not known.
    Refused(Error),
    /// Not executed under this session, which the server does not know.
    UnknownSession,
    /// Certainly not executed: again at once.
    Stale,
    /// Certainly not executed.
    Again(Error),
    /// The server that is taken for the leader does not act as one. Certainly not executed.
    Denied(Error),
    /// It did not leave: what the attempt before it was told says more.
    NotSent(Error),
    Overloaded(Error),
    UnknownTable,
    /// May have been executed.
    Unknown(Error),
}

/// What the leader's answer means for the request.
pub(super) fn classify(says: WriteSays, ops: usize) -> Attempt {
    use WriteStatus as S;
    let WriteSays { status, results, message } = says;
    let with =
        |fallback: &'static str| if message.is_empty() { fallback.to_owned() } else { message.clone() };
    match status {
        S::Ok | S::ConditionFailed => match complete(results, ops) {
            Some(results) => Attempt::Done(WriteOutcome { applied: status == S::Ok, results }),
            None => Attempt::Refused(Error::new(
                if status == S::Ok { ErrorKind::OutcomeUnknown } else { ErrorKind::Internal },
                "the answer to a write lacks results",
            )),
        },
        S::StaleManifest => Attempt::Stale,
        S::NotLeader | S::UnknownPartition => {
            Attempt::Denied(Error::unavailable(with("no leader of the partition answers")))
        }
        S::Retry => Attempt::Denied(Error::unavailable(with("the leader could not take the write"))),
        S::UnknownTable => Attempt::UnknownTable,
        S::UnknownSession => Attempt::UnknownSession,
        // Its result is no longer kept: it may have been executed long ago.
        S::RequestTooOld => Attempt::Refused(Error::new(
            ErrorKind::OutcomeUnknown,
            with("the result of so old a request is no longer kept"),
        )),
        S::Overloaded => {
            Attempt::Overloaded(Error::new(ErrorKind::Overloaded, with("flushing or memory cannot keep up")))
        }
        S::Invalid => Attempt::Refused(Error::invalid(with("the server refused the write as invalid"))),
        S::OutcomeUnknown => Attempt::Unknown(Error::unavailable(with("the leader lost track of the write"))),
    }
}

fn complete(results: Vec<OpOutcome>, ops: usize) -> Option<Vec<OpOutcome>> {
    (results.len() == ops).then_some(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(status: WriteStatus) -> WriteSays {
        WriteSays { status, results: vec![OpOutcome::default()], message: String::new() }
    }

    #[test]
    fn only_certain_answers_allow_a_new_number() {
        use WriteStatus as S;
        for status in [S::NotLeader, S::Retry] {
            assert!(matches!(classify(says(status), 1), Attempt::Denied(_)), "{status:?}");
        }
        assert!(matches!(classify(says(S::OutcomeUnknown), 1), Attempt::Unknown(_)));
        assert!(matches!(classify(says(S::StaleManifest), 1), Attempt::Stale));
        assert!(matches!(classify(says(S::UnknownSession), 1), Attempt::UnknownSession));
        let Attempt::Refused(e) = classify(says(S::RequestTooOld), 1) else { panic!() };
        assert_eq!(e.kind, ErrorKind::OutcomeUnknown);
        let Attempt::Done(outcome) = classify(says(S::ConditionFailed), 1) else { panic!() };
        assert!(!outcome.applied);
    }

    #[test]
    fn a_write_that_was_executed_is_not_refused_because_its_answer_lacks_results() {
        let refused = |status| match classify(says(status), 2) {
            Attempt::Refused(e) => e.kind,
            _ => panic!("{status:?}"),
        };
        assert_eq!(refused(WriteStatus::Ok), ErrorKind::OutcomeUnknown);
        assert_eq!(refused(WriteStatus::ConditionFailed), ErrorKind::Internal);
    }
}
