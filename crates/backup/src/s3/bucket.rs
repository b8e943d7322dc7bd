//! A bucket, as a URL and environment variables name it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::prefix::PrefixStore;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};
use sextant_common::error::{Error, Result};
use sextant_environment::Env;

use super::http::Connector;
use super::{refusal, trust};

/// Of a request, until it is given up: a store that is started again is back by then.
const RETRIES_MAX: usize = 8;
const RETRIES_TIME_MAX: Duration = Duration::from_secs(120);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What opens it.
pub struct Access<'a> {
    /// As the environment has them: those that begin with `AWS_` count.
    pub variables: Vec<(String, String)>,
    /// A file with authorities of one's own.
    pub ca: Option<&'a Path>,
    pub retries: usize,
}

impl<'a> Access<'a> {
    pub fn by_environment(ca: Option<&'a Path>) -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let variables = std::env::vars_os().filter_map(text).collect();
        Self { variables, ca, retries: RETRIES_MAX }
    }
}

/// `location`: `BUCKET/PREFIX`, or only the bucket. Nothing is asked of it yet.
pub fn open(env: &Env, location: &str, access: &Access<'_>) -> Result<Arc<dyn ObjectStore>> {
    let (bucket, prefix) = location.split_once('/').unwrap_or((location, ""));
    if bucket.is_empty() {
        return Err(Error::invalid("s3:// without a bucket: s3://BUCKET/PREFIX"));
    }
    if !bucket.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')) {
        return Err(Error::invalid(format!(
            "{bucket:?} is no name of a bucket: letters, digits, '.', '-' and '_'"
        )));
    }
    let builder = configured(&access.variables);
    check(&builder)?;
    let connector = Connector { net: env.net.clone(), tls: trust::trusting(access.ca)? };
    let store = builder
        .with_bucket_name(bucket)
        // One by one, as a prune removes them: some stores know nothing else.
        .with_disable_bulk_delete(true)
        .with_retry(retry(access.retries))
        .with_http_connector(connector)
        .build()
        .map_err(|e| refusal::error(&e))?;
    let prefix = object_store::path::Path::parse(prefix.trim_end_matches('/'))
        .map_err(|e| Error::invalid(format!("s3://{location}: {e}")))?;
    Ok(if prefix.as_ref().is_empty() { Arc::new(store) } else { Arc::new(PrefixStore::new(store, prefix)) })
}

/// As `AmazonS3Builder::from_env` does it, of given variables.
fn configured(variables: &[(String, String)]) -> AmazonS3Builder {
    let mut builder = AmazonS3Builder::new();
    for (name, value) in variables {
        if !name.starts_with("AWS_") || value.is_empty() {
            continue;
        }
        // Others are of other programs.
        if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    builder
}

/// Mistakes that are told better before anything is sent.
fn check(builder: &AmazonS3Builder) -> Result<()> {
    let said = |key: AmazonS3ConfigKey| builder.get_config_value(&key);
    // (They go into headers, as they are.)
    for (key, name) in [
        (AmazonS3ConfigKey::AccessKeyId, "AWS_ACCESS_KEY_ID"),
        (AmazonS3ConfigKey::SecretAccessKey, "AWS_SECRET_ACCESS_KEY"),
        (AmazonS3ConfigKey::Token, "AWS_SESSION_TOKEN"),
        (AmazonS3ConfigKey::Region, "AWS_REGION"),
        (AmazonS3ConfigKey::DefaultRegion, "AWS_DEFAULT_REGION"),
    ] {
        if said(key).is_some_and(|value| !value.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(Error::invalid(format!("{name} has blanks, a line's end or the like in it")));
        }
    }
    if said(AmazonS3ConfigKey::ConditionalPut).is_some_and(|value| value == "disabled") {
        return Err(Error::invalid(
            "AWS_CONDITIONAL_PUT=disabled: of two backups of one name one would be lost",
        ));
    }
    match (said(AmazonS3ConfigKey::AccessKeyId), said(AmazonS3ConfigKey::SecretAccessKey)) {
        (Some(_), None) => return Err(Error::invalid("AWS_ACCESS_KEY_ID without AWS_SECRET_ACCESS_KEY")),
        (None, Some(_)) => return Err(Error::invalid("AWS_SECRET_ACCESS_KEY without AWS_ACCESS_KEY_ID")),
        _ => {}
    }
    let endpoint = said(AmazonS3ConfigKey::S3Endpoint).or_else(|| said(AmazonS3ConfigKey::Endpoint));
    let Some(endpoint) = endpoint else { return Ok(()) };
    let bad = |why: &str| Err(Error::invalid(format!("the endpoint {endpoint:?}: {why}")));
    let plain = said(AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp));
    match endpoint.parse::<hyper::Uri>().ok().filter(|uri| uri.host().is_some()) {
        Some(uri) if uri.scheme_str() == Some("https") => Ok(()),
        Some(uri) if uri.scheme_str() == Some("http") => {
            if plain.is_some_and(|said| is_yes(&said)) {
                return Ok(());
            }
            bad("http:// is not encrypted: https://, or AWS_ALLOW_HTTP=true")
        }
        _ => bad("https://HOST[:PORT] is meant"),
    }
}

/// As `object_store` reads it.
pub fn is_yes(said: &str) -> bool {
    ["1", "true", "on", "yes", "y"].iter().any(|yes| said.eq_ignore_ascii_case(yes))
}

fn retry(max_retries: usize) -> RetryConfig {
    let backoff = BackoffConfig { init_backoff: PAUSE_MIN, max_backoff: PAUSE_MAX, base: 2. };
    RetryConfig { backoff, max_retries, retry_timeout: RETRIES_TIME_MAX }
}
