//! What is in the bucket, and what is answered of it.

use std::collections::BTreeMap;
use std::fmt::Write;

use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use hyper::http::request::Parts;
use hyper::{Method, Response};
use ring::digest;
use sextant_environment::Env;

use super::BUCKET;
use super::signature::hex;

/// So that small listings have several.
const PAGE: usize = 2;
/// Of each part but the last.
const PART_BYTES_MIN: usize = 5 * 1024 * 1024;

#[derive(Default)]
pub struct Bucket {
    objects: BTreeMap<String, Object>,
    /// Key, and parts.
    uploads: BTreeMap<String, (String, BTreeMap<u32, Bytes>)>,
    begun: u32,
}

struct Object {
    bytes: Bytes,
    /// In whole seconds.
    modified: DateTime<Utc>,
}

impl Object {
    fn tag(&self) -> String {
        tag(&self.bytes)
    }
}

fn tag(bytes: &[u8]) -> String {
    format!("\"{}\"", hex(digest::digest(&digest::SHA256, bytes).as_ref()))
}

impl Bucket {
    pub fn uploads(&self) -> usize {
        self.uploads.len()
    }

    pub fn answer(&mut self, head: &Parts, body: Bytes) -> Response<Bytes> {
        let path = decoded(head.uri.path());
        let (bucket, key) = path[1..].split_once('/').unwrap_or((&path[1..], ""));
        if bucket != BUCKET {
            return refusal(404, "NoSuchBucket", "The specified bucket does not exist");
        }
        let query: BTreeMap<String, String> = head
            .uri
            .query()
            .unwrap_or_default()
            .split('&')
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(name, value)| (decoded(name), decoded(value)))
            .collect();
        let upload = query.get("uploadId").map(String::as_str);
        match (&head.method, upload) {
            (&Method::GET, None) if key.is_empty() => self.list(&query),
            (&Method::GET, None) => self.get(head, key),
            (&Method::PUT, None) => self.put(head, key, body),
            (&Method::DELETE, None) => {
                self.objects.remove(key);
                said(204, "")
            }
            (&Method::POST, None) if query.contains_key("uploads") => self.begin(key),
            (&Method::PUT, Some(id)) => self.part(id, &query["partNumber"], body),
            (&Method::POST, Some(id)) => self.complete(id, key, &body),
            (&Method::DELETE, Some(id)) => {
                self.uploads.remove(id);
                said(204, "")
            }
            _ => refusal(501, "NotImplemented", "This is none of what is pretended"),
        }
    }

    fn list(&self, query: &BTreeMap<String, String>) -> Response<Bytes> {
        let of = |name: &str| query.get(name).map_or("", String::as_str);
        let (prefix, after) = (of("prefix"), of("continuation-token"));
        let mut found =
            self.objects.iter().filter(|(key, _)| key.starts_with(prefix) && key.as_str() > after);
        let page: Vec<_> = found.by_ref().take(PAGE).collect();
        let mut xml = "<ListBucketResult>".to_owned();
        for (key, object) in &page {
            let modified = object.modified.to_rfc3339_opts(SecondsFormat::Millis, true);
            let (bytes, tag) = (object.bytes.len(), object.tag().replace('"', "&quot;"));
            let _ = write!(
                xml,
                "<Contents><Key>{key}</Key><LastModified>{modified}</LastModified><ETag>{tag}</ETag>\
                 <Size>{bytes}</Size></Contents>"
            );
        }
        if let (Some((last, _)), Some(_)) = (page.last(), found.next()) {
            let _ = write!(xml, "<NextContinuationToken>{last}</NextContinuationToken>");
        }
        said(200, &(xml + "</ListBucketResult>"))
    }

    fn get(&self, head: &Parts, key: &str) -> Response<Bytes> {
        let Some(object) = self.objects.get(key) else {
            return refusal(404, "NoSuchKey", "The specified key does not exist.");
        };
        let bytes = object.bytes.len();
        let answer = Response::builder()
            .header("etag", object.tag())
            .header("last-modified", object.modified.to_rfc2822().replace("+0000", "GMT"));
        let range = head.headers.get("range").and_then(|range| range.to_str().ok());
        let Some((first, last)) = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'))
        else {
            return answer.body(object.bytes.clone()).unwrap();
        };
        let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
        if first >= bytes {
            return refusal(416, "InvalidRange", "The requested range is not satisfiable");
        }
        let end = bytes.min(last + 1);
        answer
            .status(206)
            .header("content-range", format!("bytes {first}-{}/{bytes}", end - 1))
            .body(object.bytes.slice(first..end))
            .unwrap()
    }

    fn put(&mut self, head: &Parts, key: &str, bytes: Bytes) -> Response<Bytes> {
        let only_new = head.headers.get("if-none-match").is_some_and(|said| said == "*");
        if only_new && self.objects.contains_key(key) {
            return refusal(412, "PreconditionFailed", "At least one of the pre-conditions did not hold");
        }
        self.store(key, bytes)
    }

    fn store(&mut self, key: &str, bytes: Bytes) -> Response<Bytes> {
        let now_s = i64::try_from(Env::real().clock.wall_guess_ns() / 1_000_000_000).unwrap();
        let object = Object { bytes, modified: DateTime::from_timestamp(now_s, 0).unwrap() };
        let tag = object.tag();
        self.objects.insert(key.to_owned(), object);
        Response::builder().header("etag", tag).body(Bytes::new()).unwrap()
    }

    fn begin(&mut self, key: &str) -> Response<Bytes> {
        self.begun += 1;
        let id = format!("upload-{}", self.begun);
        self.uploads.insert(id.clone(), (key.to_owned(), BTreeMap::new()));
        let id = format!("<UploadId>{id}</UploadId>");
        said(200, &format!("<InitiateMultipartUploadResult>{id}</InitiateMultipartUploadResult>"))
    }

    fn part(&mut self, id: &str, number: &str, bytes: Bytes) -> Response<Bytes> {
        let Some((_, parts)) = self.uploads.get_mut(id) else {
            return refusal(404, "NoSuchUpload", "The specified upload does not exist");
        };
        let tag = tag(&bytes);
        parts.insert(number.parse().unwrap(), bytes);
        Response::builder().header("etag", tag).body(Bytes::new()).unwrap()
    }

    /// Of the parts that are named, by their tags.
    fn complete(&mut self, id: &str, key: &str, named: &[u8]) -> Response<Bytes> {
        let Some((_, parts)) = self.uploads.get(id).filter(|(of, _)| of == key) else {
            return refusal(404, "NoSuchUpload", "The specified upload does not exist");
        };
        let named = String::from_utf8(named.to_vec()).unwrap().replace("&quot;", "\"");
        if !parts.values().all(|part| named.contains(&tag(part)))
            || named.matches("<Part>").count() != parts.len()
        {
            return refusal(400, "InvalidPart", "One or more of the specified parts could not be found");
        }
        if parts.values().rev().skip(1).any(|part| part.len() < PART_BYTES_MIN) {
            return refusal(400, "EntityTooSmall", "Your proposed upload is smaller than the minimum");
        }
        let whole: Vec<u8> = parts.values().flatten().copied().collect();
        let tag = tag(&whole).replace('"', "&quot;");
        self.uploads.remove(id);
        self.store(key, whole.into());
        said(
            200,
            &format!("<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>"),
        )
    }
}

fn said(status: u16, xml: &str) -> Response<Bytes> {
    Response::builder().status(status).body(Bytes::copy_from_slice(xml.as_bytes())).unwrap()
}

pub fn refusal(status: u16, code: &str, message: &str) -> Response<Bytes> {
    said(status, &format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>"))
}

/// `%2F` and its like.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let coded = (*first == b'%').then(|| after.get(..2)).flatten();
        let byte = coded.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).unwrap()
}
