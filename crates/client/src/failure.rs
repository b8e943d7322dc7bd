//! What a failed attempt means: which kind of error, whether the p-node is to blame, whether the request may have been
//! executed all the same.

use sextant_common::error::{Error, ErrorKind};
use sextant_environment::env::{KIND_HEADER, error_of, never_connected};
use tonic::{Code, Status};

/// A failed attempt.
#[derive(Debug)]
pub(crate) struct Failure {
    pub error: Error,
    /// The p-node is out of reach, silent, stopping or cut off: others are asked for a while.
    pub blames_endpoint: bool,
    /// The request may have been executed although no result came back.
    pub ambiguous: bool,
}

impl Failure {
    /// No answer within the attempt's time.
    pub fn silence() -> Self {
        Self {
            error: Error::unavailable("no answer from the p-node in time"),
            blames_endpoint: true,
            ambiguous: true,
        }
    }

    pub fn from_status(status: Status) -> Self {
        if status.metadata().contains_key(KIND_HEADER) {
            // Said by the p-node itself.
            let error = error_of(status);
            let blames_endpoint = matches!(error.kind, ErrorKind::Stopping | ErrorKind::Unavailable);
            // A p-node that cannot rule out that a write took effect says `OutcomeUnknown`; of a bug nobody knows.
            let ambiguous = matches!(error.kind, ErrorKind::OutcomeUnknown | ErrorKind::Internal);
            return Self { error, blames_endpoint, ambiguous };
        }
        if is_refusal(&status) {
            let code = status.code();
            let mut error = error_of(status);
            if error.message.is_empty() {
                error.message = format!("{code}: is this a p-node's address for gRPC?").into();
            }
            return Self { error, blames_endpoint: false, ambiguous: false };
        }
        let unsent = never_connected(&status);
        let message = if unsent { "cannot connect to the p-node" } else { "connection to the p-node lost" };
        let cause = root_cause(&status);
        let hint = if hears_no_http(&cause) { NO_HTTP } else { "" };
        Self {
            error: Error::unavailable(format!("{message}: {cause}{hint}")),
            blames_endpoint: true,
            ambiguous: !unsent,
        }
    }
}

/// Whether the server's gRPC layer refused the call before any handler ran.
///
/// A lost connection shows up under many codes (Unknown, Unavailable, Internal, Cancelled), and with a source, which what a server says
/// has not. Nor is ResourceExhausted a refusal without a kind: so HTTP/2's ENHANCE_YOUR_CALM is shown, and passed on by others, which
/// ends a connection whatever was done over it.
fn is_refusal(status: &Status) -> bool {
    let refuses = matches!(status.code(), Code::InvalidArgument | Code::OutOfRange | Code::Unimplemented);
    refuses && std::error::Error::source(status).is_none()
}

/// A port that speaks TLS answers with an alert to whoever does not: as the beginning of a frame, that is far too large.
fn hears_no_http(cause: &str) -> bool {
    cause.contains("frame with invalid size")
}

const NO_HTTP: &str =
    " (does the port ask for TLS? --tls-ca, or SEXTANT_TLS_CA, names the authority of its certificate)";

fn sources(status: &Status) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(std::error::Error::source(status), |e| e.source())
}

/// The innermost message: "Connection refused (os error 111)" says more than "transport error".
fn root_cause(status: &Status) -> String {
    sources(status).last().map_or_else(|| status.message().to_owned(), |e| e.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sextant_environment::env::status_of;

    use super::*;

    #[test]
    fn who_does_not_know_the_service_is_perhaps_no_p_node() {
        let error = Failure::from_status(Status::new(Code::Unimplemented, "")).error;
        assert!(error.message.contains("address for gRPC"), "{}", error.message);
    }

    #[test]
    fn what_the_server_says_keeps_its_kind() {
        for (kind, ambiguous, blames) in [
            (ErrorKind::Retry, false, false),
            (ErrorKind::Overloaded, false, false),
            (ErrorKind::UnknownSession, false, false),
            (ErrorKind::OutcomeUnknown, true, false),
            (ErrorKind::Unavailable, false, true),
            (ErrorKind::Stopping, false, true),
        ] {
            let failure = Failure::from_status(status_of(Error::new(kind, "x")));
            assert_eq!(failure.error.kind, kind);
            assert_eq!(failure.ambiguous, ambiguous, "{kind:?}");
            assert_eq!(failure.blames_endpoint, blames, "{kind:?}");
        }
    }

    /// The table for those who write a client in another language.
    #[test]
    fn the_protobuf_file_says_of_every_kind_what_is_true() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../proto/proto/kv.proto");
        let text = std::fs::read_to_string(path).unwrap();
        let words = |line: &'_ str| {
            line.trim_start_matches('/').split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let rows: Vec<_> = text.lines().map(words).filter(|row| row.len() > 3).collect();
        for (kind, name) in ErrorKind::ALL {
            let row = rows.iter().find(|row| row[0] == name).unwrap();
            let status = status_of(Error::new(kind, "x"));
            let code = format!("{:?}", status.code()).to_uppercase();
            assert_eq!(row[1].replace('_', ""), code, "{name}");
            let done = if Failure::from_status(status).ambiguous { "perhaps" } else { "no" };
            assert_eq!(row[2], done, "{name}");
        }
    }

    fn check_lost(status: Status) {
        let code = status.code();
        let failure = Failure::from_status(status);
        assert!(failure.ambiguous && failure.blames_endpoint, "{code:?}");
        assert_eq!(failure.error.kind, ErrorKind::Unavailable, "{code:?}");
    }

    #[test]
    fn a_broken_connection_is_ambiguous_whatever_its_code() {
        for code in [
            Code::Unknown,
            Code::Unavailable,
            Code::Internal,
            Code::Cancelled,
            Code::DeadlineExceeded,
            // As others may hand it on.
            Code::ResourceExhausted,
        ] {
            check_lost(Status::new(code, "transport error"));
        }
        for code in [Code::ResourceExhausted, Code::InvalidArgument, Code::OutOfRange, Code::Unimplemented] {
            let mut status = Status::new(code, "h2 protocol error");
            status.set_source(Arc::new(std::io::Error::other("connection reset")));
            check_lost(status);
        }
    }

    #[test]
    fn a_refusal_by_the_grpc_layer_was_not_executed() {
        for code in [Code::OutOfRange, Code::InvalidArgument] {
            let failure = Failure::from_status(Status::new(code, "message too large"));
            assert!(!failure.ambiguous && !failure.blames_endpoint);
            assert_eq!(failure.error.kind, ErrorKind::Invalid);
        }
    }
}
