//! One error type for what crosses a crate's boundary; its kind tells the caller what to *do*.

use std::borrow::Cow;

/// What the caller should do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Certainly not executed: try again, after a short wait.
    Retry,
    /// Not here: ask the leader that the error names, or find it.
    NotLeader,
    /// Fix the request.
    Invalid,
    /// The table is not known (yet): create it, or retry if it was just created.
    UnknownTable,
    /// The session has expired or never existed: open one. The request was not executed.
    UnknownSession,
    /// Flushing or memory cannot keep up: slow down, then try again. Not executed.
    Overloaded,
    /// No majority, no replica or no server could be reached within the deadline. Not executed, as far as known.
    Unavailable,
    /// A write may or may not take effect. A retry under the same session and request number tells.
    OutcomeUnknown,
    /// Stored bytes failed a check: the message names file and offset. Another replica may answer.
    Corrupt,
    /// No space or another refusal of the disk.
    Disk,
    /// The server is stopping.
    Stopping,
    /// The caller has not shown who it is, or not convincingly.
    Unauthenticated,
    /// The caller may not do this.
    Denied,
    /// The data are of a newer format than this version reads: install the newer version.
    Outdated,
    /// A bug: please report it.
    Internal,
}

/// An error with its kind and a message for people. Carries no keys or values.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    pub kind: ErrorKind,
    pub message: Cow<'static, str>,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into() }
    }
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }
    pub fn retry(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Retry, message)
    }
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }
    pub fn corrupt(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }
    pub fn internal(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// Whether the same request may be sent again without a change (it was certainly not executed).
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, ErrorKind::Retry | ErrorKind::NotLeader | ErrorKind::Overloaded)
    }
}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Self {
        let kind = match e.kind() {
            std::io::ErrorKind::InvalidData => ErrorKind::Corrupt,
            _ => ErrorKind::Disk,
        };
        Self::new(kind, e.to_string())
    }
}

impl ErrorKind {
    /// Each kind with its name.
    pub const ALL: [(ErrorKind, &'static str); 15] = [
        (ErrorKind::Retry, "retry"),
        (ErrorKind::NotLeader, "not-leader"),
        (ErrorKind::Invalid, "invalid"),
        (ErrorKind::UnknownTable, "unknown-table"),
        (ErrorKind::UnknownSession, "unknown-session"),
        (ErrorKind::Overloaded, "overloaded"),
        (ErrorKind::Unavailable, "unavailable"),
        (ErrorKind::OutcomeUnknown, "outcome-unknown"),
        (ErrorKind::Corrupt, "corrupt"),
        (ErrorKind::Disk, "disk"),
        (ErrorKind::Stopping, "stopping"),
        (ErrorKind::Unauthenticated, "unauthenticated"),
        (ErrorKind::Denied, "denied"),
        (ErrorKind::Outdated, "outdated"),
        (ErrorKind::Internal, "internal"),
    ];

    /// The stable name that travels over the wire and stands in logs and metrics.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("internal", |(_, name)| name)
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, n)| *n == name).map(|(kind, _)| *kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_name_of_its_own() {
        for (kind, name) in ErrorKind::ALL {
            assert_eq!((ErrorKind::from_name(name), kind.name()), (Some(kind), name));
        }
    }

    #[test]
    fn only_what_was_certainly_not_executed_is_retryable() {
        let retryable: Vec<_> =
            ErrorKind::ALL.iter().filter(|(k, _)| Error::new(*k, "").is_retryable()).collect();
        let names: Vec<_> = retryable.iter().map(|(_, name)| *name).collect();
        assert_eq!(names, ["retry", "not-leader", "overloaded"]);
    }

    #[test]
    fn a_disk_error_is_told_from_damage() {
        let full = std::io::Error::from_raw_os_error(libc::ENOSPC);
        assert_eq!(Error::from(full).kind, ErrorKind::Disk);
        let damaged = std::io::Error::new(std::io::ErrorKind::InvalidData, "a.sst at 7: bad checksum");
        assert_eq!(Error::from(damaged).kind, ErrorKind::Corrupt);
    }
}
