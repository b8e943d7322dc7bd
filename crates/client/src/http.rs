//! A GET on a server's HTTP endpoint: `/metrics`, `/status`, `/health/ready`. For tools that watch a cluster from
//! outside.

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use sextant_common::error::{Error, Result};
use sextant_environment::Env;
use sextant_environment::env::Whom;

/// Largest body that is read: a `/metrics` page has some hundred kilobytes.
const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A server's answer.
#[derive(Clone, Debug)]
pub struct HttpAnswer {
    pub status: u16,
    pub body: Bytes,
}

impl HttpAnswer {
    pub fn is_ok(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The body as text; bytes that are not UTF-8 are replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// `GET http://{addr}{path}` within `deadline`. `Unavailable` if the server cannot be reached in time.
pub fn get<'a>(
    env: &'a Env,
    addr: &'a str,
    path: &'a str,
    deadline: Duration,
) -> BoxFuture<'a, Result<HttpAnswer>> {
    Box::pin(async move {
        let unavailable = |e: &dyn std::fmt::Display| Error::unavailable(format!("http://{addr}{path}: {e}"));
        let exchange = async {
            let connection =
                env.net.connect(addr.to_owned(), Whom::Host).await.map_err(|e| unavailable(&e))?;
            let (mut sender, driver) =
                hyper::client::conn::http1::handshake::<_, Empty<Bytes>>(TokioIo::new(connection))
                    .await
                    .map_err(|e| unavailable(&e))?;
            let request = hyper::Request::get(path)
                .header(hyper::header::HOST, addr)
                .header(hyper::header::CONNECTION, "close")
                .body(Empty::new())
                .map_err(|e| Error::invalid(format!("{path:?} is no path: {e}")))?;
            let answer = async {
                let response = sender.send_request(request).await.map_err(|e| unavailable(&e))?;
                let status = response.status().as_u16();
                let body = Limited::new(response.into_body(), BODY_BYTES_MAX)
                    .collect()
                    .await
                    .map_err(|e| unavailable(&e))?
                    .to_bytes();
                Ok(HttpAnswer { status, body })
            };
            // The driver moves the bytes; it has nothing to say that the answer does not say too.
            let (answer, _) = futures::join!(answer, driver);
            answer
        };
        tokio::time::timeout(deadline, exchange)
            .await
            .unwrap_or_else(|_| Err(unavailable(&"no answer in time")))
    })
}
