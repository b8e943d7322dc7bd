//! What is told of a store that does not do what it was asked: a line, for people.

use std::error::Error as StdError;
use std::fmt::Display;

use sextant_common::error::{Error, ErrorKind};

/// Of what a store says; some answer with whole pages.
const TOLD_CHARACTERS_MAX: usize = 300;

const NO_CREDENTIALS: &str = "no credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set, and no metadata service \
                              of a cloud gives any";
/// Where these services are.
const METADATA: &str = "://169.254.";

/// Why there was no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{said}")]
pub struct Failure {
    kind: ErrorKind,
    said: String,
    /// It would be the same again.
    pub is_final: bool,
}

impl Failure {
    pub fn plain(host: &str) -> Self {
        let said = format!("{host}: http:// is not encrypted: https://, or AWS_ALLOW_HTTP=true");
        Self { kind: ErrorKind::Invalid, said, is_final: true }
    }

    pub fn no_credentials() -> Self {
        let said = NO_CREDENTIALS.to_owned();
        Self { kind: ErrorKind::Unauthenticated, said, is_final: true }
    }

    /// Who is there is not who it should be.
    pub fn untrusted(addr: &str, why: &dyn Display) -> Self {
        let said = format!("{addr}: {why} (--store-ca names an authority of one's own)");
        Self { kind: ErrorKind::Unauthenticated, said, is_final: true }
    }

    pub fn unreachable(addr: &str, why: &dyn Display) -> Self {
        Self { kind: ErrorKind::Unavailable, said: format!("{addr}: {why}"), is_final: false }
    }

    pub fn lost(addr: &str, why: &str) -> Self {
        Self::unreachable(addr, &why)
    }

    /// Of what hyper says: its last cause, which may be one of these.
    pub fn of(host: &str, e: &(dyn StdError + 'static)) -> Self {
        causes(e)
            .find_map(|cause| cause.downcast_ref::<Self>().cloned())
            .unwrap_or_else(|| Self::unreachable(host, &causes(e).last().unwrap_or(e)))
    }
}

/// What the code of an answer means to whom it is told.
const KNOWN: &[(&str, ErrorKind, &str)] = &[
    ("NoSuchBucket", ErrorKind::Invalid, "there is no such bucket"),
    ("InvalidAccessKeyId", ErrorKind::Unauthenticated, "the store does not know AWS_ACCESS_KEY_ID"),
    ("SignatureDoesNotMatch", ErrorKind::Unauthenticated, "AWS_SECRET_ACCESS_KEY is not the key's"),
    ("InvalidToken", ErrorKind::Unauthenticated, "the store does not take AWS_SESSION_TOKEN"),
    ("ExpiredToken", ErrorKind::Unauthenticated, "AWS_SESSION_TOKEN has expired"),
    ("AccessDenied", ErrorKind::Denied, "the key may not do this"),
    ("AuthorizationHeaderMalformed", ErrorKind::Invalid, "is AWS_REGION the bucket's?"),
    ("RequestTimeTooSkewed", ErrorKind::Invalid, "is this host's clock right?"),
    ("ConditionalRequestConflict", ErrorKind::Retry, "somebody else writes it at this moment"),
];

/// An error of the store, as a caller knows errors.
pub fn error(e: &object_store::Error) -> Error {
    if let Some(Failure { kind, said, .. }) = causes(e).find_map(|cause| cause.downcast_ref()) {
        return Error::new(*kind, format!("repository: {said}"));
    }
    if let object_store::Error::NotFound { path, .. } = e
        && !is_no_bucket(e)
    {
        return Error::invalid(format!("repository: {path}: it is not there"));
    }
    let text = e.to_string();
    if text.contains(METADATA) {
        let why = format!("repository: {NO_CREDENTIALS} ({})", brief(&text));
        return Error::new(ErrorKind::Unauthenticated, why);
    }
    if let Some(code) = element(&text, "Code") {
        let known = KNOWN.iter().find(|(known, ..)| *known == code);
        let (kind, meaning) = known.map_or((kind(e), "the store refuses"), |(_, kind, said)| (*kind, said));
        let message = brief(element(&text, "Message").unwrap_or_default());
        return Error::new(kind, format!("repository: {meaning} ({}: {message})", brief(code)));
    }
    if text.contains("redirect without LOCATION") {
        let why = "repository: the bucket is in another region: is AWS_REGION the bucket's?";
        return Error::new(ErrorKind::Invalid, why);
    }
    Error::new(kind(e), format!("repository: {}", brief(&text)))
}

/// Whether it is the bucket that there is not.
pub fn is_no_bucket(e: &object_store::Error) -> bool {
    element(&e.to_string(), "Code") == Some("NoSuchBucket")
}

fn kind(e: &object_store::Error) -> ErrorKind {
    match e {
        object_store::Error::InvalidPath { .. } => ErrorKind::Invalid,
        object_store::Error::PermissionDenied { .. } => ErrorKind::Denied,
        object_store::Error::Unauthenticated { .. } => ErrorKind::Unauthenticated,
        object_store::Error::AlreadyExists { .. } => ErrorKind::Retry,
        _ => ErrorKind::Disk,
    }
}

/// The error itself, what caused it, and so on.
fn causes<'e>(e: &'e (dyn StdError + 'static)) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    std::iter::successors(Some(e), |&e| <dyn StdError>::source(e))
}

/// What is in `<name>..</name>`.
fn element<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once("</").map(|(inside, _)| inside)
}

/// In one line that is not too long.
fn brief(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().take(TOLD_CHARACTERS_MAX).collect()
}
