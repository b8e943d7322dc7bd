//! Our errors as gRPC statuses, and back.
//!
//! Owns which status code stands for which kind of error, and the metadata in which the kind itself travels.

use sextant_common::{Error, ErrorKind};
use tonic::{Code, Status};

/// Metadata key that carries [`ErrorKind::name`]. A status without it was not made by a server's handler.
pub const KIND_HEADER: &str = "sextant-kind";

/// gRPC status codes in the standard sense; the kind travels in metadata `sextant-kind`, so that it survives the trip.
pub fn status_of(error: Error) -> Status {
    let code = match error.kind {
        ErrorKind::Retry | ErrorKind::NotLeader | ErrorKind::Unavailable | ErrorKind::Stopping => {
            Code::Unavailable
        }
        ErrorKind::Invalid => Code::InvalidArgument,
        ErrorKind::UnknownTable => Code::NotFound,
        ErrorKind::UnknownSession => Code::FailedPrecondition,
        ErrorKind::Overloaded => Code::ResourceExhausted,
        ErrorKind::OutcomeUnknown => Code::Unknown,
        ErrorKind::Corrupt => Code::DataLoss,
        ErrorKind::Disk => Code::Aborted,
        ErrorKind::Outdated => Code::FailedPrecondition,
        ErrorKind::Unauthenticated => Code::Unauthenticated,
        ErrorKind::Denied => Code::PermissionDenied,
        ErrorKind::Internal => Code::Internal,
    };
    let mut status = Status::new(code, error.message);
    if let Ok(value) = error.kind.name().parse() {
        status.metadata_mut().insert(KIND_HEADER, value);
    }
    status
}

/// The kind that the status names; if it names none (it is somebody else's), the nearest to its code.
pub fn error_of(status: Status) -> Error {
    let named = status.metadata().get(KIND_HEADER).and_then(|v| v.to_str().ok());
    let kind = named.and_then(ErrorKind::from_name).unwrap_or(match status.code() {
        Code::InvalidArgument | Code::OutOfRange => ErrorKind::Invalid,
        Code::NotFound => ErrorKind::UnknownTable,
        Code::ResourceExhausted => ErrorKind::Overloaded,
        Code::DataLoss => ErrorKind::Corrupt,
        Code::Unauthenticated => ErrorKind::Unauthenticated,
        Code::PermissionDenied => ErrorKind::Denied,
        Code::Internal | Code::Unimplemented => ErrorKind::Internal,
        _ => ErrorKind::Unavailable,
    });
    Error::new(kind, status.message().to_string())
}

/// The connection was never made: what was to be sent never left.
pub fn never_connected(status: &Status) -> bool {
    let sources = std::iter::successors(std::error::Error::source(status), |e| e.source());
    sources.into_iter().any(|e| e.is::<tonic::ConnectError>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_the_trip_over_grpc() {
        for (kind, _) in ErrorKind::ALL {
            let status = status_of(Error::new(kind, "partition 3: gone"));
            // What the wire carries: code, message, metadata.
            let received = Status::from_header_map(&headers_of(&status)).unwrap();
            let error = error_of(received);
            assert_eq!((error.kind, error.message.as_ref()), (kind, "partition 3: gone"));
        }
    }

    fn headers_of(status: &Status) -> axum::http::HeaderMap {
        let response = status.clone().into_http::<axum::body::Body>();
        response.into_parts().0.headers
    }

    #[test]
    fn a_status_of_somebody_else_gets_the_nearest_kind() {
        for (code, kind) in [
            (Code::Unavailable, ErrorKind::Unavailable),
            (Code::DeadlineExceeded, ErrorKind::Unavailable),
            (Code::OutOfRange, ErrorKind::Invalid),
            (Code::Unimplemented, ErrorKind::Internal),
            (Code::DataLoss, ErrorKind::Corrupt),
        ] {
            assert_eq!(error_of(Status::new(code, "")).kind, kind);
        }
        let mut status = Status::unavailable("");
        status.metadata_mut().insert(KIND_HEADER, "of-a-newer-version".parse().unwrap());
        assert_eq!(error_of(status).kind, ErrorKind::Unavailable);
    }
}
