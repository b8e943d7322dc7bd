//! Whether a request is signed by who it says (AWS Signature Version 4, in headers): computed from what came, not as the client does.

use std::fmt::Write;

use hyper::http::request::Parts;
use ring::{digest, hmac};

use super::{KEY, SECRET};

/// The code of the refusal.
pub fn check(head: &Parts, body: &[u8]) -> Result<(), &'static str> {
    let header = |name: &str| head.headers.get(name).and_then(|v| v.to_str().ok());
    let said = header("authorization").and_then(|said| said.strip_prefix("AWS4-HMAC-SHA256 "));
    let part = |name: &str| said?.split(", ").find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    let (Some(credential), Some(signed), Some(signature), Some(date), Some(hash)) = (
        part("Credential"),
        part("SignedHeaders"),
        part("Signature"),
        header("x-amz-date"),
        header("x-amz-content-sha256"),
    ) else {
        return Err("AccessDenied");
    };
    let Some((KEY, scope)) = credential.split_once('/') else { return Err("InvalidAccessKeyId") };
    if hash != hex(digest::digest(&digest::SHA256, body).as_ref()) {
        return Err("XAmzContentSHA256Mismatch");
    }
    let mut query: Vec<String> = head.uri.query().unwrap_or_default().split('&').map(named).collect();
    query.sort();
    let headers: String = signed
        .split(';')
        .map(|name| format!("{name}:{}\n", header(name).unwrap_or_default().trim()))
        .collect();
    let (method, path, query) = (&head.method, head.uri.path(), query.join("&"));
    let canonical = format!("{method}\n{path}\n{query}\n{headers}\n{signed}\n{hash}");
    let canonical = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
    let key = scope.split('/').fold(format!("AWS4{SECRET}").into_bytes(), |key, part| sign(&key, part));
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{canonical}");
    if hex(&sign(&key, &text)) == signature { Ok(()) } else { Err("SignatureDoesNotMatch") }
}

/// Parameters without a value have an empty one.
fn named(parameter: &str) -> String {
    if parameter.is_empty() || parameter.contains('=') {
        parameter.to_owned()
    } else {
        format!("{parameter}=")
    }
}

fn sign(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
